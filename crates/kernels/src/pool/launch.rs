//! Entry points of pooling: each checks the plan and the buffers once, and then launches the plan's kernel.

use cubecl::client::Client;
use cubecl::server::Handle;
use windowpane_geometry::{DType, Exponent, IndexBase, Pooling};

use super::common::{Buffers, Task, Tensor};
use super::error::PlanError;
use super::problem::{Gradient, Output, Problem, Reduction};
use super::select::Plan;
use super::unpool;
use crate::cube::buffers::{Given, check};
use crate::device::{Target, has_keys, has_powers};
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
    let problem = Problem { pooling, reduction, dtype, gradient: false };
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let task = plan.task(problem, device)?;
    check_powers(client, reduction, dtype)?;
    check_keys(client, reduction, dtype)?;
    check_indices(reduction, indices)?;
    let read = given("the input", input, dtype, inputs);
    let written = given("the output", output, dtype, outputs);
    match indices {
        None => check(device, &[read], &[written])?,
        Some(it) => {
            check(device, &[read], &[written, given("the indices", it, DType::I32, outputs)])?
        }
    }
    compute(target, task, plan, dtype, [(input, inputs), (output, outputs)], indices)
}

/// Launches the gradient of a pooling. `dy` has as many elements as the output, `dx` as many as the input; for a
/// maximum, `winners` holds one `i32` per output.
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
    let (device, reduction) = (target.device, gradient.reduction());
    let problem = Problem { pooling, reduction, dtype, gradient: true };
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let task = plan.task(problem, device)?;
    check_indices(reduction, winners)?;
    let read = given("the output's gradient", dy, dtype, outputs);
    let written = given("the input's gradient", dx, dtype, inputs);
    match winners {
        None => check(device, &[read], &[written])?,
        Some(it) => {
            check(device, &[read, given("the indices", it, DType::I32, outputs)], &[written])?
        }
    }
    compute(target, task, plan, dtype, [(dy, outputs), (dx, inputs)], winners)
}

/// Launches the plan's kernel on checked buffers.
fn compute(
    target: Target<'_>,
    task: Task<'_>,
    plan: &Plan,
    dtype: DType,
    [read, written]: [(&Handle, usize); 2],
    indices: Option<&Handle>,
) -> Result<(), PlanError> {
    if written.1 == 0 {
        return Ok(());
    }
    let indices = indices.map(|indices| Tensor::new(indices, task.outputs()));
    packed::computed(target, dtype, [read, written], |_, input, output| {
        let (input, output) = (Tensor::new(input, read.1), Tensor::new(output, written.1));
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
    let problem = Problem { pooling, reduction, dtype, gradient: true };
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let task = plan.task(problem, target.device)?;
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
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let Target { client, device } = target;
    let task = plan.task(unpooled(pooling, base, dtype), device)?;
    let read =
        [given("the input", y, dtype, outputs), given("the indices", indices, DType::I32, outputs)];
    check(device, &read, &[given("the output", x, dtype, inputs)])?;
    let indices = Tensor::new(indices, outputs);
    Ok(packed::computed(target, dtype, [(y, outputs), (x, inputs)], |_, y, x| {
        unpool::launch(client, task, [Tensor::new(y, outputs), indices, Tensor::new(x, inputs)])
    }))
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
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let Target { client, device } = target;
    let task = plan.task(unpooled(pooling, base, dtype), device)?;
    let read = [
        given("the output's gradient", dx, dtype, inputs),
        given("the indices", indices, DType::I32, outputs),
    ];
    check(device, &read, &[given("the input's gradient", dy, dtype, outputs)])?;
    let indices = Tensor::new(indices, outputs);
    Ok(packed::computed(target, dtype, [(dx, inputs), (dy, outputs)], |_, dx, dy| {
        let buffers = [Tensor::new(dx, inputs), indices, Tensor::new(dy, outputs)];
        unpool::launch_backward(client, task, buffers)
    }))
}

/// The pooling whose maxima are moved back to their positions.
fn unpooled(pooling: &Pooling, base: IndexBase, dtype: DType) -> Problem<'_> {
    let reduction = Reduction::max(Output::ValuesAndIndices(base));
    Problem { pooling, reduction, dtype, gradient: false }
}

fn given<'a>(name: &'static str, handle: &'a Handle, dtype: DType, elements: usize) -> Given<'a> {
    Given { name, handle, dtype, elements }
}

/// Refuses a norm whose powers the device cannot compute.
fn check_powers(client: &Client, reduction: Reduction, dtype: DType) -> Result<(), PlanError> {
    match reduction {
        Reduction::Norm(p) if !has_powers(client, p, dtype) => Err(PlanError::NoPowers { dtype }),
        _ => Ok(()),
    }
}

/// Refuses a rank of numbers that the device cannot compare as integers.
fn check_keys(client: &Client, reduction: Reduction, dtype: DType) -> Result<(), PlanError> {
    match reduction {
        Reduction::Rank(_) if !has_keys(client, dtype) => Err(PlanError::NoKeys { dtype }),
        _ => Ok(()),
    }
}

/// Refuses indices if the reduction returns none, and missing indices if it returns some.
fn check_indices(reduction: Reduction, indices: Option<&Handle>) -> Result<(), PlanError> {
    let needed = reduction.has_indices();
    if needed == indices.is_some() { Ok(()) } else { Err(PlanError::Indices { needed }) }
}
