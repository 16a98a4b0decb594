//! What becomes of the windows' folds, and the rows that are written.

use cubecl::prelude::*;

use super::kernel::Place;
use super::{Form, One, TileArgs};
use crate::dtype::{narrow, round};
use crate::pool::window::{Problem, counted_at};

/// What the windows of a unit's column are divided by.
#[derive(CubeType)]
pub(super) struct Divisors<A: Float> {
    /// The taps that are counted along the width.
    pub(super) columns: i32,
    /// One over the divisor of a window with all its rows.
    pub(super) usual: Vector<A, One>,
}

#[cube]
pub(super) fn divisors_of<A: Float>(
    problem: &Problem,
    args: &TileArgs,
    place: &Place,
    #[comptime] form: Form,
) -> Divisors<A> {
    let one = Vector::<A, One>::new(A::from_int(1));
    if comptime!(form.tap.fold.is_max()) {
        Divisors::<A> { columns: 1i32.runtime(), usual: one }
    } else if comptime!(form.tap.fold.is_fixed()) {
        let usual = Vector::new(problem.reciprocal.get::<A>());
        Divisors::<A> { columns: 1i32.runtime(), usual }
    } else {
        let column = min(place.column, args.output_width - 1);
        let columns = counted_at(&problem.width, column, form.tap.width, form.tap.fold);
        let all = problem.height.kernel * columns;
        Divisors::<A> { columns, usual: one / Vector::new(A::cast_from(all)) }
    }
}

/// Writes a block of rows, each unit its column.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
pub(super) fn write_rows<S: Float, A: Float>(
    results: &Shared<[Vector<A, One>]>,
    output: &mut [Vector<S, One>],
    problem: &Problem,
    args: &TileArgs,
    place: &Place,
    divisors: &Divisors<A>,
    block: u32,
    #[comptime] form: Form,
) {
    let first = block * form.height.block;
    let last = first + comptime!(form.height.block - 1);
    let whole = last < args.output_height && counts_all(problem, first, last, form);
    if place.writes {
        let at = place.output + first * place.output_line;
        if whole {
            #[unroll]
            for i in 0..form.height.block {
                let fold = results[(i * form.result_row + place.result) as usize];
                output[(at + i * place.output_line) as usize] =
                    finished::<S, A>(problem, fold, divisors, first + i, true, form);
            }
        } else {
            for i in 0..min(args.output_height - first, form.height.block) {
                let fold = results[(i * form.result_row + place.result) as usize];
                output[(at + i * place.output_line) as usize] =
                    finished::<S, A>(problem, fold, divisors, first + i, false, form);
            }
        }
    }
}

/// Whether the windows of rows from `first` to `last` have all their rows: then those between have.
#[cube]
fn counts_all(problem: &Problem, first: u32, last: u32, #[comptime] form: Form) -> bool {
    if comptime!(form.tap.fold.is_max() || form.tap.fold.is_fixed()) {
        true.runtime()
    } else {
        let all = problem.height.kernel;
        counted_at(&problem.height, first, form.tap.height, form.tap.fold) == all
            && counted_at(&problem.height, last, form.tap.height, form.tap.fold) == all
    }
}

/// What becomes of the fold of a window on row `h`, all of whose rows are counted if it is `whole`.
#[cube]
fn finished<S: Float, A: Float>(
    problem: &Problem,
    fold: Vector<A, One>,
    divisors: &Divisors<A>,
    h: u32,
    #[comptime] whole: bool,
    #[comptime] form: Form,
) -> Vector<S, One> {
    if comptime!(form.tap.fold.is_max()) {
        narrow::<A, S, One>(fold, form.tap.widened)
    } else if comptime!(form.tap.reciprocal && (whole || form.tap.fold.is_fixed())) {
        round::<A, S, One>(fold * divisors.usual, form.tap.rounds)
    } else if comptime!(form.tap.fold.is_fixed()) {
        round::<A, S, One>(fold / Vector::new(A::cast_from(problem.divisor)), form.tap.rounds)
    } else {
        let rows = counted_at(&problem.height, h, form.tap.height, form.tap.fold);
        let taps = A::cast_from(rows * divisors.columns);
        let average = if comptime!(form.tap.reciprocal) {
            fold * Vector::new(A::from_int(1) / taps)
        } else {
            fold / Vector::new(taps)
        };
        round::<A, S, One>(average, form.tap.rounds)
    }
}
