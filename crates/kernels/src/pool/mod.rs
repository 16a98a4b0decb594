//! Pooling: every window of every channel reduced to one number.
//!
//! ```text
//! y[n, o, c] = reduce over the taps t inside the input of  x[n, o·s − before + t·d, c]
//! ```
//!
//! In the terms of Composable Kernel's example, a matrix of M = N·Dₒ·Hₒ·Wₒ·C rows (the outputs) by
//! K = Z·Y·X columns (the taps) is reduced row by row; the matrix is never built. The kernels:
//!
//! | kernel | how it computes | serves |
//! |---|---|---|
//! | [`direct`] | one unit an output vector reads every tap | every problem |
//! | [`register_tile`] | one unit a strip of outputs: what overlapping windows share is loaded and reduced once | few taps |
//! | [`cpu_rows`] | the same on a processor: a thread walks along the rows of a strip | channels first |
//! | [`van_herk`] | one axis after the other, at a cost that does not grow with the window | many taps |
//! | [`van_herk_fused`] | both axes of a plane in one launch | the same on a GPU, channels first |
//! | [`van_herk_paired`] | the same, with two neighbours a unit | numbers of two bytes; averages with channels last too |
//! | [`plane`] | whole planes in shared memory, and gradients of averages | small planes whose rows no vector divides |
//! | [`stencil_flat`] | all planes as one run of elements, and the gradient | averages of 3×3 there |
//! | [`stencil_rolling`] | units walk down the rows and keep what the next windows share, and the gradient | averages of 3×3, many channels last |
//! | [`block_reduce`] | a team of units a window | few windows of many taps: global pooling |
//! | [`gather`] | gradients: one unit an input vector | every problem |
//! | [`gather_tile`] | gradients: one unit a block of inputs, the windows over which are read once | few windows over an input |
//! | [`gather_staged`] | gradients of maxima: cubes walk along planes with windows in shared memory | many channels last |
//! | [`lp`] | the norm, whose taps are visited twice, and its gradient | norms |
//! | [`unpool`] | maxima back to where they were, and the gradient | unpooling |
//!
//! `problem` is what is computed, `common` what several kernels share, and each folder a kernel: its plan, its
//! check, its launch and its code. `select` is the registry that chooses among them, `launch` the door where
//! plans and buffers are checked.
//!
//! Channels-first is channels-last with one channel a pixel and N·C samples: one kernel serves
//! both, the lanes of a vector lying along the channels where there are several.

pub mod block_reduce;
mod common;
pub mod cpu_rows;
pub mod direct;
mod error;
pub mod gather;
pub mod gather_staged;
pub mod gather_tile;
mod launch;
pub mod lp;
pub mod plane;
mod problem;
pub mod register_tile;
mod select;
pub mod stencil_flat;
pub mod stencil_rolling;
pub mod unpool;
pub mod van_herk;
pub mod van_herk_fused;
pub mod van_herk_paired;

pub use common::settings::Settings;
pub use error::PlanError;
pub use launch::{
    launch, launch_backward, launch_lp_backward, launch_unpool, launch_unpool_backward,
};
pub use problem::{Gradient, Output, Reduction};
pub use select::{Algorithm, Config, Plan, Verdict};
