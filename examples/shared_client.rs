//! Shares a CubeCL client and its memory: a kernel of this program, then a pooling of windowpane, without a copy.
//!
//! `cargo run --example shared_client -p windowpane-examples`

use cubecl::prelude::*;
use windowpane::{Backend, DType, Device, MaxPool, Tensor};

/// The program's own kernel.
#[cube(launch)]
fn squared(x: &[f32], y: &mut [f32]) {
    if ABSOLUTE_POS < x.len() {
        y[ABSOLUTE_POS] = x[ABSOLUTE_POS] * x[ABSOLUTE_POS];
    }
}

fn main() -> windowpane::Result<()> {
    // Stands in for a program that has opened its client itself.
    let backends = Backend::built().filter(|backend| *backend != Backend::Host);
    let opened = backends.into_iter().find_map(|backend| Device::new(backend, 0).ok());
    let Some(client) = opened.as_ref().and_then(Device::client).cloned() else {
        println!("this machine has no device that CubeCL reaches");
        return Ok(());
    };
    println!("a client of {}", client.name());

    let pixels: Vec<f32> = (0..64).map(|i| (i % 8) as f32 - 4.0).collect();
    let x = client.create_from_slice(bytemuck::cast_slice(&pixels));
    let y = client.empty(size_of_val(&*pixels));
    let (cubes, units) = (CubeCount::new_single(), CubeDim::new_1d(64));
    // SAFETY: both buffers hold 64 elements, as the kernel is told.
    unsafe {
        let buffers = [x, y.clone()].map(|handle| BufferArg::from_raw_parts(handle, pixels.len()));
        let [x, y] = buffers;
        squared::launch(&client, cubes, units, x, y);
    }

    // windowpane works in the memory of the client, on its stream.
    let device = Device::from_client(client.clone());
    let image = Tensor::from_handle(&device, DType::F32, y, [1, 8, 8, 1])?;
    let pooled = MaxPool::new(2).forward(&image)?;
    println!("{:?}: {:?}", pooled.dims(), pooled.to_vec::<f32>()?);

    // And the program reads, or launches kernels on, what windowpane has made.
    let handle = pooled.handle().expect("it is on the device and not empty");
    let bytes = client.read_one_unchecked(handle);
    let pooled: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
    assert_eq!(pooled[..4], [16.0, 4.0, 1.0, 9.0]);
    Ok(())
}
