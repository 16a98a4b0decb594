//! Where in memory the element is that an index names.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;

use crate::cube::numbers;
use crate::pool::common::Task;
use crate::pool::common::window::indexing;

/// The numbers that convert an index to a position in memory.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct PlaceArgs {
    /// The number of output elements.
    pub(crate) outputs: u32,
    /// The number of channels that are adjacent in memory.
    pub(crate) lanes: FastDivmod<u32>,
    lane_count: u32,
    /// The number of outputs in a plane.
    pub(crate) windows: FastDivmod<u32>,
    /// The number of inputs in a plane.
    plane: u32,
    /// The index steps to the next sample, channel and position.
    index_batch: u32,
    index_channel: u32,
    index_position: FastDivmod<u32>,
}

pub(crate) fn place_args(task: Task<'_>) -> PlaceArgsLaunch {
    let pooling = task.pooling();
    let [batch, channel, position] = indexing(pooling, task.reduction().base());
    numbers! { PlaceArgsLaunch {
        outputs: task.outputs(), lanes: task.pixel(), lane_count: task.pixel(),
        windows: pooling.output().plane(), plane: pooling.input().plane(), index_batch: batch,
        index_channel: channel, index_position: position,
    } }
}

/// The position in its plane of the input that an index names: −1 for no index, −2 if it is out of range. The plane is
/// that of channel `lane` in sample `outer`; with channels first, every channel counts as a sample.
#[cube]
pub(crate) fn position_of(args: &PlaceArgs, outer: u32, lane: u32, index: i32) -> i32 {
    let base = (outer * args.index_batch + lane * args.index_channel) as i32;
    // An index below its base is clamped, so that the cast is valid; `is_place` rejects it.
    let beyond = max(index, base) - base;
    let (position, rest) = args.index_position.div_mod(beyond as u32);
    let is_place = index >= base && rest == 0 && position < args.plane;
    let missing = select(index == -1, -1i32, -2i32);
    select(is_place, position as i32, missing)
}

/// The memory position of an input.
#[cube]
pub(crate) fn memory_of(args: &PlaceArgs, outer: u32, lane: u32, position: u32) -> u32 {
    (outer * args.plane + position) * args.lane_count + lane
}
