//! Estimates the time from the instructions that load pixels and multiply them, or from the latency of a unit's loads.
//! Part of the time of moving the tensors is added, because few loads are started ahead.

use super::chunk_vectors;
use super::config::Config;
use super::form::Form;
use super::rolling;
use crate::conv::common::cost;
use crate::conv::common::epilogue::Epilogue;
use crate::conv::common::gather::Gather;
use crate::conv::problem::Task;

/// The instructions of a loaded vector of pixels, and of a product.
const PIXEL: f64 = 17.0;
const PRODUCT: f64 = 2.4;

/// The same for a unit that walks down lines, the instructions of a walk, and the cycles from one line to the next.
const ROLLING_PIXEL: f64 = 4.2;
const ROLLING_PRODUCT: f64 = 1.67;
const WALK: f64 = 250.0;
const ROLLING_LINE: f64 = 350.0;

/// The cycles from one pixel of a unit to the next, and the units of a multiprocessor that wait at the same time.
const LATENCY: f64 = 68.0;
const RESIDENT: f64 = 1024.0;

/// The share of the time of a copy that is not hidden behind instructions.
const EXPOSED: f64 = 0.62;

pub(super) fn seconds(config: Config, task: Task<'_>) -> f64 {
    let Task { conv, request, device } = task;
    let pass = request.pass;
    let lanes = config.lanes as usize;
    let chunk_vectors = chunk_vectors(conv, lanes);
    let epilogue = Epilogue::NONE.form(request.dtype);
    let (mut instructions, mut waiting, mut launches) = (0.0, 0.0, 1);
    let rolls = rolling::rolls(task, config);
    for gather in Gather::all(conv, pass) {
        if rolls && let Some(form) = rolling::Form::new(task, config, &gather, epilogue) {
            let units = rolling::Pieces::new(conv, config, gather.axes).units as f64;
            let lines = f64::from(config.lines) + f64::from(form.slots() - 1);
            let pixels = lines * f64::from(form.step * form.pixels());
            let products = lines * f64::from(form.taps * form.along.rows * form.along.taps);
            instructions +=
                units * (ROLLING_PIXEL * pixels + ROLLING_PRODUCT * products * lanes as f64 + WALK);
            waiting += ROLLING_LINE * lines * f64::from(form.step);
            launches += 1;
            continue;
        }
        let form =
            Form::new(conv, pass, device.cores.is_some(), config, &gather, chunk_vectors, epilogue);
        let units = form.units(conv, &gather, lanes) as f64;
        let [depth, height, _] = gather.axes;
        let read = height.taps + (form.lines as usize - 1) * height.step;
        let pixels = (depth.taps * read) as f64 * f64::from(form.along.pixels().1);
        let taps = depth.taps * height.taps;
        let products =
            (taps * lanes) as f64 * f64::from(form.lines * form.along.rows * form.along.taps);
        instructions += units * (PIXEL * pixels + PRODUCT * products);
        let waves = units / (device.multiprocessor_count() as f64 * RESIDENT);
        waiting += LATENCY * pixels * waves.max(1.0);
        launches += 1;
    }
    with_tensors(instructions, waiting, task) + device.launch_seconds(launches)
}

/// The seconds of these instructions, or of these cycles of waiting, and of moving the tensors.
fn with_tensors(instructions: f64, waiting: f64, task: Task<'_>) -> f64 {
    let Task { conv, request, device } = task;
    let multiplying = instructions / device.speeds.vector as f64;
    let exposed = EXPOSED * device.copy_seconds(cost::bytes(conv, request));
    // The units of a processor do not wait for one another.
    let cycles = if device.cores.is_some() { 0.0 } else { waiting };
    multiplying.max(cycles / device.clock()) + cost::START / device.clock() + exposed
}
