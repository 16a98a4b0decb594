//! The blocks that van Herk's algorithm folds large windows in, and the problems that it serves.

use windowpane_geometry::{AXES, Axis, Pooling};

use crate::pool::problem::{Output, Reduction, pixel_channels};

/// The most inputs of a block: what their prefixes and suffixes leave of the registers. Short blocks
/// leave room for more units; long ones are for windows of many blocks, and for long steps.
const BLOCKS: [usize; 2] = [8, 16];

/// The most whole blocks in a window of short ones: more, and what is in flight at once is too little for
/// the few units that have room.
const MOST_SHORT_BLOCKS: usize = 6;

/// The same, where units are many and sums are registers.
const MOST_SHORT_SUMS: usize = 16;

/// The most whole blocks in a window, whose folds are registers too.
const MOST_BLOCKS: usize = 32;

/// The inputs of a block: whole steps of the stride, fewer than the window's taps.
pub(in crate::pool) fn block(axis: &Axis) -> usize {
    block_of(axis, MOST_SHORT_BLOCKS)
}

/// The inputs of a block of sums, of units that are many.
pub(in crate::pool) fn block_of_sums(axis: &Axis) -> usize {
    block_of(axis, MOST_SHORT_SUMS)
}

fn block_of(axis: &Axis, most_short: usize) -> usize {
    let [short, long] = BLOCKS.map(|most| {
        let most = most.min(axis.kernel() - 1);
        most / axis.stride() * axis.stride()
    });
    let few = short > 0 && (axis.kernel() - 1) / short <= most_short;
    if few { short } else { long }
}

/// The axes that have a window.
pub(in crate::pool) fn windowed(pooling: &Pooling) -> impl Iterator<Item = usize> + '_ {
    (0..AXES).filter(|&i| pooling.grid().axes()[i].kernel() > 1)
}

/// Whether every axis can be walked, or has nothing to walk for.
pub(in crate::pool) fn fits(pooling: &Pooling) -> bool {
    let walked = |axis: &Axis| {
        axis.dilation() == 1
            && !axis.may_be_empty()
            && !axis.is_uneven()
            && block(axis) > 0
            && (axis.kernel() - 1) / block(axis) <= MOST_BLOCKS
    };
    // As many outputs as inputs are not yet the inputs: there are strides over padding.
    let idle = |axis: &Axis| {
        axis.kernel() == 1
            && axis.stride() == 1
            && axis.before() == 0
            && axis.input() == axis.output()
    };
    let fits = |axis: &Axis| if axis.kernel() > 1 { walked(axis) } else { idle(axis) };
    windowed(pooling).next().is_some() && pooling.grid().axes().iter().all(fits)
}

/// The most channels of a tile, where they are last.
const TILE_CHANNELS: usize = 4;

/// The channels of a tile.
pub(in crate::pool) fn tile_channels(pooling: &Pooling) -> usize {
    pixel_channels(pooling).min(TILE_CHANNELS)
}

/// Whether both axes of an image's planes are walked, one step a window.
pub(in crate::pool) fn fits_planes(pooling: &Pooling, reduction: Reduction) -> bool {
    let [depth, height, width] = pooling.grid().axes();
    let values = matches!(reduction, Reduction::Max(Output::Values) | Reduction::Average(_));
    let walked = |axis: &Axis| axis.kernel() > 1 && axis.stride() == 1;
    values
        && pixel_channels(pooling).is_multiple_of(tile_channels(pooling))
        && fits(pooling)
        && depth.kernel() == 1
        && walked(height)
        && walked(width)
        // There are no more outputs of a row than inputs, and none without one.
        && width.before() + width.after() < width.kernel()
}
