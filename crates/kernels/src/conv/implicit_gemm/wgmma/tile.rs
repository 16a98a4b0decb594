//! A tile of the product: the sizes that the hardware fixes, and how warpgroups divide a tile.

use windowpane_geometry::Tile;

/// The units of a warpgroup, which multiply together, and the units of a warp.
pub(super) const WARPGROUP: u32 = 128;
pub(super) const WARP: u32 = 32;

/// The number of rows that a warpgroup multiplies with one instruction.
pub(super) const ROWS: u32 = 64;

/// The bytes of a line in shared memory. Its 16-byte chunks are swizzled.
pub(super) const LINE: u32 = 128;

/// The number of columns in a chunk of results. The matrix instruction leaves one pair of them in each of four units.
pub(super) const CHUNK: u32 = 8;

/// The number of neighbouring columns that a unit holds of a row.
pub(super) const PAIR: u32 = 2;

/// The copy engine requires addresses and steps to be multiples of this number of bytes.
pub(super) const CHUNK_BYTES: usize = 16;

/// The number of rows that one warp holds of each 64 rows of a tile.
pub(super) const BAND: u32 = 16;

/// The rows of half a band. They are one half of a unit's sums.
pub(super) const HALF_BAND: u32 = BAND / 2;

/// The columns for which a tile has room in shared memory: columns that are contiguous come in whole lines.
pub(super) fn columns(tile: &Tile, across: bool, line: u32) -> u32 {
    if across { tile.block_n.next_multiple_of(line) } else { tile.block_n }
}

/// The number of bands in a tile's rows.
pub(super) fn bands(tile: &Tile) -> usize {
    (tile.block_m / BAND) as usize
}

/// The number of tiles that are not shared. If there are enough cubes for all warpgroups of the tiles in the last wave,
/// these tiles are shared, and each cube computes the rows of one warpgroup.
pub(super) fn unshared_tiles(tiles: usize, cubes: usize, tile: &Tile) -> usize {
    let (last, warpgroups) = (tiles % cubes, warpgroups(tile) as usize);
    if warpgroups > 1 && last * warpgroups <= cubes { tiles - last } else { tiles }
}

/// The cycles that the matrix units take for a step of 128 bytes of terms. 64 rows by one column take half a cycle
/// per 32 bytes.
pub(super) fn step_cycles(tile: &Tile) -> f64 {
    tile.block_m as f64 / 64.0 * 4.0 * tile.block_n as f64 / 2.0
}

/// The bytes per cycle that a Hopper multiprocessor loads from the L2 cache. It decides the form of the code, which must
/// not depend on anything that is measured.
const L2_BYTES_PER_CYCLE: f64 = 56.0;

/// Whether the products of a step finish before the next rows and columns are loaded. Taps then share the rows, where
/// this is possible.
pub(super) fn is_narrow(tile: &Tile) -> bool {
    ((tile.block_m + tile.block_n) * LINE) as f64 / L2_BYTES_PER_CYCLE > step_cycles(tile)
}

/// The units of a cube.
pub(super) fn units(tile: &Tile) -> u32 {
    warps(tile) * WARP + WARP
}

/// The number of warps that multiply.
pub(super) fn warps(tile: &Tile) -> u32 {
    warpgroups(tile) * (WARPGROUP / WARP)
}

pub(super) fn warpgroups(tile: &Tile) -> u32 {
    tile.block_m / (ROWS * tile.ratio_m.max(1))
}

/// A tile of this many rows and columns, for tests.
#[cfg(test)]
pub(super) fn with_block(block_m: u32, block_n: u32) -> Tile {
    let (block_k, ratio_m, ratio_n, elems_per_thread, stages) = (64, 1, 1, 8, 3);
    Tile { block_m, block_n, block_k, ratio_m, ratio_n, elems_per_thread, stages }
}
