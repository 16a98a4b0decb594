use proptest::test_runner::TestCaseError;
use windowpane::Element;
use windowpane_geometry::DType;
use windowpane_reference::{Scalar, Total};

/// Fails unless two tensors are identical bit for bit; all NaN count as equal.
pub fn assert_same<T: Element>(found: &[T], expected: &[T]) -> Result<(), TestCaseError> {
    check_lengths(found.len(), expected.len())?;
    for (i, (y, e)) in found.iter().zip(expected).enumerate() {
        if y.to_integer() != e.to_integer() {
            return fail(format!("element {i} is {y:?}, not {e:?}"));
        }
        let (y, e) = (y.to_f64(), e.to_f64());
        let both_nan = y.is_nan() && e.is_nan();
        if !both_nan && y.to_bits() != e.to_bits() {
            return fail(format!("element {i} is {y}, not {e}"));
        }
    }
    Ok(())
}

/// Fails unless every sum is within the bound of SEMANTICS §7, that is
/// `u_out·|ref| + n·u_acc·Σ|terms|`, plus half of the type's smallest number for rounding subnormal
/// results. NaN and infinities must match in kind and position.
pub fn assert_totals<T: Element>(found: &[T], expected: &[Total]) -> Result<(), TestCaseError> {
    check_lengths(found.len(), expected.len())?;
    let accumulator = if T::DTYPE == DType::F64 { f64::ROUNDOFF } else { f32::ROUNDOFF };
    for (i, (y, total)) in found.iter().zip(expected).enumerate() {
        let (y, value) = (y.to_f64(), total.value);
        let bound = total.bound(T::ROUNDOFF, accumulator) + smallest(T::DTYPE) / 2.0;
        let overflows = T::from_f64(value + bound.copysign(value)).to_f64();
        let same_kind = y == value
            || (y.is_nan() && value.is_nan())
            // Only the result type overflows.
            || (y.is_infinite() && y == overflows);
        // Written so that NaN, or a NaN bound, fails.
        let close = y.is_finite() && value.is_finite() && (y - value).abs() <= bound;
        if !same_kind && !close {
            return fail(format!("element {i} is {y:e}, not {value:e} within {bound:e}"));
        }
    }
    Ok(())
}

/// Fails unless every sum is within the bound of SEMANTICS §7 for factors rounded to tf32 first:
/// `2·u_in·Σ|terms|` more.
pub fn assert_totals_tf32<T: Element>(
    found: &[T],
    expected: &[Total],
) -> Result<(), TestCaseError> {
    /// The unit roundoff of 11 significant bits.
    const TF32: f64 = 1.0 / 2048.0;
    // Expressed as a larger number of terms.
    let wider = expected.iter().map(|total| {
        let share = 2.0 * TF32 / f32::ROUNDOFF / total.terms.max(1) as f64;
        Total { magnitude: total.magnitude * (1.0 + share), ..*total }
    });
    assert_totals(found, &wider.collect::<Vec<_>>())
}

/// The sum of sums that are each rounded to the type before: SEMANTICS 6.7 and 6.8.
pub fn rounded_sum<T: Element>(sums: impl IntoIterator<Item = Total>) -> Total {
    let accumulator = if T::DTYPE == DType::F64 { f64::ROUNDOFF } else { f32::ROUNDOFF };
    Total::of_rounded(sums, T::ROUNDOFF, smallest(T::DTYPE), accumulator)
}

fn check_lengths(found: usize, expected: usize) -> Result<(), TestCaseError> {
    if found == expected { Ok(()) } else { fail(format!("{found} elements, not {expected}")) }
}

fn fail(reason: String) -> Result<(), TestCaseError> {
    Err(TestCaseError::fail(reason))
}

/// The smallest positive number.
pub(crate) fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::from_bits(1),
        DType::F32 => f64::from(f32::from_bits(1)),
        DType::F16 => half::f16::from_bits(1).to_f64(),
        DType::BF16 => half::bf16::from_bits(1).to_f64(),
        other => panic!("{other} does not round"),
    }
}
