//! The rows of a tile: their windows are reduced in shared memory.

use cubecl::prelude::*;

use super::columns::{suffixes, windows};
use super::kernel::Place;
use super::{Form, One, TileArgs};
use crate::pool::common::window::prefixes;

/// Reduces the windows along the rows in shared memory.
///
/// Unit `i` of a row computes the windows that start in block `i`, and the prefixes of one block. This is block `i`,
/// unless block `i` is padding before the first column; then it is a block after the last one in which windows start.
/// The blocks that are left after that are distributed over all units.
#[cube]
pub(super) fn along_rows<A: Float>(
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
    let step = comptime!(columns * form.channels);
    let before = min(place.lead / columns, args.starts);
    let end = place.end.div_ceil(columns);
    let own = if i < before { args.starts + i } else { i };
    let first = row * form.row + channel;
    let at = first + min(own, end - 1) * step;
    let elements = from_shared::<A>(shared, at, form);
    let suffixes = suffixes::<A>(&elements, form.width, form);
    let prefixes = prefixes::<A, One>(&elements, form.width.block, form.tap);
    if own < end && i < args.starts {
        to_shared::<A>(shared, &prefixes, at, form);
    }
    // The remaining blocks are not the start of any window.
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

/// Replaces a block of a row by its prefixes.
#[cube]
fn sum_block<A: Float>(shared: &mut Shared<[Vector<A, One>]>, at: u32, #[comptime] form: Form) {
    let elements = from_shared::<A>(shared, at, form);
    let prefixes = prefixes::<A, One>(&elements, form.width.block, form.tap);
    to_shared::<A>(shared, &prefixes, at, form);
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
