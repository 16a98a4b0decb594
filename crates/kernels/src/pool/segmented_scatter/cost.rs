//! The estimated time of cubes that walk down planes.

use super::{Cubes, Form, Tile};
use crate::device::Capabilities;
use crate::pool::common::cost::{Meter, SECTOR};
use crate::pool::common::settings::Settings;
use crate::pool::problem::{Problem, pixel_channels};

/// The instructions of a unit for each row of windows, besides its loads; for each input that it completes, besides its
/// store; and for each block.
const OF_ROW: f64 = 39.0;
const OF_INPUT: f64 = 11.0;
const OF_BLOCK: f64 = 580.0;

/// The barriers of a block: after its rows of windows, and after its rows of inputs.
const BARRIERS: f64 = 2.0;

pub(super) fn seconds(settings: &Settings, problem: Problem<'_>, device: &Capabilities) -> f64 {
    let Problem { pooling, dtype, .. } = problem;
    let meter = Meter::new(problem, settings, device);
    let Some(tile) = Tile::new(problem, settings) else { return f64::INFINITY };
    let form = Form::new(problem, settings, tile);
    let cubes = Cubes::new(pooling, settings, &tile, &form);
    // A cube with few channels of a pixel uses only a part of each sector.
    let apart = match pixel_channels(pooling) {
        1 => 1,
        _ => (SECTOR / (tile.lanes * dtype.size())).max(1),
    };
    let access = meter.load(1, 1) * apart as f64;
    let inputs = (form.done as usize * tile.columns * tile.lanes) as f64;
    let inputs = inputs / f64::from(settings.units) * (OF_INPUT + access);
    let rows = tile.rows as f64 * (OF_ROW + 2.0 * access);
    let blocks = (cubes.run + cubes.reach) as f64;
    let units = cubes.count() * settings.units as usize;
    meter.seconds(units, blocks * (rows + inputs + OF_BLOCK), BARRIERS * blocks)
}
