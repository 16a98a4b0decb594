//! Installing after Burn has started is an error, and never a silent nothing.

use burn::tensor::{Device, Tensor};
use windowpane_burn::{TooLate, counters, install};

#[test]
fn after_a_tensor_operation_it_is_too_late() {
    let device = Device::default();
    let sum = (Tensor::<1>::from_data([1.0, 2.0], &device) + 1.0).sum();
    assert_eq!(sum.into_scalar::<f32>(), 5.0);
    assert_eq!(install(), Err(TooLate));
    assert!(TooLate.to_string().contains("at the start of `main`"));
    assert_eq!(counters().replaced(), 0);
}
