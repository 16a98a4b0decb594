//! Runs of windows along a sequence: the part that two neighbours share is reduced once.

use cubecl::prelude::*;

use crate::pool::common::window::{Form, together};

/// The number of windows that are computed together, from the part that they share.
pub(in crate::pool) const TOGETHER: u32 = 2;

/// Windows along a sequence. Its first element is at `first`, the next ones `each` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::pool) struct Run {
    pub(in crate::pool) first: u32,
    pub(in crate::pool) each: u32,
    pub(in crate::pool) count: u32,
    pub(in crate::pool) kernel: u32,
    pub(in crate::pool) stride: u32,
}

impl Run {
    /// The position of element `n`.
    fn at(self, n: u32) -> usize {
        (self.first + n * self.each) as usize
    }

    /// The number of elements that window `i` shares with the next one; 0 if there is no next one.
    fn shared(self, i: u32) -> u32 {
        if i + 1 < self.count { self.kernel.saturating_sub(self.stride) } else { 0 }
    }
}

/// The position to which column `v` of a block is written. If blocks do not divide the width, the columns before
/// `aside` of the last block belong to another block too. That block's sums, which are added in another order, must be
/// kept, so this block's sums go to its own column `aside`, which the unit writes after them.
#[cube]
pub(in crate::pool) fn written(#[comptime] v: u32, aside: u32, #[comptime] columns: u32) -> u32 {
    if comptime!(v + 1 < columns) { max(v, aside) } else { v.runtime() }
}

/// The reductions of a run's windows; the part that two neighbours share is reduced once.
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

/// The reduction of `count` values of a run, beginning with value `first`.
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
