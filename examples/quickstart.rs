//! Pools a small image on the best available device and prints the plan and the results.
//!
//! `cargo run --example quickstart -p windowpane-examples`

use windowpane::{AvgPool, Device, MaxPool, Tensor};

fn main() -> windowpane::Result<()> {
    let device = Device::best();
    println!("running on {device}: {}", device.name());

    // One image of 4×6 pixels with one channel, channels-last; each pixel is its row times its column.
    let pixels: Vec<f32> =
        (0..4).flat_map(|row| (0..6).map(move |column| (row * column) as f32)).collect();
    let image = Tensor::from_slice(&device, &pixels, [1, 4, 6, 1])?;

    let pool = MaxPool::new([2, 2]);
    println!("\n{}", pool.plan(&device, image.dtype(), image.dims())?);
    let (largest, winners) = pool.forward_with_indices(&image)?;
    println!("largest {:?}", largest.to_vec::<f32>()?);
    println!("found at {:?}", winners.to_vec::<i32>()?);

    let mean = AvgPool::new([2, 2]).forward(&image)?;
    println!("mean {:?}", mean.to_vec::<f32>()?);
    Ok(())
}
