//! Height and width of a plane in one launch, for strides of 1: down the columns in registers, along the rows from
//! shared memory.
//!
//! ```text
//! for each tile of columns of a plane, piece by piece of its rows:   one cube; one unit per column or two
//!     for each block of B rows of outputs:
//!         reduce each column's windows in registers                   to B rows in shared memory
//!         for each row, block by block of its columns:                one unit each
//!             reduce the row's windows from shared memory, and write them
//! ```
//!
//! The windows of a block are computed from reductions that they share, here sums:
//!
//! ```text
//! whole = sum of the blocks that all windows of the block contain
//! sum   = whole, plus the inputs before these blocks one by one, from the last to the first: each partial sum
//!         belongs to one window and lacks only that window's end
//! y[o]  = sum + prefix of the block after these
//! ```
//!
//! Along the rows, units do not share the reduction of a whole block if windows contain only one: each computes what it
//! needs. If shared memory holds two blocks of rows, the units of a cube synchronise once per block. The next block is
//! loaded while rows are reduced.
//!
//! Elements of two bytes are loaded two at a time, and a unit writes several neighbouring results as one word. Results of
//! four bytes go through shared memory, so that neighbouring units write neighbouring elements.
//!
//! A tile reads one window more columns than it writes, if that many exist, and a piece one window more rows. Columns of
//! the padding have no unit: they are set to the identity element in shared memory once. With channels last, a cube has
//! some channels of a tile, which are adjacent in shared memory as they are in the image. Windows along the width only
//! are those of one plane whose rows are the rows of all planes.

mod columns;
mod form;
mod kernel;
mod results;
mod rows;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use windowpane_geometry::{AXES, Pooling};

use super::NAME;
use super::lines::between;
use crate::cube::axis::{AxisArgs, axis_args};
use crate::cube::convert::{UPPER, elem};
use crate::cube::numbers;
use crate::error::{PlanError, only_if};
use crate::pool::common::window::{ProblemArgs, problem_args};
use crate::pool::common::{Cubes, CubesArgs, Planes, Task, Tensor, WORD};

use form::{Form, Plane, SharedLayout, tile};

pub(super) use form::{pays, units};

/// The instructions of a unit for each word of its column, with the word of a row that it reduces too. A second column of
/// a unit takes half as many. Relative to these: a division before, and a result that goes through shared memory.
const OF_WORD: f64 = 34.0;
const OF_DIVISION: f64 = 0.88;
const OF_RESULT: f64 = 0.58;

/// The barriers of a block of rows: before its rows are reduced, and after.
const BARRIERS: f64 = 2.0;

/// Refuses a number of units that fits no tile, and tiles that do not fit in shared memory.
pub(super) fn check(task: Task<'_>) -> Result<(), PlanError> {
    form::check(task.problem, task.device)?;
    tile(task.problem, task.settings.units).ok_or(NO_TILE)?;
    let own = form::own(task);
    let bytes = SharedLayout::new(own, own.settings.units).bytes(own);
    only_if(NAME, bytes <= task.device.shared_bytes, "a tile does not fit in shared memory")
}

/// The estimated time of the pass; `divides` is whether elements are divided before they are summed.
pub(super) fn seconds(task: Task<'_>, divides: bool) -> f64 {
    let Some((tile, _)) = tile(task.problem, task.settings.units) else { return f64::INFINITY };
    let own = form::own(task);
    let form = Form::new(own, None, tile);
    let cubes = cubes(task, &form, tile);
    let blocks = (cubes.piece_blocks + form.before() as usize) as f64;
    let division = if divides { OF_DIVISION } else { 0.0 };
    let result = if form.written == 0 { OF_RESULT } else { 0.0 };
    let words =
        own.settings.accumulator.size().div_ceil(WORD) as f64 * f64::from(1 + form.lanes) / 2.0;
    let element = OF_WORD * words * (1.0 + division + result);
    let elements = blocks * f64::from(form.height.block);
    let units = cubes.count * task.settings.units as usize;
    task.launch_seconds(units, elements * element, BARRIERS * blocks)
}

/// Launches the pass from `input` to `output`. If `divisors` is a pooling, every element is divided by that pooling's
/// divisor at its position before it is summed.
pub(super) fn launch(
    client: &Client,
    task: Task<'_>,
    divisors: Option<&Pooling>,
    [input, output]: [&Handle; 2],
) -> Result<(), PlanError> {
    let pooling = task.pooling();
    let [depth, _, width] = task.axes();
    let (tile, _) = tile(task.problem, task.settings.units).ok_or(NO_TILE)?;
    let own = form::own(task);
    let form = Form::new(own, divisors, tile);
    let plane = Plane::of(pooling);
    let inputs = plane.count * plane.input * width.input() * plane.pixel;
    let all = cubes(task, &form, tile);
    let lanes = form.lanes as usize;
    let written = (form.written as usize).max(1);
    let divided = divisors.unwrap_or(pooling).grid().axes();
    let args = numbers! { TileArgsLaunch {
        problem: problem_args(own.with(own.settings.one_by_one())), cubes: all.args(),
        planes: plane.count, pixel: (plane.pixel / lanes).max(1),
        pixel_written: (plane.pixel / written).max(1), line: width.input() * plane.pixel / lanes,
        line_written: width.output() * plane.pixel / written, input_height: plane.input,
        output_height: plane.output, output_width: width.output(), depth: axis_args(depth),
        divisors_height: axis_args(&divided[1]), divisors_width: axis_args(&divided[2]),
        upper: UPPER,
    } };
    let (cubes, dim) = task.cubes(client, all.count);
    // SAFETY: coordinates are clamped to the plane before they are read, and outputs that do not exist are not written.
    unsafe {
        kernel::walk_tile::launch_unchecked(
            client,
            cubes,
            dim,
            lanes,
            if form.one_channel { 1 } else { lanes },
            written,
            Tensor::new(input, inputs).vectors(lanes),
            Tensor::new(output, task.outputs()).vectors(written),
            args,
            form,
            [elem(form::read(task)), task.elem(), own.accumulator()],
        )
    };
    Ok(())
}

/// The cubes of a problem.
fn cubes(task: Task<'_>, form: &Form, tile: usize) -> Cubes {
    let plane = Plane::of(task.pooling());
    let planes = Planes {
        count: plane.count,
        groups: plane.pixel / form::channels(task.pooling()),
        columns: task.axes()[AXES - 1].output(),
        tile,
        blocks: plane.output.div_ceil(form.height.block as usize),
        halo: form.before() as usize,
    };
    planes.cubes(task, UNITS_EACH)
}

/// The units that keep a multiprocessor busy.
const UNITS_EACH: usize = 512;

/// The error if no tile has few enough columns for the units of a cube.
const NO_TILE: PlanError = PlanError::NotApplicable {
    kernel: NAME,
    reason: "a tile of columns needs more units than a cube has",
};

/// A vector of one element.
type One = Const<1>;

/// The numbers of a problem and of its tiles.
#[derive(CubeType, CubeLaunch)]
struct TileArgs {
    problem: ProblemArgs,
    cubes: CubesArgs,
    planes: u32,
    /// The vectors of a pixel, as they are read and as they are written.
    pixel: u32,
    pixel_written: u32,
    /// The vectors of a row, as they are read and as they are written.
    line: u32,
    line_written: u32,
    /// The rows of a plane, as they are read and as they are written.
    input_height: i32,
    output_height: u32,
    output_width: u32,
    depth: AxisArgs,
    /// The axes of the pooling whose divisors elements are divided by.
    divisors_height: AxisArgs,
    divisors_width: AxisArgs,
    /// The factor that moves the lower half of a word to its upper half.
    upper: u32,
}
