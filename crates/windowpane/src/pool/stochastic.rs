//! Stochastic pooling: a number of each window, drawn at random.

use windowpane_geometry::{DType, Extents, IndexBase, Layout, Padding, Rounding, Window};

use super::choice::plan;
use super::run::{run, run_backward};
use super::{Operator, Options};
use crate::{Device, PoolAlgorithm, PoolPlan, Result, Tensor};

/// Stochastic pooling: one number of each window, drawn with a probability proportional to it.
///
/// It is for numbers that are not negative, such as the outputs of ReLU: a negative number counts as 0 and is not drawn,
/// unless the window has no positive one; the first number of the window is drawn then. The same seed draws the same
/// numbers on every device, so use another one for each training step. [`mean`](Self::mean) is the mean of what is drawn,
/// for inference.
///
/// A window with NaN gives NaN. A window without any element, which padding can create, gives 0 and the index −1.
///
/// ```
/// use windowpane::{Device, StochasticPool, Tensor};
///
/// let x = Tensor::from_slice(&Device::host(), &[0.0f32, 6.0, 2.0, 2.0], [1, 4, 1])?;
/// let pool = StochasticPool::new(2).seed(7);
/// let (y, drawn) = pool.forward_with_indices(&x)?;
/// assert_eq!(y.to_vec::<f32>()?, [6.0, 2.0]); // 0 is never drawn, and one of the two 2 is
/// let dx = pool.backward(&y, &drawn, x.dims())?;
/// assert_eq!(dx.to_vec::<f32>()?[..2], [0.0, 6.0]);
/// assert_eq!(pool.mean(&x)?.to_vec::<f32>()?, [6.0, 2.0]);
/// # Ok::<(), windowpane::Error>(())
/// ```
#[doc(alias("stochastic_pooling", "STOCHASTIC", "PoolMethod_STOCHASTIC"))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StochasticPool {
    options: Options,
    seed: u32,
    base: IndexBase,
}

impl StochasticPool {
    fn with(options: Options) -> Self {
        Self { options, seed: 0, base: IndexBase::default() }
    }

    /// Stochastic pooling over windows of the given size: one number per axis, or one for every axis.
    pub fn new(kernel: impl Into<Extents>) -> Self {
        Self::with(Options::new(kernel.into()))
    }

    /// Stochastic pooling over a configured [`Window`](crate::Window).
    pub fn with_window(window: Window) -> Self {
        Self::with(Options::with_window(window))
    }

    /// Stochastic pooling to an output of the given size, for any input: see
    /// [`MaxPool::adaptive`](crate::MaxPool::adaptive).
    pub fn adaptive(output: impl Into<Extents>) -> Self {
        Self::with(Options::with_window(Window::adaptive(output)))
    }

    /// Stochastic pooling with one window over the whole input, for any size and number of axes.
    pub fn global() -> Self {
        Self::with(Options::global())
    }

    option_methods!();

    /// Sets the seed; 0 by default.
    pub fn seed(mut self, seed: u32) -> Self {
        self.seed = seed;
        self
    }

    /// Sets what an index counts.
    pub fn index_base(mut self, base: IndexBase) -> Self {
        self.base = base;
        self
    }

    /// Plans [`forward`](Self::forward) without running it.
    pub fn plan(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<PoolPlan> {
        plan(&self.options, self.drawn(None), device, dtype, dims)
    }

    /// Plans [`forward_with_indices`](Self::forward_with_indices) without running it.
    pub fn plan_with_indices(
        &self,
        device: &Device,
        dtype: DType,
        dims: &[usize],
    ) -> Result<PoolPlan> {
        plan(&self.options, self.drawn(Some(self.base)), device, dtype, dims)
    }

    /// Plans [`mean`](Self::mean) without running it.
    pub fn plan_mean(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<PoolPlan> {
        plan(&self.options, Operator::MeanDrawn, device, dtype, dims)
    }

    /// Plans [`backward`](Self::backward); `dims` are the dimensions of the input.
    pub fn plan_backward(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<PoolPlan> {
        plan(&self.options, self.gradient(), device, dtype, dims)
    }

    /// Draws a number of each window.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with_plan(&self.plan(x.device(), x.dtype(), x.dims())?, x)
    }

    /// Draws, and returns the index of each drawn number in the input, for [`backward`](Self::backward).
    pub fn forward_with_indices(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let plan = self.plan_with_indices(x.device(), x.dtype(), x.dims())?;
        self.forward_with_indices_with_plan(&plan, x)
    }

    /// The mean of what [`forward`](Self::forward) draws: `Σx² / Σx` over the positive numbers of each window.
    pub fn mean(&self, x: &Tensor) -> Result<Tensor> {
        self.mean_with_plan(&self.plan_mean(x.device(), x.dtype(), x.dims())?, x)
    }

    /// The gradient of what was drawn with respect to an input of dimensions `dims`: each element of `dy` goes to the
    /// index in `drawn`, which [`forward_with_indices`](Self::forward_with_indices) returned.
    pub fn backward(&self, dy: &Tensor, drawn: &Tensor, dims: &[usize]) -> Result<Tensor> {
        let plan = self.plan_backward(dy.device(), dy.dtype(), dims)?;
        self.backward_with_plan(&plan, dy, drawn)
    }

    /// Draws according to a plan.
    pub fn forward_with_plan(&self, plan: &PoolPlan, x: &Tensor) -> Result<Tensor> {
        Ok(run(&self.options, self.drawn(None), plan, x)?.0)
    }

    /// Draws according to a plan, and returns the index of each drawn number.
    pub fn forward_with_indices_with_plan(
        &self,
        plan: &PoolPlan,
        x: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let (y, indices) = run(&self.options, self.drawn(Some(self.base)), plan, x)?;
        Ok((y, indices.expect("the operator asked for indices")))
    }

    /// The mean, computed according to a plan.
    pub fn mean_with_plan(&self, plan: &PoolPlan, x: &Tensor) -> Result<Tensor> {
        Ok(run(&self.options, Operator::MeanDrawn, plan, x)?.0)
    }

    /// The gradient, computed according to a plan.
    pub fn backward_with_plan(
        &self,
        plan: &PoolPlan,
        dy: &Tensor,
        drawn: &Tensor,
    ) -> Result<Tensor> {
        run_backward(&self.options, self.gradient(), plan, dy, Some(drawn))
    }

    fn drawn(&self, base: Option<IndexBase>) -> Operator {
        Operator::Drawn(self.seed, base)
    }

    fn gradient(&self) -> Operator {
        Operator::DrawnBackward(self.base)
    }
}
