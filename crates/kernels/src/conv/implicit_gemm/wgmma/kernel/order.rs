//! The tile scheduler: which tile a cube computes next, and the steps of its sums.
//!
//! ```text
//! tile = cube, cube + cubes, ..        tile = ((group · parts + part) · tiles_m + m) · tiles_n + n
//! ```
//!
//! Tiles are ordered by column first, so that cubes that run at the same time read the same rows. If the last wave
//! would leave most cubes without a tile, each of its tiles is divided among several cubes: the first warpgroup of each
//! cube computes the rows of one warpgroup of the tile.

use cubecl::prelude::*;

use super::super::tile::WARP;
use super::form::Form;
use super::numbers::Numbers;

/// A tile of the product, or a share of one.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Work {
    /// Its first row and column.
    pub(super) row: u32,
    pub(super) column: u32,
    pub(super) group: u32,
    /// The part of its sums that is computed, where they are split, and the steps of that part.
    pub(super) part: u32,
    pub(super) first: u32,
    pub(super) end: u32,
}

#[cube]
pub(super) fn work(nth: u32, numbers: &Numbers, #[comptime] form: Form) -> Work {
    let shared = max(nth, numbers.whole) - numbers.whole;
    let share = shared % comptime!(form.warpgroups());
    let tile = min(nth, numbers.whole) + shared / comptime!(form.warpgroups());
    let (tile, n) = numbers.tiles_n.div_mod(tile);
    let (tile, m) = numbers.tiles_m.div_mod(tile);
    let (group, part) = numbers.parts.div_mod(tile);
    let first = part * numbers.steps_a_part;
    Work {
        row: m * comptime!(form.tile.block_m) + share * comptime!(form.rows()),
        column: n * comptime!(form.tile.block_n),
        group,
        part,
        first,
        end: max(first, min(first + numbers.steps_a_part, numbers.steps)),
    }
}

/// Whether this unit is the one that acts for its warp, for example by arriving at a barrier.
#[cube]
pub(super) fn speaks_for_warp() -> bool {
    let lane = UNIT_POS % WARP;
    lane == 0
}
