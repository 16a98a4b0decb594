//! Tiles: which vectors of which pixels neighbouring units have.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, DType, Pooling};

use crate::pool::common::settings::Settings;
use crate::pool::common::window::pixel_vectors;
use crate::pool::problem::outermost;

/// How the vectors of a pixel are parted, so that neighbouring units are neighbouring pixels too, of
/// one row and of a few.
///
/// Units that lie together on one multiprocessor read each tap once for all of them; were they all of
/// one pixel, it would be read by as many multiprocessors as windows share it.
#[derive(CubeType, CubeLaunch)]
pub(in crate::pool) struct Tiles {
    /// The vectors of a tile.
    vectors: FastDivmod<u32>,
    tile: u32,
    /// The rows of a tile.
    group: FastDivmod<u32>,
    rows: u32,
    /// The tiles of a pixel.
    count: FastDivmod<u32>,
}

/// The bytes of a tile: those that a multiprocessor loads at once.
const TILE_BYTES: usize = 128;

/// The most rows of a tile.
const TILE_ROWS: usize = 4;

/// The tiles of a problem whose units have so many places along the height. Those that gather a
/// gradient write more than they read.
pub(in crate::pool) fn tiles_args(
    pooling: &Pooling,
    dtype: DType,
    settings: &Settings,
    places: usize,
    gradient: bool,
) -> TilesLaunch {
    let pixel = pixel_vectors(pooling, settings);
    let width = &pooling.grid().axes()[AXES - 1];
    let most = if gradient { 2 * width.stride() - 1 } else { width.stride() };
    let shares = width.kernel() > most && !settings.runs;
    let tile = tile(pixel as usize, settings.lanes * dtype.size(), shares) as u32;
    let rows = rows(pooling, settings, places) as u32;
    TilesLaunch::new(tile, tile, rows, rows, pixel / tile)
}

/// The vectors of a tile, where neighbouring windows share taps: whole ones of a pixel, and at least
/// half of what is loaded at once.
fn tile(pixel: usize, bytes: usize, shares: bool) -> usize {
    let most = (TILE_BYTES / bytes).max(1);
    let divides = |&tile: &usize| pixel.is_multiple_of(tile) && 2 * tile >= most;
    (1..=most).rev().find(divides).filter(|_| shares).unwrap_or(pixel)
}

/// The rows of a tile: those of one sample, all tiles having as many. Strips along the height have rows
/// enough.
fn rows(pooling: &Pooling, settings: &Settings, places: usize) -> usize {
    let height = &pooling.grid().axes()[AXES - 2];
    let shares =
        height.kernel() > height.stride() && outermost(pooling) < AXES - 2 && !settings.runs;
    let divides = |&rows: &usize| places.is_multiple_of(rows);
    (1..=TILE_ROWS).rev().find(divides).filter(|_| shares).unwrap_or(1)
}

/// The pixel of a unit on a row of `width`, its vector within the pixel, and the row.
#[cube]
pub(in crate::pool) fn tiled(tiles: &Tiles, width: &FastDivmod<u32>, unit: u32) -> (u32, u32, u32) {
    let (rest, inner) = tiles.vectors.div_mod(unit);
    let (rest, below) = tiles.group.div_mod(rest);
    let (rest, w) = width.div_mod(rest);
    let (above, tile) = tiles.count.div_mod(rest);
    (w, tile * tiles.tile + inner, above * tiles.rows + below)
}
