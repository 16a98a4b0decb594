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
//!
//! # Convolution
//!
//! [`Conv`] takes the numbers of filters and channels from its tensors. Bias and activation are applied to the
//! sums before they are rounded.
//!
//! ```
//! use windowpane::{Activation, Conv, Device, Tensor};
//!
//! let device = Device::host();
//! let x = Tensor::from_slice(&device, &[1f32, 2.0, 4.0, 8.0], [1, 4, 1])?; // N, W, C
//! let w = Tensor::from_slice(&device, &[-1f32, 1.0, 1.0, 1.0], [2, 2, 1])?; // F, W, C: a difference and a sum
//! let b = Tensor::from_slice(&device, &[-2f32, 0.0], [2])?;
//! let y = Conv::new(2).activation(Activation::Relu).forward(&x, &w, Some(&b))?;
//! assert_eq!(y.dims(), [1, 3, 2]);
//! assert_eq!(y.to_vec::<f32>()?, [0.0, 3.0, 0.0, 6.0, 2.0, 12.0]);
//! # Ok::<(), windowpane::Error>(())
//! ```
//!
//! # Gradients
//!
//! There is no automatic differentiation: most operators have functions for their gradients. The same inputs on the
//! same device give the same bits.
//!
//! ```
//! use windowpane::{Device, MaxPool, Tensor};
//!
//! let x = Tensor::from_slice(&Device::host(), &[1f32, 5.0, 4.0, 2.0], [1, 4, 1])?;
//! let dy = Tensor::from_slice(&Device::host(), &[10f32, 20.0], [1, 2, 1])?;
//! let pool = MaxPool::new(2);
//! let (_, winners) = pool.forward_with_indices(&x)?; // 1 and 2
//! let dx = pool.backward(&dy, &winners, x.dims())?;
//! assert_eq!(dx.to_vec::<f32>()?, [0.0, 10.0, 20.0, 0.0]);
//! let same = pool.backward_from_input(&dy, &x)?; // finds the winners again
//! assert_eq!(same.to_vec::<f32>()?, dx.to_vec::<f32>()?);
//! # Ok::<(), windowpane::Error>(())
//! ```
//!
//! # Devices and features
//!
//! [`Device::best`] is a GPU if there is one, else the CPU. [`Device::cuda`] and its siblings open a device by name,
//! and [`Device::all`] lists those there are. Features add up; without any, there is only [`Device::host`].
//!
//! | feature | what it adds |
//! |---|---|
//! | `wgpu` (default), `webgpu` | any GPU, through WGSL |
//! | `vulkan` | GPUs with a Vulkan driver, through SPIR-V: f64, bf16 and matrix units where the driver has them |
//! | `cuda`, `hip`, `metal` | GPUs of NVIDIA, AMD and Apple |
//! | `cpu` | the CPU, with compiled kernels; needs LLVM to build |
//! | `kernels` | what every backend but `host` needs; the features above turn it on |
//! | `kernel-cache` | compiled kernels are kept on disk; `cuda` and `hip` turn it on, `cpu` and `vulkan` use it too |
//! | `ndarray`, `npy`, `safetensors` | tensors from and to arrays and files |
//!
//! # Errors
//!
//! An [`Error`] says in one sentence what was asked, what was found and what to do. Most operators have a `plan`, which
//! checks a problem and chooses its kernel, and computes nothing.
//!
//! ```
//! use windowpane::{DType, Device, MaxPool};
//!
//! let plan = MaxPool::new(9).plan(&Device::host(), DType::F32, &[1, 8, 8, 1]);
//! println!("{}", plan.unwrap_err()); // the window is longer than the input
//! ```
//!
//! The guide is in the folder `docs/guide` of the repository.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod asynchronous;
#[cfg(feature = "kernels")]
mod at_exit;
mod ceiling;
mod compile;
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
#[cfg(feature = "kernels")]
mod race;
mod recording;
#[cfg(feature = "kernels")]
mod speeds;
mod tensor;
mod tuned;
#[cfg(feature = "kernels")]
mod watchdog;
#[cfg(all(feature = "kernels", target_os = "linux"))]
mod wayland_log;

pub use ceiling::ArithmeticUnit;
pub use conv::{Conv, ConvAlgorithm, ConvPlan, ConvTranspose, QuantizedConv, UnknownConvAlgorithm};
pub use device::{Backend, Device, UnknownBackend};
pub use element::Element;
pub use error::Error;
pub use pad::Pad;
pub use plan::{PoolAlgorithm, PoolPlan, UnknownPoolAlgorithm};
pub use pool::{
    AvgPool, FractionalMaxPool, LpPool, MaxPool, MaxUnpool, MedianPool, MinPool, ModePool,
    Morphology, RankPool, StochasticPool, SumPool,
};
pub use recording::Recording;
pub use tensor::Tensor;
pub use tuned::{Tuned, UnknownTuned};
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
