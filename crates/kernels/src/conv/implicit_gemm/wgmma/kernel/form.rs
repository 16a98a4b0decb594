//! The compile-time options of the kernel, and its memory layout.

use cubecl::ir::UIntKind;
use cubecl::wgmma::{Major, Swizzle, WgmmaTileLayout};
use windowpane_geometry::{DType, Tile};

use super::super::im2col::Im2colWalk;
use super::super::product::{Product, Resident};
use super::super::repack::image::{PLANE_LINE, PLANES};
use super::super::tile::{self, CHUNK, CHUNK_BYTES, HALF_BAND, LINE, PAIR, ROWS, WARP, WARPGROUP};
use crate::conv::problem::Pass;

/// The bytes of shared memory in which a warp rearranges results of `size` bytes each: the panels that it handles at
/// once, each with half of its rows.
pub(crate) fn staged_bytes(tile: &Tile, size: u32, resident: Resident) -> u32 {
    at_once(tile, size, resident) * HALF_BAND * panel_line(tile, size)
}

/// Where an operand is resident and has a single step, a tile is little more than its store; there a warp synchronises
/// once for up to four panels.
fn at_once(tile: &Tile, size: u32, resident: Resident) -> u32 {
    if resident.steps() == 1 { panels(tile, size).min(4) } else { 1 }
}

/// The number of panels of a warp's rows, for both halves.
fn panels(tile: &Tile, size: u32) -> u32 {
    let (chunks, most) = (tile.block_n / CHUNK, most_chunks(tile, size));
    2 * (chunks / most + (chunks % most).count_ones())
}

/// The most chunks in a row of a panel.
fn most_chunks(tile: &Tile, size: u32) -> u32 {
    panel_line(tile, size) / size / CHUNK
}

/// Half of a warp's rows, in some neighbouring chunks of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Panel {
    pub(super) begin: u32,
    pub(super) chunks: u32,
    pub(super) half: u32,
    /// Its place among the panels that are rearranged at once.
    pub(super) place: u32,
}

/// Panel `nth` of a warp's rows. The first panels have as many chunks as a row can hold, the others fewer, always a
/// power of two, so that a warp reads whole rows. Each panel exists for both halves.
fn panel(nth: u32, tile: &Tile, size: u32, at_once: u32) -> Panel {
    let mut left = tile.block_n / CHUNK;
    let mut panel = Panel { begin: 0, chunks: 0, half: nth % 2, place: nth % at_once };
    for _ in 0..=nth / 2 {
        panel.begin += panel.chunks;
        panel.chunks = most_chunks(tile, size).min(1 << left.ilog2());
        left -= panel.chunks;
    }
    panel
}

/// The bytes of a row of a panel: two memory lines, or one where the tile is narrower.
fn panel_line(tile: &Tile, size: u32) -> u32 {
    if tile.block_n * size < 2 * LINE { LINE } else { 2 * LINE }
}

/// The options of a launch; each combination compiles to a separate kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    pub(super) tile: Tile,
    /// The bytes of a factor, and the number of parts that it is split into.
    pub(super) size: u32,
    pub(super) parts: u32,
    /// The channels of a slice.
    pub(super) slice: u32,
    /// The number of matrix instructions of a step, and of one whose terms are the last slice of a tap, which may have
    /// fewer channels.
    pub(super) instructions: usize,
    pub(super) last_instructions: usize,
    /// The number of axes of an image's map.
    pub(super) rank: usize,
    /// Whether all phases of a data gradient are computed.
    pub(super) phased: bool,
    /// Whether the weight gradient is computed: rows are filters, columns are taps and channels, and the terms are
    /// windows.
    pub(super) is_weight: bool,
    /// Whether its columns are the elements of lines that hold several taps.
    pub(super) lines: bool,
    /// Whether it multiplies several groups as one.
    pub(super) merges: bool,
    /// Whether samples take the place of taps, and whether a row has one bias instead of a column.
    pub(super) sums_samples: bool,
    pub(super) bias_of_row: bool,
    /// Whether the image's rows are contiguous, instead of the terms of a sum.
    pub(super) rows_mn_major: bool,
    /// The number of pixels past a tile's rows that these read at further taps along the width, where the taps share
    /// the loaded pixels; otherwise 0.
    pub(super) reach: u32,
    /// The number of stages of shared pixels.
    pub(super) row_stages: u32,
    /// The distance in pixels from one pair of taps to the next, where pixels are planar.
    pub(super) planar: Option<u32>,
    /// Whether taps are the outermost dimension of the flat operand; otherwise they are the middle one.
    pub(super) tap_first: bool,
    /// Whether the flat operand is contiguous along rows or columns; otherwise it is contiguous along the terms.
    pub(super) flat_mn_major: bool,
    /// The bytes of a result.
    pub(super) stored: u32,
    /// Whether the results of neighbouring columns are contiguous in whole chunks, or at least in pairs.
    packed: bool,
    paired: bool,
    /// Whether they are contiguous in whole chunks if eight rows are put one after the other.
    pub(super) dense: bool,
    /// What is loaded once for all tiles of a cube.
    pub(super) resident: Resident,
    /// Whether non-finite sums are flagged.
    pub(super) checked: bool,
}

impl Form {
    pub(crate) fn new(product: &Product, walk: &Im2colWalk, tile: Tile, stored: DType) -> Self {
        let [column_step, width] = product.result_columns();
        let lines = product.pass == Pass::Weight && product.lines().is_some();
        // A chunk of results must not extend into the next group.
        let group_width = width / product.merged;
        let contiguous = |columns: u32| {
            !lines && column_step == 1 && group_width.is_multiple_of(columns as usize)
        };
        Self {
            tile,
            size: product.size as u32,
            parts: product.parts as u32,
            slice: product.slice() as u32,
            instructions: product.instructions_per_step(),
            last_instructions: match walk.reach {
                0 => product.instructions_of_last_slice(),
                // Where taps share a run, telling the last slice apart cost more than its products (up to 15 %).
                _ => product.instructions_per_step(),
            },
            rank: product.rank(),
            phased: walk.phases.is_some(),
            is_weight: product.pass == Pass::Weight,
            lines,
            merges: product.merged > 1,
            sums_samples: product.pointwise.is_some_and(|pointwise| pointwise.sums_samples),
            bias_of_row: product.pointwise.is_some(),
            rows_mn_major: product.rows_mn_major(),
            reach: walk.reach as u32,
            row_stages: walk.row_stages(tile.stages),
            planar: product.planar().map(|planar| planar.shift as u32),
            tap_first: product.flat.tap_first,
            flat_mn_major: product.flat.mn_major,
            stored: stored.size() as u32,
            packed: contiguous(CHUNK),
            paired: contiguous(PAIR),
            dense: product.is_dense(walk, &tile),
            resident: product.resident(walk, &tile),
            checked: product.is_checked(),
        }
    }

    /// Whether each sample has a product of its own.
    pub(super) fn separate_samples(&self) -> bool {
        self.bias_of_row && !self.sums_samples
    }

    /// The number of warpgroups, and the number of rows of each.
    pub(super) fn warpgroups(&self) -> u32 {
        tile::warpgroups(&self.tile)
    }

    pub(super) fn rows(&self) -> u32 {
        ROWS * self.tile.ratio_m
    }

    /// The number of warps that multiply.
    pub(super) fn warps(&self) -> u32 {
        self.warpgroups() * (WARPGROUP / WARP)
    }

    /// The units of a cube: those of the warps that multiply, and one warp for the producer.
    pub(crate) fn units(&self) -> u32 {
        self.warps() * WARP + WARP
    }

    /// The number of neighbouring columns that are finished at once, and the number that are stored at once.
    pub(crate) fn finished(&self) -> u32 {
        if self.paired { PAIR } else { 1 }
    }

    pub(crate) fn stored_at_once(&self) -> u32 {
        if self.packed || self.dense { self.in_vector() } else { self.finished() }
    }

    /// The words that are stored at once: their type and their number.
    pub(crate) fn words(&self) -> (UIntKind, u32) {
        match self.stored_at_once() * self.stored {
            2 => (UIntKind::U16, 1),
            bytes => (UIntKind::U32, bytes / 4),
        }
    }

    /// The results in a vector of the shared memory in which warps rearrange them.
    pub(super) fn in_vector(&self) -> u32 {
        CHUNK_BYTES as u32 / self.stored
    }

    /// The vectors of that memory: of all warps, of one warp, and of a panel row.
    pub(super) fn staged(&self) -> u32 {
        if self.dense { 1 } else { self.warps() * self.staged_by_warp() }
    }

    /// The elements of the memory in which warps put rows one after the other, and those of a warp.
    pub(super) fn dense_elements(&self) -> u32 {
        if self.dense { self.warps() * self.dense_by_warp() } else { 1 }
    }

    pub(super) fn dense_by_warp(&self) -> u32 {
        HALF_BAND * self.tile.block_n
    }

    pub(super) fn staged_by_warp(&self) -> u32 {
        staged_bytes(&self.tile, self.stored, self.resident) / CHUNK_BYTES as u32
    }

    /// The panels of a warp's results: their number, the `nth` one, and the number that are rearranged at once.
    pub(super) fn result_panels(&self) -> u32 {
        panels(&self.tile, self.stored)
    }

    pub(super) fn result_panel(&self, nth: u32) -> Panel {
        panel(nth, &self.tile, self.stored, self.panels_at_once())
    }

    pub(super) fn panels_at_once(&self) -> u32 {
        at_once(&self.tile, self.stored, self.resident)
    }

    pub(super) fn staged_line(&self) -> u32 {
        panel_line(&self.tile, self.stored) / CHUNK_BYTES as u32
    }

    /// The elements of a whole line in shared memory.
    pub(super) fn line(&self) -> u32 {
        LINE / self.size
    }

    /// Whether the taps along the width share the pixels of a run.
    pub(super) fn shares(&self) -> bool {
        self.reach > 0
    }

    /// The rows that are loaded at once, padded to whole swizzle patterns, or to lines of planar pixels.
    pub(super) fn run(&self) -> u32 {
        match self.planar {
            Some(_) => self.tile.block_m + PLANE_LINE as u32,
            None => (self.tile.block_m + self.reach).next_multiple_of(8),
        }
    }

    /// The distance from one row to the next in shared memory, in elements. Rows that are contiguous come in panels,
    /// whose distance is the number of their rows times this.
    pub(super) fn row(&self) -> u32 {
        match self.planar {
            Some(_) => CHUNK_BYTES as u32 / self.size,
            None => self.tile.block_k,
        }
    }

    /// The elements of a panel, one line wide. An operand that is contiguous across the terms is loaded in panels.
    pub(super) fn panel(&self) -> u32 {
        self.line() * self.tile.block_k
    }

    /// The elements of a run in one plane.
    pub(super) fn plane(&self) -> u32 {
        self.run() * CHUNK_BYTES as u32 / self.size
    }

    /// The number of stages of rows.
    pub(super) fn stages_of_rows(&self) -> u32 {
        match self.resident.rows {
            0 if self.shares() => self.row_stages,
            0 => self.tile.stages,
            resident => resident,
        }
    }

    /// The elements of one part of a stage.
    pub(super) fn rows_part(&self) -> u32 {
        match self.planar {
            Some(_) => PLANES as u32 * self.plane(),
            None => self.run() * self.tile.block_k,
        }
    }

    pub(super) fn columns_part(&self) -> u32 {
        self.columns() * self.tile.block_k
    }

    /// The columns of a tile for which there is room in shared memory.
    fn columns(&self) -> u32 {
        tile::columns(&self.tile, self.columns_in_panels(), self.line())
    }

    /// Whether the columns are loaded in panels one line wide: they are those of the flat operand, which is MN-major.
    fn columns_in_panels(&self) -> bool {
        !self.is_weight && self.flat_mn_major
    }

    /// The elements of a stage. Its parts follow one another.
    pub(super) fn rows_stage(&self) -> u32 {
        self.parts * self.rows_part()
    }

    pub(super) fn columns_stage(&self) -> u32 {
        self.parts * self.columns_part()
    }

    /// The number of stages of columns.
    pub(super) fn stages_of_columns(&self) -> u32 {
        match self.resident.columns {
            0 => self.tile.stages,
            resident => resident,
        }
    }

    /// The bytes that a stage's barrier waits for: those of the operands that are loaded for it.
    pub(super) fn stage_bytes(&self, rows: bool, columns: bool) -> u32 {
        let elements =
            u32::from(rows) * self.rows_stage() + u32::from(columns) * self.columns_stage();
        elements * self.size
    }

    /// The layout of the rows in shared memory.
    pub(super) fn rows_layout(&self) -> WgmmaTileLayout {
        let across = self.is_weight || self.rows_mn_major;
        let swizzle = if across { Swizzle::B128 } else { self.swizzle() };
        let layout = self.layout(self.run(), across, swizzle);
        match self.planar {
            // An instruction reads one chunk of each plane.
            Some(_) => WgmmaTileLayout { swizzle: Swizzle::None, k: self.step(), ..layout },
            None => layout,
        }
    }

    /// The layout of the columns in shared memory.
    pub(super) fn columns_layout(&self) -> WgmmaTileLayout {
        let panels = self.columns_in_panels();
        let swizzle = if panels { Swizzle::B128 } else { self.swizzle() };
        self.layout(self.columns(), self.is_weight || panels, swizzle)
    }

    /// How the chunks of a slice are permuted: within its bytes.
    pub(super) fn swizzle(&self) -> Swizzle {
        match self.slice * self.size {
            32 => Swizzle::B32,
            64 => Swizzle::B64,
            _ => Swizzle::B128,
        }
    }

    fn layout(&self, rows: u32, across: bool, swizzle: Swizzle) -> WgmmaTileLayout {
        WgmmaTileLayout {
            major: if across { Major::MN } else { Major::K },
            swizzle,
            rows: rows as usize,
            k: self.tile.block_k as usize,
        }
    }

    /// The terms of one matrix instruction.
    pub(super) fn step(&self) -> usize {
        WgmmaTileLayout::k_step(self.size as usize)
    }

    /// Whether a tap's last slice has fewer matrix instructions than the others.
    pub(super) fn ends_early(&self) -> bool {
        self.last_instructions < self.instructions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_all_chunks_once() {
        let resident = Resident { columns: 1, ..Resident::default() };
        for (block_n, size) in (1..=8).flat_map(|n| [(32 * n, 2), (32 * n, 4)]) {
            let tile = tile::with_block(64, block_n);
            let mut next = [0; 2];
            for nth in 0..panels(&tile, size) {
                let panel = panel(nth, &tile, size, at_once(&tile, size, resident));
                assert_eq!(panel.begin, next[panel.half as usize], "{block_n} {size}");
                assert!(panel.chunks <= most_chunks(&tile, size) && panel.place < 4);
                next[panel.half as usize] += panel.chunks;
            }
            assert_eq!(next, [block_n / CHUNK; 2], "{block_n} {size}");
        }
    }
}
