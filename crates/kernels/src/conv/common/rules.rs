//! Conditions that several kernels impose on a problem, a device and a tile, with their limits.
//!
//! Each kernel's own configuration chooses which of these apply to it, and adds its own.

use windowpane_geometry::{Convolution, DType, Tile, TileOverrides};

use super::phases;
use crate::conv::problem::{Pass, Task};
use crate::cube::accumulator;
use crate::device::Capabilities;
use crate::error::{PlanError, ensure};

/// The number of cubes that every device accepts on each axis of a launch.
pub(crate) const MOST_CUBES: usize = 65535;

/// In some kernels each phase is a launch, or has code of its own. With more phases than this, a data gradient is computed
/// by the direct kernel, or over blocks of pixels.
pub(crate) const MOST_PHASES: usize = 256;

/// The most products of a pass that are launched together: the phases of a stride of 3 on two axes. A kernel has code for each.
pub(crate) const MOST_TOGETHER: usize = 9;

/// The most taps along the width for which a run of rows is unrolled, and the largest distance in pixels from
/// the first tap to the last, or from one window to the next.
const MOST_TAPS: usize = 32;
const MOST_REACH: usize = 64;

/// With more rows per unit than this, no more latency is hidden.
pub(crate) const MOST_ROWS: usize = 14;

/// The most vectors of accumulators that a unit is compiled for.
const MOST_SUMS: u32 = 64;

/// The largest block that the kernels are compiled for.
pub(crate) const MOST_BLOCK: u32 = 256;

/// Whether a pass has few enough phases.
pub(crate) fn has_few_phases(conv: &Convolution, pass: Pass) -> bool {
    phases(conv, pass).iter().product::<usize>() <= MOST_PHASES
}

/// Whether the loop over the taps along the width can be unrolled.
pub(crate) fn has_few_taps(conv: &Convolution) -> bool {
    let [.., width] = conv.grid().axes();
    let reach = (width.kernel() - 1).saturating_mul(width.dilation()).max(width.stride());
    width.kernel() <= MOST_TAPS && reach <= MOST_REACH
}

/// The most elements that a GPU loads at once; at most 4, the widest vector that every target language has.
pub(crate) fn widest_load(dtype: DType, device: &Capabilities) -> u32 {
    (device.load_bytes / dtype.size()).clamp(1, 4) as u32
}

/// The most factors that a load for matrix units may read: four where the shading language splits wider
/// vectors, because copies of split vectors do not work.
pub(crate) fn widest_factor_load(dtype: DType, device: &Capabilities) -> u32 {
    let most = device.vector_lanes.min(8);
    (device.load_bytes / dtype.size()).clamp(1, most) as u32
}

/// The number of accumulators that fit in a processor's vector register.
pub(crate) fn widest_register(dtype: DType, device: &Capabilities) -> u32 {
    (device.load_bytes / accumulator(dtype).size()).max(1) as u32
}

/// The most lanes of a kernel that only computes in registers: a processor's register, or a GPU's load.
pub(crate) fn widest_vector(dtype: DType, device: &Capabilities) -> u32 {
    match device.cores {
        Some(_) => widest_register(dtype, device),
        None => widest_load(dtype, device),
    }
}

/// The tile of a unit that uses no shared memory: a few rows by a few vectors, in registers.
pub(crate) fn register_tile(rows: u32, vectors: u32, lanes: u32) -> Tile {
    Tile {
        block_m: rows,
        block_n: vectors.saturating_mul(lanes),
        block_k: 1,
        ratio_m: rows,
        ratio_n: vectors,
        elems_per_thread: lanes,
        stages: 1,
    }
}

/// The rows, vectors and lanes of a register tile with its overrides. The other numbers of the tile follow from these, and
/// different ones are rejected.
pub(crate) fn registers(
    overrides: &TileOverrides,
    [rows, vectors, lanes]: [u32; 3],
) -> Result<[u32; 3], PlanError> {
    let rows = overrides.ratio_m.unwrap_or(rows);
    let vectors = overrides.ratio_n.unwrap_or(vectors);
    let lanes = overrides.elems_per_thread.unwrap_or(lanes);
    let expected = register_tile(rows, vectors, lanes);
    let found = overrides.over(expected).fields();
    for ((name, found), (_, expected)) in found.into_iter().zip(expected.fields()) {
        check_number(name, found, expected)?;
    }
    Ok([rows, vectors, lanes])
}

/// Rejects a register tile that does not fit in registers, or whose lanes the device cannot load.
pub(crate) fn check_registers(
    [rows, vectors, lanes]: [u32; 3],
    task: Task<'_>,
) -> Result<(), PlanError> {
    check_lanes(lanes, widest_vector(task.request.dtype, task.device))?;
    check_sums(rows, vectors, MOST_SUMS)
}

/// Rejects a number of a tile that differs from the only possible one.
pub(crate) fn check_number(name: &'static str, found: u32, expected: u32) -> Result<(), PlanError> {
    ensure(found == expected, PlanError::Tile { name, found, expected })
}

/// Rejects load widths that the device does not have.
pub(crate) fn check_lanes(lanes: u32, widest: u32) -> Result<(), PlanError> {
    ensure(lanes.is_power_of_two() && lanes <= widest, PlanError::Loads { lanes, widest })
}

/// Rejects vectors whose elements would not be contiguous in memory.
pub(crate) fn check_neighbours(lanes: u32, channels: usize) -> Result<(), PlanError> {
    check_divisor("elems_per_thread", lanes, channels, "elements side by side")
}

/// Rejects a number that does not divide `whole`.
pub(crate) fn check_divisor(
    name: &'static str,
    found: u32,
    whole: usize,
    of: &'static str,
) -> Result<(), PlanError> {
    ensure(whole.is_multiple_of(found as usize), PlanError::Divisor { name, found, whole, of })
}

/// Rejects more accumulators than registers hold, or none.
pub(crate) fn check_sums(ratio_m: u32, ratio_n: u32, limit: u32) -> Result<(), PlanError> {
    let sums = ratio_m.saturating_mul(ratio_n);
    ensure((1..=limit).contains(&sums), PlanError::Accumulators { sums, limit })
}

/// Rejects a block that is not a multiple of `of`, or is larger than `limit`.
pub(crate) fn check_block(
    name: &'static str,
    block: u32,
    of: u32,
    limit: u32,
) -> Result<(), PlanError> {
    ensure(
        block > 0 && block.is_multiple_of(of) && block <= limit,
        PlanError::Block { name, block, of, limit },
    )
}

/// Rejects any number of stages except 1 and 2.
pub(crate) fn check_stages(tile: &Tile) -> Result<(), PlanError> {
    let stages = tile.stages;
    ensure((1..=2).contains(&stages), PlanError::Stages { stages, least: 1, most: 2 })
}

/// Rejects a tile that needs more shared memory than a cube has.
pub(crate) fn check_shared(bytes: usize, device: &Capabilities) -> Result<(), PlanError> {
    ensure(bytes <= device.shared_bytes, PlanError::Shared { bytes, limit: device.shared_bytes })
}

/// Rejects more units than a cube can have, or none.
pub(crate) fn check_units(units: u32, device: &Capabilities) -> Result<(), PlanError> {
    ensure(
        (1..=device.units_per_cube).contains(&units),
        PlanError::Units { units, limit: device.units_per_cube },
    )
}

/// The units per cube of a kernel whose units do not cooperate: `units` on a GPU, the number of cores on a processor.
pub(crate) fn independent_units(units: u32, device: &Capabilities) -> u32 {
    device.cores.unwrap_or(units.min(device.units_per_cube))
}
