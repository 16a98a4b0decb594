//! Poolings that Burn lacks, as modules and functions like Burn's own, with gradients.
//!
//! | modules | function | result | gradient |
//! |---|---|---|---|
//! | [`LpPool1d`], [`LpPool2d`], [`LpPool3d`] | [`lp_pool`] | norms | yes |
//! | [`SumPool1d`], [`SumPool2d`], [`SumPool3d`] | [`sum_pool`] | sums | yes |
//! | [`MinPool1d`], [`MinPool2d`], [`MinPool3d`] | [`min_pool`] | minima | yes |
//! | [`MedianPool1d`], [`MedianPool2d`], [`MedianPool3d`] | [`median_pool`] | medians | no |
//! | [`AdaptiveMaxPool1d`], [`AdaptiveMaxPool2d`], [`AdaptiveMaxPool3d`] | [`adaptive_max_pool`] | maxima | yes |
//! | [`MaxUnpool1d`], [`MaxUnpool2d`], [`MaxUnpool3d`] | [`max_unpool`] | maxima at their positions, and zeros | yes |
//!
//! A module is configured as Burn's own are. A function takes a [`Window`](crate::Window), or the size of the output, and
//! tensors with one to three axes behind samples and channels. They need no [`install`](crate::install).
//!
//! ```
//! use burn::nn::PaddingConfig2d;
//! use burn::tensor::{Device, DeviceKind, Tensor};
//! use windowpane_burn::Window;
//! use windowpane_burn::nn::{MinPool2dConfig, min_pool};
//!
//! let device = Device::wgpu(DeviceKind::DefaultDevice).autodiff();
//! let x = Tensor::<4>::from_data([[[[1.0, 5.0, 2.0], [4.0, 3.0, 0.5]]]], &device).require_grad();
//! let pool = MinPool2dConfig::new([2, 2])
//!     .with_strides([1, 1])
//!     .with_padding(PaddingConfig2d::Explicit(0, 0, 0, 1))
//!     .init();
//! let y = pool.forward(x.clone());
//! let numbers = |x: Tensor<4>| x.into_data().try_to_vec::<f32>().expect("it is f32");
//! assert_eq!(numbers(y.clone()), [1.0, 0.5, 0.5]);
//!
//! let same = min_pool(x.clone(), Window::new([2, 2]).padding([(0, 0), (0, 1)]));
//! assert_eq!(numbers(same), numbers(y.clone()));
//!
//! let dx = x.grad(&y.sum().backward()).expect("x is tracked");
//! assert_eq!(numbers(dx), [1.0, 0.0, 0.0, 0.0, 0.0, 2.0]);
//! ```
//!
//! windowpane computes everything, forward and backward, in the memory that Burn owns and in Burn's queue. Nothing is
//! put together from Burn's own operators. Only a slice, or a tensor that is neither channels first nor channels last,
//! is copied before. Elements are f64, f32, f16 or bf16, if the device has the type.
//!
//! The operators run on Burn's CubeCL devices. A tensor on another device, and a problem that windowpane cannot compute
//! on a device, is a panic with the reason, as for Burn's own operators.
//!
//! # How corners are treated
//!
//! - NaN in a window gives NaN.
//! - Padding has no numbers: the minimum of a window at the border is that of its numbers inside. A window without any
//!   gives +∞ for minima, −∞ for maxima, and 0 otherwise.
//! - The norm is `(Σ|x|^p)^(1/p)` for a finite `p` of at least 1. No intermediate value overflows or vanishes, and
//!   sums of f16 and bf16 are added in f32. Burn's own `LpPool1d` and `LpPool2d` have no padding and no dilation.
//! - Of two middle numbers the median is the larger one. Its result is detached from the graph.
//! - Gradients have the same bits in each run.

mod functions;
mod gradient;
mod modules;
mod primitive;
mod queue;

pub use functions::{
    adaptive_max_pool, adaptive_max_pool_with_indices, lp_pool, max_unpool, median_pool, min_pool,
    min_pool_with_indices, sum_pool,
};
pub use modules::{
    AdaptiveMaxPool1d, AdaptiveMaxPool1dConfig, AdaptiveMaxPool2d, AdaptiveMaxPool2dConfig,
    AdaptiveMaxPool3d, AdaptiveMaxPool3dConfig, LpPool1d, LpPool1dConfig, LpPool2d, LpPool2dConfig,
    LpPool3d, LpPool3dConfig, MaxUnpool1d, MaxUnpool1dConfig, MaxUnpool2d, MaxUnpool2dConfig,
    MaxUnpool3d, MaxUnpool3dConfig, MedianPool1d, MedianPool1dConfig, MedianPool2d,
    MedianPool2dConfig, MedianPool3d, MedianPool3dConfig, MinPool1d, MinPool1dConfig, MinPool2d,
    MinPool2dConfig, MinPool3d, MinPool3dConfig, SumPool1d, SumPool1dConfig, SumPool2d,
    SumPool2dConfig, SumPool3d, SumPool3dConfig,
};
pub(crate) use queue::is_queued;

/// Stops a call that cannot be computed, as Burn's own operators do.
fn refuse(reason: impl core::fmt::Display) -> ! {
    panic!("windowpane_burn::nn: {reason}")
}
