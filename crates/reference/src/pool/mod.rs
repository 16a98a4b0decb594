//! Pooling: what is inside a window becomes one number.
//!
//! ```text
//! x(o, t) = o·s − before + t·d                     on each axis, as windowpane-geometry says
//!
//! max     y[o] = max { x[x(o, t)] : t inside }     an empty window: −∞, index −1
//!         NaN wins; the index is of the first tap that equals the maximum, or of the last NaN
//! average y[o] = Σ { x[x(o, t)] : t inside } / divisor(o)        an empty window: 0
//! norm    y[o] = (Σ { |x[x(o, t)]|^p : t inside })^(1/p)         an empty window: 0
//! unpool  x[i] = y[o] where winner(o) is i, else 0               of several, the last
//! ```
//!
//! The ladder:
//!
//! * [`direct`]: visits every tap of every window; what the operators mean.
//! * [`deque`]: maximum by monotone deques, one axis after another; work an element, not a tap.
//! * [`prefix`]: average by prefix sums, likewise.
//! * [`lp`]: the norm and its gradient, plain loops too, and what bounds the error of a kernel's.
//! * [`unpool`]: maxima back to where they were, and the gradient of that.
//! * [`backward`]: the gradients, as scatters.
//!
//! [`max()`], [`max_with_indices`] and [`average`] take the rung that [`choose`] names.

pub mod backward;
pub mod deque;
pub mod direct;
mod field;
pub mod lp;
pub mod prefix;
pub mod unpool;

use std::fmt;

use windowpane_geometry::{Divisor, IndexBase, Pooling, Strides};

use crate::{Scalar, check_length};
use field::Field;

/// How a window's content is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Every tap of every window is visited.
    Direct,
    /// One axis after another, with what one window knows passed on to the next: the deque for a
    /// maximum, prefix sums for an average.
    Sliding,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Sliding => "sliding",
        })
    }
}

/// How many taps the direct loops visit in the time of one step of the sliding forms.
///
/// Measured by the ignored test `sliding_against_direct`, which prints both times.
const TAPS_A_STEP: usize = 16;

/// How many times its input or output, the larger, a sliding form may hold between two axes.
const MOST_HELD: usize = 4;

/// The algorithm that is likely the faster one for a problem.
///
/// The direct loops visit `outputs · taps` elements, in order and many at a time. The sliding
/// forms visit the elements that go into and come out of each axis' pass, which costs more for
/// each of them.
pub fn choose(pooling: &Pooling) -> Algorithm {
    let axes = pooling.grid().axes();
    let mut plane: usize = axes.iter().map(|axis| axis.input()).product();
    let held = plane.max(pooling.grid().output_plane()).saturating_mul(MOST_HELD);
    let mut steps = 0usize;
    for axis in axes.iter().rev().filter(|axis| !passes_unchanged(axis)) {
        let after = (plane / axis.input()).saturating_mul(axis.output());
        // Padding may widen one axis before the next narrows.
        if after > held {
            return Algorithm::Direct;
        }
        steps = steps.saturating_add(plane).saturating_add(after);
        plane = after;
    }
    let visits = pooling.grid().output_plane().saturating_mul(pooling.grid().taps());
    if visits / TAPS_A_STEP > steps { Algorithm::Sliding } else { Algorithm::Direct }
}

/// The maximum of each window, by the algorithm that [`choose`] names.
pub fn max<T: Scalar>(pooling: &Pooling, x: &[T]) -> Vec<T> {
    match choose(pooling) {
        Algorithm::Direct => direct::max(pooling, x),
        Algorithm::Sliding => deque::max(pooling, x),
    }
}

/// The maximum of each window and where it is, by the algorithm that [`choose`] names.
///
/// The indices must fit, as [`Pooling::check_indices`] says.
pub fn max_with_indices<T: Scalar>(
    pooling: &Pooling,
    base: IndexBase,
    x: &[T],
) -> (Vec<T>, Vec<i32>) {
    match choose(pooling) {
        Algorithm::Direct => direct::max_with_indices(pooling, base, x),
        Algorithm::Sliding => deque::max_with_indices(pooling, base, x),
    }
}

/// The average of each window, by the algorithm that [`choose`] names.
pub fn average<T: Scalar>(pooling: &Pooling, divisor: Divisor, x: &[T]) -> Vec<T> {
    match choose(pooling) {
        Algorithm::Direct => direct::average(pooling, divisor, x),
        Algorithm::Sliding => prefix::average(pooling, divisor, x),
    }
}

/// Whether a window along this axis is the one element of the same position.
fn passes_unchanged(axis: &windowpane_geometry::Axis) -> bool {
    let unit = (axis.kernel(), axis.stride(), axis.before(), axis.after()) == (1, 1, 0, 0);
    unit && !axis.is_uneven()
}

/// What each window of a plane is divided by, row-major; 1 where it is empty, its sum being 0.
fn divisors(pooling: &Pooling, divisor: Divisor) -> Vec<f64> {
    let grid = pooling.grid();
    let outputs = grid.axes().map(|axis| axis.output());
    (0..grid.output_plane())
        .map(|o| divisor.of(grid, crate::taps::position(o, outputs)).max(1) as f64)
        .collect()
}

/// The steps of an index, after checking what a caller has to check.
#[track_caller]
fn index_strides(pooling: &Pooling, base: IndexBase) -> Strides {
    if let Err(error) = pooling.check_indices(base) {
        panic!("an index may not fit in an i32, which the caller has to check: {error}");
    }
    pooling.index_strides(base)
}

/// Makes positions in a plane, in a row of outputs, indices of the base that has these steps.
fn add_index_base(field: &Field, strides: &Strides, outer: usize, row: &mut [i32]) {
    if strides.batch == 0 && strides.channel == 0 {
        return;
    }
    for pixel in row.chunks_exact_mut(field.lanes) {
        for (lane, index) in pixel.iter_mut().enumerate().filter(|(_, index)| **index >= 0) {
            *index += field.index_base(strides, outer, lane) as i32;
        }
    }
}

#[track_caller]
fn check_input<T>(pooling: &Pooling, x: &[T]) {
    check_length("the input", x.len(), pooling.input().elements());
}

#[track_caller]
fn check_output<T>(pooling: &Pooling, what: &str, y: &[T]) {
    check_length(what, y.len(), pooling.output().elements());
}
