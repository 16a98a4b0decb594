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
mod cost;
mod form;
mod kernel;
mod results;
mod rows;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Pooling};

use super::NAME;
use super::lines::between;
use crate::cube::axis::{AxisArgs, axis_args};
use crate::cube::convert::{UPPER, elem};
use crate::pool::common::window::{ProblemArgs, problem_args};
use crate::pool::common::{Pieces, Task, Tensor};
use crate::pool::error::{PlanError, only_if};

use form::{Form, Plane, Room, tile};

pub(super) use cost::seconds;
pub(super) use form::{pays, units};

/// Refuses a number of units that fits no tile, and tiles that do not fit in shared memory.
pub(super) fn check(task: Task<'_>) -> Result<(), PlanError> {
    form::check(task.problem, task.device)?;
    tile(task.problem, task.settings.units).ok_or(NO_TILE)?;
    let own = form::own(task);
    let bytes = Room::new(own, own.settings.units).bytes(own);
    only_if(NAME, bytes <= task.device.shared_bytes, "a tile does not fit in shared memory")
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
    let all = Cubes::new(task, &form, tile);
    let lanes = form.lanes as usize;
    let written = (form.written as usize).max(1);
    let divided = divisors.unwrap_or(pooling).grid().axes();
    let args = TileArgsLaunch::new(
        problem_args(own.with(own.settings.one_by_one())),
        plane.count as u32,
        all.groups as u32,
        (plane.pixel / lanes).max(1) as u32,
        (plane.pixel / written).max(1) as u32,
        all.tiles as u32,
        tile as u32,
        all.pieces.count() as u32,
        all.pieces.blocks as u32,
        all.pieces.piece_blocks as u32,
        (width.input() * plane.pixel / lanes) as u32,
        (width.output() * plane.pixel / written) as u32,
        plane.input as i32,
        plane.output as u32,
        width.output() as u32,
        axis_args(depth),
        axis_args(&divided[1]),
        axis_args(&divided[2]),
        UPPER,
    );
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
            elem(form::read(task)),
            task.elem(),
            own.accumulator(),
        )
    };
    Ok(())
}

/// How planes are distributed to cubes.
struct Cubes {
    /// The number of cubes.
    count: usize,
    /// The groups of channels of a pixel, and the tiles of a row.
    groups: usize,
    tiles: usize,
    pieces: Pieces,
}

impl Cubes {
    fn new(task: Task<'_>, form: &Form, tile: usize) -> Self {
        let plane = Plane::of(task.pooling());
        let tiles = task.axes()[AXES - 1].output().div_ceil(tile);
        let groups = plane.pixel / form::channels(task.pooling());
        let blocks = plane.output.div_ceil(form.height.block as usize);
        let cubes = plane.count * groups * tiles;
        let pieces = Pieces::new(task, cubes, [blocks, form.before() as usize], UNITS_EACH);
        Self { count: cubes * pieces.count(), groups, tiles, pieces }
    }
}

/// The units that keep a multiprocessor busy.
const UNITS_EACH: usize = 512;

/// The error if no tile has few enough columns for the units of a cube.
const NO_TILE: PlanError = PlanError::NotFor {
    kernel: NAME,
    reason: "a tile of columns needs more units than a cube has",
};

/// A vector of one element.
type One = Const<1>;

/// The numbers of a problem and of its tiles. They are run-time values, so they may change without compiling a new kernel.
#[derive(CubeType, CubeLaunch)]
struct TileArgs {
    problem: ProblemArgs,
    planes: u32,
    /// The groups of channels of a pixel, and the vectors of a pixel, as they are read and as they are written.
    groups: FastDivmod<u32>,
    pixel: u32,
    pixel_written: u32,
    /// The number of tiles of a plane, and of columns in a tile.
    tiles: FastDivmod<u32>,
    tile: u32,
    /// The pieces of a plane's blocks of rows, the number of all blocks, and the number of blocks in a piece.
    pieces: FastDivmod<u32>,
    row_blocks: u32,
    piece_blocks: u32,
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
