//! The units of a launch, and the position of each unit's work.

use cubecl::client::Client;
use cubecl::prelude::*;

use crate::device::{Capabilities, Target};

/// The units of a cube on a GPU, where each has little to do.
const UNITS: u32 = 256;

/// The number of cubes, and the units of each, that give every piece of work a unit.
pub(crate) fn grid(client: &Client, units: u32, work: usize) -> (CubeCount, CubeDim) {
    let units = CubeDim::new_1d(units);
    (cubecl::calculate_cube_count_elemwise(client, work, units), units)
}

/// The same with as many units in a cube as suit a kernel whose units share nothing.
pub(crate) fn plain_grid(target: Target<'_>, work: usize) -> (CubeCount, CubeDim) {
    grid(target.client, plain_units(target.device), work)
}

/// The units of a cube of such a kernel: the threads of a processor.
pub(crate) fn plain_units(device: &Capabilities) -> u32 {
    device.cores.unwrap_or(UNITS.min(device.units_per_cube))
}

/// The lanes of the widest vector that the device loads at once and does not split, and that divides `elements`
/// of `size` bytes.
pub(crate) fn widest_lanes(device: &Capabilities, size: usize, elements: usize) -> usize {
    let widest = (device.load_bytes / size).clamp(1, device.vector_lanes.max(1));
    1 << elements.trailing_zeros().min(widest.ilog2())
}

/// The position of the vector that this unit computes. A thread of a processor computes the same unit of all cubes, one
/// after the other; with `contiguous`, these have neighbouring vectors in memory. On a GPU, units that run at once have
/// neighbouring vectors.
#[cube]
pub(crate) fn unit_position(#[comptime] contiguous: bool) -> u32 {
    if comptime!(contiguous) {
        UNIT_POS * CUBE_COUNT as u32 + CUBE_POS as u32
    } else {
        ABSOLUTE_POS as u32
    }
}
