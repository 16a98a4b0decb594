//! Averages of three by three, one step apart, and their gradients, on planes that keep their extents, with
//! channels last: units walk down the rows.
//!
//! ```text
//! for each vector of channels of V neighbouring columns of R rows:          one unit
//!     for each row x, from the one above these to the one below:
//!         load the vectors of V + 2 columns, while the rows before are summed
//!         row[x] = the sum of each column and its two neighbours
//!         y[x − 1] = row[x − 2] + row[x − 1], which were kept as their sum, + row[x]
//! ```
//!
//! So what a unit loads is taken apart once for all windows over it, and where it lies is known by steps from
//! one row to the next, and by constants from one column to the next: for these a kernel is compiled for a
//! number of channels, which a layer does not change. `register_tile` takes 1.4 times as many instructions.
//!
//! The gradient of such an average is such a sum as well. Where windows are divided by their taps that are
//! inside, those on the plane's first and last rows and columns have a larger share.

mod kernel;

use core::fmt;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Pooling};

use crate::cube::convert::{Widening, elem};
use crate::cube::unit::grid;
use crate::device::Capabilities;
use crate::pool::common::buffers::{Buffers, buffer};
use crate::pool::common::kernel::Kernel;
use crate::pool::common::settings::{Settings, check_strip};
use crate::pool::common::window::{Fold, full_divisor, keeps_planes, pixel_vectors};
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Problem, Reduction, pixel_channels};

const NAME: &str = "stencil_rolling";

/// How outputs are shared out to units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The rows that a unit walks down.
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

    /// Plans as many rows as a unit walks down, of columns and channels as many as it has registers for.
    fn plan(problem: Problem<'_>, device: &Capabilities) -> Result<(Settings, Self), PlanError> {
        let own = Settings::new(problem, device);
        // Graphics devices keep no wider vectors over a loop.
        let lanes = own.lanes.min(device.vector_lanes);
        let rows = ROWS.min(problem.pooling.grid().axes()[AXES - 2].input().max(1));
        let settings = Settings { lanes, unrolled: true, ..own };
        let config = Self { rows };
        config.check(&settings, problem, device)?;
        Ok((settings, config))
    }

    /// Refuses windows, types and devices that walking down is not for.
    fn check(
        &self,
        settings: &Settings,
        problem: Problem<'_>,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        fits(problem, device)?;
        settings.check_lanes(problem)?;
        check_strip(self.rows)?;
        let (lanes, widest) = (settings.lanes, device.vector_lanes);
        if lanes <= widest {
            return Ok(());
        }
        Err(PlanError::Lanes { lanes, neighbours: pixel_channels(problem.pooling), widest })
    }

    fn launch(
        &self,
        client: &Client,
        problem: Problem<'_>,
        settings: &Settings,
        buffers: Buffers<'_>,
    ) -> Result<(), PlanError> {
        let Problem { pooling, reduction, dtype, gradient } = problem;
        let Buffers { input, output, .. } = buffers;
        let elements = pooling.input().elements();
        let [_, rows, columns] = pooling.grid().axes().each_ref().map(Axis::input);
        let pixel = pixel_vectors(pooling, settings);
        let (blocks, strips) = (columns.div_ceil(COLUMNS), rows.div_ceil(self.rows));
        let units = units(pooling, settings, self);
        let fold = match reduction {
            Reduction::Average(divisor) => Fold::average(divisor),
            _ => return Err(PlanError::Foreign { kernel: NAME }),
        };
        let form = Form {
            fold,
            gradient,
            rounds: settings.rounds,
            widened: settings.widening(dtype),
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
            InputScalar::new(1.0 / full_divisor(pooling, reduction), elem(settings.accumulator)),
        );
        let (cubes, dim) = grid(client, settings.units, units);
        // SAFETY: rows and columns outside are not read, and those past the last are not written.
        unsafe {
            kernel::roll::launch_unchecked(
                client,
                cubes,
                dim,
                settings.lanes,
                buffer(input, elements, settings),
                buffer(output, elements, settings),
                args,
                form,
                elem(dtype),
                elem(settings.accumulator),
            )
        };
        Ok(())
    }
}

/// The taps of a window on either axis.
const TAPS: u32 = 3;

/// The rows on their way while those before are summed.
const AHEAD: u32 = 2;

/// The columns of a unit.
const COLUMNS: usize = 2;

/// The rows of a unit, where there are as many.
const ROWS: usize = 6;

/// The numbers of a problem, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct RollingArgs {
    units: u32,
    /// The units of a row, and of a column.
    blocks: FastDivmod<u32>,
    strips: FastDivmod<u32>,
    /// The rows of a unit.
    strip: u32,
    columns: i32,
    rows: i32,
    /// The vectors of a row.
    line: u32,
    /// One over what the sum of a window with all its taps is divided by.
    reciprocal: InputScalar,
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    fold: Fold,
    gradient: bool,
    rounds: bool,
    /// How elements are widened.
    widened: Widening,
    /// The columns of a unit.
    columns: u32,
    /// The vectors of a pixel.
    pixel: u32,
}

impl Form {
    /// The columns that the windows of a unit read.
    fn reads(&self) -> u32 {
        self.columns + TAPS - 1
    }

    /// Whether what is written is divided by the taps that its window has inside.
    fn divides_sums(&self) -> bool {
        self.fold == Fold::AverageValid && !self.gradient
    }

    /// Whether what is read is divided before it is added: shares of a gradient, which may be large.
    fn divides_shares(&self) -> bool {
        self.gradient
    }

    /// Whether those of a plane's first and last rows and columns are divided by less.
    fn weighs_ends(&self) -> bool {
        self.fold == Fold::AverageValid && self.gradient
    }

    /// The rows that a group reads below its first, and the one that is not to be weighed.
    fn below(&self) -> i32 {
        (AHEAD + u32::from(self.weighs_ends())) as i32
    }
}

/// The units of a problem.
pub(super) fn units(pooling: &Pooling, settings: &Settings, config: &Config) -> usize {
    let [_, rows, columns] = pooling.grid().axes().each_ref().map(Axis::input);
    let vectors = pooling.input().elements() / settings.lanes / (rows * columns).max(1);
    vectors * columns.div_ceil(COLUMNS) * rows.div_ceil(config.rows)
}

/// Refuses problems other than averages of three by three under which several channels keep their planes, with
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
