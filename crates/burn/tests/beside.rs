//! A network with modules of `windowpane_burn::nn` among Burn's own, in a program where windowpane is installed.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::module::{avg_pool2d, max_pool2d, max_pool2d_with_indices};
use burn::tensor::ops::{AvgPoolOptions, MaxPoolOptions};
use burn::tensor::{Device, IndexingUpdateOp, Tensor, TensorData};
use windowpane_burn::nn::{
    AdaptiveMaxPool2d, AdaptiveMaxPool2dConfig, LpPool2d, LpPool2dConfig, MaxUnpool2d,
    MaxUnpool2dConfig, MinPool2d, MinPool2dConfig, SumPool2d, SumPool2dConfig,
};

#[derive(Module, Debug)]
struct Network {
    first: Conv2d,
    min: MinPool2d,
    second: Conv2d,
    adaptive: AdaptiveMaxPool2d,
    middle: Conv2d,
    unpool: MaxUnpool2d,
    norm: LpPool2d,
    sum: SumPool2d,
    linear: Linear,
}

impl Network {
    fn new(device: &Device) -> Self {
        let same = PaddingConfig2d::Explicit(1, 1, 1, 1);
        let conv = |channels| Conv2dConfig::new(channels, [3, 3]).with_padding(same.clone());
        Self {
            first: conv([3, 8]).init(device),
            min: MinPool2dConfig::new([3, 3])
                .with_strides([2, 2])
                .with_padding(same.clone())
                .init(),
            second: conv([8, 8]).init(device),
            adaptive: AdaptiveMaxPool2dConfig::new([4, 4]).init(),
            middle: conv([8, 8]).init(device),
            unpool: MaxUnpool2dConfig::new([2, 2]).init(),
            norm: LpPool2dConfig::new([2, 2]).with_p(3.0).init(),
            sum: SumPool2dConfig::new([2, 2]).init(),
            linear: LinearConfig::new(8 * 2 * 2, 3).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.min.forward(self.first.forward(x));
        let x = self.second.forward(x);
        let (pooled, indices) = self.adaptive.forward_with_indices(x.clone());
        let x = x + self.unpool.forward(self.middle.forward(pooled), indices);
        let x = self.sum.forward(self.norm.forward(x));
        self.linear.forward(x.flatten(1, 3))
    }

    /// The same of Burn's own operators.
    fn forward_in_burn(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.first.forward(x);
        let options = MaxPoolOptions::new([3, 3]).with_stride([2, 2]);
        let x = -max_pool2d(-x, options.with_padding_pairs([(1, 1), (1, 1)]));
        let x = self.second.forward(x);
        let (pooled, indices) =
            max_pool2d_with_indices(x.clone(), MaxPoolOptions::new([2, 2]).with_stride([2, 2]));
        let values: Tensor<3> = self.middle.forward(pooled).flatten(2, 3);
        let nothing = Tensor::<3>::zeros([x.dims()[0], 8, 64], &x.device());
        let back = nothing.scatter(2, indices.flatten(2, 3), values, IndexingUpdateOp::Add);
        let x = x.clone() + back.reshape(x.dims());
        let pairs =
            |x: Tensor<4>| avg_pool2d(x, AvgPoolOptions::new([2, 2]).with_stride([2, 2])) * 4.0;
        let x = pairs(x.abs().powf_scalar(3.0)).powf_scalar(1.0 / 3.0);
        self.linear.forward(pairs(x).flatten(1, 3))
    }

    fn parameters(&self) -> Vec<Vec<f32>> {
        let read = |conv: &Conv2d| -> Vec<f32> {
            conv.weight.val().into_data().try_to_vec().expect("weights are f32")
        };
        vec![
            read(&self.first),
            read(&self.second),
            read(&self.middle),
            self.linear.weight.val().into_data().try_to_vec().expect("weights are f32"),
        ]
    }
}

/// Numbers from −1 to 1.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|at| (at * 7919 % 1009) as f32 / 504.5 - 1.0).collect()
}

/// One step of training changes every weight as with Burn's own operators, and lowers the loss; all of Burn's operators
/// are still replaced.
#[test]
fn a_network_is_trained() {
    windowpane_burn::install().expect("this is the start");
    let device = Device::default().autodiff();
    device.seed(3);
    let network = Network::new(&device);
    let x = Tensor::<4>::from_data(TensorData::new(numbers(2 * 3 * 256), [2, 3, 16, 16]), &device);
    let target = Tensor::<2>::from_data(TensorData::new(numbers(6), [2, 3]), &device);
    let loss = |output: Tensor<2>| (output - target.clone()).square().mean();
    let step = |forward: fn(&Network, Tensor<4>) -> Tensor<2>| {
        let network = network.clone();
        let before = loss(forward(&network, x.clone()));
        let gradients = GradientsParams::from_grads(before.clone().backward(), &network);
        let network = SgdConfig::new().init().step(0.01, network, gradients);
        (network, before.into_scalar::<f32>())
    };
    let (burns, _) = step(Network::forward_in_burn);
    let counted = windowpane_burn::counters();
    let (ours, before) = step(Network::forward);
    let after = loss(ours.forward(x.clone())).into_scalar::<f32>();
    assert!(after < before, "the loss was {before}, and is {after} after a step");

    let start = network.parameters();
    for (at, (found, expected)) in ours.parameters().iter().zip(burns.parameters()).enumerate() {
        assert_ne!(found, &start[at], "parameter {at} has not changed");
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= 1e-5, "parameter {at}: {found} and {expected}");
        }
    }
    let counters = windowpane_burn::counters();
    for (operator, expected) in [
        ("conv2d", 6),
        ("conv2d_x_backward", 2),
        ("conv2d_weight_backward", 3),
        ("conv2d_bias_backward", 3),
    ] {
        let replaced = counters.of(operator).replaced - counted.of(operator).replaced;
        assert_eq!(replaced, expected, "{operator}:\n{counters}");
    }
    assert_eq!(counters.fell_back(), 0, "{counters}");
}
