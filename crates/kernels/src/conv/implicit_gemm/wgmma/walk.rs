//! How the copy engine walks over an image.

use windowpane_geometry::AXES;

use crate::conv::common::gather::{Gather, Sweep};

/// A product, as the copy engine walks it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    /// With lines as long as they are brought.
    pub(super) gather: Gather,
    /// The rows of a line that have results, and the lines of a plane.
    pub(super) line_rows: usize,
    pub(super) plane_rows: usize,
    /// The pixels past a row's first that it reads, if taps along the width share what is brought.
    pub(super) reach: usize,
}

/// A run of pixels that taps share is no longer than its rows by more.
const MOST_REACH: usize = 64;

/// Of so many rows no more than one may be a zero between lines for taps to share runs at any tile.
const FEW_ZEROS: usize = 32;

impl Walk {
    /// Where neighbouring windows are neighbouring pixels, all taps along the width can read one run of
    /// pixels, each a little further on. Runs go on from line to line, so that between two lines lie
    /// as many zeros as a window can read beside one: what runs over the end of a line reads the
    /// zeros before the next.
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
        // The rows between the lines are multiplied for nothing.
        let worth = 4 * along.rows >= 3 * line;
        (along.step == 1 && (1..=MOST_REACH).contains(&reach) && worth).then_some(walk)
    }

    /// Whether hardly any of its rows are zeros between lines: then sharing saves bytes, and the power that
    /// moving them takes, for nothing.
    pub(super) fn has_few_zeros(&self) -> bool {
        let line = self.gather.axes[AXES - 1].rows;
        FEW_ZEROS * (line - self.line_rows) <= line
    }

    /// The runs that there is a place for beside so many stages: one more than those of the stages, so
    /// that where a stage's place is free, so is that of the run before all that are needed.
    pub(super) fn runs(&self, stages: u32) -> u32 {
        let taps = self.gather.axes[AXES - 1].taps as u32;
        if self.reach > 0 { stages.div_ceil(taps) + 1 } else { 0 }
    }
}

/// Whether the copy engine's map can say how a product walks.
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

/// An axis as the copy engine walks it: from `first` on, `rows` windows.
pub(super) fn corners(sweep: &Sweep) -> (i64, i64) {
    let lower = sweep.start - first_offset(sweep);
    let last = lower + (sweep.rows.saturating_sub(1) * sweep.step) as i64;
    (lower, last - (sweep.extent as i64 - 1))
}

/// How far on the first tap is from the least coordinate that a window reads.
pub(super) fn first_offset(sweep: &Sweep) -> i64 {
    -(sweep.taps.saturating_sub(1) as i64 * sweep.tap_step).min(0)
}
