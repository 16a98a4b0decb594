//! Averages with prefix sums: constant work per element for any window size.
//!
//! The usual method subtracts two running sums, so that every element before a window affects it: a NaN
//! or an infinity never leaves the running sum, and a large number leaves its rounding errors behind.
//! Here nothing is subtracted. The axis is divided into blocks of the window's length, and sums run only
//! within a block, from its start and to its end:
//!
//! ```text
//! blocks      |  a b c d  |  e f g h  |          k = 4
//! prefix[i]   |  a → → →  |  e → → →  |          from the block's start to i
//! suffix[i]   |  ← ← ← d  |  ← ← ← h  |          from i to the block's end
//! window          [ c d      e f ]               suffix[c] + prefix[f]
//! ```
//!
//! A window as long as a block is a suffix of one block and a prefix of the next. A window at the edge of
//! the input is shorter: it starts with the first block or ends with the last one, so it is still made of
//! one or both parts. A sum therefore has only the terms of its own window; elements outside have no
//! influence.
//!
//! The axes are processed one after another, the last one first. With a dilation `d`, windows whose starts
//! differ by a multiple of `d` share the sequence of every `d`-th element, which has blocks of its own.
//!
//! The windows of an uneven axis differ in length but share few coordinates with their neighbours. They
//! are summed one by one, which is as little work.

use std::borrow::Cow;
use std::ops::AddAssign;

use windowpane_geometry::{Axis, Divisor, Pooling};

use super::field::{Field, sweep};
use super::{check_input, divisors, is_integer, nearest, passes_unchanged};
use crate::total::Sum;
use crate::{Scalar, parallel};

/// The average of each window.
pub fn average<T: Scalar>(pooling: &Pooling, divisor: Divisor, x: &[T]) -> Vec<T> {
    if is_integer::<T>() {
        return averages(pooling, divisor, x, |sum: i128, by| nearest(divisor, sum, by));
    }
    averages(pooling, divisor, x, |sum: f64, by| T::from_f64(sum / by))
}

fn averages<T: Scalar, A: Sum + AddAssign>(
    pooling: &Pooling,
    divisor: Divisor,
    x: &[T],
    finish: impl Fn(A, f64) -> T + Sync,
) -> Vec<T> {
    check_input(pooling, x);
    let field = Field::of(pooling);
    let divisors = divisors(pooling, divisor);
    let sums = sums::<T, A>(&field, x);
    let mut y = vec![T::ZERO; sums.len()];
    field.for_each_row(&mut y, |row, y| {
        let elements = row * field.row();
        let first = elements / field.lanes % divisors.len();
        let pixels = y.chunks_exact_mut(field.lanes).zip(sums[elements..].chunks(field.lanes));
        for ((y, sums), count) in pixels.zip(&divisors[first..]) {
            for (y, sum) in y.iter_mut().zip(sums) {
                *y = finish(*sum, *count);
            }
        }
    });
    y
}

/// The sum of each window.
fn sums<T: Scalar, A: Sum + AddAssign>(field: &Field, x: &[T]) -> Vec<A> {
    let x = parallel::collect(x.len(), |i| A::of(x[i]));
    let mut x = Cow::from(x);
    let mut outer = field.outer * field.grid.input_plane();
    let mut lanes = field.lanes;
    for axis in field.grid.axes().iter().rev() {
        outer /= axis.input();
        if !passes_unchanged(axis) {
            x = Cow::Owned(slide_along(axis, outer, lanes, &x));
        }
        lanes *= axis.output();
    }
    x.into_owned()
}

/// Sums along one axis, from `outer × L × lanes` to `outer × O × lanes`.
fn slide_along<A: Sum + AddAssign>(axis: &Axis, outer: usize, lanes: usize, x: &[A]) -> Vec<A> {
    let (length, dilation) = (axis.input(), axis.dilation());
    if axis.is_uneven() {
        return sum_each(axis, outer, lanes, x);
    }
    sweep([outer, axis.output(), lanes], A::default(), |outer, first_lane, rows| {
        let column = &x[outer * length * lanes..][..length * lanes];
        let width = rows[0].len();
        for class in axis.classes() {
            // The class reads the coordinates `origin + i·d`.
            let origin = axis.start(class.clone().next().unwrap_or(0));
            let origin = origin.rem_euclid(dilation as i64) as usize;
            let pixels = (origin..length).step_by(dilation);
            let pixels = pixels.map(|x| &column[x * lanes + first_lane..][..width]);
            let blocks = BlockSums::new(axis.kernel(), width, pixels);
            for o in class {
                let taps = axis.inside(o);
                if !taps.is_empty() {
                    let first = axis.coordinate(o, taps.start) as usize / dilation;
                    blocks.sum(first, first + taps.len() - 1, rows[o]);
                }
            }
        }
    })
}

/// Sums every window of one axis by itself.
fn sum_each<A: Sum + AddAssign>(axis: &Axis, outer: usize, lanes: usize, x: &[A]) -> Vec<A> {
    let length = axis.input();
    sweep([outer, axis.output(), lanes], A::default(), |outer, first_lane, rows| {
        let column = &x[outer * length * lanes..][..length * lanes];
        for (o, sums) in rows.iter_mut().enumerate() {
            for x in axis.inside(o).map(|t| axis.coordinate(o, t) as usize) {
                add(sums, &column[x * lanes + first_lane..]);
            }
        }
    })
}

/// The prefix and the suffix sums of each block of a sequence of pixels.
struct BlockSums<A> {
    /// The number of pixels in a block.
    block: usize,
    /// The number of elements in a pixel.
    width: usize,
    prefix: Vec<A>,
    suffix: Vec<A>,
}

impl<A: Sum + AddAssign> BlockSums<A> {
    fn new<'a>(block: usize, width: usize, pixels: impl Iterator<Item = &'a [A]>) -> Self
    where
        A: 'a,
    {
        let mut prefix: Vec<A> = pixels.flatten().copied().collect();
        let mut suffix = prefix.clone();
        let count = prefix.len() / width;
        for i in (1..count).filter(|i| i % block != 0) {
            let (before, here) = prefix.split_at_mut(i * width);
            add(here, &before[(i - 1) * width..]);
        }
        for i in (1..count).rev().filter(|i| i % block != 0) {
            let (before, here) = suffix.split_at_mut(i * width);
            add(&mut before[(i - 1) * width..], &here[..width]);
        }
        Self { block, width, prefix, suffix }
    }

    /// Writes the sum of the pixels `first..=last`. They are as long as a block, or shorter at an end of the
    /// sequence.
    fn sum(&self, first: usize, last: usize, y: &mut [A]) {
        let prefix = &self.prefix[last * self.width..][..self.width];
        let suffix = &self.suffix[first * self.width..][..self.width];
        if first.is_multiple_of(self.block) {
            y.copy_from_slice(prefix);
        } else {
            y.copy_from_slice(suffix);
            if first / self.block != last / self.block {
                add(y, prefix);
            }
        }
    }
}

/// Adds `terms` to `sums`, element by element.
fn add<A: Sum + AddAssign>(sums: &mut [A], terms: &[A]) {
    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += *term);
}
