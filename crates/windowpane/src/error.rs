use windowpane_geometry::{DType, PaddingMode, Precision};

use crate::{Backend, Device};

/// An error of this crate; its message says what was asked, what was found and what to do.
///
/// ```
/// use windowpane::geometry::{AxisName, Error as Misfit};
/// use windowpane::{DType, Device, Error, MaxPool};
///
/// let plan = MaxPool::new([3, 9]).plan(&Device::host(), DType::F32, &[1, 8, 8, 1]);
/// let Err(Error::Geometry(Misfit::KernelTooLong { axis, .. })) = plan else { panic!() };
/// assert_eq!(axis, AxisName::Width);
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The window does not fit its input.
    #[error(transparent)]
    Geometry(#[from] windowpane_geometry::Error),
    /// An index is not a position of the input.
    #[error(transparent)]
    Index(#[from] windowpane_reference::pool::backward::IndexOutOfRange),
    /// There is no plan for the problem, or the plan cannot run.
    #[cfg(feature = "kernels")]
    #[error("{device}: {reason}")]
    Plan {
        /// The device.
        device: Device,
        /// The reason: what was requested, and the limit that it exceeds.
        reason: windowpane_kernels::PlanError,
    },
    /// The device does not compute in this precision.
    #[error("{device} cannot compute {dtype} in {precision}; use the precision strict")]
    PrecisionUnsupported {
        /// The precision asked for.
        precision: Precision,
        /// The type asked for.
        dtype: DType,
        /// The device.
        device: Device,
    },
    /// The device's driver would end the loops of a kernel early.
    #[error(
        "{device} ends loops after {limit} iterations but this problem may need {iterations}; use another \
         device, such as `host` or `cpu`"
    )]
    LoopLimit {
        /// The device.
        device: Device,
        /// The iterations that the loops of a thread may need.
        iterations: usize,
        /// The most that the driver allows.
        limit: usize,
    },
    /// The requested algorithm cannot compute this problem on this device.
    #[error(
        "{device} has no {algorithm} kernel for this problem: {reason}; use another algorithm, or auto"
    )]
    NoKernel {
        /// The name of the requested algorithm.
        algorithm: String,
        /// The device.
        device: Device,
        /// Why it cannot.
        reason: String,
    },
    /// A tile was requested, and no kernel with tiles can compute this problem on this device.
    #[error(
        "a tile was given but {device} has no kernel with tiles for this problem; leave the tile out"
    )]
    NoTile {
        /// The device.
        device: Device,
    },
    /// The backend is not in this build.
    #[error(
        "this build has no {backend} backend; rebuild with `--features {backend}` (it has: {built})"
    )]
    BackendNotBuilt {
        /// The backend asked for.
        backend: Backend,
        /// The backends in this build.
        built: String,
    },
    /// The machine has no such device.
    #[error("this machine has no {backend} device {index}: {reason}")]
    NoDevice {
        /// The backend asked for.
        backend: Backend,
        /// The device asked for.
        index: usize,
        /// How many there are, or why it did not start.
        reason: String,
    },
    /// The memory belongs to another device.
    #[cfg(feature = "kernels")]
    #[error(
        "the handle is not memory of {device}; use `Device::from_client` with the client that \
         allocated it"
    )]
    ForeignHandle {
        /// The device asked for.
        device: Device,
    },
    /// The device does not support this element type.
    #[error("{device} has no {dtype}; use one of {available}")]
    DTypeUnsupported {
        /// The device.
        device: Device,
        /// The type asked for.
        dtype: DType,
        /// The types that it supports.
        available: String,
    },
    /// The operator is not defined for this type.
    #[error("{operator} is not defined for {dtype}; convert to f64, f32, f16 or bf16 first")]
    FloatsOnly {
        /// The operator.
        operator: &'static str,
        /// The type asked for.
        dtype: DType,
    },
    /// A tensor was read as a type other than its own.
    #[error(
        "the tensor holds {found}, not {asked}; read it as {found}, or convert it with `to_dtype`"
    )]
    DTypeMismatch {
        /// The type asked for.
        asked: DType,
        /// The type of the tensor.
        found: DType,
    },
    /// The length of a slice does not match the dimensions.
    #[error(
        "the dimensions {dims:?} need {needed} elements but {found} were given; change one of them to match"
    )]
    Length {
        /// The dimensions.
        dims: Vec<usize>,
        /// Their product.
        needed: String,
        /// The elements found.
        found: usize,
    },
    /// A part of a tensor was requested that it does not have.
    #[error(
        "positions {start}..{} of dimension {dim} were requested but the dimensions are {dims:?}; request positions \
         inside them",
        start.saturating_add(*len)
    )]
    OutsideOfDimension {
        /// The dimensions of the tensor.
        dims: Vec<usize>,
        /// The dimension requested, counted from 0.
        dim: usize,
        /// The first position requested.
        start: usize,
        /// The number of positions requested.
        len: usize,
    },
    /// There are more or fewer strides than dimensions.
    #[cfg(feature = "kernels")]
    #[error(
        "the strides {strides:?} were given for the dimensions {dims:?}; give one stride for each dimension"
    )]
    StridesMismatch {
        /// The strides, in elements.
        strides: Vec<usize>,
        /// The dimensions.
        dims: Vec<usize>,
    },
    /// Strides lead to elements outside of the memory.
    #[cfg(feature = "kernels")]
    #[error(
        "the dimensions {dims:?} with strides {strides:?} need {needed} elements in memory but the handle has {found}; give \
         strides in elements, and a handle of the whole memory"
    )]
    StridesTooFar {
        /// The dimensions.
        dims: Vec<usize>,
        /// The strides, in elements.
        strides: Vec<usize>,
        /// The elements from the first to the last.
        needed: usize,
        /// The elements of the memory from the handle's offset on.
        found: u64,
    },
    /// The source of a copy has other dimensions than its target.
    #[error(
        "a tensor with dimensions {found:?} cannot be copied to one with {expected:?}; use equal \
         dimensions"
    )]
    DimsMismatch {
        /// The dimensions of the target.
        expected: Vec<usize>,
        /// The dimensions of the source.
        found: Vec<usize>,
    },
    /// A gradient does not have the dimensions of the operator's output.
    #[error(
        "{operator} has an output with dimensions {expected:?} but the gradient has {found:?}; give \
         the gradient of that output"
    )]
    GradientMismatch {
        /// The operator.
        operator: &'static str,
        /// The dimensions of its output.
        expected: Vec<usize>,
        /// The dimensions of the gradient.
        found: Vec<usize>,
    },
    /// A tensor that an operator needs besides its input does not have the dimensions that follow from the input.
    #[error(
        "{operator} needs {operand} with dimensions {expected:?}, and this one has {found:?}; give one \
         that fits the input"
    )]
    OperandMismatch {
        /// The operator.
        operator: &'static str,
        /// The tensor.
        operand: &'static str,
        /// The dimensions that follow from the input.
        expected: Vec<usize>,
        /// The dimensions of the tensor.
        found: Vec<usize>,
    },
    /// A transposed convolution was given a padding mode other than zeros.
    #[error("a transposed convolution cannot pad with {mode}; use the padding mode zeros")]
    PaddingMode {
        /// The mode asked for.
        mode: PaddingMode,
    },
    /// A tensor is on a device other than its operator's.
    #[error("the tensor is on {found} but {expected} is needed; move it with `to_device`")]
    DeviceMismatch {
        /// The device needed.
        expected: Device,
        /// The device that it is on.
        found: Device,
    },
    /// A tensor is not what an operator or its plan needs.
    #[error("{expected} is needed here but this is {found}; give that, or make a plan for this")]
    PlanMismatch {
        /// What the operator or its plan needs.
        expected: String,
        /// What it was given.
        found: String,
    },
    /// The device failed at the work that made a tensor.
    #[error("{device} failed at {work}: {reason}")]
    Device {
        /// The device.
        device: Device,
        /// The operator and its shape.
        work: String,
        /// The device's message, in one line.
        reason: String,
    },
    /// The device did not answer within the limit on waiting, in this call or an earlier one: see
    /// [`Device::set_wait_limit`].
    #[error("{device} is lost: {reason}")]
    DeviceLost {
        /// The device.
        device: Device,
        /// What it did not answer for how long, and what to do.
        reason: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// The problem with it, and what to do.
        reason: String,
    },
}

#[cfg(feature = "kernels")]
impl Device {
    /// The error for a plan that this device cannot make or run.
    pub(crate) fn refuses(&self, reason: windowpane_kernels::PlanError) -> Error {
        use windowpane_kernels::PlanError;
        let device = self.clone();
        match reason {
            PlanError::NotApplicable { kernel, reason } => {
                Error::NoKernel { algorithm: kernel.into(), device, reason: reason.into() }
            }
            PlanError::NoTiledKernel => Error::NoTile { device },
            reason => Error::Plan { device, reason },
        }
    }
}
