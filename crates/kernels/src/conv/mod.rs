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
//! * [`direct`]: one unit computes one output element from all taps inside the input. It computes every problem, except
//!   in tf32, and is the fallback: without shared memory, or with very many phases, groups or columns.
//! * [`implicit_gemm::simt`]: a cube computes a block of windows by filters, staged in shared memory and
//!   summed in registers. It runs on every GPU with shared memory, and computes the weight gradient with rows and terms
//!   exchanged.
//! * [`implicit_gemm::mma`]: the same with fragments multiplied by matrix units, where the device has them
//!   for the type: `f16` and `bf16`, and `f32` where tf32 is requested.
//! * [`implicit_gemm::wgmma`]: the same on Hopper's warpgroups, fed by the tensor copy engine. It also computes
//!   strict `f32`, with each factor split into two parts, or three for the weight gradient; images with few
//!   channels, whose pixels are repacked as lines; numbers of channels that the engine cannot read, padded; and
//!   channels-first tensors where filters have one tap.
//!
//! Groups with few channels give a product with too few columns. For 16 bits, `wgmma` computes their weight gradient by
//! multiplying several groups as one. Otherwise there are:
//!
//! * [`depthwise`]: one filter per channel. Lanes run along the channels or along the width, and a pixel
//!   is loaded once for all windows of a run that read it. It also runs on processors, except for the weight gradient.
//! * [`grouped`]: groups of 4, 8, 12 or 16 channels, and of 4, 8, 12 or 16 filters, on a GPU; of 4 or 8 where matrix
//!   units multiply the type. A unit computes a run of windows by a vector of a group's filters in registers.
//! * [`grouped_mma`]: groups of 1, 2, 4 or 8 channels of 16-bit images on matrix units. A window's taps are bands of a
//!   matrix. It needs matrix units whose fragments a unit can hold in registers of its choice (NVIDIA's `mma`).
//!
//! On a processor, where staging does not pay off:
//!
//! * [`cpu`]: a thread computes a few windows by a few vectors of filters in registers.
//! * [`cpu::weight`]: the same for the weight gradient.
//!
//! The kernel with the lowest estimated time is chosen. A kernel may also compute channels-first tensors in channels last,
//! filters whose taps are contiguous with contiguous channels, or without the pixels that windows of one tap skip: they
//! are then rearranged before and after it, in the same call, and the estimate includes that ([`Arrangement`]).
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

pub use arrangement::Arrangement;
pub use launch::{Operands, launch};
pub use problem::{Pass, Request};
pub use select::{Algorithm, Config, Plan, PlanOptions, explain};
