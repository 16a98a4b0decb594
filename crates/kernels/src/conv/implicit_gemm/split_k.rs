//! The parts that the sums of a product in blocks are cut into, so that few blocks keep a device busy.

use windowpane_geometry::{Convolution, Tile};

use super::rules::longest_product;
use crate::conv::common::gather::columns;
use crate::conv::common::rules::MOST_CUBES;
use crate::conv::common::split_k::at_most;
use crate::conv::problem::Pass;

/// The most cubes that a long sum is cut up for, and the fewest blocks of terms that are worth one.
const BUSY_CUBES: usize = 1024;
const BLOCKS_A_PART: usize = 8;

/// The cubes of a launch forward, or for the data, below which most of a device is idle: sums are cut until
/// there are as many.
const FEW_CUBES: usize = 128;

/// The most parts whose number a kernel can count.
pub(in crate::conv) fn most(conv: &Convolution, pass: Pass) -> usize {
    let (_, terms) = longest_product(conv, pass);
    // Parts and groups are one axis of the launch.
    at_most(conv, pass, terms.min(MOST_CUBES / conv.groups()))
}

/// The parts of the sums of few blocks, for as many cubes as keep the device busy. Those of the filters'
/// gradient, whose sums are long, are many; others are cut only where most of the device would be idle, for
/// another kernel has to read, add and finish the parts.
pub(in crate::conv) fn splits(conv: &Convolution, pass: Pass, tile: &Tile) -> usize {
    let (lines, terms) = longest_product(conv, pass);
    let blocks = lines.div_ceil(tile.block_m as usize).max(1)
        * columns(conv, pass).div_ceil(tile.block_n as usize)
        * conv.groups();
    let wanted = match pass {
        Pass::Filter => BUSY_CUBES.div_ceil(blocks),
        _ => FEW_CUBES / blocks,
    };
    let worth = terms / (tile.block_k as usize * BLOCKS_A_PART);
    wanted.min(worth).clamp(1, most(conv, pass))
}
