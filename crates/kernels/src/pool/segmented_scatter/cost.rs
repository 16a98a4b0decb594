//! The estimated time of cubes that walk down planes.

use super::{Cubes, Form, Tile};
use crate::pool::common::{SECTOR, Task};

/// The instructions of a unit for each row of windows, besides its loads; for each input that it completes, besides its
/// store; and for each block.
const OF_ROW: f64 = 39.0;
const OF_INPUT: f64 = 11.0;
const OF_BLOCK: f64 = 580.0;

/// The barriers of a block: after its rows of windows, and after its rows of inputs.
const BARRIERS: f64 = 2.0;

pub(super) fn seconds(task: Task<'_>) -> f64 {
    let Some(tile) = Tile::new(task) else { return f64::INFINITY };
    let form = Form::new(task, tile);
    let cubes = Cubes::new(task, &tile, &form);
    // A cube with few channels of a pixel uses only a part of each sector.
    let apart = match task.pixel() {
        1 => 1,
        _ => (SECTOR / (tile.lanes * task.dtype().size())).max(1),
    };
    let access = task.load_cost(1, 1) * apart as f64;
    let inputs = (form.done as usize * tile.columns * tile.lanes) as f64;
    let inputs = inputs / f64::from(task.settings.units) * (OF_INPUT + access);
    let rows = tile.rows as f64 * (OF_ROW + 2.0 * access);
    let blocks = (cubes.pieces.piece_blocks + cubes.reach) as f64;
    let units = cubes.count * task.settings.units as usize;
    task.launch_seconds(units, blocks * (rows + inputs + OF_BLOCK), BARRIERS * blocks)
}
