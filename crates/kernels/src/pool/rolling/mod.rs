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
//! number of channels, which a layer does not change. `strip` takes 1.4 times as many instructions.
//!
//! The gradient of such an average is such a sum as well. Where windows are divided by their taps that are
//! inside, those on the plane's first and last rows and columns have a larger share.

mod kernel;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Pooling};

use super::launch::buffer;
use super::plan::{Plan, Reduction, pixel_channels};
use super::window::{Fold, full_divisor, keeps_planes, pixel_vectors};
use crate::Limits;
use crate::dtype::{Widening, elem};
use crate::unit::grid;

/// The taps of a window on either axis.
const TAPS: u32 = 3;

/// The rows on their way while those before are summed.
const AHEAD: u32 = 2;

/// The columns of a unit.
pub(super) const COLUMNS: usize = 2;

/// The rows of a unit, where there are as many.
pub(super) const ROWS: usize = 6;

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

/// Launches the kernel, or the gradient's; the caller has checked plan and buffers.
pub(super) fn launch(
    client: &Client,
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
    [input, output]: [&Handle; 2],
    gradient: bool,
) {
    let elements = pooling.input().elements();
    let [_, rows, columns] = pooling.grid().axes().each_ref().map(Axis::input);
    let pixel = pixel_vectors(pooling, plan);
    let (blocks, strips) = (columns.div_ceil(plan.columns), rows.div_ceil(plan.strip));
    let units = units(pooling, plan);
    let fold = match reduction {
        Reduction::Average(divisor) => Fold::average(divisor),
        // The plan has been checked: of averages alone.
        _ => return,
    };
    let form = Form {
        fold,
        gradient,
        rounds: plan.rounds,
        widened: plan.widening(dtype),
        columns: plan.columns as u32,
        pixel,
    };
    let args = RollingArgsLaunch::new(
        units as u32,
        blocks as u32,
        strips as u32,
        plan.strip as u32,
        columns as i32,
        rows as i32,
        columns as u32 * pixel,
        InputScalar::new(1.0 / full_divisor(pooling, reduction), elem(plan.accumulator)),
    );
    let (cubes, dim) = grid(client, plan.units, units);
    // SAFETY: rows and columns outside are not read, and those past the last are not written.
    unsafe {
        kernel::roll::launch_unchecked(
            client,
            cubes,
            dim,
            plan.lanes,
            buffer(input, elements, plan),
            buffer(output, elements, plan),
            args,
            form,
            elem(dtype),
            elem(plan.accumulator),
        )
    };
}

/// The most lanes: graphics devices keep vectors of no more over a loop.
pub(super) fn most_lanes(limits: &Limits) -> usize {
    if limits.llvm { usize::MAX } else { 4 }
}

/// The units of a problem.
pub(super) fn units(pooling: &Pooling, plan: &Plan) -> usize {
    let [_, rows, columns] = pooling.grid().axes().each_ref().map(Axis::input);
    let vectors = pooling.input().elements() / plan.lanes / (rows * columns).max(1);
    vectors * columns.div_ceil(plan.columns) * rows.div_ceil(plan.strip)
}

/// Whether several channels keep their planes under averages of three by three, with columns for a unit.
pub(super) fn fits(pooling: &Pooling, reduction: Reduction) -> bool {
    matches!(reduction, Reduction::Average(_))
        && pixel_channels(pooling) > 1
        && keeps_planes(pooling)
        && pooling.grid().axes()[AXES - 1].input() >= COLUMNS
}
