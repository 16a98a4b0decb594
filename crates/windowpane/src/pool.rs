use windowpane_geometry::{
    DType, Divisor, Extents, IndexBase, Layout, Padding, Pooling, Rounding, Window,
};
use windowpane_reference::pool as reference;

use crate::element::{Element, HostBuffer, sealed::Sealed, with_element};
use crate::plan::Choice;
use crate::tensor::element_slice;
use crate::{Algorithm, Device, Error, Plan, Result, Tensor};

/// The options that every pooling has.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Options {
    window: Window,
    layout: Layout,
    algorithm: Option<Algorithm>,
}

impl Options {
    /// Windows side by side, unless told otherwise.
    fn new(kernel: Extents) -> Self {
        Self::over(Window::new(kernel).stride(kernel))
    }

    fn over(window: Window) -> Self {
        Self { window, layout: Layout::default(), algorithm: None }
    }
}

/// The methods that set the options that every pooling has.
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

        /// Sets how a partial last step is rounded.
        pub fn rounding(mut self, rounding: Rounding) -> Self {
            self.options.window = self.options.window.rounding(rounding);
            self
        }

        /// Sets the layout of input and output; channels-last by default.
        pub fn layout(mut self, layout: Layout) -> Self {
            self.options.layout = layout;
            self
        }

        /// Forces an algorithm in place of the plan's own choice.
        pub fn algorithm(mut self, algorithm: impl Into<Option<Algorithm>>) -> Self {
            self.options.algorithm = algorithm.into();
            self
        }
    };
}

/// Max pooling: the largest number in each window.
///
/// NaN is larger than everything. A window with no number in it, which padding can make, gives −∞
/// (an integer type's minimum) and the index −1.
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaxPool {
    options: Options,
    base: IndexBase,
}

impl MaxPool {
    /// Max pooling over windows of so many taps on each axis.
    pub fn new(kernel: impl Into<Extents>) -> Self {
        Self { options: Options::new(kernel.into()), base: IndexBase::default() }
    }

    /// Max pooling over a window that is described already.
    pub fn over(window: Window) -> Self {
        Self { options: Options::over(window), base: IndexBase::default() }
    }

    option_methods!();

    /// Sets what the indices count.
    pub fn index_base(mut self, base: IndexBase) -> Self {
        self.base = base;
        self
    }

    /// Says how [`forward`](Self::forward) would run, without running it.
    pub fn plan(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<Plan> {
        plan(&self.options, Operator::Max(None), device, dtype, dims)
    }

    /// Says how [`forward_with_indices`](Self::forward_with_indices) would run.
    pub fn plan_with_indices(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<Plan> {
        plan(&self.options, Operator::Max(Some(self.base)), device, dtype, dims)
    }

    /// Pools.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_as(&self.plan(x.device(), x.dtype(), x.dims())?, x)
    }

    /// Pools, and tells where each maximum was: [`index_base`](Self::index_base) says how.
    pub fn forward_with_indices(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let plan = self.plan_with_indices(x.device(), x.dtype(), x.dims())?;
        self.forward_with_indices_as(&plan, x)
    }

    /// Pools as planned.
    pub fn forward_as(&self, plan: &Plan, x: &Tensor) -> Result<Tensor> {
        Ok(run(Operator::Max(None), plan, x)?.0)
    }

    /// Pools as planned, and tells where each maximum was.
    pub fn forward_with_indices_as(&self, plan: &Plan, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let (y, indices) = run(Operator::Max(Some(self.base)), plan, x)?;
        Ok((y, indices.expect("the operator asked for indices")))
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AvgPool {
    options: Options,
    divisor: Divisor,
}

impl AvgPool {
    /// Average pooling over windows of so many taps on each axis.
    pub fn new(kernel: impl Into<Extents>) -> Self {
        Self { options: Options::new(kernel.into()), divisor: Divisor::default() }
    }

    /// Average pooling over a window that is described already.
    pub fn over(window: Window) -> Self {
        Self { options: Options::over(window), divisor: Divisor::default() }
    }

    option_methods!();

    /// Sets what the sum of a window is divided by; its taps, padding included, by default.
    pub fn divisor(mut self, divisor: Divisor) -> Self {
        self.divisor = divisor;
        self
    }

    /// Says how [`forward`](Self::forward) would run, without running it.
    pub fn plan(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<Plan> {
        plan(&self.options, Operator::Average(self.divisor), device, dtype, dims)
    }

    /// Pools.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_as(&self.plan(x.device(), x.dtype(), x.dims())?, x)
    }

    /// Pools as planned.
    pub fn forward_as(&self, plan: &Plan, x: &Tensor) -> Result<Tensor> {
        Ok(run(Operator::Average(self.divisor), plan, x)?.0)
    }
}

/// What a pooling does to its windows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    /// The maximum, and where it was.
    Max(Option<IndexBase>),
    Average(Divisor),
}

impl Operator {
    fn name(self) -> &'static str {
        match self {
            Self::Max(None) => "max pooling",
            Self::Max(Some(_)) => "max pooling with indices",
            Self::Average(_) => "average pooling",
        }
    }

    #[cfg(feature = "kernels")]
    fn reduction(self) -> windowpane_kernels::pool::Reduction {
        use windowpane_kernels::pool::{Output, Reduction};
        match self {
            Self::Max(None) => Reduction::Max(Output::Values),
            Self::Max(Some(base)) => Reduction::Max(Output::ValuesAndIndices(base)),
            Self::Average(divisor) => Reduction::Average(divisor),
        }
    }
}

fn plan(
    options: &Options,
    operator: Operator,
    device: &Device,
    dtype: DType,
    dims: &[usize],
) -> Result<Plan> {
    let input = windowpane_geometry::Shape::from_dims(dims, options.layout)?;
    let pooling = Pooling::new(input, &options.window, options.layout)?;
    device.require(dtype)?;
    match operator {
        Operator::Max(Some(base)) => pooling.check_indices(base)?,
        Operator::Max(None) => {}
        Operator::Average(divisor) => {
            divisor.check()?;
            if !dtype.is_float() {
                return Err(Error::NotForIntegers { operator: operator.name(), dtype });
            }
        }
    }
    let choice = choose(options, operator, device, dtype, &pooling)?;
    Ok(Plan { device: device.clone(), operator: operator.name(), pooling, dtype, choice })
}

fn choose(
    options: &Options,
    operator: Operator,
    device: &Device,
    dtype: DType,
    pooling: &Pooling,
) -> Result<Choice> {
    #[cfg(feature = "kernels")]
    if let Some(client) = device.client() {
        if let Some(algorithm @ Algorithm::Sliding) = options.algorithm {
            return Err(Error::NoKernel { algorithm, device: device.clone() });
        }
        let limits = windowpane_kernels::Limits::of(client);
        let plan =
            windowpane_kernels::pool::Plan::new(pooling, operator.reduction(), dtype, &limits)?;
        return Ok(Choice::Kernel(plan));
    }
    let _ = (operator, device, dtype);
    Ok(Choice::Host(options.algorithm.unwrap_or(match reference::choose(pooling) {
        reference::Algorithm::Sliding => Algorithm::Sliding,
        _ => Algorithm::Direct,
    })))
}

/// The pooled tensor, and the indices where the operator returns them.
fn run(operator: Operator, plan: &Plan, x: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
    check_matches(operator, plan, x)?;
    let span = tracing::debug_span!(
        "pool",
        operator = operator.name(),
        device = %plan.device,
        algorithm = %plan.algorithm(),
        input = ?x.dims(),
    );
    let _entered = span.enter();
    match &plan.choice {
        Choice::Host(algorithm) => Ok(run_on_host(operator, *algorithm, plan, x)),
        #[cfg(feature = "kernels")]
        Choice::Kernel(kernel) => run_kernel(operator, kernel, plan, x),
    }
}

/// Refuses a tensor or an operator other than those that the plan was made for.
fn check_matches(operator: Operator, plan: &Plan, x: &Tensor) -> Result<()> {
    if *x.device() != plan.device {
        return Err(Error::DeviceMismatch {
            asked: plan.device.clone(),
            found: x.device().clone(),
        });
    }
    let input: Vec<_> = plan.pooling.input().dims(plan.pooling.layout()).collect();
    let asked = (plan.operator, plan.dtype, &*input);
    let found = (operator.name(), x.dtype(), x.dims());
    if asked != found {
        let describe = |(operator, dtype, dims): (&str, DType, &[usize])| {
            format!("{operator} of {dtype} {dims:?}")
        };
        return Err(Error::PlanMismatch { asked: describe(asked), found: describe(found) });
    }
    Ok(())
}

fn run_on_host(
    operator: Operator,
    algorithm: Algorithm,
    plan: &Plan,
    x: &Tensor,
) -> (Tensor, Option<Tensor>) {
    let buffer = x.host_buffer().expect("a tensor on host has its elements there");
    let (values, indices) = with_element!(x.dtype(), T => {
        let (values, indices) = pool_slice(operator, algorithm, &plan.pooling, element_slice::<T>(buffer));
        (T::into_host(values), indices)
    });
    let dims = output_dims(&plan.pooling);
    let tensor = |buffer: HostBuffer| Tensor::on_host(&plan.device, dims.clone(), buffer);
    (tensor(values), indices.map(|indices| tensor(i32::into_host(indices))))
}

fn pool_slice<T: Element>(
    operator: Operator,
    algorithm: Algorithm,
    pooling: &Pooling,
    x: &[T],
) -> (Vec<T>, Option<Vec<i32>>) {
    use reference::{deque, direct, prefix};
    match (operator, algorithm) {
        (Operator::Max(None), Algorithm::Direct) => (direct::max(pooling, x), None),
        (Operator::Max(None), Algorithm::Sliding) => (deque::max(pooling, x), None),
        (Operator::Max(Some(base)), algorithm) => {
            let (values, indices) = match algorithm {
                Algorithm::Direct => direct::max_with_indices(pooling, base, x),
                Algorithm::Sliding => deque::max_with_indices(pooling, base, x),
            };
            (values, Some(indices))
        }
        (Operator::Average(divisor), Algorithm::Direct) => {
            (direct::average(pooling, divisor, x), None)
        }
        (Operator::Average(divisor), Algorithm::Sliding) => {
            (prefix::average(pooling, divisor, x), None)
        }
    }
}

#[cfg(feature = "kernels")]
fn run_kernel(
    operator: Operator,
    kernel: &windowpane_kernels::pool::Plan,
    plan: &Plan,
    x: &Tensor,
) -> Result<(Tensor, Option<Tensor>)> {
    let pooling = &plan.pooling;
    let dims = output_dims(pooling);
    let with_indices = matches!(operator, Operator::Max(Some(_)));
    let Some((client, input)) = x.handle() else {
        // An empty batch: nothing to launch.
        let empty =
            |dtype| Tensor::on_host(&plan.device, dims.clone(), HostBuffer::from_bytes(dtype, &[]));
        return Ok((empty(plan.dtype), with_indices.then(|| empty(DType::I32))));
    };
    let outputs = pooling.output().elements();
    let output = client.empty(outputs * plan.dtype.size());
    let indices = with_indices.then(|| client.empty(outputs * DType::I32.size()));
    windowpane_kernels::pool::launch(
        client,
        pooling,
        operator.reduction(),
        plan.dtype,
        kernel,
        [input, &output],
        indices.as_ref(),
    )?;
    let work: std::sync::Arc<str> =
        format!("{} of {} {:?}", operator.name(), plan.dtype, x.dims()).into();
    let tensor =
        |dtype, handle| Tensor::on_device(&plan.device, dtype, dims.clone(), handle, work.clone());
    Ok((tensor(plan.dtype, output), indices.map(|handle| tensor(DType::I32, handle))))
}

fn output_dims(pooling: &Pooling) -> Vec<usize> {
    pooling.output().dims(pooling.layout()).collect()
}
