//! Stochastic pooling: a number of each window, drawn with a probability proportional to it, and the mean of what is drawn.
//!
//! ```text
//! w(x)  = x, or 0 if x is negative
//! drawn y[o] = the first x[x(o, t)], t inside, at which the running sum of w exceeds u(o) · Σ w, or equals Σ w
//! mean  y[o] = Σ w² / Σ w                                       0 if the sum is 0
//! ```
//!
//! The sums of stochastic pooling are in `f32`, in `f64` for `f64`, added in the row-major order of the taps: then every
//! device draws the same. `u(o)` is [`uniform`] of the output's position in the logical N, C, D, H, W tensor. The first NaN of a
//! window is drawn, if there is one.
//!
//! The error of the mean on a device: each quotient by the largest weight has an error of 2.5 units of the last place, and so
//! has the quotient of the sums. Squares and sums round as always, so that with `n` taps
//! `|y − ref| ≤ u_out·|ref| + (2n + 20)·u_acc·|ref|`.

use windowpane_geometry::{AXES, IndexBase, Layout, Pooling, uniform};

use super::field::Field;
use super::{add_index_base, check_input, index_strides};
use crate::{Scalar, Total, parallel, taps};

/// A number of each window, drawn by a seed, and its index.
///
/// The indices must fit, as [`Pooling::check_indices`] says.
///
/// ```
/// use windowpane_geometry::{Extents, IndexBase, Layout, Pooling, Shape, Window};
/// use windowpane_reference::pool::stochastic::{drawn, mean};
///
/// let line = Shape::new(1, 1, Extents::from([4]))?;
/// let pooling = Pooling::new(line, &Window::new([2]).stride([2]), Layout::ChannelsLast)?;
/// let x = [0.0f32, 5.0, -1.0, -2.0];
/// assert_eq!(drawn(&pooling, 7, IndexBase::Plane, &x), (vec![5.0, -1.0], vec![1, 2]));
/// assert_eq!(mean(&pooling, &[1.0f32, 3.0, -1.0, 0.0]), [2.5, 0.0]);
/// # Ok::<(), windowpane_geometry::Error>(())
/// ```
pub fn drawn<T: Scalar>(
    pooling: &Pooling,
    seed: u32,
    base: IndexBase,
    x: &[T],
) -> (Vec<T>, Vec<i32>) {
    check_input(pooling, x);
    let (field, strides) = (Field::of(pooling), index_strides(pooling, base));
    let mut y = vec![T::ZERO; pooling.output().elements()];
    let mut indices = vec![-1; y.len()];
    parallel::zipped(&mut y, &mut indices, field.row(), |row, (y, indices)| {
        for (at, (y, index)) in y.iter_mut().zip(&mut *indices).enumerate() {
            let u = f64::from(uniform(seed, position(pooling, row * field.row() + at)));
            let is_wide = T::ROUNDOFF < f64::from(f32::EPSILON) / 2.0;
            let round = |sum: f64| if is_wide { sum } else { f64::from(sum as f32) };
            let chosen = draw(|| window(&field, x, row, at), round, u);
            if let Some((coordinates, number)) = chosen {
                (*y, *index) = (number, strides.offset(0, 0, coordinates) as i32);
            }
        }
        add_index_base(&field, &strides, field.row_position(row).0, indices);
    });
    (y, indices)
}

/// The mean of what [`drawn`] draws with all seeds.
pub fn mean<T: Scalar>(pooling: &Pooling, x: &[T]) -> Vec<T> {
    means(pooling, x, T::ZERO, |total| T::from_f64(total.value))
}

/// The mean, unrounded, with the data for an error bound.
pub fn mean_totals<T: Scalar>(pooling: &Pooling, x: &[T]) -> Vec<Total> {
    means(pooling, x, Total::default(), |total| total)
}

fn means<T: Scalar, Y: Copy + Send + Sync>(
    pooling: &Pooling,
    x: &[T],
    zero: Y,
    finish: impl Fn(Total) -> Y + Sync,
) -> Vec<Y> {
    check_input(pooling, x);
    let field = Field::of(pooling);
    let mut y = vec![zero; pooling.output().elements()];
    field.for_each_row(&mut y, |row, y| {
        for (at, y) in y.iter_mut().enumerate() {
            let weights = || window(&field, x, row, at).map(|(_, number)| weight(number.to_f64()));
            let largest = weights().fold(0.0, f64::max);
            let total: f64 = weights().sum();
            let value = if total.is_nan() || largest == 0.0 || largest.is_infinite() {
                total
            } else {
                let (sum, squares) = weights().fold((0.0, 0.0), |(sum, squares), weight| {
                    let share = weight / largest;
                    (sum + share, squares + share * share)
                });
                largest * (squares / sum)
            };
            *y = finish(Total { value, magnitude: value, terms: 2 * weights().count() + 20 });
        }
    });
    y
}

/// The numbers of a window of a row, each with its coordinates, in row-major order.
fn window<'a, T: Scalar>(
    field: &Field<'a>,
    x: &'a [T],
    row: usize,
    at: usize,
) -> impl Iterator<Item = ([usize; AXES], T)> + use<'a, T> {
    let (field, (outer, first)) = (*field, field.row_position(row));
    let o = [first[0], first[1], at / field.lanes];
    taps::inside(field.grid, o).map(move |(_, position)| {
        let pixel = outer * field.grid.input_plane() + field.grid.plane_index(position);
        (position, x[pixel * field.lanes + at % field.lanes])
    })
}

/// The number of a window at which the running sum, rounded by `round` at each step, exceeds the share `u` of the total
/// or equals the total; the first NaN if there is one, and `None` in an empty window.
fn draw<T: Scalar, W: Iterator<Item = ([usize; AXES], T)>>(
    window: impl Fn() -> W,
    round: impl Fn(f64) -> f64,
    u: f64,
) -> Option<([usize; AXES], T)> {
    let add = |sum: f64, number: T| round(sum + weight(number.to_f64()));
    let total = window().fold(0.0, |sum, (_, number)| add(sum, number));
    let limit = round(u * total);
    let mut running = 0.0;
    for (position, number) in window() {
        running = add(running, number);
        if running > limit || running == total || number.to_f64().is_nan() {
            return Some((position, number));
        }
    }
    None
}

/// A number, or 0 in place of a negative one.
fn weight(number: f64) -> f64 {
    if number < 0.0 { 0.0 } else { number }
}

/// The position of output `at`, counted in memory order, in the logical N, C, D, H, W tensor.
fn position(pooling: &Pooling, at: usize) -> u32 {
    let (channels, plane) = (pooling.output().channels(), pooling.output().plane());
    (match pooling.layout() {
        Layout::ChannelsFirst => at,
        Layout::ChannelsLast => {
            let (n, window, c) = (at / channels / plane, at / channels % plane, at % channels);
            (n * channels + c) * plane + window
        }
    }) as u32
}
