//! The rank filter: the number of each window that a given number of others precede.
//!
//! ```text
//! y[o] = the numbers x[x(o, t)], t inside, in order, at rank(n)      n of them; an empty window: 0
//! ```
//!
//! The order is that of maxima: −0 is less than +0. NaN has no place in it: a window with NaN gives NaN.

use windowpane_geometry::{Pooling, Rank};

use super::windows::{order, reduced};
use crate::Scalar;

/// The number of each window at a rank, which must pass [`Rank::check`].
///
/// ```
/// use windowpane_geometry::{Extents, Layout, Pooling, Rank, Shape, Window};
/// use windowpane_reference::pool::rank::rank;
///
/// let line = Shape::new(1, 1, Extents::from([5]))?;
/// let pooling = Pooling::new(line, &Window::new([3]).padding([1]), Layout::ChannelsLast)?;
/// assert_eq!(rank(&pooling, Rank::MEDIAN, &[7, 1, 9, 2, 3]), [7, 7, 2, 3, 3]);
/// # Ok::<(), windowpane_geometry::Error>(())
/// ```
pub fn rank<T: Scalar>(pooling: &Pooling, rank: Rank, x: &[T]) -> Vec<T> {
    reduced(pooling, x, |numbers| taken(numbers, rank))
}

/// The number at this rank; NaN if there is one, and 0 if there is none.
fn taken<T: Scalar>(numbers: &mut [T], rank: Rank) -> T {
    if let Some(&nan) = numbers.iter().find(|number| number.to_f64().is_nan()) {
        return nan;
    }
    if numbers.is_empty() {
        return T::ZERO;
    }
    let rank = rank.of(numbers.len());
    *numbers.select_nth_unstable_by(rank, order).1
}
