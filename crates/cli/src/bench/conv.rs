//! Convolution as a case: the kind `conv`.

use serde::Deserialize;
use windowpane::{Conv, ConvPlan, DType, Device, FilterLayout, Layout, Precision, Result, Tensor};
use windowpane_reference::conv::{
    Epilogue, data_gradient_totals, filter_gradient_totals, forward_totals,
};
use windowpane_reference::{Scalar, Total};

use super::case::Case;
use super::sliding::Sliding;
use super::{Checked, Forced, Work};
use crate::element::{self, Comparable, Comparison, with_element};
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
}

fn one() -> usize {
    1
}

/// What of a convolution is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Forward,
    Data,
    Filter,
}

/// A convolution with what it reads and what it wrote last.
struct Convolving {
    operator: Operator,
    plan: ConvPlan,
    inputs: [Tensor; 2],
    results: Vec<Tensor>,
}

/// The reference computes the results of so many filters or channels at least, where all are more
/// than it may.
const SOME: usize = 8;

/// The samples that are kept, however long their sums are: blocks of windows reach from one into
/// the next.
const FEWEST_SAMPLES: usize = 2;

/// The unit roundoff of tf32, which has 11 digits.
const TF32: f64 = 1.0 / 2048.0;

pub(super) fn ready(
    case: &Case,
    device: &Device,
    forced: Forced,
) -> Result<Box<dyn Work>, Failure> {
    let (fields, dtype) = (case.fields::<Fields>()?, case.dtype()?);
    let random = |dims: &[usize], seed, _| Tensor::random(device, dtype, dims, seed);
    Ok(Box::new(fields.ready(case, device, forced, random)?))
}

/// Picks kernel and tile by measuring. Where nothing is forced, plans of the case now have them by
/// themselves.
pub(super) fn tune(case: &Case, device: &Device, forced: Forced) -> Result<Forced, Failure> {
    let (_, plan) = case.fields::<Fields>()?.plan(case, device, forced)?;
    let tuned = plan.tune()?;
    Ok(if forced.is_free() { forced } else { Forced::of_plan(&tuned) })
}

/// Runs the case on fewer and smaller samples if the reference would multiply more often than it
/// may, and compares with it all results, or those of some filters and channels.
pub(super) fn check(
    case: &Case,
    device: &Device,
    forced: Forced,
    products: u64,
) -> Result<Checked, Failure> {
    let (whole, dtype) = (case.fields::<Fields>()?, case.dtype()?);
    // Whatever the case's own size is planned or tuned to, a part of it runs the same kernel.
    let (_, plan) = whole.plan(case, device, forced)?;
    let forced = Forced::of_plan(&plan);
    let (fields, part) = whole.smaller(case, device, forced, products)?;
    let (sliding, of) = (&fields.sliding, whole.sliding.n);
    let size = (sliding.size != whole.sliding.size).then(|| sliding.size.clone());
    with_element!(dtype, T => {
        let mut convolving = fields.ready(case, device, forced, |dims, seed, scale| {
            let len = dims.iter().product::<usize>() + seed as usize;
            // Another seed is another place in the same numbers.
            let numbers = element::numbers::<f64>(len).skip(seed as usize);
            let numbers: Vec<T> = numbers.map(|number| T::from_f64(number * scale)).collect();
            Tensor::from_slice(device, &numbers, dims)
        })?;
        convolving.launch()?;
        let (comparison, outputs) = convolving.compare::<T>(&fields, &part, case)?;
        let algorithm = convolving.algorithm();
        let of_outputs = convolving.results.first().map_or(0, Tensor::len);
        Ok(Checked { algorithm, samples: sliding.n, of, size, outputs, of_outputs, comparison })
    })
}

/// The filters and channels that the reference computes with, as it numbers them in the whole
/// problem.
#[derive(Debug, PartialEq)]
struct Part {
    groups: usize,
    filters: Vec<usize>,
    channels: Vec<usize>,
}

impl Part {
    /// As many results as make `most` a window, from first to last; of the filters and channels
    /// that are summed over, all.
    fn of(fields: &Fields, operator: Operator, most: usize) -> Self {
        let Fields { groups, cout, sliding, .. } = fields;
        let kept = spread(*groups, most);
        let each = (most / kept.len().max(1)).max(1);
        let of_group = |all: usize, summed: bool| {
            let all = all / (*groups).max(1);
            let own = if summed { spread(all, all) } else { spread(all, each) };
            let of = |group: &usize| own.iter().map(|i| group * all + i).collect::<Vec<_>>();
            kept.iter().flat_map(of).collect()
        };
        Self {
            groups: kept.len(),
            filters: of_group(*cout, operator == Operator::Data),
            channels: of_group(sliding.c, operator == Operator::Forward),
        }
    }

    /// The multiplications of so many windows.
    fn products(&self, windows: usize, taps: usize) -> u64 {
        let pairs = self.filters.len() * self.channels.len() / self.groups.max(1);
        (windows as u64).saturating_mul((taps * pairs) as u64)
    }
}

/// At most so many of these, the first and the last among them.
fn spread(all: usize, most: usize) -> Vec<usize> {
    if all <= most {
        return (0..all).collect();
    }
    (0..most).map(|i| i * (all - 1) / (most - 1).max(1)).collect()
}

impl Fields {
    fn conv(&self, case: &Case, forced: Forced) -> Result<Conv, Failure> {
        let layout = case.layout()?;
        Ok(Conv::over(self.sliding.window()?)
            .groups(self.groups)
            .layout(layout)
            .filter_layout(filter_layout(layout))
            .precision(case.precision()?)
            .algorithm(forced.of_convolution()?)
            .tile(forced.tile.unwrap_or_default()))
    }

    /// The filters' dimensions, in the order of memory.
    fn filter_dims(&self, layout: Layout) -> Vec<usize> {
        let channels = self.sliding.c / self.groups.max(1);
        let (before, after) = match filter_layout(layout) {
            FilterLayout::Fchw => (Some(channels), None),
            _ => (None, Some(channels)),
        };
        let taps = self.sliding.k.iter().copied();
        [self.cout].into_iter().chain(before).chain(taps).chain(after).collect()
    }

    /// What the case computes and how, without a launch.
    fn plan(
        &self,
        case: &Case,
        device: &Device,
        forced: Forced,
    ) -> Result<(Operator, ConvPlan), Failure> {
        let (dtype, layout, conv) = (case.dtype()?, case.layout()?, self.conv(case, forced)?);
        let (x, w) = (self.sliding.dims(layout), self.filter_dims(layout));
        Ok(match &*case.pass {
            "fwd" => (Operator::Forward, conv.plan(device, dtype, &x, &w)?),
            "dgrad" => (Operator::Data, conv.plan_backward_data(device, dtype, &x, &w)?),
            "wgrad" => (Operator::Filter, conv.plan_backward_filter(device, dtype, &x, &w)?),
            _ => return Err(case.unknown_pass("fwd, dgrad, wgrad")),
        })
    }

    /// As much of the case as makes at most so many multiplications: results of some filters and
    /// channels, fewer samples, and smaller ones. What runs on the device has all filters and
    /// channels, so that it is the case's own kernel.
    fn smaller(
        &self,
        case: &Case,
        device: &Device,
        forced: Forced,
        most: u64,
    ) -> Result<(Self, Part), Failure> {
        let mut fields = self.clone();
        // What the whole case is asked for is refused for what it is.
        let (operator, plan) = self.plan(case, device, forced)?;
        let taps = plan.problem().filter().taps();
        let windows =
            |plan: &ConvPlan| plan.problem().output().batch() * plan.problem().output().plane();
        let all = Part::of(self, operator, usize::MAX);
        if all.products(windows(&plan), taps) <= most {
            return Ok((fields, all));
        }
        let mut part = Part::of(self, operator, SOME);
        // All of them are too many, so that this ends.
        for some in (1..).map(|doublings| SOME << doublings) {
            let larger = Part::of(self, operator, some);
            if larger.products(windows(&plan), taps) > most {
                break;
            }
            part = larger;
        }
        let each = part.products(plan.problem().output().plane(), taps).max(1);
        let samples = usize::try_from(most / each).unwrap_or(self.sliding.n);
        fields.sliding.n = self.sliding.n.min(samples.max(FEWEST_SAMPLES));
        let (_, mut plan) = fields.plan(case, device, forced)?;
        while part.products(windows(&plan), taps) > most {
            let mut halved = fields.clone();
            if !halved.sliding.halve() {
                break;
            }
            // A tile may be for large images alone: then more is compared than need be.
            let Ok((_, smaller)) = halved.plan(case, device, forced) else { break };
            (fields, plan) = (halved, smaller);
        }
        Ok((fields, part))
    }

    /// Makes everything that a launch reads: `fill` makes a tensor of these dimensions, from this
    /// seed, of numbers so large.
    fn ready(
        &self,
        case: &Case,
        device: &Device,
        forced: Forced,
        fill: impl Fn(&[usize], u32, f64) -> Result<Tensor>,
    ) -> Result<Convolving, Failure> {
        let (operator, plan) = self.plan(case, device, forced)?;
        let layout = case.layout()?;
        let problem = plan.problem();
        if device.uses_host_memory() {
            for elements in [problem.input().elements(), problem.output().elements()] {
                memory::check_results(elements, case.dtype()?)?;
            }
        }
        let output: Vec<usize> = problem.output().dims(layout).collect();
        let (filter, groups) = (problem.filter(), problem.groups().max(1));
        let (input, filters) = (self.sliding.dims(layout), self.filter_dims(layout));
        let (first, second, terms) = match operator {
            Operator::Forward => (input, filters, filter.taps() * filter.channels()),
            Operator::Data => (output, filters, filter.taps() * filter.count() / groups),
            Operator::Filter => {
                (output, input, problem.output().batch() * problem.output().plane())
            }
        };
        // Such that sums of outliers, too, are far from the largest f16.
        let small = 1.0 / (16.0 * (terms.max(1) as f64).sqrt());
        let inputs = [fill(&first, 1, 1.0)?, fill(&second, 2, small)?];
        Ok(Convolving { operator, plan, inputs, results: Vec::new() })
    }
}

/// The layout that suits the data's: channels where the data has them.
fn filter_layout(layout: Layout) -> FilterLayout {
    match layout {
        Layout::ChannelsLast => FilterLayout::Fhwc,
        Layout::ChannelsFirst => FilterLayout::Fchw,
    }
}

impl Convolving {
    /// Holds the results of the last launch, or a part of them, to the reference; and how many.
    fn compare<T: Comparable>(
        &self,
        fields: &Fields,
        part: &Part,
        case: &Case,
    ) -> Result<(Comparison, usize), Failure> {
        let layout = case.layout()?;
        let some = Fields {
            sliding: Sliding { c: part.channels.len(), ..fields.sliding.clone() },
            cout: part.filters.len(),
            groups: part.groups,
        };
        let (x, w) = (some.sliding.dims(layout), some.filter_dims(layout));
        let conv = Conv::over(some.sliding.window()?)
            .groups(some.groups)
            .layout(layout)
            .filter_layout(filter_layout(layout));
        let plan = conv.plan(&Device::host(), case.dtype()?, &x, &w)?;
        let problem = plan.problem();
        // Channels are as far in as the data's layout has them; those of filters are a group's own.
        let channel = match layout {
            Layout::ChannelsLast => self.inputs[0].dims().len() - 1,
            Layout::ChannelsFirst => 1,
        };
        let own = fields.sliding.c / fields.groups.max(1);
        let of_group = &part.channels[..part.channels.len() / part.groups.max(1)];
        let of_group: Vec<usize> = of_group.iter().map(|c| c % own.max(1)).collect();
        let data = |tensor: &Tensor, picks: &[usize]| -> Result<Vec<T>> {
            Ok(select(&tensor.to_vec::<T>()?, tensor.dims(), channel, picks))
        };
        let filters = |tensor: &Tensor| -> Result<Vec<T>> {
            let mut dims = tensor.dims().to_vec();
            let picked = select(&tensor.to_vec::<T>()?, &dims, 0, &part.filters);
            dims[0] = part.filters.len();
            Ok(select(&picked, &dims, channel, &of_group))
        };
        let ([first, second], result) = (&self.inputs, &self.results[0]);
        let (found, totals) = match self.operator {
            Operator::Forward => {
                let (x, w) = (data(first, &part.channels)?, filters(second)?);
                let totals = forward_totals(problem, &x, &w, Epilogue::NONE);
                (data(result, &part.filters)?, totals)
            }
            Operator::Data => {
                let (dy, w) = (data(first, &part.filters)?, filters(second)?);
                (data(result, &part.channels)?, data_gradient_totals(problem, &dy, &w))
            }
            Operator::Filter => {
                let (dy, x) = (data(first, &part.filters)?, data(second, &part.channels)?);
                (filters(result)?, filter_gradient_totals(problem, &dy, &x))
            }
        };
        let totals = match case.precision()? {
            Precision::Tf32 => totals.into_iter().map(rounded_factors).collect(),
            _ => totals,
        };
        Ok((Comparison::of_sums(&found, &totals), found.len()))
    }
}

/// A sum whose bound has room for factors that are rounded to tf32 first: `2·u·Σ|terms|` more.
fn rounded_factors(total: Total) -> Total {
    // As many more roundings of f32 as those are worth.
    let more = 2.0 * TF32 * f64::from(2u32.pow(24)) / total.terms.max(1) as f64;
    Total { magnitude: total.magnitude * (1.0 + more), ..total }
}

/// Of an array only these positions of an axis.
fn select<T: Copy>(array: &[T], dims: &[usize], axis: usize, picks: &[usize]) -> Vec<T> {
    let inner: usize = dims[axis + 1..].iter().product();
    let rows = array.chunks((dims[axis] * inner).max(1));
    rows.flat_map(|row| picks.iter().flat_map(move |i| &row[i * inner..][..inner]))
        .copied()
        .collect()
}

impl Work for Convolving {
    fn launch(&mut self) -> Result<()> {
        self.plan.run(&[&self.inputs[0], &self.inputs[1]], &mut self.results)
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

/// The type that a case's products are made in, as ceilings name it.
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
        for pass in ["fwd", "dgrad", "wgrad"] {
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
                    "dgrad" => (3 * 72 * 24, 2 * 72 * 8),
                    _ => (36 * 6 * 12, 8 * 6 * 4),
                };
                assert_eq!((checked(u64::MAX), checked(0)), ((3, all), (2, some)), "{pass}");
            }
        }
    }

    /// Results that are all there, each an element off.
    #[test]
    fn wrong_kernels_are_found() {
        for pass in ["fwd", "dgrad", "wgrad"] {
            for most in [u64::MAX, 0] {
                let case = case(line(pass, "f32", "nhwc"));
                let fields: Fields = case.fields().expect("fields");
                let (host, free) = (Device::host(), Forced::default());
                let (fields, part) = fields.smaller(&case, &host, free, most).expect("a part");
                let numbers =
                    |dims: &[usize], seed, _| Tensor::random(&host, DType::F32, dims, seed);
                let mut convolving =
                    fields.ready(&case, &host, free, numbers).expect("it is ready");
                convolving.launch().expect("it runs");
                let wrong = |convolving: &Convolving| {
                    let compared = convolving.compare::<f32>(&fields, &part, &case);
                    compared.expect("it is compared").0.wrong
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
        let fields: Fields = case(line("fwd", "f32", "nhwc")).fields().expect("fields");
        let part = Part::of(&fields, Operator::Forward, SOME);
        assert_eq!(part.filters, [0, 5, 11, 17, 18, 23, 29, 35]);
        assert_eq!((part.groups, part.channels.len()), (2, 24));
        assert_eq!(part.products(30, 6), 30 * 6 * 8 * 12);
        let part = Part::of(&fields, Operator::Filter, SOME);
        assert_eq!(part.channels, [0, 3, 7, 11, 12, 15, 19, 23]);
        let depthwise = Fields { groups: 24, cout: 24, ..fields };
        let part = Part::of(&depthwise, Operator::Data, SOME);
        assert_eq!((&part.filters, part.groups), (&part.channels, 8));
        assert_eq!(part.filters.last(), Some(&23));
    }

    #[test]
    fn arrays_are_cut_along_an_axis() {
        let array = [0, 1, 2, 10, 11, 12];
        assert_eq!(select(&array, &[2, 3], 1, &[0, 2]), [0, 2, 10, 12]);
        assert_eq!(select(&array, &[2, 3], 0, &[1]), [10, 11, 12]);
    }

    #[test]
    fn tf32_has_arithmetic_of_its_own() {
        let mut line = line("fwd", "f32", "nhwc");
        assert_eq!(arithmetic(&case(line.clone())), "f32");
        line["precision"] = json!("tf32");
        assert_eq!(arithmetic(&case(line)), "tf32");
    }
}
