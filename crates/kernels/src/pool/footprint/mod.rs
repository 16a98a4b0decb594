//! Extrema under a footprint: windows of stride 1, of which only some taps count.
//!
//! ```text
//! level 0 = x
//! for j = 0, 1, …:
//!     for each output o:                             a unit per few vectors of outputs
//!         y[o] = y[o] ⋅ level j [o + start]          over the pieces of length 2ʲ of the footprint's runs
//!     level j+1 [i] = level j [i] ⋅ level j [i + 2ʲ] a unit per vector; 2ʲ elements on along the width
//! ```
//!
//! A run of neighbouring taps, however long, is one piece or two that overlap, so a disk of radius r reads 4r + 2 elements
//! for its πr² taps. Where a piece starts is an offset in memory, the same for all outputs; the offsets are in a buffer. Units
//! read it for several outputs at once, which are far apart, so that neighbouring units read neighbouring elements.
//!
//! Past the end of a row a level has elements of the next one. No piece begins there.

mod kernel;

use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, Footprint};

use crate::cube::convert::{ExtremumForm, Widening};
use crate::cube::numbers;
use crate::cube::unit::{plain_grid, widest_lanes};
use crate::device::Target;
use crate::error::{PlanError, ensure};
use crate::pool::common::{Task, Tensor};
use crate::pool::problem::{Output, Reduction, check_workspace};

/// The outputs that a unit computes.
const TOGETHER: usize = 4;

/// The most pieces of a launch. Some drivers end long loops.
const MOST_PIECES: usize = 1 << 14;

/// Refuses windows that the kernels do not have, and levels too large for the device.
pub(super) fn check(task: Task<'_>, footprint: Footprint<'_>) -> Result<(), PlanError> {
    const NAME: &str = "footprint";
    let applies =
        |applies, reason| ensure(applies, PlanError::NotApplicable { kernel: NAME, reason });
    let extremum = matches!(task.reduction(), Reduction::Extremum(_, Output::Values));
    applies(extremum && !task.problem.gradient, "only extrema have footprints, without indices")?;
    let plain =
        |axis: &Axis| (axis.stride(), axis.dilation(), axis.before(), axis.after()) == (1, 1, 0, 0);
    applies(task.axes().iter().all(plain), "windows have stride 1 and no padding")?;
    let same = task.pooling().grid().kernel().three(1) == footprint.extents().three(1);
    applies(same, "the footprint has the extents of the windows")?;
    let bytes = task.inputs().saturating_mul(task.dtype().size());
    check_workspace(task.inputs(), bytes, task.device)
}

/// Launches the kernels of a task that [`check`] has accepted on checked buffers.
pub(super) fn launch(
    target: Target<'_>,
    task: Task<'_>,
    footprint: Footprint<'_>,
    [x, y]: [Tensor<'_>; 2],
) {
    let axes = task.axes();
    let space = |i: usize| axes[i].input();
    let step = [space(1) * space(2) * task.pixel(), space(2) * task.pixel(), task.pixel()];
    let at = |start: [usize; AXES]| (0..AXES).map(|i| start[i] * step[i]).sum::<usize>();
    let longest = footprint.pieces().map(|piece| piece.length).max().unwrap_or(1);
    let mut level = x.handle.clone();
    let mut length = 1;
    let mut first = true;
    loop {
        let pieces = footprint.pieces().filter(|piece| piece.length == length);
        let starts: Vec<u32> = pieces.map(|piece| at(piece.start) as u32).collect();
        for starts in starts.chunks(MOST_PIECES) {
            combine(target, task, &level, starts, y, first);
            first = false;
        }
        if length == longest {
            return;
        }
        level = doubled(target, task, &level, length);
        length *= 2;
    }
}

/// The next level.
fn doubled(target: Target<'_>, task: Task<'_>, level: &Handle, length: usize) -> Handle {
    let Target { client, device } = target;
    let (elements, by) = (task.inputs(), length * task.pixel());
    let lanes = widest_lanes(device, task.dtype().size(), by | elements);
    let next = client.empty(elements * task.dtype().size());
    let (cubes, units) = plain_grid(target, elements / lanes);
    // SAFETY: both buffers hold all elements; a unit past the last ends, and none reads past the last.
    unsafe {
        kernel::doubled::launch_unchecked(
            client,
            cubes,
            units,
            lanes,
            Tensor::new(level, elements).vectors(lanes),
            Tensor::new(&next, elements).vectors(lanes),
            (elements / lanes) as u32,
            (by / lanes) as u32,
            Form::new(task, false),
            task.types(),
        );
    }
    next
}

/// Combines the outputs, unless it is the `first` time, with the pieces of a level that start at these offsets.
fn combine(
    target: Target<'_>,
    task: Task<'_>,
    level: &Handle,
    starts: &[u32],
    y: Tensor<'_>,
    first: bool,
) {
    let Target { client, device } = target;
    let lanes = widest_lanes(device, task.dtype().size(), task.pixel());
    let vectors = task.outputs() / lanes;
    let places = starts.iter().flat_map(|start| (start / lanes as u32).to_ne_bytes());
    let bytes: Vec<u8> = places.collect();
    let places = client.create_from_slice(&bytes);
    let units = vectors.div_ceil(TOGETHER);
    let (cubes, dim) = plain_grid(target, units);
    let axes = task.axes();
    let pixel = task.pixel() / lanes;
    let space = numbers!(SpaceLaunch {
        vectors,
        units,
        pieces: starts.len(),
        channels: pixel,
        pixel,
        width: axes[2].output(),
        height: axes[1].output(),
        depth: axes[0].output(),
        row: axes[2].input(),
        rows: axes[1].input(),
        planes: axes[0].input(),
    });
    // SAFETY: the launch reads inside the input, because windows are; the places are as many as `space` says.
    unsafe {
        kernel::combined::launch_unchecked(
            client,
            cubes,
            dim,
            lanes,
            Tensor::new(level, task.inputs()).vectors(lanes),
            BufferArg::from_raw_parts(places, starts.len()),
            y.vectors(lanes),
            space,
            Form::new(task, first),
            task.types(),
        );
    }
}

/// The outputs and the input, in vectors.
#[derive(CubeType, CubeLaunch)]
struct Space {
    vectors: u32,
    units: u32,
    pieces: u32,
    channels: u32,
    pixel: FastDivmod<u32>,
    width: FastDivmod<u32>,
    height: FastDivmod<u32>,
    depth: FastDivmod<u32>,
    row: u32,
    rows: u32,
    planes: u32,
}

/// The parameters that change a kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    extremum: ExtremumForm,
    widened: Widening,
    /// Whether outputs are written for the first time.
    first: bool,
    contiguous: bool,
}

impl Form {
    fn new(task: Task<'_>, first: bool) -> Self {
        Self {
            extremum: task.settings.extremum,
            widened: task.widening(task.dtype()),
            first,
            contiguous: task.settings.contiguous,
        }
    }
}
