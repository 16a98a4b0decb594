//! The poolings and the padding of `windowpane_burn::nn`, forward and backward, against windowpane's `host`.

mod corners;
#[path = "../shared/draw.rs"]
mod draw;
mod drawn;
mod padded;
mod random;

use burn::tensor::{Int, Tensor};

fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("these tensors are f32")
}

fn read_integers<const D: usize>(tensor: Tensor<D, Int>) -> Vec<i32> {
    tensor.into_data().try_to_vec().expect("indices are i32")
}
