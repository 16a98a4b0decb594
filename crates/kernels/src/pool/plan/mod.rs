//! What a plan is: the kernel of a problem, and how it will run. A pure function of the problem and the
//! device's limits, so that it can be asked, printed, overridden and tested without a device.
//!
//! * `choice`: which kernel a problem gets.
//! * `kernels`: how each kernel is planned, and what it refuses.
//! * `lanes`: how wide its vectors are.
//! * `error`: why there is none.

mod choice;
mod error;
mod kernels;
mod lanes;
#[cfg(test)]
mod tests;

use core::fmt;

use windowpane_geometry::{DType, Divisor, Exponent, IndexBase, LIMIT, Pooling};

use crate::Limits;
use crate::dtype::{MaximumForm, Widening};

pub use error::PlanError;
pub(super) use kernels::check_workspace;
pub(crate) use lanes::pixel_channels;
pub(super) use lanes::widest_divisor;

/// The most outputs of a strip.
const LONGEST_STRIP: usize = 16;

/// More taps than this and an unrolled kernel would take minutes to compile.
const MOST_UNROLLED_TAPS: usize = 1024;

/// What becomes of the taps of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their maximum, NaN above all.
    Max(Output),
    /// Their sum over a divisor.
    Average(Divisor),
    /// Their norm, `(Σ|x|^p)^(1/p)`.
    Norm(Exponent),
}

/// What a maximum is returned as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// The value.
    Values,
    /// The value, and the index of the tap that it came from.
    ValuesAndIndices(IndexBase),
}

impl Reduction {
    /// What indices count; the plane, where there are none.
    pub(super) fn base(self) -> IndexBase {
        match self {
            Self::Max(Output::ValuesAndIndices(base)) => base,
            _ => IndexBase::Plane,
        }
    }

    /// What a fixed divisor divides by; 1, where there is none.
    pub(super) fn fixed_divisor(self) -> u32 {
        match self {
            Self::Average(Divisor::Fixed(n)) => n,
            _ => 1,
        }
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Max(Output::Values) => "max",
            Self::Max(Output::ValuesAndIndices(_)) => "max with indices",
            Self::Average(_) => "average",
            Self::Norm(_) => "norm",
        })
    }
}

/// The kernels of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// One unit an output vector reads every tap.
    Direct,
    /// One unit a strip of outputs shares what their windows share.
    Strip,
    /// Lines are walked in blocks, an axis at a time.
    Sliding,
    /// A team of units shares the taps of a window.
    Reduce,
    /// Small planes are staged whole in shared memory.
    Plane,
    /// All planes are one run of elements.
    Flat,
    /// Units walk down the rows of planes that keep their extents.
    Rolling,
    /// Cubes walk along planes with what their blocks share in shared memory: gradients of maxima.
    Staged,
    /// Lines are walked in blocks, both axes of a plane in one launch.
    Fused,
    /// A thread of a processor walks along the rows of a strip.
    Walk,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
            Self::Strip => "strip",
            Self::Sliding => "sliding",
            Self::Reduce => "reduce",
            Self::Plane => "plane",
            Self::Flat => "flat",
            Self::Rolling => "rolling",
            Self::Staged => "staged",
            Self::Fused => "fused",
            Self::Walk => "walk",
        })
    }
}

/// How a pooling will run.
///
/// The fields may be overridden one by one before the launch; [`Plan::check`] says which values
/// cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The kernel.
    pub algorithm: Algorithm,
    /// The elements that one unit handles at once, neighbours in memory.
    pub lanes: usize,
    /// Whether the lanes are neighbours along the width, not channels of a pixel.
    pub across: bool,
    /// The outputs of a unit, where it has a strip of them.
    pub strip: usize,
    /// The units that share a window.
    pub team: u32,
    /// The parts that the taps of a window are cut into, to be folded by a second launch.
    pub parts: usize,
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
    pub(super) widest: usize,
    /// The neighbouring columns of a unit's strip or block, where its lanes are channels.
    pub(super) columns: usize,
    /// The type that elements are compared and summed in.
    pub(super) accumulator: DType,
    /// How a maximum is made.
    pub(super) maximum: MaximumForm,
    /// Whether sums are rounded to bf16 here, not by the device.
    pub(super) rounds: bool,
    /// Whether LLVM compiles for the device, as its limits say: what is shared can be seen as vectors then, and the
    /// units of a warp ask each other.
    pub(super) llvm: bool,
    /// The bytes that the units of a cube may share.
    pub(super) shared_bytes: usize,
}

impl Plan {
    /// Plans for a kernel that is named, where it can compute the problem.
    pub fn with(
        algorithm: Algorithm,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        check_problem(pooling, reduction, dtype, limits)?;
        // Not only in the end: what a kernel cannot compute need have no plan of its own.
        algorithm.check(pooling, reduction)?;
        let plan = Self::direct(pooling, reduction, dtype, limits);
        let plan = match algorithm {
            Algorithm::Direct => plan,
            Algorithm::Strip => plan.strip(pooling, reduction, dtype, limits),
            Algorithm::Walk => plan.walk(pooling, dtype, limits),
            Algorithm::Sliding => plan.sliding(pooling, reduction, dtype),
            Algorithm::Reduce => plan.reduce(pooling, reduction, dtype, limits),
            Algorithm::Fused => plan.fused(pooling, reduction, dtype, limits)?,
            Algorithm::Plane => plan.plane(pooling, dtype, limits.units_per_cube, false),
            Algorithm::Flat => plan.flat(pooling, dtype, limits),
            Algorithm::Rolling => plan.rolling(pooling, limits),
            Algorithm::Staged => return Err(PlanError::NotFor { algorithm }),
        };
        plan.check_kernel(pooling, reduction, dtype, limits)?;
        Ok(plan)
    }

    /// Plans for a kernel of the gradient that is named, where it can compute the problem.
    pub fn gradient_with(
        algorithm: Algorithm,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        check_problem(pooling, reduction, dtype, limits)?;
        match algorithm {
            Algorithm::Direct => Ok(Self::gathered(pooling, reduction, dtype, limits)),
            Algorithm::Strip => {
                let plan = Self::blocks(pooling, reduction, dtype, limits);
                plan.ok_or(PlanError::NotFor { algorithm })
            }
            Algorithm::Plane => {
                let plan = Self::gathered(pooling, reduction, dtype, limits);
                let plan = plan.plane(pooling, dtype, limits.units_per_cube, true);
                plan.check_planes(pooling, reduction, dtype, limits, true)?;
                Ok(plan)
            }
            Algorithm::Flat => {
                let plan = Self::gathered(pooling, reduction, dtype, limits);
                let plan = plan.flat(pooling, dtype, limits);
                plan.check_flat(pooling, reduction, dtype, limits)?;
                Ok(plan)
            }
            Algorithm::Rolling => {
                let plan = Self::gathered(pooling, reduction, dtype, limits);
                let plan = plan.rolling(pooling, limits);
                plan.check_rolling(pooling, reduction, dtype, limits)?;
                Ok(plan)
            }
            Algorithm::Staged => {
                let plan = Self::gathered(pooling, reduction, dtype, limits);
                let plan = plan.staged(pooling, dtype);
                plan.check_staged(pooling, reduction, dtype, limits)?;
                Ok(plan)
            }
            Algorithm::Sliding | Algorithm::Reduce | Algorithm::Fused | Algorithm::Walk => {
                Err(PlanError::NotFor { algorithm })
            }
        }
    }

    /// The plan for elements that are folded one by one, whatever is loaded at once.
    pub(super) fn one_by_one(&self) -> Self {
        Self { lanes: 1, across: false, unrolled: false, ..*self }
    }

    /// How elements become what they are folded in.
    pub(super) fn widening(&self, dtype: DType) -> Widening {
        if dtype.is_float() && !self.accumulator.is_float() {
            if dtype == DType::BF16 { Widening::UpperKeys } else { Widening::Keys }
        } else if dtype == DType::BF16 && self.accumulator != dtype && self.llvm {
            if self.runs { Widening::EachBits } else { Widening::Bits }
        } else {
            Widening::Cast
        }
    }

    /// Refuses values that no kernel can run with.
    pub fn check(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        self.check_made(&Self::with(self.algorithm, pooling, reduction, dtype, limits)?, limits)?;
        // Planes are moved in lanes of their own, which `check_kernel` checks.
        if !matches!(self.algorithm, Algorithm::Plane | Algorithm::Flat) {
            self.check_lanes(pooling, dtype, limits, false)?;
        }
        self.check_steps()?;
        self.check_kernel(pooling, reduction, dtype, limits)?;
        let taps = pooling.grid().taps();
        if self.unrolled && taps > MOST_UNROLLED_TAPS {
            return Err(PlanError::Unrolled { taps, limit: MOST_UNROLLED_TAPS });
        }
        Ok(())
    }

    /// Refuses values that no gradient can run with; those of the forward kernels do not matter.
    pub(super) fn check_backward(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        let own = Self::gradient_with(self.algorithm, pooling, reduction, dtype, limits)?;
        self.check_made(&own, limits)?;
        if self.algorithm == Algorithm::Plane {
            return self.check_planes(pooling, reduction, dtype, limits, true);
        }
        if self.algorithm == Algorithm::Flat {
            return self.check_flat(pooling, reduction, dtype, limits);
        }
        if matches!(self.algorithm, Algorithm::Rolling | Algorithm::Strip) {
            self.check_steps()?;
        }
        if self.algorithm == Algorithm::Rolling {
            self.check_rolling(pooling, reduction, dtype, limits)?;
        }
        if self.algorithm == Algorithm::Staged {
            return self.check_staged(pooling, reduction, dtype, limits);
        }
        if self.algorithm == Algorithm::Strip {
            self.check_blocks(pooling)?;
        }
        self.check_lanes(pooling, dtype, limits, true)
    }

    /// Refuses strips of nothing, and of more than kernels are written for.
    fn check_steps(&self) -> Result<(), PlanError> {
        if (1..=LONGEST_STRIP).contains(&self.strip) {
            return Ok(());
        }
        Err(PlanError::Strip { strip: self.strip, limit: LONGEST_STRIP })
    }

    /// Refuses units that the device has not, a plan that was made for something else than `own`, and
    /// what kernels other than the direct one cannot have otherwise: their loops and their vectors are
    /// written for it.
    fn check_made(&self, own: &Self, limits: &Limits) -> Result<(), PlanError> {
        if self.units == 0 || self.units > limits.units_per_cube {
            return Err(PlanError::Units { units: self.units, limit: limits.units_per_cube });
        }
        let made = |plan: &Self| {
            let Self { widest, columns, accumulator, maximum, rounds, .. } = *plan;
            let device = (plan.llvm, plan.shared_bytes);
            (widest, columns, accumulator, maximum, rounds, device)
        };
        if made(self) != made(own) {
            return Err(PlanError::Foreign);
        }
        let algorithm = self.algorithm;
        if self.across != own.across {
            return Err(PlanError::Fixed { name: "across", algorithm });
        }
        if self.unrolled != own.unrolled && algorithm != Algorithm::Direct {
            return Err(PlanError::Fixed { name: "unrolled", algorithm });
        }
        Ok(())
    }
}

/// Refuses a problem that no kernel can compute or hold.
fn check_problem(
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    limits: &Limits,
) -> Result<(), PlanError> {
    match reduction {
        Reduction::Max(Output::Values) => {}
        Reduction::Max(Output::ValuesAndIndices(base)) => pooling.check_indices(base)?,
        Reduction::Average(divisor) => {
            divisor.check()?;
            if !dtype.is_float() {
                return Err(PlanError::AverageOfIntegers { dtype });
            }
        }
        Reduction::Norm(p) => {
            p.check()?;
            if !dtype.is_float() {
                return Err(PlanError::NormOfIntegers { dtype });
            }
        }
    }
    let elements = pooling.input().elements().max(pooling.output().elements());
    // Positions are 32-bit in the kernels.
    if elements > LIMIT {
        return Err(PlanError::TooManyElements { elements, limit: LIMIT });
    }
    let taps = pooling.grid().taps();
    // A divisor counts them in 32 bits.
    if taps > LIMIT {
        return Err(PlanError::TooManyTaps { taps, limit: LIMIT });
    }
    let widest = match reduction {
        Reduction::Max(Output::ValuesAndIndices(_)) => dtype.size().max(DType::I32.size()),
        _ => dtype.size(),
    };
    let bytes = elements as u64 * widest as u64;
    if bytes > limits.buffer_bytes {
        return Err(PlanError::BufferTooLarge { bytes, limit: limits.buffer_bytes });
    }
    Ok(())
}
