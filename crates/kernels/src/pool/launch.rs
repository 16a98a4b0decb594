//! Entry points of pooling: each checks the plan and the buffers once, and then launches the plan's kernel.

use cubecl::client::Client;
use cubecl::server::Handle;
use windowpane_geometry::{DType, Exponent, IndexBase, Pooling};

use super::common::buffers::{Buffers, Tensor};
use super::error::PlanError;
use super::problem::{Gradient, Output, Problem, Reduction};
use super::select::Plan;
use super::unpacked::Unpacked;
use super::unpool;
use crate::cube::buffers::{Given, check};
use crate::device::Target;
use crate::device::{has_keys, has_powers};

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
    let read = [given("the input", input, dtype, inputs)];
    let written = given("the output", output, dtype, outputs);
    match indices {
        None => check(device, &read, &[written])?,
        Some(indices) => {
            check(device, &read, &[written, given("the indices", indices, DType::I32, outputs)])?;
        }
    }
    if outputs == 0 {
        return Ok(());
    }
    let tensors = Unpacked::before(target, dtype, (input, inputs), (output, outputs));
    let indices = indices.map(|indices| Tensor::new(indices, outputs));
    let (input, output) = (tensors.read(), tensors.written());
    plan.launch(client, task, Buffers { input, output, indices, pooled: None })?;
    tensors.after();
    Ok(())
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
    let (Target { client, device }, reduction) = (target, gradient.reduction());
    let problem = Problem { pooling, reduction, dtype, gradient: true };
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let task = plan.task(problem, device)?;
    check_indices(reduction, winners)?;
    let read = given("the output's gradient", dy, dtype, outputs);
    let written = [given("the input's gradient", dx, dtype, inputs)];
    match winners {
        None => check(device, &[read], &written)?,
        Some(winners) => {
            check(device, &[read, given("the indices", winners, DType::I32, outputs)], &written)?;
        }
    }
    if inputs == 0 {
        return Ok(());
    }
    let tensors = Unpacked::before(target, dtype, (dy, outputs), (dx, inputs));
    let indices = winners.map(|winners| Tensor::new(winners, outputs));
    let (input, output) = (tensors.read(), tensors.written());
    plan.launch(client, task, Buffers { input, output, indices, pooled: None })?;
    tensors.after();
    Ok(())
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
    plan.launch(target.client, task, Buffers { input, output, indices: None, pooled })
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
    let tensors = Unpacked::before(target, dtype, (y, outputs), (x, inputs));
    let buffers = [tensors.read(), Tensor::new(indices, outputs), tensors.written()];
    let note = unpool::launch(client, task, buffers);
    tensors.after();
    Ok(note)
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
    let tensors = Unpacked::before(target, dtype, (dx, inputs), (dy, outputs));
    let buffers = [tensors.read(), Tensor::new(indices, outputs), tensors.written()];
    let note = unpool::launch_backward(client, task, buffers);
    tensors.after();
    Ok(note)
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
