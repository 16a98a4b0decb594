//! The compile-time options of the kernel: how the units of a cube divide its work.

use windowpane_geometry::Tile;

use super::config::units;
use crate::conv::implicit_gemm::blocks::{Factor, Product, QUAD};
use crate::conv::implicit_gemm::staging::Staging;

/// The compile-time options of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) tile: Tile,
    pub(super) product: Product,
}

impl Form {
    /// A unit loads pieces of 4 lines by the terms of one load.
    pub(super) fn staging(&self) -> Staging {
        let Self { tile, product } = *self;
        Staging { tile, product, units: self.units(), piece_lines: Some(QUAD), spread: None }
    }

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
        self.staging().lines(factor) / QUAD
    }
}
