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

mod kernel;

use core::fmt;

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Pooling};

use crate::cube::numbers;
use crate::device::Capabilities;
use crate::error::{PlanError, ensure, only_if};
use crate::pool::common::window::{ProblemArgs, WindowForm, problem_args};
use crate::pool::common::{
    Buffers, Kernel, Settings, Task, Tensor, Work, optional, widest_divisor,
};
use crate::pool::problem::{Problem, check_workspace};

pub(super) const NAME: &str = "block_reduce";

/// The instructions of a unit besides its taps; of a tap besides its load and its reduction; and of a step that combines
/// the results of a team.
const OF_UNIT: f64 = 140.0;
const OF_TAP: f64 = 37.0;
const OF_STEP: f64 = 14.0;

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
    /// Refuses everything except maxima and averages.
    fn applies(problem: Problem<'_>, _device: &Capabilities) -> Result<(), PlanError> {
        only_if(NAME, !problem.gradient, "it computes no gradients")?;
        only_if(NAME, problem.folds(), "it computes only extrema and averages")
    }

    /// Plans teams, and the scratch buffers for their parts.
    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError> {
        let Task { settings: own, device, .. } = task;
        // Not every device has shared vectors of more than four lanes.
        let widest = task.widest().min(device.vector_lanes.min(16));
        if let Some((lanes, planes)) = staged(task, widest) {
            let settings = Settings { lanes, along_width: true, unrolled: false, ..own };
            return Ok((settings, Self { team: 1, parts: 1, planes }));
        }
        let (settings, config) = teams(task, own.lanes.min(widest), widest);
        let workspace = workspace(task.with(settings), config.parts);
        Ok((Settings { workspace, ..settings }, config))
    }

    /// Refuses teams larger than a cube, and numbers of parts that are not supported.
    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        let Task { settings, device, .. } = task;
        let Self { team, parts, planes } = *self;
        let (units, taps) = (settings.units, task.taps());
        task.check_lanes_of(match settings.along_width {
            true if !is_whole_plane(task.pooling()) => 0,
            // The planes of a cube, and those of the last one, are whole vectors.
            true if planes > 0 => {
                let last = task.outputs() % planes;
                1 << (planes.saturating_mul(taps) | (last * taps)).trailing_zeros().min(31)
            }
            true => taps,
            false => task.pixel(),
        })?;
        let room = units as usize * STAGED as usize * settings.lanes;
        let fits = planes == 0
            || (settings.along_width && team == 1 && parts == 1 && planes <= units as usize)
                && planes.saturating_mul(taps) <= room;
        let halves = team.is_power_of_two() && team <= units;
        let fits = fits && halves && (1..=MOST_PARTS).contains(&parts);
        ensure(fits, PlanError::Teams { team, units, parts, limit: MOST_PARTS })?;
        let written = parts.saturating_mul(task.outputs());
        check_workspace(written, workspace(task, parts), device)?;
        let bytes = match planes {
            0 => shared_bytes(task),
            _ => room * task.dtype().size(),
        };
        let room = bytes <= device.shared_bytes;
        only_if(NAME, room, "results of a cube's units do not fit in shared memory")
    }

    fn seconds(&self, task: Task<'_>) -> f64 {
        let (settings, lanes) = (task.settings, task.lanes());
        let taps = task.taps();
        let cubes = cubes_per_part(task, self);
        let units = cubes * self.parts * settings.units as usize;
        if self.planes > 0 {
            let copies = (self.planes * taps) as f64 / lanes as f64 / f64::from(settings.units);
            let copies = copies * 2.0 * task.load_cost(lanes, 1);
            let plane = taps as f64 * (task.load_cost(1, 1) + task.reduce_cost(1));
            return task.launch_seconds(units, OF_UNIT + copies + plane + task.barrier_cost(), 2.0);
        }
        let vectors = taps / if settings.along_width { lanes } else { 1 };
        let loads = vectors.div_ceil(self.team as usize * self.parts).div_ceil(FLIGHT as usize);
        let loads = loads as f64;
        let each =
            f64::from(FLIGHT) * (OF_TAP + task.load_cost(lanes, 1) + task.reduce_cost(lanes));
        let steps = f64::from(self.team.ilog2());
        let instructions = OF_UNIT + loads * each + steps * (OF_STEP + task.barrier_cost());
        let own = task.launch_seconds(units, instructions, loads + steps);
        // The second launch has little to do.
        let combining = Work { bytes: 0.0, units: 0.0, instructions: 0.0, waits: 1.0 };
        let combining = if self.parts > 1 { combining.seconds(task.device) } else { 0.0 };
        own + combining
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        match self.parts {
            1 => launch_one(task, self, buffers),
            _ => launch_parts(task, self, buffers),
        }
        Ok(())
    }
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
fn staged(task: Task<'_>, widest: usize) -> Option<(usize, usize)> {
    let Task { settings, device, .. } = task;
    let (taps, windows, size) = (task.taps(), task.outputs(), task.dtype().size());
    let lanes = widest_divisor(windows * taps, widest);
    let room = STAGED as usize * settings.units as usize * lanes;
    let narrow = widest_divisor(taps, widest) * size < NARROW_BYTES;
    let fitting = (room / taps).min(settings.units as usize);
    let few = windows.div_ceil(device.multiprocessor_count()).next_multiple_of(ENOUGH_PLANES);
    // Planes of a whole number of vectors, whatever their elements.
    let planes = fitting.min(few) / lanes * lanes;
    let fits = room * size <= device.shared_bytes && planes > 0;
    let whole_plane = task.pixel() == 1 && is_whole_plane(task.pooling()) && device.cores.is_none();
    (whole_plane && narrow && fits && fitting >= ENOUGH_PLANES).then_some((lanes, planes))
}

/// The number of units that fill a large GPU several times over.
const ENOUGH_UNITS: usize = 1 << 17;

/// Chooses teams for a problem, and the vectors that their units read, whose lanes may be neighbours in one plane.
/// `lanes` divides a pixel; `widest` is the most that is loaded at once.
fn teams(task: Task<'_>, lanes: usize, widest: usize) -> (Settings, Config) {
    let (pixels, units) = (task.pixel(), task.settings.units);
    let along_width = pixels == 1 && is_whole_plane(task.pooling());
    let lanes = if along_width { widest_divisor(task.taps(), widest) } else { lanes };
    let taps = task.taps() / if along_width { lanes } else { 1 };
    let outputs = task.outputs() / if along_width { 1 } else { lanes };
    let power = |n: usize| 1usize << n.max(1).ilog2();
    // Neighbouring units cover the vectors of a pixel before they share its taps.
    let pixel = (pixels / lanes).next_power_of_two().min(32);
    let pixel = if along_width { 1 } else { pixel };
    // Each unit of a team has a few taps, so that combining the units' results is not most of the work.
    let most = power(taps / FLIGHT as usize).min(power(units as usize / pixel));
    let wanted = match pixels {
        1 => most,
        _ => (ENOUGH_UNITS / outputs.max(1)).max(1).next_power_of_two(),
    };
    let team = wanted.min(most);
    let parts = (ENOUGH_UNITS / (outputs * team).max(1)).clamp(1, MOST_PARTS);
    let parts = parts.min(taps / (team * 4 * FLIGHT as usize)).max(1);
    let settings = Settings { lanes, along_width, unrolled: false, ..task.settings };
    (settings, Config { team: team as u32, parts, planes: 0 })
}

/// The most parts that the taps of a window are split into, because one unit combines them one by one.
const MOST_PARTS: usize = 128;

/// Whether a window is the whole plane, so that its taps are in memory order.
pub(super) fn is_whole_plane(pooling: &Pooling) -> bool {
    let whole = |axis: &Axis| {
        let all = axis.output() == 1 && axis.before() == 0 && axis.kernel() == axis.input();
        all && (axis.dilation() == 1 || axis.kernel() == 1)
    };
    pooling.grid().axes().iter().all(whole)
}

/// The bytes of shared memory of a cube.
fn shared_bytes(task: Task<'_>) -> usize {
    task.settings.units as usize * written(&task.settings) * partial_bytes(task)
}

/// The bytes of the scratch buffers for the parts.
fn workspace(task: Task<'_>, parts: usize) -> usize {
    let parts = if parts > 1 { parts } else { 0 };
    parts * task.outputs() * partial_bytes(task)
}

fn partial_bytes(task: Task<'_>) -> usize {
    let index = if task.reduction().has_indices() { DType::I32.size() } else { 0 };
    task.settings.accumulator.size() + index
}

/// The number of lanes that are written; lanes along a plane become one.
fn written(settings: &Settings) -> usize {
    if settings.along_width { 1 } else { settings.lanes }
}

/// The numbers of a problem and of its teams.
#[derive(CubeType, CubeLaunch)]
struct TeamArgs {
    problem: ProblemArgs,
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
    taps_per_part: u32,
    /// The number of taps that a team has in flight.
    round: FastDivmod<u32>,
    /// The number of taps on each axis except the outermost.
    kernel_height: FastDivmod<u32>,
    kernel_width: FastDivmod<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    window: WindowForm,
    /// Whether the taps are the plane in memory order.
    whole_plane: bool,
    /// Whether the lanes lie along the taps.
    along_width: bool,
    /// Whether neighbouring units have neighbouring vectors of a pixel instead of neighbouring taps.
    pixels: bool,
    units: u32,
    /// Whether shared memory is written in vectors instead of element by element.
    vectors: bool,
}

impl Form {
    fn new(task: Task<'_>) -> Self {
        Self {
            window: WindowForm::new(each(task)),
            whole_plane: is_whole_plane(task.pooling()),
            along_width: task.settings.along_width,
            pixels: task.pixel() > 1,
            units: task.settings.units,
            vectors: task.device.shared_vectors,
        }
    }

    /// The number of units that share positions; 1 if there are none to share.
    fn shared_positions(&self) -> usize {
        if self.window.fold.has_index() { self.units as usize } else { 1 }
    }
}

/// Launches teams, or units, that reduce whole windows.
fn launch_one(task: Task<'_>, config: &Config, buffers: Buffers<'_>) {
    let (client, lanes, written) = (buffers.client, task.lanes(), written(&task.settings));
    let cubes = cubes_per_part(task, config);
    let (count, dim) = task.cubes(client, cubes);
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
            lanes,
            written,
            buffers.input.vectors(lanes),
            buffers.output.vectors(written),
            optional(buffers.indices, written),
            team_args(task, config, cubes),
            Form::new(task),
            task.types(),
        )
    };
}

/// Launches teams that reduce parts of windows, and then the kernel that combines the parts.
fn launch_parts(task: Task<'_>, config: &Config, buffers: Buffers<'_>) {
    let (client, lanes, written) = (buffers.client, task.lanes(), written(&task.settings));
    let (form, cubes) = (Form::new(task), cubes_per_part(task, config));
    let elements = config.parts * task.outputs();
    let values = client.empty(elements * task.settings.accumulator.size());
    let indexed = task.reduction().has_indices();
    let positions = indexed.then(|| client.empty(elements * DType::I32.size()));
    let values = Tensor::new(&values, elements);
    let positions = positions.as_ref().map(|positions| Tensor::new(positions, elements));
    let (count, dim) = task.cubes(client, cubes * config.parts);
    // SAFETY: taps outside a window or its part are moved inside before they are read, teams without a
    // window write nothing, and the parts are as many as the plan says.
    unsafe {
        kernel::part::launch_unchecked(
            client,
            count,
            dim,
            lanes,
            written,
            buffers.input.vectors(lanes),
            values.vectors(written),
            optional(positions, written),
            team_args(task, config, cubes),
            form,
            task.types(),
        )
    };
    let (count, dim) = task.grid(client, task.outputs() / written);
    // SAFETY: a unit past the last result returns before it reads.
    unsafe {
        kernel::fold_parts::launch_unchecked(
            client,
            count,
            dim,
            written,
            values.vectors(written),
            optional(positions, written),
            buffers.output.vectors(written),
            optional(buffers.indices, written),
            problem_args(each(task)),
            config.parts as u32,
            form,
            task.types(),
        )
    };
}

/// The number of cubes whose teams compute one part of every window.
fn cubes_per_part(task: Task<'_>, config: &Config) -> usize {
    let results = task.outputs() / written(&task.settings);
    results.div_ceil(windows_per_cube(&task.settings, config))
}

/// The number of windows that a cube reduces.
fn windows_per_cube(settings: &Settings, config: &Config) -> usize {
    if config.planes > 0 { config.planes } else { (settings.units / config.team) as usize }
}

/// The task with the settings for results: lanes along a plane become one.
fn each(task: Task<'_>) -> Task<'_> {
    let lanes = written(&task.settings);
    task.with(Settings { lanes, along_width: false, unrolled: false, ..task.settings })
}

fn team_args(task: Task<'_>, config: &Config, cubes: usize) -> TeamArgsLaunch {
    let axes = task.axes();
    let teams = windows_per_cube(&task.settings, config) as u32;
    let vectors = task.settings.along_width && config.planes == 0;
    let taps = task.taps() / if vectors { task.lanes() } else { 1 };
    let channels_last = task.pixel() > 1;
    numbers! { TeamArgsLaunch {
        problem: problem_args(each(task)),
        neighbours: if channels_last { teams } else { config.team }, team: config.team, teams,
        halvings: config.team.ilog2(), cubes, parts: config.parts, taps,
        taps_per_part: taps.div_ceil(config.parts),
        round: if config.planes > 0 { STAGED } else { config.team * FLIGHT },
        kernel_height: axes[AXES - 2].kernel(), kernel_width: axes[AXES - 1].kernel(),
    } }
}
