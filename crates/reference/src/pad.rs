//! Padding in memory: a tensor larger than its input, whose additional positions hold a number or copies.
//!
//! ```text
//! y[n, o, c] = x[n, source(o), c], or a value   source by the mode, as windowpane-geometry says
//! ```

use windowpane_geometry::{Layout, Padded};

use crate::total::Accumulator;
use crate::{Scalar, Total, check_length, parallel, taps};

/// The input with its padding, which holds `value` where the mode says zeros.
pub fn pad<T: Scalar>(padded: &Padded, value: T, x: &[T]) -> Vec<T> {
    check_length("the input", x.len(), padded.input().elements());
    let output = padded.output();
    let x_steps = padded.input().strides(padded.layout());
    parallel::collect(output.elements(), |i| {
        let (channels, plane) = (output.channels(), output.plane());
        let (n, c, o) = match padded.layout() {
            Layout::ChannelsLast => (i / channels / plane, i % channels, i / channels % plane),
            Layout::ChannelsFirst => (i / plane / channels, i / plane % channels, i % plane),
        };
        let source = padded.source(taps::position(o, output.space().three(1)));
        source.map_or(value, |position| x[x_steps.offset(n, c, position)])
    })
}

/// The gradient with respect to the input: `dx[n, source(o), c] += dy[n, o, c]` for every position that has a source.
pub fn pad_gradient<T: Scalar>(padded: &Padded, dy: &[T]) -> Vec<T> {
    scatter(padded, dy, T::ZERO, |sum: f64| T::from_f64(sum))
}

/// The gradient, unrounded, with the data for an error bound.
pub fn pad_gradient_totals<T: Scalar>(padded: &Padded, dy: &[T]) -> Vec<Total> {
    scatter(padded, dy, Total::default(), |sum: Total| sum)
}

fn scatter<T: Scalar, A: Accumulator, Y: Copy + Send>(
    padded: &Padded,
    dy: &[T],
    zero: Y,
    finish: impl Fn(A) -> Y + Send + Sync,
) -> Vec<Y> {
    let (input, output) = (padded.input(), padded.output());
    check_length("the output gradient", dy.len(), output.elements());
    let dx_steps = input.strides(padded.layout());
    let dy_steps = output.strides(padded.layout());
    let mut dx = vec![zero; input.elements()];
    parallel::chunks(&mut dx, dx_steps.batch, 1, |n, dx| {
        let mut sums = vec![A::default(); dx.len()];
        for o in 0..output.plane() {
            let o = taps::position(o, output.space().three(1));
            let Some(position) = padded.source(o) else { continue };
            for c in 0..input.channels() {
                sums[dx_steps.offset(0, c, position)].add(dy[dy_steps.offset(n, c, o)].to_f64());
            }
        }
        dx.iter_mut().zip(sums).for_each(|(dx, sum)| *dx = finish(sum));
    });
    dx
}

/// For each element of the input, the elements of the output that have its value, in memory order.
pub fn copies(padded: &Padded) -> Vec<Vec<usize>> {
    let (input, output) = (padded.input(), padded.output());
    let [from, to] = [input, output].map(|shape| shape.strides(padded.layout()));
    let mut copies = vec![Vec::new(); input.elements()];
    for n in 0..output.batch() {
        for c in 0..output.channels() {
            for o in 0..output.plane() {
                let o = taps::position(o, output.space().three(1));
                if let Some(x) = padded.source(o) {
                    copies[from.offset(n, c, x)].push(to.offset(n, c, o));
                }
            }
        }
    }
    copies
}

#[cfg(test)]
mod tests {
    use windowpane_geometry::{Extents, Padding, PaddingMode, Shape};

    use super::*;

    /// The gradient of an element is the sum of those of its copies.
    #[test]
    fn copies_are_what_the_gradient_adds() {
        for mode in PaddingMode::ALL {
            for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
                let input = Shape::new(2, 3, Extents::from([4, 2])).unwrap();
                let padding = Padding::from([(1, 3), (5, 0)]);
                let padded = Padded::new(input, padding, mode, layout).unwrap();
                let dy: Vec<f64> = (1..=padded.output().elements()).map(|i| i as f64).collect();
                let sums = copies(&padded).into_iter().map(|all| all.iter().map(|o| dy[*o]).sum());
                assert_eq!(pad_gradient(&padded, &dy), sums.collect::<Vec<f64>>(), "{mode}");
            }
        }
    }
}
