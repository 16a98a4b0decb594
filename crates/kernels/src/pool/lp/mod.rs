//! The norm of each window, `(Σ|x|^p)^(1/p)`: one unit per output vector visits its taps twice.
//!
//! ```text
//! m = max |x|                               the result itself, if it is 0, infinite or NaN
//! y = m · (Σ (|x|/m)^p)^(1/p)
//! ```
//!
//! Without `m`, the square of 1e30 would overflow f32. The code departs from this in two ways. `p = 1` needs no `m`.
//! And f32 numbers are first scaled by a power of two near `1/m` instead of by `1/m`, which costs nothing and keeps
//! every quotient in the range in which devices promise exact results. For `p = 2` this is all; otherwise numbers are
//! then divided by the rest of `m`, a number from ½ to 4.
//!
//! `windowpane_reference::pool::lp` states the error bounds.

mod bits;
mod gradient;
mod kernel;

use cubecl::client::Client;
use cubecl::prelude::*;
use windowpane_geometry::{DType, Exponent};

use crate::cube::convert::{accumulator, elem};
use crate::cube::numbers;
use crate::device::Capabilities;
use crate::error::PlanError;
use crate::pool::common::window::{ProblemArgs, WindowForm, problem_args};
use crate::pool::common::{Buffers, Kernel, Settings, Task, Tensor, no_config};
use crate::pool::problem::{Problem, Reduction, check_workspace};

use gradient::launch_gradient;

pub(super) const NAME: &str = "lp";

no_config!();

impl Kernel for Config {
    fn applies(problem: Problem<'_>, _device: &Capabilities) -> Result<(), PlanError> {
        exponent(problem).map(drop)
    }

    /// Plans one unit per output vector, or per input vector of the gradient.
    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError> {
        let p = exponent(task.problem)?;
        let workspace = if task.problem.gradient { workspace(task, p) } else { 0 };
        Ok((Settings { workspace, ..task.settings }, Self))
    }

    /// Refuses lanes that do not divide a pixel, and a scratch buffer of norms that the device cannot bind.
    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        task.check_lanes()?;
        check_workspace(task.outputs(), task.settings.workspace, task.device)
    }

    fn seconds(&self, task: Task<'_>) -> f64 {
        let lanes = task.lanes();
        let taps = 2.0 * task.taps() as f64;
        let taps = taps * (task.load_cost(lanes, task.load_step()) + task.reduce_cost(lanes));
        task.launch_seconds(task.outputs() / lanes, taps, 1.0)
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        let p = exponent(task.problem)?;
        let Buffers { client, input, output, pooled, .. } = buffers;
        if task.problem.gradient {
            let x = pooled.ok_or(PlanError::Pooled { needed: true })?;
            launch_gradient(client, task, p, [input, x, output]);
            return Ok(());
        }
        launch_into(client, task, p, task.dtype(), false, [input, output]);
        Ok(())
    }
}

/// The exponent of a norm; an error for other reductions.
fn exponent(problem: Problem<'_>) -> Result<Exponent, PlanError> {
    let reason = "it only computes norms and their gradients";
    match problem.reduction {
        Reduction::Norm(p) => Ok(p),
        _ => Err(PlanError::NotApplicable { kernel: NAME, reason }),
    }
}

/// The bytes of the gradient's scratch buffer, which holds the norms.
fn workspace(task: Task<'_>, p: Exponent) -> usize {
    match Power::of(p) {
        Power::One => 0,
        _ => task.outputs() * accumulator(task.dtype()).size(),
    }
}

/// Launches the norm, with results of the type `result`. If `marks`, a 32-bit norm that overflows although its numbers
/// are finite is stored negative and divided by two to the power of [`LESS`].
fn launch_into(
    client: &Client,
    task: Task<'_>,
    p: Exponent,
    result: DType,
    marks: bool,
    [input, output]: [Tensor<'_>; 2],
) {
    // The norms of a gradient are a forward pass.
    let problem = Problem { gradient: false, ..task.problem };
    let task = Task { problem, settings: Settings { unrolled: false, ..task.settings }, ..task };
    let lanes = task.lanes();
    let (cubes, units) = task.grid(client, task.outputs() / lanes);
    let sums = accumulator(task.dtype());
    let form = NormForm {
        window: WindowForm::new(task),
        power: Power::of(p),
        double: sums == DType::F64,
        rounds: task.rounds() && result == DType::BF16,
        marks,
    };
    let args = numbers! { NormArgsLaunch {
        problem: problem_args(task), exponent: InputScalar::new(p.get(), elem(sums)),
        root: InputScalar::new(1.0 / p.get(), elem(sums)),
    } };
    // SAFETY: every access of the kernel is inside the tensors by the arithmetic of `Axis`.
    unsafe {
        kernel::norm::launch_unchecked(
            client,
            cubes,
            units,
            lanes,
            input.vectors(lanes),
            output.vectors(lanes),
            args,
            form,
            [task.elem(), elem(sums), elem(result)],
        )
    };
}

#[derive(CubeType, CubeLaunch)]
struct NormArgs {
    problem: ProblemArgs,
    exponent: InputScalar,
    /// The reciprocal of the exponent.
    root: InputScalar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NormForm {
    window: WindowForm,
    power: Power,
    /// Whether sums have 64 bits.
    double: bool,
    /// Whether the kernel rounds results to `bf16` itself.
    rounds: bool,
    /// Whether norms that are too large for 32 bits are marked.
    marks: bool,
}

/// The exponent of the power of two by which a norm too large for 32 bits is divided. It is large enough: a window has
/// fewer than 2³¹ numbers, so its norm is less than 2³¹ times the largest of them.
const LESS: i32 = 32;

/// How powers are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Power {
    /// The power of a number is the number itself.
    One,
    /// By a multiplication, and the root by a square root.
    Two,
    /// By the device's power function.
    Any,
}

impl Power {
    fn of(p: Exponent) -> Self {
        match p.get() {
            1.0 => Self::One,
            2.0 => Self::Two,
            _ => Self::Any,
        }
    }
}
