//! The gradient of averages, as a gather.
//!
//! ```text
//! for each row (d, h) of dx:
//!     row[o] = Σ dy[od, oh, o] / divisor    over the windows (od, oh) that read the row
//!     dx[o·s − before + t·d] += row[o]      for each tap t of the last axis
//! ```
//!
//! The quotients of the rows of a task are computed once. Sums are in `f64`, in an order that does not depend on the
//! tasks.

use core::ops::Range;

use windowpane_geometry::{AXES, Axis, Divisor, Pooling};

use super::element::{Poolable, narrow};
use super::field::Field;
use super::item::{add_windows, in_vectors, join};
use super::sink::Divisors;
use crate::shared::{self, Shared, written};

/// The items of `dx` in a task.
const TASK: usize = 1 << 15;

/// The most items that a thread may need; beyond, the reference runs.
const MOST: usize = 1 << 23;

/// The gradient of an average.
pub(super) fn average_backward<T: Poolable>(
    cut: &Cut,
    pooling: &Pooling,
    divisor: Divisor,
    dy: &[T],
) -> Vec<T> {
    let field = Field::of(pooling);
    let divisors = Divisors::new(field.grid, divisor);
    let [depth, height, width] = field.grid.axes();
    let row = width.input() * field.lanes;
    let blocks = height.input().div_ceil(cut.rows);
    let tasks = field.outer * depth.input() * blocks;
    let compute = |dx: Shared<'_, T>| {
        let is_small = dx.len() <= TASK;
        shared::run(tasks, cut.items(&field), is_small, |task, scratch: &mut [f64]| {
            let (plane, first) = (task / blocks, task % blocks * cut.rows);
            let rows = first..(first + cut.rows).min(height.input());
            let spread = Spread { field, divisors: &divisors, dy, plane };
            spread.rows(rows, scratch, |h, sums| {
                let at = (plane * height.input() + h) * row;
                // SAFETY: no other task writes this row.
                narrow(sums, unsafe { dx.slice(at, row) });
            });
        });
    };
    // SAFETY: the tasks write every row.
    unsafe { written(pooling.input().elements(), compute) }
}

/// The bytes that all threads need, unless the reference runs.
pub(super) fn scratch(pooling: &Pooling) -> Option<usize> {
    let field = Field::of(pooling);
    let items = Cut::new(&field)?.items(&field);
    Some(items.saturating_mul(size_of::<f64>() * rayon::current_num_threads()))
}

/// How rows are cut into tasks.
pub(super) struct Cut {
    /// The rows of `dx` in a task.
    rows: usize,
    /// The most rows of `dy` that those are read by.
    windows: usize,
}

impl Cut {
    /// The cut of a problem, unless a thread would need too much memory.
    pub(super) fn new(field: &Field<'_>) -> Option<Self> {
        let [_, height, width] = field.grid.axes();
        let rows = TASK.div_ceil(width.input().checked_mul(field.lanes)?);
        let blocks = height.input().div_ceil(rows);
        let rows = height.input().div_ceil(blocks);
        let block = |i: usize| i * rows..((i + 1) * rows).min(height.input());
        let windows = (0..height.input().div_ceil(rows)).map(|i| over(height, block(i)).len());
        let cut = Self { rows, windows: windows.max().unwrap_or(0) };
        (cut.items(field) <= MOST).then_some(cut)
    }

    /// The items that a task needs: quotients, a sum of rows, and a row of `dx`.
    fn items(&self, field: &Field<'_>) -> usize {
        let width = &field.grid.axes()[AXES - 1];
        let rows = (self.windows + 1).saturating_mul(width.output());
        rows.saturating_add(width.input()).saturating_mul(field.lanes)
    }
}

/// The windows that read some of these coordinates.
fn over(axis: &Axis, coordinates: Range<usize>) -> Range<usize> {
    let last = axis.windows_over(coordinates.end - 1);
    axis.windows_over(coordinates.start).start.min(last.end)..last.end
}

/// The gradient of a plane: an outer position and a coordinate of the first axis.
struct Spread<'a, T> {
    field: Field<'a>,
    divisors: &'a Divisors<'a>,
    dy: &'a [T],
    plane: usize,
}

impl<T: Poolable> Spread<'_, T> {
    /// Computes rows.
    fn rows(&self, rows: Range<usize>, scratch: &mut [f64], mut store: impl FnMut(usize, &[f64])) {
        let Field { grid, lanes, .. } = self.field;
        let [_, height, width] = grid.axes();
        let of_dy = width.output() * lanes;
        let (dx, rest) = scratch.split_at_mut(width.input() * lanes);
        let (sum, quotients) = rest.split_at_mut(of_dy);
        let windows = over(height, rows.clone());
        for (oh, to) in windows.clone().zip(quotients.chunks_exact_mut(of_dy)) {
            self.quotients(oh, to);
        }
        for h in rows {
            let over = height.windows_over(h).filter(|oh| height.tap_of(*oh, h).is_some());
            sum.fill(0.0);
            for oh in over {
                join(sum, &quotients[(oh - windows.start) * of_dy..][..of_dy]);
            }
            dx.fill(0.0);
            spread(width, lanes, sum, dx);
            store(h, dx);
        }
    }

    /// Writes, for a row of windows, the sum of the quotients over the first axis.
    fn quotients(&self, oh: usize, to: &mut [f64]) {
        let [depth, ..] = self.field.grid.axes();
        let (outer, d) = (self.plane / depth.input(), self.plane % depth.input());
        to.fill(0.0);
        for od in depth.windows_over(d).filter(|od| depth.tap_of(*od, d).is_some()) {
            let at = self.field.output_at(outer, [od, oh, 0]);
            let (mut w, lanes) = (0, self.field.lanes);
            let row = self.divisors.row([od, oh]);
            while w * lanes < to.len() {
                let end = self.divisors.end(w);
                let divisor = self.divisors.of(row, w);
                let dy = &self.dy[at..][w * lanes..end * lanes];
                add_quotients(&mut to[w * lanes..end * lanes], dy, divisor);
                w = end;
            }
        }
    }
}

fn add_quotients<T: Poolable>(to: &mut [f64], dy: &[T], divisor: f64) {
    in_vectors(
        #[inline(always)]
        || T::widen(dy, to, |to, term| to + term / divisor),
    );
}

/// Adds each pixel of `from` to the pixels of `to` that its window reads.
fn spread(width: &Axis, lanes: usize, from: &[f64], to: &mut [f64]) {
    if width.is_uneven() {
        for o in 0..width.output() {
            let (first, count) = (width.start(o) as usize, width.inside(o).len());
            let from = &from[o * lanes..][..lanes];
            for to in to[first * lanes..][..count * lanes].chunks_exact_mut(lanes) {
                to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
            }
        }
        return;
    }
    for tap in 0..width.kernel() {
        let windows = width.windows_inside(tap);
        if windows.is_empty() {
            continue;
        }
        let first = width.coordinate(windows.start, tap) as usize;
        let from = &from[windows.start * lanes..windows.end * lanes];
        add_windows(&mut to[first * lanes..], from, lanes, width.stride());
    }
}
