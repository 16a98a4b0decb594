//! One unit per strip of outputs: the taps that their windows share are loaded and reduced once.
//!
//! ```text
//! for each strip of R outputs (n, o .. o + R, c) along the outermost axis that has a window:
//!     for each row x that the strip reads:       (R − 1)·s + k of them, all unrolled
//!         row[x] = reduce the taps of the inner axes at x
//!     for each output of the strip:
//!         reduce its k rows
//! ```
//!
//! The rows are held in registers, and the loops are unrolled. For a maximum, a row outside the input is moved to the
//! nearest row inside, which the window contains too; for an average it is dropped. Reducing rows in their order keeps
//! the first of equal values and the last NaN, so `positions` does this if indices are needed. `values` reduces them in
//! the order that costs least.
//!
//! With channels first, the lanes of a vector are neighbours along the width. A row is loaded as the whole vectors that
//! its taps touch, from which each tap takes its lanes. Read vectors divide the input's width, so that each is inside
//! or outside as a whole. Written vectors divide the output's width, and from one of them to the next there is a whole
//! number of vectors to read. If windows have an extent along the width only, such strips lie along the height, with one row
//! each.

mod kernel;
mod positions;
mod values;

use core::fmt;

use windowpane_geometry::{AXES, Axis};

use crate::device::Capabilities;
use crate::error::{PlanError, ensure, only_if};
use crate::pool::common::{
    Buffers, Kernel, MOST_UNROLLED_TAPS, Reach, Settings, Task, UNROLLED_TAPS, WARP, check_strip,
    lanes_written, optional, unrolls,
};
use crate::pool::problem::{Problem, Reduction, pixel_channels};
use crate::pool::strips::form::{Form, columns_of, reads, strip_axis};
use crate::pool::strips::strip::strips_args;

pub(crate) const NAME: &str = "register_tile";

/// The instructions of a unit besides its loads and its taps; and those of a load's position, twice if it is clamped.
const OF_UNIT: f64 = 89.0;
const OF_LOAD: f64 = 0.55;

/// The waits until a multiprocessor has fetched the code of two unrolled branches.
const OF_BRANCHES: f64 = 5.5;

/// How outputs are distributed to units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The number of outputs of a unit along the strip's axis, mostly the outermost that has a window.
    pub strip: usize,
    /// The number of neighbouring columns of a unit: 1, or 2 if its lanes are channels.
    pub columns: usize,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { strip, columns } = self;
        write!(f, "strips of {strip} outputs, columns of {columns}")
    }
}

impl Kernel for Config {
    /// Refuses windows with too many taps, and windows dilated along the strip.
    fn applies(problem: Problem<'_>, _device: &Capabilities) -> Result<(), PlanError> {
        let Problem { pooling, reduction, .. } = problem;
        let along = &pooling.grid().axes()[strip_axis(pooling, false)];
        only_if(NAME, !problem.gradient, "it computes no gradients")?;
        only_if(NAME, problem.folds(), "it computes only extrema and averages")?;
        only_if(NAME, !pooling.grid().is_adaptive(), "window sizes follow from the input")?;
        only_if(NAME, unrolls(pooling, reduction), "windows have too many taps to unroll")?;
        only_if(NAME, along.dilation() == 1, "windows are dilated along the strips")
    }

    /// Plans strips of as many outputs as share taps, and two columns of vectors if these share taps.
    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError> {
        let Task { problem, settings: own, device } = task;
        let Problem { pooling, reduction, dtype, .. } = problem;
        let along_width = lanes_written(task);
        let along = &pooling.grid().axes()[strip_axis(pooling, along_width.is_some())];
        let longest = match along.stride() {
            s if s >= along.kernel() || along.output() == 1 => 1,
            1 => 4,
            // A processor's thread, which splits vectors of a row into lanes, has more to share than a GPU's unit,
            // which would need the registers for it.
            _ if along_width.is_some() && own.contiguous => 4,
            _ => 2,
        };
        let row = pooling.grid().taps() / along.kernel();
        let loads = |strip: usize| ((strip - 1) * along.stride() + along.kernel()) * row;
        let fits = |&strip: &usize| strip <= longest && loads(strip) <= UNROLLED_TAPS;
        let strip = [4, 2].into_iter().find(fits).unwrap_or(1);
        // With few strips of two-byte types, latency is not hidden: shorter strips read more, but finish sooner.
        let few = |lanes: usize| pooling.output().elements() / lanes / strip < ENOUGH_STRIPS;
        let short = dtype.size() == 2 && device.packed_halves && along_width.is_some_and(few);
        let strip = if short { strip.min(2) } else { strip };
        let indexed = reduction.has_indices();
        let width = &pooling.grid().axes()[AXES - 1];
        // Two columns of vectors pay off if they share most of what they read.
        let shares = width.kernel() > 2 * width.stride() && width.output() > 1 && !indexed;
        let pairs = (loads(strip) / width.kernel()) * (width.kernel() + width.stride());
        let blocks = shares && !own.contiguous && own.lanes < pixel_channels(pooling);
        let columns = if blocks && pairs <= UNROLLED_TAPS { 2 } else { 1 };
        let sums = matches!(reduction, Reduction::Average(_));
        let many = columns > 1 || (strip > 1 && loads(strip) > WIDE_LOADS);
        let settings = if indexed || (sums && many) { own.narrowed(device) } else { own };
        // A GPU compares halves two at a time for positions too, and then searches for NaN separately.
        let halves = indexed && dtype.is_float() && device.packed_halves;
        let accumulator = if halves { dtype } else { own.accumulator };
        let settings = Settings { accumulator, ..settings.with_lanes(along_width) };
        Ok((settings, Self { strip, columns }))
    }

    /// Refuses strips that read more vectors than are unrolled, and lanes that do not divide a row.
    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        let Task { problem, settings, .. } = task;
        let pooling = problem.pooling;
        task.check_lanes_of(match settings.along_width {
            true => lanes_written(task).unwrap_or(0),
            false => task.pixel(),
        })?;
        check_strip(self.strip)?;
        // Two columns are implemented only for values, and only for GPUs.
        let pairs = !settings.contiguous && !problem.reduction.has_indices();
        let few = (1..=if pairs { 2 } else { 1 }).contains(&self.columns);
        ensure(few, PlanError::Fixed { name: "columns", kernel: NAME })?;
        let along = &pooling.grid().axes()[strip_axis(pooling, settings.along_width)];
        let [.., width] = pooling.grid().axes();
        let rows = (self.strip - 1) * along.stride() + along.kernel();
        let inner = pooling.grid().taps() / along.kernel();
        let vectors = match settings.along_width {
            true => {
                let reach = Reach::new(pooling, reads(task), settings.lanes);
                inner / width.kernel() * reach.vectors()
            }
            false => inner,
        };
        let few = rows.saturating_mul(vectors) <= MOST_UNROLLED_TAPS;
        only_if(NAME, few, "strips read too many vectors to unroll")
    }

    fn seconds(&self, task: Task<'_>) -> f64 {
        let form = Form::new(task, [self.strip, self.columns], reads(task));
        let lines = (form.rows() * form.lines()) as f64;
        // Strips along the width are as far from each other as they are long.
        let apart = if form.along.axis == AXES - 1 { self.strip } else { 1 };
        let load = OF_LOAD * (1.0 + f64::from(task.is_clipped()))
            + match task.settings.along_width && task.is_signal() {
                true => task.load_apart_cost(reads(task) * task.dtype().size(), form.reach.steps()),
                false => task.load_cost(reads(task), apart * task.load_step()),
            };
        let taps = lines * f64::from(form.columns * form.taps(2));
        let rows = f64::from(form.columns * form.along.outputs * form.along.kernel);
        let strip = lines * f64::from(form.reads()) * load
            + (taps + rows) * task.reduce_cost(task.lanes())
            + if task.settings.along_width { taps * task.shuffle_cost(task.lanes()) } else { 0.0 };
        let (branches, waits) = match form.splits() {
            true => (1.0 + mixed(task, &form), 1.0 + OF_BRANCHES),
            false => (1.0, 1.0),
        };
        let single = if self.strip > 1 { 0.0 } else { task.single_cost() };
        let instructions = OF_UNIT + single + strip * branches;
        task.launch_seconds(task.units_at(places(task, self)), instructions, waits)
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        let client = buffers.client;
        let (lanes, wide) = (task.lanes(), reads(task));
        let places = places(task, self);
        let units = task.units_at(places);
        let (cubes, dim) = task.grid(client, units);
        // SAFETY: every access is inside the tensors by the arithmetic of `Axis`, and vectors outside the
        // input are moved inside before they are read.
        unsafe {
            kernel::strip::launch_unchecked(
                client,
                cubes,
                dim,
                lanes,
                wide,
                buffers.input.vectors(wide),
                buffers.output.vectors(lanes),
                optional(buffers.indices, lanes),
                strips_args(task, places, [units, wide, 0]),
                Form::new(task, [self.strip, self.columns], wide),
                task.types(),
            )
        };
        Ok(())
    }
}

/// The most loads of a strip for which sums use the widest vectors.
const WIDE_LOADS: usize = 40;

/// With fewer strips than this, of lanes along the width, a large GPU has no others to run while some wait.
const ENOUGH_STRIPS: usize = 1 << 19;

/// The number of units on each axis.
fn places(task: Task<'_>, config: &Config) -> [usize; AXES] {
    let mut places = task.vectors_on_axes(Axis::output);
    let along = strip_axis(task.pooling(), task.settings.along_width);
    places[along] = places[along].div_ceil(config.strip);
    places[AXES - 1] = places[AXES - 1].div_ceil(columns_of(task, config.columns));
    places
}

/// The share of warps that have strips at an edge and others. The fewer units a row of strips has, the more rows a warp
/// has.
fn mixed(task: Task<'_>, form: &Form) -> f64 {
    let axes = task.axes();
    let inner: usize = axes[form.along.axis + 1..].iter().map(Axis::output).product();
    let row = inner * task.pixel() / task.lanes() / form.columns as usize;
    let strips = axes[form.along.axis].output().div_ceil(form.along.outputs as usize);
    (f64::from(2 * WARP) / (row.max(1) * strips) as f64).min(1.0)
}
