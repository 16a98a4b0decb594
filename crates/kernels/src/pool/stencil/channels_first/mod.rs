//! Channels first: all planes are treated as one sequence of elements, wherever their rows end.
//!
//! ```text
//! for each vector of neighbouring elements:                 one unit
//!     for each of the three rows of taps:
//!         load the vectors that hold it, from one element before to one after
//!     for each column of these:     add those of its three rows that are in the plane
//!     for each element:             add those of its three columns that are in the row
//! ```
//!
//! Few rows of a 35×35 plane begin at a vector boundary. But the element above another one is always one row length
//! before it, so whole vectors are read and written, whatever the extents. At most one of a unit's elements begins a
//! row, because rows are longer; the elements from there on belong to the next row.
//!
//! The vector and the lane of a tap depend only on the row length. The kernel is compiled for a row length, so that all
//! its loads are constant offsets from one address. A new row length takes a tenth of a second to compile; other
//! extents need no new kernel.
//!
//! Most units are away from the first and last rows of a plane. If this is true of all units of a warp, no row is
//! dropped and all windows have all their rows.
//!
//! If windows have different divisors, `gradient` weights values before it adds them, whereas the forward pass divides
//! the sum.

mod gradient;
mod kernel;

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::LIMIT;

use super::{Sums, TAPS, extents};
use crate::cube::convert::UPPER;
use crate::cube::numbers;
use crate::error::{PlanError, ensure};
use crate::pool::common::{Buffers, Task, widest_divisor};

/// The instructions of a unit besides its loads and its sums; and those of a tap relative to a reduction, for rows of
/// taps are added once for all columns.
const OF_UNIT: f64 = 92.0;
const OF_TAP: f64 = 0.38;

/// The most lanes in a load whose vectors divide all planes together and are shorter than a row.
pub(super) fn widest(task: Task<'_>) -> usize {
    let [_, row] = extents(task);
    let most = widest_divisor(task.inputs(), task.widest());
    (0..=most.ilog2()).rev().map(|power| 1 << power).find(|&lanes| lanes < row).unwrap_or(1)
}

/// Refuses lanes that do not divide the elements, and so few lanes that 32 bits cannot count the vectors one row
/// further.
pub(super) fn check(task: Task<'_>) -> Result<(), PlanError> {
    let (elements, lanes, widest) = (task.inputs(), task.lanes(), widest(task));
    let [_, row] = extents(task);
    // A row of taps ends in the vector after that of its last element.
    let fits = lanes.is_power_of_two() && lanes <= widest && (elements + row) / lanes < LIMIT;
    ensure(fits, PlanError::Lanes { lanes, neighbours: elements, widest })
}

pub(super) fn seconds(task: Task<'_>) -> f64 {
    let (taps, lanes) = (TAPS as usize, task.lanes());
    let loads = taps as f64 * task.load_cost(lanes + taps - 1, 1);
    let sums = OF_TAP * (taps * taps) as f64 * task.reduce_cost(lanes);
    task.launch_seconds(task.inputs() / lanes, OF_UNIT + loads + sums, 1.0)
}

pub(super) fn launch(task: Task<'_>, buffers: Buffers<'_>) {
    let (lanes, [rows, columns]) = (task.lanes(), extents(task));
    let vectors = task.inputs() / lanes;
    let (cubes, dim) = task.grid(buffers.client, vectors);
    let form = Form {
        sums: Sums::of(task),
        lanes: lanes as u32,
        row: columns as u32,
        votes: task.device.plane_ops,
        line: matches!(cubes, CubeCount::Static(_, 1, 1)),
    };
    // The row of an inner unit's first element and the next row have all their rows, and so has the element before.
    let inner_first = form.reach() * columns + 1;
    let inner_end = rows.saturating_sub(form.reach() + 1) * columns;
    let args = numbers! { ElementsArgsLaunch {
        last_vector: vectors - 1, plane: rows * columns, inner_first,
        inner_count: inner_end.saturating_sub(inner_first), row: columns, row_again: columns, rows,
        upper: UPPER, reciprocal: task.reciprocal(),
    } };
    // SAFETY: vectors outside the input are clamped to it before they are read, and units past the last have its vector.
    unsafe {
        kernel::stencil_of_elements::launch_unchecked(
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

/// The numbers of a problem. Except for the row length, they may change without compiling a new kernel.
#[derive(CubeType, CubeLaunch)]
struct ElementsArgs {
    last_vector: u32,
    plane: FastDivmod<u32>,
    /// The first element of a plane at which a unit may be inner, and the number of such elements from there on.
    inner_first: u32,
    inner_count: u32,
    /// The row length once more, as a run-time value. Tests of where rows begin and end use this one, because the
    /// forward pass in f32 is slower with the compiled-in one.
    row: i32,
    /// The same value again. A row does not begin where a row ends: a compiler that sees this replaces each two
    /// predicated additions by one selection, which takes one more instruction.
    row_again: i32,
    rows: i32,
    /// The factor that moves the lower half of a word to its upper half.
    upper: u32,
    /// The reciprocal of the divisor of a window with all its taps.
    reciprocal: InputScalar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    sums: Sums,
    lanes: u32,
    /// The number of elements in a row.
    row: u32,
    /// Whether the units of a warp can vote.
    votes: bool,
    /// Whether the launch grid has one dimension.
    line: bool,
}

impl Form {
    /// The number of columns that the windows of a unit read.
    fn reads(&self) -> u32 {
        self.lanes + TAPS - 1
    }

    /// The element at which row `t` of taps begins, relative to the unit's first element. It begins one element ahead.
    fn start(&self, t: u32) -> i32 {
        (t as i32 - 1) * self.row as i32 - 1
    }

    /// The first vector that holds row `t` of taps, relative to the unit's own.
    fn first(&self, t: u32) -> i32 {
        self.start(t).div_euclid(self.lanes as i32)
    }

    /// The number of vectors that hold row `t` of taps.
    fn vectors(&self, t: u32) -> u32 {
        let ahead = self.start(t).rem_euclid(self.lanes as i32) as u32;
        (ahead + self.reads()).div_ceil(self.lanes)
    }

    /// The position of column `j` of row `t`: the vector among those of all rows, and the lane.
    fn place(&self, t: u32, j: u32) -> (usize, usize) {
        let above: u32 = (0..t).map(|t| self.vectors(t)).sum();
        let at = self.start(t).rem_euclid(self.lanes as i32) as u32 + j;
        ((above + at / self.lanes) as usize, (at % self.lanes) as usize)
    }

    /// Whether values outside the plane are dropped tap by tap near its edges, instead of after summing. That takes one
    /// more instruction per tap but fewer registers, so that occupancy is higher with few lanes.
    fn spares_registers(&self) -> bool {
        self.lanes <= 4 && !self.sums.has_weights()
    }

    /// The number of rows at each end of a plane that the edge affects.
    fn reach(&self) -> usize {
        if self.sums.has_weights() { 2 } else { 1 }
    }
}
