//! The gradient of averages that are divided by the number of their taps inside the input: each element adds the shares
//! of the windows that read it.
//!
//! On the first and last row of a plane a window has two rows instead of three, and in the first and last column two
//! columns. Shares are divided before they are added or weighted, so that large values do not overflow.

use cubecl::prelude::*;

use super::kernel::{Position, begins, ends, next_row, tap_of};
use super::{ElementsArgs, Form};

/// The gradients of a unit's elements, from the windows in `rows`.
///
/// Whether a row begins at an element is tested once for everything that depends on it: the weights of the columns on
/// either side, and the neighbour that each of them lacks.
#[cube]
pub(super) fn gradients_of<A: Float, N: Size>(
    rows: &Sequence<Vector<A, N>>,
    args: &ElementsArgs,
    place: &Position,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let edges = edges_of::<A>(args, place);
    let mut sums = Sequence::<A>::new();
    #[unroll]
    for j in 0..form.reads() {
        let sum = column_of::<A, N>(rows, place, &edges, j, inner, form);
        sums.push(raised::<A>(place, sum, j, form));
    }
    let mut results = Vector::<A, N>::new(A::from_int(0));
    #[unroll]
    for i in 0..N::value() {
        results.insert(i, result_of::<A>(&sums, place, i as u32));
    }
    results
}

/// The contribution of column `j` to a neighbouring element, if every window had three columns.
#[cube]
fn column_of<A: Float, N: Size>(
    rows: &Sequence<Vector<A, N>>,
    place: &Position,
    edges: &Edges<A>,
    #[comptime] j: u32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> A {
    let above = tap_of::<A, N>(rows, 0u32, j, form);
    let at = tap_of::<A, N>(rows, 1u32, j, form);
    let below = tap_of::<A, N>(rows, 2u32, j, form);
    let usual = A::new(comptime!(1.0 / 9.0));
    if comptime!(inner) {
        fma(below, usual, fma(above, usual, at * usual))
    } else {
        let (own, next) = (&edges.own, &edges.next);
        // The first column is one ahead of the elements, and the first element is on the unit's own row.
        let is_next =
            if comptime!(j > 1) { place.next < comptime!(j as i32) } else { false.runtime() };
        let sum = at * usual;
        let sum = beside::<A>(sum, at, above, select(is_next, next.above, own.above));
        beside::<A>(sum, at, below, select(is_next, next.below, own.below))
    }
}

/// The contribution of column `j`: larger by half if a row begins or ends at it, because its windows have two columns.
#[cube]
fn raised<A: Float>(place: &Position, sum: A, #[comptime] j: u32, #[comptime] form: Form) -> A {
    let p = comptime!(j as i32 - 1);
    let first = if comptime!(p < form.lanes as i32) {
        select(begins(place, p), sum * A::new(1.5), sum)
    } else {
        sum
    };
    if comptime!(p >= 0) { select(ends(place, p), first * A::new(1.5), first) } else { first }
}

/// The sum of those of element `i`'s three columns that are in its row.
#[cube]
fn result_of<A: Float>(sums: &Sequence<A>, place: &Position, #[comptime] i: u32) -> A {
    let p = comptime!(i as i32);
    let (before, at, behind) = comptime!((i as usize, i as usize + 1, i as usize + 2));
    let result = *sums.index(at);
    let result = select(begins(place, p), result, result + *sums.index(before));
    select(ends(place, p), result, result + *sums.index(behind))
}

/// The factors for the windows above and below a row, if all their columns existed. If there are none on one side, the
/// row's own window lacks a row there; the factor is then the amount by which that window's share is larger.
#[derive(CubeType)]
struct Beside<A: Float> {
    above: A,
    below: A,
}

/// The factors for a unit's own row and for the next one.
#[derive(CubeType)]
struct Edges<A: Float> {
    own: Beside<A>,
    next: Beside<A>,
}

#[cube]
fn edges_of<A: Float>(args: &ElementsArgs, place: &Position) -> Edges<A> {
    let (usual, more) = (A::new(comptime!(1.0 / 9.0)), A::new(comptime!(1.0 / 6.0)));
    let itself = A::new(comptime!(1.0 / 18.0));
    let row = place.row;
    let is_first = row == 0;
    let is_last = row + 1 == args.rows;
    let is_before_last = row + 2 == args.rows;
    let next = next_row(args, place);
    let own = Beside::<A> {
        above: select(is_first, itself, select(row == 1, more, usual)),
        below: select(is_last, itself, select(is_before_last, more, usual)),
    };
    let next = Beside::<A> {
        above: select(is_last, itself, select(is_first, more, usual)),
        below: select(is_before_last, itself, select(next + 2 == args.rows, more, usual)),
    };
    Edges::<A> { own, next }
}

/// Adds the window above or below the one `at` an element, or a further share of that one.
#[cube]
fn beside<A: Float>(sum: A, at: A, tap: A, by: A) -> A {
    let is_itself = by < A::new(comptime!(1.0 / 12.0));
    fma(select(is_itself, at, tap), by, sum)
}
