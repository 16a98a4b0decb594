//! Channels first on a processor: a thread walks along the rows of a strip of outputs, and keeps what
//! the windows of neighbouring output vectors share.
//!
//! ```text
//! for each R rows of outputs, along the outermost axis that has a window:
//!     for each output vector along them:
//!         for each input vector of the width that is new to its windows:
//!             load it from all lines that the rows read:         (R − 1)·s + k and their inner taps
//!             for each of the R outputs: fold its lines, lane by lane
//!         for each of the R outputs:
//!             fold what its lanes find along the width in new vectors and in those that were kept
//!             keep those that the next output vector reads too
//! ```
//!
//! So the inner taps of a window cost their sum, not their product, and each input is loaded once for
//! R rows. Lines that the windows of all R rows have are folded once. Input vectors are as much wider
//! than output vectors as the stride is long, where they may be: each step then has one that is new.
//!
//! Columns are folded before rows, in which order a tie would not go to the first: indices are the
//! strips' affair. A GPU's units are neighbours along the row, and find in a cache what they share.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Pooling};

use super::launch::vectors;
use super::plan::{Output, Plan, Reduction};
use super::reach::{Reach, lanes_of};
use super::strip::{self, outermost, step};
use super::window::{Accumulator, Problem, Site, finish, neutral, problem_args, together};
use crate::axis::{Taps, has_all_taps, taps_of};
use crate::dtype::{elem, widen};
use crate::unit::{grid, unit_position};

/// The most lines of a window and taps on the width, together: more, and what a line is walked in
/// blocks for costs less.
const MOST_FOLDS: usize = 32;

/// The most lines that the rows of a strip read.
pub(super) const MOST_LINES: usize = 49;

/// The bytes of the widest vectors of a processor.
const WIDEST: usize = 64;

/// Whether values may be computed so, whatever the vectors.
pub(super) fn fits(pooling: &Pooling, reduction: Reduction) -> bool {
    let axes = pooling.grid().axes();
    let valued = matches!(reduction, Reduction::Max(Output::Values) | Reduction::Average(_));
    let folds = pooling.grid().taps() / axes[AXES - 1].kernel() + axes[AXES - 1].kernel();
    let dense = axes[outermost(pooling)].dilation() == 1;
    valued && dense && !pooling.grid().is_fitted() && folds <= MOST_FOLDS
}

/// Whether a plan's vectors and strips may be walked.
pub(super) fn fits_plan(pooling: &Pooling, dtype: DType, plan: &Plan) -> bool {
    let reach = reach_of(pooling, dtype, plan);
    plan.runs
        && plan.across
        && lines(pooling, plan.strip) <= MOST_LINES
        && (0..reach.vectors()).all(|v| reach.touches(v))
}

/// The lines that the rows of a strip read.
pub(super) fn lines(pooling: &Pooling, strip: usize) -> usize {
    let axes = pooling.grid().axes();
    let along = &axes[outermost(pooling)];
    let inner = pooling.grid().taps() / along.kernel() / axes[AXES - 1].kernel();
    ((strip - 1) * along.stride() + along.kernel()) * inner
}

/// Fewer units than this for each thread and rows are cut into pieces, though each then loads its
/// first vectors anew.
const ENOUGH: usize = 16;

/// The rows of strips, and the output vectors of the piece of one that a unit walks.
fn rows_and_piece(pooling: &Pooling, plan: &Plan) -> (usize, usize) {
    let along = pooling.grid().axes()[outermost(pooling)].output();
    let width = pooling.grid().axes()[AXES - 1].output();
    let rows = pooling.output().elements() / width / along * along.div_ceil(plan.strip);
    let width = width / plan.lanes;
    let pieces = (ENOUGH * plan.units as usize).div_ceil(rows.max(1));
    (rows, width.div_ceil(pieces.min(width)))
}

/// Launches the kernel; the caller has checked the plan and the buffers.
pub(super) fn launch(
    client: &Client,
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
    [input, output]: [&Handle; 2],
) {
    let form = Form::new(pooling, reduction, dtype, plan);
    let (rows, piece) = rows_and_piece(pooling, plan);
    let [depth, height, width] = pooling.grid().axes().each_ref().map(Axis::output);
    let width = width / plan.lanes;
    let pieces = width.div_ceil(piece);
    let mut places = [depth, height];
    places[form.along] = places[form.along].div_ceil(plan.strip);
    let (cubes, dim) = grid(client, plan.units, rows * pieces);
    let wide = form.reach.input;
    // SAFETY: coordinates are moved inside the input before they are read, and outputs that are not
    // there are not written.
    unsafe {
        walk_rows::launch_unchecked(
            client,
            cubes,
            dim,
            plan.lanes,
            wide,
            vectors(input, pooling.input().elements(), wide),
            vectors(output, pooling.output().elements(), plan.lanes),
            ComptimeOptionArgs::None,
            problem_args(pooling, reduction, dtype, plan),
            RowsLaunch::new(
                (rows * pieces) as u32,
                pieces as u32,
                piece as u32,
                places[0] as u32,
                places[1] as u32,
                depth as u32,
                height as u32,
                width as u32,
                (pooling.grid().axes()[AXES - 1].input() / wide) as u32,
            ),
            form,
            elem(dtype),
            elem(plan.accumulator),
        )
    };
}

/// Where the rows of a problem are; numbers, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct Rows {
    units: u32,
    /// The pieces of a row, and the output vectors of each.
    pieces: FastDivmod<u32>,
    piece: u32,
    /// The positions of rows: strips on the axis that they lie along.
    depth: FastDivmod<u32>,
    height: FastDivmod<u32>,
    /// The outputs on each axis, in vectors on the width.
    outputs_depth: u32,
    outputs_height: u32,
    outputs_width: u32,
    /// The vectors of the input's width.
    width_vectors: u32,
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// The lines, as strips read them.
    strip: strip::Form,
    /// The axis that strips lie along.
    along: usize,
    reach: Reach,
}

impl Form {
    fn new(pooling: &Pooling, reduction: Reduction, dtype: DType, plan: &Plan) -> Self {
        let plan = Plan { unrolled: true, ..*plan };
        Self {
            strip: strip::Form::new(pooling, reduction, dtype, &plan),
            along: outermost(pooling),
            reach: reach_of(pooling, dtype, &plan),
        }
    }

    /// The form of rows that are all there, as is all that they read along depth and height.
    fn interior(&self) -> Self {
        Self { strip: self.strip.interior(), ..*self }
    }

    fn outputs(&self) -> usize {
        self.strip.outputs() as usize
    }

    /// The lines that the rows read.
    fn lines(&self) -> usize {
        (self.strip.rows() * self.strip.lines()) as usize
    }

    /// The lines that window `i` of a strip has.
    fn window(&self, i: usize) -> (usize, usize) {
        let (from, to) = self.strip.window(i as u32);
        ((from * self.strip.lines()) as usize, (to * self.strip.lines()) as usize)
    }

    /// The lines that all windows have, where there are some and several windows.
    fn common(&self) -> Option<(usize, usize)> {
        let (from, to) = (self.window(self.outputs() - 1).0, self.window(0).1);
        (self.outputs() > 1 && from < to).then_some((from, to))
    }
}

/// Input vectors are as much wider than a plan's as its strides are long, where a processor has such.
fn reach_of(pooling: &Pooling, dtype: DType, plan: &Plan) -> Reach {
    let width = &pooling.grid().axes()[AXES - 1];
    let wide = plan.lanes * width.stride();
    let widens = wide * dtype.size() <= WIDEST
        && wide.is_power_of_two()
        && width.input().is_multiple_of(wide);
    Reach::new(pooling, if widens { wide } else { plan.lanes }, plan.lanes)
}

/// `S` is how elements are stored, `A` how they are compared and summed.
#[cube(launch_unchecked)]
fn walk_rows<S: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, M>],
    output: &mut [Vector<S, N>],
    mut indices: ComptimeOption<Box<[Vector<i32, N>]>>,
    problem: &Problem,
    rows: &Rows,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let unit = unit_position(form.strip.tap.runs);
    if unit >= rows.units {
        terminate!();
    }
    let place = place_of(problem, rows, unit, form);
    let inner = if comptime!(form.strip.splits()) {
        is_interior(problem, rows, &place, form)
    } else {
        false.runtime()
    };
    if inner {
        let form = comptime!(form.interior());
        walk_row::<S, A, N, M>(input, output, &mut indices, problem, rows, &place, form);
    } else {
        walk_row::<S, A, N, M>(input, output, &mut indices, problem, rows, &place, form);
    }
}

/// Where a piece of a row of strips is.
#[derive(CubeType)]
struct Place {
    /// The site of its first output.
    site: Site,
    /// The position of the first output along the strip's axis.
    first: u32,
    /// The first output's vector, as if the piece were its row's first, and the step to the strip's next.
    output: u32,
    step: u32,
    /// The output vectors of the row that are its.
    start: u32,
    end: u32,
}

#[cube]
fn place_of(problem: &Problem, rows: &Rows, unit: u32, #[comptime] form: Form) -> Place {
    let (row, piece) = rows.pieces.div_mod(unit);
    let (plane, h) = rows.height.div_mod(row);
    let (sample, d) =
        if comptime!(form.strip.tap.rank > 2) { rows.depth.div_mod(plane) } else { (plane, 0u32) };
    let strip = comptime!(form.outputs() as u32);
    let d = if comptime!(form.along == 0) { d * strip } else { d };
    let h = if comptime!(form.along == 1) { h * strip } else { h };
    let (first, step) = if comptime!(form.along == 0) {
        (d, rows.outputs_height * rows.outputs_width)
    } else {
        (h, rows.outputs_width)
    };
    let above = (sample * rows.outputs_depth + d) * rows.outputs_height + h;
    let start = piece * rows.piece;
    let tap = comptime!(form.strip.tap);
    let site = Site {
        sample,
        lane: 0u32.runtime(),
        column: 0u32.runtime(),
        depth: taps_of(&problem.depth, d, tap.depth),
        height: taps_of(&problem.height, h, tap.height),
        width: taps_of(&problem.width, 0u32.runtime(), tap.width),
    };
    let end = min(start + rows.piece, rows.outputs_width);
    Place { site, first, output: above * rows.outputs_width, step, start, end }
}

#[cube]
fn outputs_along(rows: &Rows, #[comptime] form: Form) -> u32 {
    if comptime!(form.along == 0) { rows.outputs_depth } else { rows.outputs_height }
}

/// Whether all rows of a strip are there, and all that they read along depth and height.
#[cube]
fn is_interior(problem: &Problem, rows: &Rows, place: &Place, #[comptime] form: Form) -> bool {
    let reach = comptime!(form.strip.rows() as i32);
    let there = place.first + comptime!(form.outputs() as u32) <= outputs_along(rows, form);
    let site = &place.site;
    if comptime!(form.along == 0) {
        let inside = site.depth.start >= 0 && site.depth.start + reach <= problem.depth.input;
        there && inside && has_all_taps(&problem.height, &site.height, form.strip.tap.height)
    } else {
        let inside = site.height.start >= 0 && site.height.start + reach <= problem.height.input;
        there && inside
    }
}

/// Where a line is: its first vector, and whether it was inside before it was moved there.
#[derive(CubeType)]
struct Line {
    first: usize,
    inside: bool,
}

/// Computes the outputs of a piece of a row of strips.
#[cube]
fn walk_row<S: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, M>],
    output: &mut [Vector<S, N>],
    indices: &mut ComptimeOption<Box<[Vector<i32, N>]>>,
    problem: &Problem,
    rows: &Rows,
    place: &Place,
    #[comptime] form: Form,
) {
    let reach = comptime!(form.reach);
    let mut lines = Sequence::<Line>::new();
    #[unroll]
    for n in 0..form.lines() {
        lines.push(line_of(problem, rows, &place.site, n, form));
    }
    let mut kept = Sequence::<RuntimeCell<Vector<A, M>>>::new();
    #[unroll]
    for v in 0..reach.kept() {
        let folded = columns::<S, A, M>(input, problem, rows, &lines, place.start, v, form);
        #[unroll]
        for i in 0..form.outputs() {
            kept.push(RuntimeCell::<Vector<A, M>>::new(*folded.index(i)));
        }
    }
    for w in place.start..place.end {
        // Vector v of output i is at v·R + i.
        let mut read = Sequence::<Vector<A, M>>::new();
        #[unroll]
        for n in 0..comptime!(reach.kept() * form.outputs()) {
            read.push(kept.index(n).read());
        }
        #[unroll]
        for v in reach.kept()..reach.vectors() {
            let folded = columns::<S, A, M>(input, problem, rows, &lines, w, v, form);
            #[unroll]
            for i in 0..form.outputs() {
                read.push(*folded.index(i));
            }
        }
        #[unroll]
        for n in 0..comptime!(reach.kept() * form.outputs()) {
            let next = comptime!(n + reach.steps() * form.outputs());
            kept.index(n).store(*read.index(next));
        }
        #[unroll]
        for i in 0..form.outputs() {
            let there = if comptime!(form.strip.is_whole()) {
                true.runtime()
            } else {
                place.first + comptime!(i as u32) < outputs_along(rows, form)
            };
            if there {
                let value = across::<A, N, M>(&read, i, form);
                let folded = Accumulator::<A, N> { value, position: Vector::new(0i32) };
                let site = site_of(problem, place, w, i, form);
                let vector = place.output + comptime!(i as u32) * place.step + w;
                finish::<S, A, N>(output, indices, problem, &site, &folded, vector, form.strip.tap);
            }
        }
    }
}

/// The site of the strip's output `i` at vector `w` of its row.
#[cube]
fn site_of(
    problem: &Problem,
    place: &Place,
    w: u32,
    #[comptime] i: usize,
    #[comptime] form: Form,
) -> Site {
    let o = place.first + comptime!(i as u32);
    let column = w * comptime!(form.reach.output as u32);
    let tap = comptime!(form.strip.tap);
    let depth: Taps = if comptime!(form.along == 0) {
        taps_of(&problem.depth, o, tap.depth)
    } else {
        place.site.depth
    };
    let height: Taps = if comptime!(form.along == 1) {
        taps_of(&problem.height, o, tap.height)
    } else {
        place.site.height
    };
    let width = taps_of(&problem.width, column, tap.width);
    Site { sample: place.site.sample, lane: 0u32.runtime(), column, depth, height, width }
}

/// Line `n` of those that a strip reads.
#[cube]
fn line_of(
    problem: &Problem,
    rows: &Rows,
    site: &Site,
    #[comptime] n: usize,
    #[comptime] form: Form,
) -> Line {
    let strip = comptime!(form.strip);
    let line = comptime!(strip.line(n as u32 / strip.lines(), n as u32 % strip.lines()));
    let depth = step(&problem.depth, &site.depth, line.depth, strip.tap.depth);
    let height = step(&problem.height, &site.height, line.height, strip.tap.height);
    let plane = site.sample as i32 * problem.depth.input + depth.x;
    let row = plane * problem.height.input + height.x;
    Line {
        first: row as usize * rows.width_vectors as usize,
        inside: depth.inside && height.inside,
    }
}

/// The lines of each window of a strip, folded in vector `v` of those that output vector `w` reads.
#[cube]
fn columns<S: Float, A: Float, M: Size>(
    input: &[Vector<S, M>],
    problem: &Problem,
    rows: &Rows,
    lines: &Sequence<Line>,
    w: u32,
    #[comptime] v: usize,
    #[comptime] form: Form,
) -> Sequence<Vector<A, M>> {
    let reach = comptime!(form.reach);
    let tap = comptime!(form.strip.tap);
    let at =
        w as i32 * comptime!(reach.steps() as i32) + comptime!(v as i32 - reach.ahead() as i32);
    let there = if comptime!(tap.width.clipped) {
        min(max(at, 0i32), rows.width_vectors as i32 - 1)
    } else {
        at
    };
    let mut loaded = Sequence::<Vector<A, M>>::new();
    #[unroll]
    for n in 0..form.lines() {
        let line = lines.index(n);
        let value = widen::<S, A, M>(input[line.first + there as usize], tap.widened);
        let outside = neutral::<A, M>(problem, form.strip.tap.fold);
        let value = if comptime!(form.drops(n)) {
            select(there == at && line.inside, value, outside)
        } else if comptime!(tap.width.clipped) {
            select(there == at, value, outside)
        } else {
            value
        };
        loaded.push(value);
    }
    let mut windows = Sequence::<Vector<A, M>>::new();
    if comptime!(form.common().is_some()) {
        let (first, end) = comptime!(form.common().unwrap_or((0, 1)));
        let common = lines_folded::<A, M>(&loaded, first, end, form);
        #[unroll]
        for i in 0..form.outputs() {
            let (from, to) = comptime!(form.window(i));
            let mut folded = common;
            if comptime!(from < first) {
                let above = lines_folded::<A, M>(&loaded, from, first, form);
                folded = together::<A, M>(above, folded, tap);
            }
            if comptime!(end < to) {
                let below = lines_folded::<A, M>(&loaded, end, to, form);
                folded = together::<A, M>(folded, below, tap);
            }
            windows.push(folded);
        }
    } else {
        #[unroll]
        for i in 0..form.outputs() {
            let (from, to) = comptime!(form.window(i));
            windows.push(lines_folded::<A, M>(&loaded, from, to, form));
        }
    }
    windows
}

impl Form {
    /// Whether line `n` may be outside, and must then be dropped from a sum.
    fn drops(&self, n: usize) -> bool {
        let line = self.strip.line(n as u32 / self.strip.lines(), n as u32 % self.strip.lines());
        !self.strip.tap.fold.is_max() && (line.depth.drops || line.height.drops)
    }
}

/// The lines from `from` to `to`, folded lane by lane.
#[cube]
fn lines_folded<A: Float, M: Size>(
    loaded: &Sequence<Vector<A, M>>,
    #[comptime] from: usize,
    #[comptime] to: usize,
    #[comptime] form: Form,
) -> Vector<A, M> {
    let mut folded = *loaded.index(from);
    #[unroll]
    for n in comptime!(from + 1)..to {
        folded = together::<A, M>(folded, *loaded.index(n), form.strip.tap);
    }
    folded
}

/// Folds what the lanes of output `i` find along the width.
#[cube]
fn across<A: Float, N: Size, M: Size>(
    read: &Sequence<Vector<A, M>>,
    #[comptime] i: usize,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let (outputs, reach) = comptime!((form.outputs(), form.reach));
    let mut folded = lanes_of::<A, N, M>(read, 0usize, outputs, i, reach);
    #[unroll]
    for t in 1..form.reach.taps {
        let next = lanes_of::<A, N, M>(read, t, outputs, i, reach);
        folded = together::<A, N>(folded, next, form.strip.tap);
    }
    folded
}
