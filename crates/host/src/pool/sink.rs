//! How the loops over windows write results: each sink turns items into elements of the output.

use core::ops::Range;

use windowpane_geometry::{AXES, Axis, Divisor, Grid, Strides};

use super::columns::SHORT;
use super::element::{Narrow, Poolable};
use super::field::Field;
use super::item::{Item, Whole, in_vectors};
use super::source::{Power, turned};
use crate::shared::Shared;

/// Items of neighbouring windows, in rows of one or several planes.
#[derive(Clone, Copy)]
pub(super) struct Results<'a, I> {
    pub(super) items: &'a [I],
    /// The items of a row.
    pub(super) len: usize,
    /// The planes, and the rows of each.
    pub(super) counts: [usize; 2],
    /// From one plane to the next, and from one row to the next.
    pub(super) steps: [usize; 2],
}

impl<I: Copy> Results<'_, I> {
    /// Calls a loop in vectors for each row, with the outer position and the position of its first window: those from
    /// `outer` and `o` on.
    #[inline(always)]
    fn each(
        &self,
        outer: usize,
        [d, h, w]: [usize; AXES],
        mut row: impl FnMut(usize, [usize; AXES], &[I]),
    ) {
        in_vectors(
            #[inline(always)]
            || {
                for plane in 0..self.counts[0] {
                    for i in 0..self.counts[1] {
                        let at = plane * self.steps[0] + i * self.steps[1];
                        row(outer + plane, [d, h + i, w], &self.items[at..][..self.len]);
                    }
                }
            },
        );
    }

    /// The same with all rows of a plane as one, if they follow one another here and in an output whose rows have `width`
    /// items.
    fn joined_rows(&self, width: usize) -> Self {
        let Self { items, len, counts: [planes, rows], steps } = *self;
        if steps[1] != len || len != width {
            return *self;
        }
        let all = rows * len;
        Self { items, len: all, counts: [planes, 1], steps: [steps[0], all] }
    }

    /// [`joined_rows`](Self::joined_rows), and all planes as one row too, if they follow one another.
    fn joined(&self, width: usize) -> Self {
        let Self { items, len, counts, steps } = self.joined_rows(width);
        if counts[1] != 1 || steps[0] != len {
            return Self { items, len, counts, steps };
        }
        let all = counts[0] * len;
        Self { items, len: all, counts: [1; 2], steps: [all; 2] }
    }
}

/// An output.
pub(super) trait Sink<I>: Sync {
    /// Writes the results of windows from position `o` of an outer position on. Nobody else writes them meanwhile.
    fn store(&self, outer: usize, o: [usize; AXES], results: &Results<'_, I>);
}

/// Values of maxima or minima.
pub(super) struct Values<'a, T, const MIN: bool> {
    pub(super) field: Field<'a>,
    pub(super) y: Shared<'a, T>,
}

impl<T: Poolable, const MIN: bool> Sink<T::Key> for Values<'_, T, MIN> {
    fn store(&self, outer: usize, o: [usize; AXES], results: &Results<'_, T::Key>) {
        results.joined(self.field.row()).each(
            outer,
            o,
            #[inline(always)]
            |outer, o, keys| {
                // SAFETY: nobody else writes these results.
                let y = unsafe { self.y.slice(self.field.output_at(outer, o), keys.len()) };
                y.iter_mut().zip(keys).for_each(|(y, key)| *y = turned::<T, MIN>(T::of(*key)));
            },
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
    fn store(&self, outer: usize, o: [usize; AXES], results: &Results<'_, T::Packed>) {
        results.joined_rows(self.field.row()).each(
            outer,
            o,
            #[inline(always)]
            |outer, o, items| self.row(outer, o, items),
        );
    }
}

impl<T: Poolable, const MIN: bool> Winners<'_, T, MIN> {
    #[inline(always)]
    fn row(&self, outer: usize, o: [usize; AXES], from: &[T::Packed]) {
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
        if has_zeros {
            self.zeros(outer, o, from, y);
        }
    }

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
                let others = self.field.inside(self.field.behind(o, i / lanes));
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
    /// Passes sums, what divides them and the place of the results on, for neighbouring windows of a row.
    #[inline(always)]
    fn each<I: Copy>(
        &self,
        outer: usize,
        o: [usize; AXES],
        results: &Results<'_, I>,
        finish: impl Fn(&[I], By<'_>, &mut [T]),
    ) {
        let lanes = self.field.lanes;
        let width = self.field.row();
        let results = match &self.divisors {
            Divisors { same: Some(_), .. } => results.joined(width),
            Divisors { list: Some(List { is_of_plane: true, .. }), .. } => {
                results.joined_rows(width)
            }
            _ => *results,
        };
        results.each(
            outer,
            o,
            #[inline(always)]
            |outer, [d, h, mut w], mut from| {
                // SAFETY: nobody else writes these results.
                let mut y =
                    unsafe { self.y.slice(self.field.output_at(outer, [d, h, w]), from.len()) };
                if let Some(divisor) = self.divisors.same {
                    return finish(from, By::One(divisor), y);
                }
                if let Some(list) = &self.divisors.list {
                    return finish(from, self.divisors.each(list, [d, h, w], from.len()), y);
                }
                let row = self.divisors.row([d, h]);
                while !from.is_empty() {
                    let end = self.divisors.end(w);
                    let items = ((end - w) * lanes).min(from.len());
                    let (part, rest) = from.split_at(items);
                    let (to, others) = y.split_at_mut(items);
                    finish(part, By::One(self.divisors.of(row, w)), to);
                    (from, y, w) = (rest, others, end);
                }
            },
        );
    }
}

impl<T: Poolable> Sink<f64> for Quotients<'_, T> {
    fn store(&self, outer: usize, o: [usize; AXES], results: &Results<'_, f64>) {
        let truncates = self.divisors.divisor.truncates() && T::ROUNDOFF == 0.0;
        self.each(
            outer,
            o,
            results,
            #[inline(always)]
            |sums, by, y| finish(sums, by, self.power, truncates, y),
        );
    }
}

impl<T: Narrow> Sink<Whole> for Quotients<'_, T> {
    fn store(&self, outer: usize, o: [usize; AXES], results: &Results<'_, Whole>) {
        let truncates = self.divisors.divisor.truncates();
        self.each(
            outer,
            o,
            results,
            #[inline(always)]
            |sums, by, y| divide(sums, by, truncates, y),
        );
    }
}

/// What divides the sums of neighbouring windows.
enum By<'a> {
    One(f64),
    /// `row · taps[i]`, with the inverses of both.
    Each {
        row: f64,
        inverse: f64,
        taps: &'a [f64],
        inverses: &'a [f64],
    },
}

/// Stores quotients, rounded to the nearest integer, ties to even, or truncated.
///
/// A product with the reciprocal of the divisor `d` has an error of less than 2⁻²⁰/d, as a sum `s` has at most 31 bits.
/// That is exact where no tie and no integer is near: all other quotients are 1/2d away from ties, and (s ± ½)/d, which
/// has the integer part of s/d, is as far from integers. An even divisor has ties, and is divided by unless it is a
/// power of two, whose reciprocal is exact.
#[inline(always)]
fn divide<T: Narrow>(sums: &[Whole], by: By<'_>, truncates: bool, y: &mut [T]) {
    // The last bit of a number of this size is 1, so that adding rounds to an integer, ties to even.
    const ROUNDS: f64 = (3u64 << 51) as f64;
    let rounded = |number: f64| T::clamped((number + ROUNDS).to_bits() as i32);
    let quotients = sums.iter().zip(y);
    let divisor = match by {
        By::One(divisor) => divisor,
        By::Each { row, inverse, taps, inverses } => {
            return quotients.zip(taps.iter().zip(inverses)).for_each(|((sum, y), by)| {
                let (divisor, reciprocal) = (row * by.0, inverse * by.1);
                *y = rounded(quotient(sum.0.into(), divisor, reciprocal));
            });
        }
    };
    let (reciprocal, number) = (1.0 / divisor, divisor as u64);
    match number % 2 == 1 || number.is_power_of_two() {
        _ if truncates => quotients.for_each(|(sum, y)| {
            let half = 0.5f64.copysign(sum.0.into());
            *y = rounded((f64::from(sum.0) + half) * reciprocal - half);
        }),
        true => quotients.for_each(|(sum, y)| *y = rounded(f64::from(sum.0) * reciprocal)),
        false => quotients.for_each(|(sum, y)| *y = rounded(f64::from(sum.0) / divisor)),
    }
}

/// Stores quotients, which are truncated if asked, or the roots of sums.
#[inline(always)]
fn finish<T: Poolable>(sums: &[f64], by: By<'_>, power: Power, truncates: bool, y: &mut [T]) {
    // Quotients of `f64` may be less than the least normal number.
    let is_normal = size_of::<T>() < size_of::<f64>();
    match by {
        _ if power == Power::Two => T::narrow(sums, y, |_, sum| sum.sqrt()),
        By::One(divisor) if truncates => T::narrow(sums, y, |_, sum| (sum / divisor).trunc()),
        // A power of two has an exact reciprocal.
        By::One(divisor) if is_normal && (divisor as u64).is_power_of_two() => {
            let reciprocal = 1.0 / divisor;
            T::narrow(sums, y, |_, sum| sum * reciprocal);
        }
        By::One(divisor) if is_normal => {
            let reciprocal = 1.0 / divisor;
            T::narrow(sums, y, |_, sum| quotient(sum, divisor, reciprocal));
        }
        By::One(divisor) => T::narrow(sums, y, |_, sum| sum / divisor),
        By::Each { row, inverse, taps, inverses } if is_normal => {
            let (taps, inverses) = (&taps[..sums.len()], &inverses[..sums.len()]);
            T::narrow(sums, y, |i, sum| quotient(sum, row * taps[i], inverse * inverses[i]));
        }
        By::Each { row, taps, .. } => {
            let taps = &taps[..sums.len()];
            T::narrow(sums, y, |i, sum| sum / (row * taps[i]));
        }
    }
}

/// `sum / divisor`, in a quarter of the time: the product with the reciprocal, and what it lacks (Markstein).
///
/// It is the nearest number, as a division gives, for integers below 2⁴⁸, also with a reciprocal whose last bits are wrong,
/// where no result is less than the least normal number: what is lacking is an integer multiple of the last bit of the
/// product, so it is exact, and a quotient is further from the middle of two numbers than what is then left.
#[inline(always)]
fn quotient(sum: f64, divisor: f64, reciprocal: f64) -> f64 {
    let near = sum * reciprocal;
    let rest = near.mul_add(-divisor, sum);
    // Of an infinity the rest is NaN, and a zero would lose its sign.
    if rest.abs() > 0.0 { rest.mul_add(reciprocal, near) } else { near }
}

/// The most windows of a row or of a plane whose divisors are listed.
const LISTED: usize = 4096;

/// The most bytes of the lists, while they are made.
pub(super) const LIST: usize = 3 * LISTED * size_of::<f64>();

/// The divisors of all windows of a plane; or what a row of windows has of them, without the [factor](Divisors::row) of the row.
struct List {
    is_of_plane: bool,
    /// At least 1.
    taps: Vec<f64>,
    inverses: Vec<f64>,
}

/// The divisor of each window.
pub(super) struct Divisors<'a> {
    grid: &'a Grid,
    divisor: Divisor,
    /// The divisor, if all windows have the same.
    same: Option<f64>,
    /// Neighbouring windows of the last axis that all count as many taps.
    alike: Range<usize>,
    list: Option<List>,
}

impl<'a> Divisors<'a> {
    pub(super) fn new(grid: &'a Grid, divisor: Divisor) -> Self {
        let alike = grid.axes().each_ref().map(|axis| alike(axis, divisor));
        let all = grid.axes().iter().zip(&alike).all(|(axis, alike)| *alike == (0..axis.output()));
        let [_, _, alike] = alike;
        let divisors = Self { grid, divisor, same: None, alike, list: None };
        Self { same: all.then(|| divisors.of(divisors.row([0; 2]), 0)), ..divisors }
    }

    /// The same with a list: of all windows of a plane, if its rows are short and it is one of several; else of a row,
    /// unless the row has few pieces with one divisor each, or too many windows.
    pub(super) fn listed(mut self, planes: usize) -> Self {
        if self.same.is_some() {
            return self;
        }
        let [depth, height, width] = self.grid.axes();
        let is_short = width.output() <= SHORT && self.grid.output_plane() <= LISTED;
        let is_of_plane = planes > 1 && is_short;
        let others = width.output() - self.alike.len();
        if !is_of_plane && (others * 32 <= width.output() || width.output() > LISTED) {
            return self;
        }
        let along: Vec<_> = (0..width.output()).map(|w| self.divisor.along(width, w)).collect();
        let rows = if is_of_plane { [depth.output(), height.output()] } else { [1; 2] };
        let mut taps = Vec::with_capacity(rows[0] * rows[1] * along.len());
        for (d, h) in (0..rows[0]).flat_map(|d| (0..rows[1]).map(move |h| (d, h))) {
            let row = if is_of_plane { self.row([d, h]) } else { 1 };
            taps.extend(along.iter().map(|along| (row * along).max(1) as f64));
        }
        let inverses = taps.iter().map(|taps| 1.0 / taps).collect();
        self.list = Some(List { is_of_plane, taps, inverses });
        self
    }

    /// The listed divisors of windows of a row, or of rows that follow one another, if they are of a plane.
    #[inline(always)]
    fn each<'b>(&self, list: &'b List, [d, h, w]: [usize; AXES], windows: usize) -> By<'b> {
        let (row, first) = match list.is_of_plane {
            true => (1.0, self.grid.output_index([d, h, w])),
            false => (self.row([d, h]).max(1) as f64, w),
        };
        let (taps, inverses) = (&list.taps[first..][..windows], &list.inverses[first..][..windows]);
        By::Each { row, inverse: 1.0 / row, taps, inverses }
    }

    /// What the divisors of a row have in common, for [`of`](Self::of).
    pub(super) fn row(&self, o: [usize; 2]) -> usize {
        let lines = self.grid.axes().iter().zip(o);
        let factor = self.divisor.factor();
        lines.fold(factor, |product, (axis, o)| product * self.divisor.along(axis, o))
    }

    /// The divisor of a window of a row; 1 of an empty window, whose sum is 0.
    pub(super) fn of(&self, row: usize, w: usize) -> f64 {
        (row * self.divisor.along(&self.grid.axes()[AXES - 1], w)).max(1) as f64
    }

    /// The end of the windows from `w` on along the last axis that have the same divisor.
    pub(super) fn end(&self, w: usize) -> usize {
        if self.alike.contains(&w) { self.alike.end } else { w + 1 }
    }
}

/// Neighbouring windows of an axis that all count as many taps.
fn alike(axis: &Axis, divisor: Divisor) -> Range<usize> {
    match divisor {
        Divisor::Fixed(_) | Divisor::Truncated(_) => 0..axis.output(),
        _ if axis.is_uneven() => 0..0,
        Divisor::Valid => axis.windows_inside(0).start..axis.windows_inside(axis.kernel() - 1).end,
        // Only overhang does not count, which the last windows have.
        Divisor::Padded => {
            let has_overhang = |o: &usize| axis.padded_taps(*o) < axis.kernel();
            0..axis.output() - (0..axis.output()).rev().take_while(has_overhang).count()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_with_reciprocals_are_quotients() {
        // Divisors are products of what a row and what a window have, and so are their reciprocals.
        let check = |sum: f64, row: f64| {
            for taps in [1.0, 3.0, 7.0, 9.0, 4095.0] {
                let (divisor, reciprocal) = (row * taps, (1.0 / row) * (1.0 / taps));
                let (found, expected) = (quotient(sum, divisor, reciprocal), sum / divisor);
                let nan = found.is_nan() && expected.is_nan();
                let same = nan || found.to_bits() == expected.to_bits();
                assert!(same, "{sum} / {divisor} is {expected}, not {found}");
            }
        };
        let mut bits = 1u64;
        for divisor in (1..300).chain((300..100_000).step_by(331)).map(f64::from) {
            let special =
                [0.0, f64::INFINITY, f64::NAN, f64::from(f32::MAX), f64::from(f32::MIN_POSITIVE)];
            special
                .into_iter()
                .for_each(|sum| [sum, -sum].into_iter().for_each(|sum| check(sum, divisor)));
            for _ in 0..1000 {
                bits = bits
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let few = f64::from(f32::from_bits((bits >> 32) as u32));
                let many = f64::from_bits((bits >> 12) | (((bits >> 2) % 200 + 900) << 52));
                [few, many, few * divisor, -many].into_iter().for_each(|sum| check(sum, divisor));
            }
        }
    }

    /// The integer that a quotient becomes.
    fn rounded(sum: i64, divisor: i64, truncates: bool) -> i64 {
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
            divide(&items, By::One(divisor as f64), truncates, &mut y);
            for (sum, y) in sums.iter().zip(y) {
                let wide = rounded((*sum).into(), divisor, truncates);
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
