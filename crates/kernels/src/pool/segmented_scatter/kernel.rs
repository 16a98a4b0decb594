//! The kernel: units walk down columns of windows and leave the sums of segments in a ring of input rows; complete rows
//! are added up and written.

use cubecl::prelude::*;

use super::{AT_ONCE, CHUNK, Form, ScatterArgs, is_below};
use crate::cube::convert::{round, widen};
use crate::cube::registers::{Registers, zeros};
use crate::pool::common::cube_position;

/// A vector of one element.
type One = Const<1>;

/// The column of a place in the ring where no sum is.
const NONE: u32 = u32::MAX;

#[cube(launch_unchecked)]
pub(super) fn scatter<D: Float, S: Float, A: Float>(
    dy: &[Vector<D, One>],
    winners: &[Vector<i32, One>],
    dx: &mut [Vector<S, One>],
    args: &ScatterArgs,
    #[comptime] form: Form,
    #[define(D, S, A)] _types: [ElemType; 3],
) {
    let mut sums = Shared::<[A]>::new_slice(comptime!((form.ring * form.ring_row()) as usize));
    let mut columns = Shared::<[u32]>::new_slice(comptime!((form.ring * form.ring_row()) as usize));
    let mut results = Shared::<[A]>::new_slice(comptime!((form.done * form.result_row()) as usize));
    // All units of a cube terminate, or none.
    if CUBE_POS as u32 >= args.cubes.count {
        terminate!();
    }
    let tile = tile_of(args, form);
    let window_column = window_column_of(args, &tile, form);
    if UNIT_POS < form.window_columns() {
        for row in 0..form.ring {
            columns[(row * form.ring_row() + UNIT_POS) as usize] = NONE.runtime();
        }
    }
    let shares = zeros::<D, One>(form.rows);
    let indices = no_winners(form.rows);
    let segment = no_segment::<A>();
    // The row of the ring for the first row that a block's windows read.
    let mut start = 0u32;
    fetch::<D>(dy, winners, args, &window_column, tile.before, &shares, &indices, form);
    for block in tile.before..tile.end {
        if window_column.exists {
            let first = (block * form.done) as i32 - args.height.before;
            #[unroll]
            for row in 0..form.rows {
                let top = first + row as i32 * args.height.stride;
                let index = indices.index(row as usize).read();
                let share = shares.index(row as usize).read();
                let share = widen::<D, A, One>(share, form.widened).extract(0usize);
                // A window without a winner does not end the segment: the next one may have the same winner.
                if index >= 0 {
                    if index != segment.index.read() {
                        leave::<A>(&mut sums, &mut columns, &segment, first, start, form);
                        begin::<A>(args, &tile, &window_column, &segment, index, form);
                    }
                    // An index outside its own window is no winner.
                    let tap = segment.row.read() - top;
                    if is_below(tap, args.height.kernel) {
                        segment.sum.store(segment.sum.read() + share);
                    }
                }
            }
            // What the next block's windows cannot contain is complete.
            if segment.row.read() < first + comptime!(form.done as i32) {
                leave::<A>(&mut sums, &mut columns, &segment, first, start, form);
                segment.index.store(-1i32);
                segment.column.store(NONE.runtime());
            }
            fetch::<D>(dy, winners, args, &window_column, block + 1, &shares, &indices, form);
        }
        sync_cube();
        let items = comptime!(form.done * form.chunks() * form.lanes);
        for item in range_stepped(UNIT_POS, items, CUBE_DIM) {
            add_up::<A>(&sums, &columns, &mut results, args, &tile, start, item, form);
        }
        sync_cube();
        if block >= tile.block {
            write_rows::<S, A>(&results, dx, args, &tile, block, form);
        }
        if UNIT_POS < form.window_columns() {
            for row in 0..form.done {
                let place = ring_row(start, row, form) * form.ring_row() + UNIT_POS;
                columns[place as usize] = NONE.runtime();
            }
        }
        start = ring_row(start, form.done.runtime(), form);
    }
}

/// The position of a cube's tile.
#[derive(CubeType)]
struct TilePosition {
    /// The first plane in the tensor, and the first channel of a pixel.
    plane: u32,
    channel: u32,
    /// The first column and the number of columns.
    first: u32,
    columns: u32,
    /// The first window of a row that reads one of them.
    window: u32,
    /// The first block whose windows reach the piece, the first block of the piece, and its end.
    before: u32,
    block: u32,
    end: u32,
}

#[cube]
fn tile_of(args: &ScatterArgs, #[comptime] form: Form) -> TilePosition {
    let at = cube_position(&args.cubes, true);
    let (plane, first) = (at.plane, at.column);
    // The first window that does not end before the first column.
    let over = max(first as i32 + args.width.before - args.width.kernel + args.width.stride, 0i32);
    TilePosition {
        plane: if comptime!(form.one_channel) { plane * form.lanes } else { plane },
        channel: if comptime!(form.one_channel) { 0u32.runtime() } else { at.group * form.lanes },
        first,
        columns: min(args.cubes.tile, args.width.inputs as u32 - first),
        window: (over / args.width.stride) as u32,
        before: max(at.block, args.halo) - args.halo,
        block: at.block,
        end: at.end,
    }
}

/// The column of windows that a unit walks down.
#[derive(CubeType)]
struct WindowColumn {
    exists: bool,
    /// The element of its first row, and the step to the next row.
    first: u32,
    line: u32,
    /// The first column that the windows read.
    left: i32,
    /// The index of the first position of the plane's channel, and the row of this position in the sample.
    base: i32,
    row: i32,
}

/// The lane and the column of item `i` of a row of `columns`.
#[cube]
fn split(i: u32, #[comptime] columns: u32, #[comptime] form: Form) -> (u32, u32) {
    if comptime!(form.one_channel) {
        (i / columns, i % columns)
    } else {
        (i % form.lanes, i / form.lanes)
    }
}

/// The plane and the channel of a lane.
#[cube]
fn lane_position(tile: &TilePosition, lane: u32, #[comptime] form: Form) -> (u32, u32) {
    if comptime!(form.one_channel) {
        (tile.plane + lane, 0u32.runtime())
    } else {
        (tile.plane, tile.channel + lane)
    }
}

#[cube]
fn window_column_of(
    args: &ScatterArgs,
    tile: &TilePosition,
    #[comptime] form: Form,
) -> WindowColumn {
    let (lane, column) = split(UNIT_POS, form.windows, form);
    let ow = tile.window + column;
    let (plane, channel) = lane_position(tile, lane, form);
    let exists =
        UNIT_POS < form.window_columns() && plane < args.planes && ow < args.width.outputs as u32;
    let (sample, depth) = args.depth.div_mod(plane);
    let outputs = (args.height.outputs * args.width.outputs) as u32;
    WindowColumn {
        exists,
        first: (plane * outputs + ow) * args.pixel + channel,
        line: args.width.outputs as u32 * args.pixel,
        left: ow as i32 * args.width.stride - args.width.before,
        base: (sample * args.index_batch + channel * args.index_channel) as i32,
        row: (depth * args.height.inputs as u32) as i32,
    }
}

/// The indices of windows, none of which has a winner.
#[cube]
pub(super) fn no_winners(#[comptime] count: u32) -> Sequence<RuntimeCell<i32>> {
    let mut winners = Sequence::<RuntimeCell<i32>>::new();
    #[unroll]
    for _ in 0..count {
        winners.push(RuntimeCell::new(-1i32));
    }
    winners
}

/// Starts loading a unit's windows of a block. Windows that do not exist have no winner.
#[cube]
fn fetch<D: Float>(
    dy: &[Vector<D, One>],
    winners: &[Vector<i32, One>],
    args: &ScatterArgs,
    window_column: &WindowColumn,
    block: u32,
    shares: &Registers<D, One>,
    indices: &Sequence<RuntimeCell<i32>>,
    #[comptime] form: Form,
) {
    let first = block * form.rows;
    if window_column.exists && first < args.height.outputs as u32 {
        #[unroll]
        for row in 0..form.rows {
            let oh = first + row;
            let there = min(oh, args.height.outputs as u32 - 1);
            let at = (window_column.first + there * window_column.line) as usize;
            shares.index(row as usize).store(dy[at]);
            let index = winners[at].extract(0usize);
            indices.index(row as usize).store(select(oh == there, index, -1i32));
        }
    } else {
        #[unroll]
        for row in 0..form.rows {
            indices.index(row as usize).store(-1i32);
        }
    }
}

/// A segment of windows with the same winner.
#[derive(CubeType)]
struct Segment<A: Float> {
    index: RuntimeCell<i32>,
    /// The winner's row in the plane, and its column in the tile; `NONE` if there is no winner in the tile.
    row: RuntimeCell<i32>,
    column: RuntimeCell<u32>,
    sum: RuntimeCell<A>,
}

#[cube]
fn no_segment<A: Float>() -> Segment<A> {
    Segment::<A> {
        index: RuntimeCell::new(-1i32),
        row: RuntimeCell::new(i32::MIN.runtime()),
        column: RuntimeCell::new(NONE.runtime()),
        sum: RuntimeCell::new(A::from_int(0)),
    }
}

/// Begins the segment of a winner.
#[cube]
fn begin<A: Float>(
    args: &ScatterArgs,
    tile: &TilePosition,
    window_column: &WindowColumn,
    segment: &Segment<A>,
    index: i32,
    #[comptime] form: Form,
) {
    let beyond = max(index - window_column.base, 0i32) as u32;
    let (position, rest) = if comptime!(form.consecutive) {
        (beyond, 0u32.runtime())
    } else {
        args.index_position.div_mod(beyond)
    };
    let (line, x) = args.width.input.div_mod(position);
    let row = line as i32 - window_column.row;
    let across = x as i32 - window_column.left;
    let column = x as i32 - tile.first as i32;
    let is_there = index >= window_column.base
        && rest == 0
        && is_below(row, args.height.inputs)
        && is_below(across, args.width.kernel)
        && is_below(column, tile.columns as i32);
    segment.index.store(index);
    segment.row.store(select(is_there, row, i32::MIN.runtime()));
    segment.column.store(select(is_there, column as u32, NONE.runtime()));
    segment.sum.store(A::from_int(0));
}

/// Leaves a segment's sum in the ring, whose row `start` is the plane's row `first`.
#[cube]
fn leave<A: Float>(
    sums: &mut Shared<[A]>,
    columns: &mut Shared<[u32]>,
    segment: &Segment<A>,
    first: i32,
    start: u32,
    #[comptime] form: Form,
) {
    let after = segment.row.read() - first;
    if segment.column.read() != NONE && is_below(after, comptime!(form.ring as i32).runtime()) {
        let place = (ring_row(start, after as u32, form) * form.ring_row() + UNIT_POS) as usize;
        sums[place] = segment.sum.read();
        columns[place] = segment.column.read();
    }
}

/// The row of the ring that is `after` rows after `start`.
#[cube]
fn ring_row(start: u32, after: u32, #[comptime] form: Form) -> u32 {
    let row = start + after;
    if row >= form.ring { row - form.ring } else { row }
}

/// Adds up the sums that were left for a chunk of a complete row of inputs.
#[cube]
fn add_up<A: Float>(
    sums: &Shared<[A]>,
    columns: &Shared<[u32]>,
    results: &mut Shared<[A]>,
    args: &ScatterArgs,
    tile: &TilePosition,
    start: u32,
    item: u32,
    #[comptime] form: Form,
) {
    let (lane_step, step) = comptime!({
        let [lane, column] = form.steps(form.columns);
        (lane, column)
    });
    let (ring_lane_step, ring_step) = comptime!({
        let [lane, column] = form.steps(form.windows);
        (lane, column)
    });
    // Units that are neighbours have other banks: other lanes, or other rows.
    let (lane, rest) = (item % form.lanes, item / form.lanes);
    let (row, chunk) = (rest % form.done, rest / form.done);
    let from = chunk * CHUNK;
    let end = min(from + CHUNK, tile.columns);
    let result = row * comptime!(form.result_row()) + lane * lane_step;
    for column in from..end {
        results[(result + column * step) as usize] = A::from_int(0);
    }
    // The windows over these columns, counted from the tile's first one.
    let left = (tile.first + from) as i32 + args.width.before - args.width.kernel;
    let over = max(left + args.width.stride, 0i32) / args.width.stride;
    let last = ((tile.first + end) as i32 - 1 + args.width.before) / args.width.stride;
    let last = min(last + 1, args.width.outputs) - tile.window as i32;
    let place = ring_row(start, row, form) * form.ring_row() + lane * ring_lane_step;
    let first = max(over - tile.window as i32, 0i32) as u32;
    let last = max(min(last, form.windows as i32), first as i32) as u32;
    let current = RuntimeCell::<u32>::new(NONE.runtime());
    let sum = RuntimeCell::<A>::new(A::from_int(0));
    for window in range_stepped(first, last, AT_ONCE) {
        // All are read before any is compared, so that the reads overlap.
        let mut nexts = Sequence::<u32>::new();
        let mut shares = Sequence::<A>::new();
        #[unroll]
        for i in 0..AT_ONCE {
            let there = min(window + i, form.windows - 1);
            let at = (place + there * ring_step) as usize;
            nexts.push(select(window + i < last, columns[at], NONE.runtime()));
            shares.push(sums[at]);
        }
        #[unroll]
        for i in 0..AT_ONCE as usize {
            let next = *nexts.index(i);
            let is_here = next >= from && next < end;
            if is_here && next != current.read() {
                if current.read() != NONE {
                    results[(result + current.read() * step) as usize] = sum.read();
                }
                current.store(next);
                sum.store(A::from_int(0));
            }
            sum.store(sum.read() + select(is_here, *shares.index(i), A::from_int(0)));
        }
    }
    if current.read() != NONE {
        results[(result + current.read() * step) as usize] = sum.read();
    }
}

/// Writes the complete rows; neighbouring units write neighbouring elements.
#[cube]
fn write_rows<S: Float, A: Float>(
    results: &Shared<[A]>,
    dx: &mut [Vector<S, One>],
    args: &ScatterArgs,
    tile: &TilePosition,
    block: u32,
    #[comptime] form: Form,
) {
    let first = (block * form.done) as i32 - args.height.before;
    let plane_rows = args.height.inputs as u32;
    for item in range_stepped(UNIT_POS, comptime!(form.line()), CUBE_DIM) {
        let (lane, column) = split(item, form.columns, form);
        let (plane, channel) = lane_position(tile, lane, form);
        if plane < args.planes && column < tile.columns {
            for row in 0..form.done {
                let y = first + row as i32;
                if is_below(y, args.height.inputs) {
                    let line = plane * plane_rows + y as u32;
                    let pixel = line * args.width.inputs as u32 + tile.first + column;
                    let sum = results[(row * comptime!(form.result_row()) + item) as usize];
                    dx[(pixel * args.pixel + channel) as usize] =
                        round::<A, S, One>(Vector::new(sum), form.rounds);
                }
            }
        }
    }
}
