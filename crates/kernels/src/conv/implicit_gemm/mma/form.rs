//! The compile-time options of the kernel, and the layout of blocks and results in shared memory.

use windowpane_geometry::{DType, Tile};

use crate::conv::implicit_gemm::blocks::{Factor, Product};
use crate::conv::implicit_gemm::staging::Staging;
use crate::device::Fragment;

/// The bytes that all banks of shared memory deliver at once: 32 banks of 4 bytes.
const BANKS: u32 = 128;

/// The compile-time options of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) tile: Tile,
    pub(super) fragment: Fragment,
    /// The units of a plane.
    pub(super) plane: u32,
    pub(super) product: Product,
    /// Whether factors are rounded to tf32.
    pub(super) tf32: bool,
    /// The elements of padding after each line in shared memory.
    pub(super) line_padding: u32,
    /// The number of neighbouring fragments that a plane stores to shared memory at once in the epilogue.
    pub(super) strip: u32,
}

impl Form {
    /// The planes of a cube along the columns.
    pub(super) fn planes_n(&self) -> u32 {
        self.tile.block_n / (self.fragment.n * self.tile.ratio_n)
    }

    /// Whether fragments are in registers that units choose, which only those of 8 columns are.
    pub(super) fn in_registers(&self) -> bool {
        self.fragment.n == 8
    }

    /// The fragments of a plane.
    pub(super) fn fragments(&self) -> u32 {
        self.tile.ratio_m * self.tile.ratio_n
    }

    pub(super) fn units(&self) -> u32 {
        units(&self.tile, self.fragment, self.plane)
    }

    /// A unit loads one vector at a time.
    pub(super) fn staging(&self) -> Staging {
        let Self { tile, product, .. } = *self;
        let (units, spread) = (self.units(), Some(self.lines_at_once()));
        Staging { tile, product, units, piece_lines: None, spread }
    }

    /// The distance from one line, or term, to the next in shared memory, in elements.
    pub(super) fn stride(&self, factor: Factor) -> u32 {
        let along_terms = self.product.side(factor).along_terms;
        (if along_terms { self.tile.block_k } else { self.staging().lines(factor) })
            + self.line_padding
    }

    /// The vectors of a block in shared memory.
    pub(super) fn vectors(&self, factor: Factor) -> u32 {
        let side = self.product.side(factor);
        let rows = if side.along_terms { self.staging().lines(factor) } else { self.tile.block_k };
        rows * self.stride(factor) / side.lanes
    }

    /// The number of lines of a block that are stored to shared memory together: as many as fill its banks once.
    fn lines_at_once(&self) -> u32 {
        // The padding is 16 bytes.
        let bytes = self.tile.block_k * (16 / self.line_padding);
        1 << (BANKS / bytes).clamp(1, 8).ilog2()
    }
}

/// The units of a cube.
pub(super) fn units(tile: &Tile, fragment: Fragment, plane: u32) -> u32 {
    let planes_m = tile.block_m / (fragment.m * tile.ratio_m);
    planes_m * (tile.block_n / (fragment.n * tile.ratio_n)) * plane
}

/// The elements of padding after each line: 16 bytes.
pub(super) fn line_padding(size: usize) -> u32 {
    (16 / size) as u32
}

/// The bytes of shared memory that a tile needs in any layout of the operands, with strips of one fragment.
pub(super) fn shared_bytes(tile: &Tile, fragment: Fragment, plane: u32, dtype: DType) -> usize {
    block_bytes(tile, dtype) + fragment_bytes(tile, fragment, plane)
}

/// The bytes of the blocks of all stages.
fn block_bytes(tile: &Tile, dtype: DType) -> usize {
    let line_padding = line_padding(dtype.size());
    let block = |lines: u32| {
        let along_terms = lines * (tile.block_k + line_padding);
        along_terms.max(tile.block_k * (lines + line_padding)) as usize
    };
    (block(tile.block_m) + block(tile.block_n)) * tile.stages as usize * dtype.size()
}

/// The bytes of one accumulator fragment per plane.
fn fragment_bytes(tile: &Tile, fragment: Fragment, plane: u32) -> usize {
    let planes = units(tile, fragment, plane) / plane.max(1);
    (planes * fragment.m * fragment.n) as usize * size_of::<f32>()
}

/// The number of neighbouring fragments that every plane can store at once in `limit` bytes of shared memory. A wider
/// strip gives longer contiguous pieces of lines for the final store.
pub(super) fn strip(
    tile: &Tile,
    fragment: Fragment,
    plane: u32,
    dtype: DType,
    limit: usize,
) -> u32 {
    let left = limit.saturating_sub(block_bytes(tile, dtype));
    let most = left / fragment_bytes(tile, fragment, plane).max(1);
    let fits = |strip: &u32| tile.ratio_n.is_multiple_of(*strip) && *strip as usize <= most;
    (1..=tile.ratio_n).rev().find(fits).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A strip is as wide as a plane's fragments where there is room, and never wider than the room.
    #[test]
    fn strips_have_room() {
        let (fragment, dtype) = (Fragment { m: 16, n: 16, k: 16 }, DType::F16);
        let tile = Tile {
            block_m: 128,
            block_n: 128,
            block_k: 32,
            ratio_m: 4,
            ratio_n: 4,
            elems_per_thread: 8,
            stages: 2,
        };
        let least = shared_bytes(&tile, fragment, 32, dtype);
        for (room, expected) in [(1, 1), (2, 2), (3, 2), (4, 4), (9, 4)] {
            // Four planes, each with one fragment of `f32`.
            let limit = least + (room - 1) * 4 * 1024;
            assert_eq!(strip(&tile, fragment, 32, dtype, limit), expected, "{room} fragments");
        }
    }
}
