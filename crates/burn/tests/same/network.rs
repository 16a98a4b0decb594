//! A small network is trained.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{
    AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, AvgPool2d, AvgPool2dConfig, MaxPool2d,
    MaxPool2dConfig,
};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};

use crate::draw::{Draw, device};
use crate::{Numbers, both};

const STEPS: usize = 50;
const BATCH: usize = 4;

#[derive(Module, Debug)]
struct Network {
    first: Conv2d,
    max: MaxPool2d,
    second: Conv2d,
    average: AvgPool2d,
    third: Conv2d,
    global: AdaptiveAvgPool2d,
    linear: Linear,
}

impl Network {
    fn new(device: &Device) -> Self {
        let same = PaddingConfig2d::Explicit(1, 1, 1, 1);
        Self {
            first: Conv2dConfig::new([3, 8], [3, 3]).with_padding(same.clone()).init(device),
            max: MaxPool2dConfig::new([3, 3])
                .with_strides([2, 2])
                .with_padding(same.clone())
                .init(),
            second: Conv2dConfig::new([8, 8], [3, 3]).with_groups(2).init(device),
            average: AvgPool2dConfig::new([2, 2]).with_padding(same).init(),
            third: Conv2dConfig::new([8, 16], [1, 1]).with_stride([2, 2]).init(device),
            global: AdaptiveAvgPool2dConfig::new([2, 2]).init(),
            linear: LinearConfig::new(64, 3).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.max.forward(relu(self.first.forward(x)));
        let x = self.average.forward(relu(self.second.forward(x)));
        let x = self.global.forward(relu(self.third.forward(x)));
        self.linear.forward(x.flatten(1, 3))
    }
}

/// The losses of all steps, then what the trained network gives.
fn train() -> Numbers {
    let device = device().autodiff();
    device.seed(7);
    let mut network = Network::new(&device);
    let mut optimizer = SgdConfig::new().init();
    let mut draw = Draw::new(1);
    let x = TensorData::new(draw.numbers(BATCH * 3 * 16 * 16), [BATCH, 3, 16, 16]);
    let target = TensorData::new(draw.numbers(BATCH * 3), [BATCH, 3]);
    let x = Tensor::<4>::from_data(x, &device);
    let target = Tensor::<2>::from_data(target, &device);
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let wrong = network.forward(x.clone()) - target.clone();
        let loss = (wrong.clone() * wrong).mean();
        losses.extend(loss.clone().into_data().try_to_vec::<f32>().expect("a loss is f32"));
        let grads = GradientsParams::from_grads(loss.backward(), &network);
        network = optimizer.step(0.2, network, grads);
    }
    let last = network.forward(x).into_data().try_to_vec().expect("an output is f32");
    vec![("losses".into(), losses), ("outputs".into(), last)]
}

/// 50 steps have the same losses within 1e-4, and every operator of the network is replaced in every step.
#[test]
fn training_is_the_same() {
    let Some([installed, plain]) = both("network::training_is_the_same", train) else { return };
    for ((name, found), (_, expected)) in installed.iter().zip(&plain) {
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!((found - expected).abs() <= 1e-4, "{name} {at}: {found} and {expected}");
        }
    }
    let losses = &installed[0].1;
    assert_eq!(losses.len(), STEPS);
    // Each device draws its own initial numbers, and with those of another one the last steps may be too large.
    let learned = match std::env::var_os("BURN_DEVICE") {
        None => losses[STEPS - 1],
        Some(_) => losses.iter().copied().fold(f32::INFINITY, f32::min),
    };
    assert!(learned < losses[0] / 2.0, "the network does not learn: {losses:?}");
    let counters = windowpane_burn::counters();
    let steps = STEPS as u64;
    for (operator, least) in [
        ("conv2d", 3 * steps),
        ("conv2d_x_backward", 2 * steps),
        ("conv2d_weight_backward", 3 * steps),
        ("conv2d_bias_backward", 3 * steps),
        ("max_pool2d_with_indices", steps),
        ("max_pool2d_with_indices_backward", steps),
        ("avg_pool2d", steps),
        ("avg_pool2d_backward", steps),
        ("adaptive_avg_pool2d", steps),
        ("adaptive_avg_pool2d_backward", steps),
    ] {
        assert!(counters.of(operator).replaced >= least, "{operator}, {least}:\n{counters}");
    }
    println!("{counters}");
}
