//! The parameters of a strip that change its kernel's code: which rows, lines and taps it reads, known at compile time.

use windowpane_geometry::{AXES, Axis, Pooling};

use super::taps::{Line, TapForm};
use super::windows::Windows;
use crate::pool::common::window::WindowForm;
use crate::pool::common::{Reach, Task};
use crate::pool::problem::outermost;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) window: WindowForm,
    pub(super) along: Along,
    /// The taps of lanes along the width, and whether the input vectors at an output's own position are always inside.
    pub(super) reach: Reach,
    own: bool,
    /// The number of neighbouring columns of a strip, and the step from one to the next in the input.
    pub(super) columns: u32,
    step: u32,
}

/// The axis that strips lie along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Along {
    pub(super) axis: usize,
    /// The number of outputs of a strip, and whether all of them exist.
    pub(super) outputs: u32,
    pub(super) whole: bool,
    pub(super) kernel: u32,
    pub(super) stride: u32,
}

impl Along {
    fn new(pooling: &Pooling, axis: usize, strip: usize) -> Self {
        let own = &pooling.grid().axes()[axis];
        let (kernel, stride) = (own.kernel() as u32, own.stride() as u32);
        Self { axis, outputs: strip as u32, whole: strip == 1, kernel, stride }
    }

    /// The number of rows that a strip reads.
    fn rows(self) -> u32 {
        (self.outputs - 1) * self.stride + self.kernel
    }
}

impl Form {
    /// The form of strips with `strip` outputs and `columns` neighbouring columns, which read vectors of `read` lanes.
    pub(super) fn new(task: Task<'_>, [strip, columns]: [usize; 2], read: usize) -> Self {
        let pooling = task.pooling();
        let width = &task.axes()[AXES - 1];
        let columns = columns_of(task, columns);
        Self {
            window: WindowForm::new(task),
            along: Along::new(pooling, strip_axis(pooling, task.settings.along_width), strip),
            reach: match task.settings.along_width {
                true => Reach::new(pooling, read, task.lanes()),
                false => Reach::ONE,
            },
            own: has_own(width, read),
            columns: columns as u32,
            step: if columns > 1 { width.stride() as u32 } else { 1 },
        }
    }

    /// The form of a strip whose outputs all exist and which reads only inside the input along depth and height, so
    /// that nothing is moved or dropped there. This includes the width if units across an edge do not share a warp,
    /// which would execute both branches, or if a tap is expensive.
    pub(super) fn interior(&self) -> Self {
        let width =
            self.window.channels && (self.window.contiguous || self.window.fold.has_index());
        Self {
            window: self.window.unclipped(width),
            along: Along { whole: true, ..self.along },
            ..*self
        }
    }

    /// Whether the interior has separate code. If the units share a warp, a maximum moves taps inside at no cost, and
    /// two code paths pay off only for divisors and indices.
    pub(super) fn splits(&self) -> bool {
        let apart =
            self.window.channels && (self.window.contiguous || self.window.fold.has_index());
        *self != self.interior() && (apart || !self.window.fold.is_extremum())
    }

    /// Whether vector `v` of those along the width may be outside the input.
    pub(super) fn may_miss(&self, v: usize) -> bool {
        let own = self.reach.ahead()..self.reach.ahead() + self.reach.steps();
        self.window.axes[2].clipped && !(self.own && own.contains(&v))
    }

    /// The number of taps of a row on axis `i`. On the strip's own axis taps are rows, so a row has one.
    pub(super) fn taps(&self, i: usize) -> u32 {
        if i == self.along.axis { 1 } else { self.window.axes[i].taps.unwrap_or(1) }
    }

    /// The number of rows that a strip reads.
    pub(super) fn rows(&self) -> u32 {
        self.along.rows()
    }

    /// The number of lines in a row.
    pub(super) fn lines(&self) -> u32 {
        self.taps(0) * self.taps(1)
    }

    /// Line `i` of row `j`.
    pub(super) fn line(&self, j: u32, i: u32) -> Line {
        let at = |axis, t| if axis == self.along.axis { self.row(j) } else { self.tap(axis, t) };
        Line { depth: at(0, i / self.taps(1)), height: at(1, i % self.taps(1)), width: at(2, 0) }
    }

    /// The number of vectors of a line that a strip reads.
    pub(super) fn reads(&self) -> u32 {
        if self.window.along_width {
            self.reach.vectors() as u32
        } else {
            (self.columns - 1) * self.step + self.taps(2)
        }
    }

    /// The windows of a strip along a line, in vectors.
    pub(super) fn along_line(&self) -> Windows {
        let (count, kernel, stride) = (self.columns, self.taps(2), self.step);
        Windows { first: 0, each: 1, count, kernel, stride }
    }

    /// Element `x` of those that the columns of a strip read on a line of row `j`.
    pub(super) fn read(&self, j: u32, x: u32) -> TapForm {
        let kernel = self.taps(2);
        if self.along.axis == 2 {
            self.row(j)
        } else if self.columns == 1 {
            self.tap(2, x)
        } else {
            let firsts = (0..self.columns).map(|column| column * self.step);
            let outside = firsts
                .filter(|&first| (first..first + kernel).contains(&x))
                .any(|first| self.window.axes[2].may_be_outside(x - first));
            TapForm { row: true, t: x, moves: outside, drops: outside }
        }
    }

    /// Tap `t` on an axis other than the strip's.
    pub(super) fn tap(&self, axis: usize, t: u32) -> TapForm {
        let outside = self.window.axes[axis].may_be_outside(t);
        TapForm { row: false, t, moves: outside, drops: outside }
    }

    /// Row `j`. A row beyond the first window may belong to no window and lie past the end.
    pub(super) fn row(&self, j: u32) -> TapForm {
        let form = self.window.axes[self.along.axis];
        let beyond = j >= self.along.kernel && (form.clipped || !self.along.whole);
        let outside = !beyond && form.may_be_outside(j);
        TapForm {
            row: true,
            t: j,
            moves: beyond || outside,
            drops: form.clipped && (beyond || outside),
        }
    }
}

/// The axis that strips lie along: the outermost that has a window, or, where that is the width and lanes lie along it, the
/// height.
pub(super) fn strip_axis(pooling: &Pooling, along_width: bool) -> usize {
    outermost(pooling).min(if along_width { AXES - 2 } else { AXES - 1 })
}

/// Whether the input vectors that an output vector steps over are inside the input wherever the output vector exists.
/// If vectors divide the width and the step, this depends only on the window: outputs that reach less than one vector
/// past the input do not reach past it at all.
fn has_own(width: &Axis, lanes: usize) -> bool {
    let reach = width.dilation() * (width.kernel() - 1) + 1;
    // The last step may be rounded up.
    width.before() + width.after() + 2 * width.stride() < lanes + reach + 1
}

/// The lanes of an input vector: the same as of an output vector. Along the width on a GPU, as many as divide both the
/// input's width and the step from one output vector to the next.
pub(crate) fn reads(task: Task<'_>) -> usize {
    let (width, settings) = (&task.axes()[AXES - 1], task.settings);
    let step = settings.lanes * width.stride();
    let both = 1 << (width.input() | step).trailing_zeros();
    if settings.along_width && !settings.contiguous {
        task.widest().min(both)
    } else {
        settings.lanes
    }
}

/// The number of neighbouring columns of a strip. It is `columns` if lanes are channels and the output has at least as
/// many columns, otherwise 1.
pub(super) fn columns_of(task: Task<'_>, columns: usize) -> usize {
    let width = &task.axes()[AXES - 1];
    let fits =
        outermost(task.pooling()) < AXES - 1 && width.dilation() == 1 && !width.may_be_empty();
    if fits && !task.settings.along_width && width.output() >= columns { columns } else { 1 }
}
