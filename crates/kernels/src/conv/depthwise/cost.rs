//! Estimates the time from the instructions that load pixels and multiply them, or from the latency of a unit's loads.
//! Part of the time of moving the tensors is added, because few loads are started ahead. The estimate of units that walk down
//! lines also knows how many cubes a multiprocessor has registers for.

use windowpane_geometry::{AXES, DType, Layout};

use super::chunk_vectors;
use super::config::Config;
use super::form::Form;
use super::rolling;
use crate::conv::common::{Gather, MOST_TOGETHER, cost};
use crate::conv::problem::Task;
use crate::cube::SECTOR;

/// The instructions of a loaded vector of pixels, and of a product, of a unit that computes a block.
const PIXEL: f64 = 17.0;
const PRODUCT: f64 = 2.4;

/// The cycles from one pixel of a unit to the next, and the units of a multiprocessor that wait at the same time.
const LATENCY: f64 = 68.0;
const RESIDENT: f64 = 1024.0;

/// The share of the time of a copy that is not hidden behind instructions.
const EXPOSED: f64 = 0.62;

/// The instructions of a product of a unit that walks down lines; and of one with so many weights that those of two channels
/// would not fit in registers. The second is 1.4 by the times of 7×7 filters, but blocks of large layers are estimated too slow
/// as well, and with 1.4 they lost to walks that take 1.2 times as long.
const WALK_PRODUCT: f64 = 0.92;
const LARGE_FILTER_PRODUCT: f64 = 1.65;

/// What walks cost in a layout.
struct WalkCosts {
    /// The instructions of a vector that is loaded, and of a pixel in it.
    load: f64,
    pixel: f64,
    /// The cycles of a line of a cube that is alone: those of its loads, divided among the lines ahead, and some times its
    /// instructions.
    latency: f64,
    alone: f64,
    /// The share of the time of a copy that is not hidden.
    exposed: f64,
}

/// The numbers were fitted to 456 times of 93 layers, but `OVERLAPPING`, `MOST_NEEDED` and `LACKING` were chosen for a low
/// regret on 53 layers whose walks were timed.
const CHANNELS_LAST: WalkCosts =
    WalkCosts { load: 7.4, pixel: 0.0, latency: 142.0, alone: 2.0, exposed: 0.85 };

/// The numbers were fitted to 310 times of 31 layers.
const CHANNELS_FIRST: WalkCosts =
    WalkCosts { load: 9.6, pixel: 6.2, latency: 53.0, alone: 0.82, exposed: 0.41 };

/// The cycles of each sector of memory that a warp stores to at once with channels first.
const CYCLES_PER_SECTOR: f64 = 1.5;
const WARP: f64 = 32.0;

/// The factor of a line whose last run has rows of the run before it. A fit to times gives 1; this one chooses better.
const OVERLAPPING: f64 = 1.15;

/// How often a multiprocessor has as many cubes as it can when those left over at the end no longer matter.
const FEW_TURNS: f64 = 3.0;

/// The registers of a multiprocessor, and the most of a unit, as NVIDIA's GPUs have them. The compiler saves some of those
/// that a unit needs; each one above `MOST_NEEDED` costs the unit a share of its time.
const REGISTERS: f64 = 65536.0;
const MOST_REGISTERS: f64 = 256.0;
const MOST_NEEDED: f64 = 270.0;
const LACKING: f64 = 0.015;

/// The configuration that walks down lines with the lowest estimate, of those that can.
pub(super) fn fastest(task: Task<'_>, configs: impl Iterator<Item = Config>) -> Option<Config> {
    let gathers: Vec<Gather> = Gather::all(task.conv, task.request.pass).collect();
    let timed =
        configs.filter_map(|config| Some((config, seconds_of_walks(config, task, &gathers)?)));
    timed.min_by(|one, other| one.1.total_cmp(&other.1)).map(|(config, _)| config)
}

/// The estimated seconds of units that walk down lines, if they can.
fn seconds_of_walks(config: Config, task: Task<'_>, gathers: &[Gather]) -> Option<f64> {
    let Task { conv, request, device } = task;
    let across = conv.layout() == Layout::ChannelsFirst;
    let costs = if across { CHANNELS_FIRST } else { CHANNELS_LAST };
    let with_terms = || gathers.iter().filter(|gather| gather.terms(conv) > 0);
    let cubes = |gather: &Gather| {
        rolling::Pieces::new(conv, config, gather.axes).units as f64
            / (f64::from(rolling::UNITS) * device.multiprocessor_count() as f64)
    };
    // The cubes of all products run at the same time.
    let all = with_terms().map(cubes).sum::<f64>();
    let mut cycles = 0.0;
    for gather in with_terms() {
        let form = rolling::Form::new(task, config, gather)?;
        let steps = form.steps(config.lines.min(gather.axes[AXES - 2].rows as u32));
        let lines = f64::from(steps * form.step);
        let products = f64::from(form.products() * config.lanes) / f64::from(form.step);
        let pixels = form.pixels;
        let loads =
            costs.load * f64::from(pixels.count()) + costs.pixel * f64::from(pixels.pixels());
        let product = match !across && form.has_large_filters(config.lanes) {
            true => LARGE_FILTER_PRODUCT,
            false => WALK_PRODUCT,
        };
        let instructions = product * products + loads;
        let needed = form.registers(config.lanes, request.dtype);
        let lacking = 1.0 + LACKING * (needed - MOST_NEEDED).max(0.0);
        let registers = (needed.min(MOST_REGISTERS) / 8.0).ceil() * 8.0;
        let resident = (REGISTERS / (registers * f64::from(rolling::UNITS))).floor().max(1.0);
        let whole = gather.axes[AXES - 1].rows.is_multiple_of(form.pixels.along.rows as usize);
        let overlapping = if whole || across { 1.0 } else { OVERLAPPING };
        let cycles_each = f64::from(rolling::UNITS) / device.units_per_cycle();
        let storing = if across { storing(&form, gather, request.dtype) } else { 0.0 };
        let line = Line {
            cycles: (instructions * cycles_each).max(storing) * lacking * overlapping,
            latency: costs.latency / f64::from(form.ahead),
            alone: costs.alone,
        };
        cycles += cubes(gather) / all * lines * line.of_all(all, resident);
    }
    let copy = device.copy_seconds(cost::bytes(conv, request));
    let (_, reading) = rolling::source(task, config, rolling::UNITS, gathers);
    let walking = with_terms().count();
    let launches = walking.div_ceil(MOST_TOGETHER) + usize::from(walking < gathers.len());
    Some(cycles / device.clock() + costs.exposed * copy + device.launch_seconds(launches) + reading)
}

/// The cycles in which a cube stores a line of its results to the cache, a sector after the other: each store of a warp has
/// the same vector of all its runs.
fn storing(form: &rolling::Form, gather: &Gather, dtype: DType) -> f64 {
    let width = gather.axes[AXES - 1];
    let rows = f64::from(form.pixels.along.rows);
    let together = (width.rows as f64 / rows).ceil().min(WARP);
    let lines = WARP / together;
    let bytes = together * rows * (width.out_step * dtype.size()) as f64;
    let sectors = (lines * (bytes / SECTOR as f64 + 1.0)).min(WARP);
    let stores = rows / f64::from(form.stored) / f64::from(form.step);
    CYCLES_PER_SECTOR * f64::from(rolling::UNITS) / WARP * stores * sectors
}

/// The cycles of a line of a cube: of its instructions, and of its loads.
struct Line {
    cycles: f64,
    latency: f64,
    /// How many times its instructions a cube that is alone takes.
    alone: f64,
}

impl Line {
    /// The cycles of a line of some cubes at the same time.
    fn of(&self, cubes: f64) -> f64 {
        (cubes * self.cycles).hypot(self.latency + self.alone * self.cycles)
    }

    /// The cycles of a line of this many cubes, in the mean of multiprocessors, of which some are `resident` at once.
    fn of_all(&self, cubes: f64, resident: f64) -> f64 {
        if cubes >= FEW_TURNS * resident {
            return cubes / resident * self.of(resident);
        }
        // Of few cubes, one multiprocessor has more than the others, and its last ones leave it idle.
        let cubes = cubes.ceil();
        let whole = (cubes / resident).floor();
        let rest = cubes - whole * resident;
        whole * self.of(resident) + if rest > 0.0 { self.of(rest) } else { 0.0 }
    }
}

pub(super) fn seconds(config: Config, task: Task<'_>) -> f64 {
    let gathers: Vec<Gather> = Gather::all(task.conv, task.request.pass).collect();
    seconds_of_walks(config, task, &gathers).unwrap_or_else(|| seconds_of_blocks(config, task))
}

/// The estimated seconds of units that compute blocks.
fn seconds_of_blocks(config: Config, task: Task<'_>) -> f64 {
    let Task { conv, request, device } = task;
    let pass = request.pass;
    let lanes = config.lanes as usize;
    let chunk_vectors = chunk_vectors(conv, lanes);
    let (mut instructions, mut loads, mut longest, mut products) = (0.0, 0.0, 0.0_f64, 0);
    for gather in Gather::all(conv, pass) {
        let form = Form::new(conv, device.cores.is_some(), config, &gather, chunk_vectors);
        let units = form.units(conv, &gather, lanes) as f64;
        let [depth, height, _] = gather.axes;
        let read = height.taps + (form.lines as usize - 1) * height.step;
        let pixels = (depth.taps * read) as f64 * f64::from(form.along.pixels().1);
        let taps = depth.taps * height.taps;
        let multiplied =
            (taps * lanes) as f64 * f64::from(form.lines * form.along.rows * form.along.taps);
        instructions += units * (PIXEL * pixels + PRODUCT * multiplied);
        loads += units * pixels;
        longest = longest.max(pixels);
        products += 1;
    }
    // The units of all products wait at the same time.
    let waves = loads / (device.multiprocessor_count() as f64 * RESIDENT);
    let waiting = LATENCY * waves.max(longest);
    let launches = usize::div_ceil(products, MOST_TOGETHER) + 1;
    with_tensors(instructions, waiting, task) + device.launch_seconds(launches)
}

/// The seconds of these instructions, or of these cycles of waiting, and of moving the tensors.
fn with_tensors(instructions: f64, waiting: f64, task: Task<'_>) -> f64 {
    let Task { conv, request, device } = task;
    let multiplying = instructions / device.speeds.vector as f64;
    let exposed = EXPOSED * device.copy_seconds(cost::bytes(conv, request));
    // The units of a processor do not wait for one another.
    let cycles = if device.cores.is_some() { 0.0 } else { waiting };
    multiplying.max(cycles / device.clock()) + cost::START / device.clock() + exposed
}
