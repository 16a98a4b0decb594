//! Maximum by monotone deques: constant work per element for any window size.
//!
//! ```text
//! for each axis, the last first:
//!     for each window o along it:
//!         push the elements that o reads and earlier windows did not:
//!             drop the elements at the back that the new one beats, then append it
//!         drop the elements at the front that o does not read
//!         y[o] = the front
//! ```
//!
//! A deque contains, in order, the elements that can still become a maximum: none of them is beaten by a later one.
//! An equal element does not beat an earlier one, so the first of several equal elements stays in front. A NaN beats
//! an earlier NaN, so the last NaN stays. If no index is requested, +0 beats −0. The axes are processed from the last
//! to the first, so that "first" means first in row-major order: the first of the rows that contain the maximum, and
//! in it the first element.
//!
//! With a dilation `d`, windows whose starts differ by a multiple of `d` read from the same sequence of every `d`-th
//! element. Only such windows share a deque.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use windowpane_geometry::{Axis, IndexBase, Pooling, Strides};

use super::field::{Field, sweep};
use super::memory::passes;
use super::{add_index_base, check_input, index_strides, passes_unchanged};
use crate::memory::{GROWTH, product};
use crate::{Scalar, parallel};

/// The maximum of each window.
pub fn max<T: Scalar>(pooling: &Pooling, x: &[T]) -> Vec<T> {
    check_input(pooling, x);
    slide(&Field::of(pooling), Cow::Borrowed(x)).into_owned()
}

/// The maximum of each window and its index.
///
/// The indices must fit, as [`Pooling::check_indices`] says.
pub fn max_with_indices<T: Scalar>(
    pooling: &Pooling,
    base: IndexBase,
    x: &[T],
) -> (Vec<T>, Vec<i32>) {
    check_input(pooling, x);
    let strides = index_strides(pooling, base);
    let field = Field::of(pooling);
    // With zeros of both signs the index is that of the first zero but the value is +0, so two deques are needed.
    let y = slide(&field, Cow::Borrowed(x)).into_owned();
    let candidates = slide(&field, Cow::Owned(candidates(&field, &strides, x)));
    let mut winners = parallel::collect(candidates.len(), |i| candidates[i].index);
    field.for_each_row(&mut winners, |row, winners| {
        add_index_base(&field, &strides, field.row_position(row).0, winners);
    });
    (y, winners)
}

/// The bytes that the passes over values allocate: see [`memory`](super::memory).
pub(super) fn bytes<T: Scalar>(field: &Field) -> usize {
    slide_bytes::<T>(field)
}

/// The bytes that the passes over values with indices allocate, including the indexed input and the winners.
pub(super) fn indexed_bytes<T: Scalar>(field: &Field) -> usize {
    let inputs = [field.outer, field.grid.input_plane(), field.lanes, size_of::<Indexed<T>>()];
    slide_bytes::<Indexed<T>>(field).saturating_add(product(inputs))
}

fn slide_bytes<K: Candidate>(field: &Field) -> usize {
    let spans =
        field.grid.axes().iter().map(|axis| product([axis.output(), size_of::<Range<usize>>()]));
    let passes = passes(field, size_of::<K>(), |axis| {
        let longest = axis.kernel().min(axis.input()) + 1;
        product([GROWTH, longest.next_power_of_two(), size_of::<(usize, K)>()])
    });
    spans.fold(passes, usize::saturating_add)
}

/// A candidate for a maximum: an element, or an element with its index.
trait Candidate: Copy + Send + Sync {
    const EMPTY: Self;
    fn beats(self, best: Self) -> bool;
}

impl<T: Scalar> Candidate for T {
    const EMPTY: Self = T::LOWEST;

    #[inline]
    fn beats(self, best: Self) -> bool {
        self.exceeds(best)
    }
}

#[derive(Clone, Copy)]
struct Indexed<T> {
    value: T,
    index: i32,
}

impl<T: Scalar> Candidate for Indexed<T> {
    const EMPTY: Self = Self { value: T::LOWEST, index: -1 };

    #[inline]
    fn beats(self, best: Self) -> bool {
        Scalar::beats(self.value, best.value)
    }
}

/// Every element with its index, computed with these strides.
fn candidates<T: Scalar>(field: &Field, strides: &Strides, x: &[T]) -> Vec<Indexed<T>> {
    let [depth, height, width] = field.grid.axes().map(|axis| axis.input());
    let mut candidates = vec![Indexed::EMPTY; x.len()];
    let row = width * field.lanes;
    parallel::chunks(&mut candidates, row, 1, |i, candidates| {
        let x = &x[i * row..];
        let first = strides.offset(0, 0, [i / height % depth, i % height, 0]);
        for (j, (candidate, &value)) in candidates.iter_mut().zip(x).enumerate() {
            let index = first + j / field.lanes * strides.space[2];
            *candidate = Indexed { value, index: index as i32 };
        }
    });
    candidates
}

/// Slides along one axis after another, the last one first.
fn slide<'a, K: Candidate>(field: &Field, mut x: Cow<'a, [K]>) -> Cow<'a, [K]> {
    let mut outer = field.outer * field.grid.input_plane();
    let mut lanes = field.lanes;
    for axis in field.grid.axes().iter().rev() {
        outer /= axis.input();
        if !passes_unchanged(axis) {
            x = Cow::Owned(slide_along(axis, outer, lanes, &x));
        }
        lanes *= axis.output();
    }
    x
}

/// Slides along one axis, from `outer × L × lanes` to `outer × O × lanes`.
fn slide_along<K: Candidate>(axis: &Axis, outer: usize, lanes: usize, x: &[K]) -> Vec<K> {
    let spans: Vec<_> = (0..axis.output()).map(|o| span(axis, o)).collect();
    sweep([outer, axis.output(), lanes], K::EMPTY, |outer, first_lane, rows| {
        let column = &x[outer * axis.input() * lanes..][..axis.input() * lanes];
        let mut deque = VecDeque::new();
        for lane in 0..rows[0].len() {
            let read = |x: usize| column[x * lanes + first_lane + lane];
            for class in axis.classes() {
                deque.clear();
                slide_class(axis, &spans, class, &mut deque, read, |o, best| rows[o][lane] = best);
            }
        }
    })
}

/// Slides over the windows of one class, which read one sequence of coordinates.
#[inline]
fn slide_class<K: Candidate>(
    axis: &Axis,
    spans: &[Range<usize>],
    class: impl Iterator<Item = usize>,
    deque: &mut VecDeque<(usize, K)>,
    read: impl Fn(usize) -> K,
    mut write: impl FnMut(usize, K),
) {
    let mut next = 0;
    for o in class {
        let span = &spans[o];
        // Elements that no window reads are never pushed.
        next = span.start.max(next);
        while next < span.end {
            let new = read(next);
            while deque.back().is_some_and(|&(_, last)| new.beats(last)) {
                deque.pop_back();
            }
            deque.push_back((next, new));
            next += axis.dilation();
        }
        while deque.front().is_some_and(|&(x, _)| x < span.start) {
            deque.pop_front();
        }
        if let Some(&(_, best)) = deque.front().filter(|_| !span.is_empty()) {
            write(o, best);
        }
    }
}

/// The coordinates from the first to the last inside tap of window `o`; 0..0 for an empty window.
fn span(axis: &Axis, o: usize) -> Range<usize> {
    let taps = axis.inside(o);
    if taps.is_empty() {
        return 0..0;
    }
    axis.coordinate(o, taps.start) as usize..axis.coordinate(o, taps.end - 1) as usize + 1
}
