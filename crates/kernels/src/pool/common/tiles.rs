//! Tiles: which vectors of which pixels neighbouring units handle.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::AXES;

use crate::pool::common::Task;
use crate::pool::problem::outermost;

/// How the vectors of a pixel are divided, so that neighbouring units also have neighbouring pixels, of one row and of
/// a few rows.
///
/// Units on one multiprocessor read a tap once for all of them. If they all belonged to one pixel, as many
/// multiprocessors would read the tap as there are windows over it.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Tiles {
    /// The number of vectors in a tile.
    vectors: FastDivmod<u32>,
    tile: u32,
    /// The number of rows in a tile.
    group: FastDivmod<u32>,
    rows: u32,
    /// The number of tiles in a pixel.
    count: FastDivmod<u32>,
}

/// The bytes of a tile: as many as a multiprocessor loads at once.
const TILE_BYTES: usize = 128;

/// The most rows of a tile.
const TILE_ROWS: usize = 4;

/// The tiles of a problem whose units have `places` positions along the height. Units that gather a gradient write more
/// than they read.
pub(crate) fn tiles_args(task: Task<'_>, places: usize) -> TilesLaunch {
    let pixel = task.pixel_vectors();
    let width = &task.axes()[AXES - 1];
    let most = if task.problem.gradient { 2 * width.stride() - 1 } else { width.stride() };
    let shares = width.kernel() > most && !task.settings.contiguous;
    let tile = tile(pixel as usize, task.lanes() * task.dtype().size(), shares) as u32;
    let rows = rows(task, places) as u32;
    TilesLaunch::new(tile, tile, rows, rows, pixel / tile)
}

/// The number of vectors in a tile. If neighbouring windows share taps, it divides the vectors of a pixel and fills at
/// least half of what is loaded at once; otherwise a tile is the whole pixel.
fn tile(pixel: usize, bytes: usize, shares: bool) -> usize {
    let most = (TILE_BYTES / bytes).max(1);
    let divides = |&tile: &usize| pixel.is_multiple_of(tile) && 2 * tile >= most;
    (1..=most).rev().find(divides).filter(|_| shares).unwrap_or(pixel)
}

/// The number of rows in a tile. It divides the `places` of a sample, so that all tiles have as many rows. Strips along
/// the height already have several rows.
fn rows(task: Task<'_>, places: usize) -> usize {
    let height = &task.axes()[AXES - 2];
    let inner = outermost(task.pooling()) < AXES - 2;
    let shares = height.kernel() > height.stride() && inner && !task.settings.contiguous;
    let divides = |&rows: &usize| places.is_multiple_of(rows);
    (1..=TILE_ROWS).rev().find(divides).filter(|_| shares).unwrap_or(1)
}

/// The column of a unit on a row of `width`, its vector within the pixel, and the row.
#[cube]
pub(crate) fn tiled(tiles: &Tiles, width: &FastDivmod<u32>, unit: u32) -> (u32, u32, u32) {
    let (rest, inner) = tiles.vectors.div_mod(unit);
    let (rest, below) = tiles.group.div_mod(rest);
    let (rest, w) = width.div_mod(rest);
    let (above, tile) = tiles.count.div_mod(rest);
    (w, tile * tiles.tile + inner, above * tiles.rows + below)
}

/// The position to which column `v` of a block is written. If blocks do not divide the width, the columns before
/// `first_own` of the last block belong to another block too. That block's sums, which are added in another order, must be
/// kept, so this block's sums go to its own column `first_own`, which the unit writes after them.
#[cube]
pub(crate) fn own_column(#[comptime] v: u32, first_own: u32, #[comptime] columns: u32) -> u32 {
    if comptime!(v + 1 < columns) { max(v, first_own) } else { v.runtime() }
}
