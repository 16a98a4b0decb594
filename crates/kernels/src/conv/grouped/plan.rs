//! Which problems have groups of few channels, and the run of rows that a unit has of one.

use windowpane_geometry::{Convolution, Layout, Tile};

use super::LANES;
use crate::Limits;
use crate::conv::gather::{columns, inner};
use crate::conv::plan::rules::{
    check_number, check_registers, fragment, has_few_phases, has_few_taps, widest_load,
};
use crate::conv::plan::{Pass, PlanError, Request};

/// A run of eight rows by one vector of filters.
pub(in crate::conv) const TILE: Tile = Tile {
    block_m: 8,
    block_n: LANES as u32,
    block_k: 1,
    ratio_m: 8,
    ratio_n: 1,
    elems_per_thread: LANES as u32,
    stages: 1,
};

/// Whether a GPU computes a problem a vector of a group's filters at a time: where a block of a product
/// would be wider than the group's columns by half or more, and for matrix units, which are so much
/// faster, by still more.
pub(in crate::conv) fn can(conv: &Convolution, request: Request, limits: &Limits) -> bool {
    let most = if fragment(request, limits).is_some() { 8 } else { 16 };
    let few = |count: usize| count.is_multiple_of(LANES) && (1..=most).contains(&count);
    limits.cores.is_none()
        && conv.groups() > 1
        && conv.layout() == Layout::ChannelsLast
        && matches!(request.pass, Pass::Forward | Pass::Data)
        && few(inner(conv, request.pass))
        && few(columns(conv, request.pass))
        && widest_load(request.dtype, limits) as usize == LANES
        && has_few_taps(conv)
        && has_few_phases(conv, request.pass)
}

/// Refuses a tile that there is no such kernel for.
pub(in crate::conv) fn check(
    tile: &Tile,
    request: Request,
    limits: &Limits,
) -> Result<(), PlanError> {
    check_registers(tile, request, limits)?;
    check_number("elems_per_thread", tile.elems_per_thread, LANES as u32)?;
    check_number("ratio_n", tile.ratio_n, 1)
}
