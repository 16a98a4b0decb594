//! How this kernel divides an axis into blocks, and the axes that it supports.

use windowpane_geometry::{AXES, Axis, Pooling};

use super::NAME;
use crate::error::{PlanError, only_if};

/// The most inputs of a block; prefixes and suffixes take registers. Short blocks leave room for more units, long ones
/// are for windows of many blocks and for long strides.
const BLOCKS: [usize; 2] = [8, 16];

/// The most whole short blocks in a window. With more, the few units that have room do not keep enough loads in flight.
const MOST_SHORT_BLOCKS: usize = 6;

/// The most whole blocks in a window, because their reductions are held in registers too.
const MOST_BLOCKS: usize = 32;

/// The inputs of a block: a multiple of the stride, fewer than the window's taps.
pub(super) fn block(axis: &Axis) -> usize {
    let [short, long] = BLOCKS.map(|most| {
        let most = most.min(axis.kernel() - 1);
        most / axis.stride() * axis.stride()
    });
    let few = short > 0 && (axis.kernel() - 1) / short <= MOST_SHORT_BLOCKS;
    if few { short } else { long }
}

/// The axes that have a window.
pub(super) fn windowed(pooling: &Pooling) -> impl Iterator<Item = usize> + '_ {
    (0..AXES).filter(|&i| pooling.grid().axes()[i].kernel() > 1)
}

/// Refuses problems unless every axis that has a window can be walked in blocks and every other axis is kept as it is.
pub(super) fn check(pooling: &Pooling) -> Result<(), PlanError> {
    only_if(NAME, windowed(pooling).next().is_some(), "windows have a single tap")?;
    pooling.grid().axes().iter().try_for_each(|axis| match axis.kernel() {
        1 => {
            // Equal extents are not enough: strides over padding give them too.
            let idle = axis.stride() == 1 && axis.before() == 0 && axis.input() == axis.output();
            only_if(NAME, idle, "an axis whose kernel is 1 has a stride or padding")
        }
        _ => {
            only_if(NAME, axis.dilation() == 1, "windows are dilated")?;
            only_if(NAME, !axis.may_be_empty(), "windows may lie outside the input")?;
            only_if(NAME, !axis.is_uneven(), "windows differ in size or step")?;
            only_if(NAME, axis.kernel() > axis.stride(), "windows do not overlap")?;
            only_if(NAME, block(axis) > 0, "strides are too long")?;
            let blocks = (axis.kernel() - 1) / block(axis);
            only_if(NAME, blocks <= MOST_BLOCKS, "windows are too long")
        }
    })
}
