//! The settings that plans of all kernels have: which elements a unit handles, and in which types.

use windowpane_geometry::{DType, Pooling};

use crate::cube::convert::{MaximumForm, Widening, accumulator};
use crate::device::Capabilities;
use crate::pool::common::lanes::{
    UNROLLED_TAPS, divides_windows, lanes_across, widest_divisor, widest_load,
};
use crate::pool::error::PlanError;
use crate::pool::problem::{Output, Problem, Reduction, pixel_channels};

/// The most outputs of a strip.
const LONGEST_STRIP: usize = 16;

/// More taps than this and an unrolled kernel would take minutes to compile.
pub(in crate::pool) const MOST_UNROLLED_TAPS: usize = 1024;

/// The units of a cube on a GPU: enough warps to hide latency, few enough to fill every
/// multiprocessor evenly.
const UNITS: u32 = 128;

/// How a kernel runs, whichever it is.
///
/// The public fields may be overridden one by one before the launch; [`Plan::check`](crate::pool::Plan::check)
/// says which values cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The elements that one unit handles at once, neighbours in memory.
    pub lanes: usize,
    /// Whether the lanes are neighbours along the width, not channels of a pixel.
    pub across: bool,
    /// The units of a cube.
    pub units: u32,
    /// Whether the loops over the taps are unrolled, their number then being compiled in.
    pub unrolled: bool,
    /// Whether a unit takes a run of neighbouring outputs (threads of a processor) or every
    /// n-th one (lanes of a GPU, whose accesses then fall together).
    pub runs: bool,
    /// The bytes of workspace.
    pub workspace: usize,
    /// The elements of the widest single load.
    pub(in crate::pool) widest: usize,
    /// The type that elements are compared and summed in.
    pub(in crate::pool) accumulator: DType,
    /// How a maximum is made.
    pub(in crate::pool) maximum: MaximumForm,
    /// Whether sums are rounded to bf16 here, not by the device.
    pub(in crate::pool) rounds: bool,
    /// Whether shared memory can be seen as vectors of another type, as the device's capabilities say.
    pub(in crate::pool) shared_vectors: bool,
    /// Whether the units of a plane can vote.
    pub(in crate::pool) plane_ops: bool,
    /// Whether bf16 is widened by its bits, as the device's compiler asks for.
    pub(in crate::pool) fuses_conversions: bool,
    /// The most lanes of a vector that the compiler keeps whole.
    pub(in crate::pool) vector_lanes: usize,
    /// The bytes that the units of a cube may share.
    pub(in crate::pool) shared_bytes: usize,
}

impl Settings {
    /// The settings that all plans begin with: those of one unit an output vector.
    pub(in crate::pool) fn new(problem: Problem<'_>, device: &Capabilities) -> Self {
        let Problem { pooling, reduction, dtype, gradient } = problem;
        let compared = match reduction {
            // A GPU that compares halves compares two at a time.
            Reduction::Max(Output::Values) if dtype.is_float() && device.packed_halves => dtype,
            // Comparing numbers as IEEE 754 says takes six instructions where there is none for it, and
            // some devices take the least of them for 0.
            Reduction::Max(_)
                if dtype.is_float() && dtype.size() <= DType::I32.size() && !device.ieee_max =>
            {
                DType::I32
            }
            _ => accumulator(dtype),
        };
        let widest = widest_load(dtype, device);
        Self {
            lanes: widest_divisor(pixel_channels(pooling), widest),
            across: false,
            widest,
            units: device.cores.unwrap_or(UNITS.min(device.units_per_cube)),
            unrolled: unrolls(pooling, reduction),
            runs: device.cores.is_some(),
            workspace: 0,
            // Gradients are sums.
            accumulator: if gradient { accumulator(dtype) } else { compared },
            maximum: MaximumForm::new(compared, device),
            rounds: dtype == DType::BF16 && !device.rounds_bf16,
            shared_vectors: device.shared_vectors,
            plane_ops: device.plane_ops,
            fuses_conversions: device.fuses_conversions,
            vector_lanes: device.vector_lanes,
            shared_bytes: device.shared_bytes,
        }
    }

    /// The settings with lanes along the width, where they may lie so.
    pub(in crate::pool) fn with_lanes(self, across: Option<usize>) -> Self {
        Self { lanes: across.unwrap_or(self.lanes), across: across.is_some(), ..self }
    }

    /// The settings with vectors of no more lanes than a load of words has: wider vectors of a GPU's unit
    /// that keeps many of them would leave registers for few units.
    pub(in crate::pool) fn narrowed(self, device: &Capabilities) -> Self {
        let words = device.load_bytes / DType::F32.size();
        Self { lanes: if self.runs { self.lanes } else { self.lanes.min(words.max(1)) }, ..self }
    }

    /// The settings for elements that are folded one by one, however many are loaded at once.
    pub(in crate::pool) fn one_by_one(&self) -> Self {
        Self { lanes: 1, across: false, unrolled: false, ..*self }
    }

    /// How elements are converted to the type that they are folded in.
    pub(in crate::pool) fn widening(&self, dtype: DType) -> Widening {
        if dtype.is_float() && !self.accumulator.is_float() {
            if dtype == DType::BF16 { Widening::UpperKeys } else { Widening::Keys }
        } else if dtype == DType::BF16 && self.accumulator != dtype && self.fuses_conversions {
            if self.runs { Widening::EachBits } else { Widening::Bits }
        } else {
            Widening::Cast
        }
    }

    /// Refuses units that the device does not have, a plan that was made for something else than `own`, and
    /// lanes that lie along another axis.
    pub(in crate::pool) fn check_made(
        &self,
        own: &Self,
        kernel: &'static str,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        if self.units == 0 || self.units > device.units_per_cube {
            return Err(PlanError::Units { units: self.units, limit: device.units_per_cube });
        }
        let made = |settings: &Self| {
            let Self { widest, accumulator, maximum, rounds, .. } = *settings;
            let Self { shared_vectors, plane_ops, fuses_conversions, .. } = *settings;
            let Self { vector_lanes, shared_bytes, .. } = *settings;
            let device = (shared_vectors, plane_ops, fuses_conversions, vector_lanes, shared_bytes);
            (widest, accumulator, maximum, rounds, device)
        };
        if made(self) != made(own) {
            return Err(PlanError::Foreign { kernel });
        }
        if self.across != own.across {
            return Err(PlanError::Fixed { name: "across", kernel });
        }
        Ok(())
    }

    /// Refuses lanes that are no vector of the problem's, where vectors lie along the width as they do for
    /// most kernels.
    pub(in crate::pool) fn check_lanes(&self, problem: Problem<'_>) -> Result<(), PlanError> {
        let Problem { pooling, gradient, .. } = problem;
        let neighbours = match self.across {
            true => lanes_across(pooling, self.widest, gradient).unwrap_or(0),
            false => pixel_channels(pooling),
        };
        // Fewer lanes of a gradient need not be fewer lanes of its windows.
        if self.across && gradient && !divides_windows(pooling, self.lanes, gradient) {
            let (lanes, widest) = (self.lanes, self.widest);
            return Err(PlanError::Lanes { lanes, neighbours, widest });
        }
        self.check_lanes_of(neighbours)
    }

    /// Refuses lanes that do not divide `neighbours` in memory, none if lanes are impossible.
    pub(in crate::pool) fn check_lanes_of(&self, neighbours: usize) -> Result<(), PlanError> {
        let (lanes, widest) = (self.lanes, self.widest);
        let divides = lanes.is_power_of_two() && neighbours.is_multiple_of(lanes);
        if !divides || neighbours == 0 || lanes > widest {
            return Err(PlanError::Lanes { lanes, neighbours, widest });
        }
        Ok(())
    }
}

/// Refuses strips of nothing, and longer ones than kernels are written for.
pub(in crate::pool) fn check_strip(strip: usize) -> Result<(), PlanError> {
    if (1..=LONGEST_STRIP).contains(&strip) {
        return Ok(());
    }
    Err(PlanError::Strip { strip, limit: LONGEST_STRIP })
}

/// Whether the loops over the taps are unrolled: few taps, and not those of a fitted window, which
/// follow from the extents and must not change the kernel. A norm visits its taps twice, by loops.
pub(in crate::pool) fn unrolls(pooling: &Pooling, reduction: Reduction) -> bool {
    let grid = pooling.grid();
    let norm = matches!(reduction, Reduction::Norm(_));
    grid.taps() <= UNROLLED_TAPS && !grid.is_fitted() && !norm
}
