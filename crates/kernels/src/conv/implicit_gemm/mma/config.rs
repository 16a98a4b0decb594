//! Which problems matrix units multiply, and the best tile for a problem.

use core::fmt;

use windowpane_geometry::{Convolution, Layout, Tile, Tiling};

use super::form;
use crate::conv::common::gather::{columns, inner};
use crate::conv::common::rules::{
    MOST_BLOCK, check_block, check_lanes, check_shared, check_stages, check_sums, check_units,
    widest_factor_load,
};
use crate::conv::implicit_gemm::blocks::{Product, Side};
use crate::conv::implicit_gemm::cost::Mainloop;
use crate::conv::implicit_gemm::rules::{self, smaller};
use crate::conv::problem::{Request, fragment};
use crate::device::{Capabilities, Fragment};
use crate::error::{NotApplicable, PlanError, require};

/// The name of the kernel.
pub(in crate::conv) const NAME: &str = "mma";

/// The most accumulator fragments that fit in a plane's registers.
const MOST_FRAGMENTS: u32 = 16;

/// The tile of a kernel whose planes multiply fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The block of a cube, and the pieces of it that each plane computes.
    pub tile: Tile,
    /// The fragment of the device's matrix units, and the units of a plane.
    pub(super) fragment: Fragment,
    pub(super) plane: u32,
}

impl Config {
    /// A block that is as wide as the number of filters, and as large as the device has room for.
    pub(in crate::conv) fn new(
        conv: &Convolution,
        request: Request,
        device: &Capabilities,
    ) -> Option<Self> {
        let (fragment, plane) = fragment(request, device)?;
        tile(conv, request, device).map(|tile| Self { tile, fragment, plane })
    }

    /// The configuration with some numbers of its tile replaced.
    pub(in crate::conv) fn over(self, tiling: &Tiling) -> Self {
        Self { tile: tiling.over(self.tile), ..self }
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
    require(
        fragment(request, device).is_some(),
        "the device has no matrix units for this type and precision",
    )?;
    rules::applies(conv, request, device)?;
    require(
        Config::new(conv, request, device).is_some(),
        "the device has too little shared memory or too few units for the smallest block",
    )
}

/// The speed of the mainloop: the share of the matrix units' speed that it reaches, and its times in cycles. Finding the
/// elements of `a` takes longer if the terms of a block belong to several taps.
pub(super) fn mainloop(
    tile: &Tile,
    product: &Product,
    request: Request,
    device: &Capabilities,
) -> Mainloop {
    let loads = |block: u32, side: Side| f64::from(block * tile.block_k / side.lanes);
    let finding = if product.one_tap { 1.0 } else { 3.2 };
    // Factors of tf32 take twice as long.
    let half = 2.0 / request.dtype.size() as f64;
    Mainloop {
        products: 0.63 * half * device.speeds.matrix as f64,
        loads: 0.17 * (finding * loads(tile.block_m, product.a) + loads(tile.block_n, product.b)),
        step: 600.0,
        store: 0.32,
    }
}

fn tile(conv: &Convolution, request: Request, device: &Capabilities) -> Option<Tile> {
    let (fragment, _) = fragment(request, device)?;
    let columns = columns(conv, request.pass);
    let elems_per_thread = widest_factor_load(request.dtype, device);
    // A block has the same number of bytes along the terms for every type.
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
    // With 4 by 4 fragments a plane reads two thirds as much shared memory per product, and with blocks twice as wide
    // each line is loaded half as often. These planes use all registers. Short loads would need even more, and with
    // a shading language they are slow (f16 on an H200 with Vulkan: 32 TFLOP/s, compared with 175 for 4 by 2).
    let wide = Tile { block_k: 2 * block_k, ..tile(256, 4, 4) };
    let whole = |count: usize| count.is_multiple_of(elems_per_thread as usize);
    let pays = device.vector_lanes >= 8
        && request.dtype.size() == 2
        && conv.layout() == Layout::ChannelsLast
        && whole(inner(conv, request.pass))
        && whole(columns);
    let large = [(columns > 128, wide), (columns > 64, tile(128, 4, 4))];
    let large = large.into_iter().filter_map(|(filled, tile)| (pays && filled).then_some(tile));
    large.chain(smaller(plain)).find(|tile| check(tile, request, device).is_ok())
}

/// Rejects a tile that the kernel does not support.
pub(super) fn check(tile: &Tile, request: Request, device: &Capabilities) -> Result<(), PlanError> {
    let Some((fragment, plane)) = fragment(request, device) else {
        return Err(NotApplicable("the device has no such matrix units").by(NAME));
    };
    check_lanes(tile.elems_per_thread, widest_factor_load(request.dtype, device))?;
    check_fragments(tile, fragment)?;
    check_stages(tile)?;
    check_shared(form::shared_bytes(tile, fragment, plane, request.dtype), device)?;
    check_units(form::units(tile, fragment, plane), device)
}

/// Rejects blocks that are not multiples of the fragments.
fn check_fragments(tile: &Tile, fragment: Fragment) -> Result<(), PlanError> {
    check_sums(tile.ratio_m, tile.ratio_n, MOST_FRAGMENTS)?;
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
