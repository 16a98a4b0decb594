//! The kernel: each cube walks a tile of a plane, one block of rows after the other.

use cubecl::prelude::*;

use super::columns::{column, fetch, keep, suffixes, windows};
use super::results::{divisors_of, write_rows};
use super::rows::along_rows;
use super::{Form, One, TileArgs};
use crate::cube::registers::{read, zeros};
use crate::pool::common::window::{ProblemArgs, neutral, prefixes};

/// If a window has at most this many blocks of rows, all of them are loaded: the loads overlap.
const FEW_BLOCKS: u32 = 7;

/// `S` is the type in which elements are stored, `A` the type in which they are compared and summed.
#[cube(launch_unchecked)]
pub(super) fn walk_tile<S: Float, A: Float>(
    input: &[Vector<S, One>],
    output: &mut [Vector<S, One>],
    problem: &ProblemArgs,
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
    // Cubes with the same pixels are neighbours, so that they read them at about the same time.
    let (rest, group) = args.groups.div_mod(CUBE_POS as u32);
    let (plane, tile) = args.tiles.div_mod(rest);
    let place = place_of(problem, args, plane, group, tile, form);
    let mut divisors = divisors_of::<A>(problem, args, &place, form);
    let nothing = neutral::<A, One>(problem, form.tap.fold);
    for i in range_stepped(UNIT_POS, comptime!(form.row * form.height.block), CUBE_DIM) {
        shared[i as usize] = nothing;
    }
    sync_cube();

    let ending = zeros::<A, One>(form.height.block);
    let totals = zeros::<A, One>(form.height.whole);
    let elements = zeros::<A, One>(form.height.block);
    let again = zeros::<A, One>(form.height.block);
    if place.inside {
        for step in first_step(problem, form)..comptime!(form.height.whole + 1) {
            column::<S, A>(input, problem, &place, step, &elements, form);
            let prefixes =
                prefixes::<A, One>(&read::<A, One>(&elements), form.height.block, form.tap);
            keep::<A>(&prefixes, &ending, &totals, form);
        }
    }
    for block in 0..args.row_blocks {
        if place.inside {
            let step = block + comptime!(form.height.whole + 1);
            fetch::<S, A>(input, problem, &place, step, &elements, form);
            fetch::<S, A>(input, problem, &place, block, &again, form);
            let prefixes =
                prefixes::<A, One>(&read::<A, One>(&elements), form.height.block, form.tap);
            let suffixes = suffixes::<A>(&read::<A, One>(&again), form.height, form);
            let rows = windows::<A>(
                &suffixes,
                &read::<A, One>(&totals),
                &read::<A, One>(&ending),
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
        divisors.count_rows(problem, block, form);
        along_rows::<A>(&mut shared, &mut results, args, &place, nothing, form);
        write_rows::<S, A>(&results, output, problem, args, &place, &divisors, block, form);
    }
}

/// The first block to load of those before the first output. For sums, blocks above the plane's first row are skipped,
/// because they are 0. If there are few blocks, all are loaded: their loads then overlap, which saves more.
#[cube]
fn first_step(problem: &ProblemArgs, #[comptime] form: Form) -> u32 {
    if comptime!(form.tap.fold.is_max() || form.height.whole <= FEW_BLOCKS) {
        0u32.runtime()
    } else {
        min(problem.height.before as u32 / form.height.block, form.height.whole + 1)
    }
}

/// The position of a unit's column.
#[derive(CubeType)]
pub(super) struct Place {
    /// The element of the column's first row, and the step to the next row.
    pub(super) input: u32,
    pub(super) line: u32,
    /// Whether the column exists, and whether the unit also fills the end of the last block with the identity element.
    pub(super) inside: bool,
    pub(super) fills: bool,
    /// The number of padding columns at the start of the tile, and the end of the columns inside the input.
    pub(super) lead: u32,
    pub(super) end: u32,
    /// The first element of the output column, the step to the next row's, the column itself, and whether it exists.
    pub(super) output: u32,
    pub(super) output_line: u32,
    pub(super) column: u32,
    pub(super) writes: bool,
    /// The positions in a row of shared memory of the column and of the element that the unit fills behind the last
    /// column; and the position of the output column in a row of results.
    pub(super) shared: u32,
    pub(super) beyond: u32,
    pub(super) result: u32,
}

#[cube]
fn place_of(
    problem: &ProblemArgs,
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
        shared: (lead + in_tile) * form.channels + in_group,
        beyond: (lead + count + in_tile) * form.channels + in_group,
        result: in_tile * form.channels + in_group,
    }
}
