//! Reads an array from a NumPy file, pools it, and writes a safetensors file.
//!
//! `cargo run --example files -p windowpane-examples`

use ndarray::Array4;
use windowpane::{AvgPool, Device, Layout, Same, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let (image, pooled) =
        (folder.path().join("image.npy"), folder.path().join("pooled.safetensors"));

    // Stands in for another program's file: a batch of two images, channels first.
    let device = Device::best();
    let array = Array4::from_shape_fn((2, 3, 9, 9), |(n, c, h, w)| (n + c + h * w) as f32);
    Tensor::from_array(&device, &array)?.write_npy(&image)?;

    let x = Tensor::read_npy(&device, &image)?;
    let pool =
        AvgPool::new([3, 3]).stride([2, 2]).padding(Same::Upper).layout(Layout::ChannelsFirst);
    let y = pool.forward(&x)?;
    Tensor::write_safetensors(&pooled, [("pooled", &y)])?;

    let back = &Tensor::read_safetensors(&Device::host(), &pooled)?["pooled"];
    println!("{:?} → {:?}", x.dims(), back.dims());
    println!("{}", back.to_array::<f32>()?.index_axis(ndarray::Axis(0), 0));
    Ok(())
}
