//! Filters a volume that is larger than what a device should hold, slab by slab.
//!
//! A window of 5 slices reads two more on each side: the halo. So each slab is cut with its halo, filtered without padding
//! along the depth, and the results fit together without a seam.
//!
//! `cargo run --example slabs -p windowpane-examples`

use ndarray::{Array5, Axis, Slice, concatenate};
use windowpane::{AvgPool, Device, Tensor};

const DEPTH: usize = 50;
const SLAB: usize = 16;
const HALO: usize = 2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::best();
    let volume = Array5::from_shape_fn((1, DEPTH, 24, 24, 1), |(_, d, h, w, _)| {
        ((d * d + 3 * h + 5 * w) % 17) as f32
    });
    let pool = AvgPool::new(5).stride(1);

    let mut parts = Vec::new();
    for first in (0..DEPTH).step_by(SLAB) {
        let end = (first + SLAB).min(DEPTH);
        // At the ends of the volume the halo is padding.
        let (from, to) = (first.saturating_sub(HALO), (end + HALO).min(DEPTH));
        let padding = [(HALO - (first - from), HALO - (to - end)), (HALO, HALO), (HALO, HALO)];
        let slab = volume.slice_axis(Axis(1), Slice::from(from..to));
        let y = pool.padding(padding).forward(&Tensor::from_array(&device, &slab)?)?;
        println!("slices {from:2} to {to:2} give {first:2} to {end:2}, padded by {:?}", padding[0]);
        parts.push(y.to_array::<f32>()?);
    }
    let views: Vec<_> = parts.iter().map(|part| part.view()).collect();
    let filtered = concatenate(Axis(1), &views)?;

    let whole = pool.padding(HALO).forward(&Tensor::from_array(&device, &volume)?)?;
    assert_eq!(filtered.shape(), whole.dims());
    let whole = whole.to_array::<f32>()?;
    let apart = filtered.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("at most {apart} apart from the volume as a whole");
    assert!(apart < 1e-5);
    Ok(())
}
