//! Smooths and shrinks a volume from an `ndarray::Array3`, and draws a slice of it.
//!
//! `cargo run --example volume -p windowpane-examples`

use ndarray::{Array3, Axis, Ix3, s};
use windowpane::{AvgPool, Device, MaxPool, Same, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A hollow ball and a small solid one, with noise, as a scanner would see them.
    let volume = Array3::from_shape_fn((48, 48, 48), |(d, h, w)| {
        let from = |center: [f32; 3]| {
            let offsets = [d, h, w].into_iter().zip(center).map(|(x, center)| x as f32 - center);
            offsets.map(|x| x * x).sum::<f32>().sqrt()
        };
        let shell = f32::from((15.0..19.0).contains(&from([24.0, 22.0, 22.0])));
        let core = 0.7 * f32::from(from([24.0, 30.0, 28.0]) < 6.0);
        let noise = ((d * 7919 + h * 104_729 + w * 1_299_709) % 101) as f32 / 101.0 - 0.5;
        shell + core + 0.6 * noise
    });

    // One sample of one channel: N, D, H, W, C.
    let device = Device::best();
    let volume = volume.insert_axis(Axis(0)).insert_axis(Axis(4));
    let x = Tensor::from_array(&device, &volume)?;
    let smooth = AvgPool::new(3).stride(1).padding(Same::Upper).forward(&x)?;
    let small = MaxPool::new(2).forward(&smooth)?;
    println!("{:?} → {:?}", x.dims(), small.dims());

    let small = small.to_array::<f32>()?;
    let small = small.slice(s![0, .., .., .., 0]).into_dimensionality::<Ix3>()?;
    for row in small.index_axis(Axis(0), 12).rows() {
        let line: String = row.iter().map(|&v| shade(v)).flat_map(|c| [c, c]).collect();
        println!("{}", line.trim_end());
    }
    Ok(())
}

fn shade(value: f32) -> char {
    let shades = [' ', '·', '-', '+', '#', '@'];
    shades[((value.clamp(0.0, 0.99)) * shades.len() as f32) as usize]
}
