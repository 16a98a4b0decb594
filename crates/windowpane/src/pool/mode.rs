//! Mode pooling: the most frequent number of each window.

use windowpane_geometry::{DType, Extents, Layout, Padding, Rounding, Window};

use super::choice::plan;
use super::run::run;
use super::{Operator, Options};
use crate::{Device, PoolAlgorithm, PoolPlan, Result, Tensor};

/// Mode pooling: the most frequent number of each window; the smallest one if several are equally frequent.
///
/// It makes images and volumes of labels smaller: every result is one of the window's labels, where a mean or a median
/// would mix them. Padding has no numbers: of a window at the border only those inside the input are counted. A window with
/// NaN gives NaN, and one without any element, which padding can create, gives 0. There is no gradient.
///
/// ```
/// use windowpane::{Device, ModePool, Tensor};
///
/// let labels = [7u8, 7, 3, 9, 7, 1, 9, 3];
/// let x = Tensor::from_slice(&Device::host(), &labels, [1, 2, 4, 1])?;
/// assert_eq!(ModePool::new([2, 2]).forward(&x)?.to_vec::<u8>()?, [7, 3]);
/// assert_eq!(ModePool::global().forward(&x)?.to_vec::<u8>()?, [7]);
/// # Ok::<(), windowpane::Error>(())
/// ```
#[doc(alias("mode", "majority", "most_frequent", "majority_filter", "mode_pool2d", "modal"))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModePool {
    options: Options,
}

impl ModePool {
    /// Mode pooling over windows of the given size: one number per axis, or one for every axis.
    pub fn new(kernel: impl Into<Extents>) -> Self {
        Self { options: Options::new(kernel.into()) }
    }

    /// Mode pooling over a configured [`Window`](crate::Window).
    pub fn with_window(window: Window) -> Self {
        Self { options: Options::with_window(window) }
    }

    /// Mode pooling to an output of the given size, for any input: see
    /// [`MedianPool::adaptive`](crate::MedianPool::adaptive).
    pub fn adaptive(output: impl Into<Extents>) -> Self {
        Self::with_window(Window::adaptive(output))
    }

    /// Mode pooling with one window over the whole input, for any size and number of axes.
    pub fn global() -> Self {
        Self { options: Options::global() }
    }

    option_methods!();

    /// Plans [`forward`](Self::forward) without running it.
    pub fn plan(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<PoolPlan> {
        plan(&self.options, Operator::Mode, device, dtype, dims)
    }

    /// Pools.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with_plan(&self.plan(x.device(), x.dtype(), x.dims())?, x)
    }

    /// Pools according to a plan.
    pub fn forward_with_plan(&self, plan: &PoolPlan, x: &Tensor) -> Result<Tensor> {
        Ok(run(&self.options, Operator::Mode, plan, x)?.0)
    }
}
