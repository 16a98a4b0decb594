//! The number of parts that the sums of a blocked product are split into, so that a few blocks keep a device busy.

use windowpane_geometry::{Convolution, Tile};

use super::rules::{line_blocks, longest_product};
use crate::conv::common::gather::columns;
use crate::conv::common::rules::MOST_CUBES;
use crate::conv::common::split_k::at_most;
use crate::conv::problem::Pass;

/// The number of cubes up to which long sums are split, and the fewest blocks of terms that are worth a cube.
const BUSY_CUBES: usize = 1024;
const BLOCKS_A_PART: usize = 8;

/// With fewer cubes than this in a forward or data-gradient launch, most of a device is idle. Sums are then split
/// until there are about this many.
const FEW_CUBES: usize = 128;

/// The largest number of parts that a launch supports.
pub(in crate::conv) fn most(conv: &Convolution, pass: Pass) -> usize {
    let (_, terms) = longest_product(conv, pass);
    // Parts and groups share one axis of the launch.
    at_most(conv, pass, terms.min(MOST_CUBES / conv.groups()))
}

/// The number of parts that gives enough cubes to keep the device busy. The weight gradient has long sums and is
/// split into many parts. Other passes are split only where most of the device would be idle, because another
/// kernel must read, add and finish the parts.
pub(in crate::conv) fn splits(conv: &Convolution, pass: Pass, tile: &Tile) -> usize {
    let (_, terms) = longest_product(conv, pass);
    let blocks = blocks(conv, pass, tile);
    let wanted = match pass {
        Pass::Filter => BUSY_CUBES.div_ceil(blocks),
        _ => FEW_CUBES / blocks,
    };
    let worth = terms / (tile.block_k as usize * BLOCKS_A_PART);
    wanted.min(worth).clamp(1, most(conv, pass))
}

/// The number of blocks of results.
pub(in crate::conv) fn blocks(conv: &Convolution, pass: Pass, tile: &Tile) -> usize {
    line_blocks(conv, pass, tile.block_m as usize).max(1)
        * columns(conv, pass).div_ceil(tile.block_n as usize)
        * conv.groups()
}
