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

mod form;
mod kernel;
mod shares;
mod windows;

use core::fmt;

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis};

use crate::cube::SECTOR;
use crate::device::Capabilities;
use crate::error::{PlanError, only_if};
use crate::pool::common::blocks;
use crate::pool::common::window::{ProblemArgs, problem_args};
use crate::pool::common::{
    Buffers, Kernel, Settings, Task, Tiles, Work, blocks_on_axes, check_strip, lanes_along_width,
    optional, tiles_args,
};
use crate::pool::problem::{Problem, outermost};

use form::Form;

pub(super) const NAME: &str = "gather_tile";

/// The instructions of a unit besides its windows and its sums; of a window besides its loads; and of a division.
const OF_UNIT: f64 = 190.0;
const OF_WINDOW: f64 = 6.5;
const OF_DIVISION: f64 = 20.0;

/// How inputs are distributed to units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The number of strides in a block, along the outermost axis that has a window.
    pub strip: usize,
}

impl Config {
    /// The bytes that stores move besides the inputs. With channels first and vectors of one element, a unit stores its
    /// inputs one by one; its neighbour's are a block further.
    fn bytes_apart(self, task: Task<'_>) -> f64 {
        let strip = if outermost(task.pooling()) == AXES - 1 { self.strip } else { 1 };
        let step = task.axes()[AXES - 1].stride() * strip;
        let apart = task.device.cores.is_none() && task.lanes() == 1 && task.pixel() == 1;
        let size = task.dtype().size();
        let moved = if apart { (size * step).min(SECTOR) } else { size };
        (task.inputs() * (moved - size)) as f64
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { strip } = self;
        write!(f, "strips of {strip} steps")
    }
}

impl Kernel for Config {
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
        let form = Form::new(task, self.strip);
        // Windows whose lanes lie along the width have a divisor each.
        let divisors = match form.divides_each() && !form.compares() {
            true => f64::from(form.window_lanes) * OF_DIVISION,
            false => 0.0,
        };
        let window = OF_WINDOW + task.load_windows_cost(window_lanes(task, &form)) + divisors;
        let strides: usize = task.axes().iter().map(Axis::stride).product();
        let over = task.taps() as f64 / strides as f64;
        let moves = if task.settings.along_width { task.shuffle_cost(task.lanes()) } else { 0.0 };
        let sum = over * (task.reduce_cost(task.lanes()) + moves);
        let block = f64::from(form.all_windows()) * window + f64::from(form.all_inputs()) * sum;
        let work = Work {
            bytes: task.bytes() + self.bytes_apart(task),
            units: task.units_at(blocks_on_axes(task, &form.axes)) as f64,
            instructions: OF_UNIT + block,
            waits: 1.0,
        };
        work.seconds(task.device)
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        let Buffers { client, input: dy, output: dx, indices: winners, .. } = buffers;
        let form = Form::new(task, self.strip);
        let (lanes, window_lanes) = (task.lanes(), window_lanes(task, &form));
        let places = blocks_on_axes(task, &form.axes);
        let units = task.units_at(places);
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
                blocks_args(task, units, places),
                form,
                task.types(),
            )
        };
        Ok(())
    }
}

/// The lanes of a vector of windows.
fn window_lanes(task: Task<'_>, form: &Form) -> usize {
    if task.settings.along_width { form.window_lanes as usize } else { task.lanes() }
}

/// The numbers of an axis, seen from its blocks.
#[derive(CubeType, CubeLaunch)]
struct BlockAxis {
    places: FastDivmod<u32>,
    /// The number of windows, in vectors if the lanes lie along the axis.
    outputs: i32,
    /// The number of inputs, in vectors if the lanes lie along the axis.
    inputs: i32,
}

/// The numbers of a problem and of its blocks.
#[derive(CubeType, CubeLaunch)]
struct Blocks {
    units: u32,
    tiles: Tiles,
    problem: ProblemArgs,
    depth: BlockAxis,
    height: BlockAxis,
    width: BlockAxis,
}

fn blocks_args(task: Task<'_>, units: usize, places: [usize; AXES]) -> BlocksLaunch {
    let inputs = task.vectors_on_axes(Axis::input);
    let axes = task.axes();
    let along_width = |i| task.settings.along_width && i == AXES - 1;
    let lanes = |i| if along_width(i) { blocks::window_lanes(&axes[i], task.lanes()) } else { 1 };
    let [depth, height, width] = [0, 1, 2].map(|i| {
        let outputs = (axes[i].output() / lanes(i)) as i32;
        BlockAxisLaunch::new(places[i] as u32, outputs, inputs[i] as i32)
    });
    let tiles = tiles_args(task, places[AXES - 2]);
    BlocksLaunch::new(units as u32, tiles, problem_args(task), depth, height, width)
}
