use half::{bf16, f16};
use windowpane::{DType, Device, Element, Pooling, Result, Tensor};
use windowpane_reference::{Scalar, Total};

/// Runs a block with `$T` standing for the Rust type of a `DType`; the block is of the function's
/// own result type.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        windowpane_reference::with_element!($dtype, $T => $body, other => {
            Err($crate::failure::Failure::Failed(format!("{other} is not supported here; use another --dtype")))
        })
    };
}
pub(crate) use with_element;

/// A type whose results can be compared.
pub(crate) trait Comparable: Element {
    /// The smallest positive number; 0 for integers, which are not rounded.
    const SMALLEST: f64;
    /// The unit roundoff of the type that accumulates its sums.
    const ACCUMULATOR: f64 = f32::ROUNDOFF;
    /// The value of memory before results are written to it; results seldom equal it.
    const POISON: Self;
}

impl Comparable for f64 {
    const SMALLEST: f64 = f64::from_bits(1);
    const ACCUMULATOR: f64 = f64::ROUNDOFF;
    const POISON: Self = f64::NAN;
}

impl Comparable for f32 {
    const SMALLEST: f64 = f32::from_bits(1) as f64;
    const POISON: Self = f32::NAN;
}

impl Comparable for f16 {
    const SMALLEST: f64 = f16::from_bits(1).to_f64_const();
    const POISON: Self = f16::NAN;
}

impl Comparable for bf16 {
    const SMALLEST: f64 = bf16::from_bits(1).to_f64_const();
    const POISON: Self = bf16::NAN;
}

impl Comparable for i64 {
    const SMALLEST: f64 = 0.0;
    const POISON: Self = i64::MIN + 1;
}

impl Comparable for i32 {
    const SMALLEST: f64 = 0.0;
    const POISON: Self = i32::MIN + 1;
}

impl Comparable for u32 {
    const SMALLEST: f64 = 0.0;
    const POISON: Self = 1;
}

impl Comparable for i16 {
    const SMALLEST: f64 = 0.0;
    const POISON: Self = i16::MIN + 1;
}

impl Comparable for u16 {
    const SMALLEST: f64 = 0.0;
    const POISON: Self = 1;
}

impl Comparable for i8 {
    const SMALLEST: f64 = 0.0;
    const POISON: Self = i8::MIN + 1;
}

impl Comparable for u8 {
    const SMALLEST: f64 = 0.0;
    const POISON: Self = 1;
}

impl Comparable for bool {
    const SMALLEST: f64 = 0.0;
    const POISON: Self = true;
}

/// The result of a comparison with the reference.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Comparison {
    /// The worst error in units of its bound; 0 if all bits are identical.
    pub(crate) worst: f64,
    /// The first element that is wrong.
    pub(crate) wrong: Option<String>,
}

impl Comparison {
    /// Compares results that must be identical bit for bit.
    pub(crate) fn of_same<T: Comparable>(found: &[T], expected: &[T]) -> Self {
        Self { worst: 0.0, wrong: first_other(found, expected) }
    }

    /// Compares sums, which may differ by rounding.
    pub(crate) fn of_sums<T: Comparable>(found: &[T], expected: &[Total]) -> Self {
        let in_bounds = |(y, total): (&T, &Total)| {
            let off = (y.to_f64() - total.value).abs();
            // Equal infinities and NaN count as equal.
            if off > 0.0 && !overflows(y, total) { off / bound::<T>(total) } else { 0.0 }
        };
        let worst = found.iter().zip(expected).map(in_bounds).fold(0.0, f64::max);
        Self { worst, wrong: first_far(found, expected) }
    }

    /// Combines two comparisons: the larger error and the first wrong element.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { worst: self.worst.max(other.worst), wrong: self.wrong.or(other.wrong) }
    }

    /// Names the tensor that the elements belong to.
    pub(crate) fn named(self, whose: &str) -> Self {
        Self { wrong: self.wrong.map(|wrong| format!("{whose}{wrong}")), ..self }
    }
}

/// The largest difference from a sum that rounding can cause.
fn bound<T: Comparable>(total: &Total) -> f64 {
    // Rounding a subnormal number costs half of the smallest one.
    total.bound(T::ROUNDOFF, T::ACCUMULATOR) + T::SMALLEST / 2.0
}

/// Whether an element is the infinity of a sum that is too large for its type.
fn overflows<T: Comparable>(y: &T, total: &Total) -> bool {
    let largest = total.value + bound::<T>(total).copysign(total.value);
    y.to_f64().is_infinite() && T::from_f64(largest).to_f64() == y.to_f64()
}

/// The sum of sums that are each rounded to the type before they are added.
pub(crate) fn rounded_sum<T: Comparable>(sums: impl IntoIterator<Item = Total>) -> Total {
    Total::of_rounded(sums, T::ROUNDOFF, T::SMALLEST, T::ACCUMULATOR)
}

/// The first element that differs in its bits from the expected one; all NaN count as equal.
pub(crate) fn first_other<T: Comparable>(found: &[T], expected: &[T]) -> Option<String> {
    first_bad(found, expected, |y, e| {
        if y.to_integer() != e.to_integer() {
            return Some(format!("is {y:?}, not {e:?}"));
        }
        let (y, e) = (y.to_f64(), e.to_f64());
        let same = (y.is_nan() && e.is_nan()) || y.to_bits() == e.to_bits();
        (!same).then(|| format!("is {y}, not {e}"))
    })
}

/// The first element that differs from a sum by more than rounding allows.
pub(crate) fn first_far<T: Comparable>(found: &[T], expected: &[Total]) -> Option<String> {
    first_bad(found, expected, |element, total| {
        let (y, value) = (element.to_f64(), total.value);
        let bound = bound::<T>(total);
        let same = y == value || (y.is_nan() && value.is_nan());
        let close = y.is_finite() && value.is_finite() && (y - value).abs() <= bound;
        let right = same || close || overflows(element, total);
        (!right).then(|| format!("is {y:e}, not {value:e} within {bound:e}"))
    })
}

fn first_bad<Y, E>(
    found: &[Y],
    expected: &[E],
    why: impl Fn(&Y, &E) -> Option<String>,
) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("there are {} elements, not {}", found.len(), expected.len()));
    }
    let mut pairs = found.iter().zip(expected).enumerate();
    pairs.find_map(|(i, (y, e))| why(y, e).map(|why| format!("element {i} {why}")))
}

/// Reproducible test numbers: fractions around 0 with some outliers; for integers the whole range.
pub(crate) fn numbers<T: Element>(len: usize) -> impl Iterator<Item = T> {
    let mut state = 0u64;
    (0..len).map(move |_| {
        let bits = splitmix(&mut state);
        let unit = (bits >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        T::from_f64(match (T::DTYPE.is_float(), bits & 15) {
            (false, digits) if T::DTYPE == DType::Bool => (digits & 1) as f64,
            (false, _) => unit * 300.0,
            (true, 0) => unit * 1e3,
            (true, _) => unit,
        })
    })
}

/// A generator of 64 pseudo-random bits, not for cryptography.
pub(crate) fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A tensor of [`POISON`](Comparable::POISON): an element that a kernel does not write stays wrong.
pub(crate) fn poisoned<T: Comparable>(device: &Device, dims: &[usize]) -> Result<Tensor> {
    Tensor::from_slice(device, &vec![T::POISON; dims.iter().product()], dims)
}

/// The input of a problem, filled with [`numbers`].
pub(crate) fn input<T: Element>(device: &Device, pooling: &Pooling) -> Result<Tensor> {
    let elements: Vec<T> = numbers(pooling.input().elements()).collect();
    let dims: Vec<usize> = pooling.input().dims(pooling.layout()).collect();
    Tensor::from_slice(device, &elements, dims)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_repeat_and_vary() {
        let floats: Vec<f32> = numbers(1000).collect();
        assert_eq!(floats, numbers(1000).collect::<Vec<f32>>());
        assert!(floats.iter().any(|x| x.abs() > 10.0) && floats.iter().any(|x| *x < 0.0));
        assert!(numbers::<i8>(1000).any(|x| x == i8::MIN));
    }

    #[test]
    fn bad_elements_are_found() {
        let nan = f32::NAN;
        assert_eq!(first_other(&[1.0, -nan], &[1.0, nan]), None);
        assert!(first_other(&[0.0f32], &[-0.0]).is_some());
        assert!(first_other(&[1.0f32], &[1.0, 2.0]).is_some());
        let third = Total { value: 1.0 / 3.0, magnitude: 1.0 / 3.0, terms: 1 };
        assert_eq!(first_far(&[1.0f32 / 3.0], &[third]), None);
        assert!(first_far(&[0.3334f32], &[third]).is_some());
        assert!(first_far(&[f32::INFINITY], &[third]).is_some());
        assert!(first_far(&[nan], &[third]).is_some());
        // A sum that is too large for the type is its infinity, SEMANTICS 3.1.
        let large = Total { value: -1e5, magnitude: 1e5, terms: 3 };
        let infinity = half::f16::INFINITY;
        assert_eq!(first_far(&[-infinity], &[large]), None);
        assert_eq!(Comparison::of_sums(&[-infinity], &[large]).worst, 0.0);
        assert!(first_far(&[infinity], &[large]).is_some());
        assert!(first_far(&[half::f16::MIN], &[large]).is_some());
        let fits = Total { value: 6e4, magnitude: 6e4, terms: 3 };
        assert!(first_far(&[infinity], &[fits]).is_some());
    }

    #[test]
    fn errors_are_told_in_bounds() {
        let totals = [Total { value: 1.0, magnitude: 1.0, terms: 1 }; 2];
        let bound = 2.0 * f32::ROUNDOFF;
        let sums = |y: f32| Comparison::of_sums(&[1.0, y], &totals);
        assert_eq!(sums(1.0), Comparison { worst: 0.0, wrong: None });
        let near = sums(1.0 + f32::EPSILON);
        assert!((near.worst * bound / f64::from(f32::EPSILON) - 1.0).abs() < 1e-6, "{near:?}");
        let far = sums(1.01);
        assert!(far.worst > 1e4 && far.wrong.is_some(), "{far:?}");
        let same = Comparison::of_same(&[1.0f32], &[1.0]).and(far.clone().named("sums: "));
        assert_eq!(same.worst, far.worst);
        assert!(same.wrong.is_some_and(|wrong| wrong.starts_with("sums: element 1")));
    }
}
