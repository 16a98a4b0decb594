use proptest::prelude::*;
use windowpane::{DType, Element, Error, Tensor};
use windowpane_testing::{Fill, assert_same, on_every_device, proptest};

on_every_device! {
    /// What goes to a device comes back, also by way of the host.
    fn elements_come_back(device, case in (Fill::any(), 0..40usize, 1..9usize)) {
        let (fill, rows, columns) = case;
        let elements: Vec<f32> = fill.elements(rows * columns);
        let tensor = Tensor::from_slice(device, &elements, [rows, columns])
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        let there = tensor.to_vec::<f32>().map_err(|error| TestCaseError::fail(error.to_string()))?;
        assert_same(&there, &elements)?;
        let back = tensor
            .to_device(&windowpane::Device::host())
            .and_then(|tensor| tensor.to_vec::<f32>())
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        assert_same(&back, &elements)
    }
}

/// A conversion rounds once, to nearest even, and clamps what an integer cannot hold.
#[test]
fn conversions_round_once() {
    let host = windowpane::Device::host();
    // 1 + 2⁻¹¹ + 2⁻³⁰ is above the middle of two halves: twice rounded, it would fall below.
    let x = Tensor::from_slice(&host, &[1.0 + 2f64.powi(-11) + 2f64.powi(-30), -3e5, 2.5], [3])
        .unwrap();
    let halves = x.to_dtype(DType::F16).unwrap().to_vec::<half::f16>().unwrap();
    assert_eq!(halves[0].to_f64(), 1.0 + 2f64.powi(-10));
    assert_eq!(halves[1].to_f64(), f64::NEG_INFINITY);
    assert_eq!(x.to_dtype(DType::I8).unwrap().to_vec::<i8>().unwrap(), [1, -128, 2]);
}

/// A tensor is only what its dimensions and type say.
#[test]
fn mismatches_are_errors() {
    let host = windowpane::Device::host();
    let short = Tensor::from_slice(&host, &[1.0f32; 5], [2, 3]);
    assert!(matches!(short, Err(Error::Length { found: 5, .. })));
    let huge = Tensor::from_slice(&host, &[1.0f32; 5], [usize::MAX, 3]);
    assert!(matches!(huge, Err(Error::Length { .. })));
    let x = Tensor::from_slice(&host, &[1.0f32; 6], [2, 3]).unwrap();
    let read = x.to_vec::<i32>();
    assert!(matches!(read, Err(Error::DTypeMismatch { asked: DType::I32, found: DType::F32 })));
    assert_eq!(f32::DTYPE, DType::F32);
}
