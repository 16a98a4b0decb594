//! Averages of three by three, one step apart, and their gradients, on planes that keep their extents: all
//! planes as one run of elements, wherever their rows end.
//!
//! ```text
//! for each vector of neighbouring elements:                 one unit
//!     for each of the three rows of taps:
//!         load the vectors that hold it: from one element before to one behind
//!     for each column of these:     add its three rows, but those outside the plane
//!     for each element:             add its three columns, but those outside the row
//! ```
//!
//! With channels first a plane of 35 × 35 has no row but the first that begins where a vector could. Yet what
//! is above an element lies a row's length before it, wherever that is: whole vectors are read and written,
//! whatever the extents. Of a unit's elements at most one begins a row, for a row is longer; those from there on are
//! of the next row.
//!
//! Which vectors a tap is in, and which lanes of them, hangs on a row's length alone, and for that a kernel is made:
//! all its loads are steps from one address then, known when it is compiled. A new length of rows takes a tenth of a
//! second to compile, other extents take none.
//!
//! Most units are away from the first rows of a plane and from the last. Where all units of a warp are, no row
//! is dropped and all have their taps.
//!
//! A gradient adds the shares of windows, which near an edge are divided by fewer taps: what is added is weighed
//! before, by `gradient`, where forward divides what came of it.

mod gradient;
mod kernel;

use core::fmt;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, LIMIT, Pooling};

use crate::cube::convert::{UPPER, Widening, elem};
use crate::cube::unit::grid;
use crate::device::Capabilities;
use crate::pool::common::buffers::{Buffers, buffer};
use crate::pool::common::kernel::Kernel;
use crate::pool::common::lanes::{widest_divisor, widest_load};
use crate::pool::common::settings::Settings;
use crate::pool::common::window::{Fold, full_divisor, keeps_planes};
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Problem, Reduction, pixel_channels};

const NAME: &str = "stencil_flat";

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

    /// Plans vectors as wide as loads are, wherever rows end.
    fn plan(problem: Problem<'_>, device: &Capabilities) -> Result<(Settings, Self), PlanError> {
        let lanes = lanes(problem.pooling, widest_load(problem.dtype, device)).unwrap_or(1);
        let own = Settings::new(problem, device);
        let settings = Settings { lanes, across: true, unrolled: true, ..own };
        Self.check(&settings, problem, device)?;
        Ok((settings, Self))
    }

    /// Refuses windows, types and devices that runs are not for, lanes that do not divide them, and so few that
    /// vectors a row further are more than 32 bits count.
    fn check(
        &self,
        settings: &Settings,
        problem: Problem<'_>,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        let Problem { pooling, dtype, .. } = problem;
        let lanes = lanes(pooling, widest_load(dtype, device));
        fits(problem, device)?;
        only_if(NAME, lanes.is_some(), "planes have a single column")?;
        let (elements, row) = (pooling.input().elements(), pooling.grid().axes()[AXES - 1].input());
        let (lanes, widest) = (settings.lanes, lanes.unwrap_or(1));
        // A row of taps ends in the vector after that of its last element.
        if lanes.is_power_of_two() && lanes <= widest && (elements + row) / lanes < LIMIT {
            return Ok(());
        }
        Err(PlanError::Lanes { lanes, neighbours: elements, widest })
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
        let vectors = elements / settings.lanes;
        let [_, rows, columns] = pooling.grid().axes().each_ref().map(Axis::input);
        let fold = match reduction {
            Reduction::Average(divisor) => Fold::average(divisor),
            _ => return Err(PlanError::Foreign { kernel: NAME }),
        };
        let (cubes, dim) = grid(client, settings.units, vectors);
        let form = Form {
            fold,
            gradient,
            rounds: settings.rounds,
            widened: settings.widening(dtype),
            lanes: settings.lanes as u32,
            row: columns as u32,
            votes: settings.plane_ops,
            line: matches!(cubes, CubeCount::Static(_, 1, 1)),
        };
        // The row of a unit's first element and the next one have all their rows, and one more element is above.
        let inner_first = form.reach() * columns + 1;
        let inner_end = rows.saturating_sub(form.reach() + 1) * columns;
        let args = FlatArgsLaunch::new(
            vectors as u32 - 1,
            (rows * columns) as u32,
            inner_first as u32,
            inner_end.saturating_sub(inner_first) as u32,
            columns as i32,
            columns as i32,
            rows as i32,
            UPPER,
            InputScalar::new(1.0 / full_divisor(pooling, reduction), elem(settings.accumulator)),
        );
        // SAFETY: vectors outside are moved inside before they are read, and units past the last have its vector.
        unsafe {
            kernel::flat::launch_unchecked(
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

/// The numbers of a problem: but for the length of its rows they may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct FlatArgs {
    last_vector: u32,
    plane: FastDivmod<u32>,
    /// The first element of a plane at which a unit may be inner, and how many are from there.
    inner_first: u32,
    inner_count: u32,
    /// A row's length once more, as a number of the launch: where rows begin and end is asked of this, for of the one
    /// that the kernel is made for forward in f32 is slower.
    row: i32,
    /// The same again. Where a row ends it does not begin: a compiler that sees this makes a choice of two out of
    /// each two additions that predicates leave out, at an instruction more.
    row_again: i32,
    rows: i32,
    /// What raises the lower halves of words.
    upper: u32,
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
    lanes: u32,
    /// The elements of a row.
    row: u32,
    /// Whether the units of a warp can ask each other.
    votes: bool,
    /// Whether all cubes are in one line.
    line: bool,
}

impl Form {
    /// The columns that the windows of a unit read.
    fn reads(&self) -> u32 {
        self.lanes + TAPS - 1
    }

    /// Where row `t` of taps begins, from a unit's first element: one element ahead.
    fn start(&self, t: u32) -> i32 {
        (t as i32 - 1) * self.row as i32 - 1
    }

    /// The first vector that holds it, from a unit's own.
    fn first(&self, t: u32) -> i32 {
        self.start(t).div_euclid(self.lanes as i32)
    }

    /// The vectors that hold it.
    fn vectors(&self, t: u32) -> u32 {
        let ahead = self.start(t).rem_euclid(self.lanes as i32) as u32;
        (ahead + self.reads()).div_ceil(self.lanes)
    }

    /// Where column `j` of row `t` is: the vector among those of all rows, and the lane.
    fn place(&self, t: u32, j: u32) -> (usize, usize) {
        let above: u32 = (0..t).map(|t| self.vectors(t)).sum();
        let at = self.start(t).rem_euclid(self.lanes as i32) as u32 + j;
        ((above + at / self.lanes) as usize, (at % self.lanes) as usize)
    }

    /// Whether what is outside is left out tap by tap near a plane's edges, not by what comes of it: that is
    /// an instruction more a tap, but takes fewer registers, by which more units of few lanes have room.
    fn spares_registers(&self) -> bool {
        self.lanes <= 4 && !self.shares()
    }

    /// Whether windows are divided by the taps that they have inside.
    fn divides_each(&self) -> bool {
        self.fold == Fold::AverageValid
    }

    /// Whether windows whose shares are added are divided by one number: each share before it is added, so that large
    /// ones do not overflow.
    fn scales(&self) -> bool {
        self.gradient && !self.divides_each()
    }

    /// Whether windows whose shares are added are divided by different numbers.
    fn shares(&self) -> bool {
        self.gradient && self.divides_each()
    }

    /// The rows at either end of a plane that the end makes different.
    fn reach(&self) -> usize {
        if self.shares() { 2 } else { 1 }
    }
}

/// Refuses problems other than averages of three by three under which rows of single channels keep their planes.
fn fits(problem: Problem<'_>, device: &Capabilities) -> Result<(), PlanError> {
    let Problem { pooling, reduction, dtype, .. } = problem;
    only_if(NAME, device.cores.is_none(), "it is for GPUs")?;
    only_if(NAME, matches!(reduction, Reduction::Average(_)), "it only computes averages")?;
    only_if(NAME, dtype != DType::F64, "it is not for f64")?;
    only_if(NAME, pixel_channels(pooling) == 1, "it is for channels-first tensors")?;
    keeps_planes(NAME, pooling)
}

/// The most lanes, of `widest`, whose vectors divide all planes together and are less than a row.
fn lanes(pooling: &Pooling, widest: usize) -> Option<usize> {
    let elements = pooling.input().elements();
    let row = pooling.grid().axes()[AXES - 1].input();
    let most = widest_divisor(elements, widest);
    let mut lanes = (0..=most.ilog2()).rev().map(|power| 1 << power);
    lanes.find(|&lanes| lanes < row)
}
