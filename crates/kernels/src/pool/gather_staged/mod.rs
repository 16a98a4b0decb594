//! Gradients of maxima in blocks, with channels last and with windows staged in shared memory: cubes walk along the
//! planes.
//!
//! ```text
//! for each tile of blocks of rows and columns, and some of their channels:  one cube; one unit per block and vector
//!     for each plane of blocks:
//!         store the windows of one more plane in shared memory, and start loading those of the next
//!         for each window over the block, row-major:
//!             for each input x of the block under it:       known when the kernel is compiled
//!                 add dy if its winner is x
//!             write the inputs for which this window is the last one
//! ```
//!
//! `gather_tile` reads a window once for each block under it, through caches that serve only some of these reads. Here
//! a cube reads it once; a window is read again only if it lies over two tiles or two pieces of the planes. No unit waits for
//! a window, because it is loaded while a whole plane of blocks is computed.

mod kernel;

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, IndexBase, Layout};

use crate::cube::convert::Widening;
use crate::cube::numbers;
use crate::device::Capabilities;
use crate::error::{PlanError, only_if};
use crate::pool::common::window::split;
use crate::pool::common::{
    Block, Buffers, Kernel, Settings, Task, WARP, blocks_on_axes, check_blocks, no_config,
    widest_divisor,
};
use crate::pool::problem::{Problem, outermost, pixel_channels};

pub(super) const NAME: &str = "gather_staged";

/// The instructions of a unit for each plane of blocks, besides its windows and its sums.
const OF_PLANE: f64 = 160.0;

no_config!();

impl Kernel for Config {
    /// Refuses problems whose winners are not positions in planes of several channels, and blocks with too many inputs or
    /// with too many windows over them.
    fn applies(problem: Problem<'_>, device: &Capabilities) -> Result<(), PlanError> {
        let Problem { pooling, reduction, gradient, .. } = problem;
        let all = |holds: fn(&Axis) -> bool| pooling.grid().axes().iter().all(holds);
        let positions = reduction.base() == IndexBase::Plane;
        let last = pooling.layout() == Layout::ChannelsLast;
        let whole = pixel_channels(pooling).is_multiple_of(LANES);
        only_if(NAME, device.cores.is_none(), "it is for GPUs")?;
        only_if(NAME, gradient, "it only computes gradients")?;
        only_if(NAME, reduction.is_extremum(), "it only computes gradients of extrema")?;
        only_if(NAME, positions, "indices are not positions in a plane")?;
        only_if(NAME, last, "it is for channels-last tensors")?;
        only_if(NAME, whole, "channels are not a multiple of 4")?;
        only_if(NAME, outermost(pooling) == 0, "windows are not three-dimensional")?;
        only_if(NAME, !pooling.grid().is_adaptive(), "window sizes follow from the input")?;
        only_if(NAME, all(|axis| axis.dilation() == 1), "windows are dilated")?;
        only_if(NAME, all(|axis| axis.stride() <= MOST_INPUTS), "strides are too long")?;
        only_if(NAME, all(|axis| axis.kernel() <= MOST_WINDOWS), "windows have too many taps")?;
        check_blocks(NAME, &Block::of(pooling), [MOST_INPUTS, MOST_WINDOWS])
    }

    /// Plans cubes that each have a tile of blocks.
    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError> {
        let own = Settings { lanes: LANES, unrolled: true, ..task.settings };
        Ok((Settings { units: Form::new(task.with(own)).units(), ..own }, Self))
    }

    /// Refuses problems and devices that the kernel does not support, lanes and units other than the tile's, and tiles
    /// that do not fit in shared memory.
    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        let (settings, device) = (task.settings, task.device);
        only_if(NAME, settings.lanes == LANES, "its vectors have 4 channels")?;
        let loaded = LANES <= task.widest();
        only_if(NAME, loaded, "the device does not load vectors of 4 elements of this type")?;
        let form = Form::new(task);
        let units = form.units();
        only_if(NAME, settings.units == units, "a tile takes another number of units")?;
        only_if(NAME, units <= device.units_per_cube, "the device has too few units per cube")?;
        let room = form.shared_bytes(task.dtype()) <= device.shared_bytes;
        only_if(NAME, room, "the windows of a tile do not fit in shared memory")
    }

    fn seconds(&self, task: Task<'_>) -> f64 {
        let form = Form::new(task);
        let strides: usize = task.axes().iter().map(Axis::stride).product();
        let over = task.taps() as f64 / strides as f64;
        let sums = f64::from(form.inputs()) * over * task.reduce_cost(LANES);
        // A window is stored in shared memory and read from it for each block, element by element if it cannot be seen
        // as vectors of such elements.
        let whole = task.device.shared_vectors && task.dtype().is_float();
        let read: u32 = if whole { 0 } else { form.windows().iter().product() };
        let windows = f64::from(2 * form.turns() + read) * task.load_windows_cost(LANES);
        let planes = blocks_on_axes(task, &form.axes)[0].min(PLANES) as f64;
        // A cube takes whole warps.
        let units = cubes(task, &form) * task.settings.units.next_multiple_of(WARP) as usize;
        task.launch_seconds(units, planes * (OF_PLANE + windows + sums), planes)
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        let Buffers { client, input: dy, output: dx, indices, .. } = buffers;
        let winners = indices.ok_or(PlanError::Indices { needed: true })?;
        let (form, axes, lanes) = (Form::new(task), task.axes(), task.lanes());
        let (blocks, tiles) = (blocks_on_axes(task, &form.axes), tiles(task, &form));
        let [depth, height, width] = [0, 1, 2].map(|i| {
            numbers! { StagedAxisLaunch {
                inputs: axes[i].input(), windows: axes[i].output(), blocks: blocks[i],
                tiles: tiles[i],
            } }
        });
        let cubes = cubes(task, &form);
        let args = StagedArgsLaunch::new(cubes as u32, depth, height, width, PLANES as u32);
        let (count, dim) = task.cubes(client, cubes);
        // SAFETY: windows and inputs that do not exist are neither read nor written.
        unsafe {
            kernel::walk_blocks::launch_unchecked(
                client,
                count,
                dim,
                lanes,
                dy.vectors(lanes),
                winners.vectors(lanes),
                dx.vectors(lanes),
                args,
                form,
                task.types(),
            )
        };
        Ok(())
    }
}

/// The number of blocks of a tile along the height and the width, and the most channels of a tile.
const TILE: [usize; 2] = [2, 4];
const CHANNELS: usize = 64;

/// The channels of a unit: as many as have their winners in one load of the widest kind.
const LANES: usize = 4;

/// The number of planes of blocks that a cube walks along, if there are as many.
const PLANES: usize = 4;

/// The most inputs of a block, each of which takes a sum in registers, and the most windows over it, each of which
/// takes code.
const MOST_INPUTS: usize = 8;
const MOST_WINDOWS: usize = 27;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    axes: [Block; AXES],
    /// Whether all inputs of all blocks exist, on each axis.
    whole: [bool; AXES],
    /// The number of vectors in a pixel, and of those in a tile.
    pixel: u32,
    vectors: u32,
    rounds: bool,
    /// How elements are converted to the accumulator's type.
    widened: Widening,
}

impl Form {
    fn new(task: Task<'_>) -> Self {
        let axes = Block::of(task.pooling());
        let pixel = task.pixel_vectors();
        Self {
            axes,
            whole: [0, 1, 2]
                .map(|i| task.axes()[i].input().is_multiple_of(axes[i].inputs as usize)),
            pixel,
            vectors: widest_divisor(pixel as usize, CHANNELS / LANES) as u32,
            rounds: task.rounds(),
            widened: task.widening(task.dtype()),
        }
    }

    /// The number of units in a cube.
    fn units(&self) -> u32 {
        (TILE[0] * TILE[1]) as u32 * self.vectors
    }

    /// The bytes of shared memory of a cube.
    fn shared_bytes(&self, dtype: DType) -> usize {
        let elements = self.plane() as usize * LANES;
        self.planes() as usize * elements * (dtype.size() + DType::I32.size())
    }

    /// The number of windows over a block on each axis.
    fn windows(&self) -> [u32; AXES] {
        self.axes.map(|axis| axis.all().1)
    }

    /// The numbers of rows and columns of windows over a tile.
    fn tile_windows(&self) -> [u32; 2] {
        let [_, height, width] = self.windows();
        [TILE[0] as u32 - 1 + height, TILE[1] as u32 - 1 + width]
    }

    /// The number of vectors in a plane of windows.
    fn plane(&self) -> u32 {
        let [rows, columns] = self.tile_windows();
        rows * columns * self.vectors
    }

    /// The number of vectors of a plane that a unit loads.
    fn turns(&self) -> u32 {
        self.plane().div_ceil(self.units())
    }

    /// The number of planes of windows in shared memory: those over a block, and one more.
    fn planes(&self) -> u32 {
        self.windows()[0] + 1
    }

    /// The number of inputs in a block.
    fn inputs(&self) -> u32 {
        self.axes.iter().map(|axis| axis.inputs).product()
    }

    /// The place of window `w` of a block, in row-major order, among those over input `x`; `None` if it is not over
    /// `x`.
    fn over(&self, x: u32, w: u32) -> Option<Order> {
        let inputs = self.axes.map(|axis| axis.inputs);
        let (x, w) = (split(inputs, x), split(self.windows(), w));
        let (mut first, mut last) = (true, true);
        for i in 0..AXES {
            let (start, count) = self.axes[i].over(x[i]);
            let nth = self.axes[i].all().0 + w[i] as i32 - start;
            if !(0..count as i32).contains(&nth) {
                return None;
            }
            first &= nth == 0;
            last &= nth + 1 == count as i32;
        }
        Some(Order { first, last })
    }

    /// Whether no window is over input `x` of a block.
    fn is_bare(&self, x: u32) -> bool {
        let windows: u32 = self.windows().iter().product();
        (0..windows).all(|w| self.over(x, w).is_none())
    }
}

/// Whether a window is the first, and whether it is the last, of those over an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    first: bool,
    last: bool,
}

/// The numbers of an axis, seen from its blocks.
#[derive(CubeType, CubeLaunch)]
struct StagedAxis {
    inputs: i32,
    windows: i32,
    /// The number of blocks.
    blocks: u32,
    /// The number of tiles, or of pieces of the planes.
    tiles: FastDivmod<u32>,
}

#[derive(CubeType, CubeLaunch)]
struct StagedArgs {
    cubes: u32,
    depth: StagedAxis,
    height: StagedAxis,
    width: StagedAxis,
    /// The number of planes of blocks in a piece.
    piece_planes: u32,
}

/// The number of pieces of the planes, and of tiles on the other axes.
fn tiles(task: Task<'_>, form: &Form) -> [usize; AXES] {
    let (blocks, steps) = (blocks_on_axes(task, &form.axes), [PLANES, TILE[0], TILE[1]]);
    [0, 1, 2].map(|i| blocks[i].div_ceil(steps[i]))
}

/// The number of cubes of a problem.
fn cubes(task: Task<'_>, form: &Form) -> usize {
    let tiles: usize = tiles(task, form).into_iter().product();
    task.pooling().input().batch() * tiles * (form.pixel / form.vectors) as usize
}
