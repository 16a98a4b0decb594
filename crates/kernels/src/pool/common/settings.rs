//! The settings that all plans have: which elements a unit handles, and in which types.

use windowpane_geometry::{DType, Extremum, Pooling};

use crate::cube::convert::{ExtremumForm, Widening, accumulator};
use crate::device::{Capabilities, MULTIPROCESSORS};
use crate::pool::common::lanes::{
    UNROLLED_TAPS, divides_windows, lanes_across, widest_divisor, widest_load,
};
use crate::pool::error::PlanError;
use crate::pool::problem::{Output, Problem, Reduction, pixel_channels};

/// The most outputs that a strip may have.
const LONGEST_STRIP: usize = 16;

/// The most taps that may be unrolled; with more, a kernel would take minutes to compile.
pub(in crate::pool) const MOST_UNROLLED_TAPS: usize = 1024;

/// The units of a cube on a GPU: enough warps to hide latency, few enough to fill all multiprocessors evenly.
const UNITS: u32 = 128;

/// The settings that every kernel has.
///
/// The public fields may be overridden one by one before the launch; [`Plan::check`](crate::pool::Plan::check) refuses
/// invalid values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The number of adjacent elements that one unit handles at once.
    pub lanes: usize,
    /// Whether the lanes are neighbours along the width instead of channels of a pixel.
    pub across: bool,
    /// The number of units in a cube.
    pub units: u32,
    /// Whether the loops over the taps are unrolled; their number is then compiled in.
    pub unrolled: bool,
    /// Whether a unit computes a run of neighbouring outputs (threads of a processor) instead of every n-th output
    /// (units of a GPU, whose accesses are then coalesced).
    pub runs: bool,
    /// The size of the scratch buffers in bytes.
    pub workspace: usize,
    /// The number of elements in the widest single load.
    pub(in crate::pool) widest: usize,
    /// The type in which elements are compared and summed.
    pub(in crate::pool) accumulator: DType,
    /// How an extremum is computed.
    pub(in crate::pool) extremum: ExtremumForm,
    /// Whether the kernel rounds sums to bf16 itself, because the device does not.
    pub(in crate::pool) rounds: bool,
    /// Whether shared memory can be viewed as vectors of another type, according to the device's capabilities.
    pub(in crate::pool) shared_vectors: bool,
    /// Whether the units of a plane can vote.
    pub(in crate::pool) plane_ops: bool,
    /// Whether bf16 is widened by bit operations, as the device's compiler requires.
    pub(in crate::pool) fuses_conversions: bool,
    /// The most lanes of a vector that the compiler does not split.
    pub(in crate::pool) vector_lanes: usize,
    /// The bytes of shared memory of a cube.
    pub(in crate::pool) shared_bytes: usize,
    /// The number of multiprocessors of a GPU.
    pub(in crate::pool) multiprocessors: u32,
}

impl Settings {
    /// The settings with which all plans begin: one unit per output vector.
    pub(in crate::pool) fn new(problem: Problem<'_>, device: &Capabilities) -> Self {
        let Problem { pooling, reduction, dtype, gradient } = problem;
        let (extremum, compared) = match reduction {
            // Gradients are sums.
            _ if gradient => (Extremum::Max, accumulator(dtype)),
            // A GPU with packed 16-bit instructions compares two elements at a time.
            Reduction::Extremum(extremum, Output::Values)
                if dtype.is_float() && device.packed_halves =>
            {
                (extremum, dtype)
            }
            // If the device has no instruction for IEEE 754 maxima, comparing as floats takes six instructions, and
            // some devices treat subnormals as 0.
            Reduction::Extremum(extremum, _)
                if dtype.is_float() && dtype.size() <= DType::I32.size() && !device.ieee_max =>
            {
                (extremum, DType::I32)
            }
            Reduction::Extremum(extremum, _) => (extremum, accumulator(dtype)),
            _ => (Extremum::Max, accumulator(dtype)),
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
            accumulator: compared,
            extremum: ExtremumForm::new(extremum, dtype, compared, device),
            rounds: dtype == DType::BF16 && !device.rounds_bf16,
            shared_vectors: device.shared_vectors,
            plane_ops: device.plane_ops,
            fuses_conversions: device.fuses_conversions,
            vector_lanes: device.vector_lanes,
            shared_bytes: device.shared_bytes,
            multiprocessors: device.multiprocessors.unwrap_or(MULTIPROCESSORS),
        }
    }

    /// The settings with `across` lanes along the width, if they may lie there.
    pub(in crate::pool) fn with_lanes(self, across: Option<usize>) -> Self {
        Self { lanes: across.unwrap_or(self.lanes), across: across.is_some(), ..self }
    }

    /// The settings with at most as many lanes as a load has words. A GPU's unit that keeps many wider vectors would
    /// need enough registers to lower occupancy.
    pub(in crate::pool) fn narrowed(self, device: &Capabilities) -> Self {
        let words = device.load_bytes / DType::F32.size();
        Self { lanes: if self.runs { self.lanes } else { self.lanes.min(words.max(1)) }, ..self }
    }

    /// The settings for elements that are reduced one by one, however many are loaded at once.
    pub(in crate::pool) fn one_by_one(&self) -> Self {
        Self { lanes: 1, across: false, unrolled: false, ..*self }
    }

    /// How elements are converted to the type in which they are reduced.
    pub(in crate::pool) fn widening(&self, dtype: DType) -> Widening {
        if let Some(keys) = self.extremum.keys(dtype) {
            keys
        } else if dtype == DType::BF16 && self.accumulator != dtype && self.fuses_conversions {
            if self.runs { Widening::EachBits } else { Widening::Bits }
        } else {
            Widening::Cast
        }
    }

    /// Refuses a number of units that the device does not support, a plan that was made for something other than `own`,
    /// and lanes along another axis.
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
            let Self { widest, accumulator, extremum, rounds, .. } = *settings;
            let Self { shared_vectors, plane_ops, fuses_conversions, .. } = *settings;
            let Self { vector_lanes, shared_bytes, multiprocessors, .. } = *settings;
            let device = (shared_vectors, plane_ops, fuses_conversions, vector_lanes);
            (widest, accumulator, extremum, rounds, device, shared_bytes, multiprocessors)
        };
        if made(self) != made(own) {
            return Err(PlanError::Foreign { kernel });
        }
        if self.across != own.across {
            return Err(PlanError::Fixed { name: "across", kernel });
        }
        Ok(())
    }

    /// Refuses lanes that are not a vector of the problem. Vectors along the width are checked as most kernels need
    /// them.
    pub(in crate::pool) fn check_lanes(&self, problem: Problem<'_>) -> Result<(), PlanError> {
        let Problem { pooling, gradient, .. } = problem;
        let neighbours = match self.across {
            true => lanes_across(pooling, self.widest, gradient).unwrap_or(0),
            false => pixel_channels(pooling),
        };
        // A gradient with fewer lanes need not have fewer lanes of windows, so these are checked separately.
        if self.across && gradient && !divides_windows(pooling, self.lanes, gradient) {
            let (lanes, widest) = (self.lanes, self.widest);
            return Err(PlanError::Lanes { lanes, neighbours, widest });
        }
        self.check_lanes_of(neighbours)
    }

    /// Refuses lanes that do not divide `neighbours`, the number of adjacent elements; 0 means that no lanes are
    /// possible.
    pub(in crate::pool) fn check_lanes_of(&self, neighbours: usize) -> Result<(), PlanError> {
        let (lanes, widest) = (self.lanes, self.widest);
        let divides = lanes.is_power_of_two() && neighbours.is_multiple_of(lanes);
        if !divides || neighbours == 0 || lanes > widest {
            return Err(PlanError::Lanes { lanes, neighbours, widest });
        }
        Ok(())
    }
}

/// Refuses empty strips, and strips longer than kernels support.
pub(in crate::pool) fn check_strip(strip: usize) -> Result<(), PlanError> {
    if (1..=LONGEST_STRIP).contains(&strip) {
        return Ok(());
    }
    Err(PlanError::Strip { strip, limit: LONGEST_STRIP })
}

/// Whether the loops over the taps are unrolled: only for few taps, and not for a fitted window, whose size follows
/// from the extents and must not change the kernel. A norm visits its taps twice, in loops.
pub(in crate::pool) fn unrolls(pooling: &Pooling, reduction: Reduction) -> bool {
    let grid = pooling.grid();
    let norm = matches!(reduction, Reduction::Norm(_));
    grid.taps() <= UNROLLED_TAPS && !grid.is_fitted() && !norm
}
