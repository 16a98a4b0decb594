//! Convolution on every backend of the build, side by side, in device time.
//!
//! `cargo bench -p windowpane-benches --features cpu,wgpu --bench conv`

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use windowpane::{Conv, ConvPlan, Device, Tensor};

/// A case: its name, the dimensions of input and filters, and how it convolves.
struct Case {
    name: &'static str,
    x: [usize; 4],
    w: [usize; 4],
    conv: Conv,
}

fn cases() -> [Case; 4] {
    let same = Conv::new([3, 3]).padding([1, 1]);
    [
        Case { name: "3×3 64→64", x: [8, 56, 56, 64], w: [64, 3, 3, 64], conv: same },
        Case { name: "3×3 128→128", x: [8, 28, 28, 128], w: [128, 3, 3, 128], conv: same },
        Case {
            name: "1×1 64→256",
            x: [8, 56, 56, 64],
            w: [256, 1, 1, 64],
            conv: Conv::new([1, 1]),
        },
        Case {
            name: "7×7 depthwise 192",
            x: [8, 56, 56, 192],
            w: [192, 7, 7, 1],
            conv: Conv::new([7, 7]).padding([3, 3]).groups(192),
        },
    ]
}

/// A device that only emulates one, or the scalar reference, would take minutes.
fn is_fast(device: &Device) -> bool {
    *device == Device::best() || device.backend() == windowpane::Backend::Cpu
}

fn conv(criterion: &mut Criterion) {
    for case in cases() {
        let mut group = criterion.benchmark_group(case.name);
        group.sample_size(10).measurement_time(Duration::from_secs(2));
        for device in Device::all().into_iter().filter(is_fast) {
            let [x, w] = [&case.x, &case.w].map(|dims| {
                let elements: Vec<f32> = (0..dims.iter().product())
                    .map(|i| ((i * 7919) % 1009) as f32 / 1009.0)
                    .collect();
                Tensor::from_slice(&device, &elements, dims).expect("the case fits")
            });
            let plan = case.conv.plan(&device, x.dtype(), x.dims(), w.dims());
            let plan = plan.expect("the case has a plan");
            group.throughput(Throughput::Elements(plan.operations()));
            group.bench_function(BenchmarkId::from_parameter(&device), |bencher| {
                bencher.iter_custom(|iterations| time(&case.conv, &plan, [&x, &w], iterations));
            });
        }
        group.finish();
    }
}

/// Device time of so many launches, queued back to back.
fn time(conv: &Conv, plan: &ConvPlan, [x, w]: [&Tensor; 2], iterations: u64) -> Duration {
    let run = || conv.forward_as(plan, x, w, None, None);
    let (last, elapsed) = x
        .device()
        .time(|| {
            let mut last = run()?;
            for _ in 1..iterations {
                last = black_box(run()?);
            }
            Ok(last)
        })
        .expect("the device can be timed");
    last.wait().expect("the case runs");
    elapsed
}

criterion_group!(benches, conv);
criterion_main!(benches);
