//! Windows along a sequence of values: the part that two neighbours share is reduced once.

use cubecl::prelude::*;

use super::form::Form;
use crate::pool::common::lanes_of;
use crate::pool::common::window::{WindowForm, combine};

/// The number of windows that are computed together, from the part that they share.
pub(super) const PAIR: u32 = 2;

/// Windows along a sequence of values, whose first is at `first` and the next ones `each` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Windows {
    pub(super) first: u32,
    pub(super) each: u32,
    pub(super) count: u32,
    pub(super) kernel: u32,
    pub(super) stride: u32,
}

impl Windows {
    /// The position of element `n`.
    fn at(self, n: u32) -> usize {
        (self.first + n * self.each) as usize
    }

    /// The number of elements that window `i` shares with the next one; 0 if there is no next one.
    fn shared(self, i: u32) -> u32 {
        if i + 1 < self.count { self.kernel.saturating_sub(self.stride) } else { 0 }
    }
}

/// The reductions of windows; the part that two neighbours share is reduced once.
#[cube]
pub(super) fn windows_of<A: Float, N: Size>(
    values: &Sequence<Vector<A, N>>,
    #[comptime] along: Windows,
    #[comptime] form: WindowForm,
) -> Sequence<Vector<A, N>> {
    let mut windows = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for pair in 0..comptime!(along.count.div_ceil(PAIR)) {
        let i = comptime!(pair * PAIR);
        let first = comptime!(i * along.stride);
        let next = comptime!(first + along.stride);
        let shared = comptime!(along.shared(i));
        if comptime!(shared > 0) {
            let both = part::<A, N>(values, next, shared, along, form);
            let above = part::<A, N>(values, first, along.stride, along, form);
            windows.push(combine::<A, N>(above, both, form));
            let last = comptime!(first + along.kernel);
            let below = part::<A, N>(values, last, along.stride, along, form);
            windows.push(combine::<A, N>(both, below, form));
        } else {
            windows.push(part::<A, N>(values, first, along.kernel, along, form));
            if comptime!(i + 1 < along.count) {
                windows.push(part::<A, N>(values, next, along.kernel, along, form));
            }
        }
    }
    windows
}

/// The reduction of `count` values of a sequence, beginning with value `first`.
#[cube]
fn part<A: Float, N: Size>(
    values: &Sequence<Vector<A, N>>,
    #[comptime] first: u32,
    #[comptime] count: u32,
    #[comptime] along: Windows,
    #[comptime] form: WindowForm,
) -> Vector<A, N> {
    let end = comptime!(along.at(first + count));
    folded::<A, N>(values, comptime!(along.at(first)), end, along.each, form)
}

/// The reduction of every `each`-th of the values `first..end`.
#[cube]
pub(super) fn folded<A: Float, N: Size>(
    values: &Sequence<Vector<A, N>>,
    #[comptime] first: usize,
    #[comptime] end: usize,
    #[comptime] each: u32,
    #[comptime] form: WindowForm,
) -> Vector<A, N> {
    let mut folds = Sequence::<Vector<A, N>>::new();
    folds.push(*values.index(first));
    #[unroll]
    for n in 1..comptime!((end - first).div_ceil(each as usize)) {
        let before = *folds.index(comptime!(n - 1));
        let next = *values.index(comptime!(first + n * each as usize));
        folds.push(combine::<A, N>(before, next, form));
    }
    *folds.index(comptime!(folds.len() - 1))
}

/// Reduces each lane's taps along the width. Each input vector has `each` entries in `vectors`, of which entry `own` is
/// used.
#[cube]
pub(super) fn reduce_lanes<A: Float, N: Size, M: Size>(
    vectors: &Sequence<Vector<A, M>>,
    #[comptime] each: usize,
    #[comptime] own: usize,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let mut taps = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for t in 0..form.reach.taps {
        taps.push(lanes_of::<A, N, M>(vectors, t, each, own, form.reach));
    }
    folded::<A, N>(&taps, 0usize, form.reach.taps, 1u32, form.window)
}
