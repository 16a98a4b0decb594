//! A unit's column, walked block by block in registers; and the windows of a block, for columns and rows alike.

use cubecl::prelude::*;

use super::form::Blocking;
use super::kernel::ColumnPosition;
use super::{Form, TileArgs};
use crate::cube::convert::widen_by;
use crate::cube::registers::{Registers, read, zeros};
use crate::pool::common::window::{Fold, ProblemArgs, WindowForm, combine, counted_at, prefixes};

impl Blocking {
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
pub(super) struct Divisors<A: Float, N: Size> {
    /// The part of the divisor that is the column's.
    columns: Vector<A, N>,
    /// The factor for elements on rows where the height's part is the whole window.
    usual: Vector<A, N>,
}

/// The divisors of the column at `x`; of several neighbouring columns, if lanes lie along the width.
#[cube]
pub(super) fn divisors_of<A: Float, N: Size>(
    args: &TileArgs,
    x: u32,
    #[comptime] form: Form,
) -> Divisors<A, N> {
    let mut columns = Vector::<A, N>::new(A::from_int(1));
    let mut usual = Vector::<A, N>::new(A::from_int(1));
    if comptime!(form.divisors.is_some()) {
        let [_, width] = comptime!(form.divisors.unwrap());
        #[unroll]
        for i in 0..N::value() {
            let x = if comptime!(form.one_channel) { x + i as u32 } else { x };
            let taps = counted_at(&args.divisors_width, x, width, Fold::AverageValid);
            columns.insert(i, A::cast_from(taps));
            usual.insert(i, A::from_int(1) / A::cast_from(taps * args.divisors_height.kernel));
        }
    }
    Divisors::<A, N> { columns, usual }
}

/// The part of the divisor that is a row's. Rows outside have the nearest row's.
#[cube]
fn row_divisor(args: &TileArgs, y: i32, #[comptime] form: Form) -> i32 {
    let [height, _] = comptime!(form.divisors.unwrap());
    let y = min(max(y, 0i32), args.input_height - 1) as u32;
    counted_at(&args.divisors_height, y, height, Fold::AverageValid)
}

/// The elements of a block, converted to the type in which they are reduced, and divided by their divisors if they have
/// any.
#[cube]
pub(super) fn widened<S: Float, A: Float, N: Size>(
    cells: &Registers<S, N>,
    args: &TileArgs,
    divisors: &Divisors<A, N>,
    block: u32,
    #[comptime] form: Form,
) -> Sequence<Vector<A, N>> {
    let mut values = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for i in 0..cells.len() {
        values.push(widen_by::<S, A, N>(cells.index(i).read(), args.upper, form.window.widened));
    }
    if comptime!(form.divisors.is_none()) {
        values
    } else {
        let first = first_row(&args.problem, block, form);
        let last = first + comptime!(form.height.block as i32 - 1);
        let all = args.divisors_height.kernel;
        let whole = row_divisor(args, first, form) == all && row_divisor(args, last, form) == all;
        let divided = zeros::<A, N>(form.height.block);
        if comptime!(form.window.reciprocal) && whole {
            #[unroll]
            for i in 0..values.len() {
                divided.index(i).store(*values.index(i) * divisors.usual);
            }
        } else {
            #[unroll]
            for i in 0..values.len() {
                let rows = A::cast_from(row_divisor(args, first + i as i32, form));
                divided.index(i).store(*values.index(i) / (divisors.columns * Vector::new(rows)));
            }
        }
        read::<A, N>(&divided)
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
    place: &ColumnPosition,
    block: u32,
    elements: &Registers<S, N>,
    #[comptime] form: Form,
) {
    let first = first_row(&args.problem, block, form);
    // Most blocks are inside.
    if first >= 0 && first + comptime!(form.height.block as i32) <= args.input_height {
        let at = place.input + first as u32 * place.line;
        #[unroll]
        for j in 0..form.height.block {
            elements.index(j as usize).store(input[(at + j * place.line) as usize]);
        }
    } else if comptime!(form.window.fold.is_extremum())
        || (first + comptime!(form.height.block as i32) > 0 && first < args.input_height)
    {
        #[unroll]
        for j in 0..form.height.block {
            let y = first + j as i32;
            let there = min(max(y, 0i32), args.input_height - 1);
            let element = input[(place.input + there as u32 * place.line) as usize];
            elements.index(j as usize).store(if comptime!(form.window.fold.is_extremum()) {
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
    #[comptime] blocking: Blocking,
    #[comptime] form: WindowForm,
) -> Sequence<Vector<A, N>> {
    let middles = prefixes::<A, N>(whole, blocking.whole, form);
    let all = comptime!((blocking.whole - 1) as usize);
    let mut sums = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for n in 0..comptime!(blocking.block - blocking.shorter()) {
        let start = comptime!((blocking.phase + blocking.last() - n) as usize);
        let sum = if comptime!(n == 0) {
            *middles.index(all)
        } else {
            *sums.index(comptime!(n as usize - 1))
        };
        sums.push(if comptime!(start == blocking.block as usize) {
            sum
        } else {
            combine::<A, N>(sum, *first.index(start), form)
        });
    }
    let mut short = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for n in 0..blocking.ending() {
        let element = *first.index(comptime!((blocking.last() - n) as usize));
        short.push(if comptime!(n > 0) {
            combine::<A, N>(*short.index(comptime!(n as usize - 1)), element, form)
        } else if comptime!(all > 0) {
            combine::<A, N>(*middles.index(comptime!(all.max(1) - 1)), element, form)
        } else {
            element
        });
    }
    let mut windows = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for i in 0..blocking.block {
        let to = comptime!(i + blocking.rest);
        let n = comptime!((blocking.last() - i) as usize);
        windows.push(if comptime!(to < blocking.last()) {
            combine::<A, N>(*short.index(n), *ending.index(to as usize), form)
        } else if comptime!(to == blocking.last()) {
            *sums.index(n)
        } else {
            let prefix = *beyond.index(comptime!((to - blocking.block) as usize));
            combine::<A, N>(*sums.index(n), prefix, form)
        });
    }
    windows
}
