//! Large windows of two-byte types, both axes of a plane in one launch. The algorithm is that of `van_herk_fused`, with
//! two neighbours per unit, and it also supports averages with channels last.
//!
//! ```text
//! for each tile of columns of a plane:                      one cube; one unit per two columns or channels
//!     for each block of B rows of outputs:
//!         reduce each column's windows in registers          to B rows in shared memory
//!         for each row, block by block of its columns:       one unit each
//!             reduce the row's windows from shared memory, and write them
//! ```
//!
//! It departs from `van_herk_fused` in three ways. First, two neighbours are one load, and the next data is loaded
//! while rows are reduced; for four-byte types that would take so many registers that fewer units fit. Second, the
//! windows of a block are computed from reductions that they share, here sums:
//!
//! ```text
//! whole = sum of the blocks that all windows of the block contain
//! sum   = whole, plus the inputs before these blocks one by one, from the last to the first: each partial sum
//!         belongs to one window and lacks only that window's end
//! y[o]  = sum + prefix of the block after these
//! ```
//!
//! Third, along the rows: if windows contain only one whole block, units do not share its reduction, and each computes
//! what it needs. A unit writes several neighbouring results as one word. If shared memory holds two blocks of rows,
//! the units of a cube synchronise once per block.
//!
//! A tile reads one window more columns than it writes, if that many exist. Columns of the padding have no unit: they
//! are set to the identity element in shared memory once. With channels last, a cube has some channels of a tile, which
//! are adjacent in shared memory as they are in the image.

mod columns;
mod form;
mod kernel;
mod results;
mod rows;

use core::fmt;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::DType;

use crate::cube::convert::{UPPER, accumulator, elem};
use crate::cube::unit::grid;
use crate::device::Capabilities;
use crate::pool::common::buffers::{Buffers, vectors};
use crate::pool::common::kernel::Kernel;
use crate::pool::common::settings::Settings;
use crate::pool::common::van_herk::fits_planes;
use crate::pool::common::window::problem_args;
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Problem, pixel_channels};

use form::{Form, folds_pairs, shared_bytes, tile};

pub(super) use form::pays;

const NAME: &str = "van_herk_paired";

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
        // On a processor, a core would wait at every block for threads that have not come as far.
        only_if(NAME, device.cores.is_none(), "it is for GPUs")?;
        fits(problem, device)?;
        let (_, units) = tile(problem.pooling, device.units_per_cube).ok_or(NO_TILE)?;
        // Maxima are computed in the type in which sums are computed.
        let accumulator = accumulator(problem.dtype);
        let own = Settings::new(problem, device);
        let settings = Settings { units, accumulator, lanes: 1, unrolled: false, ..own };
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
        fits(problem, device)?;
        settings.check_lanes(problem)?;
        let bytes = shared_bytes(problem.pooling, settings);
        only_if(NAME, bytes <= device.shared_bytes, "a tile does not fit in shared memory")?;
        tile(problem.pooling, settings.units).ok_or(NO_TILE)?;
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
        let Some((tile, _)) = tile(pooling, settings.units) else {
            return Err(NO_TILE);
        };
        let form = Form::new(pooling, reduction, dtype, settings, tile);
        let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
        let pixel = pixel_channels(pooling);
        let planes = inputs / height.input() / width.input() / pixel;
        let (tiles, groups) = (width.output().div_ceil(tile), pixel / form::channels(pooling));
        let lanes = form::lanes(pooling);
        let written = (form.written as usize).max(1);
        let row_blocks = height.output().div_ceil(form.height.block as usize);
        let units = planes * groups * tiles * settings.units as usize;
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
        let each = settings.one_by_one();
        let (cubes, dim) = grid(client, settings.units, units * pieces);
        // SAFETY: coordinates are clamped to the plane before they are read, and outputs that do not exist
        // are not written.
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

/// Refuses types that this kernel does not support, and planes whose two axes it cannot both walk.
pub(super) fn fits(problem: Problem<'_>, device: &Capabilities) -> Result<(), PlanError> {
    let Problem { pooling, reduction, dtype, gradient } = problem;
    let maximum = Settings::new(problem, device).maximum;
    only_if(NAME, !gradient, "it computes no gradients")?;
    only_if(NAME, matches!(dtype, DType::F16 | DType::BF16), "elements are not f16 or bf16")?;
    fits_planes(NAME, pooling, reduction)?;
    only_if(
        NAME,
        folds_pairs(reduction, maximum),
        "the device has no instruction for maxima of this type",
    )
}

/// A vector of one element.
type One = Const<1>;

/// The numbers of the tiles. They are run-time values, so they may change without compiling a new kernel.
#[derive(CubeType, CubeLaunch)]
struct TileArgs {
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
    run: u32,
    /// The vectors of a row, as they are read and as they are written.
    line: u32,
    line_written: u32,
    output_height: u32,
    output_width: u32,
    /// The factor that moves the lower half of a word to its upper half.
    upper: u32,
}

/// With fewer units than this, planes are cut into pieces, although each piece then reads one window more.
const ENOUGH_UNITS: usize = 1 << 16;
