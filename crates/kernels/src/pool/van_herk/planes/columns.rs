//! A unit's column, walked block by block in registers; and the windows of a block, for columns and rows alike.

use cubecl::prelude::*;

use super::form::Walk;
use super::kernel::Place;
use super::{Form, TileArgs};
use crate::cube::convert::widen_by;
use crate::cube::registers::{Registers, read, zeros};
use crate::pool::common::window::{Fold, Form as Tap, ProblemArgs, counted_at, prefixes, together};

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

/// What the elements of a unit's column are divided by before they are summed.
#[derive(CubeType)]
pub(super) struct Weights<A: Float, N: Size> {
    /// The part of the divisor that is the column's.
    columns: Vector<A, N>,
    /// The factor for elements on rows where the height's part is the whole window.
    usual: Vector<A, N>,
}

/// The weights of the column at `x`; of several neighbouring columns, if lanes lie along the width.
#[cube]
pub(super) fn weights_of<A: Float, N: Size>(
    args: &TileArgs,
    x: u32,
    #[comptime] form: Form,
) -> Weights<A, N> {
    let mut columns = Vector::<A, N>::new(A::from_int(1));
    let mut usual = Vector::<A, N>::new(A::from_int(1));
    if comptime!(form.weights.is_some()) {
        let [_, width] = comptime!(form.weights.unwrap());
        #[unroll]
        for i in 0..N::value() {
            let x = if comptime!(form.flat) { x + i as u32 } else { x };
            let taps = counted_at(&args.weights_width, x, width, Fold::AverageValid);
            columns.insert(i, A::cast_from(taps));
            usual.insert(i, A::from_int(1) / A::cast_from(taps * args.weights_height.kernel));
        }
    }
    Weights::<A, N> { columns, usual }
}

/// The part of the divisor that is a row's. Rows outside have the nearest row's.
#[cube]
fn row_weight(args: &TileArgs, y: i32, #[comptime] form: Form) -> i32 {
    let [height, _] = comptime!(form.weights.unwrap());
    let y = min(max(y, 0i32), args.input_height - 1) as u32;
    counted_at(&args.weights_height, y, height, Fold::AverageValid)
}

/// The elements of a block, converted to the type in which they are reduced, and divided by their weights if they have
/// any.
#[cube]
pub(super) fn widened<S: Float, A: Float, N: Size>(
    cells: &Registers<S, N>,
    problem: &ProblemArgs,
    args: &TileArgs,
    weights: &Weights<A, N>,
    block: u32,
    #[comptime] form: Form,
) -> Sequence<Vector<A, N>> {
    let mut values = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for i in 0..cells.len() {
        values.push(widen_by::<S, A, N>(cells.index(i).read(), args.upper, form.tap.widened));
    }
    if comptime!(form.weights.is_none()) {
        values
    } else {
        let first = first_row(problem, block, form);
        let last = first + comptime!(form.height.block as i32 - 1);
        let all = args.weights_height.kernel;
        let whole = row_weight(args, first, form) == all && row_weight(args, last, form) == all;
        let weighed = zeros::<A, N>(form.height.block);
        if comptime!(form.tap.reciprocal) && whole {
            #[unroll]
            for i in 0..values.len() {
                weighed.index(i).store(*values.index(i) * weights.usual);
            }
        } else {
            #[unroll]
            for i in 0..values.len() {
                let rows = A::cast_from(row_weight(args, first + i as i32, form));
                weighed.index(i).store(*values.index(i) / (weights.columns * Vector::new(rows)));
            }
        }
        read::<A, N>(&weighed)
    }
}

/// The first row of a block.
#[cube]
fn first_row(problem: &ProblemArgs, block: u32, #[comptime] form: Form) -> i32 {
    (block * form.height.block) as i32 - problem.height.before - comptime!(form.height.phase as i32)
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

/// Loads a block of a unit's column. For a position outside the input, a maximum uses the nearest element inside, which
/// every window over that position contains too; a sum uses 0.
#[cube]
pub(super) fn fetch<S: Float, N: Size>(
    input: &[Vector<S, N>],
    args: &TileArgs,
    problem: &ProblemArgs,
    place: &Place,
    block: u32,
    elements: &Registers<S, N>,
    #[comptime] form: Form,
) {
    let first = first_row(problem, block, form);
    // Most blocks are inside.
    if first >= 0 && first + comptime!(form.height.block as i32) <= args.input_height {
        let at = place.input + first as u32 * place.line;
        #[unroll]
        for j in 0..form.height.block {
            elements.index(j as usize).store(input[(at + j * place.line) as usize]);
        }
    } else if comptime!(form.tap.fold.is_extremum())
        || (first + comptime!(form.height.block as i32) > 0 && first < args.input_height)
    {
        #[unroll]
        for j in 0..form.height.block {
            let y = first + j as i32;
            let there = min(max(y, 0i32), args.input_height - 1);
            let element = input[(place.input + there as u32 * place.line) as usize];
            elements.index(j as usize).store(if comptime!(form.tap.fold.is_extremum()) {
                element
            } else {
                select(y == there, element, Vector::new(S::from_int(0)))
            });
        }
    } else {
        #[unroll]
        for j in 0..form.height.block {
            elements.index(j as usize).store(Vector::new(S::from_int(0)));
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
