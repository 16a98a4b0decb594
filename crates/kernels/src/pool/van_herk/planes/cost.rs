//! The estimated time of the pass over planes.

use super::Cubes;
use super::form::{self, Form, tile};
use crate::pool::common::{Task, WORD};

/// The instructions of a unit for each word of its column, with the word of a row that it reduces too. A second column of
/// a unit takes half as many. Relative to these: a division before, and a result that goes through shared memory.
const OF_WORD: f64 = 34.0;
const OF_DIVISION: f64 = 0.88;
const OF_RESULT: f64 = 0.58;

/// The barriers of a block of rows: before its rows are reduced, and after.
const BARRIERS: f64 = 2.0;

pub(in crate::pool::van_herk) fn seconds(task: Task<'_>, divides: bool) -> f64 {
    let Some((tile, _)) = tile(task.problem, task.settings.units) else { return f64::INFINITY };
    let own = form::own(task);
    let form = Form::new(own, None, tile);
    let cubes = Cubes::new(task, &form, tile);
    let blocks = (cubes.pieces.piece_blocks + form.before() as usize) as f64;
    let division = if divides { OF_DIVISION } else { 0.0 };
    let result = if form.written == 0 { OF_RESULT } else { 0.0 };
    let words =
        own.settings.accumulator.size().div_ceil(WORD) as f64 * f64::from(1 + form.lanes) / 2.0;
    let element = OF_WORD * words * (1.0 + division + result);
    let elements = blocks * f64::from(form.height.block);
    let units = cubes.count * task.settings.units as usize;
    task.launch_seconds(units, elements * element, BARRIERS * blocks)
}
