//! Which problems warpgroups multiply, and the tile with the lowest estimated cost.

use core::fmt;

use windowpane_geometry::{AXES, Convolution, LIMIT, Precision, Tile, Tiling};

use super::kernel::staged_bytes;
use super::pointwise::Pointwise;
use super::product::Product;
use super::tile::{BROUGHT, LINE, ROWS, WARPGROUP, products, units, warps, whole};
use super::walk::Walk;
use crate::conv::common::rules::check_number;
use crate::conv::common::split_k;
use crate::conv::error::{NotApplicable, PlanError, require};
use crate::conv::implicit_gemm::rules;
use crate::conv::problem::{Pass, Request, multiplications};
use crate::device::Capabilities;

/// The name of the kernel.
pub(in crate::conv) const NAME: &str = "wgmma";

/// The `elems_per_thread` of every tile. The copy engine loads whole lines, so there is no choice.
const LOAD: u32 = 8;

/// The bytes of shared memory that are reserved for barriers and alignment.
const RESERVED: usize = 2048;

/// The most stages. A stage's barrier is selected by comparison with each index; more stages were not tried.
const MOST_STAGES: u32 = 6;

/// The most registers of a unit for accumulators; with more, other values are spilled to memory.
const MOST_SUMS: u32 = 128;

/// The registers of a multiprocessor, and the registers of a unit that are not accumulators.
const REGISTERS: u32 = 65536;
const OTHER_REGISTERS: u32 = 40;

/// The tile of a warpgroup kernel, and the stages of the ring that feeds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The rows of a tile.
    pub block_m: u32,
    /// The columns of a tile.
    pub block_n: u32,
    /// The terms of a stage: as many as fit in 128 bytes.
    pub block_k: u32,
    /// The number of 64-row blocks per warpgroup.
    pub ratio_m: u32,
    /// The number of stages in the ring.
    pub stages: u32,
}

impl Config {
    /// The configuration with the lowest estimated cost.
    pub(in crate::conv) fn new(
        conv: &Convolution,
        request: Request,
        device: &Capabilities,
    ) -> Option<Self> {
        tile(conv, request, device).map(Self::from)
    }

    pub(super) fn as_tile(self) -> Tile {
        let Self { block_m, block_n, block_k, ratio_m, stages } = self;
        Tile { block_m, block_n, block_k, ratio_m, ratio_n: 1, elems_per_thread: LOAD, stages }
    }

    /// The configuration with some numbers of its tile replaced.
    pub(in crate::conv) fn over(self, tiling: &Tiling) -> Result<Self, PlanError> {
        let tile = tiling.over(self.as_tile());
        check_number("ratio_n", tile.ratio_n, 1)?;
        check_number("elems_per_thread", tile.elems_per_thread, LOAD)?;
        Ok(tile.into())
    }
}

impl From<Tile> for Config {
    fn from(Tile { block_m, block_n, block_k, ratio_m, stages, .. }: Tile) -> Self {
        Self { block_m, block_n, block_k, ratio_m, stages }
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block_m, block_n, block_k, ratio_m, stages } = self;
        write!(f, "block_m={block_m},block_n={block_n},block_k={block_k},ratio_m={ratio_m}")?;
        write!(f, ",stages={stages}")
    }
}

/// Whether the kernel can compute a problem on a device: the copy engine's maps must be able to describe it.
pub(in crate::conv) fn applies(
    conv: &Convolution,
    request: Request,
    device: &Capabilities,
) -> Result<(), NotApplicable> {
    require(device.wgmma, "the device has no warpgroup products (wgmma)")?;
    rules::applies(conv, request, device)?;
    let product = Product::new(conv, request).ok_or(NotApplicable(
        "the tensor copy engine cannot read the operands, or sums are short",
    ))?;
    require(smallest(&product, device).is_some(), "shared memory is too small for a ring of stages")
}

/// Whether the kernel reads channels-first tensors where they are.
pub(in crate::conv) fn reads_channels_first(conv: &Convolution, request: Request) -> bool {
    Pointwise::new(conv, request).is_some()
}

/// Whether repacking pays off. With little work, or few columns in a tile, another kernel is faster.
pub(in crate::conv) fn pays(conv: &Convolution, request: Request) -> bool {
    let products = multiplications(conv);
    Product::new(conv, request).is_none_or(|product| {
        if product.parts == 1 {
            return !product.repacks()
                || (products >= PRODUCTS_WORTH_PADDING && product.has_dense_lines());
        }
        let beside = match product.pass {
            // Both operands are repacked completely. With one tap there are few products per repacked factor, and
            // with few channels most of a tile is padding.
            Pass::Filter => {
                PRODUCTS_PER_REPACKED_FACTOR * product.factors() + product.multiplied() / FASTER
            }
            _ => 0,
        };
        products >= PRODUCTS_WORTH_REPACKING + beside
            && product.columns() >= COLUMNS_WORTH_REPACKING
    })
}

/// The fewest products for which repacking 16-bit pixels pays off. The other kernels are slow at problems that need it, so
/// that it only has to be worth its launches.
const PRODUCTS_WORTH_PADDING: usize = 1 << 24;

/// The fewest products and columns for which splitting factors pays off, measured on an H200.
const PRODUCTS_WORTH_REPACKING: usize = 1 << 27;
const COLUMNS_WORTH_REPACKING: usize = 32;

/// The number of products of a weight gradient that the `simt` kernel computes in the time that repacking one factor
/// in parts takes, and how many times slower `simt` is at products, both measured on an H200.
const PRODUCTS_PER_REPACKED_FACTOR: usize = 36;
const FASTER: usize = 5;

fn tile(conv: &Convolution, request: Request, device: &Capabilities) -> Option<Tile> {
    let product = Product::new(conv, request)?;
    let mut best: Option<(f64, Tile)> = None;
    // Among tiles of equal cost the first one wins: with 256 rows fewer bytes are loaded, and the clock is higher.
    let blocks = [(256, 2), (128, 1), (192, 1), (64, 1)]
        .into_iter()
        .flat_map(|(block_m, ratio_m)| (1..=8).rev().map(move |n| [block_m, 32 * n, ratio_m]));
    for block in blocks {
        for times in [1, 2] {
            let Some(tile) = fitted(block, times, &product, device) else { continue };
            // 64 rows are too few to amortise loading the columns for each tile, except where there are no more.
            let few = product.fixed_rows().is_some_and(|rows| rows <= ROWS as usize);
            if tile.block_m == ROWS && !few && !all_stay(&product, &tile) {
                continue;
            }
            let cost = cost(&product, &tile, cheapest_splits(&product, &tile, device), device);
            // A rarer tile must be noticeably cheaper.
            if best.is_none_or(|(least, _)| cost < 0.99 * least) {
                best = Some((cost, tile));
            }
        }
    }
    best.map(|(_, tile)| tile)
}

/// The number of parts of each sum with the lowest cost.
pub(in crate::conv) fn splits(
    conv: &Convolution,
    request: Request,
    tile: &Tile,
    device: &Capabilities,
) -> usize {
    Product::new(conv, request).map_or(1, |product| cheapest_splits(&product, tile, device))
}

fn cheapest_splits(product: &Product, tile: &Tile, device: &Capabilities) -> usize {
    let cost = |splits: &usize| cost(product, tile, *splits, device);
    let most = worthwhile_splits(product, tile, device);
    // With few tiles, as many parts as give each multiprocessor one or two of them.
    let tiles = |walk: Walk| walk.products() * product.tiles(&walk, tile).iter().product::<usize>();
    let tiles = product.walks(tile).map(tiles).max().unwrap_or(1) * product.groups();
    let all = device.multiprocessors.unwrap_or(1) as usize;
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

/// A tile with as many stages as fit if `times` cubes share a multiprocessor.
fn fitted(
    [block_m, block_n, ratio_m]: [u32; 3],
    times: usize,
    product: &Product,
    device: &Capabilities,
) -> Option<Tile> {
    let block_k = product.line() as u32;
    let room = (device.shared_bytes / times).checked_sub(RESERVED)?;
    let tile =
        Tile { block_m, block_n, block_k, ratio_m, ratio_n: 1, elems_per_thread: LOAD, stages: 1 };
    let stages = most_stages(&tile, product, room, false);
    let tile = Tile { stages, ..tile };
    // With several parts a stage takes proportionally longer to multiply, so that fewer stages are enough.
    let least = if product.parts > 1 { 2 } else { 3 };
    (stages >= least && check_tile(&tile, product, device).is_ok()).then_some(tile)
}

/// The most stages that fit, where sums are stored whole or `split`.
fn most_stages(tile: &Tile, product: &Product, room: usize, split: bool) -> u32 {
    let most = |walk: Walk| {
        let fits = |stages: &u32| ring_bytes(product, tile, &walk, *stages, split) <= room;
        (1..=MOST_STAGES).take_while(fits).last().unwrap_or(0)
    };
    product.walks(tile).map(most).min().unwrap_or(0)
}

/// The number of cubes that the device holds at once. Two cubes on a multiprocessor hide each other's stores.
pub(super) fn cubes(product: &Product, tile: &Tile, walk: &Walk, device: &Capabilities) -> usize {
    let registers = units(tile) * (sums(product, tile) + OTHER_REGISTERS);
    let shared = ring_bytes(product, tile, walk, tile.stages, false) + RESERVED;
    // With several parts, the products of each stage are waited for as well, and two cubes slow each other down more.
    let two = product.parts == 1 && 2 * registers <= REGISTERS && 2 * shared <= device.shared_bytes;
    device.multiprocessors.unwrap_or(1) as usize * if two { 2 } else { 1 }
}

/// The accumulator registers of a unit. With factors in parts, each stage has separate accumulators.
fn sums(product: &Product, tile: &Tile) -> u32 {
    let kinds = if product.parts > 1 { 2 } else { 1 };
    tile.ratio_m.saturating_mul(tile.block_n / 2).saturating_mul(kinds)
}

/// The bytes of `stages` stages, and of the memory in which warps rearrange their results, which are wider if sums are
/// `split`.
fn ring_bytes(product: &Product, tile: &Tile, walk: &Walk, stages: u32, split: bool) -> usize {
    let runs = if walk.reach > 0 { walk.runs(stages) } else { stages } as usize;
    let stays = product.stays(walk, tile);
    let columns = (if stays { 1 } else { stages } * tile.block_n * LINE) as usize;
    // For a weight gradient it is always assumed that sums are split.
    let stored = if split || product.pass == Pass::Filter { 4 } else { product.stored() };
    let staged = warps(tile) * staged_bytes(tile, stored, stays);
    product.parts * (runs * product.rows_bytes(walk, tile) + columns) + staged as usize
}

fn all_stay(product: &Product, tile: &Tile) -> bool {
    product.walks(tile).all(|walk| product.stays(&walk, tile))
}

/// The largest number of parts that is worth trying.
fn worthwhile_splits(product: &Product, tile: &Tile, device: &Capabilities) -> usize {
    let least = if product.pass == Pass::Filter { 8 } else { 4 };
    (longest(product, tile) / least).min(most_parts(product, tile, device)).max(1)
}

/// The largest number of parts that the kernel supports.
pub(in crate::conv) fn most_splits(
    conv: &Convolution,
    request: Request,
    tile: &Tile,
    device: &Capabilities,
) -> usize {
    let product = Product::new(conv, request);
    product.map_or(1, |product| most_parts(&product, tile, device))
}

fn most_parts(product: &Product, tile: &Tile, device: &Capabilities) -> usize {
    if product.pass == Pass::Filter {
        return split_k::most(&product.conv, product.pass);
    }
    // Results that may have to be recomputed are recomputed before the parts are added; columns that stay are those
    // of one step.
    let room = device.shared_bytes.saturating_sub(RESERVED);
    let can = !product.is_checked()
        && !product.walks(tile).any(|walk| product.stays(&walk, tile))
        && tile.stages <= most_stages(tile, product, room, true);
    let counted = LIMIT / product.results().max(1);
    if can { counted.min(longest(product, tile)).max(1) } else { 1 }
}

/// The number of steps of the longest sum.
fn longest(product: &Product, tile: &Tile) -> usize {
    product.walks(tile).map(|walk| product.steps(&walk)).max().unwrap_or(1)
}

/// The estimated cycles of all waves of tiles, each limited by its slowest resource.
fn cost(product: &Product, tile: &Tile, splits: usize, device: &Capabilities) -> f64 {
    let (m, n) = (tile.block_m as f64, tile.block_n as f64);
    let (parts, times) = (product.parts as f64, product.times() as f64);
    let read = times * m / 64.0 * 4.0 * (64.0 + n) * 32.0;
    let stored = if splits > 1 || product.pass == Pass::Filter { 4 } else { product.size };
    let all = device.multiprocessors.unwrap_or(1) as usize;
    let store = STORED + m * n * stored as f64 / (MEMORY / all as f64);
    let mut cycles = 0.0;
    for walk in product.walks(tile) {
        let [tiles_m, tiles_n] = product.tiles(&walk, tile);
        let tiles = tiles_m * tiles_n * splits * product.groups();
        let cubes = cubes(product, tile, &walk, device);
        // The time of a wave of a product's tiles.
        let wave = |nth: usize| {
            // Rows that taps share are loaded once for all of them.
            let taps = if walk.reach > 0 { walk.taps(nth)[AXES - 1].max(1) } else { 1 };
            let rows_brought = product.rows_bytes(&walk, tile) as f64 / taps as f64;
            let copied = parts * (rows_brought + n * LINE as f64);
            let step = times * products(tile);
            let step = step.max((read + copied) / SHARED).max(copied / BROUGHT);
            let steps = product.steps_a_part(&walk, nth, splits);
            let sum = steps as f64 * step * if walk.reach > 0 { SHARING } else { 1.0 };
            // With two cubes on a multiprocessor, one stores while the other multiplies.
            match cubes > all {
                true => (TWO * (2.0 * sum).max(sum + store)).max(2.0 * store),
                false => sum + store,
            }
        };
        let mut waves: Vec<(usize, f64)> = Vec::new();
        for nth in 0..walk.products() {
            let (end, wave) = ((nth + 1) * tiles, wave(nth));
            match waves.last_mut() {
                Some((last, same)) if *same == wave => *last = end,
                _ => waves.push((end, wave)),
            }
        }
        cycles += slowest(&waves, cubes, tile) + LAUNCHED;
    }
    if splits > 1 {
        cycles += LAUNCHED + (2 * splits * product.results() * 4) as f64 / MEMORY;
    }
    cycles
}

/// The time of the cube that takes longest, where `waves` are the last tile of each kind, and the time of a wave of that
/// kind. Every other wave goes backwards over the cubes, as in the kernel.
fn slowest(waves: &[(usize, f64)], cubes: usize, tile: &Tile) -> f64 {
    let whole = whole(waves.last().map_or(0, |(all, _)| *all), cubes, tile);
    // The cube of the tile before `end`, and the next cube of its wave.
    let around = |end: usize| {
        let nth = [end.saturating_sub(1) % cubes, end % cubes];
        if (end / cubes).is_multiple_of(2) { nth } else { nth.map(|nth| cubes - 1 - nth) }
    };
    let time = |cube: usize| {
        let tiles = |end: usize| {
            let (waves, rest) = (end / cubes, end % cubes);
            let nth = if waves.is_multiple_of(2) { cube } else { cubes - 1 - cube };
            waves + usize::from(nth < rest)
        };
        let mut before = 0;
        let times = waves.iter().map(|(end, wave)| {
            let done = tiles(*end.min(&whole));
            (done - core::mem::replace(&mut before, done)) as f64 * wave
        });
        times.sum::<f64>()
    };
    // Cubes between two such places have as many tiles of each kind.
    let ends = waves.iter().flat_map(|(end, _)| around(*end.min(&whole)));
    let slowest = [0, cubes - 1].into_iter().chain(ends).map(time).fold(0.0, f64::max);
    let shared = waves.iter().find(|(end, _)| *end > whole);
    slowest + shared.map_or(0.0, |(_, wave)| SHARED_TILE * wave)
}

/// The time of a shared tile, as a fraction of the time of a whole tile.
const SHARED_TILE: f64 = 0.75;

/// The bytes per cycle that a multiprocessor moves in shared memory, and that all multiprocessors of an H200 together
/// load from memory.
const SHARED: f64 = 128.0;
const MEMORY: f64 = 2400.0;

/// The cycles of a tile's store besides those for its bytes; the cycles of a launch; the slowdown where two cubes
/// share a multiprocessor; and the slowdown where taps share their rows.
const STORED: f64 = 500.0;
const LAUNCHED: f64 = 4000.0;
const TWO: f64 = 1.15;
const SHARING: f64 = 1.04;

/// Rejects a tile that the kernel cannot be compiled for.
pub(in crate::conv) fn check(
    tile: &Tile,
    conv: &Convolution,
    request: Request,
    device: &Capabilities,
) -> Result<(), PlanError> {
    match Product::new(conv, request) {
        Some(product) => check_tile(tile, &product, device),
        None => Err(PlanError::NoKernel { kernel: Some(NAME) }),
    }
}

fn check_tile(tile: &Tile, product: &Product, device: &Capabilities) -> Result<(), PlanError> {
    let line = product.line() as u32;
    check_number("block_k", tile.block_k, line)?;
    // Operands that are contiguous across the terms are loaded in panels that are one line wide.
    let filter = product.pass == Pass::Filter;
    let panels = |across: bool, of: u32| if across { of.max(line) } else { of };
    for (name, block, of) in [
        ("block_m", tile.block_m, panels(filter, ROWS.saturating_mul(tile.ratio_m))),
        ("block_n", tile.block_n, panels(product.flat.across, 32)),
    ] {
        if block == 0 || !block.is_multiple_of(of) || block > 256 {
            return Err(PlanError::Block { name, block, of, limit: 256 });
        }
    }
    let sums = sums(product, tile);
    let units = units(tile);
    // The units share 65,536 registers, and each unit needs some that are not accumulators. The assembler
    // allocates registers for whole warpgroups.
    let limit = MOST_SUMS.min(REGISTERS / units.next_multiple_of(WARPGROUP) - OTHER_REGISTERS);
    if sums == 0 || sums > limit {
        return Err(PlanError::Sums { sums, limit });
    }
    if units > device.units_per_cube {
        return Err(PlanError::Units { units, limit: device.units_per_cube });
    }
    let room = device.shared_bytes.saturating_sub(RESERVED);
    let most = most_stages(tile, product, room, false);
    if tile.stages < 2 || tile.stages > most {
        return Err(PlanError::Ring { stages: tile.stages, most });
    }
    Ok(())
}

/// A description of the form in which the kernel multiplies its factors.
pub(in crate::conv) fn factors(conv: &Convolution, request: Request) -> &'static str {
    let product = Product::new(conv, request);
    match product.map(|product| (product.parts, product.fold.is_some())) {
        Some((3, _)) => "three bf16 each, six products",
        Some((2, true)) => "two tf32 each, three products; pixels in lines",
        Some((2, false)) => "two tf32 each, three products",
        Some((_, true)) => "pixels in lines",
        _ if request.precision == Precision::Tf32 => "rounded to tf32",
        _ => "as they are",
    }
}

/// The bytes of scratch memory that a launch needs besides its tensors.
pub(in crate::conv) fn workspace(
    conv: &Convolution,
    request: Request,
    tile: &Tile,
    splits: usize,
) -> usize {
    Product::new(conv, request).map_or(0, |product| product.workspace(tile, splits))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The closed form is the longest of all cubes' times, each added up tile by tile.
    #[test]
    fn the_slowest_cube_is_found() {
        // Tiles of one warpgroup are not shared.
        let [block_m, block_n, block_k] = [64; 3];
        let tile = Tile {
            block_m,
            block_n,
            block_k,
            ratio_m: 1,
            ratio_n: 1,
            elems_per_thread: 8,
            stages: 3,
        };
        let kinds = [4.5, 2.25, 1.0, 0.125];
        for (cubes, each) in (1..=9).flat_map(|cubes| (1..=40).map(move |each| (cubes, each))) {
            for ends in [[1, 2, 3, 4], [1, 3, 4, 7], [2, 2, 5, 5], [3, 4, 4, 4]] {
                let waves: Vec<_> = ends.map(|end| end * each).into_iter().zip(kinds).collect();
                let mut times = vec![0.0; cubes];
                for nth in 0..waves[3].0 {
                    let cube = nth % cubes;
                    let cube =
                        if (nth / cubes).is_multiple_of(2) { cube } else { cubes - 1 - cube };
                    times[cube] += waves.iter().find(|(end, _)| nth < *end).unwrap().1;
                }
                let expected = times.into_iter().fold(0.0, f64::max);
                assert_eq!(slowest(&waves, cubes, &tile), expected, "{cubes} {waves:?}");
            }
        }
    }
}
