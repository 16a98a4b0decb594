//! How the loops over windows write results: each sink turns items into elements of the output.

use core::ops::Range;

use windowpane_geometry::{AXES, Divisor, Grid, Strides};

use super::element::Poolable;
use super::field::Field;
use super::item::{Item, in_vectors};
use super::source::{Power, turned};
use crate::shared::Shared;

/// An output.
pub(super) trait Sink<I>: Sync {
    /// Writes the results of neighbouring windows of a row, from position `o` of an outer position on. Nobody else
    /// writes them meanwhile.
    fn store(&self, outer: usize, o: [usize; AXES], from: &[I]);
}

/// Values of maxima or minima.
pub(super) struct Values<'a, T, const MIN: bool> {
    pub(super) field: Field<'a>,
    pub(super) y: Shared<'a, T>,
}

impl<T: Poolable, const MIN: bool> Sink<T::Key> for Values<'_, T, MIN> {
    fn store(&self, outer: usize, o: [usize; AXES], from: &[T::Key]) {
        // SAFETY: nobody else writes these results.
        let y = unsafe { self.y.slice(self.field.output_at(outer, o), from.len()) };
        in_vectors(
            #[inline(always)]
            || y.iter_mut().zip(from).for_each(|(y, key)| *y = turned::<T, MIN>(T::of(*key))),
        );
    }
}

/// Values and indices of maxima or minima.
pub(super) struct Winners<'a, T, const MIN: bool> {
    pub(super) field: Field<'a>,
    pub(super) strides: Strides,
    pub(super) x: &'a [T],
    pub(super) y: Shared<'a, T>,
    pub(super) indices: Shared<'a, i32>,
}

impl<T: Poolable, const MIN: bool> Sink<T::Packed> for Winners<'_, T, MIN> {
    fn store(&self, outer: usize, o: [usize; AXES], from: &[T::Packed]) {
        let lanes = self.field.lanes;
        let at = self.field.output_at(outer, o);
        // SAFETY: nobody else writes these results.
        let (y, indices) =
            unsafe { (self.y.slice(at, from.len()), self.indices.slice(at, from.len())) };
        let base = self.field.index_base(&self.strides, outer, 0) as u32;
        // Indices fit, so nothing wraps unless the window is empty.
        let pixel_step = self.strides.space[AXES - 1] as u32;
        let (run, lane_step) =
            if lanes == 1 { (from.len(), 0) } else { (lanes, self.strides.channel as u32) };
        let mut has_zeros = false;
        in_vectors(
            #[inline(always)]
            || {
                let runs = y.chunks_exact_mut(run).zip(indices.chunks_exact_mut(run));
                for ((y, indices), from) in runs.zip(from.chunks_exact(run)) {
                    for (((y, index), item), lane) in y.iter_mut().zip(indices).zip(from).zip(0..) {
                        let (value, pixel) = T::unpack(*item);
                        let found = pixel.wrapping_mul(pixel_step).wrapping_add(base);
                        let found = found.wrapping_add(lane_step.wrapping_mul(lane));
                        let is_empty = *item == T::Packed::EMPTY;
                        *index = if is_empty { -1 } else { found as i32 };
                        let value = if is_empty { T::LOWEST } else { value };
                        has_zeros |= T::IS_FLOAT && value == T::ZERO;
                        *y = turned::<T, MIN>(value);
                    }
                }
            },
        );
        if has_zeros {
            self.zeros(outer, o, from, y);
        }
    }
}

impl<T: Poolable, const MIN: bool> Winners<'_, T, MIN> {
    /// Writes the sign of each zero: that of the element, unless another zero of the window is greater, or is less if
    /// `MIN`.
    fn zeros(&self, outer: usize, o: [usize; AXES], from: &[T::Packed], y: &mut [T]) {
        let Field { lanes, grid, .. } = self.field;
        let plane = grid.input_plane() * lanes;
        let x = &self.x[outer * plane..][..plane];
        let key = |at: usize| turned::<T, MIN>(x[at]).key();
        let lesser = T::ZERO.mirrored().key();
        for (i, (y, item)) in y.iter_mut().zip(from).enumerate() {
            let (value, pixel) = T::unpack(*item);
            if value != T::ZERO {
                continue;
            }
            let lane = i % lanes;
            let mut best = key(pixel as usize * lanes + lane);
            if best == lesser {
                let [d, h, w] = o;
                let others = self.field.inside([d, h, w + i / lanes]);
                let keys = others.map(|other| key(grid.plane_index(other) * lanes + lane));
                best = keys.fold(best, |best, key| best.max(key));
            }
            *y = turned::<T, MIN>(T::of(best));
        }
    }
}

/// Sums, divided, or their roots.
pub(super) struct Quotients<'a, T> {
    pub(super) field: Field<'a>,
    pub(super) divisors: Divisors<'a>,
    /// Of what the sum is: the square root is taken of squares.
    pub(super) power: Power,
    pub(super) y: Shared<'a, T>,
}

/// The sums that are divided at once.
const CHUNK: usize = 256;

impl<T: Poolable> Sink<f64> for Quotients<'_, T> {
    fn store(&self, outer: usize, o: [usize; AXES], from: &[f64]) {
        let lanes = self.field.lanes;
        // SAFETY: nobody else writes these results.
        let mut y = unsafe { self.y.slice(self.field.output_at(outer, o), from.len()) };
        let (mut from, [d, h, mut w]) = (from, o);
        while !from.is_empty() {
            let end = self.divisors.end(w);
            let items = ((end - w) * lanes).min(from.len());
            let (part, rest) = from.split_at(items);
            let (to, others) = y.split_at_mut(items);
            let divisor = self.divisors.of([d, h, w]);
            let parts = part.chunks(CHUNK).zip(to.chunks_mut(CHUNK));
            let truncates = self.divisors.divisor.truncates() && T::ROUNDOFF == 0.0;
            parts.for_each(|(sums, y)| finish(sums, divisor, self.power, truncates, y));
            (from, y, w) = (rest, others, end);
        }
    }
}

/// Stores quotients, which are truncated if asked, or the roots of sums.
fn finish<T: Poolable>(sums: &[f64], divisor: f64, power: Power, truncates: bool, y: &mut [T]) {
    let mut numbers = [0.0; CHUNK];
    let numbers = &mut numbers[..sums.len()];
    in_vectors(
        #[inline(always)]
        || {
            match power {
                Power::Two => numbers.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum.sqrt()),
                _ => numbers.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum / divisor),
            }
            if truncates {
                numbers.iter_mut().for_each(|number| *number = number.trunc());
            }
            T::narrow(numbers, y);
        },
    );
}

/// The divisor of each window.
pub(super) struct Divisors<'a> {
    grid: &'a Grid,
    divisor: Divisor,
    /// Neighbouring windows of the last axis that all count as many taps.
    alike: Range<usize>,
}

impl<'a> Divisors<'a> {
    pub(super) fn new(grid: &'a Grid, divisor: Divisor) -> Self {
        let width = &grid.axes()[AXES - 1];
        let alike = match divisor {
            Divisor::Fixed(_) | Divisor::Truncated(_) => 0..width.output(),
            _ if width.is_uneven() => 0..0,
            Divisor::Valid => {
                let last = width.windows_inside(width.kernel() - 1);
                width.windows_inside(0).start..last.end
            }
            // Only overhang does not count, which the last windows have.
            Divisor::Padded => {
                let has_overhang = |o: &usize| width.padded_taps(*o) < width.kernel();
                0..width.output() - (0..width.output()).rev().take_while(has_overhang).count()
            }
        };
        Self { grid, divisor, alike }
    }

    /// The divisor of a window; 1 of an empty window, whose sum is 0.
    pub(super) fn of(&self, o: [usize; AXES]) -> f64 {
        self.divisor.of(self.grid, o).max(1) as f64
    }

    /// The end of the windows from `w` on along the last axis that have the same divisor.
    pub(super) fn end(&self, w: usize) -> usize {
        if self.alike.contains(&w) { self.alike.end } else { w + 1 }
    }
}
