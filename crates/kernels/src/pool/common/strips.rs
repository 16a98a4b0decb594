//! What of a strip changes the code of its kernel: which rows, lines and taps it reads, known when that is
//! compiled.

use windowpane_geometry::{AXES, Axis, DType, Pooling};

use super::taps::{Line, TapForm};
use crate::cube::axis::AxisForm;
use crate::pool::common::reach::Reach;
use crate::pool::common::runs::Run;
use crate::pool::common::settings::Settings;
use crate::pool::common::window::Form as Tap;
use crate::pool::problem::{Reduction, outermost};

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::pool) struct Form {
    pub(in crate::pool) tap: Tap,
    pub(in crate::pool) along: Along,
    /// The width as the lanes see it that lie along it, and whether the vectors at an output's own place
    /// are always inside.
    pub(in crate::pool) reach: Reach,
    own: bool,
    /// The neighbouring columns of a strip, and the step from one to the next in the input.
    pub(in crate::pool) columns: u32,
    step: u32,
}

/// The axis that strips lie along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::pool) struct Along {
    pub(in crate::pool) axis: usize,
    /// The outputs of a strip, and whether all are there.
    pub(in crate::pool) outputs: u32,
    pub(in crate::pool) whole: bool,
    pub(in crate::pool) kernel: u32,
    pub(in crate::pool) stride: u32,
}

impl Along {
    fn new(pooling: &Pooling, strip: usize) -> Self {
        let axis = outermost(pooling);
        let own = &pooling.grid().axes()[axis];
        let (kernel, stride) = (own.kernel() as u32, own.stride() as u32);
        Self { axis, outputs: strip as u32, whole: strip == 1, kernel, stride }
    }

    /// The rows that a strip reads.
    fn rows(self) -> u32 {
        (self.outputs - 1) * self.stride + self.kernel
    }
}

impl Form {
    /// The form of strips of so many outputs and neighbouring columns.
    pub(in crate::pool) fn new(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        settings: &Settings,
        [strip, columns]: [usize; 2],
    ) -> Self {
        let width = &pooling.grid().axes()[AXES - 1];
        let (columns, reads) = (columns_of(pooling, settings, columns), reads(pooling, settings));
        Self {
            tap: Tap::new(pooling, reduction, dtype, settings),
            along: Along::new(pooling, strip),
            reach: match settings.across {
                true => Reach::new(pooling, reads, settings.lanes),
                false => Reach::ONE,
            },
            own: has_own(width, reads),
            columns: columns as u32,
            step: if columns > 1 { width.stride() as u32 } else { 1 },
        }
    }

    /// The form of a strip whose outputs are all there, and all that they read along depth and height:
    /// nothing need be moved or dropped there. On the width neither, where units across the edges are
    /// not of one warp, which would run both, or where a tap costs much.
    pub(in crate::pool) fn interior(&self) -> Self {
        let width = self.tap.channels && (self.tap.runs || self.tap.fold.has_index());
        Self { tap: self.tap.unclipped(width), along: Along { whole: true, ..self.along }, ..*self }
    }

    /// Whether the interior has code of its own. A maximum of units of one warp moves what is outside
    /// at no cost; only divisors and indices are worth two ways.
    pub(in crate::pool) fn splits(&self) -> bool {
        let apart = self.tap.channels && (self.tap.runs || self.tap.fold.has_index());
        *self != self.interior() && (apart || !self.tap.fold.is_max())
    }

    pub(in crate::pool) fn axis(&self, i: usize) -> AxisForm {
        [self.tap.depth, self.tap.height, self.tap.width][i]
    }

    /// Whether vector `v` of those that lie along the width may be outside.
    pub(in crate::pool) fn may_miss(&self, v: usize) -> bool {
        let own = self.reach.ahead()..self.reach.ahead() + self.reach.steps();
        self.tap.width.clipped && !(self.own && own.contains(&v))
    }

    /// The taps of a row on axis `i`: those of the strip's own axis are rows.
    pub(in crate::pool) fn taps(&self, i: usize) -> u32 {
        if i == self.along.axis { 1 } else { self.axis(i).taps.unwrap_or(1) }
    }

    /// The outputs of a strip, and whether all are there.
    pub(in crate::pool) fn outputs(&self) -> u32 {
        self.along.outputs
    }

    pub(in crate::pool) fn is_whole(&self) -> bool {
        self.along.whole
    }

    /// The rows that a strip reads.
    pub(in crate::pool) fn rows(&self) -> u32 {
        self.along.rows()
    }

    /// The first row of window `i`, and the one after its last.
    pub(in crate::pool) fn window(&self, i: u32) -> (u32, u32) {
        let first = i * self.along.stride;
        (first, first + self.along.kernel)
    }

    /// The lines of a row.
    pub(in crate::pool) fn lines(&self) -> u32 {
        self.taps(0) * self.taps(1)
    }

    /// Line `i` of row `j`.
    pub(in crate::pool) fn line(&self, j: u32, i: u32) -> Line {
        let at = |axis, t| if axis == self.along.axis { self.row(j) } else { self.tap(axis, t) };
        Line { depth: at(0, i / self.taps(1)), height: at(1, i % self.taps(1)), width: at(2, 0) }
    }

    /// The vectors of a line that a strip reads.
    pub(in crate::pool) fn reads(&self) -> u32 {
        if self.tap.across {
            self.reach.vectors() as u32
        } else {
            (self.columns - 1) * self.step + self.taps(2)
        }
    }

    /// The windows of a strip on a line, of vectors.
    pub(in crate::pool) fn along_line(&self) -> Run {
        let (count, kernel, stride) = (self.columns, self.taps(2), self.step);
        Run { first: 0, each: 1, count, kernel, stride }
    }

    /// Element `x` of what the columns of a strip read of a line of row `j`.
    pub(in crate::pool) fn read(&self, j: u32, x: u32) -> TapForm {
        let kernel = self.taps(2);
        if self.along.axis == 2 {
            self.row(j)
        } else if self.columns == 1 {
            self.tap(2, x)
        } else {
            let firsts = (0..self.columns).map(|column| column * self.step);
            let outside = firsts
                .filter(|&first| (first..first + kernel).contains(&x))
                .any(|first| self.axis(2).may_be_outside(x - first));
            TapForm { row: true, t: x, moves: outside, drops: outside }
        }
    }

    /// Tap `t` of an axis other than the strip's.
    pub(in crate::pool) fn tap(&self, axis: usize, t: u32) -> TapForm {
        let outside = self.axis(axis).may_be_outside(t);
        TapForm { row: false, t, moves: outside, drops: outside }
    }

    /// Row `j`. Those beyond the first window may be no window's, and past the end.
    pub(in crate::pool) fn row(&self, j: u32) -> TapForm {
        let form = self.axis(self.along.axis);
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

/// Whether as many input vectors as an output vector steps over are inside wherever that is there. Of
/// vectors that divide the width and the step this depends on the window alone: their outputs reach less
/// than a vector past the input, which is not at all.
fn has_own(width: &Axis, lanes: usize) -> bool {
    let reach = width.dilation() * (width.kernel() - 1) + 1;
    // The last step may be rounded up.
    width.before() + width.after() + 2 * width.stride() < lanes + reach + 1
}

/// The lanes of an input vector: those of an output vector, but along the width a GPU's are as many as divide the
/// input's and the step from one output vector to the next.
pub(in crate::pool) fn reads(pooling: &Pooling, settings: &Settings) -> usize {
    let width = &pooling.grid().axes()[AXES - 1];
    let step = settings.lanes * width.stride();
    let both = 1 << (width.input() | step).trailing_zeros();
    if settings.across && !settings.runs { settings.widest.min(both) } else { settings.lanes }
}

/// The neighbouring columns of a strip that is to have `columns`: more than one only where lanes are
/// channels, and there are as many columns.
pub(in crate::pool) fn columns_of(pooling: &Pooling, settings: &Settings, columns: usize) -> usize {
    let width = &pooling.grid().axes()[AXES - 1];
    let fits = outermost(pooling) < AXES - 1 && width.dilation() == 1 && !width.may_be_empty();
    if fits && !settings.across && width.output() >= columns { columns } else { 1 }
}
