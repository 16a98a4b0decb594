//! Pooling: reduces every window of every channel to one number.
//!
//! ```text
//! y[n, o, c] = reduce over the taps t inside the input of  x[n, o·s − before + t·d, c]
//! ```
//!
//! In the terms of the pooling example of Composable Kernel (AMD's kernel library), a matrix with M = N·Dₒ·Hₒ·Wₒ·C rows
//! (the outputs) and K = Z·Y·X columns (the taps) is reduced row by row, without ever being built. The kernels:
//!
//! | kernel | how it computes | serves |
//! |---|---|---|
//! | [`direct`] | one unit per output vector reads every tap | all but norms, ranks, modes and drawings |
//! | [`register_tile`] | one unit per strip of outputs; shared taps are loaded and reduced once | few taps |
//! | [`cpu_rows`] | the same on a processor: a thread walks along the rows of a strip | channels first |
//! | [`van_herk`] | one axis after the other or a plane at once, at a cost that does not grow with the window | many taps |
//! | [`stencil`] | neighbouring windows of stride 1 share their sums; also the gradient | 3×3 averages, the same planes |
//! | [`block_reduce`] | a team of units per window; small planes in shared memory | few windows of many taps: global pooling |
//! | [`gather`] | gradients: one unit per input vector | all but norms |
//! | [`gather_tile`] | gradients: one unit per block of inputs reads its windows once | few windows over an input |
//! | [`gather_staged`] | gradients of maxima: cubes walk along planes, windows in shared memory | NHWC, many channels |
//! | [`scatter`] | gradients of maxima: zeros, then each window's gradient | large windows that do not overlap |
//! | [`segmented_scatter`] | gradients of maxima: windows with the same winner are added up first | many windows over an input |
//! | [`lp`] | the norm, which visits its taps twice, and its gradient | norms |
//! | [`rank`] | medians and other ranks, by comparing pairs or bit by bit; modes, by sorting or counting | ranks, modes |
//! | [`stochastic`] | draws a number of each window, or computes the mean of what is drawn | stochastic pooling |
//! | [`fractional`] | maxima of windows at random distances; also the gradient | fractional max pooling |
//! | [`footprint`] | extrema of the taps that count, by runs of them | windows that are no rectangles |
//! | [`unpool`] | moves maxima back to their positions; also the gradient | unpooling |
//!
//! `problem` describes what is computed and `common` holds the code that several kernels share. Each folder is one
//! kernel: its plan, its check, its estimated time, its launch and its code. The folder [`strips`] holds two kernels and
//! what they share. `select` is the registry that chooses a kernel, and `launch` is the entry point, which checks plans
//! and buffers.
//!
//! What a kernel is given besides its tensors is of two kinds. Its `Form` holds the parameters that change its code:
//! another value compiles another kernel. Its arguments, such as `ProblemArgs`, are run-time values: a new image size or
//! batch compiles nothing. In a kernel, `S` is the type in which elements are stored, `A` the type in which
//! they are compared or summed, and `N` the lanes of a vector.
//!
//! Channels-first is treated as channels-last with one channel per pixel and N·C samples, so one kernel serves both.
//! The lanes of a vector lie along the channels when a pixel has several.

#![allow(clippy::too_many_arguments, reason = "the parts of a kernel share its state")]

pub mod block_reduce;
mod common;
pub mod direct;
pub mod footprint;
pub mod fractional;
pub mod gather;
pub mod gather_staged;
pub mod gather_tile;
mod launch;
pub mod lp;
mod problem;
pub mod rank;
pub mod scatter;
pub mod segmented_scatter;
mod select;
pub mod stencil;
pub mod stochastic;
pub mod strips;
mod unpacked;
pub mod unpool;
pub mod van_herk;

pub use common::settings::Settings;
pub use launch::{Tensors, launch, launch_footprint, launch_fractional, launch_unpool};
pub use problem::{Gradient, Output, Problem, Reduction};
pub use select::{Algorithm, Config, Plan};
pub use strips::{cpu_rows, register_tile};
