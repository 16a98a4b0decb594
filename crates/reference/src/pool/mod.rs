//! Pooling: every window is reduced to one number.
//!
//! ```text
//! x(o, t) = o·s − before + t·d                     on each axis, as windowpane-geometry says
//!
//! max     y[o] = max { x[x(o, t)] : t inside }     an empty window: −∞, index −1
//!         NaN wins; the index is of the first tap that equals the maximum, or of the last NaN
//! min     the same with the order of the numbers reversed
//! average y[o] = Σ { x[x(o, t)] : t inside } / divisor(o)        an empty window: 0
//! rank    y[o] = the number of the window that a given number of others precede     an empty window: 0
//! mode    y[o] = the most frequent number of the window, the smallest if several    an empty window: 0
//! drawn   y[o] = a number of the window, drawn with a probability proportional to it      an empty window: 0, index −1
//! norm    y[o] = (Σ { |x[x(o, t)]|^p : t inside })^(1/p)         an empty window: 0
//! unpool  x[i] = y[o] where winner(o) is i, else 0               of several, the last
//! ```
//!
//! The algorithms:
//!
//! * [`direct`]: visits every tap of every window; defines what the operators mean.
//! * [`deque`]: maxima with monotone deques, one axis at a time; work per element, not per tap.
//! * [`prefix`]: averages with prefix sums, with the same property.
//! * [`fractional`]: maxima of windows at pseudo-random positions.
//! * [`lp`]: the norm and its gradient as plain loops, and the bound on a kernel's error.
//! * [`mod@rank`]: medians and other ranks, by selecting among the taps of each window.
//! * [`mod@mode`]: the most frequent numbers, by sorting the taps of each window.
//! * [`stochastic`]: drawn numbers, by running sums over the taps of each window, and the mean of what is drawn.
//! * [`unpool`]: writes maxima back to their positions, and the gradient of that.
//! * [`backward`]: the gradients, as scatters.
//!
//! [`max()`], [`max_with_indices`] and [`average`] use the algorithm that [`choose`] returns. [`extremum`] and
//! [`extremum_with_indices`] are maxima or minima with the algorithm that they are given.

pub mod backward;
pub mod deque;
pub mod direct;
mod field;
pub mod footprint;
pub mod fractional;
pub mod lp;
pub(crate) mod memory;
pub mod mode;
pub mod prefix;
pub mod rank;
pub mod stochastic;
pub mod unpool;
mod windows;

use std::fmt;

use windowpane_geometry::{Divisor, Extremum, IndexBase, Pooling, Strides};

use crate::scalar::Reversed;
use crate::{Scalar, check_length};
use field::Field;

/// How the windows are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Every tap of every window is visited.
    Direct,
    /// One axis at a time, reusing results of the previous window: a deque for maxima, prefix sums for
    /// averages.
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

/// How many taps the direct loops visit in the time of one step of the sliding algorithms.
///
/// Measured by the ignored test `sliding_against_direct`, which prints both times.
const TAPS_A_STEP: usize = 16;

/// The largest intermediate result between two axes, relative to the larger of input and output.
const MOST_HELD: usize = 4;

/// The algorithm that is likely the faster one for a problem.
///
/// The direct loops visit `outputs · taps` elements, in order and vectorised. The sliding algorithms
/// visit the inputs and outputs of each axis' pass, at a higher cost per element.
pub fn choose(pooling: &Pooling) -> Algorithm {
    let axes = pooling.grid().axes();
    let mut plane: usize = axes.iter().map(|axis| axis.input()).product();
    let held = plane.max(pooling.grid().output_plane()).saturating_mul(MOST_HELD);
    let mut steps = 0usize;
    for axis in axes.iter().rev().filter(|axis| !passes_unchanged(axis)) {
        let after = (plane / axis.input()).saturating_mul(axis.output());
        // Padding may enlarge one axis before the next one shrinks.
        if after > held {
            return Algorithm::Direct;
        }
        steps = steps.saturating_add(plane).saturating_add(after);
        plane = after;
    }
    let visits = pooling.grid().output_plane().saturating_mul(pooling.grid().taps());
    if visits / TAPS_A_STEP > steps { Algorithm::Sliding } else { Algorithm::Direct }
}

/// The maximum of each window, with the algorithm that [`choose`] returns.
pub fn max<T: Scalar>(pooling: &Pooling, x: &[T]) -> Vec<T> {
    extremum(Extremum::Max, choose(pooling), pooling, x)
}

/// The maximum of each window and its index, with the algorithm that [`choose`] returns.
///
/// The indices must fit, as [`Pooling::check_indices`] says.
pub fn max_with_indices<T: Scalar>(
    pooling: &Pooling,
    base: IndexBase,
    x: &[T],
) -> (Vec<T>, Vec<i32>) {
    extremum_with_indices(Extremum::Max, choose(pooling), pooling, base, x)
}

/// The maximum or the minimum of each window.
pub fn extremum<T: Scalar>(
    extremum: Extremum,
    algorithm: Algorithm,
    pooling: &Pooling,
    x: &[T],
) -> Vec<T> {
    fn max<T: Scalar>(algorithm: Algorithm, pooling: &Pooling, x: &[T]) -> Vec<T> {
        match algorithm {
            Algorithm::Direct => direct::max(pooling, x),
            Algorithm::Sliding => deque::max(pooling, x),
        }
    }
    match extremum {
        Extremum::Max => max(algorithm, pooling, x),
        Extremum::Min => unreversed(max(algorithm, pooling, Reversed::of(x))),
    }
}

/// The maximum or the minimum of each window and its index.
///
/// The indices must fit, as [`Pooling::check_indices`] says.
pub fn extremum_with_indices<T: Scalar>(
    extremum: Extremum,
    algorithm: Algorithm,
    pooling: &Pooling,
    base: IndexBase,
    x: &[T],
) -> (Vec<T>, Vec<i32>) {
    fn max<T: Scalar>(
        algorithm: Algorithm,
        pooling: &Pooling,
        base: IndexBase,
        x: &[T],
    ) -> (Vec<T>, Vec<i32>) {
        match algorithm {
            Algorithm::Direct => direct::max_with_indices(pooling, base, x),
            Algorithm::Sliding => deque::max_with_indices(pooling, base, x),
        }
    }
    match extremum {
        Extremum::Max => max(algorithm, pooling, base, x),
        Extremum::Min => {
            let (y, indices) = max(algorithm, pooling, base, Reversed::of(x));
            (unreversed(y), indices)
        }
    }
}

/// The elements in their own order, in the same memory.
fn unreversed<T>(elements: Vec<Reversed<T>>) -> Vec<T> {
    elements.into_iter().map(|reversed| reversed.0).collect()
}

/// The average of each window, with the algorithm that [`choose`] returns.
pub fn average<T: Scalar>(pooling: &Pooling, divisor: Divisor, x: &[T]) -> Vec<T> {
    match choose(pooling) {
        Algorithm::Direct => direct::average(pooling, divisor, x),
        Algorithm::Sliding => prefix::average(pooling, divisor, x),
    }
}

/// Whether each window along this axis is just the element at the same position.
fn passes_unchanged(axis: &windowpane_geometry::Axis) -> bool {
    let unit = (axis.kernel(), axis.stride(), axis.before(), axis.after()) == (1, 1, 0, 0);
    unit && !axis.is_uneven()
}

/// The divisor of each window of a plane, row-major; 1 for an empty window, whose sum is 0.
fn divisors(pooling: &Pooling, divisor: Divisor) -> Vec<f64> {
    let grid = pooling.grid();
    let outputs = grid.axes().map(|axis| axis.output());
    (0..grid.output_plane())
        .map(|o| divisor.of(grid, crate::taps::position(o, outputs)).max(1) as f64)
        .collect()
}

/// Whether sums of elements are computed as integers.
fn is_integer<T: Scalar>() -> bool {
    T::ZERO.to_integer().is_some()
}

/// The quotient of integers as an element: the nearest integer, ties to even, or cut off.
fn nearest<T: Scalar>(divisor: Divisor, sum: i128, by: f64) -> T {
    let by = by as i128;
    let (whole, rest) = (sum.div_euclid(by), sum.rem_euclid(by));
    let is_above = match divisor.truncates() {
        true => sum < 0 && rest > 0,
        false => 2 * rest > by || (2 * rest == by && whole % 2 != 0),
    };
    T::from_integer(whole + i128::from(is_above))
}

/// The strides of an index, after checking the caller's obligations.
#[track_caller]
fn index_strides(pooling: &Pooling, base: IndexBase) -> Strides {
    if let Err(error) = pooling.check_indices(base) {
        panic!("an index may not fit in an i32, which the caller has to check: {error}");
    }
    pooling.index_strides(base)
}

/// Converts positions in a plane, for a row of outputs, to indices with these strides.
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
