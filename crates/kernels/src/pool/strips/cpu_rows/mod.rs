//! Channels first on a processor: a thread walks along the rows of a strip of outputs, and keeps what the windows of
//! neighbouring output vectors share.
//!
//! ```text
//! for each R rows of outputs, along the outermost axis that has a window:
//!     for each output vector along them:
//!         for each input vector of the width that is new to its windows:
//!             load it from all lines that the rows read:         (R − 1)·s + k and their inner taps
//!             for each of the R outputs: reduce its lines, lane by lane
//!         for each of the R outputs:
//!             reduce its lanes' taps along the width, from the new vectors and the kept ones
//!             keep the vectors that the next output vector reads too
//! ```
//!
//! The inner taps of a window therefore cost their sum, not their product, and each input is loaded once for R rows.
//! Lines that the windows of all R rows share are reduced once. Input vectors are wider than output vectors by a factor
//! of the stride, where possible, so that each step loads one new vector.
//!
//! Columns are reduced before rows, an order in which a tie would not go to the first tap, so indices are left to the
//! `register_tile` kernel. A GPU does not need this kernel: its units are neighbours along the row, and the cache holds
//! what they share.

mod kernel;

use core::fmt;

use windowpane_geometry::{AXES, Axis, Pooling};

use crate::device::Capabilities;
use crate::error::{PlanError, only_if};
use crate::pool::common::{
    Buffers, Kernel, Reach, Settings, Task, check_strip, lanes_along_width, optional,
};
use crate::pool::problem::{Problem, outermost, pixel_channels};
use crate::pool::strips::form::Form;
use crate::pool::strips::strip::strips_args;
use crate::pool::strips::taps::Line;

pub(crate) const NAME: &str = "cpu_rows";

/// The instructions of a step to the next output vector besides its loads and reductions.
const OF_STEP: f64 = 20.0;

/// How outputs are distributed to threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The number of rows that a thread walks along together.
    pub strip: usize,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { strip } = self;
        write!(f, "strips of {strip} rows")
    }
}

impl Kernel for Config {
    /// Refuses problems and devices that the kernel does not support, whatever the vectors.
    fn applies(problem: Problem<'_>, device: &Capabilities) -> Result<(), PlanError> {
        let Problem { pooling, reduction, .. } = problem;
        let (grid, along) = (pooling.grid(), outermost(pooling));
        let width = &grid.axes()[AXES - 1];
        let folds = grid.taps() / width.kernel() + width.kernel();
        only_if(NAME, device.cores.is_some(), "it is for CPUs")?;
        only_if(NAME, !problem.gradient, "it computes no gradients")?;
        only_if(NAME, problem.folds(), "it computes only extrema and averages")?;
        only_if(NAME, !reduction.has_indices(), "it computes no indices")?;
        only_if(NAME, pixel_channels(pooling) == 1, "it is for channels-first tensors")?;
        only_if(NAME, along < AXES - 1, "no axis but the width has a kernel longer than 1")?;
        only_if(NAME, !grid.is_adaptive(), "window sizes follow from the input")?;
        only_if(NAME, grid.axes()[along].dilation() == 1, "windows are dilated along the strips")?;
        only_if(NAME, !width.may_be_empty(), "windows may lie outside the input")?;
        only_if(NAME, folds <= MOST_FOLDS, "windows have too many taps")
    }

    /// Plans strips with as many rows as keep the number of lines within registers.
    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError> {
        let pooling = task.pooling();
        let along = &pooling.grid().axes()[outermost(pooling)];
        let alone = along.stride() >= along.kernel() || along.output() == 1;
        let longest = if alone { 1 } else { 4 };
        let few = |&strip: &usize| strip <= longest && lines(pooling, strip) <= MOST_LINES;
        let strip = [4, 2].into_iter().find(few).unwrap_or(1);
        let own = task.settings.with_lanes(lanes_along_width(task.problem, task.widest()));
        Ok((Settings { unrolled: true, ..own }, Self { strip }))
    }

    /// Refuses settings, vectors and strips that the kernel cannot run with.
    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        only_if(
            NAME,
            task.settings.along_width,
            "no vector divides the rows of input and output, or taps are too far apart",
        )?;
        task.check_lanes()?;
        check_strip(self.strip)?;
        let (reach, lines) = (reach_of(task), lines(task.pooling(), self.strip));
        let touched = || (0..reach.vectors()).all(|v| reach.touches(v));
        only_if(NAME, task.settings.contiguous, "its threads take runs of outputs")?;
        only_if(NAME, lines <= MOST_LINES, "strips read too many rows")?;
        only_if(NAME, touched(), "taps are too far apart along the width")
    }

    fn seconds(&self, task: Task<'_>) -> f64 {
        let lanes = task.lanes();
        let form = Form::new(task, [self.strip, 1], reach_of(task).input);
        let (rows, _) = rows_and_piece(task, self.strip);
        let width = &task.axes()[AXES - 1];
        let (lines, reduce) = (form.all_lines() as f64, task.reduce_cost(lanes));
        let reads =
            form.reach.steps() as f64 * lines * (task.load_cost(form.reach.input, 1) + reduce);
        let columns = width.kernel() as f64 * (task.shuffle_cost(lanes) + reduce);
        let vectors = rows * (width.output() / lanes);
        task.launch_seconds(vectors, OF_STEP + reads + self.strip as f64 * columns, 0.0)
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        let client = buffers.client;
        let (lanes, wide) = (task.lanes(), reach_of(task).input);
        let form = Form::new(task, [self.strip, 1], wide);
        let (rows, piece) = rows_and_piece(task, self.strip);
        let mut places = task.vectors_on_axes(Axis::output);
        places[form.along.axis] = places[form.along.axis].div_ceil(self.strip);
        places[AXES - 1] = places[AXES - 1].div_ceil(piece);
        let units = rows * places[AXES - 1];
        let (cubes, dim) = task.grid(client, units);
        // SAFETY: coordinates are clamped to the input before they are read, and outputs that do
        // not exist are not written.
        unsafe {
            kernel::walk_rows::launch_unchecked(
                client,
                cubes,
                dim,
                lanes,
                wide,
                buffers.input.vectors(wide),
                buffers.output.vectors(lanes),
                optional(None, lanes),
                strips_args(task, places, [units, wide, piece]),
                form,
                task.types(),
            )
        };
        Ok(())
    }
}

/// The most lines of a window plus taps on the width; above this, van Herk's algorithm costs less.
const MOST_FOLDS: usize = 32;

/// The most lines that the rows of a strip may read.
const MOST_LINES: usize = 49;

/// The size in bytes of a processor's widest vectors.
const WIDEST: usize = 64;

/// The number of lines that the rows of a strip read.
fn lines(pooling: &Pooling, strip: usize) -> usize {
    let axes = pooling.grid().axes();
    let along = &axes[outermost(pooling)];
    let inner = pooling.grid().taps() / along.kernel() / axes[AXES - 1].kernel();
    ((strip - 1) * along.stride() + along.kernel()) * inner
}

/// With fewer units than this per thread, rows are cut into pieces, although each piece then has to load its first
/// vectors again.
const ENOUGH: usize = 16;

/// The number of rows of strips, and the output vectors in the piece of a row that one unit walks.
fn rows_and_piece(task: Task<'_>, strip: usize) -> (usize, usize) {
    let along = task.axes()[outermost(task.pooling())].output();
    let width = task.axes()[AXES - 1].output();
    let rows = task.outputs() / width / along * along.div_ceil(strip);
    let width = width / task.lanes();
    let pieces = (ENOUGH * task.settings.units as usize).div_ceil(rows.max(1));
    (rows, width.div_ceil(pieces.min(width)))
}

impl Form {
    /// The number of lines that a strip reads.
    fn all_lines(&self) -> usize {
        (self.rows() * self.lines()) as usize
    }

    /// Line `n` of these.
    fn nth_line(&self, n: usize) -> Line {
        self.line(n as u32 / self.lines(), n as u32 % self.lines())
    }

    /// The range of lines of window `i` of a strip.
    fn lines_of_window(&self, i: u32) -> (usize, usize) {
        let (first, lines) = (i * self.along.stride, self.lines());
        ((first * lines) as usize, ((first + self.along.kernel) * lines) as usize)
    }

    /// The range of lines that all windows share; `None` for a single window, or if nothing is shared.
    fn common_lines(&self) -> Option<(usize, usize)> {
        let last = self.along.outputs - 1;
        let (from, to) = (self.lines_of_window(last).0, self.lines_of_window(0).1);
        (last > 0 && from < to).then_some((from, to))
    }

    /// Whether line `n` may be outside the input and must then be left out of a sum.
    fn drops_line(&self, n: usize) -> bool {
        !self.window.fold.is_extremum() && self.nth_line(n).drops()
    }
}

/// Input vectors are wider than the plan's vectors by a factor of the stride, if the processor has such vectors.
fn reach_of(task: Task<'_>) -> Reach {
    let (width, lanes) = (&task.axes()[AXES - 1], task.lanes());
    let wide = lanes * width.stride();
    let widens = wide * task.dtype().size() <= WIDEST
        && wide.is_power_of_two()
        && width.input().is_multiple_of(wide);
    Reach::new(task.pooling(), if widens { wide } else { lanes }, lanes)
}
