//! How wide a plan's vectors are: the elements that a unit handles at once, neighbours in memory.

use windowpane_geometry::{AXES, DType, Layout, Pooling};

use super::kernels::UNROLLED_TAPS;
use super::{Algorithm, Plan, PlanError};
use crate::Limits;
use crate::pool::reach::Reach;
use crate::pool::strip::outermost;
use crate::pool::{backward_strip, reduce};

impl Plan {
    /// The plan with vectors of no more lanes than a load of words has: those of a GPU's unit that holds
    /// much are registers of which few units could have as many.
    pub(super) fn narrowed(self, limits: &Limits) -> Self {
        let words = limits.load_bytes / DType::F32.size();
        Self { lanes: if self.runs { self.lanes } else { self.lanes.min(words.max(1)) }, ..self }
    }

    /// Refuses lanes that are no vector of the problem's.
    pub(super) fn check_lanes(
        &self,
        pooling: &Pooling,
        dtype: DType,
        limits: &Limits,
        gradient: bool,
    ) -> Result<(), PlanError> {
        let (lanes, widest) = (self.lanes, widest_load(dtype, limits));
        let neighbours = match (self.across, self.algorithm) {
            (true, Algorithm::Reduce) if !reduce::is_flat(pooling) => 0,
            (true, Algorithm::Reduce) => pooling.grid().taps(),
            (true, Algorithm::Strip) if !gradient => {
                lanes_written(pooling, widest, self.runs).unwrap_or(0)
            }
            (true, _) => lanes_across(pooling, widest, gradient).unwrap_or(0),
            (false, _) => pixel_channels(pooling),
        };
        // Fewer lanes of a gradient need not be fewer lanes of its windows.
        let windows = !(self.across && gradient) || divides_windows(pooling, lanes, gradient);
        let divides = lanes.is_power_of_two() && neighbours.is_multiple_of(lanes) && windows;
        if !divides || neighbours == 0 || lanes > widest {
            return Err(PlanError::Lanes { lanes, neighbours, widest });
        }
        Ok(())
    }
}

/// The channels that lie together in memory for each pixel.
pub(crate) fn pixel_channels(pooling: &Pooling) -> usize {
    match pooling.layout() {
        Layout::ChannelsLast => pooling.input().channels(),
        Layout::ChannelsFirst => 1,
    }
}

/// The most lanes that may lie along the width: where a pixel is one element, vectors divide the
/// width of input and output, and no window there is empty. A gradient's vectors of windows may be
/// shorter than those of inputs.
pub(super) fn lanes_across(pooling: &Pooling, widest: usize, gradient: bool) -> Option<usize> {
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

/// Whether whole vectors of windows, which those of a gradient's inputs begin, are a row of them.
fn divides_windows(pooling: &Pooling, lanes: usize, gradient: bool) -> bool {
    let width = &pooling.grid().axes()[AXES - 1];
    let lanes = if gradient { backward_strip::window_lanes(width, lanes) } else { lanes };
    width.output().is_multiple_of(lanes)
}

/// The lanes along the width that strips are written in: as many as divide both widths. Where these are a word or
/// less, and windows share nothing, a GPU's unit has as many as divide the output's: more results for what it
/// takes to know where they are.
pub(super) fn lanes_written(pooling: &Pooling, widest: usize, runs: bool) -> Option<usize> {
    let both = lanes_across(pooling, widest, false)?;
    let width = &pooling.grid().axes()[AXES - 1];
    let few = !runs && 4 * both <= widest && width.kernel() <= width.stride();
    Some(if few { widest_divisor(width.output(), widest) } else { both })
}

/// The elements of the widest single load.
pub(super) fn widest_load(dtype: DType, limits: &Limits) -> usize {
    (limits.load_bytes / dtype.size()).max(1)
}

/// The largest power of two that divides `n` and is at most `limit`.
pub(in crate::pool) fn widest_divisor(n: usize, limit: usize) -> usize {
    let divisor = 1 << n.trailing_zeros().min(usize::BITS - 2);
    divisor.min(1 << limit.ilog2())
}
