//! Runs of windows along a sequence: of every two neighbours, what they share is folded once.

use cubecl::prelude::*;

use crate::pool::common::window::{Form, together};

/// The windows that share what they have in common.
pub(in crate::pool) const TOGETHER: u32 = 2;

/// Windows along a sequence, whose first element is at `first` and whose others lie `each` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::pool) struct Run {
    pub(in crate::pool) first: u32,
    pub(in crate::pool) each: u32,
    pub(in crate::pool) count: u32,
    pub(in crate::pool) kernel: u32,
    pub(in crate::pool) stride: u32,
}

impl Run {
    /// Where element `n` is.
    fn at(self, n: u32) -> usize {
        (self.first + n * self.each) as usize
    }

    /// The elements that window `i` and the next one share, if there is a next one.
    fn shared(self, i: u32) -> u32 {
        if i + 1 < self.count { self.kernel.saturating_sub(self.stride) } else { 0 }
    }
}

/// Where column `v` of a block goes, of which those before `aside` are another block's too, as the last block's
/// are where blocks do not divide a width. The other one's sums of these, added in another order, are kept: this
/// one's go where its own column `aside` goes, which the unit writes after them.
#[cube]
pub(in crate::pool) fn written(#[comptime] v: u32, aside: u32, #[comptime] columns: u32) -> u32 {
    if comptime!(v + 1 < columns) { max(v, aside) } else { v.runtime() }
}

/// The folds of a run's windows; of every two, what they share is folded once.
#[cube]
pub(in crate::pool) fn windows<A: Float, N: Size>(
    values: &Sequence<Vector<A, N>>,
    #[comptime] run: Run,
    #[comptime] form: Form,
) -> Sequence<Vector<A, N>> {
    let mut windows = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for pair in 0..comptime!(run.count.div_ceil(TOGETHER)) {
        let i = comptime!(pair * TOGETHER);
        let first = comptime!(i * run.stride);
        let next = comptime!(first + run.stride);
        let shared = comptime!(run.shared(i));
        if comptime!(shared > 0) {
            let both = folded::<A, N>(values, next, shared, run, form);
            let above = folded::<A, N>(values, first, run.stride, run, form);
            windows.push(together::<A, N>(above, both, form));
            let last = comptime!(first + run.kernel);
            let below = folded::<A, N>(values, last, run.stride, run, form);
            windows.push(together::<A, N>(both, below, form));
        } else {
            windows.push(folded::<A, N>(values, first, run.kernel, run, form));
            if comptime!(i + 1 < run.count) {
                windows.push(folded::<A, N>(values, next, run.kernel, run, form));
            }
        }
    }
    windows
}

/// The fold of `count` values of a run, from the `first` on.
#[cube]
fn folded<A: Float, N: Size>(
    values: &Sequence<Vector<A, N>>,
    #[comptime] first: u32,
    #[comptime] count: u32,
    #[comptime] run: Run,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let mut folds = Sequence::<Vector<A, N>>::new();
    folds.push(*values.index(comptime!(run.at(first))));
    #[unroll]
    for n in 1..count {
        let before = *folds.index(comptime!((n - 1) as usize));
        let next = *values.index(comptime!(run.at(first + n)));
        folds.push(together::<A, N>(before, next, form));
    }
    *folds.index(comptime!((count - 1) as usize))
}
