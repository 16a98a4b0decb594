//! Splits a batch over the devices of a backend and adds up the filter gradients of its parts.
//!
//! The parts have nothing to exchange but these gradients. Between GPUs that NVIDIA's NCCL connects, CubeCL's collective
//! operation adds them on the GPUs, and every GPU gets the sum. Elsewhere they are read and added on the host.
//! A single device computes two parts, one after the other.
//!
//! `cargo run --release --example several_devices -p windowpane-examples --features cuda`
//!
//! CubeCL looks for NCCL when a device is opened, under the name `libnccl.so`. If a machine has only `libnccl.so.2`, put
//! a link with the other name into a folder of `LD_LIBRARY_PATH`.

use cubecl::client::{ClientGroup, MemberBuffers};
use cubecl::ir::{ElemType, FloatKind};
use cubecl::server::ReduceOperation;
use windowpane::{Conv, DType, Device, Tensor};

fn main() -> windowpane::Result<()> {
    let best = Device::best();
    let others = (1..).map_while(|index| Device::new(best.backend(), index).ok());
    let others = others.filter(|device| !device.is_emulated());
    let devices: Vec<Device> = std::iter::once(best.clone()).chain(others).collect();
    let parts = devices.len().max(2);
    let (samples, conv) = (8 * parts, Conv::new(3).padding(1));
    // The input of a layer, and the gradient of the loss with respect to its output.
    let x = Tensor::random(&devices[0], DType::F32, [samples, 28, 28, 8], 1)?;
    let dy = Tensor::random(&devices[0], DType::F32, [samples, 28, 28, 16], 2)?;
    let whole = conv.backward_weight(&dy, &x)?;

    let moved = (0..parts).map(|part| {
        let device = &devices[part % devices.len()];
        let own = |tensor: &Tensor| tensor.narrow(0, 8 * part, 8)?.to_device(device);
        Ok([own(&dy)?, own(&x)?])
    });
    let moved = moved.collect::<windowpane::Result<Vec<_>>>()?;
    // The launches only queue work, so the devices compute at the same time.
    let gradients = moved.iter().map(|[dy, x]| conv.backward_weight(dy, x));
    let gradients = gradients.collect::<windowpane::Result<Vec<Tensor>>>()?;
    let sums = match group(&devices) {
        Ok(group) => {
            println!("added on the devices, by CubeCL's collective operation:");
            reduced(&group, &gradients)?
        }
        Err(reason) => {
            println!("added on the host ({reason}):");
            added(&gradients)?
        }
    };

    let whole = whole.to_vec::<f32>()?;
    let largest = whole.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    println!(
        "  part  device    samples  norm of its gradient  norm of the sum  off the whole batch's by"
    );
    for (part, (own, sum)) in gradients.iter().zip(&sums).enumerate() {
        let (first, device) = (8 * part, own.device().to_string());
        let (own, sum) = (norm(&own.to_vec()?), sum.to_vec::<f32>()?);
        let off = sum.iter().zip(&whole).map(|(sum, whole)| (sum - whole).abs()).fold(0., f32::max);
        println!(
            "  {part:<5} {device:<9} {first:>2}..{:<3}  {own:>20.4}  {:>15.4}  {:>24.1e}",
            first + 8,
            norm(&sum),
            off / largest,
        );
        // Sums in another order are rounded differently, and by no more than that.
        assert!(off < 1e-4 * largest, "part {part} is off by {off} of {largest}");
    }
    Ok(())
}

/// The devices as members of collective operations, or the reason why they cannot be.
fn group(devices: &[Device]) -> Result<ClientGroup, String> {
    if let [device] = devices {
        return Err(format!("{} has one device", device.backend()));
    }
    let clients = devices.iter().filter_map(Device::client).cloned().collect();
    ClientGroup::new(clients).map_err(|error| error.to_string())
}

/// The sum of the members' gradients, on each member's device.
fn reduced(group: &ClientGroup, gradients: &[Tensor]) -> windowpane::Result<Vec<Tensor>> {
    let members = group.clients().iter().zip(gradients);
    let buffers: Vec<MemberBuffers> = members
        .map(|(client, gradient)| MemberBuffers {
            src: gradient.handle().expect("it is on the device and not empty"),
            dst: client.empty(gradient.len() * size_of::<f32>()),
        })
        .collect();
    let sums: Vec<_> = buffers.iter().map(|member| member.dst.clone()).collect();
    group.all_reduce(buffers, ElemType::Float(FloatKind::F32), ReduceOperation::Sum);
    let sums = sums.into_iter().zip(gradients);
    sums.map(|(sum, gradient)| {
        Tensor::from_handle(gradient.device(), DType::F32, sum, gradient.dims())
    })
    .collect()
}

/// The same sum, added on the host and copied to the device of each part.
fn added(gradients: &[Tensor]) -> windowpane::Result<Vec<Tensor>> {
    let mut sum = vec![0f32; gradients[0].len()];
    for gradient in gradients {
        let elements = gradient.to_vec::<f32>()?;
        sum.iter_mut().zip(elements).for_each(|(sum, element)| *sum += element);
    }
    let copies = gradients.iter();
    copies.map(|own| Tensor::from_slice(own.device(), &sum, own.dims())).collect()
}

fn norm(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum::<f32>().sqrt()
}
