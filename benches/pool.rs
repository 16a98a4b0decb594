//! Pooling on every backend of the build, side by side, in device time: one group per case, one line per
//! device, and a page for all in `target/criterion/report`.
//!
//! `cargo bench --features cpu,wgpu`, or with ` -- --quick` in minutes

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use windowpane::{AvgPool, DType, Device, Divisor, LpPool, MaxPool, PoolPlan, Result, Tensor};
use windowpane_benches::{label, time};

/// The plan of a case, and its inputs.
type Ready = (PoolPlan, Vec<Tensor>);

/// A case: its name (`dx` is the gradient, `idx` with indices), and how it is prepared on a device.
struct Case {
    name: &'static str,
    ready: fn(&Device) -> Result<Ready>,
}

const CASES: [Case; 10] = [
    Case { name: "max 3x3", ready: max },
    Case { name: "max 3x3 idx", ready: max_with_indices },
    Case { name: "max 3x3 dx", ready: max_gradient },
    Case { name: "max 2x2 nchw", ready: max_channels_first },
    Case { name: "avg 3x3", ready: average },
    Case { name: "avg 3x3 dx", ready: average_gradient },
    Case { name: "max 13x13", ready: large },
    Case { name: "max 3x3x3", ready: volume },
    Case { name: "avg to 7x7", ready: adaptive },
    Case { name: "norm 2x2", ready: norm },
];

/// Eight images, as in an early layer.
const IMAGES: [usize; 4] = [8, 56, 56, 64];

/// The first window of many networks.
fn stem() -> MaxPool {
    MaxPool::new([3, 3]).stride([2, 2]).padding([1, 1])
}

/// The window of a branch, which keeps the spatial extents.
fn branch() -> AvgPool {
    AvgPool::new([3, 3]).stride([1, 1]).padding([1, 1]).divisor(Divisor::Valid)
}

fn images(device: &Device) -> Result<Tensor> {
    Tensor::random(device, DType::F32, IMAGES, 1)
}

fn max(device: &Device) -> Result<Ready> {
    Ok((stem().plan(device, DType::F32, &IMAGES)?, vec![images(device)?]))
}

fn max_with_indices(device: &Device) -> Result<Ready> {
    Ok((stem().plan_with_indices(device, DType::F32, &IMAGES)?, vec![images(device)?]))
}

fn max_gradient(device: &Device) -> Result<Ready> {
    let (y, winners) = stem().forward_with_indices(&images(device)?)?;
    Ok((stem().plan_backward(device, DType::F32, &IMAGES)?, vec![y, winners]))
}

fn max_channels_first(device: &Device) -> Result<Ready> {
    let dims = [8, 64, 56, 56];
    let pool = MaxPool::new([2, 2]).layout(windowpane::Layout::ChannelsFirst);
    let x = Tensor::random(device, DType::F32, dims, 1)?;
    Ok((pool.plan(device, DType::F32, &dims)?, vec![x]))
}

fn average(device: &Device) -> Result<Ready> {
    Ok((branch().plan(device, DType::F32, &IMAGES)?, vec![images(device)?]))
}

fn average_gradient(device: &Device) -> Result<Ready> {
    // The output gradient; the output is as large as the input.
    Ok((branch().plan_backward(device, DType::F32, &IMAGES)?, vec![images(device)?]))
}

fn large(device: &Device) -> Result<Ready> {
    let pool = MaxPool::new([13, 13]).stride([1, 1]).padding([6, 6]);
    Ok((pool.plan(device, DType::F32, &IMAGES)?, vec![images(device)?]))
}

fn volume(device: &Device) -> Result<Ready> {
    let dims = [1, 16, 56, 56, 32];
    let pool = MaxPool::new([3, 3, 3]).stride([2, 2, 2]).padding([1, 1, 1]);
    let x = Tensor::random(device, DType::F32, dims, 1)?;
    Ok((pool.plan(device, DType::F32, &dims)?, vec![x]))
}

fn adaptive(device: &Device) -> Result<Ready> {
    let pool = AvgPool::adaptive([7, 7]);
    Ok((pool.plan(device, DType::F32, &IMAGES)?, vec![images(device)?]))
}

fn norm(device: &Device) -> Result<Ready> {
    let pool = LpPool::new(2.0, [2, 2]);
    Ok((pool.plan(device, DType::F32, &IMAGES)?, vec![images(device)?]))
}

fn pool(criterion: &mut Criterion) {
    for case in CASES {
        let mut group = criterion.benchmark_group(case.name);
        for device in Device::all() {
            let (plan, inputs) = (case.ready)(&device).expect("the case is for every device");
            let inputs: Vec<&Tensor> = inputs.iter().collect();
            group.throughput(Throughput::Bytes(plan.bytes()));
            group.bench_function(BenchmarkId::from_parameter(label(&device)), |bencher| {
                bencher.iter_custom(|iterations| {
                    time(&device, iterations, |results| plan.run(&inputs, results))
                });
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    // Emulated GPUs are slow; ten samples are enough.
    config = Criterion::default().sample_size(10);
    targets = pool
}
criterion_main!(benches);
