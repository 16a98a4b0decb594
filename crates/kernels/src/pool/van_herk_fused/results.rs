//! How windows' reductions become results, and how rows are written.

use cubecl::prelude::*;

use super::kernel::Place;
use super::{Form, One, TileArgs};
use crate::cube::convert::{narrow, round};
use crate::pool::common::window::{ProblemArgs, counted_at, reciprocal};

/// The divisors of windows.
#[derive(CubeType)]
pub(super) struct Divisors<A: Float> {
    /// The number of taps that the windows of a unit's column count along the width.
    columns: A,
    /// The reciprocal of the divisor of a window of the column that has all its rows.
    usual: A,
    /// For each row of a block, the number of taps counted along the height, and the kernel's height divided by it.
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
    /// Counts the taps of a block of rows, once for all units.
    pub(super) fn count_rows(&mut self, problem: &ProblemArgs, block: u32, #[comptime] form: Form) {
        if comptime!(form.tap.fold.counts()) && UNIT_POS < form.height.block {
            let h = block * form.height.block + UNIT_POS;
            let rows = counted_at(&problem.height, h, form.tap.height, form.tap.fold);
            let rows = A::cast_from(rows);
            self.rows[UNIT_POS as usize] = rows;
            self.fewer[UNIT_POS as usize] = A::cast_from(problem.height.kernel) / rows;
        }
    }

    /// The average of a window on row `i` of a block. If `whole`, the window has all its rows.
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

/// Writes a block of rows; each unit writes its column.
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

/// Writes row `i` of a block whose first element is `at`. If `whole`, its windows have all their rows.
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

/// Whether the windows on rows `first` and `last` have all their rows; the windows between them then have too.
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
