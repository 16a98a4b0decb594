//! Convolution as a case: the kinds `conv` and `convtranspose`.
//!
//! A transposed convolution is read as the convolution that it transposes: its forward pass is the data gradient of that
//! one, and its data gradient the forward pass. A forward pass of `i8` is a quantized convolution with a result in `i8`.

use serde::Deserialize;
use windowpane::geometry::{Padded, Shape};
use windowpane::{
    Activation, Conv, ConvAlgorithm, ConvPlan, ConvTranspose, DType, Device, Error, FilterLayout,
    Layout, PaddingMode, Precision, Result, Tensor,
};
use windowpane_reference::conv::{
    Epilogue, Scaling, activate_total, bias_gradient_totals, data_gradient_totals, forward_totals,
    quantized, weight_gradient_totals,
};
use windowpane_reference::{Scalar, Total, pad};

use super::case::Case;
use super::row::pass_name;
use super::sliding::{Sides, Sliding, Spread, channel_axis, extents, planes, select};
use super::{Checked, Forced, Held, Weight, Work};
use crate::element::{self, Comparable, Comparison, poisoned, rounded_sum, with_element};
use crate::failure::Failure;
use crate::memory;

/// The fields of a convolution.
#[derive(Clone, Deserialize)]
struct Fields {
    #[serde(flatten)]
    sliding: Sliding,
    cout: usize,
    #[serde(default = "one")]
    groups: usize,
    /// The layout of the filters, if it is not the default for the data's layout.
    #[serde(default)]
    filters: Option<String>,
    /// The epilogue of a forward pass.
    #[serde(default)]
    bias: bool,
    #[serde(default)]
    residual: bool,
    #[serde(default)]
    activation: Option<String>,
    #[serde(default)]
    padding_mode: Option<String>,
    #[serde(default)]
    output_padding: Vec<usize>,
    /// Whether the case is the transpose of this convolution.
    #[serde(skip)]
    transposed: bool,
}

/// The kinds of cases that are convolutions.
pub(super) const KINDS: [&str; 2] = ["conv", "convtranspose"];

fn one() -> usize {
    1
}

/// A pass of a convolution.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Forward,
    Data,
    Weight,
    Bias,
}

/// A convolution with its inputs and its last result.
struct Convolving {
    operator: Operator,
    plan: ConvPlan,
    conv: Conv,
    /// The operator, if the convolution is transposed and has an epilogue, which its plan lacks.
    transposed: Option<ConvTranspose>,
    inputs: Vec<Tensor>,
    bias: Option<Tensor>,
    residual: Option<Tensor>,
    results: Vec<Tensor>,
}

/// The reference computes results for at least this many filters or channels, if all are too many.
const SOME: usize = 8;

/// The least number of samples, however long their sums: blocks of windows extend across samples.
const FEWEST_SAMPLES: usize = 2;

/// The factor that makes random fractions integers of 8 bits.
const LIKE_INTEGERS: f64 = 100.0;

/// The unit roundoff of tf32, which has 11 significant bits.
const TF32: f64 = 1.0 / 2048.0;

pub(super) fn ready(
    case: &Case,
    device: &Device,
    forced: Forced,
) -> Result<Box<dyn Work>, Failure> {
    let (fields, dtype) = (Fields::of(case)?, case.dtype()?);
    let random = |dims: &[usize], seed, _| Tensor::random(device, dtype, dims, seed);
    Ok(Box::new(fields.ready(case, device, forced, random)?))
}

/// Chooses kernel and tile by measuring. If nothing is forced, later plans of the case use them.
pub(super) fn tune(case: &Case, device: &Device, forced: Forced) -> Result<Forced, Failure> {
    let (_, plan) = Fields::of(case)?.plan(case, device, forced)?;
    let tuned = plan.tune()?;
    Ok(if forced.is_free() { forced } else { Forced::of_plan(&tuned) })
}

/// Plans the case, and the part of it that [`check`] would run.
pub(super) fn plan(case: &Case, device: &Device, products: u64) -> Result<(), Failure> {
    Fields::of(case)?.smaller(case, device, Forced::default(), products).map(drop)
}

/// Runs the case, on fewer and smaller samples if the reference would need too many products, and
/// compares all results, or those of some filters and channels.
pub(super) fn check(
    case: &Case,
    device: &Device,
    forced: Forced,
    products: u64,
) -> Result<Checked, Failure> {
    let whole = Fields::of(case)?;
    // A part of the case runs the kernel that is planned or tuned for its full size.
    let (operator, plan) = whole.plan(case, device, forced)?;
    let forced = if operator == Operator::Bias { forced } else { Forced::of_plan(&plan) };
    let (fields, part) = whole.smaller(case, device, forced, products)?;
    held_to(case, device, forced, fields, part)?.run(forced)
}

/// Prepares a case on the device. The reference computes as many of its results as `products` multiplications allow.
/// If one filter of one sample needs far more, a smaller case is launched.
pub(super) fn held<'a>(
    case: &'a Case,
    device: &'a Device,
    forced: Forced,
    products: u64,
) -> Result<Box<dyn Held + 'a>, Failure> {
    let whole = Fields::of(case)?;
    let (fields, part) = match weigh(case)?.slice <= products.max(super::LARGEST_SLICE) {
        true => {
            let part = whole.part(case, products)?;
            (whole, part)
        }
        false => whole.smaller(case, device, forced, products)?,
    };
    held_to(case, device, forced, fields, part)
}

fn held_to<'a>(
    case: &'a Case,
    device: &'a Device,
    forced: Forced,
    fields: Fields,
    part: Part,
) -> Result<Box<dyn Held + 'a>, Failure> {
    let dtype = case.dtype()?;
    with_element!(dtype, T => {
        let convolving = fields.ready(case, device, forced, |dims, seed, scale| {
            let len = dims.iter().product::<usize>() + seed as usize;
            // Another seed selects another part of the same numbers.
            let numbers = element::numbers::<f64>(len).skip(seed as usize);
            let numbers: Vec<T> = numbers.map(|number| T::from_f64(number * scale)).collect();
            Tensor::from_slice(device, &numbers, dims)
        })?;
        let expected = convolving.expected::<T>(&fields, &part, case)?;
        let numbers = std::marker::PhantomData::<T>;
        Ok(Box::new(Verified { case, device, fields, part, convolving, expected, numbers }))
    })
}

/// The memory and the work of a case.
pub(super) fn weigh(case: &Case) -> Result<Weight, Failure> {
    let fields = Fields::of(case)?;
    let operator = operator(case)?;
    let plan = fields.forward(case)?;
    let (problem, work) = (plan.problem(), plan.operations() / 2);
    let (filter, plane) = (problem.filter(), problem.output().plane() as u64);
    let each = |channels: usize| plane.saturating_mul((filter.taps() * channels) as u64);
    let samples = fields.sliding.n as u64;
    let slice = match operator {
        Operator::Forward => each(filter.channels()),
        Operator::Data => each(filter.count() / problem.groups().max(1)),
        Operator::Weight => each(1).saturating_mul(samples),
        Operator::Bias => plane.saturating_mul(samples),
    };
    Ok(Weight { bytes: plan.bytes(), slice, work })
}

/// The kernels that can compute a case, the plan's choice first.
pub(super) fn kernels(case: &Case, device: &Device) -> Result<Vec<&'static str>, Failure> {
    let fields = Fields::of(case)?;
    let (operator, plan) = fields.plan(case, device, Forced::default())?;
    let own = plan.algorithm();
    let others = ConvAlgorithm::ALL.into_iter().filter(|algorithm| {
        // The gradient of a bias ignores the forced kernel.
        operator != Operator::Bias
            && *algorithm != own
            && fields.plan(case, device, Forced::conv(*algorithm)).is_ok()
    });
    Ok([own].into_iter().chain(others).map(ConvAlgorithm::name).collect())
}

fn operator(case: &Case) -> Result<Operator, Failure> {
    Ok(match (&*case.kind, pass_name(&case.pass)) {
        ("convtranspose", "fwd") | ("conv", "data") => Operator::Data,
        ("convtranspose", "data") | ("conv", "fwd") => Operator::Forward,
        (_, "weight") => Operator::Weight,
        (_, "bias") => Operator::Bias,
        _ => return Err(case.unknown_pass("fwd, data, weight, bias")),
    })
}

/// A convolution with its inputs and the reference's results.
struct Verified<'a, T> {
    case: &'a Case,
    device: &'a Device,
    fields: Fields,
    part: Part,
    convolving: Convolving,
    expected: Vec<Total>,
    numbers: std::marker::PhantomData<T>,
}

impl<T: Comparable> Held for Verified<'_, T> {
    fn run(&mut self, forced: Forced) -> Result<Checked, Failure> {
        let Self { case, device, fields, part, convolving, expected, .. } = self;
        convolving.plan = fields.plan(case, device, forced)?.1;
        let dims = fields.result_dims(convolving.operator, &convolving.plan, case)?;
        convolving.results = vec![poisoned::<T>(device, &dims)?];
        convolving.launch()?;
        let found = convolving.found::<T>(fields, part, case)?;
        let sliding = &Fields::of(case)?.sliding;
        let is_cut = fields.sliding.size != sliding.size;
        Ok(Checked {
            algorithm: convolving.algorithm(),
            samples: part.samples.len(),
            of: sliding.n,
            size: is_cut.then(|| fields.sliding.size.clone()),
            outputs: found.len(),
            of_outputs: convolving.results.first().map_or(0, Tensor::len),
            comparison: Comparison::of_sums(&found, expected),
        })
    }
}

/// The samples, filters and channels that the reference computes, by their numbers in the whole problem.
#[derive(Debug, PartialEq)]
struct Part {
    samples: Spread,
    groups: usize,
    filters: Vec<usize>,
    channels: Vec<usize>,
}

impl Part {
    /// At most `most` results per window, from first to last; sums always run over all terms.
    fn of(fields: &Fields, operator: Operator, most: usize) -> Self {
        let Fields { groups, cout, sliding, .. } = fields;
        let kept = Spread::new(*groups, most);
        let each = (most / kept.len().max(1)).max(1);
        let of_group = |all: usize, summed: bool| {
            let all = all / (*groups).max(1);
            let own = Spread::new(all, if summed { all } else { each });
            let of = |group: usize| own.positions().map(move |i| group * all + i);
            kept.positions().flat_map(of).collect()
        };
        Self {
            samples: Spread::new(sliding.n, sliding.n),
            groups: kept.len(),
            filters: of_group(*cout, operator == Operator::Data),
            channels: of_group(sliding.c, operator == Operator::Forward),
        }
    }

    /// The multiplications of this many windows.
    fn products(&self, windows: usize, taps: usize) -> u64 {
        let pairs = self.filters.len() * self.channels.len() / self.groups.max(1);
        (windows as u64).saturating_mul((taps * pairs) as u64)
    }
}

impl Fields {
    /// The fields of a case; of a transposed convolution those of the convolution that it transposes.
    fn of(case: &Case) -> Result<Self, Failure> {
        let fields = case.fields::<Self>()?;
        let only = |field: &str, of: &str| {
            Err(Failure::Failed(format!("`{field}` is only for {of}; leave it out")))
        };
        let set = [
            ("bias", fields.bias),
            ("residual", fields.residual),
            ("activation", fields.activation.is_some()),
        ];
        if let Some((field, _)) = set.iter().find(|it| it.1 && case.pass != "fwd") {
            return only(field, "the pass fwd");
        }
        if case.dtype()? == DType::I8 && fields.residual {
            return only("residual", "floats");
        }
        if case.kind != "convtranspose" {
            return match fields.output_padding.is_empty() {
                true => Ok(fields),
                false => only("output_padding", "the kind convtranspose"),
            };
        }
        match fields.residual {
            true => only("residual", "the kind conv"),
            false => fields.transposed(case),
        }
    }

    /// The fields of the convolution that these, of a transposed convolution, transpose.
    fn transposed(self, case: &Case) -> Result<Self, Failure> {
        let layout = case.layout()?;
        let mut own =
            Self { sliding: Sliding { c: self.cout, ..self.sliding.clone() }, ..self.clone() };
        (own.cout, own.transposed) = (self.sliding.c, true);
        let mut operator = ConvTranspose::from(own.conv(layout)?);
        if !self.output_padding.is_empty() {
            let padding = extents("output_padding", &self.output_padding)?;
            operator = operator.output_padding(padding);
        }
        let (x, w) = (self.sliding.dims(layout), own.filter_dims(layout));
        let output =
            Shape::from_dims(&operator.output_dims(&x, &w)?, layout).map_err(Error::from)?;
        own.sliding.size = output.space().as_slice().to_vec();
        if case.pass == "bias" {
            // A sum over the output, which is that of windows of one tap.
            let ones = vec![1; own.sliding.size.len()];
            let (k, s, d) = (ones.clone(), ones.clone(), ones.clone());
            let p = vec![Sides::Both(0); ones.len()];
            own.cout = own.sliding.c;
            own.sliding = Sliding { c: 1, k, s, p, d, same: None, ..own.sliding };
            own.groups = 1;
        }
        Ok(own)
    }

    /// The convolution in strict precision, by the kernel of the plan's choice.
    fn conv(&self, layout: Layout) -> Result<Conv, Failure> {
        let conv = Conv::with_window(self.sliding.window()?)
            .groups(self.groups)
            .layout(layout)
            .filter_layout(self.filter_layout(layout))
            .padding_mode(self.padding_mode());
        Ok(if self.transposed { conv } else { conv.activation(self.activation()) })
    }

    /// Only valid names pass the check of a case's fields.
    fn activation(&self) -> Activation {
        self.activation.as_deref().and_then(|name| name.parse().ok()).unwrap_or_default()
    }

    fn padding_mode(&self) -> PaddingMode {
        self.padding_mode.as_deref().and_then(|name| name.parse().ok()).unwrap_or_default()
    }

    /// The padding that is filled in before the convolution, if it is not zeros.
    fn padded(&self, layout: Layout) -> Result<Option<Padded>, Failure> {
        let (mode, window) = (self.padding_mode(), self.sliding.window()?);
        let padded = || {
            let input = Shape::from_dims(&self.sliding.dims(layout), layout)?;
            let padding = window.over(input.space())?.padding();
            Padded::new(input, padding, mode, layout)
        };
        let padded = (mode != PaddingMode::Zeros).then(padded).transpose().map_err(Error::from)?;
        Ok(padded.filter(|padded| padded.input() != padded.output()))
    }

    /// The filters' dimensions, in memory order.
    fn filter_dims(&self, layout: Layout) -> Vec<usize> {
        let channels = self.sliding.c / self.groups.max(1);
        let taps = self.sliding.k.iter().copied();
        match self.filter_layout(layout) {
            FilterLayout::Fchw => [self.cout, channels].into_iter().chain(taps).collect(),
            FilterLayout::Hwcf => taps.chain([channels, self.cout]).collect(),
            _ => [self.cout].into_iter().chain(taps).chain([channels]).collect(),
        }
    }

    /// The layout of the filters: the case's, or by default the one with its channels where the data has them.
    fn filter_layout(&self, layout: Layout) -> FilterLayout {
        match (self.filters.as_deref(), layout) {
            (Some("fhwc"), _) => FilterLayout::Fhwc,
            (Some("hwcf"), _) => FilterLayout::Hwcf,
            (Some("fchw"), _) | (_, Layout::ChannelsFirst) => FilterLayout::Fchw,
            (_, Layout::ChannelsLast) => FilterLayout::Fhwc,
        }
    }

    /// The forward pass on `host`.
    fn forward(&self, case: &Case) -> Result<ConvPlan, Failure> {
        let layout = case.layout()?;
        let (x, w) = (self.sliding.dims(layout), self.filter_dims(layout));
        Ok(forward_of(&self.conv(layout)?, &Device::host(), case.dtype()?, &x, &w)?)
    }

    /// The dimensions of a pass's result.
    fn result_dims(
        &self,
        operator: Operator,
        plan: &ConvPlan,
        case: &Case,
    ) -> Result<Vec<usize>, Failure> {
        let layout = case.layout()?;
        Ok(match operator {
            Operator::Forward => plan.problem().output().dims(layout).collect(),
            Operator::Data => self.sliding.dims(layout),
            Operator::Weight => self.filter_dims(layout),
            Operator::Bias => vec![self.cout],
        })
    }

    /// The results of the whole case that the reference computes within `most` multiplications: at least one per
    /// window.
    fn part(&self, case: &Case, most: u64) -> Result<Part, Failure> {
        let (operator, plan) = (operator(case)?, self.forward(case)?);
        let (taps, plane) = (plan.problem().filter().taps(), plan.problem().output().plane());
        let taps = if operator == Operator::Bias { 1 } else { taps };
        // Gradients of filters and bias sum over all samples.
        let long = matches!(operator, Operator::Weight | Operator::Bias);
        let windows = if long { plane * self.sliding.n } else { plane };
        let fits = |part: &Part| part.products(windows, taps) <= most;
        let some = (0..).map(|doublings| Part::of(self, operator, 1 << doublings));
        let all = Part::of(self, operator, usize::MAX);
        let mut part = Part::of(self, operator, 1);
        for larger in some.take_while(fits) {
            let is_all = (&larger.filters, &larger.channels) == (&all.filters, &all.channels);
            part = larger;
            if is_all {
                break;
            }
        }
        if !long {
            let each = part.products(plane, taps).max(1);
            let samples = usize::try_from(most / each).unwrap_or(usize::MAX).max(1);
            part.samples = Spread::new(self.sliding.n, samples);
        }
        Ok(part)
    }

    /// Plans the case without a launch.
    fn plan(
        &self,
        case: &Case,
        device: &Device,
        forced: Forced,
    ) -> Result<(Operator, ConvPlan), Failure> {
        let (dtype, layout) = (case.dtype()?, case.layout()?);
        let conv = self
            .conv(layout)?
            .precision(case.precision()?)
            .algorithm(forced.of_convolution()?)
            .tile(forced.tile.unwrap_or_default());
        let (x, w) = (self.sliding.dims(layout), self.filter_dims(layout));
        let operator = operator(case)?;
        let plan = match operator {
            Operator::Forward => forward_of(&conv, device, dtype, &x, &w)?,
            Operator::Data => conv.plan_backward_data(device, dtype, &x, &w)?,
            Operator::Weight => conv.plan_backward_weight(device, dtype, &x, &w)?,
            Operator::Bias => {
                let dy: Vec<_> = self.forward(case)?.problem().output().dims(layout).collect();
                conv.plan_backward_bias(device, dtype, &dy)?
            }
        };
        Ok((operator, plan))
    }

    /// The part of the case that needs at most this many multiplications, if its kernel applies to smaller samples: results
    /// of some filters and channels, and fewer or smaller samples. The device computes all filters and channels, so that the
    /// same kernel runs.
    fn smaller(
        &self,
        case: &Case,
        device: &Device,
        forced: Forced,
        most: u64,
    ) -> Result<(Self, Part), Failure> {
        // Errors of the whole case are reported for the whole case.
        let (operator, plan) = self.plan(case, device, forced)?;
        let taps = plan.problem().filter().taps();
        let windows =
            |plan: &ConvPlan| plan.problem().output().batch() * plan.problem().output().plane();
        let all = Part::of(self, operator, usize::MAX);
        if all.products(windows(&plan), taps) <= most {
            return Ok((self.clone(), all));
        }
        let mut part = Part::of(self, operator, SOME);
        // All filters and channels together are too many, so the loop ends.
        for some in (1..).map(|doublings| SOME << doublings) {
            let larger = Part::of(self, operator, some);
            if larger.products(windows(&plan), taps) > most {
                break;
            }
            part = larger;
        }
        let each = part.products(plan.problem().output().plane(), taps).max(1);
        let samples = usize::try_from(most / each).unwrap_or(self.sliding.n);
        let mut fewer = self.clone();
        fewer.sliding.n = self.sliding.n.min(samples.max(FEWEST_SAMPLES));
        let mut fields = self.clone();
        // A tile may apply only to many or large images; then more than necessary is compared.
        while let Ok((_, smaller)) = fewer.plan(case, device, forced) {
            fields = fewer.clone();
            if part.products(windows(&smaller), taps) <= most || !fewer.sliding.halve() {
                break;
            }
        }
        part.samples = Spread::new(fields.sliding.n, fields.sliding.n);
        Ok((fields, part))
    }

    /// Makes the inputs of a launch: `fill` makes a tensor with these dimensions, seed and magnitude.
    fn ready(
        &self,
        case: &Case,
        device: &Device,
        forced: Forced,
        fill: impl Fn(&[usize], u32, f64) -> Result<Tensor>,
    ) -> Result<Convolving, Failure> {
        let (operator, plan) = self.plan(case, device, forced)?;
        let layout = case.layout()?;
        let (problem, result) = (plan.problem(), self.result_dims(operator, &plan, case)?);
        if device.uses_host_memory() {
            for elements in [problem.input().elements(), problem.output().elements()] {
                memory::check_results(elements, case.dtype()?)?;
            }
        }
        let output: Vec<usize> = problem.output().dims(layout).collect();
        let (filter, groups) = (problem.filter(), problem.groups().max(1));
        let (input, filters) = (self.sliding.dims(layout), self.filter_dims(layout));
        let windows = problem.output().batch() * problem.output().plane();
        let (first, second, terms) = match operator {
            Operator::Forward => (input, Some(filters), filter.taps() * filter.channels()),
            Operator::Data => (output, Some(filters), filter.taps() * filter.count() / groups),
            Operator::Weight => (output, Some(input), windows),
            Operator::Bias => (output, None, windows),
        };
        // Small enough that sums of outliers stay far below the largest f16.
        let small = 1.0 / (16.0 * (terms.max(1) as f64).sqrt());
        let is_quantized = case.dtype()? == DType::I8;
        let [larger, smaller] = if is_quantized { [LIKE_INTEGERS; 2] } else { [1.0, small] };
        let mut inputs = match second {
            Some(second) => vec![fill(&first, 1, larger)?, fill(&second, 2, smaller)?],
            None => vec![fill(&first, 1, smaller)?],
        };
        let filters = if self.transposed { self.sliding.c } else { self.cout };
        let vector = |of: &dyn Fn(usize) -> f32| {
            Tensor::from_slice(device, &(0..filters).map(of).collect::<Vec<_>>(), [filters])
        };
        let bias = match is_quantized {
            true => {
                inputs.push(vector(&|f| small as f32 * (1.0 + (f % 5) as f32 / 4.0))?);
                self.bias.then(|| vector(&|f| (f % 9) as f32 - 3.5)).transpose()?
            }
            false => self.bias.then(|| fill(&[filters], 3, 1.0)).transpose()?,
        };
        let residual = self.residual.then(|| fill(&result, 4, 1.0)).transpose()?;
        let conv = self.conv(layout)?.precision(case.precision()?);
        let ends = self.bias || self.activation() != Activation::None;
        let transposed = ConvTranspose::from(conv.activation(self.activation()));
        let transposed = (self.transposed && ends).then_some(transposed);
        let results = Vec::new();
        Ok(Convolving { operator, plan, conv, transposed, inputs, bias, residual, results })
    }
}

/// Plans a forward pass, or a quantized convolution.
fn forward_of(
    conv: &Conv,
    device: &Device,
    dtype: DType,
    x: &[usize],
    w: &[usize],
) -> Result<ConvPlan> {
    match dtype {
        DType::I8 => conv.quantized().output(dtype).plan(device, x, w),
        _ => conv.plan(device, dtype, x, w),
    }
}

impl Convolving {
    /// The reference's results for a part of the case.
    fn expected<T: Comparable>(
        &self,
        fields: &Fields,
        part: &Part,
        case: &Case,
    ) -> Result<Vec<Total>, Failure> {
        let (n, c) = (part.samples.len(), part.channels.len());
        let some = Fields {
            sliding: Sliding { n, c, ..fields.sliding.clone() },
            cout: part.filters.len(),
            groups: part.groups,
            ..fields.clone()
        };
        let (plan, padded) = (some.forward(case)?, some.padded(case.layout()?)?);
        let problem = plan.problem();
        let first = |picks| part.data::<T>(&self.inputs[0], picks, case);
        let filled =
            |x: Vec<T>| padded.as_ref().map_or(x.clone(), |padded| pad::pad(padded, T::ZERO, &x));
        if let [_, w, scale] = &self.inputs[..] {
            let integers = |all: Vec<T>| all.iter().map(|x| x.to_f64() as i8).collect::<Vec<_>>();
            let (x, w) = (filled(first(&part.channels)?), part.filters_of(w, fields, case)?);
            let scale = select(&scale.to_vec::<f32>()?, scale.dims(), 0, &part.filters);
            let bias = self.bias_of::<f32>(&part.filters)?;
            let (bias, activation) = (bias.as_deref(), fields.activation());
            let scaling = Scaling { scale: &scale, bias, activation };
            let exact = quantized::<i8>(problem, &integers(x), &integers(w), scaling).into_iter();
            let total = |y: i8| Total { value: y.into(), magnitude: 0.0, terms: 1 };
            return Ok(exact.map(total).collect());
        }
        let totals = match (self.operator, self.inputs.get(1)) {
            (Operator::Forward, Some(w)) => {
                let (x, w) = (filled(first(&part.channels)?), part.filters_of(w, fields, case)?);
                let bias = self.bias_of::<T>(&part.filters)?;
                let residual = self.residual.as_ref();
                let residual =
                    residual.map(|it| part.data::<T>(it, &part.filters, case)).transpose()?;
                let (bias, residual) = (bias.as_deref(), residual.as_deref());
                let epilogue = Epilogue { bias, residual, activation: fields.activation() };
                let is_ended = !fields.transposed;
                forward_totals(problem, &x, &w, if is_ended { epilogue } else { Epilogue::NONE })
            }
            (Operator::Data, Some(w)) => {
                let (dy, w) = (first(&part.filters)?, part.filters_of(w, fields, case)?);
                data_gradient_totals(problem, &dy, &w)
            }
            (Operator::Weight, Some(x)) => {
                let (dy, x) = (first(&part.filters)?, part.data(x, &part.channels, case)?);
                weight_gradient_totals(problem, &dy, &filled(x))
            }
            _ => bias_gradient_totals(problem, &first(&part.filters)?),
        };
        let totals: Vec<Total> = match case.precision()? {
            Precision::Tf32 if self.operator != Operator::Bias => {
                totals.into_iter().map(rounded_factors).collect()
            }
            _ => totals,
        };
        match (self.operator, padded, &self.transposed) {
            // Rounded before the copies are added, SEMANTICS 6.7.
            (Operator::Data, Some(padded), _) => {
                let of = |copies: &Vec<usize>| rounded_sum::<T>(copies.iter().map(|o| totals[*o]));
                Ok(pad::copies(&padded).iter().map(of).collect())
            }
            (Operator::Data, None, Some(_)) => self.ended::<T>(&totals, fields, part, case),
            _ => Ok(totals),
        }
    }

    /// The bias of some filters, if there is one.
    fn bias_of<T: Comparable>(&self, filters: &[usize]) -> Result<Option<Vec<T>>, Failure> {
        let some = |bias: &Tensor| Ok(select(&bias.to_vec::<T>()?, bias.dims(), 0, filters));
        self.bias.as_ref().map(some).transpose()
    }

    /// The results of a transposed convolution with an epilogue, which follows rounded sums, SEMANTICS 6.8.
    fn ended<T: Comparable>(
        &self,
        totals: &[Total],
        fields: &Fields,
        part: &Part,
        case: &Case,
    ) -> Result<Vec<Total>, Failure> {
        let bias = self.bias_of::<T>(&part.channels)?;
        let plane: usize = fields.sliding.size.iter().product();
        let (channels, layout) = (part.channels.len().max(1), case.layout()?);
        let ended = totals.iter().enumerate().map(|(i, total)| {
            let channel = match layout {
                Layout::ChannelsLast => i % channels,
                Layout::ChannelsFirst => i / plane.max(1) % channels,
            };
            let bias = bias.as_ref().map(|bias| {
                let value = bias[channel].to_f64();
                Total { value, magnitude: value.abs(), terms: 1 }
            });
            let sum = rounded_sum::<T>([*total].into_iter().chain(bias));
            activate_total(fields.activation(), sum)
        });
        Ok(ended.collect())
    }

    /// The same part of the last launch's results.
    fn found<T: Comparable>(
        &self,
        fields: &Fields,
        part: &Part,
        case: &Case,
    ) -> Result<Vec<T>, Failure> {
        let result = &self.results[0];
        match self.operator {
            Operator::Forward => part.data(result, &part.filters, case),
            Operator::Data => part.data(result, &part.channels, case),
            Operator::Weight => part.filters_of(result, fields, case),
            Operator::Bias => Ok(select(&result.to_vec()?, result.dims(), 0, &part.filters)),
        }
    }
}

impl Part {
    /// The given channels of the part's samples.
    fn data<T: Comparable>(
        &self,
        tensor: &Tensor,
        picks: &[usize],
        case: &Case,
    ) -> Result<Vec<T>, Failure> {
        planes(tensor, case.layout()?, self.samples, picks)
    }

    /// The part's filters, each with the part's channels of its own group.
    fn filters_of<T: Comparable>(
        &self,
        tensor: &Tensor,
        fields: &Fields,
        case: &Case,
    ) -> Result<Vec<T>, Failure> {
        let own = (fields.sliding.c / fields.groups.max(1)).max(1);
        let of_group = &self.channels[..self.channels.len() / self.groups.max(1)];
        let of_group: Vec<usize> = of_group.iter().map(|c| c % own).collect();
        let mut dims = tensor.dims().to_vec();
        let last = dims.len() - 1;
        let (filter, channel) = match fields.filter_layout(case.layout()?) {
            FilterLayout::Hwcf => (last, last - 1),
            FilterLayout::Fchw => (0, channel_axis(Layout::ChannelsFirst, &dims)),
            _ => (0, last),
        };
        let picked = select(&tensor.to_vec::<T>()?, &dims, filter, &self.filters);
        dims[filter] = self.filters.len();
        Ok(select(&picked, &dims, channel, &of_group))
    }
}

/// A sum whose bound allows for factors rounded to tf32: `2·u·Σ|terms|` more.
fn rounded_factors(total: Total) -> Total {
    // Expressed as additional roundings of f32.
    let more = 2.0 * TF32 * f64::from(2u32.pow(24)) / total.terms.max(1) as f64;
    Total { magnitude: total.magnitude * (1.0 + more), ..total }
}

impl Work for Convolving {
    fn launch(&mut self) -> Result<()> {
        let Self { plan, conv, transposed, inputs, bias, residual, results, .. } = self;
        // A plan that runs again writes over its results; other calls find their memory free.
        *results = match (&inputs[..], transposed, &*bias, &*residual) {
            ([x, w], Some(transposed), bias, _) => {
                results.clear();
                vec![transposed.forward_with_plan(plan, x, w, bias.as_ref())?]
            }
            ([x, w], None, None, Some(residual)) => {
                results.clear();
                vec![conv.forward_with_plan(plan, x, w, None, Some(residual))?]
            }
            _ => {
                let all = inputs.iter().chain(&*bias).chain(&*residual);
                return plan.run(&all.collect::<Vec<_>>(), results);
            }
        };
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        self.results.iter().try_for_each(Tensor::wait)
    }

    fn algorithm(&self) -> String {
        self.plan.algorithm().to_string()
    }

    fn tile(&self) -> Option<String> {
        self.plan.tile().map(|tile| tile.to_string())
    }

    fn bytes(&self) -> u64 {
        self.plan.bytes()
    }

    fn operations(&self) -> Option<u64> {
        Some(self.plan.operations())
    }
}

/// The type of a case's products, as measured peaks name it.
pub(super) fn arithmetic(case: &Case) -> String {
    match (case.dtype(), case.precision()) {
        (Ok(DType::F32), Ok(Precision::Tf32)) => "tf32".into(),
        _ => case.dtype.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn line(pass: &str, dtype: &str, layout: &str) -> Value {
        json!({
            "name": "x", "kind": "conv", "pass": pass, "dtype": dtype, "layout": layout,
            "n": 3, "c": 24, "size": [9, 8], "k": [3, 2], "s": [2, 1], "p": [1, 0], "d": [1, 2],
            "cout": 36, "groups": 2,
        })
    }

    fn case(line: Value) -> Case {
        serde_json::from_value(line).expect("a case")
    }

    #[test]
    fn right_kernels_are_right_in_whole_and_in_part() {
        for pass in ["fwd", "data", "weight"] {
            for (dtype, layout) in [("f32", "nhwc"), ("f16", "nchw")] {
                let case = case(line(pass, dtype, layout));
                let checked = |most| {
                    let checked = check(&case, &Device::host(), Forced::default(), most);
                    let checked = checked.expect("it runs");
                    assert_eq!(checked.comparison.wrong, None, "{pass} {dtype} {layout}");
                    assert!((0.0..=1.0).contains(&checked.comparison.worst), "{pass}");
                    assert!(checked.outputs <= checked.of_outputs, "{pass}");
                    (checked.samples, checked.outputs)
                };
                // The windows are 5 by 6; filters are 3 by 2 by 12 channels.
                let (all, some) = match pass {
                    "fwd" => (3 * 30 * 36, 2 * 30 * 8),
                    "data" => (3 * 72 * 24, 2 * 72 * 8),
                    _ => (36 * 6 * 12, 8 * 6 * 4),
                };
                assert_eq!((checked(u64::MAX), checked(0)), ((3, all), (2, some)), "{pass}");
            }
        }
    }

    /// A large case is launched whole, and some of its results are compared, in every layout.
    #[test]
    fn parts_of_whole_cases_are_compared() {
        for pass in ["fwd", "dgrad", "wgrad", "bias"] {
            for (layout, filters) in
                [("nhwc", "fhwc"), ("nhwc", "hwcf"), ("nchw", "fchw"), ("nchw", "hwcf")]
            {
                let mut line = line(pass, "f32", layout);
                line["filters"] = json!(filters);
                let case = case(line);
                let checked = |most| {
                    let (host, free) = (Device::host(), Forced::default());
                    let mut held = held(&case, &host, free, most).expect("it is ready");
                    let checked = held.run(free).expect("it runs");
                    assert_eq!(checked.comparison.wrong, None, "{pass} {layout} {filters}");
                    assert_eq!((checked.of, checked.size), (3, None), "{pass}");
                    (checked.samples, checked.outputs, checked.of_outputs)
                };
                let (plane, all, one) = match pass {
                    "fwd" => (30, 36, (1, 30)),
                    "dgrad" => (72, 24, (1, 72)),
                    // One filter and one channel of it, of six taps.
                    "wgrad" => (12 * 6, 36, (3, 6)),
                    _ => (1, 36, (3, 1)),
                };
                let samples = if ["fwd", "dgrad"].contains(&pass) { 3 } else { 1 };
                let all = plane * all * samples;
                assert_eq!(checked(u64::MAX), (3, all, all), "{pass}");
                assert_eq!(checked(0), (one.0, one.1, all), "{pass}");
            }
        }
    }

    /// Every field, in every pass that it is for: epilogues, padding modes, unequal padding and output padding.
    fn lines_of_every_field() -> Vec<Value> {
        let mut lines = Vec::new();
        let ends = json!({"bias": true, "activation": "silu"});
        let shifted = json!({"p": [[0, 3], 2]});
        let same = json!({"p": null, "same": "lower", "k": [4, 3]});
        let mut add = |kind: &str, pass: &str, change: &Value| {
            for (layout, dtype) in [("nhwc", "f32"), ("nchw", "f16"), ("nchw", "f32")] {
                let mut line = line(pass, dtype, layout);
                line["kind"] = json!(kind);
                for (field, value) in change.as_object().expect("fields") {
                    line[field] = value.clone();
                }
                line.as_object_mut().expect("fields").retain(|_, value| !value.is_null());
                lines.push(line);
            }
        };
        for change in [
            &ends,
            &json!({"residual": true}),
            &json!({"residual": true, "bias": true, "activation": "leaky:0.5"}),
            &json!({"activation": "relu", "padding_mode": "reflect"}),
        ] {
            add("conv", "fwd", change);
        }
        for pass in ["fwd", "data", "weight"] {
            for mode in PaddingMode::ALL.into_iter().filter(|mode| *mode != PaddingMode::Zeros) {
                add("conv", pass, &json!({"padding_mode": mode.name(), "p": [[2, 1], [0, 4]]}));
            }
            add("conv", pass, &shifted);
            add("conv", pass, &same);
        }
        add("convtranspose", "fwd", &ends);
        add("convtranspose", "fwd", &json!({"activation": "relu"}));
        for pass in ["fwd", "data", "weight", "bias"] {
            add("convtranspose", pass, &json!({"output_padding": [1, 0]}));
            add("convtranspose", pass, &shifted);
            add("convtranspose", pass, &same);
        }
        lines
    }

    #[test]
    fn every_field_is_right_in_whole_and_in_part() {
        let host = Device::host();
        for line in lines_of_every_field() {
            let case = case(line.clone());
            for most in [u64::MAX, 0] {
                let (whole, free) =
                    (check(&case, &host, Forced::default(), most), Forced::default());
                let mut held = held(&case, &host, free, most).expect("it is ready");
                for checked in [whole, held.run(free)] {
                    let checked = checked.expect("it runs");
                    assert_eq!(checked.comparison.wrong, None, "{line}");
                    assert!(checked.outputs > 0 && (0.0..=1.0).contains(&checked.comparison.worst));
                }
            }
        }
    }

    /// The results of a case are wrong for the same case without one of its fields.
    #[test]
    fn fields_that_are_ignored_are_found() {
        let host = Device::host();
        let fields = ["bias", "residual", "activation", "padding_mode"];
        let mut found = 0;
        for line in lines_of_every_field() {
            for field in fields.iter().filter(|field| line.get(field).is_some()) {
                let mut ignorant = line.clone();
                ignorant.as_object_mut().expect("fields").remove(*field);
                let (case, ignorant) = (case(line.clone()), case(ignorant));
                let ready = |case: &Case| {
                    let fields = Fields::of(case).expect("fields");
                    let numbers = |dims: &[usize], seed: u32, scale: f64| {
                        let len = dims.iter().product::<usize>() + seed as usize;
                        let numbers = element::numbers::<f64>(len).skip(seed as usize);
                        let numbers: Vec<f32> = numbers.map(|x| (x * scale) as f32).collect();
                        Tensor::from_slice(&host, &numbers, dims)
                    };
                    let ready = fields.ready(case, &host, Forced::default(), numbers);
                    (fields, ready.expect("it is ready"))
                };
                if case.dtype != "f32" {
                    continue;
                }
                let ((fields, right), (_, mut wrong)) = (ready(&case), ready(&ignorant));
                let part = Part::of(&fields, right.operator, usize::MAX);
                let expected = right.expected::<f32>(&fields, &part, &case).expect("sums");
                wrong.launch().expect("it runs");
                let results = wrong.found::<f32>(&fields, &part, &case).expect("results");
                assert!(Comparison::of_sums(&results, &expected).wrong.is_some(), "{field} {line}");
                found += 1;
            }
        }
        assert!(found > 20, "{found}");
    }

    #[test]
    fn fields_of_other_kinds_and_passes_are_refused() {
        let refused = |kind: &str, pass: &str, field: &str, value: Value| {
            let mut line = line(pass, "f32", "nhwc");
            (line["kind"], line[field]) = (json!(kind), value);
            Fields::of(&case(line)).map(drop).expect_err("it is refused").to_string()
        };
        for pass in ["data", "weight", "bias"] {
            let message = refused("conv", pass, "activation", json!("relu"));
            assert_eq!(message, "`activation` is only for the pass fwd; leave it out");
        }
        let message = refused("conv", "fwd", "output_padding", json!([1, 0]));
        assert!(message.contains("only for the kind convtranspose"), "{message}");
        let message = refused("convtranspose", "fwd", "residual", json!(true));
        assert!(message.contains("only for the kind conv;"), "{message}");
        let message = refused("convtranspose", "fwd", "padding_mode", json!("reflect"));
        assert!(message.contains("reflect"), "{message}");
        let message = refused("convtranspose", "fwd", "output_padding", json!([2, 0]));
        assert!(message.contains("less than 2"), "{message}");
    }

    /// A result with correct values, each shifted by one element.
    #[test]
    fn wrong_kernels_are_found() {
        for pass in ["fwd", "data", "weight"] {
            for most in [u64::MAX, 0] {
                let case = case(line(pass, "f32", "nhwc"));
                let fields = Fields::of(&case).expect("fields");
                let (host, free) = (Device::host(), Forced::default());
                let (fields, part) = fields.smaller(&case, &host, free, most).expect("a part");
                let numbers =
                    |dims: &[usize], seed, _| Tensor::random(&host, DType::F32, dims, seed);
                let mut convolving =
                    fields.ready(&case, &host, free, numbers).expect("it is ready");
                convolving.launch().expect("it runs");
                let expected = convolving.expected::<f32>(&fields, &part, &case).expect("sums");
                let wrong = |convolving: &Convolving| {
                    let found = convolving.found::<f32>(&fields, &part, &case).expect("results");
                    Comparison::of_sums(&found, &expected).wrong
                };
                assert_eq!(wrong(&convolving), None, "{pass}");
                let mut off: Vec<f32> = convolving.results[0].to_vec().expect("numbers");
                off.rotate_left(1);
                let off = Tensor::from_slice(&host, &off, convolving.results[0].dims());
                convolving.results = vec![off.expect("a tensor")];
                assert!(wrong(&convolving).is_some(), "{pass}");
            }
        }
    }

    #[test]
    fn parts_are_of_all_groups_and_reach_from_first_to_last() {
        let fields = Fields::of(&case(line("fwd", "f32", "nhwc"))).expect("fields");
        let part = Part::of(&fields, Operator::Forward, SOME);
        assert_eq!(part.filters, [0, 5, 11, 17, 18, 23, 29, 35]);
        assert_eq!((part.groups, part.channels.len()), (2, 24));
        assert_eq!(part.products(30, 6), 30 * 6 * 8 * 12);
        let part = Part::of(&fields, Operator::Weight, SOME);
        assert_eq!(part.channels, [0, 3, 7, 11, 12, 15, 19, 23]);
        let depthwise = Fields { groups: 24, cout: 24, ..fields };
        let part = Part::of(&depthwise, Operator::Data, SOME);
        assert_eq!((&part.filters, part.groups), (&part.channels, 8));
        assert_eq!(part.filters.last(), Some(&23));
    }

    #[test]
    fn tf32_has_arithmetic_of_its_own() {
        let mut line = line("fwd", "f32", "nhwc");
        assert_eq!(arithmetic(&case(line.clone())), "f32");
        line["precision"] = json!("tf32");
        assert_eq!(arithmetic(&case(line)), "tf32");
    }
}
