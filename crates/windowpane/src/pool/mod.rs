//! The pooling operators, their options, and how they are planned and run.

mod choice;
mod host;
mod operator;
mod run;

pub(crate) use operator::Operator;
pub(crate) use run::run_again;

use windowpane_geometry::{
    DType, Divisor, Extents, IndexBase, Layout, Padding, Pooling, Rounding, Shape, Window,
};

use crate::{Algorithm, Device, Plan, Result, Tensor};
#[cfg(feature = "kernels")]
pub(crate) use choice::Key;
use choice::plan;
use run::{run, run_backward};

/// The options of every pooling.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Options {
    window: Window,
    /// Whether one window covers the whole input, for any rank.
    global: bool,
    layout: Layout,
    algorithm: Option<Algorithm>,
}

impl Options {
    /// By default the stride is the kernel, so that windows do not overlap.
    fn new(kernel: Extents) -> Self {
        Self::over(Window::new(kernel).stride(kernel))
    }

    fn over(window: Window) -> Self {
        Self { window, global: false, layout: Layout::default(), algorithm: None }
    }

    fn global() -> Self {
        Self { global: true, ..Self::over(global_window()) }
    }

    /// Applies the window to an input.
    fn pooling(&self, input: Shape) -> Result<Pooling> {
        let mut window = self.window;
        if self.global && window == global_window() {
            let ones = [1; windowpane_geometry::AXES];
            window = Window::adaptive(Extents::try_from(&ones[..input.space().rank()])?);
        }
        // A global window refuses options, as every adaptive window does.
        Ok(Pooling::new(input, &window, self.layout)?)
    }
}

/// The placeholder for a global window while the rank is unknown.
fn global_window() -> Window {
    Window::adaptive([1])
}

/// The methods that set the options of every pooling.
macro_rules! option_methods {
    () => {
        /// Sets the step between two windows; the kernel by default.
        pub fn stride(mut self, stride: impl Into<Extents>) -> Self {
            self.options.window = self.options.window.stride(stride);
            self
        }

        /// Sets the padding: `[1, 1]` for both sides, `[(1, 2), (0, 1)]` for before and after,
        /// [`Same`](crate::Same), or [`Padding::Valid`], which is the default.
        pub fn padding(mut self, padding: impl Into<Padding>) -> Self {
            self.options.window = self.options.window.padding(padding);
            self
        }

        /// Sets the step between two taps.
        pub fn dilation(mut self, dilation: impl Into<Extents>) -> Self {
            self.options.window = self.options.window.dilation(dilation);
            self
        }

        /// Sets whether a partial last window is dropped or kept.
        pub fn rounding(mut self, rounding: Rounding) -> Self {
            self.options.window = self.options.window.rounding(rounding);
            self
        }

        /// Sets the layout of input and output; channels-last by default.
        pub fn layout(mut self, layout: Layout) -> Self {
            self.options.layout = layout;
            self
        }

        /// Forces an algorithm instead of the automatic choice.
        pub fn algorithm(mut self, algorithm: impl Into<Option<Algorithm>>) -> Self {
            self.options.algorithm = algorithm.into();
            self
        }
    };
}

mod lp;
mod unpool;

pub use lp::LpPool;
pub use unpool::MaxUnpool;

/// Max pooling: the largest number in each window.
///
/// NaN is larger than everything. A window without any element, which padding can create, gives −∞
/// (for integers the minimum of the type) and the index −1.
///
/// ```
/// use windowpane::{Device, Layout, MaxPool, Tensor};
///
/// let x = Tensor::from_slice(&Device::host(), &[1.0f32, 5.0, 2.0, 4.0, 3.0, 0.0], [1, 1, 6])?;
/// let pool = MaxPool::new([2]).layout(Layout::ChannelsFirst);
/// let (y, winners) = pool.forward_with_indices(&x)?;
/// assert_eq!(y.to_vec::<f32>()?, [5.0, 4.0, 3.0]);
/// assert_eq!(winners.to_vec::<i32>()?, [1, 3, 4]);
/// # Ok::<(), windowpane::Error>(())
/// ```
#[doc(alias = "AdaptiveMaxPool")]
#[doc(alias = "GlobalMaxPool")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaxPool {
    options: Options,
    base: IndexBase,
}

impl MaxPool {
    /// Max pooling over windows of the given size, one number per axis.
    pub fn new(kernel: impl Into<Extents>) -> Self {
        Self { options: Options::new(kernel.into()), base: IndexBase::default() }
    }

    /// Max pooling over a configured [`Window`](crate::Window).
    pub fn over(window: Window) -> Self {
        Self { options: Options::over(window), base: IndexBase::default() }
    }

    /// Max pooling to an output of the given size, for any input: window `o` of `O` covers
    /// `⌊o·L/O⌋ .. ⌈(o+1)·L/O⌉` of `L` coordinates.
    ///
    /// Stride, dilation, padding and rounding follow from that; setting one of them is an error when
    /// the pooling is applied.
    ///
    /// ```
    /// use windowpane::{Device, MaxPool, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::host(), &[1.0f32, 5.0, 2.0, 4.0, 3.0], [1, 5, 1])?;
    /// let (y, winners) = MaxPool::adaptive([2]).forward_with_indices(&x)?;
    /// assert_eq!(y.to_vec::<f32>()?, [5.0, 4.0]); // of 0..3 and 2..5
    /// assert_eq!(winners.to_vec::<i32>()?, [1, 3]);
    /// assert_eq!(MaxPool::global().forward(&x)?.to_vec::<f32>()?, [5.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn adaptive(output: impl Into<Extents>) -> Self {
        Self { options: Options::over(Window::adaptive(output)), base: IndexBase::default() }
    }

    /// Max pooling with one window over the whole input, for any size and rank.
    pub fn global() -> Self {
        Self { options: Options::global(), base: IndexBase::default() }
    }

    option_methods!();

    /// Sets what an index counts.
    pub fn index_base(mut self, base: IndexBase) -> Self {
        self.base = base;
        self
    }

    /// Plans [`forward`](Self::forward) without running it.
    pub fn plan(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<Plan> {
        plan(&self.options, Operator::Max(None), device, dtype, dims)
    }

    /// Plans [`forward_with_indices`](Self::forward_with_indices) without running it.
    pub fn plan_with_indices(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<Plan> {
        plan(&self.options, Operator::Max(Some(self.base)), device, dtype, dims)
    }

    /// Pools.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_as(&self.plan(x.device(), x.dtype(), x.dims())?, x)
    }

    /// Pools and returns the index of each maximum; [`index_base`](Self::index_base) sets what it counts.
    pub fn forward_with_indices(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let plan = self.plan_with_indices(x.device(), x.dtype(), x.dims())?;
        self.forward_with_indices_as(&plan, x)
    }

    /// Pools according to a plan.
    pub fn forward_as(&self, plan: &Plan, x: &Tensor) -> Result<Tensor> {
        Ok(run(&self.options, Operator::Max(None), plan, x)?.0)
    }

    /// Pools according to a plan and returns the index of each maximum.
    pub fn forward_with_indices_as(&self, plan: &Plan, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let (y, indices) = run(&self.options, Operator::Max(Some(self.base)), plan, x)?;
        Ok((y, indices.expect("the operator asked for indices")))
    }

    /// Plans [`backward`](Self::backward); `dims` are the dimensions of the input.
    pub fn plan_backward(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<Plan> {
        plan(&self.options, Operator::MaxBackward(self.base), device, dtype, dims)
    }

    /// The gradient with respect to an input of dimensions `dims`: each element of `dy` goes to the
    /// index in `winners`, which [`forward_with_indices`](Self::forward_with_indices) returned.
    ///
    /// ```
    /// use windowpane::{Device, MaxPool, Tensor};
    ///
    /// let host = Device::host();
    /// let x = Tensor::from_slice(&host, &[1.0f32, 5.0, 2.0, 4.0], [1, 4, 1])?;
    /// let pool = MaxPool::new([2]);
    /// let (_, winners) = pool.forward_with_indices(&x)?;
    /// let dy = Tensor::from_slice(&host, &[10.0f32, 20.0], [1, 2, 1])?;
    /// let dx = pool.backward(&dy, &winners, x.dims())?;
    /// assert_eq!(dx.to_vec::<f32>()?, [0.0, 10.0, 0.0, 20.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn backward(&self, dy: &Tensor, winners: &Tensor, dims: &[usize]) -> Result<Tensor> {
        let plan = self.plan_backward(dy.device(), dy.dtype(), dims)?;
        self.backward_as(&plan, dy, winners)
    }

    /// The gradient, computed according to a plan.
    pub fn backward_as(&self, plan: &Plan, dy: &Tensor, winners: &Tensor) -> Result<Tensor> {
        run_backward(&self.options, Operator::MaxBackward(self.base), plan, dy, Some(winners))
    }

    /// The gradient with respect to `x` without indices: the maxima are located again.
    pub fn backward_from_input(&self, dy: &Tensor, x: &Tensor) -> Result<Tensor> {
        let (_, winners) = self.forward_with_indices(x)?;
        self.backward(dy, &winners, x.dims())
    }
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
/// # Ok::<(), windowpane::Error>(())
/// ```
#[doc(alias = "AdaptiveAvgPool")]
#[doc(alias = "GlobalAvgPool")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AvgPool {
    options: Options,
    divisor: Divisor,
}

impl AvgPool {
    /// Average pooling over windows of the given size, one number per axis.
    pub fn new(kernel: impl Into<Extents>) -> Self {
        Self { options: Options::new(kernel.into()), divisor: Divisor::default() }
    }

    /// Average pooling over a configured [`Window`](crate::Window).
    pub fn over(window: Window) -> Self {
        Self { options: Options::over(window), divisor: Divisor::default() }
    }

    /// Average pooling to an output of the given size, for any input: window `o` of `O` covers
    /// `⌊o·L/O⌋ .. ⌈(o+1)·L/O⌉` of `L` coordinates.
    ///
    /// Stride, dilation, padding and rounding follow from that; setting one of them is an error when
    /// the pooling is applied.
    ///
    /// ```
    /// use windowpane::{AvgPool, Device, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::host(), &[1.0f32, 5.0, 3.0, 4.0, 2.0], [1, 5, 1])?;
    /// let pool = AvgPool::adaptive([2]);
    /// assert_eq!(pool.forward(&x)?.to_vec::<f32>()?, [3.0, 3.0]); // of 0..3 and 2..5
    /// assert_eq!(AvgPool::global().forward(&x)?.to_vec::<f32>()?, [3.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn adaptive(output: impl Into<Extents>) -> Self {
        Self { options: Options::over(Window::adaptive(output)), divisor: Divisor::default() }
    }

    /// Average pooling with one window over the whole input, for any size and rank.
    pub fn global() -> Self {
        Self { options: Options::global(), divisor: Divisor::default() }
    }

    option_methods!();

    /// Sets the divisor of a window's sum; by default the number of its taps, padding included.
    pub fn divisor(mut self, divisor: Divisor) -> Self {
        self.divisor = divisor;
        self
    }

    /// Plans [`forward`](Self::forward) without running it.
    pub fn plan(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<Plan> {
        plan(&self.options, Operator::Average(self.divisor), device, dtype, dims)
    }

    /// Pools.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_as(&self.plan(x.device(), x.dtype(), x.dims())?, x)
    }

    /// Pools according to a plan.
    pub fn forward_as(&self, plan: &Plan, x: &Tensor) -> Result<Tensor> {
        Ok(run(&self.options, Operator::Average(self.divisor), plan, x)?.0)
    }

    /// Plans [`backward`](Self::backward); `dims` are the dimensions of the input.
    pub fn plan_backward(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<Plan> {
        plan(&self.options, Operator::AverageBackward(self.divisor), device, dtype, dims)
    }

    /// The gradient with respect to an input of dimensions `dims`: each element of `dy` is divided and
    /// added to every tap of its window.
    pub fn backward(&self, dy: &Tensor, dims: &[usize]) -> Result<Tensor> {
        self.backward_as(&self.plan_backward(dy.device(), dy.dtype(), dims)?, dy)
    }

    /// The gradient, computed according to a plan.
    pub fn backward_as(&self, plan: &Plan, dy: &Tensor) -> Result<Tensor> {
        run_backward(&self.options, Operator::AverageBackward(self.divisor), plan, dy, None)
    }
}
