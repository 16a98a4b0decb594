//! Small planes, staged whole in shared memory, for channels-first images whose rows no vector divides.
//!
//! ```text
//! for each cube: a few planes, which lie one after the other in memory
//!     stage them:            vector by vector, in memory order
//!     for each V columns of windows, and each segment of their rows:      one unit
//!         for each row x, from top to bottom:
//!             load the elements that the windows read; reduce each window's taps along the width
//!             reduce the rows of the window that ends here
//!     write the results to shared memory, and then vector by vector to memory
//! ```
//!
//! Few rows of a 35×35 plane begin at a vector boundary, but several planes together are a whole number of vectors. So
//! memory is accessed in full, consecutive vectors, whatever the extents, and each is read once. The reductions of a
//! row stay in registers for the windows below that contain the row too. A window inside the plane needs no test of its
//! position: whether columns are outside is known for each unit, and rows are tested only where some are outside.
//!
//! The gradient of an average with stride 1 is such a sum as well: the sum of the shares of the windows over an input,
//! each the window's gradient times the reciprocal of its divisor. If windows have few taps, these reciprocals are
//! found by comparison, and all rows, including the last, are computed a few at a time.

mod form;
mod gather;
mod kernel;
mod rows;
mod staging;
mod tile;

use core::fmt;
use core::ops::Range;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::Pooling;

use crate::cube::convert::elem;
use crate::cube::unit::grid;
use crate::device::Capabilities;
use crate::pool::common::buffers::{Buffers, vectors};
use crate::pool::common::kernel::Kernel;
use crate::pool::common::settings::Settings;
use crate::pool::common::window::{Fold, problem_args};
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::Problem;

use form::{Form, form};
use tile::{
    MARGIN, NO_ROOM, SHARED_BYTES, Side, Tile, UNITS, WORD_BYTES, elements, fits, has_few_taps,
    shared_bytes, sides,
};

pub(super) use tile::overlaps;

const NAME: &str = "plane";

/// This kernel has no settings of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config;

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as planned")
    }
}

impl Kernel for Config {
    const NAME: &'static str = NAME;

    /// Plans as many planes per cube as fit.
    fn plan(problem: Problem<'_>, device: &Capabilities) -> Result<(Settings, Self), PlanError> {
        let Problem { pooling, dtype, gradient, .. } = problem;
        let settings = Settings { across: true, unrolled: true, ..Settings::new(problem, device) };
        let settings = match Tile::new(pooling, dtype, gradient, settings.shared_bytes) {
            None => settings,
            Some(tile) => {
                let units = UNITS.min(device.units_per_cube);
                Settings { lanes: tile.lanes, units, ..settings }
            }
        };
        Self.check(&settings, problem, device)?;
        Ok((settings, Self))
    }

    /// Refuses planes that cannot be staged, or not on this device, and lanes in which planes cannot be copied.
    fn check(
        &self,
        settings: &Settings,
        problem: Problem<'_>,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        let Problem { pooling, reduction, dtype, gradient } = problem;
        let most = device.shared_bytes;
        // On a processor the kernel gains nothing, and maxima of subnormal bf16 were wrong.
        only_if(NAME, device.cores.is_none(), "it is for GPUs")?;
        only_if(NAME, SHARED_BYTES <= most, "the device has too little shared memory")?;
        fits(pooling, reduction, dtype, gradient, most)?;
        let tile = Tile::new(pooling, dtype, gradient, settings.shared_bytes);
        let (lanes, widest) = (settings.lanes, tile.map_or(1, |tile| tile.lanes));
        if lanes.is_power_of_two() && lanes <= widest {
            return Ok(());
        }
        Err(PlanError::Lanes { lanes, neighbours: widest, widest })
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
        let sides = sides(pooling, gradient);
        let Some(tile) = Tile::new(pooling, dtype, gradient, settings.shared_bytes) else {
            return Err(PlanError::NotFor { kernel: NAME, reason: NO_ROOM });
        };
        let form = form(pooling, reduction, dtype, settings, &tile, gradient);
        let planes = pooling.input().elements() / pooling.input().plane();
        let [inputs, outputs] = elements(&sides);
        let [depth, height, width] = sides;
        let full = full_rows(pooling, &height, form.tap.fold, gradient);
        let columns = width.output.div_ceil(tile.columns);
        let works = tile.group * depth.output * columns * tile.segments;
        let (above, rows) = segments(&height, tile.segments, form.run as usize);
        let args = PlaneArgsLaunch::new(
            planes as u32,
            tile.group as u32,
            tile.group as u32,
            inputs as u32,
            outputs as u32,
            (2 * MARGIN + (tile.group * inputs).next_multiple_of(WORD_BYTES)) as u32,
            columns as u32,
            depth.output as u32,
            works as u32,
            tile.segments as u32,
            above as u32,
            rows as u32,
            full.start,
            full.end,
            side_args(depth),
            side_args(height),
            side_args(width),
        );
        let (cubes, dim) =
            grid(client, settings.units, planes.div_ceil(tile.group) * settings.units as usize);
        // SAFETY: rows and planes are clamped to those inside before they are read, columns outside are in the margins
        // or in neighbouring rows, and results that do not exist are not written.
        unsafe {
            kernel::walk_planes::launch_unchecked(
                client,
                cubes,
                dim,
                settings.lanes,
                vectors(input, planes * inputs, settings.lanes),
                vectors(output, planes * outputs, settings.lanes),
                problem_args(pooling, reduction, dtype, &settings.one_by_one()),
                args,
                form,
                elem(dtype),
                elem(settings.accumulator),
            )
        };
        Ok(())
    }
}

/// The number of loads that a unit has in flight at once while planes are staged: enough for the planes of most cubes.
const FLIGHT: u32 = 9;

/// Vectors of one element, and of two.
type One = Const<1>;
type Two = Const<2>;

/// Registers that keep their values from one row to the next.
type Cells<A> = Sequence<RuntimeCell<Vector<A, One>>>;

/// The numbers of an axis. They are run-time values, so they may change without compiling a new kernel.
#[derive(CubeType, CubeLaunch)]
struct SideArgs {
    input: i32,
    output: u32,
    before: i32,
}

/// The numbers of the planes. They are run-time values, so they may change without compiling a new kernel.
#[derive(CubeType, CubeLaunch)]
struct PlaneArgs {
    /// The number of all planes, and of those of a cube.
    planes: u32,
    group: FastDivmod<u32>,
    group_planes: u32,
    /// The number of elements of a plane that is read, and of one that is written, and the position in shared memory of
    /// the written ones.
    input: u32,
    output: u32,
    results: u32,
    /// The number of column groups in a line of windows, and of lines along the depth.
    columns: FastDivmod<u32>,
    depths: FastDivmod<u32>,
    /// The number of work items of a cube's units, the number of segments of a plane, and the rows of windows of each
    /// segment. The first segment also has the rows `above` all others, and the last one the rows that are left.
    works: u32,
    segments: u32,
    above: u32,
    rows: u32,
    /// The range of rows that are inside; for a gradient, of rows of windows that have all their rows.
    full: i32,
    full_end: i32,
    depth: SideArgs,
    height: SideArgs,
    width: SideArgs,
}

fn side_args(side: Side) -> SideArgsLaunch {
    SideArgsLaunch::new(side.input as i32, side.output as u32, side.before)
}

/// The number of rows of windows that reach above the first row, and the number of rows below these in a segment: a
/// multiple of the run, if it has at least one run.
fn segments(height: &Side, segments: usize, run: usize) -> (usize, usize) {
    let above = (height.before.max(0) as usize).div_ceil(height.stride).min(height.output - 1);
    let rows = (height.output - above).div_ceil(segments);
    (above, if segments > 1 && rows >= run { (rows + run / 2) / run * run } else { rows })
}

/// The rows that are inside; for a gradient, those whose windows count all their taps along the height.
fn full_rows(pooling: &Pooling, height: &Side, fold: Fold, gradient: bool) -> Range<i32> {
    let axis = &pooling.grid().axes()[1];
    // With stride 1, all taps are inside the input or in its padding.
    if gradient && fold == Fold::AverageValid {
        let first = axis.before() as i32;
        first..first + axis.input() as i32 - axis.kernel() as i32 + 1
    } else {
        0..height.input as i32
    }
}
