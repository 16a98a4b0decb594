//! Strips: neighbouring outputs along the outermost axis that has a window, which one unit computes together. The taps
//! that their windows share are loaded once.
//!
//! A unit of [`register_tile`] computes one strip, or two side by side. A thread of [`cpu_rows`] moves along a row of
//! strips.

pub mod cpu_rows;
pub(super) mod form;
pub mod register_tile;
mod strip;
mod taps;
mod windows;
