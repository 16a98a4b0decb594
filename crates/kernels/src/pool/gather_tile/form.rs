//! The parameters of blocks that change the kernel's code: which windows are over which inputs, known at compile time.

use windowpane_geometry::{AXES, Pooling};

use super::NAME;
use crate::error::{PlanError, only_if};
use crate::pool::common::window::WindowForm;
use crate::pool::common::{Block, Settings, Task, blocks_of, check_blocks, window_lanes};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) axes: [Block; AXES],
    pub(super) window: WindowForm,
    /// The lanes along the width, or 1: those of the inputs, and those of the windows.
    pub(super) lanes: u32,
    pub(super) window_lanes: u32,
}

/// The most windows over a block and the most inputs in it; larger blocks are left to the plain gather.
const MOST_WINDOWS: usize = 36;
const MOST_INPUTS: usize = 16;

/// Refuses problems whose blocks this kernel does not support.
pub(super) fn check(pooling: &Pooling, strip: usize) -> Result<(), PlanError> {
    let dense = pooling.grid().axes().iter().all(|axis| axis.dilation() == 1);
    only_if(NAME, dense, "windows are dilated")?;
    only_if(NAME, !pooling.grid().is_adaptive(), "window sizes follow from the input")?;
    check_blocks(NAME, &blocks_of(pooling, strip, 1), [MOST_INPUTS, MOST_WINDOWS])
}

impl Form {
    pub(super) fn new(task: Task<'_>, strip: usize) -> Self {
        let (pooling, settings) = (task.pooling(), task.settings);
        let lanes = if settings.along_width { settings.lanes } else { 1 };
        let window_lanes = window_lanes(&pooling.grid().axes()[AXES - 1], lanes) as u32;
        let window_lanes = if settings.along_width { window_lanes } else { 1 };
        Self {
            axes: blocks_of(pooling, strip, window_lanes),
            window: WindowForm::new(task.with(Settings { unrolled: false, ..settings })),
            lanes: lanes as u32,
            window_lanes,
        }
    }

    /// The form of a block away from all edges. The width keeps its edges if a warp would cross them.
    pub(super) fn interior(self) -> Self {
        let mut axes = self.axes.map(|block| Block { whole: true, ..block });
        axes[AXES - 1].whole = !self.crosses();
        Self { axes, window: self.window.unclipped(!self.crosses()), ..self }
    }

    /// Whether a warp crosses the edges of the width, so that its units away from them would wait for the others: if a
    /// pixel is one vector.
    pub(super) fn crosses(&self) -> bool {
        !self.window.channels
    }

    /// Whether the divisor of a window's gradient is found by comparisons. Windows then have so few taps that the
    /// product of their line's and their column's factor, rounded, is the quotient itself.
    pub(super) fn compares(&self) -> bool {
        self.window.reciprocal
            && self.axes[0].kernel == 1
            && self.axes.iter().all(|a| a.kernel <= 3)
    }

    /// Whether each gradient is divided by its own window's divisor.
    pub(super) fn divides_each(&self) -> bool {
        !self.window.fold.is_extremum() && !self.window.has_one_divisor()
    }

    /// The vectors of windows over a block on each axis: the first one, and how many.
    pub(super) fn windows(&self) -> [(i32, u32); AXES] {
        [self.axes[0].all(), self.axes[1].all(), self.axes[2].vectors(self.window_lanes)]
    }

    /// The number of input vectors of a block on each axis.
    pub(super) fn inputs(&self) -> [u32; AXES] {
        [self.axes[0].inputs, self.axes[1].inputs, self.axes[2].inputs / self.lanes]
    }

    /// The number of vectors of windows over a block.
    pub(super) fn all_windows(&self) -> u32 {
        self.windows().iter().map(|windows| windows.1).product()
    }

    /// The number of input vectors of a block.
    pub(super) fn all_inputs(&self) -> u32 {
        self.inputs().iter().product()
    }

    /// The number of windows over input vector `x` on each axis; on the width, the most over any of its lanes.
    pub(super) fn steps(&self, x: [u32; AXES]) -> [u32; AXES] {
        let width = (0..self.lanes).map(|lane| self.over_lane(x[2], lane).1).max().unwrap_or(0);
        [self.axes[0].over(x[0]).1, self.axes[1].over(x[1]).1, width]
    }

    pub(super) fn over_lane(&self, vector: u32, lane: u32) -> (i32, u32) {
        self.axes[2].over(vector * self.lanes + lane)
    }

    /// The number of lines of windows over a block.
    pub(super) fn all_lines(&self) -> u32 {
        self.windows()[0].1 * self.windows()[1].1
    }

    /// Line `step` of the lines of windows over input `x`.
    pub(super) fn line_over(&self, x: [u32; AXES], step: [u32; 2]) -> usize {
        let windows = self.windows();
        let at = |i: usize| (self.axes[i].over(x[i]).0 + step[i] as i32 - windows[i].0) as u32;
        (at(0) * windows[1].1 + at(1)) as usize
    }

    /// The number of lines of windows over input `x`.
    pub(super) fn lines_over(&self, x: [u32; AXES]) -> u32 {
        self.axes[0].over(x[0]).1 * self.axes[1].over(x[1]).1
    }

    /// The index of the sum that input vector `x` takes from line `i` of those over it.
    pub(super) fn line_sum(&self, x: [u32; AXES], i: u32) -> usize {
        let steps = self.axes[1].over(x[1]).1;
        let line = self.line_over(x, [i / steps, i % steps]);
        line * self.inputs()[2] as usize + x[2] as usize
    }

    /// Where a lane of input vector `w` finds window `step` of those over it: the loaded vector of a line, and the
    /// element in this vector.
    pub(super) fn on_line(&self, w: u32, step: u32, lane: u32) -> (usize, usize) {
        let first = self.windows()[2].0 * self.window_lanes as i32;
        let element = (self.over_lane(w, lane).0 + step as i32 - first) as u32;
        ((element / self.window_lanes) as usize, (element % self.window_lanes) as usize)
    }
}
