//! Padding in memory, row by row: what is inside of a row is copied at once.

use windowpane_geometry::{Layout, Padded};
use windowpane_reference::{Scalar, parallel};

use crate::shared::written;

/// The elements that a thread writes at least.
const LEAST: usize = 1 << 15;

/// The input with its padding, which holds `value` where the mode says zeros.
pub fn pad<T: Scalar>(padded: &Padded, value: T, x: &[T]) -> Vec<T> {
    let (input, output) = (padded.input(), padded.output());
    assert_eq!(x.len(), input.elements(), "the input has as many elements as its shape");
    // The elements of a pixel, one after the other; and the planes, one after the other.
    let (pixel, planes) = match padded.layout() {
        Layout::ChannelsLast => (input.channels(), input.batch()),
        Layout::ChannelsFirst => (1, input.batch() * input.channels()),
    };
    let [depth, height, width] = padded.axes();
    let sources = padded.axes().each_ref().map(|axis| -> Vec<Option<usize>> {
        let source = |o| padded.mode().source(axis.start(o), axis.input());
        (0..axis.output()).map(source).collect()
    });
    let (row, read) = (width.output() * pixel, width.input() * pixel);
    let inside = width.before() * pixel..width.before() * pixel + read;
    let rows = planes * depth.output() * height.output();
    let write = |i: usize, y: &mut [T]| {
        let (rest, h) = (i / height.output(), i % height.output());
        let (plane, d) = (rest / depth.output(), rest % depth.output());
        let (Some(d), Some(h)) = (sources[0][d], sources[1][h]) else { return y.fill(value) };
        let x = &x[((plane * depth.input() + d) * height.input() + h) * read..][..read];
        y[inside.clone()].copy_from_slice(x);
        for w in (0..width.before()).chain(width.before() + width.input()..width.output()) {
            let y = &mut y[w * pixel..][..pixel];
            match sources[2][w] {
                Some(w) => y.copy_from_slice(&x[w * pixel..][..pixel]),
                None => y.fill(value),
            }
        }
    };
    // SAFETY: every row is written whole, and by one thread.
    unsafe {
        written(output.elements(), |y| {
            parallel::each(rows, LEAST.div_ceil(row.max(1)), &|i| write(i, y.slice(i * row, row)));
        })
    }
}
