//! Why a problem has no plan, or a plan cannot be launched: what was asked, what was found, what to do.

use windowpane_geometry::DType;

use crate::cube::buffers::BufferError;

/// Why a problem has no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The problem itself is invalid.
    #[error(transparent)]
    Geometry(#[from] windowpane_geometry::Error),
    /// Averages exist only for floating-point types.
    #[error("average pooling is not defined for {dtype}; convert to f64, f32, f16 or bf16 first")]
    AverageOfIntegers {
        /// The requested type.
        dtype: DType,
    },
    /// Norms exist only for floating-point types.
    #[error("Lp pooling is not defined for {dtype}; convert to f64, f32, f16 or bf16 first")]
    NormOfIntegers {
        /// The requested type.
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
    /// The device has no integers in which this type's numbers could be compared.
    #[error("this device has no 64-bit integers, which ranks of {dtype} need; use f32, or `host`")]
    NoKeys {
        /// The requested type.
        dtype: DType,
    },
    /// A tensor has more elements than a kernel can count.
    #[error("a tensor has {elements} elements, a kernel counts to {limit}; split the batch")]
    TooManyElements {
        /// The number of elements.
        elements: usize,
        /// The largest number that a kernel can count.
        limit: usize,
    },
    /// A window has more taps than a kernel can count.
    #[error("a window has {taps} taps, a kernel counts to {limit}; use `host`")]
    TooManyTaps {
        /// The number of taps.
        taps: usize,
        /// The largest number that a kernel can count.
        limit: usize,
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
    /// A tensor is larger than the device can bind.
    #[error("a tensor takes {bytes} bytes, this device binds {limit} at most; split the batch")]
    BufferTooLarge {
        /// The size in bytes.
        bytes: u64,
        /// The most bytes that can be bound.
        limit: u64,
    },
    /// The kernel cannot compute this problem.
    #[error(
        "the {kernel} kernel does not compute this problem: {reason}; use direct, or leave the choice to the plan"
    )]
    NotFor {
        /// The requested kernel.
        kernel: &'static str,
        /// Why it cannot.
        reason: &'static str,
    },
    /// The plan was made for another reduction, type or device.
    #[error(
        "the plan for the {kernel} kernel was made for another reduction, type or device; make one for \
         this"
    )]
    Foreign {
        /// The plan's kernel.
        kernel: &'static str,
    },
    /// The field cannot be overridden, because the kernel's code depends on the planned value.
    #[error("`{name}` cannot be overridden for the {kernel} kernel; leave it as planned")]
    Fixed {
        /// The name of the field.
        name: &'static str,
        /// The kernel.
        kernel: &'static str,
    },
    /// A unit cannot compute this number of outputs.
    #[error("strips of {strip} outputs were asked for; a unit has 1 to {limit}")]
    Strip {
        /// The requested number of outputs.
        strip: usize,
        /// The most outputs that a unit can compute.
        limit: usize,
    },
    /// The workspace between the passes is larger than the device can bind or a kernel can count.
    #[error("{bytes} bytes of workspace are needed, {limit} is the most; split the batch")]
    Workspace {
        /// The size in bytes.
        bytes: u64,
        /// The largest size allowed.
        limit: u64,
    },
    /// A window cannot be shared out to teams in this way.
    #[error(
        "teams of {team} of {units} units and {parts} parts were asked for; a team is a power of two, \
         no more than a cube's units, and there are 1 to {limit} parts"
    )]
    Teams {
        /// The requested number of units in a team.
        team: u32,
        /// The number of units in a cube.
        units: u32,
        /// The requested number of parts.
        parts: usize,
        /// The largest number of parts.
        limit: usize,
    },
    /// The lanes of a vector do not divide the number of adjacent elements.
    #[error(
        "{lanes} lanes were asked for; use a power of two that divides {neighbours}, {widest} at most"
    )]
    Lanes {
        /// The requested number of lanes.
        lanes: usize,
        /// The number of adjacent elements: channels, or the width.
        neighbours: usize,
        /// The number of elements in the widest load.
        widest: usize,
    },
    /// A cube cannot have this number of units.
    #[error("{units} units per cube were asked for; this device has 1 to {limit}")]
    Units {
        /// The requested number of units.
        units: u32,
        /// The most units that the device supports.
        limit: u32,
    },
    /// A loop is too long to unroll.
    #[error("{taps} taps are too many to unroll, {limit} the most; leave the loop rolled")]
    Unrolled {
        /// The number of taps.
        taps: usize,
        /// The most taps that are unrolled.
        limit: usize,
    },
}

/// Refuses `kernel` for `reason`, unless it `applies` to the problem.
pub(super) fn only_if(
    kernel: &'static str,
    applies: bool,
    reason: &'static str,
) -> Result<(), PlanError> {
    if applies { Ok(()) } else { Err(PlanError::NotFor { kernel, reason }) }
}
