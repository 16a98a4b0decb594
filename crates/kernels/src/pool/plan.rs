//! The choice of a kernel, a pure function of the problem and the device's limits.

use core::fmt;

use windowpane_geometry::{DType, Divisor, IndexBase, LIMIT, Layout, Pooling};

use crate::Limits;

/// What becomes of the taps of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their maximum, NaN above all.
    Max(Output),
    /// Their sum over a divisor.
    Average(Divisor),
}

/// What a maximum is returned as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// The value.
    Values,
    /// The value, and the index of the tap that it came from.
    ValuesAndIndices(IndexBase),
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Max(Output::Values) => "max",
            Self::Max(Output::ValuesAndIndices(_)) => "max with indices",
            Self::Average(_) => "average",
        })
    }
}

/// The kernels of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// One unit an output vector reads every tap.
    Direct,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
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
    /// The channels that one unit handles at once.
    pub lanes: usize,
    /// The units of a cube.
    pub units: u32,
    /// Whether the loops over the taps are unrolled, their number then being compiled in.
    pub unrolled: bool,
    /// Whether a unit takes a run of neighbouring outputs (threads of a processor) or every
    /// n-th one (lanes of a GPU, whose accesses then fall together).
    pub runs: bool,
    /// The bytes of workspace.
    pub workspace: usize,
}

/// More taps than this and a loop over them is no longer unrolled.
const UNROLLED_TAPS: usize = 32;

/// The units of a cube on a GPU: enough warps to hide latency, few enough to fill every
/// multiprocessor evenly.
const UNITS: u32 = 256;

impl Plan {
    /// Chooses the kernel of a problem.
    pub fn new(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        check_problem(pooling, reduction, dtype, limits)?;
        let widest = widest_load(dtype, limits);
        Ok(Self {
            algorithm: Algorithm::Direct,
            lanes: widest_divisor(pixel_channels(pooling), widest),
            units: limits.cores.unwrap_or(UNITS.min(limits.units_per_cube)),
            unrolled: pooling.grid().taps() <= UNROLLED_TAPS,
            runs: limits.cores.is_some(),
            workspace: 0,
        })
    }

    /// Refuses values that no kernel can run with.
    pub fn check(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        self.check_backward(pooling, reduction, dtype, limits)?;
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
        check_problem(pooling, reduction, dtype, limits)?;
        let (channels, widest) = (pixel_channels(pooling), widest_load(dtype, limits));
        let divides = self.lanes.is_power_of_two() && channels.is_multiple_of(self.lanes);
        if !divides || self.lanes > widest {
            return Err(PlanError::Lanes { lanes: self.lanes, channels, widest });
        }
        if self.units == 0 || self.units > limits.units_per_cube {
            return Err(PlanError::Units { units: self.units, limit: limits.units_per_cube });
        }
        Ok(())
    }
}

/// More taps than this and an unrolled kernel would take minutes to compile.
const MOST_UNROLLED_TAPS: usize = 1024;

/// The channels that lie together in memory for each pixel.
pub(crate) fn pixel_channels(pooling: &Pooling) -> usize {
    match pooling.layout() {
        Layout::ChannelsLast => pooling.input().channels(),
        Layout::ChannelsFirst => 1,
    }
}

/// The elements of the widest single load.
fn widest_load(dtype: DType, limits: &Limits) -> usize {
    (limits.load_bytes / dtype.size()).max(1)
}

/// The largest power of two that divides `n` and is at most `limit`.
fn widest_divisor(n: usize, limit: usize) -> usize {
    let divisor = 1 << n.trailing_zeros().min(usize::BITS - 2);
    divisor.min(1 << limit.ilog2())
}

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

/// Why a problem has no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The problem itself is refused.
    #[error(transparent)]
    Geometry(#[from] windowpane_geometry::Error),
    /// Averages are of floating-point numbers.
    #[error("average pooling was asked of {dtype}; convert to f64, f32, f16 or bf16 first")]
    AverageOfIntegers {
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
    /// A window has more taps than a kernel can count.
    #[error("a window has {taps} taps, a kernel counts to {limit}; use `host`")]
    TooManyTaps {
        /// The taps.
        taps: usize,
        /// The most that are counted.
        limit: usize,
    },
    /// A buffer does not hold its tensor.
    #[error("a buffer of {found} bytes was given for a tensor of {needed}")]
    BufferTooSmall {
        /// The bytes of the tensor.
        needed: u64,
        /// The bytes of the buffer.
        found: u64,
    },
    /// Indices were given where there are none, or not where there are.
    #[error("a buffer for indices is {}", if *needed { "needed" } else { "not needed" })]
    Indices {
        /// Whether the reduction has indices.
        needed: bool,
    },
    /// A tensor is larger than the device can bind.
    #[error("a tensor takes {bytes} bytes, this device binds {limit} at most; split the batch")]
    BufferTooLarge {
        /// The bytes.
        bytes: u64,
        /// The most that can be bound.
        limit: u64,
    },
    /// The lanes of a vector do not divide the channels.
    #[error(
        "{lanes} lanes were asked for; use a power of two that divides {channels}, {widest} at most"
    )]
    Lanes {
        /// The lanes asked for.
        lanes: usize,
        /// The channels that lie together.
        channels: usize,
        /// The elements of the widest load.
        widest: usize,
    },
    /// A cube cannot have so many units.
    #[error("{units} units a cube were asked for; this device has 1 to {limit}")]
    Units {
        /// The units asked for.
        units: u32,
        /// The most that the device has.
        limit: u32,
    },
    /// A loop is too long to unroll.
    #[error("{taps} taps are too many to unroll, {limit} the most; leave the loop rolled")]
    Unrolled {
        /// The taps.
        taps: usize,
        /// The most that are unrolled.
        limit: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use windowpane_geometry::{Extents, Shape, Window};

    const GPU: Limits = Limits {
        load_bytes: 16,
        units_per_cube: 1024,
        cores: None,
        shared_bytes: 48 << 10,
        plane: Some(32),
        matrix: crate::Fragments { f16: None, bf16: None, tf32: None },
        buffer_bytes: 1 << 32,
    };
    const PROCESSOR: Limits = Limits { load_bytes: 64, cores: Some(2), ..GPU };

    fn pooling(batch: usize, channels: usize, layout: Layout) -> Pooling {
        let shape = Shape::new(batch, channels, Extents::from([56, 56])).unwrap();
        Pooling::new(shape, &Window::new([3, 3]), layout).unwrap()
    }

    fn lanes(channels: usize, layout: Layout, dtype: DType, limits: &Limits) -> usize {
        let max = Reduction::Max(Output::Values);
        Plan::new(&pooling(1, channels, layout), max, dtype, limits).unwrap().lanes
    }

    #[test]
    fn lanes_are_as_wide_as_loads_and_channels_allow() {
        assert_eq!(lanes(64, Layout::ChannelsLast, DType::F32, &GPU), 4);
        assert_eq!(lanes(64, Layout::ChannelsLast, DType::BF16, &GPU), 8);
        assert_eq!(lanes(64, Layout::ChannelsLast, DType::F32, &PROCESSOR), 16);
        assert_eq!(lanes(6, Layout::ChannelsLast, DType::F32, &GPU), 2);
        assert_eq!(lanes(3, Layout::ChannelsLast, DType::F32, &GPU), 1);
        assert_eq!(lanes(64, Layout::ChannelsFirst, DType::F32, &GPU), 1);
    }

    #[test]
    fn a_problem_that_no_kernel_can_hold_is_refused() {
        let max = Reduction::Max(Output::Values);
        let large = pooling(1 << 20, 64, Layout::ChannelsLast);
        let plan = Plan::new(&large, max, DType::I8, &GPU);
        assert!(matches!(plan, Err(PlanError::TooManyElements { .. })), "{plan:?}");
        let small = Limits { buffer_bytes: 1 << 20, ..GPU };
        let plan = Plan::new(&pooling(8, 64, Layout::ChannelsLast), max, DType::F32, &small);
        assert!(matches!(plan, Err(PlanError::BufferTooLarge { .. })), "{plan:?}");
        let mean = Reduction::Average(Divisor::Padded);
        let plan = Plan::new(&pooling(8, 64, Layout::ChannelsLast), mean, DType::U8, &GPU);
        assert!(matches!(plan, Err(PlanError::AverageOfIntegers { .. })), "{plan:?}");
    }

    #[test]
    fn an_override_that_cannot_run_is_refused() {
        let pooling = pooling(1, 6, Layout::ChannelsLast);
        let max = Reduction::Max(Output::Values);
        let plan = Plan::new(&pooling, max, DType::F32, &GPU).unwrap();
        assert_eq!(plan.check(&pooling, max, DType::F32, &GPU), Ok(()));
        for lanes in [0, 3, 4] {
            assert!(
                Plan { lanes, ..plan }.check(&pooling, max, DType::F32, &GPU).is_err(),
                "{lanes} lanes"
            );
        }
        for units in [0, 1025] {
            assert!(
                Plan { units, ..plan }.check(&pooling, max, DType::F32, &GPU).is_err(),
                "{units} units"
            );
        }
    }
}
