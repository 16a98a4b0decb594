//! The first launch for volumes: windows along the depth become windows of planes.
//!
//! ```text
//! for each column of windows along the depth:        one unit
//!     for each plane of inputs, in order:
//!         add up the gradients of the column's windows whose winner is in this plane
//!         leave the sum and the winner as those of a window of the plane
//! ```
//!
//! In one column the winners' planes never decrease: a winner stays until a window starts after it, and all that follow lie
//! deeper. And in one plane all windows of a column that have their winner there have the same one, the greatest element
//! that they read of the plane. So what is left is the gradient of a maximum over each plane alone, but that some of its
//! windows have no winner.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;

use super::{Span, is_below, planes, span};
use crate::cube::convert::{Widening, widen};
use crate::cube::unit::{plain_grid, unit_position};
use crate::device::Target;
use crate::pool::common::window::indexing;
use crate::pool::common::{Task, Tensor, WORD, Work};

/// The instructions of a unit for each plane, and for each window.
const OF_PLANE: f64 = 25.0;
const OF_WINDOW: f64 = 35.0;

/// How often a unit waits for each window, whose winner says what is loaded and stored next. The number was fitted to the times
/// of 11 volumes on an H200.
const WAITS: f64 = 13.0;

/// Whether windows reach across planes.
pub(super) fn is_volume(task: Task<'_>) -> bool {
    let depth = &task.axes()[0];
    let alone = depth.kernel() == 1 && depth.stride() == 1 && depth.before() == 0;
    !alone || depth.input() != depth.output()
}

/// The windows of all planes.
pub(super) fn windows(task: Task<'_>) -> usize {
    let [_, height, width] = task.axes();
    let plane = height.output() * width.output();
    planes(task).saturating_mul(plane).saturating_mul(task.pixel())
}

/// The bytes of their sums and winners.
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
    let form = Form {
        consecutive: position == 1,
        contiguous: task.settings.contiguous,
        widened: task.widening(task.dtype()),
    };
    let args = ColumnArgsLaunch::new(
        columns as u32,
        (height.output() * width.output() * task.pixel()) as u32,
        (height.output() * width.output() * task.pixel()) as u32,
        task.pixel() as u32,
        span(depth),
        (height.input() * width.input()) as u32,
        batch,
        channel,
        position,
    );
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
    contiguous: bool,
    widened: Widening,
}

#[derive(CubeType, CubeLaunch)]
struct ColumnArgs {
    columns: u32,
    /// The windows of a plane, of all channels of a pixel.
    plane_divisor: FastDivmod<u32>,
    plane: u32,
    /// The channels of a pixel.
    pixel: FastDivmod<u32>,
    depth: Span,
    /// The positions of a plane of inputs.
    positions: FastDivmod<u32>,
    /// The index steps to the next sample, channel and position.
    index_batch: u32,
    index_channel: u32,
    index_position: FastDivmod<u32>,
}

/// A vector of one element.
type One = Const<1>;

#[cube(launch_unchecked)]
fn along_depth<S: Float, A: Float>(
    dy: &[Vector<S, One>],
    winners: &[Vector<i32, One>],
    sums: &mut [Vector<A, One>],
    own_winners: &mut [Vector<i32, One>],
    args: &ColumnArgs,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let column = unit_position(form.contiguous);
    if column >= args.columns {
        terminate!();
    }
    let (outer, inner) = args.plane_divisor.div_mod(column);
    let channel = args.pixel.modulo(inner);
    let base = (outer * args.index_batch + channel * args.index_channel) as i32;
    let last = args.depth.outputs as u32 - 1;
    let first = outer * (last + 1) * args.plane + inner;
    let own = outer * args.depth.inputs as u32 * args.plane + inner;
    let mut window = 0u32;
    let mut index = winners[first as usize].extract(0usize);
    let mut at = plane_of(index, base, window, args, form);
    for plane in 0..args.depth.inputs {
        let mut sum = Vector::<A, One>::new(A::from_int(0));
        let mut winner = (-1i32).runtime();
        while window <= last && at <= plane {
            if at == plane {
                let share = dy[(first + window * args.plane) as usize];
                sum += widen::<S, A, One>(share, form.widened);
                winner = index;
            }
            window += 1;
            index = winners[(first + min(window, last) * args.plane) as usize].extract(0usize);
            at = plane_of(index, base, window, args, form);
        }
        let place = (own + plane as u32 * args.plane) as usize;
        sums[place] = sum;
        own_winners[place] = Vector::new(winner);
    }
}

/// The plane of the winner of a window; none, -1, if the index is not one of the window.
#[cube]
fn plane_of(index: i32, base: i32, window: u32, args: &ColumnArgs, #[comptime] form: Form) -> i32 {
    let beyond = max(index - base, 0i32) as u32;
    let (position, rest) = if comptime!(form.consecutive) {
        (beyond, 0u32.runtime())
    } else {
        args.index_position.div_mod(beyond)
    };
    let plane = args.positions.div(position) as i32;
    let tap = plane - (window as i32 * args.depth.stride - args.depth.before);
    let is_there = index >= base
        && rest == 0
        && is_below(plane, args.depth.inputs)
        && is_below(tap, args.depth.kernel);
    select(is_there, plane, -1i32)
}
