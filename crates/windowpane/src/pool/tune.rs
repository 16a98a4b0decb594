//! Tuning: chooses the kernel of a pooling by timing those that can compute it, and remembers the choice.

use windowpane_geometry::{DType, Pooling, Shape};
use windowpane_kernels::pool::{Algorithm, Plan, Problem};
use windowpane_kernels::{Capabilities, Verdict};

use super::Operator;
use super::choice::plan_pooling;
use super::run::run_again;
use crate::plan::Choice;
use crate::race::{Race, is_faster, mean_seconds};
use crate::tuned::{self, Found, POOLING, windows};
use crate::{PoolPlan, Result, Tensor};

/// A kernel whose estimate is this many times that of the fastest is not timed.
const HOPELESS_ESTIMATE: f64 = 10.0;

/// The plan of the fastest kernel.
pub(crate) fn tune(plan: &PoolPlan) -> Result<PoolPlan> {
    let (Choice::Kernel(own), Some(capabilities)) = (plan.choice, plan.device.capabilities())
    else {
        return Ok(plan.clone());
    };
    // Unpooling has one kernel, whose plan is no other problem's.
    let is_one = matches!(plan.operator, Operator::Unpool(_) | Operator::UnpoolBackward(_));
    if is_one || plan.asked.is_some() || plan.pooling.output().elements() == 0 {
        return Ok(plan.clone());
    }
    let problem = plan.operator.problem(&plan.pooling, plan.dtype);
    let default = |kernel| Plan::with(kernel, problem, capabilities).ok();
    let mut plans = vec![own];
    for other in worth_timing(problem, capabilities).into_iter().filter_map(default) {
        let ends =
            || crate::loop_limit::check_pooling(&plan.device, plan.operator, &plan.pooling, &other);
        if !plans.contains(&other) && ends().is_ok() {
            plans.push(other);
        }
    }
    if plans.len() == 1 {
        return Ok(plan.clone());
    }
    let inputs = inputs(plan)?;
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let with = |kernel: Plan| PoolPlan { choice: Choice::Kernel(kernel), ..plan.clone() };
    let mut race = Race::new();
    for kernel in plans {
        // A failure stays attached to the memory that the plan should have written, so each has its own.
        let (candidate, mut results) = (with(kernel), Vec::new());
        // The first launch compiles the kernel and fails if it cannot run.
        let timed = seconds(&candidate, &inputs, &mut results, 1)
            .and_then(|_| results.iter().try_for_each(Tensor::wait))
            .and_then(|()| {
                race.enter(kernel, |launches| seconds(&candidate, &inputs, &mut results, launches))
            });
        match timed {
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
    let tuned = if faster { best } else { own };
    // A plan whose fields were changed is no choice of a kernel.
    if default(tuned.algorithm()) == Some(tuned) {
        let key = key(plan.operator, plan.dtype, &plan.pooling);
        tuned::remember(&plan.device, key, Found::Pool(with(tuned).algorithm()));
    }
    Ok(with(tuned))
}

/// The kernels that are not estimated to be hopeless.
fn worth_timing(problem: Problem<'_>, capabilities: &Capabilities) -> Vec<Algorithm> {
    let verdicts = Plan::explain(problem, capabilities).unwrap_or_default();
    let seconds = |verdict: &Verdict| match *verdict {
        Verdict::Chosen { nanoseconds } | Verdict::NotChosen { nanoseconds } => Some(nanoseconds),
        _ => None,
    };
    let least = verdicts.iter().filter_map(|(_, verdict)| seconds(verdict)).min();
    let most = HOPELESS_ESTIMATE * least.map_or(f64::INFINITY, |least| least as f64);
    let is_near = |verdict: &Verdict| seconds(verdict).is_some_and(|it| it as f64 <= most);
    let kernels = verdicts.into_iter().filter(|(_, verdict)| is_near(verdict));
    kernels.map(|(kernel, _)| kernel).collect()
}

/// The mean seconds of one of `launches` launches.
fn seconds(
    plan: &PoolPlan,
    inputs: &[&Tensor],
    results: &mut Vec<Tensor>,
    launches: u32,
) -> Result<f64> {
    mean_seconds(&plan.device, launches, || run_again(plan, inputs, results))
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
    let adaptive = if pooling.grid().is_adaptive() { " adaptive" } else { "" };
    format!(
        "{POOLING} {name}{options}{adaptive} {dtype} {} n={} c={} {} output={}",
        pooling.layout(),
        input.batch(),
        input.channels(),
        windows(pooling.grid()),
        pooling.output().space().to_string().replace('×', ","),
    )
}

#[cfg(test)]
mod tests {
    use windowpane_geometry::{Divisor, Extents, Layout, Rounding, Window};

    use super::*;

    /// Problems with other outputs have other texts, also if the sizes of their windows are the same.
    #[test]
    fn problems_have_their_own_texts() {
        let key = |window: Window, divisor| {
            let shape = Shape::new(1, 2, Extents::from([10])).unwrap();
            let pooling = Pooling::new(shape, &window, Layout::ChannelsLast).unwrap();
            key(Operator::Average(divisor), DType::F32, &pooling)
        };
        let sized = |rounding| Window::new([3]).stride([2]).rounding(rounding);
        let adaptive = |output: usize| Window::adaptive(Extents::from([output]));
        let texts = [
            key(sized(Rounding::Floor), Divisor::Valid),
            key(sized(Rounding::Floor), Divisor::Padded),
            key(sized(Rounding::Ceil), Divisor::Valid),
            key(Window::new([3]), Divisor::Valid),
            key(Window::new([3]).stride([2]), Divisor::Fixed(3)),
            key(adaptive(4), Divisor::Valid),
            key(adaptive(6), Divisor::Valid),
        ];
        for (i, text) in texts.iter().enumerate() {
            assert!(!texts[..i].contains(text), "{text}");
        }
    }
}
