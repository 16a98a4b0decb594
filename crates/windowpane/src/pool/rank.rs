//! Rank and median pooling: a number of each window, by its place in their order.

use windowpane_geometry::{DType, Extents, Layout, Padding, Rank, Rounding, Window};

use super::choice::plan;
use super::run::run;
use super::{Operator, Options};
use crate::{Device, PoolAlgorithm, PoolPlan, Result, Tensor};

/// The methods of both, which have the fields `options` and `rank`.
macro_rules! rank_methods {
    () => {
        option_methods!();

        /// Plans [`forward`](Self::forward) without running it.
        pub fn plan(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<PoolPlan> {
            plan(&self.options, Operator::Rank(self.rank), device, dtype, dims)
        }

        /// Pools.
        pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
            self.forward_with_plan(&self.plan(x.device(), x.dtype(), x.dims())?, x)
        }

        /// Pools according to a plan.
        pub fn forward_with_plan(&self, plan: &PoolPlan, x: &Tensor) -> Result<Tensor> {
            Ok(run(&self.options, Operator::Rank(self.rank), plan, x)?.0)
        }
    };
}

/// Median pooling: the middle number of each window, the larger one of two in the middle.
///
/// It removes outliers and keeps edges. Padding has no numbers: a window at the border has the median of those inside
/// the input. A window with NaN gives NaN, and one without any element, which padding can create, gives 0.
///
/// ```
/// use windowpane::{Device, MedianPool, Tensor};
///
/// let x = Tensor::from_slice(&Device::host(), &[1.0f32, 99.0, 2.0, 3.0, -99.0, 4.0], [1, 6, 1])?;
/// let median = MedianPool::new([3]).stride([1]).padding([1]);
/// assert_eq!(median.forward(&x)?.to_vec::<f32>()?, [99.0, 2.0, 3.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), windowpane::Error>(())
/// ```
#[doc(alias("median", "median_filter", "median_pool2d", "medianBlur", "medfilt", "medfilt2d"))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MedianPool {
    options: Options,
    rank: Rank,
}

impl MedianPool {
    fn with(options: Options) -> Self {
        Self { options, rank: Rank::MEDIAN }
    }

    /// Median pooling over windows of the given size: one number per axis, or one for every axis.
    pub fn new(kernel: impl Into<Extents>) -> Self {
        Self::with(Options::new(kernel.into()))
    }

    /// Median pooling over a configured [`Window`](crate::Window).
    pub fn with_window(window: Window) -> Self {
        Self::with(Options::with_window(window))
    }

    /// Median pooling to an output of the given size, for any input: window `o` of `O` covers
    /// `⌊o·L/O⌋ .. ⌈(o+1)·L/O⌉` of `L` coordinates.
    ///
    /// Stride, dilation, padding and rounding follow from that; setting one of them is an error when the pooling is
    /// applied.
    pub fn adaptive(output: impl Into<Extents>) -> Self {
        Self::with(Options::with_window(Window::adaptive(output)))
    }

    /// Median pooling with one window over the whole input, for any size and number of axes.
    pub fn global() -> Self {
        Self::with(Options::global())
    }

    rank_methods!();
}

/// Rank pooling: the k-th smallest number of each window, counted from 0.
///
/// The [`Rank`] is this k, or a fraction of the sorted window. Padding has no numbers: of a window at
/// the border only those inside the input are counted. A window with NaN gives NaN, and one without any element, which
/// padding can create, gives 0. There is no gradient.
///
/// ```
/// use windowpane::{Device, Rank, RankPool, Tensor};
///
/// let x = Tensor::from_slice(&Device::host(), &[5, 1, 4, 2, 3, 9], [1, 6, 1])?;
/// let second = RankPool::new(Rank::Nth(1), [3]);
/// assert_eq!(second.forward(&x)?.to_vec::<i32>()?, [4, 3]);
/// let quartile = RankPool::global(Rank::Fraction { part: 3, whole: 4 });
/// assert_eq!(quartile.forward(&x)?.to_vec::<i32>()?, [5]);
/// # Ok::<(), windowpane::Error>(())
/// ```
#[doc(alias("rank_filter", "percentile_filter", "percentile", "quantile", "order_filter"))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankPool {
    options: Options,
    rank: Rank,
}

impl RankPool {
    /// Rank pooling over windows of the given size: one number per axis, or one for every axis.
    pub fn new(rank: impl Into<Rank>, kernel: impl Into<Extents>) -> Self {
        Self { options: Options::new(kernel.into()), rank: rank.into() }
    }

    /// Rank pooling over a configured [`Window`](crate::Window).
    pub fn with_window(rank: impl Into<Rank>, window: Window) -> Self {
        Self { options: Options::with_window(window), rank: rank.into() }
    }

    /// Rank pooling to an output of the given size, for any input: see [`MedianPool::adaptive`].
    pub fn adaptive(rank: impl Into<Rank>, output: impl Into<Extents>) -> Self {
        Self { options: Options::with_window(Window::adaptive(output)), rank: rank.into() }
    }

    /// Rank pooling with one window over the whole input, for any size and number of axes.
    pub fn global(rank: impl Into<Rank>) -> Self {
        Self { options: Options::global(), rank: rank.into() }
    }

    rank_methods!();
}
