//! The outputs of a strip with their positions: taps are folded in their order, line by line and row by
//! row, so that of equals the first is the winner.

use cubecl::prelude::*;

use super::Strips;
use super::form::Form;
use super::kernel::{Place, outputs_along, site_of};
use super::taps::{Line, TapForm, step};
use crate::axis::AxisForm;
use crate::dtype::widen;
use crate::pool::reach::lanes_of;
use crate::pool::window::{Accumulator, Problem, Site, finish, fold, plane_position};

/// Computes the outputs of a strip, with their positions.
#[cube]
pub(super) fn compute<S: Float, A: Float, N: Size>(
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
    for j in 0..form.rows() {
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
