//! Pooling as a case: the kinds `maxpool` and `avgpool`.

use serde::Deserialize;
use windowpane::{AvgPool, Device, Divisor, IndexBase, MaxPool, Plan, Result, Tensor};
use windowpane_reference::Total;
use windowpane_reference::pool::{backward, direct};

use super::case::Case;
use super::sliding::Sliding;
use super::{Checked, Forced, Work};
use crate::element::{self, Comparable, Comparison, with_element};
use crate::failure::Failure;
use crate::memory;

/// The fields of a pooling.
#[derive(Clone, Deserialize)]
struct Fields {
    #[serde(flatten)]
    sliding: Sliding,
    #[serde(default)]
    indices: bool,
}

/// What a pooling computes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Max,
    MaxWithIndices,
    MaxGradient,
    Average,
    AverageGradient,
}

/// Average cases divide by the taps that are in the input.
const DIVISOR: Divisor = Divisor::Valid;

/// A pooling with what it reads and what it wrote last.
struct Pooling {
    operator: Operator,
    plan: Plan,
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

/// Runs the case on as much of it as makes at most so many taps, and compares all results with the
/// reference's.
pub(super) fn check(
    case: &Case,
    device: &Device,
    forced: Forced,
    taps: u64,
) -> Result<Checked, Failure> {
    let (whole, dtype) = (case.fields::<Fields>()?, case.dtype()?);
    let fields = whole.smaller(case, device, forced, taps)?;
    let (_, plan) = fields.plan(case, device, forced)?;
    memory::check_pooling(plan.pooling(), 2 * dtype.size() + size_of::<Total>())?;
    let size = (fields.sliding.size != whole.sliding.size).then(|| fields.sliding.size.clone());
    with_element!(dtype, T => {
        let mut pooling = fields.ready(case, device, forced, |dims, seed| {
            let len = dims.iter().product::<usize>() + seed as usize;
            // Another seed is another place in the same numbers.
            let numbers: Vec<T> = element::numbers(len).skip(seed as usize).collect();
            Tensor::from_slice(device, &numbers, dims)
        })?;
        pooling.launch()?;
        let comparison = pooling.compare::<T>()?;
        let outputs = pooling.results.first().map_or(0, Tensor::len);
        Ok(Checked {
            algorithm: pooling.algorithm(),
            samples: fields.sliding.n,
            of: whole.sliding.n,
            size,
            outputs,
            of_outputs: outputs,
            comparison,
        })
    })
}

impl Fields {
    /// What the case computes and how, without a launch.
    fn plan(
        &self,
        case: &Case,
        device: &Device,
        forced: Forced,
    ) -> Result<(Operator, Plan), Failure> {
        let (dtype, layout) = (case.dtype()?, case.layout()?);
        let algorithm = forced.of_pooling()?;
        let (window, dims) = (self.sliding.window()?, self.sliding.dims(layout));
        let max = MaxPool::over(window).layout(layout).algorithm(algorithm);
        let average = AvgPool::over(window).layout(layout).divisor(DIVISOR).algorithm(algorithm);
        Ok(match (&*case.kind, &*case.pass) {
            ("maxpool", "fwd") if self.indices => {
                (Operator::MaxWithIndices, max.plan_with_indices(device, dtype, &dims)?)
            }
            ("maxpool", "fwd") => (Operator::Max, max.plan(device, dtype, &dims)?),
            ("maxpool", "bwd") => (Operator::MaxGradient, max.plan_backward(device, dtype, &dims)?),
            ("avgpool", "fwd") => (Operator::Average, average.plan(device, dtype, &dims)?),
            ("avgpool", "bwd") => {
                (Operator::AverageGradient, average.plan_backward(device, dtype, &dims)?)
            }
            _ => return Err(case.unknown_pass("fwd, bwd")),
        })
    }

    /// As much of the case as has at most so many taps: fewer samples, and where one has more,
    /// smaller ones, in which every window still meets all edges. Kernels are the same for all
    /// batches and extents.
    fn smaller(
        &self,
        case: &Case,
        device: &Device,
        forced: Forced,
        most: u64,
    ) -> Result<Self, Failure> {
        let mut fields = self.clone();
        // What the whole case is asked for is refused for what it is.
        let all = arithmetic(&self.plan(case, device, forced)?.1);
        let each = (all / self.sliding.n.max(1) as u64).max(1);
        fields.sliding.n =
            self.sliding.n.min(usize::try_from(most / each).unwrap_or(self.sliding.n).max(1));
        while arithmetic(&fields.plan(case, device, forced)?.1) > most && fields.sliding.halve() {}
        Ok(fields)
    }

    /// Makes everything that a launch reads: `fill` makes a tensor of these dimensions.
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
            Operator::Max | Operator::MaxWithIndices | Operator::Average => {
                vec![fill(&self.sliding.dims(layout), 1)?]
            }
            Operator::MaxGradient => {
                let pool = MaxPool::over(self.sliding.window()?).layout(layout);
                let (_, winners) =
                    pool.forward_with_indices(&fill(&self.sliding.dims(layout), 1)?)?;
                vec![fill(&output, 2)?, winners]
            }
            Operator::AverageGradient => vec![fill(&output, 2)?],
        };
        Ok(Pooling { operator, plan, inputs, results: Vec::new() })
    }
}

impl Pooling {
    /// Holds the results of the last launch to the reference.
    fn compare<T: Comparable>(&self) -> Result<Comparison, Failure> {
        let (pooling, base) = (self.plan.pooling(), IndexBase::default());
        let x = self.inputs[0].to_vec::<T>()?;
        let found = self.results[0].to_vec::<T>()?;
        Ok(match self.operator {
            Operator::Max => Comparison::of_same(&found, &direct::max(pooling, &x)),
            Operator::MaxWithIndices => {
                let (values, indices) = direct::max_with_indices(pooling, base, &x);
                let positions = self.results[1].to_vec::<i32>()?;
                Comparison::of_same(&found, &values)
                    .and(Comparison::of_same(&positions, &indices).named("the indices: "))
            }
            Operator::MaxGradient => {
                let winners = self.inputs[1].to_vec::<i32>()?;
                let totals = backward::max_backward_totals(pooling, base, &x, &winners);
                Comparison::of_sums(&found, &totals.map_err(windowpane::Error::from)?)
            }
            Operator::Average => {
                Comparison::of_sums(&found, &direct::average_totals(pooling, DIVISOR, &x))
            }
            Operator::AverageGradient => {
                let totals = backward::average_backward_totals(pooling, DIVISOR, &x);
                Comparison::of_sums(&found, &totals)
            }
        })
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

/// One operation a tap.
fn arithmetic(plan: &Plan) -> u64 {
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

    #[test]
    fn right_kernels_are_right() {
        for (kind, pass) in
            [("maxpool", "fwd"), ("maxpool", "bwd"), ("avgpool", "fwd"), ("avgpool", "bwd")]
        {
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
        // As small already as it is halved to.
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
        // The window of three, and 32 steps of two.
        assert_eq!(smaller(0).size, [67, 67]);
    }

    /// Kernels that are wrong in one corner only: a divisor that counts padding, and a maximum of
    /// windows that are a column off.
    #[test]
    fn wrong_kernels_are_found() {
        let host = Device::host();
        let wrong = |kind: &str, plan: Plan| {
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
            pooling.compare::<f32>().expect("it is compared").wrong
        };
        let (dims, window) = ([3, 9, 9, 4], Window::new([3, 3]).stride([2, 2]));
        let average = AvgPool::over(window.padding([1, 1])).divisor(Divisor::Padded);
        let average = average.plan(&host, DType::F32, &dims).expect("a plan");
        let found = wrong("avgpool", average).expect("a divisor that counts padding is wrong");
        assert!(found.contains("element 0 is"), "{found}");
        let max = MaxPool::over(window.padding([(1, 1), (0, 2)]));
        let max = max.plan_with_indices(&host, DType::F32, &dims).expect("a plan");
        assert!(wrong("maxpool", max).is_some(), "a window that is a column off is wrong");
    }
}
