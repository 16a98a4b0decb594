//! How taps are reduced: one after the other in order, or two partial results of one window in any order.

use cubecl::prelude::*;

use super::{Fold, ProblemArgs, Site, WindowForm};
use crate::cube::convert::{Comparison, beats, extremum, is_leveled_nan, leveled, wins_later};

/// The reduction so far: an extremum and its position, or a sum.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Accumulator<A: Float, N: Size> {
    pub(crate) value: Vector<A, N>,
    /// The plane position of the extremum.
    pub(crate) position: Vector<i32, N>,
}

/// The identity element of a reduction.
#[cube]
pub(crate) fn identity<A: Float, N: Size>(
    problem: &ProblemArgs,
    #[comptime] fold: Fold,
) -> Vector<A, N> {
    if comptime!(fold.is_extremum()) {
        Vector::new(problem.empty.get::<A>())
    } else {
        Vector::new(A::from_int(0))
    }
}

/// The reductions of the first 1, 2, … of `count` elements.
#[cube]
pub(crate) fn prefixes<A: Float, N: Size>(
    elements: &Sequence<Vector<A, N>>,
    #[comptime] count: u32,
    #[comptime] form: WindowForm,
) -> Sequence<Vector<A, N>> {
    let mut prefixes = Sequence::<Vector<A, N>>::new();
    prefixes.push(*elements.index(0usize));
    #[unroll]
    for j in 1..count as usize {
        let before = *prefixes.index(comptime!(j - 1));
        prefixes.push(combine::<A, N>(before, *elements.index(j), form));
    }
    prefixes
}

/// The initial accumulator. An extremum starts with the identity element at the position of the first tap inside, which
/// remains the result if no tap beats it.
#[cube]
pub(crate) fn accumulator_at<A: Float, N: Size>(site: &Site<'_>) -> Accumulator<A, N> {
    let value = identity::<A, N>(site.problem, site.form.fold);
    if comptime!(site.form.fold.is_extremum()) {
        let first = site.tap(site.taps().first);
        Accumulator::<A, N> { value, position: Vector::new(first.position) }
    } else {
        Accumulator::<A, N> { value, position: Vector::new(0i32) }
    }
}

/// Combines the accumulator with elements that come later in row-major order.
///
/// Among equal values the first keeps its index; the last NaN takes it, because nothing beats a NaN. If
/// `nans` is false, NaNs are not tested here: the caller handles them separately.
#[cube]
pub(crate) fn fold_with<A: Float, N: Size>(
    folded: &mut Accumulator<A, N>,
    next: &Accumulator<A, N>,
    #[comptime] nans: bool,
    #[comptime] form: WindowForm,
) {
    if comptime!(form.fold == Fold::ExtremumAndIndex) {
        let wins = if comptime!(form.widened.is_keys()) {
            wins_later::<A, N>(next.value, folded.value)
        } else {
            let beats = beats::<A, N>(next.value, folded.value, form.extremum);
            if comptime!(nans && form.extremum.has_nan()) {
                beats.or(next.value.is_nan())
            } else {
                beats
            }
        };
        folded.position = select_many(wins, next.position, folded.position);
    }
    folded.value = combine::<A, N>(folded.value, next.value, form);
}

/// The same with the test for NaN.
#[cube]
pub(crate) fn fold<A: Float, N: Size>(
    folded: &mut Accumulator<A, N>,
    next: &Accumulator<A, N>,
    #[comptime] form: WindowForm,
) {
    fold_with::<A, N>(folded, next, true, form);
}

/// Combines two values, if positions are not needed or are handled elsewhere.
#[cube]
pub(crate) fn combine<A: Float, N: Size>(
    a: Vector<A, N>,
    b: Vector<A, N>,
    #[comptime] form: WindowForm,
) -> Vector<A, N> {
    if comptime!(form.fold.is_extremum()) { extremum::<A, N>(a, b, form.extremum) } else { a + b }
}

/// Combines two accumulators, whatever the order of their taps. Among equal extrema the one at the lower position wins,
/// among NaNs the one at the higher.
#[cube]
pub(crate) fn merge<A: Float, N: Size>(
    a: &Accumulator<A, N>,
    b: &Accumulator<A, N>,
    #[comptime] form: WindowForm,
) -> Accumulator<A, N> {
    if comptime!(form.fold == Fold::ExtremumAndIndex) {
        let earlier = b.position.less_than(&a.position);
        let wins = if comptime!(form.extremum.by == Comparison::Keys) {
            let (before, after) = (leveled::<A, N>(a.value), leveled::<A, N>(b.value));
            let later = b.position.greater_than(&a.position);
            let first = select_many(is_leveled_nan::<N>(after), later, earlier);
            after.greater_than(&before).or(after.equal(&before).vec_and(first))
        } else {
            let beats = beats::<A, N>(b.value, a.value, form.extremum);
            beats.or(b.value.equal(&a.value).vec_and(earlier))
        };
        let wins = if comptime!(form.extremum.has_nan()) {
            let stays = a.value.is_nan().vec_and(earlier);
            let never = b.value.greater_than(&b.value);
            wins.or(select_many(stays, never, b.value.is_nan()))
        } else {
            wins
        };
        Accumulator::<A, N> {
            value: extremum::<A, N>(a.value, b.value, form.extremum),
            position: select_many(wins, b.position, a.position),
        }
    } else {
        let value = combine::<A, N>(a.value, b.value, form);
        Accumulator::<A, N> { value, position: a.position }
    }
}
