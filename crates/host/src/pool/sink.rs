//! How the loops over windows write results: each sink turns items into elements of the output.

use core::ops::Range;

use windowpane_geometry::{AXES, Divisor, Grid, Strides};

use super::element::{Narrow, Poolable};
use super::field::Field;
use super::item::{Item, Whole, in_vectors};
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

impl<T: Poolable> Quotients<'_, T> {
    /// Passes sums, their divisor and the place of the results on, for neighbouring windows with the same divisor.
    #[inline(always)]
    fn each<I>(
        &self,
        outer: usize,
        o: [usize; AXES],
        from: &[I],
        finish: impl Fn(&[I], f64, &mut [T]),
    ) {
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
            finish(part, divisor, to);
            (from, y, w) = (rest, others, end);
        }
    }
}

impl<T: Poolable> Sink<f64> for Quotients<'_, T> {
    fn store(&self, outer: usize, o: [usize; AXES], from: &[f64]) {
        let truncates = self.divisors.divisor.truncates() && T::ROUNDOFF == 0.0;
        let finish = |sums: &[f64], by, y: &mut [T]| finish(sums, by, self.power, truncates, y);
        self.each(outer, o, from, finish);
    }
}

impl<T: Narrow> Sink<Whole> for Quotients<'_, T> {
    fn store(&self, outer: usize, o: [usize; AXES], from: &[Whole]) {
        let truncates = self.divisors.divisor.truncates();
        self.each(outer, o, from, |sums, divisor, y| divide(sums, divisor, truncates, y));
    }
}

/// Stores quotients, rounded to the nearest integer, ties to even, or truncated.
///
/// A product with the reciprocal of the divisor `d` has an error of less than 2⁻²⁰/d, as a sum `s` has at most 31 bits.
/// That is exact where no tie and no integer is near: all other quotients are 1/2d away from ties, and (s ± ½)/d, which
/// has the integer part of s/d, is as far from integers. An even divisor has ties, and is divided by unless it is a
/// power of two, whose reciprocal is exact.
fn divide<T: Narrow>(sums: &[Whole], divisor: f64, truncates: bool, y: &mut [T]) {
    // The last bit of a number of this size is 1, so that adding rounds to an integer, ties to even.
    const ROUNDS: f64 = (3u64 << 51) as f64;
    let rounded = |number: f64| T::clamped((number + ROUNDS).to_bits() as i32);
    let quotients = sums.iter().zip(y);
    let (reciprocal, number) = (1.0 / divisor, divisor as u64);
    in_vectors(
        #[inline(always)]
        || match number % 2 == 1 || number.is_power_of_two() {
            _ if truncates => quotients.for_each(|(sum, y)| {
                let half = 0.5f64.copysign(sum.0.into());
                *y = rounded((f64::from(sum.0) + half) * reciprocal - half);
            }),
            true => quotients.for_each(|(sum, y)| *y = rounded(f64::from(sum.0) * reciprocal)),
            false => quotients.for_each(|(sum, y)| *y = rounded(f64::from(sum.0) / divisor)),
        },
    );
}

/// Stores quotients, which are truncated if asked, or the roots of sums.
fn finish<T: Poolable>(sums: &[f64], divisor: f64, power: Power, truncates: bool, y: &mut [T]) {
    let reciprocal = 1.0 / divisor;
    in_vectors(
        #[inline(always)]
        || match power {
            Power::Two => T::narrow(sums, y, f64::sqrt),
            _ if truncates => T::narrow(sums, y, |sum| (sum / divisor).trunc()),
            // A power of two has an exact reciprocal.
            _ if (divisor as u64).is_power_of_two() => T::narrow(sums, y, |sum| sum * reciprocal),
            _ => T::narrow(sums, y, |sum| sum / divisor),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The integer that a quotient becomes.
    fn quotient(sum: i64, divisor: i64, truncates: bool) -> i64 {
        if truncates {
            return sum / divisor;
        }
        let (floor, twice) = (sum.div_euclid(divisor), 2 * sum.rem_euclid(divisor));
        let is_up = twice > divisor || (twice == divisor && floor % 2 != 0);
        floor + i64::from(is_up)
    }

    fn check<T: Narrow>(sums: &[i32], divisor: i64) {
        let items: Vec<_> = sums.iter().map(|sum| Whole(*sum)).collect();
        for truncates in [false, true] {
            let mut y = vec![T::clamped(0); sums.len()];
            divide(&items, divisor as f64, truncates, &mut y);
            for (sum, y) in sums.iter().zip(y) {
                let wide = quotient((*sum).into(), divisor, truncates);
                let expected = T::clamped(wide as i32);
                assert!(y == expected, "{sum} by {divisor} is {wide}");
            }
        }
    }

    #[test]
    fn every_quotient_of_small_windows_is_exact() {
        for taps in 1..=128 {
            check::<u8>(&(0..=255 * taps).collect::<Vec<_>>(), taps.into());
            check::<i8>(&(-128 * taps..=127 * taps).collect::<Vec<_>>(), taps.into());
        }
    }

    #[test]
    fn quotients_near_ties_and_integers_are_exact() {
        let divisors =
            (1..2000).chain((2000..65_536).step_by(997)).chain([1 << 20, u32::MAX.into()]);
        for divisor in divisors {
            let steps = (0..400).map(|i| i * i * 5).chain((0..100).map(|i| 65_535 - i));
            let places = steps.flat_map(|i| {
                let tie = i * divisor + divisor / 2;
                [i * divisor - 1, i * divisor, i * divisor + 1, tie - 1, tie, tie + 1, tie + 2]
            });
            let ends = (i64::from(i32::MAX) - 50)..=i64::from(i32::MAX);
            let places = places.chain(ends).flat_map(|place| [place, -place]);
            let sums: Vec<i32> = places.filter_map(|place| i32::try_from(place).ok()).collect();
            check::<u16>(&sums, divisor);
            check::<i16>(&sums, divisor);
        }
    }
}
