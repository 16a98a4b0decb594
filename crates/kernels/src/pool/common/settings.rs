//! The settings that all plans have: which elements a unit handles, and in which types.

use windowpane_geometry::{DType, Extremum, Pooling};

use crate::cube::convert::{ExtremumForm, accumulator};
use crate::device::Capabilities;
use crate::error::{PlanError, ensure};
use crate::pool::common::{UNROLLED_TAPS, widest_divisor, widest_load};
use crate::pool::problem::{Output, Problem, Reduction, pixel_channels};

/// The most outputs that a strip may have.
const LONGEST_STRIP: usize = 16;

/// The most taps that may be unrolled; with more, a kernel would take minutes to compile.
pub(crate) const MOST_UNROLLED_TAPS: usize = 1024;

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
    pub along_width: bool,
    /// The number of units in a cube.
    pub units: u32,
    /// Whether the loops over the taps are unrolled; their number is then compiled in.
    pub unrolled: bool,
    /// Whether a unit computes a run of neighbouring outputs (threads of a processor) instead of every n-th output
    /// (units of a GPU, whose accesses are then coalesced).
    pub contiguous: bool,
    /// The size of the scratch buffers in bytes.
    pub workspace: usize,
    /// The type of the elements that the plan was made for.
    pub(crate) dtype: DType,
    /// The type in which elements are compared and summed.
    pub(crate) accumulator: DType,
    /// How an extremum is computed.
    pub(crate) extremum: ExtremumForm,
}

impl Settings {
    /// The settings with which all plans begin: one unit per output vector.
    pub(crate) fn new(problem: Problem<'_>, device: &Capabilities) -> Self {
        let Problem { pooling, reduction, dtype, gradient, .. } = problem;
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
            Reduction::Rank(_) | Reduction::Mode
                if dtype.is_float() && dtype.size() <= DType::I32.size() =>
            {
                (Extremum::Max, DType::I32)
            }
            // Sums of 32-bit integers need more bits. Packed integers are copied to `i32`, but their sums fit in 32
            // bits: they are the only ones that are summed where there are no 64-bit integers.
            // One number does not, and Mesa's software driver gets quotients of single numbers wrong in 64 bits. The sum of a
            // `u32` needs 33 bits with a sign.
            Reduction::Average(_) if dtype == DType::I32 && pooling.grid().taps() == 1 => {
                (Extremum::Max, DType::I32)
            }
            Reduction::Average(_) if device.int64 && matches!(dtype, DType::I32 | DType::U32) => {
                (Extremum::Max, DType::I64)
            }
            _ => (Extremum::Max, accumulator(dtype)),
        };
        Self {
            lanes: widest_divisor(pixel_channels(pooling), widest_load(dtype, device)),
            along_width: false,
            units: device.cores.unwrap_or(UNITS.min(device.units_per_cube)),
            unrolled: unrolls(pooling, reduction),
            contiguous: device.cores.is_some(),
            workspace: 0,
            dtype,
            accumulator: compared,
            extremum: ExtremumForm::new(extremum, dtype, compared, device),
        }
    }

    /// The settings with `along_width` lanes along the width, if they may lie there.
    pub(crate) fn with_lanes(self, along_width: Option<usize>) -> Self {
        Self {
            lanes: along_width.unwrap_or(self.lanes),
            along_width: along_width.is_some(),
            ..self
        }
    }

    /// The settings with at most as many lanes as a load has words. A GPU's unit that keeps many wider vectors would
    /// need enough registers to lower occupancy.
    pub(crate) fn narrowed(self, device: &Capabilities) -> Self {
        let words = device.load_bytes / DType::F32.size();
        Self {
            lanes: if self.contiguous { self.lanes } else { self.lanes.min(words.max(1)) },
            ..self
        }
    }

    /// The settings for elements that are reduced one by one, however many are loaded at once.
    pub(crate) fn one_by_one(&self) -> Self {
        Self { lanes: 1, along_width: false, unrolled: false, ..*self }
    }

    /// Refuses a number of units that the device does not support, a plan that was made for something other than `own`,
    /// and lanes along another axis.
    pub(crate) fn check_made(
        &self,
        own: &Self,
        kernel: &'static str,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        let (units, limit) = (self.units, device.units_per_cube);
        ensure((1..=limit).contains(&units), PlanError::Units { units, limit })?;
        let made = |settings: &Self| (settings.dtype, settings.accumulator, settings.extremum);
        ensure(made(self) == made(own), PlanError::Foreign)?;
        let fixed = PlanError::Fixed { name: "along_width", kernel };
        ensure(self.along_width == own.along_width, fixed)
    }
}

/// Refuses empty strips, and strips longer than kernels support.
pub(crate) fn check_strip(strip: usize) -> Result<(), PlanError> {
    let limit = LONGEST_STRIP;
    ensure((1..=limit).contains(&strip), PlanError::Strip { strip, limit })
}

/// Whether the loops over the taps are unrolled: only for few taps, and not for an adaptive window, whose size follows
/// from the extents and must not change the kernel. A norm visits its taps twice, in loops.
pub(crate) fn unrolls(pooling: &Pooling, reduction: Reduction) -> bool {
    let grid = pooling.grid();
    let norm = matches!(reduction, Reduction::Norm(_));
    grid.taps() <= UNROLLED_TAPS && !grid.is_adaptive() && !norm
}
