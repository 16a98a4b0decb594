//! Few windows with many taps: one team of units per window, and neighbouring units read adjacent memory.
//!
//! ```text
//! for each output (n, o, c):                    one team of T units
//!     unit m reduces the taps m, m + T, m + 2T, …      several loads in flight
//!     the team's results are reduced in shared memory   T/2 pairs, T/4 pairs, …
//! ```
//!
//! With channels last, the lanes of a vector are channels, and neighbouring units read neighbouring vectors of the same
//! tap. With channels first, neighbouring units read neighbouring taps. If a window is the whole plane, its taps are in
//! memory order and are read as vectors if these divide the plane.
//!
//! If no wide vector divides the plane, which is small, several planes together are a whole number of vectors:
//!
//! ```text
//! for each cube: a few planes, which lie one after the other in memory
//!     copy them to shared memory, vector by vector
//!     each unit reduces one plane
//! ```
//!
//! If there are still too few units, the taps are split into parts, each with teams of its own, and a second launch
//! combines the parts. Taps are reduced out of order, so positions are compared explicitly: among equal maxima the one
//! at the lower position wins, among NaNs the one at the higher.

mod cost;
mod kernel;

use core::fmt;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Pooling};

use crate::cube::convert::elem;
use crate::cube::unit::grid;
use crate::device::Capabilities;
use crate::pool::common::buffers::{Buffers, optional_vectors, vectors};
use crate::pool::common::kernel::Kernel;
use crate::pool::common::lanes::{widest_divisor, widest_load};
use crate::pool::common::settings::Settings;
use crate::pool::common::window::{Form as Tap, problem_args};
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Problem, Reduction, check_workspace, pixel_channels};

const NAME: &str = "block_reduce";

/// How the taps of a window are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The number of units that share a window.
    pub team: u32,
    /// The number of parts that the taps of a window are split into; a second launch combines them.
    pub parts: usize,
    /// The number of planes that a cube copies to shared memory for its units to reduce one each; 0 if units read memory.
    pub planes: usize,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { team, parts, planes } = self;
        match planes {
            0 => write!(f, "teams of {team} units, {parts} parts"),
            _ => write!(f, "{planes} planes a cube"),
        }
    }
}

impl Kernel for Config {
    const NAME: &'static str = NAME;

    /// Plans teams, and the scratch buffers for their parts.
    fn plan(problem: Problem<'_>, device: &Capabilities) -> Result<(Settings, Self), PlanError> {
        fits(problem)?;
        let own = Settings::new(problem, device);
        // Not every device has shared vectors of more than four lanes.
        let widest = widest_load(problem.dtype, device).min(device.vector_lanes.min(16));
        if let Some((lanes, planes)) = staged(problem, &own, widest, device) {
            let settings = Settings { lanes, across: true, unrolled: false, ..own };
            let config = Self { team: 1, parts: 1, planes };
            config.check(&settings, problem, device)?;
            return Ok((settings, config));
        }
        let teams = Teams::new(problem.pooling, own.units, own.lanes.min(widest), widest);
        let Teams { lanes, across, team, parts } = teams;
        let settings = Settings { lanes, across, unrolled: false, ..own };
        let workspace = workspace(problem.pooling, problem.reduction, &settings, parts);
        let settings = Settings { workspace, ..settings };
        let config = Self { team, parts, planes: 0 };
        config.check(&settings, problem, device)?;
        Ok((settings, config))
    }

    /// Refuses teams larger than a cube, and numbers of parts that are not supported.
    fn check(
        &self,
        settings: &Settings,
        problem: Problem<'_>,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        let Problem { pooling, reduction, .. } = problem;
        fits(problem)?;
        let Self { team, parts, planes } = *self;
        let (units, taps) = (settings.units, pooling.grid().taps());
        settings.check_lanes_of(match settings.across {
            true if !is_flat(pooling) => 0,
            // The planes of a cube, and those of the last one, are whole vectors.
            true if planes > 0 => {
                let last = pooling.output().elements() % planes;
                1 << (planes.saturating_mul(taps) | (last * taps)).trailing_zeros().min(31)
            }
            true => taps,
            false => pixel_channels(pooling),
        })?;
        let room = units as usize * STAGED as usize * settings.lanes;
        let fits = planes == 0
            || (settings.across && team == 1 && parts == 1 && planes <= units as usize)
                && planes.saturating_mul(taps) <= room;
        let halves = team.is_power_of_two() && team <= units;
        if !fits || !halves || !(1..=MOST_PARTS).contains(&parts) {
            return Err(PlanError::Teams { team, units, parts, limit: MOST_PARTS });
        }
        let written = parts.saturating_mul(pooling.output().elements());
        check_workspace(written, workspace(pooling, reduction, settings, parts), device)?;
        let bytes = match planes {
            0 => shared_bytes(reduction, settings),
            _ => room * problem.dtype.size(),
        };
        let room = bytes <= device.shared_bytes;
        only_if(NAME, room, "results of a cube's units do not fit in shared memory")
    }

    fn seconds(&self, settings: &Settings, problem: Problem<'_>, device: &Capabilities) -> f64 {
        cost::seconds(self, settings, problem, device)
    }

    fn launch(
        &self,
        client: &Client,
        problem: Problem<'_>,
        settings: &Settings,
        buffers: Buffers<'_>,
    ) -> Result<(), PlanError> {
        match self.parts {
            1 => launch_one(client, problem, settings, self, buffers),
            _ => launch_parts(client, problem, settings, self, buffers),
        }
        Ok(())
    }
}

/// Refuses everything except maxima and averages.
fn fits(problem: Problem<'_>) -> Result<(), PlanError> {
    let norm = matches!(problem.reduction, Reduction::Norm(_));
    only_if(NAME, !problem.gradient, "it computes no gradients")?;
    only_if(NAME, !norm, "it computes no norms")
}

/// The number of loads that a unit has in flight at once.
const FLIGHT: u32 = 4;

/// The number of vectors that a unit copies to shared memory at once, and that a cube has room for.
const STAGED: u32 = 8;

/// Planes are copied to shared memory if no vector of this many bytes divides them, and a cube has room for this many.
const NARROW_BYTES: usize = 8;
const ENOUGH_PLANES: usize = 32;

/// The lanes of vectors, and the number of planes of a cube, if planes are copied to shared memory: on GPUs, if windows
/// are small whole planes that only short vectors divide. With few planes, each multiprocessor has some.
fn staged(
    problem: Problem<'_>,
    settings: &Settings,
    widest: usize,
    device: &Capabilities,
) -> Option<(usize, usize)> {
    let Problem { pooling, dtype, .. } = problem;
    let (taps, windows) = (pooling.grid().taps(), pooling.output().elements());
    let lanes = widest_divisor(windows * taps, widest);
    let room = STAGED as usize * settings.units as usize * lanes;
    let narrow = widest_divisor(taps, widest) * dtype.size() < NARROW_BYTES;
    let fitting = (room / taps).min(settings.units as usize);
    let few = windows.div_ceil(settings.multiprocessors as usize).next_multiple_of(ENOUGH_PLANES);
    // Planes of a whole number of vectors, whatever their elements.
    let planes = fitting.min(few) / lanes * lanes;
    let fits = room * dtype.size() <= device.shared_bytes && planes > 0;
    let flat = pixel_channels(pooling) == 1 && is_flat(pooling) && device.cores.is_none();
    (flat && narrow && fits && fitting >= ENOUGH_PLANES).then_some((lanes, planes))
}

/// The number of units that fill a large GPU several times over.
const ENOUGH_UNITS: usize = 1 << 17;

/// How the taps of a problem are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Teams {
    /// The number of elements that a unit reads at once, and whether they are neighbours in one plane.
    lanes: usize,
    across: bool,
    /// The number of units of a team.
    team: u32,
    /// The number of parts that the taps are split into.
    parts: usize,
}

impl Teams {
    /// Chooses teams for a problem. `lanes` divides a pixel; `widest` is the most that is loaded at once.
    fn new(pooling: &Pooling, units: u32, lanes: usize, widest: usize) -> Self {
        let across = pixel_channels(pooling) == 1 && is_flat(pooling);
        let lanes = if across { widest_divisor(pooling.grid().taps(), widest) } else { lanes };
        let taps = pooling.grid().taps() / if across { lanes } else { 1 };
        let outputs = pooling.output().elements() / if across { 1 } else { lanes };
        let power = |n: usize| 1usize << n.max(1).ilog2();
        // Neighbouring units cover the vectors of a pixel before they share its taps.
        let pixel = (pixel_channels(pooling) / lanes).next_power_of_two().min(32);
        let pixel = if across { 1 } else { pixel };
        // Each unit of a team has a few taps, so that combining the units' results is not most of the work.
        let most = power(taps / FLIGHT as usize).min(power(units as usize / pixel));
        let wanted = if pixel_channels(pooling) == 1 {
            most
        } else {
            (ENOUGH_UNITS / outputs.max(1)).max(1).next_power_of_two()
        };
        let team = wanted.min(most);
        let parts = (ENOUGH_UNITS / (outputs * team).max(1)).clamp(1, MOST_PARTS);
        let parts = parts.min(taps / (team * 4 * FLIGHT as usize)).max(1);
        Self { lanes, across, team: team as u32, parts }
    }
}

/// The most parts that the taps of a window are split into, because one unit combines them one by one.
const MOST_PARTS: usize = 128;

/// Whether a window is the whole plane, so that its taps are in memory order.
pub(super) fn is_flat(pooling: &Pooling) -> bool {
    let whole = |axis: &Axis| {
        let all = axis.output() == 1 && axis.before() == 0 && axis.kernel() == axis.input();
        all && (axis.dilation() == 1 || axis.kernel() == 1)
    };
    pooling.grid().axes().iter().all(whole)
}

/// The bytes of shared memory of a cube.
fn shared_bytes(reduction: Reduction, settings: &Settings) -> usize {
    settings.units as usize * written(settings) * partial_bytes(reduction, settings)
}

/// The bytes of the scratch buffers for the parts.
fn workspace(pooling: &Pooling, reduction: Reduction, settings: &Settings, parts: usize) -> usize {
    let parts = if parts > 1 { parts } else { 0 };
    parts * pooling.output().elements() * partial_bytes(reduction, settings)
}

fn partial_bytes(reduction: Reduction, settings: &Settings) -> usize {
    let index = if is_indexed(reduction) { DType::I32.size() } else { 0 };
    settings.accumulator.size() + index
}

fn is_indexed(reduction: Reduction) -> bool {
    reduction.has_indices()
}

/// The number of lanes that are written; lanes along a plane become one.
fn written(settings: &Settings) -> usize {
    if settings.across { 1 } else { settings.lanes }
}

/// The numbers of the teams. They are run-time values, so they may change without compiling a new kernel.
#[derive(CubeType, CubeLaunch)]
struct TeamArgs {
    /// The divisor that splits a unit's position into member and team: the units of a team, or the teams of a cube.
    neighbours: FastDivmod<u32>,
    /// The number of units in a team, of teams in a cube, and of halvings until a team has one unit.
    team: u32,
    teams: u32,
    halvings: u32,
    /// The number of cubes that compute one part, and the number of parts.
    cubes: FastDivmod<u32>,
    parts: u32,
    /// The number of taps of a window and of a part, in vectors if the lanes lie along them.
    taps: u32,
    taps_a_part: u32,
    /// The number of taps that a team has in flight.
    round: FastDivmod<u32>,
    /// The number of taps on each axis except the outermost.
    kernel_height: FastDivmod<u32>,
    kernel_width: FastDivmod<u32>,
}

/// The parameters that change the kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    tap: Tap,
    /// Whether the taps are the plane in memory order.
    flat: bool,
    /// Whether the lanes lie along the taps.
    across: bool,
    /// Whether neighbouring units have neighbouring vectors of a pixel instead of neighbouring taps.
    pixels: bool,
    units: u32,
    /// Whether shared memory is written in vectors instead of element by element.
    vectors: bool,
}

impl Form {
    fn new(pooling: &Pooling, reduction: Reduction, dtype: DType, settings: &Settings) -> Self {
        Self {
            tap: Tap::new(pooling, reduction, dtype, &each(settings)),
            flat: is_flat(pooling),
            across: settings.across,
            pixels: pixel_channels(pooling) > 1,
            units: settings.units,
            vectors: settings.shared_vectors,
        }
    }

    /// The number of units that share positions; 1 if there are none to share.
    fn shared_positions(&self) -> usize {
        if self.tap.fold.has_index() { self.units as usize } else { 1 }
    }
}

/// Launches teams, or units, that reduce whole windows.
fn launch_one(
    client: &Client,
    problem: Problem<'_>,
    settings: &Settings,
    config: &Config,
    buffers: Buffers<'_>,
) {
    let Problem { pooling, reduction, dtype, .. } = problem;
    let Buffers { input, output, indices, .. } = buffers;
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let (written, cubes) = (written(settings), cubes_of_a_part(pooling, settings, config));
    let (count, dim) = grid(client, settings.units, cubes * settings.units as usize);
    let launch = if config.planes > 0 {
        kernel::staged::launch_unchecked
    } else {
        kernel::whole::launch_unchecked
    };
    // SAFETY: taps outside a window, and vectors past the last, are moved inside before they are read, and teams or units
    // without a window write nothing.
    unsafe {
        launch(
            client,
            count,
            dim,
            settings.lanes,
            written,
            vectors(input, inputs, settings.lanes),
            vectors(output, outputs, written),
            optional_vectors(indices, outputs, written),
            problem_args(pooling, reduction, dtype, &each(settings)),
            team_args(pooling, settings, config, cubes),
            Form::new(pooling, reduction, dtype, settings),
            elem(dtype),
            elem(settings.accumulator),
        )
    };
}

/// Launches teams that reduce parts of windows, and then the kernel that combines the parts.
fn launch_parts(
    client: &Client,
    problem: Problem<'_>,
    settings: &Settings,
    config: &Config,
    buffers: Buffers<'_>,
) {
    let Problem { pooling, reduction, dtype, .. } = problem;
    let Buffers { input, output, indices, .. } = buffers;
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let (written, cubes) = (written(settings), cubes_of_a_part(pooling, settings, config));
    let form = Form::new(pooling, reduction, dtype, settings);
    let elements = config.parts * outputs;
    let values = client.empty(elements * settings.accumulator.size());
    let positions = is_indexed(reduction).then(|| client.empty(elements * DType::I32.size()));
    let (count, dim) = grid(client, settings.units, cubes * config.parts * settings.units as usize);
    // SAFETY: taps outside a window or its part are moved inside before they are read, teams without a
    // window write nothing, and the parts are as many as the plan says.
    unsafe {
        kernel::part::launch_unchecked(
            client,
            count,
            dim,
            settings.lanes,
            written,
            vectors(input, inputs, settings.lanes),
            vectors(&values, elements, written),
            optional_vectors(positions.as_ref(), elements, written),
            problem_args(pooling, reduction, dtype, &each(settings)),
            team_args(pooling, settings, config, cubes),
            form,
            elem(dtype),
            elem(settings.accumulator),
        )
    };
    let (count, dim) = grid(client, settings.units, outputs / written);
    // SAFETY: a unit past the last result returns before it reads.
    unsafe {
        kernel::fold_parts::launch_unchecked(
            client,
            count,
            dim,
            written,
            vectors(&values, elements, written),
            optional_vectors(positions.as_ref(), elements, written),
            vectors(output, outputs, written),
            optional_vectors(indices, outputs, written),
            problem_args(pooling, reduction, dtype, &each(settings)),
            config.parts as u32,
            form,
            elem(dtype),
            elem(settings.accumulator),
        )
    };
}

/// The number of cubes whose teams compute one part of every window.
fn cubes_of_a_part(pooling: &Pooling, settings: &Settings, config: &Config) -> usize {
    let results = pooling.output().elements() / written(settings);
    results.div_ceil(windows_of_a_cube(settings, config))
}

/// The number of windows that a cube reduces.
fn windows_of_a_cube(settings: &Settings, config: &Config) -> usize {
    if config.planes > 0 { config.planes } else { (settings.units / config.team) as usize }
}

/// The settings for results: lanes along a plane become one.
fn each(settings: &Settings) -> Settings {
    Settings { lanes: written(settings), across: false, unrolled: false, ..*settings }
}

fn team_args(
    pooling: &Pooling,
    settings: &Settings,
    config: &Config,
    cubes: usize,
) -> TeamArgsLaunch {
    let axes = pooling.grid().axes();
    let teams = windows_of_a_cube(settings, config) as u32;
    let vectors = settings.across && config.planes == 0;
    let taps = pooling.grid().taps() / if vectors { settings.lanes } else { 1 };
    let channels_last = pixel_channels(pooling) > 1;
    TeamArgsLaunch::new(
        if channels_last { teams } else { config.team },
        config.team,
        teams,
        config.team.ilog2(),
        cubes as u32,
        config.parts as u32,
        taps as u32,
        taps.div_ceil(config.parts) as u32,
        if config.planes > 0 { STAGED } else { config.team * FLIGHT },
        axes[AXES - 2].kernel() as u32,
        axes[AXES - 1].kernel() as u32,
    )
}
