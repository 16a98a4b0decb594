//! Refuses problems that do not fit in this machine's memory.

use windowpane::{DType, Pooling};

use crate::failure::Failure;

/// Refuses a pooling whose arrays do not fit; otherwise the process would abort halfway.
pub(crate) fn check_pooling(pooling: &Pooling, bytes_an_output: usize) -> Result<(), Failure> {
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    check(&[("inputs", inputs, size_of::<f64>()), ("outputs", outputs, bytes_an_output)])
}

/// Refuses results that do not fit three times: on the device, read back, and while written.
pub(crate) fn check_results(results: usize, dtype: DType) -> Result<(), Failure> {
    check(&[("results", results, 2 * dtype.size() + size_of::<f64>())])
}

/// Refuses arrays that together do not fit. Each is given by the name of its elements, their number, and the bytes of
/// one.
fn check(arrays: &[(&str, usize, usize)]) -> Result<(), Failure> {
    let bytes = arrays.iter().try_fold(0usize, |sum, (_, elements, size)| {
        elements.checked_mul(*size).and_then(|bytes| sum.checked_add(bytes))
    });
    if bytes.is_some_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok()) {
        return Ok(());
    }
    let told: Vec<_> =
        arrays.iter().map(|(what, elements, _)| format!("{elements} {what}")).collect();
    Err(Failure::Failed(format!(
        "{} do not fit in this machine's memory; make the problem smaller",
        told.join(" and "),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted() {
        assert!(check_results(1 << 10, DType::F32).is_ok());
        assert!(check(&[("inputs", 3, 8), ("outputs", 0, 8)]).is_ok());
        let told = |arrays: &[_]| check(arrays).expect_err("it does not fit").to_string();
        let vast = told(&[("inputs", 7, 8), ("outputs", 1 << 60, 4)]);
        assert!(vast.starts_with("7 inputs and 1152921504606846976 outputs do not fit"), "{vast}");
        // More bytes than can be counted, in one array or in all of them.
        told(&[("results", usize::MAX, 2)]);
        told(&[("inputs", usize::MAX, 1), ("outputs", 1, 1)]);
    }
}
