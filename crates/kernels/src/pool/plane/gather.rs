//! The windows of a unit, for gradients whose windows have few taps. The factor of a share is then found by comparison,
//! as the product of a factor of its column and one of its row.
//!
//! The code departs from that of `rows` in two ways, so it is separate. First, the rows of a window are added from top
//! to bottom, whereas `rows` adds the part that two windows share once, which is another order of summation. Second, a
//! segment ends with a run like all others, whose rows past the end are computed but not written, whereas `rows`
//! continues row by row.

use cubecl::prelude::*;

use super::kernel::Place;
use super::rows::is_inner;
use super::{Cells, Form, One, PlaneArgs};
use crate::cube::convert::round;
use crate::pool::common::window::{ProblemArgs, counted_at};

/// Computes the rows of a unit's inputs from `row` to `end`.
#[cube]
pub(super) fn gather_segment<S: Float, A: Float>(
    shared: &mut Shared<[Vector<S, One>]>,
    problem: &ProblemArgs,
    args: &PlaneArgs,
    place: &Place<A>,
    row: u32,
    end: u32,
    #[comptime] form: Form,
) {
    let mut kept = Sequence::<RuntimeCell<Vector<A, One>>>::new();
    let top = row as i32 - args.height.before;
    #[unroll]
    for t in 0..form.shared_rows() {
        let sums = gather_row::<S, A>(shared, problem, args, place, top + t as i32, false, form);
        #[unroll]
        for v in 0..form.columns {
            kept.push(RuntimeCell::new(*sums.index(v as usize)));
        }
    }
    let mut o = row;
    while o < end {
        if o + form.run <= end && is_inner(args, o, form) {
            gather_run::<S, A>(shared, problem, args, place, o, end, &kept, true, form);
        } else {
            gather_run::<S, A>(shared, problem, args, place, o, end, &kept, false, form);
        }
        o += form.run;
    }
}

/// Computes a run of a unit's rows of a gradient from row `o` up to row `end`. If `inner`, the run's windows exist and
/// have all their rows.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn gather_run<S: Float, A: Float>(
    shared: &mut Shared<[Vector<S, One>]>,
    problem: &ProblemArgs,
    args: &PlaneArgs,
    place: &Place<A>,
    o: u32,
    end: u32,
    kept: &Cells<A>,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) {
    let columns = comptime!(form.columns as usize);
    let mut rows = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for i in 0..kept.len() {
        rows.push(kept.index(i).read());
    }
    let top = o as i32 - args.height.before + comptime!(form.shared_rows() as i32);
    #[unroll]
    for i in 0..form.run {
        let sums = gather_row::<S, A>(shared, problem, args, place, top + i as i32, inner, form);
        #[unroll]
        for v in 0..columns {
            rows.push(*sums.index(v));
        }
    }
    #[unroll]
    for i in 0..form.run {
        if inner || o + i < end {
            #[unroll]
            for v in 0..columns {
                let mut sum = *rows.index(comptime!(form.row(i, 0) * columns + v));
                #[unroll]
                for t in 1..form.kernel[1] {
                    sum += *rows.index(comptime!(form.row(i, t) * columns + v));
                }
                let at = comptime!(form.place()) & (place.output + (o + i) * args.width.output);
                shared[at as usize + place.written(v, form)] =
                    round::<A, S, One>(sum, form.tap.rounds);
            }
        }
    }
    #[unroll]
    for i in 0..kept.len() {
        kept.index(i).store(*rows.index(comptime!(form.row(form.run, 0) * columns + i)));
    }
}

/// For each of a unit's columns, the sum of the shares from row `y` of windows. If `inner`, these exist and have all
/// their rows.
#[cube]
fn gather_row<S: Float, A: Float>(
    shared: &mut Shared<[Vector<S, One>]>,
    problem: &ProblemArgs,
    args: &PlaneArgs,
    place: &Place<A>,
    y: i32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let zero = Vector::<A, One>::new(A::from_int(0));
    let moves = comptime!(!inner && form.drops_rows());
    let there = if comptime!(moves) { min(max(y, 0i32), args.height.input - 1) } else { y };
    let line = place.depth as i32 * args.height.input + there;
    let at = comptime!(form.place()) & (place.input + line * args.width.input) as u32;
    let factor = row_factor::<A>(problem, there, inner, form);
    let mut shares = Sequence::<Vector<A, One>>::new();
    let mut factors = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for j in 0..comptime!(form.reads() as usize) {
        let value = Vector::<A, One>::cast_from(shared[at as usize + j]);
        shares.push(if comptime!(form.may_lack(j as u32)) {
            select(*place.inside.index(j), value, zero)
        } else {
            value
        });
        factors.push(*place.divisors.index(j) * factor);
    }
    let mut sums = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for v in 0..comptime!(form.columns as usize) {
        let mut sum = *shares.index(v) * *factors.index(v);
        #[unroll]
        for t in 1..comptime!(form.kernel[2] as usize) {
            let j = comptime!(v + t);
            sum = fma(*shares.index(j), *factors.index(j), sum);
        }
        sums.push(if comptime!(moves) { select(there == y, sum, zero) } else { sum });
    }
    sums
}

/// The factor of row `y` of a gradient, by which the factors of the columns are multiplied: the reciprocal of the
/// number of taps of a window that has all taps along the width.
#[cube]
fn row_factor<A: Float>(
    problem: &ProblemArgs,
    y: i32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Vector<A, One> {
    let [_, height, width] = comptime!(form.kernel);
    let mut factor = problem.reciprocal.get::<A>();
    if comptime!(!inner && form.axis(1).clipped) {
        let count = counted_at(&problem.height, y as u32, form.axis(1), form.tap.fold);
        #[unroll]
        for taps in 1..height {
            let own = A::new(comptime!(1.0 / f64::from(taps * width)));
            factor = select(count == taps as i32, own, factor);
        }
    }
    Vector::new(factor)
}

/// The factor for a column of windows with `count` taps along the width: the width of the kernel divided by `count`.
#[cube]
pub(super) fn column_factor<A: Float>(count: i32, #[comptime] form: Form) -> Vector<A, One> {
    let kernel = comptime!(form.kernel[2]);
    let mut factor = A::from_int(1);
    #[unroll]
    for taps in 1..kernel {
        let own = A::new(comptime!(f64::from(kernel) / f64::from(taps)));
        factor = select(count == taps as i32, own, factor);
    }
    Vector::new(factor)
}
