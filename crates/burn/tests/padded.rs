//! The convolutions of `windowpane_burn::nn` with padding modes, forward and backward, against windowpane's `host`.
//!
//! Each test installs windowpane before its first tensor, so that it computes the convolution behind the padding too:
//! Burn's own gradients with respect to volumes are all zero on Mesa's software Vulkan.

#[path = "shared/draw.rs"]
mod draw;

use std::sync::Once;

use burn::config::Config;
use burn::module::Module;
use burn::nn::{PaddingConfig1d, PaddingConfig2d, PaddingConfig3d};
use burn::tensor::{Tensor, TensorData};
use windowpane::{Conv, Device as Host, FilterLayout, Layout, Window};
use windowpane_burn::nn::{self, PaddingMode};

use draw::{Draw, device};

const CASES: u64 = 8;
const MODES: [PaddingMode; 4] =
    [PaddingMode::Zeros, PaddingMode::Reflect, PaddingMode::Replicate, PaddingMode::Circular];

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| windowpane_burn::install().expect("no test runs a tensor operation first"));
}

fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("these tensors are f32")
}

fn hosted<const D: usize>(tensor: Tensor<D>) -> windowpane::Tensor {
    let dims = tensor.dims();
    windowpane::Tensor::from_slice(&Host::host(), &read(tensor), dims).expect("it has these dims")
}

/// The same but for the rounding of sums.
fn compare(name: &str, found: &[f32], expected: &windowpane::Tensor) {
    let expected: Vec<f32> = expected.to_vec().expect("these tensors are f32");
    assert_eq!(found.len(), expected.len(), "{name}");
    let most = expected.iter().fold(1.0f32, |most, value| most.max(value.abs()));
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!((found - expected).abs() <= 1e-5 * most, "{name} at {at}: {found} and {expected}");
    }
}

macro_rules! random {
    ($test:ident, $axes:literal, $rank:literal, $operator:literal, $most:literal, $of:expr, $pad:expr,
     $make:expr) => {
        #[test]
        fn $test() {
            install();
            for case in 0..CASES {
                let mut draw = Draw::new(100 * case + $axes);
                let kernel: [usize; $axes] = core::array::from_fn(|_| draw.between(1, 3));
                let stride: [usize; $axes] = core::array::from_fn(|_| draw.between(1, 2));
                let dilation: [usize; $axes] = core::array::from_fn(|_| draw.between(1, 2));
                let before: [usize; $axes] = core::array::from_fn(|_| draw.between(0, 4));
                // Burn's padding of volumes is the same on both sides.
                let after = match $axes {
                    3 => before,
                    _ => core::array::from_fn(|_| draw.between(0, 4)),
                };
                let groups = draw.between(1, 2);
                let [channels, filters] = [(); 2].map(|()| groups * draw.between(1, 3));
                let mut shape = [draw.between(1, 3); $rank];
                shape[1] = channels;
                shape[2..].fill_with(|| draw.between(5, $most));
                let mode = MODES[case as usize % 4];
                let sides: [(usize, usize); $axes] =
                    core::array::from_fn(|axis| (before[axis], after[axis]));
                let window = Window::new(kernel).stride(stride).dilation(dilation).padding(sides);
                let name = format!("{shape:?} to {filters} in {groups}, {window:?}, {mode:?}");

                let module = $make([channels, filters], $of(kernel))
                    .with_stride($of(stride))
                    .with_dilation($of(dilation))
                    .with_padding($pad(before, after))
                    .with_padding_mode(mode)
                    .with_groups(groups)
                    .init(&device().autodiff());
                let (w, b) =
                    (module.weight.val(), module.bias.as_ref().expect("it has a bias").val());
                let x = draw.tensor(shape);
                let y = module.forward(x.clone());
                let dy = Tensor::<$rank>::from_data(
                    TensorData::new(draw.numbers(y.shape().num_elements()), y.dims()),
                    &y.device(),
                );
                let all = (y.clone() * dy.clone()).sum().backward();
                let [dx, dw] = [&x, &w].map(|leaf| read(leaf.grad(&all).expect("it is tracked")));
                let db = read(b.grad(&all).expect("it is tracked"));

                let host = Conv::with_window(window)
                    .padding_mode(mode.into())
                    .groups(groups)
                    .layout(Layout::ChannelsFirst)
                    .filter_layout(FilterLayout::Fchw);
                let [x, w, dy] = [x, w, dy].map(hosted);
                let expected = host.forward(&x, &w, Some(&hosted(b))).expect(&name);
                assert_eq!(y.dims().as_slice(), expected.dims(), "{name}");
                compare(&name, &read(y), &expected);
                let expected = host.backward_data(&dy, &w, x.dims()).expect(&name);
                compare(&format!("{name}, dx"), &dx, &expected);
                let expected = host.backward_weight(&dy, &x).expect(&name);
                compare(&format!("{name}, dw"), &dw, &expected);
                compare(&format!("{name}, db"), &db, &host.backward_bias(&dy).expect(&name));
            }
            let counters = windowpane_burn::counters();
            assert!(counters.of($operator).replaced >= CASES, "{counters}");
            assert_eq!(counters.fell_back(), 0, "{counters}");
        }
    };
}

random!(
    one_axis,
    1,
    3,
    "conv1d",
    14,
    |[size]: [usize; 1]| size,
    |[before]: [usize; 1], [after]: [usize; 1]| PaddingConfig1d::Explicit(before, after),
    |[channels, filters]: [usize; 2], kernel| nn::Conv1dConfig::new(channels, filters, kernel)
);
random!(
    two_axes,
    2,
    4,
    "conv2d",
    11,
    |sizes: [usize; 2]| sizes,
    |[top, left]: [usize; 2], [bottom, right]: [usize; 2]| {
        PaddingConfig2d::Explicit(top, left, bottom, right)
    },
    nn::Conv2dConfig::new
);
random!(
    three_axes,
    3,
    5,
    "conv3d",
    8,
    |sizes: [usize; 3]| sizes,
    |[depth, height, width]: [usize; 3], _| PaddingConfig3d::Explicit(depth, height, width),
    nn::Conv3dConfig::new
);

/// A row that wraps around is shifted by a filter of one tap beside the middle.
#[test]
fn circular_padding_wraps_around() {
    install();
    let config = nn::Conv1dConfig::new(1, 1, 3).with_bias(false);
    let config =
        config.with_padding(PaddingConfig1d::Same).with_padding_mode(PaddingMode::Circular);
    let mut conv = config.init(&device());
    conv.weight = conv.weight.map(|_| Tensor::from_data([[[1.0, 0.0, 0.0]]], &device()));
    let x = Tensor::<3>::from_data([[[1.0, 2.0, 3.0, 4.0]]], &device());
    assert_eq!(read(conv.forward(x)), [4.0, 1.0, 2.0, 3.0]);
}

/// Burn's module and this one take the parameters of the other, and zeros are the same for both.
#[test]
fn parameters_are_those_of_burns_module() {
    install();
    let same = PaddingConfig2d::Same;
    let burns = burn::nn::conv::Conv2dConfig::new([2, 4], [3, 2]).with_padding(same.clone());
    let burns = burns.init(&device());
    let ours = nn::Conv2dConfig::new([2, 4], [3, 2]).with_padding(same).init(&device());
    let ours = ours.load_record(burns.clone().into_record());
    let x = Tensor::<4>::from_data(
        TensorData::new(Draw::new(1).numbers(2 * 2 * 7 * 6), [2, 2, 7, 6]),
        &device(),
    );
    assert_eq!(ours.num_params(), burns.num_params());
    assert_eq!(read(ours.forward(x.clone())), read(burns.forward(x)));
}

#[test]
fn options_are_printed_and_saved() {
    install();
    let config = nn::Conv2dConfig::new([2, 4], [3, 2]).with_padding_mode(PaddingMode::Reflect);
    let config = nn::Conv2dConfig::load_binary(config.to_string().as_bytes()).expect("saved");
    assert_eq!(
        config.init(&device()).to_string(),
        "Conv2d {ch_in: 2, ch_out: 4, stride: [1, 1], kernel_size: [3, 2], dilation: [1, 1], groups: 1, padding: Valid, padding_mode: Reflect, params: 52}"
    );
}
