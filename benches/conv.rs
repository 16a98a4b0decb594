//! Convolution on every backend of the build, side by side, in device time: one group per case, one line
//! per device, and a page for all in `target/criterion/report`.
//!
//! `cargo bench -p windowpane-benches --features cpu,wgpu --bench conv`, or with ` -- --quick`

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use windowpane::{Backend, Conv, ConvPlan, DType, Device, Result, Tensor};
use windowpane_benches::{label, time};

/// A case: its name (window, filters or groups, or the gradient), the dimensions of input and filters,
/// and the operator.
struct Case {
    name: &'static str,
    x: [usize; 4],
    w: [usize; 4],
    conv: Conv,
    pass: Pass,
}

/// The pass that is computed.
#[derive(Clone, Copy)]
enum Pass {
    Forward,
    Data,
    Weight,
}

fn cases() -> [Case; 6] {
    let same = Conv::new([3, 3]).padding([1, 1]);
    let layer =
        |name, pass| Case { name, x: [8, 28, 28, 128], w: [128, 3, 3, 128], conv: same, pass };
    let forward = |name, x, w, conv| Case { name, x, w, conv, pass: Pass::Forward };
    [
        forward("3x3 64", [8, 56, 56, 64], [64, 3, 3, 64], same),
        layer("3x3 128", Pass::Forward),
        layer("3x3 dx", Pass::Data),
        layer("3x3 dw", Pass::Weight),
        forward("1x1 256", [8, 56, 56, 64], [256, 1, 1, 64], Conv::new([1, 1])),
        forward(
            "7x7 g192",
            [8, 56, 56, 192],
            [192, 7, 7, 1],
            Conv::new([7, 7]).padding([3, 3]).groups(192),
        ),
    ]
}

impl Case {
    /// The plan for this many images on a device, and its inputs.
    fn ready(&self, device: &Device, images: usize) -> Result<(ConvPlan, [Tensor; 2])> {
        let Self { x, w, conv, .. } = self;
        let x = &[images, x[1], x[2], x[3]];
        // These windows keep the spatial extents: only the channel count of the output differs.
        let y = [x[0], x[1], x[2], w[0]];
        let random = |dims: &[usize; 4], seed| Tensor::random(device, DType::F32, *dims, seed);
        Ok(match self.pass {
            Pass::Forward => (conv.plan(device, DType::F32, x, w)?, [random(x, 1)?, random(w, 2)?]),
            Pass::Data => {
                let plan = conv.plan_backward_data(device, DType::F32, x, w)?;
                (plan, [random(&y, 1)?, random(w, 2)?])
            }
            Pass::Weight => {
                let plan = conv.plan_backward_weight(device, DType::F32, x, w)?;
                (plan, [random(&y, 1)?, random(x, 2)?])
            }
        })
    }
}

/// All images of a case, or one, as the label says: eight would take minutes on the scalar reference and on
/// emulated SPIR-V, which has only the simplest kernels.
fn images(device: &Device, case: &Case) -> (usize, String) {
    let emulated = device.backend() == Backend::Vulkan && device.name().contains("llvmpipe");
    match device.backend() == Backend::Host || emulated {
        true => (1, format!("{}, one", label(device))),
        false => (case.x[0], label(device)),
    }
}

fn conv(criterion: &mut Criterion) {
    for case in cases() {
        let mut group = criterion.benchmark_group(case.name);
        for device in Device::all() {
            let (images, name) = images(&device, &case);
            let (plan, inputs) = case.ready(&device, images).expect("the case is for every device");
            group.throughput(Throughput::Elements(plan.operations()));
            group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                bencher.iter_custom(|iterations| {
                    time(&device, iterations, |results| plan.run(&inputs.each_ref(), results))
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
    targets = conv
}
criterion_main!(benches);
