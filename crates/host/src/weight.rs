//! The weight gradient as matrix products.
//!
//! ```text
//! for each part of the positions, group, chunk of columns and chunk of filters, in parallel:
//!     sums = 0
//!     for each block of the part, in order:
//!         fill the block's columns
//!         sums += columnsᵀ × output gradients
//! add the parts, in order; rounding
//! ```
//!
//! A problem with few weights is cut into parts, so that all cores have work. Cuts depend on the problem and not on the
//! number of threads, and so do results.

use windowpane_geometry::{Convolution, Layout, Pass, Strides};
use windowpane_reference::Scalar;

use crate::blocks::Blocks;
use crate::columns::{Columns, Order};
use crate::dense::{BLOCK, SMALL, TASKS, as_sums, matrix_of};
use crate::element::Element;
use crate::shared::{Shared, run, written};
use crate::sum::{Matrix, Sum};
use crate::view::{Views, combinations, views};

/// The most columns, and the most filters, of a task.
const COLUMNS: usize = 512;
const FILTERS: usize = 256;

/// The cut of a weight gradient into tasks.
pub(crate) struct Cut {
    blocks: Blocks,
    columns: usize,
    column_chunks: usize,
    filters: usize,
    filter_chunks: usize,
    /// The parts of the positions, and the sums of each.
    pub(crate) parts: usize,
    pub(crate) sums: usize,
}

impl Cut {
    pub(crate) fn new(conv: &Convolution, views: &Views<'_>) -> Self {
        let (batch, groups) = (conv.input().batch(), conv.groups());
        let all = views.taps() * conv.filter().channels();
        let of_group = conv.filter().count() / groups;
        let even = |all: usize, most: usize| {
            let chunk =
                all.div_ceil(all.div_ceil(most).max(1)).next_multiple_of(16).min(all).max(1);
            (chunk, all.div_ceil(chunk))
        };
        let (columns, column_chunks) = even(all, COLUMNS);
        let (filters, filter_chunks) = even(of_group, FILTERS);
        let rows = (BLOCK / columns).clamp(64, 512);
        let blocks = Blocks::new(views, batch, rows, conv.layout() == Layout::ChannelsFirst);
        let tasks = groups * column_chunks * filter_chunks;
        let parts = (TASKS / tasks.max(1)).clamp(1, blocks.count().div_ceil(2).max(1));
        let sums = all * conv.filter().count();
        Self { blocks, columns, column_chunks, filters, filter_chunks, parts, sums }
    }

    /// The elements of scratch memory of a task: columns, and output gradients.
    pub(crate) fn scratch(&self) -> [usize; 2] {
        [self.blocks.rows * self.columns, self.blocks.rows * self.filters]
    }

    /// The size of the largest product.
    pub(crate) fn product(&self) -> [usize; 3] {
        [self.filters, self.columns, self.blocks.rows]
    }
}

/// The weight gradient, whose output gradients are finite.
pub(crate) fn weight_gradient<T: Element>(conv: &Convolution, dy: &[T], x: &[T]) -> Vec<T> {
    let lists = views(conv, Pass::Weight);
    let mut dw = vec![T::ZERO; conv.filter().elements()];
    let Some(views) = combinations(&lists).find(|views| views.taps() > 0) else { return dw };
    let cut = Cut::new(conv, &views);
    let groups = conv.groups();
    let tasks = cut.parts * groups * cut.column_chunks * cut.filter_chunks;
    let products = (conv.output().batch() * conv.output().plane()).saturating_mul(cut.sums);
    let sum_parts = |sums: Shared<'_, T::Sum>| {
        let [matrix, gradients] = cut.scratch();
        run::<T::Sum>(tasks, matrix + gradients, products < SMALL, |task, scratch| {
            let (filters, task) = (task % cut.filter_chunks, task / cut.filter_chunks);
            let (columns, task) = (task % cut.column_chunks, task / cut.column_chunks);
            let work =
                Task { conv, views, cut: &cut, dy, x, part: task / groups, group: task % groups };
            // SAFETY: no other task has these columns and filters of this part.
            unsafe { work.run(columns, filters, scratch, sums) };
        });
    };
    // SAFETY: the tasks are all columns and filters of all parts.
    let sums = unsafe { written(cut.parts * cut.sums, sum_parts) };
    collect(conv, &views, &cut, &sums, &mut dw);
    dw
}

struct Task<'a, T> {
    conv: &'a Convolution,
    views: Views<'a>,
    cut: &'a Cut,
    dy: &'a [T],
    x: &'a [T],
    part: usize,
    group: usize,
}

impl<T: Element> Task<'_, T> {
    /// # Safety
    /// Nobody else uses the sums of these columns and filters meanwhile.
    unsafe fn run(
        &self,
        columns: usize,
        filters: usize,
        scratch: &mut [T::Sum],
        sums: Shared<'_, T::Sum>,
    ) {
        let Self { conv, cut, .. } = self;
        let (channels, of_group) =
            (conv.filter().channels(), conv.filter().count() / conv.groups());
        let source = Columns {
            source: self.x,
            steps: conv.input().strides(conv.layout()),
            layout: conv.layout(),
            views: self.views,
            first: self.group * channels,
            channels,
            order: Order::Taps,
            is_grouped: conv.groups() > 1,
        };
        let (low, first) = (columns * cut.columns, filters * cut.filters);
        let high = (low + cut.columns).min(source.count());
        let filters = cut.filters.min(of_group - first);
        let start = (self.part * conv.groups() + self.group) * source.count() * of_group;
        // Row `k` of these has the sums of column `k` for all filters of the group.
        let last = (high - 1 - low) * of_group + filters - 1;
        let to = sums.pointer(start + low * of_group + first, last);
        let to = Matrix { start: to, row: 1, column: of_group };

        let (matrix, gradients) = scratch.split_at_mut(cut.scratch()[0]);
        let blocks = cut.blocks.count();
        let range = self.part * blocks / cut.parts..(self.part + 1) * blocks / cut.parts;
        let mut adds = false;
        for block in range {
            let (position, rows) = cut.blocks.block(block);
            let right = self.columns(&source, position, low).unwrap_or_else(|| {
                source.fill(cut.blocks.segments((position, rows)), rows, (low, high), matrix);
                matrix_of(conv.layout(), matrix, rows, high - low)
            });
            let channel = self.group * of_group + first;
            let left = self.gradients((position, rows), (channel, filters), gradients);
            // SAFETY: both matrices have these rows, and nobody else uses the sums.
            unsafe { T::Sum::product([filters, high - low, rows], to, adds, left, right) };
            adds = true;
        }
        if !adds {
            for k in 0..high - low {
                // SAFETY: nobody else uses the sums.
                unsafe { core::slice::from_raw_parts_mut(to.start.add(k * of_group), filters) }
                    .fill(T::Sum::ZERO);
            }
        }
    }

    /// The columns from `low` on of a block's first position, if the input has them as a matrix.
    fn columns(
        &self,
        source: &Columns<'_, T>,
        first: usize,
        low: usize,
    ) -> Option<Matrix<*const T::Sum>> {
        let x = as_sums(self.x).filter(|_| self.views.is_identity())?;
        let (start, steps) = (self.start(first, source.steps)?, source.steps);
        let start = x[start + (source.first + low) * steps.channel..].as_ptr();
        Some(Matrix { start, row: steps.space[2], column: steps.channel })
    }

    /// Where a position is in a tensor of the view's extents; `None` if a block from there on is no matrix.
    fn start(&self, first: usize, steps: Strides) -> Option<usize> {
        let plane = self.views.plane();
        match self.conv.layout() {
            Layout::ChannelsLast => Some(first * steps.space[2]),
            Layout::ChannelsFirst if self.cut.blocks.are_within_samples() => {
                Some(first / plane * steps.batch + first % plane)
            }
            Layout::ChannelsFirst => None,
        }
    }

    /// The output gradients of a block: a row for each filter.
    fn gradients(
        &self,
        (first, rows): (usize, usize),
        (channel, filters): (usize, usize),
        scratch: &mut [T::Sum],
    ) -> Matrix<*const T::Sum> {
        let (layout, plane) = (self.conv.layout(), self.views.plane());
        let steps = self.conv.output().strides(layout);
        if let (Some(dy), Some(start)) = (as_sums(self.dy), self.start(first, steps)) {
            let start = dy[start + channel * steps.channel..].as_ptr();
            return Matrix { start, row: steps.channel, column: steps.space[2] };
        }
        let start = |first: usize| match layout {
            Layout::ChannelsLast => first * steps.space[2] + channel,
            Layout::ChannelsFirst => {
                first / plane * steps.batch + channel * steps.channel + first % plane
            }
        };
        match layout {
            Layout::ChannelsLast => {
                for (row, to) in scratch.chunks_mut(filters).take(rows).enumerate() {
                    T::widen_all(&self.dy[start(first + row)..][..filters], to);
                }
                Matrix { start: scratch.as_ptr(), row: 1, column: filters }
            }
            Layout::ChannelsFirst => {
                for segment in self.cut.blocks.segments((first, rows)) {
                    let from = start(first + segment.row);
                    for f in 0..filters {
                        let to = &mut scratch[f * rows + segment.row..][..segment.len];
                        T::widen_all(&self.dy[from + f * steps.channel..][..segment.len], to);
                    }
                }
                Matrix { start: scratch.as_ptr(), row: rows, column: 1 }
            }
        }
    }
}

/// Adds the parts and writes the gradient in the layout of the filters.
fn collect<T: Element>(
    conv: &Convolution,
    views: &Views<'_>,
    cut: &Cut,
    sums: &[T::Sum],
    dw: &mut [T],
) {
    let (channels, of_group) = (conv.filter().channels(), conv.filter().count() / conv.groups());
    let steps = conv.filter().strides(conv.filter_layout());
    let result = Shared::of(dw);
    let all = cut.sums / conv.filter().count();
    // A task has a strip of columns of a group, a few filters at a time, so that neither reads nor writes jump through
    // memory all the time.
    const STRIP: usize = 64;
    const SIDE: usize = 16;
    let strips = all.div_ceil(STRIP);
    run::<T::Sum>(conv.groups() * strips, 0, cut.sums < SMALL, |task, _| {
        let (group, low) = (task / strips, task % strips * STRIP);
        let len = STRIP.min(all - low);
        let mut places = [0; STRIP];
        for (k, place) in (low..).zip(&mut places[..len]) {
            let tap = views.tap(k / channels).map(|tap| tap.number);
            *place = steps.offset(group * of_group, k % channels, tap);
        }
        for first in (0..of_group).step_by(SIDE) {
            for (k, place) in (low..).zip(&places[..len]) {
                for f in first..(first + SIDE).min(of_group) {
                    let at = (group * all + k) * of_group + f;
                    let parts = sums[at..].iter().step_by(cut.sums);
                    let sum = parts.copied().reduce(|sum, part| sum + part);
                    let value = T::narrow(sum.unwrap_or_default());
                    // SAFETY: no other task has this column of this group.
                    unsafe { result.write(place + f * steps.count, value) };
                }
            }
        }
    });
}
