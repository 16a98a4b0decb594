//! Asks how a convolution will run, changes that, measures what is fastest, and records what runs often.
//!
//! `cargo run --release --example plans -p windowpane-examples`

use std::time::Instant;

use windowpane::{Activation, Conv, ConvAlgorithm, DType, Device, Tensor, Tuned};

fn main() -> windowpane::Result<()> {
    let device = Device::best();
    let conv = Conv::new(3).padding(1).activation(Activation::Relu);
    let (x, w) = ([4, 28, 28, 16], [16, 3, 3, 16]);

    // A plan launches nothing. It prints as a table of choices and symbols.
    let plan = conv.plan(&device, DType::F32, &x, &w)?;
    println!("{plan}");
    for (kernel, reason) in plan.why() {
        println!("{kernel:14} {reason}");
    }

    // Another kernel, by name.
    let direct = conv.algorithm(ConvAlgorithm::Direct).plan(&device, DType::F32, &x, &w)?;
    // The fastest kernel and tile, by measuring; nothing changes on `host`. Later plans of this problem use it, and a file can keep it.
    let tuned = plan.tune()?;
    println!("\n{} problems tuned:\n{}", Tuned::all().len(), Tuned::all());

    let x = Tensor::random(&device, DType::F32, x, 1)?;
    let w = Tensor::random(&device, DType::F32, w, 2)?;
    for (name, plan) in [("planned", &plan), ("direct", &direct), ("tuned", &tuned)] {
        // A plan that runs again writes its result into the memory of the last one.
        let mut y = Vec::new();
        plan.run(&[&x, &w], &mut y)?;
        let ((), took) = device.time(|| plan.run(&[&x, &w], &mut y))?;
        println!("{name:8} {:8} {took:?}", plan.algorithm());
    }

    // Ten launches as one: a graph on CUDA.
    let mut y = Vec::new();
    let mut recording = device.record(|| (0..10).try_for_each(|_| tuned.run(&[&x, &w], &mut y)))?;
    let start = Instant::now();
    recording.replay()?;
    device.wait()?;
    println!("ten recorded launches took {:?}", start.elapsed());
    Ok(())
}
