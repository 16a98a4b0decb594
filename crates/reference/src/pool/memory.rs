//! The most bytes that each of the loops allocates: see [`memory`](crate::memory).

use windowpane_geometry::{Axis, Pooling};

use super::field::{Field, LANES, MOST_LISTED, Tap};
use super::{Algorithm, deque, is_integer, lp, passes_unchanged};
use crate::Scalar;
use crate::memory::{GROWTH, product, workers};
use crate::total::Shares;

/// The computations of a pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the functions")]
pub enum Pooled {
    Max { indices: bool },
    Average,
    Norm,
    Rank,
    Mode,
    Drawn,
    MeanDrawn,
    MaxBackward,
    AverageBackward,
    NormBackward,
    Unpool,
    UnpoolBackward,
}

impl Pooled {
    pub(crate) fn bytes<T: Scalar>(self, algorithm: Algorithm, pooling: &Pooling) -> usize {
        let field = Field::of(pooling);
        let [inputs, outputs] = [pooling.input(), pooling.output()].map(|shape| shape.elements());
        let of = |elements: usize, bytes: usize| product([elements, bytes]);
        let (x, y) = (of(inputs, size_of::<T>()), of(outputs, size_of::<T>()));
        let divisors = of(field.grid.output_plane(), size_of::<f64>());
        let sum = if is_integer::<T>() { size_of::<i128>() } else { size_of::<f64>() };
        // One outer position of the input for each worker.
        let plane = product([workers(field.outer), field.grid.input_plane(), field.lanes]);
        let indexed = matches!(self, Self::Max { indices: true } | Self::Drawn);
        let positions = if indexed { of(outputs, size_of::<i32>()) } else { 0 };
        // One list is shared by all rows, and each worker has one for further taps.
        let taps = (1 + workers(usize::MAX)) * TAPS;
        let direct = taps.saturating_add(match self {
            Self::Average => rows(&field, sum),
            Self::Norm | Self::NormBackward => rows(&field, lp::ROW_BYTES),
            _ => 0,
        });
        let parts = match (self, algorithm) {
            (Self::Max { .. }, Algorithm::Direct) => [y, positions, direct, 0],
            (Self::Max { indices: false }, Algorithm::Sliding) => {
                [y, deque::bytes::<T>(&field), 0, 0]
            }
            (Self::Max { indices: true }, Algorithm::Sliding) => {
                [y, positions, deque::bytes::<T>(&field), deque::indexed_bytes::<T>(&field)]
            }
            (Self::Average, Algorithm::Direct) => [y, divisors, direct, 0],
            (Self::Average, Algorithm::Sliding) => {
                let wide = passes(&field, sum, |axis| {
                    let pixels = axis.input() / axis.dilation() + 1;
                    // The prefix and the suffix sums of each block.
                    product([GROWTH + 1, pixels, field_lanes(&field), sum])
                });
                [y, divisors, wide, of(inputs, sum)]
            }
            (Self::Norm, _) => [y, of(outputs, size_of::<f64>()), direct, 0],
            (Self::Drawn | Self::MeanDrawn, _) => [y, positions, 0, 0],
            // One window for each worker.
            (Self::Rank | Self::Mode, _) => {
                let window = product([GROWTH, field.grid.taps(), size_of::<T>()]);
                [y, product([workers(usize::MAX), window]), 0, 0]
            }
            (Self::MaxBackward, _) => [x, of(plane, size_of::<f64>()), 0, 0],
            (Self::AverageBackward, _) => [x, of(plane, size_of::<Shares>()), divisors, 0],
            (Self::NormBackward, _) => {
                [x, of(outputs, size_of::<f64>()), direct, of(plane, lp::SUM_BYTES)]
            }
            (Self::Unpool, _) => [x, 0, 0, 0],
            (Self::UnpoolBackward, _) => [y, of(inputs, size_of::<Option<usize>>()), 0, 0],
        };
        parts.into_iter().fold(0, usize::saturating_add)
    }
}

/// The bytes of one list of the taps of a row.
const TAPS: usize = GROWTH * MOST_LISTED * size_of::<Tap>();

/// The bytes for the rows that the workers compute, with `bytes` per output.
fn rows(field: &Field, bytes: usize) -> usize {
    let [depth, height, _] = field.grid.axes().map(|axis| axis.output());
    let rows = product([field.outer, depth, height]);
    product([workers(rows), field.row(), bytes])
}

/// The lanes of a task.
fn field_lanes(field: &Field) -> usize {
    // The positions on an axis are lanes for the axes before it.
    if passes_unchanged(&field.grid.axes()[0]) && passes_unchanged(&field.grid.axes()[1]) {
        field.lanes.min(LANES)
    } else {
        LANES
    }
}

/// The bytes that the passes along the axes allocate: the results of the previous pass and of the current one, with
/// `bytes` per element, their rows, and `of_task` for each running task.
pub(super) fn passes(field: &Field, bytes: usize, of_task: impl Fn(&Axis) -> usize) -> usize {
    let (mut outer, mut lanes) = (product([field.outer, field.grid.input_plane()]), field.lanes);
    let (mut before, mut most) = (0, 0);
    for axis in field.grid.axes().iter().rev() {
        outer /= axis.input();
        if !passes_unchanged(axis) {
            let after = product([outer, axis.output(), lanes, bytes]);
            let blocks = lanes.div_ceil(LANES);
            // A worker that waits for the blocks of one outer position may start another.
            let begun = workers(outer) * if blocks > 1 { 4 } else { 1 };
            let rows = product([begun, blocks, axis.output(), size_of::<&mut [u8]>()]);
            let tasks = product([workers(outer.saturating_mul(blocks)), of_task(axis)]);
            let held = [before, after, rows, tasks].into_iter().fold(0, usize::saturating_add);
            (before, most) = (after, most.max(held));
        }
        lanes = lanes.saturating_mul(axis.output());
    }
    most
}
