//! The blocks into which van Herk's algorithm divides large windows, and the problems that it supports.

use windowpane_geometry::{AXES, Axis, Pooling};

use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Reduction, pixel_channels};

/// The most inputs of a block; prefixes and suffixes take registers. Short blocks leave room for more units, long ones
/// are for windows of many blocks and for long strides.
const BLOCKS: [usize; 2] = [8, 16];

/// The most whole short blocks in a window. With more, the few units that have room do not keep enough loads in flight.
const MOST_SHORT_BLOCKS: usize = 6;

/// The same if there are many units and sums are held in registers.
const MOST_SHORT_SUMS: usize = 16;

/// The most whole blocks in a window, because their reductions are held in registers too.
const MOST_BLOCKS: usize = 32;

/// The inputs of a block: a multiple of the stride, fewer than the window's taps.
pub(in crate::pool) fn block(axis: &Axis) -> usize {
    block_of(axis, MOST_SHORT_BLOCKS)
}

/// The inputs of a block of sums, for kernels with many units.
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

/// Refuses `kernel` unless every axis that has a window can be walked in blocks and every other axis is kept as it is.
pub(in crate::pool) fn fits(kernel: &'static str, pooling: &Pooling) -> Result<(), PlanError> {
    only_if(kernel, windowed(pooling).next().is_some(), "windows have a single tap")?;
    pooling.grid().axes().iter().try_for_each(|axis| match axis.kernel() {
        1 => fits_idle(kernel, axis),
        _ => fits_walked(kernel, axis),
    })
}

/// The check of an axis that has a window.
fn fits_walked(kernel: &'static str, axis: &Axis) -> Result<(), PlanError> {
    only_if(kernel, axis.dilation() == 1, "windows are dilated")?;
    only_if(kernel, !axis.may_be_empty(), "windows may lie outside the input")?;
    only_if(kernel, !axis.is_uneven(), "windows differ in size or step")?;
    only_if(kernel, axis.kernel() > axis.stride(), "windows do not overlap")?;
    only_if(kernel, block(axis) > 0, "strides are too long")?;
    let blocks = (axis.kernel() - 1) / block(axis);
    only_if(kernel, blocks <= MOST_BLOCKS, "windows are too long")
}

/// The check of an axis without a window: its outputs must be its inputs.
fn fits_idle(kernel: &'static str, axis: &Axis) -> Result<(), PlanError> {
    // Equal extents are not enough: strides over padding give them too.
    let idle = axis.stride() == 1 && axis.before() == 0 && axis.input() == axis.output();
    only_if(kernel, idle, "an axis without a window is not kept as it is")
}

/// The most channels of a tile, with channels last.
const TILE_CHANNELS: usize = 4;

/// The number of channels of a tile.
pub(in crate::pool) fn tile_channels(pooling: &Pooling) -> usize {
    pixel_channels(pooling).min(TILE_CHANNELS)
}

/// Refuses `kernel` unless both axes of a plane have windows of stride 1 that can be walked in blocks.
pub(in crate::pool) fn fits_planes(
    kernel: &'static str,
    pooling: &Pooling,
    reduction: Reduction,
) -> Result<(), PlanError> {
    let [depth, height, width] = pooling.grid().axes();
    let whole = pixel_channels(pooling).is_multiple_of(tile_channels(pooling));
    let both = |holds: fn(&Axis) -> bool| holds(height) && holds(width);
    only_if(kernel, !matches!(reduction, Reduction::Norm(_)), "it computes no norms")?;
    only_if(kernel, !reduction.has_indices(), "it computes no indices")?;
    only_if(kernel, whole, "channels are not a multiple of 4")?;
    only_if(kernel, depth.kernel() == 1, "windows are three-dimensional")?;
    only_if(kernel, both(|axis| axis.kernel() > 1), "windows are not two-dimensional")?;
    only_if(kernel, both(|axis| axis.stride() == 1), "strides are not 1")?;
    fits(kernel, pooling)?;
    // With narrower padding, a row has at most as many outputs as inputs, and every window contains an input.
    only_if(kernel, width.before() + width.after() < width.kernel(), "padding is too wide")
}
