//! How a cube brings blocks of both factors into shared memory: its units load pieces of them into registers, which
//! each mainloop then stores in shared memory in its own layout.

use cubecl::prelude::*;
use windowpane_geometry::Tile;

use super::blocks::{
    CubeWork, Factor, Product, has_piece, load_a, load_b, loaded_row, loaded_term,
};
use crate::conv::common::Point;
use crate::cube::{Registers, zeros};

/// How the loads of a block are divided among the units of a cube, at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Staging {
    pub(crate) tile: Tile,
    pub(crate) product: Product,
    /// The units of a cube.
    pub(crate) units: u32,
    /// The lines of a piece of loading work; none if a piece is one load.
    pub(crate) piece_lines: Option<u32>,
    /// The number of lines that units store at the same time. They are spread as far apart as possible within each
    /// group of 8, so that with their padding they do not share a bank.
    pub(crate) spread: Option<u32>,
}

impl Staging {
    /// The lines of a block.
    pub(crate) fn lines(&self, factor: Factor) -> u32 {
        match factor {
            Factor::A => self.tile.block_m,
            Factor::B => self.tile.block_n,
        }
    }

    fn piece_lines(&self, factor: Factor) -> u32 {
        self.piece_lines.unwrap_or(self.product.side(factor).lines_per_load())
    }

    /// The number of terms of each line that a load reads.
    pub(crate) fn terms_per_load(&self, factor: Factor) -> u32 {
        let side = self.product.side(factor);
        if side.along_terms { side.lanes } else { 1 }
    }

    /// The loads of a piece.
    pub(crate) fn loads(&self, factor: Factor) -> u32 {
        self.piece_lines(factor) / self.product.side(factor).lines_per_load()
    }

    /// The pieces of a block.
    fn pieces(&self, factor: Factor) -> u32 {
        self.lines(factor) / self.piece_lines(factor)
            * (self.tile.block_k / self.terms_per_load(factor))
    }

    /// The most pieces per unit and block.
    pub(crate) fn slots(&self, factor: Factor) -> u32 {
        self.pieces(factor).div_ceil(self.units)
    }

    /// The first unit that loads a factor. If pieces have several loads and a cube has enough units, those that load
    /// `b` follow those that load `a`.
    fn first_unit(&self, factor: Factor) -> u32 {
        let all = self.pieces(Factor::A) + self.pieces(Factor::B);
        let apart = self.piece_lines.is_some() && all <= self.units;
        if factor == Factor::B && apart { self.pieces(Factor::A) } else { 0 }
    }
}

/// The first line (or column) and the first term of a unit's piece, within the block.
#[cube]
pub(crate) fn piece(
    #[comptime] slot: u32,
    #[comptime] factor: Factor,
    #[comptime] staging: Staging,
) -> (u32, u32) {
    let first = comptime!(staging.first_unit(factor));
    let piece = UNIT_POS + comptime!(slot * staging.units) - first;
    let lines = comptime!(staging.piece_lines(factor));
    if comptime!(staging.product.side(factor).along_terms) {
        let terms = comptime!(staging.terms_per_load(factor));
        let loads = comptime!(staging.tile.block_k / terms);
        let (line, term) = (piece / loads * lines, piece % loads * terms);
        match comptime!(staging.spread) {
            Some(spread) => {
                let low = line % 8;
                (line - low + low % spread * comptime!(8 / spread) + low / spread, term)
            }
            None => (line, term),
        }
    } else {
        let pieces = comptime!(staging.lines(factor) / lines);
        (piece % pieces * lines, piece / pieces)
    }
}

/// Whether a unit has this piece.
#[cube]
pub(crate) fn has_work(
    #[comptime] slot: u32,
    #[comptime] factor: Factor,
    #[comptime] staging: Staging,
) -> bool {
    let (first, pieces) = comptime!((staging.first_unit(factor), staging.pieces(factor)));
    let has = has_piece(slot, comptime!(staging.units), comptime!(first + pieces));
    if comptime!(first > 0) { has && UNIT_POS >= first } else { has }
}

/// A unit's part of a block of both factors, in registers.
#[derive(CubeType)]
pub(crate) struct Loaded<S: Float, NA: Size, NB: Size> {
    /// The rows of `a`, which are the same in every block of terms.
    rows: Sequence<Point>,
    pub(crate) a: Registers<S, NA>,
    pub(crate) b: Registers<S, NB>,
}

#[cube]
impl<S: Float, NA: Size, NB: Size> Loaded<S, NA, NB> {
    pub(crate) fn new(work: &CubeWork<'_>, #[comptime] staging: Staging) -> Loaded<S, NA, NB> {
        let mut rows = Sequence::<Point>::new();
        let step = comptime!(staging.product.a.lines_per_load());
        #[unroll]
        for slot in 0..staging.slots(Factor::A) {
            let (row, _) = piece(slot, Factor::A, staging);
            #[unroll]
            for i in 0..staging.loads(Factor::A) {
                rows.push(loaded_row(work, row + i * step));
            }
        }
        let a = zeros::<S, NA>(comptime!(staging.slots(Factor::A) * staging.loads(Factor::A)));
        let b = zeros::<S, NB>(comptime!(staging.slots(Factor::B) * staging.loads(Factor::B)));
        Loaded::<S, NA, NB> { rows, a, b }
    }

    /// Loads the block whose first term is `first`.
    pub(crate) fn load(
        &self,
        a: &[Vector<S, NA>],
        b: &[Vector<S, NB>],
        work: &CubeWork<'_>,
        first: u32,
        #[comptime] staging: Staging,
    ) {
        let loads = comptime!(staging.loads(Factor::A));
        #[unroll]
        for slot in 0..staging.slots(Factor::A) {
            if has_work(slot, Factor::A, staging) {
                let (_, term) = piece(slot, Factor::A, staging);
                let term = loaded_term(work, first, term);
                #[unroll]
                for i in 0..loads {
                    let index = comptime!((slot * loads + i) as usize);
                    let row = self.rows.index(index);
                    let value = load_a::<S, NA>(a, work, row, &term);
                    self.a.index(index).store(value);
                }
            }
        }
        let loads = comptime!(staging.loads(Factor::B));
        let step = comptime!(staging.product.b.lines_per_load());
        #[unroll]
        for slot in 0..staging.slots(Factor::B) {
            if has_work(slot, Factor::B, staging) {
                let (column, term) = piece(slot, Factor::B, staging);
                let term = loaded_term(work, first, term);
                #[unroll]
                for i in 0..loads {
                    let index = comptime!((slot * loads + i) as usize);
                    let column = column + i * step;
                    let value = load_b::<S, NB>(b, work, column, &term);
                    self.b.index(index).store(value);
                }
            }
        }
    }
}
