//! A pooling problem as plain data: what is reduced, how, and in which type. No kernel is named here.

use core::fmt;

use windowpane_geometry::{
    AXES, DType, Divisor, Exponent, Extremum, IndexBase, LIMIT, Layout, Pooling, Rank,
};

use crate::device::Capabilities;
use crate::error::{PlanError, ensure};

/// How the taps of a window are reduced to one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their maximum or minimum; NaN wins both.
    Extremum(Extremum, Output),
    /// Their sum divided by a divisor.
    Average(Divisor),
    /// Their norm, `(Σ|x|^p)^(1/p)`.
    Norm(Exponent),
    /// The number that a given number of others precede, such as the median. It has no gradient.
    Rank(Rank),
    /// The most frequent number, or the smallest of those that are equally frequent. It has no gradient.
    Mode,
    /// One of the numbers, drawn with a probability proportional to it; a negative number counts as 0.
    Drawn {
        /// Decides, with the output's position in the tensor, what is drawn.
        seed: u32,
        /// The results.
        output: Output,
    },
    /// The mean of what [`Drawn`](Self::Drawn) draws. It has no gradient.
    MeanDrawn,
}

/// The results of an extremum or of a drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// The value.
    Values,
    /// The value, and the index of the tap that has it.
    ValuesAndIndices(IndexBase),
}

impl Output {
    /// The base of the indices, if there are any.
    fn base(self) -> Option<IndexBase> {
        match self {
            Self::Values => None,
            Self::ValuesAndIndices(base) => Some(base),
        }
    }
}

impl Reduction {
    /// The maximum.
    pub fn max(output: Output) -> Self {
        Self::Extremum(Extremum::Max, output)
    }

    /// Whether it is an extremum.
    pub(super) fn is_extremum(self) -> bool {
        matches!(self, Self::Extremum(..))
    }

    /// The base of the indices; `Plane` if the reduction has no indices.
    pub(super) fn base(self) -> IndexBase {
        match self {
            Self::Extremum(_, output) | Self::Drawn { output, .. } => output.base(),
            _ => None,
        }
        .unwrap_or_default()
    }

    /// The number that a fixed divisor divides by.
    pub(super) fn fixed_divisor(self) -> Option<u32> {
        match self {
            Self::Average(divisor) => divisor.fixed(),
            _ => None,
        }
    }

    /// Whether quotients of integers are cut off.
    pub(super) fn truncates(self) -> bool {
        matches!(self, Self::Average(divisor) if divisor.truncates())
    }

    /// Whether the reduction returns indices.
    pub fn has_indices(self) -> bool {
        match self {
            Self::Extremum(_, output) | Self::Drawn { output, .. } => output.base().is_some(),
            _ => false,
        }
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Extremum(Extremum::Max, Output::Values) => "max",
            Self::Extremum(Extremum::Max, Output::ValuesAndIndices(_)) => "max with indices",
            Self::Extremum(Extremum::Min, Output::Values) => "min",
            Self::Extremum(Extremum::Min, Output::ValuesAndIndices(_)) => "min with indices",
            Self::Average(_) => "average",
            Self::Norm(_) => "norm",
            Self::Rank(_) => "rank",
            Self::Mode => "mode",
            Self::Drawn { output: Output::Values, .. } => "drawn",
            Self::Drawn { output: Output::ValuesAndIndices(_), .. } => "drawn with indices",
            Self::MeanDrawn => "mean of the drawn",
        })
    }
}

/// The reduction whose gradient is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gradient {
    /// An extremum; indices of this base name the winning taps.
    Extremum(IndexBase),
    /// A drawing; indices of this base name the taps that were drawn.
    Drawn(IndexBase),
    /// An average.
    Average(Divisor),
}

impl Gradient {
    /// The pooling whose gradient this is.
    pub(super) fn reduction(self) -> Reduction {
        match self {
            Self::Extremum(base) | Self::Drawn(base) => {
                Reduction::max(Output::ValuesAndIndices(base))
            }
            Self::Average(divisor) => Reduction::Average(divisor),
        }
    }

    /// The problem of this gradient.
    pub fn of(self, pooling: &Pooling, dtype: DType) -> Problem<'_> {
        let problem = Problem::new(pooling, self.reduction(), dtype).backward();
        Problem { any_winner: matches!(self, Self::Drawn(_)), ..problem }
    }
}

/// A pooling, or the gradient of one.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// The windows.
    pub pooling: &'a Pooling,
    /// How their taps are reduced.
    pub reduction: Reduction,
    /// The type of all tensors except indices.
    pub dtype: DType,
    /// Whether the gradient is computed.
    pub gradient: bool,
    /// For the gradient of an extremum: whether the winner may be any tap of its window, not only the extremum.
    pub any_winner: bool,
}

impl<'a> Problem<'a> {
    /// A pooling.
    pub fn new(pooling: &'a Pooling, reduction: Reduction, dtype: DType) -> Self {
        Self { pooling, reduction, dtype, gradient: false, any_winner: false }
    }

    /// The gradient of the pooling.
    pub fn backward(self) -> Self {
        Self { gradient: true, ..self }
    }

    /// Whether taps are combined one after the other. Other reductions have kernels of their own.
    pub(super) fn folds(&self) -> bool {
        matches!(self.reduction, Reduction::Extremum(..) | Reduction::Average(_))
    }

    /// Whether it is a norm or the gradient of one.
    pub(super) fn is_norm(&self) -> bool {
        matches!(self.reduction, Reduction::Norm(_))
    }

    /// Whether it sums integers, whose quotients are rounded as integers.
    pub(crate) fn sums_integers(&self) -> bool {
        matches!(self.reduction, Reduction::Average(_)) && !self.dtype.is_float()
    }

    /// The problem as kernels compute it, in `i32` if its tensors are packed; an error if no kernel can compute it or its
    /// tensors are too large.
    pub(super) fn checked(self, device: &Capabilities) -> Result<Self, PlanError> {
        self.check(device)?;
        Ok(Self { dtype: device.computed(self.dtype), ..self })
    }

    /// Refuses a gradient.
    fn check_forward(&self, kernel: &'static str, reason: &'static str) -> Result<(), PlanError> {
        ensure(!self.gradient, PlanError::NotApplicable { kernel, reason })
    }

    fn check(self, device: &Capabilities) -> Result<(), PlanError> {
        let Self { pooling, reduction, dtype, .. } = self;
        match reduction {
            Reduction::Extremum(..) => {}
            Reduction::Average(divisor) => {
                divisor.check()?;
                check_sums(dtype, self.gradient, device)?;
            }
            Reduction::Norm(p) => {
                p.check()?;
                let refused = PlanError::FloatsOnly { operator: "Lp pooling", dtype };
                ensure(dtype.is_float(), refused)?;
            }
            Reduction::Rank(rank) => {
                rank.check()?;
                self.check_forward("rank", "a rank has no gradient")?;
            }
            Reduction::Mode => self.check_forward("rank", "a mode has no gradient")?,
            Reduction::Drawn { .. } | Reduction::MeanDrawn => {
                let reason = "the gradient of what was drawn is that of the indices";
                self.check_forward("stochastic", reason)?;
                let refused = PlanError::FloatsOnly { operator: "stochastic pooling", dtype };
                ensure(dtype.is_float(), refused)?;
            }
        }
        if reduction.has_indices() {
            pooling.check_indices(reduction.base())?;
        }
        let most_taps = match (reduction, dtype.integers()) {
            // Sums of integers are exact in 32 bits, or in 64, which hold those of any window.
            (Reduction::Average(_), Some((least, most))) if dtype.size() < 4 => {
                LIMIT / most.max(-least) as usize
            }
            // The product of taps and numerator has 31 bits.
            (Reduction::Rank(Rank::Fraction { part, .. }), _) => LIMIT / part.max(1) as usize,
            // A large window is read once for each of its numbers, at most; a thread reads fewer than 2³¹ taps.
            (Reduction::Mode, _) if dtype.size() == 1 => LIMIT >> u8::BITS,
            (Reduction::Mode, _) => LIMIT.isqrt(),
            _ => LIMIT,
        };
        let elements = pooling.input().elements().max(pooling.output().elements());
        // Positions are 32-bit in the kernels.
        ensure(elements <= LIMIT, PlanError::TooManyElements { elements, limit: LIMIT })?;
        let taps = pooling.grid().taps();
        // Divisors count taps in 32 bits.
        ensure(taps <= most_taps, PlanError::TooManyTaps { taps, limit: most_taps })?;
        let size = device.computed(dtype).size();
        let widest = match reduction.has_indices() {
            true => size.max(DType::I32.size()),
            false => size,
        };
        let (bytes, limit) = (elements as u64 * widest as u64, device.buffer_bytes);
        ensure(bytes <= limit, PlanError::BufferTooLarge { bytes, limit })
    }
}

/// Refuses a workspace with more elements than kernels can count, or more bytes than the device can bind.
pub(super) fn check_workspace(
    elements: usize,
    bytes: usize,
    device: &Capabilities,
) -> Result<(), PlanError> {
    ensure(elements <= LIMIT, PlanError::TooManyElements { elements, limit: LIMIT })?;
    let (bytes, limit) = (bytes as u64, device.buffer_bytes);
    ensure(bytes <= limit, PlanError::Workspace { bytes, limit })
}

/// The channels of a pixel that are adjacent in memory.
pub(super) fn pixel_channels(pooling: &Pooling) -> usize {
    match pooling.layout() {
        Layout::ChannelsLast => pooling.input().channels(),
        Layout::ChannelsFirst => 1,
    }
}

/// The outermost axis that has a window; if none has, the outermost axis of the problem.
pub(super) fn outermost(pooling: &Pooling) -> usize {
    let axes = pooling.grid().axes();
    axes.iter().position(|axis| axis.kernel() > 1).unwrap_or(AXES - pooling.grid().rank())
}

/// Refuses averages of types without sums, or whose sums the device has no integers for. Integers have no gradient.
fn check_sums(dtype: DType, gradient: bool, device: &Capabilities) -> Result<(), PlanError> {
    let has_sums = dtype.is_float() || (!gradient && dtype != DType::Bool);
    ensure(has_sums, PlanError::FloatsOnly { operator: "average pooling", dtype })?;
    let fits = match dtype {
        DType::I64 => false,
        DType::I32 | DType::U32 => device.int64,
        _ => true,
    };
    ensure(fits, PlanError::NoSums { dtype })
}
