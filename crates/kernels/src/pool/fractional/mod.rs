//! Fractional max pooling: windows of one size at random distances; also its gradient.
//!
//! ```text
//! start(i) = ⌊(i + u) · step⌋ − ⌊u · step⌋,  the last one L − k        on each axis, with a random number u
//!
//! forward:   for each output (n, o, c):           one unit
//!                the maximum of x[n, start(o) + t, c] over the taps t, and its index
//! gradient:  for each input (n, x, c):            one unit
//!                for each window over x:          found by bisection, because windows start in order
//!                    add dy if its winner is x
//! ```
//!
//! Every channel of every sample has numbers `u` of its own, so neighbouring channels read different taps and vectors
//! have one element.

mod kernel;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, DType, Fractional, IndexBase};

use crate::cube::buffers::Given;
use crate::cube::numbers;
use crate::cube::optional::OptionalLaunch;
use crate::device::Capabilities;
use crate::error::{PlanError, ensure};
use crate::pool::common::window::{ProblemArgs, WindowForm, problem_args};
use crate::pool::common::{Settings, Task, Tensor, optional};
use crate::pool::problem::{Output, Problem, Reduction};

/// Where the random numbers come from.
#[derive(Clone, Copy)]
pub enum Draws<'a> {
    /// They are functions of a seed and the position of the channel.
    Seed(u32),
    /// A buffer of one `f32` from 0 to 1 for each axis of each channel of each sample.
    Samples(&'a Handle),
}

impl<'a> Draws<'a> {
    /// The buffer of numbers, if they are in one.
    pub(super) fn given(self, problem: &Fractional) -> Option<Given<'a>> {
        let Self::Samples(handle) = self else { return None };
        let elements = problem.sample_count();
        Some(Given { name: "the random numbers", handle, dtype: DType::F32, elements })
    }
}

/// The task of the pooling, or of its gradient; an error if it is too large.
pub(super) fn task<'a>(
    problem: &'a Fractional,
    dtype: DType,
    base: IndexBase,
    gradient: bool,
    device: &'a Capabilities,
) -> Result<Task<'a>, PlanError> {
    ensure(dtype.is_float(), PlanError::FloatsOnly { operator: "fractional max pooling", dtype })?;
    let reduction = Reduction::max(Output::ValuesAndIndices(base));
    let forward = Problem::new(problem.pooling(), reduction, dtype);
    let checked = if gradient { forward.backward() } else { forward }.checked(device)?;
    let task = Task::new(checked, device);
    Ok(task.with(Settings { lanes: 1, unrolled: false, ..task.settings }))
}

/// Launches the pooling, or its gradient, which needs the indices. The caller has checked the tensors: `from` and `to`
/// are the input and the output, or the output's gradient and the input's; `indices` are as many as the outputs.
pub(super) fn launch(
    client: &Client,
    task: Task<'_>,
    problem: &Fractional,
    draws: Draws<'_>,
    [from, to]: [Tensor<'_>; 2],
    indices: Option<Tensor<'_>>,
) {
    let (args, form) = (args(task, problem, draws), WindowForm::new(task));
    let (cubes, units) = task.grid(client, to.elements);
    let (from, samples, to) = (from.vectors(1), samples(problem, draws), to.vectors(1));
    // SAFETY: every window is inside the input, whatever the random numbers, and every window that a gradient reads is
    // one of the output.
    unsafe {
        match indices {
            Some(winners) if task.problem.gradient => kernel::gradient::launch_unchecked(
                client,
                cubes,
                units,
                1,
                from,
                winners.vectors(1),
                samples,
                to,
                args,
                form,
                task.types(),
            ),
            _ => kernel::fractional::launch_unchecked(
                client,
                cubes,
                units,
                1,
                from,
                samples,
                to,
                optional(indices, 1),
                args,
                form,
                task.types(),
            ),
        }
    };
}

fn samples(problem: &Fractional, draws: Draws<'_>) -> OptionalLaunch<Box<[f32]>> {
    let given = draws.given(problem);
    optional(given.map(|given| Tensor::new(given.handle, given.elements)), 1)
}

#[derive(CubeType, CubeLaunch)]
struct FractionalArgs {
    problem: ProblemArgs,
    depth: StepArgs,
    height: StepArgs,
    width: StepArgs,
    seed: u32,
}

/// The windows of an axis.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct StepArgs {
    input: FastDivmod<u32>,
    output: FastDivmod<u32>,
    windows: u32,
    kernel: u32,
    /// Where the last window starts.
    last: u32,
    /// The distance between windows, before rounding.
    step: f32,
}

fn args(task: Task<'_>, problem: &Fractional, draws: Draws<'_>) -> FractionalArgsLaunch {
    let kernel = problem.kernel();
    let [depth, height, width]: [StepArgsLaunch; AXES] = core::array::from_fn(|i| {
        let axis = &task.axes()[i];
        numbers! { StepArgsLaunch {
            input: axis.input(), output: axis.output(), windows: axis.output(),
            kernel: kernel[i], last: axis.input() - kernel[i], step: problem.step(i),
        } }
    });
    let seed = match draws {
        Draws::Seed(seed) => seed,
        Draws::Samples(_) => 0,
    };
    FractionalArgsLaunch::new(problem_args(task), depth, height, width, seed)
}
