//! Large windows, both axes of a plane in one launch: down the columns in registers, along the rows in shared memory.
//!
//! ```text
//! for each tile of columns of a plane:                      one cube; one unit per column and channel
//!     for each block of B rows of outputs:
//!         reduce each column's windows, as `van_herk` does    to B rows in shared memory
//!         for each row, block by block of its columns:       one unit each
//!             prefix, over the block in shared memory; suffix, in registers
//!             y[o] = suffix · whole blocks between · prefix   to rows of their own
//!         write the rows
//! ```
//!
//! The data that `van_herk` writes between its passes never leaves the multiprocessor here, and all reads and writes
//! are of adjacent elements. A tile reads one window more columns than it writes, if that many exist. Columns of the
//! padding have no unit: they are set to the identity element in shared memory once. With channels last, a cube has a
//! few channels of a tile, which are adjacent in shared memory as they are in the image.

mod columns;
mod kernel;
mod results;
mod rows;

use core::fmt;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, Pooling};

use crate::cube::convert::elem;
use crate::cube::unit::grid;
use crate::device::Capabilities;
use crate::pool::common::buffers::{Buffers, vectors};
use crate::pool::common::kernel::Kernel;
use crate::pool::common::settings::Settings;
use crate::pool::common::van_herk::{self, fits_planes, tile_channels};
use crate::pool::common::window::{Form as Tap, problem_args};
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Problem, Reduction, pixel_channels};

const NAME: &str = "van_herk_fused";

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

    /// Plans a tile for the units of a cube, if one fits.
    fn plan(problem: Problem<'_>, device: &Capabilities) -> Result<(Settings, Self), PlanError> {
        let Problem { pooling, reduction, .. } = problem;
        // On a processor, a core would wait at every block for threads that have not come as far.
        only_if(NAME, device.cores.is_none(), "it is for GPUs")?;
        only_if(NAME, !problem.gradient, "it computes no gradients")?;
        fits_planes(NAME, pooling, reduction)?;
        let (_, units) = tile(pooling, reduction, device.units_per_cube).ok_or(NO_TILE)?;
        let own = Settings::new(problem, device);
        let settings = Settings { units, lanes: 1, unrolled: false, ..own };
        Self.check(&settings, problem, device)?;
        Ok((settings, Self))
    }

    /// Refuses a number of units that fits no tile, and tiles that do not fit in shared memory.
    fn check(
        &self,
        settings: &Settings,
        problem: Problem<'_>,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        let Problem { pooling, reduction, .. } = problem;
        fits_planes(NAME, pooling, reduction)?;
        settings.check_lanes(problem)?;
        let bytes = shared_bytes(pooling, reduction, settings);
        only_if(NAME, bytes <= device.shared_bytes, "a tile does not fit in shared memory")?;
        tile(pooling, reduction, settings.units).ok_or(NO_TILE)?;
        Ok(())
    }

    fn launch(
        &self,
        client: &Client,
        problem: Problem<'_>,
        settings: &Settings,
        buffers: Buffers<'_>,
    ) -> Result<(), PlanError> {
        let Problem { pooling, reduction, dtype, .. } = problem;
        let Buffers { input, output, .. } = buffers;
        let [_, height, width] = pooling.grid().axes();
        let Some((tile, _)) = tile(pooling, reduction, settings.units) else {
            return Err(NO_TILE);
        };
        let each = settings.one_by_one();
        let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
        let pixel = pixel_channels(pooling);
        let planes = inputs / height.input() / width.input() / pixel;
        let (tiles, groups) = (width.output().div_ceil(tile), pixel / tile_channels(pooling));
        let (row, result_row) = rows(pooling, reduction, settings);
        let form = Form {
            tap: Tap::new(pooling, reduction, dtype, &each),
            height: Walk::new(height, reduction),
            width: Walk::new(width, reduction),
            row: row as u32,
            result_row: result_row as u32,
            channels: tile_channels(pooling) as u32,
            units: settings.units,
        };
        let args = TileArgsLaunch::new(
            planes as u32,
            groups as u32,
            pixel as u32,
            tiles as u32,
            tile as u32,
            height.output().div_ceil(block(height, reduction)) as u32,
            tile.div_ceil(block(width, reduction)) as u32,
            height.output() as u32,
            width.output() as u32,
        );
        let (cubes, dim) =
            grid(client, settings.units, planes * groups * tiles * settings.units as usize);
        // SAFETY: coordinates are clamped to the plane before they are read, and outputs that do not exist
        // are not written.
        unsafe {
            kernel::walk_tile::launch_unchecked(
                client,
                cubes,
                dim,
                vectors(input, inputs, 1),
                vectors(output, outputs, 1),
                problem_args(pooling, reduction, dtype, &each),
                args,
                form,
                elem(dtype),
                elem(settings.accumulator),
            )
        };
        Ok(())
    }
}

/// The error if no tile has few enough columns for the units of a cube.
const NO_TILE: PlanError = PlanError::NotFor {
    kernel: NAME,
    reason: "a tile of columns needs more units than a cube has",
};

/// A vector of one element.
type One = Const<1>;

/// The most units of a cube. With more, their registers leave room for few cubes; with fewer, tiles read more columns
/// in addition to those that they write.
const MOST_UNITS: u32 = 384;

/// The most units of a cube with channels last.
const MOST_UNITS_OF_CHANNELS: u32 = 512;

/// The number of elements in a block.
fn block(axis: &Axis, reduction: Reduction) -> usize {
    match reduction {
        Reduction::Average(_) => van_herk::block_of_sums(axis),
        _ => van_herk::block(axis),
    }
}

/// The number of columns that a cube writes and of units that it has, at most `most` units.
fn tile(pooling: &Pooling, reduction: Reduction, most: u32) -> Option<(usize, u32)> {
    let [_, height, width] = pooling.grid().axes();
    let (rows, channels) = (block(height, reduction), tile_channels(pooling));
    let most = most.min(if channels > 1 { MOST_UNITS_OF_CHANNELS } else { MOST_UNITS });
    let tiled = |tiles: usize| {
        let tile = width.output().div_ceil(tiles);
        let there = width.input().min(tile + width.kernel() - 1);
        let units = there.max(rows * tile.div_ceil(block(width, reduction)));
        (tile, (channels * units).next_multiple_of(32) as u32)
    };
    // A tile reads at most three times as much as it writes.
    let worth = |&(tile, _): &(usize, u32)| 2 * tile >= width.kernel().min(width.output());
    let (tile, units) =
        (1..=width.output()).map(tiled).take_while(worth).find(|tile| tile.1 <= most)?;
    // With channels last, the number of units is the same for images of all sizes, so that a new size compiles no new
    // kernel.
    let units = if channels > 1 { most } else { units };
    // One unit per column fills the end of a row's last block with the identity element.
    (block(width, reduction) <= units as usize / channels + 1).then_some((tile, units))
}

/// The bytes of shared memory of a cube.
fn shared_bytes(pooling: &Pooling, reduction: Reduction, settings: &Settings) -> usize {
    let (elements, results) = rows(pooling, reduction, settings);
    // Each row also has two numbers of its own: see `Divisors::rows` and `Divisors::fewer`.
    let row = elements + results + 2;
    block(&pooling.grid().axes()[1], reduction) * row * settings.accumulator.size()
}

/// The step from one row to the next in shared memory, for elements and for results.
fn rows(pooling: &Pooling, reduction: Reduction, settings: &Settings) -> (usize, usize) {
    let width = &pooling.grid().axes()[AXES - 1];
    let (block, channels) = (block(width, reduction), tile_channels(pooling));
    // There are no more columns or results than units, rounded up to whole blocks; and windows reach one window and one
    // block further.
    let columns = settings.units as usize / channels + block;
    let reach = columns + width.kernel() + 2 * block;
    (row(channels, reach), row(channels, columns))
}

/// The step from one row to the next in shared memory: an odd number of pixels, so that neighbouring units on
/// neighbouring rows access different banks.
fn row(channels: usize, columns: usize) -> usize {
    (columns | 1) * channels
}

/// How an axis is divided into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Walk {
    /// The number of elements in a block.
    block: u32,
    /// For a window that starts at the first element of a block: how many blocks later its last tap is, and the
    /// position of this tap in that block.
    whole: u32,
    rest: u32,
}

impl Walk {
    fn new(axis: &Axis, reduction: Reduction) -> Self {
        let block = block(axis, reduction);
        let (whole, rest) = ((axis.kernel() - 1) / block, (axis.kernel() - 1) % block);
        Self { block: block as u32, whole: whole as u32, rest: rest as u32 }
    }
}

/// The parameters that change the kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    tap: Tap,
    height: Walk,
    width: Walk,
    /// The elements of a row in shared memory, and of a row of results.
    row: u32,
    result_row: u32,
    /// The number of channels and of units of a cube.
    channels: u32,
    units: u32,
}

impl Form {
    /// The number of units per row and channel.
    fn items(&self) -> u32 {
        (self.units / self.height.block / self.channels).max(1)
    }

    /// The number of rows whose taps are counted for all units; 1 if none are counted.
    fn rows_counted(&self) -> u32 {
        if self.tap.fold.counts() { self.height.block } else { 1 }
    }

    /// A mask that leaves positions in shared memory unchanged. It shows the compiler that offsets from a position stay
    /// within 32 bits, so that they can become part of the access.
    fn place(&self) -> u32 {
        (self.row * self.height.block).next_power_of_two() - 1
    }
}

/// The numbers of the tiles. They are run-time values, so they may change without compiling a new kernel.
#[derive(CubeType, CubeLaunch)]
struct TileArgs {
    planes: u32,
    /// The number of groups of channels in a pixel, and the number of its channels.
    groups: FastDivmod<u32>,
    pixel: u32,
    /// The number of tiles of a plane, and of columns in a tile.
    tiles: FastDivmod<u32>,
    tile: u32,
    /// The number of blocks of rows in a plane, and of blocks of a row in which windows start.
    row_blocks: u32,
    starts: u32,
    output_height: u32,
    output_width: u32,
}
