//! Pooling and convolution for every GPU, from one source.
//!
//! The kernels are written once, in CubeCL, and run on CUDA, Vulkan, WebGPU, Metal, ROCm and the
//! CPU; each backend is a cargo feature. The backend `host` is always there and needs no driver: it
//! computes convolutions as matrix products, and poolings in loops, on all cores.
//!
//! Arrays are channels-last by default: `[N, H, W, C]`, with filters as `[F, H, W, C]`.
//!
//! ```
//! use windowpane::{Device, MaxPool, Tensor};
//!
//! let device = Device::best();
//! let pixels: Vec<f32> = (0..8 * 8 * 4).map(|i| i as f32).collect();
//! let x = Tensor::from_slice(&device, &pixels, [1, 8, 8, 4])?; // channels-last
//! let pool = MaxPool::new([3, 3]).stride([2, 2]).padding([1, 1]);
//!
//! let y = pool.forward(&x)?;
//! assert_eq!(y.dims(), [1, 4, 4, 4]);
//! assert_eq!(y.to_vec::<f32>()?[0], pixels[(8 + 1) * 4]);
//! # Ok::<(), windowpane::Error>(())
//! ```
//!
//! Launches are asynchronous. Reading a tensor waits for it and returns errors of the work behind it.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod asynchronous;
#[cfg(feature = "kernels")]
mod at_exit;
mod ceiling;
mod conv;
mod device;
mod element;
mod error;
#[cfg(any(feature = "npy", feature = "safetensors"))]
mod files;
#[cfg(feature = "kernels")]
mod listen;
#[cfg(feature = "kernels")]
mod loop_limit;
#[cfg(feature = "ndarray")]
mod nd;
mod output_reuse;
mod pad;
mod plan;
#[cfg(feature = "kernels")]
mod plan_cache;
mod pool;
mod recording;
#[cfg(feature = "kernels")]
mod speeds;
mod tensor;
#[cfg(feature = "kernels")]
mod watchdog;
#[cfg(all(feature = "kernels", target_os = "linux"))]
mod wayland_log;

pub use ceiling::ArithmeticUnit;
pub use conv::{
    Conv, ConvAlgorithm, ConvPlan, ConvTranspose, QuantizedConv, Tuned, UnknownConvAlgorithm,
    UnknownTuned,
};
pub use device::{Backend, Device, UnknownBackend};
pub use element::Element;
pub use error::Error;
pub use pad::Pad;
pub use plan::{PoolAlgorithm, PoolPlan, UnknownPoolAlgorithm};
pub use pool::{
    AvgPool, FractionalMaxPool, LpPool, MaxPool, MaxUnpool, MedianPool, MinPool, ModePool,
    RankPool, StochasticPool, SumPool,
};
pub use recording::Recording;
pub use tensor::Tensor;
/// For `windowpane-burn`: there Burn lists the devices.
#[cfg(all(feature = "kernels", target_os = "linux"))]
#[doc(hidden)]
pub use wayland_log::without_a_desktop;
/// The crate that describes problems: windows, shapes, layouts, and errors for invalid ones.
pub use windowpane_geometry as geometry;
pub use windowpane_geometry::{
    Activation, Convolution, DType, Divisor, Exponent, Extents, Filter, FilterLayout, IndexBase,
    Layout, Padding, PaddingMode, Pass, Pooling, Precision, Rank, Rounding, Same, Tile,
    TileOverrides, UnknownActivation, UnknownDType, UnknownPaddingMode, UnknownPrecision,
    UnknownRank, UnknownTile, Window,
};
/// The crate of the kernels, whose plans can be overridden.
#[cfg(feature = "kernels")]
pub use windowpane_kernels as kernels;
#[cfg(feature = "kernels")]
pub use windowpane_kernels::Speeds;
pub use windowpane_reference::{Scalar, pool::backward::IndexOutOfRange};

/// The result type of this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// The README's program, as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
