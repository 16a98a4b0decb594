//! The compile-time options of the kernel: how the units of a cube divide its work.

use windowpane_geometry::Tile;

use super::config::units;
use crate::conv::implicit_gemm::blocks::{Factor, Product, QUAD};

/// The compile-time options of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) tile: Tile,
    pub(super) product: Product,
}

impl Form {
    /// The units of a cube along the columns.
    pub(super) fn units_n(&self) -> u32 {
        self.tile.block_n / (QUAD * self.tile.ratio_n)
    }

    pub(super) fn units(&self) -> u32 {
        units(&self.tile)
    }

    /// The units of a cube along the rows.
    pub(super) fn units_m(&self) -> u32 {
        self.units() / self.units_n()
    }

    /// Whether units can be arranged in groups of 4 rows by 8 columns.
    pub(super) fn in_squares(&self) -> bool {
        self.units_m().is_multiple_of(4) && self.units_n().is_multiple_of(8)
    }

    /// Whether the vectors of a term are swizzled, in groups of eight.
    pub(super) fn swizzles(&self, factor: Factor) -> bool {
        let units = match factor {
            Factor::A => self.units_m(),
            Factor::B => self.units_n(),
        };
        self.product.side(factor).along_terms && units.is_multiple_of(8)
    }

    /// The vectors per term of a block in shared memory.
    pub(super) fn quads(&self, factor: Factor) -> u32 {
        let block = match factor {
            Factor::A => self.tile.block_m,
            Factor::B => self.tile.block_n,
        };
        block / QUAD
    }

    /// The number of loads with which a unit reads 4 lines.
    pub(super) fn loads(&self, factor: Factor) -> u32 {
        let side = self.product.side(factor);
        if side.along_terms { QUAD } else { QUAD / side.lanes }
    }

    /// The most pieces of loading work per unit and block.
    pub(super) fn slots(&self, factor: Factor) -> u32 {
        self.pieces(factor).div_ceil(self.units())
    }

    /// The pieces of loading work of a block. A piece is 4 lines by the terms of one load.
    pub(super) fn pieces(&self, factor: Factor) -> u32 {
        self.quads(factor) * (self.tile.block_k / self.terms_a_load(factor))
    }

    /// The first unit that loads a factor. If a cube has enough units, those that load `b` follow those that load `a`.
    pub(super) fn first_unit(&self, factor: Factor) -> u32 {
        let apart = self.pieces(Factor::A) + self.pieces(Factor::B) <= self.units();
        if factor == Factor::B && apart { self.pieces(Factor::A) } else { 0 }
    }

    /// The number of terms of each line that a load reads.
    pub(super) fn terms_a_load(&self, factor: Factor) -> u32 {
        let side = self.product.side(factor);
        if side.along_terms { side.lanes } else { 1 }
    }
}
