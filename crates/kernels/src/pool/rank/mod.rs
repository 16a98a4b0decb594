//! The number of each window that a given number of others precede, such as the median: one unit per output vector.
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

mod kernel;
mod keys;
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

const NAME: &str = "rank";

/// The instructions of a tap besides its load and its comparison.
const OF_TAP: f64 = 8.0;

/// The most words of a window that a GPU's unit keeps in registers.
const MOST_WORDS: usize = 64;

no_config!();

impl Kernel for Config {
    const NAME: &'static str = NAME;

    fn applies(problem: Problem<'_>, _device: &Capabilities) -> Result<(), PlanError> {
        rank_of(problem).map(drop)
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
        let instructions = match task.settings.unrolled {
            // The middle takes the most steps, and nearly twice as many for each tap more.
            true => taps as f64 * (load + reduce * 0.4 * taps as f64),
            false => f64::from(keys_of(task).passes()) * taps as f64 * (load + 2.0 * reduce),
        };
        task.launch_seconds(task.outputs() / lanes, instructions, 1.0)
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        let client = buffers.client;
        let lanes = task.lanes();
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
                rank_args(task, rank_of(task.problem)?),
                RankForm::new(task, rank_of(task.problem)?),
                task.elem(),
                task.accumulator(),
            )
        };
        Ok(())
    }
}

/// The rank of a rank filter; an error for other reductions.
fn rank_of(problem: Problem<'_>) -> Result<Rank, PlanError> {
    match problem.reduction {
        Reduction::Rank(rank) if !problem.gradient => Ok(rank),
        _ => Err(PlanError::NotApplicable { kernel: NAME, reason: "it only computes ranks" }),
    }
}

fn keys_of(task: Task<'_>) -> Keys {
    Keys::new(task.dtype(), task.widening(task.dtype()))
}

/// The numbers of a problem.
#[derive(CubeType, CubeLaunch)]
struct RankArgs {
    problem: ProblemArgs,
    /// Of `n` numbers, `nth + n · part / whole` precede the wanted one, if there are as many.
    nth: i32,
    part: u32,
    whole: FastDivmod<u32>,
}

fn rank_args(task: Task<'_>, rank: Rank) -> RankArgsLaunch {
    let (nth, part, whole) = match rank {
        Rank::Nth(k) => (k.min(LIMIT as u32), 0, 1),
        Rank::Fraction { part, whole } => (0, part, whole),
    };
    RankArgsLaunch::new(problem_args(task), nth as i32, part, whole)
}

/// The parameters that change the kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RankForm {
    window: WindowForm,
    keys: Keys,
    /// The rank among all taps of a window; 0 if windows are not kept in registers.
    rank: usize,
}

impl RankForm {
    fn new(task: Task<'_>, rank: Rank) -> Self {
        let rank = if task.settings.unrolled { rank.of(task.taps()) } else { 0 };
        Self { window: WindowForm::new(task), keys: keys_of(task), rank }
    }
}
