//! Runs a convolution: checks plan and tensors, then computes it on the host or launches a kernel.

use windowpane_geometry::{Activation, Convolution, DType, Pass, Shape};
use windowpane_host as host;
use windowpane_reference::conv::{self as reference, Epilogue, Scaling};

use super::choice::dims;
use super::plan::{Choice, ConvPlan};
use super::{Conv, ConvAlgorithm};
use crate::element::{Element, sealed::Sealed, with_element, with_float};
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
    check_plan(conv, plan, Pass::Forward, None)?;
    forward_over(plan, [x, w], bias, residual, conv.activation, Spare::default())
}

/// The output of a quantized convolution.
pub(super) fn quantized(
    conv: &Conv,
    output: DType,
    plan: &ConvPlan,
    [x, w]: [&Tensor; 2],
    scale: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    check_plan(conv, plan, Pass::Forward, Some(output))?;
    conv.activation.check_quantized(output)?;
    quantized_over(plan, [x, w], scale, bias, conv.activation, Spare::default())
}

#[cfg_attr(
    not(feature = "kernels"),
    allow(unused_variables, reason = "only kernels use memory again")
)]
fn quantized_over(
    plan: &ConvPlan,
    [x, w]: [&Tensor; 2],
    scale: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    spare: Spare,
) -> Result<Tensor> {
    let output = shape_dims(&plan.problem, plan.problem.output());
    let filters = [plan.problem.filter().count()];
    check_tensor(plan, "input", x, &input_dims(plan))?;
    check_tensor(plan, "filter", w, &filter_dims(plan))?;
    check_typed(plan, "scale", scale, DType::F32, &filters)?;
    if let Some(bias) = bias {
        check_typed(plan, "bias", bias, DType::F32, &filters)?;
    }
    let _entered = span(plan).entered();
    let x = &padded(plan, x)?;
    match &plan.choice {
        Choice::Host(algorithm) => {
            let (problem, bias) = (&plan.problem, bias.map(on_host::<f32>));
            let scaling = Scaling { scale: on_host(scale), bias, activation };
            let (x, w) = (on_host(x), on_host(w));
            let y = with_element!(plan.output, T => {
                plan.device.require_memory(host::quantized_bytes::<T>(problem), plan.pass.name())?;
                T::into_host(match algorithm {
                    ConvAlgorithm::Direct => reference::quantized::<T>(problem, x, w, scaling),
                    _ => host::quantized::<T>(problem, x, w, scaling),
                })
            });
            Ok(Tensor::on_host(&plan.device, output, y))
        }
        #[cfg(feature = "kernels")]
        Choice::Kernel(kernel) => {
            let read = Read { inputs: &[x, w], scale: Some(scale), bias, residual: None };
            kernels::run(plan, kernel, output, read, activation, spare)
        }
    }
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
            let read = Read { inputs: &[x, w], scale: None, bias, residual };
            kernels::run(plan, kernel, output, read, activation, spare)
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
    check_plan(conv, plan, pass, None)?;
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
            let read = Read { inputs, scale: None, bias: None, residual: None };
            kernels::run(plan, kernel, result, read, Activation::None, spare)
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
        (Pass::Forward, [x, w, scale, rest @ ..]) if plan.is_quantized() && rest.len() <= 1 => {
            let bias = rest.first().copied();
            quantized_over(plan, [x, w], scale, bias, plan.conv.activation, spare)?
        }
        (Pass::Forward, [x, w, rest @ ..]) if !plan.is_quantized() && rest.len() <= 2 => {
            let (bias, residual) = (rest.first().copied(), rest.get(1).copied());
            forward_over(plan, [x, w], bias, residual, plan.conv.activation, spare)?
        }
        (Pass::Data | Pass::Weight, [_, _]) | (Pass::Bias, [_]) => {
            backward_over(plan, inputs, spare)?
        }
        _ => {
            let reads = match plan.pass {
                Pass::Forward if plan.is_quantized() => "input, filters and scale, and then a bias",
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
fn check_plan(conv: &Conv, plan: &ConvPlan, pass: Pass, quantized: Option<DType>) -> Result<()> {
    let planned = plan.is_quantized().then_some(plan.output);
    let same = (plan.pass, planned) == (pass, quantized);
    if same && shapes_what_is_computed(conv, pass) == plan_shape(plan) {
        return Ok(());
    }
    let describe = |pass: Pass, conv: &Conv, quantized: Option<DType>| {
        let to = quantized.map_or_else(String::new, |output| format!(", quantized, to {output},"));
        format!("{}{to} by {conv:?}", pass.name())
    };
    let expected = describe(plan.pass, &plan.conv, planned);
    let found = describe(pass, conv, quantized);
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
    check_typed(plan, name, tensor, plan.dtype, planned)
}

fn check_typed(
    plan: &ConvPlan,
    name: &str,
    tensor: &Tensor,
    dtype: DType,
    planned: &[usize],
) -> Result<()> {
    plan.device.require_alive()?;
    if *tensor.device() != plan.device {
        let found = tensor.device().clone();
        return Err(Error::DeviceMismatch { expected: plan.device.clone(), found });
    }
    if (tensor.dtype(), tensor.dims()) == (dtype, planned) {
        return Ok(());
    }
    let expected = format!("{name} {dtype} {planned:?}");
    let found = format!("{name} {} {:?}", tensor.dtype(), tensor.dims());
    Err(Error::PlanMismatch { expected, found })
}

/// The input with its padding, if that is filled in.
fn padded(plan: &ConvPlan, x: &Tensor) -> Result<Tensor> {
    match &plan.padded {
        Some(padded) => crate::pad::forward(padded, 0.0, x),
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

/// The tensors that a launch reads.
#[cfg(feature = "kernels")]
struct Read<'a> {
    inputs: &'a [&'a Tensor],
    /// The scale of a quantized convolution.
    scale: Option<&'a Tensor>,
    bias: Option<&'a Tensor>,
    residual: Option<&'a Tensor>,
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
        Read { inputs, scale, bias, residual }: Read<'_>,
        activation: Activation,
        mut spare: Spare,
    ) -> Result<Tensor> {
        let elements = dims.iter().product::<usize>();
        let bytes = elements * plan.output.size();
        let handles: Option<Vec<_>> = inputs.iter().map(|input| input.memory()).collect();
        let (Some(target), Some([(client, first), rest @ ..])) =
            (plan.device.target(), handles.as_deref())
        else {
            // An empty batch needs no launch; a sum over it is 0.
            return Tensor::from_bytes(&plan.device, plan.output, &vec![0; bytes], dims);
        };
        crate::loop_limit::check_convolution(&plan.device, plan.pass, &plan.problem, kernel)?;
        let out = spare.take(client, target.device.buffer_size(plan.output, elements));
        let second = rest.first().map_or(*first, |(_, handle)| handle);
        let sources = inputs.iter().copied().chain(scale).chain(bias).chain(residual);
        let sources: Vec<_> = sources.collect();
        let optional = |tensor: Option<&'_ Tensor>| {
            tensor.and_then(|tensor| tensor.memory()).map(|(_, handle)| handle.clone())
        };
        let [scale, bias, residual] = [scale, bias, residual].map(optional);
        let operands = match (plan.pass, &scale) {
            (Pass::Forward, Some(scale)) => Operands::Quantized {
                x: first,
                w: second,
                scale,
                bias: bias.as_ref(),
                activation,
                output: plan.output,
                y: &out,
            },
            (Pass::Forward, None) => Operands::Forward {
                x: first,
                w: second,
                bias: bias.as_ref(),
                residual: residual.as_ref(),
                activation,
                y: &out,
            },
            (Pass::Data, _) => Operands::Data { dy: first, w: second, dx: &out },
            (Pass::Weight, _) => Operands::Weight { dy: first, x: second, dw: &out },
            (Pass::Bias, _) => Operands::Bias { dy: first, db: &out },
        };
        launch(target, &plan.problem, plan.dtype, plan.conv.precision, kernel, operands)
            .map_err(|reason| plan.device.refuses(reason))?;
        let shapes: Vec<_> = inputs.iter().map(|input| input.dims()).collect();
        let work = format!("{} of {} {shapes:?}", plan.pass.name(), plan.dtype);
        Ok(Tensor::on_device(&plan.device, plan.output, dims, out, work).doubted_with(&sources))
    }
}
