//! What becomes of the windows' folds, and the rows that are written.

use cubecl::prelude::*;

use super::kernel::Place;
use super::{Form, One, TileArgs};
use crate::cube::convert::{narrow, round};
use crate::pool::common::window::{ProblemArgs, counted_at, reciprocal};

/// What windows are divided by.
#[derive(CubeType)]
pub(super) struct Divisors<A: Float> {
    /// The taps that those of a unit's column count along the width.
    columns: A,
    /// One over the divisor of a window of the column with all its rows.
    usual: A,
    /// Of each row of a block the taps that its windows count along the height, and all over these.
    rows: Shared<[A]>,
    fewer: Shared<[A]>,
}

#[cube]
pub(super) fn divisors_of<A: Float>(
    problem: &ProblemArgs,
    args: &TileArgs,
    place: &Place,
    #[comptime] form: Form,
) -> Divisors<A> {
    let one = A::from_int(1);
    let (columns, usual) = if comptime!(form.tap.fold.is_max()) {
        (one, one)
    } else if comptime!(form.tap.fold.is_fixed()) {
        (one, problem.reciprocal.get::<A>())
    } else {
        let column = min(place.column, args.output_width - 1);
        let columns = counted_at(&problem.width, column, form.tap.width, form.tap.fold);
        (A::cast_from(columns), one / A::cast_from(problem.height.kernel * columns))
    };
    let rows = comptime!(form.rows_counted() as usize);
    let (rows, fewer) = (Shared::<[A]>::new_slice(rows), Shared::<[A]>::new_slice(rows));
    Divisors::<A> { columns, usual, rows, fewer }
}

#[cube]
impl<A: Float> Divisors<A> {
    /// Counts the taps of a block of rows, for all units.
    pub(super) fn count_rows(&mut self, problem: &ProblemArgs, block: u32, #[comptime] form: Form) {
        if comptime!(form.tap.fold.counts()) && UNIT_POS < form.height.block {
            let h = block * form.height.block + UNIT_POS;
            let rows = counted_at(&problem.height, h, form.tap.height, form.tap.fold);
            let rows = A::cast_from(rows);
            self.rows[UNIT_POS as usize] = rows;
            self.fewer[UNIT_POS as usize] = A::cast_from(problem.height.kernel) / rows;
        }
    }

    /// The average of a window on row `i` of a block, which counts all its rows if it is `whole`.
    fn average(
        &self,
        problem: &ProblemArgs,
        sum: A,
        i: u32,
        #[comptime] whole: bool,
        #[comptime] form: Form,
    ) -> A {
        if comptime!(form.tap.fold.counts() && (!whole || !form.tap.reciprocal)) {
            let taps = self.rows[i as usize] * self.columns;
            if comptime!(form.tap.reciprocal) {
                sum * reciprocal::<A>(taps, self.usual * self.fewer[i as usize])
            } else {
                sum / taps
            }
        } else if comptime!(form.tap.reciprocal) {
            sum * self.usual
        } else {
            sum / A::cast_from(problem.divisor)
        }
    }
}

/// Writes a block of rows, each unit its column.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
pub(super) fn write_rows<S: Float, A: Float>(
    results: &Shared<[Vector<A, One>]>,
    output: &mut [Vector<S, One>],
    problem: &ProblemArgs,
    args: &TileArgs,
    place: &Place,
    divisors: &Divisors<A>,
    block: u32,
    #[comptime] form: Form,
) {
    let first = block * form.height.block;
    let last = first + comptime!(form.height.block - 1);
    if place.writes {
        let at = place.output + first * place.output_line;
        let there = last < args.output_height;
        if there && counts_all(problem, first, last, form) {
            #[unroll]
            for i in 0..form.height.block {
                write_row::<S, A>(results, output, problem, place, divisors, at, i, true, form);
            }
        } else if comptime!(form.tap.fold.counts()) && there {
            #[unroll]
            for i in 0..form.height.block {
                write_row::<S, A>(results, output, problem, place, divisors, at, i, false, form);
            }
        } else {
            for i in 0..min(args.output_height - first, form.height.block) {
                write_row::<S, A>(results, output, problem, place, divisors, at, i, false, form);
            }
        }
    }
}

/// Writes row `i` of a block that begins `at` an element, whose windows count all their rows if it is `whole`.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn write_row<S: Float, A: Float>(
    results: &Shared<[Vector<A, One>]>,
    output: &mut [Vector<S, One>],
    problem: &ProblemArgs,
    place: &Place,
    divisors: &Divisors<A>,
    at: u32,
    i: u32,
    #[comptime] whole: bool,
    #[comptime] form: Form,
) {
    let fold = results[(i * form.result_row + place.result) as usize];
    let value = if comptime!(form.tap.fold.is_max()) {
        narrow::<A, S, One>(fold, form.tap.widened)
    } else {
        let average = divisors.average(problem, fold.extract(0usize), i, whole, form);
        round::<A, S, One>(Vector::new(average), form.tap.rounds)
    };
    output[(at + i * place.output_line) as usize] = value;
}

/// Whether the windows of rows from `first` to `last` have all their rows: then those between have.
#[cube]
fn counts_all(problem: &ProblemArgs, first: u32, last: u32, #[comptime] form: Form) -> bool {
    if comptime!(!form.tap.fold.counts()) {
        true.runtime()
    } else {
        let all = problem.height.kernel;
        counted_at(&problem.height, first, form.tap.height, form.tap.fold) == all
            && counted_at(&problem.height, last, form.tap.height, form.tap.fold) == all
    }
}
