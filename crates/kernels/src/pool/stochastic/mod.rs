//! Stochastic pooling: a number of each window, drawn with a probability proportional to it, or the mean of what is
//! drawn. One unit per output vector visits its taps twice.
//!
//! ```text
//! w(x) = x, or 0 if x is negative
//! drawn:  total = Σ w;  y = the first x whose running Σ w exceeds u · total, or equals the total
//! mean:   m = max w;    y = m · Σ (w/m)² / Σ (w/m),  or Σ w if m is 0 or infinite
//! ```
//!
//! Both visits of a drawing add the same numbers in the same order, so the last running sum is the total itself. The
//! random number `u` is a function of the seed and of the output's position in the tensor, so it does not depend on the
//! layout or on the order in which units run.

mod kernel;

use cubecl::prelude::*;
use windowpane_geometry::DType;

use crate::cube::numbers;
use crate::device::Capabilities;
use crate::error::PlanError;
use crate::pool::common::window::{ProblemArgs, WindowForm, problem_args};
use crate::pool::common::{Buffers, Kernel, Settings, Task, no_config, optional};
use crate::pool::problem::{Problem, Reduction};

pub(super) const NAME: &str = "stochastic";

no_config!();

impl Kernel for Config {
    fn applies(problem: Problem<'_>, _device: &Capabilities) -> Result<(), PlanError> {
        seed(problem).map(drop)
    }

    /// Plans one unit per output vector.
    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError> {
        let narrowed = task.settings.narrowed(task.device);
        Ok((Settings { unrolled: false, ..narrowed }, Self))
    }

    fn seconds(&self, task: Task<'_>) -> f64 {
        let lanes = task.lanes();
        let taps = 2.0 * task.taps() as f64;
        let taps = taps * (task.load_cost(lanes, task.load_step()) + task.reduce_cost(lanes));
        task.launch_seconds(task.outputs() / lanes, taps, 1.0)
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        let (client, lanes, seed) = (buffers.client, task.lanes(), seed(task.problem)?);
        let (cubes, units) = task.grid(client, task.outputs() / lanes);
        let most = if task.dtype() == DType::F64 { f64::MAX } else { f64::from(f32::MAX) };
        let args = numbers! { StochasticArgsLaunch {
            problem: problem_args(task), seed: seed.unwrap_or_default(), channels: task.pixel(),
            windows: task.pooling().output().plane(),
            most: InputScalar::new(most, task.accumulator()),
        } };
        // SAFETY: every access of the kernel is inside the tensors by the arithmetic of `Axis`.
        unsafe {
            kernel::stochastic::launch_unchecked(
                client,
                cubes,
                units,
                lanes,
                buffers.input.vectors(lanes),
                buffers.output.vectors(lanes),
                optional(buffers.indices, lanes),
                args,
                StochasticForm { window: WindowForm::new(task), draws: seed.is_some() },
                task.types(),
            )
        };
        Ok(())
    }
}

/// The seed of a drawing, `None` for the mean; an error for other reductions.
fn seed(problem: Problem<'_>) -> Result<Option<u32>, PlanError> {
    match problem.reduction {
        Reduction::Drawn { seed, .. } if !problem.gradient => Ok(Some(seed)),
        Reduction::MeanDrawn if !problem.gradient => Ok(None),
        _ => {
            let reason = "it only computes stochastic pooling";
            Err(PlanError::NotApplicable { kernel: NAME, reason })
        }
    }
}

#[derive(CubeType, CubeLaunch)]
struct StochasticArgs {
    problem: ProblemArgs,
    seed: u32,
    /// The number of channels that are adjacent in memory.
    channels: u32,
    /// The number of outputs in a plane.
    windows: u32,
    /// The largest finite number of the accumulator's type.
    most: InputScalar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StochasticForm {
    window: WindowForm,
    /// Whether a number is drawn; otherwise the mean is computed.
    draws: bool,
}
