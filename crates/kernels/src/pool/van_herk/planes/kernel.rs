//! The kernel: each cube walks a tile of a plane, one block of rows after the other.

use cubecl::prelude::*;

use super::columns::{Divisors, divisors_of, fetch, keep, widened, windows};
use super::form::WORD_BYTES;
use super::results::{tables_of, write_rows};
use super::rows::along_rows;
use super::{Form, One, TileArgs};
use crate::cube::registers::{Registers, read, zeros};
use crate::pool::common::window::{identity, prefixes};
use crate::pool::common::{CubePosition, cube_position};

/// `S` is the type in which elements are read, `T` the type in which they are written, `A` the type of the reduction.
/// `N` is the number of lanes of a unit's column, `P` the number of these that are adjacent in shared memory too, `M`
/// the lanes that are written at once.
#[cube(launch_unchecked)]
pub(super) fn walk_tile<S: Float, T: Float, A: Float, N: Size, P: Size, M: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<T, M>],
    args: &TileArgs,
    #[comptime] form: Form,
    #[define(S, T, A)] _types: [ElemType; 3],
) {
    // Aligned, because it is also viewed as vectors of several elements.
    let mut shared = Shared::<[Vector<A, P>]>::new_aligned_slice(
        comptime!(form.shared() as usize),
        comptime!(WORD_BYTES),
    );
    let mut totals = Shared::<[Vector<A, P>]>::new_slice(comptime!(form.totals() as usize));
    let mut results = Shared::<[Vector<A, One>]>::new_slice(comptime!(form.results() as usize));
    let tile = tile_of(args, form);
    let place = place_of(args, &tile, form);
    let divisors = divisors_of::<A, N>(args, place.column, form);
    let tables = tables_of::<A>(args, &tile, form);
    let nothing = identity::<A, P>(&args.problem, form.window.fold);
    for i in range_stepped(UNIT_POS, comptime!(form.shared()), CUBE_DIM) {
        shared[i as usize] = nothing;
    }
    sync_cube();

    let ending = zeros::<A, N>(form.height.ending());
    let whole = zeros::<A, N>(form.height.whole);
    let next = zeros::<S, N>(form.height.block);
    let first = zeros::<S, N>(if comptime!(form.height.whole > 0) { form.height.block } else { 0 });
    if place.inside {
        prologue::<S, A, N>(
            input,
            args,
            &place,
            &divisors,
            tile.at.block,
            &next,
            &first,
            &whole,
            &ending,
            form,
        );
    }
    for block in tile.at.block..tile.at.end {
        let buffer = if comptime!(form.layout.buffers > 1) {
            (block & 1) * comptime!(form.rows())
        } else {
            0u32.runtime()
        };
        if place.inside {
            let after = block + comptime!(form.before());
            let elements = widened::<S, A, N>(&next, args, &divisors, after, form);
            if comptime!(form.height.whole > 0) {
                let prefixes = prefixes::<A, N>(&elements, form.height.block, form.window);
                let rows = windows::<A, N>(
                    &widened::<S, A, N>(&first, args, &divisors, block, form),
                    &read::<A, N>(&whole),
                    &read::<A, N>(&ending),
                    &prefixes,
                    form.height,
                    form.window,
                );
                share_rows::<A, N, P>(&rows, &mut shared, buffer + place.shared, form);
                keep::<A, N>(&prefixes, &ending, &whole, form);
            } else {
                share_rows::<A, N, P>(&elements, &mut shared, buffer + place.shared, form);
            }
            if block + 1 < tile.at.end {
                fetch_both::<S, N>(input, args, &place, block + 1, &next, &first, form);
            }
        }
        sync_cube();
        along_rows::<T, A, P, M>(
            &shared,
            &mut totals,
            &mut results,
            output,
            args,
            &tables,
            &tile,
            block,
            buffer,
            form,
        );
        if comptime!(form.written == 0) {
            sync_cube();
            write_rows::<T, A, M>(&results, output, args, &tile, block, form);
        }
        if comptime!(form.layout.buffers == 1) {
            sync_cube();
        }
    }
}

/// Loads the blocks in which the windows of a block of rows end and start.
#[cube]
fn fetch_both<S: Float, N: Size>(
    input: &[Vector<S, N>],
    args: &TileArgs,
    place: &ColumnPosition,
    block: u32,
    next: &Registers<S, N>,
    first: &Registers<S, N>,
    #[comptime] form: Form,
) {
    fetch::<S, N>(input, args, place, block + comptime!(form.before()), next, form);
    if comptime!(form.height.whole > 0) {
        fetch::<S, N>(input, args, place, block, first, form);
    }
}

/// Reduces the first `whole + 1` blocks, from the one in which the first windows begin; then loads the block after them
/// into `next` and the first one again into `first`. Two loads are in flight at a time, because there is little other
/// work meanwhile.
#[cube]
fn prologue<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    args: &TileArgs,
    place: &ColumnPosition,
    divisors: &Divisors<A, N>,
    block: u32,
    next: &Registers<S, N>,
    first: &Registers<S, N>,
    whole: &Registers<A, N>,
    ending: &Registers<A, N>,
    #[comptime] form: Form,
) {
    let rows = comptime!(form.height.block);
    let blocks = comptime!(form.before());
    if comptime!(blocks > 0) {
        fetch::<S, N>(input, args, place, block, next, form);
        fetch::<S, N>(input, args, place, block + 1, first, form);
        for pair in 0..comptime!(blocks / 2) {
            let step = block + 2 * pair + 2;
            let one = widened::<S, A, N>(next, args, divisors, step - 2, form);
            let other = widened::<S, A, N>(first, args, divisors, step - 1, form);
            fetch::<S, N>(input, args, place, step, next, form);
            fetch::<S, N>(input, args, place, step + 1, first, form);
            keep::<A, N>(&prefixes::<A, N>(&one, rows, form.window), ending, whole, form);
            keep::<A, N>(&prefixes::<A, N>(&other, rows, form.window), ending, whole, form);
        }
        if comptime!(blocks % 2 > 0) {
            let step = block + comptime!(blocks - 1);
            let last = widened::<S, A, N>(next, args, divisors, step, form);
            keep::<A, N>(&prefixes::<A, N>(&last, rows, form.window), ending, whole, form);
            #[unroll]
            for j in 0..rows {
                next.index(j as usize).store(first.index(j as usize).read());
            }
        }
        fetch::<S, N>(input, args, place, block, first, form);
    } else {
        fetch::<S, N>(input, args, place, block, next, form);
    }
}

/// Writes the windows of a block of a unit's column to shared memory, row by row.
#[cube]
fn share_rows<A: Float, N: Size, P: Size>(
    rows: &Sequence<Vector<A, N>>,
    shared: &mut Shared<[Vector<A, P>]>,
    first: u32,
    #[comptime] form: Form,
) {
    let at = first & comptime!(form.place());
    let (lanes, combine) = comptime!((form.lanes as usize, form.shared_lanes() as usize));
    #[unroll]
    for i in 0..form.height.block {
        let row = comptime!((i * form.layout.row * form.column_step()) as usize);
        let sums = *rows.index(i as usize);
        #[unroll]
        for n in 0..comptime!(lanes / combine) {
            let mut sum = Vector::<A, P>::new(A::from_int(0));
            #[unroll]
            for p in 0..combine {
                sum.insert(p, sums.extract(comptime!(n * combine + p)));
            }
            shared[at as usize + row + n] = sum;
        }
    }
}

/// The tile of a cube.
#[derive(CubeType)]
pub(super) struct Tile {
    pub(super) at: CubePosition,
    /// The number of its columns that are written.
    pub(super) columns: u32,
}

#[cube]
fn tile_of(args: &TileArgs, #[comptime] form: Form) -> Tile {
    let at = cube_position(&args.cubes, comptime!(!form.one_channel));
    let columns = if at.plane < args.planes {
        min(args.cubes.tile, args.output_width - at.column)
    } else {
        0u32
    };
    Tile { at, columns }
}

/// The position of a unit's column.
#[derive(CubeType)]
pub(super) struct ColumnPosition {
    /// The vector of the column's first row, and the step to the next row.
    pub(super) input: u32,
    pub(super) line: u32,
    /// Whether the column exists.
    pub(super) inside: bool,
    /// The column, and its position in shared memory.
    pub(super) column: u32,
    pub(super) shared: u32,
}

#[cube]
fn place_of(args: &TileArgs, tile: &Tile, #[comptime] form: Form) -> ColumnPosition {
    let vectors = comptime!(form.vectors());
    let step = comptime!(if form.one_channel { form.lanes } else { 1 });
    let there = min(tile.at.plane, args.planes - 1);
    let width = args.problem.width.input;
    // The columns that the tile's windows read: those inside the input, beginning with a whole vector.
    let left = tile.at.column as i32 - args.problem.width.before;
    let first = max(left, 0i32) as u32 / step * step;
    let end = min(width, left + args.cubes.tile as i32 + args.problem.width.kernel - 1) as u32;
    let column = first + UNIT_POS / vectors * step;
    let inside = column < end;
    let column = min(column, width as u32 - step);
    let vector = tile.at.group * vectors + UNIT_POS % vectors;
    let pixel =
        if comptime!(form.one_channel) { column / step } else { column * args.pixel + vector };
    let margin = comptime!((form.layout.margin + form.width.phase) as i32);
    let position = (column as i32 - left + margin) as u32;
    ColumnPosition {
        input: there * args.input_height as u32 * args.line + pixel,
        line: args.line,
        inside,
        column,
        shared: position * form.column_step() + UNIT_POS % vectors * form.vector_step(),
    }
}
