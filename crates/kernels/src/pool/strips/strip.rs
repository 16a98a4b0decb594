//! The positions of strips and of their outputs, and whether they are away from all edges.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis};

use super::form::Form;
use super::taps::{Line, Step, step};
use crate::cube::axis::{AxisArgs, AxisForm, Taps, has_all_taps, taps_of};
use crate::cube::numbers;
use crate::pool::common::window::{ProblemArgs, Site, problem_args, split_row};
use crate::pool::common::{Task, Tiles, tiles_args};

/// The numbers of a problem and of the positions of its units.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Strips {
    pub(super) problem: ProblemArgs,
    pub(super) units: u32,
    pub(super) tiles: Tiles,
    /// The number of units on each axis: strips on the axis that they lie along, and vectors on the width if the lanes
    /// lie along it, or pieces of a row.
    pub(super) depth: FastDivmod<u32>,
    pub(super) height: FastDivmod<u32>,
    pub(super) width: FastDivmod<u32>,
    /// The number of outputs on each axis; vectors on the width if the lanes lie along it.
    pub(super) outputs_depth: u32,
    pub(super) outputs_height: u32,
    pub(super) outputs_width: u32,
    /// The number of vectors in the input's width, if the lanes lie along it.
    pub(super) width_vectors: u32,
    /// The number of output vectors in a piece of a row.
    pub(super) piece: u32,
}

/// The arguments for units at `places` on each axis, which read vectors of `read` lanes.
pub(super) fn strips_args(
    task: Task<'_>,
    places: [usize; AXES],
    [units, read, piece]: [usize; 3],
) -> StripsLaunch {
    let outputs = task.vectors_on_axes(Axis::output);
    numbers! { StripsLaunch {
        problem: problem_args(task), units, tiles: tiles_args(task, places[AXES - 2]),
        depth: places[0], height: places[1], width: places[2], outputs_depth: outputs[0],
        outputs_height: outputs[1], outputs_width: outputs[2],
        width_vectors: task.axes()[AXES - 1].input() / read, piece,
    } }
}

/// The position of a strip.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Strip<'a> {
    /// The site of its first output.
    pub(super) site: Site<'a>,
    /// The position of the first output along the strip's axis.
    pub(super) first: u32,
    /// The first output's vector, and the step to the next output's.
    pub(super) output: u32,
    pub(super) step: u32,
}

/// The strip on `row` of the rows of strips, whose first output is at `w`.
#[cube]
pub(super) fn strip_at<'a>(
    strips: &'a Strips,
    row: u32,
    w: u32,
    pixel_vector: u32,
    #[comptime] form: Form,
) -> Strip<'a> {
    let (sample, d, h) = split_row(row, &strips.depth, &strips.height, form.window.rank);
    let outputs = comptime!(form.along.outputs);
    let d = if comptime!(form.along.axis == 0) { d * outputs } else { d };
    let h = if comptime!(form.along.axis == 1) { h * outputs } else { h };
    let (first, step) = match form.along.axis {
        0 => (d, strips.outputs_height * strips.outputs_width * strips.problem.pixel_vectors),
        1 => (h, strips.outputs_width * strips.problem.pixel_vectors),
        _ => (w, strips.problem.pixel_vectors),
    };
    let plane = (sample * strips.outputs_depth + d) * strips.outputs_height + h;
    let output = (plane * strips.outputs_width + w) * strips.problem.pixel_vectors + pixel_vector;
    let column = if comptime!(form.window.along_width) {
        w * comptime!(form.reach.output as u32)
    } else {
        w
    };
    let site = Site::<'a> {
        problem: &strips.problem,
        sample,
        pixel_vector,
        column,
        depth: taps_of(&strips.problem.depth, d, form.window.axes[0]),
        height: taps_of(&strips.problem.height, h, form.window.axes[1]),
        width: taps_of(&strips.problem.width, column, form.window.axes[2]),
        form: form.window,
    };
    Strip::<'a> { site, first, output, step }
}

/// Whether all outputs of a strip exist, and all that it reads is inside the input.
#[cube]
pub(super) fn is_interior(strips: &Strips, strip: &Strip<'_>, #[comptime] form: Form) -> bool {
    let site = &strip.site;
    strip.first + form.along.outputs <= outputs_along(strips, form)
        && is_inner(&strips.problem.depth, &site.depth, 0usize, form)
        && is_inner(&strips.problem.height, &site.height, 1usize, form)
        && is_inner(&strips.problem.width, &site.width, 2usize, form)
}

/// Whether all that a strip reads on axis `i` is inside the input, if the interior form relies on it.
#[cube]
fn is_inner(axis: &AxisArgs, taps: &Taps, #[comptime] i: usize, #[comptime] form: Form) -> bool {
    if comptime!(form.window.axes[i] == form.interior().window.axes[i]) {
        true.runtime()
    } else if comptime!(i == form.along.axis) {
        taps.start >= 0 && taps.start + comptime!(form.rows() as i32) <= axis.input
    } else {
        has_all_taps(axis, taps, form.window.axes[i])
    }
}

/// The site of output `o` along the strip's axis, at `column`. Unless `moved`, this is the column of the first output.
#[cube]
pub(super) fn site_at<'a>(
    strip: &Strip<'a>,
    o: u32,
    column: u32,
    #[comptime] moved: bool,
    #[comptime] form: Form,
) -> Site<'a> {
    let (first, problem) = (&strip.site, strip.site.problem);
    let [depth, height, width] = comptime!(form.window.axes);
    let axis = comptime!(form.along.axis);
    Site::<'a> {
        problem,
        sample: first.sample,
        pixel_vector: first.pixel_vector,
        column,
        depth: taps_at(&problem.depth, &first.depth, o, comptime!(axis == 0), depth),
        height: taps_at(&problem.height, &first.height, o, comptime!(axis == 1), height),
        width: taps_at(&problem.width, &first.width, column, moved, width),
        form: form.window,
    }
}

/// The taps at output `o` if outputs `differ` along this axis, otherwise those that all outputs of the strip share.
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

/// Whether output `i` of a strip exists.
#[cube]
pub(super) fn exists(
    strips: &Strips,
    strip: &Strip<'_>,
    #[comptime] i: u32,
    #[comptime] form: Form,
) -> bool {
    if comptime!(form.along.whole) {
        true.runtime()
    } else {
        strip.first + i < outputs_along(strips, form)
    }
}

/// Vector `v` of those along the width that output vector `w` reads, moved inside the input, and whether it was inside
/// before.
#[cube]
pub(super) fn vector_of(
    strips: &Strips,
    w: u32,
    #[comptime] v: usize,
    #[comptime] form: Form,
) -> Step {
    let reach = comptime!(form.reach);
    let at =
        w as i32 * comptime!(reach.steps() as i32) + comptime!(v as i32 - reach.ahead() as i32);
    let x = if comptime!(form.may_miss(v)) {
        min(max(at, 0i32), strips.width_vectors as i32 - 1)
    } else {
        at
    };
    Step { x, inside: x == at }
}

/// The row of the input that a line is on, counted over all planes, and whether the line was inside the input before it
/// was moved inside.
#[cube]
pub(super) fn row_at(site: &Site<'_>, #[comptime] line: Line, #[comptime] form: Form) -> Step {
    let problem = site.problem;
    let depth = step(&problem.depth, &site.depth, line.depth, form.window.axes[0]);
    let height = step(&problem.height, &site.height, line.height, form.window.axes[1]);
    let plane = site.sample as i32 * problem.depth.input + depth.x;
    Step { x: plane * problem.height.input + height.x, inside: depth.inside && height.inside }
}
