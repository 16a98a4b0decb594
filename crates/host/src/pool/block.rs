//! Combines the rows of the input that neighbouring rows of windows read, in a copy of these rows.
//!
//! ```text
//! copy       | ∅ a a a a ∅ | ∅ b b b b ∅ | ∅ c c c c ∅ | …     rows with their padding, one behind the other
//! combined   | a ⋅ b ⋅ c   | b ⋅ c ⋅ d   | …                   by the loops of columns.rs, in steps of a row
//! ```
//!
//! Short rows cost little this way, as each loop runs over many of them. Long ones are combined by `rows.rs`.

use windowpane_geometry::AXES;

use super::columns::runs;
use super::item::{Item, join_windows};
use super::source::{Reads, Source};
use super::sweep::{Part, Sweep};

/// Rows that are combined together.
pub(super) struct Block<'a, I> {
    sweep: &'a Sweep,
    part: Part,
    source: &'a dyn Source<I>,
    plane: [usize; 2],
    /// The copy. Its padding is filled once, and only the rest is written.
    loaded: &'a mut [I],
    spare: [&'a mut [I]; 2],
    results: &'a mut [I],
}

impl<'a, I: Item> Block<'a, I> {
    pub(super) fn new(
        sweep: &'a Sweep,
        source: &'a dyn Source<I>,
        part: &Part,
        scratch: &'a mut [I],
    ) -> Self {
        let [loaded, spare, _] = lists(sweep);
        let (loaded, rest) = scratch.split_at_mut(loaded);
        let (a, rest) = rest.split_at_mut(spare);
        let (b, results) = rest.split_at_mut(spare);
        loaded.fill(I::EMPTY);
        Self { sweep, part: *part, source, plane: [0; 2], loaded, spare: [a, b], results }
    }

    /// Goes to an outer position and a coordinate of the first axis.
    pub(super) fn start(&mut self, plane: [usize; 2]) {
        self.plane = plane;
    }

    /// The combined rows of some rows of windows.
    pub(super) fn rows(&mut self, first: usize, count: usize) -> &[I] {
        let height = &self.sweep.lines[AXES - 2];
        let row = self.part.span * self.sweep.lanes;
        let loaded = height.span(count);
        self.load(height.start(first), loaded);
        let Self { sweep, loaded: x, spare: [a, b], results, .. } = self;
        let x = &x[..loaded * row];
        if height.stride() == 1 {
            let runs = runs(height, height.dilation() * row, sweep.slides[0], x, [a, b]);
            return &runs[..count * row];
        }
        let results = &mut results[..count * row];
        join_windows(results, x, row, [height.stride(), height.kernel(), height.dilation()]);
        results
    }

    /// Loads rows from the coordinate `start` on.
    fn load(&mut self, start: i64, count: usize) {
        let [depth, height, width] = &self.sweep.lines;
        let (lanes, row) = (self.sweep.lanes, self.part.span * self.sweep.lanes);
        let inside = [start, start + count as i64].map(|h| h.clamp(0, height.input() as i64));
        // Without rows inside, all of them are before or after the input.
        let [above, end] = inside.map(|h| (h - start).clamp(0, count as i64) as usize * row);
        let taps = depth.taps(self.plane[1]);
        let len = (self.part.inside[1] - self.part.inside[0]) * lanes;
        // Then the copy is padding, which it was filled with.
        if len == 0 {
            return;
        }
        if taps.count == 0 || above == end {
            return self.loaded[..count * row].fill(I::EMPTY);
        }
        self.loaded[..above].fill(I::EMPTY);
        self.loaded[end..count * row].fill(I::EMPTY);
        let before = self.part.before * lanes;
        for (i, d) in taps.iter().enumerate() {
            let plane = (self.plane[0] * depth.input() + d) * height.input();
            let at = (plane + inside[0] as usize) * width.input() + self.part.inside[0];
            let reads = Reads {
                at: at * lanes,
                len,
                rows: (end - above) / row,
                steps: [width.input() * lanes, row],
            };
            let to = &mut self.loaded[above + before..end];
            if i > 0 {
                self.source.join(reads, to);
            } else {
                self.source.load(reads, to);
            }
        }
    }
}

/// Whether rows are combined so: where the copy is small, and has at most twice as many rows as the windows step over, and
/// no more than they have taps. Passes over all rows would be wasted on large windows far apart.
pub(super) fn suits(sweep: &Sweep) -> bool {
    let (height, group) = (&sweep.lines[AXES - 2], sweep.group);
    if group < 4 || height.is_uneven() || height.span(1) == 1 {
        return false;
    }
    let (rows, stride) = (height.span(group), height.stride());
    let is_short = rows <= group * height.kernel().min(2 * stride).min(4);
    is_short && (stride == 1 || !sweep.slides[0])
}

/// The items of the lists that a task needs: the copy, each spare one, and the results.
fn lists(sweep: &Sweep) -> [usize; 3] {
    let height = &sweep.lines[AXES - 2];
    let row = sweep.span * sweep.lanes;
    let loaded = height.span(sweep.group).saturating_mul(row);
    match height.stride() {
        1 => [loaded, loaded, 0],
        _ => [loaded, 0, sweep.group * row],
    }
}

/// The items that a task needs.
pub(super) fn scratch(sweep: &Sweep) -> usize {
    let [loaded, spare, results] = lists(sweep);
    loaded.saturating_add(spare.saturating_mul(2)).saturating_add(results)
}
