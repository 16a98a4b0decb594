//! Why a problem has no plan, or a plan cannot be launched: what was asked, what was found, what to do. Also the
//! verdict on each kernel when a plan is chosen: such a reason, or an estimated time.

use core::fmt;

use windowpane_geometry::DType;

use crate::cube::buffers::BufferError;

/// Why a problem has no plan, or a plan cannot be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The problem itself is invalid.
    #[error(transparent)]
    Geometry(#[from] windowpane_geometry::Error),
    /// The operator exists only for floating-point types.
    #[error("{operator} is not defined for {dtype}; convert to f64, f32, f16 or bf16 first")]
    FloatsOnly {
        /// The operator.
        operator: &'static str,
        /// The requested type.
        dtype: DType,
    },
    /// A quantized convolution was given tensors of another type.
    #[error("a quantized convolution was given {dtype}; convert input and filters to i8 first")]
    Int8Only {
        /// The type of the tensors.
        dtype: DType,
    },
    /// The device cannot compute powers of this type.
    #[error(
        "this device has no powers of {dtype}; use an exponent of 1 or 2, another type, or `host`"
    )]
    NoPowers {
        /// The requested type.
        dtype: DType,
    },
    /// The device has no integers in which numbers of this type could be compared.
    #[error(
        "this device has no 64-bit integers, which ranks and modes of {dtype} need; use f32, or `host`"
    )]
    NoRanks {
        /// The requested type.
        dtype: DType,
    },
    /// The device has no integers in which any window's sum of numbers of this type fits.
    #[error(
        "this device has no integers that hold sums of {dtype}; use `host`, or convert to f64, f32, f16 or bf16 first"
    )]
    NoSums {
        /// The requested type.
        dtype: DType,
    },
    /// The device's matrix units do not support tf32.
    #[error("tf32 was requested, which this device does not have; leave the precision strict")]
    NoTf32,
    /// Only f32 has a lower precision.
    #[error(
        "tf32 was requested with {dtype}, but it is a precision of f32; leave the precision strict"
    )]
    Tf32OfOther {
        /// The requested type.
        dtype: DType,
    },
    /// A tensor has more elements than kernels can index.
    #[error("a tensor has {elements} elements and kernels index at most {limit}; split the batch")]
    TooManyElements {
        /// The number of elements.
        elements: usize,
        /// The largest number that kernels can index.
        limit: usize,
    },
    /// A window has more taps than kernels can count or add up.
    #[error("a window has {taps} taps and kernels take at most {limit}; use `host`")]
    TooManyTaps {
        /// The number of taps.
        taps: usize,
        /// The largest number for this operator and type.
        limit: usize,
    },
    /// The batch is empty, so that a gradient would be a sum over no windows.
    #[error(
        "the batch is empty, so this gradient sums over no windows; fill the result with zeros instead"
    )]
    NoWindows,
    /// A tensor is larger than the device can bind.
    #[error("a tensor takes {bytes} bytes, this device binds {limit} at most; split the batch")]
    BufferTooLarge {
        /// The size in bytes.
        bytes: u64,
        /// The most bytes that can be bound.
        limit: u64,
    },
    /// The workspace of a plan is larger than the device can bind or a kernel can count.
    #[error(
        "{bytes} bytes of workspace are needed, {limit} is the most; split the batch, or use fewer splits"
    )]
    Workspace {
        /// The size in bytes.
        bytes: u64,
        /// The largest size allowed.
        limit: u64,
    },
    /// A buffer cannot be accessed safely without bounds checks.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// Indices were given but are not needed, or are needed but were not given.
    #[error(
        "a buffer for indices is {}",
        if *needed { "needed; give one of an i32 for each output" } else { "not needed; give none" }
    )]
    Indices {
        /// Whether the reduction returns indices.
        needed: bool,
    },
    /// The tensor that was pooled was given but is not needed, or is needed but was not given.
    #[error(
        "the tensor that was pooled is {}",
        if *needed { "needed for this gradient; give it" } else { "not needed; give none" }
    )]
    Pooled {
        /// Whether the launch reads it.
        needed: bool,
    },
    /// The requested kernel cannot compute this problem.
    #[error(
        "the {kernel} kernel does not compute this problem: {reason}; leave the choice to the plan"
    )]
    NotApplicable {
        /// The requested kernel.
        kernel: &'static str,
        /// Why it cannot.
        reason: &'static str,
    },
    /// A tile was requested and no kernel with tiles can compute this problem.
    #[error(
        "a tile was requested, but no kernel with tiles computes this problem on this device; leave the tile out"
    )]
    NoTiledKernel,
    /// A tile was requested for a kernel that has no tile.
    #[error("a tile was requested, but the {kernel} kernel has none; leave the tile out")]
    Untiled {
        /// The kernel.
        kernel: &'static str,
    },
    /// The plan was made for another kernel, problem, type or device.
    #[error(
        "the plan was made for another problem, type, precision or device; make a plan for this"
    )]
    Foreign,
    /// The field cannot be overridden, because the kernel's code depends on the planned value.
    #[error("`{name}` cannot be overridden for the {kernel} kernel; leave it as planned")]
    Fixed {
        /// The name of the field.
        name: &'static str,
        /// The kernel.
        kernel: &'static str,
    },
    /// A block of threads would have no threads, or more than the device supports.
    #[error(
        "{units} threads per block were requested, and this device has 1 to {limit}; request fewer, or a smaller tile"
    )]
    Units {
        /// The requested number of threads.
        units: u32,
        /// The most threads that the device supports.
        limit: u32,
    },
    /// The tile determines the threads of a block, and another number was requested.
    #[error(
        "{units} threads per block were requested, and this tile has {expected}; request {expected}, or another tile"
    )]
    UnitsOfTile {
        /// The requested number of threads.
        units: u32,
        /// The number of threads of the tile.
        expected: u32,
    },
    /// The lanes of a vector do not divide the number of adjacent elements, or cannot lie along the width.
    #[error("{}", lanes_refused(*lanes, *neighbours, *widest))]
    Lanes {
        /// The requested number of lanes.
        lanes: usize,
        /// The number of adjacent elements: channels, or the width; 0 if lanes cannot lie along the width.
        neighbours: usize,
        /// The number of elements in the widest load.
        widest: usize,
    },
    /// A thread cannot compute this number of outputs.
    #[error(
        "strips of {strip} outputs were requested; a thread computes 1 to {limit}, so request one of these"
    )]
    Strip {
        /// The requested number of outputs.
        strip: usize,
        /// The most outputs that a thread can compute.
        limit: usize,
    },
    /// A window cannot be shared out to teams in this way.
    #[error(
        "teams of {team} of {units} threads and {parts} parts were requested; a team is a power of two, \
         no more than a block's threads, and there are 1 to {limit} parts"
    )]
    Teams {
        /// The requested number of threads in a team.
        team: u32,
        /// The number of threads in a block.
        units: u32,
        /// The requested number of parts.
        parts: usize,
        /// The largest number of parts.
        limit: usize,
    },
    /// A loop is too long to unroll.
    #[error(
        "a window of {taps} taps cannot be unrolled, the most is {limit}; set `unrolled` to false"
    )]
    Unrolled {
        /// The number of taps.
        taps: usize,
        /// The most taps that are unrolled.
        limit: usize,
    },
    /// A number of a tile does not fit the others.
    #[error(
        "{name}={found} was requested, and the rest of the tile needs {expected}; leave {name} out"
    )]
    Tile {
        /// The name of the number.
        name: &'static str,
        /// Its value.
        found: u32,
        /// The value that it must have.
        expected: u32,
    },
    /// The number of elements per load is too large, or not a power of two.
    #[error(
        "elems_per_thread={lanes} was requested; this device loads a power of two, {widest} at most; \
         request one of these, or leave it out"
    )]
    Loads {
        /// The requested number of elements.
        lanes: u32,
        /// The most elements that the device loads at once.
        widest: u32,
    },
    /// A number does not divide the quantity that it must divide.
    #[error(
        "{name}={found} was requested, which does not divide {whole} {of}; request a divisor, or leave {name} out"
    )]
    Divisor {
        /// The name of the number.
        name: &'static str,
        /// Its value.
        found: u32,
        /// The quantity that it must divide.
        whole: usize,
        /// The name of that quantity.
        of: &'static str,
    },
    /// A block is not a multiple of what a warp or thread computes, or too large.
    #[error(
        "{name}={block} was requested; the rest of the tile takes a multiple of {of}, {limit} at most; \
         request one, or leave {name} out"
    )]
    Block {
        /// The name of the block's extent.
        name: &'static str,
        /// Its value.
        block: u32,
        /// The number that it must be a multiple of.
        of: u32,
        /// The largest possible value.
        limit: u32,
    },
    /// The kernel does not have this number of pipeline stages, or shared memory does not hold them.
    #[error(
        "stages={stages} was requested, and this kernel has {least} to {most} for blocks of this size; request one of \
         these, or shrink a block"
    )]
    Stages {
        /// The requested number of stages.
        stages: u32,
        /// The fewest stages.
        least: u32,
        /// The most stages that fit.
        most: u32,
    },
    /// The blocks of a tile do not fit in shared memory.
    #[error(
        "the tile takes {bytes} bytes of shared memory, this device has {limit}; shrink a block"
    )]
    Shared {
        /// The bytes that the tile needs.
        bytes: usize,
        /// The bytes that a block of threads can use.
        limit: usize,
    },
    /// A thread has too many accumulators, or none.
    #[error(
        "the tile needs {sums} accumulators per thread, and the registers hold 1 to {limit}; change \
         ratio_m or ratio_n, or shrink a block"
    )]
    Accumulators {
        /// The number of accumulators.
        sums: u32,
        /// The most accumulators per thread.
        limit: u32,
    },
    /// A launch would have too many blocks of threads.
    #[error(
        "{cubes} blocks of threads are needed, this device launches {limit}; enlarge block_m, or split the batch"
    )]
    Cubes {
        /// The number of blocks needed.
        cubes: usize,
        /// The most blocks that the device launches along an axis.
        limit: u32,
    },
    /// The number of parts of a sum is zero, or larger than the most possible.
    #[error("{splits} splits were requested, and this problem has 1 to {most}; request fewer")]
    Splits {
        /// The requested number of parts.
        splits: usize,
        /// The largest possible number of parts.
        most: usize,
    },
}

/// The sentence of [`PlanError::Lanes`].
fn lanes_refused(lanes: usize, neighbours: usize, widest: usize) -> String {
    match neighbours {
        0 => "lanes along the width are not possible for this problem; leave `along_width` as planned"
            .into(),
        _ => format!(
            "{lanes} lanes were requested; use a power of two, at most {widest}, that divides the {neighbours} adjacent \
             elements"
        ),
    }
}

/// The reason why a kernel does not apply to a problem on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotApplicable(pub &'static str);

impl NotApplicable {
    /// The refusal of a request for this kernel.
    pub(crate) fn by(self, kernel: &'static str) -> PlanError {
        PlanError::NotApplicable { kernel, reason: self.0 }
    }
}

/// The verdict on one kernel when a plan is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It was chosen.
    Chosen {
        /// The estimated time.
        nanoseconds: u64,
    },
    /// It can run, but another kernel was chosen.
    NotChosen {
        /// The estimated time.
        nanoseconds: u64,
    },
    /// It will run although another kernel has a lower estimate: the user asked for it, or tuning found it.
    Overrides {
        /// The estimated time.
        nanoseconds: u64,
    },
    /// It does not compute the problem, or not on this device.
    DoesNotApply(NotApplicable),
    /// It applies, but its plan was refused.
    CannotRun(PlanError),
}

impl Verdict {
    /// The verdict on a kernel, from the estimated seconds of its plan, or from the reason why it has no plan.
    pub(crate) fn new(is_chosen: bool, seconds: Result<f64, PlanError>) -> Self {
        match seconds {
            Ok(seconds) => {
                let nanoseconds = (seconds * 1e9) as u64;
                match is_chosen {
                    true => Self::Chosen { nanoseconds },
                    false => Self::NotChosen { nanoseconds },
                }
            }
            Err(PlanError::NotApplicable { reason, .. }) => {
                Self::DoesNotApply(NotApplicable(reason))
            }
            Err(error) => Self::CannotRun(error),
        }
    }
}

/// Prints `chosen: estimated 45.6 µs`, or `does not apply: it is for GPUs`.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (how, nanoseconds) = match *self {
            Self::Chosen { nanoseconds } => ("chosen", nanoseconds),
            Self::NotChosen { nanoseconds } => ("not chosen", nanoseconds),
            Self::Overrides { nanoseconds } => ("forced by the user or by tuning", nanoseconds),
            Self::DoesNotApply(reason) => return write!(f, "does not apply: {reason}"),
            Self::CannotRun(error) => return write!(f, "cannot run: {error}"),
        };
        write!(f, "{how}: estimated {:.1} µs", nanoseconds as f64 / 1e3)
    }
}

/// Returns `reason` as an error if a kernel's condition does not hold.
pub(crate) fn require(holds: bool, reason: &'static str) -> Result<(), NotApplicable> {
    ensure(holds, NotApplicable(reason))
}

/// Returns `error` if a condition does not hold.
pub(crate) fn ensure<E>(holds: bool, error: E) -> Result<(), E> {
    if holds { Ok(()) } else { Err(error) }
}

/// Refuses `kernel` for `reason`, unless it `applies` to the problem.
pub(crate) fn only_if(
    kernel: &'static str,
    applies: bool,
    reason: &'static str,
) -> Result<(), PlanError> {
    require(applies, reason).map_err(|refusal| refusal.by(kernel))
}
