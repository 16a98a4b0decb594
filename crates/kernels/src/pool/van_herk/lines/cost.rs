//! The estimated time of a pass along one axis.

use super::passes::keeps;
use super::{Walk, block};
use crate::pool::common::{Meter, SECTOR, WORD, Work};

/// The instructions of a unit for each element of its line, besides its loads and its reductions.
const OF_ELEMENT: f64 = 34.0;

/// The reductions for each element: to a prefix, to a suffix, and of the two.
const REDUCTIONS: f64 = 3.0;

pub(in crate::pool::van_herk) fn seconds(meter: &Meter<'_>, walk: &Walk, units: u32) -> f64 {
    let task = meter.task;
    let axis = &task.axes()[walk.axis];
    let position = if walk.indexed { WORD } else { 0 };
    let [read, write] = walk.dtypes.map(|dtype| dtype.size() + position);
    // Neighbouring units have neighbouring lines, which are far from each other if they are along the rows.
    let apart = if walk.inner == 1 { SECTOR } else { 1 };
    let loads = if keeps(task, walk, units) { 1.0 } else { 2.0 };
    let load = loads * meter.load_bytes(walk.lanes[0] * read, apart);
    let element = OF_ELEMENT + REDUCTIONS * meter.reduce(walk.lanes[0]) + load;
    let elements = (walk.run * block(axis) + axis.kernel()) as f64;
    let work = Work {
        bytes: (walk.read(task.pooling()) * read + walk.written() * write) as f64,
        units: walk.units(axis) as f64,
        instructions: elements * element,
        waits: elements / block(axis) as f64,
    };
    work.seconds(task.device)
}
