//! The estimated time of a pass along one axis.

use super::passes::keeps;
use super::{AxisPass, block};
use crate::pool::common::{SECTOR, Task, WORD, Work};

/// The instructions of a unit for each element of its line, besides its loads and its reductions.
const OF_ELEMENT: f64 = 34.0;

/// The reductions for each element: to a prefix, to a suffix, and of the two.
const REDUCTIONS: f64 = 3.0;

pub(in crate::pool::van_herk) fn seconds(task: Task<'_>, axis_pass: &AxisPass, units: u32) -> f64 {
    let axis = &task.axes()[axis_pass.axis];
    let position = if axis_pass.indexed { WORD } else { 0 };
    let [read, write] = axis_pass.dtypes.map(|dtype| dtype.size() + position);
    // Neighbouring units have neighbouring lines, which are far from each other if they are along the rows.
    let apart = if axis_pass.inner == 1 { SECTOR } else { 1 };
    let loads = if keeps(task, axis_pass, units) { 1.0 } else { 2.0 };
    let load = loads * task.load_bytes_cost(axis_pass.lanes[0] * read, apart);
    let element = OF_ELEMENT + REDUCTIONS * task.reduce_cost(axis_pass.lanes[0]) + load;
    let elements = (axis_pass.piece_blocks * block(axis) + axis.kernel()) as f64;
    let work = Work {
        bytes: (axis_pass.read(task.pooling()) * read + axis_pass.written() * write) as f64,
        units: axis_pass.units(axis) as f64,
        instructions: elements * element,
        waits: elements / block(axis) as f64,
    };
    work.seconds(task.device)
}
