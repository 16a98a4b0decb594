//! An upper bound on the memory that a problem needs, known before it is computed, because Rust aborts the program
//! when an allocation fails.
//!
//! Each function returns the most bytes that a call of [`pool`](crate::pool) or [`conv`](crate::conv) allocates at
//! any time, including its results but not its arguments. The bound grows with the number of cores. It is
//! `usize::MAX` if the bytes cannot be counted.

use rayon::current_num_threads;
use windowpane_geometry::{Convolution, Fractional, Padded, Pass, Pooling};

use crate::Scalar;
use crate::pool::Algorithm;
pub use crate::pool::memory::Pooled;

/// A list that grows may take the memory of this many times the elements that it needs.
pub(crate) const GROWTH: usize = 3;

/// The bytes that rayon and small lists need for any problem.
const ROOM: usize = 1 << 18;

/// The bytes of a pooling, or of its gradient.
///
/// ```
/// use windowpane_geometry::{Extents, Layout, Pooling, Shape, Window};
/// use windowpane_reference::memory::{Pooled, pooling};
/// use windowpane_reference::pool::Algorithm;
///
/// let image = Shape::new(1, 1, Extents::from([2000, 2000]))?;
/// let halves = Pooling::new(image, &Window::new([2, 2]).stride([2, 2]), Layout::ChannelsLast)?;
/// let bytes = pooling::<f32>(Pooled::Max { indices: true }, Algorithm::Direct, &halves);
/// assert!(bytes >= 1000 * 1000 * 8);
/// # Ok::<(), windowpane_geometry::Error>(())
/// ```
pub fn pooling<T: Scalar>(pooled: Pooled, algorithm: Algorithm, pooling: &Pooling) -> usize {
    pooled.bytes::<T>(algorithm, pooling).saturating_add(ROOM)
}

/// The bytes of a fractional max pooling, and of its random numbers. Its gradient is [`Pooled::MaxBackward`].
pub fn fractional<T: Scalar>(problem: &Fractional) -> usize {
    let each = size_of::<T>() + size_of::<i32>();
    let results = product([problem.pooling().output().elements(), each]);
    let samples = product([problem.sample_count(), size_of::<f32>()]);
    results.saturating_add(samples).saturating_add(ROOM)
}

/// The bytes of a convolution, or of one of its gradients.
pub fn convolution<T: Scalar>(pass: Pass, conv: &Convolution) -> usize {
    let (filter, input) = (conv.filter(), conv.input());
    let of = |elements: usize| product([elements, size_of::<T>()]);
    let bytes = match pass {
        Pass::Forward => of(conv.output().elements()),
        Pass::Data => {
            let workers = workers(input.batch());
            let sums =
                product([workers, input.elements() / input.batch().max(1), size_of::<f64>()]);
            of(input.elements()).saturating_add(sums)
        }
        Pass::Weight => {
            let lists = product([filter.count(), size_of::<Vec<f64>>()]);
            let sums = product([filter.elements(), size_of::<f64>()]).saturating_add(lists);
            of(filter.elements()).saturating_add(sums)
        }
        Pass::Bias => of(filter.count()),
    };
    bytes.saturating_add(ROOM)
}

/// The bytes of a tensor with its padding, or with `gradient` of its gradient.
pub fn padded<T: Scalar>(padded: &Padded, gradient: bool) -> usize {
    let of = |elements: usize, size: usize| product([elements, size]);
    let (input, output) = (padded.input(), padded.output());
    let bytes = match gradient {
        false => of(output.elements(), size_of::<T>()),
        true => {
            let sums = of(input.elements() / input.batch().max(1), size_of::<f64>());
            let sums = product([workers(input.batch()), sums]);
            of(input.elements(), size_of::<T>()).saturating_add(sums)
        }
    };
    bytes.saturating_add(ROOM)
}

/// The number of these tasks that run at the same time.
pub(crate) fn workers(tasks: usize) -> usize {
    tasks.min(current_num_threads())
}

/// A product that saturates at `usize::MAX`.
pub(crate) fn product<const N: usize>(factors: [usize; N]) -> usize {
    factors.into_iter().fold(1, usize::saturating_mul)
}
