//! How many kernels the layers of a network need.

use std::collections::HashSet;

use cubecl::prelude::KernelId;
use windowpane_kernels::conv::{self, Operands, Plan, PlanOptions, Request};
use windowpane_kernels::device::profiles::H200;
use windowpane_kernels::{
    Activation, Convolution, Filter, FilterLayout, Layout, Precision, Shape, Target, Window,
};

use crate::devices::Device;

/// The convolutions of ResNet-50: filters, channels, extents of the plane and of the window, and stride.
const RESNET_50: [[usize; 5]; 23] = [
    [64, 3, 224, 7, 2],
    [64, 64, 56, 1, 1],
    [64, 64, 56, 3, 1],
    [256, 64, 56, 1, 1],
    [64, 256, 56, 1, 1],
    [128, 256, 56, 1, 1],
    [128, 128, 56, 3, 2],
    [512, 128, 28, 1, 1],
    [512, 256, 56, 1, 2],
    [128, 512, 28, 1, 1],
    [128, 128, 28, 3, 1],
    [256, 512, 28, 1, 1],
    [256, 256, 28, 3, 2],
    [1024, 256, 14, 1, 1],
    [1024, 512, 28, 1, 2],
    [256, 1024, 14, 1, 1],
    [256, 256, 14, 3, 1],
    [512, 1024, 14, 1, 1],
    [512, 512, 14, 3, 2],
    [2048, 512, 7, 1, 1],
    [2048, 1024, 14, 1, 2],
    [512, 2048, 7, 1, 1],
    [512, 512, 7, 3, 1],
];

/// The most kernels for their 69 passes, the stem's data gradient among them. The network's poolings, which are not
/// launched here, have at most four more.
const MOST: usize = 56;

/// Launches all passes of all layers by these plans, and collects the kernels.
fn launch(
    device: &Device,
    kernels: &mut HashSet<KernelId>,
    batch: usize,
    plan: &mut impl FnMut(&Convolution, Request) -> Plan,
) {
    let capabilities = &H200.capabilities;
    let target = Target { client: &device.client, device: capabilities };
    let (dtype, precision) = (device.half, Precision::Strict);
    for [count, channels, side, extent, stride] in RESNET_50 {
        let shape = Shape::new(batch, channels, [side, side].into()).unwrap();
        let filter = Filter::new(count, channels, [extent, extent].into()).unwrap();
        let window = Window::new([extent, extent]);
        let window = window.stride([stride, stride]).padding([extent / 2, extent / 2]);
        let (layout, filters) = (Layout::ChannelsLast, FilterLayout::Fhwc);
        let conv = Convolution::new(shape, filter, &window, 1, layout, filters).unwrap();
        let elements = [conv.input(), conv.output()].map(|it| it.elements());
        let empty = |elements| device.client.empty(elements * dtype.size());
        let ([x, y], w) = (elements.map(empty), empty(conv.filter().elements()));
        let (bias, residual, activation) = (None, None, Activation::None);
        for operands in [
            Operands::Forward { x: &x, w: &w, bias, residual, activation, y: &y },
            Operands::Data { dy: &y, w: &w, dx: &x },
            Operands::Weight { dy: &y, x: &x, dw: &w },
        ] {
            let plan = plan(&conv, Request { pass: operands.pass(), dtype, precision });
            conv::launch(target, &conv, dtype, precision, &plan, operands).unwrap();
            let launches = device.launches.take(&device.client);
            kernels.extend(launches.iter().map(|launch| launch.kernel.id()));
        }
    }
}

/// Forward and both gradients of a network are few kernels, and the batch is in none of them: the same plans launch the
/// same kernels for other batches.
#[test]
fn a_network_needs_few_kernels() {
    let (device, mut kernels, mut plans) = (Device::cuda(), HashSet::new(), Vec::new());
    launch(&device, &mut kernels, 32, &mut |conv, request| {
        let plan = Plan::new(conv, request, PlanOptions::default(), &H200.capabilities);
        plans.push(plan.unwrap());
        plans[plans.len() - 1]
    });
    let count = kernels.len();
    println!("{count} kernels");
    assert!(count <= MOST, "{count} kernels");
    for batch in [24, 64] {
        let mut same = plans.iter();
        launch(&device, &mut kernels, batch, &mut |_, _| *same.next().unwrap());
        assert_eq!(kernels.len(), count, "batch {batch}");
    }
}
