//! How the copy engine walks over an image.

use windowpane_geometry::AXES;

use crate::conv::common::gather::{Gather, Sweep};

/// A product in the form in which the copy engine walks it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    /// The product, with lines as long as they are loaded.
    pub(super) gather: Gather,
    /// The number of rows of a line, and of lines of a plane, that have results.
    pub(super) line_rows: usize,
    pub(super) plane_rows: usize,
    /// The number of pixels past its first that a row reads, if taps along the width share the loaded pixels; else 0.
    pub(super) reach: usize,
}

/// The most pixels by which a run that taps share may be longer than its rows.
const MOST_REACH: usize = 64;

/// For taps to share runs with any tile, at most one row in this many may be a zero between lines.
const FEW_ZEROS: usize = 32;

impl Walk {
    /// Where neighbouring windows start at neighbouring pixels, all taps along the width can read a single run of
    /// pixels, each at a different offset. A run continues from line to line. Therefore, between two lines there are as
    /// many zeros as a window can read outside the line: reads past the end of a line reach the zeros before the next
    /// one.
    pub(super) fn shared(gather: Gather) -> Option<Self> {
        let along = &gather.axes[AXES - 1];
        let reach = along.taps.saturating_sub(1) * along.tap_step.unsigned_abs() as usize;
        let (rows, lower) = (along.rows as i64, along.start - first_offset(along));
        let zeros_before = rows + reach as i64 + lower;
        let zeros_after = along.extent as i64 - lower;
        let line = zeros_before.max(zeros_after).max(rows).min(rows + reach as i64) as usize;
        let plane_rows = gather.axes[AXES - 2].rows;
        let mut walk = Self { line_rows: along.rows, plane_rows, gather, reach };
        walk.gather.axes[AXES - 1].rows = line;
        // The rows between the lines are multiplied in vain.
        let worth = 4 * along.rows >= 3 * line;
        (along.step == 1 && (1..=MOST_REACH).contains(&reach) && worth).then_some(walk)
    }

    /// Whether only very few of its rows are zeros between lines. Sharing then saves loads, and the power that they
    /// take, at almost no cost.
    pub(super) fn has_few_zeros(&self) -> bool {
        let line = self.gather.axes[AXES - 1].rows;
        FEW_ZEROS * (line - self.line_rows) <= line
    }

    /// The number of runs that there must be room for with this number of stages: one more than the stages need. So
    /// where the place of a stage is free, the place of the run before all runs in use is free too.
    pub(super) fn runs(&self, stages: u32) -> u32 {
        let taps = self.gather.axes[AXES - 1].taps as u32;
        if self.reach > 0 { stages.div_ceil(taps) + 1 } else { 0 }
    }
}

/// Whether the copy engine's map can describe how a product walks.
pub(super) fn fits(gather: &Gather, rank: usize) -> bool {
    let (corner, offset) = if rank > 2 { (-16..=15, 31) } else { (-128..=127, 255) };
    gather.axes.iter().all(|axis| {
        let (lower, upper) = corners(axis);
        let reach = axis.taps.saturating_sub(1) as i64 * axis.tap_step.abs();
        corner.contains(&lower)
            && corner.contains(&upper)
            && reach.max(first_offset(axis)) <= offset
            && axis.step <= 8
    })
}

/// The lower and upper corners of the map that walks this axis.
pub(super) fn corners(sweep: &Sweep) -> (i64, i64) {
    let lower = sweep.start - first_offset(sweep);
    let last = lower + (sweep.rows.saturating_sub(1) * sweep.step) as i64;
    (lower, last - (sweep.extent as i64 - 1))
}

/// The offset of the first tap from the smallest coordinate that a window reads.
pub(super) fn first_offset(sweep: &Sweep) -> i64 {
    -(sweep.taps.saturating_sub(1) as i64 * sweep.tap_step).min(0)
}
