//! The kernel: the position of a unit's elements, and how they are computed.

use cubecl::prelude::*;

use super::gradient::gradients_of;
use super::{ElementsArgs, Form, TAPS};
use crate::cube::convert::{round, widen_by};

#[cube(launch_unchecked)]
pub(super) fn stencil_of_elements<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    args: &ElementsArgs,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let position = if comptime!(form.line) {
        CUBE_POS_X * CUBE_DIM_X + UNIT_POS_X
    } else {
        ABSOLUTE_POS as u32
    };
    // Units past the last one compute its vector again, because all units of a warp take part in the vote.
    let vector = min(position, args.last_vector);
    let first = vector * form.lanes;
    let line = first / form.row;
    let (plane, at) = args.plane.div_mod(first);
    let row = (line - plane * args.rows as u32) as i32;
    let column = (first - line * form.row) as i32;
    let next = args.row - column;
    let again = if comptime!(form.sums.has_weights()) { args.row_again - column } else { next };
    let place = Position { vector: vector as i32, row, column, next, again };
    let inner = at - args.inner_first < args.inner_count;
    // The warp decides as a whole; otherwise it would run both paths.
    let inner = if comptime!(form.votes) { plane_all(inner) } else { inner };
    let results = if inner {
        compute::<S, A, N>(input, args, &place, true, form)
    } else {
        compute::<S, A, N>(input, args, &place, false, form)
    };
    output[vector as usize] = round::<A, S, N>(results, form.sums.rounds);
}

/// The position of a unit's elements: their vector, the row and the column of the first element, and the element at
/// which the next row begins, twice (see `ElementsArgs::row_again`).
#[derive(CubeType)]
pub(super) struct Position {
    vector: i32,
    pub(super) row: i32,
    column: i32,
    pub(super) next: i32,
    again: i32,
}

/// Computes a unit's elements. If `inner`, their rows have all their taps.
#[cube]
fn compute<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    args: &ElementsArgs,
    place: &Position,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let mut rows = Sequence::<Vector<A, N>>::new();
    // The mask shows the compiler that offsets from here stay within 32 bits, so that they can become part of the
    // access.
    let base = (place.vector + comptime!(form.first(0))) as u32 & 0x7fff_ffffu32;
    #[unroll]
    for t in 0..TAPS {
        #[unroll]
        for k in 0..form.vectors(t) {
            let vector = comptime!(form.first(t) + k as i32);
            let at = if comptime!(inner) {
                base as usize + comptime!((vector - form.first(0)) as usize)
            } else {
                inside(place.vector + vector, args, vector) as usize
            };
            let elements = widen_by::<S, A, N>(input[at], args.upper, form.sums.widened);
            rows.push(if comptime!(form.sums.gradient && !form.sums.counts) {
                elements * Vector::new(args.reciprocal.get::<A>())
            } else {
                elements
            });
        }
    }
    if comptime!(form.sums.has_weights()) {
        gradients_of::<A, N>(&rows, args, place, inner, form)
    } else {
        averages_of::<A, N>(&rows, args, place, inner, form)
    }
}

#[cube]
fn averages_of<A: Float, N: Size>(
    rows: &Sequence<Vector<A, N>>,
    args: &ElementsArgs,
    place: &Position,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let edges = edges_of::<A>(args, place, inner, form);
    let sums = columns_of::<A, N>(rows, &edges, inner, form);
    let mut pairs = Sequence::<A>::new();
    #[unroll]
    for j in 0..comptime!(form.reads() as usize - 1) {
        pairs.push(*sums.index(j) + *sums.index(comptime!(j + 1)));
    }
    let mut results = Vector::<A, N>::new(A::from_int(0));
    #[unroll]
    for i in 0..N::value() {
        let result = result_of::<A>(&sums, &pairs, args, place, &edges, i as u32, inner, form);
        results.insert(i, result);
    }
    results
}

/// The vector, clamped to those that exist. Only a vector before a unit's own can be before the first, and only one
/// after it can be after the last.
#[cube]
fn inside(vector: i32, args: &ElementsArgs, #[comptime] from_own: i32) -> i32 {
    let (before, behind) = comptime!((from_own < 0, from_own > 0));
    let vector = if comptime!(before) { max(vector, 0i32) } else { vector };
    if comptime!(behind) { min(vector, args.last_vector as i32) } else { vector }
}

/// The edges of the plane near a unit's elements.
#[derive(CubeType)]
struct Edges<A: Float> {
    /// One bit per column: whether the row above it, and the row below it, are in the plane.
    above: u32,
    below: u32,
    /// The reciprocal of the number of taps of a window on the unit's own row, and on the next row, if all its columns
    /// existed.
    own: A,
    next: A,
}

#[cube]
fn edges_of<A: Float>(
    args: &ElementsArgs,
    place: &Position,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Edges<A> {
    let all = args.reciprocal.get::<A>();
    if comptime!(inner) {
        Edges::<A> { above: 0u32, below: 0u32, own: all, next: all }
    } else {
        let own = place.row;
        let next = next_row(args, place);
        let last = args.rows - 1;
        // The columns of the next row. The first column is one ahead of the first element.
        let later = u32::MAX << min(place.next + 1, 31i32) as u32;
        let above = bits(later, own > 0, next > 0);
        let below = bits(later, own < last, next < last);
        if comptime!(form.sums.counts) {
            let (own, next) = (usual_on::<A>(args, own), usual_on::<A>(args, next));
            Edges::<A> { above, below, own, next }
        } else {
            Edges::<A> { above, below, own: all, next: all }
        }
    }
}

/// The row after a unit's own.
#[cube]
pub(super) fn next_row(args: &ElementsArgs, place: &Position) -> i32 {
    if place.row + 1 == args.rows { 0i32 } else { place.row + 1 }
}

/// Whether the windows on a row lack a row.
#[cube]
fn is_short(args: &ElementsArgs, row: i32) -> bool {
    row == 0 || row == args.rows - 1
}

/// The reciprocal of the number of taps of a window on a row, if all its columns existed.
#[cube]
fn usual_on<A: Float>(args: &ElementsArgs, row: i32) -> A {
    select(is_short(args, row), A::new(comptime!(1.0 / 6.0)), args.reciprocal.get::<A>())
}

/// The bits of the own row's columns if `own` is true, and of the next row's columns, `later`, if `next` is true.
#[cube]
fn bits(later: u32, own: bool, next: bool) -> u32 {
    select(own, !later, 0u32) | select(next, later, 0u32)
}

#[cube]
fn has_bit(bits: u32, #[comptime] j: u32) -> bool {
    bits & comptime!(1u32 << j) != 0
}

/// The sum of each column over those of its three rows that are in the plane, from the column before the first element
/// to the one after the last.
#[cube]
fn columns_of<A: Float, N: Size>(
    rows: &Sequence<Vector<A, N>>,
    edges: &Edges<A>,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Sequence<A> {
    let mut sums = Sequence::<A>::new();
    #[unroll]
    for j in 0..form.reads() {
        let mut sum = tap_of::<A, N>(rows, 1u32, j, form);
        #[unroll]
        for side in 0..2u32 {
            let t = comptime!(2 * side);
            let tap = tap_of::<A, N>(rows, t, j, form);
            let there = if comptime!(t == 0) { edges.above } else { edges.below };
            sum = if comptime!(inner) {
                sum + tap
            } else if comptime!(form.spares_registers()) {
                sum + select(has_bit(there, j), tap, A::from_int(0))
            } else {
                select(has_bit(there, j), sum + tap, sum)
            };
        }
        sums.push(sum);
    }
    sums
}

/// Column `j` in row `t` of the taps.
#[cube]
pub(super) fn tap_of<A: Float, N: Size>(
    rows: &Sequence<Vector<A, N>>,
    #[comptime] t: u32,
    #[comptime] j: u32,
    #[comptime] form: Form,
) -> A {
    let (vector, lane) = comptime!(form.place(t, j));
    rows.index(vector).extract(lane)
}

/// Whether element `p` of a unit is the first of its row.
#[cube]
pub(super) fn begins(place: &Position, #[comptime] p: i32) -> bool {
    if comptime!(p > 0) { next_at(place, p) } else { place.column == comptime!(-p) }
}

/// Whether element `p` of a unit is the last of its row.
#[cube]
pub(super) fn ends(place: &Position, #[comptime] p: i32) -> bool {
    next_at(place, comptime!(p + 1))
}

/// Whether the next row begins at element `p`. Even and odd elements use different copies of the number.
#[cube]
fn next_at(place: &Position, #[comptime] p: i32) -> bool {
    let next = if comptime!(p % 2 == 0) { place.next } else { place.again };
    next == p
}

/// The result of element `i`: the sum of its three columns, or of the two that are in the row, times its factor.
///
/// All sums that may be needed are computed: that costs less than selecting the terms.
#[cube]
fn result_of<A: Float>(
    sums: &Sequence<A>,
    pairs: &Sequence<A>,
    args: &ElementsArgs,
    place: &Position,
    edges: &Edges<A>,
    #[comptime] i: u32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> A {
    let p = comptime!(i as i32);
    let before = *pairs.index(comptime!(i as usize));
    let behind = *pairs.index(comptime!(i as usize + 1));
    let all = before + *sums.index(comptime!(i as usize + 2));
    let own = factors::<A>(args, place, edges, false, inner, form);
    let next = factors::<A>(args, place, edges, true, inner, form);
    let usual = if comptime!(inner || !form.sums.counts) {
        own.usual
    } else {
        select(place.next <= p, next.usual, own.usual)
    };
    let first = if comptime!(i > 0) { next.edge } else { own.edge };
    if comptime!(!inner && form.spares_registers()) {
        let (begins, ends) = (begins(place, p), ends(place, p));
        let none = A::from_int(0);
        let before = select(begins, none, *sums.index(comptime!(i as usize)));
        let behind = select(ends, none, *sums.index(comptime!(i as usize + 2)));
        let sum = before + *sums.index(comptime!(i as usize + 1)) + behind;
        sum * select(begins, first, select(ends, own.edge, usual))
    } else {
        let result = select(ends(place, p), before * own.edge, all * usual);
        select(begins(place, p), behind * first, result)
    }
}

/// The reciprocal of the number of taps inside the plane of a row's windows: away from the row's first and last column,
/// and in these.
#[derive(CubeType)]
struct Factors<A: Float> {
    usual: A,
    edge: A,
}

/// The factors for a unit's own row, or for the `next`.
#[cube]
fn factors<A: Float>(
    args: &ElementsArgs,
    place: &Position,
    edges: &Edges<A>,
    #[comptime] next: bool,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Factors<A> {
    let all = args.reciprocal.get::<A>();
    if comptime!(form.sums.gradient && !form.sums.counts) {
        Factors::<A> { usual: A::from_int(1), edge: A::from_int(1) }
    } else if comptime!(!form.sums.counts) {
        Factors::<A> { usual: all, edge: all }
    } else {
        let six = A::new(comptime!(1.0 / 6.0));
        if comptime!(inner) {
            Factors::<A> { usual: all, edge: six }
        } else {
            let (row, usual) = if comptime!(next) {
                (next_row(args, place), edges.next)
            } else {
                (place.row, edges.own)
            };
            Factors::<A> { usual, edge: select(is_short(args, row), A::new(0.25), six) }
        }
    }
}
