//! The estimated time of strips.

use windowpane_geometry::{AXES, Axis};

use super::{Config, units};
use crate::pool::common::{Task, WARP};
use crate::pool::problem::outermost;
use crate::pool::strips::form::{Form, reads};

/// The instructions of a unit besides its loads and its taps; and those of a load's position, twice if it is clamped.
const OF_UNIT: f64 = 89.0;
const OF_LOAD: f64 = 0.55;

/// The waits until a multiprocessor has fetched the code of two unrolled branches.
const OF_BRANCHES: f64 = 5.5;

pub(super) fn seconds(config: &Config, task: Task<'_>) -> f64 {
    let form = Form::new(task, [config.strip, config.columns], reads(task));
    let lines = (form.rows() * form.lines()) as f64;
    // Strips along the width are as far from each other as they are long.
    let apart = if outermost(task.pooling()) == AXES - 1 { config.strip } else { 1 };
    let load = OF_LOAD * (1.0 + f64::from(task.is_clipped()))
        + task.load_cost(reads(task), apart * task.load_step());
    let taps = lines * f64::from(form.columns * form.taps(2));
    let rows = f64::from(form.columns * form.along.outputs * form.along.kernel);
    let strip = lines * f64::from(form.reads()) * load
        + (taps + rows) * task.reduce_cost(task.lanes())
        + if task.settings.along_width { taps * task.shuffle_cost(task.lanes()) } else { 0.0 };
    let (branches, waits) = match form.splits() {
        true => (1.0 + mixed(task, &form), 1.0 + OF_BRANCHES),
        false => (1.0, 1.0),
    };
    task.launch_seconds(units(task, config), OF_UNIT + strip * branches, waits)
}

/// The share of warps that have strips at an edge and others. The fewer units a row of strips has, the more rows a warp
/// has.
fn mixed(task: Task<'_>, form: &Form) -> f64 {
    let axes = task.axes();
    let inner: usize = axes[form.along.axis + 1..].iter().map(Axis::output).product();
    let row = inner * task.pixel() / task.lanes() / form.columns as usize;
    let strips = axes[form.along.axis].output().div_ceil(form.along.outputs as usize);
    (f64::from(2 * WARP) / (row.max(1) * strips) as f64).min(1.0)
}
