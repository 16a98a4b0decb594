//! The rows of a tile: their windows are computed from shared memory.

use cubecl::prelude::*;

use super::columns::windows;
use super::form::Blocking;
use super::kernel::Tile;
use super::results::{Tables, write};
use super::{Form, One, TileArgs};
use crate::pool::common::window::prefixes;

impl Blocking {
    /// Whether the reductions of whole blocks are computed once for all windows. Not if windows have only one whole
    /// block, which few of them share.
    pub(super) fn shares(&self) -> bool {
        self.whole > 1
    }
}

/// A block of a row.
#[derive(CubeType)]
pub(super) struct Item {
    pub(super) row: u32,
    pub(super) block: u32,
    /// Which vector of the pixels.
    pub(super) vector: u32,
}

/// Neighbouring units have the same pixels, or rows on different banks of shared memory.
#[cube]
fn item_of(item: u32, #[comptime] form: Form) -> Item {
    let (vectors, rows) = comptime!((form.vectors(), form.layout.rows));
    if comptime!(form.layout.planar) {
        let (line, block) = (item % (rows * vectors), item / (rows * vectors));
        Item { row: line % rows, block, vector: line / rows }
    } else {
        let pixel = item / vectors;
        Item { row: pixel % rows, block: pixel / rows, vector: item % vectors }
    }
}

/// Reduces the windows along the rows, and writes them to the output or to `results`.
#[cube]
pub(super) fn along_rows<T: Float, A: Float, P: Size, M: Size>(
    shared: &Shared<[Vector<A, P>]>,
    totals: &mut Shared<[Vector<A, P>]>,
    results: &mut Shared<[Vector<A, One>]>,
    output: &mut [Vector<T, M>],
    args: &TileArgs,
    tables: &Tables<A>,
    tile: &Tile,
    rows: u32,
    buffer: u32,
    #[comptime] form: Form,
) {
    let line = comptime!(form.layout.rows * form.vectors());
    let starts = tile.columns.div_ceil(form.width.block);
    if comptime!(form.width.shares()) {
        // The first block is not a whole block of any window.
        for i in
            range_stepped(UNIT_POS, (starts + comptime!(form.width.whole - 1)) * line, CUBE_DIM)
        {
            let item = item_of(i + line, form);
            let total = total_of::<A, P>(shared, buffer, &item, 0u32, form);
            totals[total_at(&item, 0u32, form) as usize] = total;
        }
        sync_cube();
    }
    for i in range_stepped(UNIT_POS, starts * line, CUBE_DIM) {
        let item = item_of(i, form);
        let mut whole = Sequence::<Vector<A, P>>::new();
        #[unroll]
        for n in 1..comptime!(form.width.whole + 1) {
            whole.push(if comptime!(form.width.shares()) {
                totals[total_at(&item, n, form) as usize]
            } else {
                total_of::<A, P>(shared, buffer, &item, n, form)
            });
        }
        let first = block_of::<A, P>(shared, buffer, &item, 0u32, form);
        let ending = if comptime!(form.width.shorter() > 0) {
            let last = block_of::<A, P>(shared, buffer, &item, form.width.whole, form);
            prefixes::<A, P>(&last, form.width.block, form.window)
        } else {
            Sequence::<Vector<A, P>>::new()
        };
        let beyond = block_of::<A, P>(shared, buffer, &item, comptime!(form.width.whole + 1), form);
        let beyond = prefixes::<A, P>(&beyond, form.width.block, form.window);
        let sums = windows::<A, P>(&first, &whole, &ending, &beyond, form.width, form.window);
        write::<T, A, P, M>(output, args, tables, results, tile, rows, &item, &sums, form);
    }
}

/// The position of the kept reduction of the block that is `after` blocks after an item's.
#[cube]
fn total_at(item: &Item, #[comptime] after: u32, #[comptime] form: Form) -> u32 {
    let line = comptime!(form.layout.totals / form.layout.rows);
    if comptime!(form.layout.planar) {
        (item.vector * form.layout.rows + item.row) * line + item.block + after
    } else {
        (item.row * line + item.block + after) * comptime!(form.vectors()) + item.vector
    }
}

/// The reduction of the block that is `after` blocks after an item's.
#[cube]
fn total_of<A: Float, P: Size>(
    shared: &Shared<[Vector<A, P>]>,
    buffer: u32,
    item: &Item,
    #[comptime] after: u32,
    #[comptime] form: Form,
) -> Vector<A, P> {
    let elements = block_of::<A, P>(shared, buffer, item, after, form);
    let prefixes = prefixes::<A, P>(&elements, form.width.block, form.window);
    *prefixes.index(comptime!((form.width.block - 1) as usize))
}

/// The elements of the block that is `after` blocks after an item's.
#[cube]
fn block_of<A: Float, P: Size>(
    shared: &Shared<[Vector<A, P>]>,
    buffer: u32,
    item: &Item,
    #[comptime] after: u32,
    #[comptime] form: Form,
) -> Sequence<Vector<A, P>> {
    let step = comptime!(form.column_step());
    let margin = comptime!(form.layout.margin + after * form.width.block);
    let column = item.row * form.layout.row + item.block * form.width.block + margin;
    let first = buffer + column * step + item.vector * form.vector_step();
    let mut elements = Sequence::<Vector<A, P>>::new();
    if comptime!(form.layout.word > 1) {
        // Only if the elements of a row are adjacent.
        let word = comptime!(form.layout.word as usize);
        let size!(W) = word;
        let words: &[Vector<A, W>] =
            shared[0..comptime!(form.shared() as usize)].with_vector_size();
        let first = (first & comptime!(form.place())) as usize / word;
        #[unroll]
        for j in 0..comptime!(form.width.block as usize / word) {
            let loaded = words[first + j];
            #[unroll]
            for n in 0..word {
                elements.push(Vector::new(loaded.extract(n)));
            }
        }
    } else {
        let first = (first & comptime!(form.place())) as usize;
        #[unroll]
        for j in 0..form.width.block {
            elements.push(shared[first + comptime!((j * step) as usize)]);
        }
    }
    elements
}
