//! The kernel: planes are copied to shared memory, units walk along their columns, and the results are copied back.

use cubecl::prelude::*;

use super::gather::{column_factor, gather_segment};
use super::rows::segment_of;
use super::staging::{stage, unstage};
use super::{Form, MARGIN, One, PlaneArgs, Two, WORD_BYTES};
use crate::cube::convert::{narrow, round, widen};
use crate::pool::common::runs::written;
use crate::pool::common::window::{ProblemArgs, counted_at, together};

/// `S` is the type in which elements are stored, `A` the type in which they are compared and summed.
#[cube(launch_unchecked)]
pub(super) fn walk_planes<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    problem: &ProblemArgs,
    args: &PlaneArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let mut shared =
        Shared::<[Vector<S, One>]>::new_aligned_slice(form.capacity, comptime!(WORD_BYTES));
    let first = CUBE_POS as u32 * args.group_planes;
    let planes = min(max(args.planes, first) - first, args.group_planes);
    stage::<S, N>(input, &mut shared, args, first, planes, form);
    sync_cube();
    for work in range_stepped(UNIT_POS, args.works, form.units) {
        let (rest, column) = args.columns.div_mod(work);
        let (rest, depth) = args.depths.div_mod(rest);
        let (segment, plane) = args.group.div_mod(rest);
        let first = args.above + segment * args.rows;
        let row = if segment == 0 { 0u32.runtime() } else { first };
        if comptime!(form.flat) {
            if plane < planes {
                flat_of::<S, A>(&mut shared, problem, args, plane, form);
            }
        } else if plane < planes && row < args.height.output {
            // The last group has as many columns as the others, and computes some windows again.
            let own = column * form.columns;
            let column = min(own, args.width.output - form.columns);
            let place = place_of::<A>(problem, args, plane, depth, column, own - column, form);
            let end = min(first + args.rows, args.height.output);
            let end = if segment + 1 == args.segments { args.height.output } else { end };
            if comptime!(form.compares()) {
                gather_segment::<S, A>(&mut shared, problem, args, &place, row, end, form);
            } else {
                segment_of::<S, A>(&mut shared, problem, args, &place, row, end, form);
            }
        }
    }
    sync_cube();
    unstage::<S, N>(&shared, output, args, first, planes, form);
}

/// Computes a plane that is one window: in pairs, if elements can be read so. A plane with an odd number of elements
/// begins or ends with half a pair.
#[cube]
fn flat_of<S: Float, A: Float>(
    shared: &mut Shared<[Vector<S, One>]>,
    problem: &ProblemArgs,
    args: &PlaneArgs,
    plane: u32,
    #[comptime] form: Form,
) {
    let taps = comptime!(form.taps());
    let first = plane * args.input + comptime!(MARGIN as u32);
    let result = if comptime!(form.pairs && taps > 2) {
        let odd = first % 2;
        let pairs: &[Vector<S, Two>] = shared[0..form.capacity].with_vector_size();
        let at = (((first + odd) / 2) & comptime!(form.place())) as usize;
        let count = comptime!((taps / 2) as usize);
        let fold =
            RuntimeCell::<Vector<A, Two>>::new(widen::<S, A, Two>(pairs[at], form.tap.widened));
        #[unroll]
        for i in 1..count {
            let next = widen::<S, A, Two>(pairs[at + i], form.tap.widened);
            fold.store(together::<A, Two>(fold.read(), next, form.tap));
        }
        let fold = fold.read();
        let own = Vector::<A, One>::new(fold.extract(0usize));
        let fold = together::<A, One>(own, Vector::new(fold.extract(1usize)), form.tap);
        let rest = if odd == 1 { first } else { first + (taps - 1) };
        if comptime!(taps % 2 == 1) {
            let rest = widen::<S, A, One>(shared[rest as usize], form.tap.widened);
            together::<A, One>(fold, rest, form.tap)
        } else {
            fold
        }
    } else {
        let at = (first & comptime!(form.place())) as usize;
        let fold =
            RuntimeCell::<Vector<A, One>>::new(widen::<S, A, One>(shared[at], form.tap.widened));
        #[unroll]
        for i in 1..taps {
            let next = widen::<S, A, One>(shared[at + i as usize], form.tap.widened);
            fold.store(together::<A, One>(fold.read(), next, form.tap));
        }
        fold.read()
    };
    // All taps are inside, so all windows have the same divisor.
    let divided = if comptime!(form.tap.fold.is_max()) {
        narrow::<A, S, One>(result, form.tap.widened)
    } else {
        let all = Vector::new(A::cast_from(comptime!(form.taps())));
        let average = if comptime!(form.tap.reciprocal) {
            result * Vector::new(problem.reciprocal.get::<A>())
        } else if comptime!(form.tap.fold.is_fixed()) {
            result / Vector::new(A::cast_from(problem.divisor))
        } else {
            result / all
        };
        round::<A, S, One>(average, form.tap.rounds)
    };
    shared[(args.results + plane) as usize] = divided;
}

/// The position of a unit's windows, and the values that they share.
#[derive(CubeType)]
pub(super) struct Place<A: Float> {
    /// The element of shared memory at which the unit's columns begin, before any row, and the element of its first
    /// result.
    pub(super) input: i32,
    pub(super) output: u32,
    /// The first of the columns that belong to this unit only.
    aside: u32,
    /// The first of its columns of windows, and the line along the depth.
    pub(super) column: u32,
    pub(super) depth: u32,
    /// Whether each element of a row is inside.
    pub(super) inside: Sequence<bool>,
    /// The divisors, or their reciprocals: of each column's sums, for windows with all their rows; or of each element,
    /// for each tap of the depth. If factors are found by comparison, only the factor of each column.
    pub(super) divisors: Sequence<Vector<A, One>>,
}

#[cube]
impl<A: Float> Place<A> {
    /// The position of the results of column `v`.
    pub(super) fn written(&self, #[comptime] v: usize, #[comptime] form: Form) -> usize {
        // A maximum does not depend on the order, so it may be written twice.
        if comptime!(form.tap.fold.is_max()) {
            v.runtime()
        } else {
            written(comptime!(v as u32), self.aside, form.columns) as usize
        }
    }
}

#[cube]
fn place_of<A: Float>(
    problem: &ProblemArgs,
    args: &PlaneArgs,
    plane: u32,
    depth: u32,
    column: u32,
    aside: u32,
    #[comptime] form: Form,
) -> Place<A> {
    let x = (column * comptime!(form.stride[2])) as i32 - args.width.before;
    let mut inside = Sequence::<bool>::new();
    #[unroll]
    for j in 0..form.reads() {
        inside.push(if comptime!(form.drops(j)) {
            x + j as i32 >= 0 && x + (j as i32) < args.width.input
        } else {
            true.runtime()
        });
    }
    let mut divisors = Sequence::<Vector<A, One>>::new();
    if comptime!(form.divides_each()) {
        let lines = counted_at(&problem.depth, depth, form.axis(0), form.tap.fold);
        let rows = problem.height.kernel;
        #[unroll]
        for v in 0..form.columns {
            let taps = counted_at(&problem.width, column + v, form.axis(2), form.tap.fold);
            divisors.push(over::<A>(lines * rows * taps, form));
        }
    }
    if comptime!(form.compares()) {
        #[unroll]
        for j in 0..form.reads() {
            let taps = column_taps(problem, args, x + j as i32, form);
            divisors.push(column_factor::<A>(taps, form));
        }
    } else if comptime!(form.shares()) {
        let rows = problem.height.kernel;
        #[unroll]
        for t in 0..form.kernel[0] {
            let lines = line_taps(problem, args, depth, t, form);
            #[unroll]
            for j in 0..form.reads() {
                let taps = column_taps(problem, args, x + j as i32, form);
                divisors.push(over::<A>(lines * rows * taps, form));
            }
        }
    }
    let line = (depth * args.height.output) * args.width.output;
    Place::<A> {
        input: (plane * args.input) as i32 + x + comptime!(MARGIN as i32),
        output: args.results + plane * args.output + line + column,
        aside,
        column,
        depth,
        inside,
        divisors,
    }
}

/// The number of taps along the depth of the window at tap `t` of line `depth` of a gradient.
#[cube]
pub(super) fn line_taps(
    problem: &ProblemArgs,
    args: &PlaneArgs,
    depth: u32,
    #[comptime] t: u32,
    #[comptime] form: Form,
) -> i32 {
    let o = depth as i32 - args.depth.before + t as i32;
    let there = min(max(o, 0i32), args.depth.input - 1);
    counted_at(&problem.depth, there as u32, form.axis(0), form.tap.fold)
}

/// The number of taps along the width of the window at column `o` of a gradient.
#[cube]
pub(super) fn column_taps(
    problem: &ProblemArgs,
    args: &PlaneArgs,
    o: i32,
    #[comptime] form: Form,
) -> i32 {
    let there = min(max(o, 0i32), args.width.input - 1);
    counted_at(&problem.width, there as u32, form.axis(2), form.tap.fold)
}

/// A number of taps, or its reciprocal if sums are multiplied by it.
#[cube]
pub(super) fn over<A: Float>(taps: i32, #[comptime] form: Form) -> Vector<A, One> {
    let taps = Vector::<A, One>::new(A::cast_from(taps));
    if comptime!(form.tap.reciprocal) { Vector::new(A::from_int(1)) / taps } else { taps }
}

/// Divides by a number that `over` returned.
#[cube]
pub(super) fn divided<A: Float>(
    sum: Vector<A, One>,
    divisor: Vector<A, One>,
    #[comptime] form: Form,
) -> Vector<A, One> {
    if comptime!(form.tap.reciprocal) { sum * divisor } else { sum / divisor }
}
