//! Averages of 3×3 windows with stride 1, and their gradients, on planes whose extents they keep.
//!
//! Neighbouring windows share most of their taps. `channels_first` treats all planes as one sequence of elements, of
//! which a unit computes one vector. In `channels_last` a unit moves down the rows of two columns.
//!
//! The gradient of such an average is such a sum as well: each input adds the gradients of the windows that read it. If
//! windows are divided by the number of their taps inside the input, those at the edges of a plane are divided by less.

mod channels_first;
mod channels_last;

use core::fmt;

use windowpane_geometry::{Axis, DType};

use crate::cube::convert::Widening;
use crate::device::Capabilities;
use crate::error::{PlanError, ensure, only_if};
use crate::pool::common::window::Fold;
use crate::pool::common::{Buffers, Kernel, Settings, Task, check_strip};
use crate::pool::problem::{Problem, Reduction};

pub(super) const NAME: &str = "stencil";

/// The number of taps of a window on either axis.
const TAPS: u32 = 3;

/// How outputs are distributed to units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The number of rows that a unit moves down; 1 with channels first, where it does not move.
    pub rows: usize,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rows {
            1 => f.write_str("one row a unit"),
            rows => write!(f, "{rows} rows a unit"),
        }
    }
}

impl Kernel for Config {
    /// Refuses problems other than 3×3 averages on planes that keep their extents and have several rows and columns.
    fn applies(problem: Problem<'_>, device: &Capabilities) -> Result<(), PlanError> {
        let Problem { pooling, reduction, dtype, .. } = problem;
        let [depth, height, width] = pooling.grid().axes();
        let all = |holds: fn(&Axis) -> bool| pooling.grid().axes().iter().all(holds);
        let keeps = |axis: &Axis| axis.kernel() == 3 && axis.before() == 1 && axis.after() == 1;
        let flat = depth.kernel() == 1 && depth.before() == 0 && depth.after() == 0;
        let keeps = flat && keeps(height) && keeps(width);
        only_if(NAME, device.cores.is_none(), "it is for GPUs")?;
        only_if(NAME, matches!(reduction, Reduction::Average(_)), "it only computes averages")?;
        only_if(NAME, !problem.sums_integers(), "it computes no sums of integers")?;
        only_if(NAME, dtype != DType::F64, "it is not for f64")?;
        only_if(NAME, !pooling.grid().is_adaptive(), "window sizes follow from the input")?;
        only_if(NAME, all(|axis| axis.stride() == 1), "strides are not 1")?;
        only_if(NAME, all(|axis| axis.dilation() == 1), "windows are dilated")?;
        only_if(NAME, keeps, "windows are not 3 by 3 with a padding of 1")?;
        only_if(NAME, height.input() > 1, "planes have a single row")?;
        only_if(NAME, width.input() > 1, "planes have a single column")
    }

    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError> {
        // With one element to a pixel, neighbours in memory lie along the rows.
        let along_width = task.pixel() == 1;
        let (lanes, rows) = match along_width {
            true => (channels_first::widest(task), 1),
            false => (channels_last::lanes(task), channels_last::rows(task)),
        };
        Ok((Settings { lanes, along_width, unrolled: true, ..task.settings }, Self { rows }))
    }

    /// Refuses lanes that units cannot have, and rows that they cannot move down.
    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        if task.pixel() > 1 {
            channels_last::check(task)?;
            return check_strip(self.rows);
        }
        channels_first::check(task)?;
        ensure(self.rows == 1, PlanError::Fixed { name: "rows", kernel: NAME })
    }

    fn seconds(&self, task: Task<'_>) -> f64 {
        match task.pixel() == 1 {
            true => channels_first::seconds(task),
            false => channels_last::seconds(task, self.rows),
        }
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        match task.pixel() == 1 {
            true => channels_first::launch(task, buffers),
            false => channels_last::launch(task, self.rows, buffers),
        }
        Ok(())
    }
}

/// The rows and the columns of a plane.
fn extents(task: Task<'_>) -> [usize; 2] {
    let [_, rows, columns] = task.axes().each_ref().map(Axis::input);
    [rows, columns]
}

/// How sums are computed: the parameters that change the code of both kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sums {
    /// Whether windows are divided by the number of taps that they have inside the input.
    counts: bool,
    gradient: bool,
    rounds: bool,
    /// How elements are converted to the accumulator's type.
    widened: Widening,
}

impl Sums {
    fn of(task: Task<'_>) -> Self {
        Self {
            counts: Fold::of(task.reduction()) == Fold::AverageValid,
            gradient: task.problem.gradient,
            rounds: task.rounds(),
            widened: task.widening(task.dtype()),
        }
    }

    /// Whether the windows of a gradient have different divisors, so that rows and columns have different weights.
    fn has_weights(&self) -> bool {
        self.gradient && self.counts
    }
}
