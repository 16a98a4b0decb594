use windowpane_geometry::{AXES, Convolution};

use crate::total::Accumulator;
use crate::{Scalar, Total, check_length, parallel, taps};

/// The data gradient, with respect to the input:
/// `dx[n, x(o, t), c] += dy[n, o, f] · w[f, t, c]` for every output and each of its terms.
pub fn data_gradient<T: Scalar>(conv: &Convolution, dy: &[T], w: &[T]) -> Vec<T> {
    scatter_data(conv, dy, w, T::ZERO, |sum: f64| T::from_f64(sum))
}

/// The data gradient, unrounded, with the data for an error bound.
pub fn data_gradient_totals<T: Scalar>(conv: &Convolution, dy: &[T], w: &[T]) -> Vec<Total> {
    scatter_data(conv, dy, w, Total::default(), |sum: Total| sum)
}

/// The weight gradient, with respect to the filters:
/// `dw[f, t, c] += dy[n, o, f] · x[n, x(o, t), c]` for every output and each of its terms.
pub fn weight_gradient<T: Scalar>(conv: &Convolution, dy: &[T], x: &[T]) -> Vec<T> {
    scatter_weight(conv, dy, x, T::ZERO, |sum: f64| T::from_f64(sum))
}

/// The weight gradient, unrounded, with the data for an error bound.
pub fn weight_gradient_totals<T: Scalar>(conv: &Convolution, dy: &[T], x: &[T]) -> Vec<Total> {
    scatter_weight(conv, dy, x, Total::default(), |sum: Total| sum)
}

/// The bias gradient: `db[f] += dy[n, o, f]` for every output.
pub fn bias_gradient<T: Scalar>(conv: &Convolution, dy: &[T]) -> Vec<T> {
    sum_outputs(conv, dy, |sum: f64| T::from_f64(sum))
}

/// The bias gradient, unrounded, with the data for an error bound.
pub fn bias_gradient_totals<T: Scalar>(conv: &Convolution, dy: &[T]) -> Vec<Total> {
    sum_outputs(conv, dy, |sum: Total| sum)
}

fn scatter_data<T: Scalar, A: Accumulator, Y: Copy + Send>(
    conv: &Convolution,
    dy: &[T],
    w: &[T],
    zero: Y,
    finish: impl Fn(A) -> Y + Send + Sync,
) -> Vec<Y> {
    check_length("the output gradient", dy.len(), conv.output().elements());
    check_length("the filter", w.len(), conv.filter().elements());
    let dy_steps = conv.output().strides(conv.layout());
    let dx_steps = conv.input().strides(conv.layout());
    let w_steps = conv.filter().strides(conv.filter_layout());

    let mut dx = vec![zero; conv.input().elements()];
    parallel::chunks(&mut dx, dx_steps.batch, 1, |n, dx| {
        let mut sums = vec![A::default(); dx.len()];
        for_each_window(conv, |f, o| {
            let g = dy[dy_steps.offset(n, f, o)].to_f64();
            for (tap, position) in taps::inside(conv.grid(), o) {
                let sums = &mut sums[dx_steps.offset(0, conv.first_channel(f), position)..];
                let w = &w[w_steps.offset(f, 0, tap)..];
                for c in 0..conv.filter().channels() {
                    sums[c * dx_steps.channel].add(g * w[c * w_steps.channel].to_f64());
                }
            }
        });
        dx.iter_mut().zip(sums).for_each(|(dx, sum)| *dx = finish(sum));
    });
    dx
}

fn scatter_weight<T: Scalar, A: Accumulator, Y: Copy + Send>(
    conv: &Convolution,
    dy: &[T],
    x: &[T],
    zero: Y,
    finish: impl Fn(A) -> Y + Send + Sync,
) -> Vec<Y> {
    check_length("the output gradient", dy.len(), conv.output().elements());
    check_length("the input", x.len(), conv.input().elements());
    let (filter, outputs) = (conv.filter(), conv.output().space().three(1));
    let dy_steps = conv.output().strides(conv.layout());
    let x_steps = conv.input().strides(conv.layout());
    let dw_steps = filter.strides(conv.filter_layout());
    let [_, height, width] = filter.kernel().three(1);

    // The sums of one filter are independent, so filters run on all cores.
    let sums: Vec<Vec<A>> = parallel::collect(filter.count(), |f| {
        let mut sums = vec![A::default(); filter.taps() * filter.channels()];
        let windows = conv.output().batch() * conv.output().plane();
        for i in 0..windows {
            let n = i / conv.output().plane();
            let o = taps::position(i % conv.output().plane(), outputs);
            let g = dy[dy_steps.offset(n, f, o)].to_f64();
            for ([d, h, w], position) in taps::inside(conv.grid(), o) {
                let tap = (d * height + h) * width + w;
                let sums = &mut sums[tap * filter.channels()..][..filter.channels()];
                let x = &x[x_steps.offset(n, conv.first_channel(f), position)..];
                for (c, sum) in sums.iter_mut().enumerate() {
                    sum.add(g * x[c * x_steps.channel].to_f64());
                }
            }
        }
        sums
    });

    let mut dw = vec![zero; filter.elements()];
    for (f, sums) in sums.into_iter().enumerate() {
        for (i, sum) in sums.into_iter().enumerate() {
            let tap = taps::position(i / filter.channels(), filter.kernel().three(1));
            dw[dw_steps.offset(f, i % filter.channels(), tap)] = finish(sum);
        }
    }
    dw
}

fn sum_outputs<T: Scalar, A: Accumulator, Y: Send>(
    conv: &Convolution,
    dy: &[T],
    finish: impl Fn(A) -> Y + Send + Sync,
) -> Vec<Y> {
    check_length("the output gradient", dy.len(), conv.output().elements());
    let steps = conv.output().strides(conv.layout());
    let outputs = conv.output().space().three(1);
    parallel::collect(conv.filter().count(), |f| {
        let mut sum = A::default();
        for n in 0..conv.output().batch() {
            for o in 0..conv.output().plane() {
                let o = taps::position(o, outputs);
                sum.add(dy[steps.offset(n, f, o)].to_f64());
            }
        }
        finish(sum)
    })
}

/// Calls `each` with every filter and output position of a sample, positions in row-major order with all
/// filters of one position together.
fn for_each_window(conv: &Convolution, mut each: impl FnMut(usize, [usize; AXES])) {
    let outputs = conv.output().space().three(1);
    for o in 0..conv.output().plane() {
        for f in 0..conv.filter().count() {
            each(f, taps::position(o, outputs));
        }
    }
}
