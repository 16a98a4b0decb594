//! The norm of each window, `y = (Σ|x|^p)^(1/p)`, and its gradient.
//!
//! ```text
//! m  = max |x|
//! y  = m · (Σ (|x|/m)^p)^(1/p)                 no intermediate value overflows or vanishes
//! dx = Σ over the windows of  dy · sign(x) · (|x|/y)^(p−1)
//! ```
//!
//! This equals the plain formula, because the factor `m` of every term moves out of the root. If `m` is 0,
//! infinite or NaN, it is the result. An `x` of 0 gets nothing from any window, so a window of zeros, where
//! the derivative is `0/0`, has the gradient 0, as in PyTorch. For `p = 1` the norm is not needed.
//!
//! # The error bound of a kernel
//!
//! The following counts roundings `u` of the accumulating type, to first order, for a window of `n` taps. The error
//! of a quotient or a root is at most 9u. The error of a power is at most 16 ULP = 32u, or the power is computed as
//! `exp2(q·log2(t))`, where the error of `log2` is at most `max(2⁻²¹, 3 ULP)` and that of `exp2(a)` is at most
//! `3 + 2|a|` ULP. These are the limits in the tables of Vulkan and WGSL; CUDA, ROCm, Metal and the C library promise
//! at least this accuracy. Scaling by a power of two is exact. Underflow is not counted: a ratio too small for the
//! type is 0.
//!
//! * `p = 1`: n − 1 additions.
//! * `p = 2`: each square has the error 1 and their sum n − 1; the root halves these and adds 9: n/2 + 10.
//! * otherwise: the error of `t = |x|/m` is 6u, so that of `t^p` is `6p` and, through `log2`, `8·ln 2·p` where
//!   `t ≥ ½`. With `a = p·log2 t`, the errors that grow with `a` are those of `log2`, of the product, of rounding `p`
//!   and of `exp2`: `ln 2·(6 + 1 + 1) + 4 < 9.6` times `|a|u`. They are less than `0.531·9.6 < 5.1` of the largest
//!   term, since `2^−|a|·|a| < 0.531`. So the error of the sum is `12p + 32 + 6.1n`, which the root divides by `p`.
//!   The root, itself a power, adds `32 + (6 + 9.6·log2 n)/p`, and the factor `m` adds 1:
//!   together `45 + (38 + 6.1n + 10·log2 n)/p`.
//!
//! For the gradient, let `c` be the error of the window's norm and `q = p − 1`. The error of `|x|/y` is `5 + c`. The
//! error of its power is `q` times that, plus `6q` where `log2` is near 0, plus 33 for the power itself and its
//! product with `dy`, plus `5.1|dy|` as above. The sum over `w` windows adds w. For `q = 1` there is no power.

use std::convert::Infallible;

use windowpane_geometry::{AXES, Exponent, Pooling};

use super::backward::{planes, scatter_planes};
use super::field::Field;
use super::{check_input, check_output};
use crate::{Scalar, Total, taps};

/// The norm of each window; 0 for an empty one.
///
/// ```
/// use windowpane_geometry::{Exponent, Extents, Layout, Pooling, Shape, Window};
/// use windowpane_reference::pool::lp;
///
/// let line = Shape::new(1, 1, Extents::from([4]))?;
/// let pooling = Pooling::new(line, &Window::new([2]).stride([2]), Layout::ChannelsLast)?;
/// assert_eq!(lp::norm(&pooling, Exponent::new(2), &[3e30f32, -4e30, 0.0, 0.0]), [5e30, 0.0]);
/// # Ok::<(), windowpane_geometry::Error>(())
/// ```
pub fn norm<T: Scalar>(pooling: &Pooling, p: Exponent, x: &[T]) -> Vec<T> {
    norms(pooling, p, x).into_iter().map(T::from_f64).collect()
}

/// The norm of each window, unrounded. The magnitude is the error in unit roundoffs that the module
/// derives, so there is one term.
pub fn norm_totals<T: Scalar>(pooling: &Pooling, p: Exponent, x: &[T]) -> Vec<Total> {
    let (grid, lanes) = (pooling.grid(), Field::of(pooling).lanes);
    let extents = grid.axes().map(|axis| axis.output());
    let totals = norms(pooling, p, x).into_iter().enumerate().map(|(at, value)| {
        let o = taps::position(at / lanes % grid.output_plane(), extents);
        let roundings = norm_roundings(p.get(), inside_taps(pooling, o));
        Total { value, magnitude: roundings * value, terms: 1 }
    });
    totals.collect()
}

/// The derived error of the norm of `n` numbers, in unit roundoffs.
fn norm_roundings(p: f64, n: f64) -> f64 {
    match p {
        1.0 => n,
        2.0 => n / 2.0 + 10.0,
        p => 45.0 + (38.0 + 6.1 * n + 10.0 * n.max(1.0).log2()) / p,
    }
}

fn inside_taps(pooling: &Pooling, o: [usize; AXES]) -> f64 {
    let along = pooling.grid().axes().iter().zip(o);
    along.map(|(axis, o)| axis.inside(o).len()).product::<usize>() as f64
}

/// The norms, unrounded.
fn norms<T: Scalar>(pooling: &Pooling, p: Exponent, x: &[T]) -> Vec<f64> {
    check_input(pooling, x);
    let (field, p) = (Field::of(pooling), p.get());
    let taps = field.width_taps();
    let mut y = vec![0.0f64; pooling.output().elements()];
    field.for_each_row(&mut y, |row, y| {
        let mut largest = vec![0.0f64; y.len()];
        field.for_each_tap(row, &taps, |tap| {
            field.zip(&tap, &mut largest, x, |largest, x| {
                let size = x.to_f64().abs();
                *largest = if size.beats(*largest) { size } else { *largest };
            });
        });
        // For p = 1 no scale is needed: the sum overflows only if the norm does.
        let scales: Vec<f64> = match p {
            1.0 => vec![1.0; y.len()],
            _ => largest.clone(),
        };
        let mut sums: Vec<_> = scales.iter().map(|&scale| Powers { scale, sum: 0.0 }).collect();
        field.for_each_tap(row, &taps, |tap| {
            field.zip(&tap, &mut sums, x, |powers, x| {
                powers.sum += power(x.to_f64().abs() / powers.scale, p);
            });
        });
        for ((y, powers), largest) in y.iter_mut().zip(sums).zip(largest) {
            let is_scale = largest == 0.0 || !largest.is_finite();
            *y = if is_scale { largest } else { powers.scale * root(powers.sum, p) };
        }
    });
    y
}

/// The bytes that each output of a row takes: the largest number, its scale, and a sum of powers.
pub(super) const ROW_BYTES: usize = 2 * size_of::<f64>() + size_of::<Powers>();

/// The bytes of a gradient's element until it is rounded.
pub(super) const SUM_BYTES: usize = size_of::<Sum>();

/// A sum of powers of scaled numbers.
#[derive(Clone, Copy)]
struct Powers {
    scale: f64,
    sum: f64,
}

fn power(t: f64, p: f64) -> f64 {
    match p {
        1.0 => t,
        2.0 => t * t,
        p => t.powf(p),
    }
}

fn root(sum: f64, p: f64) -> f64 {
    match p {
        1.0 => sum,
        2.0 => sum.sqrt(),
        p => sum.powf(1.0 / p),
    }
}

/// The gradient of the norm.
pub fn norm_backward<T: Scalar>(pooling: &Pooling, p: Exponent, dy: &[T], x: &[T]) -> Vec<T> {
    spread(pooling, p, dy, x, T::ZERO, |sum: Sum| T::from_f64(sum.value))
}

/// The gradient of the norm, unrounded, with a magnitude as in [`norm_totals`].
pub fn norm_backward_totals<T: Scalar>(
    pooling: &Pooling,
    p: Exponent,
    dy: &[T],
    x: &[T],
) -> Vec<Total> {
    spread(pooling, p, dy, x, Total::default(), |sum: Sum| Total {
        value: sum.value,
        magnitude: sum.moved + sum.windows * sum.size,
        terms: 1,
    })
}

/// The gradient of one element.
#[derive(Clone, Copy, Default)]
struct Sum {
    value: f64,
    /// The sum of the terms' magnitudes.
    size: f64,
    /// The error of the terms, in unit roundoffs.
    moved: f64,
    windows: f64,
}

impl Sum {
    fn add(&mut self, term: f64) {
        self.value += term;
        self.size += term.abs();
        self.windows += 1.0;
    }
}

fn spread<T: Scalar, Y: Copy + Send + Sync>(
    pooling: &Pooling,
    p: Exponent,
    dy: &[T],
    x: &[T],
    zero: Y,
    finish: impl Fn(Sum) -> Y + Sync,
) -> Vec<Y> {
    check_output(pooling, "the output gradient", dy);
    let norms = norms(pooling, p, x);
    let (field, p) = (Field::of(pooling), p.get());
    let (grid, lanes) = (field.grid, field.lanes);
    let (inputs, outputs) = planes(&field);
    let extents = grid.axes().map(|axis| axis.output());
    let scatter = |outer: usize, sums: &mut [Sum]| {
        let x = &x[outer * inputs..][..inputs];
        for at in 0..outputs {
            let (o, lane) = (taps::position(at / lanes, extents), at % lanes);
            let (dy, y) = (dy[outer * outputs + at].to_f64(), norms[outer * outputs + at]);
            let roundings = share_roundings(p, inside_taps(pooling, o));
            for (_, position) in taps::inside(grid, o) {
                let at = grid.plane_index(position) * lanes + lane;
                let term = share(p, dy, x[at].to_f64(), y);
                sums[at].add(term);
                sums[at].moved += roundings * term.abs() + 5.1 * dy.abs();
            }
        }
        Ok::<_, Infallible>(())
    };
    let Ok(dx) = scatter_planes(&field, zero, finish, scatter);
    dx
}

/// The contribution to `x` of a window whose norm is `y`.
fn share(p: f64, dy: f64, x: f64, y: f64) -> f64 {
    if x == 0.0 {
        return 0.0;
    }
    let size = if p == 1.0 { 1.0 } else { (x.abs() / y).powf(p - 1.0) };
    dy * size * x.signum()
}

/// The derived error of one term of the gradient, in unit roundoffs.
fn share_roundings(p: f64, n: f64) -> f64 {
    let q = p - 1.0;
    q * (5.0 + 6.0 + norm_roundings(p, n)) + 33.0
}
