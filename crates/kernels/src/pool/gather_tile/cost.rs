//! The estimated time of blocks.

use windowpane_geometry::Axis;

use super::form::Form;
use super::{Config, units, window_lanes};
use crate::pool::common::Task;

/// The instructions of a unit besides its windows and its sums; of a window besides its loads; and of a division.
const OF_UNIT: f64 = 190.0;
const OF_WINDOW: f64 = 6.5;
const OF_DIVISION: f64 = 20.0;

pub(super) fn seconds(config: &Config, task: Task<'_>) -> f64 {
    let Some(gradient) = task.reduction().gradient() else { return f64::INFINITY };
    let form = Form::new(task, gradient, config.strip);
    // Windows whose lanes lie along the width have a divisor each.
    let divisors = match form.divides_each() && !form.compares() {
        true => f64::from(form.window_lanes) * OF_DIVISION,
        false => 0.0,
    };
    let window = OF_WINDOW + task.load_windows_cost(window_lanes(task, &form)) + divisors;
    let strides: usize = task.axes().iter().map(Axis::stride).product();
    let over = task.taps() as f64 / strides as f64;
    let moves = if task.settings.along_width { task.shuffle_cost(task.lanes()) } else { 0.0 };
    let sum = over * (task.reduce_cost(task.lanes()) + moves);
    let block = f64::from(form.all_windows()) * window + f64::from(form.all_inputs()) * sum;
    task.launch_seconds(units(task, &form), OF_UNIT + block, 1.0)
}
