//! Convolution: the dot product of the contents of each window with each filter.
//!
//! ```text
//! y[n, o, f] = activation(Σ { x[n, o·s − before + t·d, c] · w[f, t, c] } + bias[f] + residual[n, o, f])
//! ```
//!
//! As a matrix product, convolution multiplies M = N·SZ_OUT rows (the windows) by K = HF·WF·C columns (the taps,
//! with channels innermost) by a matrix of K rows and NF columns (the filters). The first matrix is never built:
//! index arithmetic replaces it. [`Plan`] chooses one of these kernels for the problem and the device:
//!
//! * [`direct`]: one unit computes one output element. It is the fallback, for every problem except in tf32.
//! * [`implicit_gemm::simt`], [`implicit_gemm::mma`] and [`implicit_gemm::wgmma`]: a cube computes a block of windows
//!   by filters, in registers, on matrix units, or on Hopper's warpgroups.
//! * [`depthwise`], [`grouped`] and [`grouped_mma`]: groups with few channels, which would give a product with too few
//!   columns.
//! * [`cpu`] and [`cpu::weight`]: on a processor, where staging does not pay off, a thread computes a few windows by a
//!   few vectors of filters.
//!
//! The kernel with the lowest estimated time is chosen. Tensors may be rearranged before and after it, in the same call:
//! channels-first ones to channels last, filters with contiguous taps to contiguous channels, inputs to the pixels that
//! windows of one tap do not skip, and pixels to blocks that windows step over. The estimate includes that
//! ([`Arrangement`]).
//!
//! A quantized convolution multiplies `i8` and sums in `i32`, by [`direct`], [`implicit_gemm::simt`] or
//! [`implicit_gemm::mma`]; its epilogue multiplies each sum by the scale of its filter. Where kernels lack `i8`, they
//! compute with copies in `i32`.
//!
//! The bias gradient is a sum, not a product: [`bias`]. Where there are too few sums to keep the device busy, long
//! sums are split into parts, and a second pass adds the parts in a fixed order. No atomics are used, so the same
//! inputs give the same bits.

#![allow(clippy::too_many_arguments, reason = "the parts of a kernel share its state")]

mod arrangement;
pub mod bias;
mod common;
pub mod cpu;
pub mod depthwise;
pub mod direct;
pub mod grouped;
pub mod grouped_mma;
pub mod implicit_gemm;
mod launch;
mod problem;
mod select;
mod space_to_depth;

pub use arrangement::Arrangement;
pub use launch::{Operands, launch};
pub use problem::{Pass, Request};
pub use select::{Algorithm, Config, Plan, PlanOptions, explain};
