//! What a window is, in integers.
//!
//! A window of `k` taps, `d` apart, slides over an axis of `L` coordinates in steps of `s`, with
//! `before` and `after` coordinates of padding:
//!
//! ```text
//! x(o, t) = o·s − before + t·d        output o, tap t reads coordinate x
//! O       = ⌊(L + before + after − (d·(k−1) + 1)) / s⌋ + 1
//! ```
//!
//! A tap is *inside* when `0 ≤ x < L`, *padded* when it is outside but within the padding, and
//! *overhang* otherwise, which only ceil rounding brings about. Every operator of windowpane, on
//! every backend, forward and backward, takes its positions from here:
//!
//! * [`Window`] is what a user asks for; [`Window::over`] lays it over an input and checks it;
//! * [`Grid`] is the answer: three [`Axis`] values that know their outputs, taps and inverses;
//! * [`Shape`], [`Layout`] and [`Strides`] say where an element lives in memory.
//!
//! ```
//! use windowpane_geometry::{Extents, Window};
//!
//! let grid = Window::new([3, 3]).stride([2, 2]).padding([1, 1]).over(Extents::from([112, 112]))?;
//! assert_eq!(grid.output(), Extents::from([56, 56]));
//! assert_eq!(grid.axis(0).inside(0), 1..3); // tap 0 of the first window is padding
//! # Ok::<(), windowpane_geometry::Error>(())
//! ```
//!
//! Or the windows are asked for by their number: [`Window::adaptive`].
//!
//! All arithmetic is checked: a problem too large to compute is an [`Error`], never a wrapped
//! number.
#![no_std]

mod activation;
mod axis;
mod dtype;
mod error;
mod extents;
mod filter;
mod pass;
mod pooling;
mod shape;
mod tile;
mod window;

pub use activation::{Activation, Precision, UnknownActivation, UnknownPrecision};
pub use axis::Axis;
pub use dtype::{DType, UnknownDType};
pub use error::{AxisName, Error, Quantity};
pub use extents::Extents;
pub use filter::{Convolution, Filter, FilterLayout, FilterStrides};
pub use pass::Pass;
pub use pooling::{Divisor, Exponent, IndexBase, Pooling};
pub use shape::{Layout, Shape, Strides};
pub use tile::{Tile, Tiling, UnknownTiling};
pub use window::{Grid, Padding, Rounding, Same, Window};

/// The axes that every problem is extended to: depth, height, width.
pub const AXES: usize = 3;

/// The largest extent, stride or padding on an axis, so that a kernel can hold any coordinate in
/// 32 bits with its sign.
pub const LIMIT: usize = i32::MAX as usize;
