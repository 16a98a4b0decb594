//! Pooling by plain loops: every tap of every window.
//!
//! ```text
//! for each row of outputs (n, d, h):          in memory order, rows on all cores
//!     for each tap, row-major:                so that ties and NaN are resolved in order
//!         for each window it is inside of:    along the row, all channels together
//!             the window's result ← the tap's element
//! ```

use windowpane_geometry::{Divisor, IndexBase, Pooling, Strides};

use super::field::{Field, RowTap};
use super::{add_index_base, check_input, divisors, index_strides, is_integer, nearest};
use crate::total::{Accumulator, Sum};
use crate::{Scalar, Total, parallel};

/// The maximum of each window.
pub fn max<T: Scalar>(pooling: &Pooling, x: &[T]) -> Vec<T> {
    check_input(pooling, x);
    let field = Field::of(pooling);
    let taps = field.width_taps();
    let mut y = vec![T::LOWEST; pooling.output().elements()];
    field.for_each_row(&mut y, |row, y| {
        field.for_each_tap(row, &taps, |tap| {
            field.zip(&tap, y, x, |best, v| *best = if v.exceeds(*best) { v } else { *best });
        });
    });
    y
}

/// The maximum of each window and its index.
///
/// The indices must fit, as [`Pooling::check_indices`] says.
pub fn max_with_indices<T: Scalar>(
    pooling: &Pooling,
    base: IndexBase,
    x: &[T],
) -> (Vec<T>, Vec<i32>) {
    check_input(pooling, x);
    let strides = index_strides(pooling, base);
    let field = Field::of(pooling);
    let taps = field.width_taps();
    let mut y = vec![T::LOWEST; pooling.output().elements()];
    let mut winners = vec![-1; y.len()];
    parallel::zipped(&mut y, &mut winners, field.row(), |row, (y, winners)| {
        field.for_each_tap(row, &taps, |tap| {
            take_maxima(&field, &tap, &strides, x, (&mut *y, &mut *winners));
        });
        add_index_base(&field, &strides, field.row_position(row).0, winners);
    });
    (y, winners)
}

/// Compares one tap with the current maxima of a row's windows.
#[inline]
fn take_maxima<T: Scalar>(
    field: &Field,
    tap: &RowTap,
    strides: &Strides,
    x: &[T],
    (y, winners): (&mut [T], &mut [i32]),
) {
    let (lanes, stride) = (field.lanes, field.grid.axes()[2].stride());
    let pixels = y[tap.outputs.clone()].chunks_exact_mut(lanes);
    let pixels = pixels.zip(winners[tap.outputs.clone()].chunks_exact_mut(lanes));
    let first = strides.offset(0, 0, tap.position);
    let step = stride * strides.space[2];
    for (i, ((y, winners), x)) in pixels.zip(x[tap.input..].chunks(stride * lanes)).enumerate() {
        let index = (first + i * step) as i32;
        for ((best, winner), &v) in y.iter_mut().zip(winners).zip(x) {
            // The first tap wins even if it is the lowest number.
            let wins = *winner < 0 || v.beats(*best);
            *best = if wins || v.exceeds(*best) { v } else { *best };
            *winner = if wins { index } else { *winner };
        }
    }
}

/// The average of each window.
pub fn average<T: Scalar>(pooling: &Pooling, divisor: Divisor, x: &[T]) -> Vec<T> {
    if is_integer::<T>() {
        return averages(pooling, divisor, x, T::ZERO, |sum, by| nearest(divisor, sum, by));
    }
    averages(pooling, divisor, x, T::ZERO, |sum: f64, by| T::from_f64(sum / by))
}

/// The average of each window, unrounded, with the data for an error bound. The terms are the divided
/// elements.
pub fn average_totals<T: Scalar>(pooling: &Pooling, divisor: Divisor, x: &[T]) -> Vec<Total> {
    averages(pooling, divisor, x, Total::default(), |sum: Total, by| sum.divided(by))
}

fn averages<T: Scalar, A: Sum, Y: Copy + Send + Sync>(
    pooling: &Pooling,
    divisor: Divisor,
    x: &[T],
    zero: Y,
    finish: impl Fn(A, f64) -> Y + Sync,
) -> Vec<Y> {
    check_input(pooling, x);
    let field = Field::of(pooling);
    let taps = field.width_taps();
    let divisors = divisors(pooling, divisor);
    let mut y = vec![zero; pooling.output().elements()];
    field.for_each_row(&mut y, |row, y| {
        let mut sums = vec![A::default(); y.len()];
        field.for_each_tap(row, &taps, |tap| {
            field.zip(&tap, &mut sums, x, |sum, v| sum.add_element(v));
        });
        let windows = y.len() / field.lanes;
        let first = row * windows % divisors.len();
        let pixels = y.chunks_exact_mut(field.lanes).zip(sums.chunks_exact(field.lanes));
        for ((y, sums), &divisor) in pixels.zip(&divisors[first..]) {
            for (y, sum) in y.iter_mut().zip(sums) {
                *y = finish(*sum, divisor);
            }
        }
    });
    y
}
