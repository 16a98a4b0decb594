//! The parameters of planes that change their kernel's code: which elements of which rows a unit reads, and which of
//! them may be outside.

use core::ops::Range;

use windowpane_geometry::{AXES, DType, Pooling};

use super::{Side, Tile, has_few_taps, shared_bytes, sides};
use crate::cube::axis::AxisForm;
use crate::pool::common::runs::Run;
use crate::pool::common::settings::Settings;
use crate::pool::common::window::Form as Tap;
use crate::pool::problem::Reduction;

/// The parameters that change the kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) tap: Tap,
    pub(super) gradient: bool,
    /// The number of neighbouring windows of a unit.
    pub(super) columns: u32,
    /// The numbers of taps and the strides of the windows on each axis.
    pub(super) kernel: [u32; AXES],
    pub(super) stride: [u32; AXES],
    /// The range of taps on each axis that are inside the input in every window.
    pub(super) inside: [(u32, u32); AXES],
    pub(super) units: u32,
    /// The number of elements in shared memory.
    pub(super) capacity: usize,
    /// Whether shared memory is read and written in vectors instead of element by element.
    pub(super) vectors: bool,
    /// The number of rows of windows that a unit computes at once if they are inside the input.
    pub(super) run: u32,
    /// Whether windows have few taps.
    pub(super) few_taps: bool,
    /// For a gradient: the number of columns of windows before an input that may not exist, and the padding after the
    /// last input.
    pub(super) ahead: u32,
    pub(super) behind: u32,
    /// Whether a plane is one window, and whether elements can be read in pairs.
    pub(super) flat: bool,
    pub(super) pairs: bool,
}

impl Form {
    /// The number of elements in a plane that is one window.
    pub(super) fn taps(&self) -> u32 {
        self.kernel.iter().product()
    }

    /// The windows of a unit on a row.
    pub(super) fn along_row(&self) -> Run {
        let (count, kernel, stride) = (self.columns, self.kernel[2], self.stride[2]);
        Run { first: 0, each: 1, count, kernel, stride }
    }

    /// The windows of column `v` in `count` rows of windows, as a run through the reductions of the rows.
    pub(super) fn along_rows(&self, count: u32, v: u32) -> Run {
        let stride = self.new_rows();
        Run { first: v, each: self.columns, count, kernel: self.kernel[1], stride }
    }

    /// The number of elements of a row that a unit's windows read.
    pub(super) fn reads(&self) -> u32 {
        (self.columns - 1) * self.stride[2] + self.kernel[2]
    }

    /// Whether element `j` of these may be outside, for a window that exists.
    pub(super) fn drops(&self, j: u32) -> bool {
        (0..self.columns).any(|v| {
            let from = v * self.stride[2];
            let tap = |t: u32| from + t < self.inside[2].0 || t >= self.inside[2].1;
            (from..from + self.kernel[2]).contains(&j) && tap(j - from)
        })
    }

    /// Whether tap `t` along the depth may be outside.
    pub(super) fn drops_line(&self, t: u32) -> bool {
        !(self.inside[0].0..self.inside[0].1).contains(&t)
    }

    /// Whether a row may be outside.
    pub(super) fn drops_rows(&self) -> bool {
        self.inside[1] != (0, self.kernel[1])
    }

    pub(super) fn axis(&self, i: usize) -> AxisForm {
        [self.tap.depth, self.tap.height, self.tap.width][i]
    }

    /// The number of rows that a window shares with the one below it.
    pub(super) fn shared_rows(&self) -> u32 {
        self.kernel[1].saturating_sub(self.stride[1])
    }

    /// The number of rows of a window that the one above it does not have.
    pub(super) fn new_rows(&self) -> u32 {
        self.kernel[1].min(self.stride[1])
    }

    /// The index of row `t` of window `i` among the rows of a run of windows.
    pub(super) fn row(&self, i: u32, t: u32) -> usize {
        (i * self.new_rows() + t) as usize
    }

    /// A mask that leaves positions in shared memory unchanged. It shows the compiler that offsets from a position stay
    /// within 32 bits, so that they can become part of the access.
    pub(super) fn place(&self) -> u32 {
        self.capacity.next_power_of_two() as u32 - 1
    }

    /// Whether all windows have the same divisor, so that sums can be divided once.
    pub(super) fn divides_once(&self) -> bool {
        self.tap.fold.is_fixed() || (0..AXES).all(|i| !self.axis(i).clipped)
    }

    /// Whether each sum is divided by its own window's divisor.
    pub(super) fn divides_each(&self) -> bool {
        !self.tap.fold.is_max() && !self.gradient && !self.divides_once()
    }

    /// Whether each element, which is a window's gradient, is divided by a divisor of its own.
    pub(super) fn shares(&self) -> bool {
        !self.tap.fold.is_max() && self.gradient && !self.divides_once()
    }

    /// Whether the factor of each element is found by comparison.
    pub(super) fn compares(&self) -> bool {
        self.shares() && self.tap.reciprocal && self.few_taps
    }

    /// Whether column `j` of the windows over a unit's inputs may not exist; the inputs all exist.
    pub(super) fn may_lack(&self, j: u32) -> bool {
        !(self.ahead..self.columns + self.behind).contains(&j)
    }
}

/// The most rows of windows that a unit computes at once, and the most loads for them.
const LONGEST_RUN: u32 = 4;
const MOST_RUN_LOADS: u32 = 128;

/// The number of rows of a gradient that a unit computes at once if the factors of shares are found by comparison: in
/// planes of common sizes, a unit has a few times as many rows.
const COMPARED_RUN: u32 = 3;

/// The form of a problem whose planes are distributed according to `tile`.
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
        // For a gradient, none of the windows over an input is certain to exist.
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
