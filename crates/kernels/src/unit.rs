//! Which piece of the work is a unit's own.

use cubecl::prelude::*;

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
