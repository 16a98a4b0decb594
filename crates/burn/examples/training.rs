//! Trains a small network with Burn, with windowpane's operators: prints the loss every ten steps, then what was
//! replaced.
//!
//! `cargo run --example training`; with `-- --without-windowpane` it trains with Burn's own operators.

use std::time::Instant;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::activation::relu;
use burn::tensor::{Device, DeviceKind, Tensor, TensorData};

const BATCH: usize = 32;
const SIZE: usize = 16;

#[derive(Module, Debug)]
struct Network {
    first: Conv2d,
    second: Conv2d,
    pool: MaxPool2d,
    linear: Linear,
}

impl Network {
    fn new(device: &Device) -> Self {
        let same = PaddingConfig2d::Explicit(1, 1, 1, 1);
        Self {
            first: Conv2dConfig::new([1, 8], [3, 3]).with_padding(same.clone()).init(device),
            second: Conv2dConfig::new([8, 16], [3, 3]).with_padding(same).init(device),
            pool: MaxPool2dConfig::new([2, 2]).init(),
            linear: LinearConfig::new(16 * (SIZE / 4) * (SIZE / 4), 1).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.pool.forward(relu(self.first.forward(x)));
        let x = self.pool.forward(relu(self.second.forward(x)));
        self.linear.forward(x.flatten(1, 3))
    }
}

/// Pictures of a bright square on a dark ground, and how far to the right the square is, from −1 to 1.
fn pictures(device: &Device) -> (Tensor<4>, Tensor<2>) {
    let left = |nth: usize| nth * 7 % (SIZE - 4);
    let bright = |nth: usize, row: usize, column: usize| {
        let top = nth * 5 % (SIZE - 4);
        (top..top + 4).contains(&row) && (left(nth)..left(nth) + 4).contains(&column)
    };
    let pixels: Vec<f32> = (0..BATCH * SIZE * SIZE)
        .map(|at| bright(at / SIZE / SIZE, at / SIZE % SIZE, at % SIZE).into())
        .collect();
    let places: Vec<f32> =
        (0..BATCH).map(|nth| 2.0 * left(nth) as f32 / (SIZE - 5) as f32 - 1.0).collect();
    (
        Tensor::from_data(TensorData::new(pixels, [BATCH, 1, SIZE, SIZE]), device),
        Tensor::from_data(TensorData::new(places, [BATCH, 1]), device),
    )
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().all(|argument| argument != "--without-windowpane") {
        windowpane_burn::install()?;
    }

    let device = Device::wgpu(DeviceKind::DefaultDevice).autodiff();
    device.seed(1);
    let mut network = Network::new(&device);
    let mut optimizer = AdamConfig::new().init();
    let (x, places) = pictures(&device);
    let start = Instant::now();
    for step in 0..=50 {
        let wrong = network.forward(x.clone()) - places.clone();
        let loss = (wrong.clone() * wrong).mean();
        let grads = GradientsParams::from_grads(loss.clone().backward(), &network);
        network = optimizer.step(0.01, network, grads);
        if step % 10 == 0 {
            println!("step {step:2}: loss {:.6}", loss.into_scalar::<f32>());
        }
    }
    println!("{:.1?}\n\n{}", start.elapsed(), windowpane_burn::counters());
    Ok(())
}
