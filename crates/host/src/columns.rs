//! Columns: what the taps of a block of positions read, as a matrix (im2col).
//!
//! A row is a position, a column a tap and a channel. Channels-last tensors give rows that are contiguous, because the
//! channels of neighbouring taps are neighbours in memory; channels-first tensors give contiguous columns, because
//! neighbouring positions are. So most of the work is to copy memory.

use windowpane_geometry::{Layout, Strides};
use windowpane_reference::Scalar;

use crate::blocks::Segment;
use crate::element::Element;
use crate::view::{Tap, Views};

/// Whether columns are in order of taps, each with its channels, or of channels, each with its taps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Taps,
    Channels,
}

/// The columns of one group.
pub(crate) struct Columns<'a, T> {
    pub(crate) source: &'a [T],
    pub(crate) steps: Strides,
    pub(crate) layout: Layout,
    pub(crate) views: Views<'a>,
    /// The first channel of the group, and their number.
    pub(crate) first: usize,
    pub(crate) channels: usize,
    pub(crate) order: Order,
    /// Whether there are other groups.
    pub(crate) is_grouped: bool,
}

impl<T: Element> Columns<'_, T> {
    /// The number of columns.
    pub(crate) fn count(&self) -> usize {
        self.views.taps() * self.channels
    }

    /// Writes columns `from..to` of a block's segments: row after row for channels-last tensors, `to - from` apart;
    /// column after column, `rows` apart, for channels-first ones.
    pub(crate) fn fill(
        &self,
        segments: impl Iterator<Item = Segment> + Clone,
        rows: usize,
        (from, to): (usize, usize),
        matrix: &mut [T::Sum],
    ) {
        match self.layout {
            Layout::ChannelsLast => self.fill_rows(segments, (from, to), matrix),
            Layout::ChannelsFirst => self.fill_columns(segments, rows, (from, to), matrix),
        }
    }

    /// The start of the line that a tap reads at a position, without the last axis; `None` outside.
    fn line(&self, segment: &Segment, tap: &[Tap; 3]) -> Option<usize> {
        let mut start = segment.sample * self.steps.batch;
        for (axis, tap) in tap[..2].iter().enumerate() {
            let view = self.views.axes[axis];
            let x = (segment.position[axis] * view.step) as i64 + tap.offset;
            if x < 0 || x >= view.extent as i64 {
                return None;
            }
            start += x as usize * self.steps.space[axis];
        }
        Some(start)
    }

    fn fill_rows(
        &self,
        segments: impl Iterator<Item = Segment> + Clone,
        (from, to): (usize, usize),
        matrix: &mut [T::Sum],
    ) {
        let width = self.views.axes[2];
        // Columns that are one piece of memory: those of a tap, or of all taps of a line.
        let joined = !self.is_grouped && width.is_contiguous();
        let taps = if joined { width.taps.len() } else { 1 };
        let piece = taps * self.channels;
        let (pitch, pixel) = (to - from, self.steps.space[2] as i64);
        let mut column = from;
        while column < to {
            let (number, skipped) = (column / piece, column % piece);
            let len = (piece - skipped).min(to - column);
            let tap = self.views.tap(number * taps);
            for segment in segments.clone() {
                let rows = &mut matrix[segment.row * pitch + (column - from)..];
                let rows = rows.chunks_mut(pitch).take(segment.len);
                let Some(start) = self.line(&segment, &tap) else {
                    rows.for_each(|row| row[..len].fill(T::Sum::ZERO));
                    continue;
                };
                let line = &self.source[start..];
                let first = (segment.position[2] * width.step) as i64 + tap[2].offset;
                // What is inside: of a joined piece any part, of a tap all channels or none.
                let (mut x, step) = (first * pixel, width.step as i64 * pixel);
                let end = width.extent as i64 * pixel;
                for row in rows {
                    let row = &mut row[..len];
                    let begin = x + (self.first + skipped) as i64;
                    x += step;
                    if begin >= 0 && begin + len as i64 <= end {
                        T::widen_all(&line[begin as usize..][..len], row);
                        continue;
                    }
                    let low = (-begin).clamp(0, len as i64);
                    let high = (end - begin).clamp(low, len as i64);
                    let (low, high) = (low as usize, high as usize);
                    row[..low].fill(T::Sum::ZERO);
                    row[high..].fill(T::Sum::ZERO);
                    if low < high {
                        let begin = (begin + low as i64) as usize;
                        T::widen_all(&line[begin..][..high - low], &mut row[low..high]);
                    }
                }
            }
            column += len;
        }
    }

    fn fill_columns(
        &self,
        segments: impl Iterator<Item = Segment> + Clone,
        pitch: usize,
        (from, to): (usize, usize),
        matrix: &mut [T::Sum],
    ) {
        let (width, taps) = (self.views.axes[2], self.views.taps());
        let range = match self.order {
            Order::Taps => from / self.channels..to.div_ceil(self.channels),
            Order::Channels => 0..taps,
        };
        for number in range {
            let tap = self.views.tap(number);
            let inside = width.inside(tap[2].offset);
            // The channels whose column of this tap is in the range, and the first column.
            let (low, high, apart, column) = match self.order {
                Order::Taps => {
                    let low = from.saturating_sub(number * self.channels);
                    let high = (to - number * self.channels).min(self.channels);
                    (low, high, 1, number * self.channels + low)
                }
                Order::Channels => {
                    let low = from.saturating_sub(number).div_ceil(taps);
                    (low, to.saturating_sub(number).div_ceil(taps), taps, low * taps + number)
                }
            };
            if low >= high {
                continue;
            }
            for segment in segments.clone() {
                let mut at = (column - from) * pitch + segment.row;
                let line = self.line(&segment, &tap);
                let q = segment.position[2];
                // The positions whose tap is inside, counted from the segment's first.
                let begin = inside.start.saturating_sub(q).min(segment.len);
                let end = inside.end.saturating_sub(q).min(segment.len);
                let (begin, end) = if line.is_some() { (begin, end) } else { (0, 0) };
                let x = ((q + begin) * width.step) as i64 + tap[2].offset;
                let mut start = line.unwrap_or(0) + (self.first + low) * self.steps.channel;
                for _ in low..high {
                    let column = &mut matrix[at..at + segment.len];
                    if begin < end {
                        let line = &self.source[start + x as usize..];
                        copy::<T>(line, width.step, &mut column[begin..end]);
                    }
                    column[..begin].fill(T::Sum::ZERO);
                    column[end.max(begin)..].fill(T::Sum::ZERO);
                    at += apart * pitch;
                    start += self.steps.channel;
                }
            }
        }
    }
}

/// Copies every `step`-th element.
#[inline(always)]
pub(crate) fn copy<T: Element>(from: &[T], step: usize, to: &mut [T::Sum]) {
    if step == 1 {
        return T::widen_all(&from[..to.len()], to);
    }
    to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, from)| *to = from.widen());
}
