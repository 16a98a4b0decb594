use windowpane_geometry::{DType, Precision};

use crate::{Algorithm, Backend, ConvAlgorithm, Device};

/// What went wrong: what was asked, what was found, what to do.
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
    /// An index names no position of its input.
    #[error(transparent)]
    Index(#[from] windowpane_reference::pool::backward::IndexOutOfRange),
    /// No kernel can pool it on this device.
    #[cfg(feature = "kernels")]
    #[error("{device}: {reason}")]
    Plan {
        /// The device.
        device: Device,
        /// What stands against it.
        reason: windowpane_kernels::pool::PlanError,
    },
    /// No kernel can convolve it on this device.
    #[cfg(feature = "kernels")]
    #[error("{device}: {reason}")]
    ConvPlan {
        /// The device.
        device: Device,
        /// What stands against it: which number of a tile, and which limit.
        reason: windowpane_kernels::conv::PlanError,
    },
    /// The way to convolve that was asked for has no kernel on this device.
    #[error("{}", match algorithm {
        Some(algorithm) => format!(
            "{device} has no {algorithm} kernel for this; leave the choice to the plan"
        ),
        None => format!(
            "a tile was asked for and {device} has no tiled kernel for this; leave it to the plan"
        ),
    })]
    NoConvKernel {
        /// The algorithm asked for; none where a tile was.
        algorithm: Option<ConvAlgorithm>,
        /// The device.
        device: Device,
    },
    /// The device does not compute in this precision.
    #[error("{device} does not compute {dtype} in {precision}; leave the precision strict")]
    PrecisionUnsupported {
        /// The precision asked for.
        precision: Precision,
        /// The type asked for.
        dtype: DType,
        /// The device.
        device: Device,
    },
    /// The device's driver ends the loops of a kernel before they are done.
    #[error(
        "{device} ends loops after {limit} turns and this may take {turns}; use another device, as \
         `host` or `cpu`"
    )]
    TooManyTurns {
        /// The device.
        device: Device,
        /// The turns that a unit's loops may take.
        turns: usize,
        /// The most that there are.
        limit: usize,
    },
    /// The algorithm asked for has no kernel on this device.
    #[error("{device} has no {algorithm} kernel for this; leave the choice to the plan")]
    NoKernel {
        /// The algorithm asked for.
        algorithm: Algorithm,
        /// The device.
        device: Device,
    },
    /// The build has no such backend.
    #[error(
        "this build has no {backend} backend; rebuild with `--features {backend}` (it has: {built})"
    )]
    BackendNotBuilt {
        /// The backend asked for.
        backend: Backend,
        /// Those that there are.
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
    /// The device cannot hold elements of this type.
    #[error("{device} has no {dtype}; use one of {available}")]
    DTypeUnsupported {
        /// The device.
        device: Device,
        /// The type asked for.
        dtype: DType,
        /// Those that it has.
        available: String,
    },
    /// The operator is not defined for this type.
    #[error("{operator} was asked of {dtype}; convert to f64, f32, f16 or bf16 first")]
    NotForIntegers {
        /// The operator.
        operator: &'static str,
        /// The type asked for.
        dtype: DType,
    },
    /// A tensor was read as another type than it holds.
    #[error(
        "the tensor holds {found}, not {asked}; read it as {found}, or convert it with `to_dtype`"
    )]
    DTypeMismatch {
        /// The type asked for.
        asked: DType,
        /// The type that it holds.
        found: DType,
    },
    /// A slice is not as long as the dimensions say.
    #[error(
        "dimensions {dims:?} need {needed} elements, {found} were given; give that many, or other dimensions"
    )]
    Length {
        /// The dimensions.
        dims: Vec<usize>,
        /// Their product.
        needed: String,
        /// The elements found.
        found: usize,
    },
    /// A tensor was to be copied over one of other dimensions.
    #[error(
        "a tensor of {found:?} cannot be copied over one of {asked:?}; use one of the same dimensions"
    )]
    DimsMismatch {
        /// The dimensions copied over.
        asked: Vec<usize>,
        /// Those of the source.
        found: Vec<usize>,
    },
    /// A tensor is on another device than its operator needs.
    #[error("the tensor is on {found}, {asked} was needed; move it with `to_device`")]
    DeviceMismatch {
        /// The device needed.
        asked: Device,
        /// The device that it is on.
        found: Device,
    },
    /// A plan was used with another device, or problem, than it was made for.
    #[error(
        "the plan was made for {asked}, this is {found}; give what it was made for, or plan again"
    )]
    PlanMismatch {
        /// What the plan was made for.
        asked: String,
        /// What it was used with.
        found: String,
    },
    /// The device failed at the work that made a tensor.
    #[error("{device} failed at {work}: {reason}")]
    Device {
        /// The device.
        device: Device,
        /// The operator and its shape.
        work: String,
        /// What the device said, in one line.
        reason: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it, and how to mend it.
        reason: String,
    },
}

#[cfg(feature = "kernels")]
impl Device {
    /// Says which device it is that a plan of a pooling does not suit.
    pub(crate) fn refuses(&self, reason: windowpane_kernels::pool::PlanError) -> Error {
        Error::Plan { device: self.clone(), reason }
    }

    /// The same of a convolution's.
    pub(crate) fn refuses_conv(&self, reason: windowpane_kernels::conv::PlanError) -> Error {
        Error::ConvPlan { device: self.clone(), reason }
    }
}
