//! The estimated time of blocks.

use windowpane_geometry::Axis;

use super::form::Form;
use super::{Config, units, window_lanes};
use crate::device::Capabilities;
use crate::pool::common::cost::Meter;
use crate::pool::common::settings::Settings;
use crate::pool::problem::Problem;

/// The instructions of a unit besides its windows and its sums; of a window besides its loads; and of a division.
const OF_UNIT: f64 = 190.0;
const OF_WINDOW: f64 = 6.5;
const OF_DIVISION: f64 = 20.0;

pub(super) fn seconds(
    config: &Config,
    settings: &Settings,
    problem: Problem<'_>,
    device: &Capabilities,
) -> f64 {
    let Problem { pooling, reduction, dtype, .. } = problem;
    let meter = Meter::new(problem, settings, device);
    let Some(gradient) = reduction.gradient() else { return f64::INFINITY };
    let form = Form::new(pooling, gradient, dtype, settings, config.strip);
    // Windows whose lanes lie along the width have a divisor each.
    let divisors = match form.divides_each() && !form.compares() {
        true => f64::from(form.window_lanes) * OF_DIVISION,
        false => 0.0,
    };
    let window = OF_WINDOW + meter.load_windows(window_lanes(&form, settings)) + divisors;
    let strides: usize = pooling.grid().axes().iter().map(Axis::stride).product();
    let over = pooling.grid().taps() as f64 / strides as f64;
    let moves = if settings.across { meter.shuffle(settings.lanes) } else { 0.0 };
    let sum = over * (meter.reduce(settings.lanes) + moves);
    let block = f64::from(form.all_windows()) * window + f64::from(form.all_inputs()) * sum;
    meter.seconds(units(pooling, settings, &form), OF_UNIT + block, 1.0)
}
