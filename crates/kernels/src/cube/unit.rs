//! The units of a launch, and the position of each unit's work.

use cubecl::client::Client;
use cubecl::prelude::*;

/// The number of cubes, and the units of each, that give every piece of work a unit.
pub(crate) fn grid(client: &Client, units: u32, work: usize) -> (CubeCount, CubeDim) {
    let units = CubeDim::new_1d(units);
    (cubecl::calculate_cube_count_elemwise(client, work, units), units)
}

/// The position of the vector that this unit computes. A thread of a processor computes the same unit of all cubes, one
/// after the other; with `runs`, these have neighbouring vectors in memory. On a GPU, units that run at once have
/// neighbouring vectors.
#[cube]
pub(crate) fn unit_position(#[comptime] runs: bool) -> u32 {
    if comptime!(runs) {
        UNIT_POS * CUBE_COUNT as u32 + CUBE_POS as u32
    } else {
        ABSOLUTE_POS as u32
    }
}
