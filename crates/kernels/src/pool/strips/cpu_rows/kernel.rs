//! The kernel of threads that walk along rows.

use cubecl::prelude::*;

use crate::cube::convert::widen;
use crate::cube::optional::Optional;
use crate::cube::unit::unit_position;
use crate::pool::common::window::{Accumulator, combine, identity};
use crate::pool::strips::form::Form;
use crate::pool::strips::strip::{
    Strip, Strips, exists, is_interior, row_at, site_at, strip_at, vector_of,
};
use crate::pool::strips::windows::{folded, reduce_lanes};

#[cube(launch_unchecked)]
pub(super) fn walk_rows<S: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, M>],
    output: &mut [Vector<S, N>],
    mut indices: Optional<Box<[Vector<i32, N>]>>,
    strips: &Strips,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let unit = unit_position(form.window.contiguous);
    if unit >= strips.units {
        terminate!();
    }
    let (row, piece) = strips.width.div_mod(unit);
    let strip = strip_at(strips, row, 0u32.runtime(), 0u32.runtime(), form);
    let start = piece * strips.piece;
    let end = min(start + strips.piece, strips.outputs_width);
    let inner =
        if comptime!(form.splits()) { is_interior(strips, &strip, form) } else { false.runtime() };
    if inner {
        let form = comptime!(form.interior());
        walk_row::<S, A, N, M>(input, output, &mut indices, strips, &strip, start, end, form);
    } else {
        walk_row::<S, A, N, M>(input, output, &mut indices, strips, &strip, start, end, form);
    }
}

/// A line of the input: its first vector, and whether it was inside the input before it was clamped.
#[derive(CubeType)]
struct Line {
    first: usize,
    inside: bool,
}

/// Computes the output vectors `start..end` of a row of strips.
#[cube]
fn walk_row<S: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, M>],
    output: &mut [Vector<S, N>],
    indices: &mut Optional<Box<[Vector<i32, N>]>>,
    strips: &Strips,
    strip: &Strip<'_>,
    start: u32,
    end: u32,
    #[comptime] form: Form,
) {
    let outputs = comptime!(form.along.outputs as usize);
    let reach = comptime!(form.reach);
    let mut lines = Sequence::<Line>::new();
    #[unroll]
    for n in 0..form.all_lines() {
        let row = row_at(&strip.site, comptime!(form.nth_line(n)), form);
        let first = row.x as usize * strips.width_vectors as usize;
        lines.push(Line { first, inside: row.inside });
    }
    let mut kept = Sequence::<RuntimeCell<Vector<A, M>>>::new();
    #[unroll]
    for v in 0..reach.kept() {
        let folded = columns::<S, A, M>(input, strips, &lines, start, v, form);
        #[unroll]
        for i in 0..outputs {
            kept.push(RuntimeCell::<Vector<A, M>>::new(*folded.index(i)));
        }
    }
    for w in start..end {
        // Vector v of output i is at index v·R + i.
        let mut read = Sequence::<Vector<A, M>>::new();
        #[unroll]
        for n in 0..comptime!(reach.kept() * outputs) {
            read.push(kept.index(n).read());
        }
        #[unroll]
        for v in reach.kept()..reach.vectors() {
            let folded = columns::<S, A, M>(input, strips, &lines, w, v, form);
            #[unroll]
            for i in 0..outputs {
                read.push(*folded.index(i));
            }
        }
        #[unroll]
        for n in 0..comptime!(reach.kept() * outputs) {
            let next = comptime!(n + reach.steps() * outputs);
            kept.index(n).store(*read.index(next));
        }
        #[unroll]
        for i in 0..outputs {
            let nth = comptime!(i as u32);
            if exists(strips, strip, nth, form) {
                let value = reduce_lanes::<A, N, M>(&read, outputs, i, form);
                let folded = Accumulator::<A, N> { value, position: Vector::new(0i32) };
                let column = w * comptime!(form.reach.output as u32);
                let site = site_at(strip, strip.first + nth, column, true, form);
                let vector = strip.output + nth * strip.step + w;
                site.finish::<S, A, N>(output, indices, &folded, vector);
            }
        }
    }
}

/// The lines of each window of a strip, reduced lane by lane for vector `v` of those that output vector `w` reads.
#[cube]
fn columns<S: Float, A: Float, M: Size>(
    input: &[Vector<S, M>],
    strips: &Strips,
    lines: &Sequence<Line>,
    w: u32,
    #[comptime] v: usize,
    #[comptime] form: Form,
) -> Sequence<Vector<A, M>> {
    let vector = vector_of(strips, w, v, form);
    let mut loaded = Sequence::<Vector<A, M>>::new();
    #[unroll]
    for n in 0..form.all_lines() {
        let line = lines.index(n);
        let value = widen::<S, A, M>(input[line.first + vector.x as usize], form.window.widened);
        let outside = identity::<A, M>(&strips.problem, form.window.fold);
        let value = if comptime!(form.drops_line(n)) {
            select(vector.inside && line.inside, value, outside)
        } else if comptime!(form.may_miss(v)) {
            select(vector.inside, value, outside)
        } else {
            value
        };
        loaded.push(value);
    }
    let mut windows = Sequence::<Vector<A, M>>::new();
    if comptime!(form.common_lines().is_some()) {
        let (first, end) = comptime!(form.common_lines().unwrap_or((0, 1)));
        let common = folded::<A, M>(&loaded, first, end, 1u32, form.window);
        #[unroll]
        for i in 0..form.along.outputs {
            let (from, to) = comptime!(form.lines_of_window(i));
            let mut window = common;
            if comptime!(from < first) {
                let above = folded::<A, M>(&loaded, from, first, 1u32, form.window);
                window = combine::<A, M>(above, window, form.window);
            }
            if comptime!(end < to) {
                let below = folded::<A, M>(&loaded, end, to, 1u32, form.window);
                window = combine::<A, M>(window, below, form.window);
            }
            windows.push(window);
        }
    } else {
        #[unroll]
        for i in 0..form.along.outputs {
            let (from, to) = comptime!(form.lines_of_window(i));
            windows.push(folded::<A, M>(&loaded, from, to, 1u32, form.window));
        }
    }
    windows
}
