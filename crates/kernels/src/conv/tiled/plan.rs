//! The tile of a product on a GPU's plain units.

use windowpane_geometry::{Convolution, DType, Tile};

use crate::Limits;
use crate::conv::blocks::QUAD;
use crate::conv::gather::columns;
use crate::conv::plan::rules::{
    MOST_BLOCK, check_block, check_lanes, check_shared, check_stages, check_sums, check_units,
    smaller, widest_load,
};
use crate::conv::plan::{PlanError, Request};
use crate::dtype::accumulator;

/// The most 4 by 4 pieces that a unit's registers hold.
const MOST_PIECES: u32 = 8;

/// A block as wide as the filters are many, and the windows that keep its units busy.
pub(in crate::conv) fn tile(conv: &Convolution, request: Request, limits: &Limits) -> Option<Tile> {
    let wide = accumulator(request.dtype).size() > 4;
    let (block_m, block_n, ratio_m, ratio_n) = match columns(conv, request.pass) {
        _ if wide => (64, 64, 1, 1),
        65.. => (128, 128, 2, 2),
        33.. => (128, 64, 2, 2),
        17.. => (128, 32, 2, 1),
        _ => (128, 16, 2, 1),
    };
    let elems_per_thread = widest_load(request.dtype, limits);
    let tile =
        Tile { block_m, block_n, block_k: 16, ratio_m, ratio_n, elems_per_thread, stages: 2 };
    smaller(tile).into_iter().find(|tile| check(tile, request, limits).is_ok())
}

/// Refuses a tile that there is no such kernel for.
pub(in crate::conv) fn check(
    tile: &Tile,
    request: Request,
    limits: &Limits,
) -> Result<(), PlanError> {
    check_lanes(tile.elems_per_thread, widest_load(request.dtype, limits))?;
    check_pieces(tile)?;
    check_stages(tile)?;
    check_shared(shared_bytes(tile, request.dtype), limits)?;
    check_units(units(tile), limits)
}

/// Refuses blocks that are not made of whole pieces, which are 4 by 4 sums.
fn check_pieces(tile: &Tile) -> Result<(), PlanError> {
    check_sums(tile, MOST_PIECES)?;
    check_block("block_m", tile.block_m, tile.ratio_m.saturating_mul(QUAD), MOST_BLOCK)?;
    check_block("block_n", tile.block_n, tile.ratio_n.saturating_mul(QUAD), MOST_BLOCK)?;
    check_block("block_k", tile.block_k, tile.elems_per_thread, MOST_BLOCK)
}

/// The units of a cube.
pub(in crate::conv) fn units(tile: &Tile) -> u32 {
    (tile.block_m / (QUAD * tile.ratio_m)) * (tile.block_n / (QUAD * tile.ratio_n))
}

/// The bytes of shared memory that a tile takes.
fn shared_bytes(tile: &Tile, dtype: DType) -> usize {
    let elements = (tile.block_m as usize + tile.block_n as usize) * tile.block_k as usize;
    elements * tile.stages as usize * accumulator(dtype).size()
}
