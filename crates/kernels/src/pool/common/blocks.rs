//! Blocks of inputs and the windows over each of them, known when a kernel is compiled.

use windowpane_geometry::{AXES, Axis, Pooling};

use crate::error::{PlanError, only_if};
use crate::pool::common::Task;
use crate::pool::problem::outermost;

/// A block on one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Block {
    /// The inputs of a block: a multiple of the stride.
    pub(crate) inputs: u32,
    pub(crate) kernel: u32,
    pub(crate) stride: u32,
    pub(crate) before: u32,
    /// Whether all inputs exist, and all the windows over them.
    pub(crate) whole: bool,
}

impl Block {
    /// The blocks of one stride step on each axis.
    pub(crate) fn of(pooling: &Pooling) -> [Self; AXES] {
        blocks_of(pooling, 1, 1)
    }

    /// The windows over input `i` of a block: the first one, and how many. They are counted from the window that would
    /// start at the first input of the block if there were no padding.
    pub(crate) fn over(&self, i: u32) -> (i32, u32) {
        let (step, phase) = ((i + self.before) / self.stride, (i + self.before) % self.stride);
        let count =
            if phase < self.kernel { (self.kernel - 1 - phase) / self.stride + 1 } else { 0 };
        (step as i32 + 1 - count as i32, count)
    }

    /// The windows over a block, counted as by `over`: the first one, and how many.
    pub(crate) fn all(&self) -> (i32, u32) {
        let over: Vec<_> = (0..self.inputs).map(|i| self.over(i)).filter(|o| o.1 > 0).collect();
        let first = over.iter().map(|o| o.0).min().unwrap_or(0);
        let end = over.iter().map(|o| o.0 + o.1 as i32).max().unwrap_or(0);
        (first, (end - first) as u32)
    }

    /// The vectors of `lanes` windows that contain them: the first one, and how many.
    pub(crate) fn vectors(&self, lanes: u32) -> (i32, u32) {
        let (first, count) = self.all();
        let lanes = lanes as i32;
        let start = first.div_euclid(lanes);
        (start, ((first + count as i32 - 1).div_euclid(lanes) - start + 1) as u32)
    }
}

/// Refuses `kernel` if a block has more inputs than this, or more windows over them.
pub(crate) fn check_blocks(
    kernel: &'static str,
    axes: &[Block; AXES],
    [inputs, windows]: [usize; 2],
) -> Result<(), PlanError> {
    let product = |of: fn(&Block) -> u32| axes.iter().map(|b| of(b) as usize).product::<usize>();
    only_if(kernel, product(|block| block.inputs) <= inputs, "a unit has too many inputs")?;
    // Only now: the windows are counted input by input.
    let few = product(|block| block.all().1) <= windows;
    only_if(kernel, few, "too many windows overlap a unit's inputs")
}

/// The number of blocks on each axis.
pub(crate) fn blocks_on_axes(task: Task<'_>, axes: &[Block; AXES]) -> [usize; AXES] {
    [0, 1, 2].map(|i| task.axes()[i].input().div_ceil(axes[i].inputs as usize))
}

/// The lanes of a vector of windows, if the lanes of inputs lie along the width: if the stride divides a vector of
/// inputs, the windows that start in it.
pub(crate) fn window_lanes(width: &Axis, lanes: usize) -> usize {
    if lanes.is_multiple_of(width.stride()) { lanes / width.stride() } else { lanes }
}

/// The blocks on each axis: one stride step, but `strip` steps on the outermost axis that has a window, and `lanes` times
/// as many on the width.
pub(crate) fn blocks_of(pooling: &Pooling, strip: usize, lanes: u32) -> [Block; AXES] {
    let axes = pooling.grid().axes();
    let along = outermost(pooling);
    [0, 1, 2].map(|i| {
        let axis = &axes[i];
        let steps = if i == along { strip as u32 } else { 1 };
        let lanes = if i == AXES - 1 { lanes } else { 1 };
        Block {
            inputs: axis.stride() as u32 * steps * lanes,
            kernel: axis.kernel() as u32,
            stride: axis.stride() as u32,
            before: axis.before() as u32,
            whole: false,
        }
    })
}
