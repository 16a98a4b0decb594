//! Large windows of planes in one launch, of numbers of two bytes: as `fused` folds them, with two
//! neighbours a unit, and averages with channels last too.
//!
//! ```text
//! for each tile of columns of a plane:                      one cube, a unit two columns or channels
//!     for each block of B rows of outputs:
//!         fold each column's windows in registers            to B rows in shared memory
//!         for each row, block by block of its columns:       a unit each
//!             fold the row's windows from what is shared     and write them
//! ```
//!
//! Three ways in which it departs from `fused`. Two neighbours are one load, and what comes next is on its
//! way while rows are folded; for numbers of four bytes that takes so many registers that fewer units have
//! room. The windows of a block are folds of folds, here of sums:
//!
//! ```text
//! whole = sum of the blocks that all windows of the block have
//! sum   = whole, with the inputs before these added one by one, from the last to the first: each is a
//!         window's, but for its end
//! y[o]  = sum + prefix of the block after
//! ```
//!
//! And along the rows a unit folds what it needs itself where windows have one whole block, and writes words
//! of several results. Where there is memory for two blocks of rows, a cube's units wait for each other
//! once a block.
//!
//! A tile reads a window more of columns than it writes, where there are as many: columns of the padding
//! have no unit, they are nothing in shared memory once and for all. With channels last a cube has some
//! channels of a tile, which lie together in shared memory as they do in the image.

mod columns;
mod form;
mod kernel;
mod results;
mod rows;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{DType, Pooling};

use super::launch::vectors;
use super::plan::{Plan, Reduction, pixel_channels};
use super::window::problem_args;
use crate::dtype::{UPPER, elem};
use crate::unit::grid;

use form::Form;

pub(super) use form::{pays, serves, shared_bytes, tile};

/// One number.
type One = Const<1>;

/// The numbers of the tiles, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct TileArgs {
    planes: u32,
    /// The groups of channels of a pixel, and the vectors of a pixel that are read and written.
    groups: FastDivmod<u32>,
    pixel: u32,
    pixel_written: u32,
    /// The tiles of a plane, and the columns of one.
    tiles: FastDivmod<u32>,
    tile: u32,
    /// The pieces that a plane's blocks of rows are cut into, all of them, and those of a piece.
    pieces: FastDivmod<u32>,
    row_blocks: u32,
    run: u32,
    /// The vectors of a row that are read, and that are written.
    line: u32,
    line_written: u32,
    output_height: u32,
    output_width: u32,
    /// What raises the lower halves of words.
    upper: u32,
}

/// Fewer units than this and planes are cut, though each piece then reads a window more.
const ENOUGH_UNITS: usize = 1 << 16;

/// Launches the walk; the caller has checked plan and buffers.
pub(super) fn launch(
    client: &Client,
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
    [input, output]: [&Handle; 2],
) {
    let [_, height, width] = pooling.grid().axes();
    // The plan has been checked: there is a tile for its units.
    let Some((tile, _)) = tile(pooling, plan.units) else { return };
    let form = Form::new(pooling, reduction, dtype, plan, tile);
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let pixel = pixel_channels(pooling);
    let planes = inputs / height.input() / width.input() / pixel;
    let (tiles, groups) = (width.output().div_ceil(tile), pixel / form::channels(pooling));
    let lanes = form::lanes(pooling);
    let written = (form.written as usize).max(1);
    let row_blocks = height.output().div_ceil(form.height.block as usize);
    let units = planes * groups * tiles * plan.units as usize;
    let most = (height.output() / (3 * height.kernel())).max(1);
    let pieces = (ENOUGH_UNITS / units).clamp(1, most);
    let run = row_blocks.div_ceil(pieces);
    let pieces = row_blocks.div_ceil(run);
    let args = TileArgsLaunch::new(
        planes as u32,
        groups as u32,
        (pixel / lanes).max(1) as u32,
        (pixel / written).max(1) as u32,
        tiles as u32,
        tile as u32,
        pieces as u32,
        row_blocks as u32,
        run as u32,
        (width.input() * pixel / lanes) as u32,
        (width.output() * pixel / written) as u32,
        height.output() as u32,
        width.output() as u32,
        UPPER,
    );
    let each = plan.one_by_one();
    let (cubes, dim) = grid(client, plan.units, units * pieces);
    // SAFETY: coordinates are moved inside the plane before they are read, and outputs that are not
    // there are not written.
    unsafe {
        kernel::walk_pairs::launch_unchecked(
            client,
            cubes,
            dim,
            lanes,
            if form.flat { 1 } else { lanes },
            written,
            vectors(input, inputs, lanes),
            vectors(output, outputs, written),
            problem_args(pooling, reduction, dtype, &each),
            args,
            form,
            elem(dtype),
            elem(plan.accumulator),
        )
    };
}
