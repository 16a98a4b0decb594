//! The estimated time of teams, and of planes in shared memory.

use super::{Config, FLIGHT, cubes_of_a_part};
use crate::pool::common::Task;

/// The instructions of a unit besides its taps; of a tap besides its load and its reduction; and of a step that combines
/// the results of a team.
const OF_UNIT: f64 = 140.0;
const OF_TAP: f64 = 37.0;
const OF_STEP: f64 = 14.0;

pub(super) fn seconds(config: &Config, task: Task<'_>) -> f64 {
    let (settings, lanes) = (task.settings, task.lanes());
    let taps = task.taps();
    let cubes = cubes_of_a_part(task, config);
    let units = cubes * config.parts * settings.units as usize;
    if config.planes > 0 {
        let copies = (config.planes * taps) as f64 / lanes as f64 / f64::from(settings.units);
        let copies = copies * 2.0 * task.load_cost(lanes, 1);
        let plane = taps as f64 * (task.load_cost(1, 1) + task.reduce_cost(1));
        return task.launch_seconds(units, OF_UNIT + copies + plane + task.barrier_cost(), 2.0);
    }
    let vectors = taps / if settings.along_width { lanes } else { 1 };
    let loads = vectors.div_ceil(config.team as usize * config.parts).div_ceil(FLIGHT as usize);
    let loads = loads as f64;
    let each = f64::from(FLIGHT) * (OF_TAP + task.load_cost(lanes, 1) + task.reduce_cost(lanes));
    let steps = f64::from(config.team.ilog2());
    let instructions = OF_UNIT + loads * each + steps * (OF_STEP + task.barrier_cost());
    let own = task.launch_seconds(units, instructions, loads + steps);
    let combining = if config.parts > 1 { task.empty_launch_seconds() } else { 0.0 };
    own + combining
}
