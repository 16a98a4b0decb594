//! The kernel: where a unit's elements are, and what becomes of them.

use cubecl::prelude::*;

use super::{FlatArgs, Form, TAPS};
use crate::dtype::{round, widen};

/// `S` is how elements are stored, `A` how they are summed.
#[cube(launch_unchecked)]
pub(super) fn flat<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    args: &FlatArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    // Units past the last compute its vector again: of a warp all are asked.
    let vector = min(ABSOLUTE_POS as u32, args.vectors - 1);
    let (line, column) = args.width.div_mod(vector * form.lanes);
    let (_, row) = args.height.div_mod(line);
    let (row, column) = (row as i32, column as i32);
    let next = args.columns - column;
    let place = Place { vector: vector as i32, row, column, next };
    let reach = comptime!(form.reach());
    let inner = row >= reach
        && row + comptime!(reach + 2) <= args.rows
        && place.vector * comptime!(form.lanes as i32) > args.columns;
    // Not one by one: a warp would run both.
    let inner = if comptime!(form.votes) { plane_all(inner) } else { inner };
    if inner {
        run::<S, A, N>(input, output, args, &place, true, form);
    } else {
        run::<S, A, N>(input, output, args, &place, false, form);
    }
}

/// Where a unit's elements are: their vector, the row and the column of the first element, and the element
/// at which the next row begins.
#[derive(CubeType)]
struct Place {
    vector: i32,
    row: i32,
    column: i32,
    next: i32,
}

/// Computes a unit's elements, whose rows have all their taps if they are `inner`.
#[cube]
fn run<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    args: &FlatArgs,
    place: &Place,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) {
    let mut rows = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for t in 0..TAPS {
        #[unroll]
        for k in 0..form.vectors(t) {
            let beside = comptime!(form.first(t) + k as i32);
            let at = place.vector + comptime!(t as i32 - 1) * args.row_vectors + beside;
            let at =
                if comptime!(inner) { at } else { min(max(at, 0i32), args.vectors as i32 - 1) };
            rows.push(widen::<S, A, N>(input[at as usize], form.widened));
        }
    }
    let edges = edges_of(args, place, inner, form);
    let sums = columns_of::<A, N>(&rows, args, &edges, inner, form);
    let mut results = Vector::<A, N>::new(A::from_int(0));
    #[unroll]
    for i in 0..N::value() {
        results.insert(i, result_of::<A>(&sums, args, place, &edges, i as u32, inner, form));
    }
    output[place.vector as usize] = round::<A, S, N>(results, form.rounds);
}

/// A bit for each column: whether the rows above and below it are the plane's, and for each of its three rows
/// whether the windows there lack one.
#[derive(CubeType)]
struct Edges {
    above: u32,
    below: u32,
    short: Sequence<u32>,
}

#[cube]
fn edges_of(
    args: &FlatArgs,
    place: &Place,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Edges {
    let mut short = Sequence::<u32>::new();
    if comptime!(inner) {
        Edges { above: 0u32, below: 0u32, short }
    } else {
        let own = place.row;
        let next = if own + 1 == args.rows { 0i32 } else { own + 1 };
        let last = args.rows - 1;
        // The columns of the next row: the first column is one ahead.
        let later = u32::MAX << min(place.next + 1, 31i32) as u32;
        if comptime!(form.divides_each()) {
            #[unroll]
            for t in 0..TAPS {
                let beside = comptime!(t as i32 - 1);
                let (own, next) = (own + beside, next + beside);
                let (own, next) = (own == 0 || own == last, next == 0 || next == last);
                short.push(bits(later, own, next));
            }
        }
        let above = bits(later, own > 0, next > 0);
        Edges { above, below: bits(later, own < last, next < last), short }
    }
}

/// The bits of the row's own columns and of the next one's, which are `later`, where these are to be set.
#[cube]
fn bits(later: u32, own: bool, next: bool) -> u32 {
    select(own, !later, 0u32) | select(next, later, 0u32)
}

#[cube]
fn has_bit(bits: u32, #[comptime] j: u32) -> bool {
    bits & comptime!(1u32 << j) != 0
}

/// The sum of each column over its three rows, from the one before the first element to the one behind the
/// last; of a gradient, of the shares of the windows there, but for what their columns make of them.
#[cube]
fn columns_of<A: Float, N: Size>(
    rows: &Sequence<Vector<A, N>>,
    args: &FlatArgs,
    edges: &Edges,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Sequence<A> {
    let zero = A::from_int(0);
    let mut sums = Sequence::<A>::new();
    #[unroll]
    for j in 0..form.columns() {
        let mut taps = Sequence::<A>::new();
        #[unroll]
        for t in 0..TAPS {
            let (vector, lane) = comptime!(form.place(t, j));
            let tap = rows.index(vector).extract(lane);
            taps.push(if comptime!(inner || t == 1) {
                tap
            } else {
                let there = if comptime!(t == 0) { edges.above } else { edges.below };
                select(has_bit(there, j), tap, zero)
            });
        }
        if comptime!(form.gradient) {
            let sum = *taps.index(1usize) * share_of::<A>(args, edges, 1u32, j, inner, form);
            let share = share_of::<A>(args, edges, 0u32, j, inner, form);
            let sum = fma(*taps.index(0usize), share, sum);
            let share = share_of::<A>(args, edges, 2u32, j, inner, form);
            sums.push(fma(*taps.index(2usize), share, sum));
        } else {
            sums.push(*taps.index(0usize) + *taps.index(1usize) + *taps.index(2usize));
        }
    }
    sums
}

/// What the gradient of the window on row `t` of column `j` is multiplied by, were all its columns there.
#[cube]
fn share_of<A: Float>(
    args: &FlatArgs,
    edges: &Edges,
    #[comptime] t: u32,
    #[comptime] j: u32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> A {
    let all = args.reciprocal.get::<A>();
    if comptime!(inner || !form.divides_each()) {
        all
    } else {
        let short = has_bit(*edges.short.index(t as usize), j);
        select(short, A::new(comptime!(1.0 / 6.0)), all)
    }
}

/// Whether element `p` of a unit is the first of its row, and whether it is the last.
#[cube]
fn begins(place: &Place, #[comptime] p: i32) -> bool {
    if comptime!(p > 0) { place.next == p } else { place.column == comptime!(-p) }
}

#[cube]
fn ends(place: &Place, #[comptime] p: i32) -> bool {
    place.next == comptime!(p + 1)
}

/// The result of element `i`: its three columns, but those outside the row, and what divides them.
#[cube]
fn result_of<A: Float>(
    sums: &Sequence<A>,
    args: &FlatArgs,
    place: &Place,
    edges: &Edges,
    #[comptime] i: u32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> A {
    let zero = A::from_int(0);
    let p = comptime!(i as i32);
    let before = select(begins(place, p), zero, *sums.index(comptime!(i as usize)));
    let own = *sums.index(comptime!(i as usize + 1));
    let behind = select(ends(place, p), zero, *sums.index(comptime!(i as usize + 2)));
    if comptime!(!form.gradient) {
        (before + own + behind) * factor_of::<A>(args, place, edges, p, inner, form)
    } else if comptime!(form.divides_each()) {
        let sum = behind * column_share::<A>(place, comptime!(p + 1));
        let sum = fma(before, column_share::<A>(place, comptime!(p - 1)), sum);
        fma(own, column_share::<A>(place, p), sum)
    } else {
        before + own + behind
    }
}

/// What the sum of element `p` is multiplied by: one over the taps of its window that are inside.
#[cube]
fn factor_of<A: Float>(
    args: &FlatArgs,
    place: &Place,
    edges: &Edges,
    #[comptime] p: i32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> A {
    let all = args.reciprocal.get::<A>();
    if comptime!(!form.divides_each()) {
        all
    } else {
        let six = A::new(comptime!(1.0 / 6.0));
        let edge = begins(place, p) || ends(place, p);
        if comptime!(inner) {
            select(edge, six, all)
        } else {
            let short = has_bit(*edges.short.index(1usize), comptime!((p + 1) as u32));
            select(short, select(edge, A::new(0.25), six), select(edge, six, all))
        }
    }
}

/// What the shares of the windows at element `p` are multiplied by: more, where these have less columns.
#[cube]
fn column_share<A: Float>(place: &Place, #[comptime] p: i32) -> A {
    select(begins(place, p) || ends(place, p), A::new(1.5), A::from_int(1))
}
