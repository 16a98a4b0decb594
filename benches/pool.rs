//! Pooling on every backend of the build, side by side, in device time.
//!
//! `cargo bench -p windowpane-benches --features cpu,wgpu`

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use windowpane::{AvgPool, Device, Divisor, MaxPool, Plan, Result, Tensor};

/// A case: its name, the dimensions of its input, and how it pools.
struct Case {
    name: &'static str,
    dims: [usize; 4],
    pool: Pool,
}

enum Pool {
    Max(MaxPool),
    Average(AvgPool),
}

impl Pool {
    fn plan(&self, x: &Tensor) -> Result<Plan> {
        match self {
            Self::Max(pool) => pool.plan(x.device(), x.dtype(), x.dims()),
            Self::Average(pool) => pool.plan(x.device(), x.dtype(), x.dims()),
        }
    }

    fn forward(&self, plan: &Plan, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Max(pool) => pool.forward_as(plan, x),
            Self::Average(pool) => pool.forward_as(plan, x),
        }
    }
}

fn cases() -> [Case; 3] {
    let stem = MaxPool::new([3, 3]).stride([2, 2]).padding([1, 1]);
    let branch = AvgPool::new([3, 3]).stride([1, 1]).padding([1, 1]).divisor(Divisor::Valid);
    [
        Case { name: "max 3×3/2", dims: [8, 56, 56, 64], pool: Pool::Max(stem) },
        Case { name: "average 3×3/1", dims: [8, 56, 56, 64], pool: Pool::Average(branch) },
        Case { name: "max 2×2/2", dims: [8, 112, 112, 32], pool: Pool::Max(MaxPool::new([2, 2])) },
    ]
}

fn pool(criterion: &mut Criterion) {
    for case in cases() {
        let mut group = criterion.benchmark_group(case.name);
        for device in Device::all() {
            let elements: Vec<f32> =
                (0..case.dims.iter().product()).map(|i| ((i * 7919) % 1009) as f32).collect();
            let x = Tensor::from_slice(&device, &elements, case.dims).expect("the case fits");
            let plan = case.pool.plan(&x).expect("the case has a plan");
            group.throughput(Throughput::Bytes(plan.bytes()));
            group.bench_function(BenchmarkId::from_parameter(&device), |bencher| {
                bencher.iter_custom(|iterations| time(&case.pool, &plan, &x, iterations));
            });
        }
        group.finish();
    }
}

/// Device time of so many launches, queued back to back.
fn time(pool: &Pool, plan: &Plan, x: &Tensor, iterations: u64) -> Duration {
    let (last, elapsed) = x
        .device()
        .time(|| {
            let mut last = pool.forward(plan, x)?;
            for _ in 1..iterations {
                last = black_box(pool.forward(plan, x)?);
            }
            Ok(last)
        })
        .expect("the device can be timed");
    last.wait().expect("the case runs");
    elapsed
}

criterion_group!(benches, pool);
criterion_main!(benches);
