//! Gradients in blocks: one unit per block of inputs, which reads the windows over it once.
//!
//! ```text
//! for each block of inputs:                      s on each axis, or a strip of them
//!     for each window o over the block:          ⌊(k−1)/s⌋ + 1 on each axis, or a few more
//!         load dy[o], and the winner or the divisor
//!     for each input x of the block:
//!         for each window over x:                known when the kernel is compiled
//!             add dy[o] if its winner is x, or dy[o] / divisor(o)
//! ```
//!
//! A block is a whole number of strides, so the windows over the i-th input are the same for all blocks. Blocks at the
//! edges read windows that do not exist as zeros.
//!
//! With channels first, the lanes of a vector are neighbours along the width, and each takes its windows from the
//! vectors of `dy` that hold them. A vector of `dy` has as many windows as start in a vector of inputs, so that a block
//! is one vector wide and neighbouring units write adjacent vectors. If the stride does not divide the lanes, vectors
//! of `dy` are as long as those of `dx`, and a block is `stride` vectors wide.

mod cost;
mod form;
mod kernel;
mod shares;
mod windows;

use core::fmt;

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis};

use crate::cube::axis::{AxisArgs, axis_args};
use crate::device::Capabilities;
use crate::pool::common::blocks;
use crate::pool::common::window::indexing;
use crate::pool::common::{
    Buffers, Kernel, Settings, Task, Tiles, blocks_on_axes, check_strip, lanes_along_width,
    optional, tiles_args,
};
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Gradient, Problem, outermost};

use form::Form;

const NAME: &str = "gather_tile";

/// How inputs are distributed to units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The number of strides in a block, along the outermost axis that has a window.
    pub strip: usize,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { strip } = self;
        write!(f, "strips of {strip} steps")
    }
}

impl Kernel for Config {
    const NAME: &'static str = NAME;

    /// Refuses norms: their gradient is gathered tap by tap.
    fn applies(problem: Problem<'_>, _device: &Capabilities) -> Result<(), PlanError> {
        only_if(NAME, problem.gradient, "it only computes gradients")?;
        only_if(NAME, !problem.is_norm(), "it computes no gradients of norms")
    }

    /// Plans blocks of one stride or of several.
    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError> {
        let pooling = task.pooling();
        let longest = if task.axes()[outermost(pooling)].stride() == 1 { 4 } else { 1 };
        let mut strips = [4, 2, 1].into_iter().filter(|&strip| strip <= longest);
        // If no strip fits, the check reports why a block of one stride does not.
        let strip = strips.find(|&strip| form::check(pooling, strip).is_ok()).unwrap_or(1);
        // The indices of all windows over several steps would not fit in registers.
        let many = strip > 1 && task.reduction().is_extremum();
        let own = if many { task.settings.narrowed(task.device) } else { task.settings };
        Ok((own.with_lanes(lanes_along_width(task.problem, task.widest())), Self { strip }))
    }

    /// Refuses blocks that hold too much, and lanes that do not divide the rows of inputs and of windows.
    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        check_strip(self.strip)?;
        form::check(task.pooling(), self.strip)?;
        task.check_lanes()
    }

    fn seconds(&self, task: Task<'_>) -> f64 {
        cost::seconds(self, task)
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        let Buffers { client, input: dy, output: dx, indices: winners, .. } = buffers;
        let gradient = task.reduction().gradient().ok_or(PlanError::Foreign { kernel: NAME })?;
        let form = Form::new(task, gradient, self.strip);
        let (lanes, window_lanes) = (task.lanes(), window_lanes(task, &form));
        let units = units(task, &form);
        let (cubes, dim) = task.grid(client, units);
        // SAFETY: windows and inputs that do not exist are neither read nor written.
        unsafe {
            kernel::gather_blocks::launch_unchecked(
                client,
                cubes,
                dim,
                window_lanes,
                lanes,
                dy.vectors(window_lanes),
                optional(winners, window_lanes),
                dx.vectors(lanes),
                blocks_args(task, gradient, units, blocks_on_axes(task, &form.axes)),
                form,
                task.elem(),
                task.accumulator(),
            )
        };
        Ok(())
    }
}

/// The lanes of a vector of windows.
fn window_lanes(task: Task<'_>, form: &Form) -> usize {
    if task.settings.along_width { form.window_lanes as usize } else { task.lanes() }
}

/// The number of blocks, each of which is a unit's.
fn units(task: Task<'_>, form: &Form) -> usize {
    let pixel = task.pixel_vectors() as usize;
    let positions = task.vectors_on_axes(Axis::input).iter().product::<usize>();
    let samples = task.inputs() / task.lanes() / pixel / positions;
    samples * pixel * blocks_on_axes(task, &form.axes).iter().product::<usize>()
}

/// The numbers of an axis, seen from its blocks.
#[derive(CubeType, CubeLaunch)]
struct BlockAxis {
    axis: AxisArgs,
    places: FastDivmod<u32>,
    /// The number of windows, in vectors if the lanes lie along the axis.
    outputs: i32,
    /// The number of inputs, in vectors if the lanes lie along the axis.
    inputs: i32,
}

/// The numbers of a problem. They are run-time values, so they may change without compiling a new kernel.
#[derive(CubeType, CubeLaunch)]
struct Blocks {
    units: u32,
    tiles: Tiles,
    /// The number of vectors in a pixel.
    pixel_vectors: i32,
    depth: BlockAxis,
    height: BlockAxis,
    width: BlockAxis,
    /// The value of a fixed divisor.
    divisor: u32,
    /// The reciprocal of the divisor of a window with all its taps inside the input.
    reciprocal: InputScalar,
    /// The index steps to the next sample, position, and lane of a vector.
    index_batch: u32,
    index_position: u32,
    index_lane: u32,
}

fn blocks_args(
    task: Task<'_>,
    gradient: Gradient,
    units: usize,
    places: [usize; AXES],
) -> BlocksLaunch {
    let inputs = task.vectors_on_axes(Axis::input);
    let axes = task.axes();
    let along_width = |i| task.settings.along_width && i == AXES - 1;
    let lanes = |i| if along_width(i) { blocks::window_lanes(&axes[i], task.lanes()) } else { 1 };
    let [depth, height, width] = [0, 1, 2].map(|i| {
        BlockAxisLaunch::new(
            axis_args(&axes[i]),
            places[i] as u32,
            (axes[i].output() / lanes(i)) as i32,
            inputs[i] as i32,
        )
    });
    let reduction = gradient.reduction();
    let [index_batch, index_channel, index_position] = indexing(task.pooling(), reduction.base());
    BlocksLaunch::new(
        units as u32,
        tiles_args(task, places[AXES - 2]),
        task.pixel_vectors() as i32,
        depth,
        height,
        width,
        reduction.fixed_divisor(),
        task.reciprocal(),
        index_batch,
        index_position,
        if task.settings.along_width { index_position } else { index_channel },
    )
}
