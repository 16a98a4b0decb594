//! Entry points of pooling: each checks the plan and the buffers once, and then launches the plan's kernel.

use cubecl::client::Client;
use cubecl::server::Handle;
use windowpane_geometry::{DType, Footprint, Fractional, IndexBase, Pooling};

use super::common::{Buffers, Task, Tensor};
use super::footprint;
use super::fractional::{self, Draws};
use super::problem::{Output, Problem, Reduction};
use super::select::Plan;
use super::unpool;
use crate::cube::buffers::{Given, check};
use crate::device::{Target, can_rank, has_powers};
use crate::error::{PlanError, ensure};
use crate::packed;

/// The tensors of a launch, with elements of the problem's type.
#[derive(Clone, Copy)]
pub struct Tensors<'a> {
    /// The input; for a gradient, the output's gradient.
    pub read: &'a Handle,
    /// The output; for a gradient, the input's gradient.
    pub written: &'a Handle,
    /// One `i32` per output if the reduction returns indices. A pooling writes them, its gradient reads them.
    pub indices: Option<&'a Handle>,
    /// The tensor that was pooled, which only the gradient of a norm reads.
    pub pooled: Option<&'a Handle>,
}

impl<'a> Tensors<'a> {
    /// The tensors of a launch that needs no others.
    pub fn new(read: &'a Handle, written: &'a Handle) -> Self {
        Self { read, written, indices: None, pooled: None }
    }

    /// The buffers to be checked: the one that is read, the one that is written, and the indices.
    fn given(self, task: Task<'_>, dtype: DType) -> ([Given<'a>; 2], Option<Given<'a>>) {
        let (inputs, outputs) = (task.inputs(), task.outputs());
        let ends = match task.problem.gradient {
            false => [("the input", inputs), ("the output", outputs)],
            true => [("the output's gradient", outputs), ("the input's gradient", inputs)],
        };
        let [(reads, read), (writes, written)] = ends;
        let ends =
            [given(reads, self.read, dtype, read), given(writes, self.written, dtype, written)];
        (ends, self.indices.map(|it| given("the indices", it, DType::I32, outputs)))
    }
}

/// Launches a pooling or its gradient. Of a gradient with respect to what was drawn, the problem is that of
/// [`Gradient::Drawn`](super::Gradient::Drawn).
///
/// The launch is asynchronous; errors of the device are returned by the call that reads the result.
pub fn launch(
    target: Target<'_>,
    problem: Problem<'_>,
    plan: &Plan,
    tensors: Tensors<'_>,
) -> Result<(), PlanError> {
    let Target { client, device } = target;
    let Problem { reduction, dtype, gradient, .. } = problem;
    let task = plan.task(problem, device)?;
    check_operations(client, reduction, dtype)?;
    // The gradient of an extremum goes to the winners, so its reduction has to have indices.
    let needed = reduction.has_indices() || gradient && reduction.is_extremum();
    let there = [reduction.has_indices(), tensors.indices.is_some()];
    ensure(there == [needed; 2], PlanError::Indices { needed })?;
    let needed = gradient && problem.is_norm();
    ensure(needed == tensors.pooled.is_some(), PlanError::Pooled { needed })?;
    let ([read, written], indices) = tensors.given(task, dtype);
    let pooled = tensors.pooled.map(|it| given("the input", it, dtype, task.inputs()));
    let (winners, found) = if gradient { (indices, None) } else { (None, indices) };
    check(device, &all([Some(read), pooled, winners]), &all([Some(written), found]))?;
    if written.elements == 0 {
        return Ok(());
    }
    let [indices, pooled] = [indices, pooled].map(|given| given.map(tensor));
    packed::computed(target, dtype, [read, written].map(buffer), |_, from, to| {
        let input = Tensor::new(from, read.elements);
        let output = Tensor::new(to, written.elements);
        plan.launch(task, Buffers { client, input, output, indices, pooled })
    })
}

/// Launches fractional max pooling, or its gradient, which needs the indices and the random numbers of the pooling.
///
/// Asynchronous, like [`launch`].
pub fn launch_fractional(
    target: Target<'_>,
    problem: &Fractional,
    base: IndexBase,
    dtype: DType,
    draws: Draws<'_>,
    gradient: bool,
    tensors: Tensors<'_>,
) -> Result<(), PlanError> {
    let Target { client, device } = target;
    let task = fractional::task(problem, dtype, base, gradient, device)?;
    let needed = gradient;
    ensure(!needed || tensors.indices.is_some(), PlanError::Indices { needed })?;
    ensure(tensors.pooled.is_none(), PlanError::Pooled { needed: false })?;
    let ([read, written], indices) = tensors.given(task, dtype);
    let (winners, found) = if gradient { (indices, None) } else { (None, indices) };
    let reads = all([Some(read), draws.given(problem), winners]);
    check(device, &reads, &all([Some(written), found]))?;
    if written.elements > 0 {
        let ends = [tensor(read), tensor(written)];
        fractional::launch(client, task, problem, draws, ends, indices.map(tensor));
    }
    Ok(())
}

/// Launches the extremum of the taps in a footprint, for windows of stride 1 without padding.
///
/// Asynchronous, like [`launch`].
pub fn launch_footprint(
    target: Target<'_>,
    problem: Problem<'_>,
    footprint: Footprint<'_>,
    [from, to]: [&Handle; 2],
) -> Result<(), PlanError> {
    let dtype = problem.dtype;
    let task = Task::new(problem.checked(target.device)?, target.device);
    footprint::check(task, footprint)?;
    let ([read, written], _) = Tensors::new(from, to).given(task, dtype);
    check(target.device, &[read], &[written])?;
    if written.elements > 0 {
        packed::computed(target, dtype, [read, written].map(buffer), |_, from, to| {
            let tensors = [Tensor::new(from, read.elements), Tensor::new(to, written.elements)];
            footprint::launch(target, task, footprint, tensors);
        });
    }
    Ok(())
}

/// Launches unpooling, or its gradient. For unpooling, `from` and `indices` have as many elements as `pooling`'s output
/// and `to` as many as its input; for the gradient, `from` has as many as the input and `to` as the output.
///
/// Returns one `i32`, to be read with the result: the first element whose index is out of range, or
/// [`unpool::NONE_OUT_OF_RANGE`].
pub fn launch_unpool(
    target: Target<'_>,
    pooling: &Pooling,
    base: IndexBase,
    dtype: DType,
    plan: &Plan,
    gradient: bool,
    [from, indices, to]: [&Handle; 3],
) -> Result<Handle, PlanError> {
    let Target { client, device } = target;
    let reduction = Reduction::max(Output::ValuesAndIndices(base));
    let task = plan.task(Problem::new(pooling, reduction, dtype), device)?;
    let (inputs, outputs) = (task.inputs(), task.outputs());
    let [read, written] = match gradient {
        false => [given("the input", from, dtype, outputs), given("the output", to, dtype, inputs)],
        true => [
            given("the output's gradient", from, dtype, inputs),
            given("the input's gradient", to, dtype, outputs),
        ],
    };
    let indices = given("the indices", indices, DType::I32, outputs);
    check(device, &[read, indices], &[written])?;
    Ok(packed::computed(target, dtype, [read, written].map(buffer), |_, from, to| {
        let (from, to) = (Tensor::new(from, read.elements), Tensor::new(to, written.elements));
        unpool::launch(client, task, gradient, [from, tensor(indices), to])
    }))
}

fn given<'a>(name: &'static str, handle: &'a Handle, dtype: DType, elements: usize) -> Given<'a> {
    Given { name, handle, dtype, elements }
}

fn tensor(given: Given<'_>) -> Tensor<'_> {
    Tensor::new(given.handle, given.elements)
}

fn buffer(given: Given<'_>) -> (&Handle, usize) {
    (given.handle, given.elements)
}

/// The buffers that are there.
fn all<const N: usize>(given: [Option<Given<'_>>; N]) -> Vec<Given<'_>> {
    given.into_iter().flatten().collect()
}

/// Refuses a norm whose powers the device cannot compute, and a rank or a mode of numbers that it cannot compare as
/// integers.
fn check_operations(client: &Client, reduction: Reduction, dtype: DType) -> Result<(), PlanError> {
    match reduction {
        Reduction::Norm(p) if !has_powers(client, p, dtype) => Err(PlanError::NoPowers { dtype }),
        Reduction::Rank(_) | Reduction::Mode if !can_rank(client, dtype) => {
            Err(PlanError::NoRanks { dtype })
        }
        _ => Ok(()),
    }
}
