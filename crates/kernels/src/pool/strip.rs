//! One unit a strip of outputs: what their windows share is loaded and reduced once.
//!
//! ```text
//! for each strip of R outputs (n, o .. o + R, c) along the outermost axis that has a window:
//!     for each row x that the strip reads:       (R − 1)·s + k of them, all unrolled
//!         row[x] = fold the taps of the inner axes at x
//!     for each output of the strip:
//!         fold its k rows
//! ```
//!
//! The rows live in registers, the loops being unrolled. A row outside the input is, for a
//! maximum, moved to the nearest one inside, which the window has too; for an average it is
//! dropped. Folding rows in their order keeps the first of equals, and the last NaN: so it is done
//! here, where positions are asked for; values alone are `block`'s, in any order.
//!
//! With channels first the lanes of a vector are neighbours along the width: a row is loaded as
//! the whole vectors that its taps touch, from which each tap takes its lanes. Vectors divide the
//! width, so that each is inside or outside as a whole.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Pooling};

use super::block;
use super::direct::{
    Accumulator, Form as Tap, Problem, Site, finish, fold, pixel_vectors, plane_position,
    unit_position,
};
use super::plan::{Plan, Reduction};
use super::reach::{Reach, lanes_of};
use crate::axis::{AxisArgs, AxisForm, Taps, coordinate, has_all_taps, taps_of};
use crate::dtype::widen;

/// How the vectors of a pixel are parted, so that neighbouring units are neighbouring pixels too, of
/// one row and of a few.
///
/// Units that lie together on one multiprocessor read each tap once for all of them; were they all of
/// one pixel, it would be read by as many multiprocessors as windows share it.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Tiles {
    /// The vectors of a tile.
    vectors: FastDivmod<u32>,
    tile: u32,
    /// The rows of a tile.
    group: FastDivmod<u32>,
    rows: u32,
    /// The tiles of a pixel.
    count: FastDivmod<u32>,
}

/// The bytes of a tile: those that a multiprocessor loads at once.
const TILE_BYTES: usize = 128;

/// The most rows of a tile.
const TILE_ROWS: usize = 4;

/// The tiles of a problem whose units have so many places along the height. Those that gather a
/// gradient write more than they read.
pub(super) fn tiles_args(
    pooling: &Pooling,
    dtype: DType,
    plan: &Plan,
    places: usize,
    gradient: bool,
) -> TilesLaunch {
    let pixel = pixel_vectors(pooling, plan);
    let width = &pooling.grid().axes()[AXES - 1];
    let most = if gradient { 2 * width.stride() - 1 } else { width.stride() };
    let shares = width.kernel() > most && !plan.runs;
    let tile = tile(pixel as usize, plan.lanes * dtype.size(), shares) as u32;
    let rows = rows(pooling, plan, places) as u32;
    TilesLaunch::new(tile, tile, rows, rows, pixel / tile)
}

/// The vectors of a tile, where neighbouring windows share taps: whole ones of a pixel, and at least
/// half of what is loaded at once.
fn tile(pixel: usize, bytes: usize, shares: bool) -> usize {
    let most = (TILE_BYTES / bytes).max(1);
    let divides = |&tile: &usize| pixel.is_multiple_of(tile) && 2 * tile >= most;
    (1..=most).rev().find(divides).filter(|_| shares).unwrap_or(pixel)
}

/// The rows of a tile: those of one sample, all tiles having as many. Strips along the height have rows
/// enough.
fn rows(pooling: &Pooling, plan: &Plan, places: usize) -> usize {
    let height = &pooling.grid().axes()[AXES - 2];
    let shares = height.kernel() > height.stride() && outermost(pooling) < AXES - 2 && !plan.runs;
    let divides = |&rows: &usize| places.is_multiple_of(rows);
    (1..=TILE_ROWS).rev().find(divides).filter(|_| shares).unwrap_or(1)
}

/// The pixel of a unit on a row of `width`, its vector within the pixel, and the row.
#[cube]
pub(super) fn tiled(tiles: &Tiles, width: &FastDivmod<u32>, unit: u32) -> (u32, u32, u32) {
    let (rest, inner) = tiles.vectors.div_mod(unit);
    let (rest, below) = tiles.group.div_mod(rest);
    let (rest, w) = width.div_mod(rest);
    let (above, tile) = tiles.count.div_mod(rest);
    (w, tile * tiles.tile + inner, above * tiles.rows + below)
}

/// Where the units of a problem are; numbers, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Strips {
    units: u32,
    tiles: Tiles,
    /// The positions of units on each axis: strips on the one that they lie along, vectors on the
    /// width where the lanes do.
    depth: FastDivmod<u32>,
    height: FastDivmod<u32>,
    width: FastDivmod<u32>,
    /// The outputs on each axis, in vectors on the width where the lanes lie along it.
    outputs_depth: u32,
    outputs_height: u32,
    outputs_width: u32,
    /// The vectors of the input's width, where the lanes lie along it.
    pub(super) width_vectors: u32,
}

pub(super) fn strips_args(pooling: &Pooling, dtype: DType, plan: &Plan) -> StripsLaunch {
    let form = Along::new(pooling, plan);
    let outputs = vectors_on_axes(pooling, plan);
    let mut places = outputs;
    places[form.axis] = places[form.axis].div_ceil(plan.strip);
    places[AXES - 1] = places[AXES - 1].div_ceil(columns(pooling, plan));
    let width = pooling.grid().axes()[AXES - 1].input() / plan.lanes;
    StripsLaunch::new(
        units(pooling, plan) as u32,
        tiles_args(pooling, dtype, plan, places[AXES - 2], false),
        places[0] as u32,
        places[1] as u32,
        places[2] as u32,
        outputs[0] as u32,
        outputs[1] as u32,
        outputs[2] as u32,
        width as u32,
    )
}

/// The output vectors on each axis.
fn vectors_on_axes(pooling: &Pooling, plan: &Plan) -> [usize; AXES] {
    let mut outputs = pooling.grid().axes().each_ref().map(Axis::output);
    if plan.across {
        outputs[AXES - 1] /= plan.lanes;
    }
    outputs
}

/// The strips of a problem, each a unit's work.
pub(super) fn units(pooling: &Pooling, plan: &Plan) -> usize {
    let along = outermost(pooling);
    let vectors = vectors_on_axes(pooling, plan);
    let (outputs, width) = (vectors[along], vectors[AXES - 1]);
    let strips = pooling.output().elements() / plan.lanes / outputs * outputs.div_ceil(plan.strip);
    match columns(pooling, plan) {
        1 => strips,
        columns => strips / width * width.div_ceil(columns),
    }
}

/// The neighbouring columns of a strip: more than one only where lanes are channels, and there are as
/// many columns.
fn columns(pooling: &Pooling, plan: &Plan) -> usize {
    let width = &pooling.grid().axes()[AXES - 1];
    let fits = outermost(pooling) < AXES - 1 && width.dilation() == 1 && !width.may_be_empty();
    if fits && !plan.across && width.output() >= plan.columns { plan.columns } else { 1 }
}

/// The outermost axis that has a window, or the last.
pub(super) fn outermost(pooling: &Pooling) -> usize {
    let axes = pooling.grid().axes();
    axes.iter().position(|axis| axis.kernel() > 1).unwrap_or(AXES - pooling.grid().rank())
}

/// Whether as many input vectors as an output vector steps over are inside wherever that is there. Of
/// vectors that divide both widths this depends on the window alone: their outputs reach less than a
/// vector past the input, which is not at all.
fn has_own(width: &Axis, lanes: usize) -> bool {
    let reach = width.dilation() * (width.kernel() - 1) + 1;
    // The last step may be rounded up.
    width.before() + width.after() + 2 * width.stride() < lanes + reach + 1
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) tap: Tap,
    pub(super) along: Along,
    /// The width as the lanes see it that lie along it, and whether the vectors at an output's own place
    /// are always inside.
    pub(super) reach: Reach,
    own: bool,
    /// The neighbouring columns of a strip, and the step from one to the next in the input.
    pub(super) columns: u32,
    step: u32,
}

/// The axis that strips lie along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Along {
    pub(super) axis: usize,
    /// The outputs of a strip, and whether all are there.
    pub(super) outputs: u32,
    pub(super) whole: bool,
    pub(super) kernel: u32,
    pub(super) stride: u32,
}

impl Along {
    fn new(pooling: &Pooling, plan: &Plan) -> Self {
        let axis = outermost(pooling);
        let own = &pooling.grid().axes()[axis];
        let (kernel, stride) = (own.kernel() as u32, own.stride() as u32);
        Self { axis, outputs: plan.strip as u32, whole: plan.strip == 1, kernel, stride }
    }

    /// The rows that a strip reads.
    fn rows(self) -> u32 {
        (self.outputs - 1) * self.stride + self.kernel
    }
}

impl Form {
    pub(super) fn new(pooling: &Pooling, reduction: Reduction, dtype: DType, plan: &Plan) -> Self {
        let width = &pooling.grid().axes()[AXES - 1];
        let columns = columns(pooling, plan);
        Self {
            tap: Tap::new(pooling, reduction, dtype, plan),
            along: Along::new(pooling, plan),
            reach: match plan.across {
                true => Reach::new(pooling, plan.lanes, plan.lanes),
                false => Reach::ONE,
            },
            own: has_own(width, plan.lanes),
            columns: columns as u32,
            step: if columns > 1 { width.stride() as u32 } else { 1 },
        }
    }

    /// The form of a strip whose outputs are all there, and all that they read along depth and height:
    /// nothing need be moved or dropped there. On the width neither, where units across the edges are
    /// not of one warp, which would run both, or where a tap costs much.
    pub(super) fn interior(&self) -> Self {
        let width = self.tap.channels && (self.tap.runs || self.tap.fold.has_index());
        Self { tap: self.tap.unclipped(width), along: Along { whole: true, ..self.along }, ..*self }
    }

    /// Whether the interior has code of its own. A maximum of units of one warp moves what is outside
    /// at no cost; only divisors and indices are worth two ways.
    pub(super) fn splits(&self) -> bool {
        let apart = self.tap.channels && (self.tap.runs || self.tap.fold.has_index());
        *self != self.interior() && (apart || !self.tap.fold.is_max())
    }

    pub(super) fn axis(&self, i: usize) -> AxisForm {
        [self.tap.depth, self.tap.height, self.tap.width][i]
    }

    /// Whether vector `v` of those that lie along the width may be outside.
    pub(super) fn may_miss(&self, v: usize) -> bool {
        let own = self.reach.ahead()..self.reach.ahead() + self.reach.steps();
        self.tap.width.clipped && !(self.own && own.contains(&v))
    }

    /// The taps of a row on axis `i`: those of the strip's own axis are rows.
    pub(super) fn taps(&self, i: usize) -> u32 {
        if i == self.along.axis { 1 } else { self.axis(i).taps.unwrap_or(1) }
    }

    /// The outputs of a strip, and whether all are there.
    pub(super) fn outputs(&self) -> u32 {
        self.along.outputs
    }

    pub(super) fn is_whole(&self) -> bool {
        self.along.whole
    }

    /// The rows that a strip reads.
    pub(super) fn rows(&self) -> u32 {
        self.along.rows()
    }

    /// The first row of window `i`, and the one after its last.
    pub(super) fn window(&self, i: u32) -> (u32, u32) {
        let first = i * self.along.stride;
        (first, first + self.along.kernel)
    }

    /// The lines of a row.
    pub(super) fn lines(&self) -> u32 {
        self.taps(0) * self.taps(1)
    }

    /// Line `i` of row `j`.
    pub(super) fn line(&self, j: u32, i: u32) -> Line {
        let at = |axis, t| if axis == self.along.axis { self.row(j) } else { self.tap(axis, t) };
        Line { depth: at(0, i / self.taps(1)), height: at(1, i % self.taps(1)), width: at(2, 0) }
    }

    /// The vectors of a line that a strip reads.
    pub(super) fn reads(&self) -> u32 {
        if self.tap.across {
            self.reach.vectors() as u32
        } else {
            (self.columns - 1) * self.step + self.taps(2)
        }
    }

    /// The windows of a strip on a line, of vectors.
    pub(super) fn along_line(&self) -> Run {
        let (count, kernel, stride) = (self.columns, self.taps(2), self.step);
        Run { first: 0, each: 1, count, kernel, stride }
    }

    /// Element `x` of what the columns of a strip read of a line of row `j`.
    pub(super) fn read(&self, j: u32, x: u32) -> TapForm {
        let kernel = self.taps(2);
        if self.along.axis == 2 {
            self.row(j)
        } else if self.columns == 1 {
            self.tap(2, x)
        } else {
            let firsts = (0..self.columns).map(|column| column * self.step);
            let outside = firsts
                .filter(|&first| (first..first + kernel).contains(&x))
                .any(|first| self.axis(2).may_be_outside(x - first));
            TapForm { row: true, t: x, moves: outside, drops: outside }
        }
    }

    /// Tap `t` of an axis other than the strip's.
    fn tap(&self, axis: usize, t: u32) -> TapForm {
        let outside = self.axis(axis).may_be_outside(t);
        TapForm { row: false, t, moves: outside, drops: outside }
    }

    /// Row `j`. Those beyond the first window may be no window's, and past the end.
    pub(super) fn row(&self, j: u32) -> TapForm {
        let form = self.axis(self.along.axis);
        let beyond = j >= self.along.kernel && (form.clipped || !self.along.whole);
        let outside = !beyond && form.may_be_outside(j);
        TapForm {
            row: true,
            t: j,
            moves: beyond || outside,
            drops: form.clipped && (beyond || outside),
        }
    }
}

/// Windows along a sequence, whose first element is at `first` and whose others lie `each` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Run {
    pub(super) first: u32,
    pub(super) each: u32,
    pub(super) count: u32,
    pub(super) kernel: u32,
    pub(super) stride: u32,
}

/// A line of a row: a tap on each axis, the first one on the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Line {
    pub(super) depth: TapForm,
    pub(super) height: TapForm,
    width: TapForm,
}

impl Line {
    /// Whether it may be outside, and must then be dropped from a sum.
    pub(super) fn drops(self) -> bool {
        self.depth.drops || self.height.drops
    }
}

/// A tap of an axis, or a row of the strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TapForm {
    row: bool,
    t: u32,
    /// Whether it may be outside, and must then be moved inside to be read.
    moves: bool,
    /// Whether it may be outside, and must then be dropped from a sum.
    pub(super) drops: bool,
}

/// `S` is how elements are stored, `A` how they are compared and summed.
#[cube(launch_unchecked)]
pub(super) fn strip<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    mut indices: ComptimeOption<Box<[Vector<i32, N>]>>,
    problem: &Problem,
    strips: &Strips,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let unit = unit_position(form.tap.runs);
    if unit >= strips.units {
        terminate!();
    }
    let place = place_of(problem, strips, unit, form);
    let inner = if comptime!(form.splits()) {
        is_interior(problem, strips, &place, form)
    } else {
        false.runtime()
    };
    if comptime!(form.tap.fold.has_index()) {
        if inner {
            let form = comptime!(form.interior());
            compute::<S, A, N>(input, output, &mut indices, problem, strips, &place, form);
        } else {
            compute::<S, A, N>(input, output, &mut indices, problem, strips, &place, form);
        }
    } else if inner {
        let form = comptime!(form.interior());
        block::compute::<S, A, N>(input, output, &mut indices, problem, strips, &place, form);
    } else {
        block::compute::<S, A, N>(input, output, &mut indices, problem, strips, &place, form);
    }
}

/// Whether all outputs of a strip are there, and all that they read.
#[cube]
fn is_interior(problem: &Problem, strips: &Strips, place: &Place, #[comptime] form: Form) -> bool {
    let site = &place.site;
    place.first + form.along.outputs <= outputs_along(strips, form)
        && is_inner(&problem.depth, &site.depth, 0usize, form)
        && is_inner(&problem.height, &site.height, 1usize, form)
        && is_inner(&problem.width, &site.width, 2usize, form)
}

/// Whether all that a strip reads is inside on axis `i`, where the interior has it so.
#[cube]
fn is_inner(axis: &AxisArgs, taps: &Taps, #[comptime] i: usize, #[comptime] form: Form) -> bool {
    if comptime!(form.axis(i) == form.interior().axis(i)) {
        true.runtime()
    } else if comptime!(i == form.along.axis) {
        taps.start >= 0 && taps.start + comptime!(form.along.rows() as i32) <= axis.input
    } else {
        has_all_taps(axis, taps, form.axis(i))
    }
}

/// Computes the outputs of a strip, with their positions.
#[cube]
fn compute<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    indices: &mut ComptimeOption<Box<[Vector<i32, N>]>>,
    problem: &Problem,
    strips: &Strips,
    place: &Place,
    #[comptime] form: Form,
) {
    let mut rows = Sequence::<Accumulator<A, N>>::new();
    #[unroll]
    for j in 0..form.along.rows() {
        rows.push(row::<S, A, N>(input, problem, strips, &place.site, j, form));
    }
    #[unroll]
    for i in 0..form.along.outputs {
        let top = comptime!((i * form.along.stride) as usize);
        let mut folded = Accumulator::<A, N> {
            value: rows.index(top).value,
            position: rows.index(top).position,
        };
        #[unroll]
        for t in 1..form.along.kernel {
            let next = comptime!((i * form.along.stride + t) as usize);
            fold::<A, N>(&mut folded, rows.index(next), form.tap);
        }
        let site = site_of(problem, place, i, 0u32, form);
        let vector = place.output + i * place.step;
        let there = if comptime!(form.along.whole) {
            true.runtime()
        } else {
            place.first + i < outputs_along(strips, form)
        };
        if there {
            finish::<S, A, N>(output, indices, problem, &site, &folded, vector, form.tap);
        }
    }
}

/// Where a strip is.
#[derive(CubeType)]
pub(super) struct Place {
    /// The site of its first output.
    pub(super) site: Site,
    /// The position of the first output along the strip's axis.
    pub(super) first: u32,
    /// The first output's vector, and the step to the next output's.
    pub(super) output: u32,
    pub(super) step: u32,
}

#[cube]
fn place_of(problem: &Problem, strips: &Strips, unit: u32, #[comptime] form: Form) -> Place {
    let (w, lane, row) = if comptime!(form.tap.channels) {
        tiled(&strips.tiles, &strips.width, unit)
    } else {
        let (row, w) = strips.width.div_mod(unit);
        (w, 0u32.runtime(), row)
    };
    let (plane, h) =
        if comptime!(form.tap.rank > 1) { strips.height.div_mod(row) } else { (row, 0u32) };
    let (sample, d) =
        if comptime!(form.tap.rank > 2) { strips.depth.div_mod(plane) } else { (plane, 0u32) };
    let strip = comptime!(form.along.outputs);
    let d = if comptime!(form.along.axis == 0) { d * strip } else { d };
    let h = if comptime!(form.along.axis == 1) { h * strip } else { h };
    let w = if comptime!(form.along.axis == 2) { w * strip } else { w };
    // The last columns are as many as the others, and some of them are the block's before too.
    let w = if comptime!(form.columns > 1) {
        min(w * form.columns, strips.outputs_width - form.columns)
    } else {
        w
    };
    let (first, step) = match form.along.axis {
        0 => (d, strips.outputs_height * strips.outputs_width * problem.pixel_vectors),
        1 => (h, strips.outputs_width * problem.pixel_vectors),
        _ => (w, problem.pixel_vectors),
    };
    let plane = (sample * strips.outputs_depth + d) * strips.outputs_height + h;
    let output = (plane * strips.outputs_width + w) * problem.pixel_vectors + lane;
    let column =
        if comptime!(form.tap.across) { w * comptime!(form.reach.output as u32) } else { w };
    let site = Site {
        sample,
        lane,
        column,
        depth: taps_of(&problem.depth, d, form.tap.depth),
        height: taps_of(&problem.height, h, form.tap.height),
        width: taps_of(&problem.width, column, form.tap.width),
    };
    Place { site, first, output, step }
}

/// The site of the strip's output `i`, in column `v` of the strip.
#[cube]
pub(super) fn site_of(
    problem: &Problem,
    place: &Place,
    #[comptime] i: u32,
    #[comptime] v: u32,
    #[comptime] form: Form,
) -> Site {
    let o = place.first + i;
    let axis = comptime!(form.along.axis);
    let column = if comptime!(axis == 2) { o } else { place.site.column + v };
    let moved = comptime!(axis == 2 || v > 0);
    Site {
        sample: place.site.sample,
        lane: place.site.lane,
        column,
        depth: taps_at(&problem.depth, &place.site.depth, o, comptime!(axis == 0), form.axis(0)),
        height: taps_at(&problem.height, &place.site.height, o, comptime!(axis == 1), form.axis(1)),
        width: taps_at(&problem.width, &place.site.width, column, moved, form.axis(2)),
    }
}

/// The taps at output `o` of an axis along which outputs differ, or those that all of a strip have.
#[cube]
fn taps_at(
    axis: &AxisArgs,
    taps: &Taps,
    o: u32,
    #[comptime] differ: bool,
    #[comptime] form: AxisForm,
) -> Taps {
    if comptime!(differ) { taps_of(axis, o, form) } else { *taps }
}

#[cube]
pub(super) fn outputs_along(strips: &Strips, #[comptime] form: Form) -> u32 {
    match form.along.axis {
        0 => strips.outputs_depth,
        1 => strips.outputs_height,
        _ => strips.outputs_width,
    }
}

/// Folds the taps of the inner axes at row `j` of a strip, in their order.
#[cube]
fn row<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    problem: &Problem,
    strips: &Strips,
    site: &Site,
    #[comptime] j: u32,
    #[comptime] form: Form,
) -> Accumulator<A, N> {
    let mut folded = line::<S, A, N>(input, problem, strips, site, form.line(j, 0), form);
    #[unroll]
    for i in 1..form.lines() {
        let next = line::<S, A, N>(input, problem, strips, site, form.line(j, i), form);
        fold::<A, N>(&mut folded, &next, form.tap);
    }
    folded
}

/// Folds the taps of the width on a line.
#[cube]
fn line<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    problem: &Problem,
    strips: &Strips,
    site: &Site,
    #[comptime] line: Line,
    #[comptime] form: Form,
) -> Accumulator<A, N> {
    let depth = step(&problem.depth, &site.depth, line.depth, form.axis(0));
    let height = step(&problem.height, &site.height, line.height, form.axis(1));
    if comptime!(form.tap.across) {
        lanes::<S, A, N>(input, problem, strips, site, depth.x, height.x, form)
    } else {
        pixels::<S, A, N>(input, problem, site, depth.x, height.x, line.width, form)
    }
}

/// The coordinate of a tap, and whether it was inside before it was moved there.
#[derive(CubeType)]
pub(super) struct Step {
    pub(super) x: i32,
    pub(super) inside: bool,
}

#[cube]
pub(super) fn step(
    axis: &AxisArgs,
    taps: &Taps,
    #[comptime] tap: TapForm,
    #[comptime] form: AxisForm,
) -> Step {
    let t = comptime!(tap.t as i32);
    if comptime!(tap.row) {
        let x = taps.start + t;
        let moved = if comptime!(tap.moves) { min(max(x, 0i32), axis.input - 1) } else { x };
        Step { x: moved, inside: moved == x }
    } else if comptime!(tap.moves) {
        let inside = t >= taps.first && t < taps.end;
        Step { x: coordinate(axis, taps, t.runtime(), form), inside }
    } else {
        let x = coordinate(axis, taps, t.runtime(), form.unclipped());
        Step { x, inside: true.runtime() }
    }
}

/// Folds a line whose taps are pixels.
#[cube]
fn pixels<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    problem: &Problem,
    site: &Site,
    d: i32,
    h: i32,
    #[comptime] first: TapForm,
    #[comptime] form: Form,
) -> Accumulator<A, N> {
    let mut folded = pixel::<S, A, N>(input, problem, site, d, h, first, form);
    #[unroll]
    for t in 1..form.taps(2) {
        let tap = comptime!(form.tap(2, t));
        let next = pixel::<S, A, N>(input, problem, site, d, h, tap, form);
        fold::<A, N>(&mut folded, &next, form.tap);
    }
    folded
}

#[cube]
fn pixel<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    problem: &Problem,
    site: &Site,
    d: i32,
    h: i32,
    #[comptime] tap: TapForm,
    #[comptime] form: Form,
) -> Accumulator<A, N> {
    let width = step(&problem.width, &site.width, tap, form.axis(2));
    let position = plane_position(problem, d, h, width.x);
    let plane = problem.depth.input * problem.height.input * problem.width.input;
    let pixel = site.sample * plane as u32 + position as u32;
    let offset = if comptime!(form.tap.channels) {
        pixel * problem.pixel_vectors + site.lane
    } else {
        pixel
    };
    let value = widen::<S, A, N>(input[offset as usize], form.tap.widened);
    Accumulator::<A, N> { value, position: Vector::new(position) }
}

/// Folds a line along which the lanes lie.
///
/// A position is that of lane 0 with the same tap; `index_lane` takes it to its own lane.
#[cube]
fn lanes<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    problem: &Problem,
    strips: &Strips,
    site: &Site,
    d: i32,
    h: i32,
    #[comptime] form: Form,
) -> Accumulator<A, N> {
    let width = comptime!(form.reach);
    let lowest = Vector::<A, N>::new(problem.lowest.get::<A>());
    let outside = Vector::<S, N>::cast_from(lowest);
    let count = strips.width_vectors as i32;
    let line = (site.sample as i32 * problem.depth.input + d) * problem.height.input + h;
    let first = (site.column / comptime!(width.output as u32)) as i32 * width.stride as i32
        - width.ahead() as i32;
    let mut vectors = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for v in 0..width.vectors() {
        if comptime!(!width.touches(v)) {
            vectors.push(lowest);
        } else if comptime!(form.may_miss(v)) {
            let at = first + v as i32;
            let there = min(max(at, 0i32), count - 1);
            let value = select(there == at, input[(line * count + there) as usize], outside);
            vectors.push(widen::<S, A, N>(value, form.tap.widened));
        } else {
            let at = line * count + first + v as i32;
            vectors.push(widen::<S, A, N>(input[at as usize], form.tap.widened));
        }
    }
    let start = plane_position(problem, d, h, site.width.start);
    let mut folded = Accumulator::<A, N> {
        value: lanes_of::<A, N, N>(&vectors, 0usize, 1usize, 0usize, width),
        position: first_inside::<N>(problem, site, d, h, form),
    };
    #[unroll]
    for t in 1..width.taps {
        let next = Accumulator::<A, N> {
            value: lanes_of::<A, N, N>(&vectors, t, 1usize, 0usize, width),
            position: Vector::new(start + (t * width.dilation) as i32),
        };
        fold::<A, N>(&mut folded, &next, form.tap);
    }
    folded
}

/// The position on a line of each lane's first tap inside, by which lane 0 would name it.
#[cube]
fn first_inside<N: Size>(
    problem: &Problem,
    site: &Site,
    d: i32,
    h: i32,
    #[comptime] form: Form,
) -> Vector<i32, N> {
    let line = plane_position(problem, d, h, 0i32);
    if comptime!(form.tap.width.may_be_outside(0)) {
        let mut first = Vector::<i32, N>::new(line);
        #[unroll]
        for i in 0..N::value() {
            let lane = comptime!((i * form.reach.stride) as i32);
            let column = first_coordinate(problem, site.width.start + lane, form.tap.width) - lane;
            first.insert(i, line + column);
        }
        first
    } else {
        Vector::new(line + site.width.start)
    }
}

/// The first coordinate inside of a window that starts at `start`.
#[cube]
fn first_coordinate(problem: &Problem, start: i32, #[comptime] form: AxisForm) -> i32 {
    if comptime!(form.dilated) {
        let below = max(-start, 0i32);
        let dilation = problem.width.dilation;
        start + (below + dilation - 1) / dilation * dilation
    } else {
        max(start, 0i32)
    }
}
