//! Small planes, whole in shared memory: for channels-first images whose rows no vector divides.
//!
//! ```text
//! for each cube: a few planes, which lie one after the other in memory
//!     stage them:            vector after vector, as they lie
//!     for each V columns of windows, and each segment of their rows:      one unit
//!         for each row x, from top to bottom:
//!             load what the windows read of it; fold for each its taps of the width
//!             fold for each the rows of the window that ends here
//!     write the results beside the planes, and then vector after vector to memory
//! ```
//!
//! A plane of 35 × 35 has no row but the first that begins where a vector could; yet several planes
//! do as a whole. So memory sees nothing but full vectors in a row, whatever the extents, and each of
//! them once. A row's folds stay in registers for the windows below that have it too, and a window
//! that is inside costs no test of where it is: columns outside are dropped by what is known of a unit's
//! columns, rows outside only where there are some.
//!
//! The gradient of an average whose windows are one step apart is such a sum as well: that of the
//! shares of the windows over an input, each its gradient times one over its divisor. Where a window has few
//! taps these are found by comparison, and its rows are computed a few at once to the last.

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

/// This kernel has no numbers of its own.
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

    /// Plans as many planes a cube as it has room for.
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

    /// Refuses planes that are not for staging, or not on this device, and lanes that planes cannot be moved in.
    fn check(
        &self,
        settings: &Settings,
        problem: Problem<'_>,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        let Problem { pooling, reduction, dtype, gradient } = problem;
        let most = device.shared_bytes;
        // On a processor it gains nothing, and maxima of bf16 below the normal numbers came out wrong.
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
        // SAFETY: rows and planes are moved inside before they are read, columns outside are in the margins
        // or in neighbouring rows, and what is not there is not written.
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

/// The loads of a unit that are in flight at once while planes are staged: most cubes' planes.
const FLIGHT: u32 = 9;

/// One number, and a pair.
type One = Const<1>;
type Two = Const<2>;

/// Registers that live from one row to the next.
type Cells<A> = Sequence<RuntimeCell<Vector<A, One>>>;

/// The numbers of an axis, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct SideArgs {
    input: i32,
    output: u32,
    before: i32,
}

/// The numbers of the planes, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct PlaneArgs {
    /// All planes, and those of a cube.
    planes: u32,
    group: FastDivmod<u32>,
    group_planes: u32,
    /// The elements of a plane that is read, and of one that is written, and where in shared memory
    /// these are.
    input: u32,
    output: u32,
    results: u32,
    /// The groups of columns of a line of windows, and the lines along the depth.
    columns: FastDivmod<u32>,
    depths: FastDivmod<u32>,
    /// The works of a cube's units, and the rows of windows of each: the first segment has those above
    /// all others too, and the last what is left.
    works: u32,
    segments: u32,
    above: u32,
    rows: u32,
    /// The first of the rows that are inside, and of a gradient's those whose windows have all their
    /// rows, and the end of them.
    full: i32,
    full_end: i32,
    depth: SideArgs,
    height: SideArgs,
    width: SideArgs,
}

fn side_args(side: Side) -> SideArgsLaunch {
    SideArgsLaunch::new(side.input as i32, side.output as u32, side.before)
}

/// The rows of windows that reach above the first row, and those of a segment below these: whole runs,
/// where it has some.
fn segments(height: &Side, segments: usize, run: usize) -> (usize, usize) {
    let above = (height.before.max(0) as usize).div_ceil(height.stride).min(height.output - 1);
    let rows = (height.output - above).div_ceil(segments);
    (above, if segments > 1 && rows >= run { (rows + run / 2) / run * run } else { rows })
}

/// The rows that are inside; of a gradient those whose windows count all their taps of the height.
fn full_rows(pooling: &Pooling, height: &Side, fold: Fold, gradient: bool) -> Range<i32> {
    let axis = &pooling.grid().axes()[1];
    // Windows one step apart have no taps but those inside or padded.
    if gradient && fold == Fold::AverageValid {
        let first = axis.before() as i32;
        first..first + axis.input() as i32 - axis.kernel() as i32 + 1
    } else {
        0..height.input as i32
    }
}
