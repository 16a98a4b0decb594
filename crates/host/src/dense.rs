//! The forward pass and the data gradient as matrix products.
//!
//! ```text
//! for each view of the result, group, block of positions and chunk of filters, in parallel:
//!     sums = 0
//!     for each chunk of columns:
//!         fill the block's columns                  (not if the source already is such a matrix)
//!         sums += columns × weights
//!     bias, residual, activation, rounding
//! ```
//!
//! Sums are added up in the result if their type and places allow it, otherwise in scratch memory. Cuts depend on the
//! problem and not on the number of threads, and so do results.

use std::borrow::Cow;

use windowpane_geometry::{FilterStrides, Layout, Shape, Strides};
use windowpane_reference::Scalar;
use windowpane_reference::conv::Epilogue;

use crate::blocks::Blocks;
use crate::columns::{Columns, Order};
use crate::element::Element;
use crate::finish::{complete, is_nothing, store};
use crate::shared::{Shared, run, written};
use crate::sum::{Matrix, Sum};
use crate::view::Views;

/// The most columns that are multiplied at a time.
pub(crate) const COLUMNS: usize = 1024;
/// The most filters of a task, and the fewest that are worth a task.
pub(crate) const FILTERS: usize = 512;
const FEW: usize = 64;
/// The elements of the matrix of a block, so that it stays in a cache.
pub(crate) const BLOCK: usize = 1 << 16;
/// The most positions of a block.
pub(crate) const ROWS: usize = 1024;
/// The tasks that a large problem has at least, if it can be cut so small.
pub(crate) const TASKS: usize = 32;
/// The products of a problem that is not worth more than one thread.
pub(crate) const SMALL: usize = 1 << 18;

/// A sum over taps and channels for each element of a result: a forward pass, or a data gradient with the roles of
/// channels and filters exchanged.
#[derive(Clone, Copy)]
pub(crate) struct Gather<'a, T> {
    pub(crate) source: &'a [T],
    pub(crate) weights: &'a [T],
    pub(crate) source_shape: Shape,
    pub(crate) result_shape: Shape,
    pub(crate) layout: Layout,
    pub(crate) groups: usize,
    pub(crate) weight: WeightSteps,
    pub(crate) epilogue: Epilogue<'a, T>,
}

/// The distances between weights, by the roles that their channels and filters have in a sum.
#[derive(Clone, Copy)]
pub(crate) struct WeightSteps {
    /// To the next channel of the source, of the result, and to the next group.
    pub(crate) inner: usize,
    pub(crate) outer: usize,
    pub(crate) group: usize,
    pub(crate) taps: [usize; 3],
}

impl WeightSteps {
    pub(crate) fn forward(steps: FilterStrides, filters_of_group: usize) -> Self {
        let group = filters_of_group * steps.count;
        Self { inner: steps.channel, outer: steps.count, group, taps: steps.kernel }
    }

    pub(crate) fn data(steps: FilterStrides, filters_of_group: usize) -> Self {
        let Self { inner, outer, group, taps } = Self::forward(steps, filters_of_group);
        Self { inner: outer, outer: inner, group, taps }
    }
}

impl<T: Element> Gather<'_, T> {
    /// The channels of a group in the source.
    pub(crate) fn inner(&self) -> usize {
        self.source_shape.channels() / self.groups
    }

    /// The channels of a group in the result.
    pub(crate) fn outer(&self) -> usize {
        self.result_shape.channels() / self.groups
    }

    /// Where the weights of tap `i` of a view begin.
    pub(crate) fn tap_offset(&self, views: &Views<'_>, i: usize) -> usize {
        let numbers = views.tap(i).map(|tap| tap.number);
        numbers.iter().zip(self.weight.taps).map(|(number, step)| number * step).sum()
    }

    /// The order of columns in which the weights need no copy, if there is one.
    fn order(&self, views: &Views<'_>) -> Order {
        let last = self.weight.taps[2] == 1 && self.weight.inner > 1;
        match self.layout {
            // For a range of columns, all taps are tried.
            Layout::ChannelsFirst if last && views.taps() <= 512 => Order::Channels,
            _ => Order::Taps,
        }
    }
}

/// The weights of every group as a matrix: a row for each column of the source's.
struct Weights<'a, S: Sum> {
    elements: Cow<'a, [S]>,
    row: usize,
    column: usize,
    group: usize,
}

impl<S: Sum> Weights<'_, S> {
    fn matrix(&self, group: usize, row: usize, column: usize) -> Matrix<*const S> {
        let start = group * self.group + row * self.row + column * self.column;
        Matrix { start: self.elements[start..].as_ptr(), row: self.row, column: self.column }
    }
}

/// The weights in an order that products read well: packed, if the few `positions` do not make that cost more than it
/// gives.
fn weights<'a, T: Element>(
    gather: &Gather<'a, T>,
    views: &Views<'_>,
    order: Order,
    positions: usize,
) -> Weights<'a, T::Sum> {
    let (taps, inner, outer) = (views.taps(), gather.inner(), gather.outer());
    let (columns, steps) = (taps * inner, gather.weight);
    if let (Some(all), Some(row)) = (as_sums(gather.weights), linear(gather, views, order)) {
        // Products read vectors of filters for channels-last tensors, and single weights otherwise.
        let reads_well = match gather.layout {
            Layout::ChannelsLast => steps.outer == 1,
            Layout::ChannelsFirst => row == 1,
        };
        if reads_well || positions <= 256 {
            let elements = Cow::Borrowed(all);
            return Weights { elements, row, column: steps.outer, group: steps.group };
        }
    }
    let (row, column) = match gather.layout {
        Layout::ChannelsLast => (outer, 1),
        Layout::ChannelsFirst => (1, columns),
    };
    let group = columns * outer;
    let offsets: Vec<usize> = (0..taps).map(|tap| gather.tap_offset(views, tap)).collect();
    let from = |column: usize| match order {
        Order::Taps => offsets[column / inner] + column % inner * steps.inner,
        Order::Channels => offsets[column % taps] + column / taps * steps.inner,
    };
    // Squares, so that neither reads nor writes jump through memory all the time.
    const SIDE: usize = 8;
    let len = group * gather.groups;
    let strips = columns.div_ceil(SIDE * 16);
    let write = |to: Shared<'_, T::Sum>| {
        run::<T::Sum>(gather.groups * strips, 0, len < SMALL, |task, _| {
            let (g, strip) = (task / strips, task % strips);
            let range = strip * SIDE * 16..((strip + 1) * SIDE * 16).min(columns);
            for first in (0..outer).step_by(SIDE) {
                for k in range.clone() {
                    let source = &gather.weights[g * steps.group + from(k)..];
                    for f in first..(first + SIDE).min(outer) {
                        let value = source[f * steps.outer].widen();
                        // SAFETY: no other task has this strip of columns of this group.
                        unsafe { to.write(g * group + k * row + f * column, value) };
                    }
                }
            }
        });
    };
    // SAFETY: the strips of all groups are all columns, and each writes every filter.
    let elements = Cow::Owned(unsafe { written(len, write) });
    Weights { elements, row, column, group }
}

/// The elements as sums, if that is their type.
pub(crate) fn as_sums<T: Element>(elements: &[T]) -> Option<&[T::Sum]> {
    // SAFETY: the types are the same.
    T::IS_SUM
        .then(|| unsafe { core::slice::from_raw_parts(elements.as_ptr().cast(), elements.len()) })
}

/// The distance between the weights of neighbouring columns, if it is always the same and none is left out.
fn linear<T: Element>(gather: &Gather<'_, T>, views: &Views<'_>, order: Order) -> Option<usize> {
    let (taps, inner) = (views.taps(), gather.inner());
    if taps == 0 || gather.tap_offset(views, 0) != 0 {
        return None;
    }
    let apart = if taps > 1 { gather.tap_offset(views, 1) } else { 0 };
    let even = |apart: usize| (0..taps).all(|tap| gather.tap_offset(views, tap) == tap * apart);
    if taps > 1 && !even(apart) {
        return None;
    }
    match order {
        _ if taps == 1 => Some(gather.weight.inner),
        _ if inner == 1 => Some(apart),
        Order::Taps => (apart == inner * gather.weight.inner).then_some(gather.weight.inner),
        Order::Channels => (gather.weight.inner == taps * apart).then_some(apart),
    }
}

/// The cut of one view into tasks.
pub(crate) struct Cut {
    pub(crate) blocks: Blocks,
    /// Columns of a chunk.
    pub(crate) columns: usize,
    /// Filters of a chunk, and the chunks of a group.
    pub(crate) filters: usize,
    pub(crate) chunks: usize,
}

impl Cut {
    pub(crate) fn new(
        views: &Views<'_>,
        batch: usize,
        [columns, filters, groups]: [usize; 3],
        layout: Layout,
    ) -> Self {
        let columns = columns.div_ceil(columns.div_ceil(COLUMNS).max(1)).max(1);
        let positions = views.plane() * batch;
        let most = (BLOCK / columns).clamp(FEW, ROWS);
        let rows = most.min((positions / TASKS * 2).next_multiple_of(16).max(FEW));
        let blocks = Blocks::new(views, batch, rows, layout == Layout::ChannelsFirst);
        let others = (blocks.count() * groups).max(1);
        let wanted = TASKS.div_ceil(others).min(filters.div_ceil(FEW));
        let chunks = filters.div_ceil(FILTERS).max(wanted);
        let chunk = filters.div_ceil(chunks).next_multiple_of(16).min(filters);
        Self { blocks, columns, filters: chunk, chunks: filters.div_ceil(chunk) }
    }

    /// The elements of scratch memory of a task: columns, and sums.
    pub(crate) fn scratch(&self) -> [usize; 2] {
        [self.blocks.rows * self.columns, self.blocks.rows * self.filters]
    }
}

/// Computes one view of the result.
///
/// # Safety
/// Nobody else uses the result meanwhile.
pub(crate) unsafe fn gather<T: Element>(
    gather: &Gather<'_, T>,
    views: &Views<'_>,
    result: Shared<'_, T>,
) {
    let (inner, outer, batch) = (gather.inner(), gather.outer(), gather.result_shape.batch());
    let order = gather.order(views);
    let columns = views.taps() * inner;
    let positions = views.plane() * batch;
    let cut = Cut::new(views, batch, [columns, outer, gather.groups], gather.layout);
    let products = positions.saturating_mul(columns).saturating_mul(outer * gather.groups);
    let weights = (columns > 0).then(|| weights(gather, views, order, positions));
    let [matrix, sums] = cut.scratch();
    let tasks = gather.groups * cut.blocks.count() * cut.chunks;
    run::<T::Sum>(tasks, matrix + sums, products < SMALL, |task, scratch| {
        let (chunk, task) = (task % cut.chunks, task / cut.chunks);
        let (block, group) = (task % cut.blocks.count(), task / cut.blocks.count());
        let work = Task { gather, views, order, cut: &cut, group, result };
        // SAFETY: no other task has this block, group and chunk.
        unsafe { work.run(block, chunk, weights.as_ref(), scratch) };
    });
}

struct Task<'a, T> {
    gather: &'a Gather<'a, T>,
    views: &'a Views<'a>,
    order: Order,
    cut: &'a Cut,
    group: usize,
    result: Shared<'a, T>,
}

impl<T: Element> Task<'_, T> {
    /// # Safety
    /// Nobody else uses the results of this block, group and chunk.
    unsafe fn run(
        &self,
        block: usize,
        chunk: usize,
        weights: Option<&Weights<'_, T::Sum>>,
        scratch: &mut [T::Sum],
    ) {
        let Self { gather, cut, .. } = self;
        let (first, rows) = cut.blocks.block(block);
        let begin = chunk * cut.filters;
        let filters = cut.filters.min(gather.outer() - begin);
        let channel = self.group * gather.outer() + begin;
        let (matrix, sums) = scratch.split_at_mut(cut.scratch()[0]);
        let direct = self.direct((first, rows), channel, filters);
        let to = direct.unwrap_or(match gather.layout {
            Layout::ChannelsLast => Matrix { start: sums.as_mut_ptr(), row: filters, column: 1 },
            Layout::ChannelsFirst => Matrix { start: sums.as_mut_ptr(), row: 1, column: rows },
        });
        match weights {
            // SAFETY: nobody else uses these results.
            Some(weights) => unsafe {
                self.multiply((first, rows), (begin, filters), weights, matrix, to);
            },
            None => {
                for i in 0..rows * filters {
                    // SAFETY: as above.
                    unsafe {
                        to.start
                            .add(i / filters * to.row + i % filters * to.column)
                            .write(T::Sum::ZERO);
                    }
                }
            }
        }
        // SAFETY: as above.
        unsafe {
            match direct {
                Some(to) => self.complete(rows, (channel, filters), to),
                None => self.store((first, rows), (channel, filters), sums),
            }
        }
    }

    /// Adds up the products of all chunks of columns.
    ///
    /// # Safety
    /// Nobody else uses the matrix of results.
    unsafe fn multiply(
        &self,
        (first, rows): (usize, usize),
        (begin, filters): (usize, usize),
        weights: &Weights<'_, T::Sum>,
        matrix: &mut [T::Sum],
        to: Matrix<*mut T::Sum>,
    ) {
        let Self { gather, cut, .. } = self;
        let columns = Columns {
            source: gather.source,
            steps: gather.source_shape.strides(gather.layout),
            layout: gather.layout,
            views: *self.views,
            first: self.group * gather.inner(),
            channels: gather.inner(),
            order: self.order,
            is_grouped: gather.groups > 1,
        };
        for low in (0..columns.count()).step_by(cut.columns) {
            let high = (low + cut.columns).min(columns.count());
            let left = match self.as_matrix(&columns, first, low) {
                Some(left) => left,
                None => {
                    let segments = cut.blocks.segments((first, rows));
                    columns.fill(segments, rows, (low, high), matrix);
                    matrix_of(gather.layout, matrix, rows, high - low)
                }
            };
            let right = weights.matrix(self.group, low, begin);
            // SAFETY: the source, the matrix and the weights have these columns, and nobody else uses the results.
            unsafe { T::Sum::product([rows, filters, high - low], to, low > 0, left, right) };
        }
    }

    /// The columns from `low` on of a block with this first position, if the source has them as a matrix.
    fn as_matrix(
        &self,
        columns: &Columns<'_, T>,
        first: usize,
        low: usize,
    ) -> Option<Matrix<*const T::Sum>> {
        let source = as_sums(self.gather.source)?;
        if !self.views.is_identity() {
            return None;
        }
        let (start, row, column) = self.places(columns.steps, first)?;
        let start = source[start + (columns.first + low) * column..].as_ptr();
        Some(Matrix { start, row, column })
    }

    /// Where a block is in a tensor whose positions are those of the view: its first element, and the steps to the next
    /// position and channel.
    fn places(&self, steps: Strides, first: usize) -> Option<(usize, usize, usize)> {
        match self.gather.layout {
            Layout::ChannelsLast => Some((first * steps.space[2], steps.space[2], 1)),
            Layout::ChannelsFirst if self.cut.blocks.are_within_samples() => {
                let plane = self.views.plane();
                Some((first / plane * steps.batch + first % plane, 1, steps.channel))
            }
            Layout::ChannelsFirst => None,
        }
    }

    /// The place of a block's sums in the result, if it is a matrix of sums.
    fn direct(
        &self,
        (first, rows): (usize, usize),
        channel: usize,
        filters: usize,
    ) -> Option<Matrix<*mut T::Sum>> {
        if !T::IS_SUM || !self.views.is_whole() {
            return None;
        }
        let steps = self.gather.result_shape.strides(self.gather.layout);
        let (start, row, column) = self.places(steps, first)?;
        let last = (rows - 1) * row + (filters - 1) * column;
        let start = self.result.pointer(start + channel * column, last);
        Some(Matrix { start: start.cast(), row, column })
    }

    /// Completes sums that are in the result.
    ///
    /// # Safety
    /// They have been written, and nobody else uses them.
    unsafe fn complete(
        &self,
        rows: usize,
        (channel, filters): (usize, usize),
        to: Matrix<*mut T::Sum>,
    ) {
        let epilogue = &self.gather.epilogue;
        if is_nothing(epilogue) {
            return;
        }
        let (lines, line, len, step) = match self.gather.layout {
            Layout::ChannelsLast => (rows, to.row, filters, 1),
            Layout::ChannelsFirst => (filters, to.column, rows, 0),
        };
        let start = self.result.offset(to.start.cast());
        for i in 0..lines {
            // SAFETY: the caller guarantees that the sums were written and are not used, and they have the result's type.
            let sums = unsafe { core::slice::from_raw_parts_mut(to.start.add(i * line), len) };
            let filter = if step == 0 { channel + i } else { channel };
            complete(epilogue, sums, (filter, step), (start + i * line, 1));
        }
    }

    /// Completes the sums of a block and stores them.
    ///
    /// # Safety
    /// Nobody else uses the block's results.
    unsafe fn store(
        &self,
        (first, rows): (usize, usize),
        (channel, filters): (usize, usize),
        sums: &mut [T::Sum],
    ) {
        let Self { gather, result, .. } = self;
        let steps = gather.result_shape.strides(gather.layout);
        let axes = self.views.axes;
        let apart = axes[2].result_step * steps.space[2];
        for segment in self.cut.blocks.segments((first, rows)) {
            let at =
                |axis: usize| axes[axis].first + segment.position[axis] * axes[axis].result_step;
            let start = steps.offset(segment.sample, channel, [at(0), at(1), at(2)]);
            match gather.layout {
                Layout::ChannelsLast => {
                    let lines = sums[segment.row * filters..].chunks_mut(filters);
                    for (i, sums) in lines.take(segment.len).enumerate() {
                        let place = (start + i * apart, 1);
                        // SAFETY: the caller guarantees that nobody else uses them.
                        unsafe { store(&gather.epilogue, sums, (channel, 1), place, *result) };
                    }
                }
                Layout::ChannelsFirst => {
                    for f in 0..filters {
                        let sums = &mut sums[f * rows + segment.row..][..segment.len];
                        let place = (start + f * steps.channel, apart);
                        // SAFETY: as above.
                        unsafe { store(&gather.epilogue, sums, (channel + f, 0), place, *result) };
                    }
                }
            }
        }
    }
}

/// A matrix of columns as [`Columns::fill`] writes it.
pub(crate) fn matrix_of<S>(
    layout: Layout,
    matrix: &[S],
    rows: usize,
    columns: usize,
) -> Matrix<*const S> {
    let start = matrix.as_ptr();
    match layout {
        Layout::ChannelsLast => Matrix { start, row: columns, column: 1 },
        Layout::ChannelsFirst => Matrix { start, row: 1, column: rows },
    }
}
