//! Im2col: the order in which the copy engine walks over an image, and where each tap reads.

use windowpane_geometry::{AXES, Convolution};

use crate::conv::common::{Gather, Phases, Sweep};

/// A product in the form in which the copy engine walks it, or all phases of a data gradient.
#[derive(Clone, Copy, Debug)]
pub(super) struct Im2colWalk {
    /// The product, with lines as long as they are loaded; that of phase 0 where there are several.
    pub(super) gather: Gather,
    /// The offset of the first tap on each axis from the smallest coordinate that a window reads, in any phase.
    pub(super) first: [i64; AXES],
    /// The number of rows of a line, and of lines of a plane, that have results.
    pub(super) line_rows: usize,
    pub(super) plane_rows: usize,
    /// The number of pixels past its first that a row reads, if taps along the width share the loaded pixels; else 0.
    pub(super) reach: usize,
    pub(super) phases: Option<Phases>,
}

/// The most pixels by which a run that taps share may be longer than its rows.
const MOST_REACH: usize = 64;

/// For taps to share runs with any tile, at most one row in this many may be a zero between lines.
const FEW_ZEROS: usize = 32;

impl Im2colWalk {
    /// The walk over one product, whose taps share no pixels.
    pub(super) fn new(gather: Gather) -> Self {
        let [_, height, width] = &gather.axes;
        let (plane_rows, line_rows) = (height.rows, width.rows);
        let first = gather.axes.each_ref().map(|axis| offset(axis, axis.taps));
        Self { gather, first, line_rows, plane_rows, reach: 0, phases: None }
    }

    /// The walk over all phases. The copy engine walks the same coordinates in each of them; their taps are at
    /// different offsets.
    pub(super) fn over(phases: Phases, conv: &Convolution) -> Self {
        let walk = Self::new(phases.gather(conv));
        let first = |i: usize| {
            let with_taps = phases.along(i).filter(|phase| phase.taps > 0);
            let offset = |taps| offset(&walk.gather.axes[i], taps);
            with_taps.map(|phase| phase.back as i64 + offset(phase.taps)).max().unwrap_or(0)
        };
        Self { first: [first(0), first(1), first(2)], phases: Some(phases), ..walk }
    }

    /// Where neighbouring windows start at neighbouring pixels, all taps along the width can read a single run of
    /// pixels, each at a different offset. A run continues from line to line. Therefore, between two lines there are as
    /// many zeros as a window can read outside the line: reads past the end of a line reach the zeros before the next
    /// one.
    pub(super) fn shared(self) -> Option<Self> {
        let along = &self.gather.axes[AXES - 1];
        let reach = |taps: usize| taps.saturating_sub(1) * along.tap_step.unsigned_abs() as usize;
        let line = |(taps, back): (usize, i64)| {
            let (rows, reach) = (along.rows as i64, reach(taps) as i64);
            let lower = along.start - back - offset(along, taps);
            let zeros_before = rows + reach + lower;
            let zeros_after = along.extent as i64 - lower;
            zeros_before.max(zeros_after).max(rows).min(rows + reach) as usize
        };
        let line = match self.phases {
            None => line((along.taps, 0)),
            Some(phases) => {
                let phases = phases.along(AXES - 1).filter(|phase| phase.taps > 0);
                phases.map(|phase| line((phase.taps, phase.back as i64))).max().unwrap_or(0)
            }
        };
        let reach = reach(along.taps);
        let mut walk = Self { reach, ..self };
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
    pub(super) fn row_stages(&self, stages: u32) -> u32 {
        let most = self.gather.axes[AXES - 1].taps;
        let fewest = self.phases.map_or(most, |phases| {
            let taps = phases.along(AXES - 1).map(|phase| phase.taps);
            taps.filter(|taps| *taps > 0).min().unwrap_or(most)
        });
        if self.reach > 0 { stages.div_ceil(fewest as u32) + 1 } else { 0 }
    }

    /// The number of products: phases.
    pub(super) fn products(&self) -> usize {
        self.phases.map_or(1, |phases| phases.count())
    }

    /// The numbers of taps of a product. They do not rise from one product to the next.
    pub(super) fn taps(&self, nth: usize) -> [usize; AXES] {
        let own = self.gather.axes.each_ref().map(|axis| axis.taps);
        self.phases.map_or(own, |phases| phases.taps(nth))
    }

    /// The lower and upper corners of the copy engine's map on an axis.
    pub(super) fn corners(&self, axis: usize) -> (i64, i64) {
        let sweep = &self.gather.axes[axis];
        let lower = sweep.start - self.first[axis];
        let last = lower + (sweep.rows.saturating_sub(1) * sweep.step) as i64;
        (lower, last - (sweep.extent as i64 - 1))
    }

    /// Whether the copy engine's map can describe it, for an image with `rank` axes.
    pub(super) fn fits(&self, rank: usize) -> bool {
        let (corner, offset) = if rank > 2 { (-16..=15, 31) } else { (-128..=127, 255) };
        self.gather.axes.iter().enumerate().all(|(i, axis)| {
            let (lower, upper) = self.corners(i);
            let reach = axis.taps.saturating_sub(1) as i64 * axis.tap_step.abs();
            corner.contains(&lower)
                && corner.contains(&upper)
                && reach.max(self.first[i]) <= offset
                && axis.step <= 8
        })
    }
}

/// The offset of the first of some taps from the smallest coordinate that they read.
fn offset(sweep: &Sweep, taps: usize) -> i64 {
    -(taps.saturating_sub(1) as i64 * sweep.tap_step).min(0)
}

#[cfg(test)]
mod tests {
    use windowpane_geometry::{Extents, Filter, FilterLayout, Layout, Shape, Window};

    use super::*;

    fn conv(input: usize, kernel: usize, [stride, dilation, before]: [usize; 3]) -> Convolution {
        let window = Window::new([kernel]).stride([stride]).dilation([dilation]);
        let window = window.padding([(before, kernel * dilation)]);
        let image = Shape::new(1, 8, Extents::from([input])).unwrap();
        let filter = Filter::new(8, 8, Extents::from([kernel])).unwrap();
        let layouts = (Layout::ChannelsLast, FilterLayout::Fhwc);
        Convolution::new(image, filter, &window, 1, layouts.0, layouts.1).unwrap()
    }

    /// By the corners of the map and the offsets of taps, with and without shared runs, each row of each phase reads
    /// the windows over its coordinate at the right taps, and zeros where there is no window.
    #[test]
    fn phases_read_the_windows_over_their_coordinates() {
        let mut shared = 0;
        for (input, kernel, stride) in [5, 16, 31]
            .into_iter()
            .flat_map(|x| (1..=9).flat_map(move |k| (2..=4).map(move |s| (x, k, s))))
        {
            for (dilation, before) in [(1, 0), (1, 1), (1, 4), (2, 1), (3, 2), (4, 0), (6, 5)] {
                let conv = conv(input, kernel, [stride, dilation, before]);
                let walk = Im2colWalk::over(Phases::new(&conv).unwrap(), &conv);
                assert!(walk.fits(1), "{walk:?}");
                for walk in [Some(walk), walk.shared()].into_iter().flatten() {
                    shared += usize::from(walk.reach > 0);
                    for nth in 0..stride {
                        check(&walk, nth, [input, stride, dilation, before]);
                    }
                }
            }
        }
        assert!(shared > 100);
    }

    fn check(walk: &Im2colWalk, nth: usize, [input, stride, dilation, before]: [usize; 4]) {
        let phase = walk.phases.unwrap().along(AXES - 1).nth(nth).unwrap();
        let (axis, first) = (walk.gather.axes[AXES - 1], walk.first[AXES - 1]);
        let (lower, upper) = walk.corners(AXES - 1);
        let line = axis.extent as i64 + upper - lower;
        assert_eq!(line, axis.rows as i64);
        for tap in 0..phase.taps as i64 {
            let last = (phase.taps as i64 - 1) * axis.tap_step;
            let (offset, shift) = match walk.reach {
                0 => (first - phase.back as i64 + tap * axis.tap_step, 0),
                _ => (first - phase.back as i64 + last, tap * axis.tap_step - last),
            };
            assert!((0..=255).contains(&offset) && (0..=walk.reach as i64).contains(&shift));
            for q in 0..walk.line_rows as i64 {
                // A run goes on with the next line.
                let at = q + shift;
                let found = lower + at % line + offset;
                let found = (0..axis.extent as i64).contains(&found).then_some(found);
                let x = phase.first_coordinate as i64 + q * stride as i64;
                let tap = phase.first_tap as i64 + tap * axis.tap_jump as i64;
                let scaled = x + before as i64 - tap * dilation as i64;
                assert_eq!(scaled % stride as i64, 0);
                let window = scaled.div_euclid(stride as i64);
                let expected = (0..axis.extent as i64).contains(&window).then_some(window);
                assert!(found == expected || x >= input as i64, "{walk:?} {phase:?} {x} {tap}");
            }
        }
    }
}
