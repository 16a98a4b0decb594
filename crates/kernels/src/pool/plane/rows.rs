//! The windows of a unit, row by row. The reductions of a row are kept for the windows below that contain the row too.

use cubecl::prelude::*;

use super::kernel::{Place, column_taps, divided, line_taps, over};
use super::{Cells, Form, One, PlaneArgs};
use crate::cube::convert::{narrow, round, widen};
use crate::pool::common::runs::windows;
use crate::pool::common::window::{ProblemArgs, counted_at, neutral, together};

/// Computes the windows of a unit on rows `row` to `end`.
#[cube]
pub(super) fn segment_of<S: Float, A: Float>(
    shared: &mut Shared<[Vector<S, One>]>,
    problem: &ProblemArgs,
    args: &PlaneArgs,
    place: &Place<A>,
    row: u32,
    end: u32,
    #[comptime] form: Form,
) {
    // The reductions of those rows of the next window that the previous window has too.
    let mut kept = Sequence::<RuntimeCell<Vector<A, One>>>::new();
    let top = (row * comptime!(form.stride[1])) as i32 - args.height.before;
    #[unroll]
    for t in 0..form.shared_rows() {
        let folds = row_of::<S, A>(shared, problem, args, place, top + t as i32, false, form);
        #[unroll]
        for v in 0..form.columns {
            kept.push(RuntimeCell::new(*folds.index(v as usize)));
        }
    }
    let mut o = row;
    if comptime!(form.run > 1) {
        while o < end {
            if o + form.run <= end && is_inner(args, o, form) {
                run_of::<S, A>(shared, problem, args, place, o, &kept, form.run, true, form);
                o += form.run;
            } else {
                run_of::<S, A>(shared, problem, args, place, o, &kept, 1u32, false, form);
                o += 1u32;
            }
        }
    } else {
        while o < end {
            run_of::<S, A>(shared, problem, args, place, o, &kept, 1u32, false, form);
            o += 1u32;
        }
    }
}

/// Whether the rows that a run of windows adds from row `o` on are inside and counted in full, and whether the run's
/// windows are counted in full.
#[cube]
pub(super) fn is_inner(args: &PlaneArgs, o: u32, #[comptime] form: Form) -> bool {
    if comptime!(!form.drops_rows()) {
        true.runtime()
    } else {
        // The rows that a window shares with the one above it are reduced already.
        let shared = comptime!(if form.divides_each() { 0 } else { form.shared_rows() as i32 });
        let first = (o * comptime!(form.stride[1])) as i32 - args.height.before;
        let reach = comptime!(((form.run - 1) * form.stride[1] + form.kernel[1]) as i32);
        first + shared >= args.full && first + reach <= args.full_end
    }
}

/// Computes `count` rows of a unit's windows from row `o`. If `inner`, the rows are inside and counted in full.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn run_of<S: Float, A: Float>(
    shared: &mut Shared<[Vector<S, One>]>,
    problem: &ProblemArgs,
    args: &PlaneArgs,
    place: &Place<A>,
    o: u32,
    kept: &Cells<A>,
    #[comptime] count: u32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) {
    let columns = comptime!(form.columns as usize);
    let mut rows = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for i in 0..kept.len() {
        rows.push(kept.index(i).read());
    }
    let top = (o * comptime!(form.stride[1])) as i32 - args.height.before;
    #[unroll]
    for i in 0..count {
        #[unroll]
        for t in 0..form.new_rows() {
            let y = top + comptime!((i * form.stride[1] + form.shared_rows() + t) as i32);
            let folds = row_of::<S, A>(shared, problem, args, place, y, inner, form);
            #[unroll]
            for v in 0..columns {
                rows.push(*folds.index(v));
            }
        }
    }
    let width = args.width.output;
    let divisors = divisors_at::<A>(problem, place, o, inner, form);
    let mut folds = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for v in 0..columns {
        let run = comptime!(form.along_rows(count, v as u32));
        let windows = windows::<A, One>(&rows, run, form.tap);
        #[unroll]
        for i in 0..count {
            folds.push(*windows.index(i as usize));
        }
    }
    #[unroll]
    for i in 0..count {
        let at = comptime!(form.place()) & (place.output + (o + i) * width);
        #[unroll]
        for v in 0..columns {
            let fold = *folds.index(comptime!(v * count as usize + i as usize));
            shared[at as usize + place.written(v, form)] =
                finished::<S, A>(problem, fold, &divisors, v, form);
        }
    }
    #[unroll]
    for i in 0..kept.len() {
        let next = comptime!(form.row(count, 0) * columns + i);
        kept.index(i).store(*rows.index(next));
    }
}

/// For each of a unit's columns, the reduction of its taps on row `y`. If `inner`, the row is inside and counted in
/// full. Elements outside are replaced by the identity element.
#[cube]
fn row_of<S: Float, A: Float>(
    shared: &mut Shared<[Vector<S, One>]>,
    problem: &ProblemArgs,
    args: &PlaneArgs,
    place: &Place<A>,
    y: i32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let outside = neutral::<A, One>(problem, form.tap.fold);
    let moves = comptime!(!inner && form.drops_rows());
    let there = if comptime!(moves) { min(max(y, 0i32), args.height.input - 1) } else { y };
    let reads = comptime!(form.reads() as usize);
    let mut folds = Sequence::<RuntimeCell<Vector<A, One>>>::new();
    #[unroll]
    for t in 0..form.kernel[0] {
        let z = (place.depth * comptime!(form.stride[0])) as i32 - args.depth.before + t as i32;
        let near =
            if comptime!(form.drops_line(t)) { min(max(z, 0i32), args.depth.input - 1) } else { z };
        let at = place.input + (near * args.height.input + there) * args.width.input;
        let at = comptime!(form.place()) & at as u32;
        let mut loaded = Sequence::<Vector<A, One>>::new();
        #[unroll]
        for j in 0..reads {
            let value = widen::<S, A, One>(shared[at as usize + j], form.tap.widened);
            loaded.push(if comptime!(form.drops(j as u32)) {
                select(*place.inside.index(j), value, outside)
            } else {
                value
            });
        }
        let divisors = line_divisors::<A>(problem, args, place, there, t, inner, form);
        let inside = (z == near) && (y == there);
        let windows = if comptime!(form.shares()) {
            shares_of::<A>(&loaded, &divisors, form)
        } else {
            windows::<A, One>(&loaded, form.along_row(), form.tap)
        };
        #[unroll]
        for v in 0..comptime!(form.columns as usize) {
            let mut fold = *windows.index(v);
            if comptime!(moves || form.drops_line(t)) {
                fold = select(inside, fold, outside);
            }
            if comptime!(t == 0) {
                folds.push(RuntimeCell::new(fold));
            } else {
                let before = folds.index(v).read();
                folds.index(v).store(together::<A, One>(before, fold, form.tap));
            }
        }
    }
    let mut row = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for v in 0..comptime!(form.columns as usize) {
        row.push(folds.index(v).read());
    }
    row
}

/// The sums of a row's windows, each element divided by its own divisor.
#[cube]
fn shares_of<A: Float>(
    loaded: &Sequence<Vector<A, One>>,
    divisors: &Sequence<Vector<A, One>>,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let stride = comptime!(form.stride[2] as usize);
    let mut sums = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for v in 0..comptime!(form.columns as usize) {
        let first = comptime!(v * stride);
        let mut sum = divided::<A>(*loaded.index(first), *divisors.index(first), form);
        #[unroll]
        for tw in 1..comptime!(form.kernel[2] as usize) {
            let j = comptime!(first + tw);
            let next = *loaded.index(j);
            sum = if comptime!(form.tap.reciprocal) {
                fma(next, *divisors.index(j), sum)
            } else {
                sum + next / *divisors.index(j)
            };
        }
        sums.push(sum);
    }
    sums
}

/// The divisors of the elements of row `y` of a gradient, for tap `t` of the depth; empty if elements have no divisors
/// of their own. Most rows have all their taps, and the unit has computed their divisors before.
#[cube]
fn line_divisors<A: Float>(
    problem: &ProblemArgs,
    args: &PlaneArgs,
    place: &Place<A>,
    y: i32,
    #[comptime] t: u32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let mut divisors = Sequence::<Vector<A, One>>::new();
    if comptime!(form.shares()) {
        let reads = comptime!(form.reads() as usize);
        let mut cells = Sequence::<RuntimeCell<Vector<A, One>>>::new();
        #[unroll]
        for j in 0..reads {
            cells.push(RuntimeCell::new(*place.divisors.index(comptime!(t as usize * reads + j))));
        }
        if comptime!(!inner) {
            let short = y < args.full || y >= args.full_end;
            if short {
                let rows = counted_at(&problem.height, y as u32, form.axis(1), form.tap.fold);
                let taps = rows * line_taps(problem, args, place.depth, t, form);
                #[unroll]
                for j in 0..reads {
                    let x = (place.column as i32) - args.width.before + j as i32;
                    let columns = column_taps(problem, args, x, form);
                    cells.index(j).store(over::<A>(taps * columns, form));
                }
            }
        }
        #[unroll]
        for j in 0..reads {
            divisors.push(cells.index(j).read());
        }
    }
    divisors
}

/// The divisors of the sums of each column on row `o`; empty if windows have no divisors of their own.
#[cube]
fn divisors_at<A: Float>(
    problem: &ProblemArgs,
    place: &Place<A>,
    o: u32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let mut divisors = Sequence::<Vector<A, One>>::new();
    if comptime!(form.divides_each() && inner) {
        #[unroll]
        for v in 0..form.columns {
            divisors.push(*place.divisors.index(v as usize));
        }
    } else if comptime!(form.divides_each()) {
        let mut cells = Sequence::<RuntimeCell<Vector<A, One>>>::new();
        #[unroll]
        for v in 0..form.columns {
            cells.push(RuntimeCell::new(*place.divisors.index(v as usize)));
        }
        let rows = counted_at(&problem.height, o, form.axis(1), form.tap.fold);
        if rows != problem.height.kernel {
            let taps = rows * counted_at(&problem.depth, place.depth, form.axis(0), form.tap.fold);
            #[unroll]
            for v in 0..form.columns {
                let column = place.column + v;
                let columns = counted_at(&problem.width, column, form.axis(2), form.tap.fold);
                cells.index(v as usize).store(over::<A>(taps * columns, form));
            }
        }
        #[unroll]
        for v in 0..form.columns {
            divisors.push(cells.index(v as usize).read());
        }
    }
    divisors
}

/// The result of a window in column `v`.
#[cube]
fn finished<S: Float, A: Float>(
    problem: &ProblemArgs,
    fold: Vector<A, One>,
    divisors: &Sequence<Vector<A, One>>,
    #[comptime] v: usize,
    #[comptime] form: Form,
) -> Vector<S, One> {
    if comptime!(form.tap.fold.is_max()) {
        narrow::<A, S, One>(fold, form.tap.widened)
    } else {
        let average = if comptime!(form.divides_each()) {
            divided::<A>(fold, *divisors.index(v), form)
        } else if comptime!(!form.divides_once()) {
            fold
        } else if comptime!(form.tap.reciprocal) {
            fold * Vector::new(problem.reciprocal.get::<A>())
        } else if comptime!(form.tap.fold.is_fixed()) {
            fold / Vector::new(A::cast_from(problem.divisor))
        } else {
            fold / Vector::new(A::cast_from(comptime!(form.kernel.iter().product::<u32>())))
        };
        round::<A, S, One>(average, form.tap.rounds)
    }
}
