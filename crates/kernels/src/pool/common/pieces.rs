//! How the rows of planes are cut into pieces, so that few large planes keep a whole GPU busy.

use crate::pool::common::Task;

/// The number of pieces into which the rows of every plane are cut: the one with which the cubes end first. `cubes` is
/// the number of cubes with one piece each. A piece walks its share of a plane's `blocks`, and before them the `lead`
/// blocks that reach into it. `busy` units keep a multiprocessor busy: beyond them, twice as many take twice as
/// long.
pub(crate) fn pieces(
    task: Task<'_>,
    cubes: usize,
    [blocks, lead]: [usize; 2],
    busy: usize,
) -> usize {
    let multiprocessors = task.device.multiprocessor_count();
    let time = |&pieces: &usize| {
        let each = (cubes * pieces).div_ceil(multiprocessors) * task.settings.units as usize;
        each.max(busy) * (blocks.div_ceil(pieces) + lead)
    };
    let most = (MOST_CUBES * multiprocessors / cubes.max(1)).clamp(1, blocks.max(1));
    (1..=most).min_by_key(time).unwrap_or(1)
}

/// The most cubes that a multiprocessor gets by cutting planes.
const MOST_CUBES: usize = 8;
