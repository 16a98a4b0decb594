//! Positions of all samples, cut into blocks: the rows of the matrices that are multiplied.

use crate::view::Views;

/// Neighbouring positions along the last axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) sample: usize,
    /// The first position.
    pub(crate) position: [usize; 3],
    pub(crate) len: usize,
    /// Its number in the block.
    pub(crate) row: usize,
}

/// The cut of the positions of all samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    /// The positions that blocks divide: those of one sample, or of all.
    span: usize,
    spans: usize,
    /// The most positions of a block.
    pub(crate) rows: usize,
    /// The extents of a sample.
    counts: [usize; 3],
}

impl Blocks {
    /// Blocks of about `rows` positions; `apart` if a block is to be within one sample, unless samples are small.
    pub(crate) fn new(views: &Views<'_>, batch: usize, rows: usize, apart: bool) -> Self {
        let plane = views.plane();
        let (span, spans) =
            if apart && plane >= rows.min(64) { (plane, batch) } else { (plane * batch, 1) };
        // As even as possible, in whole vectors.
        let parts = span.div_ceil(rows).max(1);
        let rows = span.div_ceil(parts).next_multiple_of(16).min(span).max(1);
        Self { span, spans, rows, counts: views.axes.map(|view| view.count) }
    }

    /// Whether every block is within one sample.
    pub(crate) fn are_within_samples(&self) -> bool {
        self.span == self.counts.iter().product::<usize>()
    }

    /// The number of blocks.
    pub(crate) fn count(&self) -> usize {
        self.spans * self.in_span()
    }

    fn in_span(&self) -> usize {
        self.span.div_ceil(self.rows)
    }

    /// The first position of a block, counted over all samples, and their number.
    pub(crate) fn block(&self, i: usize) -> (usize, usize) {
        let first = i % self.in_span() * self.rows;
        (i / self.in_span() * self.span + first, self.rows.min(self.span - first))
    }

    /// The segments of a block.
    pub(crate) fn segments(
        &self,
        (first, rows): (usize, usize),
    ) -> impl Iterator<Item = Segment> + Clone + use<> {
        let [depth, height, width] = self.counts;
        let mut row = 0;
        core::iter::from_fn(move || {
            if row == rows {
                return None;
            }
            let (line, w) = ((first + row) / width, (first + row) % width);
            let position = [line / height % depth, line % height, w];
            let len = (width - w).min(rows - row);
            let segment = Segment { sample: line / height / depth, position, len, row };
            row += len;
            Some(segment)
        })
    }
}
