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

use crate::cube::SECTOR;
use crate::device::Capabilities;
use crate::pool::common::Task;
use crate::pool::problem::{Problem, Reduction, outermost};

/// The units whose instructions a multiprocessor executes at once. Fewer units take as long as these.
const AT_ONCE: f64 = 128.0;

/// The instructions that a unit could execute during a wait.
const WAIT: f64 = 200.0;

/// The share of the last cache that tensors may fill and still be found there by the next launch.
const CACHED: f64 = 0.75;

/// The bytes of a word. A load takes as many instructions as it has bytes, but at least as many as a word has.
pub(crate) const WORD: usize = 4;

/// The extra instructions of a unit that computes one output of a signal. Of the numbers that fit the times of 54 signals on an
/// H200, 15 to 25, this one chooses best.
const OF_SINGLE: f64 = 15.0;

/// The bytes of a line of a GPU's first cache.
const LINE: usize = 128;

/// The instructions that a processor's thread could execute during a barrier.
const BARRIER: f64 = 5000.0;

/// The units of a warp, which executes both branches if its units need different ones.
pub(crate) const WARP: u32 = 32;

/// The bytes that could be moved in the time of a store that changes a part of a sector. An H200 makes 50 to 120 such
/// stores in a nanosecond.
pub(crate) const PART_STORE: usize = 2 * SECTOR;

/// What one launch does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// The bytes read from memory and written to it.
    pub(crate) bytes: f64,
    /// The number of units.
    pub(crate) units: f64,
    /// The instructions of a unit.
    pub(crate) instructions: f64,
    /// How often a unit waits.
    pub(crate) waits: f64,
}

impl Work {
    /// The estimated time.
    pub(crate) fn seconds(&self, device: &Capabilities) -> f64 {
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

/// The costs of a plan's parts, in instructions of a unit.
impl Task<'_> {
    /// The estimated time of one launch that reads and writes every tensor once.
    pub(crate) fn launch_seconds(&self, units: usize, instructions: f64, waits: f64) -> f64 {
        let work = Work { bytes: self.bytes(), units: units as f64, instructions, waits };
        work.seconds(self.device)
    }

    /// Whether pixels are single elements, and several windows lie along the width only.
    pub(crate) fn is_signal(&self) -> bool {
        let [.., width] = self.axes();
        self.pixel() == 1 && outermost(self.pooling()) == AXES - 1 && width.output() > 1
    }

    /// The extra instructions of a GPU's unit that computes one output of a signal.
    pub(crate) fn single_cost(&self) -> f64 {
        let is_single = self.is_signal() && self.lanes() == 1 && self.device.cores.is_none();
        if is_single { OF_SINGLE } else { 0.0 }
    }

    /// The instructions of a cube's barrier, which is a wait on a GPU.
    pub(crate) fn barrier_cost(&self) -> f64 {
        if self.device.cores.is_some() { BARRIER } else { 0.0 }
    }

    /// The bytes of all tensors.
    pub(crate) fn bytes(&self) -> f64 {
        let Problem { pooling, reduction, dtype, gradient, .. } = self.problem;
        let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
        let indexed = reduction.has_indices() || (gradient && reduction.is_extremum());
        let index = if indexed { WORD } else { 0 };
        inputs as f64 * dtype.size() as f64 + outputs as f64 * (dtype.size() + index) as f64
    }

    /// Whether windows may lie partly outside the input.
    pub(crate) fn is_clipped(&self) -> bool {
        self.axes().iter().any(Axis::clipped)
    }

    /// The vectors from one unit's load to its neighbour's, where units have neighbouring windows.
    pub(crate) fn load_step(&self) -> usize {
        let width = &self.axes()[AXES - 1];
        match () {
            _ if self.settings.along_width || self.pixel() > 1 => 1,
            _ if width.output() == 1 => width.input(),
            _ => width.stride(),
        }
    }

    /// A load of some elements of the problem's type. Neighbouring units load `step` such vectors apart.
    pub(crate) fn load_cost(&self, elements: usize, step: usize) -> f64 {
        self.load_bytes_cost(elements * self.problem.dtype.size(), step)
    }

    /// The loads of some windows' gradients, and of their indices if there are any.
    pub(crate) fn load_windows_cost(&self, windows: usize) -> f64 {
        let indices = match self.problem.reduction.is_extremum() {
            true => self.load_bytes_cost(windows * WORD, 1),
            false => 0.0,
        };
        self.load_cost(windows, 1) + indices
    }

    /// A load of some bytes.
    pub(crate) fn load_bytes_cost(&self, bytes: usize, step: usize) -> f64 {
        self.load_blocks_cost(bytes, step, SECTOR)
    }

    /// A load of some bytes where a unit makes several that follow one another, so that its neighbour's is `step` such
    /// vectors apart, in another line of the first cache.
    pub(crate) fn load_apart_cost(&self, bytes: usize, step: usize) -> f64 {
        self.load_blocks_cost(bytes, step, LINE)
    }

    /// A load of some bytes, of which a GPU's units load no more than a block of memory each.
    fn load_blocks_cost(&self, bytes: usize, step: usize, block: usize) -> f64 {
        match self.device.cores {
            Some(_) => (bytes as f64 / self.device.load_bytes as f64).max(1.0),
            None => (bytes * step.min((block / bytes).max(1))).max(WORD) as f64,
        }
    }

    /// The conversion of some elements and their reduction into a result.
    pub(crate) fn reduce_cost(&self, lanes: usize) -> f64 {
        let Problem { reduction, dtype, gradient, .. } = self.problem;
        let converts = self.settings.accumulator != dtype;
        let each = match reduction {
            Reduction::Extremum(..) if gradient => 2.0,
            Reduction::Extremum(..) if reduction.has_indices() => 3.0,
            // Two at a time.
            Reduction::Extremum(..) if dtype.size() == 2 && !converts => 0.5,
            Reduction::Extremum(..) | Reduction::Rank(_) | Reduction::Mode => 1.0,
            // Counted, not measured: no other kernel computes them.
            Reduction::Drawn { .. } | Reduction::MeanDrawn => 6.0,
            // Elements outside are left out one by one.
            Reduction::Average(_) | Reduction::Norm(_) => 1.0 + f64::from(self.is_clipped()),
        };
        ((each + f64::from(converts)) * self.operations(lanes)).max(1.0)
    }

    /// The moves of some elements to other lanes, which a processor makes one by one.
    pub(crate) fn shuffle_cost(&self, lanes: usize) -> f64 {
        if self.device.cores.is_some() { lanes as f64 } else { 0.0 }
    }

    /// The instructions for an operation on a vector.
    fn operations(&self, lanes: usize) -> f64 {
        let vector = (lanes * self.settings.accumulator.size()) as f64;
        match self.device.cores {
            Some(_) => (vector / self.device.load_bytes as f64).max(1.0),
            None => lanes as f64,
        }
    }
}
