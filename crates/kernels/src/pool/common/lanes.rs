//! The width of a plan's vectors: the adjacent elements that a unit handles at once.

use windowpane_geometry::{AXES, DType};

use crate::device::Capabilities;
use crate::pool::common::{Reach, Task, window_lanes};
use crate::pool::problem::{Problem, outermost, pixel_channels};

/// The most taps for which the loops over them are unrolled.
pub(crate) const UNROLLED_TAPS: usize = 49;

/// The fewest lanes along the width that are faster than strips along it.
const LEAST_LANES: usize = 4;

/// The most lanes that may lie along the width beside strips along the outermost axis that has a window; `None` if they
/// may not, or if the width is that axis.
pub(crate) fn lanes_along_width(problem: Problem<'_>, widest: usize) -> Option<usize> {
    let lanes = lanes_of_rows(problem, widest);
    lanes.filter(|_| outermost(problem.pooling) < AXES - 1)
}

/// The most lanes that may lie along the width; `None` if they may not. A pixel must be one element, vectors must
/// divide the width of input and output, and no window along the width may be empty. A gradient's vectors of windows
/// may be shorter than those of inputs.
fn lanes_of_rows(problem: Problem<'_>, widest: usize) -> Option<usize> {
    let Problem { pooling, gradient, .. } = problem;
    let width = &pooling.grid().axes()[AXES - 1];
    let fits = pixel_channels(pooling) == 1 && !width.may_be_empty();
    // With long steps, a unit would read more vectors than it finds taps in.
    let near =
        |&lanes: &usize| gradient || Reach::new(pooling, lanes, lanes).vectors() <= UNROLLED_TAPS;
    let widest = widest_divisor(width.input(), widest);
    let lanes = (1..=widest.ilog2()).rev().map(|power| 1usize << power);
    let lanes = lanes.filter(near).find(|&lanes| divides_windows(problem, lanes));
    lanes.filter(|_| fits)
}

/// Whether vectors divide the windows of a row; for a gradient, vectors of the windows that start in a vector of
/// inputs.
pub(crate) fn divides_windows(problem: Problem<'_>, lanes: usize) -> bool {
    let width = &problem.pooling.grid().axes()[AXES - 1];
    let lanes = if problem.gradient { window_lanes(width, lanes) } else { lanes };
    width.output().is_multiple_of(lanes)
}

/// The lanes along the width in which strips are written: as many as divide both widths. If these are a word or less
/// and windows share nothing, a GPU's unit has as many as divide the output's width, to compute more results from the
/// same index arithmetic. Where windows have an extent along the width only, fewer lanes than `LEAST_LANES` do not pay off.
pub(crate) fn lanes_written(task: Task<'_>) -> Option<usize> {
    let (width, widest) = (&task.axes()[AXES - 1], task.widest());
    let both = lanes_of_rows(task.problem, widest)?;
    let few = !task.settings.contiguous && 4 * both <= widest && width.kernel() <= width.stride();
    let lanes = if few { widest_divisor(width.output(), widest) } else { both };
    (lanes >= LEAST_LANES || outermost(task.pooling()) < AXES - 1).then_some(lanes)
}

/// The number of elements in the widest single load.
pub(crate) fn widest_load(dtype: DType, device: &Capabilities) -> usize {
    (device.load_bytes / dtype.size()).max(1)
}

/// The largest power of two that divides `n` and is at most `limit`.
pub(crate) fn widest_divisor(n: usize, limit: usize) -> usize {
    let divisor = 1 << n.trailing_zeros().min(usize::BITS - 2);
    divisor.min(1 << limit.ilog2())
}
