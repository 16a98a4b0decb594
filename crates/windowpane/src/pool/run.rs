//! How the operators run: plan, check, and then the reference or a kernel.

use windowpane_geometry::{DType, Divisor, IndexBase, Pooling, Shape};
use windowpane_reference::pool as reference;

use super::Options;
use crate::element::{Element, HostBuffer, sealed::Sealed, with_element};
use crate::plan::Choice;
use crate::tensor::element_slice;
use crate::{Algorithm, Device, Error, Plan, Result, Tensor};

/// What a pooling does to its windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operator {
    /// The maximum, and where it was.
    Max(Option<IndexBase>),
    Average(Divisor),
    MaxBackward(IndexBase),
    AverageBackward(Divisor),
}

impl Operator {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Max(None) => "max pooling",
            Self::Max(Some(_)) => "max pooling with indices",
            Self::Average(_) => "average pooling",
            Self::MaxBackward(_) => "max pooling's gradient",
            Self::AverageBackward(_) => "average pooling's gradient",
        }
    }

    #[cfg(feature = "kernels")]
    fn is_gradient(self) -> bool {
        matches!(self, Self::MaxBackward(_) | Self::AverageBackward(_))
    }

    /// What it reads, in words.
    fn reads(self) -> &'static str {
        match self {
            Self::Max(_) | Self::Average(_) => "the input",
            Self::MaxBackward(_) => "the output's gradient and the winners",
            Self::AverageBackward(_) => "the output's gradient",
        }
    }

    /// The indices that it reads or writes.
    pub(crate) fn base(self) -> Option<IndexBase> {
        match self {
            Self::Max(base) => base,
            Self::MaxBackward(base) => Some(base),
            _ => None,
        }
    }

    /// Refuses what the operator is not defined for.
    fn check(self, pooling: &Pooling, dtype: DType) -> Result<()> {
        if let Some(base) = self.base() {
            pooling.check_indices(base)?;
        }
        if let Self::Average(divisor) | Self::AverageBackward(divisor) = self {
            divisor.check()?;
        }
        if !matches!(self, Self::Max(_)) && !dtype.is_float() {
            return Err(Error::NotForIntegers { operator: self.name(), dtype });
        }
        Ok(())
    }

    #[cfg(feature = "kernels")]
    fn reduction(self) -> windowpane_kernels::pool::Reduction {
        use windowpane_kernels::pool::{Output, Reduction};
        match self {
            Self::Max(None) => Reduction::Max(Output::Values),
            Self::Max(Some(base)) => Reduction::Max(Output::ValuesAndIndices(base)),
            Self::MaxBackward(base) => Reduction::Max(Output::ValuesAndIndices(base)),
            Self::Average(divisor) | Self::AverageBackward(divisor) => Reduction::Average(divisor),
        }
    }
}

pub(super) fn plan(
    options: &Options,
    operator: Operator,
    device: &Device,
    dtype: DType,
    dims: &[usize],
) -> Result<Plan> {
    let input = Shape::from_dims(dims, options.layout)?;
    let pooling = Pooling::new(input, &options.window, options.layout)?;
    device.require(dtype)?;
    operator.check(&pooling, dtype)?;
    let choice = choose(options, operator, device, dtype, &pooling)?;
    Ok(Plan { device: device.clone(), operator, pooling, dtype, choice })
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
        use windowpane_kernels::{Limits, pool};
        let limits = Limits::of(client);
        let plan = match options.algorithm {
            None if operator.is_gradient() => {
                let direct = pool::Algorithm::Direct;
                pool::Plan::with(direct, pooling, operator.reduction(), dtype, &limits)?
            }
            None => pool::Plan::new(pooling, operator.reduction(), dtype, &limits)?,
            Some(algorithm) => {
                let none = || Error::NoKernel { algorithm, device: device.clone() };
                let kernel = algorithm.kernel().ok_or_else(none)?;
                let plan = pool::Plan::with(kernel, pooling, operator.reduction(), dtype, &limits);
                plan.map_err(|error| match error {
                    pool::PlanError::NotFor { .. } => none(),
                    error => error.into(),
                })?
            }
        };
        return Ok(Choice::Kernel(plan));
    }
    let _ = (operator, dtype);
    match options.algorithm {
        Some(algorithm @ Algorithm::Strip) => {
            Err(Error::NoKernel { algorithm, device: device.clone() })
        }
        Some(algorithm) => Ok(Choice::Host(algorithm)),
        None => Ok(Choice::Host(match reference::choose(pooling) {
            reference::Algorithm::Sliding => Algorithm::Sliding,
            _ => Algorithm::Direct,
        })),
    }
}

/// The pooled tensor, and the indices where the operator returns them.
pub(super) fn run(
    options: &Options,
    operator: Operator,
    plan: &Plan,
    x: &Tensor,
) -> Result<(Tensor, Option<Tensor>)> {
    check_plan(options, operator, plan)?;
    forward(plan, x, Spare::default())
}

fn forward(plan: &Plan, x: &Tensor, spare: Spare) -> Result<(Tensor, Option<Tensor>)> {
    check_tensor(plan, x, plan.dtype, plan.pooling.input())?;
    let _entered = span(plan).entered();
    match &plan.choice {
        Choice::Host(algorithm) => Ok(run_on_host(plan.operator, *algorithm, plan, x)),
        #[cfg(feature = "kernels")]
        Choice::Kernel(kernel) => run_kernel(plan.operator, kernel, plan, x, spare),
    }
}

/// The gradient of the input.
pub(super) fn run_backward(
    options: &Options,
    operator: Operator,
    plan: &Plan,
    dy: &Tensor,
    winners: Option<&Tensor>,
) -> Result<Tensor> {
    check_plan(options, operator, plan)?;
    backward(plan, dy, winners, Spare::default())
}

fn backward(plan: &Plan, dy: &Tensor, winners: Option<&Tensor>, spare: Spare) -> Result<Tensor> {
    check_tensor(plan, dy, plan.dtype, plan.pooling.output())?;
    if let Some(winners) = winners {
        check_tensor(plan, winners, DType::I32, plan.pooling.output())?;
    }
    let _entered = span(plan).entered();
    match &plan.choice {
        Choice::Host(_) => backward_on_host(plan.operator, plan, dy, winners),
        #[cfg(feature = "kernels")]
        Choice::Kernel(kernel) => backward_kernel(plan.operator, kernel, plan, dy, winners, spare),
    }
}

/// Runs a plan on what it reads, in place of the results of an earlier run.
pub(crate) fn run_again(plan: &Plan, inputs: &[&Tensor], results: &mut Vec<Tensor>) -> Result<()> {
    let spare = Spare::of(results);
    *results = match (plan.operator, inputs) {
        (Operator::Max(_) | Operator::Average(_), [x]) => {
            let (y, indices) = forward(plan, x, spare)?;
            [y].into_iter().chain(indices).collect()
        }
        (Operator::MaxBackward(_), [dy, winners]) => {
            vec![backward(plan, dy, Some(winners), spare)?]
        }
        (Operator::AverageBackward(_), [dy]) => vec![backward(plan, dy, None, spare)?],
        _ => {
            let asked = format!("{}, which reads {}", plan.operator.name(), plan.operator.reads());
            return Err(Error::PlanMismatch { asked, found: format!("{} tensors", inputs.len()) });
        }
    };
    Ok(())
}

/// Memory that results may use in place of new memory, in their order.
#[derive(Default)]
struct Spare {
    #[cfg(feature = "kernels")]
    memory: std::collections::VecDeque<cubecl::server::Handle>,
}

impl Spare {
    /// The memory of tensors that will be replaced, where nobody else holds it.
    fn of(results: &mut [Tensor]) -> Self {
        #[cfg(feature = "kernels")]
        if let Some(memory) =
            results.iter_mut().map(|tensor| tensor.own_handle().cloned()).collect()
        {
            return Self { memory };
        }
        let _ = results;
        Self::default()
    }

    #[cfg(feature = "kernels")]
    fn take(&mut self, client: &cubecl::client::Client, bytes: usize) -> cubecl::server::Handle {
        let spare = self.memory.pop_front().filter(|handle| handle.size() == bytes as u64);
        spare.unwrap_or_else(|| client.empty(bytes))
    }
}

fn span(plan: &Plan) -> tracing::Span {
    tracing::debug_span!(
        "pool",
        operator = plan.operator.name(),
        device = %plan.device,
        algorithm = %plan.algorithm(),
        input = ?dims(&plan.pooling, plan.pooling.input()),
    )
}

/// Refuses a plan that was made for another operator or other options.
fn check_plan(options: &Options, operator: Operator, plan: &Plan) -> Result<()> {
    let pooling = Pooling::new(plan.pooling.input(), &options.window, options.layout)?;
    if (plan.operator, plan.pooling) == (operator, pooling) {
        return Ok(());
    }
    let describe = |operator: Operator, pooling: &Pooling| {
        format!("{operator:?} to {} in {}", pooling.output().space(), pooling.layout())
    };
    let (asked, found) = (describe(plan.operator, &plan.pooling), describe(operator, &pooling));
    Err(Error::PlanMismatch { asked, found })
}

/// Refuses a tensor other than those that the plan was made for.
fn check_tensor(plan: &Plan, tensor: &Tensor, dtype: DType, shape: Shape) -> Result<()> {
    if *tensor.device() != plan.device {
        let found = tensor.device().clone();
        return Err(Error::DeviceMismatch { asked: plan.device.clone(), found });
    }
    let planned = dims(&plan.pooling, shape);
    if (tensor.dtype(), tensor.dims()) == (dtype, &*planned) {
        return Ok(());
    }
    let asked = format!("{dtype} {planned:?}");
    Err(Error::PlanMismatch { asked, found: format!("{} {:?}", tensor.dtype(), tensor.dims()) })
}

fn dims(pooling: &Pooling, shape: Shape) -> Vec<usize> {
    shape.dims(pooling.layout()).collect()
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
    let dims = dims(&plan.pooling, plan.pooling.output());
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
    let slides = algorithm == Algorithm::Sliding;
    match (operator, slides) {
        (Operator::Max(None), false) => (direct::max(pooling, x), None),
        (Operator::Max(None), true) => (deque::max(pooling, x), None),
        (Operator::MaxBackward(_) | Operator::AverageBackward(_), _) => {
            unreachable!("gradients run backward")
        }
        (Operator::Max(Some(base)), false) => {
            let (values, indices) = direct::max_with_indices(pooling, base, x);
            (values, Some(indices))
        }
        (Operator::Max(Some(base)), true) => {
            let (values, indices) = deque::max_with_indices(pooling, base, x);
            (values, Some(indices))
        }
        (Operator::Average(divisor), false) => (direct::average(pooling, divisor, x), None),
        (Operator::Average(divisor), true) => (prefix::average(pooling, divisor, x), None),
    }
}

#[cfg(feature = "kernels")]
fn run_kernel(
    operator: Operator,
    kernel: &windowpane_kernels::pool::Plan,
    plan: &Plan,
    x: &Tensor,
    mut spare: Spare,
) -> Result<(Tensor, Option<Tensor>)> {
    let pooling = &plan.pooling;
    let dims = dims(pooling, pooling.output());
    let with_indices = matches!(operator, Operator::Max(Some(_)));
    let Some((client, input)) = x.handle() else {
        // An empty batch: nothing to launch.
        let empty =
            |dtype| Tensor::on_host(&plan.device, dims.clone(), HostBuffer::from_bytes(dtype, &[]));
        return Ok((empty(plan.dtype), with_indices.then(|| empty(DType::I32))));
    };
    let outputs = pooling.output().elements();
    let output = spare.take(client, outputs * plan.dtype.size());
    let indices = with_indices.then(|| spare.take(client, outputs * DType::I32.size()));
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

fn backward_on_host(
    operator: Operator,
    plan: &Plan,
    dy: &Tensor,
    winners: Option<&Tensor>,
) -> Result<Tensor> {
    let pooling = &plan.pooling;
    let buffer = dy.host_buffer().expect("a tensor on host has its elements there");
    let dx = with_element!(dy.dtype(), T => {
        let dy = element_slice::<T>(buffer);
        T::into_host(match (operator, winners) {
            (Operator::MaxBackward(base), Some(winners)) => {
                let winners = winners.host_buffer().expect("a tensor on host has its elements there");
                reference::backward::max_backward(pooling, base, dy, element_slice::<i32>(winners))?
            }
            (Operator::AverageBackward(divisor), None) => {
                reference::backward::average_backward(pooling, divisor, dy)
            }
            _ => unreachable!("a maximum's gradient has winners, an average's none"),
        })
    });
    Ok(Tensor::on_host(&plan.device, dims(pooling, pooling.input()), dx))
}

#[cfg(feature = "kernels")]
fn backward_kernel(
    operator: Operator,
    kernel: &windowpane_kernels::pool::Plan,
    plan: &Plan,
    dy: &Tensor,
    winners: Option<&Tensor>,
    mut spare: Spare,
) -> Result<Tensor> {
    use windowpane_kernels::pool::Gradient;
    let pooling = &plan.pooling;
    let dims = dims(pooling, pooling.input());
    let Some((client, gradient)) = dy.handle() else {
        // An empty batch: nothing to launch.
        return Ok(Tensor::on_host(&plan.device, dims, HostBuffer::from_bytes(plan.dtype, &[])));
    };
    let dx = spare.take(client, pooling.input().elements() * plan.dtype.size());
    let through = match operator {
        Operator::MaxBackward(base) => Gradient::Max(base),
        Operator::AverageBackward(divisor) => Gradient::Average(divisor),
        Operator::Max(_) | Operator::Average(_) => unreachable!("only gradients run backward"),
    };
    windowpane_kernels::pool::launch_backward(
        client,
        pooling,
        through,
        plan.dtype,
        kernel,
        [gradient, &dx],
        winners.and_then(|winners| winners.handle()).map(|(_, handle)| handle),
    )?;
    let work = format!("{} of {} {dims:?}", operator.name(), plan.dtype);
    Ok(Tensor::on_device(&plan.device, plan.dtype, dims, dx, work))
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use crate::{DType, Device, MaxPool, Plan, Tensor};

    /// Where the results of a run are; nowhere on `host`.
    fn places(results: &mut [Tensor]) -> Vec<*const ()> {
        let handles = results.iter_mut().filter_map(Tensor::own_handle);
        handles.map(|handle| std::ptr::from_ref(handle.memory.descriptor()).cast()).collect()
    }

    fn stays(plan: &Plan, inputs: &[&Tensor]) {
        let mut results = Vec::new();
        plan.run(inputs, &mut results).unwrap();
        let first = places(&mut results);
        // The new memory would be there before the old is given back: no address comes twice.
        plan.run(inputs, &mut results).unwrap();
        assert_eq!(places(&mut results), first, "{}", plan.device());
        let clones = results.clone();
        plan.run(inputs, &mut results).unwrap();
        let moved = places(&mut results);
        assert_eq!(moved.len(), first.len());
        assert!(moved.iter().all(|place| !first.contains(place)), "{}", plan.device());
        drop(clones);
    }

    #[test]
    fn results_stay_in_their_memory_unless_a_clone_holds_it() {
        for device in Device::all() {
            let dims = [2, 8, 8, 4];
            let pool = MaxPool::new([2, 2]);
            let x = Tensor::random(&device, DType::F32, dims, 1).unwrap();
            let plan = pool.plan_with_indices(&device, DType::F32, &dims).unwrap();
            stays(&plan, &[&x]);
            let (dy, winners) = pool.forward_with_indices(&x).unwrap();
            let plan = pool.plan_backward(&device, DType::F32, &dims).unwrap();
            stays(&plan, &[&dy, &winners]);
        }
    }
}
