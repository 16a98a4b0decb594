//! The tile of a product on matrix units.

use windowpane_geometry::{Convolution, Layout, Tile};

use super::form;
use crate::conv::gather::{columns, inner};
use crate::conv::plan::rules::{
    MOST_BLOCK, check_block, check_lanes, check_shared, check_stages, check_sums, check_units,
    fragment, smaller, widest_factor_load,
};
use crate::conv::plan::{Algorithm, PlanError, Request};
use crate::{Fragment, Limits};

/// The most fragments of sums that a plane's registers hold.
const MOST_FRAGMENTS: u32 = 16;

/// A block as wide as the filters are many: the largest that a device has room for.
pub(in crate::conv) fn tile(conv: &Convolution, request: Request, limits: &Limits) -> Option<Tile> {
    let (fragment, _) = fragment(request, limits)?;
    let columns = columns(conv, request.pass);
    let elems_per_thread = widest_factor_load(request.dtype, limits);
    // As many bytes of terms whatever their type.
    let block_k = (64 / request.dtype.size() as u32).next_multiple_of(fragment.k);
    let tile = |block_n, ratio_m, ratio_n| {
        let block_m = 128;
        Tile { block_m, block_n, block_k, ratio_m, ratio_n, elems_per_thread, stages: 2 }
    };
    let plain = match columns {
        65.. => tile(128, 4, 2),
        33.. => tile(64, 2, 2),
        17.. => tile(32, 2, 1),
        _ => tile(16, 2, 1),
    };
    // Planes of 4 by 4 fragments read two thirds as much of shared memory for a product, and in blocks twice
    // as wide lines come half as often. They take all registers there are: short loads would need more of
    // them, and through a shading language they are slow (f16 on an H200, by Vulkan: 32 TFLOP/s, and 175
    // with 4 by 2).
    let wide = Tile { block_k: 2 * block_k, ..tile(256, 4, 4) };
    let whole = |count: usize| count.is_multiple_of(elems_per_thread as usize);
    let pays = limits.llvm
        && request.dtype.size() == 2
        && conv.layout() == Layout::ChannelsLast
        && whole(inner(conv, request.pass))
        && whole(columns);
    let large = [(columns > 128, wide), (columns > 64, tile(128, 4, 4))];
    let large = large.into_iter().filter_map(|(filled, tile)| (pays && filled).then_some(tile));
    large.chain(smaller(plain)).find(|tile| check(tile, request, limits).is_ok())
}

/// Refuses a tile that there is no such kernel for.
pub(in crate::conv) fn check(
    tile: &Tile,
    request: Request,
    limits: &Limits,
) -> Result<(), PlanError> {
    let Some((fragment, plane)) = fragment(request, limits) else {
        return Err(PlanError::NoKernel { algorithm: Some(Algorithm::Matrix) });
    };
    check_lanes(tile.elems_per_thread, widest_factor_load(request.dtype, limits))?;
    check_fragments(tile, fragment)?;
    check_stages(tile)?;
    check_shared(form::shared_bytes(tile, fragment, plane, request.dtype), limits)?;
    check_units(form::units(tile, fragment, plane), limits)
}

/// Refuses blocks that are not made of whole fragments.
fn check_fragments(tile: &Tile, fragment: Fragment) -> Result<(), PlanError> {
    check_sums(tile, MOST_FRAGMENTS)?;
    for (name, block, of) in [
        ("block_m", tile.block_m, tile.ratio_m.saturating_mul(fragment.m)),
        ("block_n", tile.block_n, tile.ratio_n.saturating_mul(fragment.n)),
        ("block_k", tile.block_k, fragment.k),
        ("block_k", tile.block_k, tile.elems_per_thread),
    ] {
        check_block(name, block, of, MOST_BLOCK)?;
    }
    Ok(())
}

/// The units of a cube, for a tile that was checked.
pub(in crate::conv) fn units(tile: &Tile, request: Request, limits: &Limits) -> u32 {
    fragment(request, limits).map_or(0, |(fragment, plane)| form::units(tile, fragment, plane))
}
