//! The tile scheduler: which tile a cube computes next, and the steps of its sums.
//!
//! ```text
//! tile = cube, cube + cubes, ..        tile = (((phase · groups + group) · parts + part) · tiles_m + m) · tiles_n + n
//! ```
//!
//! Tiles are ordered by column first, so that cubes that run at the same time read the same rows. If the last wave
//! would leave most cubes without a tile, each of its tiles is divided among several cubes: the first warpgroup of each
//! cube computes the rows of one warpgroup of the tile.
//!
//! The phases of a data gradient come in order of falling numbers of taps. There every other wave goes backwards
//! over the cubes, so that a cube with a long tile in one wave has a short one in the next.

use cubecl::prelude::*;

use super::super::tile::WARP;
use super::args::Args;
use super::form::Form;
use crate::conv::common::{Phase, only_phase, phase};

/// A tile of the product, or a share of one.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Work {
    /// Its first row and column.
    pub(super) row: u32,
    pub(super) column: u32,
    pub(super) group: u32,
    pub(super) phase: Phase,
    /// The part of its sums that is computed, where they are split, and the steps of that part.
    pub(super) part: u32,
    pub(super) first: u32,
    pub(super) end: u32,
}

#[cube]
pub(super) fn work(nth: u32, args: &Args, #[comptime] form: Form) -> Work {
    let shared = max(nth, args.whole) - args.whole;
    let share = shared % comptime!(form.warpgroups());
    let tile = min(nth, args.whole) + shared / comptime!(form.warpgroups());
    let (tile, n) = args.tiles_n.div_mod(tile);
    let (tile, m) = args.tiles_m.div_mod(tile);
    let (group, part) = args.parts.div_mod(tile);
    let (group, phase, first, end) = if comptime!(form.phased) {
        let phased = args.phased.as_ref().unwrap();
        let (nth, group) = phased.groups.div_mod(group);
        let phase = phase(&args.gather, &phased.phases, nth);
        let lines = phase.gather.depth.taps_count * phase.gather.height.taps_count * phased.slices;
        let taps = phase.gather.width.taps_count;
        // Taps that share pixels stay together.
        let (loads, steps_per_load) =
            if comptime!(form.shares()) { (lines, taps) } else { (lines * taps, 1u32.runtime()) };
        let loads_per_part = args.parts.div(loads + args.parts_count - 1);
        let first = min(part * loads_per_part, loads);
        let end = min(first + loads_per_part, loads);
        (group, phase, first * steps_per_load, end * steps_per_load)
    } else {
        let first = part * args.steps_per_part;
        let end = max(first, min(first + args.steps_per_part, args.steps));
        (group, only_phase(&args.gather), first, end)
    };
    let row = m * comptime!(form.tile.block_m) + share * comptime!(form.rows());
    let column = n * comptime!(form.tile.block_n);
    Work { row, column, group, phase, part, first, end }
}

/// How far the first tile of a cube is before its second one.
#[cube]
pub(super) fn first_stride(cube: u32, cubes: u32, #[comptime] form: Form) -> u32 {
    if comptime!(form.phased) { 2 * (cubes - cube) - 1 } else { cubes }
}

/// The same for the tile after one that is `stride` tiles after the tile before it.
#[cube]
pub(super) fn next_stride(stride: u32, cubes: u32, #[comptime] form: Form) -> u32 {
    if comptime!(form.phased) { 2 * cubes - stride } else { cubes }
}

/// Whether this unit is the one that acts for its warp, for example by arriving at a barrier.
#[cube]
pub(super) fn is_warp_leader() -> bool {
    let lane = UNIT_POS % WARP;
    lane == 0
}
