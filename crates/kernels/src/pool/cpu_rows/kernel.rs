//! The kernel of threads that walk along rows.

use cubecl::prelude::*;

use super::{Form, Rows};
use crate::cube::axis::{Taps, has_all_taps, taps_of};
use crate::cube::convert::widen;
use crate::cube::unit::unit_position;
use crate::pool::common::reach::lanes_of;
use crate::pool::common::taps::step;
use crate::pool::common::window::{Accumulator, ProblemArgs, Site, finish, neutral, together};

/// `S` is the type in which elements are stored, `A` the type in which they are compared and summed.
#[cube(launch_unchecked)]
pub(super) fn walk_rows<S: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, M>],
    output: &mut [Vector<S, N>],
    mut indices: ComptimeOption<Box<[Vector<i32, N>]>>,
    problem: &ProblemArgs,
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

/// Position and extent of a unit's piece of a row of strips.
#[derive(CubeType)]
struct Place {
    /// The site of its first output.
    site: Site,
    /// The position of the first output along the strip's axis.
    first: u32,
    /// The output vector at the start of the whole row, and the step to the next output of the strip.
    output: u32,
    step: u32,
    /// The range of output vectors in the row that belong to this piece.
    start: u32,
    end: u32,
}

#[cube]
fn place_of(problem: &ProblemArgs, rows: &Rows, unit: u32, #[comptime] form: Form) -> Place {
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

/// Whether all outputs of a strip exist, and everything that they read along depth and height is inside the input.
#[cube]
fn is_interior(problem: &ProblemArgs, rows: &Rows, place: &Place, #[comptime] form: Form) -> bool {
    let reach = comptime!(form.strip.rows() as i32);
    let there = place.first + comptime!(form.outputs() as u32) <= outputs_along(rows, form);
    let site = &place.site;
    if comptime!(form.along == 0) {
        let inside = site.depth.start >= 0 && site.depth.start + reach <= problem.depth.input;
        there && inside && has_all_taps(&problem.height, &site.height, form.strip.tap.height)
    } else {
        let inside = site.height.start >= 0 && site.height.start + reach <= problem.height.input;
        // A window of one plane may lie entirely in the padding.
        there && inside && has_all_taps(&problem.depth, &site.depth, form.strip.tap.depth)
    }
}

/// A line of the input: its first vector, and whether it was inside the input before it was clamped.
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
    problem: &ProblemArgs,
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
        // Vector v of output i is at index v·R + i.
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
    problem: &ProblemArgs,
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

/// Line `n` of the lines that a strip reads.
#[cube]
fn line_of(
    problem: &ProblemArgs,
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

/// The lines of each window of a strip, reduced lane by lane for vector `v` of those that output vector `w` reads.
#[cube]
fn columns<S: Float, A: Float, M: Size>(
    input: &[Vector<S, M>],
    problem: &ProblemArgs,
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

/// The lines `from..to`, reduced lane by lane.
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

/// Reduces, for each lane of output `i`, its taps along the width.
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
