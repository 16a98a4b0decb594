//! Training by hand: forward, gradients, one step down the slope, and again.
//!
//! A convolution with a bias, a ReLU and a max pooling learn to do what another one does, whose filters they do not see.
//!
//! `cargo run --example training_step -p windowpane-examples`

use windowpane::{Conv, DType, Device, MaxPool, Tensor};

const RATE: f32 = 3.0;

fn main() -> windowpane::Result<()> {
    let device = Device::best();
    let (conv, pool) = (Conv::new(3).padding(1), MaxPool::new(2));
    let images = Tensor::random(&device, DType::F32, [8, 16, 16, 1], 1)?;
    // The layer that is imitated, and a first guess.
    let [goal, first] = [2, 3].map(|seed| Tensor::random(&device, DType::F32, [4, 3, 3, 1], seed));
    let zeros = Tensor::from_slice(&device, &[0f32; 4], [4])?;
    let target = pool.forward(&relu(&conv.forward(&images, &goal?, Some(&zeros))?)?)?;
    let target = target.to_vec::<f32>()?;

    let (mut weights, mut bias) = (first?, zeros);
    let mut losses = Vec::new();
    for step in 0..=100 {
        // Forward. What the gradients need later is kept.
        let sums = conv.forward(&images, &weights, Some(&bias))?;
        let active = relu(&sums)?;
        let (y, winners) = pool.forward_with_indices(&active)?;

        // The loss is half the mean of the squared differences.
        let pairs = y.to_vec::<f32>()?.into_iter().zip(&target);
        let apart: Vec<f32> = pairs.map(|(y, target)| y - target).collect();
        let loss = apart.iter().map(|d| d * d).sum::<f32>() / (2 * apart.len()) as f32;
        if step % 20 == 0 {
            println!("step {step:3}: loss {loss:.6}");
        }
        losses.push(loss);
        let dy: Vec<f32> = apart.iter().map(|d| d / apart.len() as f32).collect();
        let dy = Tensor::from_slice(&device, &dy, y.dims())?;

        // Backward: through the pooling to each maximum, through the ReLU where it was positive, to the filters.
        let d_active = pool.backward(&dy, &winners, active.dims())?;
        let passes = sums.to_vec::<f32>()?.into_iter().map(|sum| f32::from(sum > 0.0));
        let d_sums = d_active.to_vec::<f32>()?.into_iter().zip(passes);
        let d_sums: Vec<f32> = d_sums.map(|(gradient, passes)| gradient * passes).collect();
        let d_sums = Tensor::from_slice(&device, &d_sums, sums.dims())?;
        let d_weights = conv.backward_weight(&d_sums, &images)?;
        let d_bias = conv.backward_bias(&d_sums)?;

        weights = descended(&weights, &d_weights)?;
        bias = descended(&bias, &d_bias)?;
    }
    assert!(losses[100] < losses[0] / 4.0, "it learns: {losses:?}");
    Ok(())
}

fn relu(x: &Tensor) -> windowpane::Result<Tensor> {
    let positive: Vec<f32> = x.to_vec::<f32>()?.into_iter().map(|x| x.max(0.0)).collect();
    Tensor::from_slice(x.device(), &positive, x.dims())
}

/// A step against the gradient.
fn descended(x: &Tensor, gradient: &Tensor) -> windowpane::Result<Tensor> {
    let pairs = x.to_vec::<f32>()?.into_iter().zip(gradient.to_vec::<f32>()?);
    let lower: Vec<f32> = pairs.map(|(x, gradient)| x - RATE * gradient).collect();
    Tensor::from_slice(x.device(), &lower, x.dims())
}
