//! The two ways to a rank: a network of comparisons, or a search bit by bit. The kernel also computes [`mode`]s.

use cubecl::prelude::*;

use super::keys::{Keys, is_nan, key_of, number_of};
use super::network::selection;
use super::{RankArgs, RankForm, Wanted, mode};
use crate::cube::unit::unit_position;
use crate::pool::common::window::Site;

/// `S` is the type in which elements are stored, `A` that of 32-bit keys, under the bound that `widen` needs.
#[cube(launch_unchecked)]
pub(super) fn rank<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    args: &RankArgs,
    #[comptime] form: RankForm,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let vector = unit_position(form.window.contiguous);
    if vector >= args.problem.vectors {
        terminate!();
    }
    let site = Site::new(&args.problem, vector, form.window);
    let number = if comptime!(form.keys.is_wide()) {
        ranked::<S, A, i64, N>(input, args, &site, form)
    } else {
        ranked::<S, A, i32, N>(input, args, &site, form)
    };
    output[vector as usize] = if comptime!(form.window.may_be_empty()) {
        select(site.count() > 0, number, Vector::new(S::from_int(0)))
    } else {
        number
    };
}

/// The wanted number; any number if the window is empty. `K` is the type of the keys.
#[cube]
fn ranked<S: Float, A: Float, K: Int, N: Size>(
    input: &[Vector<S, N>],
    args: &RankArgs,
    site: &Site<'_>,
    #[comptime] form: RankForm,
) -> Vector<S, N> {
    let key = if comptime!(form.wanted == Wanted::Mode) {
        if comptime!(form.window.unrolled()) {
            mode::by_sorting::<S, A, K, N>(input, site, form)
        } else {
            mode::by_counting::<S, A, K, N>(input, site, form)
        }
    } else if comptime!(form.window.unrolled()) {
        by_network::<S, A, K, N>(input, args, site, form)
    } else {
        by_bits::<S, A, K, N>(input, args, site, form)
    };
    number_of::<S, A, K, N>(key, form.keys)
}

/// How many of `count` numbers precede the wanted one.
#[cube]
fn rank_of(args: &RankArgs, count: i32) -> i32 {
    let share = args.whole.div_mod(count as u32 * args.part).0;
    min(args.nth + share as i32, count - 1)
}

/// The keys of all taps, in registers. For each tap outside the input there is a number in its place: the least one for
/// the first `below` of them, and the greatest one for the others.
#[cube]
pub(super) fn held<S: Float, A: Float, K: Int, N: Size>(
    input: &[Vector<S, N>],
    site: &Site<'_>,
    below: i32,
    #[comptime] form: RankForm,
) -> Sequence<Vector<K, N>> {
    let lowest = K::from_int(comptime!(form.keys.lowest()));
    let highest = K::from_int(comptime!(form.keys.highest()));
    let mut outside = 0i32;
    let mut values = Sequence::<Vector<K, N>>::new();
    let unrolled = comptime!(form.window.unrolled());
    #[unroll(unrolled)]
    for at in site.all_taps() {
        let key = key_of::<S, A, K, N>(input[site.tap(at).vector as usize], form.keys);
        values.push(if comptime!(form.window.is_clipped()) {
            let inside = site.has(at);
            let instead = select(outside < below, lowest, highest);
            outside += i32::cast_from(!inside);
            select(inside, key, Vector::new(instead))
        } else {
            key
        });
    }
    values
}

/// The key at the rank, of the taps in registers. What is in place of taps outside the input makes the rank among all
/// taps the same for all windows.
#[cube]
#[allow(clippy::needless_range_loop, reason = "loops of kernels are over numbers")]
fn by_network<S: Float, A: Float, K: Int, N: Size>(
    input: &[Vector<S, N>],
    args: &RankArgs,
    site: &Site<'_>,
    #[comptime] form: RankForm,
) -> Vector<K, N> {
    let rank = comptime!(form.rank());
    let below = if comptime!(form.window.is_clipped()) {
        comptime!(rank as i32).runtime() - rank_of(args, site.count())
    } else {
        0i32.runtime()
    };
    let mut values = held::<S, A, K, N>(input, site, below, form);
    let taps = comptime!(form.taps());
    let steps = comptime!(selection(taps, rank));
    let most = largest::<K, N>(&values, taps, form.keys);
    #[unroll]
    for i in 0..comptime!(steps.len()) {
        let step = comptime!(steps[i]);
        let (a, b) = (*values.index(step.a), *values.index(step.b));
        values.push(if comptime!(step.larger) { max(a, b) } else { min(a, b) });
    }
    let found = *values.index(comptime!(taps + steps.len() - 1));
    or_nan::<K, N>(found, most, form.keys)
}

/// The largest of the first `count` keys, if it may be that of a NaN.
#[cube]
fn largest<K: Int, N: Size>(
    values: &Sequence<Vector<K, N>>,
    #[comptime] count: usize,
    #[comptime] keys: Keys,
) -> Vector<K, N> {
    let mut largest = Sequence::<Vector<K, N>>::new();
    largest.push(*values.index(0usize));
    if comptime!(keys.has_nan()) {
        #[unroll]
        for i in 1..count {
            let before = *largest.index(comptime!(i - 1));
            largest.push(max(before, *values.index(i)));
        }
    }
    *largest.index(comptime!(if keys.has_nan() { count - 1 } else { 0 }))
}

/// The key that was found, or the largest key if that is a NaN's.
#[cube]
pub(super) fn or_nan<K: Int, N: Size>(
    found: Vector<K, N>,
    largest: Vector<K, N>,
    #[comptime] keys: Keys,
) -> Vector<K, N> {
    if comptime!(keys.has_nan()) {
        select_many(is_nan::<K, N>(largest, keys), largest, found)
    } else {
        found
    }
}

/// The key at the rank, which is the largest `k` that is above no more taps than may precede it: its sign, then its
/// bits from the highest to the lowest, each by a pass over the window.
#[cube]
fn by_bits<S: Float, A: Float, K: Int, N: Size>(
    input: &[Vector<S, N>],
    args: &RankArgs,
    site: &Site<'_>,
    #[comptime] form: RankForm,
) -> Vector<K, N> {
    let keys = comptime!(form.keys);
    let rank = Vector::new(rank_of(args, site.count()));
    let zero = Vector::<K, N>::new(K::from_int(0));
    let mut found = Vector::<K, N>::new(K::from_int(comptime!(keys.lowest())));
    if comptime!(keys.lowest() < 0) {
        let below = below::<S, A, K, N>(input, site, zero, form);
        found = select_many(below.less_equal(&rank), zero, found);
    }
    let passes = comptime!(keys.bits() + keys.last_bit());
    for pass in 0..passes {
        // The last bit follows the others, where those between have no meaning.
        let bit = if pass < comptime!(keys.bits()) {
            comptime!(keys.highest_bit()) - pass
        } else {
            0u32.runtime()
        };
        let next = found | Vector::new(K::from_int(1) << K::cast_from(bit));
        let below = below::<S, A, K, N>(input, site, next, form);
        found = select_many(below.less_equal(&rank), next, found);
    }
    if comptime!(keys.has_nan()) {
        let most = most_of::<S, A, K, N>(input, site, form);
        or_nan::<K, N>(found, most, keys)
    } else {
        found
    }
}

/// The number of taps whose keys are less than `limit`.
#[cube]
fn below<S: Float, A: Float, K: Int, N: Size>(
    input: &[Vector<S, N>],
    site: &Site<'_>,
    limit: Vector<K, N>,
    #[comptime] form: RankForm,
) -> Vector<i32, N> {
    let mut count = Vector::<i32, N>::new(0i32);
    for at in site.taps() {
        let key = key_of::<S, A, K, N>(input[site.tap(at).vector as usize], form.keys);
        let one = select_many(key.less_than(&limit), Vector::new(1i32), Vector::new(0i32));
        count += one;
    }
    count
}

/// The largest key of a window, or the lowest of all keys.
#[cube]
pub(super) fn most_of<S: Float, A: Float, K: Int, N: Size>(
    input: &[Vector<S, N>],
    site: &Site<'_>,
    #[comptime] form: RankForm,
) -> Vector<K, N> {
    let mut most = Vector::<K, N>::new(K::from_int(comptime!(form.keys.lowest())));
    for at in site.taps() {
        let key = key_of::<S, A, K, N>(input[site.tap(at).vector as usize], form.keys);
        most = max(most, key);
    }
    most
}
