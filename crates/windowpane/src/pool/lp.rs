//! Lp pooling: the norm of each window.

use windowpane_geometry::{DType, Exponent, Extents, Layout, Padding, Rounding, Window};

use super::choice::plan;
use super::run::{run, run_lp_backward};
use super::{Operator, Options};
use crate::{Device, PoolAlgorithm, PoolPlan, Result, Tensor};

/// Lp pooling: the norm of each window, `(Σ|x|^p)^(1/p)`.
///
/// A window without any element, which padding can create, gives 0. If the type can hold the norm, no
/// intermediate value overflows or vanishes.
///
/// ```
/// use windowpane::{Device, LpPool, Tensor};
///
/// let x = Tensor::from_slice(&Device::host(), &[3.0f32, -4.0, 6e30, 8e30], [1, 4, 1])?;
/// let pool = LpPool::new(2, [2]);
/// assert_eq!(pool.forward(&x)?.to_vec::<f32>()?, [5.0, 1e31]);
/// # Ok::<(), windowpane::Error>(())
/// ```
#[doc(alias("LPPool1d", "LPPool2d", "LPPool3d", "lp_pool1d", "lp_pool2d", "lp_pool3d"))]
#[doc(alias("GlobalLpPool", "norm"))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LpPool {
    options: Options,
    p: Exponent,
}

impl LpPool {
    /// Lp pooling over windows of the given size: one number per axis, or one for every axis; `p` is finite and at
    /// least 1.
    pub fn new(p: impl Into<f64>, kernel: impl Into<Extents>) -> Self {
        Self { options: Options::new(kernel.into()), p: Exponent::new(p) }
    }

    /// Lp pooling over a configured [`Window`](crate::Window).
    pub fn with_window(p: impl Into<f64>, window: Window) -> Self {
        Self { options: Options::with_window(window), p: Exponent::new(p) }
    }

    /// Lp pooling to an output of the given size, for any input: window `o` of `O` covers
    /// `⌊o·L/O⌋ .. ⌈(o+1)·L/O⌉` of `L` coordinates.
    ///
    /// Stride, dilation, padding and rounding follow from that; setting one of them is an error when
    /// the pooling is applied.
    pub fn adaptive(p: impl Into<f64>, output: impl Into<Extents>) -> Self {
        Self { options: Options::with_window(Window::adaptive(output)), p: Exponent::new(p) }
    }

    /// Lp pooling with one window over the whole input, for any size and rank.
    ///
    /// ```
    /// use windowpane::{Device, LpPool, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::host(), &[1.0f32, -5.0, 2.0, 1.0], [1, 2, 2, 1])?;
    /// assert_eq!(LpPool::global(1).forward(&x)?.to_vec::<f32>()?, [9.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn global(p: impl Into<f64>) -> Self {
        Self { options: Options::global(), p: Exponent::new(p) }
    }

    option_methods!();

    /// Plans [`forward`](Self::forward) without running it.
    pub fn plan(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<PoolPlan> {
        plan(&self.options, Operator::Norm(self.p), device, dtype, dims)
    }

    /// Pools.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with_plan(&self.plan(x.device(), x.dtype(), x.dims())?, x)
    }

    /// Pools according to a plan.
    pub fn forward_with_plan(&self, plan: &PoolPlan, x: &Tensor) -> Result<Tensor> {
        Ok(run(&self.options, Operator::Norm(self.p), plan, x)?.0)
    }

    /// Plans [`backward`](Self::backward); `dims` are the dimensions of the input.
    pub fn plan_backward(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<PoolPlan> {
        plan(&self.options, Operator::NormBackward(self.p), device, dtype, dims)
    }

    /// The gradient with respect to the input `x`: `dy · sign(x) · (|x|/y)^(p−1)` from every window.
    ///
    /// An `x` of 0 gets 0, even if the norm of its window is 0, as in PyTorch.
    ///
    /// ```
    /// use windowpane::{Device, LpPool, Tensor};
    ///
    /// let host = Device::host();
    /// let x = Tensor::from_slice(&host, &[3.0f32, -4.0, 0.0, 0.0], [1, 4, 1])?;
    /// let dy = Tensor::from_slice(&host, &[10.0f32, 10.0], [1, 2, 1])?;
    /// let dx = LpPool::new(2, [2]).backward(&dy, &x)?;
    /// assert_eq!(dx.to_vec::<f32>()?, [6.0, -8.0, 0.0, 0.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn backward(&self, dy: &Tensor, x: &Tensor) -> Result<Tensor> {
        self.backward_with_plan(&self.plan_backward(x.device(), x.dtype(), x.dims())?, dy, x)
    }

    /// The gradient, computed according to a plan.
    pub fn backward_with_plan(&self, plan: &PoolPlan, dy: &Tensor, x: &Tensor) -> Result<Tensor> {
        run_lp_backward(&self.options, self.p, plan, dy, x)
    }
}
