//! Estimates the time from the instructions that load pixels and multiply them, and from the bytes of the tensors.

use windowpane_geometry::AXES;

use super::config::{Config, LANES};
use crate::conv::common::cost;
use crate::conv::common::gather::{Gather, columns, inner};
use crate::conv::common::run::Run;
use crate::conv::problem::Task;

/// The instructions of a loaded vector of pixels, and of a product.
const PIXEL: f64 = 16.0;
const PRODUCT: f64 = 1.5;

pub(super) fn seconds(config: Config, task: Task<'_>) -> f64 {
    let Task { conv, request, device } = task;
    let pass = request.pass;
    let lanes = LANES as usize;
    let vectors = conv.groups() * columns(conv, pass) / lanes;
    let (mut instructions, mut launches) = (0.0, 1);
    for gather in Gather::all(conv, pass) {
        let along = Run::new(config.rows, &gather.axes[AXES - 1]);
        let width = gather.axes[AXES - 1].rows;
        let units =
            gather.rows(conv) / width.max(1) * width.div_ceil(config.rows as usize) * vectors;
        let taps: usize = gather.axes[..AXES - 1].iter().map(|axis| axis.taps).product();
        let lines = (units * taps * inner(conv, pass) / lanes) as f64;
        let products = f64::from(along.rows * along.taps * LANES * LANES);
        instructions += lines * (PIXEL * f64::from(along.pixels().1) + PRODUCT * products);
        launches += 1;
    }
    let units = device.multiprocessor_count() as f64 * device.units_per_cycle();
    let moving = cost::moving(cost::bytes(conv, request), device);
    device.launch_seconds(launches) + moving.max(instructions / (units * device.clock()))
}
