//! Chooses how an operator runs: an algorithm of `host`, a kernel on other devices.

use windowpane_geometry::{DType, Pooling, Shape};
use windowpane_reference::pool::Algorithm;

use super::{Operator, Options};
use crate::plan::Choice;
use crate::{Device, Error, PoolAlgorithm, PoolPlan, Result};

/// Everything that the choice of a kernel depends on besides the device; the last number changes with the table of
/// tuned choices.
#[cfg(feature = "kernels")]
pub(crate) type Key = (Operator, Option<PoolAlgorithm>, DType, Pooling, usize);

/// Plans an operator on tensors with these dimensions.
pub(super) fn plan(
    options: &Options,
    operator: Operator,
    device: &Device,
    dtype: DType,
    dims: &[usize],
) -> Result<PoolPlan> {
    let pooling = options.pooling(Shape::from_dims(dims, options.layout)?)?;
    plan_pooling(options.algorithm, operator, device, dtype, pooling)
}

/// Plans an operator for a problem that is already checked.
pub(super) fn plan_pooling(
    algorithm: Option<PoolAlgorithm>,
    operator: Operator,
    device: &Device,
    dtype: DType,
    pooling: Pooling,
) -> Result<PoolPlan> {
    device.require(dtype)?;
    operator.check(&pooling, dtype)?;
    let choice = choose(algorithm, operator, device, dtype, &pooling)?;
    Ok(PoolPlan { device: device.clone(), operator, pooling, dtype, asked: algorithm, choice })
}

fn choose(
    algorithm: Option<PoolAlgorithm>,
    operator: Operator,
    device: &Device,
    dtype: DType,
    pooling: &Pooling,
) -> Result<Choice> {
    #[cfg(feature = "kernels")]
    if let (Some(client), Some(capabilities)) = (device.own_client(), device.capabilities()) {
        let table = crate::tuned::generation();
        let key = (operator.without_seed(), algorithm, dtype, *pooling, table);
        let choose =
            || choose_kernel(algorithm, operator, (client, capabilities), device, dtype, pooling);
        return device.poolings().or_make(key, choose).map(Choice::Kernel);
    }
    let _ = dtype;
    match algorithm {
        Some(PoolAlgorithm::Direct) => Ok(Choice::Host(PoolAlgorithm::Direct)),
        Some(PoolAlgorithm::Sliding) if operator.slides() => {
            Ok(Choice::Host(PoolAlgorithm::Sliding))
        }
        Some(algorithm) => {
            let reason = match operator.slides() {
                true => "it is computed by direct or sliding",
                false => "it is computed by direct",
            };
            Err(no_kernel(algorithm, device, reason))
        }
        None if !operator.slides() => Ok(Choice::Host(PoolAlgorithm::Direct)),
        None => Ok(Choice::Host(match windowpane_host::pool::choose(pooling) {
            Algorithm::Sliding => PoolAlgorithm::Sliding,
            _ => PoolAlgorithm::Direct,
        })),
    }
}

/// A tuned kernel, the one that was asked for, or else the planner's choice.
#[cfg(feature = "kernels")]
fn choose_kernel(
    algorithm: Option<PoolAlgorithm>,
    operator: Operator,
    (client, capabilities): (&cubecl::client::Client, &windowpane_kernels::Capabilities),
    device: &Device,
    dtype: DType,
    pooling: &Pooling,
) -> Result<windowpane_kernels::pool::Plan> {
    use windowpane_kernels::{PlanError, can_rank, has_powers, pool};
    let problem = operator.problem(pooling, dtype);
    let key = || super::tune::key(operator, dtype, pooling);
    let unpools = matches!(operator, Operator::Unpool(_) | Operator::UnpoolBackward(_));
    let refusal = match operator {
        Operator::Norm(p) | Operator::NormBackward(p) if !has_powers(client, p, dtype) => {
            Some(PlanError::NoPowers { dtype })
        }
        Operator::Rank(_) | Operator::Mode if !can_rank(client, dtype) => {
            Some(PlanError::NoRanks { dtype })
        }
        _ => None,
    };
    if algorithm.is_none()
        && !unpools
        && refusal.is_none()
        && let Some(crate::tuned::Found::Pool(found)) = crate::tuned::recall(device, key)
        && let Some(kernel) = found.kernel()
        && let Ok(plan) = pool::Plan::with(kernel, problem, capabilities)
        && crate::loop_limit::check_pooling(device, operator, pooling, &plan).is_ok()
    {
        return Ok(plan);
    }
    let named = match algorithm {
        None => None,
        Some(algorithm) => {
            let none = || no_kernel(algorithm, device, "it is an algorithm of `host`");
            Some((algorithm.kernel().ok_or_else(none)?, algorithm))
        }
    };
    let plan = match (refusal, operator, named) {
        (Some(refusal), ..) => Err(refusal),
        (_, _, Some((kernel, algorithm))) => {
            match pool::Plan::with(kernel, problem, capabilities) {
                Err(PlanError::NotApplicable { reason, .. }) => {
                    return Err(no_kernel(algorithm, device, reason));
                }
                plan => plan,
            }
        }
        (_, Operator::Unpool(base) | Operator::UnpoolBackward(base), None) => {
            pool::Plan::unpool(pooling, base, dtype, capabilities)
        }
        _ => pool::Plan::new(problem, capabilities),
    };
    let plan = plan.map_err(|reason| device.refuses(reason))?;
    crate::loop_limit::check_pooling(device, operator, pooling, &plan)?;
    Ok(plan)
}

fn no_kernel(algorithm: PoolAlgorithm, device: &Device, reason: &str) -> Error {
    let (algorithm, device) = (algorithm.to_string(), device.clone());
    Error::NoKernel { algorithm, device, reason: reason.into() }
}
