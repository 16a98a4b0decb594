//! A tile of the product: the sizes that the hardware fixes, and how warpgroups share a tile.

use windowpane_geometry::Tile;

/// The units of a warpgroup, which multiply together, and of a warp.
pub(super) const WARPGROUP: u32 = 128;
pub(super) const WARP: u32 = 32;

/// The rows that a warpgroup multiplies at once.
pub(super) const ROWS: u32 = 64;

/// The bytes of a line in shared memory, in which the chunks of 16 are permuted.
pub(super) const LINE: u32 = 128;

/// The columns that four units have pairs of.
pub(super) const CHUNK: u32 = 8;

/// The neighbouring columns that a unit holds of a row.
pub(super) const PAIR: u32 = 2;

/// The copy engine takes addresses and steps that are multiples of so many bytes.
pub(super) const CHUNK_BYTES: usize = 16;

/// The rows of a tile that one warp has at a time.
pub(super) const BAND: u32 = 16;

/// The bands of a tile's rows.
pub(super) fn bands(tile: &Tile) -> usize {
    (tile.block_m / BAND) as usize
}

/// Of so many tiles those that are not shared: where the last wave has fewer than cubes, and there are cubes for
/// all warpgroups of it, each has a warpgroup's rows.
pub(super) fn whole(tiles: usize, cubes: usize, tile: &Tile) -> usize {
    let (last, warpgroups) = (tiles % cubes, warpgroups(tile) as usize);
    if warpgroups > 1 && last * warpgroups <= cubes { tiles - last } else { tiles }
}

/// The cycles that the matrix units take for a step, 128 bytes of terms: for 64 rows by a column a
/// cycle for each 32 bytes and half of it.
pub(super) fn products(tile: &Tile) -> f64 {
    tile.block_m as f64 / 64.0 * 4.0 * tile.block_n as f64 / 2.0
}

/// Whether the multiplications of a step are done before its rows and columns have come. Then taps
/// share the rows, if they can.
pub(super) fn is_narrow(tile: &Tile) -> bool {
    ((tile.block_m + tile.block_n) * LINE) as f64 / BROUGHT > products(tile)
}

/// The bytes that the second level of the cache brings a multiprocessor in a cycle, on an H200.
pub(super) const BROUGHT: f64 = 56.0;

/// The units of a cube.
pub(super) fn units(tile: &Tile) -> u32 {
    warps(tile) * WARP + WARP
}

/// The warps that multiply.
pub(super) fn warps(tile: &Tile) -> u32 {
    warpgroups(tile) * (WARPGROUP / WARP)
}

pub(super) fn warpgroups(tile: &Tile) -> u32 {
    tile.block_m / (ROWS * tile.ratio_m.max(1))
}
