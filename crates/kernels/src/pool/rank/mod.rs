//! The number of each window that a given number of others precede, such as the median, or the most frequent one: one unit
//! per output vector.
//!
//! Numbers are compared as integer keys that have their order.
//!
//! ```text
//! few taps:    keep the keys of all taps in registers; compare pairs of them, as `network` says, until one remains
//! many taps:   for each bit of a key, from the highest:
//!                  set it in the result if no more taps are below the result then than may precede it
//! ```
//!
//! The second way reads a window as often as a key has bits. It needs no memory for the window and has no branches. A
//! window with NaN gives NaN, whose keys are above all others: the largest key shows whether there is one.
//!
//! The most frequent number, the mode, is found in the same two cases by sorting and by counting, as `mode` says.

mod kernel;
mod keys;
mod mode;
mod network;

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{LIMIT, Rank};

use crate::device::Capabilities;
use crate::error::PlanError;
use crate::pool::common::window::{ProblemArgs, WindowForm, problem_args};
use crate::pool::common::{Buffers, Kernel, Settings, Task, UNROLLED_TAPS, WORD, no_config};
use crate::pool::problem::{Problem, Reduction};

use keys::Keys;

pub(super) const NAME: &str = "rank";

/// The instructions of a tap besides its load and its comparison.
const OF_TAP: f64 = 8.0;

/// The numbers that a window of many taps has, if it is one of labels; its mode takes a pass for each.
const NUMBERS: f64 = 8.0;

/// The most words of a window that a GPU's unit keeps in registers.
const MOST_WORDS: usize = 64;

no_config!();

impl Kernel for Config {
    fn applies(problem: Problem<'_>, _device: &Capabilities) -> Result<(), PlanError> {
        wanted(problem).map(drop)
    }

    /// Plans one unit per output vector. Vectors are narrow where a GPU's unit would need too many registers for a window.
    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError> {
        let settings = task.settings.narrowed(task.device);
        if settings.contiguous || !settings.unrolled {
            return Ok((settings, Self));
        }
        let words = task.taps() * task.dtype().size().div_ceil(WORD);
        let most = 1 << (MOST_WORDS / words).max(1).ilog2();
        Ok((Settings { lanes: settings.lanes.min(most), ..settings }, Self))
    }

    /// Refuses lanes that do not divide a pixel, and windows that are too large to keep.
    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        task.check_lanes()?;
        let (taps, limit) = (task.taps(), UNROLLED_TAPS);
        match task.settings.unrolled && taps > limit {
            true => Err(PlanError::Unrolled { taps, limit }),
            false => Ok(()),
        }
    }

    fn seconds(&self, task: Task<'_>) -> f64 {
        let (taps, lanes) = (task.taps(), task.lanes());
        let reduce = task.reduce_cost(lanes);
        let load = OF_TAP + task.load_cost(lanes, task.load_step());
        let is_mode = task.reduction() == Reduction::Mode;
        let many = taps as f64;
        let instructions = match (task.settings.unrolled, is_mode) {
            // The middle takes the most steps, and nearly twice as many for each tap more.
            (true, false) => many * (load + reduce * 0.4 * many),
            (false, false) => f64::from(keys_of(task).passes()) * many * (load + 2.0 * reduce),
            // A network that sorts, and five instructions to count runs.
            (true, true) => many * (load + reduce * (5.0 + 0.5 * many.log2().powi(2))),
            (false, true) => many.min(NUMBERS) * many * (load + 4.0 * reduce),
        };
        task.launch_seconds(task.outputs() / lanes, instructions, 1.0)
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        let client = buffers.client;
        let (lanes, wanted) = (task.lanes(), wanted(task.problem)?);
        let (cubes, units) = task.grid(client, task.outputs() / lanes);
        // SAFETY: every access of the kernel is inside the tensors by the arithmetic of `Axis`.
        unsafe {
            kernel::rank::launch_unchecked(
                client,
                cubes,
                units,
                lanes,
                buffers.input.vectors(lanes),
                buffers.output.vectors(lanes),
                rank_args(task, wanted),
                RankForm::new(task, wanted),
                task.types(),
            )
        };
        Ok(())
    }
}

/// Which number of a window is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wanted {
    Rank(Rank),
    /// The most frequent one.
    Mode,
}

/// What a problem wants; an error for other reductions.
fn wanted(problem: Problem<'_>) -> Result<Wanted, PlanError> {
    match problem.reduction {
        Reduction::Rank(rank) if !problem.gradient => Ok(Wanted::Rank(rank)),
        Reduction::Mode if !problem.gradient => Ok(Wanted::Mode),
        _ => {
            let reason = "it only computes ranks and modes";
            Err(PlanError::NotApplicable { kernel: NAME, reason })
        }
    }
}

fn keys_of(task: Task<'_>) -> Keys {
    Keys::new(task.dtype(), task.widening(task.dtype()))
}

#[derive(CubeType, CubeLaunch)]
struct RankArgs {
    problem: ProblemArgs,
    /// Of `n` numbers, `nth + n · part / whole` precede the one at the rank, if there are as many.
    nth: i32,
    part: u32,
    whole: FastDivmod<u32>,
}

fn rank_args(task: Task<'_>, wanted: Wanted) -> RankArgsLaunch {
    let (nth, part, whole) = match wanted {
        Wanted::Rank(Rank::Nth(k)) => (k.min(LIMIT as u32), 0, 1),
        Wanted::Rank(Rank::Fraction { part, whole }) => (0, part, whole),
        Wanted::Mode => (0, 0, 1),
    };
    RankArgsLaunch::new(problem_args(task), nth as i32, part, whole)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RankForm {
    window: WindowForm,
    keys: Keys,
    /// What is wanted. Ranks are run-time values, except where windows are kept in registers.
    wanted: Wanted,
}

impl RankForm {
    fn new(task: Task<'_>, wanted: Wanted) -> Self {
        let wanted = match wanted {
            Wanted::Rank(rank) if task.settings.unrolled => {
                Wanted::Rank(Rank::Nth(rank.of(task.taps()) as u32))
            }
            Wanted::Rank(_) => Wanted::Rank(Rank::Nth(0)),
            Wanted::Mode => Wanted::Mode,
        };
        Self { window: WindowForm::new(task), keys: keys_of(task), wanted }
    }

    /// The number of taps of a window, if its loops are unrolled.
    fn taps(&self) -> usize {
        self.window.axes.iter().map(|axis| axis.taps.unwrap_or(0) as usize).product()
    }

    /// The rank among all taps of a window that is kept in registers.
    fn rank(&self) -> usize {
        match self.wanted {
            Wanted::Rank(rank) => rank.of(self.taps().max(1)),
            Wanted::Mode => 0,
        }
    }
}
