//! Convolution: the dot product of what is inside a window with each filter.
//!
//! ```text
//! y[n, o, f] = activation(Σ { x[n, o·s − before + t·d, c] · w[f, t, c] } + bias[f] + residual[n, o, f])
//! ```
//!
//! Seen as one product of matrices, M = N·SZ_OUT rows (the windows) by K = HF·WF·C columns (the
//! taps, their channels innermost) times K by NF (the filters). The first matrix is never built:
//! index arithmetic stands for it. The ladder, of which [`plan`] takes the fastest rung that a problem and
//! a device have:
//!
//! * [`direct`]: one unit an output element reads every tap inside. Right for every problem, and the last
//!   resort: without shared memory, with very many phases, groups or columns.
//! * [`tiled`]: blocks of windows by filters a cube, staged in shared memory and summed in registers.
//!   On every GPU; with rows and terms changing places, the gradient of the filters too.
//! * [`matrix`]: the same with fragments multiplied by matrix units, where the device has them for the
//!   type: `f16` and `bf16`, and `f32` where tf32 is asked for.
//! * [`hopper`]: the same on Hopper's warpgroups, fed by the tensor copy engine; strict `f32` too, each
//!   factor in two parts, or in three for the gradient of the filters; and images of few channels, their
//!   pixels laid in lines.
//!
//! Of few channels a product has too few columns. Forward and for the gradient of the data:
//!
//! * [`depthwise`]: a filter a channel, lanes along the channels or along the width, a pixel loaded once for
//!   all of a run's windows that read it. On processors too.
//! * [`grouped`]: groups of 4 to 16 channels on a GPU, a run of windows by a vector of a group's filters a
//!   unit, all in registers.
//! * [`banded`]: groups of 1 to 8 channels of images in 16 bits, on matrix units whose fragments a unit may
//!   hold as it pleases: a window's taps as bands of a matrix.
//!
//! On a processor, where nothing is worth staging:
//!
//! * [`wide`]: a few windows by a few vectors of filters a thread, all in registers.
//! * [`wide::filter`]: likewise for the gradient of the filters.
//!
//! The gradient of the bias is a sum and no product: [`reduce`], whichever rung is named. A sum that few units share is cut into parts, and the parts are added in a second pass in one
//! order always, there too: no atomics, and the same inputs give the same bits.

pub mod banded;
mod blocks;
pub mod depthwise;
pub mod direct;
mod epilogue;
mod gather;
pub mod grouped;
pub mod hopper;
mod launch;
pub mod matrix;
mod pack;
pub mod plan;
pub mod reduce;
mod run;
mod tensor;
pub mod tiled;
pub mod wide;

pub use launch::{Operands, launch};
pub use plan::{Algorithm, Pass, Plan, PlanError, Request, Wish};
