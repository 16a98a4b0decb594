//! The peaks of a device, measured in the run by the stopwatch that times the cases.

use serde_json::json;
use windowpane::{ArithmeticUnit, Backend, DType, Device, Precision, Result, Tensor};

use super::Work;
use super::case::Case;
use super::forced::Forced;
use super::measure::Stopwatch;
use super::row::{Against, Ceiling};
use crate::failure::Failure;

/// The bytes that the copies read and write, from sizes that fit in caches to sizes that do not.
const COPIES: [u64; 4] = [1 << 20, 8 << 20, 64 << 20, 256 << 20];

/// The size for devices that copy the largest of those too quickly to time.
const LARGEST: u64 = 1 << 30;
const LASTING: f64 = 5e-3;

/// The measured peaks of a device.
pub(super) struct Ceilings {
    lines: Vec<Ceiling>,
    /// Bytes and bytes per second, smallest size first.
    copies: Vec<(u64, f64)>,
    /// Types and operations per second, on the faster kind of unit.
    arithmetic: Vec<(String, f64)>,
}

impl Ceilings {
    /// Measures copies of several sizes, and the arithmetic in the types of the cases.
    pub(super) fn measure(
        stopwatch: &mut Stopwatch,
        cases: &[Case],
        mut progress: impl FnMut(String),
    ) -> std::result::Result<Self, Failure> {
        let device = stopwatch.device().clone();
        progress(format!("measuring the bandwidth of {device}"));
        let copies = match device.backend() {
            // All cores copy together; a tensor would not use them all.
            Backend::Host => vec![(LARGEST, device.peak_copy_bandwidth()?)],
            _ => copies(stopwatch)?,
        };
        let mut lines: Vec<_> =
            copies.iter().map(|(bytes, per_s)| Ceiling::copy(&device, *bytes, *per_s)).collect();
        // The largest first: cases are compared with it.
        lines.reverse();
        let mut arithmetic: Vec<(String, f64)> = Vec::new();
        for factors in factors(cases).into_iter().filter(|_| device.backend() != Backend::Host) {
            progress(format!("measuring the {} arithmetic of {device}", factors.name));
            for line in arithmetic_lines(stopwatch, &factors) {
                if let Some(tflops) = line.tflops {
                    arithmetic.push((factors.name.into(), tflops * 1e12));
                }
                lines.push(line);
            }
        }
        let cache = stopwatch.is_cold().then(|| "cold".to_owned());
        lines.iter_mut().for_each(|line| line.cache.clone_from(&cache));
        Ok(Self { lines, copies, arithmetic })
    }

    /// The output lines, with the largest copy first.
    pub(super) fn lines(&self) -> impl Iterator<Item = &Ceiling> {
        self.lines.iter()
    }

    /// The peaks for a case that computes in this type and moves this many bytes.
    pub(super) fn against(&self, factors: &str, bytes: u64) -> Against {
        let own = self.arithmetic.iter().filter(|(name, _)| name == factors);
        Against {
            copy: self.copies.last().map_or(f64::NAN, |(_, per_s)| *per_s),
            sized: (self.copies.len() > 1).then(|| between(&self.copies, bytes)),
            arithmetic: own.map(|(_, per_s)| *per_s).reduce(f64::max),
        }
    }
}

/// The speeds of copies, the smallest first.
fn copies(stopwatch: &mut Stopwatch) -> std::result::Result<Vec<(u64, f64)>, Failure> {
    let mut copies: Vec<(u64, f64)> = Vec::new();
    for bytes in COPIES.into_iter().chain([LARGEST]) {
        let lasted = copies.last().map_or(0.0, |(bytes, per_s)| *bytes as f64 / per_s);
        if bytes == LARGEST && lasted > LASTING {
            break;
        }
        let copy = Copy::new(stopwatch.device(), bytes);
        match (copy, copies.is_empty()) {
            (Ok(mut copy), _) => {
                // The fastest window, because a peak only has to be reached once.
                let measured = stopwatch.measure(&mut copy)?;
                copies.push((bytes, bytes as f64 / measured.fastest));
            }
            (Err(error), true) => return Err(error.into()),
            // The device does not support a buffer this large.
            (Err(_), false) => break,
        }
    }
    Ok(copies)
}

/// The type of products: an element type, or `f32` rounded to tf32.
struct Factors {
    name: &'static str,
    dtype: DType,
    precision: Precision,
}

/// The size of the matrix product that measures matrix units.
const PRODUCT: usize = 8192;

/// The peaks of a device's vector units and matrix units. For matrix units the larger of a loop on registers
/// and a large matrix product counts, because some units cannot be used from such a loop.
fn arithmetic_lines(stopwatch: &mut Stopwatch, factors: &Factors) -> Vec<Ceiling> {
    let device = stopwatch.device().clone();
    let Factors { name, dtype, precision } = *factors;
    let measured = |unit, word| match device.peak_arithmetic(dtype, unit) {
        Ok(per_s) => (per_s, None),
        Err(error) => (None, Some(Ceiling::failed(&device, word, name, error.to_string()))),
    };
    let ((vector, no_vector), (matrix, no_matrix)) = match precision {
        Precision::Tf32 => ((None, None), measured(ArithmeticUnit::MatrixTf32, "matrix")),
        _ => {
            (measured(ArithmeticUnit::Vector, "vector"), measured(ArithmeticUnit::Matrix, "matrix"))
        }
    };
    // Strict f32 products may be split into several tf32 products.
    let in_parts =
        || dtype == DType::F32 && measured(ArithmeticUnit::MatrixTf32, "matrix").0.is_some();
    let product = match matrix.is_some() || in_parts() {
        true => product(stopwatch, factors).filter(|product| vector.is_none_or(|v| *product > v)),
        false => None,
    };
    let matrix = matrix.into_iter().chain(product).reduce(f64::max);
    let line = |word, per_s| Ceiling::arithmetic(&device, word, name, per_s);
    let vector = vector.map(|per_s| line("vector", per_s)).or(no_vector);
    let matrix = matrix.map(|per_s| line("matrix", per_s)).or(no_matrix);
    vector.into_iter().chain(matrix).collect()
}

/// The operations per second of a large matrix product, computed as a 1×1 convolution; `None` if it does not
/// fit on the device.
fn product(stopwatch: &mut Stopwatch, factors: &Factors) -> Option<f64> {
    let case = json!({
        "name": "product", "kind": "conv", "pass": "fwd", "layout": "nhwc",
        "dtype": factors.dtype.name(), "precision": factors.precision.to_string(),
        "n": 1, "c": PRODUCT, "size": [PRODUCT], "cout": PRODUCT,
        "k": [1], "s": [1], "p": [0], "d": [1],
    });
    let case: Case = serde_json::from_value(case).ok()?;
    let mut work = super::ready(&case, stopwatch.device(), Forced::default()).ok()?;
    let measured = stopwatch.measure(&mut *work).ok()?;
    measured.operations.map(|operations| operations as f64 / measured.fastest)
}

/// The types of the cases' products.
fn factors(cases: &[Case]) -> Vec<Factors> {
    let mut all: Vec<Factors> = Vec::new();
    for case in cases {
        let Ok(dtype) = case.dtype() else { continue };
        let factors = match case.precision() {
            Ok(precision @ Precision::Tf32) if dtype == DType::F32 => {
                Factors { name: "tf32", dtype, precision }
            }
            _ => Factors { name: dtype.name(), dtype, precision: Precision::Strict },
        };
        if dtype.is_float() && !all.iter().any(|known| known.name == factors.name) {
            all.push(factors);
        }
    }
    all
}

/// The bandwidth at a size: interpolated logarithmically between two sizes, or that of the nearest size.
fn between(copies: &[(u64, f64)], bytes: u64) -> f64 {
    let above = copies.iter().position(|(size, _)| *size >= bytes);
    match above {
        None => copies.last().map_or(f64::NAN, |(_, per_s)| *per_s),
        Some(0) => copies[0].1,
        Some(i) => {
            let ((small, slow), (large, fast)) = (copies[i - 1], copies[i]);
            let place = (bytes as f64 / small as f64).ln() / (large as f64 / small as f64).ln();
            slow + (fast - slow) * place
        }
    }
}

/// A copy as a case.
struct Copy {
    source: Tensor,
    target: Tensor,
}

impl Copy {
    fn new(device: &Device, bytes: u64) -> Result<Self> {
        let elements = bytes as usize / 2 / DType::F32.size();
        let random = |seed| Tensor::random(device, DType::F32, [elements], seed);
        let copy = Self { source: random(1)?, target: random(2)? };
        copy.source.wait()?;
        copy.target.wait()?;
        Ok(copy)
    }
}

impl Work for Copy {
    fn launch(&mut self) -> Result<()> {
        self.target.copy_from(&self.source)
    }

    fn wait(&self) -> Result<()> {
        self.target.wait()
    }

    fn algorithm(&self) -> String {
        "copy".into()
    }

    fn bytes(&self) -> u64 {
        2 * (self.source.len() * DType::F32.size()) as u64
    }

    fn operations(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_lie_between_those_of_their_neighbours() {
        let copies = [(1 << 20, 10.0), (1 << 24, 50.0)];
        assert_eq!(between(&copies, 1 << 10), 10.0);
        assert_eq!(between(&copies, 1 << 20), 10.0);
        assert!((between(&copies, 1 << 22) - 30.0).abs() < 1e-9);
        assert_eq!(between(&copies, 1 << 30), 50.0);
    }

    /// A pooling is compared only with copies, a convolution also with arithmetic.
    #[test]
    fn cases_are_compared_with_their_own_type() {
        let arithmetic = vec![("f32".into(), 60e12), ("f16".into(), 120e12), ("f16".into(), 9e14)];
        let ceilings = Ceilings { lines: Vec::new(), copies: vec![(1 << 30, 4e12)], arithmetic };
        assert_eq!(ceilings.against("f32", 1 << 20).arithmetic, Some(60e12));
        assert_eq!(ceilings.against("f16", 1 << 20).arithmetic, Some(9e14));
        let none = ceilings.against("i32", 1 << 20);
        assert_eq!((none.copy, none.sized, none.arithmetic), (4e12, None, None));
    }
}
