//! Large windows of planes in one launch: walked down the columns in registers, and along the rows in
//! shared memory.
//!
//! ```text
//! for each tile of columns of a plane:                      one cube, a unit a column and channel
//!     for each block of B rows of outputs:
//!         fold each column's windows, as `sliding` does      to B rows in shared memory
//!         for each row, block by block of its columns:       a unit each
//!             prefix, over the block in shared memory; suffix, in registers
//!             y[o] = suffix · whole blocks between · prefix
//!         write the rows
//! ```
//!
//! What `sliding` writes between its passes never leaves the multiprocessor, and all that is read and
//! written are neighbours. A tile reads a window more of columns than it writes. With channels last a
//! cube has a few channels of a tile, which lie together in shared memory as they do in the image.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Axis, DType, Pooling};

use super::direct::{Form as Tap, Problem, counted_at, problem_args, together};
use super::launch::{grid, vectors};
use super::plan::{Output, Plan, Reduction, pixel_channels};
use super::sliding;
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

/// The columns that a cube writes and the units that it takes, of no more than `most`.
pub(super) fn tile(pooling: &Pooling, most: u32) -> Option<(usize, u32)> {
    let [_, height, width] = pooling.grid().axes();
    let (rows, channels) = (sliding::block(height), channels(pooling));
    let most = most.min(if channels > 1 { MOST_UNITS_OF_CHANNELS } else { MOST_UNITS });
    let tiled = |tiles: usize| {
        let tile = width.output().div_ceil(tiles);
        let columns = tile + width.kernel() - 1;
        let units = columns.max(rows * columns.div_ceil(sliding::block(width)));
        (tile, (channels * units).next_multiple_of(64) as u32)
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
}

/// The bytes that a cube's units share.
pub(super) fn shared_bytes(pooling: &Pooling, plan: &Plan) -> usize {
    let [_, height, width] = pooling.grid().axes();
    let rows = sliding::block(height);
    rows * row(plan, rows, sliding::block(width), channels(pooling)) * plan.accumulator.size()
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
fn row(plan: &Plan, rows: usize, block: usize, channels: usize) -> usize {
    let columns = plan.units as usize / channels + block;
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
    fn new(axis: &Axis) -> Self {
        let block = sliding::block(axis);
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
    /// The elements of a row in shared memory, and those left free after each of its blocks.
    row: u32,
    spare: u32,
    /// The channels of a cube.
    channels: u32,
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
    /// The blocks of rows of a plane, and the blocks of columns that a tile reads.
    row_blocks: u32,
    column_blocks: u32,
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
    let Some((tile, _)) = tile(pooling, plan.units) else { return };
    let each = Plan { lanes: 1, across: false, unrolled: false, ..*plan };
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let pixel = pixel_channels(pooling);
    let planes = inputs / height.input() / width.input() / pixel;
    let (tiles, groups) = (width.output().div_ceil(tile), pixel / channels(pooling));
    let rows = sliding::block(height);
    let form = Form {
        tap: Tap::new(pooling, reduction, dtype, &each),
        height: Walk::new(height),
        width: Walk::new(width),
        row: row(plan, rows, sliding::block(width), channels(pooling)) as u32,
        spare: spare(plan, channels(pooling)) as u32,
        channels: channels(pooling) as u32,
    };
    let args = TileArgsLaunch::new(
        planes as u32,
        groups as u32,
        pixel as u32,
        tiles as u32,
        tile as u32,
        height.output().div_ceil(sliding::block(height)) as u32,
        (tile + width.kernel() - 1).div_ceil(sliding::block(width)) as u32,
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
    // Cubes of the same pixels are neighbours, and read them at about the same time.
    let (rest, group) = args.groups.div_mod(CUBE_POS as u32);
    let (plane, tile) = args.tiles.div_mod(rest);
    let place = place_of(problem, args, plane, group, tile, form);
    let divisors = divisors_of::<A>(problem, args, &place, form);

    let ending = cells::<A>(form.height.block);
    let totals = cells::<A>(form.height.whole);
    for step in 0..comptime!(form.height.whole + 1) {
        let elements = cells::<A>(form.height.block);
        column::<S, A>(input, problem, &place, step, &elements, form);
        keep::<A>(&prefixes::<A>(&read::<A>(&elements), form.height, form), &ending, &totals, form);
    }
    let elements = cells::<A>(form.height.block);
    let again = cells::<A>(form.height.block);
    for block in 0..args.row_blocks {
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
            let value = *rows.index(i as usize);
            let value = if comptime!(form.tap.fold.is_max()) {
                value
            } else {
                select(place.inside, value, Vector::new(A::from_int(0)))
            };
            shared[(i * form.row + place.shared) as usize] = value;
        }
        keep::<A>(&prefixes, &ending, &totals, form);
        sync_cube();
        along_rows::<A>(&mut shared, args, form);
        write_rows::<S, A>(&shared, output, problem, args, &place, &divisors, block, form);
    }
}

/// Where a unit's column is.
#[derive(CubeType)]
struct Place {
    /// The element of the first row, at the column or the nearest inside, and the step to the next row.
    input: u32,
    line: u32,
    inside: bool,
    /// The output column, if there is one, its first element, and the step to the next row's.
    output: u32,
    output_line: u32,
    column: u32,
    writes: bool,
    /// Where it is in a row of shared memory.
    shared: u32,
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
    let channel = group * form.channels + UNIT_POS % form.channels;
    let column = tile * args.tile + in_tile;
    let x = column as i32 - problem.width.before;
    let moved = min(max(x, 0i32), problem.width.input - 1);
    let rows = there * problem.height.input as u32;
    let pixel = rows * problem.width.input as u32 + moved as u32;
    let output = there * args.output_height * args.output_width + column;
    Place {
        input: pixel * args.pixel + channel,
        line: problem.width.input as u32 * args.pixel,
        inside: x == moved,
        output: output * args.pixel + channel,
        output_line: args.output_width * args.pixel,
        column,
        writes: plane < args.planes && in_tile < args.tile && column < args.output_width,
        shared: UNIT_POS + in_tile / form.width.block * form.spare,
    }
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

/// Folds the windows along the rows in shared memory, in their place.
#[cube]
fn along_rows<A: Float>(
    shared: &mut Shared<[Vector<A, One>]>,
    args: &TileArgs,
    #[comptime] form: Form,
) {
    let (rows, columns) = comptime!((form.height.block, form.width.block));
    let item = UNIT_POS / rows;
    let (block, channel) = (item / form.channels, item % form.channels);
    let works = block < args.column_blocks;
    let row = UNIT_POS % rows * form.row + channel;
    let step = comptime!((columns + form.spare) * form.channels);
    let first = row + min(block, args.column_blocks - 1) * step;
    let elements = from_shared::<A>(shared, first, form);
    let suffixes = suffixes::<A>(&elements, form.width, form);
    let prefixes = prefixes::<A>(&elements, form.width, form);
    if works {
        to_shared::<A>(shared, &prefixes, first, form);
    }
    sync_cube();
    let last = row + (args.column_blocks - 1) * step;
    let mut totals = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for i in 0..form.width.whole {
        let total = min(first + comptime!((i + 1) * step), last);
        let total = total + comptime!((columns - 1) * form.channels);
        totals.push(shared[total as usize]);
    }
    let ending =
        from_shared::<A>(shared, min(first + comptime!(form.width.whole * step), last), form);
    let beyond =
        from_shared::<A>(shared, min(first + comptime!((form.width.whole + 1) * step), last), form);
    let windows = windows::<A>(&suffixes, &totals, &ending, &beyond, form.width, form);
    sync_cube();
    if works {
        to_shared::<A>(shared, &windows, first, form);
    }
    sync_cube();
}

impl Form {
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
    shared: &Shared<[Vector<A, One>]>,
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
                let fold = shared[(i * form.row + place.shared) as usize];
                output[(at + i * place.output_line) as usize] =
                    finished::<S, A>(problem, fold, divisors, first + i, true, form);
            }
        } else {
            for i in 0..min(args.output_height - first, form.height.block) {
                let fold = shared[(i * form.row + place.shared) as usize];
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
