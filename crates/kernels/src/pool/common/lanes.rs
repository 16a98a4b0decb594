//! How wide a plan's vectors are: the elements that a unit handles at once, neighbours in memory.

use windowpane_geometry::{AXES, DType, Pooling};

use crate::device::Capabilities;
use crate::pool::common::blocks::window_lanes;
use crate::pool::common::reach::Reach;
use crate::pool::problem::{outermost, pixel_channels};

/// More taps than this and a loop over them is no longer unrolled.
pub(in crate::pool) const UNROLLED_TAPS: usize = 49;

/// The most lanes that may lie along the width: where a pixel is one element, vectors divide the
/// width of input and output, and no window there is empty. A gradient's vectors of windows may be
/// shorter than those of inputs.
pub(in crate::pool) fn lanes_across(
    pooling: &Pooling,
    widest: usize,
    gradient: bool,
) -> Option<usize> {
    let width = &pooling.grid().axes()[AXES - 1];
    let fits =
        pixel_channels(pooling) == 1 && outermost(pooling) < AXES - 1 && !width.may_be_empty();
    // Of far steps a unit would read more vectors than it finds taps in.
    let near =
        |&lanes: &usize| gradient || Reach::new(pooling, lanes, lanes).vectors() <= UNROLLED_TAPS;
    let widest = widest_divisor(width.input(), widest);
    let lanes = (1..=widest.ilog2()).rev().map(|power| 1usize << power);
    let lanes = lanes.filter(near).find(|&lanes| divides_windows(pooling, lanes, gradient));
    lanes.filter(|_| fits)
}

/// Whether the windows of a row are whole vectors; of a gradient, vectors of the windows that start in a
/// vector of inputs.
pub(in crate::pool) fn divides_windows(pooling: &Pooling, lanes: usize, gradient: bool) -> bool {
    let width = &pooling.grid().axes()[AXES - 1];
    let lanes = if gradient { window_lanes(width, lanes) } else { lanes };
    width.output().is_multiple_of(lanes)
}

/// The lanes along the width that strips are written in: as many as divide both widths. Where these are a word or
/// less, and windows share nothing, a GPU's unit has as many as divide the output's: more results for what it
/// takes to know where they are.
pub(in crate::pool) fn lanes_written(
    pooling: &Pooling,
    widest: usize,
    runs: bool,
) -> Option<usize> {
    let both = lanes_across(pooling, widest, false)?;
    let width = &pooling.grid().axes()[AXES - 1];
    let few = !runs && 4 * both <= widest && width.kernel() <= width.stride();
    Some(if few { widest_divisor(width.output(), widest) } else { both })
}

/// The elements of the widest single load.
pub(in crate::pool) fn widest_load(dtype: DType, device: &Capabilities) -> usize {
    (device.load_bytes / dtype.size()).max(1)
}

/// The largest power of two that divides `n` and is at most `limit`.
pub(in crate::pool) fn widest_divisor(n: usize, limit: usize) -> usize {
    let divisor = 1 << n.trailing_zeros().min(usize::BITS - 2);
    divisor.min(1 << limit.ilog2())
}
