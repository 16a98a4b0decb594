//! Runs a convolution: checks plan and tensors, then computes it on the host or launches a kernel.

use windowpane_geometry::{Activation, Convolution, Pass, Shape};
use windowpane_host as host;
use windowpane_reference::conv::{self as reference, Epilogue};

use super::choice::dims;
use super::plan::{Choice, ConvPlan};
use super::{Conv, ConvAlgorithm};
use crate::element::{Element, sealed::Sealed, with_float};
use crate::output_reuse::Spare;
use crate::tensor::element_slice;
use crate::{Error, Result, Tensor};

/// The output of a convolution.
pub(super) fn forward(
    conv: &Conv,
    plan: &ConvPlan,
    [x, w]: [&Tensor; 2],
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    check_plan(conv, plan, Pass::Forward)?;
    forward_over(plan, [x, w], bias, residual, conv.activation, Spare::default())
}

#[cfg_attr(
    not(feature = "kernels"),
    allow(unused_variables, reason = "only kernels use memory again")
)]
fn forward_over(
    plan: &ConvPlan,
    [x, w]: [&Tensor; 2],
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    activation: Activation,
    spare: Spare,
) -> Result<Tensor> {
    let output = shape_dims(&plan.problem, plan.problem.output());
    check_tensor(plan, "input", x, &input_dims(plan))?;
    check_tensor(plan, "filter", w, &filter_dims(plan))?;
    if let Some(bias) = bias {
        check_tensor(plan, "bias", bias, &[plan.problem.filter().count()])?;
    }
    if let Some(residual) = residual {
        check_tensor(plan, "residual", residual, &output)?;
    }
    let _entered = span(plan).entered();
    let x = &padded(plan, x)?;
    match &plan.choice {
        Choice::Host(algorithm) => {
            require_memory(plan)?;
            let y = with_float!(plan.dtype, T => {
                let (bias, residual) = (bias.map(on_host::<T>), residual.map(on_host::<T>));
                let epilogue = Epilogue { bias, residual, activation };
                let forward = match algorithm {
                    ConvAlgorithm::Direct => reference::forward::<T>,
                    _ => host::forward::<T>,
                };
                T::into_host(forward(&plan.problem, on_host(x), on_host(w), epilogue))
            });
            Ok(Tensor::on_host(&plan.device, output, y))
        }
        #[cfg(feature = "kernels")]
        Choice::Kernel(kernel) => {
            kernels::run(plan, kernel, output, &[x, w], [bias, residual], activation, spare)
        }
    }
}

/// A gradient: data from `[dy, w]`, weight from `[dy, x]`, bias from `[dy]`.
pub(super) fn backward(
    conv: &Conv,
    plan: &ConvPlan,
    pass: Pass,
    inputs: &[&Tensor],
) -> Result<Tensor> {
    check_plan(conv, plan, pass)?;
    backward_over(plan, inputs, Spare::default())
}

fn backward_over(plan: &ConvPlan, inputs: &[&Tensor], spare: Spare) -> Result<Tensor> {
    let (problem, pass) = (&plan.problem, plan.pass);
    let input = input_dims(plan);
    let output = shape_dims(problem, problem.output());
    let (names, shapes, result) = match pass {
        Pass::Data => (["output gradient", "filter"], vec![output, filter_dims(plan)], input),
        Pass::Weight => (["output gradient", "input"], vec![output, input], filter_dims(plan)),
        _ => (["output gradient", ""], vec![output], vec![problem.filter().count()]),
    };
    for ((name, tensor), dims) in names.iter().zip(inputs).zip(&shapes) {
        check_tensor(plan, name, tensor, dims)?;
    }
    let _entered = span(plan).entered();
    match (&plan.padded, pass) {
        (Some(padded), Pass::Data) => {
            let result = shape_dims(problem, problem.input());
            let dx = computed(plan, inputs, result, Spare::default())?;
            crate::pad::gradient(padded, &dx)
        }
        (Some(_), Pass::Weight) => {
            let x = self::padded(plan, inputs[1])?;
            computed(plan, &[inputs[0], &x], result, spare)
        }
        _ => computed(plan, inputs, result, spare),
    }
}

/// A gradient of the plan's problem, whose input includes the padding that is filled in.
#[cfg_attr(
    not(feature = "kernels"),
    allow(unused_variables, reason = "only kernels use memory again")
)]
fn computed(
    plan: &ConvPlan,
    inputs: &[&Tensor],
    result: Vec<usize>,
    spare: Spare,
) -> Result<Tensor> {
    match &plan.choice {
        Choice::Host(algorithm) => {
            require_memory(plan)?;
            let gradient = with_float!(plan.dtype, T => {
                T::into_host(gradient_on_host::<T>(plan, *algorithm, inputs))
            });
            Ok(Tensor::on_host(&plan.device, result, gradient))
        }
        #[cfg(feature = "kernels")]
        Choice::Kernel(kernel) => {
            kernels::run(plan, kernel, result, inputs, [None, None], Activation::None, spare)
        }
    }
}

/// Runs a plan on its inputs, reusing the result of an earlier run.
pub(super) fn run_again(
    plan: &ConvPlan,
    inputs: &[&Tensor],
    results: &mut Vec<Tensor>,
) -> Result<()> {
    let spare = Spare::of(results, &plan.device);
    let result = match (plan.pass, inputs) {
        (Pass::Forward, [x, w, rest @ ..]) if rest.len() <= 2 => {
            let (bias, residual) = (rest.first().copied(), rest.get(1).copied());
            forward_over(plan, [x, w], bias, residual, plan.conv.activation, spare)?
        }
        (Pass::Data | Pass::Weight, [_, _]) | (Pass::Bias, [_]) => {
            backward_over(plan, inputs, spare)?
        }
        _ => {
            let reads = match plan.pass {
                Pass::Forward => "input and filters, and then a bias, and then a residual",
                Pass::Data => "the output's gradient and the filters",
                Pass::Weight => "the output's gradient and the input",
                Pass::Bias => "the output's gradient",
            };
            let expected = format!("{}, which reads {reads}", plan.pass.name());
            return Err(Error::PlanMismatch {
                expected,
                found: format!("{} tensors", inputs.len()),
            });
        }
    };
    *results = vec![result];
    Ok(())
}

/// Refuses a convolution that does not fit in the memory of `host`, with all that it allocates.
fn require_memory(plan: &ConvPlan) -> Result<()> {
    let bytes = with_float!(plan.dtype, T => host::bytes::<T>(plan.pass, &plan.problem));
    plan.device.require_memory(bytes, plan.pass.name())
}

fn gradient_on_host<T: Element + host::Element>(
    plan: &ConvPlan,
    algorithm: ConvAlgorithm,
    inputs: &[&Tensor],
) -> Vec<T> {
    let (problem, dy) = (&plan.problem, on_host::<T>(inputs[0]));
    let other = || on_host::<T>(inputs[1]);
    match (plan.pass, algorithm) {
        (Pass::Data, ConvAlgorithm::Direct) => reference::data_gradient(problem, dy, other()),
        (Pass::Data, _) => host::data_gradient(problem, dy, other()),
        (Pass::Weight, ConvAlgorithm::Direct) => reference::weight_gradient(problem, dy, other()),
        (Pass::Weight, _) => host::weight_gradient(problem, dy, other()),
        _ => host::bias_gradient(problem, dy),
    }
}

/// The elements of a tensor that is known to be on `host` and of this type.
fn on_host<T: Element>(tensor: &Tensor) -> &[T] {
    element_slice(tensor.host_buffer().expect("a tensor on host has its elements there"))
}

fn span(plan: &ConvPlan) -> tracing::Span {
    tracing::debug_span!(
        "conv",
        operator = plan.pass.name(),
        device = %plan.device,
        algorithm = %plan.algorithm(),
        input = ?shape_dims(&plan.problem, plan.problem.input()),
        filter = ?filter_dims(plan),
    )
}

/// Refuses a plan that was made for another pass or other options.
fn check_plan(conv: &Conv, plan: &ConvPlan, pass: Pass) -> Result<()> {
    if plan.pass == pass && shapes_what_is_computed(conv, pass) == plan_shape(plan) {
        return Ok(());
    }
    let describe = |pass: Pass, conv: &Conv| format!("{} by {conv:?}", pass.name());
    let (expected, found) = (describe(plan.pass, &plan.conv), describe(pass, conv));
    Err(Error::PlanMismatch { expected, found })
}

fn plan_shape(plan: &ConvPlan) -> Conv {
    shapes_what_is_computed(&plan.conv, plan.pass)
}

/// The options that a plan depends on; a bias gradient depends only on the layout.
fn shapes_what_is_computed(conv: &Conv, pass: Pass) -> Conv {
    let Conv { window, groups, layout, filter_layout, padding_mode, precision, .. } = *conv;
    match pass {
        Pass::Bias => Conv::new([1]).layout(layout),
        _ => Conv::with_window(window)
            .groups(groups)
            .layout(layout)
            .filter_layout(filter_layout)
            .padding_mode(padding_mode)
            .precision(precision),
    }
}

/// Refuses a tensor that the plan was not made for.
fn check_tensor(plan: &ConvPlan, name: &str, tensor: &Tensor, planned: &[usize]) -> Result<()> {
    plan.device.require_alive()?;
    if *tensor.device() != plan.device {
        let found = tensor.device().clone();
        return Err(Error::DeviceMismatch { expected: plan.device.clone(), found });
    }
    if (tensor.dtype(), tensor.dims()) == (plan.dtype, planned) {
        return Ok(());
    }
    let expected = format!("{name} {} {planned:?}", plan.dtype);
    let found = format!("{name} {} {:?}", tensor.dtype(), tensor.dims());
    Err(Error::PlanMismatch { expected, found })
}

/// The input with its padding, if that is filled in.
fn padded(plan: &ConvPlan, x: &Tensor) -> Result<Tensor> {
    match &plan.padded {
        Some(padded) => crate::pad::forward(padded, x),
        None => Ok(x.clone()),
    }
}

/// The dimensions of the input, without padding that is filled in.
fn input_dims(plan: &ConvPlan) -> Vec<usize> {
    let input = plan.padded.map_or(plan.problem.input(), |padded| padded.input());
    shape_dims(&plan.problem, input)
}

fn shape_dims(problem: &Convolution, shape: Shape) -> Vec<usize> {
    shape.dims(problem.layout()).collect()
}

fn filter_dims(plan: &ConvPlan) -> Vec<usize> {
    dims(&plan.problem.filter(), plan.problem.filter_layout())
}

#[cfg(feature = "kernels")]
mod kernels {
    use windowpane_kernels::conv::{Operands, Plan, launch};

    use super::*;

    /// Launches a pass on checked tensors.
    pub(super) fn run(
        plan: &ConvPlan,
        kernel: &Plan,
        dims: Vec<usize>,
        inputs: &[&Tensor],
        [bias, residual]: [Option<&Tensor>; 2],
        activation: Activation,
        mut spare: Spare,
    ) -> Result<Tensor> {
        let bytes = dims.iter().product::<usize>() * plan.dtype.size();
        let handles: Option<Vec<_>> = inputs.iter().map(|input| input.memory()).collect();
        let (Some(target), Some([(client, first), rest @ ..])) =
            (plan.device.target(), handles.as_deref())
        else {
            // An empty batch needs no launch; a sum over it is 0.
            return Tensor::from_bytes(&plan.device, plan.dtype, &vec![0; bytes], dims);
        };
        crate::loop_limit::check_convolution(&plan.device, plan.pass, &plan.problem, kernel)?;
        let out = spare.take(client, bytes);
        let second = rest.first().map_or(*first, |(_, handle)| handle);
        let sources: Vec<_> = inputs.iter().copied().chain(bias).chain(residual).collect();
        let optional = |tensor: Option<&'_ Tensor>| {
            tensor.and_then(|tensor| tensor.memory()).map(|(_, handle)| handle.clone())
        };
        let (bias, residual) = (optional(bias), optional(residual));
        let operands = match plan.pass {
            Pass::Forward => Operands::Forward {
                x: first,
                w: second,
                bias: bias.as_ref(),
                residual: residual.as_ref(),
                activation,
                y: &out,
            },
            Pass::Data => Operands::Data { dy: first, w: second, dx: &out },
            Pass::Weight => Operands::Weight { dy: first, x: second, dw: &out },
            Pass::Bias => Operands::Bias { dy: first, db: &out },
        };
        launch(target, &plan.problem, plan.dtype, plan.conv.precision, kernel, operands)
            .map_err(|reason| plan.device.refuses(reason))?;
        let shapes: Vec<_> = inputs.iter().map(|input| input.dims()).collect();
        let work = format!("{} of {} {shapes:?}", plan.pass.name(), plan.dtype);
        Ok(Tensor::on_device(&plan.device, plan.dtype, dims, out, work).doubted_with(&sources))
    }
}
