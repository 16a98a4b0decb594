//! The kernel: the position of a unit's block, and the gradients of its inputs.

use cubecl::prelude::*;
use windowpane_geometry::AXES;

use super::form::Form;
use super::shares::{divided_once, lines, shared_out};
use super::windows::{Window, window, window_at};
use super::{BlockAxis, Blocks};
use crate::cube::convert::round;
use crate::cube::optional::Optional;
use crate::cube::unit::unit_position;
use crate::pool::common::window::{index_of, plane_position, split, split_row};
use crate::pool::common::{Block, tiled};

#[cube(launch_unchecked)]
pub(super) fn gather_blocks<S: Float, A: Float, M: Size, N: Size>(
    dy: &[Vector<S, M>],
    winners: Optional<Box<[Vector<i32, M>]>>,
    dx: &mut [Vector<S, N>],
    blocks: &Blocks,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let unit = unit_position(form.window.contiguous);
    if unit >= blocks.units {
        terminate!();
    }
    let place = place_of(blocks, unit, form);
    // On a width without channels, a warp would cross the edges and run both paths.
    let inner = if comptime!(form.window.channels || !form.window.fold.is_extremum()) {
        is_interior(blocks, &place, form)
    } else {
        false.runtime()
    };
    if inner {
        let form = comptime!(form.interior());
        block::<S, A, M, N>(dy, &winners, dx, blocks, &place, form);
    } else {
        block::<S, A, M, N>(dy, &winners, dx, blocks, &place, form);
    }
}

/// The position of a block on each axis: the first window that starts at it and its first input, in vectors if the
/// lanes lie along the axis.
#[derive(CubeType)]
pub(super) struct BlockPosition {
    pub(super) sample: i32,
    /// The vector within the pixel.
    pub(super) pixel_vector: i32,
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
fn place_of(blocks: &Blocks, unit: u32, #[comptime] form: Form) -> BlockPosition {
    let (w, pixel_vector, row) = if comptime!(form.window.channels) {
        tiled(&blocks.tiles, &blocks.width.places, unit)
    } else {
        let (row, w) = blocks.width.places.div_mod(unit);
        (w, 0u32.runtime(), row)
    };
    let (sample, d, h) =
        split_row(row, &blocks.depth.places, &blocks.height.places, form.window.rank);
    BlockPosition {
        sample: sample as i32,
        pixel_vector: pixel_vector as i32,
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
fn is_interior(blocks: &Blocks, place: &BlockPosition, #[comptime] form: Form) -> bool {
    let inner = is_inner(&blocks.depth, &place.depth, 0usize, form)
        && is_inner(&blocks.height, &place.height, 1usize, form);
    if comptime!(form.crosses()) {
        inner
    } else {
        inner && is_inner(&blocks.width, &place.width, 2usize, form)
    }
}

/// Whether the inputs of a block and the windows over them exist on axis `i`. The divisors of windows depend on their
/// taps, so these must then be inside the input.
#[cube]
fn is_inner(
    args: &BlockAxis,
    corner: &Corner,
    #[comptime] i: usize,
    #[comptime] form: Form,
) -> bool {
    let (first, count) = comptime!(form.windows()[i]);
    let inputs = comptime!(form.inputs()[i]);
    let there = corner.window + first >= 0
        && corner.window + first + comptime!(count as i32) <= args.outputs
        && corner.input + comptime!(inputs as i32) <= args.inputs;
    if comptime!(!form.window.fold.is_extremum() && form.window.axes[i].clipped) {
        // The windows reach this far beyond the block's inputs, and nothing there may be padding.
        let block = comptime!(form.axes[i]);
        let lanes = comptime!((block.inputs / inputs) as i32);
        let x = corner.input * lanes;
        let reach = comptime!((block.kernel - 1) as i32);
        there && x >= reach && x + comptime!(block.inputs as i32) + reach <= args.inputs * lanes
    } else {
        there
    }
}

/// Computes the inputs of a block.
#[cube]
fn block<S: Float, A: Float, M: Size, N: Size>(
    dy: &[Vector<S, M>],
    winners: &Optional<Box<[Vector<i32, M>]>>,
    dx: &mut [Vector<S, N>],
    blocks: &Blocks,
    place: &BlockPosition,
    #[comptime] form: Form,
) {
    let mut windows = Sequence::<Window<A, M>>::new();
    #[unroll]
    for i in 0..form.all_windows() {
        windows.push(window::<S, A, M>(dy, winners, blocks, place, i, form));
    }
    // Not while they are loaded: each load would wait for the one before it.
    let windows = if comptime!(form.divides_each()) {
        shared_out::<A, M>(windows, blocks, place, form)
    } else {
        windows
    };
    let lines = if comptime!(form.window.fold.is_extremum()) {
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
        let there = is_below(d, blocks.depth.inputs, form.axes[0])
            && is_below(h, blocks.height.inputs, form.axes[1])
            && is_below(w, blocks.width.inputs, form.axes[2]);
        if there {
            let line = (place.sample * blocks.depth.inputs + d) * blocks.height.inputs + h;
            let pixel = line * blocks.width.inputs + w;
            let mut sum = if comptime!(form.window.fold.is_extremum()) {
                let position =
                    plane_position(&blocks.problem, d, h, w * comptime!(form.lanes as i32));
                let position = Vector::new(position);
                let (sample, vector) = (place.sample as u32, place.pixel_vector as u32);
                let index = index_of::<N>(&blocks.problem, sample, vector, position, form.window);
                gather::<A, M, N>(&windows, index, x, form)
            } else {
                gather_lines::<A, N>(&lines, x, form)
            };
            if comptime!(form.window.has_one_divisor()) {
                sum = divided_once::<A, N>(blocks, sum, form);
            }
            let at = pixel * blocks.problem.pixel_vectors as i32 + place.pixel_vector;
            dx[at as usize] = round::<A, S, N>(sum, form.window.rounds);
        }
    }
}

/// Whether an input of a block exists.
#[cube]
fn is_below(x: i32, inputs: i32, #[comptime] block: Block) -> bool {
    if comptime!(block.whole) { true.runtime() } else { x < inputs }
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
    if comptime!(form.window.along_width) {
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
