//! What several kernels ask of a problem, a device and a tile, each with its number.
//!
//! A kernel's own plan says which of these hold for it, and adds what is its alone.

use windowpane_geometry::{Convolution, DType, Precision, Tile};

use super::{Pass, PlanError, Request};
use crate::conv::blocks::lines;
use crate::conv::gather::{columns, phases};
use crate::dtype::accumulator;
use crate::{Fragment, Fragments, Limits};

/// The cubes that every device takes on each axis of a launch.
pub(in crate::conv) const MOST_CUBES: usize = 65535;

/// The lines of the blocks that plans begin with.
const LINES: usize = 64;

/// More phases than this, each a launch, and a data gradient is computed directly.
const MOST_PHASES: usize = 256;

/// The taps along the width that a run of rows is unrolled for, and the pixels from its first to its last, or
/// from one window to the next.
const MOST_TAPS: usize = 32;
const MOST_REACH: usize = 64;

/// More rows a unit than this hide no more latency.
pub(in crate::conv) const MOST_ROWS: usize = 14;

/// The most vectors of sums that a unit is compiled for.
const MOST_SUMS: u32 = 64;

/// The largest block that is compiled.
pub(in crate::conv) const MOST_BLOCK: u32 = 256;

/// Whether a GPU computes a problem as a product of matrices.
pub(super) fn is_product(conv: &Convolution, request: Request, limits: &Limits) -> bool {
    // A processor's barriers cost more than they bring.
    limits.cores.is_none()
        && request.pass != Pass::Bias
        && conv.groups() <= MOST_CUBES
        && columns(conv, request.pass) <= MOST_CUBES
        && lines(conv, request.pass).div_ceil(LINES) <= limits.cubes as usize
        && has_few_phases(conv, request.pass)
}

/// Whether the launches of a pass, one a phase, are few.
pub(in crate::conv) fn has_few_phases(conv: &Convolution, pass: Pass) -> bool {
    phases(conv, pass).iter().product::<usize>() <= MOST_PHASES
}

/// Whether the taps along the width can be unrolled.
pub(in crate::conv) fn has_few_taps(conv: &Convolution) -> bool {
    let [.., width] = conv.grid().axes();
    let reach = (width.kernel() - 1).saturating_mul(width.dilation()).max(width.stride());
    width.kernel() <= MOST_TAPS && reach <= MOST_REACH
}

/// The fragments that a request's products are made of, where the device has matrix units for them,
/// and the units of a plane.
pub(in crate::conv) fn fragment(request: Request, limits: &Limits) -> Option<(Fragment, u32)> {
    let Fragments { f16, bf16, tf32 } = limits.matrix;
    let fragment = match (request.dtype, request.precision) {
        (DType::F16, Precision::Strict) => f16,
        (DType::BF16, Precision::Strict) => bf16,
        (DType::F32, Precision::Tf32) => tf32,
        _ => None,
    };
    fragment.zip(limits.plane)
}

/// The elements of a GPU's load: not more than the vectors that every language has.
pub(in crate::conv) fn widest_load(dtype: DType, limits: &Limits) -> u32 {
    (limits.load_bytes / dtype.size()).clamp(1, 4) as u32
}

/// The factors that a load for matrix units may bring: four where vectors of more are taken apart
/// for a shading language, which copies of them do not survive.
pub(in crate::conv) fn widest_factor_load(dtype: DType, limits: &Limits) -> u32 {
    let most = if limits.llvm { 8 } else { 4 };
    (limits.load_bytes / dtype.size()).clamp(1, most) as u32
}

/// The sums that a processor's vector register holds.
pub(in crate::conv) fn widest_register(dtype: DType, limits: &Limits) -> u32 {
    (limits.load_bytes / accumulator(dtype).size()).max(1) as u32
}

/// The most lanes of a kernel that computes in registers alone: a register of a processor, or a load.
pub(in crate::conv) fn widest_vector(dtype: DType, limits: &Limits) -> u32 {
    match limits.cores {
        Some(_) => widest_register(dtype, limits),
        None => widest_load(dtype, limits),
    }
}

/// Refuses the tile of a unit that stages nothing: a few rows by a few vectors, and all it has are these.
pub(in crate::conv) fn check_registers(
    tile: &Tile,
    request: Request,
    limits: &Limits,
) -> Result<(), PlanError> {
    let lanes = tile.elems_per_thread;
    check_lanes(lanes, widest_vector(request.dtype, limits))?;
    check_sums(tile, MOST_SUMS)?;
    check_number("block_m", tile.block_m, tile.ratio_m)?;
    check_number("block_n", tile.block_n, tile.ratio_n.saturating_mul(lanes))?;
    check_number("block_k", tile.block_k, 1)?;
    check_number("stages", tile.stages, 1)
}

/// Refuses a number of a tile that the rest of it does not leave open.
pub(in crate::conv) fn check_number(
    name: &'static str,
    found: u32,
    expected: u32,
) -> Result<(), PlanError> {
    match found == expected {
        true => Ok(()),
        false => Err(PlanError::Tile { name, found, expected }),
    }
}

/// Refuses loads that the device does not have.
pub(in crate::conv) fn check_lanes(lanes: u32, widest: u32) -> Result<(), PlanError> {
    match lanes.is_power_of_two() && lanes <= widest {
        true => Ok(()),
        false => Err(PlanError::Lanes { lanes, widest }),
    }
}

/// Refuses vectors that would have elements which do not lie together.
pub(in crate::conv) fn check_neighbours(lanes: u32, channels: usize) -> Result<(), PlanError> {
    check_divisor("elems_per_thread", lanes, channels, "elements side by side")
}

/// Refuses a number that does not divide what it cuts up.
pub(in crate::conv) fn check_divisor(
    name: &'static str,
    found: u32,
    whole: usize,
    of: &'static str,
) -> Result<(), PlanError> {
    match whole.is_multiple_of(found as usize) {
        true => Ok(()),
        false => Err(PlanError::Divisor { name, found, whole, of }),
    }
}

/// Refuses more pieces of sums than registers hold, or none.
pub(in crate::conv) fn check_sums(tile: &Tile, limit: u32) -> Result<(), PlanError> {
    let sums = tile.ratio_m.saturating_mul(tile.ratio_n);
    match (1..=limit).contains(&sums) {
        true => Ok(()),
        false => Err(PlanError::Sums { sums, limit }),
    }
}

/// Refuses a block that is not made of whole pieces, or is larger than is compiled.
pub(in crate::conv) fn check_block(
    name: &'static str,
    block: u32,
    of: u32,
    limit: u32,
) -> Result<(), PlanError> {
    match block > 0 && block.is_multiple_of(of) && block <= limit {
        true => Ok(()),
        false => Err(PlanError::Block { name, block, of, limit }),
    }
}

/// Refuses blocks that are kept more than twice, or never.
pub(in crate::conv) fn check_stages(tile: &Tile) -> Result<(), PlanError> {
    match tile.stages {
        1 | 2 => Ok(()),
        stages => Err(PlanError::Stages { stages }),
    }
}

/// Refuses more shared memory than a cube has.
pub(in crate::conv) fn check_shared(bytes: usize, limits: &Limits) -> Result<(), PlanError> {
    match bytes <= limits.shared_bytes {
        true => Ok(()),
        false => Err(PlanError::Shared { bytes, limit: limits.shared_bytes }),
    }
}

/// Refuses more units than a cube has, or none.
pub(in crate::conv) fn check_units(units: u32, limits: &Limits) -> Result<(), PlanError> {
    match (1..=limits.units_per_cube).contains(&units) {
        true => Ok(()),
        false => Err(PlanError::Units { units, limit: limits.units_per_cube }),
    }
}

/// A tile of blocks in shared memory, and what may take its place where a device has too little of it.
pub(in crate::conv) fn smaller(tile: Tile) -> [Tile; 4] {
    let single = Tile { stages: 1, ..tile };
    let low = Tile { block_m: 64, ratio_m: (tile.ratio_m / 2).max(1), ..single };
    let narrow = Tile { block_n: low.block_n.min(32), ratio_n: 1, ..low };
    [tile, single, low, narrow]
}
