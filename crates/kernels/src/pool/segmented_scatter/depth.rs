//! The first launch for volumes: windows along the depth become windows of planes.
//!
//! ```text
//! for each piece of a column of windows along the depth:     one unit; a ring of planes in shared memory
//!     for each window, in order, loaded a block of windows ahead:
//!         write the sum and the winner of each plane before the window, as those of a window of the plane
//!         add the window's gradient to the sum of its winner's plane
//! ```
//!
//! Windows of a column whose winners lie in the same plane have the same winner, the extremum of what they read of that
//! plane. So a plane has one sum, and a ring as long as a window has room for all incomplete planes. Units are in step:
//! neighbours load and store neighbouring elements. The rest is the gradient of an extremum over each plane, where some
//! windows have no winner.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;

use super::kernel::no_winners;
use super::{NAME, Span, is_below, planes, span};
use crate::cube::convert::{Widening, widen};
use crate::cube::numbers;
use crate::cube::registers::{Registers, zeros};
use crate::cube::unit::grid;
use crate::error::{PlanError, only_if};
use crate::pool::common::window::indexing;
use crate::pool::common::{Task, Tensor, WORD, Work};

/// The instructions of a unit for each plane, and for each window.
const OF_PLANE: f64 = 25.0;
const OF_WINDOW: f64 = 45.0;

/// The waits of a unit for each window. A block of [`AHEAD`] windows is loaded while the one before it is added up.
/// Neither this nor [`OF_WINDOW`] was fitted.
const WAITS: f64 = 1.0;

/// The windows of a block.
const AHEAD: u32 = 4;

/// The most and the fewest units of a cube, and the bytes of shared memory that their rings may take. Long windows have
/// few units, and those of the fewest may take all that the device has.
const UNITS: [u32; 2] = [256, 8];
const RINGS: usize = 48 << 10;

/// The units that hide each other's waits on a multiprocessor. With fewer columns, columns are cut into pieces.
const UNITS_EACH: usize = 1024;

/// The least length of a piece, in lengths of a window or strides: a piece reads the windows of one length twice.
const LEAST_LENGTHS: usize = 4;

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

/// The bytes of a unit's ring.
fn ring_bytes(task: Task<'_>) -> usize {
    task.axes()[0].kernel().saturating_mul(task.settings.accumulator.size() + WORD)
}

/// The units of a cube.
pub(super) fn units(task: Task<'_>) -> Result<u32, PlanError> {
    let [most, least] = UNITS;
    let fits = |units: u32, room: usize| ring_bytes(task).saturating_mul(units as usize) <= room;
    let mut units = most.min(task.device.units_per_cube);
    while units > least && !fits(units, RINGS.min(task.device.shared_bytes)) {
        units /= 2;
    }
    only_if(
        NAME,
        fits(units, task.device.shared_bytes),
        "a ring of planes does not fit in a cube",
    )?;
    Ok(units)
}

/// How columns of windows are cut.
struct Cut {
    columns: usize,
    /// The planes of a piece, and the pieces of a column.
    planes: usize,
    pieces: usize,
}

impl Cut {
    fn new(task: Task<'_>) -> Self {
        let depth = &task.axes()[0];
        let columns = task.outputs() / depth.output();
        let wanted = (UNITS_EACH * task.device.multiprocessor_count()).div_ceil(columns.max(1));
        let least = LEAST_LENGTHS * depth.kernel().max(depth.stride());
        let planes = depth.input().div_ceil(wanted).max(least).min(depth.input());
        Self { columns, planes, pieces: depth.input().div_ceil(planes) }
    }
}

pub(super) fn seconds(task: Task<'_>) -> f64 {
    let depth = &task.axes()[0];
    let Cut { columns, planes, pieces } = Cut::new(task);
    let windows = ((planes + depth.kernel()) / depth.stride()).min(depth.output()) as f64;
    let read = task.outputs() * (task.dtype().size() + WORD);
    let work = Work {
        bytes: (read + bytes(task)) as f64,
        units: (columns * pieces) as f64,
        instructions: OF_PLANE * planes as f64 + OF_WINDOW * windows,
        waits: WAITS * windows,
    };
    work.seconds(task.device)
}

/// The sums and the winners of the windows of all planes.
pub(super) fn launch(
    task: Task<'_>,
    dy: Tensor<'_>,
    winners: Tensor<'_>,
    client: &Client,
) -> Result<[Handle; 2], PlanError> {
    let [depth, height, width] = task.axes();
    let windows = windows(task);
    let own = [task.settings.accumulator.size(), WORD].map(|size| client.empty(windows * size));
    let [batch, channel, position] = indexing(task.pooling(), task.reduction().base());
    let Cut { columns, planes: piece, pieces } = Cut::new(task);
    let plane = height.output() * width.output() * task.pixel();
    let units = units(task)?;
    let form = Form {
        units,
        ring: depth.kernel() as u32,
        consecutive: position == 1,
        widened: task.widening(task.dtype()),
    };
    let args = numbers! { ColumnArgsLaunch {
        columns, plane_divisor: plane, plane, pixel: task.pixel(), row: width.output(), piece, pieces,
        depth: span(depth), height: span(height), width: span(width),
        positions: height.input() * width.input(), index_batch: batch, index_channel: channel,
        index_position: position,
    } };
    let (cubes, units) = grid(client, units, columns * pieces);
    // SAFETY: a unit past the last piece ends, windows after the last one of a column are not read, and places of a ring
    // are those of planes that the window has.
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
    Ok(own)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// The units of a cube, and the planes of a ring.
    units: u32,
    ring: u32,
    /// Whether neighbouring positions have consecutive indices.
    consecutive: bool,
    widened: Widening,
}

#[derive(CubeType, CubeLaunch)]
struct ColumnArgs {
    columns: FastDivmod<u32>,
    /// The windows of a plane, of all channels of a pixel, as a divisor and as a number.
    plane_divisor: FastDivmod<u32>,
    plane: u32,
    /// The channels of a pixel, and the windows of a row.
    pixel: FastDivmod<u32>,
    row: FastDivmod<u32>,
    /// The planes of a piece, and the pieces of a column.
    piece: u32,
    pieces: u32,
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

/// A piece of a column of windows.
#[derive(CubeType)]
struct Column {
    /// The index of the first position of the column's channel.
    base: i32,
    /// The first row and the first column of inputs that the windows read.
    top: i32,
    left: i32,
    /// The element of its first window, and of its first plane.
    window: u32,
    plane: u32,
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
    let mut sums = Shared::<[A]>::new_slice(comptime!((form.ring * form.units) as usize));
    let mut found = Shared::<[i32]>::new_slice(comptime!((form.ring * form.units) as usize));
    let (piece, i) = args.columns.div_mod(ABSOLUTE_POS as u32);
    if piece >= args.pieces {
        terminate!();
    }
    let (outer, inner) = args.plane_divisor.div_mod(i);
    let (place, channel) = args.pixel.div_mod(inner);
    let (row, across) = args.row.div_mod(place);
    let column = Column {
        base: (outer * args.index_batch + channel * args.index_channel) as i32,
        top: row as i32 * args.height.stride - args.height.before,
        left: across as i32 * args.width.stride - args.width.before,
        window: outer * args.depth.outputs as u32 * args.plane + inner,
        plane: outer * args.depth.inputs as u32 * args.plane + inner,
    };
    for slot in 0..form.ring {
        found[(slot * form.units + UNIT_POS) as usize] = -1i32;
    }
    let from = (piece * args.piece) as i32;
    let to = from + min(args.piece as i32, args.depth.inputs - from);
    // The windows from the first that ends after `from` to the last that begins before `to`.
    let stride = args.depth.stride as u32;
    let over = max(from + (args.depth.before - args.depth.kernel), -1i32) + 1;
    let first = (over as u32).div_ceil(stride);
    let end = ((to - 1) as u32 + args.depth.before as u32) / stride + 1;
    let end = min(end, args.depth.outputs as u32);
    // The next plane to write, and its place in the ring. With one function for the two loops that write planes, the launches
    // took 1.05 times as long.
    let mut next = from;
    let mut slot = 0u32;
    let shares = zeros::<S, One>(AHEAD);
    let indices = no_winners(AHEAD);
    fetch::<S>(dy, winners, args, &column, first, end, &shares, &indices);
    for block in range_stepped(first, end, AHEAD) {
        let mut block_indices = Sequence::<i32>::new();
        let mut block_shares = Sequence::<Vector<A, One>>::new();
        #[unroll]
        for ahead in 0..AHEAD as usize {
            block_indices.push(indices.index(ahead).read());
            block_shares.push(widen::<S, A, One>(shares.index(ahead).read(), form.widened));
        }
        fetch::<S>(dy, winners, args, &column, block + AHEAD, end, &shares, &indices);
        #[unroll]
        for ahead in 0..AHEAD {
            let window = block + ahead;
            if window < end {
                let front = window as i32 * args.depth.stride - args.depth.before;
                while next < min(front, to) {
                    let at = (slot * form.units + UNIT_POS) as usize;
                    let plane = (column.plane + next as u32 * args.plane) as usize;
                    write::<A>(plane_sums, plane_winners, &mut sums, &mut found, at, plane);
                    next += 1;
                    slot = wrapped(slot + 1, form);
                }
                let index = *block_indices.index(ahead as usize);
                let plane = plane_of(index, front, &column, args, form);
                if plane >= next && plane < to {
                    let at = wrapped(slot + (plane - next) as u32, form);
                    let at = (at * form.units + UNIT_POS) as usize;
                    let share = block_shares.index(ahead as usize).extract(0usize);
                    // Other indices than a maximum's may name several winners; the last one keeps its own sum.
                    if found[at] == index {
                        sums[at] += share;
                    } else {
                        sums[at] = share;
                        found[at] = index;
                    }
                }
            }
        }
    }
    while next < to {
        let at = (slot * form.units + UNIT_POS) as usize;
        let plane = (column.plane + next as u32 * args.plane) as usize;
        write::<A>(plane_sums, plane_winners, &mut sums, &mut found, at, plane);
        next += 1;
        slot = wrapped(slot + 1, form);
    }
}

/// Loads windows of a column: those from `window` on.
#[cube]
fn fetch<S: Float>(
    dy: &[Vector<S, One>],
    winners: &[Vector<i32, One>],
    args: &ColumnArgs,
    column: &Column,
    window: u32,
    end: u32,
    shares: &Registers<S, One>,
    indices: &Sequence<RuntimeCell<i32>>,
) {
    #[unroll]
    for ahead in 0..AHEAD {
        let there = min(window + ahead, max(end, 1u32) - 1);
        let at = (column.window + there * args.plane) as usize;
        shares.index(ahead as usize).store(dy[at]);
        indices.index(ahead as usize).store(winners[at].extract(0usize));
    }
}

/// Writes the sum and the winner of the plane in place `at` of the ring, 0 and -1 if it has none, and empties the place.
#[cube]
fn write<A: Float>(
    plane_sums: &mut [Vector<A, One>],
    plane_winners: &mut [Vector<i32, One>],
    sums: &mut Shared<[A]>,
    found: &mut Shared<[i32]>,
    at: usize,
    plane: usize,
) {
    let winner = found[at];
    plane_sums[plane] = Vector::new(select(winner >= 0, sums[at], A::from_int(0)));
    plane_winners[plane] = Vector::new(winner);
    found[at] = -1i32;
}

/// A place in the ring, from one that may be up to a ring's length too large.
#[cube]
fn wrapped(slot: u32, #[comptime] form: Form) -> u32 {
    if slot >= form.ring { slot - form.ring } else { slot }
}

/// The plane of the winner of a window along the depth, whose first plane is `front`; none, -1, if the index is not one
/// of the window.
#[cube]
fn plane_of(
    index: i32,
    front: i32,
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
    let is_there = index >= column.base
        && rest == 0
        && is_below(plane as i32, args.depth.inputs)
        && is_below(plane as i32 - front, args.depth.kernel)
        && is_below(y as i32 - column.top, args.height.kernel)
        && is_below(x as i32 - column.left, args.width.kernel);
    select(is_there, plane as i32, -1i32)
}
