//! The result of a window: the value and its index, or the sum divided by its divisor.

use cubecl::prelude::*;

use super::site::{Site, SiteExpand};
use super::{Accumulator, Fold, ProblemArgs, WindowForm};
use crate::cube::axis::{AxisArgs, AxisForm, Taps, has_all_taps, padded_taps, taps_of};
use crate::cube::convert::{narrow, round};
use crate::cube::optional::Optional;

#[cube]
impl<'a> Site<'a> {
    /// Writes the result of the window as output `vector`.
    pub(crate) fn finish<S: Float, A: Float, N: Size>(
        &self,
        output: &mut [Vector<S, N>],
        indices: &mut Optional<Box<[Vector<i32, N>]>>,
        folded: &Accumulator<A, N>,
        vector: u32,
    ) {
        let form = comptime!(self.form);
        let empty = self.is_empty();
        if comptime!(form.fold.is_extremum()) {
            let value =
                if empty { Vector::new(self.problem.empty.get::<A>()) } else { folded.value };
            output[vector as usize] = stored::<A, S, N>(value, form);
            #[comptime]
            match &mut indices.given {
                ComptimeOption::Some(indices) => {
                    let index = self.index::<N>(folded.position);
                    indices[vector as usize] = if empty { Vector::new(-1i32) } else { index };
                }
                ComptimeOption::None => {}
            }
        } else {
            let average = self.average::<A, N>(folded.value);
            let average = if empty { Vector::new(A::from_int(0)) } else { average };
            output[vector as usize] = stored::<A, S, N>(average, form);
        }
    }

    /// The index of each lane's tap, see [`index_of`].
    pub(crate) fn index<N: Size>(&self, position: Vector<i32, N>) -> Vector<i32, N> {
        index_of::<N>(self.problem, self.sample, self.pixel_vector, position, self.form)
    }

    /// The sum of the window divided by its divisor.
    fn average<A: Float, N: Size>(&self, sum: Vector<A, N>) -> Vector<A, N> {
        if comptime!(!self.form.reciprocal) {
            quotient::<A, N>(sum, self.divisors::<A, N>(), self.form)
        } else if comptime!(!self.form.along_width) {
            sum * self.scale::<A, N>()
        } else if self.is_whole::<N>() {
            sum * Vector::new(self.problem.reciprocal.get::<A>())
        } else {
            sum / self.divisors::<A, N>()
        }
    }

    /// The reciprocal of the window's divisor, which is the same for all lanes.
    pub(crate) fn scale<A: Float, N: Size>(&self) -> Vector<A, N> {
        let scale = if self.is_whole::<N>() {
            self.problem.reciprocal.get::<A>()
        } else {
            A::from_int(1) / self.divisors::<A, N>().extract(0usize)
        };
        Vector::new(scale)
    }

    /// Whether every tap is inside the input.
    fn is_whole<N: Size>(&self) -> bool {
        let problem = self.problem;
        let axes = comptime!(self.form.axes);
        let width = if comptime!(self.form.along_width && axes[2].clipped) {
            let lanes = N::value() as i32;
            let reach = (problem.width.kernel - 1) * problem.width.dilation;
            let last = self.width.start + (lanes - 1) * problem.width.stride + reach;
            self.width.start >= 0 && last < problem.width.input
        } else {
            has_all_taps(&problem.width, &self.width, axes[2])
        };
        width
            && has_all_taps(&problem.depth, &self.depth, axes[0])
            && has_all_taps(&problem.height, &self.height, axes[1])
    }

    fn is_empty(&self) -> bool {
        if comptime!(self.form.may_be_empty()) {
            self.depth.first >= self.depth.end
                || self.height.first >= self.height.end
                || self.width.first >= self.width.end
        } else {
            false.runtime()
        }
    }

    /// The divisors of the windows of a vector.
    fn divisors<A: Float, N: Size>(&self) -> Vector<A, N> {
        let form = comptime!(self.form);
        if comptime!(form.fold == Fold::AverageFixed) {
            Vector::new(A::cast_from(self.problem.divisor))
        } else if comptime!(form.along_width) {
            let mut divisors = Vector::new(A::from_int(1));
            #[unroll]
            for i in 0..N::value() {
                let o = self.column + i as u32;
                let width = taps_of(&self.problem.width, o, form.axes[2]);
                divisors.insert(i, A::cast_from(self.counted_taps(&width)));
            }
            divisors
        } else {
            Vector::new(A::cast_from(self.counted_taps(&self.width)))
        }
    }

    /// The number of taps that a divisor counts.
    fn counted_taps(&self, width: &Taps) -> i32 {
        let problem = self.problem;
        let form = comptime!(self.form);
        counted(&problem.depth, &self.depth, form.axes[0], form.fold)
            * counted(&problem.height, &self.height, form.axes[1], form.fold)
            * counted(&problem.width, width, form.axes[2], form.fold)
    }
}

/// Sums divided by divisors. Quotients of integers are rounded to the nearest integer, ties to even, or
/// cut off, and clamped to the elements' type; an empty window's divisor of 0 counts as 1.
#[cube]
pub(crate) fn quotient<A: Float, N: Size>(
    sums: Vector<A, N>,
    divisors: Vector<A, N>,
    #[comptime] form: WindowForm,
) -> Vector<A, N> {
    match comptime!(form.integers) {
        Some(_) => {
            if comptime!(form.sums_wide) {
                nearest::<A, i64, u64, N>(sums, divisors, form)
            } else {
                nearest::<A, i32, u32, N>(sums, divisors, form)
            }
        }
        None => sums / divisors,
    }
}

/// Quotients of integers. `I` is the type of the sums, and `U` the same without a sign.
#[cube]
fn nearest<A: Float, I: Int, U: Int, N: Size>(
    sums: Vector<A, N>,
    divisors: Vector<A, N>,
    #[comptime] form: WindowForm,
) -> Vector<A, N> {
    let (least, most) = comptime!(form.integers.unwrap_or_default());
    let zero = Vector::<U, N>::new(U::from_int(0));
    let one = Vector::<U, N>::new(U::from_int(1));
    let none = Vector::<I, N>::new(I::from_int(0));
    let sums = Vector::<I, N>::cast_from(sums);
    let below = sums.less_than(&none);
    let size = Vector::<U, N>::cast_from(select_many(below, none - sums, sums));
    let divisors = max(Vector::<U, N>::cast_from(divisors), one);
    let whole = size / divisors;
    let rounded = if comptime!(form.truncates) {
        whole
    } else {
        let rest = size - whole * divisors;
        let lacking = divisors - rest;
        let odd = (whole & one).equal(&one);
        let up = rest.greater_than(&lacking).or(rest.equal(&lacking).vec_and(odd));
        whole + select_many(up, one, zero)
    };
    let rounded = Vector::<I, N>::cast_from(rounded);
    let quotients = select_many(below, none - rounded, rounded);
    let (least, most) = (I::from_int(comptime!(least)), I::from_int(comptime!(most)));
    Vector::cast_from(max(min(quotients, Vector::new(most)), Vector::new(least)))
}

/// The number of taps on one axis that a divisor counts.
#[cube]
fn counted(
    axis: &AxisArgs,
    taps: &Taps,
    #[comptime] form: AxisForm,
    #[comptime] fold: Fold,
) -> i32 {
    if comptime!(fold == Fold::AverageValid) {
        taps.end - taps.first
    } else {
        padded_taps(axis, taps, form)
    }
}

/// The number of taps on one axis that the divisor of the window at `o` counts.
#[cube]
pub(crate) fn counted_at(
    axis: &AxisArgs,
    o: u32,
    #[comptime] form: AxisForm,
    #[comptime] fold: Fold,
) -> i32 {
    counted(axis, &taps_of(axis, o, form), form, fold)
}

/// The reciprocal of `taps`, which must not be 0, given an approximation `near` that is wrong only in the last digits:
/// the Newton step that ends a division.
#[cube]
pub(crate) fn reciprocal<A: Float>(taps: A, near: A) -> A {
    fma(near, fma(-taps, near, A::from_int(1)), near)
}

/// The index of each lane's tap, from its position in the plane of one channel. Lanes along the width give the position
/// that lane 0 has for the same tap.
#[cube]
pub(crate) fn index_of<N: Size>(
    problem: &ProblemArgs,
    sample: u32,
    lane: u32,
    position: Vector<i32, N>,
    #[comptime] form: WindowForm,
) -> Vector<i32, N> {
    let base = sample * problem.index_batch;
    let step = Vector::new(problem.index_position as i32);
    if comptime!(form.one_index) {
        position * step + Vector::new(base as i32)
    } else {
        let first = base + lane * N::value() as u32 * problem.index_lane;
        let mut index = position * step + Vector::new(first as i32);
        #[unroll]
        for i in 0..N::value() {
            index.insert(i, index.extract(i) + i as i32 * problem.index_lane as i32);
        }
        index
    }
}

/// A result in the type in which it is written.
#[cube]
pub(crate) fn stored<A: Float, S: Float, N: Size>(
    value: Vector<A, N>,
    #[comptime] form: WindowForm,
) -> Vector<S, N> {
    if comptime!(form.fold.is_extremum()) {
        narrow::<A, S, N>(value, form.widened)
    } else {
        round::<A, S, N>(value, form.rounds)
    }
}
