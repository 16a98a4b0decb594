//! The reference: pooling and convolution as plain loops, written to be read.
//!
//! Every kernel on every device is compared with this crate. Maxima are elements of the input; every
//! sum is computed in `f64` and rounded once to the type of the result. It is also available
//! unrounded, as a [`Total`] with the data for an error bound. Gradients are scatters, while
//! most kernels gather, so that the same mistake is unlikely to be in both.
//!
//! * [`pool`] has the loops and, for large windows, two algorithms whose work does not grow with the
//!   window: a monotone deque for maxima and prefix sums for averages.
//! * [`conv`] has the forward pass and its gradients.
//! * [`pad`] fills in the padding of a tensor.
//! * [`parallel`] has the loops on all cores.
//! * [`memory`] bounds the memory that each of them allocates, before it runs.
//!
//! ```
//! use windowpane_geometry::{Extents, Layout, Pooling, Shape, Window};
//! use windowpane_reference::pool;
//!
//! let image = Shape::new(1, 1, Extents::from([2, 4]))?;
//! let pooling = Pooling::new(image, &Window::new([2, 2]).stride([2, 2]), Layout::ChannelsLast)?;
//! let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
//! assert_eq!(pool::max(&pooling, &x), [6.0, 8.0]);
//! # Ok::<(), windowpane_geometry::Error>(())
//! ```
//!
//! The caller must pass slices with the lengths that the geometry gives, and indices that pass
//! [`check_indices`](windowpane_geometry::Pooling::check_indices). Otherwise the functions panic with a
//! message that contains the numbers; nothing else panics. All cores are used.

pub mod conv;
pub mod memory;
pub mod pad;
pub mod parallel;
pub mod pool;
mod scalar;
mod taps;
mod total;

pub use scalar::Scalar;
pub use total::Total;

/// Items that [`with_element!`] refers to in other crates.
#[doc(hidden)]
pub mod types {
    pub use half::{bf16, f16};
    pub use windowpane_geometry::DType;
}

/// Panics if the length of a slice does not match the geometry; see the crate documentation.
#[track_caller]
fn check_length(what: &str, found: usize, expected: usize) {
    assert_eq!(found, expected, "{what} has {found} elements but its shape has {expected}");
}
