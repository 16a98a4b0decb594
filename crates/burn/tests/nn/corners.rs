//! Options, settings of Burn, and calls that are refused.

use burn::config::Config;
use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::tensor::module::max_pool2d_with_indices;
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{DType, Int, IntDType, Tensor, TensorData};
use windowpane_burn::{Window, nn};

use crate::draw::{Draw, device};
use crate::{read, read_integers};

#[test]
fn modules_print_their_options_and_have_no_parameters() {
    let pool = nn::LpPool2dConfig::new([3, 2]).with_p(3.0).init();
    assert_eq!(
        pool.to_string(),
        "LpPool2d {kernel_size: [3, 2], stride: [3, 2], padding: Valid, dilation: [1, 1], p: 3.0, ceil_mode: false}"
    );
    assert_eq!(pool.num_params(), 0);
    let unpool = nn::MaxUnpool1dConfig::new(3).with_stride(2).init();
    assert_eq!(
        unpool.to_string(),
        "MaxUnpool1d {kernel_size: 3, stride: 2, padding: Valid, dilation: 1}"
    );
    let adaptive = nn::AdaptiveMaxPool3dConfig::new([2, 3, 4]).init();
    assert_eq!(adaptive.to_string(), "AdaptiveMaxPool3d {output_size: [2, 3, 4]}");
    let rank = nn::RankPool1dConfig::new(3, 1).init();
    assert_eq!(
        rank.to_string(),
        "RankPool1d {kernel_size: 3, stride: 3, padding: Valid, dilation: 1, rank: 1, ceil_mode: false}"
    );
    let fractional = nn::FractionalMaxPool1dConfig::new(2, nn::OutputSize::Ratio(0.5));
    let fractional = fractional.with_seed(Some(7)).init();
    assert_eq!(
        fractional.to_string(),
        "FractionalMaxPool1d {kernel_size: 2, output_size: Ratio(0.5), seed: 7}"
    );
    assert_eq!(fractional.num_params(), 0);
    let frozen = nn::StochasticPool1dConfig::new(2).with_seed(Some(7)).init().freeze();
    assert_eq!(
        frozen.to_string(),
        "StochasticPool1d {kernel_size: 2, stride: 2, padding: Valid, dilation: 1, ceil_mode: false, seed: 7, training: disabled}"
    );
}

#[test]
fn same_padding_keeps_the_size() {
    let x = Tensor::<4>::from_data([[[[4.0, 1.0, 3.0], [2.0, 5.0, 0.0]]]], &device());
    let same = PaddingConfig2d::Same;
    let pool = nn::MinPool2dConfig::new([2, 2]).with_strides([1, 1]).with_padding(same).init();
    assert_eq!(read(pool.forward(x)), [1.0, 0.0, 0.0, 2.0, 0.0, 0.0]);
}

/// Burn's own indices lead back to where the maxima were, with the size that follows from the options.
#[test]
fn unpooling_reverses_burns_max_pooling() {
    let numbers = Draw::new(1).numbers(2 * 3 * 7 * 6);
    let x = Tensor::<4>::from_data(TensorData::new(numbers.clone(), [2, 3, 7, 6]), &device());
    let (y, indices) = max_pool2d_with_indices(x, MaxPoolOptions::new([3, 2]));
    let found = read_integers(indices.clone());
    let unpool = nn::MaxUnpool2dConfig::new([3, 2]).init();
    let back = unpool.forward(y.clone(), indices.clone());
    assert_eq!(back.dims(), [2, 3, 6, 6]);
    let back = unpool.forward_to(y.clone(), indices.clone(), [7, 6]);
    let mut expected = vec![0.0; numbers.len()];
    for (at, index) in found.into_iter().enumerate() {
        let at = at / 6 * 42 + index as usize;
        expected[at] = numbers[at];
    }
    assert_eq!(read(back), expected);
    // Indices of another type are converted.
    let others = indices.cast(IntDType::U32);
    assert_eq!(read(nn::max_unpool(y, others, [7, 6])), expected);
}

/// Burn may forget what it can compute again, and computes it before the gradient reads it.
#[test]
fn gradients_are_the_same_with_checkpointing() {
    let gradient = |device| {
        let data = TensorData::new(Draw::new(2).numbers(2 * 3 * 9), [2, 3, 9]);
        let leaf = Tensor::<3>::from_data(data, &device).require_grad();
        let x = (leaf.clone() * 3.0).exp();
        let y = nn::lp_pool(x.clone(), 3.0, Window::new(3).stride(2));
        let y = y + nn::min_pool(x.clone(), Window::new(3).stride(2));
        let y = y + nn::stochastic_pool(x.clone(), 5, Window::new(3).stride(2));
        let y = y + nn::stochastic_mean(x.clone(), Window::new(3).stride(2));
        let y = y + nn::fractional_max_pool(x.clone(), 3, 4, 5);
        let (most, indices) = nn::adaptive_max_pool_with_indices(x, 4);
        let y = y * most.clone() + nn::max_unpool(most, indices, 9).narrow(2, 0, 4);
        read(leaf.grad(&(y.clone() * y).sum().backward()).expect("the leaf is tracked"))
    };
    let kept = gradient(device().autodiff());
    assert!(kept.iter().any(|value| *value != 0.0));
    let again = gradient(device().autodiff().gradient_checkpointing());
    assert_eq!(kept.len(), again.len());
    // Burn's exponential may be rounded otherwise in another kernel.
    for (kept, again) in kept.into_iter().zip(again) {
        assert!((kept - again).abs() <= 1e-5 * kept.abs(), "{kept} and {again}");
    }
}

/// No gradient is computed for an input that is not tracked, and the result goes on being usable.
#[test]
fn an_untracked_input_on_a_device_with_gradients() {
    let device = device().autodiff();
    let x = Tensor::<3>::from_data([[[3.0, 1.0, 2.0]]], &device);
    let w = Tensor::<3>::from_data([[[2.0]]], &device).require_grad();
    let y = nn::sum_pool(x.clone(), Window::new(3)) + nn::lp_pool(x.clone(), 1.0, Window::new(3));
    let dw = w.grad(&(y * w.clone()).sum().backward()).expect("w is tracked");
    assert_eq!(read(dw), [12.0]);
    assert_eq!(read(nn::median_pool(x, Window::new(3))), [2.0]);
}

#[test]
fn an_empty_batch_has_an_empty_result() {
    let x = Tensor::<3>::zeros([0, 2, 6], &device());
    assert_eq!(nn::pad(x.clone(), 2, nn::PaddingMode::Circular).dims(), [0, 2, 10]);
    let (y, indices) = nn::min_pool_with_indices(x, Window::new(2).stride(2));
    assert_eq!((y.dims(), indices.dims()), ([0, 2, 3], [0, 2, 3]));
    assert_eq!((read(y), read_integers(indices)), (vec![], vec![]));
}

/// A window that nothing can be drawn from has the mean 0, and no gradient.
#[test]
fn a_window_without_a_positive_number_has_the_mean_0() {
    let device = device().autodiff();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        if !device.supports_dtype(dtype) {
            continue;
        }
        let x = Tensor::<3>::from_data([[[0.0, -1.0, 3.0, 0.0]]], &device).require_grad();
        let y = nn::stochastic_mean(x.clone().cast(dtype), Window::new(2)).cast(DType::F32);
        assert_eq!(read(y.clone()), [0.0, 3.0, 3.0], "{dtype:?}");
        let dx = x.grad(&y.sum().backward()).expect("it is tracked");
        assert_eq!(read(dx), [0.0, 0.0, 2.0, 0.0], "{dtype:?}");
    }
}

#[test]
fn configurations_can_be_saved() {
    let config = nn::FractionalMaxPool2dConfig::new([2, 3], nn::OutputSize::Exact([5, 4]));
    let config = config.with_seed(Some(9));
    let read = nn::FractionalMaxPool2dConfig::load_binary(config.to_string().as_bytes());
    let read = read.expect("it was saved");
    assert_eq!((read.kernel_size, read.output_size), (config.kernel_size, config.output_size));
    assert_eq!(read.seed, Some(9));
}

/// Indices outside the plane are ignored.
#[test]
fn an_index_that_is_no_position_writes_nothing() {
    let y = Tensor::<3>::from_data([[[1.0, 2.0, 3.0, 4.0]]], &device());
    let indices = TensorData::new(vec![-1, 2, 7, -5], [1, 1, 4]);
    let indices = Tensor::<3, Int>::from_data(indices, (&device(), DType::I32));
    assert_eq!(read(nn::max_unpool(y, indices, 3)), [0.0, 0.0, 2.0]);
}

#[test]
#[should_panic(expected = "windowpane_burn::nn: ")]
fn a_window_that_does_not_fit_is_refused() {
    nn::sum_pool(Tensor::<3>::zeros([1, 1, 3], &device()), Window::new(4));
}

#[test]
#[should_panic(expected = "windowpane_burn::nn: ")]
fn padding_of_other_axes_is_refused() {
    let x = Tensor::<3>::zeros([1, 1, 3], &device());
    nn::pad(x, [1, 1], nn::PaddingMode::Circular);
}

#[test]
#[should_panic(expected = "windowpane_burn::nn: ")]
fn an_output_without_room_is_refused() {
    nn::fractional_max_pool(Tensor::<3>::zeros([1, 1, 3], &device()), 2, 3, 0);
}

#[test]
#[should_panic(expected = "windowpane_burn::nn: windowpane has no Flex32")]
fn a_type_that_windowpane_lacks_is_refused() {
    nn::sum_pool(Tensor::<3>::zeros([1, 1, 4], &device()).cast(DType::Flex32), Window::new(4));
}

#[test]
#[should_panic(
    expected = "windowpane_burn::nn: [1, 1, 2] numbers to unpool, and [1, 1, 1] indices"
)]
fn too_few_indices_are_refused() {
    let y = Tensor::<3>::zeros([1, 1, 2], &device());
    nn::max_unpool(y, Tensor::<3, Int>::zeros([1, 1, 1], &device()), 4);
}
