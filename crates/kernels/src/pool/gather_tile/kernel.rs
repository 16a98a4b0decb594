//! The kernel: the position of a unit's block, and the gradients of its inputs.

use cubecl::prelude::*;
use windowpane_geometry::AXES;

use super::form::Form;
use super::shares::{divided_once, lines, shared_out};
use super::windows::{Window, window, window_at};
use super::{BlockAxis, Blocks};
use crate::cube::convert::round;
use crate::cube::unit::unit_position;
use crate::pool::common::window::split;
use crate::pool::common::{Block, tiled};

#[cube(launch_unchecked)]
pub(super) fn gather_blocks<S: Float, A: Float, M: Size, N: Size>(
    dy: &[Vector<S, M>],
    winners: ComptimeOption<Box<[Vector<i32, M>]>>,
    dx: &mut [Vector<S, N>],
    problem: &Blocks,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let unit = unit_position(form.runs);
    if unit >= problem.units {
        terminate!();
    }
    let place = place_of(problem, unit, form);
    // On a width without channels, a warp would cross the edges and run both paths.
    let inner = if comptime!(form.channels || !form.fold.is_extremum()) {
        is_interior(problem, &place, form)
    } else {
        false.runtime()
    };
    if inner {
        let form = comptime!(form.interior());
        block::<S, A, M, N>(dy, &winners, dx, problem, &place, form);
    } else {
        block::<S, A, M, N>(dy, &winners, dx, problem, &place, form);
    }
}

/// The position of a block on each axis: the first window that starts at it and its first input, in vectors if the
/// lanes lie along the axis.
#[derive(CubeType)]
pub(super) struct BlockPosition {
    pub(super) sample: i32,
    /// The vector within the pixel.
    pub(super) lane: i32,
    pub(super) depth: Corner,
    pub(super) height: Corner,
    pub(super) width: Corner,
}

#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Corner {
    pub(super) window: i32,
    pub(super) input: i32,
}

#[cube]
fn place_of(problem: &Blocks, unit: u32, #[comptime] form: Form) -> BlockPosition {
    let (w, lane, row) = if comptime!(form.channels) {
        tiled(&problem.tiles, &problem.width.places, unit)
    } else {
        let (row, w) = problem.width.places.div_mod(unit);
        (w, 0u32.runtime(), row)
    };
    let (plane, h) =
        if comptime!(form.rank > 1) { problem.height.places.div_mod(row) } else { (row, 0u32) };
    let (sample, d) =
        if comptime!(form.rank > 2) { problem.depth.places.div_mod(plane) } else { (plane, 0u32) };
    BlockPosition {
        sample: sample as i32,
        lane: lane as i32,
        depth: corner(d as i32, form.axes[0], 1u32, 1u32),
        height: corner(h as i32, form.axes[1], 1u32, 1u32),
        width: corner(w as i32, form.axes[2], form.window_lanes, form.lanes),
    }
}

#[cube]
fn corner(
    place: i32,
    #[comptime] block: Block,
    #[comptime] windows: u32,
    #[comptime] lanes: u32,
) -> Corner {
    Corner {
        window: place * comptime!((block.inputs / block.stride / windows) as i32),
        input: place * comptime!((block.inputs / lanes) as i32),
    }
}

/// Whether a block is away from all edges.
#[cube]
fn is_interior(problem: &Blocks, place: &BlockPosition, #[comptime] form: Form) -> bool {
    let [depth, height, width] = comptime!(form.windows());
    let inputs = comptime!(form.inputs());
    let counts = comptime!(!form.fold.is_extremum());
    let inner = is_inner(&problem.depth, &place.depth, depth, inputs[0], form.axes[0], counts)
        && is_inner(&problem.height, &place.height, height, inputs[1], form.axes[1], counts);
    if comptime!(form.crosses()) {
        inner
    } else {
        inner && is_inner(&problem.width, &place.width, width, inputs[2], form.axes[2], counts)
    }
}

/// Whether the inputs of a block and the windows over them exist. If `counts`, these windows must also be inside the
/// input, because their divisors depend on that.
#[cube]
fn is_inner(
    args: &BlockAxis,
    corner: &Corner,
    #[comptime] windows: (i32, u32),
    #[comptime] inputs: u32,
    #[comptime] block: Block,
    #[comptime] counts: bool,
) -> bool {
    let (first, count) = comptime!((windows.0, windows.1 as i32));
    let there = corner.window + first >= 0
        && corner.window + first + count <= args.outputs
        && corner.input + comptime!(inputs as i32) <= args.inputs;
    if comptime!(counts && block.form.clipped) {
        // The windows reach this far beyond the block's inputs, and nothing there may be padding.
        let x = corner.input * comptime!(block.lanes_of(inputs));
        let reach = comptime!((block.kernel - 1) as i32);
        there && x >= reach && x + comptime!(block.inputs as i32) + reach <= args.axis.input
    } else {
        there
    }
}

/// Computes the inputs of a block.
#[cube]
fn block<S: Float, A: Float, M: Size, N: Size>(
    dy: &[Vector<S, M>],
    winners: &ComptimeOption<Box<[Vector<i32, M>]>>,
    dx: &mut [Vector<S, N>],
    problem: &Blocks,
    place: &BlockPosition,
    #[comptime] form: Form,
) {
    let mut windows = Sequence::<Window<A, M>>::new();
    #[unroll]
    for i in 0..form.all_windows() {
        windows.push(window::<S, A, M>(dy, winners, problem, place, i, form));
    }
    // Not while they are loaded: each load would wait for the one before it.
    let windows = if comptime!(form.divides_each()) {
        shared_out::<A, M>(windows, problem, place, form)
    } else {
        windows
    };
    let lines = if comptime!(form.fold.is_extremum()) {
        Sequence::<Vector<A, N>>::new()
    } else {
        lines::<A, M, N>(&windows, form)
    };
    #[unroll]
    for i in 0..form.all_inputs() {
        let x = comptime!(split(form.inputs(), i));
        let d = place.depth.input + comptime!(x[0] as i32);
        let h = place.height.input + comptime!(x[1] as i32);
        let w = place.width.input + comptime!(x[2] as i32);
        let there = is_below(d, problem.depth.inputs, form.axes[0])
            && is_below(h, problem.height.inputs, form.axes[1])
            && is_below(w, problem.width.inputs, form.axes[2]);
        if there {
            let line = (place.sample * problem.depth.inputs + d) * problem.height.inputs + h;
            let pixel = line * problem.width.inputs + w;
            let index = index_of::<N>(problem, place, d, h, w, form);
            let mut sum = if comptime!(form.fold.is_extremum()) {
                gather::<A, M, N>(&windows, index, x, form)
            } else {
                gather_lines::<A, N>(&lines, x, form)
            };
            if comptime!(form.divides_once()) {
                sum = divided_once::<A, N>(problem, sum, form);
            }
            let at = pixel * problem.pixel_vectors + place.lane;
            dx[at as usize] = round::<A, S, N>(sum, form.rounds);
        }
    }
}

/// Whether an input of a block exists.
#[cube]
fn is_below(x: i32, inputs: i32, #[comptime] block: Block) -> bool {
    if comptime!(block.whole) { true.runtime() } else { x < inputs }
}

/// The index by which a window names this input as its winner.
#[cube]
fn index_of<N: Size>(
    problem: &Blocks,
    place: &BlockPosition,
    d: i32,
    h: i32,
    w: i32,
    #[comptime] form: Form,
) -> Vector<i32, N> {
    let lanes = comptime!(form.lanes as i32);
    let line = d * problem.height.axis.input + h;
    let position = line * problem.width.axis.input + w * lanes;
    let index =
        place.sample * problem.index_batch as i32 + position * problem.index_position as i32;
    if comptime!(form.one_index) {
        Vector::new(index)
    } else {
        let first = place.lane * N::value() as i32 * problem.index_lane as i32;
        let index = index + if comptime!(form.along_width) { 0i32.runtime() } else { first };
        let mut indices = Vector::<i32, N>::new(index);
        #[unroll]
        for i in 0..N::value() {
            indices.insert(i, index + i as i32 * problem.index_lane as i32);
        }
        indices
    }
}

/// Adds the gradients of the windows that an input won.
#[cube]
fn gather<A: Float, M: Size, N: Size>(
    windows: &Sequence<Window<A, M>>,
    index: Vector<i32, N>,
    #[comptime] x: [u32; AXES],
    #[comptime] form: Form,
) -> Vector<A, N> {
    let zero = Vector::<A, N>::new(A::from_int(0));
    let steps = comptime!(form.steps(x));
    let mut sum = zero;
    if comptime!(form.along_width) {
        #[unroll]
        for lane in 0..N::value() {
            sum.insert(lane, gather_lane::<A, M, N>(windows, index, x, lane as u32, form));
        }
    } else {
        #[unroll]
        for i in 0..comptime!(steps[0] * steps[1] * steps[2]) {
            let step = comptime!(split(steps, i));
            let line = comptime!(form.line_over(x, [step[0], step[1]]));
            let window = window_at::<A, M, N>(windows, line, x[2], step[2], form);
            sum = select_many(window.winner.equal(&index), sum + window.share, sum);
        }
    }
    sum
}

/// The same for one lane along the width; each lane has windows of its own.
#[cube]
fn gather_lane<A: Float, M: Size, N: Size>(
    windows: &Sequence<Window<A, M>>,
    index: Vector<i32, N>,
    #[comptime] x: [u32; AXES],
    #[comptime] lane: u32,
    #[comptime] form: Form,
) -> A {
    let columns = comptime!(form.windows()[2].1 as usize);
    let steps = comptime!([form.steps(x)[0], form.steps(x)[1], form.over_lane(x[2], lane).1]);
    let own = index.extract(lane as usize);
    let zero = A::from_int(0);
    let mut sum = zero;
    #[unroll]
    for i in 0..comptime!(steps[0] * steps[1] * steps[2]) {
        let step = comptime!(split(steps, i));
        let line = comptime!(form.line_over(x, [step[0], step[1]]));
        let (vector, element) = comptime!(form.on_line(x[2], step[2], lane));
        let window = windows.index(comptime!(line * columns + vector));
        let share = window.share.extract(element);
        let wins = window.winner.extract(element) == own;
        sum = if comptime!(i == 0) {
            select(wins, share, zero)
        } else {
            select(wins, sum + share, sum)
        };
    }
    sum
}

/// Adds the shares of an input from the lines of windows over it.
#[cube]
fn gather_lines<A: Float, N: Size>(
    lines: &Sequence<Vector<A, N>>,
    #[comptime] x: [u32; AXES],
    #[comptime] form: Form,
) -> Vector<A, N> {
    let count = comptime!(form.lines_over(x));
    let mut sum = if comptime!(count > 0) {
        *lines.index(comptime!(form.line_sum(x, 0)))
    } else {
        Vector::<A, N>::new(A::from_int(0))
    };
    #[unroll]
    for i in 1..count {
        sum += *lines.index(comptime!(form.line_sum(x, i)));
    }
    sum
}
