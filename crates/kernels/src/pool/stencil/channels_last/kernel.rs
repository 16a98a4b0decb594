//! The kernel: the position of a unit's rows, and how they are loaded, summed and written.

use cubecl::prelude::*;

use super::{AHEAD, Form, RowsArgs};
use crate::cube::convert::{round, widen, widen_kept};
use crate::cube::registers::{Registers, zeros};
use crate::pool::common::own_column;

#[cube(launch_unchecked)]
pub(super) fn stencil_of_rows<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    args: &RowsArgs,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let unit = ABSOLUTE_POS as u32;
    if unit >= args.units {
        terminate!();
    }
    let place = place_of(args, unit, form);
    let state = State::<S, A, N> {
        factors: factors_of::<A>(args, &place, form),
        loading: zeros::<S, N>(comptime!(AHEAD * form.reads())),
        two: zeros::<A, N>(form.columns),
        last: zeros::<A, N>(form.columns),
    };
    begin::<S, A, N>(input, args, &place, &state, form);

    // The last row at which a group may start so that it has no row at the plane's edge and none past the unit's last.
    let last = min(place.end - comptime!(AHEAD as i32), args.rows - 1 - form.below());
    let row = RuntimeCell::<i32>::new(place.row);
    while row.read() < place.end {
        rows::<S, A, N>(input, output, args, &place, &state, &row, false, form);
        // In a loop of its own: with two branches in one loop, what they share would be kept in registers.
        while row.read() <= last {
            rows::<S, A, N>(input, output, args, &place, &state, &row, true, form);
        }
    }
}

/// The position of a unit's rows.
#[derive(CubeType)]
struct Position {
    /// The first row, and the one after the last.
    row: i32,
    end: i32,
    /// The first column, and the first of the columns that belong to this unit only.
    column: i32,
    first_own: u32,
    /// Whether there is a column before the first, and one after the last.
    left: bool,
    right: bool,
    /// The vector of the first column on the plane's first row.
    vector: u32,
}

#[cube]
fn place_of(args: &RowsArgs, unit: u32, #[comptime] form: Form) -> Position {
    let (pixel, lane) = (unit / form.pixel, unit % form.pixel);
    let (rest, block) = args.blocks.div_mod(pixel);
    let (plane, strip) = args.strips.div_mod(rest);
    let columns = comptime!(form.columns as i32);
    // The last block has two columns like the others; the first of them may belong to the block before it too.
    let first = block as i32 * columns;
    let column = min(first, args.columns - columns);
    let row = (strip * args.strip) as i32;
    Position {
        row,
        end: min(row + args.strip as i32, args.rows),
        column,
        first_own: (first - column) as u32,
        left: column > 0,
        right: column + columns < args.columns,
        vector: plane * args.rows as u32 * args.line + column as u32 * form.pixel + lane,
    }
}

/// What a unit holds from one row to the next.
#[derive(CubeType)]
struct State<S: Float, A: Float, N: Size> {
    factors: Factors<A>,
    /// The rows that are being loaded.
    loading: Registers<S, N>,
    /// The sums of the columns over the last row, and over it and the row before.
    last: Registers<A, N>,
    two: Registers<A, N>,
}

/// The factors of sums for the first column, for those between, and for the last: away from the plane's first and last
/// rows (`inner`), and on these (`edge`).
#[derive(CubeType)]
struct Factors<A: Float> {
    inner: Sequence<A>,
    edge: Sequence<A>,
    /// The factor of each column of a gradient. It is applied before the addition, so that large values do not
    /// overflow.
    shares: Sequence<A>,
}

#[cube]
fn factors_of<A: Float>(args: &RowsArgs, place: &Position, #[comptime] form: Form) -> Factors<A> {
    let all = args.reciprocal.get::<A>();
    let (six, four) = (A::new(comptime!(1.0 / 6.0)), A::new(0.25));
    let mut inner = Sequence::<A>::new();
    let mut edge = Sequence::<A>::new();
    let mut shares = Sequence::<A>::new();
    if comptime!(form.sums.counts && !form.sums.gradient) {
        inner.push(select(place.left, all, six));
        inner.push(all);
        inner.push(select(place.right, all, six));
        edge.push(select(place.left, six, four));
        edge.push(six);
        edge.push(select(place.right, six, four));
    }
    if comptime!(form.sums.gradient) {
        #[unroll]
        for j in 0..form.reads() {
            shares.push(if comptime!(form.sums.has_weights()) {
                let x = place.column + comptime!(j as i32 - 1);
                let ends = x == 0 || x + 1 == args.columns;
                select(ends, six, A::new(comptime!(1.0 / 9.0)))
            } else {
                all
            });
        }
    }
    Factors::<A> { inner, edge, shares }
}

/// The factor for the sum of column `v` on a row; `ends` is whether this is the plane's first or last row.
#[cube]
fn factor_of<A: Float>(
    args: &RowsArgs,
    factors: &Factors<A>,
    ends: bool,
    #[comptime] v: u32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> A {
    if comptime!(form.sums.counts && !form.sums.gradient) {
        let at = comptime!(usize::from(v > 0) + usize::from(v > 0 && v + 1 == form.columns));
        if comptime!(inner) {
            *factors.inner.index(at)
        } else {
            select(ends, *factors.edge.index(at), *factors.inner.index(at))
        }
    } else {
        args.reciprocal.get::<A>()
    }
}

/// Computes the sums over the row above a unit's first and over that row, and starts loading the next rows.
#[cube]
fn begin<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    args: &RowsArgs,
    place: &Position,
    state: &State<S, A, N>,
    #[comptime] form: Form,
) {
    let above = zeros::<S, N>(form.reads());
    let own = zeros::<S, N>(form.reads());
    fetch::<S, N>(input, args, place, max(place.row - 1, 0i32), &above, 0u32, form);
    fetch::<S, N>(input, args, place, place.row, &own, 0u32, form);
    #[unroll]
    for g in 0..AHEAD {
        let next = place.row + comptime!(g as i32 + 1);
        if next <= place.end && next < args.rows {
            fetch::<S, N>(input, args, place, next, &state.loading, g, form);
        }
    }
    let above = row_of::<S, A, N>(&above, 0u32, place, &state.factors, form);
    let own = row_of::<S, A, N>(&own, 0u32, place, &state.factors, form);
    let ends = place.row == 0 || place.row + 1 == args.rows;
    #[unroll]
    for v in 0..form.columns as usize {
        let none = Vector::<A, N>::new(A::from_int(0));
        let above = weighted::<A, N>(*above.index(v), place.row == 1, form);
        let above = select(place.row > 0, above, none);
        let own = weighted::<A, N>(*own.index(v), ends, form);
        state.two.index(v).store(above + own);
        state.last.index(v).store(own);
    }
}

/// Starts loading a row. Registers of columns outside the plane keep their values.
#[cube]
fn fetch<S: Float, N: Size>(
    input: &[Vector<S, N>],
    args: &RowsArgs,
    place: &Position,
    row: i32,
    loading: &Registers<S, N>,
    #[comptime] g: u32,
    #[comptime] form: Form,
) {
    let first = on_row(args, place, row);
    #[unroll]
    for j in 0..form.reads() {
        let at = first + comptime!((j * form.pixel) as usize) - comptime!(form.pixel as usize);
        let register = loading.index(comptime!((g * form.reads() + j) as usize));
        if comptime!(j == 0) {
            if place.left {
                register.store(input[at]);
            }
        } else if comptime!(j == form.columns + 1) {
            if place.right {
                register.store(input[at]);
            }
        } else {
            register.store(input[at]);
        }
    }
}

/// The vector of a unit's first column on a row.
#[cube]
fn on_row(args: &RowsArgs, place: &Position, row: i32) -> usize {
    // The mask shows the compiler that offsets from here stay within 32 bits, so that they can become part of the
    // access.
    ((place.vector + row as u32 * args.line) & 0x7fff_ffffu32) as usize
}

/// The sums on a loaded row: of each column and those of its two neighbours that exist.
#[cube]
fn row_of<S: Float, A: Float, N: Size>(
    loading: &Registers<S, N>,
    #[comptime] g: u32,
    place: &Position,
    factors: &Factors<A>,
    #[comptime] form: Form,
) -> Sequence<Vector<A, N>> {
    let mut columns = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for j in 0..form.reads() {
        let elements = loading.index(comptime!((g * form.reads() + j) as usize)).read();
        columns.push(if comptime!(j == 0) {
            widen_kept::<S, A, N>(elements, place.left, form.sums.widened)
        } else if comptime!(j == form.columns + 1) {
            widen_kept::<S, A, N>(elements, place.right, form.sums.widened)
        } else {
            widen::<S, A, N>(elements, form.sums.widened)
        });
    }
    let mut sums = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for pair in 0..comptime!(form.columns.div_ceil(2)) {
        let v = comptime!(2 * pair);
        // The part that two neighbours share is summed once.
        let both = share_of::<A, N>(&columns, factors, comptime!(v + 2), form);
        let both = added::<A, N>(both, &columns, factors, comptime!(v + 1), form);
        sums.push(added::<A, N>(both, &columns, factors, v, form));
        if comptime!(v + 1 < form.columns) {
            sums.push(added::<A, N>(both, &columns, factors, comptime!(v + 3), form));
        }
    }
    sums
}

/// Column `j`, or its share of a gradient.
#[cube]
fn share_of<A: Float, N: Size>(
    columns: &Sequence<Vector<A, N>>,
    factors: &Factors<A>,
    #[comptime] j: u32,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let column = *columns.index(j as usize);
    if comptime!(form.sums.gradient) {
        column * Vector::new(*factors.shares.index(j as usize))
    } else {
        column
    }
}

/// A sum plus column `j`, or plus its share of a gradient.
#[cube]
fn added<A: Float, N: Size>(
    sum: Vector<A, N>,
    columns: &Sequence<Vector<A, N>>,
    factors: &Factors<A>,
    #[comptime] j: u32,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let column = *columns.index(j as usize);
    if comptime!(form.sums.gradient) {
        fma(column, Vector::new(*factors.shares.index(j as usize)), sum)
    } else {
        sum + column
    }
}

/// A row of a gradient's shares; they are larger on the plane's first and last rows.
#[cube]
fn weighted<A: Float, N: Size>(
    sum: Vector<A, N>,
    ends: bool,
    #[comptime] form: Form,
) -> Vector<A, N> {
    if comptime!(form.sums.has_weights()) {
        select(ends, sum * Vector::new(A::new(1.5)), sum)
    } else {
        sum
    }
}

/// Writes a group of rows, and starts loading those of the next group. In an `inner` group all rows exist, none of them
/// is the plane's first or last, and none of the rows that it reads has to be weighted.
#[cube]
fn rows<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    args: &RowsArgs,
    place: &Position,
    state: &State<S, A, N>,
    first: &RuntimeCell<i32>,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) {
    #[unroll]
    for g in 0..AHEAD {
        let row = first.read() + comptime!(g as i32);
        let (below, next) = (row + 1, row + comptime!(AHEAD as i32 + 1));
        let loaded = row_of::<S, A, N>(&state.loading, g, place, &state.factors, form);
        if next <= place.end && next < args.rows {
            fetch::<S, N>(input, args, place, next, &state.loading, g, form);
        }
        let ends = row == 0 || below == args.rows;
        let at = on_row(args, place, row);
        #[unroll]
        for v in 0..form.columns {
            let sum = *loaded.index(v as usize);
            let sum = if comptime!(inner) {
                sum
            } else {
                let none = Vector::<A, N>::new(A::from_int(0));
                let there = select(below < args.rows, sum, none);
                weighted::<A, N>(there, below + 1 == args.rows, form)
            };
            let (two, last) = (state.two.index(v as usize), state.last.index(v as usize));
            let three = two.read() + sum;
            two.store(last.read() + sum);
            last.store(sum);
            let result = if comptime!(form.sums.gradient) {
                three
            } else {
                three * Vector::new(factor_of::<A>(args, &state.factors, ends, v, inner, form))
            };
            let result = round::<A, S, N>(result, form.sums.rounds);
            let at = at + (own_column(v, place.first_own, form.columns) * form.pixel) as usize;
            let there = if comptime!(inner) { true.runtime() } else { row < place.end };
            if there {
                output[at] = result;
            }
        }
    }
    first.store(first.read() + comptime!(AHEAD as i32));
}
