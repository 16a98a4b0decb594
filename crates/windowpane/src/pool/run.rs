//! Runs a plan: checks the inputs, then calls `host` or a kernel.

use windowpane_geometry::{DType, Exponent, Pooling, Shape};
#[cfg(feature = "kernels")]
use windowpane_kernels::pool::{Tensors, launch, launch_unpool};
use windowpane_reference::memory::Pooled;
use windowpane_reference::pool as reference;

use super::host::{backward_on_host, own, run_on_host};
use super::{Operator, Options};
use crate::element::{sealed::Sealed, with_element};
use crate::output_reuse::Spare;
use crate::plan::Choice;
use crate::tensor::element_slice;
use crate::{Error, PoolPlan, Result, Tensor};

/// The pooled tensor, and the indices if the operator returns them.
pub(super) fn run(
    options: &Options,
    operator: Operator,
    plan: &PoolPlan,
    x: &Tensor,
) -> Result<(Tensor, Option<Tensor>)> {
    check_plan(options, operator, plan)?;
    forward(plan, x, Spare::default())
}

#[cfg_attr(
    not(feature = "kernels"),
    allow(unused_variables, unused_mut, reason = "only kernels write into spare memory")
)]
fn forward(plan: &PoolPlan, x: &Tensor, spare: Spare) -> Result<(Tensor, Option<Tensor>)> {
    check_tensor(plan, x, plan.dtype, plan.pooling.input())?;
    let _entered = span(plan).entered();
    match &plan.choice {
        Choice::Host(algorithm) => {
            require_memory(plan)?;
            Ok(run_on_host(plan.operator, *algorithm, plan, x))
        }
        #[cfg(feature = "kernels")]
        Choice::Kernel(kernel) => run_kernel(plan.operator, kernel, plan, x, spare),
    }
}

/// The gradient with respect to the input.
pub(super) fn run_backward(
    options: &Options,
    operator: Operator,
    plan: &PoolPlan,
    dy: &Tensor,
    winners: Option<&Tensor>,
) -> Result<Tensor> {
    check_plan(options, operator, plan)?;
    backward(plan, dy, winners, Spare::default())
}

#[cfg_attr(
    not(feature = "kernels"),
    allow(unused_variables, unused_mut, reason = "only kernels write into spare memory")
)]
fn backward(
    plan: &PoolPlan,
    dy: &Tensor,
    winners: Option<&Tensor>,
    spare: Spare,
) -> Result<Tensor> {
    check_tensor(plan, dy, plan.dtype, plan.pooling.output())?;
    if let Some(winners) = winners {
        check_tensor(plan, winners, DType::I32, plan.pooling.output())?;
    }
    let _entered = span(plan).entered();
    match &plan.choice {
        Choice::Host(_) => {
            require_memory(plan)?;
            backward_on_host(plan.operator, plan, dy, winners)
        }
        #[cfg(feature = "kernels")]
        Choice::Kernel(kernel) => backward_kernel(plan.operator, kernel, plan, dy, winners, spare),
    }
}

/// Runs a plan on its inputs, reusing the results of an earlier run.
pub(crate) fn run_again(
    plan: &PoolPlan,
    inputs: &[&Tensor],
    results: &mut Vec<Tensor>,
) -> Result<()> {
    let spare = Spare::of(results, &plan.device);
    *results = match (plan.operator, inputs) {
        (
            Operator::Extremum(..)
            | Operator::Average(_)
            | Operator::Norm(_)
            | Operator::Rank(_)
            | Operator::Mode
            | Operator::Drawn(..)
            | Operator::MeanDrawn,
            [x],
        ) => {
            let (y, indices) = forward(plan, x, spare)?;
            [y].into_iter().chain(indices).collect()
        }
        (Operator::ExtremumBackward(..) | Operator::DrawnBackward(_), [dy, winners]) => {
            vec![backward(plan, dy, Some(winners), spare)?]
        }
        (Operator::AverageBackward(_), [dy]) => vec![backward(plan, dy, None, spare)?],
        (Operator::NormBackward(p), [dy, x]) => vec![norm_backward(plan, p, dy, x, spare)?],
        (Operator::Unpool(_) | Operator::UnpoolBackward(_), [from, indices]) => {
            vec![unpool(plan, from, indices, spare)?]
        }
        _ => {
            let expected =
                format!("{}, which reads {}", plan.operator.name(), plan.operator.reads());
            return Err(Error::PlanMismatch {
                expected,
                found: format!("{} tensors", inputs.len()),
            });
        }
    };
    Ok(())
}

fn span(plan: &PoolPlan) -> tracing::Span {
    tracing::debug_span!(
        "pool",
        operator = plan.operator.name(),
        device = %plan.device,
        algorithm = %plan.algorithm(),
        input = ?dims(&plan.pooling, plan.pooling.input()),
    )
}

/// Refuses a plan that was made for another operator or other options.
fn check_plan(options: &Options, operator: Operator, plan: &PoolPlan) -> Result<()> {
    let pooling = options.pooling(plan.pooling.input())?;
    if (plan.operator, plan.pooling) == (operator, pooling) {
        return Ok(());
    }
    let describe = |operator: Operator, pooling: &Pooling| {
        let axes = pooling.grid().axes().each_ref();
        let windows = axes.map(|axis| {
            let (kernel, stride, dilation) = (axis.kernel(), axis.stride(), axis.dilation());
            format!("{kernel} by {stride} from -{} with dilation {dilation}", axis.before())
        });
        let (input, layout) = (pooling.input().space(), pooling.layout());
        format!("{operator:?} of {input} in {layout}, windows of {}", windows.join(", "))
    };
    let (expected, found) = (describe(plan.operator, &plan.pooling), describe(operator, &pooling));
    Err(Error::PlanMismatch { expected, found })
}

/// Refuses a tensor that the plan was not made for.
fn check_tensor(plan: &PoolPlan, tensor: &Tensor, dtype: DType, shape: Shape) -> Result<()> {
    plan.device.require_alive()?;
    if *tensor.device() != plan.device {
        let found = tensor.device().clone();
        return Err(Error::DeviceMismatch { expected: plan.device.clone(), found });
    }
    let planned = dims(&plan.pooling, shape);
    if (tensor.dtype(), tensor.dims()) == (dtype, &*planned) {
        return Ok(());
    }
    let expected = format!("{dtype} {planned:?}");
    Err(Error::PlanMismatch { expected, found: format!("{} {:?}", tensor.dtype(), tensor.dims()) })
}

/// Refuses a pooling that does not fit in the memory of `host`, with all that is allocated on the way.
fn require_memory(plan: &PoolPlan) -> Result<()> {
    let pooled = match plan.operator {
        Operator::Extremum(_, base) => Pooled::Max { indices: base.is_some() },
        Operator::Average(_) => Pooled::Average,
        Operator::Norm(_) => Pooled::Norm,
        Operator::Rank(_) => Pooled::Rank,
        Operator::Mode => Pooled::Mode,
        Operator::Drawn(..) => Pooled::Drawn,
        Operator::MeanDrawn => Pooled::MeanDrawn,
        Operator::ExtremumBackward(..) | Operator::DrawnBackward(_) => Pooled::MaxBackward,
        Operator::AverageBackward(_) => Pooled::AverageBackward,
        Operator::NormBackward(_) => Pooled::NormBackward,
        Operator::Unpool(_) => Pooled::Unpool,
        Operator::UnpoolBackward(_) => Pooled::UnpoolBackward,
    };
    let algorithm = own(plan.algorithm());
    let bytes = with_element!(plan.dtype, T => match plan.operator {
        Operator::Rank(_) => windowpane_host::rank_bytes::<T>(&plan.pooling),
        Operator::Mode => windowpane_host::mode_bytes::<T>(&plan.pooling),
        Operator::Norm(p) => windowpane_host::pool::norm_bytes::<T>(&plan.pooling, p),
        _ => windowpane_host::pool::bytes::<T>(pooled, algorithm, &plan.pooling),
    });
    plan.device.require_memory(bytes, plan.operator.name())
}

pub(super) fn dims(pooling: &Pooling, shape: Shape) -> Vec<usize> {
    shape.dims(pooling.layout()).collect()
}

#[cfg(feature = "kernels")]
fn run_kernel(
    operator: Operator,
    kernel: &windowpane_kernels::pool::Plan,
    plan: &PoolPlan,
    x: &Tensor,
    mut spare: Spare,
) -> Result<(Tensor, Option<Tensor>)> {
    let pooling = &plan.pooling;
    let dims = dims(pooling, pooling.output());
    let with_indices = operator.base().is_some();
    let (Some(target), Some((client, input))) = (plan.device.target(), x.memory()) else {
        let empty = |dtype| Tensor::empty(&plan.device, dtype, dims.clone());
        return Ok((empty(plan.dtype), with_indices.then(|| empty(DType::I32))));
    };
    let outputs = pooling.output().elements();
    crate::loop_limit::check_pooling(&plan.device, operator, pooling, kernel)?;
    let output = spare.take(client, target.device.buffer_size(plan.dtype, outputs));
    let indices = with_indices.then(|| spare.take(client, outputs * DType::I32.size()));
    let tensors = Tensors { indices: indices.as_ref(), ..Tensors::new(input, &output) };
    launch(target, operator.problem(pooling, plan.dtype), kernel, tensors)
        .map_err(|reason| plan.device.refuses(reason))?;
    let work: std::sync::Arc<str> =
        format!("{} of {} {:?}", operator.name(), plan.dtype, x.dims()).into();
    let tensor =
        |dtype, handle| Tensor::on_device(&plan.device, dtype, dims.clone(), handle, work.clone());
    let (y, indices) = (tensor(plan.dtype, output), indices.map(|i| tensor(DType::I32, i)));
    Ok((y.doubted_with(&[x]), indices.map(|indices| indices.doubted_with(&[x]))))
}

#[cfg(feature = "kernels")]
fn backward_kernel(
    operator: Operator,
    kernel: &windowpane_kernels::pool::Plan,
    plan: &PoolPlan,
    dy: &Tensor,
    winners: Option<&Tensor>,
    mut spare: Spare,
) -> Result<Tensor> {
    let pooling = &plan.pooling;
    let dims = dims(pooling, pooling.input());
    let (Some(target), Some((client, gradient))) = (plan.device.target(), dy.memory()) else {
        return Ok(Tensor::empty(&plan.device, plan.dtype, dims));
    };
    crate::loop_limit::check_pooling(&plan.device, operator, pooling, kernel)?;
    let dx = spare.take(client, pooling.input().elements() * plan.dtype.size());
    let indices = winners.and_then(|winners| winners.memory()).map(|(_, handle)| handle);
    let tensors = Tensors { indices, ..Tensors::new(gradient, &dx) };
    launch(target, operator.problem(pooling, plan.dtype), kernel, tensors)
        .map_err(|reason| plan.device.refuses(reason))?;
    let work = format!("{} of {} {dims:?}", operator.name(), plan.dtype);
    let dx = Tensor::on_device(&plan.device, plan.dtype, dims, dx, work);
    Ok(match winners {
        Some(winners) => dx.doubted_with(&[dy, winners]),
        None => dx.doubted_with(&[dy]),
    })
}

/// The gradient of an Lp norm.
pub(super) fn run_lp_backward(
    options: &Options,
    p: Exponent,
    plan: &PoolPlan,
    dy: &Tensor,
    x: &Tensor,
) -> Result<Tensor> {
    check_plan(options, Operator::NormBackward(p), plan)?;
    norm_backward(plan, p, dy, x, Spare::default())
}

#[cfg_attr(
    not(feature = "kernels"),
    allow(unused_variables, unused_mut, reason = "only kernels write into spare memory")
)]
fn norm_backward(
    plan: &PoolPlan,
    p: Exponent,
    dy: &Tensor,
    x: &Tensor,
    mut spare: Spare,
) -> Result<Tensor> {
    check_tensor(plan, dy, plan.dtype, plan.pooling.output())?;
    check_tensor(plan, x, plan.dtype, plan.pooling.input())?;
    let _entered = span(plan).entered();
    let pooling = &plan.pooling;
    let dims = dims(pooling, pooling.input());
    match (&plan.choice, dy.host_buffer(), x.host_buffer()) {
        #[cfg(feature = "kernels")]
        (Choice::Kernel(kernel), _, _) => {
            let (Some(target), Some((client, gradient)), Some((_, input))) =
                (plan.device.target(), dy.memory(), x.memory())
            else {
                return Ok(Tensor::empty(&plan.device, plan.dtype, dims));
            };
            crate::loop_limit::check_pooling(&plan.device, plan.operator, pooling, kernel)?;
            let dx = spare.take(client, pooling.input().elements() * plan.dtype.size());
            let tensors = Tensors { pooled: Some(input), ..Tensors::new(gradient, &dx) };
            launch(target, plan.operator.problem(pooling, plan.dtype), kernel, tensors)
                .map_err(|reason| plan.device.refuses(reason))?;
            let work = format!("{} of {} {dims:?}", plan.operator.name(), plan.dtype);
            let dx = Tensor::on_device(&plan.device, plan.dtype, dims, dx, work);
            Ok(dx.doubted_with(&[dy, x]))
        }
        (_, Some(dy), Some(x)) => {
            require_memory(plan)?;
            let dx = with_element!(plan.dtype, T => {
                let (dy, x) = (element_slice::<T>(dy), element_slice::<T>(x));
                T::into_host(reference::lp::norm_backward(pooling, p, dy, x))
            });
            Ok(Tensor::on_host(&plan.device, dims, dx))
        }
        _ => unreachable!("tensors on host have their elements there"),
    }
}

/// Unpooling, or its gradient: moves `from` according to `indices`.
pub(super) fn run_unpool(
    options: &Options,
    operator: Operator,
    plan: &PoolPlan,
    from: &Tensor,
    indices: &Tensor,
) -> Result<Tensor> {
    check_plan(options, operator, plan)?;
    unpool(plan, from, indices, Spare::default())
}

#[cfg_attr(
    not(feature = "kernels"),
    allow(unused_variables, unused_mut, reason = "only kernels write into spare memory")
)]
fn unpool(plan: &PoolPlan, from: &Tensor, indices: &Tensor, mut spare: Spare) -> Result<Tensor> {
    let (pooling, operator) = (&plan.pooling, plan.operator);
    let (base, shapes) = match operator {
        Operator::Unpool(base) => (base, [pooling.output(), pooling.input()]),
        Operator::UnpoolBackward(base) => (base, [pooling.input(), pooling.output()]),
        other => unreachable!("{} has a way of its own", other.name()),
    };
    check_tensor(plan, from, plan.dtype, shapes[0])?;
    check_tensor(plan, indices, DType::I32, pooling.output())?;
    let _entered = span(plan).entered();
    let dims = dims(pooling, shapes[1]);
    match (&plan.choice, from.host_buffer(), indices.host_buffer()) {
        #[cfg(feature = "kernels")]
        (Choice::Kernel(kernel), _, _) => {
            let (Some(target), Some((client, source)), Some((_, winners))) =
                (plan.device.target(), from.memory(), indices.memory())
            else {
                return Ok(Tensor::empty(&plan.device, plan.dtype, dims));
            };
            let bytes = target.device.buffer_size(plan.dtype, shapes[1].elements());
            let to = spare.take(client, bytes);
            let buffers = [source, winners, &to];
            let gradient = matches!(operator, Operator::UnpoolBackward(_));
            let note = launch_unpool(target, pooling, base, plan.dtype, kernel, gradient, buffers)
                .map_err(|reason| plan.device.refuses(reason))?;
            let work = format!("{} of {} {dims:?}", operator.name(), plan.dtype);
            let to = Tensor::on_device(&plan.device, plan.dtype, dims, to, work);
            Ok(to.doubted_with(&[from, indices]).doubted(note, winners.clone()))
        }
        (_, Some(from), Some(indices)) => {
            use reference::unpool::{max_unpool, max_unpool_backward};
            require_memory(plan)?;
            let to = with_element!(plan.dtype, T => {
                let (from, indices) = (element_slice::<T>(from), element_slice::<i32>(indices));
                T::into_host(match operator {
                    Operator::Unpool(_) => max_unpool(pooling, base, from, indices)?,
                    _ => max_unpool_backward(pooling, base, from, indices)?,
                })
            });
            Ok(Tensor::on_host(&plan.device, dims, to))
        }
        _ => unreachable!("tensors on host have their elements there"),
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use crate::{DType, Device, MaxPool, PoolPlan, Tensor};

    /// Where the results of a run are stored; `None` on `host`.
    fn places(results: &mut [Tensor]) -> Vec<*const ()> {
        let handles = results.iter_mut().filter_map(Tensor::own_handle);
        handles.map(|handle| std::ptr::from_ref(handle.memory.descriptor()).cast()).collect()
    }

    fn stays(plan: &PoolPlan, inputs: &[&Tensor]) {
        let mut results = Vec::new();
        plan.run(inputs, &mut results).unwrap();
        let first = places(&mut results);
        // New memory is allocated before the old is freed, so no address is used twice.
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
