//! What of planes changes the code of their kernel: which elements of which rows a unit reads, and which of
//! them may be outside.

use core::ops::Range;

use windowpane_geometry::{AXES, DType, Pooling};

use super::{Side, Tile, has_few_taps, shared_bytes, sides};
use crate::cube::axis::AxisForm;
use crate::pool::common::runs::Run;
use crate::pool::common::settings::Settings;
use crate::pool::common::window::Form as Tap;
use crate::pool::problem::Reduction;

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) tap: Tap,
    pub(super) gradient: bool,
    /// The neighbouring windows of a unit.
    pub(super) columns: u32,
    /// The taps and the steps of the windows on each axis.
    pub(super) kernel: [u32; AXES],
    pub(super) stride: [u32; AXES],
    /// The taps of each axis that are inside in every window.
    pub(super) inside: [(u32, u32); AXES],
    pub(super) units: u32,
    /// The elements of shared memory.
    pub(super) capacity: usize,
    /// Whether shared memory is read and written in vectors; else element by element.
    pub(super) vectors: bool,
    /// The rows of windows that a unit computes at once where they are inside.
    pub(super) run: u32,
    /// Whether windows have few taps.
    pub(super) few_taps: bool,
    /// Of a gradient, the columns of windows before an input that may not be there, and the padding
    /// behind the last.
    pub(super) ahead: u32,
    pub(super) behind: u32,
    /// Whether a plane is one window, and elements can be seen two to a word.
    pub(super) flat: bool,
    pub(super) pairs: bool,
}

impl Form {
    /// The elements of a plane that is one window.
    pub(super) fn taps(&self) -> u32 {
        self.kernel.iter().product()
    }

    /// The windows of a unit on a row.
    pub(super) fn along_row(&self) -> Run {
        let (count, kernel, stride) = (self.columns, self.kernel[2], self.stride[2]);
        Run { first: 0, each: 1, count, kernel, stride }
    }

    /// The windows of column `v` of so many rows of windows, in what is folded of the rows.
    pub(super) fn along_rows(&self, count: u32, v: u32) -> Run {
        let stride = self.new_rows();
        Run { first: v, each: self.columns, count, kernel: self.kernel[1], stride }
    }

    /// The elements of a row that a unit's windows read.
    pub(super) fn reads(&self) -> u32 {
        (self.columns - 1) * self.stride[2] + self.kernel[2]
    }

    /// Whether element `j` of these may be outside, for a window that is there.
    pub(super) fn drops(&self, j: u32) -> bool {
        (0..self.columns).any(|v| {
            let from = v * self.stride[2];
            let tap = |t: u32| from + t < self.inside[2].0 || t >= self.inside[2].1;
            (from..from + self.kernel[2]).contains(&j) && tap(j - from)
        })
    }

    /// Whether tap `t` of the depth may be outside.
    pub(super) fn drops_line(&self, t: u32) -> bool {
        !(self.inside[0].0..self.inside[0].1).contains(&t)
    }

    /// Whether some row may be outside.
    pub(super) fn drops_rows(&self) -> bool {
        self.inside[1] != (0, self.kernel[1])
    }

    pub(super) fn axis(&self, i: usize) -> AxisForm {
        [self.tap.depth, self.tap.height, self.tap.width][i]
    }

    /// The rows of a window that the one below it has too.
    pub(super) fn shared_rows(&self) -> u32 {
        self.kernel[1].saturating_sub(self.stride[1])
    }

    /// The rows that a window has and the one above it has not.
    pub(super) fn new_rows(&self) -> u32 {
        self.kernel[1].min(self.stride[1])
    }

    /// Where among the rows of a run of windows row `t` of window `i` is.
    pub(super) fn row(&self, i: u32, t: u32) -> usize {
        (i * self.new_rows() + t) as usize
    }

    /// A mask that places in shared memory are unchanged by. With it a compiler sees that steps from
    /// there stay within 32 bits, and makes them a part of the access.
    pub(super) fn place(&self) -> u32 {
        self.capacity.next_power_of_two() as u32 - 1
    }

    /// Whether all windows are divided by the same number, so that sums may be.
    pub(super) fn divides_once(&self) -> bool {
        self.tap.fold.is_fixed() || (0..AXES).all(|i| !self.axis(i).clipped)
    }

    /// Whether each sum is divided by a number of its window's own.
    pub(super) fn divides_each(&self) -> bool {
        !self.tap.fold.is_max() && !self.gradient && !self.divides_once()
    }

    /// Whether each element, a window's gradient, is divided by a number of its own.
    pub(super) fn shares(&self) -> bool {
        !self.tap.fold.is_max() && self.gradient && !self.divides_once()
    }

    /// Whether what it is multiplied by is found by comparison.
    pub(super) fn compares(&self) -> bool {
        self.shares() && self.tap.reciprocal && self.few_taps
    }

    /// Whether column `j` of the windows over a unit's inputs, which are all there, may not be.
    pub(super) fn may_lack(&self, j: u32) -> bool {
        !(self.ahead..self.columns + self.behind).contains(&j)
    }
}

/// The most windows that a unit computes at once, and the most loads for them.
const LONGEST_RUN: u32 = 4;
const MOST_RUN_LOADS: u32 = 128;

/// The rows of a gradient that a unit computes at once where what divides a share is found by comparison:
/// its rows are a few times as many in planes of common sizes.
const COMPARED_RUN: u32 = 3;

/// The form of a problem whose planes are shared out as `tile` says.
pub(super) fn form(
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    settings: &Settings,
    tile: &Tile,
    gradient: bool,
) -> Form {
    let sides = sides(pooling, gradient);
    let always = |range: Range<usize>| (range.start as u32, range.end as u32);
    let inside = pooling.grid().axes().each_ref().map(|axis| match gradient {
        false => always(axis.always_inside()),
        // Of a gradient every window over an input may be none.
        true if axis.kernel() > 1 => (0, 0),
        true => (0, 1),
    });
    let form = Form {
        tap: Tap::new(pooling, reduction, dtype, &settings.one_by_one()),
        gradient,
        columns: tile.columns as u32,
        kernel: sides.map(|side| side.kernel as u32),
        stride: sides.map(|side| side.stride as u32),
        inside,
        units: settings.units,
        capacity: shared_bytes(pooling, dtype, gradient, settings.shared_bytes) / dtype.size(),
        vectors: settings.shared_vectors,
        run: 1,
        few_taps: has_few_taps(pooling),
        ahead: sides[2].before.max(0) as u32,
        behind: pooling.grid().axes()[2].after() as u32,
        flat: !gradient && sides.iter().all(Side::is_whole),
        pairs: settings.shared_vectors && dtype.size() == 2,
    };
    let most = match pooling.grid().axes()[1].output() {
        1 => 1,
        _ if form.compares() => COMPARED_RUN,
        _ => LONGEST_RUN,
    };
    let row = form.kernel[0] * form.reads();
    let fits = |&run: &u32| (form.shared_rows() + run * form.new_rows()) * row <= MOST_RUN_LOADS;
    Form { run: (1..=most).rev().find(fits).unwrap_or(1), ..form }
}
