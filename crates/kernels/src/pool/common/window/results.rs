//! The result of a window: the value and its index, or the sum divided by its divisor.

use cubecl::prelude::*;

use super::{Accumulator, Fold, Form, ProblemArgs, Site};
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
    #[comptime] form: Form,
) {
    let empty = is_empty(site, form);
    if comptime!(form.fold.is_extremum()) {
        let value = if empty { Vector::new(problem.empty.get::<A>()) } else { folded.value };
        output[vector as usize] = narrow::<A, S, N>(value, form.widened);
        #[comptime]
        match indices {
            ComptimeOption::Some(indices) => {
                let index = index_of(problem, site, folded.position);
                indices[vector as usize] = if empty { Vector::new(-1i32) } else { index };
            }
            ComptimeOption::None => {}
        }
    } else {
        let average = average::<A, N>(problem, site, folded.value, form);
        let average = if empty { Vector::new(A::from_int(0)) } else { average };
        output[vector as usize] = round::<A, S, N>(average, form.rounds);
    }
}

/// The sum of a window divided by its divisor.
#[cube]
fn average<A: Float, N: Size>(
    problem: &ProblemArgs,
    site: &Site,
    sum: Vector<A, N>,
    #[comptime] form: Form,
) -> Vector<A, N> {
    if comptime!(!form.reciprocal) {
        sum / divisors::<A, N>(problem, site, form)
    } else if comptime!(!form.along_width) {
        sum * scale::<A, N>(problem, site, form)
    } else if is_whole::<N>(problem, site, form) {
        sum * Vector::new(problem.reciprocal.get::<A>())
    } else {
        sum / divisors::<A, N>(problem, site, form)
    }
}

/// The reciprocal of a window's divisor, which is the same for all lanes.
#[cube]
pub(crate) fn scale<A: Float, N: Size>(
    problem: &ProblemArgs,
    site: &Site,
    #[comptime] form: Form,
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
fn is_whole<N: Size>(problem: &ProblemArgs, site: &Site, #[comptime] form: Form) -> bool {
    let width = if comptime!(form.along_width && form.width.clipped) {
        let lanes = N::value() as i32;
        let reach = (problem.width.kernel - 1) * problem.width.dilation;
        let last = site.width.start + (lanes - 1) * problem.width.stride + reach;
        site.width.start >= 0 && last < problem.width.input
    } else {
        has_all_taps(&problem.width, &site.width, form.width)
    };
    width
        && has_all_taps(&problem.depth, &site.depth, form.depth)
        && has_all_taps(&problem.height, &site.height, form.height)
}

#[cube]
fn is_empty(site: &Site, #[comptime] form: Form) -> bool {
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
    #[comptime] form: Form,
) -> Vector<A, N> {
    if comptime!(form.fold == Fold::AverageFixed) {
        Vector::new(A::cast_from(problem.divisor))
    } else if comptime!(form.along_width) {
        let mut divisors = Vector::new(A::from_int(1));
        #[unroll]
        for i in 0..N::value() {
            let width = taps_of(&problem.width, site.column + i as u32, form.width);
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
    #[comptime] form: Form,
) -> i32 {
    counted(&problem.depth, depth, form.depth, form.fold)
        * counted(&problem.height, height, form.height, form.fold)
        * counted(&problem.width, width, form.width, form.fold)
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

/// The index that is returned for the tap at this position of the plane.
#[cube]
pub(crate) fn index_of<N: Size>(
    problem: &ProblemArgs,
    site: &Site,
    position: Vector<i32, N>,
) -> Vector<i32, N> {
    let first = site.lane * N::value() as u32 * problem.index_lane;
    let base = site.sample * problem.index_batch + first;
    let mut index =
        position * Vector::new(problem.index_position as i32) + Vector::new(base as i32);
    #[unroll]
    for i in 0..N::value() {
        index.insert(i, index.extract(i) + i as i32 * problem.index_lane as i32);
    }
    index
}
