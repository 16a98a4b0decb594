//! Windows in integers: positions, shapes, layouts and errors.
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
//! *overhang* otherwise, which only ceil rounding creates. Every operator of windowpane, on every
//! backend, forward and backward, uses these positions:
//!
//! * [`Window`] holds the options of a user; [`Window::over`] applies them to an input and checks them;
//! * [`Grid`] is the result: three [`Axis`] values that compute outputs, taps and their inverses;
//! * [`Shape`], [`Layout`] and [`Strides`] give the position of an element in memory.
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
//! [`Window::adaptive`] takes the number of windows instead of their size. [`Padded`] is a tensor with its padding
//! filled in. [`Fractional`] has windows at pseudo-random positions, [`Footprint`] windows that are no rectangles.
//!
//! All arithmetic is checked: a problem too large to compute is an [`Error`], never a wrapped
//! number.
#![no_std]

mod activation;
mod axis;
mod change;
mod dtype;
mod error;
mod extents;
mod filter;
mod footprint;
mod fractional;
mod pad;
mod pass;
mod pooling;
mod random;
mod shape;
mod sorting;
mod tile;
mod window;

pub use activation::{Activation, Precision, UnknownActivation, UnknownPrecision};
pub use axis::Axis;
pub use change::Change;
pub use dtype::{DType, UnknownDType};
pub use error::{AxisName, Error, Quantity};
pub use extents::Extents;
pub use filter::{Convolution, Filter, FilterLayout, FilterStrides};
pub use footprint::{Footprint, Run};
pub use fractional::Fractional;
pub use pad::{Padded, PaddingMode, UnknownPaddingMode};
pub use pass::Pass;
pub use pooling::{Divisor, Exponent, Extremum, IndexBase, Pooling, Rank, UnknownRank};
pub use random::uniform;
pub use shape::{Layout, Shape, Strides};
pub use sorting::merge_exchange;
pub use tile::{Tile, TileOverrides, UnknownTile};
pub use window::{Grid, Padding, Rounding, Same, Window};

/// Every problem is extended to three axes: depth, height, width.
pub const AXES: usize = 3;

/// The largest extent, stride or padding on an axis, so that any coordinate fits in a signed 32-bit
/// integer.
pub const LIMIT: usize = i32::MAX as usize;
