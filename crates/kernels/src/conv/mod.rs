//! Convolution: the dot product of what is inside a window with each filter.
//!
//! ```text
//! y[n, o, f] = activation(Σ { x[n, o·s − before + t·d, c] · w[f, t, c] } + bias[f] + residual[n, o, f])
//! ```
//!
//! Seen as one product of matrices, M = N·SZ_OUT rows (the windows) by K = HF·WF·C columns (the
//! taps, their channels innermost) times K by NF (the filters). The first matrix is never built:
//! index arithmetic stands for it. [`Plan`] chooses among these kernels, by the problem and the device:
//!
//! * [`direct`]: one unit computes one output element from every tap inside. It is correct for every problem,
//!   and the last resort: without shared memory, or with very many phases, groups or columns.
//! * [`implicit_gemm::simt`]: a cube computes a block of windows by filters, staged in shared memory and
//!   summed in registers. It runs on every GPU, and computes the gradient of the filters with rows and terms
//!   exchanged.
//! * [`implicit_gemm::mma`]: the same with fragments multiplied by matrix units, where the device has them
//!   for the type: `f16` and `bf16`, and `f32` where tf32 is asked for.
//! * [`implicit_gemm::wgmma`]: the same on Hopper's warpgroups, fed by the tensor copy engine; strict `f32`
//!   too, each factor in two parts, or in three for the gradient of the filters; and images of few channels,
//!   their pixels repacked as lines.
//!
//! Groups of few channels give a product too few columns. Forward and for the gradient of the data:
//!
//! * [`depthwise`]: one filter for each channel. Lanes run along the channels or along the width, and a pixel
//!   is loaded once for all windows of a run that read it. On processors too.
//! * [`grouped`]: groups of 4 to 16 channels on a GPU. A unit computes a run of windows by a vector of a
//!   group's filters in registers.
//! * [`grouped_mma`]: groups of 1 to 8 channels of images in 16 bits, with a window's taps as bands of a
//!   matrix, on matrix units whose fragments a unit may hold in registers of its own choice.
//!
//! On a processor, where staging does not pay:
//!
//! * [`cpu`]: a thread computes a few windows by a few vectors of filters in registers.
//! * [`cpu::filter`]: the same for the gradient of the filters.
//!
//! A kernel computes in one layout. [`wgmma`](implicit_gemm::wgmma) only reads channels-last tensors, so channels-first
//! tensors are transposed before and after it, in the same call, where the work is worth it.
//!
//! The gradient of the bias is a sum and no product: [`bias`]. Long sums that few units would share are cut
//! into parts, and a second pass adds the parts, always in the same order: no atomics, and the same inputs
//! give the same bits.

pub mod bias;
mod common;
pub mod cpu;
pub mod depthwise;
pub mod direct;
mod error;
pub mod grouped;
pub mod grouped_mma;
pub mod implicit_gemm;
mod launch;
mod problem;
mod select;
mod transposes;

pub use error::{NotApplicable, PlanError};
pub use launch::{Operands, launch};
pub use problem::{Pass, Request};
pub use select::{Algorithm, Config, Plan, Verdict, Wish, explain};
