//! Why a problem has no plan, or a plan no launch: what was asked, what was found, what to do.

use windowpane_geometry::DType;

use crate::cube::buffers::BufferError;

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
    /// Norms are floating-point numbers.
    #[error("Lp pooling was asked of {dtype}; convert to f64, f32, f16 or bf16 first")]
    NormOfIntegers {
        /// The type asked for.
        dtype: DType,
    },
    /// The device has no powers of this type.
    #[error(
        "this device has no powers of {dtype}; use an exponent of 1 or 2, another type, or `host`"
    )]
    NoPowers {
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
    /// A buffer cannot be accessed without checks.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// Indices were given where there are none, or not where there are.
    #[error(
        "a buffer for indices is {}",
        if *needed { "needed; give one of an i32 for each output" } else { "not needed; give none" }
    )]
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
    /// The kernel cannot compute this problem.
    #[error(
        "the {kernel} kernel does not compute this problem: {reason}; use direct, or none by name"
    )]
    NotFor {
        /// The kernel asked for.
        kernel: &'static str,
        /// Why it does not.
        reason: &'static str,
    },
    /// The plan is one of another reduction, type or device.
    #[error(
        "the plan for the {kernel} kernel was made for another reduction, type or device; make one for \
         this"
    )]
    Foreign {
        /// The plan's kernel.
        kernel: &'static str,
    },
    /// The kernel's code is written for what was planned.
    #[error("`{name}` cannot be overridden for the {kernel} kernel; leave it as planned")]
    Fixed {
        /// The field.
        name: &'static str,
        /// The kernel.
        kernel: &'static str,
    },
    /// A unit cannot have so many outputs.
    #[error("strips of {strip} outputs were asked for; a unit has 1 to {limit}")]
    Strip {
        /// The outputs asked for.
        strip: usize,
        /// The most that a unit has.
        limit: usize,
    },
    /// A launch would write more between its passes than the device can bind or a kernel count.
    #[error("{bytes} bytes of workspace are needed, {limit} is the most; split the batch")]
    Workspace {
        /// The bytes.
        bytes: u64,
        /// The most that there may be.
        limit: u64,
    },
    /// A window cannot be shared out so.
    #[error(
        "teams of {team} of {units} units and {parts} parts were asked for; a team is a power of two, \
         no more than a cube's units, and there are 1 to {limit} parts"
    )]
    Teams {
        /// The units of a team asked for.
        team: u32,
        /// The units of a cube.
        units: u32,
        /// The parts asked for.
        parts: usize,
        /// The most parts.
        limit: usize,
    },
    /// The lanes of a vector do not divide the elements that lie together.
    #[error(
        "{lanes} lanes were asked for; use a power of two that divides {neighbours}, {widest} at most"
    )]
    Lanes {
        /// The lanes asked for.
        lanes: usize,
        /// The elements that lie together: channels, or the width.
        neighbours: usize,
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

/// Refuses a kernel for a reason, unless it `fits` the problem.
pub(super) fn only_if(
    kernel: &'static str,
    fits: bool,
    reason: &'static str,
) -> Result<(), PlanError> {
    if fits { Ok(()) } else { Err(PlanError::NotFor { kernel, reason }) }
}
