//! Pooling as a case: the kinds `maxpool`, `minpool`, `avgpool`, `sumpool`, `lppool`, `rankpool`, `modepool` and
//! `maxunpool`.

use serde::Deserialize;
use serde_json::Value;
use windowpane::geometry::{Extremum, Shape};
use windowpane::{
    AvgPool, Device, Divisor, Error, Exponent, IndexBase, Layout, LpPool, MaxPool, MaxUnpool,
    MinPool, ModePool, PoolAlgorithm, PoolPlan, Rank, RankPool, Result, Tensor, Tuned,
};
use windowpane_reference::Total;
use windowpane_reference::pool::{
    Algorithm as Reference, backward, direct, extremum, extremum_with_indices, lp, mode, rank,
    unpool,
};

use super::case::Case;
use super::sliding::{Sliding, Spread, planes};
use super::{Checked, Forced, Held, Weight, Work};
use crate::args::index_base;
use crate::element::{self, Comparable, Comparison, poisoned, with_element};
use crate::failure::Failure;
use crate::memory;

/// The kinds of cases that are poolings.
pub(super) const KINDS: [&str; 8] =
    ["maxpool", "minpool", "avgpool", "sumpool", "lppool", "rankpool", "modepool", "maxunpool"];

/// About how many numbers a window has in which many taps have the same one.
const MOST_NUMBERS: u64 = 256;

/// The fields of a pooling.
#[derive(Clone, Deserialize)]
struct Fields {
    #[serde(flatten)]
    sliding: Sliding,
    #[serde(default)]
    indices: bool,
    #[serde(default)]
    index_base: Option<String>,
    #[serde(default)]
    divisor: Option<Value>,
    #[serde(default)]
    exponent: Option<f64>,
    #[serde(default)]
    rank: Option<Value>,
}

/// The operator of a pooling.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Extremum(Extremum),
    ExtremumWithIndices(Extremum),
    ExtremumGradient(Extremum),
    Average(Divisor),
    AverageGradient(Divisor),
    Norm,
    NormGradient,
    Rank(Rank),
    Mode,
    Unpool,
    UnpoolGradient,
}

/// A pooling with its inputs and its last result.
struct Pooling {
    operator: Operator,
    plan: PoolPlan,
    inputs: Vec<Tensor>,
    results: Vec<Tensor>,
}

pub(super) fn ready(
    case: &Case,
    device: &Device,
    forced: Forced,
) -> Result<Box<dyn Work>, Failure> {
    let (fields, dtype) = (case.fields::<Fields>()?, case.dtype()?);
    let pooling = fields
        .ready(case, device, forced, |dims, seed| Tensor::random(device, dtype, dims, seed))?;
    Ok(Box::new(pooling))
}

/// Plans the case, and the part of it that [`check`] would run.
pub(super) fn plan(case: &Case, device: &Device, taps: u64) -> Result<(), Failure> {
    case.fields::<Fields>()?.smaller(case, device, Forced::default(), taps).map(drop)
}

/// Runs as much of the case as has at most this many taps, and compares all results with the reference.
pub(super) fn check(
    case: &Case,
    device: &Device,
    forced: Forced,
    taps: u64,
) -> Result<Checked, Failure> {
    let whole = case.fields::<Fields>()?;
    let forced = whole.tuned(case, device, forced)?;
    let part = whole.smaller(case, device, forced, taps)?;
    let planes = Planes::of(&part, u64::MAX, 1);
    held_to(case, device, forced, part, planes)?.run(forced)
}

/// Prepares a case on the device. The reference computes as many of its planes as `taps` allows. If one plane has
/// far more taps, a smaller case is launched.
pub(super) fn held<'a>(
    case: &'a Case,
    device: &'a Device,
    forced: Forced,
    taps: u64,
) -> Result<Box<dyn Held + 'a>, Failure> {
    let whole = case.fields::<Fields>()?;
    let forced = whole.tuned(case, device, forced)?;
    let plane = weigh(case)?.slice;
    let fields = match plane <= taps.max(super::LARGEST_SLICE) {
        true => whole,
        false => whole.smaller(case, device, forced, taps)?,
    };
    let planes = Planes::of(&fields, taps, plane);
    held_to(case, device, forced, fields, planes)
}

fn held_to<'a>(
    case: &'a Case,
    device: &'a Device,
    forced: Forced,
    fields: Fields,
    planes: Planes,
) -> Result<Box<dyn Held + 'a>, Failure> {
    let dtype = case.dtype()?;
    let (_, plan) = fields.plan(case, device, forced)?;
    memory::check_pooling(plan.pooling(), 2 * dtype.size() + size_of::<Total>())?;
    with_element!(dtype, T => {
        let pooling = fields.ready(case, device, forced, |dims, seed| {
            let len = dims.iter().product::<usize>() + seed as usize;
            // Another seed selects another part of the same numbers.
            let numbers: Vec<T> = element::numbers(len).skip(seed as usize).collect();
            Tensor::from_slice(device, &numbers, dims)
        })?;
        let expected = pooling.expected::<T>(&fields, &planes, case)?;
        Ok(Box::new(Verified { case, device, fields, planes, pooling, expected }))
    })
}

/// The memory and the work of a case.
pub(super) fn weigh(case: &Case) -> Result<Weight, Failure> {
    let fields = case.fields::<Fields>()?;
    let (operator, plan) = fields.plan(case, &Device::host(), Forced::default())?;
    let (pooling, taps) = (plan.pooling(), plan.pooling().grid().taps() as u64);
    // The indices are those of a forward pass.
    let gradient = matches!(
        operator,
        Operator::ExtremumGradient(_)
            | Operator::NormGradient
            | Operator::Unpool
            | Operator::UnpoolGradient
    );
    let bytes = plan.bytes().saturating_mul(if gradient { 2 } else { 1 });
    let slice = (pooling.output().plane() as u64).saturating_mul(taps);
    // Unless it sorts, a mode's kernel reads a window again for each of its numbers.
    let passes = if operator == Operator::Mode { taps.min(MOST_NUMBERS) } else { 1 };
    Ok(Weight { bytes, slice, work: arithmetic(&plan).saturating_mul(passes) })
}

/// Times the kernels that can compute a case, unless one is forced; later plans take the fastest.
pub(super) fn tune(case: &Case, device: &Device, forced: Forced) -> Result<Forced, Failure> {
    if forced.is_free() {
        case.fields::<Fields>()?.plan(case, device, forced)?.1.tune()?;
    }
    Ok(forced)
}

/// The kernels that can compute a case, the plan's choice first.
pub(super) fn kernels(case: &Case, device: &Device) -> Result<Vec<&'static str>, Failure> {
    let fields = case.fields::<Fields>()?;
    let own = fields.plan(case, device, Forced::default())?.1.algorithm();
    let others = PoolAlgorithm::ALL.into_iter().filter(|algorithm| {
        let planned = fields.plan(case, device, Forced::pool(*algorithm));
        // Some names select the kernel of another name.
        *algorithm != own && planned.is_ok_and(|(_, plan)| plan.algorithm() == *algorithm)
    });
    Ok([own].into_iter().chain(others).map(PoolAlgorithm::name).collect())
}

/// The planes that are compared: those of some channels of some samples.
struct Planes {
    samples: Spread,
    channels: Vec<usize>,
}

impl Planes {
    /// The planes that the reference computes within `most` taps, at least one: up to 16 channels first, because
    /// most kernels compute several channels of a sample together, then samples.
    fn of(fields: &Fields, most: u64, taps: u64) -> Self {
        const CHANNELS: usize = 16;
        let Sliding { n, c, .. } = fields.sliding;
        let planes = usize::try_from(most / taps.max(1)).unwrap_or(usize::MAX).max(1);
        let channels = c.min(planes.min((planes / n.max(1)).max(CHANNELS)));
        let samples = Spread::new(n, (planes / channels.max(1)).max(1));
        Self { samples, channels: Spread::new(c, channels).positions().collect() }
    }
}

/// The reference's results.
enum Expected<T> {
    Same(Vec<T>),
    Indexed(Vec<T>, Vec<i32>),
    Sums(Vec<Total>),
}

/// A pooling with its inputs and the reference's results.
struct Verified<'a, T> {
    case: &'a Case,
    device: &'a Device,
    fields: Fields,
    planes: Planes,
    pooling: Pooling,
    expected: Expected<T>,
}

impl<T: Comparable> Held for Verified<'_, T> {
    fn run(&mut self, forced: Forced) -> Result<Checked, Failure> {
        let Self { case, device, fields, planes, pooling, expected } = self;
        pooling.plan = fields.plan(case, device, forced)?.1;
        pooling.poison::<T>(case)?;
        pooling.launch()?;
        let comparison = pooling.compare(expected, fields, planes, case)?;
        let whole = case.fields::<Fields>()?;
        let of_outputs = pooling.results.first().map_or(0, Tensor::len);
        let all = fields.sliding.n * fields.sliding.c;
        let outputs = of_outputs / all.max(1) * planes.samples.len() * planes.channels.len();
        let size = (fields.sliding.size != whole.sliding.size).then(|| fields.sliding.size.clone());
        Ok(Checked {
            algorithm: pooling.algorithm(),
            samples: planes.samples.len(),
            of: whole.sliding.n,
            size,
            outputs,
            of_outputs,
            comparison,
        })
    }
}

impl Fields {
    /// Plans the case without a launch.
    fn plan(
        &self,
        case: &Case,
        device: &Device,
        forced: Forced,
    ) -> Result<(Operator, PoolPlan), Failure> {
        let (dtype, layout) = (case.dtype()?, case.layout()?);
        let algorithm = forced.of_pooling()?;
        let (window, dims) = (self.sliding.window()?, self.sliding.dims(layout));
        let base = self.index_base();
        let max = MaxPool::with_window(window).layout(layout).index_base(base).algorithm(algorithm);
        let min = MinPool::with_window(window).layout(layout).index_base(base).algorithm(algorithm);
        let divisor = if case.kind == "sumpool" { Divisor::Fixed(1) } else { self.divisor() };
        let average =
            AvgPool::with_window(window).layout(layout).divisor(divisor).algorithm(algorithm);
        let norm = LpPool::with_window(self.exponent(), window).layout(layout).algorithm(algorithm);
        let extremum = if case.kind == "minpool" { Extremum::Min } else { Extremum::Max };
        Ok(match (&*case.kind, &*case.pass) {
            (kind @ ("maxpool" | "minpool"), "fwd") if self.indices => {
                let plan = match kind {
                    "maxpool" => max.plan_with_indices(device, dtype, &dims)?,
                    _ => min.plan_with_indices(device, dtype, &dims)?,
                };
                (Operator::ExtremumWithIndices(extremum), plan)
            }
            ("maxpool", "fwd") => (Operator::Extremum(extremum), max.plan(device, dtype, &dims)?),
            ("minpool", "fwd") => (Operator::Extremum(extremum), min.plan(device, dtype, &dims)?),
            ("maxpool", "bwd") => {
                (Operator::ExtremumGradient(extremum), max.plan_backward(device, dtype, &dims)?)
            }
            ("minpool", "bwd") => {
                (Operator::ExtremumGradient(extremum), min.plan_backward(device, dtype, &dims)?)
            }
            ("avgpool" | "sumpool", "fwd") => {
                (Operator::Average(divisor), average.plan(device, dtype, &dims)?)
            }
            ("avgpool" | "sumpool", "bwd") => {
                (Operator::AverageGradient(divisor), average.plan_backward(device, dtype, &dims)?)
            }
            ("lppool", "fwd") => (Operator::Norm, norm.plan(device, dtype, &dims)?),
            ("lppool", "bwd") => {
                (Operator::NormGradient, norm.plan_backward(device, dtype, &dims)?)
            }
            ("rankpool", "fwd") => {
                let rank = self.rank(case)?;
                let pool = RankPool::with_window(rank, window).layout(layout).algorithm(algorithm);
                (Operator::Rank(rank), pool.plan(device, dtype, &dims)?)
            }
            ("modepool", "fwd") => {
                let pool = ModePool::with_window(window).layout(layout).algorithm(algorithm);
                (Operator::Mode, pool.plan(device, dtype, &dims)?)
            }
            ("rankpool" | "modepool", _) => return Err(case.unknown_pass("fwd")),
            ("maxunpool", "fwd" | "bwd") => {
                let shape = Shape::from_dims(&dims, layout).map_err(Error::from)?;
                let pooling =
                    windowpane::Pooling::new(shape, &window, layout).map_err(Error::from)?;
                let pooled: Vec<_> = pooling.output().dims(layout).collect();
                let unpool = MaxUnpool::new(pooling.input().space());
                let unpool = unpool.layout(layout).index_base(base);
                let (operator, plan) = match &*case.pass {
                    "fwd" => (Operator::Unpool, unpool.plan(device, dtype, &pooled)?),
                    _ => (Operator::UnpoolGradient, unpool.plan_backward(device, dtype, &pooled)?),
                };
                // There is one kernel, which is not chosen by name.
                match algorithm.filter(|algorithm| *algorithm != plan.algorithm()) {
                    Some(algorithm) => {
                        let (algorithm, device) = (algorithm.to_string(), device.clone());
                        let reason = "unpooling has one kernel".into();
                        return Err(Error::NoKernel { algorithm, device, reason }.into());
                    }
                    None => (operator, plan),
                }
            }
            _ => return Err(case.unknown_pass("fwd, bwd")),
        })
    }

    /// Only valid names pass the check of a case's fields.
    fn index_base(&self) -> IndexBase {
        self.index_base.as_deref().and_then(|name| index_base(name).ok()).unwrap_or_default()
    }

    /// The divisor of averages; by default the taps inside the input.
    fn divisor(&self) -> Divisor {
        match &self.divisor {
            Some(Value::String(name)) if name == "padded" => Divisor::Padded,
            Some(Value::Number(n)) => Divisor::Fixed(n.as_u64().unwrap_or(0) as u32),
            _ => Divisor::Valid,
        }
    }

    /// The exponent of norms; by default 2.
    fn exponent(&self) -> f64 {
        self.exponent.unwrap_or(2.0)
    }

    /// The rank, by default the median's.
    fn rank(&self, case: &Case) -> Result<Rank, Failure> {
        let text = match &self.rank {
            None => return Ok(Rank::MEDIAN),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        text.parse().map_err(|error| Failure::Failed(format!("{}: {error}", case.name)))
    }

    /// What a part of the case has to be computed by, where plans are tuned: the kernel of the whole case.
    fn tuned(&self, case: &Case, device: &Device, forced: Forced) -> Result<Forced, Failure> {
        if !forced.is_free() || Tuned::all().is_empty() {
            return Ok(forced);
        }
        Ok(Forced::pool(self.plan(case, device, forced)?.1.algorithm()))
    }

    /// The part of the case with at most this many taps: fewer samples, or smaller ones if one sample has more, still
    /// with windows at all edges.
    fn smaller(
        &self,
        case: &Case,
        device: &Device,
        forced: Forced,
        most: u64,
    ) -> Result<Self, Failure> {
        let mut fields = self.clone();
        // Errors of the whole case are reported for the whole case.
        let all = arithmetic(&self.plan(case, device, forced)?.1);
        let each = (all / self.sliding.n.max(1) as u64).max(1);
        fields.sliding.n =
            self.sliding.n.min(usize::try_from(most / each).unwrap_or(self.sliding.n).max(1));
        while arithmetic(&fields.plan(case, device, forced)?.1) > most && fields.sliding.halve() {}
        Ok(fields)
    }

    /// Makes the inputs of a launch: `fill` makes a tensor with these dimensions.
    fn ready(
        &self,
        case: &Case,
        device: &Device,
        forced: Forced,
        fill: impl Fn(&[usize], u32) -> Result<Tensor>,
    ) -> Result<Pooling, Failure> {
        let (operator, plan) = self.plan(case, device, forced)?;
        if device.uses_host_memory() {
            memory::check_pooling(plan.pooling(), 2 * case.dtype()?.size() + size_of::<i32>())?;
        }
        let layout = case.layout()?;
        let output: Vec<usize> = plan.pooling().output().dims(layout).collect();
        let inputs = match operator {
            Operator::Extremum(_)
            | Operator::ExtremumWithIndices(_)
            | Operator::Average(_)
            | Operator::Norm
            | Operator::Rank(_)
            | Operator::Mode => {
                vec![fill(&self.sliding.dims(layout), 1)?]
            }
            Operator::NormGradient => {
                vec![fill(&output, 2)?, fill(&self.sliding.dims(layout), 1)?]
            }
            Operator::ExtremumGradient(extremum) => {
                let x = fill(&self.sliding.dims(layout), 1)?;
                vec![fill(&output, 2)?, self.winners(extremum, layout, &x)?]
            }
            Operator::AverageGradient(_) => vec![fill(&output, 2)?],
            Operator::Unpool | Operator::UnpoolGradient => {
                let x = fill(&self.sliding.dims(layout), 1)?;
                let winners = self.winners(Extremum::Max, layout, &x)?;
                let y = if operator == Operator::Unpool { fill(&output, 2)? } else { x };
                vec![y, winners]
            }
        };
        Ok(Pooling { operator, plan, inputs, results: Vec::new() })
    }

    /// The indices of the extrema of `x`.
    fn winners(&self, extremum: Extremum, layout: Layout, x: &Tensor) -> Result<Tensor, Failure> {
        let (window, base) = (self.sliding.window()?, self.index_base());
        let (max, min) = (MaxPool::with_window(window), MinPool::with_window(window));
        let (_, winners) = match extremum {
            Extremum::Max => max.layout(layout).index_base(base).forward_with_indices(x)?,
            Extremum::Min => min.layout(layout).index_base(base).forward_with_indices(x)?,
        };
        Ok(winners)
    }
}

impl Pooling {
    /// The reference's results for these planes.
    fn expected<T: Comparable>(
        &self,
        fields: &Fields,
        planes: &Planes,
        case: &Case,
    ) -> Result<Expected<T>, Failure> {
        let (n, c) = (planes.samples.len(), planes.channels.len());
        let sliding = Sliding { n, c, ..fields.sliding.clone() };
        let some = Fields { sliding, ..fields.clone() };
        let (_, plan) = some.plan(case, &Device::host(), Forced::default())?;
        // Only some planes are computed, so indices are compared as positions in their planes.
        let (pooling, base) = (plan.pooling(), IndexBase::Plane);
        let x = planes.cut::<T>(&self.inputs[0], case)?;
        Ok(match self.operator {
            Operator::Extremum(which) => {
                Expected::Same(extremum(which, Reference::Direct, pooling, &x))
            }
            Operator::ExtremumWithIndices(which) => {
                let (values, indices) =
                    extremum_with_indices(which, Reference::Direct, pooling, base, &x);
                Expected::Indexed(values, indices)
            }
            Operator::ExtremumGradient(_) => {
                let winners = self.positions(&self.inputs[1], fields, planes, case)?;
                let totals = backward::max_backward_totals(pooling, base, &x, &winners);
                Expected::Sums(totals.map_err(Error::from)?)
            }
            Operator::Average(divisor) if !T::DTYPE.is_float() => {
                Expected::Same(direct::average(pooling, divisor, &x))
            }
            Operator::Average(divisor) => {
                Expected::Sums(direct::average_totals(pooling, divisor, &x))
            }
            Operator::AverageGradient(divisor) => {
                Expected::Sums(backward::average_backward_totals(pooling, divisor, &x))
            }
            Operator::Norm => {
                Expected::Sums(lp::norm_totals(pooling, Exponent::new(fields.exponent()), &x))
            }
            Operator::NormGradient => {
                let (dy, x) = (x, planes.cut::<T>(&self.inputs[1], case)?);
                let p = Exponent::new(fields.exponent());
                Expected::Sums(lp::norm_backward_totals(pooling, p, &dy, &x))
            }
            Operator::Rank(wanted) => Expected::Same(rank::rank(pooling, wanted, &x)),
            Operator::Mode => Expected::Same(mode::mode(pooling, &x)),
            Operator::Unpool | Operator::UnpoolGradient => {
                let winners = self.positions(&self.inputs[1], fields, planes, case)?;
                let moved = match self.operator {
                    Operator::Unpool => unpool::max_unpool(pooling, base, &x, &winners),
                    _ => unpool::max_unpool_backward(pooling, base, &x, &winners),
                };
                Expected::Same(moved.map_err(Error::from)?)
            }
        })
    }

    /// Compares the last launch's results with the reference's.
    fn compare<T: Comparable>(
        &self,
        expected: &Expected<T>,
        fields: &Fields,
        planes: &Planes,
        case: &Case,
    ) -> Result<Comparison, Failure> {
        let found = planes.cut::<T>(&self.results[0], case)?;
        Ok(match expected {
            Expected::Same(values) => Comparison::of_same(&found, values),
            Expected::Sums(totals) => Comparison::of_sums(&found, totals),
            Expected::Indexed(values, indices) => {
                let positions = self.positions(&self.results[1], fields, planes, case)?;
                Comparison::of_same(&found, values)
                    .and(Comparison::of_same(&positions, indices).named("the indices: "))
            }
        })
    }

    /// The positions of these planes' winners, from the start of their planes; -1 for none.
    fn positions(
        &self,
        winners: &Tensor,
        fields: &Fields,
        planes: &Planes,
        case: &Case,
    ) -> Result<Vec<i32>, Failure> {
        let (pooling, layout) = (self.plan.pooling(), case.layout()?);
        let strides = pooling.index_strides(fields.index_base());
        let step = strides.space[2] as i64;
        let samples: Vec<usize> = planes.samples.positions().collect();
        let (plane, channels) = (pooling.output().plane(), planes.channels.len());
        let position = |(i, index): (usize, i32)| {
            let (sample, channel) = match layout {
                Layout::ChannelsLast => (i / (plane * channels), i % channels),
                Layout::ChannelsFirst => (i / (plane * channels), i / plane % channels),
            };
            let first = strides.offset(samples[sample], planes.channels[channel], [0; 3]) as i64;
            let offset = i64::from(index) - first;
            match index {
                -1 => -1,
                // No position, which is wrong wherever it is.
                _ if offset < 0 || offset % step != 0 => i32::MIN,
                _ => i32::try_from(offset / step).unwrap_or(i32::MIN),
            }
        };
        let winners = planes.cut::<i32>(winners, case)?;
        Ok(winners.into_iter().enumerate().map(position).collect())
    }

    /// Makes the next launch write into poisoned memory.
    fn poison<T: Comparable>(&mut self, case: &Case) -> Result<(), Failure> {
        let (pooling, layout) = (self.plan.pooling(), case.layout()?);
        let dims: Vec<usize> = match self.operator {
            Operator::ExtremumGradient(_)
            | Operator::AverageGradient(_)
            | Operator::NormGradient
            | Operator::Unpool => pooling.input().dims(layout).collect(),
            _ => pooling.output().dims(layout).collect(),
        };
        let device = self.plan.device();
        let mut results = vec![poisoned::<T>(device, &dims)?];
        if matches!(self.operator, Operator::ExtremumWithIndices(_)) {
            results.push(poisoned::<i32>(device, &dims)?);
        }
        self.results = results;
        Ok(())
    }
}

impl Planes {
    /// These planes of a tensor.
    fn cut<T: Comparable>(&self, tensor: &Tensor, case: &Case) -> Result<Vec<T>, Failure> {
        planes(tensor, case.layout()?, self.samples, &self.channels)
    }
}

impl Work for Pooling {
    fn launch(&mut self) -> Result<()> {
        self.plan.run(&self.inputs.iter().collect::<Vec<_>>(), &mut self.results)
    }

    fn wait(&self) -> Result<()> {
        self.results.iter().try_for_each(Tensor::wait)
    }

    fn algorithm(&self) -> String {
        self.plan.algorithm().to_string()
    }

    fn bytes(&self) -> u64 {
        self.plan.bytes()
    }

    fn operations(&self) -> Option<u64> {
        None
    }

    fn arithmetic(&self) -> u64 {
        arithmetic(&self.plan)
    }
}

/// One operation per tap.
fn arithmetic(plan: &PoolPlan) -> u64 {
    let pooling = plan.pooling();
    pooling.output().elements() as u64 * pooling.grid().taps() as u64
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use windowpane::{DType, Window};

    use super::*;

    fn case(kind: &str, pass: &str) -> Case {
        serde_json::from_value(json!({
            "name": "x", "kind": kind, "pass": pass, "dtype": "f32", "layout": "nhwc",
            "n": 3, "c": 4, "size": [9, 9], "k": [3, 3], "s": [2, 2], "p": [1, 1], "d": [1, 1],
            "indices": true,
        }))
        .expect("a case")
    }

    /// Every kind with its passes: ranks and modes have no gradient.
    fn passes() -> impl Iterator<Item = (&'static str, &'static str)> {
        let both = KINDS.into_iter().flat_map(|kind| ["fwd", "bwd"].map(|pass| (kind, pass)));
        both.filter(|&sort| ![("rankpool", "bwd"), ("modepool", "bwd")].contains(&sort))
    }

    #[test]
    fn right_kernels_are_right() {
        for (kind, pass) in passes() {
            let checked = check(&case(kind, pass), &Device::host(), Forced::default(), u64::MAX)
                .expect("it runs");
            assert_eq!(checked.comparison.wrong, None, "{kind} {pass}");
            assert!((0.0..=1.0).contains(&checked.comparison.worst), "{kind} {pass}");
            assert_eq!((checked.samples, checked.of), (3, 3));
        }
        let checked =
            check(&case("avgpool", "fwd"), &Device::host(), Forced::default(), 2 * 100 * 9)
                .expect("it runs");
        assert_eq!((checked.samples, checked.outputs), (2, 2 * 100));
        let checked =
            check(&case("avgpool", "fwd"), &Device::host(), Forced::default(), 0).expect("it runs");
        // Already too small to be halved.
        assert_eq!((checked.samples, checked.size), (1, None));
    }

    #[test]
    fn large_samples_are_made_smaller() {
        let case = case("maxpool", "fwd");
        let whole: Fields = case.fields().expect("fields");
        let large = Fields { sliding: Sliding { size: vec![1000, 70], ..whole.sliding }, ..whole };
        let smaller = |most| {
            large.smaller(&case, &Device::host(), Forced::default(), most).expect("a plan").sliding
        };
        let all =
            arithmetic(&large.plan(&case, &Device::host(), Forced::default()).expect("a plan").1);
        assert_eq!((smaller(all).n, smaller(all).size), (3, vec![1000, 70]));
        assert_eq!((smaller(all / 6).n, smaller(all / 6).size), (1, vec![500, 70]));
        // The window of 3, and 32 steps of 2.
        assert_eq!(smaller(0).size, [67, 67]);
    }

    /// Kernels that are wrong in one corner only: a divisor that counts padding, and windows shifted by one
    /// column.
    #[test]
    fn wrong_kernels_are_found() {
        let host = Device::host();
        let wrong = |kind: &str, plan: PoolPlan| {
            let fields: Fields = case(kind, "fwd").fields().expect("fields");
            let numbers = |dims: &[usize], _| {
                let numbers: Vec<f32> = element::numbers(dims.iter().product()).collect();
                Tensor::from_slice(&host, &numbers, dims)
            };
            let mut pooling = fields
                .ready(&case(kind, "fwd"), &host, Forced::default(), numbers)
                .expect("it is ready");
            let right = std::mem::replace(&mut pooling.plan, plan);
            pooling.launch().expect("it runs");
            pooling.plan = right;
            let (case, planes) = (case(kind, "fwd"), Planes::of(&fields, u64::MAX, 1));
            let expected = pooling.expected::<f32>(&fields, &planes, &case).expect("it is pooled");
            pooling.compare(&expected, &fields, &planes, &case).expect("it is compared").wrong
        };
        let (dims, window) = ([3, 9, 9, 4], Window::new([3, 3]).stride([2, 2]));
        let average = AvgPool::with_window(window.padding([1, 1])).divisor(Divisor::Padded);
        let average = average.plan(&host, DType::F32, &dims).expect("a plan");
        let found = wrong("avgpool", average).expect("a divisor that counts padding is wrong");
        assert!(found.contains("element 0 is"), "{found}");
        let max = MaxPool::with_window(window.padding([(1, 1), (0, 2)]));
        let max = max.plan_with_indices(&host, DType::F32, &dims).expect("a plan");
        assert!(wrong("maxpool", max).is_some(), "a window that is a column off is wrong");
    }

    /// A large case is launched whole, and some of its planes are compared.
    #[test]
    fn planes_of_whole_cases_are_compared() {
        let host = Device::host();
        for (kind, pass) in passes() {
            let case = case(kind, pass);
            let mut held = held(&case, &host, Forced::default(), 2 * 25 * 9).expect("it is ready");
            let checked = held.run(Forced::default()).expect("it runs");
            assert_eq!(checked.comparison.wrong, None, "{kind} {pass}");
            let plane = if (pass == "fwd") != (kind == "maxunpool") { 25 } else { 81 };
            assert_eq!((checked.samples, checked.outputs), (1, 2 * plane), "{kind} {pass}");
            assert_eq!(checked.of_outputs, 3 * 4 * plane, "{kind} {pass}");
        }
    }

    /// Adaptive windows, padding that keeps the extents, and unequal padding, in every pass.
    #[test]
    fn windows_of_every_form_are_right() {
        let changes = [
            json!({"k": null, "s": null, "p": null, "d": null, "adaptive": [4, 11]}),
            json!({"p": null, "same": "upper"}),
            json!({"p": null, "same": "lower", "k": [4, 2]}),
            json!({"p": [[2, 0], 1]}),
        ];
        let shapes = [[4, 11], [5, 5], [5, 5], [5, 5]];
        for (kind, pass) in passes() {
            for (change, shape) in changes.iter().zip(shapes) {
                let mut case = case(kind, pass);
                for (field, value) in change.as_object().expect("fields") {
                    case.rest.insert(field.clone(), value.clone());
                }
                case.rest.retain(|_, value| !value.is_null());
                let checked = check(&case, &Device::host(), Forced::default(), u64::MAX);
                let checked = checked.expect("it runs");
                assert_eq!(checked.comparison.wrong, None, "{kind} {pass} {change}");
                let is_pooled = (pass == "fwd") != (kind == "maxunpool");
                let plane = if is_pooled { shape[0] * shape[1] } else { 81 };
                assert_eq!(checked.of_outputs, 3 * 4 * plane, "{kind} {pass} {change}");
            }
        }
    }

    /// Indices of every base, of whole cases of which some planes are compared.
    #[test]
    fn indices_of_every_base_are_right() {
        let kinds = ["maxpool", "minpool", "maxunpool"].into_iter();
        for (kind, pass) in kinds.flat_map(|kind| ["fwd", "bwd"].map(|pass| (kind, pass))) {
            for (base, layout) in [("tensor", "nhwc"), ("memory", "nhwc"), ("memory", "nchw")] {
                let mut case = Case { layout: layout.into(), ..case(kind, pass) };
                case.rest.insert("index_base".into(), json!(base));
                let host = Device::host();
                let mut held = held(&case, &host, Forced::default(), 2 * 25 * 9).expect("ready");
                let checked = held.run(Forced::default()).expect("it runs");
                assert_eq!(checked.comparison.wrong, None, "{kind} {pass} {base} {layout}");
                assert_eq!((checked.samples, checked.of), (1, 3));
            }
        }
    }

    /// Of two ways to give the same thing one is refused, and so is a kernel that does not compute it.
    #[test]
    fn contradictions_are_refused() {
        let refused = |field: &str, value: Value| {
            let mut case = case("maxunpool", "fwd");
            case.rest.insert(field.into(), value);
            let host = Device::host();
            check(&case, &host, Forced::default(), 1).map(drop).expect_err("a contradiction")
        };
        let adaptive = refused("adaptive", json!([3, 3])).to_string();
        assert!(adaptive.contains("`adaptive` and `k`; leave one"), "{adaptive}");
        let same = refused("same", json!("upper")).to_string();
        assert!(same.contains("`same` and `p`; leave one of the two out"), "{same}");
        for kind in ["rankpool", "modepool"] {
            let gradient = case(kind, "bwd");
            let refused = check(&gradient, &Device::host(), Forced::default(), 1).map(drop);
            assert!(refused.expect_err("a gradient").to_string().contains("fwd"), "{kind}");
        }
        let forced = Forced::pool(PoolAlgorithm::Sliding);
        assert!(check(&case("maxunpool", "bwd"), &Device::host(), forced, 1).is_err());
    }

    /// An unpooling that ignores where its maxima come from.
    #[test]
    fn wrong_unpoolings_are_found() {
        for pass in ["fwd", "bwd"] {
            let (host, case) = (Device::host(), case("maxunpool", pass));
            let fields: Fields = case.fields().expect("fields");
            let numbers = |dims: &[usize], seed| Tensor::random(&host, DType::F32, dims, seed);
            let mut pooling =
                fields.ready(&case, &host, Forced::default(), numbers).expect("it is ready");
            let planes = Planes::of(&fields, u64::MAX, 1);
            let expected = pooling.expected::<f32>(&fields, &planes, &case).expect("it is moved");
            let mut winners = pooling.inputs[1].to_vec::<i32>().expect("indices");
            winners.rotate_left(4);
            let dims = pooling.inputs[1].dims().to_vec();
            pooling.inputs[1] = Tensor::from_slice(&host, &winners, dims).expect("a tensor");
            pooling.launch().expect("it runs");
            let found =
                pooling.compare(&expected, &fields, &planes, &case).expect("it is compared").wrong;
            assert!(found.is_some(), "{pass}");
        }
    }

    /// An element that a kernel does not write is wrong.
    #[test]
    fn elements_that_are_left_out_are_wrong() {
        let host = Device::host();
        let case = case("maxpool", "fwd");
        let fields: Fields = case.fields().expect("fields");
        let numbers = |dims: &[usize], seed| Tensor::random(&host, DType::F32, dims, seed);
        let mut pooling =
            fields.ready(&case, &host, Forced::default(), numbers).expect("it is ready");
        let planes = Planes::of(&fields, u64::MAX, 1);
        let expected = pooling.expected::<f32>(&fields, &planes, &case).expect("it is pooled");
        pooling.poison::<f32>(&case).expect("memory");
        let found =
            pooling.compare(&expected, &fields, &planes, &case).expect("it is compared").wrong;
        assert!(found.is_some_and(|found| found.contains("element 0 is NaN")));
    }
}
