//! The tile of a product on Hopper, by what each would cost.

use windowpane_geometry::{AXES, Convolution, DType, LIMIT, Layout, Precision, Tile};

use super::super::gather::{Gather, columns, inner};
use super::super::plan::{Pass, PlanError, Request, results, windows};
use super::kernel::{LINE, ROWS, WARP, WARPGROUP};
use super::{Flat, Walk, fits};
use crate::Limits;

/// The bytes of shared memory that are left to barriers and to alignment.
const RESERVED: usize = 2048;

/// With more stages than this the choice among their barriers makes the compiler take what follows for
/// divergent, and the products for such that must wait for each other.
const MOST_STAGES: u32 = 6;

/// The registers that a unit has for its sums: beyond them others are moved out to memory.
const MOST_SUMS: u32 = 128;

/// The registers of a multiprocessor, and those of a unit that are not for sums.
const REGISTERS: u32 = 65536;
const OTHER_REGISTERS: u32 = 40;

/// Whether the kernel can compute a problem: all that the copy engine's maps can say.
pub(in super::super) fn can(conv: &Convolution, request: Request, limits: &Limits) -> bool {
    let Request { pass, dtype, precision } = request;
    let Some(flat) = Flat::new(conv, pass).filter(|_| limits.hopper.is_some()) else {
        return false;
    };
    let size = dtype.size();
    let factors = match (dtype, precision) {
        (DType::F16 | DType::BF16, Precision::Strict) => true,
        // Wider factors are read along the terms alone.
        (DType::F32, Precision::Tf32) => !flat.across,
        _ => false,
    };
    let channels = match pass {
        Pass::Data => conv.output().channels(),
        _ => conv.input().channels(),
    };
    let aligned = |elements: usize| (elements * size).is_multiple_of(16);
    let line = LINE as usize / size;
    // A slice of channels does not run into the next group's.
    let whole =
        conv.groups() == 1 || pass == Pass::Filter || inner(conv, pass).is_multiple_of(line);
    pass != Pass::Bias
        && conv.layout() == Layout::ChannelsLast
        && factors
        && aligned(channels)
        && aligned(flat.dimensions[2])
        && whole
        && Gather::all(conv, pass).all(|gather| fits(&gather, conv.grid().rank()))
        && smallest(conv, request, limits).is_some()
}

/// The tile that costs least.
pub(in super::super) fn tile(
    conv: &Convolution,
    request: Request,
    limits: &Limits,
) -> Option<Tile> {
    let mut best: Option<(f64, Tile)> = None;
    let blocks = [(128, 1), (256, 2), (192, 1)]
        .into_iter()
        .flat_map(|(block_m, ratio_m)| (1..=8).rev().map(move |n| [block_m, 32 * n, ratio_m]));
    for block in blocks {
        for times in [1, 2] {
            let Some(tile) = fitted(block, times, conv, request, limits) else { continue };
            let splits = splits(conv, request, &tile, limits);
            let cost = cost(conv, request, &tile, splits, limits);
            // A little less is no reason for a rarer tile.
            if best.is_none_or(|(least, _)| cost < 0.99 * least) {
                best = Some((cost, tile));
            }
        }
    }
    best.map(|(_, tile)| tile)
}

/// The parts of a filter's gradient that cost least.
pub(in super::super) fn splits(
    conv: &Convolution,
    request: Request,
    tile: &Tile,
    limits: &Limits,
) -> usize {
    let cost = |splits: &usize| cost(conv, request, tile, *splits, limits);
    let all = 1..=most_splits(conv, request, tile);
    all.min_by(|one, other| cost(one).total_cmp(&cost(other))).unwrap_or(1)
}

/// The tile that fits if any does.
fn smallest(conv: &Convolution, request: Request, limits: &Limits) -> Option<Tile> {
    fitted([128, LINE / request.dtype.size() as u32, 1], 1, conv, request, limits)
}

/// A tile with as many stages as fit so many times.
fn fitted(
    [block_m, block_n, ratio_m]: [u32; 3],
    times: usize,
    conv: &Convolution,
    request: Request,
    limits: &Limits,
) -> Option<Tile> {
    let block_k = LINE / request.dtype.size() as u32;
    let room = (limits.shared_bytes / times).checked_sub(RESERVED)?;
    let tile =
        Tile { block_m, block_n, block_k, ratio_m, ratio_n: 1, elems_per_thread: 8, stages: 1 };
    let stages = most_stages(&tile, conv, request.pass, room);
    let tile = Tile { stages, ..tile };
    (stages >= 3 && check(&tile, conv, request, limits).is_ok()).then_some(tile)
}

/// The stages that there is room for.
fn most_stages(tile: &Tile, conv: &Convolution, pass: Pass, room: usize) -> u32 {
    let most = |walk: Walk| {
        let fits = |stages: &u32| ring_bytes(tile, &walk, *stages) <= room;
        (1..=MOST_STAGES).take_while(fits).last().unwrap_or(0)
    };
    Walk::all(conv, pass, tile).map(most).min().unwrap_or(0)
}

/// The cubes that the device holds at once. Two on a multiprocessor hide each other's stores.
pub(super) fn cubes(tile: &Tile, walk: &Walk, limits: &Limits) -> usize {
    let sums = tile.ratio_m * tile.block_n / 2;
    let registers = units(tile) * (sums + OTHER_REGISTERS);
    let shared = ring_bytes(tile, walk, tile.stages) + RESERVED;
    let two = 2 * registers <= REGISTERS && 2 * shared <= limits.shared_bytes;
    limits.hopper.unwrap_or(1) as usize * if two { 2 } else { 1 }
}

/// The bytes of so many stages.
fn ring_bytes(tile: &Tile, walk: &Walk, stages: u32) -> usize {
    let rows = match walk.reach as u32 {
        0 => stages as usize * tile.block_m as usize,
        reach => walk.runs(stages) as usize * (tile.block_m + reach).next_multiple_of(8) as usize,
    };
    (rows + stages as usize * tile.block_n as usize) * LINE as usize
}

/// The parts that are worth a try.
fn most_splits(conv: &Convolution, request: Request, tile: &Tile) -> usize {
    if request.pass != Pass::Filter {
        return 1;
    }
    let steps = windows(conv).div_ceil(tile.block_k as usize);
    let counted = LIMIT / results(conv, request.pass).max(1);
    (steps / 8).min(counted).clamp(1, 64)
}

/// The cycles that the matrix units take for a step, 128 bytes of terms: for 64 rows by a column a
/// cycle for each 32 bytes and half of it.
fn products(tile: &Tile) -> f64 {
    tile.block_m as f64 / 64.0 * 4.0 * tile.block_n as f64 / 2.0
}

/// Whether the multiplications of a step are done before its rows and columns have come. Then taps
/// share the rows, if they can.
pub(super) fn is_narrow(tile: &Tile) -> bool {
    ((tile.block_m + tile.block_n) * LINE) as f64 / BROUGHT > products(tile)
}

/// The cycles that the slowest part takes for all the waves of tiles that there are.
fn cost(conv: &Convolution, request: Request, tile: &Tile, splits: usize, limits: &Limits) -> f64 {
    let line = LINE as usize / request.dtype.size();
    let (m, n) = (tile.block_m as f64, tile.block_n as f64);
    let read = m / 64.0 * 4.0 * (64.0 + n) * 32.0;
    let stored = if request.pass == Pass::Filter { 4 } else { request.dtype.size() };
    let all = limits.hopper.unwrap_or(1) as usize;
    let store = STORED + m * n * stored as f64 / (MEMORY / all as f64);
    let mut cycles = 0.0;
    for walk in Walk::all(conv, request.pass, tile) {
        let gather = walk.gather;
        // Rows that taps share are brought once for all.
        let (reach, along) = (walk.reach as f64, gather.axes[AXES - 1].taps as f64);
        let rows_brought = if walk.reach > 0 { (m + reach) / along } else { m };
        let copied = (rows_brought + n) * LINE as f64;
        let step = products(tile).max((read + copied) / SHARED).max(copied / BROUGHT);
        let taps = gather.axes.iter().map(|axis| axis.taps).product::<usize>();
        let slices = inner(conv, request.pass).div_ceil(line);
        let columns = columns(conv, request.pass);
        let (rows, columns, steps) = match request.pass {
            Pass::Filter => (columns, taps * slices * line, windows(conv).div_ceil(line)),
            _ => (gather.rows(conv), columns, taps * slices),
        };
        let tiles = rows.div_ceil(tile.block_m as usize)
            * columns.div_ceil(tile.block_n as usize)
            * splits
            * conv.groups();
        let cubes = cubes(tile, &walk, limits);
        let steps = steps.div_ceil(splits);
        let sum = steps as f64 * step * if walk.reach > 0 { SHARING } else { 1.0 };
        // Of two cubes on a multiprocessor one stores while the other multiplies.
        let wave = match cubes > all {
            true => TWO * (2.0 * sum).max(sum + store).max(2.0 * store),
            false => sum + store,
        };
        cycles += tiles.div_ceil(cubes) as f64 * wave + LAUNCHED;
    }
    if splits > 1 {
        cycles += LAUNCHED + (2 * splits * results(conv, request.pass) * 4) as f64 / MEMORY;
    }
    cycles
}

/// The bytes that a cycle brings a multiprocessor from the second level of the cache, moves in shared
/// memory, and brings all from memory.
const BROUGHT: f64 = 56.0;
const SHARED: f64 = 128.0;
const MEMORY: f64 = 2400.0;

/// The cycles of a tile's store beside those of its bytes, those of a launch, and by how much two cubes
/// hinder each other and taps that share their rows.
const STORED: f64 = 500.0;
const LAUNCHED: f64 = 4000.0;
const TWO: f64 = 1.15;
const SHARING: f64 = 1.1;

/// Refuses what the kernel cannot be compiled for.
pub(in super::super) fn check(
    tile: &Tile,
    conv: &Convolution,
    request: Request,
    limits: &Limits,
) -> Result<(), PlanError> {
    check_tile(tile, conv, request, limits)?;
    let across = request.pass == Pass::Filter
        || Flat::new(conv, request.pass).is_some_and(|flat| flat.across);
    let line = LINE / request.dtype.size() as u32;
    let block = |name, block: u32, of| match block.is_multiple_of(of) {
        true => Ok(()),
        false => Err(PlanError::Block { name, block, of, limit: 256 }),
    };
    if across {
        block("block_n", tile.block_n, line)?;
    }
    if request.pass == Pass::Filter {
        block("block_m", tile.block_m, line)?;
    }
    Ok(())
}

fn check_tile(
    tile: &Tile,
    conv: &Convolution,
    request: Request,
    limits: &Limits,
) -> Result<(), PlanError> {
    let line = LINE / request.dtype.size() as u32;
    for (name, found, expected) in [
        ("block_k", tile.block_k, line),
        ("ratio_n", tile.ratio_n, 1),
        ("elems_per_thread", tile.elems_per_thread, 8),
    ] {
        if found != expected {
            return Err(PlanError::Tile { name, found, expected });
        }
    }
    for (name, block, of) in [
        ("block_m", tile.block_m, ROWS.saturating_mul(tile.ratio_m)),
        ("block_n", tile.block_n, 32),
    ] {
        if block == 0 || !block.is_multiple_of(of) || block > 256 {
            return Err(PlanError::Block { name, block, of, limit: 256 });
        }
    }
    let sums = tile.ratio_m.saturating_mul(tile.block_n / 2);
    let units = units(tile);
    // Of 65,536 registers each unit of whole warpgroups has its share, of which some are not for sums.
    let limit = MOST_SUMS.min(REGISTERS / units.next_multiple_of(WARPGROUP) - OTHER_REGISTERS);
    if sums > limit {
        return Err(PlanError::Sums { sums, limit });
    }
    if units > limits.units_per_cube {
        return Err(PlanError::Units { units, limit: limits.units_per_cube });
    }
    let room = limits.shared_bytes.saturating_sub(RESERVED);
    let most = most_stages(tile, conv, request.pass, room);
    if tile.stages < 2 || tile.stages > most {
        return Err(PlanError::Ring { stages: tile.stages, most });
    }
    Ok(())
}

/// The units of a cube.
pub(in super::super) fn units(tile: &Tile) -> u32 {
    tile.block_m / (ROWS * tile.ratio_m.max(1)) * WARPGROUP + WARP
}
