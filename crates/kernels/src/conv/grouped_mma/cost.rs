//! Estimates the time from the cycles of a multiprocessor's cubes, which run one after the other.

use super::config::Config;
use super::form::{Form, PLANE};
use crate::conv::common::{Epilogue, Gather, cost};
use crate::conv::problem::Task;

/// The cycles of a plane besides its products, and of a product of fragments.
const PLANE_CYCLES: f64 = 150.0;
const FRAGMENT: f64 = 3.7;

/// The time of staging pixels and results, relative to that of a copy in the cache. It is not hidden behind products.
const STAGED: f64 = 1.7;

pub(super) fn seconds(config: Config, task: Task<'_>) -> f64 {
    let Task { conv, request, device } = task;
    let pass = request.pass;
    let bytes = cost::bytes(conv, request);
    let multiprocessors = device.multiprocessor_count();
    let tile = config.tile;
    let (mut cycles, mut staging) = (cost::START, 0.0);
    for gather in Gather::all(conv, pass) {
        let form = Form::new(conv, pass, &gather, &tile, &Epilogue::NONE);
        let cubes: usize = form.cubes(conv, &gather).iter().product();
        let fragments = form.height.rows * form.height.taps * form.steps() * form.members;
        let planes = f64::from(form.units() / PLANE);
        let cube = planes * (PLANE_CYCLES + FRAGMENT * f64::from(fragments * form.walks));
        let most = cubes.div_ceil(multiprocessors) as f64;
        cycles += most * cube;
        let share = most * multiprocessors as f64 / cubes.max(1) as f64;
        staging += STAGED * share * bytes / device.speeds.cache as f64;
    }
    device.launch_seconds(1) + cost::moving(bytes, device).max(cycles / device.clock() + staging)
}
