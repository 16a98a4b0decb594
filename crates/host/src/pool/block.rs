//! Combines the rows of the input that neighbouring rows of windows read, in a copy of these rows.
//!
//! ```text
//! copy       | ∅ a a a a ∅ | ∅ b b b b ∅ | ∅ c c c c ∅ | …     rows with their padding, one behind the other
//! combined   | a ⋅ b ⋅ c   | b ⋅ c ⋅ d   | …                   by the loops of columns.rs, in steps of a row
//! ```
//!
//! Short rows cost little this way, as each loop runs over many of them, and over those of several planes if the planes are
//! small. Long ones are combined by `rows.rs`.

use windowpane_geometry::AXES;

use super::columns::{Planes, SHORT, runs};
use super::item::{Item, join_windows};
use super::line::Line;
use super::source::{Reads, Source};
use super::sweep::{Part, Sweep};

/// Rows that are combined together.
pub(super) struct Block<'a, I> {
    sweep: &'a Sweep,
    part: Part,
    source: &'a dyn Source<I>,
    /// The outer position and the coordinate of the first axis.
    plane: [usize; 2],
    /// The number of outer positions from that one on.
    planes: usize,
    /// Rows as they are read.
    dense: &'a mut [I],
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
        let [dense, loaded, spare, _] = lists(sweep);
        let (dense, rest) = scratch.split_at_mut(dense);
        let (loaded, rest) = rest.split_at_mut(loaded);
        let (a, rest) = rest.split_at_mut(spare);
        let (b, results) = rest.split_at_mut(spare);
        loaded.fill(I::EMPTY);
        let (plane, planes) = ([0; 2], 1);
        Self { sweep, part: *part, source, plane, planes, dense, loaded, spare: [a, b], results }
    }

    /// Goes to an outer position and a coordinate of the first axis, and to the outer positions behind it.
    pub(super) fn start(&mut self, plane: [usize; 2], planes: usize) {
        (self.plane, self.planes) = (plane, planes);
    }

    /// The combined rows of some rows of windows of each plane.
    pub(super) fn rows(&mut self, first: usize, count: usize) -> Planes<'_, I> {
        let height = &self.sweep.lines[AXES - 2];
        let row = self.part.span * self.sweep.lanes;
        let (planes, loaded) = (self.planes, height.span(count));
        self.load(height.start(first), loaded);
        let Self { sweep, loaded: x, spare: [a, b], results, .. } = self;
        let x = &x[..planes * loaded * row];
        if in_runs(sweep) {
            let runs = runs(height, height.dilation() * row, sweep.slides[0], x, [a, b]);
            return match planes {
                1 => Planes { items: &runs[..count * row], rows: count },
                _ => Planes { items: runs, rows: loaded },
            };
        }
        let results = &mut results[..planes * count * row];
        let windows = [height.stride(), height.kernel(), height.dilation()];
        let pairs = results.chunks_exact_mut(count * row).zip(x.chunks_exact(loaded * row));
        pairs.for_each(|(results, x)| join_windows(results, x, row, windows));
        Planes { items: results, rows: count }
    }

    /// Loads rows of each plane, from the coordinate `start` on.
    fn load(&mut self, start: i64, count: usize) {
        let [depth, height, width] = &self.sweep.lines;
        let (lanes, row) = (self.sweep.lanes, self.part.span * self.sweep.lanes);
        let inside = [start, start + count as i64].map(|h| h.clamp(0, height.input() as i64));
        // Without rows inside, all of them are before or after the input.
        let [above, end] = inside.map(|h| (h - start).clamp(0, count as i64) as usize * row);
        let taps = depth.taps(self.plane[1]);
        let len = (self.part.inside[1] - self.part.inside[0]) * lanes;
        // All columns are padding, which the copy was filled with.
        if len == 0 {
            return;
        }
        let loaded = &mut self.loaded[..self.planes * count * row];
        if taps.count == 0 || above == end {
            return loaded.fill(I::EMPTY);
        }
        for plane in loaded.chunks_exact_mut(count * row) {
            plane[..above].fill(I::EMPTY);
            plane[end..].fill(I::EMPTY);
        }
        let (of_row, rows) = (width.input() * lanes, (end - above) / row);
        let of_plane = height.input() * of_row;
        let before = self.part.before * lanes;
        let at = |d: usize, h: usize| {
            let plane = self.plane[0] * depth.input() + d;
            plane * of_plane + h * of_row + self.part.inside[0] * lanes
        };
        let first = inside[0] as usize;
        let all_rows = [rows, count] == [height.input(); 2];
        // A row may be as long as one of the input and yet have padding.
        let is_unpadded = [row, len] == [of_row; 2];
        if is_unpadded && taps.count == 1 && (self.planes == 1 || all_rows) {
            // The rows follow one another in the input as in the copy.
            let all = self.planes * rows * row;
            let reads = Reads::row(at(taps.first, first), all);
            return self.source.load(reads, &mut loaded[above..][..all]);
        }
        if is_dense(self.sweep) {
            // Of one plane the rows that windows read, of several planes all rows, as only these follow one another.
            let (from, step) = if self.planes > 1 { (0, of_plane) } else { (first, rows * of_row) };
            let dense = &mut self.dense[..self.planes * step];
            self.source.load(Reads::row(at(taps.first, from), dense.len()), dense);
            let dense = &dense[(first - from) * of_row..];
            for plane in 0..self.planes {
                let to = loaded[plane * count * row + above + before..].chunks_mut(row);
                let from = dense[plane * step..].chunks_exact(of_row).take(rows);
                to.zip(from).for_each(|(to, from)| to[..of_row].copy_from_slice(from));
            }
            return;
        }
        for (plane, loaded) in loaded.chunks_exact_mut(count * row).enumerate() {
            for (i, d) in taps.iter().enumerate() {
                let at = at(d, first) + plane * of_plane;
                let reads = Reads { at, len, rows, steps: [of_row, row] };
                let to = &mut loaded[above + before..end];
                if i > 0 {
                    self.source.join(reads, to);
                } else {
                    self.source.load(reads, to);
                }
            }
        }
    }
}

/// Whether rows are combined in a copy: where the copy is small, and has at most twice as many rows as the windows step over, and
/// no more than they have taps. Passes over all rows would be wasted on large windows far apart.
pub(super) fn suits(sweep: &Sweep) -> bool {
    let (height, group) = (&sweep.lines[AXES - 2], sweep.group);
    if sweep.stack > 1 {
        return true;
    }
    if group < 4 || height.span(1) == 1 || !can(height, sweep.slides[0]) {
        return false;
    }
    height.span(group) <= group * height.kernel().min(2 * height.stride()).min(4)
}

/// Whether rows can be combined in a copy, with or without sharing partial results.
pub(super) fn can(height: &Line, slides: bool) -> bool {
    !height.is_uneven() && (height.stride() == 1 || !slides)
}

/// Whether planes can be combined together: if windows read most of their rows, and the rows of no use between them are few.
/// There are as many as windows have taps, less one, unless each row of windows is combined by itself.
pub(super) fn can_stack(height: &Line, slides: bool) -> bool {
    let (rows, all) = (height.output(), height.span(height.output()));
    let alone = height.stride() > 1 || (all > 2 * rows && !slides);
    let reads_most = height.input() <= 2 * rows * height.kernel();
    can(height, slides) && reads_most && (alone || 2 * all <= 3 * rows)
}

/// Whether short rows are read one behind the other, in few long loops, before they are copied to their places: if windows
/// read all of each row.
fn is_dense(sweep: &Sweep) -> bool {
    let [depth, _, width] = &sweep.lines;
    let is_flat = depth.kernel() == 1 || depth.input() == 1;
    let is_whole = sweep.windows == width.output() && sweep.part(0).inside == [0, width.input()];
    is_flat && is_whole && width.input() * sweep.lanes <= SHORT
}

/// Whether all rows of the copy are combined with those behind them, and not each row of windows by itself.
fn in_runs(sweep: &Sweep) -> bool {
    let height = &sweep.lines[AXES - 2];
    height.stride() == 1 && height.span(sweep.group) <= 2 * sweep.group
}

/// The items of the lists that a task needs: rows as they are read, the copy, each spare one, and the results.
fn lists(sweep: &Sweep) -> [usize; 4] {
    let [_, height, width] = &sweep.lines;
    let row = sweep.span * sweep.lanes;
    let loaded = (sweep.stack * height.span(sweep.group)).saturating_mul(row);
    let dense = match is_dense(sweep) {
        true if sweep.stack > 1 => sweep.stack * height.input() * width.input() * sweep.lanes,
        true => loaded,
        false => 0,
    };
    match in_runs(sweep) {
        true => [dense, loaded, loaded, 0],
        false => [dense, loaded, 0, (sweep.stack * sweep.group).saturating_mul(row)],
    }
}

/// The rows of windows, and rows of no use between them, of planes that are combined together.
pub(super) fn rows(sweep: &Sweep) -> usize {
    let height = &sweep.lines[AXES - 2];
    let of_plane = if in_runs(sweep) { height.span(sweep.group) } else { sweep.group };
    sweep.stack * of_plane
}

/// The items that a task needs.
pub(super) fn scratch(sweep: &Sweep) -> usize {
    let [dense, loaded, spare, results] = lists(sweep);
    let loaded = dense.saturating_add(loaded);
    loaded.saturating_add(spare.saturating_mul(2)).saturating_add(results)
}
