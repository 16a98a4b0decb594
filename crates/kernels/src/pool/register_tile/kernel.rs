//! The kernel: the position of a unit's strip, and whether it is away from all edges.

use cubecl::prelude::*;

use super::{Strips, positions, values};
use crate::cube::axis::{AxisArgs, AxisForm, Taps, has_all_taps, taps_of};
use crate::cube::unit::unit_position;
use crate::pool::common::strips::Form;
use crate::pool::common::tiles::tiled;
use crate::pool::common::window::{ProblemArgs, Site};

/// `S` is the type in which elements are stored, `A` the type in which they are compared and summed. Written vectors
/// have `N` lanes, read vectors `M`.
#[cube(launch_unchecked)]
pub(super) fn strip<S: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, M>],
    output: &mut [Vector<S, N>],
    mut indices: ComptimeOption<Box<[Vector<i32, N>]>>,
    problem: &ProblemArgs,
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
        let has_nan = if inner {
            let form = comptime!(form.interior());
            positions::compute::<S, A, N, M>(
                input,
                output,
                &mut indices,
                problem,
                strips,
                &place,
                form,
            )
        } else {
            positions::compute::<S, A, N, M>(
                input,
                output,
                &mut indices,
                problem,
                strips,
                &place,
                form,
            )
        };
        if has_nan {
            positions::index_nans::<S, A, N, M>(input, &mut indices, problem, strips, &place, form);
        }
    } else if inner {
        let form = comptime!(form.interior());
        values::compute::<S, A, N, M>(input, output, &mut indices, problem, strips, &place, form);
    } else {
        values::compute::<S, A, N, M>(input, output, &mut indices, problem, strips, &place, form);
    }
}

/// Whether all outputs of a strip exist, and all that it reads is inside the input.
#[cube]
fn is_interior(
    problem: &ProblemArgs,
    strips: &Strips,
    place: &Place,
    #[comptime] form: Form,
) -> bool {
    let site = &place.site;
    place.first + form.along.outputs <= outputs_along(strips, form)
        && is_inner(&problem.depth, &site.depth, 0usize, form)
        && is_inner(&problem.height, &site.height, 1usize, form)
        && is_inner(&problem.width, &site.width, 2usize, form)
}

/// Whether all that a strip reads on axis `i` is inside the input, if the interior form relies on it.
#[cube]
fn is_inner(axis: &AxisArgs, taps: &Taps, #[comptime] i: usize, #[comptime] form: Form) -> bool {
    if comptime!(form.axis(i) == form.interior().axis(i)) {
        true.runtime()
    } else if comptime!(i == form.along.axis) {
        taps.start >= 0 && taps.start + comptime!(form.rows() as i32) <= axis.input
    } else {
        has_all_taps(axis, taps, form.axis(i))
    }
}

/// The position of a strip.
#[derive(CubeType)]
pub(super) struct Place {
    /// The site of its first output.
    pub(super) site: Site,
    /// The position of the first output along the strip's axis.
    pub(super) first: u32,
    /// The first output's vector, and the step to the next output's.
    pub(super) output: u32,
    pub(super) step: u32,
    /// The first of the columns that belong to this strip only.
    pub(super) aside: u32,
}

#[cube]
fn place_of(problem: &ProblemArgs, strips: &Strips, unit: u32, #[comptime] form: Form) -> Place {
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
    // The last block has as many columns as the others; some of them may belong to the block before it too.
    let own = w * form.columns;
    let w = if comptime!(form.columns > 1) {
        min(own, strips.outputs_width - form.columns)
    } else {
        own
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
    Place { site, first, output, step, aside: own - w }
}

/// The site of the strip's output `i`, in column `v` of the strip.
#[cube]
pub(super) fn site_of(
    problem: &ProblemArgs,
    place: &Place,
    #[comptime] i: u32,
    #[comptime] v: u32,
    #[comptime] form: Form,
) -> Site {
    site_at(problem, place, place.first + i, v, form)
}

/// The site of output `o` along the strip's axis, in column `v` of the strip.
#[cube]
pub(super) fn site_at(
    problem: &ProblemArgs,
    place: &Place,
    o: u32,
    #[comptime] v: u32,
    #[comptime] form: Form,
) -> Site {
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
