//! Padding in memory as a case: the kind `pad`.

use serde::Deserialize;
use windowpane::Scalar as _;
use windowpane::geometry::{Padded, Shape};
use windowpane::{DType, Device, Error, Pad, Padding, PaddingMode, Result, Tensor};
use windowpane_reference::{Total, pad as reference};

use super::case::Case;
use super::forced::PAD;
use super::sliding::{Sides, Sliding, Spread, padding, planes};
use super::{Checked, Forced, Held, Weight, Work};
use crate::element::{self, Comparable, Comparison, poisoned, with_element};
use crate::failure::Failure;
use crate::memory;

/// The fields of a padding.
#[derive(Clone, Deserialize)]
struct Fields {
    n: usize,
    c: usize,
    size: Vec<usize>,
    p: Vec<Sides>,
    #[serde(default)]
    padding_mode: Option<String>,
}

/// A padding with its input and its last result.
struct Filling {
    operator: Pad,
    padded: Padded,
    is_gradient: bool,
    input: Tensor,
    result: Option<Tensor>,
}

pub(super) fn ready(
    case: &Case,
    device: &Device,
    forced: Forced,
) -> Result<Box<dyn Work>, Failure> {
    let (fields, dtype) = (case.fields::<Fields>()?, case.dtype()?);
    let fill = |dims: &[usize]| Tensor::random(device, dtype, dims, 1);
    Ok(Box::new(fields.ready(case, forced, fill)?))
}

/// Checks the case, and the part of it that [`check`] would run.
pub(super) fn plan(case: &Case, elements: u64) -> Result<(), Failure> {
    case.fields::<Fields>()?.smaller(case, elements).map(drop)
}

/// Runs as many samples of the case as have at most this many elements, and compares all results with the reference.
pub(super) fn check(
    case: &Case,
    device: &Device,
    forced: Forced,
    elements: u64,
) -> Result<Checked, Failure> {
    let part = case.fields::<Fields>()?.smaller(case, elements)?;
    let (samples, channels) = (Spread::new(part.n, part.n), (0..part.c).collect());
    held_to(case, device, forced, part, samples, channels)?.run(forced)
}

/// Prepares a case on the device. The reference computes as many of its planes as `elements` allows.
pub(super) fn held<'a>(
    case: &'a Case,
    device: &'a Device,
    forced: Forced,
    elements: u64,
) -> Result<Box<dyn Held + 'a>, Failure> {
    let fields = case.fields::<Fields>()?;
    let plane = weigh(case)?.slice.max(1);
    let planes = usize::try_from(elements / plane).unwrap_or(usize::MAX).max(1);
    let channels: Vec<usize> = Spread::new(fields.c, planes.min(16)).positions().collect();
    let samples = Spread::new(fields.n, (planes / channels.len().max(1)).max(1));
    held_to(case, device, forced, fields, samples, channels)
}

fn held_to<'a>(
    case: &'a Case,
    device: &'a Device,
    forced: Forced,
    fields: Fields,
    samples: Spread,
    channels: Vec<usize>,
) -> Result<Box<dyn Held + 'a>, Failure> {
    with_element!(case.dtype()?, T => {
        let filling = fields.ready(case, forced, |dims| {
            let numbers: Vec<T> = element::numbers(dims.iter().product()).collect();
            Tensor::from_slice(device, &numbers, dims)
        })?;
        let part = Fields { n: samples.len(), c: channels.len(), ..fields.clone() };
        let padded = part.padded(case)?;
        let some = planes::<T>(&filling.input, case.layout()?, samples, &channels)?;
        let expected = match filling.is_gradient {
            true => Expected::Sums(reference::pad_gradient_totals(&padded, &some)),
            false => Expected::Same(reference::pad(&padded, T::ZERO, &some)),
        };
        Ok(Box::new(Verified { case, device, fields, samples, channels, filling, expected }))
    })
}

/// The memory and the work of a case: each element of the larger tensor is moved or added once.
pub(super) fn weigh(case: &Case) -> Result<Weight, Failure> {
    let fields = case.fields::<Fields>()?;
    let padded = fields.padded(case)?;
    let (output, plane) = (padded.output().elements() as u64, padded.output().plane() as u64);
    Ok(Weight { bytes: bytes(&padded, case.dtype()?.size()), slice: plane, work: output })
}

/// The only kernel, if the device does not refuse the case.
pub(super) fn kernels(case: &Case, device: &Device) -> Result<Vec<&'static str>, Failure> {
    let (fields, dtype) = (case.fields::<Fields>()?, case.dtype()?);
    let padded = fields.padded(case)?;
    // Software drivers end loops early; the gradient is refused there when it is computed.
    let copies: usize = padded.most_copies().iter().map(|copies| copies + 2).product();
    let has = |dtype: DType| dtype.is_float() && !(device.is_emulated() && copies > 1 << 14);
    match device.supports(dtype) && (!is_gradient(case)? || has(dtype)) {
        true => Ok(vec![PAD]),
        false => Err(Failure::Failed(format!("{device} has no kernel for this case in {dtype}"))),
    }
}

fn is_gradient(case: &Case) -> Result<bool, Failure> {
    match &*case.pass {
        "fwd" => Ok(false),
        "bwd" => Ok(true),
        _ => Err(case.unknown_pass("fwd, bwd")),
    }
}

fn bytes(padded: &Padded, size: usize) -> u64 {
    let elements = padded.input().elements() as u64;
    elements.saturating_add(padded.output().elements() as u64).saturating_mul(size as u64)
}

impl Fields {
    fn padding(&self) -> Result<Padding, Failure> {
        padding(&self.p)
    }

    /// Only valid names pass the check of a case's fields.
    fn mode(&self) -> PaddingMode {
        self.padding_mode.as_deref().and_then(|name| name.parse().ok()).unwrap_or_default()
    }

    fn padded(&self, case: &Case) -> Result<Padded, Failure> {
        let (layout, padding) = (case.layout()?, self.padding()?);
        let dims = Sliding::dims_of(self.n, self.c, &self.size, layout);
        let padded = Shape::from_dims(&dims, layout)
            .and_then(|input| Padded::new(input, padding, self.mode(), layout));
        Ok(padded.map_err(Error::from)?)
    }

    /// The first samples, with at most this many elements together, at least one.
    fn smaller(&self, case: &Case, most: u64) -> Result<Self, Failure> {
        is_gradient(case)?;
        let each = (self.padded(case)?.output().elements() / self.n.max(1)).max(1) as u64;
        let samples = usize::try_from(most / each).unwrap_or(usize::MAX).max(1);
        Ok(Self { n: self.n.min(samples), ..self.clone() })
    }

    fn ready(
        &self,
        case: &Case,
        forced: Forced,
        fill: impl Fn(&[usize]) -> Result<Tensor>,
    ) -> Result<Filling, Failure> {
        forced.of_padding()?;
        let (layout, padded) = (case.layout()?, self.padded(case)?);
        for elements in [padded.input().elements(), padded.output().elements()] {
            memory::check_results(elements, case.dtype()?)?;
        }
        let is_gradient = is_gradient(case)?;
        let from = if is_gradient { padded.output() } else { padded.input() };
        let input = fill(&from.dims(layout).collect::<Vec<_>>())?;
        let operator = Pad::new(self.padding()?).mode(self.mode()).layout(layout);
        Ok(Filling { operator, padded, is_gradient, input, result: None })
    }
}

/// The reference's results.
enum Expected<T> {
    Same(Vec<T>),
    Sums(Vec<Total>),
}

/// A padding with its input and the reference's results.
struct Verified<'a, T> {
    case: &'a Case,
    device: &'a Device,
    fields: Fields,
    samples: Spread,
    channels: Vec<usize>,
    filling: Filling,
    expected: Expected<T>,
}

impl<T: Comparable> Held for Verified<'_, T> {
    fn run(&mut self, forced: Forced) -> Result<Checked, Failure> {
        forced.of_padding()?;
        let Self { case, device, fields, samples, channels, filling, expected } = self;
        // Freed before the launch, which is likely to find this memory.
        filling.result = Some(poisoned::<T>(device, &filling.result_dims())?);
        filling.launch()?;
        let result = filling.result.as_ref().expect("it was launched");
        let found = planes::<T>(result, case.layout()?, *samples, channels)?;
        Ok(Checked {
            algorithm: PAD.into(),
            samples: samples.len(),
            of: case.fields::<Fields>()?.n.max(fields.n),
            size: None,
            outputs: found.len(),
            of_outputs: result.len(),
            comparison: match expected {
                Expected::Same(values) => Comparison::of_same(&found, values),
                Expected::Sums(totals) => Comparison::of_sums(&found, totals),
            },
        })
    }
}

impl Filling {
    fn result_dims(&self) -> Vec<usize> {
        let Self { padded, is_gradient, .. } = self;
        let to = if *is_gradient { padded.input() } else { padded.output() };
        to.dims(padded.layout()).collect()
    }
}

impl Work for Filling {
    fn launch(&mut self) -> Result<()> {
        self.result = None;
        self.result = Some(match self.is_gradient {
            true => self.operator.backward(&self.input, &self.result_dims())?,
            false => self.operator.forward(&self.input)?,
        });
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        self.result.as_ref().map_or(Ok(()), Tensor::wait)
    }

    fn algorithm(&self) -> String {
        PAD.into()
    }

    fn bytes(&self) -> u64 {
        bytes(&self.padded, self.input.dtype().size())
    }

    fn operations(&self) -> Option<u64> {
        None
    }

    fn arithmetic(&self) -> u64 {
        self.padded.output().elements() as u64
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn case(pass: &str, dtype: &str, change: Value) -> Case {
        let mut line = json!({
            "name": "x", "kind": "pad", "pass": pass, "dtype": dtype, "layout": "nhwc",
            "n": 3, "c": 5, "size": [6, 4], "p": [[2, 1], 3],
        });
        for (field, value) in change.as_object().expect("fields") {
            line[field] = value.clone();
        }
        serde_json::from_value(line).expect("a case")
    }

    /// In whole and in part, in every mode and layout.
    #[test]
    fn right_paddings_are_right() {
        let (host, free) = (Device::host(), Forced::default());
        for mode in PaddingMode::ALL.map(PaddingMode::name) {
            for (pass, dtype, layout) in [
                ("fwd", "u8", "nhwc"),
                ("fwd", "f32", "nchw"),
                ("bwd", "f16", "nhwc"),
                ("bwd", "f32", "nchw"),
            ] {
                let case = case(pass, dtype, json!({"padding_mode": mode, "layout": layout}));
                let plane = if pass == "fwd" { 9 * 10 } else { 6 * 4 };
                let whole = check(&case, &host, free, u64::MAX).expect("it runs");
                assert_eq!((whole.outputs, whole.of_outputs), (15 * plane, 15 * plane));
                let one = check(&case, &host, free, 0).expect("it runs");
                assert_eq!((one.samples, one.of, one.outputs), (1, 3, 5 * plane));
                let some = held(&case, &host, free, 4 * 90).expect("it is ready").run(free);
                let some = some.expect("it runs");
                assert_eq!((some.outputs, some.of_outputs), (4 * plane, 15 * plane));
                for checked in [whole, one, some] {
                    assert_eq!(checked.comparison.wrong, None, "{mode} {pass} {dtype} {layout}");
                }
            }
        }
    }

    /// The padding of another mode, and one that is off by a column.
    #[test]
    fn wrong_paddings_are_found() {
        let host = Device::host();
        for pass in ["fwd", "bwd"] {
            for wrong in [json!({"padding_mode": "circular"}), json!({"p": [[2, 1], [2, 4]]})] {
                let right = case(pass, "f32", json!({"padding_mode": "reflect"}));
                let mut mended = json!({"padding_mode": "reflect"});
                mended
                    .as_object_mut()
                    .expect("fields")
                    .extend(wrong.as_object().expect("fields").clone());
                let other = case(pass, "f32", mended);
                let filled = |case: &Case| {
                    let fields: Fields = case.fields().expect("fields");
                    let numbers = |dims: &[usize]| Tensor::random(&host, DType::F32, dims, 1);
                    let mut filling =
                        fields.ready(case, Forced::default(), numbers).expect("it is ready");
                    filling.launch().expect("it runs");
                    filling.result.expect("a result").to_vec::<f32>().expect("numbers")
                };
                assert!(Comparison::of_same(&filled(&other), &filled(&right)).wrong.is_some());
            }
        }
    }

    #[test]
    fn paddings_have_one_kernel() {
        let host = Device::host();
        assert_eq!(kernels(&case("fwd", "u8", json!({})), &host).ok(), Some(vec![PAD]));
        assert!(kernels(&case("bwd", "u8", json!({})), &host).is_err());
        assert!(kernels(&case("data", "f32", json!({})), &host).is_err());
        let simt = super::super::forced::algorithm("simt").expect("a name").0;
        let forced = Forced { algorithm: simt, tile: None };
        let refused = check(&case("fwd", "f32", json!({})), &host, forced, 1).map(drop);
        assert!(
            refused.is_err_and(|error| error.to_string().contains("no padding algorithm `simt`"))
        );
    }
}
