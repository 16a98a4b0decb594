//! Channels last: units move down the rows of two columns, and keep what the next windows share.
//!
//! ```text
//! for each vector of channels of V neighbouring columns of R rows:          one unit
//!     for each row x, from the one above these to the one below:
//!         load the vectors of V + 2 columns, while earlier rows are summed
//!         row[x] = the sum of each column and its two neighbours
//!         y[x − 1] = row[x − 2] + row[x − 1], which were kept as their sum, + row[x]
//! ```
//!
//! So what a unit loads is split up once for all windows over it. Its address is computed by steps from one row to the
//! next, and by constants from one column to the next: for these, the kernel is compiled for a number of channels,
//! which is fixed in a layer. `register_tile` takes 1.4 times as many instructions.

mod kernel;

use cubecl::prelude::*;
use cubecl::std::FastDivmod;

use super::{Sums, TAPS, extents};
use crate::cube::numbers;
use crate::error::{PlanError, ensure};
use crate::pool::common::{Buffers, Task};

/// The instructions of a unit besides the elements that it reads; and those of such an element relative to a reduction.
const OF_UNIT: f64 = 220.0;
const OF_TAP: f64 = 1.7;

/// The lanes of a unit. Graphics devices do not keep wider vectors over a loop.
pub(super) fn lanes(task: Task<'_>) -> usize {
    task.lanes().min(task.device.vector_lanes)
}

/// The rows that a unit moves down.
pub(super) fn rows(task: Task<'_>) -> usize {
    ROWS.min(extents(task)[0].max(1))
}

/// Refuses lanes that do not divide a pixel or are too wide for a loop.
pub(super) fn check(task: Task<'_>) -> Result<(), PlanError> {
    task.check_lanes()?;
    let (lanes, widest) = (task.lanes(), task.device.vector_lanes);
    ensure(lanes <= widest, PlanError::Lanes { lanes, neighbours: task.pixel(), widest })
}

pub(super) fn seconds(task: Task<'_>, rows: usize) -> f64 {
    let (lanes, units) = (task.lanes(), units(task, rows));
    let rows = (rows + TAPS as usize - 1) as f64;
    let columns = (COLUMNS + TAPS as usize - 1) as f64;
    let element = task.load_cost(lanes, 1) + OF_TAP * task.reduce_cost(lanes);
    task.launch_seconds(units, OF_UNIT + rows * columns * element, rows / f64::from(AHEAD))
}

pub(super) fn launch(task: Task<'_>, strip: usize, buffers: Buffers<'_>) {
    let (lanes, pixel) = (task.lanes(), task.pixel_vectors());
    let ([rows, columns], units) = (extents(task), units(task, strip));
    let form = Form { sums: Sums::of(task), columns: COLUMNS as u32, pixel };
    let args = numbers! { RowsArgsLaunch {
        units, blocks: columns.div_ceil(COLUMNS), strips: rows.div_ceil(strip), strip, columns,
        rows, line: columns as u32 * pixel, reciprocal: task.reciprocal(),
    } };
    let (cubes, dim) = task.grid(buffers.client, units);
    // SAFETY: rows and columns outside the plane are not read, and those past the last are not written.
    unsafe {
        kernel::stencil_of_rows::launch_unchecked(
            buffers.client,
            cubes,
            dim,
            lanes,
            buffers.input.vectors(lanes),
            buffers.output.vectors(lanes),
            args,
            form,
            task.types(),
        )
    };
}

/// The number of units of a problem.
fn units(task: Task<'_>, strip: usize) -> usize {
    let [rows, columns] = extents(task);
    let vectors = task.inputs() / task.lanes() / (rows * columns).max(1);
    vectors * columns.div_ceil(COLUMNS) * rows.div_ceil(strip)
}

/// The number of rows that are being loaded while earlier ones are summed.
const AHEAD: u32 = 2;

/// The number of columns of a unit.
const COLUMNS: usize = 2;

/// The number of rows of a unit, if the plane has as many.
const ROWS: usize = 6;

#[derive(CubeType, CubeLaunch)]
struct RowsArgs {
    units: u32,
    /// The number of units along a row, and along a column.
    blocks: FastDivmod<u32>,
    strips: FastDivmod<u32>,
    /// The number of rows of a unit.
    strip: u32,
    columns: i32,
    rows: i32,
    /// The number of vectors in a row.
    line: u32,
    /// The reciprocal of the divisor of a window with all its taps.
    reciprocal: InputScalar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    sums: Sums,
    /// The number of columns of a unit.
    columns: u32,
    /// The number of vectors in a pixel.
    pixel: u32,
}

impl Form {
    /// The number of columns that the windows of a unit read.
    fn reads(&self) -> u32 {
        self.columns + TAPS - 1
    }

    /// The number of rows that a group reads below its first, plus one if the plane's last row has to be weighted.
    fn below(&self) -> i32 {
        (AHEAD + u32::from(self.sums.has_weights())) as i32
    }
}
