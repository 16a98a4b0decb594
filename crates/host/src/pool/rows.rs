//! Combines the rows of the input that a row of windows reads.
//!
//! With few rows per window each of them is read. With many, windows share partial results (van Herk, Gil and Werman),
//! for a cost that does not grow with the window:
//!
//! ```text
//! blocks of k rows   |  a b c d  |  e f g h  |        k = 4
//! suffix             |  ← ← ← d  |                    from a row to the end of its block
//! prefix                         |  e → → →           from the start of a block to a row
//! window                 [ c d      e f ]             suffix(c) ⋅ prefix(f)
//! ```
//!
//! Nothing is subtracted, so a sum only has the terms of its own window, and blocks have fixed places, so results do
//! not depend on how the rows are cut into tasks. Exact sums of integers need no suffixes: the rows that a window has
//! and the one before had not are added, and those that it lacks subtracted.

use windowpane_geometry::AXES;

use super::columns::Planes;
use super::item::{Item, join, join_both};
use super::source::{Reads, Source};
use super::sweep::{Part, Sweep};

/// The rows of a plane that a task combines.
pub(super) struct Rows<'a, I> {
    sweep: &'a Sweep,
    source: &'a dyn Source<I>,
    part: Part,
    outer: usize,
    d: usize,
    /// The items that are inside.
    len: usize,
    /// Which block the suffixes are of.
    block: Option<i64>,
    /// The rows from the first to below the second one are in the prefix.
    first: i64,
    next: i64,
    prefix: &'a mut [I],
    suffixes: &'a mut [I],
    results: &'a mut [I],
}

impl<'a, I: Item> Rows<'a, I> {
    pub(super) fn new(
        sweep: &'a Sweep,
        source: &'a dyn Source<I>,
        part: &Part,
        scratch: &'a mut [I],
    ) -> Self {
        let len = (part.inside[1] - part.inside[0]) * sweep.lanes;
        let row = sweep.span * sweep.lanes;
        let (results, kept) = scratch.split_at_mut(sweep.group * row);
        let (prefix, suffixes) = kept.split_at_mut(kept.len().min(row));
        Self {
            sweep,
            source,
            part: *part,
            outer: 0,
            d: 0,
            len,
            block: None,
            first: 0,
            next: 0,
            prefix,
            suffixes,
            results,
        }
    }

    /// Goes to an outer position and a coordinate of the first axis.
    pub(super) fn start(&mut self, [outer, d]: [usize; 2]) {
        (self.outer, self.d) = (outer, d);
        (self.block, self.first, self.next) = (None, 0, 0);
    }

    /// The combined rows of some rows of windows.
    pub(super) fn rows(&mut self, first: usize, count: usize) -> Planes<'_, I> {
        let results = core::mem::take(&mut self.results);
        let row = self.part.span * self.sweep.lanes;
        let rows = results[..count * row].chunks_exact_mut(row);
        rows.enumerate().for_each(|(i, to)| self.row(first + i, to));
        self.results = results;
        Planes { items: &self.results[..count * row], rows: count }
    }

    /// Writes the combined rows of a row of windows.
    fn row(&mut self, o: usize, to: &mut [I]) {
        let [depth, height, _] = &self.sweep.lines;
        let (before, rest) = to.split_at_mut(self.part.before * self.sweep.lanes);
        let (inside, after) = rest.split_at_mut(self.len);
        before.fill(I::EMPTY);
        after.fill(I::EMPTY);
        if self.len == 0 || depth.taps(self.d).count == 0 {
            return inside.fill(I::EMPTY);
        }
        match self.sweep.slides[0] {
            true if I::CAN_LEAVE => return self.exchange(o, inside),
            true => return self.slide(o, inside),
            false => {}
        }
        let taps = height.taps(o);
        if taps.count == 0 {
            inside.fill(I::EMPTY);
        }
        for (i, h) in taps.iter().enumerate() {
            self.read(h, i > 0, inside);
        }
    }

    /// Writes the row `h` of every plane that the windows read, combined, or combines it with what is there.
    fn read(&self, h: usize, joins: bool, to: &mut [I]) {
        for (i, at) in self.places(h).enumerate() {
            let reads = Reads::row(at, to.len());
            if joins || i > 0 {
                self.source.join(reads, to);
            } else {
                self.source.load(reads, to);
            }
        }
    }

    /// Where the row `h` of every plane that the windows read begins.
    fn places(&self, h: usize) -> impl Iterator<Item = usize> {
        let [depth, height, width] = &self.sweep.lines;
        depth.taps(self.d).iter().map(move |d| {
            let row = (self.outer * depth.input() + d) * height.input() + h;
            (row * width.input() + self.part.inside[0]) * self.sweep.lanes
        })
    }

    /// Writes the combined rows of a row of windows, from those of the one before.
    fn exchange(&mut self, o: usize, to: &mut [I]) {
        let height = &self.sweep.lines[AXES - 2];
        let range = [height.start(o), height.start(o) + height.kernel() as i64];
        let [first, last] = range.map(|h| h.clamp(0, height.input() as i64));
        let prefix = core::mem::take(&mut self.prefix);
        let sum = &mut prefix[..self.len];
        if first >= self.next {
            sum.fill(I::EMPTY);
            (self.first, self.next) = (first, first);
        }
        for h in self.next..last {
            self.read(h as usize, true, sum);
        }
        for h in self.first..first {
            self.places(h as usize)
                .for_each(|at| self.source.leave(Reads::row(at, sum.len()), sum));
        }
        (self.first, self.next) = (first, last);
        to.copy_from_slice(sum);
        self.prefix = prefix;
    }

    fn slide(&mut self, o: usize, to: &mut [I]) {
        let height = &self.sweep.lines[AXES - 2];
        let (kernel, extent) = (height.kernel() as i64, height.input() as i64);
        let start = height.start(o);
        let block = start.div_euclid(kernel);
        // The rows of the block, and where the next block begins.
        let first = (block * kernel).max(0);
        let end = ((block + 1) * kernel).clamp(0, extent);
        if self.block != Some(block) {
            self.block = Some(block);
            self.next = end;
            self.suffixes(start.max(0)..end, first);
        }
        let last = (start + kernel).clamp(0, extent);
        for h in self.next..last {
            let prefix = core::mem::take(&mut self.prefix);
            self.read(h as usize, h > end, &mut prefix[..self.len]);
            self.prefix = prefix;
        }
        self.next = self.next.max(last);
        let suffix = self.suffix(start.max(0) - first);
        let prefix = &self.prefix[..self.len];
        match (start.max(0) < end, last > end) {
            (true, true) => join_both(to, suffix, prefix),
            (true, false) => to.copy_from_slice(suffix),
            (false, true) => to.copy_from_slice(prefix),
            (false, false) => to.fill(I::EMPTY),
        }
    }

    /// Computes the suffixes of these rows of a block that begins at row `first`.
    fn suffixes(&mut self, rows: core::ops::Range<i64>, first: i64) {
        let last = rows.end - 1;
        let suffixes = core::mem::take(&mut self.suffixes);
        for h in rows.rev() {
            let (here, below) = suffixes[(h - first) as usize * self.len..].split_at_mut(self.len);
            self.read(h as usize, false, here);
            if h < last {
                join(here, &below[..self.len]);
            }
        }
        self.suffixes = suffixes;
    }

    /// The suffix from a row of the block on; of a row behind the block, anything.
    fn suffix(&self, row: i64) -> &[I] {
        let at = row as usize * self.len;
        self.suffixes.get(at..at + self.len).unwrap_or(&[])
    }
}

/// The items that a task needs: results, a prefix, and the suffixes of a block.
pub(super) fn scratch(sweep: &Sweep) -> usize {
    let height = &sweep.lines[AXES - 2];
    let kept = match sweep.slides[0] {
        true if sweep.can_leave => 1,
        true => height.kernel().min(height.input()) + 1,
        false => 0,
    };
    kept.saturating_add(sweep.group).saturating_mul(sweep.span).saturating_mul(sweep.lanes)
}
