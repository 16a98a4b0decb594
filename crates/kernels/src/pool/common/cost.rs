//! The time of a launch, estimated from its memory traffic, its instructions and its waits.
//!
//! ```text
//! seconds = launch + (memory³ + instructions³)^⅓ + waits
//! ```
//!
//! Memory traffic and instructions overlap, but not fully. Waits are not hidden: they are a unit's loads that depend on
//! each other, and its cube's barriers. Instructions are counted for one unit. A load from the first-level cache counts as
//! the instructions that could be executed in its time.

use windowpane_geometry::{AXES, Axis};

use crate::device::Capabilities;
use crate::pool::common::task::Task;
use crate::pool::problem::{Problem, Reduction, pixel_channels};

/// The units whose instructions a multiprocessor executes at once. Fewer units take as long as these.
const AT_ONCE: f64 = 128.0;

/// The instructions that a unit could execute during a wait.
const WAIT: f64 = 200.0;

/// The share of the last cache that tensors may fill and still be found there by the next launch.
const CACHED: f64 = 0.75;

/// The bytes of a word. A load takes as many instructions as it has bytes, but at least as many as a word has.
pub(in crate::pool) const WORD: usize = 4;

/// The instructions that a processor's thread could execute during a barrier.
const BARRIER: f64 = 5000.0;

/// The units of a warp, which executes both branches if its units need different ones.
pub(in crate::pool) const WARP: u32 = 32;

/// The bytes that memory and caches move at once.
pub(in crate::pool) const SECTOR: usize = 32;

/// What one launch does.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Work {
    /// The bytes read from memory and written to it.
    pub(in crate::pool) bytes: f64,
    /// The number of units.
    pub(in crate::pool) units: f64,
    /// The instructions of a unit.
    pub(in crate::pool) instructions: f64,
    /// How often a unit waits.
    pub(in crate::pool) waits: f64,
}

impl Work {
    /// The estimated time.
    pub(in crate::pool) fn seconds(&self, device: &Capabilities) -> f64 {
        let speeds = &device.speeds;
        let cached = self.bytes <= CACHED * device.cache_bytes.unwrap_or(0) as f64;
        let memory = self.bytes / if cached { speeds.cache } else { speeds.memory } as f64;
        let launch = speeds.launch as f64 * 1e-9;
        let (rate, least, wait) = match device.cores {
            // An instruction of a processor is one of a whole vector, and its cores find loads in caches in time.
            Some(cores) => (speeds.vector as f64 / words(device), f64::from(cores), 0.0),
            None => (speeds.vector as f64, AT_ONCE * device.multiprocessor_count() as f64, WAIT),
        };
        let instructions = self.instructions * self.units.max(least) / rate;
        let waits = self.waits * wait * least / rate;
        launch + (memory.powi(3) + instructions.powi(3)).cbrt() + waits
    }
}

/// The words in the widest load.
fn words(device: &Capabilities) -> f64 {
    (device.load_bytes / WORD).max(1) as f64
}

/// Counts the instructions of a plan.
#[derive(Clone, Copy)]
pub(in crate::pool) struct Meter<'a> {
    pub(in crate::pool) task: Task<'a>,
}

impl Meter<'_> {
    /// The estimated time of one launch that reads and writes every tensor once.
    pub(in crate::pool) fn seconds(&self, units: usize, instructions: f64, waits: f64) -> f64 {
        let work = Work { bytes: self.bytes(), units: units as f64, instructions, waits };
        work.seconds(self.task.device)
    }

    /// The time of a launch with little to do.
    pub(in crate::pool) fn launch(&self) -> f64 {
        let work = Work { bytes: 0.0, units: 0.0, instructions: 0.0, waits: 1.0 };
        work.seconds(self.task.device)
    }

    /// The instructions of a cube's barrier, which is a wait on a GPU.
    pub(in crate::pool) fn barrier(&self) -> f64 {
        if self.task.device.cores.is_some() { BARRIER } else { 0.0 }
    }

    /// The bytes of all tensors.
    fn bytes(&self) -> f64 {
        let Problem { pooling, reduction, dtype, gradient } = self.task.problem;
        let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
        let indexed = reduction.has_indices() || (gradient && reduction.is_extremum());
        let index = if indexed { WORD } else { 0 };
        inputs as f64 * dtype.size() as f64 + outputs as f64 * (dtype.size() + index) as f64
    }

    /// Whether windows may lie partly outside the input.
    pub(in crate::pool) fn is_clipped(&self) -> bool {
        self.task.problem.pooling.grid().axes().iter().any(Axis::clipped)
    }

    /// The vectors from one unit's load to its neighbour's, where units have neighbouring windows.
    pub(in crate::pool) fn step(&self) -> usize {
        let width = &self.task.problem.pooling.grid().axes()[AXES - 1];
        match () {
            _ if self.task.settings.across || pixel_channels(self.task.problem.pooling) > 1 => 1,
            _ if width.output() == 1 => width.input(),
            _ => width.stride(),
        }
    }

    /// A load of some elements of the problem's type. Neighbouring units load `step` such vectors apart.
    pub(in crate::pool) fn load(&self, elements: usize, step: usize) -> f64 {
        self.load_bytes(elements * self.task.problem.dtype.size(), step)
    }

    /// The loads of some windows' gradients, and of their indices if there are any.
    pub(in crate::pool) fn load_windows(&self, windows: usize) -> f64 {
        let indices = match self.task.problem.reduction.is_extremum() {
            true => self.load_bytes(windows * WORD, 1),
            false => 0.0,
        };
        self.load(windows, 1) + indices
    }

    /// A load of some bytes.
    pub(in crate::pool) fn load_bytes(&self, bytes: usize, step: usize) -> f64 {
        match self.task.device.cores {
            Some(_) => (bytes as f64 / self.task.device.load_bytes as f64).max(1.0),
            None => (bytes * step.min((SECTOR / bytes).max(1))).max(WORD) as f64,
        }
    }

    /// The conversion of some elements and their reduction into a result.
    pub(in crate::pool) fn reduce(&self, lanes: usize) -> f64 {
        let Problem { reduction, dtype, gradient, .. } = self.task.problem;
        let converts = self.task.settings.accumulator != dtype;
        let each = match reduction {
            Reduction::Extremum(..) if gradient => 2.0,
            _ if reduction.has_indices() => 3.0,
            // Two at a time.
            Reduction::Extremum(..) if dtype.size() == 2 && !converts => 0.5,
            Reduction::Extremum(..) | Reduction::Rank(_) => 1.0,
            // Elements outside are left out one by one.
            Reduction::Average(_) | Reduction::Norm(_) => 1.0 + f64::from(self.is_clipped()),
        };
        ((each + f64::from(converts)) * self.operations(lanes)).max(1.0)
    }

    /// The moves of some elements to other lanes, which a processor makes one by one.
    pub(in crate::pool) fn shuffle(&self, lanes: usize) -> f64 {
        if self.task.device.cores.is_some() { lanes as f64 } else { 0.0 }
    }

    /// The instructions for an operation on a vector.
    fn operations(&self, lanes: usize) -> f64 {
        let vector = (lanes * self.task.settings.accumulator.size()) as f64;
        match self.task.device.cores {
            Some(_) => (vector / self.task.device.load_bytes as f64).max(1.0),
            None => lanes as f64,
        }
    }
}
