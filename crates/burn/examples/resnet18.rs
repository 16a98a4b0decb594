//! Times a ResNet-18 in Burn, with windowpane's operators or with Burn's own: a training step, inference, and with
//! `--layers` each layer.
//!
//! ```text
//! cargo run --release --example resnet18 --features burn/cuda,burn/autotune -- --batch 64 --size 224 --dtype bf16
//! ```
//!
//! With `--without-windowpane`, Burn's own operators run. `BURN_DEVICE` selects a device, as in every Burn program.

use std::error::Error;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, FloatDType, Int, Tensor};

const CLASSES: usize = 1000;

/// A convolution without a bias, then a normalization.
#[derive(Module, Debug)]
struct Convolution {
    conv: Conv2d,
    norm: BatchNorm,
}

impl Convolution {
    fn new(channels: [usize; 2], kernel: usize, stride: usize, device: &Device) -> Self {
        let pad = kernel / 2;
        let conv = Conv2dConfig::new(channels, [kernel; 2])
            .with_stride([stride; 2])
            .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
            .with_bias(false);
        Self { conv: conv.init(device), norm: BatchNormConfig::new(channels[1]).init(device) }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.norm.forward(self.conv.forward(x))
    }
}

/// Two convolutions, and a way around them.
#[derive(Module, Debug)]
struct Block {
    first: Convolution,
    second: Convolution,
    /// The way around, where the shape changes.
    around: Option<Convolution>,
}

impl Block {
    fn new([from, to]: [usize; 2], stride: usize, device: &Device) -> Self {
        Self {
            first: Convolution::new([from, to], 3, stride, device),
            second: Convolution::new([to, to], 3, 1, device),
            around: (from != to).then(|| Convolution::new([from, to], 1, stride, device)),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let around = match &self.around {
            Some(around) => around.forward(x.clone()),
            None => x.clone(),
        };
        relu(self.second.forward(relu(self.first.forward(x))) + around)
    }
}

#[derive(Module, Debug)]
struct ResNet {
    first: Convolution,
    max: MaxPool2d,
    blocks: Vec<Block>,
    average: AdaptiveAvgPool2d,
    linear: Linear,
}

impl ResNet {
    fn new(device: &Device) -> Self {
        let block = |from, to, stride| Block::new([from, to], stride, device);
        let blocks = vec![
            block(64, 64, 1),
            block(64, 64, 1),
            block(64, 128, 2),
            block(128, 128, 1),
            block(128, 256, 2),
            block(256, 256, 1),
            block(256, 512, 2),
            block(512, 512, 1),
        ];
        Self {
            first: Convolution::new([3, 64], 7, 2, device),
            max: max_pool(),
            blocks,
            average: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            linear: LinearConfig::new(512, CLASSES).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.max.forward(relu(self.first.forward(x)));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.linear.forward(self.average.forward(x).flatten(1, 3))
    }
}

fn max_pool() -> MaxPool2d {
    let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
    MaxPool2dConfig::new([3, 3]).with_strides([2, 2]).with_padding(padding).init()
}

/// What follows an option.
fn option(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}

/// The number after an option.
fn number(name: &str, default: usize) -> Result<usize, Box<dyn Error>> {
    match option(name) {
        Some(number) => Ok(number.parse().map_err(|error| format!("{name} {number}: {error}"))?),
        None => Ok(default),
    }
}

/// The median time of a step, after steps in which kernels are compiled and tuned.
fn median(device: &Device, steps: usize, mut step: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..steps + 5)
        .map(|_| {
            let start = Instant::now();
            step();
            device.sync().expect("the device computes");
            start.elapsed()
        })
        .skip(5)
        .collect();
    times.sort();
    times[steps / 2]
}

/// Prints the time of each kind of layer, forward and with its gradients.
fn layers(device: &Device, [batch, size]: [usize; 2], steps: usize) {
    println!("\n{:34} {:>9} {:>15}", "layer", "forward", "with gradients");
    let time = |name: String, shape: [usize; 4], layer: &dyn Fn(Tensor<4>) -> Tensor<4>| {
        let x = Tensor::<4>::random(shape, Distribution::Default, device);
        let inner = x.clone().inner();
        let forward = median(device, steps, || drop(layer(Tensor::from_inner(inner.clone()))));
        let both = median(device, steps, || {
            let x = x.clone().require_grad();
            drop(layer(x).sum().backward());
        });
        let [forward, both] = [forward, both].map(|time| time.as_secs_f64() * 1e3);
        println!("{name:34} {forward:9.3} {both:15.3}");
    };
    let quarter = size.div_ceil(4);
    for (from, to, kernel, stride, size) in [
        (3, 64, 7, 2, size),
        (64, 64, 3, 1, quarter),
        (64, 128, 3, 2, quarter),
        (64, 128, 1, 2, quarter),
        (128, 128, 3, 1, size.div_ceil(8)),
        (128, 256, 3, 2, size.div_ceil(8)),
        (128, 256, 1, 2, size.div_ceil(8)),
        (256, 256, 3, 1, size.div_ceil(16)),
        (256, 512, 3, 2, size.div_ceil(16)),
        (256, 512, 1, 2, size.div_ceil(16)),
        (512, 512, 3, 1, size.div_ceil(32)),
    ] {
        let layer = Convolution::new([from, to], kernel, stride, device).conv;
        let name = format!("conv {kernel}×{kernel}/{stride} {from} → {to} at {size}×{size}");
        time(name, [batch, from, size, size], &|x| layer.forward(x));
    }
    let max = max_pool();
    let half = size.div_ceil(2);
    time(format!("max 3×3/2 64 at {half}×{half}"), [batch, 64, half, half], &|x| max.forward(x));
}

fn main() -> Result<(), Box<dyn Error>> {
    let has = |name: &str| std::env::args().any(|argument| argument == name);
    if !has("--without-windowpane") {
        windowpane_burn::install()?;
    }
    let (batch, size) = (number("--batch", 2)?, number("--size", 32)?);
    let steps = number("--steps", 20)?.max(1);

    let dtype = match option("--dtype").as_deref() {
        None | Some("f32") => FloatDType::F32,
        Some("f16") => FloatDType::F16,
        Some("bf16") => FloatDType::BF16,
        Some(other) => return Err(format!("--dtype {other}: use f32, f16 or bf16").into()),
    };
    let mut device = Device::default();
    device.configure(dtype)?;
    let training = device.clone().autodiff();
    device.seed(1);
    let mut network = ResNet::new(&training);
    let x = Tensor::<4>::random([batch, 3, size, size], Distribution::Default, &training);
    let classes = Tensor::<1, Int>::arange(0..batch as i64, &training);
    let loss = CrossEntropyLossConfig::new().init(&training);
    let mut optimizer = SgdConfig::new().init();

    let mut losses = Vec::new();
    let step = median(&training, steps, || {
        let wrong = loss.forward(network.forward(x.clone()), classes.clone());
        let grads = GradientsParams::from_grads(wrong.clone().backward(), &network);
        network = optimizer.step(0.01, network.clone(), grads);
        losses.push(wrong);
    });
    println!("training step  {:9.3} ms", step.as_secs_f64() * 1e3);
    let losses: Vec<_> = losses.into_iter().map(|loss| loss.into_scalar::<f32>()).collect();
    println!("losses {:.4} … {:.4}", losses[0], losses[losses.len() - 1]);

    let (network, x) = (network.valid(), x.inner());
    let inference = median(&device, steps, || drop(network.forward(x.clone())));
    println!("inference      {:9.3} ms", inference.as_secs_f64() * 1e3);
    if has("--layers") {
        layers(&training, [batch, size], steps);
    }
    println!("\n{}", windowpane_burn::counters());
    Ok(())
}
