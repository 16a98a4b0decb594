//! Which problems a GPU's plain units (no matrix units) multiply, and the best tile for a problem.

use core::fmt;

use windowpane_geometry::{Convolution, DType, Precision, Tile, TileOverrides};

use crate::conv::common::{
    Arguments, Kernel, MOST_BLOCK, check_block, check_lanes, check_shared, check_stages,
    check_sums, check_units, columns, widest_load,
};
use crate::conv::implicit_gemm::blocks::{LoadTimes, Product, QUAD};
use crate::conv::implicit_gemm::cost::Mainloop;
use crate::conv::implicit_gemm::rules::{self, check_cubes, most_splits};
use crate::conv::implicit_gemm::search::{Inputs, Search};
use crate::conv::problem::{Request, Task};
use crate::cube::accumulator;
use crate::device::Capabilities;
use crate::error::{NotApplicable, PlanError, require};

/// The most 4 by 4 pieces of accumulators that fit in a unit's registers.
const MOST_PIECES: u32 = 8;

/// The tile of a kernel whose units each accumulate in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The block of a cube, and the pieces of it that each unit computes.
    pub tile: Tile,
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
        require(task.request.precision == Precision::Strict, "it does not round to tf32")?;
        rules::applies(task)?;
        require(
            tiles(task).next().is_some(),
            "the device has too little shared memory or too few units for the smallest block",
        )
    }

    /// The tile with the lowest estimated time.
    fn new(task: Task<'_>) -> Option<Self> {
        let tiles = tiles(task);
        search(task).tile(tiles).map(|tile| Self { tile })
    }

    fn over(self, overrides: &TileOverrides) -> Result<Self, PlanError> {
        Ok(Self { tile: overrides.over(self.tile) })
    }

    fn tile(&self) -> Option<Tile> {
        Some(self.tile)
    }

    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        check(&self.tile, task)?;
        check_cubes(&self.tile, task)
    }

    fn units(&self, _: Task<'_>) -> u32 {
        units(&self.tile)
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

/// The blocks that are considered, as `[block_m, block_n, block_k, ratio_m, ratio_n]`: the largest for products that fill
/// them on every multiprocessor, the smallest for those of few rows or columns.
const BLOCKS: [[u32; 5]; 16] = [
    [128, 256, 16, 4, 2],
    [128, 128, 16, 4, 2],
    [128, 128, 16, 2, 2],
    [128, 64, 16, 2, 2],
    [64, 128, 16, 2, 2],
    [64, 64, 16, 2, 2],
    [64, 64, 16, 1, 1],
    [128, 32, 16, 2, 1],
    [32, 128, 16, 1, 2],
    [64, 32, 16, 1, 1],
    [32, 64, 16, 1, 1],
    [32, 32, 16, 1, 1],
    [32, 32, 32, 1, 1],
    [128, 16, 16, 2, 1],
    [64, 16, 16, 1, 1],
    [128, 8, 16, 1, 1],
];

/// A block of fewer columns is only considered if it has all columns of a product.
const NARROW: u32 = 16;

/// The blocks that fit on a device, with two stages if these fit.
fn tiles(task: Task<'_>) -> impl Iterator<Item = Tile> {
    let Task { conv, request, device } = task;
    let columns = columns(conv, request.pass);
    let elems_per_thread = widest_load(request.dtype, device);
    // Wide accumulators take twice as many registers.
    let most = if accumulator(request.dtype).size() > 4 { 1 } else { MOST_PIECES };
    let blocks = BLOCKS.into_iter().filter(move |[_, block_n, _, ratio_m, ratio_n]| {
        ratio_m * ratio_n <= most && (*block_n >= NARROW || columns <= *block_n as usize)
    });
    blocks.filter_map(move |[block_m, block_n, block_k, ratio_m, ratio_n]| {
        let tile =
            |stages| Tile { block_m, block_n, block_k, ratio_m, ratio_n, elems_per_thread, stages };
        [2, 1].map(tile).into_iter().find(|tile| check(tile, task).is_ok())
    })
}

/// The search for a tile and a number of parts.
pub(super) fn search<'a>(task: Task<'a>) -> Search<'a, impl Fn(&Tile) -> Inputs> {
    let Task { conv, request, device } = task;
    Search::new(task, move |tile| {
        let product = product(conv, request, tile, false);
        (product, mainloop(tile, &product, device), units(tile))
    })
}

/// The product, whose sums may be `scaled`. A load fills one vector in shared memory, or is transposed into several.
pub(super) fn product(conv: &Convolution, request: Request, tile: &Tile, scaled: bool) -> Product {
    let load = tile.elems_per_thread;
    let most = [load.min(tile.block_k), load.min(QUAD)];
    Product::new(conv, request.pass, tile, most).with_whole_rows(conv, request.pass, scaled)
}

/// Rejects a tile that the kernel does not support.
pub(super) fn check(tile: &Tile, task: Task<'_>) -> Result<(), PlanError> {
    let Task { request, device, .. } = task;
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

/// The speed of the mainloop, fitted to the times of 16 tiles for 27 layers on an H100. For each term a unit multiplies 16
/// pairs per piece, and loads the factors of its pieces. Units with more than 4 pieces use so many registers that few of
/// them are resident, and these hide less of the latency of a step.
fn mainloop(tile: &Tile, product: &Product, device: &Capabilities) -> Mainloop {
    let [k, ratio_m, ratio_n] = [tile.block_k, tile.ratio_m, tile.ratio_n].map(f64::from);
    let pieces = ratio_m * ratio_n;
    let products = 16.0 * pieces;
    let share = products / (products + ratio_m + ratio_n + 13.0);
    let loads = LoadTimes { element: 0.043, vector: 0.14, of_windows: 1.9, of_taps: 1.25 };
    Mainloop {
        products: share * device.speeds.vector as f64,
        loads: product.loading(tile, loads),
        step: 160.0 + 30.0 * k * (pieces + (pieces - 4.0).max(0.0)),
        miss: 245.0,
        store: 0.14,
        scattered: 0.66,
        resident: 312,
    }
}
