//! Entry points of pooling: each checks the plan and the buffers once, and then launches the plan's kernel.

use cubecl::client::Client;
use cubecl::server::Handle;
use windowpane_geometry::{DType, Exponent, Fractional, IndexBase, Pooling};

use super::common::{Buffers, Task, Tensor};
use super::fractional::{self, Draws};
use super::problem::{Gradient, Output, Problem, Reduction};
use super::select::Plan;
use super::unpool;
use crate::cube::buffers::{Given, check};
use crate::device::{Target, can_rank, has_powers};
use crate::error::{PlanError, ensure};
use crate::packed;

/// Launches a pooling. `input` and `output` hold elements of `dtype`; `indices` holds one `i32` per output if the
/// reduction returns indices.
///
/// The launch is asynchronous; errors of the device are returned by the call that reads the output.
pub fn launch(
    target: Target<'_>,
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
    [input, output]: [&Handle; 2],
    indices: Option<&Handle>,
) -> Result<(), PlanError> {
    let Target { client, device } = target;
    let task = plan.task(Problem::new(pooling, reduction, dtype), device)?;
    check_powers(client, reduction, dtype)?;
    check_keys(client, reduction, dtype)?;
    check_indices(reduction, indices)?;
    let read = given("the input", input, dtype, task.inputs());
    let written = given("the output", output, dtype, task.outputs());
    let indices = indices.map(|it| given("the indices", it, DType::I32, task.outputs()));
    check(device, &[read], &with(written, indices))?;
    compute(target, task, plan, [read, written], indices)
}

/// Launches the gradient of a pooling. `dy` has as many elements as the output, `dx` as many as the input; for a
/// maximum or a drawing, `winners` holds one `i32` per output.
///
/// Asynchronous, like the forward launch.
pub fn launch_backward(
    target: Target<'_>,
    pooling: &Pooling,
    gradient: Gradient,
    dtype: DType,
    plan: &Plan,
    [dy, dx]: [&Handle; 2],
    winners: Option<&Handle>,
) -> Result<(), PlanError> {
    let device = target.device;
    let task = plan.task(gradient.of(pooling, dtype), device)?;
    check_indices(task.reduction(), winners)?;
    let read = given("the output's gradient", dy, dtype, task.outputs());
    let written = given("the input's gradient", dx, dtype, task.inputs());
    let winners = winners.map(|it| given("the indices", it, DType::I32, task.outputs()));
    check(device, &with(read, winners), &[written])?;
    compute(target, task, plan, [read, written], winners)
}

/// Launches the plan's kernel on checked buffers.
fn compute(
    target: Target<'_>,
    task: Task<'_>,
    plan: &Plan,
    [read, written]: [Given<'_>; 2],
    indices: Option<Given<'_>>,
) -> Result<(), PlanError> {
    if written.elements == 0 {
        return Ok(());
    }
    let indices = indices.map(|indices| Tensor::new(indices.handle, indices.elements));
    let buffers = [read, written].map(|given| (given.handle, given.elements));
    packed::computed(target, read.dtype, buffers, |_, input, output| {
        let input = Tensor::new(input, read.elements);
        let output = Tensor::new(output, written.elements);
        plan.launch(task, Buffers { client: target.client, input, output, indices, pooled: None })
    })
}

/// Launches the gradient of a norm. `dy` has as many elements as the output, `x` and `dx` as many as the input.
///
/// Asynchronous, like the forward launch.
pub fn launch_lp_backward(
    target: Target<'_>,
    pooling: &Pooling,
    p: Exponent,
    dtype: DType,
    plan: &Plan,
    [dy, x, dx]: [&Handle; 3],
) -> Result<(), PlanError> {
    let reduction = Reduction::Norm(p);
    let task = plan.task(Problem::new(pooling, reduction, dtype).backward(), target.device)?;
    let (inputs, outputs) = (task.inputs(), task.outputs());
    check_powers(target.client, reduction, dtype)?;
    let read =
        [given("the output's gradient", dy, dtype, outputs), given("the input", x, dtype, inputs)];
    check(target.device, &read, &[given("the input's gradient", dx, dtype, inputs)])?;
    if inputs == 0 {
        return Ok(());
    }
    let (input, output) = (Tensor::new(dy, outputs), Tensor::new(dx, inputs));
    let pooled = Some(Tensor::new(x, inputs));
    plan.launch(task, Buffers { client: target.client, input, output, indices: None, pooled })
}

/// Launches fractional max pooling. `x` has as many elements as the input, `y` as many as the output, and `indices` one
/// `i32` per output.
pub fn launch_fractional(
    target: Target<'_>,
    problem: &Fractional,
    base: IndexBase,
    dtype: DType,
    draws: Draws<'_>,
    [x, y]: [&Handle; 2],
    indices: Option<&Handle>,
) -> Result<(), PlanError> {
    let Target { client, device } = target;
    let task = fractional::task(problem, dtype, base, false, device)?;
    let (inputs, outputs) = (task.inputs(), task.outputs());
    let read = with(given("the input", x, dtype, inputs), draws.given(problem));
    let indices = indices.map(|it| given("the indices", it, DType::I32, outputs));
    check(device, &read, &with(given("the output", y, dtype, outputs), indices))?;
    if outputs > 0 {
        let tensors = [Tensor::new(x, inputs), Tensor::new(y, outputs)];
        let indices = indices.map(|indices| Tensor::new(indices.handle, outputs));
        fractional::launch(client, task, problem, draws, tensors, indices);
    }
    Ok(())
}

/// Launches the gradient of fractional max pooling. `dy` and `winners` have as many elements as the output, `dx` as many as
/// the input; the random numbers are those of the pooling.
pub fn launch_fractional_backward(
    target: Target<'_>,
    problem: &Fractional,
    base: IndexBase,
    dtype: DType,
    draws: Draws<'_>,
    [dy, winners, dx]: [&Handle; 3],
) -> Result<(), PlanError> {
    let Target { client, device } = target;
    let task = fractional::task(problem, dtype, base, true, device)?;
    let (inputs, outputs) = (task.inputs(), task.outputs());
    let mut read = with(given("the output's gradient", dy, dtype, outputs), draws.given(problem));
    read.push(given("the indices", winners, DType::I32, outputs));
    check(device, &read, &[given("the input's gradient", dx, dtype, inputs)])?;
    if inputs > 0 {
        let [dy, winners] = [dy, winners].map(|handle| Tensor::new(handle, outputs));
        let tensors = [dy, winners, Tensor::new(dx, inputs)];
        fractional::launch_backward(client, task, problem, draws, tensors);
    }
    Ok(())
}

/// Launches unpooling. `y` and `indices` have as many elements as `pooling`'s output, `x` as many as its input.
///
/// Returns one `i32`, to be read with the result: the first element whose index is out of range, or
/// [`unpool::NONE_OUT_OF_RANGE`].
pub fn launch_unpool(
    target: Target<'_>,
    pooling: &Pooling,
    base: IndexBase,
    dtype: DType,
    plan: &Plan,
    [y, indices, x]: [&Handle; 3],
) -> Result<Handle, PlanError> {
    let read = given("the input", y, dtype, pooling.output().elements());
    let written = given("the output", x, dtype, pooling.input().elements());
    launch_by_indices(target, pooling, base, plan, [read, written], indices, unpool::launch)
}

/// Launches the gradient of unpooling. `dx` has as many elements as `pooling`'s input, `indices` and `dy` as many as
/// its output. Returns the same value as [`launch_unpool`].
pub fn launch_unpool_backward(
    target: Target<'_>,
    pooling: &Pooling,
    base: IndexBase,
    dtype: DType,
    plan: &Plan,
    [dx, indices, dy]: [&Handle; 3],
) -> Result<Handle, PlanError> {
    let read = given("the output's gradient", dx, dtype, pooling.input().elements());
    let written = given("the input's gradient", dy, dtype, pooling.output().elements());
    launch_by_indices(
        target,
        pooling,
        base,
        plan,
        [read, written],
        indices,
        unpool::launch_backward,
    )
}

/// Launches unpooling or its gradient: `launch` moves what `read` holds to where the indices say.
fn launch_by_indices(
    target: Target<'_>,
    pooling: &Pooling,
    base: IndexBase,
    plan: &Plan,
    [read, written]: [Given<'_>; 2],
    indices: &Handle,
    launch: fn(&Client, Task<'_>, [Tensor<'_>; 3]) -> Handle,
) -> Result<Handle, PlanError> {
    let Target { client, device } = target;
    let (dtype, reduction) = (read.dtype, Reduction::max(Output::ValuesAndIndices(base)));
    let task = plan.task(Problem::new(pooling, reduction, dtype), device)?;
    let outputs = task.outputs();
    check(device, &[read, given("the indices", indices, DType::I32, outputs)], &[written])?;
    let buffers = [read, written].map(|given| (given.handle, given.elements));
    Ok(packed::computed(target, dtype, buffers, |_, from, to| {
        let (from, to) = (Tensor::new(from, read.elements), Tensor::new(to, written.elements));
        launch(client, task, [from, Tensor::new(indices, outputs), to])
    }))
}

fn given<'a>(name: &'static str, handle: &'a Handle, dtype: DType, elements: usize) -> Given<'a> {
    Given { name, handle, dtype, elements }
}

/// A buffer, and another one if there is one.
fn with<'a>(first: Given<'a>, more: Option<Given<'a>>) -> Vec<Given<'a>> {
    [first].into_iter().chain(more).collect()
}

/// Refuses a norm whose powers the device cannot compute.
fn check_powers(client: &Client, reduction: Reduction, dtype: DType) -> Result<(), PlanError> {
    match reduction {
        Reduction::Norm(p) if !has_powers(client, p, dtype) => Err(PlanError::NoPowers { dtype }),
        _ => Ok(()),
    }
}

/// Refuses a rank or a mode of numbers that the device cannot compare as integers.
fn check_keys(client: &Client, reduction: Reduction, dtype: DType) -> Result<(), PlanError> {
    match reduction {
        Reduction::Rank(_) | Reduction::Mode if !can_rank(client, dtype) => {
            Err(PlanError::NoRanks { dtype })
        }
        _ => Ok(()),
    }
}

/// Refuses indices if the reduction returns none, and missing indices if it returns some.
fn check_indices(reduction: Reduction, indices: Option<&Handle>) -> Result<(), PlanError> {
    let needed = reduction.has_indices();
    ensure(needed == indices.is_some(), PlanError::Indices { needed })
}
