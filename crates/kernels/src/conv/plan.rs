//! The choice of a kernel, a pure function of the problem and the device's limits.

use core::fmt;

use windowpane_geometry::{Convolution, DType, LIMIT, Precision};

use crate::Limits;
use crate::dtype::accumulator;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// The output.
    Forward,
    /// The gradient with respect to the input.
    Data,
    /// The gradient with respect to the filters.
    Filter,
    /// The gradient with respect to the bias.
    Bias,
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Forward => "forward",
            Self::Data => "data gradient",
            Self::Filter => "filter gradient",
            Self::Bias => "bias gradient",
        })
    }
}

/// What is asked of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What is computed.
    pub pass: Pass,
    /// The type of all tensors.
    pub dtype: DType,
    /// How exact the products are.
    pub precision: Precision,
}

/// The kernels of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// One unit an output element reads every tap.
    Direct,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
        })
    }
}

/// How a convolution will run.
///
/// The fields may be overridden one by one before the launch; [`Plan::check`] says which values
/// cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The kernel.
    pub algorithm: Algorithm,
    /// The units of a cube.
    pub units: u32,
    /// Whether a unit takes a run of neighbouring outputs (threads of a processor) or every
    /// n-th one (lanes of a GPU, whose accesses then fall together).
    pub runs: bool,
    /// The parts that each sum is cut into; 1 where the sums are many enough.
    pub splits: usize,
}

/// The units of a cube on a GPU, where one does not work with another.
const UNITS: u32 = 256;

/// The units that keep a GPU busy, and the fewest terms that are worth a unit.
const BUSY: usize = 1 << 16;
const TERMS: usize = 64;

impl Plan {
    /// Chooses the kernel of a problem.
    pub fn new(conv: &Convolution, request: Request, limits: &Limits) -> Result<Self, PlanError> {
        check_problem(conv, request, limits)?;
        Ok(Self {
            algorithm: Algorithm::Direct,
            units: limits.cores.unwrap_or(UNITS.min(limits.units_per_cube)),
            runs: limits.cores.is_some(),
            splits: splits(conv, request.pass, limits),
        })
    }

    /// Refuses values that no kernel can run with.
    pub fn check(
        &self,
        conv: &Convolution,
        request: Request,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        check_problem(conv, request, limits)?;
        if self.units == 0 || self.units > limits.units_per_cube {
            return Err(PlanError::Units { units: self.units, limit: limits.units_per_cube });
        }
        let most = most_splits(conv, request.pass);
        if self.splits == 0 || self.splits > most {
            return Err(PlanError::Splits { splits: self.splits, most });
        }
        let bytes = self.workspace(conv, request) as u64;
        if bytes > limits.buffer_bytes {
            return Err(PlanError::BufferTooLarge { bytes, limit: limits.buffer_bytes });
        }
        Ok(())
    }

    /// The bytes of device memory that the launch takes beside its tensors.
    pub fn workspace(&self, conv: &Convolution, request: Request) -> usize {
        match self.splits {
            1 => 0,
            splits => splits * results(conv, request.pass) * accumulator(request.dtype).size(),
        }
    }

    /// The type in which sums leave a kernel: parts of them keep all digits.
    pub(super) fn stored(&self, dtype: DType) -> DType {
        if self.splits > 1 { accumulator(dtype) } else { dtype }
    }
}

/// The elements that a pass computes.
pub(super) fn results(conv: &Convolution, pass: Pass) -> usize {
    match pass {
        Pass::Forward => conv.output().elements(),
        Pass::Data => conv.input().elements(),
        Pass::Filter => conv.filter().elements(),
        Pass::Bias => conv.filter().count(),
    }
}

/// The windows of all samples: the terms of each sum of the filter's and the bias's gradient.
pub(super) fn windows(conv: &Convolution) -> usize {
    conv.output().batch() * conv.output().plane()
}

/// Cuts few long sums into as many parts as keep the device busy.
fn splits(conv: &Convolution, pass: Pass, limits: &Limits) -> usize {
    let busy = limits.cores.map_or(BUSY, |cores| cores as usize);
    let wanted = busy.div_ceil(results(conv, pass).max(1));
    wanted.min(windows(conv) / TERMS).clamp(1, most_splits(conv, pass))
}

/// The most parts whose number a kernel can count.
fn most_splits(conv: &Convolution, pass: Pass) -> usize {
    match pass {
        Pass::Forward | Pass::Data => 1,
        Pass::Filter | Pass::Bias => {
            let counted = LIMIT / results(conv, pass).max(1);
            counted.min(windows(conv)).max(1)
        }
    }
}

fn check_problem(conv: &Convolution, request: Request, limits: &Limits) -> Result<(), PlanError> {
    let Request { dtype, precision, .. } = request;
    if !dtype.is_float() {
        return Err(PlanError::Integers { dtype });
    }
    if precision == Precision::Tf32 {
        return Err(match dtype {
            DType::F32 => PlanError::NoTf32,
            _ => PlanError::Tf32OfOther { dtype },
        });
    }
    let sizes = [conv.input().elements(), conv.output().elements(), conv.filter().elements()];
    for elements in sizes {
        // Positions are 32-bit in the kernels.
        if elements > LIMIT {
            return Err(PlanError::TooManyElements { elements, limit: LIMIT });
        }
        let bytes = elements as u64 * dtype.size() as u64;
        if bytes > limits.buffer_bytes {
            return Err(PlanError::BufferTooLarge { bytes, limit: limits.buffer_bytes });
        }
    }
    Ok(())
}

/// Why a problem has no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Convolutions are of floating-point numbers.
    #[error("a convolution was asked of {dtype}; convert to f64, f32, f16 or bf16 first")]
    Integers {
        /// The type asked for.
        dtype: DType,
    },
    /// The device has no matrix units that round to tf32.
    #[error("tf32 was asked for and this device has none; leave the precision strict")]
    NoTf32,
    /// Only f32 has a coarser precision.
    #[error("tf32 was asked of {dtype}; it is a precision of f32, leave it strict")]
    Tf32OfOther {
        /// The type asked for.
        dtype: DType,
    },
    /// A tensor has more elements than a kernel can count.
    #[error("a tensor has {elements} elements, a kernel counts to {limit}; split the batch")]
    TooManyElements {
        /// The elements.
        elements: usize,
        /// The most that are counted.
        limit: usize,
    },
    /// A tensor is larger than the device can bind.
    #[error("a tensor takes {bytes} bytes, this device binds {limit} at most; split the batch")]
    BufferTooLarge {
        /// The bytes.
        bytes: u64,
        /// The most that can be bound.
        limit: u64,
    },
    /// A buffer does not hold its tensor.
    #[error("a buffer of {found} bytes was given for a tensor of {needed}")]
    BufferTooSmall {
        /// The bytes of the tensor.
        needed: u64,
        /// The bytes of the buffer.
        found: u64,
    },
    /// A gradient is a sum over the windows of no sample.
    #[error("the batch is empty and so is the sum; make a tensor of zeros")]
    NoWindows,
    /// A cube cannot have so many units.
    #[error("{units} units a cube were asked for; this device has 1 to {limit}")]
    Units {
        /// The units asked for.
        units: u32,
        /// The most that the device has.
        limit: u32,
    },
    /// A sum cannot be cut into so many parts.
    #[error("{splits} splits were asked for; this problem has 1 to {most}")]
    Splits {
        /// The parts asked for.
        splits: usize,
        /// The most that there are.
        most: usize,
    },
}
