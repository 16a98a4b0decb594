//! Tuning: chooses the kernel of a pooling by timing all that can compute it, and remembers the choice.

use windowpane_geometry::{DType, Pooling, Shape};
use windowpane_kernels::pool::{Algorithm, Plan};

use super::Operator;
use super::choice::plan_pooling;
use super::run::run_again;
use crate::plan::Choice;
use crate::race::{Race, is_faster};
use crate::tuned::{self, Found, POOLING, windows};
use crate::{PoolPlan, Result, Tensor};

/// The plan of the fastest kernel.
pub(crate) fn tune(plan: &PoolPlan) -> Result<PoolPlan> {
    let (Choice::Kernel(own), Some(capabilities)) = (plan.choice, plan.device.capabilities())
    else {
        return Ok(plan.clone());
    };
    let problem = plan.operator.problem(&plan.pooling, plan.dtype);
    let mut plans = vec![own];
    for other in
        Algorithm::ALL.iter().filter_map(|kernel| Plan::with(*kernel, problem, capabilities).ok())
    {
        let known = plans.iter().any(|plan| plan.algorithm() == other.algorithm());
        let ends =
            || crate::loop_limit::check_pooling(&plan.device, plan.operator, &plan.pooling, &other);
        if !known && ends().is_ok() {
            plans.push(other);
        }
    }
    // Unpooling has one kernel, whose plan is no other problem's.
    let is_one = matches!(plan.operator, Operator::Unpool(_) | Operator::UnpoolBackward(_));
    if is_one || plans.len() == 1 || plan.pooling.output().elements() == 0 {
        return Ok(plan.clone());
    }
    let inputs = inputs(plan)?;
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let with = |kernel: Plan| PoolPlan { choice: Choice::Kernel(kernel), ..plan.clone() };
    let mut race = Race::new();
    for kernel in plans {
        // A failure stays attached to the memory that the plan should have written, so each has its own.
        let (candidate, mut results) = (with(kernel), Vec::new());
        let mut launch = |launches| seconds(&candidate, &inputs, &mut results, launches);
        // The first launch compiles the kernel and fails if it cannot run.
        match launch(1).and_then(|_| race.enter(kernel, launch)) {
            Err(error) if kernel != own => {
                tracing::debug!(%error, ?kernel, "a plan does not run and is skipped");
            }
            timed => timed?,
        }
    }
    let best = race.best.map_or(own, |(best, _)| best);
    let mut results = Vec::new();
    let launch = |plan: &PoolPlan, launches| seconds(plan, &inputs, &mut results, launches);
    let faster = best != own && is_faster(with(best), with(own), launch)?;
    let tuned = with(if faster { best } else { own });
    let key = key(plan.operator, plan.dtype, &plan.pooling);
    tuned::remember(&plan.device, key, Found::Pool(tuned.algorithm()));
    Ok(tuned)
}

/// The mean seconds of one of `launches` launches.
fn seconds(
    plan: &PoolPlan,
    inputs: &[&Tensor],
    results: &mut Vec<Tensor>,
    launches: u32,
) -> Result<f64> {
    let run = || (0..launches).try_for_each(|_| run_again(plan, inputs, results));
    let ((), took) = plan.device.time(run)?;
    Ok(took.as_secs_f64() / f64::from(launches))
}

/// Random inputs, and indices of maxima where indices are read.
fn inputs(plan: &PoolPlan) -> Result<Vec<Tensor>> {
    let PoolPlan { device, operator, pooling, dtype, .. } = plan;
    let random = |shape: Shape, seed| {
        let dims: Vec<usize> = shape.dims(pooling.layout()).collect();
        Tensor::random(device, *dtype, dims, seed)
    };
    let (x, dy) = (|| random(pooling.input(), 1), || random(pooling.output(), 2));
    Ok(match *operator {
        Operator::AverageBackward(_) => vec![dy()?],
        Operator::NormBackward(_) => vec![dy()?, x()?],
        Operator::ExtremumBackward(extremum, base) => {
            vec![dy()?, winners(plan, Operator::Extremum(extremum, Some(base)), &x()?)?]
        }
        Operator::DrawnBackward(base) => {
            vec![dy()?, winners(plan, Operator::Drawn(1, Some(base)), &x()?)?]
        }
        _ => vec![x()?],
    })
}

/// The indices that the forward pass gives.
fn winners(plan: &PoolPlan, forward: Operator, x: &Tensor) -> Result<Tensor> {
    let pooling = plan.pooling;
    let forward = plan_pooling(None, forward, &plan.device, plan.dtype, pooling)?;
    let mut results = Vec::new();
    run_again(&forward, &[x], &mut results)?;
    Ok(results.swap_remove(1))
}

/// A problem as text: everything that a choice depends on.
pub(super) fn key(operator: Operator, dtype: DType, pooling: &Pooling) -> String {
    let operator = operator.without_seed();
    let options = match operator {
        Operator::Average(divisor) | Operator::AverageBackward(divisor) => {
            format!(" divisor={divisor:?}")
        }
        Operator::Norm(p) | Operator::NormBackward(p) => format!(" exponent={}", p.get()),
        Operator::Rank(rank) => format!(" rank={rank}"),
        _ => operator.base().map_or_else(String::new, |base| format!(" indices={base:?}")),
    };
    let (input, name) = (pooling.input(), operator.name().replace(' ', "-"));
    format!(
        "{POOLING} {name}{options} {dtype} {} n={} c={} {} output={}",
        pooling.layout(),
        input.batch(),
        input.channels(),
        windows(pooling.grid()),
        pooling.output().space().to_string().replace('×', ","),
    )
}
