//! How taps are folded: one after the other in their order, or any two folds of one window.

use cubecl::prelude::*;

use super::{Fold, Form, ProblemArgs, Site, plane_position};
use crate::cube::axis::coordinate;
use crate::cube::convert::{MaximumForm, is_leveled_nan, leveled, maximum, wins_later};

/// What has been folded so far: a maximum and where it was, or a sum.
#[derive(CubeType)]
pub(in crate::pool) struct Accumulator<A: Float, N: Size> {
    pub(in crate::pool) value: Vector<A, N>,
    /// The plane position of the maximum.
    pub(in crate::pool) position: Vector<i32, N>,
}

/// What changes no fold with another.
#[cube]
pub(in crate::pool) fn neutral<A: Float, N: Size>(
    problem: &ProblemArgs,
    #[comptime] fold: Fold,
) -> Vector<A, N> {
    if comptime!(fold.is_max()) {
        Vector::new(problem.lowest.get::<A>())
    } else {
        Vector::new(A::from_int(0))
    }
}

/// The folds of the first 1, 2, … of `count` elements.
#[cube]
pub(in crate::pool) fn prefixes<A: Float, N: Size>(
    elements: &Sequence<Vector<A, N>>,
    #[comptime] count: u32,
    #[comptime] form: Form,
) -> Sequence<Vector<A, N>> {
    let mut prefixes = Sequence::<Vector<A, N>>::new();
    prefixes.push(*elements.index(0usize));
    #[unroll]
    for j in 1..count as usize {
        let before = *prefixes.index(comptime!(j - 1));
        prefixes.push(together::<A, N>(before, *elements.index(j), form));
    }
    prefixes
}

/// A maximum starts below every number, at the first tap inside: there it stays if all are −∞.
#[cube]
pub(in crate::pool) fn accumulator_at<A: Float, N: Size>(
    problem: &ProblemArgs,
    site: &Site,
    #[comptime] form: Form,
) -> Accumulator<A, N> {
    let value = neutral::<A, N>(problem, form.fold);
    if comptime!(form.fold.is_max()) {
        let first = plane_position(
            problem,
            coordinate(&problem.depth, &site.depth, site.depth.first, form.depth),
            coordinate(&problem.height, &site.height, site.height.first, form.height),
            coordinate(&problem.width, &site.width, site.width.first, form.width),
        );
        Accumulator::<A, N> { value, position: Vector::new(first) }
    } else {
        Accumulator::<A, N> { value, position: Vector::new(0i32) }
    }
}

/// Folds what comes later in row-major order into what came before.
///
/// Of equals the first keeps its index; the last NaN takes it, for nothing is greater than a NaN. Not where
/// `nans` are looked for apart.
#[cube]
pub(in crate::pool) fn fold_with<A: Float, N: Size>(
    folded: &mut Accumulator<A, N>,
    next: &Accumulator<A, N>,
    #[comptime] nans: bool,
    #[comptime] form: Form,
) {
    if comptime!(form.fold == Fold::MaxAndIndex) {
        let wins = if comptime!(form.widened.is_keys()) {
            wins_later::<A, N>(next.value, folded.value)
        } else {
            let greater = next.value.greater_than(&folded.value);
            if comptime!(form.float && nans) { greater.or(next.value.is_nan()) } else { greater }
        };
        folded.position = select_many(wins, next.position, folded.position);
    }
    folded.value = together::<A, N>(folded.value, next.value, form);
}

/// The same with all NaN.
#[cube]
pub(in crate::pool) fn fold<A: Float, N: Size>(
    folded: &mut Accumulator<A, N>,
    next: &Accumulator<A, N>,
    #[comptime] form: Form,
) {
    fold_with::<A, N>(folded, next, true, form);
}

/// Two values as one, where positions are not asked for or seen to elsewhere.
#[cube]
pub(in crate::pool) fn together<A: Float, N: Size>(
    a: Vector<A, N>,
    b: Vector<A, N>,
    #[comptime] form: Form,
) -> Vector<A, N> {
    if comptime!(form.fold.is_max()) { maximum::<A, N>(a, b, form.maximum) } else { a + b }
}

/// Two folds as one, in whatever order their taps are. Of equal maxima the one at the lower position
/// is the winner, of NaN the one at the higher.
#[cube]
pub(in crate::pool) fn merge<A: Float, N: Size>(
    a: &Accumulator<A, N>,
    b: &Accumulator<A, N>,
    #[comptime] fold: Fold,
    #[comptime] form: MaximumForm,
    #[comptime] float: bool,
) -> Accumulator<A, N> {
    if comptime!(fold == Fold::MaxAndIndex) {
        let earlier = b.position.less_than(&a.position);
        // Numbers that are folded by integers are keys.
        let keys = comptime!(float && form == MaximumForm::Integers);
        let wins = if comptime!(keys) {
            let (before, after) = (leveled::<A, N>(a.value), leveled::<A, N>(b.value));
            let later = b.position.greater_than(&a.position);
            let first = select_many(is_leveled_nan::<N>(after), later, earlier);
            after.greater_than(&before).or(after.equal(&before).vec_and(first))
        } else {
            b.value.greater_than(&a.value).or(b.value.equal(&a.value).vec_and(earlier))
        };
        let wins = if comptime!(float && !keys) {
            let stays = a.value.is_nan().vec_and(earlier);
            let never = b.value.greater_than(&b.value);
            wins.or(select_many(stays, never, b.value.is_nan()))
        } else {
            wins
        };
        Accumulator::<A, N> {
            value: maximum::<A, N>(a.value, b.value, form),
            position: select_many(wins, b.position, a.position),
        }
    } else if comptime!(fold.is_max()) {
        let value = maximum::<A, N>(a.value, b.value, form);
        Accumulator::<A, N> { value, position: a.position }
    } else {
        Accumulator::<A, N> { value: a.value + b.value, position: a.position }
    }
}
