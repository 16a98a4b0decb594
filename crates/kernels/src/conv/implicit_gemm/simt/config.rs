//! Which problems a GPU's plain units (no matrix units) multiply, and the best tile for a problem.

use core::{fmt, iter};

use windowpane_geometry::{Convolution, DType, Precision, Tile, Tiling};

use crate::conv::common::gather::columns;
use crate::conv::common::rules::{
    MOST_BLOCK, check_block, check_lanes, check_shared, check_stages, check_sums, check_units,
    widest_load,
};
use crate::conv::implicit_gemm::blocks::{Product, QUAD};
use crate::conv::implicit_gemm::cost::Mainloop;
use crate::conv::implicit_gemm::rules::{self, smaller};
use crate::conv::implicit_gemm::split_k;
use crate::conv::problem::{Pass, Request};
use crate::cube::convert::accumulator;
use crate::device::Capabilities;
use crate::error::{NotApplicable, PlanError, require};

/// The name of the kernel.
pub(in crate::conv) const NAME: &str = "simt";

/// The most 4 by 4 pieces of accumulators that fit in a unit's registers.
const MOST_PIECES: u32 = 8;

/// The tile of a kernel whose units each accumulate in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The block of a cube, and the pieces of it that each unit computes.
    pub tile: Tile,
}

impl Config {
    /// A block that is as wide as the number of filters, with enough windows to keep its units busy.
    pub(in crate::conv) fn new(
        conv: &Convolution,
        request: Request,
        device: &Capabilities,
    ) -> Option<Self> {
        tile(conv, request, device).map(|tile| Self { tile })
    }

    /// The configuration with some numbers of its tile replaced.
    pub(in crate::conv) fn over(self, tiling: &Tiling) -> Self {
        Self { tile: tiling.over(self.tile) }
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tile.fmt(f)
    }
}

/// Whether the kernel can compute a problem on a device.
pub(in crate::conv) fn applies(
    conv: &Convolution,
    request: Request,
    device: &Capabilities,
) -> Result<(), NotApplicable> {
    require(request.precision == Precision::Strict, "it does not round to tf32")?;
    rules::applies(conv, request, device)?;
    require(
        Config::new(conv, request, device).is_some(),
        "the device has too little shared memory or too few units for the smallest block",
    )
}

fn tile(conv: &Convolution, request: Request, device: &Capabilities) -> Option<Tile> {
    let wide = accumulator(request.dtype).size() > 4;
    let (block_m, block_n, ratio_m, ratio_n) = match columns(conv, request.pass) {
        _ if wide => (64, 64, 1, 1),
        65.. => (128, 128, 2, 2),
        33.. => (128, 64, 2, 2),
        17.. => (128, 32, 2, 1),
        _ => (128, 16, 2, 1),
    };
    let elems_per_thread = widest_load(request.dtype, device);
    // A weight gradient may have few lines.
    let low = match request.pass {
        Pass::Filter if block_m == 128 => low_block(rules::longest_product(conv, request.pass).0),
        _ => block_m,
    };
    let (block_m, ratio_m) = (low, ratio_m.min(low / 32));
    let tile =
        Tile { block_m, block_n, block_k: 16, ratio_m, ratio_n, elems_per_thread, stages: 2 };
    let tile = if request.pass == Pass::Filter { filling(tile, conv, device) } else { tile };
    smaller(tile).into_iter().find(|tile| check(tile, request, device).is_ok())
}

/// A tile of a weight gradient, halved until there is a cube for most multiprocessors, where the sums are too short to
/// be split among these.
fn filling(tile: Tile, conv: &Convolution, device: &Capabilities) -> Tile {
    let halves = iter::successors(Some(tile), |tile| {
        let Tile { block_m, block_n, ratio_m, ratio_n, .. } = *tile;
        Some(match block_m < block_n {
            true => Tile { block_n: block_n / 2, ratio_n: ratio_n.min(block_n / 64), ..*tile },
            false => Tile { block_m: block_m / 2, ratio_m: ratio_m.min(block_m / 64), ..*tile },
        })
    });
    let tiles: Vec<Tile> = halves.take_while(|tile| tile.block_m.min(tile.block_n) >= 32).collect();
    let fills = |tile: &&Tile| {
        let cubes =
            split_k::blocks(conv, Pass::Filter, tile) * split_k::splits(conv, Pass::Filter, tile);
        4 * cubes >= 3 * device.multiprocessor_count()
    };
    tiles.iter().find(fills).or(tiles.last()).copied().unwrap_or(tile)
}

/// The lines of a block with the least cost for this many lines: for the products, and for loading the columns of each
/// block, which take the longer the lower it is.
fn low_block(lines: usize) -> u32 {
    let cost = |block: &u32| {
        lines.next_multiple_of(*block as usize) * (*block as usize + 16) / *block as usize
    };
    [128, 64, 32].into_iter().min_by_key(cost).unwrap_or(128)
}

/// Rejects a tile that the kernel does not support.
pub(super) fn check(tile: &Tile, request: Request, device: &Capabilities) -> Result<(), PlanError> {
    check_lanes(tile.elems_per_thread, widest_load(request.dtype, device))?;
    check_pieces(tile)?;
    check_stages(tile)?;
    check_shared(shared_bytes(tile, request.dtype), device)?;
    check_units(units(tile), device)
}

/// Rejects blocks that are not multiples of the 4 by 4 pieces.
fn check_pieces(tile: &Tile) -> Result<(), PlanError> {
    check_sums(tile.ratio_m, tile.ratio_n, MOST_PIECES)?;
    check_block("block_m", tile.block_m, tile.ratio_m.saturating_mul(QUAD), MOST_BLOCK)?;
    check_block("block_n", tile.block_n, tile.ratio_n.saturating_mul(QUAD), MOST_BLOCK)?;
    check_block("block_k", tile.block_k, tile.elems_per_thread, MOST_BLOCK)
}

/// The units of a cube.
pub(super) fn units(tile: &Tile) -> u32 {
    (tile.block_m / (QUAD * tile.ratio_m)) * (tile.block_n / (QUAD * tile.ratio_n))
}

/// The bytes of shared memory that a tile needs.
fn shared_bytes(tile: &Tile, dtype: DType) -> usize {
    let elements = (tile.block_m as usize + tile.block_n as usize) * tile.block_k as usize;
    elements * tile.stages as usize * accumulator(dtype).size()
}

/// The speed of the mainloop: the share of the vector units' speed that it reaches, and its times in cycles. An element
/// takes as long whether it is loaded alone or in a vector, because it is stored in shared memory by itself. Finding the
/// elements of `a` takes longer if the terms of a block belong to several taps.
pub(super) fn mainloop(tile: &Tile, product: &Product, device: &Capabilities) -> Mainloop {
    let finding = if product.one_tap { 1.0 } else { 1.7 };
    let [m, n, k] = [tile.block_m, tile.block_n, tile.block_k].map(f64::from);
    Mainloop {
        products: 0.82 * device.speeds.vector as f64,
        loads: 0.12 * (finding * m + n) * k,
        step: 1230.0,
        store: 0.12,
    }
}
