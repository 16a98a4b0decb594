//! The most frequent number of a window, by sorting its keys or by counting them, one number after the other.
//!
//! ```text
//! few taps:    sort the keys of all taps in registers, as `network` says
//!              count each run of equal keys from its start; keep the key of the longest one
//! many taps:   number = the least key of all; left = the number of taps
//!              while a number that was not counted yet may be more frequent, as there are `left` taps of such:
//!                  pass over the window: count the taps with this key, and find the next greater key
//!                  keep the key if it is more frequent than the ones before
//! ```
//!
//! Keys ascend in both, and only a more frequent one replaces another: the smallest of equally frequent ones is kept.
//! The second way reads a window once for each of its numbers, at most.

use cubecl::prelude::*;

use super::RankForm;
use super::kernel::{held, most_of, or_nan};
use super::keys::{is_nan, key_of};
use super::network::sorting;
use crate::pool::common::window::Site;

/// The most frequent key of the taps in registers. Taps outside the input have the greatest key of a number and so come
/// last, before NaN. They are not counted: only their number matters, because equal keys are all the same.
#[cube]
#[allow(clippy::needless_range_loop, reason = "loops of kernels are over numbers")]
pub(super) fn by_sorting<S: Float, A: Float, K: Int, N: Size>(
    input: &[Vector<S, N>],
    site: &Site<'_>,
    #[comptime] form: RankForm,
) -> Vector<K, N> {
    let taps = comptime!(form.taps());
    let sorting = comptime!(sorting(taps));
    let mut values = held::<S, A, K, N>(input, site, 0i32.runtime(), form);
    #[unroll]
    for i in 0..comptime!(sorting.steps.len()) {
        let step = comptime!(sorting.steps[i]);
        let (a, b) = (*values.index(step.a), *values.index(step.b));
        values.push(if comptime!(step.larger) { max(a, b) } else { min(a, b) });
    }
    let count = site.count();
    let (none, one) = (Vector::<i32, N>::new(0i32), Vector::<i32, N>::new(1i32));
    let mut found = *values.index(comptime!(sorting.order[0]));
    let mut run = Vector::<i32, N>::new(1i32);
    let mut longest = Vector::<i32, N>::new(1i32);
    #[unroll]
    for i in 1..taps {
        let before = *values.index(comptime!(sorting.order[i - 1]));
        let key = *values.index(comptime!(sorting.order[i]));
        run = select_many(key.equal(&before), run + one, one);
        let counted = if comptime!(form.window.is_clipped()) {
            select(count > comptime!(i as i32), run, none)
        } else {
            run
        };
        found = select_many(counted.greater_than(&longest), key, found);
        longest = max(longest, counted);
    }
    let last = *values.index(comptime!(sorting.order[taps - 1]));
    or_nan::<K, N>(found, last, form.keys)
}

/// The most frequent key, by a pass over the window for each of its numbers.
#[cube]
pub(super) fn by_counting<S: Float, A: Float, K: Int, N: Size>(
    input: &[Vector<S, N>],
    site: &Site<'_>,
    #[comptime] form: RankForm,
) -> Vector<K, N> {
    let keys = comptime!(form.keys);
    let (none, one) = (Vector::<i32, N>::new(0i32), Vector::<i32, N>::new(1i32));
    let lowest = K::from_int(comptime!(keys.lowest()));
    let highest = K::from_int(comptime!(keys.highest()));
    let largest = if comptime!(keys.has_nan()) {
        most_of::<S, A, K, N>(input, site, form)
    } else {
        Vector::new(lowest)
    };
    let mut left = Vector::<i32, N>::new(site.count());
    if comptime!(keys.has_nan()) {
        // The mode is NaN, which no pass would count.
        left = select_many(is_nan::<K, N>(largest, keys), none, left);
    }
    let mut number = Vector::<K, N>::new(lowest);
    let mut found = Vector::<K, N>::new(lowest);
    let mut most = Vector::<i32, N>::new(0i32);
    while is_any_greater::<N>(left, most) {
        let mut count = Vector::<i32, N>::new(0i32);
        let mut next = Vector::<K, N>::new(highest);
        for at in site.taps() {
            let key = key_of::<S, A, K, N>(input[site.tap(at).vector as usize], keys);
            count += select_many(key.equal(&number), one, none);
            next = select_many(key.greater_than(&number), min(next, key), next);
        }
        found = select_many(count.greater_than(&most), number, found);
        most = max(most, count);
        left -= count;
        number = next;
    }
    or_nan::<K, N>(found, largest, keys)
}

/// Whether `a` is greater than `b` in any lane.
#[cube]
fn is_any_greater<N: Size>(a: Vector<i32, N>, b: Vector<i32, N>) -> bool {
    let by = a - b;
    let mut most = by.extract(0usize);
    #[unroll]
    for lane in 1..N::value() {
        most = max(most, by.extract(lane));
    }
    most > 0
}
