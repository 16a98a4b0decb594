//! The result of a window: the value and its index, or the sum divided by its divisor.

use cubecl::prelude::*;

use super::{Accumulator, Fold, ProblemArgs, Site, WindowForm};
use crate::cube::axis::{AxisArgs, AxisForm, Taps, has_all_taps, padded_taps, taps_of};
use crate::cube::convert::{narrow, round};

/// Writes the result of a window as output `vector`.
#[cube]
pub(crate) fn finish<S: Float, A: Float, N: Size>(
    output: &mut [Vector<S, N>],
    indices: &mut ComptimeOption<Box<[Vector<i32, N>]>>,
    problem: &ProblemArgs,
    site: &Site,
    folded: &Accumulator<A, N>,
    vector: u32,
    #[comptime] form: WindowForm,
) {
    let empty = is_empty(site, form);
    if comptime!(form.fold.is_extremum()) {
        let value = if empty { Vector::new(problem.empty.get::<A>()) } else { folded.value };
        output[vector as usize] = stored::<A, S, N>(value, form);
        #[comptime]
        match indices {
            ComptimeOption::Some(indices) => {
                let index =
                    index_of(problem, site.sample, site.pixel_vector, folded.position, form);
                indices[vector as usize] = if empty { Vector::new(-1i32) } else { index };
            }
            ComptimeOption::None => {}
        }
    } else {
        let average = average::<A, N>(problem, site, folded.value, form);
        let average = if empty { Vector::new(A::from_int(0)) } else { average };
        output[vector as usize] = stored::<A, S, N>(average, form);
    }
}

/// The sum of a window divided by its divisor.
#[cube]
fn average<A: Float, N: Size>(
    problem: &ProblemArgs,
    site: &Site,
    sum: Vector<A, N>,
    #[comptime] form: WindowForm,
) -> Vector<A, N> {
    if comptime!(!form.reciprocal) {
        quotient::<A, N>(sum, divisors::<A, N>(problem, site, form), form)
    } else if comptime!(!form.along_width) {
        sum * scale::<A, N>(problem, site, form)
    } else if is_whole::<N>(problem, site, form) {
        sum * Vector::new(problem.reciprocal.get::<A>())
    } else {
        sum / divisors::<A, N>(problem, site, form)
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
        Some((least, most)) => {
            let (zero, one) = (Vector::new(0u32), Vector::new(1u32));
            let sums = Vector::<i32, N>::cast_from(sums);
            let below = sums.less_than(&Vector::new(0i32));
            let size = Vector::<u32, N>::cast_from(select_many(below, -sums, sums));
            let divisors = max(Vector::<u32, N>::cast_from(divisors), one);
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
            let rounded = Vector::<i32, N>::cast_from(rounded);
            let quotients = select_many(below, -rounded, rounded);
            Vector::cast_from(max(min(quotients, Vector::new(most)), Vector::new(least)))
        }
        None => sums / divisors,
    }
}

/// The reciprocal of a window's divisor, which is the same for all lanes.
#[cube]
pub(crate) fn scale<A: Float, N: Size>(
    problem: &ProblemArgs,
    site: &Site,
    #[comptime] form: WindowForm,
) -> Vector<A, N> {
    let scale = if is_whole::<N>(problem, site, form) {
        problem.reciprocal.get::<A>()
    } else {
        A::from_int(1) / divisors::<A, N>(problem, site, form).extract(0usize)
    };
    Vector::new(scale)
}

/// Whether every tap is inside the input.
#[cube]
fn is_whole<N: Size>(problem: &ProblemArgs, site: &Site, #[comptime] form: WindowForm) -> bool {
    let width = if comptime!(form.along_width && form.axes[2].clipped) {
        let lanes = N::value() as i32;
        let reach = (problem.width.kernel - 1) * problem.width.dilation;
        let last = site.width.start + (lanes - 1) * problem.width.stride + reach;
        site.width.start >= 0 && last < problem.width.input
    } else {
        has_all_taps(&problem.width, &site.width, form.axes[2])
    };
    width
        && has_all_taps(&problem.depth, &site.depth, form.axes[0])
        && has_all_taps(&problem.height, &site.height, form.axes[1])
}

#[cube]
fn is_empty(site: &Site, #[comptime] form: WindowForm) -> bool {
    if comptime!(form.may_be_empty()) {
        site.depth.first >= site.depth.end
            || site.height.first >= site.height.end
            || site.width.first >= site.width.end
    } else {
        false.runtime()
    }
}

/// The divisors of the windows of a vector.
#[cube]
fn divisors<A: Float, N: Size>(
    problem: &ProblemArgs,
    site: &Site,
    #[comptime] form: WindowForm,
) -> Vector<A, N> {
    if comptime!(form.fold == Fold::AverageFixed) {
        Vector::new(A::cast_from(problem.divisor))
    } else if comptime!(form.along_width) {
        let mut divisors = Vector::new(A::from_int(1));
        #[unroll]
        for i in 0..N::value() {
            let width = taps_of(&problem.width, site.column + i as u32, form.axes[2]);
            let taps = counted_taps(problem, &site.depth, &site.height, &width, form);
            divisors.insert(i, A::cast_from(taps));
        }
        divisors
    } else {
        let taps = counted_taps(problem, &site.depth, &site.height, &site.width, form);
        Vector::new(A::cast_from(taps))
    }
}

/// The number of taps that a divisor counts.
#[cube]
fn counted_taps(
    problem: &ProblemArgs,
    depth: &Taps,
    height: &Taps,
    width: &Taps,
    #[comptime] form: WindowForm,
) -> i32 {
    counted(&problem.depth, depth, form.axes[0], form.fold)
        * counted(&problem.height, height, form.axes[1], form.fold)
        * counted(&problem.width, width, form.axes[2], form.fold)
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
