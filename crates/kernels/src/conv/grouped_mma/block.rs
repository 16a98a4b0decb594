//! The work of a cube and of its planes.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;

use super::form::{Form, PLANE};
use crate::conv::common::GatherArgs;

/// The numbers of a launch, besides those of the gather.
#[derive(CubeType, CubeLaunch)]
pub(super) struct BlockArgs {
    /// The number of blocks of chunks.
    pub(super) chunks: FastDivmod<u32>,
    /// The number of rows along the height and the width.
    pub(super) height: u32,
    pub(super) width: u32,
    /// The step from one column's weights to the next column's.
    pub(super) column_step: u32,
    /// The lanes of a vector, the groups of a plane and its walks, as run-time values: if the compiler knew them, it
    /// would unroll loops that are better not unrolled.
    pub(super) lanes: u32,
    pub(super) members: u32,
    pub(super) walks: u32,
}

/// The place of a plane's work.
#[derive(CubeType)]
pub(super) struct PlaneWork<'a> {
    pub(super) gather: &'a GatherArgs,
    pub(super) block: &'a BlockArgs,
    #[cube(comptime)]
    pub(super) form: Form,
    /// The first line and the first column of the cube's windows.
    pub(super) line: u32,
    pub(super) column: u32,
    /// The cube's first chunk.
    pub(super) chunk: u32,
    /// The unit's index in its plane, and the plane's first group in the cube.
    pub(super) unit: u32,
    pub(super) group: u32,
}

/// The work of a plane.
#[cube]
pub(super) fn work_of<'a>(
    gather: &'a GatherArgs,
    block: &'a BlockArgs,
    #[comptime] form: Form,
) -> PlaneWork<'a> {
    let (across, chunk) = block.chunks.div_mod(CUBE_POS_X);
    let (plane, unit) = (UNIT_POS / PLANE, UNIT_POS % PLANE);
    PlaneWork::<'a> {
        gather,
        block,
        form,
        line: CUBE_POS_Y * comptime!(form.lines()),
        column: across * comptime!(form.windows()),
        chunk: chunk * comptime!(form.chunks),
        unit,
        group: plane * comptime!(form.members),
    }
}
