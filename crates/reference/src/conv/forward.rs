use windowpane_geometry::{AXES, Convolution, Layout};

use super::epilogue::{Epilogue, activate, activate_total};
use crate::total::Accumulator;
use crate::{Scalar, Total, check_length, parallel, taps};

/// The convolution of `x` with the filters `w`, followed by the epilogue.
pub fn forward<T: Scalar>(
    conv: &Convolution,
    x: &[T],
    w: &[T],
    epilogue: Epilogue<'_, T>,
) -> Vec<T> {
    let round = |sum| T::from_f64(activate(epilogue.activation, sum));
    convolve(conv, x, w, epilogue, round)
}

/// The convolution, unrounded, with the data for an error bound. Bias and residual count as terms.
pub fn forward_totals<T: Scalar>(
    conv: &Convolution,
    x: &[T],
    w: &[T],
    epilogue: Epilogue<'_, T>,
) -> Vec<Total> {
    convolve(conv, x, w, epilogue, |sum| activate_total(epilogue.activation, sum))
}

fn convolve<T: Scalar, A: Accumulator, Y: Send>(
    conv: &Convolution,
    x: &[T],
    w: &[T],
    Epilogue { bias, residual, .. }: Epilogue<'_, T>,
    finish: impl Fn(A) -> Y + Send + Sync,
) -> Vec<Y> {
    check_length("the input", x.len(), conv.input().elements());
    check_length("the filter", w.len(), conv.filter().elements());
    if let Some(bias) = bias {
        check_length("the bias", bias.len(), conv.filter().count());
    }
    if let Some(residual) = residual {
        check_length("the residual", residual.len(), conv.output().elements());
    }
    parallel::collect(conv.output().elements(), |i| {
        let (n, f, o) = element(conv, i);
        let mut sum: A = dot(conv, x, w, n, f, o);
        if let Some(bias) = bias {
            sum.add(bias[f].to_f64());
        }
        if let Some(residual) = residual {
            sum.add(residual[i].to_f64());
        }
        finish(sum)
    })
}

/// The dot product of a window with a filter.
fn dot<T: Scalar, A: Accumulator>(
    conv: &Convolution,
    x: &[T],
    w: &[T],
    n: usize,
    f: usize,
    o: [usize; AXES],
) -> A {
    let x_steps = conv.input().strides(conv.layout());
    let w_steps = conv.filter().strides(conv.filter_layout());
    let first = conv.first_channel(f);
    let mut sum = A::default();
    for (tap, position) in taps::inside(conv.grid(), o) {
        let x = &x[x_steps.offset(n, first, position)..];
        let w = &w[w_steps.offset(f, 0, tap)..];
        for c in 0..conv.filter().channels() {
            sum.add(x[c * x_steps.channel].to_f64() * w[c * w_steps.channel].to_f64());
        }
    }
    sum
}

/// The sample, filter and position of the `i`-th output in memory.
pub(super) fn element(conv: &Convolution, i: usize) -> (usize, usize, [usize; AXES]) {
    let (filters, plane) = (conv.output().channels(), conv.output().plane());
    let (n, f, o) = match conv.layout() {
        Layout::ChannelsLast => (i / filters / plane, i % filters, i / filters % plane),
        Layout::ChannelsFirst => (i / plane / filters, i / plane % filters, i % plane),
    };
    (n, f, taps::position(o, conv.output().space().three(1)))
}
