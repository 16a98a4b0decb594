//! A unit's column, walked block by block in registers; and the windows of a block, for columns and rows alike.

use cubecl::prelude::*;

use super::kernel::Place;
use super::{Form, One, Walk};
use crate::cube::convert::widen;
use crate::cube::registers::Registers;
use crate::pool::common::window::{ProblemArgs, together};

/// The block that was just read becomes the newest whole one, and the oldest is dropped.
#[cube]
pub(super) fn keep<A: Float>(
    prefixes: &Sequence<Vector<A, One>>,
    ending: &Registers<A, One>,
    totals: &Registers<A, One>,
    #[comptime] form: Form,
) {
    #[unroll]
    for i in 1..form.height.whole {
        totals.index(comptime!((i - 1) as usize)).store(totals.index(i as usize).read());
    }
    let newest = comptime!((form.height.whole - 1) as usize);
    totals.index(newest).store(*prefixes.index(comptime!((form.height.block - 1) as usize)));
    #[unroll]
    for j in 0..form.height.block {
        ending.index(j as usize).store(*prefixes.index(j as usize));
    }
}

/// The first row of a block.
#[cube]
fn first_row(problem: &ProblemArgs, block: u32, #[comptime] form: Form) -> i32 {
    (block * form.height.block) as i32 - problem.height.before
}

/// Loads a block of a unit's column. For a sum there are three paths: blocks inside the input, which most are, blocks
/// entirely above or below it, and the rest, row by row. A maximum drops nothing, so more paths would only hold more
/// addresses in registers.
#[cube]
pub(super) fn fetch<S: Float, A: Float>(
    input: &[Vector<S, One>],
    problem: &ProblemArgs,
    place: &Place,
    block: u32,
    elements: &Registers<A, One>,
    #[comptime] form: Form,
) {
    if comptime!(form.tap.fold.is_max()) {
        column::<S, A>(input, problem, place, block, elements, form);
    } else {
        let first = first_row(problem, block, form);
        let end = first + comptime!(form.height.block as i32);
        if first >= 0 && end <= problem.height.input {
            inner_column::<S, A>(input, problem, place, block, elements, form);
        } else if end <= 0 || first >= problem.height.input {
            #[unroll]
            for j in 0..form.height.block {
                elements.index(j as usize).store(Vector::new(A::from_int(0)));
            }
        } else {
            column::<S, A>(input, problem, place, block, elements, form);
        }
    }
}

/// Loads a block of a unit's column that is inside the input.
#[cube]
fn inner_column<S: Float, A: Float>(
    input: &[Vector<S, One>],
    problem: &ProblemArgs,
    place: &Place,
    block: u32,
    elements: &Registers<A, One>,
    #[comptime] form: Form,
) {
    let first = first_row(problem, block, form);
    let at = place.input + first as u32 * place.line;
    #[unroll]
    for j in 0..form.height.block {
        let value = input[(at + j * place.line) as usize];
        elements.index(j as usize).store(widen::<S, A, One>(value, form.tap.widened));
    }
}

/// Loads a block of a unit's column, row by row. For a position outside the input, a maximum uses the nearest element
/// inside, which every window over that position contains too; a sum uses 0.
#[cube]
pub(super) fn column<S: Float, A: Float>(
    input: &[Vector<S, One>],
    problem: &ProblemArgs,
    place: &Place,
    block: u32,
    elements: &Registers<A, One>,
    #[comptime] form: Form,
) {
    let first = first_row(problem, block, form);
    #[unroll]
    for j in 0..form.height.block {
        let y = first + j as i32;
        let there = min(max(y, 0i32), problem.height.input - 1);
        let at = place.input + there as u32 * place.line;
        let value = widen::<S, A, One>(input[at as usize], form.tap.widened);
        if comptime!(form.tap.fold.is_max()) {
            elements.index(j as usize).store(value);
        } else {
            let kept = select(y == there, value, Vector::new(A::from_int(0)));
            elements.index(j as usize).store(kept);
        }
    }
}

/// The reductions of the last 1, 2, … elements of a block.
#[cube]
pub(super) fn suffixes<A: Float>(
    elements: &Sequence<Vector<A, One>>,
    #[comptime] walk: Walk,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let last = comptime!((walk.block - 1) as usize);
    let mut suffixes = Sequence::<Vector<A, One>>::new();
    suffixes.push(*elements.index(last));
    #[unroll]
    for j in 1..walk.block as usize {
        let after = *suffixes.index(comptime!(j - 1));
        suffixes.push(together::<A, One>(*elements.index(comptime!(last - j)), after, form.tap));
    }
    suffixes
}

/// The windows that start in a block. `totals` holds the reductions of the blocks after it, `ending` and `beyond` the
/// prefixes of the last of these blocks and of the one after it.
#[cube]
pub(super) fn windows<A: Float>(
    suffixes: &Sequence<Vector<A, One>>,
    totals: &Sequence<Vector<A, One>>,
    ending: &Sequence<Vector<A, One>>,
    beyond: &Sequence<Vector<A, One>>,
    #[comptime] walk: Walk,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let mut middle = *totals.index(0usize);
    #[unroll]
    for i in 1..comptime!(walk.whole.max(2) - 1) {
        middle = together::<A, One>(middle, *totals.index(i as usize), form.tap);
    }
    let newest = *totals.index(comptime!((walk.whole - 1) as usize));
    let longer = if comptime!(walk.whole > 1) {
        together::<A, One>(middle, newest, form.tap)
    } else {
        newest
    };
    let mut windows = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for i in 0..walk.block {
        let suffix = *suffixes.index(comptime!((walk.block - 1 - i) as usize));
        let to = comptime!(i + walk.rest);
        if comptime!(to >= walk.block) {
            let prefix = *beyond.index(comptime!((to - walk.block) as usize));
            windows.push(together::<A, One>(
                together::<A, One>(suffix, longer, form.tap),
                prefix,
                form.tap,
            ));
        } else {
            let prefix = *ending.index(to as usize);
            if comptime!(walk.whole > 1) {
                windows.push(together::<A, One>(
                    together::<A, One>(suffix, middle, form.tap),
                    prefix,
                    form.tap,
                ));
            } else {
                windows.push(together::<A, One>(suffix, prefix, form.tap));
            }
        }
    }
    windows
}
