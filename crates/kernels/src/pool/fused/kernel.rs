//! Large windows of planes in one launch: walked down the columns in registers, and along the rows in
//! shared memory.
//!
//! ```text
//! for each tile of columns of a plane:                      one cube, a unit a column and channel
//!     for each block of B rows of outputs:
//!         fold each column's windows, as `sliding` does      to B rows in shared memory
//!         for each row, block by block of its columns:       a unit each
//!             prefix, over the block in shared memory; suffix, in registers
//!             y[o] = suffix · whole blocks between · prefix   to rows of their own
//!         write the rows
//! ```
//!
//! What `sliding` writes between its passes never leaves the multiprocessor, and all that is read and
//! written are neighbours. A tile reads a window more of columns than it writes, where there are as
//! many: columns of the padding have no unit, they are nothing in shared memory once and for all. With
//! channels last a cube has a few channels of a tile, which lie together in shared memory as they do in
//! the image.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Axis, DType, Pooling};

use super::launch::{grid, vectors};
use super::plan::{Output, Plan, Reduction, pixel_channels};
use super::sliding;
use super::window::{Form as Tap, Problem, counted_at, problem_args, together};
use crate::dtype::{elem, round};

/// One number.
type One = Const<1>;

/// The most units of a cube: more, and their registers leave room for few cubes; fewer, and tiles read
/// more columns beside those that they write.
const MOST_UNITS: u32 = 384;

/// The channels of a cube, where they are last, and the most units of such a cube.
const CHANNELS: usize = 4;
const MOST_UNITS_OF_CHANNELS: u32 = 512;

/// The channels of a cube.
fn channels(pooling: &Pooling) -> usize {
    pixel_channels(pooling).min(CHANNELS)
}

/// The elements of a block.
fn block(axis: &Axis, reduction: Reduction) -> usize {
    match reduction {
        Reduction::Average(_) => sliding::block_of_sums(axis),
        _ => sliding::block(axis),
    }
}

/// The columns that a cube writes and the units that it takes, of no more than `most`.
pub(super) fn tile(pooling: &Pooling, reduction: Reduction, most: u32) -> Option<(usize, u32)> {
    let [_, height, width] = pooling.grid().axes();
    let (rows, channels) = (block(height, reduction), channels(pooling));
    let most = most.min(if channels > 1 { MOST_UNITS_OF_CHANNELS } else { MOST_UNITS });
    let tiled = |tiles: usize| {
        let tile = width.output().div_ceil(tiles);
        let there = width.input().min(tile + width.kernel() - 1);
        let units = there.max(rows * tile.div_ceil(block(width, reduction)));
        (tile, (channels * units).next_multiple_of(32) as u32)
    };
    // A tile reads no more than three times what it writes.
    let worth = |&(tile, _): &(usize, u32)| 2 * tile >= width.kernel().min(width.output());
    let (tile, units) =
        (1..=width.output()).map(tiled).take_while(worth).find(|tile| tile.1 <= most)?;
    // Of channels, as many for images of all sizes: a new one compiles no new kernel.
    Some((tile, if channels > 1 { most } else { units }))
}

/// Whether both axes of an image's planes are walked, one step a window.
pub(super) fn fits(pooling: &Pooling, reduction: Reduction) -> bool {
    let [depth, height, width] = pooling.grid().axes();
    let values = matches!(reduction, Reduction::Max(Output::Values) | Reduction::Average(_));
    let walked = |axis: &Axis| axis.kernel() > 1 && axis.stride() == 1;
    values
        && pixel_channels(pooling).is_multiple_of(channels(pooling))
        && sliding::fits(pooling)
        && depth.kernel() == 1
        && walked(height)
        && walked(width)
        // There are no more outputs of a row than inputs, and none without one.
        && width.before() + width.after() < width.kernel()
}

/// The bytes that a cube's units share.
pub(super) fn shared_bytes(pooling: &Pooling, reduction: Reduction, plan: &Plan) -> usize {
    let (elements, results) = rows(pooling, reduction, plan);
    block(&pooling.grid().axes()[1], reduction) * (elements + results) * plan.accumulator.size()
}

/// The elements from one row to the next in shared memory, and from one of results to the next.
fn rows(pooling: &Pooling, reduction: Reduction, plan: &Plan) -> (usize, usize) {
    let [_, height, width] = pooling.grid().axes();
    let [rows, block] = [height, width].map(|axis| block(axis, reduction));
    let channels = channels(pooling);
    // No more columns are there than units, nor more results, whole blocks of each; and windows reach a
    // window and a block further.
    let columns = plan.units as usize / channels + block;
    let reach = columns + width.kernel() + 2 * block;
    (row(plan, rows, block, channels, reach), row(plan, rows, block, channels, columns))
}

/// The banks of shared memory, and the bytes of one.
const BANKS: usize = 32;
const BANK: usize = 4;

/// The elements left free after each block of a row. Where a bank holds two elements, blocks would begin
/// on banks too close to each other: one more bank, and an odd number is from one block to the next.
fn spare(plan: &Plan, channels: usize) -> usize {
    if channels == 1 && 2 * plan.accumulator.size() == BANK { 2 } else { 0 }
}

/// The elements from one row in shared memory to the next, such that neighbouring units of neighbouring
/// rows are on different banks: an odd number of pixels; where a bank holds two elements, rows share
/// the banks out and leave those between to the blocks of a row.
fn row(plan: &Plan, rows: usize, block: usize, channels: usize, columns: usize) -> usize {
    match spare(plan, channels) {
        0 => (columns | 1) * channels,
        spare => {
            let elements = columns.div_ceil(block) * (block + spare);
            let between = (BANKS / rows).max(1) * 2;
            (elements.div_ceil(between) | 1) * between
        }
    }
}

/// How an axis is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Walk {
    /// The elements of a block.
    block: u32,
    /// The blocks from that in which a window starts to that of its last tap, if it starts with the
    /// block, and the place there.
    whole: u32,
    rest: u32,
}

impl Walk {
    fn new(axis: &Axis, reduction: Reduction) -> Self {
        let block = block(axis, reduction);
        let (whole, rest) = ((axis.kernel() - 1) / block, (axis.kernel() - 1) % block);
        Self { block: block as u32, whole: whole as u32, rest: rest as u32 }
    }
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    tap: Tap,
    height: Walk,
    width: Walk,
    /// The elements of a row in shared memory and of one of results, and those left free after each
    /// block.
    row: u32,
    result_row: u32,
    spare: u32,
    /// The channels of a cube, and its units.
    channels: u32,
    units: u32,
}

/// The numbers of the tiles, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct TileArgs {
    planes: u32,
    /// The groups of channels of a pixel, and all its channels.
    groups: FastDivmod<u32>,
    pixel: u32,
    /// The tiles of a plane, and the columns of one.
    tiles: FastDivmod<u32>,
    tile: u32,
    /// The blocks of rows of a plane, and the blocks of a row in which windows start.
    row_blocks: u32,
    starts: u32,
    output_height: u32,
    output_width: u32,
}

/// Launches the walk; the caller has checked plan and buffers.
pub(super) fn launch(
    client: &Client,
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
    [input, output]: [&Handle; 2],
) {
    let [_, height, width] = pooling.grid().axes();
    // The plan has been checked: there is a tile for its units.
    let Some((tile, _)) = tile(pooling, reduction, plan.units) else { return };
    let each = Plan { lanes: 1, across: false, unrolled: false, ..*plan };
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let pixel = pixel_channels(pooling);
    let planes = inputs / height.input() / width.input() / pixel;
    let (tiles, groups) = (width.output().div_ceil(tile), pixel / channels(pooling));
    let (row, result_row) = rows(pooling, reduction, plan);
    let form = Form {
        tap: Tap::new(pooling, reduction, dtype, &each),
        height: Walk::new(height, reduction),
        width: Walk::new(width, reduction),
        row: row as u32,
        result_row: result_row as u32,
        spare: spare(plan, channels(pooling)) as u32,
        channels: channels(pooling) as u32,
        units: plan.units,
    };
    let args = TileArgsLaunch::new(
        planes as u32,
        groups as u32,
        pixel as u32,
        tiles as u32,
        tile as u32,
        height.output().div_ceil(block(height, reduction)) as u32,
        tile.div_ceil(block(width, reduction)) as u32,
        height.output() as u32,
        width.output() as u32,
    );
    let (cubes, dim) = grid(client, plan, planes * groups * tiles * plan.units as usize);
    // SAFETY: coordinates are moved inside the plane before they are read, and outputs that are not
    // there are not written.
    unsafe {
        walk::launch_unchecked(
            client,
            cubes,
            dim,
            vectors(input, inputs, 1),
            vectors(output, outputs, 1),
            problem_args(pooling, reduction, dtype, &each),
            args,
            form,
            elem(dtype),
            elem(plan.accumulator),
        )
    };
}

/// Registers that live from one step to the next.
type Cells<A> = Sequence<RuntimeCell<Vector<A, One>>>;

/// `S` is how elements are stored, `A` how they are compared and summed.
#[cube(launch_unchecked)]
fn walk<S: Float, A: Float>(
    input: &[Vector<S, One>],
    output: &mut [Vector<S, One>],
    problem: &Problem,
    args: &TileArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let mut shared =
        Shared::<[Vector<A, One>]>::new_slice(comptime!((form.row * form.height.block) as usize));
    let mut results = Shared::<[Vector<A, One>]>::new_slice(comptime!(
        (form.result_row * form.height.block) as usize
    ));
    // Cubes of the same pixels are neighbours, and read them at about the same time.
    let (rest, group) = args.groups.div_mod(CUBE_POS as u32);
    let (plane, tile) = args.tiles.div_mod(rest);
    let place = place_of(problem, args, plane, group, tile, form);
    let divisors = divisors_of::<A>(problem, args, &place, form);
    let nothing = nothing::<A>(problem, form);
    for i in range_stepped(UNIT_POS, comptime!(form.row * form.height.block), CUBE_DIM) {
        shared[i as usize] = nothing;
    }
    sync_cube();

    let ending = cells::<A>(form.height.block);
    let totals = cells::<A>(form.height.whole);
    let elements = cells::<A>(form.height.block);
    let again = cells::<A>(form.height.block);
    if place.inside {
        for step in 0..comptime!(form.height.whole + 1) {
            column::<S, A>(input, problem, &place, step, &elements, form);
            let prefixes = prefixes::<A>(&read::<A>(&elements), form.height, form);
            keep::<A>(&prefixes, &ending, &totals, form);
        }
    }
    for block in 0..args.row_blocks {
        if place.inside {
            let step = block + comptime!(form.height.whole + 1);
            if is_inside(problem, block, form) && is_inside(problem, step, form) {
                inner_column::<S, A>(input, problem, &place, step, &elements, form);
                inner_column::<S, A>(input, problem, &place, block, &again, form);
            } else {
                column::<S, A>(input, problem, &place, step, &elements, form);
                column::<S, A>(input, problem, &place, block, &again, form);
            }
            let prefixes = prefixes::<A>(&read::<A>(&elements), form.height, form);
            let suffixes = suffixes::<A>(&read::<A>(&again), form.height, form);
            let rows = windows::<A>(
                &suffixes,
                &read::<A>(&totals),
                &read::<A>(&ending),
                &prefixes,
                form.height,
                form,
            );
            #[unroll]
            for i in 0..form.height.block {
                shared[(i * form.row + place.shared) as usize] = *rows.index(i as usize);
            }
            keep::<A>(&prefixes, &ending, &totals, form);
        }
        if place.fills {
            #[unroll]
            for i in 0..form.height.block {
                shared[(i * form.row + place.beyond) as usize] = nothing;
            }
        }
        sync_cube();
        along_rows::<A>(&mut shared, &mut results, args, &place, nothing, form);
        write_rows::<S, A>(&results, output, problem, args, &place, &divisors, block, form);
    }
}

/// What a fold with another leaves that as it is.
#[cube]
fn nothing<A: Float>(problem: &Problem, #[comptime] form: Form) -> Vector<A, One> {
    if comptime!(form.tap.fold.is_max()) {
        Vector::new(problem.lowest.get::<A>())
    } else {
        Vector::new(A::from_int(0))
    }
}

/// Where a unit's column is.
#[derive(CubeType)]
struct Place {
    /// The element of the column's first row, and the step to the next row.
    input: u32,
    line: u32,
    /// Whether there is such a column, and whether the unit fills up the last block with nothing too.
    inside: bool,
    fills: bool,
    /// The columns outside of the tile's first, and the end of those that are inside.
    lead: u32,
    end: u32,
    /// The output column, if there is one, its first element, and the step to the next row's.
    output: u32,
    output_line: u32,
    column: u32,
    writes: bool,
    /// Where in a row of shared memory the column is, and one behind the last that the unit fills; and
    /// where the output column is in a row of results.
    shared: u32,
    beyond: u32,
    result: u32,
}

#[cube]
fn place_of(
    problem: &Problem,
    args: &TileArgs,
    plane: u32,
    group: u32,
    tile: u32,
    #[comptime] form: Form,
) -> Place {
    let there = min(plane, args.planes - 1);
    let in_tile = UNIT_POS / form.channels;
    let in_group = UNIT_POS % form.channels;
    let channel = group * form.channels + in_group;
    let first = tile * args.tile;
    let column = first + in_tile;
    let before = problem.width.before as u32;
    let base = max(first, before) - before;
    let lead = max(first, before) - first;
    let width = problem.width.input as u32;
    let count = min(width - base, args.tile + problem.width.kernel as u32 - 1 - lead);
    let x = min(base + in_tile, width - 1);
    let pixel = there * problem.height.input as u32 * width + x;
    let output = there * args.output_height * args.output_width + column;
    Place {
        input: pixel * args.pixel + channel,
        line: width * args.pixel,
        inside: in_tile < count,
        fills: in_tile < comptime!(form.width.block - 1),
        lead,
        end: lead + count,
        output: output * args.pixel + channel,
        output_line: args.output_width * args.pixel,
        column,
        writes: plane < args.planes && in_tile < args.tile && column < args.output_width,
        shared: in_row(lead + in_tile, form) + in_group,
        beyond: in_row(lead + count + in_tile, form) + in_group,
        result: in_row(in_tile, form) + in_group,
    }
}

/// Where a column is in a row of shared memory.
#[cube]
fn in_row(column: u32, #[comptime] form: Form) -> u32 {
    column * form.channels + column / form.width.block * comptime!(form.spare * form.channels)
}

#[cube]
fn cells<A: Float>(#[comptime] count: u32) -> Cells<A> {
    let mut cells = Sequence::<RuntimeCell<Vector<A, One>>>::new();
    #[unroll]
    for _ in 0..count {
        cells.push(RuntimeCell::new(Vector::new(A::from_int(0))));
    }
    cells
}

#[cube]
fn read<A: Float>(cells: &Cells<A>) -> Sequence<Vector<A, One>> {
    let mut values = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for i in 0..cells.len() {
        values.push(cells.index(i).read());
    }
    values
}

/// The block that was ending last is whole now, and the oldest whole one leaves.
#[cube]
fn keep<A: Float>(
    prefixes: &Sequence<Vector<A, One>>,
    ending: &Cells<A>,
    totals: &Cells<A>,
    #[comptime] form: Form,
) {
    #[unroll]
    for i in 1..form.height.whole {
        totals.index(comptime!((i - 1) as usize)).store(totals.index(i as usize).read());
    }
    let newest = comptime!((form.height.whole - 1) as usize);
    totals.index(newest).store(*prefixes.index(comptime!((form.height.block - 1) as usize)));
    #[unroll]
    for j in 0..form.height.block {
        ending.index(j as usize).store(*prefixes.index(j as usize));
    }
}

/// Whether a block of rows is inside the input, as most are, for all units. A maximum has nothing to
/// drop, and that it is asked for would only keep the addresses of two ways in registers.
#[cube]
fn is_inside(problem: &Problem, block: u32, #[comptime] form: Form) -> bool {
    if comptime!(form.tap.fold.is_max()) {
        false.runtime()
    } else {
        let first = (block * form.height.block) as i32 - problem.height.before;
        first >= 0 && first + comptime!(form.height.block as i32) <= problem.height.input
    }
}

/// The elements of a block of a unit's column, which is inside.
#[cube]
fn inner_column<S: Float, A: Float>(
    input: &[Vector<S, One>],
    problem: &Problem,
    place: &Place,
    block: u32,
    elements: &Cells<A>,
    #[comptime] form: Form,
) {
    let first = (block * form.height.block) as i32 - problem.height.before;
    let at = place.input + first as u32 * place.line;
    #[unroll]
    for j in 0..form.height.block {
        let value = input[(at + j * place.line) as usize];
        elements.index(j as usize).store(Vector::cast_from(value));
    }
}

/// The elements of a block of a unit's column. One outside the input is, for a maximum, the nearest
/// inside, which every window over it has too; in a sum it is nothing.
#[cube]
fn column<S: Float, A: Float>(
    input: &[Vector<S, One>],
    problem: &Problem,
    place: &Place,
    block: u32,
    elements: &Cells<A>,
    #[comptime] form: Form,
) {
    let first = (block * form.height.block) as i32 - problem.height.before;
    #[unroll]
    for j in 0..form.height.block {
        let y = first + j as i32;
        let there = min(max(y, 0i32), problem.height.input - 1);
        let at = place.input + there as u32 * place.line;
        let value = Vector::<A, One>::cast_from(input[at as usize]);
        if comptime!(form.tap.fold.is_max()) {
            elements.index(j as usize).store(value);
        } else {
            let kept = select(y == there, value, Vector::new(A::from_int(0)));
            elements.index(j as usize).store(kept);
        }
    }
}

/// The folds of the first 1, 2, … elements of a block.
#[cube]
fn prefixes<A: Float>(
    elements: &Sequence<Vector<A, One>>,
    #[comptime] walk: Walk,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let mut prefixes = Sequence::<Vector<A, One>>::new();
    prefixes.push(*elements.index(0usize));
    #[unroll]
    for j in 1..walk.block as usize {
        let before = *prefixes.index(comptime!(j - 1));
        prefixes.push(together::<A, One>(before, *elements.index(j), form.tap));
    }
    prefixes
}

/// The folds of the last 1, 2, … elements of a block.
#[cube]
fn suffixes<A: Float>(
    elements: &Sequence<Vector<A, One>>,
    #[comptime] walk: Walk,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let last = comptime!((walk.block - 1) as usize);
    let mut suffixes = Sequence::<Vector<A, One>>::new();
    suffixes.push(*elements.index(last));
    #[unroll]
    for j in 1..walk.block as usize {
        let after = *suffixes.index(comptime!(j - 1));
        suffixes.push(together::<A, One>(*elements.index(comptime!(last - j)), after, form.tap));
    }
    suffixes
}

/// The windows that start in a block: `totals` are the blocks after it, `ending` and `beyond` the
/// prefixes of the last of these and of the one after.
#[cube]
fn windows<A: Float>(
    suffixes: &Sequence<Vector<A, One>>,
    totals: &Sequence<Vector<A, One>>,
    ending: &Sequence<Vector<A, One>>,
    beyond: &Sequence<Vector<A, One>>,
    #[comptime] walk: Walk,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let mut middle = *totals.index(0usize);
    #[unroll]
    for i in 1..comptime!(walk.whole.max(2) - 1) {
        middle = together::<A, One>(middle, *totals.index(i as usize), form.tap);
    }
    let newest = *totals.index(comptime!((walk.whole - 1) as usize));
    let longer = if comptime!(walk.whole > 1) {
        together::<A, One>(middle, newest, form.tap)
    } else {
        newest
    };
    let mut windows = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for i in 0..walk.block {
        let suffix = *suffixes.index(comptime!((walk.block - 1 - i) as usize));
        let to = comptime!(i + walk.rest);
        if comptime!(to >= walk.block) {
            let prefix = *beyond.index(comptime!((to - walk.block) as usize));
            windows.push(together::<A, One>(
                together::<A, One>(suffix, longer, form.tap),
                prefix,
                form.tap,
            ));
        } else {
            let prefix = *ending.index(to as usize);
            if comptime!(walk.whole > 1) {
                windows.push(together::<A, One>(
                    together::<A, One>(suffix, middle, form.tap),
                    prefix,
                    form.tap,
                ));
            } else {
                windows.push(together::<A, One>(suffix, prefix, form.tap));
            }
        }
    }
    windows
}

/// Folds the windows along the rows in shared memory.
///
/// Unit `i` of a row sums a block and has the windows that start in block `i`. That is the block that it
/// sums, if it is inside; the units of blocks before the first column sum those behind the last in which
/// windows start. Where some are left then, units sum another.
#[cube]
fn along_rows<A: Float>(
    shared: &mut Shared<[Vector<A, One>]>,
    results: &mut Shared<[Vector<A, One>]>,
    args: &TileArgs,
    place: &Place,
    nothing: Vector<A, One>,
    #[comptime] form: Form,
) {
    let (rows, columns) = comptime!((form.height.block, form.width.block));
    let item = UNIT_POS / rows;
    let (i, channel) = (item / form.channels, item % form.channels);
    let row = UNIT_POS % rows;
    let step = comptime!((columns + form.spare) * form.channels);
    let before = min(place.lead / columns, args.starts);
    let end = place.end.div_ceil(columns);
    let own = if i < before { args.starts + i } else { i };
    let first = row * form.row + channel;
    let at = first + min(own, end - 1) * step;
    let elements = from_shared::<A>(shared, at, form);
    let suffixes = suffixes::<A>(&elements, form.width, form);
    let prefixes = prefixes::<A>(&elements, form.width, form);
    if own < end && i < args.starts {
        to_shared::<A>(shared, &prefixes, at, form);
    }
    // What blocks are left have no windows of their own.
    let rest = args.starts + before + i;
    if rest < end && i < comptime!(form.items()) {
        for own in range_stepped(rest, end, comptime!(form.items())) {
            let at = first + own * step;
            sum_block::<A>(shared, at, form);
        }
    }
    sync_cube();
    if i < args.starts {
        let mut kept = Sequence::<Vector<A, One>>::new();
        #[unroll]
        for j in 0..columns {
            kept.push(select(i < before, nothing, *suffixes.index(j as usize)));
        }
        let at = (first + i * step) & comptime!(form.place());
        let mut totals = Sequence::<Vector<A, One>>::new();
        #[unroll]
        for n in 0..form.width.whole {
            let total = comptime!(((n + 1) * step + (columns - 1) * form.channels) as usize);
            totals.push(shared[at as usize + total]);
        }
        let ending = from_shared::<A>(shared, at + comptime!(form.width.whole * step), form);
        let beyond = from_shared::<A>(shared, at + comptime!((form.width.whole + 1) * step), form);
        let windows = windows::<A>(&kept, &totals, &ending, &beyond, form.width, form);
        to_shared::<A>(results, &windows, row * form.result_row + channel + i * step, form);
    }
    sync_cube();
}

/// Makes a block of a row its prefixes.
#[cube]
fn sum_block<A: Float>(shared: &mut Shared<[Vector<A, One>]>, at: u32, #[comptime] form: Form) {
    let elements = from_shared::<A>(shared, at, form);
    let prefixes = prefixes::<A>(&elements, form.width, form);
    to_shared::<A>(shared, &prefixes, at, form);
}

impl Form {
    /// The units of a row, and of a channel.
    fn items(&self) -> u32 {
        (self.units / self.height.block / self.channels).max(1)
    }

    /// A mask that places in shared memory are unchanged by. With it a compiler sees that steps from
    /// there stay within 32 bits, and makes them a part of the access.
    fn place(&self) -> u32 {
        (self.row * self.height.block).next_power_of_two() - 1
    }
}

/// A block of a row.
#[cube]
fn from_shared<A: Float>(
    shared: &mut Shared<[Vector<A, One>]>,
    first: u32,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let first = (first & comptime!(form.place())) as usize;
    let mut elements = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for j in 0..form.width.block {
        elements.push(shared[first + comptime!((j * form.channels) as usize)]);
    }
    elements
}

#[cube]
fn to_shared<A: Float>(
    shared: &mut Shared<[Vector<A, One>]>,
    values: &Sequence<Vector<A, One>>,
    first: u32,
    #[comptime] form: Form,
) {
    let first = (first & comptime!(form.place())) as usize;
    #[unroll]
    for j in 0..form.width.block {
        shared[first + comptime!((j * form.channels) as usize)] = *values.index(j as usize);
    }
}

/// What the windows of a unit's column are divided by.
#[derive(CubeType)]
struct Divisors<A: Float> {
    /// The taps that are counted along the width.
    columns: i32,
    /// One over the divisor of a window with all its rows.
    usual: Vector<A, One>,
}

#[cube]
fn divisors_of<A: Float>(
    problem: &Problem,
    args: &TileArgs,
    place: &Place,
    #[comptime] form: Form,
) -> Divisors<A> {
    let one = Vector::<A, One>::new(A::from_int(1));
    if comptime!(form.tap.fold.is_max()) {
        Divisors::<A> { columns: 1i32.runtime(), usual: one }
    } else if comptime!(form.tap.fold.is_fixed()) {
        let usual = Vector::new(problem.reciprocal.get::<A>());
        Divisors::<A> { columns: 1i32.runtime(), usual }
    } else {
        let column = min(place.column, args.output_width - 1);
        let columns = counted_at(&problem.width, column, form.tap.width, form.tap.fold);
        let all = problem.height.kernel * columns;
        Divisors::<A> { columns, usual: one / Vector::new(A::cast_from(all)) }
    }
}

/// Writes a block of rows, each unit its column.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn write_rows<S: Float, A: Float>(
    results: &Shared<[Vector<A, One>]>,
    output: &mut [Vector<S, One>],
    problem: &Problem,
    args: &TileArgs,
    place: &Place,
    divisors: &Divisors<A>,
    block: u32,
    #[comptime] form: Form,
) {
    let first = block * form.height.block;
    let last = first + comptime!(form.height.block - 1);
    let whole = last < args.output_height && counts_all(problem, first, last, form);
    if place.writes {
        let at = place.output + first * place.output_line;
        if whole {
            #[unroll]
            for i in 0..form.height.block {
                let fold = results[(i * form.result_row + place.result) as usize];
                output[(at + i * place.output_line) as usize] =
                    finished::<S, A>(problem, fold, divisors, first + i, true, form);
            }
        } else {
            for i in 0..min(args.output_height - first, form.height.block) {
                let fold = results[(i * form.result_row + place.result) as usize];
                output[(at + i * place.output_line) as usize] =
                    finished::<S, A>(problem, fold, divisors, first + i, false, form);
            }
        }
    }
}

/// Whether the windows of rows from `first` to `last` have all their rows: then those between have.
#[cube]
fn counts_all(problem: &Problem, first: u32, last: u32, #[comptime] form: Form) -> bool {
    if comptime!(form.tap.fold.is_max() || form.tap.fold.is_fixed()) {
        true.runtime()
    } else {
        let all = problem.height.kernel;
        counted_at(&problem.height, first, form.tap.height, form.tap.fold) == all
            && counted_at(&problem.height, last, form.tap.height, form.tap.fold) == all
    }
}

/// What becomes of the fold of a window on row `h`, all of whose rows are counted if it is `whole`.
#[cube]
fn finished<S: Float, A: Float>(
    problem: &Problem,
    fold: Vector<A, One>,
    divisors: &Divisors<A>,
    h: u32,
    #[comptime] whole: bool,
    #[comptime] form: Form,
) -> Vector<S, One> {
    if comptime!(form.tap.fold.is_max()) {
        Vector::cast_from(fold)
    } else if comptime!(form.tap.reciprocal && (whole || form.tap.fold.is_fixed())) {
        round::<A, S, One>(fold * divisors.usual, form.tap.rounds)
    } else if comptime!(form.tap.fold.is_fixed()) {
        round::<A, S, One>(fold / Vector::new(A::cast_from(problem.divisor)), form.tap.rounds)
    } else {
        let rows = counted_at(&problem.height, h, form.tap.height, form.tap.fold);
        let taps = A::cast_from(rows * divisors.columns);
        let average = if comptime!(form.tap.reciprocal) {
            fold * Vector::new(A::from_int(1) / taps)
        } else {
            fold / Vector::new(taps)
        };
        round::<A, S, One>(average, form.tap.rounds)
    }
}
