//! A unit's column, walked block by block in registers; and the windows of a block, for columns and rows alike.

use cubecl::prelude::*;

use super::form::Walk;
use super::kernel::Place;
use super::{Form, One, TileArgs};
use crate::cube::convert::widen_by;
use crate::cube::registers::Registers;
use crate::pool::common::window::{Form as Tap, ProblemArgs, neutral, prefixes, together};

impl Walk {
    /// The number of prefixes kept of the last whole block: all of them if some windows end in it, otherwise none.
    pub(super) fn ending(&self) -> u32 {
        if self.shorter() > 0 { self.block } else { 0 }
    }

    /// The offset in a block from the start of its first window to the start of its last.
    fn last(&self) -> u32 {
        self.block - 1
    }
}

/// The elements, converted to the type in which they are summed.
#[cube]
pub(super) fn widened<S: Float, A: Float, N: Size>(
    cells: &Registers<S, N>,
    args: &TileArgs,
    #[comptime] form: Form,
) -> Sequence<Vector<A, N>> {
    let mut values = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for i in 0..cells.len() {
        values.push(widen_by::<S, A, N>(cells.index(i).read(), args.upper, form.tap.widened));
    }
    values
}

/// The block that was just read becomes the newest whole one, and the oldest is dropped.
#[cube]
pub(super) fn keep<A: Float, N: Size>(
    prefixes: &Sequence<Vector<A, N>>,
    ending: &Registers<A, N>,
    whole: &Registers<A, N>,
    #[comptime] form: Form,
) {
    #[unroll]
    for i in 1..form.height.whole {
        whole.index(comptime!((i - 1) as usize)).store(whole.index(i as usize).read());
    }
    let newest = comptime!((form.height.whole - 1) as usize);
    whole.index(newest).store(*prefixes.index(comptime!(form.height.last() as usize)));
    #[unroll]
    for j in 0..form.height.ending() {
        ending.index(j as usize).store(*prefixes.index(j as usize));
    }
}

/// Loads a block of a unit's column. Positions outside the input get the identity element.
#[cube]
pub(super) fn fetch<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    problem: &ProblemArgs,
    place: &Place,
    block: u32,
    elements: &Registers<S, N>,
    #[comptime] form: Form,
) {
    let before = problem.height.before + comptime!(form.height.phase as i32);
    let first = (block * form.height.block) as i32 - before;
    // Most blocks are inside.
    if first >= 0 && first + comptime!(form.height.block as i32) <= problem.height.input {
        let at = place.input + first as u32 * place.line;
        #[unroll]
        for j in 0..form.height.block {
            elements.index(j as usize).store(input[(at + j * place.line) as usize]);
        }
    } else if first + comptime!(form.height.block as i32) <= 0 || first >= problem.height.input {
        let nothing = S::cast_from(neutral::<A, One>(problem, form.tap.fold).extract(0usize));
        #[unroll]
        for j in 0..form.height.block {
            elements.index(j as usize).store(Vector::new(nothing));
        }
    } else {
        let nothing = S::cast_from(neutral::<A, One>(problem, form.tap.fold).extract(0usize));
        #[unroll]
        for j in 0..form.height.block {
            let y = first + j as i32;
            let there = min(max(y, 0i32), problem.height.input - 1);
            let element = input[(place.input + there as u32 * place.line) as usize];
            let kept = select(y == there, element, Vector::new(nothing));
            elements.index(j as usize).store(kept);
        }
    }
}

/// The windows of a block with elements `first`. `whole` holds the reductions of the blocks after it, `ending` and
/// `beyond` the prefixes of the last of these blocks and of the one after it.
///
/// From the last window of the block to the first, each adds one element at its start. So windows are computed from
/// running sums: one series for the windows that end with the last whole block or after it, one for those that end
/// before.
#[cube]
pub(super) fn windows<A: Float, N: Size>(
    first: &Sequence<Vector<A, N>>,
    whole: &Sequence<Vector<A, N>>,
    ending: &Sequence<Vector<A, N>>,
    beyond: &Sequence<Vector<A, N>>,
    #[comptime] walk: Walk,
    #[comptime] tap: Tap,
) -> Sequence<Vector<A, N>> {
    let middles = prefixes::<A, N>(whole, walk.whole, tap);
    let all = comptime!((walk.whole - 1) as usize);
    let mut sums = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for n in 0..comptime!(walk.block - walk.shorter()) {
        let start = comptime!((walk.phase + walk.last() - n) as usize);
        let sum = if comptime!(n == 0) {
            *middles.index(all)
        } else {
            *sums.index(comptime!(n as usize - 1))
        };
        sums.push(if comptime!(start == walk.block as usize) {
            sum
        } else {
            together::<A, N>(sum, *first.index(start), tap)
        });
    }
    let mut short = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for n in 0..walk.ending() {
        let element = *first.index(comptime!((walk.last() - n) as usize));
        short.push(if comptime!(n > 0) {
            together::<A, N>(*short.index(comptime!(n as usize - 1)), element, tap)
        } else if comptime!(all > 0) {
            together::<A, N>(*middles.index(comptime!(all.max(1) - 1)), element, tap)
        } else {
            element
        });
    }
    let mut windows = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for i in 0..walk.block {
        let to = comptime!(i + walk.rest);
        let n = comptime!((walk.last() - i) as usize);
        windows.push(if comptime!(to < walk.last()) {
            together::<A, N>(*short.index(n), *ending.index(to as usize), tap)
        } else if comptime!(to == walk.last()) {
            *sums.index(n)
        } else {
            let prefix = *beyond.index(comptime!((to - walk.block) as usize));
            together::<A, N>(*sums.index(n), prefix, tap)
        });
    }
    windows
}
