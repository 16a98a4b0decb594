//! The mode: the most frequent number of each window.
//!
//! ```text
//! y[o] = the number that most of the x[x(o, t)], t inside, are      the smallest if several; an empty window: 0
//! ```
//!
//! Numbers are the same if neither is less in the order of maxima, so −0 and +0 are two numbers. A window with NaN gives
//! NaN.

use windowpane_geometry::Pooling;

use super::windows::{order, reduced};
use crate::Scalar;

/// The most frequent number of each window; the smallest one if several are equally frequent.
///
/// ```
/// use windowpane_geometry::{Extents, Layout, Pooling, Shape, Window};
/// use windowpane_reference::pool::mode::mode;
///
/// let line = Shape::new(1, 1, Extents::from([6]))?;
/// let pooling = Pooling::new(line, &Window::new([3]).padding([1]), Layout::ChannelsLast)?;
/// assert_eq!(mode(&pooling, &[7, 1, 7, 7, 3, 9]), [1, 7, 7, 7, 3, 3]);
/// # Ok::<(), windowpane_geometry::Error>(())
/// ```
pub fn mode<T: Scalar>(pooling: &Pooling, x: &[T]) -> Vec<T> {
    reduced(pooling, x, most_frequent)
}

/// The most frequent of these numbers; NaN if there is one, and 0 if there is none.
fn most_frequent<T: Scalar>(numbers: &mut [T]) -> T {
    if let Some(&nan) = numbers.iter().find(|number| number.to_f64().is_nan()) {
        return nan;
    }
    numbers.sort_unstable_by(order);
    let mut best: &[T] = &[];
    for same in numbers.chunk_by(|a, b| order(a, b).is_eq()) {
        // Only a longer run wins: of several the first one, which has the least number.
        if same.len() > best.len() {
            best = same;
        }
    }
    best.first().copied().unwrap_or(T::ZERO)
}
