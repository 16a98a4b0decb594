//! How a cube's units share its work: all that changes the code of the kernel.

use windowpane_geometry::Tile;

use super::plan::units;
use crate::conv::blocks::{Product, QUAD};

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) tile: Tile,
    pub(super) product: Product,
}

impl Form {
    /// The units of a cube along the columns, and all of them.
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

    /// Whether units can be taken 4 by 8 together.
    pub(super) fn in_squares(&self) -> bool {
        self.units_m().is_multiple_of(4) && self.units_n().is_multiple_of(8)
    }

    /// Whether vectors of a term change places, by eight.
    pub(super) fn swizzles(&self, a: bool) -> bool {
        let (side, units) = (self.product.side(a), if a { self.units_m() } else { self.units_n() });
        side.along_terms && units.is_multiple_of(8)
    }

    /// The vectors of a block's terms in shared memory.
    pub(super) fn quads(&self, a: bool) -> u32 {
        (if a { self.tile.block_m } else { self.tile.block_n }) / QUAD
    }

    /// The loads by which a unit brings 4 lines, and how many such quarters of work it has a block.
    pub(super) fn loads(&self, a: bool) -> u32 {
        let side = self.product.side(a);
        if side.along_terms { QUAD } else { QUAD / side.lanes }
    }

    pub(super) fn slots(&self, a: bool) -> u32 {
        self.pieces(a).div_ceil(self.units())
    }

    /// The pieces of work of a block: 4 lines by the terms of a load.
    pub(super) fn pieces(&self, a: bool) -> u32 {
        self.quads(a) * (self.tile.block_k / self.terms_a_load(a))
    }

    /// The units after which those begin that bring `b`: where there are enough, `a` is not theirs to bring.
    pub(super) fn first_unit(&self, a: bool) -> u32 {
        let apart = self.pieces(true) + self.pieces(false) <= self.units();
        if !a && apart { self.pieces(true) } else { 0 }
    }

    pub(super) fn terms_a_load(&self, a: bool) -> u32 {
        let side = self.product.side(a);
        if side.along_terms { side.lanes } else { 1 }
    }
}
