//! The first launch for volumes: windows along the depth become windows of planes.
//!
//! ```text
//! for each column of windows along the depth:        one unit
//!     for each plane of inputs, in order:
//!         add up the gradients of the column's windows whose winner is in this plane
//!         leave the sum and the winner as those of a window of the plane
//! ```
//!
//! Along a column the winner's plane never decreases: a later window either keeps the winner or takes a deeper element.
//! Windows of a column whose winners lie in the same plane have the same winner, the extremum of what they read of that plane.
//! The rest is the gradient of an extremum over each plane, where some windows have no winner.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;

use super::{Span, is_below, planes, span};
use crate::cube::convert::{Widening, widen};
use crate::cube::numbers;
use crate::cube::unit::plain_grid;
use crate::device::Target;
use crate::pool::common::window::indexing;
use crate::pool::common::{Task, Tensor, WORD, Work};

/// The instructions of a unit for each plane, and for each window.
const OF_PLANE: f64 = 25.0;
const OF_WINDOW: f64 = 35.0;

/// How often a unit waits for each window, whose winner says what is loaded and stored next. The number was fitted to the times
/// of 11 volumes on an H200.
const WAITS: f64 = 13.0;

/// Whether the planes of windows are not simply the planes of inputs, so that a first launch is needed.
pub(super) fn is_volume(task: Task<'_>) -> bool {
    let depth = &task.axes()[0];
    let idle = depth.kernel() == 1 && depth.stride() == 1 && depth.before() == 0;
    !idle || depth.input() != depth.output()
}

/// The windows of all planes.
pub(super) fn windows(task: Task<'_>) -> usize {
    let [_, height, width] = task.axes();
    let plane = height.output() * width.output();
    planes(task).saturating_mul(plane).saturating_mul(task.pixel())
}

/// The bytes of the sums and winners of these.
pub(super) fn bytes(task: Task<'_>) -> usize {
    windows(task).saturating_mul(task.settings.accumulator.size() + WORD)
}

pub(super) fn seconds(task: Task<'_>) -> f64 {
    let depth = &task.axes()[0];
    let columns = (task.outputs() / depth.output()) as f64;
    let read = task.outputs() * (task.dtype().size() + WORD);
    let work = Work {
        bytes: (read + bytes(task)) as f64,
        units: columns,
        instructions: OF_PLANE * depth.input() as f64 + OF_WINDOW * depth.output() as f64,
        waits: WAITS * depth.output() as f64,
    };
    work.seconds(task.device)
}

/// The sums and the winners of the windows of all planes.
pub(super) fn launch(
    task: Task<'_>,
    dy: Tensor<'_>,
    winners: Tensor<'_>,
    client: &Client,
) -> [Handle; 2] {
    let [depth, height, width] = task.axes();
    let windows = windows(task);
    let own = [task.settings.accumulator.size(), WORD].map(|size| client.empty(windows * size));
    let [batch, channel, position] = indexing(task.pooling(), task.reduction().base());
    let columns = task.outputs() / depth.output();
    let plane = height.output() * width.output() * task.pixel();
    let form = Form { consecutive: position == 1, widened: task.widening(task.dtype()) };
    let args = numbers! { ColumnArgsLaunch {
        columns, plane_divisor: plane, plane, pixel: task.pixel(), row: width.output(),
        depth: span(depth), height: span(height), width: span(width),
        positions: height.input() * width.input(), index_batch: batch, index_channel: channel,
        index_position: position,
    } };
    let (cubes, units) = plain_grid(Target { client, device: task.device }, columns);
    // SAFETY: a unit past the last column ends, and windows after the last one of a column are not read.
    unsafe {
        along_depth::launch_unchecked(
            client,
            cubes,
            units,
            dy.vectors(1),
            winners.vectors(1),
            Tensor::new(&own[0], windows).vectors(1),
            Tensor::new(&own[1], windows).vectors(1),
            args,
            form,
            task.types(),
        );
    }
    own
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// Whether neighbouring positions have consecutive indices.
    consecutive: bool,
    widened: Widening,
}

#[derive(CubeType, CubeLaunch)]
struct ColumnArgs {
    columns: u32,
    /// The windows of a plane, of all channels of a pixel, as a divisor and as a number.
    plane_divisor: FastDivmod<u32>,
    plane: u32,
    /// The channels of a pixel, and the windows of a row.
    pixel: FastDivmod<u32>,
    row: FastDivmod<u32>,
    depth: Span,
    height: Span,
    width: Span,
    /// The positions of a plane of inputs.
    positions: FastDivmod<u32>,
    /// The index steps to the next sample, channel and position.
    index_batch: u32,
    index_channel: u32,
    index_position: FastDivmod<u32>,
}

/// A vector of one element.
type One = Const<1>;

/// The windows of a column.
#[derive(CubeType)]
struct Column {
    /// The index of the first position of the column's channel.
    base: i32,
    /// The first row and the first column of inputs that the windows read.
    top: i32,
    left: i32,
}

#[cube(launch_unchecked)]
fn along_depth<S: Float, A: Float>(
    dy: &[Vector<S, One>],
    winners: &[Vector<i32, One>],
    plane_sums: &mut [Vector<A, One>],
    plane_winners: &mut [Vector<i32, One>],
    args: &ColumnArgs,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let i = ABSOLUTE_POS as u32;
    if i >= args.columns {
        terminate!();
    }
    let (outer, inner) = args.plane_divisor.div_mod(i);
    let (place, channel) = args.pixel.div_mod(inner);
    let (row, across) = args.row.div_mod(place);
    let column = Column {
        base: (outer * args.index_batch + channel * args.index_channel) as i32,
        top: row as i32 * args.height.stride - args.height.before,
        left: across as i32 * args.width.stride - args.width.before,
    };
    let last = args.depth.outputs as u32 - 1;
    let first = outer * (last + 1) * args.plane + inner;
    let first_result = outer * args.depth.inputs as u32 * args.plane + inner;
    let mut window = 0u32;
    let mut index = winners[first as usize].extract(0usize);
    let mut at = plane_of(index, window, &column, args, form);
    for plane in 0..args.depth.inputs {
        let mut sum = Vector::<A, One>::new(A::from_int(0));
        let mut winner = (-1i32).runtime();
        while window <= last && at <= plane {
            if at == plane {
                // Other indices than a maximum's may name several winners; the last one keeps its own sum.
                if index != winner {
                    sum = Vector::new(A::from_int(0));
                    winner = index;
                }
                let share = dy[(first + window * args.plane) as usize];
                sum += widen::<S, A, One>(share, form.widened);
            }
            window += 1;
            index = winners[(first + min(window, last) * args.plane) as usize].extract(0usize);
            at = plane_of(index, window, &column, args, form);
        }
        let result = (first_result + plane as u32 * args.plane) as usize;
        plane_sums[result] = sum;
        plane_winners[result] = Vector::new(winner);
    }
}

/// The plane of the winner of a window along the depth; none, -1, if the index is not one of the window.
#[cube]
fn plane_of(
    index: i32,
    window: u32,
    column: &Column,
    args: &ColumnArgs,
    #[comptime] form: Form,
) -> i32 {
    let beyond = max(index - column.base, 0i32) as u32;
    let (position, rest) = if comptime!(form.consecutive) {
        (beyond, 0u32.runtime())
    } else {
        args.index_position.div_mod(beyond)
    };
    let (plane, within) = args.positions.div_mod(position);
    let (y, x) = args.width.input.div_mod(within);
    let front = window as i32 * args.depth.stride - args.depth.before;
    let is_there = index >= column.base
        && rest == 0
        && is_below(plane as i32, args.depth.inputs)
        && is_below(plane as i32 - front, args.depth.kernel)
        && is_below(y as i32 - column.top, args.height.kernel)
        && is_below(x as i32 - column.left, args.width.kernel);
    select(is_there, plane as i32, -1i32)
}
