//! Makes plans: derives the problem from dimensions and chooses the kernel: a tuned one, the planner's
//! choice, or an algorithm of `host`.

use windowpane_geometry::{
    Convolution, DType, Extents, Filter, FilterLayout, Padded, Padding, PaddingMode, Pass,
    Precision, Shape, TileOverrides, Window,
};

use super::plan::{Choice, ConvPlan};
use super::{Conv, ConvAlgorithm};
#[cfg(feature = "kernels")]
use crate::tuned::Found;
use crate::{Device, Error, Result};

/// Everything that the choice of a kernel depends on besides the device; the last number changes with the table of
/// tuned choices.
#[cfg(feature = "kernels")]
pub(crate) type Key =
    (windowpane_kernels::conv::Request, Option<ConvAlgorithm>, TileOverrides, Convolution, usize);

/// Plans a pass over tensors of these dimensions.
pub(super) fn plan(
    conv: &Conv,
    pass: Pass,
    device: &Device,
    dtype: DType,
    x: &[usize],
    w: &[usize],
) -> Result<ConvPlan> {
    require_float(pass, dtype)?;
    let (problem, padded) = problem(conv, x, w)?;
    choose(conv, pass, device, [dtype, dtype], (problem, padded))
}

/// Plans a quantized convolution with an output of this type.
pub(super) fn plan_quantized(
    conv: &Conv,
    device: &Device,
    output: DType,
    x: &[usize],
    w: &[usize],
) -> Result<ConvPlan> {
    conv.activation.check_quantized(output)?;
    let (problem, padded) = problem(conv, x, w)?;
    problem.check_int8()?;
    device.require(output)?;
    choose(conv, Pass::Forward, device, [DType::I8, output], (problem, padded))
}

fn require_float(pass: Pass, dtype: DType) -> Result<()> {
    match dtype.is_float() {
        true => Ok(()),
        false => Err(Error::FloatsOnly { operator: pass.name(), dtype }),
    }
}

/// Plans the bias gradient, which depends only on the output, as that of a convolution with one tap.
pub(super) fn plan_bias(
    conv: &Conv,
    device: &Device,
    dtype: DType,
    dy: &[usize],
) -> Result<ConvPlan> {
    require_float(Pass::Bias, dtype)?;
    let output = Shape::from_dims(dy, conv.layout)?;
    let one = Extents::from(1).of_rank(output.space().rank())?;
    let channels = output.channels();
    let filter = Filter::new(channels, 1, one)?;
    let window = Window::new(one);
    let problem =
        Convolution::new(output, filter, &window, channels, conv.layout, conv.filter_layout)?;
    // A requested kernel or tile applies to implicit GEMMs.
    let conv = conv.algorithm(None).tile(TileOverrides::default());
    choose(&conv, Pass::Bias, device, [dtype, dtype], (problem, None))
}

fn choose(
    conv: &Conv,
    pass: Pass,
    device: &Device,
    [dtype, output]: [DType; 2],
    (problem, padded): (Convolution, Option<Padded>),
) -> Result<ConvPlan> {
    device.require(dtype)?;
    let choice = choice(conv, pass, device, dtype, &problem)?;
    let (device, conv) = (device.clone(), *conv);
    Ok(ConvPlan { device, pass, conv, problem, padded, dtype, output, choice })
}

fn choice(
    conv: &Conv,
    pass: Pass,
    device: &Device,
    dtype: DType,
    problem: &Convolution,
) -> Result<Choice> {
    #[cfg(feature = "kernels")]
    if let Some(capabilities) = device.capabilities() {
        let request = windowpane_kernels::conv::Request { pass, dtype, precision: conv.precision };
        let key = (request, conv.algorithm, conv.tile, *problem, crate::tuned::generation());
        let choose = || choose_kernel(conv, request, device, capabilities, problem);
        return device.convolutions().or_make(key, choose).map(Choice::Kernel);
    }
    if conv.precision != Precision::Strict {
        return Err(no_precision(conv, device, dtype));
    }
    // Any problem can be computed by plain loops; of the others, each has one way.
    let own = match pass {
        Pass::Bias => ConvAlgorithm::Direct,
        _ if windowpane_host::is_depthwise(problem) => ConvAlgorithm::Depthwise,
        _ => ConvAlgorithm::Gemm,
    };
    let algorithm = conv.algorithm.unwrap_or(own);
    if ![own, ConvAlgorithm::Direct].contains(&algorithm) {
        return Err(no_kernel(conv, device, &format!("it is computed by {own} or direct")));
    }
    if conv.tile != TileOverrides::default() {
        return Err(Error::NoTile { device: device.clone() });
    }
    Ok(Choice::Host(algorithm))
}

/// A tuned plan, or else the planner's choice.
#[cfg(feature = "kernels")]
fn choose_kernel(
    conv: &Conv,
    request: windowpane_kernels::conv::Request,
    device: &Device,
    capabilities: &windowpane_kernels::Capabilities,
    problem: &Convolution,
) -> Result<windowpane_kernels::conv::Plan> {
    use windowpane_kernels::conv as kernels;
    let kernels::Request { pass, dtype, precision } = request;
    if is_free(conv)
        && let Some(Found::Conv(found)) =
            crate::tuned::recall(device, || key(pass, dtype, precision, problem))
        && let Some(plan) = follow(&found, problem, request, capabilities)
        && crate::loop_limit::check_convolution(device, pass, problem, &plan).is_ok()
    {
        return Ok(plan);
    }
    let algorithm = match conv.algorithm.map(ConvAlgorithm::kernel) {
        Some(None) => return Err(no_kernel(conv, device, "it is an algorithm of `host`")),
        algorithm => algorithm.flatten(),
    };
    let options = kernels::PlanOptions { algorithm, arrangement: None, tile: conv.tile };
    let plan = match kernels::Plan::new(problem, request, options, capabilities) {
        Err(windowpane_kernels::PlanError::NoTf32) => {
            return Err(no_precision(conv, device, dtype));
        }
        plan => plan.map_err(|reason| device.refuses(reason))?,
    };
    let cut =
        |plan| crate::loop_limit::cut_convolution(device, request, problem, plan, capabilities);
    match cut(plan) {
        // Another kernel may be able to split sums that the first cannot.
        Err(refused) if is_free(conv) => {
            let others = kernels::Plan::starting_points(problem, request, capabilities);
            others.into_iter().find_map(|plan| cut(plan).ok()).ok_or(refused)
        }
        plan => plan,
    }
}

/// The tuned plan, unless this device cannot run it: the table may come from another version or
/// driver.
#[cfg(feature = "kernels")]
fn follow(
    found: &crate::tuned::FoundConv,
    problem: &Convolution,
    request: windowpane_kernels::conv::Request,
    capabilities: &windowpane_kernels::Capabilities,
) -> Option<windowpane_kernels::conv::Plan> {
    use windowpane_kernels::conv::{Arrangement, Plan, PlanOptions};
    let tile = found.tile.map_or(TileOverrides::default(), TileOverrides::from);
    let form = |layout| Arrangement { layout, change: found.change };
    let (algorithm, arrangement) = (Some(found.algorithm.kernel()?), found.layout.map(form));
    let options = PlanOptions { algorithm, arrangement, tile };
    let mut plan = Plan::new(problem, request, options, capabilities).ok()?;
    plan.splits = found.splits;
    plan.check(problem, request, capabilities).ok()?;
    Some(plan)
}

/// Whether the choice of kernel and tile is automatic.
#[cfg(feature = "kernels")]
pub(super) fn is_free(conv: &Conv) -> bool {
    conv.algorithm.is_none() && conv.tile == TileOverrides::default()
}

/// A problem as text: everything that a choice depends on.
#[cfg(feature = "kernels")]
pub(super) fn key(pass: Pass, dtype: DType, precision: Precision, problem: &Convolution) -> String {
    let pass = match pass {
        Pass::Forward => "forward",
        Pass::Data => "data",
        // The word in files of choices.
        Pass::Weight => "filter",
        Pass::Bias => "bias",
    };
    let (input, filter) = (problem.input(), problem.filter());
    format!(
        "{pass} {dtype} {precision} {} {} n={} c={} filters={} groups={} {}",
        problem.layout(),
        problem.filter_layout(),
        input.batch(),
        input.channels(),
        filter.count(),
        problem.groups(),
        crate::tuned::windows(problem.grid()),
    )
}

fn no_kernel(conv: &Conv, device: &Device, reason: &str) -> Error {
    let algorithm = conv.algorithm.map_or_else(|| "auto".into(), |algorithm| algorithm.to_string());
    Error::NoKernel { algorithm, device: device.clone(), reason: reason.into() }
}

fn no_precision(conv: &Conv, device: &Device, dtype: DType) -> Error {
    let (precision, device) = (conv.precision, device.clone());
    Error::PrecisionUnsupported { precision, dtype, device }
}

/// The problem of tensors with these dimensions, and the padding that is filled in first: the problem is then over an
/// input that includes it.
fn problem(conv: &Conv, x: &[usize], w: &[usize]) -> Result<(Convolution, Option<Padded>)> {
    let input = Shape::from_dims(x, conv.layout)?;
    let filter = Filter::from_dims(w, conv.filter_layout)?;
    let Conv { window, groups, layout, filter_layout, padding_mode, .. } = *conv;
    let problem = Convolution::new(input, filter, &window, groups, layout, filter_layout)?;
    if padding_mode == PaddingMode::Zeros {
        return Ok((problem, None));
    }
    let padded = Padded::new(input, problem.grid().padding(), padding_mode, layout)?;
    if padded.output() == input {
        return Ok((problem, None));
    }
    let window = window.padding(Padding::Valid);
    let problem =
        Convolution::new(padded.output(), filter, &window, groups, layout, filter_layout)?;
    Ok((problem, Some(padded)))
}

/// The dimensions of the filters that turn this input into this output.
pub(super) fn filter_dims(conv: &Conv, dy: &[usize], x: &[usize]) -> Result<Vec<usize>> {
    let output = Shape::from_dims(dy, conv.layout)?;
    let input = Shape::from_dims(x, conv.layout)?;
    // If the groups do not divide the channels, checking the problem reports it.
    let channels = input.channels() / conv.groups.max(1);
    let kernel = conv.window.kernel().ok_or(windowpane_geometry::Error::AdaptiveConvolution)?;
    let kernel = kernel.of_rank(output.space().rank())?;
    let filter = Filter::new(output.channels(), channels.max(1), kernel)?;
    Ok(dims(&filter, conv.filter_layout))
}

pub(super) fn dims(filter: &Filter, layout: FilterLayout) -> Vec<usize> {
    filter.dims(layout).collect()
}
