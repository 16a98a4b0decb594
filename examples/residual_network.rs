//! The forward pass of a small residual network, layer by layer, with random weights.
//!
//! `cargo run --example residual_network -p windowpane-examples`

use windowpane::{Activation, AvgPool, Conv, DType, Device, MaxPool, Tensor};

/// Makes the weights, each from the next seed.
struct Weights<'a> {
    device: &'a Device,
    seed: u32,
}

impl Weights<'_> {
    fn next(&mut self, dims: impl AsRef<[usize]>) -> windowpane::Result<Tensor> {
        self.seed += 1;
        Tensor::random(self.device, DType::F32, dims, self.seed)
    }
}

fn main() -> windowpane::Result<()> {
    let device = Device::best();
    println!("on {device}");
    let mut weights = Weights { device: &device, seed: 0 };
    let images = weights.next([2, 64, 64, 3])?;

    let stem = Conv::new(7).stride(2).padding(3).activation(Activation::Relu);
    let x = stem.forward(&images, &weights.next([16, 7, 7, 3])?, Some(&weights.next([16])?))?;
    said("stem", &x);
    let x = MaxPool::new(3).stride(2).padding(1).forward(&x)?;
    said("max pooling", &x);
    let x = block(&x, 16, 1, &mut weights)?;
    said("block", &x);
    let x = block(&x, 32, 2, &mut weights)?;
    said("block, halved", &x);

    let x = AvgPool::global().forward(&x)?;
    said("global average", &x);
    let classes = Conv::new(1).forward(&x, &weights.next([10, 1, 1, 32])?, None)?;
    said("classes", &classes);

    let scores = classes.to_vec::<f32>()?;
    for (image, scores) in scores.chunks(10).enumerate() {
        let best = (0..10).max_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap_or_default();
        println!("image {image} is of class {best}");
    }
    assert!(scores.iter().all(|score| score.is_finite()));
    Ok(())
}

/// Two convolutions, and the input added before the last activation, in the same launch.
fn block(
    x: &Tensor,
    filters: usize,
    stride: usize,
    weights: &mut Weights<'_>,
) -> windowpane::Result<Tensor> {
    let channels = x.dims()[3];
    let conv = Conv::new(3).padding(1).activation(Activation::Relu);
    let first = weights.next([filters, 3, 3, channels])?;
    let second = weights.next([filters, 3, 3, filters])?;
    let inside = conv.stride(stride).forward(x, &first, Some(&weights.next([filters])?))?;
    // Where the size changes, a convolution with one tap changes that of the input too.
    let around = match (channels, stride) {
        (same, 1) if same == filters => x.clone(),
        _ => Conv::new(1).stride(stride).forward(
            x,
            &weights.next([filters, 1, 1, channels])?,
            None,
        )?,
    };
    conv.forward_with_residual(&inside, &second, Some(&weights.next([filters])?), &around)
}

fn said(layer: &str, x: &Tensor) {
    println!("{layer:15} {:?}", x.dims());
}
