//! The units of a launch, and which piece of the work is a unit's own.

use cubecl::client::Client;
use cubecl::prelude::*;

/// The cubes, and the units of each, that give every piece of work its unit.
pub(crate) fn grid(client: &Client, units: u32, work: usize) -> (CubeCount, CubeDim) {
    let units = CubeDim::new_1d(units);
    (cubecl::calculate_cube_count_elemwise(client, work, units), units)
}

/// The position of the vector that this unit computes. A processor's thread is one unit of all cubes, one
/// after the other: where it `runs`, they are neighbours in memory. A GPU's neighbours run at once.
#[cube]
pub(crate) fn unit_position(#[comptime] runs: bool) -> u32 {
    if comptime!(runs) {
        UNIT_POS * CUBE_COUNT as u32 + CUBE_POS as u32
    } else {
        ABSOLUTE_POS as u32
    }
}
