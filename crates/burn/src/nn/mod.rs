//! Poolings, padding and padded convolutions that Burn lacks, as modules and functions like Burn's own, with gradients.
//!
//! | modules | function | result | gradient |
//! |---|---|---|---|
//! | [`LpPool1d`], [`LpPool2d`], [`LpPool3d`] | [`lp_pool`] | norms | yes |
//! | [`SumPool1d`], [`SumPool2d`], [`SumPool3d`] | [`sum_pool`] | sums | yes |
//! | [`MinPool1d`], [`MinPool2d`], [`MinPool3d`] | [`min_pool`] | minima | yes |
//! | [`MedianPool1d`], [`MedianPool2d`], [`MedianPool3d`] | [`median_pool`] | medians | no |
//! | [`RankPool1d`], [`RankPool2d`], [`RankPool3d`] | [`rank_pool`] | k-th smallest numbers | no |
//! | [`ModePool1d`], [`ModePool2d`], [`ModePool3d`] | [`mode_pool`] | most frequent numbers | no |
//! | [`StochasticPool1d`], [`StochasticPool2d`], [`StochasticPool3d`] | [`stochastic_pool`], [`stochastic_mean`] | numbers drawn at random, or their means | yes |
//! | [`FractionalMaxPool1d`], [`FractionalMaxPool2d`], [`FractionalMaxPool3d`] | [`fractional_max_pool`] | maxima of windows at random positions | yes |
//! | [`AdaptiveMaxPool1d`], [`AdaptiveMaxPool2d`], [`AdaptiveMaxPool3d`] | [`adaptive_max_pool`] | maxima | yes |
//! | [`MaxUnpool1d`], [`MaxUnpool2d`], [`MaxUnpool3d`] | [`max_unpool`] | maxima at their positions, and zeros | yes |
//! | [`Conv1d`], [`Conv2d`], [`Conv3d`] | [`pad`] | Burn's convolutions with padding that reflects, repeats or wraps around | yes |
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
//! windowpane computes everything, forward and backward, in the memory that Burn owns and in Burn's queue; only the
//! gradient of [`stochastic_mean`] also uses operators of Burn, and the convolution after the padding is Burn's own, which
//! [`install`](crate::install) replaces. Only a slice, or a tensor that is neither channels first nor channels last, is
//! copied before. Elements are f64, f32, f16 or bf16, if the device has the type.
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
//! - Of two middle numbers the median is the larger one. Medians, ranks and modes are detached from the graph.
//! - Modules with random numbers draw new ones in each call in training. As for Burn's `Dropout`, a module is in training
//!   if the device has gradients and the module is not frozen. The numbers follow from the module's seed and the count of
//!   such calls, on every device in the same way.
//! - Gradients have the same bits in each run.

mod fractional;
mod functions;
mod gradient;
mod modules;
mod padded;
mod primitive;
mod queue;
mod seed;

pub use functions::{
    adaptive_max_pool, adaptive_max_pool_with_indices, fractional_max_pool,
    fractional_max_pool_with_indices, lp_pool, max_unpool, median_pool, min_pool,
    min_pool_with_indices, mode_pool, pad, rank_pool, stochastic_mean, stochastic_pool,
    stochastic_pool_with_indices, sum_pool,
};
pub use modules::{
    AdaptiveMaxPool1d, AdaptiveMaxPool1dConfig, AdaptiveMaxPool2d, AdaptiveMaxPool2dConfig,
    AdaptiveMaxPool3d, AdaptiveMaxPool3dConfig, FractionalMaxPool1d, FractionalMaxPool1dConfig,
    FractionalMaxPool2d, FractionalMaxPool2dConfig, FractionalMaxPool3d, FractionalMaxPool3dConfig,
    LpPool1d, LpPool1dConfig, LpPool2d, LpPool2dConfig, LpPool3d, LpPool3dConfig, MaxUnpool1d,
    MaxUnpool1dConfig, MaxUnpool2d, MaxUnpool2dConfig, MaxUnpool3d, MaxUnpool3dConfig,
    MedianPool1d, MedianPool1dConfig, MedianPool2d, MedianPool2dConfig, MedianPool3d,
    MedianPool3dConfig, MinPool1d, MinPool1dConfig, MinPool2d, MinPool2dConfig, MinPool3d,
    MinPool3dConfig, ModePool1d, ModePool1dConfig, ModePool2d, ModePool2dConfig, ModePool3d,
    ModePool3dConfig, OutputSize, RankPool1d, RankPool1dConfig, RankPool2d, RankPool2dConfig,
    RankPool3d, RankPool3dConfig, StochasticPool1d, StochasticPool1dConfig, StochasticPool2d,
    StochasticPool2dConfig, StochasticPool3d, StochasticPool3dConfig, SumPool1d, SumPool1dConfig,
    SumPool2d, SumPool2dConfig, SumPool3d, SumPool3dConfig,
};
pub use padded::{Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, Conv3d, Conv3dConfig, PaddingMode};
pub(crate) use queue::is_queued;

/// Stops a call that cannot be computed, as Burn's own operators do.
fn refuse(reason: impl core::fmt::Display) -> ! {
    panic!("windowpane_burn::nn: {reason}")
}
