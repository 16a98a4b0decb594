//! Maxima back to where they were.

use windowpane_geometry::{DType, Extents, IndexBase, Layout, Shape, Window};

use super::choice::plan_pooling;
use super::run::run_unpool;
use super::{Operator, Options};
use crate::{Device, Plan, Result, Tensor};

/// Max unpooling: maxima go back to where they were, into zeros.
///
/// Only the indices say where a number goes, so that the window need not be told. An index of −1
/// goes nowhere; where several name one place, the last in row-major order counts. An index that is
/// no position in its own plane is an error, which comes from the call on `host` and from reading the
/// result elsewhere.
///
/// ```
/// use windowpane::{Device, MaxPool, MaxUnpool, Tensor};
///
/// let x = Tensor::from_slice(&Device::host(), &[1.0f32, 5.0, 4.0, 2.0], [1, 4, 1])?;
/// let (y, winners) = MaxPool::new([2]).forward_with_indices(&x)?;
/// let back = MaxUnpool::new([4]).forward(&y, &winners)?;
/// assert_eq!(back.to_vec::<f32>()?, [0.0, 5.0, 4.0, 0.0]);
/// # Ok::<(), windowpane::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaxUnpool {
    output: Extents,
    layout: Layout,
    base: IndexBase,
}

impl MaxUnpool {
    /// Max unpooling to so many coordinates on each axis: those of the input that was pooled.
    pub fn new(output: impl Into<Extents>) -> Self {
        let (layout, base) = (Layout::default(), IndexBase::default());
        Self { output: output.into(), layout, base }
    }

    /// Sets the layout of input and output; channels-last by default.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Sets what the indices count; those of the pooling.
    pub fn index_base(mut self, base: IndexBase) -> Self {
        self.base = base;
        self
    }

    /// Says how [`forward`](Self::forward) would run; `dims` are the pooled tensor's.
    pub fn plan(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<Plan> {
        self.plan_as(Operator::Unpool(self.base), device, dtype, dims)
    }

    /// Unpools: `indices` are an `i32` for each element of `y`.
    pub fn forward(&self, y: &Tensor, indices: &Tensor) -> Result<Tensor> {
        self.forward_as(&self.plan(y.device(), y.dtype(), y.dims())?, y, indices)
    }

    /// Unpools as planned.
    pub fn forward_as(&self, plan: &Plan, y: &Tensor, indices: &Tensor) -> Result<Tensor> {
        let options = self.options(y.dims())?;
        run_unpool(&options, Operator::Unpool(self.base), plan, y, indices)
    }

    /// Says how [`backward`](Self::backward) would run; `dims` are the pooled tensor's.
    pub fn plan_backward(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<Plan> {
        self.plan_as(Operator::UnpoolBackward(self.base), device, dtype, dims)
    }

    /// The gradient with respect to the pooled tensor: each element gets that of the place where it
    /// went, and 0 if it went nowhere or another took its place.
    pub fn backward(&self, dx: &Tensor, indices: &Tensor) -> Result<Tensor> {
        let plan = self.plan_backward(dx.device(), dx.dtype(), indices.dims())?;
        self.backward_as(&plan, dx, indices)
    }

    /// The gradient as planned.
    pub fn backward_as(&self, plan: &Plan, dx: &Tensor, indices: &Tensor) -> Result<Tensor> {
        let options = self.options(indices.dims())?;
        run_unpool(&options, Operator::UnpoolBackward(self.base), plan, dx, indices)
    }

    fn plan_as(
        &self,
        operator: Operator,
        device: &Device,
        dtype: DType,
        dims: &[usize],
    ) -> Result<Plan> {
        let unpooled = Shape::from_dims(dims, self.layout)?.with_space(self.output)?;
        let options = self.options(dims)?;
        plan_pooling(&options, operator, device, dtype, options.pooling(unpooled)?)
    }

    /// The pooling of which this is the way back. Any windows will do if they are as many as the
    /// elements of a pooled plane, and adaptive ones can be that of any plane.
    fn options(&self, dims: &[usize]) -> Result<Options> {
        let pooled = Shape::from_dims(dims, self.layout)?;
        let window = Window::adaptive(pooled.space());
        Ok(Options { layout: self.layout, ..Options::over(window) })
    }
}
