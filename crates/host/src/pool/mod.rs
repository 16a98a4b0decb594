//! Poolings: maxima, minima, averages, sums and norms of windows, and gradients, as `windowpane_reference::pool`
//! defines them.
//!
//! Windows are combined one axis after the other, in vectors: rows of the input first (`block.rs`, `rows.rs`), then neighbouring
//! pixels of the combined rows (`columns.rs`). With large windows, neighbouring ones share partial results. The loops
//! compute with items in place of elements (`element.rs`): integers with the order of the numbers for maxima, `f64` or
//! `i32` for sums. `source.rs` reads them, `sink.rs` writes results, and `sweep.rs` cuts the work into tasks.
//!
//! The reference runs where a thread would need more than 64 MiB, for sums of integers of 32 and 64 bits, for norms
//! other than those of `p = 1` and `p = 2`, and for the norm of `p = 2` of `f64`, whose squares may overflow.

mod backward;
mod block;
mod columns;
mod element;
mod field;
mod footprint;
mod item;
mod line;
mod loops;
mod rows;
mod scatter;
mod sink;
mod source;
mod sweep;

pub use element::Poolable;
pub use footprint::{extremum_under, extremum_under_bytes};

use windowpane_geometry::{Divisor, Exponent, Extremum, IndexBase, Pooling};
use windowpane_reference::memory::{self, Pooled};
use windowpane_reference::pool::backward::{self as reference_backward, IndexOutOfRange};
use windowpane_reference::pool::{self as reference, Algorithm, lp};

use crate::check_length;
use field::Field;
use item::Item;
use source::Power;
use sweep::Sweep;

/// The bytes that rayon and small lists need for any problem.
const ROOM: usize = 1 << 18;

/// The algorithm that is likely the faster one for a problem: [`Algorithm::Sliding`] if windows share partial results
/// along some axis.
pub fn choose(pooling: &Pooling) -> Algorithm {
    sweep::choose(&Field::of(pooling))
}

/// The maximum or the minimum of each window.
///
/// ```
/// use windowpane_geometry::{Extents, Extremum, Layout, Pooling, Shape, Window};
/// use windowpane_host::pool::{choose, extremum};
///
/// let line = Shape::new(1, 1, Extents::from([5]))?;
/// let pooling = Pooling::new(line, &Window::new([3]).padding([1]), Layout::ChannelsLast)?;
/// let (algorithm, x) = (choose(&pooling), [7, 1, 9, 2, 3]);
/// assert_eq!(extremum(Extremum::Max, algorithm, &pooling, &x), [7, 9, 9, 9, 3]);
/// # Ok::<(), windowpane_geometry::Error>(())
/// ```
pub fn extremum<T: Poolable>(
    extremum: Extremum,
    algorithm: Algorithm,
    pooling: &Pooling,
    x: &[T],
) -> Vec<T> {
    check_length("the input", x.len(), pooling.input().elements());
    match cut::<T::Key>(algorithm, pooling) {
        None => reference::extremum(extremum, slower(algorithm, pooling), pooling, x),
        Some(sweep) => T::extremum(&sweep, pooling, extremum, x),
    }
}

/// The maximum or the minimum of each window and its index.
///
/// The indices must fit, as [`Pooling::check_indices`] says.
pub fn extremum_with_indices<T: Poolable>(
    extremum: Extremum,
    algorithm: Algorithm,
    pooling: &Pooling,
    base: IndexBase,
    x: &[T],
) -> (Vec<T>, Vec<i32>) {
    check_length("the input", x.len(), pooling.input().elements());
    if let Err(error) = pooling.check_indices(base) {
        panic!("an index may not fit in an i32, which the caller has to check: {error}");
    }
    match cut::<T::Packed>(algorithm, pooling) {
        None => {
            let algorithm = slower(algorithm, pooling);
            reference::extremum_with_indices(extremum, algorithm, pooling, base, x)
        }
        Some(sweep) => T::extremum_with_indices(&sweep, pooling, extremum, base, x),
    }
}

/// The average of each window.
pub fn average<T: Poolable>(
    algorithm: Algorithm,
    pooling: &Pooling,
    divisor: Divisor,
    x: &[T],
) -> Vec<T> {
    check_length("the input", x.len(), pooling.input().elements());
    match T::cut(algorithm, pooling) {
        None => match slower(algorithm, pooling) {
            Algorithm::Sliding => reference::prefix::average(pooling, divisor, x),
            _ => reference::direct::average(pooling, divisor, x),
        },
        Some(sweep) => T::sum(&sweep, pooling, divisor, Power::None, x),
    }
}

/// The norm of each window.
pub fn norm<T: Poolable>(pooling: &Pooling, p: Exponent, x: &[T]) -> Vec<T> {
    check_length("the input", x.len(), pooling.input().elements());
    match power_of::<T>(p).and_then(|power| Some((power, cut::<f64>(Algorithm::Direct, pooling)?)))
    {
        Some((power, sweep)) => T::sum(&sweep, pooling, Divisor::Fixed(1), power, x),
        None => lp::norm(pooling, p, x),
    }
}

/// What is summed for a norm, if the sum is in the range of `f64` wherever the norm is.
fn power_of<T: Poolable>(p: Exponent) -> Option<Power> {
    match p.get() {
        1.0 => Some(Power::One),
        2.0 if size_of::<T>() < size_of::<f64>() => Some(Power::Two),
        _ => None,
    }
}

/// The gradient of an average.
pub fn average_backward<T: Poolable>(pooling: &Pooling, divisor: Divisor, dy: &[T]) -> Vec<T> {
    check_length("the output gradient", dy.len(), pooling.output().elements());
    match backward::Cut::new(&Field::of(pooling)) {
        None => reference_backward::average_backward(pooling, divisor, dy),
        Some(cut) => T::average_backward(&cut, pooling, divisor, dy),
    }
}

/// The gradient of a maximum or a minimum, from the indices of the forward pass; the error is of the first index that
/// is not a position in the plane of its own sample and channel.
pub fn max_backward<T: Poolable>(
    pooling: &Pooling,
    base: IndexBase,
    dy: &[T],
    indices: &[i32],
) -> Result<Vec<T>, IndexOutOfRange> {
    check_length("the output gradient", dy.len(), pooling.output().elements());
    check_length("the tensor of indices", indices.len(), pooling.output().elements());
    T::max_backward(pooling, base, dy, indices)
}

/// The cut of a problem, unless a thread would need too much memory.
fn cut<I: Item>(algorithm: Algorithm, pooling: &Pooling) -> Option<Sweep> {
    Sweep::new::<I>(&Field::of(pooling), algorithm)
}

/// The algorithm of the reference in place of one of these functions.
fn slower(algorithm: Algorithm, pooling: &Pooling) -> Algorithm {
    match algorithm {
        Algorithm::Sliding => reference::choose(pooling),
        direct => direct,
    }
}

/// The most bytes that a pooling or a gradient allocates at any time, including its results but not its arguments;
/// `usize::MAX` if they cannot be counted. The bound grows with the number of cores. [`norm_bytes`] is that of norms.
pub fn bytes<T: Poolable>(pooled: Pooled, algorithm: Algorithm, pooling: &Pooling) -> usize {
    let [inputs, outputs] = [pooling.input(), pooling.output()].map(|shape| shape.elements());
    let of = |elements: usize, size: usize| elements.saturating_mul(size);
    let (x, y) = (of(inputs, size_of::<T>()), of(outputs, size_of::<T>()));
    let parts = match pooled {
        Pooled::Max { indices: false } => {
            scratch(cut::<T::Key>(algorithm, pooling)).map(|scratch| [y, scratch, 0])
        }
        Pooled::Max { indices: true } => scratch(cut::<T::Packed>(algorithm, pooling))
            .map(|scratch| [y, scratch, of(outputs, size_of::<i32>())]),
        Pooled::Average => {
            scratch(T::cut(algorithm, pooling)).map(|scratch| [y, scratch, sink::LIST])
        }
        Pooled::AverageBackward => backward::scratch(pooling).map(|scratch| [x, scratch, 0]),
        Pooled::MaxBackward => Some([x, scatter::scratch(pooling), 0]),
        _ => None,
    };
    match parts {
        Some(parts) => parts.into_iter().fold(ROOM, usize::saturating_add),
        None => memory::pooling::<T>(pooled, slower(algorithm, pooling), pooling),
    }
}

/// The most bytes that [`norm`] allocates at any time, including its result.
pub fn norm_bytes<T: Poolable>(pooling: &Pooling, p: Exponent) -> usize {
    let y = pooling.output().elements().saturating_mul(size_of::<T>());
    match power_of::<T>(p).and_then(|_| scratch(cut::<f64>(Algorithm::Direct, pooling))) {
        Some(scratch) => y.saturating_add(scratch).saturating_add(ROOM),
        None => memory::pooling::<T>(Pooled::Norm, Algorithm::Direct, pooling),
    }
}

/// The bytes that all threads need, unless the reference runs.
fn scratch(sweep: Option<Sweep>) -> Option<usize> {
    Some(sweep?.bytes().saturating_mul(rayon::current_num_threads()))
}
