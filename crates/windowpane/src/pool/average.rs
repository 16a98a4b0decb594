//! Average and sum pooling: a sum is an average with the divisor 1.

use windowpane_geometry::{DType, Divisor, Extents, Layout, Padding, Rounding, Window};

use super::choice::plan;
use super::run::{run, run_backward};
use super::{Operator, Options};
use crate::{Device, PoolAlgorithm, PoolPlan, Result, Tensor};

/// The methods of both; the type has `with`, which makes it from options, and `own_divisor`. `$of` begins the sentences of
/// their documentation.
macro_rules! sum_methods {
    ($of:literal) => {
        #[doc = concat!($of, " pooling over windows of the given size: one number per axis, or one for every axis.")]
        pub fn new(kernel: impl Into<Extents>) -> Self {
            Self::with(Options::new(kernel.into()))
        }

        #[doc = concat!($of, " pooling over a configured [`Window`](crate::Window).")]
        pub fn with_window(window: Window) -> Self {
            Self::with(Options::with_window(window))
        }

        #[doc = concat!($of, " pooling to an output of the given size, for any input: window `o` of `O` covers")]
        /// `⌊o·L/O⌋ .. ⌈(o+1)·L/O⌉` of `L` coordinates.
        ///
        /// Stride, dilation, padding and rounding follow from that; setting one of them is an error when
        /// the pooling is applied.
        pub fn adaptive(output: impl Into<Extents>) -> Self {
            Self::with(Options::with_window(Window::adaptive(output)))
        }

        #[doc = concat!($of, " pooling with one window over the whole input, for any size and rank.")]
        pub fn global() -> Self {
            Self::with(Options::global())
        }

        option_methods!();

        /// Plans [`forward`](Self::forward) without running it.
        pub fn plan(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<PoolPlan> {
            plan(&self.options, Operator::Average(self.own_divisor()), device, dtype, dims)
        }

        /// Pools.
        pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
            self.forward_with_plan(&self.plan(x.device(), x.dtype(), x.dims())?, x)
        }

        /// Pools according to a plan.
        pub fn forward_with_plan(&self, plan: &PoolPlan, x: &Tensor) -> Result<Tensor> {
            Ok(run(&self.options, Operator::Average(self.own_divisor()), plan, x)?.0)
        }

        /// Plans [`backward`](Self::backward); `dims` are the dimensions of the input.
        pub fn plan_backward(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<PoolPlan> {
            plan(&self.options, Operator::AverageBackward(self.own_divisor()), device, dtype, dims)
        }

        /// The gradient with respect to an input of dimensions `dims`: each element of `dy` is divided by what its
        /// window's sum is divided by, and added to every tap of the window.
        pub fn backward(&self, dy: &Tensor, dims: &[usize]) -> Result<Tensor> {
            self.backward_with_plan(&self.plan_backward(dy.device(), dy.dtype(), dims)?, dy)
        }

        /// The gradient, computed according to a plan.
        pub fn backward_with_plan(&self, plan: &PoolPlan, dy: &Tensor) -> Result<Tensor> {
            let operator = Operator::AverageBackward(self.own_divisor());
            run_backward(&self.options, operator, plan, dy, None)
        }
    };
}

/// Average pooling: the mean of each window.
///
/// ```
/// use windowpane::{AvgPool, Device, Divisor, Tensor};
///
/// let x = Tensor::from_slice(&Device::host(), &[2.0f32, 4.0, 6.0], [1, 3, 1])?;
/// let pool = AvgPool::new([3]).stride([1]).padding([1]);
/// assert_eq!(pool.forward(&x)?.to_vec::<f32>()?, [2.0, 4.0, 10.0 / 3.0]);
/// let valid = pool.divisor(Divisor::Valid);
/// assert_eq!(valid.forward(&x)?.to_vec::<f32>()?, [3.0, 4.0, 5.0]);
/// assert_eq!(AvgPool::adaptive([2]).forward(&x)?.to_vec::<f32>()?, [3.0, 5.0]); // of 0..2 and 1..3
/// assert_eq!(AvgPool::global().forward(&x)?.to_vec::<f32>()?, [4.0]);
/// # Ok::<(), windowpane::Error>(())
/// ```
#[doc(alias("AvgPool1d", "AvgPool2d", "AvgPool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"))]
#[doc(alias("AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveAvgPool"))]
#[doc(alias("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"))]
#[doc(alias("GlobalAvgPool", "GlobalAveragePool", "AveragePool"))]
#[doc(alias("uniform_filter", "uniform_filter1d", "box_filter", "block_reduce", "mean"))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AvgPool {
    options: Options,
    divisor: Divisor,
}

impl AvgPool {
    fn with(options: Options) -> Self {
        Self { options, divisor: Divisor::default() }
    }

    fn own_divisor(&self) -> Divisor {
        self.divisor
    }

    sum_methods!("Average");

    /// Sets the divisor of a window's sum; by default the number of its taps, padding included.
    #[doc(alias("count_include_pad", "divisor_override"))]
    pub fn divisor(mut self, divisor: Divisor) -> Self {
        self.divisor = divisor;
        self
    }
}

/// Sum pooling: the sum of each window, which is [`AvgPool`] with `Divisor::Fixed(1)`.
///
/// ```
/// use windowpane::{Device, SumPool, Tensor};
///
/// let x = Tensor::from_slice(&Device::host(), &[2.0f32, 4.0, 6.0], [1, 3, 1])?;
/// let pool = SumPool::new([3]).stride([1]).padding([1]);
/// assert_eq!(pool.forward(&x)?.to_vec::<f32>()?, [6.0, 12.0, 10.0]);
/// # Ok::<(), windowpane::Error>(())
/// ```
#[doc(alias("SumPool2d", "sum_pool2d", "block_reduce"))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SumPool {
    options: Options,
}

impl SumPool {
    fn with(options: Options) -> Self {
        Self { options }
    }

    fn own_divisor(&self) -> Divisor {
        Divisor::Fixed(1)
    }

    sum_methods!("Sum");
}
