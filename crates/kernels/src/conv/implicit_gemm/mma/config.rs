//! Which problems matrix units multiply, and the best tile for a problem.

use core::fmt;

use windowpane_geometry::{Convolution, Layout, Tile, TileOverrides};

use super::form;
use crate::conv::common::{
    Arguments, Kernel, MOST_BLOCK, check_block, check_lanes, check_shared, check_stages,
    check_sums, check_units, columns, inner, widest_factor_load,
};
use crate::conv::implicit_gemm::blocks::{LoadTimes, Product};
use crate::conv::implicit_gemm::cost::Mainloop;
use crate::conv::implicit_gemm::rules::{self, check_cubes, most_splits};
use crate::conv::implicit_gemm::search::{Inputs, Search};
use crate::conv::problem::{Request, Task, fragment};
use crate::device::Fragment;
use crate::error::{NotApplicable, PlanError, ensure, require};

/// The columns of most fragments.
const SIDE: u32 = 16;

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

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tile.fmt(f)
    }
}

impl Kernel for Config {
    fn multiplies_integers() -> bool {
        true
    }

    fn applies(task: Task<'_>) -> Result<(), NotApplicable> {
        let none = NotApplicable("the device has no matrix units for this type and precision");
        let (fragment, _) = fragment(task).ok_or(none)?;
        rules::applies(task)?;
        require(
            tiles(task, fragment).next().is_some(),
            "the device has too little shared memory or too few units for the smallest block",
        )
    }

    /// The tile with the lowest estimated time.
    fn new(task: Task<'_>) -> Option<Self> {
        let (fragment, plane) = fragment(task)?;
        let tiles = tiles(task, fragment);
        search(task).tile(tiles).map(|tile| Self { tile, fragment, plane })
    }

    fn over(self, overrides: &TileOverrides) -> Result<Self, PlanError> {
        Ok(Self { tile: overrides.over(self.tile), ..self })
    }

    fn tile(&self) -> Option<Tile> {
        Some(self.tile)
    }

    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        let own = (self.fragment, self.plane);
        ensure(fragment(task).is_none_or(|found| found == own), PlanError::Foreign)?;
        check(&self.tile, task)?;
        check_cubes(&self.tile, task)
    }

    fn units(&self, _: Task<'_>) -> u32 {
        form::units(&self.tile, self.fragment, self.plane)
    }

    fn fixes_units(&self) -> bool {
        true
    }

    fn splits(&self, task: Task<'_>) -> usize {
        search(task).splits(&self.tile)
    }

    fn most_splits(&self, task: Task<'_>) -> usize {
        most_splits(task.conv, task.request.pass)
    }

    fn seconds(&self, task: Task<'_>, splits: usize) -> f64 {
        search(task).seconds(&self.tile, splits)
    }

    fn launch(&self, arguments: &Arguments<'_>) -> Result<(), PlanError> {
        super::launch(arguments, *self)
    }
}

/// The speed of the mainloop, fitted to the times of 15 tiles for 36 layers on an H200. A result stored by itself takes
/// 0.5 to 0.85 in three data gradients, channels first.
fn mainloop(tile: &Tile, product: &Product, task: Task<'_>) -> Mainloop {
    let Task { request, device, .. } = task;
    let loads = LoadTimes { element: 0.015, vector: 0.45, of_windows: 1.2, of_taps: 1.3 };
    // Factors of tf32 take twice as long, integers half as long.
    let half = 2.0 / request.dtype.size() as f64;
    let columns = fragment(task).map_or(SIDE, |(fragment, _)| fragment.n);
    let products = f64::from(tile.block_k * tile.ratio_m * tile.ratio_n * columns / SIDE);
    let products = if request.is_quantized() { products / 2.0 } else { products };
    Mainloop {
        products: half * device.speeds.matrix as f64,
        loads: product.loading(tile, loads),
        step: 250.0 + 2.0 * products,
        miss: 700.0,
        store: 0.33,
        scattered: 0.65,
        resident: 550,
    }
}

/// The blocks that are considered, as `[block_m, block_n, ratio_m, ratio_n]`, and how many times the usual terms they have.
const BLOCKS: [([u32; 4], u32); 12] = [
    ([128, 128, 4, 2], 1),
    ([128, 64, 2, 2], 1),
    ([64, 128, 2, 2], 1),
    ([64, 64, 2, 2], 1),
    ([64, 64, 2, 1], 1),
    ([128, 32, 2, 1], 1),
    ([32, 128, 1, 2], 1),
    ([64, 32, 1, 1], 1),
    ([32, 64, 1, 1], 1),
    ([32, 32, 1, 1], 1),
    ([32, 32, 1, 1], 2),
    ([128, 16, 2, 1], 1),
];

/// The blocks of planes with 4 by 4 fragments. Such a plane reads two thirds as much shared memory per product as one with
/// 4 by 2, and a block that is twice as wide loads each of its rows half as often. These planes use all registers. Short
/// loads would need even more, and with a shading language they are slow (f16 on an H200 with Vulkan: 32 TFLOP/s, compared
/// with 175 for 4 by 2).
const LARGE_BLOCKS: [([u32; 4], u32); 2] = [([128, 256, 4, 4], 2), ([128, 128, 4, 4], 1)];

/// The blocks that fit on a device, with two stages if these fit.
fn tiles(task: Task<'_>, fragment: Fragment) -> impl Iterator<Item = Tile> {
    let Task { conv, request, device } = task;
    let elems_per_thread = widest_factor_load(request.dtype, device);
    // A block has the same number of bytes along the terms for every type.
    let block_k = (64 / request.dtype.size() as u32).next_multiple_of(fragment.k);
    let tile = move |([block_m, block_n, ratio_m, ratio_n], times): ([u32; 4], u32), stages| {
        let block_k = times * block_k;
        let ratio_n = ratio_n * SIDE / fragment.n;
        Tile { block_m, block_n, block_k, ratio_m, ratio_n, elems_per_thread, stages }
    };
    let fits = move |tile: &Tile| check(tile, task).is_ok();
    let whole = |count: usize| count.is_multiple_of(elems_per_thread as usize);
    let large = device.vector_lanes >= 8
        && request.dtype.size() == 2
        && conv.layout() == Layout::ChannelsLast
        && whole(inner(conv, request.pass))
        && whole(columns(conv, request.pass));
    let large = LARGE_BLOCKS.into_iter().filter(move |_| large).map(move |block| tile(block, 2));
    let others = BLOCKS.into_iter();
    let others = others
        .filter_map(move |block| [2, 1].map(|stages| tile(block, stages)).into_iter().find(fits));
    large.filter(fits).chain(others)
}

/// The search for a tile and a number of parts.
pub(super) fn search<'a>(task: Task<'a>) -> Search<'a, impl Fn(&Tile) -> Inputs> {
    let Task { conv, request, .. } = task;
    Search::new(task, move |tile| {
        let product = product(conv, request, tile);
        let units =
            fragment(task).map_or(0, |(fragment, plane)| form::units(tile, fragment, plane));
        (product, mainloop(tile, &product, task), units)
    })
}

/// The product.
pub(super) fn product(conv: &Convolution, request: Request, tile: &Tile) -> Product {
    let load = tile.elems_per_thread;
    Product::new(conv, request.pass, tile, [load, load])
}

/// Rejects a tile that the kernel does not support.
pub(super) fn check(tile: &Tile, task: Task<'_>) -> Result<(), PlanError> {
    let Task { request, device, .. } = task;
    let Some((fragment, plane)) = fragment(task) else {
        return Err(NotApplicable("the device has no such matrix units").by("mma"));
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
