//! Which problems warpgroups multiply, and the tile with the lowest estimated cost.

use core::fmt;

use windowpane_geometry::{Convolution, LIMIT, Precision, Tile, TileOverrides};

use super::cost;
use super::im2col::Im2colWalk;
use super::kernel::staged_bytes;
use super::product::{Product, Resident};
use super::tile::{HALF_BAND, ROWS, WARPGROUP, units, warps};
use crate::conv::common::{
    Arguments, Kernel, MOST_BLOCK, check_block, check_number, check_sums, check_units, split_k,
};
use crate::conv::implicit_gemm::rules;
use crate::conv::problem::{Pass, Request, Task};
use crate::device::Capabilities;
use crate::error::{NotApplicable, PlanError, ensure, require};

/// The `elems_per_thread` of every tile. The copy engine loads whole lines, so there is no choice.
const LOAD: u32 = 8;

/// The bytes of shared memory that are reserved for barriers and alignment.
const RESERVED: usize = 2048;

/// The most stages. More hide more latency, but a cube initializes more barriers: between 6 and 12 it made no difference in the
/// mean of 53 layers.
const MOST_STAGES: u32 = 8;

/// The most registers of a unit for accumulators; with more, other values are spilled to memory.
const MOST_SUMS: u32 = 128;

/// The registers of a multiprocessor, and the registers of a unit that are not accumulators.
const REGISTERS: u32 = 65536;
const OTHER_REGISTERS: u32 = 40;

/// The tile of a warpgroup kernel, and the stages of the pipeline that feeds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The tile. Its terms are 128 bytes, or fewer where the channels fill only part of them; `ratio_m` counts the
    /// 64-row blocks per warpgroup.
    pub tile: Tile,
    /// Whether filters whose rows do not begin at whole lines of memory are copied first, with rows that do.
    pub aligned: bool,
}

impl Config {
    /// The configuration with the lowest estimated cost among those whose filters are, or are not, aligned.
    fn of(task: Task<'_>, aligned: bool) -> Option<Self> {
        let product = Product::new(task.conv, task.request, aligned)?;
        Some(Self { tile: tile(&product, task.device)?, aligned })
    }

    /// The product of a pass; none if it is not one for this configuration.
    pub(super) fn product(&self, conv: &Convolution, request: Request) -> Option<Product> {
        Product::new(conv, request, self.aligned)
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tile { block_m, block_n, block_k, ratio_m, stages, .. } = self.tile;
        write!(f, "block_m={block_m},block_n={block_n},block_k={block_k},ratio_m={ratio_m}")?;
        write!(f, ",stages={stages}{}", if self.aligned { ",aligned" } else { "" })
    }
}

impl Kernel for Config {
    /// Whether the kernel can compute a problem on a device: the copy engine's maps must be able to describe it.
    fn applies(task: Task<'_>) -> Result<(), NotApplicable> {
        let Task { conv, request, device } = task;
        require(device.wgmma, "the device has no warpgroup products (wgmma)")?;
        rules::applies(task)?;
        let product = Product::new(conv, request, false).ok_or(NotApplicable(
            "the tensor copy engine cannot read the operands, or strict f32 has fewer than 64 terms per sum, or 32 at a border",
        ))?;
        require(
            smallest(&product, device).is_some(),
            "shared memory is too small for a pipeline of stages",
        )
    }

    /// The configuration with the lowest estimated cost.
    fn new(task: Task<'_>) -> Option<Self> {
        let configs = [false, true].into_iter().filter_map(|aligned| Self::of(task, aligned));
        let seconds = |config: &Self| {
            let splits = config.splits(task);
            config.seconds(task, splits)
        };
        configs.min_by(|one, other| seconds(one).total_cmp(&seconds(other)))
    }

    fn over(self, overrides: &TileOverrides) -> Result<Self, PlanError> {
        Ok(Self { tile: overrides.over(self.tile), ..self })
    }

    fn tile(&self) -> Option<Tile> {
        Some(self.tile)
    }

    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        let Task { conv, request, device } = task;
        check_number("ratio_n", self.tile.ratio_n, 1)?;
        check_number("elems_per_thread", self.tile.elems_per_thread, LOAD)?;
        let product = self.product(conv, request).ok_or(PlanError::Foreign)?;
        check_tile(&self.tile, &product, device)
    }

    fn units(&self, _: Task<'_>) -> u32 {
        units(&self.tile)
    }

    fn fixes_units(&self) -> bool {
        true
    }

    fn splits(&self, task: Task<'_>) -> usize {
        let Task { conv, request, device } = task;
        let splits = |product| cheapest_splits(&product, &self.tile, device);
        self.product(conv, request).map_or(1, splits)
    }

    fn most_splits(&self, task: Task<'_>) -> usize {
        let Task { conv, request, device } = task;
        let most = |product| most_parts(&product, &self.tile, device);
        self.product(conv, request).map_or(1, most)
    }

    /// The repacked operands, and the flags of results that must be recomputed.
    fn workspace(&self, conv: &Convolution, request: Request, splits: usize) -> usize {
        let product = self.product(conv, request);
        product.map_or(0, |product| product.workspace(&self.tile, splits))
    }

    fn factors(&self, conv: &Convolution, request: Request) -> &'static str {
        let factors = |product| factors(&product, request.precision);
        self.product(conv, request).map_or("as they are", factors)
    }

    fn seconds(&self, task: Task<'_>, splits: usize) -> f64 {
        let product = self.product(task.conv, task.request);
        let seconds = |product| cost::seconds(&product, task, &self.tile, splits);
        product.map_or(f64::INFINITY, seconds)
    }

    fn launch(&self, arguments: &Arguments<'_>) -> Result<(), PlanError> {
        super::launch(arguments, *self)
    }
}

fn tile(product: &Product, device: &Capabilities) -> Option<Tile> {
    let mut best: Option<(f64, Tile)> = None;
    // Among tiles of equal cost the first one wins: with more rows fewer bytes are loaded, and the clock is higher.
    let blocks = [(256, 2), (192, 1), (128, 1), (64, 1)]
        .into_iter()
        .flat_map(|(block_m, ratio_m)| (1..=8).rev().map(move |n| [block_m, 32 * n, ratio_m]));
    for block in blocks {
        for times in [1, 2] {
            let Some(tile) = fitted(block, times, product, device) else { continue };
            // The products of parts are waited for at each stage, which 64 rows do not hide, unless there are no more.
            let few = product.pass == Pass::Weight && product.columns() <= ROWS as usize;
            if product.parts > 1 && tile.block_m == ROWS && !few {
                continue;
            }
            let splits = cheapest_splits(product, &tile, device);
            let cost = cost::cycles(product, &tile, splits, device);
            // A rarer tile must be noticeably cheaper.
            if best.is_none_or(|(least, _)| cost < 0.99 * least) {
                best = Some((cost, tile));
            }
        }
    }
    best.map(|(_, tile)| tile)
}

/// The number of parts of each sum with the lowest cost.
pub(super) fn cheapest_splits(product: &Product, tile: &Tile, device: &Capabilities) -> usize {
    let cost = |splits: &usize| cost::cycles(product, tile, *splits, device);
    let most = worthwhile_splits(product, tile, device);
    // With few tiles, as many parts as give each multiprocessor one or two of them.
    let tiles =
        |walk: Im2colWalk| walk.products() * product.tiles(&walk, tile).iter().product::<usize>();
    let tiles = product.walks(tile).map(tiles).max().unwrap_or(1) * product.groups();
    let all = device.multiprocessor_count();
    let filling = [all, 2 * all].map(|cubes| cubes / tiles.max(1));
    let filling = filling.into_iter().filter(|splits| (MOST_TRIED + 1..=most).contains(splits));
    let splits = (1..=most.min(MOST_TRIED)).chain(filling);
    splits.min_by(|one, other| cost(one).total_cmp(&cost(other))).unwrap_or(1)
}

/// Up to this number of parts, all are tried.
const MOST_TRIED: usize = 64;

/// The tile that fits if any does.
fn smallest(product: &Product, device: &Capabilities) -> Option<Tile> {
    fitted([128, product.line() as u32, 1], 1, product, device)
}

/// The most contiguous columns of a block that ends within a line of memory. It saves the products of half a line. Wider
/// blocks save a smaller share, and the one that was timed (224 columns for 216) was slower.
const MOST_NARROW: u32 = 96;

/// A tile with as many stages as fit if `times` cubes share a multiprocessor.
fn fitted(
    [block_m, block_n, ratio_m]: [u32; 3],
    times: usize,
    product: &Product,
    device: &Capabilities,
) -> Option<Tile> {
    let (block_k, line) = (product.terms_per_step() as u32, product.line() as u32);
    let room = (device.shared_bytes / times).checked_sub(RESERVED)?;
    let tile =
        Tile { block_m, block_n, block_k, ratio_m, ratio_n: 1, elems_per_thread: LOAD, stages: 1 };
    let stages = most_stages(&tile, product, room, false);
    let tile = Tile { stages, ..tile };
    // A block that ends within a line loads that line whole, and the next block would begin within it. So it is only
    // chosen if it is narrow and has all columns.
    let whole = !product.columns_in_panels() || block_n.is_multiple_of(line);
    if !whole && (block_n > MOST_NARROW || product.columns() > block_n as usize) {
        return None;
    }
    // With several parts a stage takes proportionally longer to multiply, so that fewer stages are enough.
    let least = if product.parts > 1 { 2 } else { 3 };
    // Cubes that share a multiprocessor must also fit without resident operands: others were slower.
    let fits = |walk: Im2colWalk| {
        product.resident(&walk, &tile).steps() <= 1
            || shared_bytes(product, &tile, &walk, least, Resident::default(), false) <= room
    };
    let fits = stages >= least && product.walks(&tile).all(fits);
    (fits && check_tile(&tile, product, device).is_ok()).then_some(tile)
}

/// The most stages that fit, where sums are stored whole or `split`.
fn most_stages(tile: &Tile, product: &Product, room: usize, split: bool) -> u32 {
    let most = |walk: Im2colWalk| {
        let fits = |stages: &u32| pipeline_bytes(product, tile, &walk, *stages, split) <= room;
        (1..=MOST_STAGES).take_while(fits).last().unwrap_or(0)
    };
    product.walks(tile).map(most).min().unwrap_or(0)
}

/// The number of cubes that the device holds at once. Two cubes on a multiprocessor hide each other's stores.
pub(super) fn cubes(
    product: &Product,
    tile: &Tile,
    walk: &Im2colWalk,
    device: &Capabilities,
) -> usize {
    let registers = units(tile) * (sums(product, tile) + OTHER_REGISTERS);
    let shared = pipeline_bytes(product, tile, walk, tile.stages, false) + RESERVED;
    // With several parts, the products of each stage are waited for as well, and two cubes slow each other down more.
    let two = product.parts == 1 && 2 * registers <= REGISTERS && 2 * shared <= device.shared_bytes;
    device.multiprocessor_count() * if two { 2 } else { 1 }
}

/// The accumulator registers of a unit. With factors in parts, each stage has separate accumulators.
fn sums(product: &Product, tile: &Tile) -> u32 {
    let kinds = if product.parts > 1 { 2 } else { 1 };
    tile.ratio_m.saturating_mul(tile.block_n / 2).saturating_mul(kinds)
}

/// The bytes of `stages` stages, and of the memory in which warps rearrange their results, which are wider if sums are
/// `split`.
fn pipeline_bytes(
    product: &Product,
    tile: &Tile,
    walk: &Im2colWalk,
    stages: u32,
    split: bool,
) -> usize {
    shared_bytes(product, tile, walk, stages, product.resident(walk, tile), split)
}

/// The same for these resident operands.
fn shared_bytes(
    product: &Product,
    tile: &Tile,
    walk: &Im2colWalk,
    stages: u32,
    resident: Resident,
    split: bool,
) -> usize {
    let row_stages = if walk.reach > 0 { walk.row_stages(stages) } else { stages };
    let or = |steps: u32, stages: u32| if steps > 0 { steps } else { stages } as usize;
    let rows = or(resident.rows, row_stages) * product.rows_bytes(walk, tile);
    let columns = or(resident.columns, stages) * product.columns_bytes(tile);
    // For a weight gradient it is always assumed that sums are split.
    let stored = if split || product.pass == Pass::Weight { 4 } else { product.stored() };
    let staged = match product.is_dense(walk, tile) {
        true => HALF_BAND * tile.block_n * stored,
        false => staged_bytes(tile, stored, product.resident(walk, tile)),
    };
    let staged = warps(tile) * staged;
    product.parts * (rows + columns) + staged as usize
}

/// The largest number of parts that is worth trying.
fn worthwhile_splits(product: &Product, tile: &Tile, device: &Capabilities) -> usize {
    let least = if product.pass == Pass::Weight { 8 } else { 4 };
    (longest(product, tile) / least).min(most_parts(product, tile, device)).max(1)
}

/// The largest number of parts that the kernel supports.
pub(super) fn most_parts(product: &Product, tile: &Tile, device: &Capabilities) -> usize {
    if product.pass == Pass::Weight {
        return split_k::most(&product.conv, product.pass);
    }
    // Results that may have to be recomputed are recomputed before the parts are added; what is resident belongs to whole
    // sums.
    let room = device.shared_bytes.saturating_sub(RESERVED);
    let can = !product.is_checked()
        && !product.walks(tile).any(|walk| product.resident(&walk, tile).steps() > 0)
        && tile.stages <= most_stages(tile, product, room, true);
    let counted = LIMIT / product.results().max(1);
    if can { counted.min(longest(product, tile)).max(1) } else { 1 }
}

/// The number of steps of the longest sum.
fn longest(product: &Product, tile: &Tile) -> usize {
    product.walks(tile).map(|walk| product.steps(&walk)).max().unwrap_or(1)
}

/// Rejects a tile that the kernel cannot be compiled for.
pub(super) fn check_tile(
    tile: &Tile,
    product: &Product,
    device: &Capabilities,
) -> Result<(), PlanError> {
    let line = product.line() as u32;
    check_number("block_k", tile.block_k, product.terms_per_step() as u32)?;
    // Operands that are contiguous across the terms are loaded in panels that are one line, or one slice, wide.
    let is_weight = product.pass == Pass::Weight;
    let panels = |of: u32, wide: u32| if is_weight { of.max(wide) } else { of };
    for (name, block, of) in [
        ("block_m", tile.block_m, panels(ROWS.saturating_mul(tile.ratio_m), line)),
        ("block_n", tile.block_n, panels(32, product.slice() as u32)),
    ] {
        check_block(name, block, of, MOST_BLOCK)?;
    }
    let sums = sums(product, tile);
    let units = units(tile);
    // The units share 65,536 registers, and each unit needs some that are not accumulators. The assembler
    // allocates registers for whole warpgroups.
    let limit = MOST_SUMS.min(REGISTERS / units.next_multiple_of(WARPGROUP) - OTHER_REGISTERS);
    check_sums(sums, 1, limit)?;
    check_units(units, device)?;
    let room = device.shared_bytes.saturating_sub(RESERVED);
    let (stages, most) = (tile.stages, most_stages(tile, product, room, false));
    ensure((2..=most).contains(&stages), PlanError::Stages { stages, least: 2, most })
}

/// A description of the form in which the kernel multiplies its factors.
pub(super) fn factors(product: &Product, precision: Precision) -> &'static str {
    match (product.parts, product.lines().is_some()) {
        (3, _) => "three bf16 each, six products",
        (2, true) => "two tf32 each, three products; pixels in lines",
        (2, false) => "two tf32 each, three products",
        (_, true) => "pixels in lines",
        _ if product.repacked.is_some() => "padded pixels",
        _ if product.pads_filters => "filters in whole lines of memory",
        _ if precision == Precision::Tf32 => "rounded to tf32",
        _ => "as they are",
    }
}
