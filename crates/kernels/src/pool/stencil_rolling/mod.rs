//! Averages of 3×3 with stride 1, and their gradients, on planes that keep their extents, with channels last: units
//! walk down the rows.
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
//!
//! The gradient of such an average is such a sum as well. If windows are divided by the number of their taps inside the
//! input, the shares of windows on the plane's first and last rows and columns are larger.

mod kernel;

use core::fmt;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType};

use crate::cube::convert::Widening;
use crate::device::Capabilities;
use crate::pool::common::buffers::Buffers;
use crate::pool::common::cost::Meter;
use crate::pool::common::kernel::Kernel;
use crate::pool::common::settings::{Settings, check_strip};
use crate::pool::common::task::Task;
use crate::pool::common::window::{Fold, keeps_planes};
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Problem, Reduction, pixel_channels};

const NAME: &str = "stencil_rolling";

/// The instructions of a unit besides the elements that it reads; and those of such an element relative to a reduction.
const OF_UNIT: f64 = 220.0;
const OF_TAP: f64 = 1.7;

/// How outputs are distributed to units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The number of rows that a unit walks down.
    pub rows: usize,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows } = self;
        write!(f, "{rows} rows a unit")
    }
}

impl Kernel for Config {
    const NAME: &'static str = NAME;

    /// Refuses problems other than 3×3 averages of several channels on planes that keep their extents and have enough
    /// columns for a unit.
    fn fits(problem: Problem<'_>, device: &Capabilities) -> Result<(), PlanError> {
        let Problem { pooling, reduction, dtype, .. } = problem;
        let columns = pooling.grid().axes()[AXES - 1].input();
        only_if(NAME, device.cores.is_none(), "it is for GPUs")?;
        only_if(NAME, matches!(reduction, Reduction::Average(_)), "it only computes averages")?;
        only_if(NAME, dtype != DType::F64, "it is not for f64")?;
        let several = pixel_channels(pooling) > 1;
        only_if(NAME, several, "it is for channels-last tensors of several channels")?;
        keeps_planes(NAME, pooling)?;
        only_if(NAME, columns >= COLUMNS, "planes have a single column")
    }

    /// Plans the rows that a unit walks down, with as many columns and channels as it has registers for.
    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError> {
        // Graphics devices do not keep wider vectors over a loop.
        let lanes = task.lanes().min(task.device.vector_lanes);
        let rows = ROWS.min(task.axes()[AXES - 2].input().max(1));
        Ok((Settings { lanes, unrolled: true, ..task.settings }, Self { rows }))
    }

    /// Refuses windows, types and devices that this kernel does not support.
    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        task.check_lanes()?;
        check_strip(self.rows)?;
        let (lanes, widest) = (task.lanes(), task.device.vector_lanes);
        if lanes <= widest {
            return Ok(());
        }
        Err(PlanError::Lanes { lanes, neighbours: task.pixel(), widest })
    }

    fn seconds(&self, meter: &Meter<'_>) -> f64 {
        let lanes = meter.task.lanes();
        let rows = (self.rows + TAPS as usize - 1) as f64;
        let columns = (COLUMNS + TAPS as usize - 1) as f64;
        let element = meter.load(lanes, 1) + OF_TAP * meter.reduce(lanes);
        let units = self.units_of(meter.task);
        meter.seconds(units, OF_UNIT + rows * columns * element, rows / f64::from(AHEAD))
    }

    fn launch(
        &self,
        client: &Client,
        task: Task<'_>,
        buffers: Buffers<'_>,
    ) -> Result<(), PlanError> {
        let (lanes, pixel) = (task.lanes(), task.pixel_vectors());
        let [_, rows, columns] = task.axes().each_ref().map(Axis::input);
        let (blocks, strips) = (columns.div_ceil(COLUMNS), rows.div_ceil(self.rows));
        let units = self.units_of(task);
        let form = Form {
            fold: Fold::of(task.reduction()),
            gradient: task.problem.gradient,
            rounds: task.rounds(),
            widened: task.widening(task.dtype()),
            columns: COLUMNS as u32,
            pixel,
        };
        let args = RollingArgsLaunch::new(
            units as u32,
            blocks as u32,
            strips as u32,
            self.rows as u32,
            columns as i32,
            rows as i32,
            columns as u32 * pixel,
            task.reciprocal(),
        );
        let (cubes, dim) = task.grid(client, units);
        // SAFETY: rows and columns outside the plane are not read, and those past the last are not written.
        unsafe {
            kernel::roll::launch_unchecked(
                client,
                cubes,
                dim,
                lanes,
                buffers.input.vectors(lanes),
                buffers.output.vectors(lanes),
                args,
                form,
                task.elem(),
                task.accumulator(),
            )
        };
        Ok(())
    }
}

/// The number of taps of a window on either axis.
const TAPS: u32 = 3;

/// The number of rows that are being loaded while earlier ones are summed.
const AHEAD: u32 = 2;

/// The number of columns of a unit.
const COLUMNS: usize = 2;

/// The number of rows of a unit, if the plane has as many.
const ROWS: usize = 6;

/// The numbers of a problem. They are run-time values, so they may change without compiling a new kernel.
#[derive(CubeType, CubeLaunch)]
struct RollingArgs {
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

/// The parameters that change the kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    fold: Fold,
    gradient: bool,
    rounds: bool,
    /// How elements are converted to the accumulator's type.
    widened: Widening,
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

    /// Whether each sum is divided by the number of taps that its window has inside the input.
    fn divides_sums(&self) -> bool {
        self.fold == Fold::AverageValid && !self.gradient
    }

    /// Whether values are divided before they are added: shares of a gradient, which may be large.
    fn divides_shares(&self) -> bool {
        self.gradient
    }

    /// Whether shares on the plane's first and last rows and columns are divided by less.
    fn weighs_ends(&self) -> bool {
        self.fold == Fold::AverageValid && self.gradient
    }

    /// The number of rows that a group reads below its first, plus one if the plane's last row has to be weighed.
    fn below(&self) -> i32 {
        (AHEAD + u32::from(self.weighs_ends())) as i32
    }
}

impl Config {
    /// The number of units of a problem.
    fn units_of(&self, task: Task<'_>) -> usize {
        let [_, rows, columns] = task.axes().each_ref().map(Axis::input);
        let vectors = task.inputs() / task.lanes() / (rows * columns).max(1);
        vectors * columns.div_ceil(COLUMNS) * rows.div_ceil(self.rows)
    }
}
