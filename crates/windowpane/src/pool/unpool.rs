//! Max unpooling: writes maxima back to their positions.

use windowpane_geometry::{DType, Extents, IndexBase, Layout, Shape, Window};

use super::choice::plan_pooling;
use super::run::run_unpool;
use super::{Operator, Options};
use crate::{Device, PoolPlan, Result, Tensor};

/// Max unpooling: writes maxima back to the positions they came from, into zeros.
///
/// The indices determine the positions, so no window is needed. An index of −1 is ignored; if
/// several indices name one position, the last in row-major order wins. An index that is not a position of its own
/// plane is an error: `host` returns it from the call, other devices when the result is read.
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
#[doc(alias("MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d"))]
#[doc(alias("max_unpool1d", "max_unpool2d", "max_unpool3d"))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaxUnpool {
    output: Extents,
    layout: Layout,
    base: IndexBase,
}

impl MaxUnpool {
    /// Max unpooling to the spatial size of the input that was pooled.
    pub fn new(output: impl Into<Extents>) -> Self {
        let (layout, base) = (Layout::default(), IndexBase::default());
        Self { output: output.into(), layout, base }
    }

    /// Sets the layout of input and output; channels-last by default.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Sets what an index counts; use the setting of the pooling.
    pub fn index_base(mut self, base: IndexBase) -> Self {
        self.base = base;
        self
    }

    /// Plans [`forward`](Self::forward); `dims` are the dimensions of the pooled tensor.
    pub fn plan(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<PoolPlan> {
        self.plan_as(Operator::Unpool(self.base), device, dtype, dims)
    }

    /// Unpools; `indices` has one `i32` for each element of `y`.
    pub fn forward(&self, y: &Tensor, indices: &Tensor) -> Result<Tensor> {
        self.forward_with_plan(&self.plan(y.device(), y.dtype(), y.dims())?, y, indices)
    }

    /// Unpools according to a plan.
    pub fn forward_with_plan(
        &self,
        plan: &PoolPlan,
        y: &Tensor,
        indices: &Tensor,
    ) -> Result<Tensor> {
        let options = self.options(y.dims())?;
        run_unpool(&options, Operator::Unpool(self.base), plan, y, indices)
    }

    /// Plans [`backward`](Self::backward); `dims` are the dimensions of the pooled tensor.
    pub fn plan_backward(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<PoolPlan> {
        self.plan_as(Operator::UnpoolBackward(self.base), device, dtype, dims)
    }

    /// The gradient with respect to the pooled tensor: each element gets the gradient of the position
    /// it was written to, and 0 if it was ignored or another element won that position.
    pub fn backward(&self, dx: &Tensor, indices: &Tensor) -> Result<Tensor> {
        let plan = self.plan_backward(dx.device(), dx.dtype(), indices.dims())?;
        self.backward_with_plan(&plan, dx, indices)
    }

    /// The gradient, computed according to a plan.
    pub fn backward_with_plan(
        &self,
        plan: &PoolPlan,
        dx: &Tensor,
        indices: &Tensor,
    ) -> Result<Tensor> {
        let options = self.options(indices.dims())?;
        run_unpool(&options, Operator::UnpoolBackward(self.base), plan, dx, indices)
    }

    fn plan_as(
        &self,
        operator: Operator,
        device: &Device,
        dtype: DType,
        dims: &[usize],
    ) -> Result<PoolPlan> {
        let pooled = Shape::from_dims(dims, self.layout)?;
        let unpooled = pooled.with_space(self.output.of_rank(pooled.space().rank())?)?;
        let options = self.options(dims)?;
        plan_pooling(options.algorithm, operator, device, dtype, options.pooling(unpooled)?)
    }

    /// The pooling that this reverses. Only the number of windows matters, which must be the number of elements of a
    /// pooled plane; adaptive windows fit every plane.
    fn options(&self, dims: &[usize]) -> Result<Options> {
        let pooled = Shape::from_dims(dims, self.layout)?;
        let window = Window::adaptive(pooled.space());
        Ok(Options { layout: self.layout, ..Options::with_window(window) })
    }
}
