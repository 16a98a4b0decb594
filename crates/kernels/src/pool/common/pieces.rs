//! How the rows of planes are cut into pieces, so that few large planes keep a whole GPU busy.

use crate::pool::common::Task;

/// The pieces into which the rows of every plane are cut, each for cubes of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces {
    /// The number of blocks of rows of a plane, and of a piece.
    pub(crate) blocks: usize,
    pub(crate) piece_blocks: usize,
}

impl Pieces {
    /// The pieces with which the cubes end first. `cubes` is the number of cubes with one piece each. A piece has its
    /// share of a plane's `blocks`, and before them the `lead` blocks that reach into it. `busy` units keep a
    /// multiprocessor busy: beyond them, twice as many take twice as long.
    pub(crate) fn new(
        task: Task<'_>,
        cubes: usize,
        [blocks, lead]: [usize; 2],
        busy: usize,
    ) -> Self {
        let multiprocessors = task.device.multiprocessor_count();
        let time = |&pieces: &usize| {
            let each = (cubes * pieces).div_ceil(multiprocessors) * task.settings.units as usize;
            each.max(busy) * (blocks.div_ceil(pieces) + lead)
        };
        let most = (MOST_CUBES * multiprocessors / cubes.max(1)).clamp(1, blocks.max(1));
        let pieces = (1..=most).min_by_key(time).unwrap_or(1);
        Self { blocks, piece_blocks: blocks.div_ceil(pieces) }
    }

    /// The number of pieces of a plane.
    pub(crate) fn count(&self) -> usize {
        self.blocks.div_ceil(self.piece_blocks)
    }
}

/// The most cubes that a multiprocessor gets by cutting planes.
const MOST_CUBES: usize = 8;
