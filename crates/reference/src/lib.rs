//! The truth: pooling and convolution as plain loops, written to be read.
//!
//! Every kernel on every device is compared with this crate. Maxima are the very elements of the
//! input; every sum is an `f64`, rounded once to the type of the result, and can be had unrounded
//! as a [`Total`], with what a bound on a kernel's error is made of. Gradients are written as
//! scatters where the kernels gather, so that one mistake cannot be in both.
//!
//! * [`pool`] has the loops and, for large windows, two forms whose work does not grow with the
//!   window: a monotone deque for the maximum and prefix sums for the average.
//! * [`conv`] has the forward pass and its gradients.
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
//! Slices must have the lengths that the geometry says, and indices must fit as
//! [`check_indices`](windowpane_geometry::Pooling::check_indices) says. Both are the caller's to
//! check, and panic with a message that names the numbers; nothing else does. All cores are used.

pub mod conv;
pub mod pool;
mod scalar;
mod taps;
mod total;

pub use scalar::Scalar;
pub use total::Total;

/// What [`with_element!`] names in the crates that use it.
#[doc(hidden)]
pub mod types {
    pub use half::{bf16, f16};
    pub use windowpane_geometry::DType;
}

/// Panics when a slice is not what the geometry says: see the crate's documentation.
#[track_caller]
fn check_length(what: &str, found: usize, expected: usize) {
    assert_eq!(found, expected, "{what} has {found} elements but its shape has {expected}");
}
