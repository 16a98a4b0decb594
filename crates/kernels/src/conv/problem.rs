//! The problem as plain data: the pass, the type and the precision. This module does not depend on any kernel.

use windowpane_geometry::{Convolution, DType, LIMIT, Precision};

use crate::device::{Capabilities, Fragment, Fragments};
use crate::error::{PlanError, ensure};

pub use windowpane_geometry::Pass;

/// A pass of a convolution, its type and its precision.
///
/// `i8` stands for a quantized convolution: a forward pass whose sums are exact in `i32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The pass to compute.
    pub pass: Pass,
    /// The type of all tensors; of a quantized convolution, that of the input and the filters.
    pub dtype: DType,
    /// The precision of the products.
    pub precision: Precision,
}

/// A problem on a device: what every part of a kernel needs to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task<'a> {
    pub(crate) conv: &'a Convolution,
    pub(crate) request: Request,
    pub(crate) device: &'a Capabilities,
}

impl Request {
    /// The request in the type that kernels compute in, if the device lacks the type of the tensors.
    pub(super) fn computed(self, device: &Capabilities) -> Self {
        Self { dtype: device.computed(self.dtype), ..self }
    }

    /// Whether the factors are quantized, so that the result has a type of its own.
    pub(super) fn is_quantized(self) -> bool {
        !self.dtype.is_float()
    }
}

/// The number of elements that a pass computes.
pub(super) fn results(conv: &Convolution, pass: Pass) -> usize {
    match pass {
        Pass::Forward => conv.output().elements(),
        Pass::Data => conv.input().elements(),
        Pass::Weight => conv.filter().elements(),
        Pass::Bias => conv.filter().count(),
    }
}

/// The number of elements of the two operands that a pass multiplies.
pub(super) fn operands(conv: &Convolution, pass: Pass) -> [usize; 2] {
    let (inputs, outputs) = (conv.input().elements(), conv.output().elements());
    let weights = conv.filter().elements();
    match pass {
        Pass::Forward => [inputs, weights],
        Pass::Weight => [inputs, outputs],
        _ => [outputs, weights],
    }
}

/// The multiplications of a pass other than the bias gradient, including those with padding.
pub(super) fn multiplications(conv: &Convolution) -> usize {
    conv.output().elements() * conv.filter().taps() * conv.filter().channels()
}

/// The number of windows of all samples: the terms of each sum of a weight or bias gradient.
pub(super) fn windows(conv: &Convolution) -> usize {
    conv.output().batch() * conv.output().plane()
}

/// The fragment for a request's products, if the device has matrix units for them, and the units of a plane.
pub(super) fn fragment(Task { request, device, .. }: Task<'_>) -> Option<(Fragment, u32)> {
    let Fragments { f16, bf16, tf32, i8 } = device.matrix;
    let fragment = match (request.dtype, request.precision) {
        (DType::F16, Precision::Strict) => f16,
        (DType::BF16, Precision::Strict) => bf16,
        (DType::F32, Precision::Tf32) => tf32,
        (DType::I8, Precision::Strict) => i8,
        _ => None,
    };
    fragment.zip(device.plane)
}

/// Rejects problems that no kernel can compute, whatever its configuration.
pub(super) fn check(task: Task<'_>) -> Result<(), PlanError> {
    let Task { conv, request: Request { pass, dtype, precision }, device } = task;
    let is_quantized = dtype == DType::I8 && pass == Pass::Forward;
    ensure(
        dtype.is_float() || is_quantized,
        PlanError::FloatsOnly { operator: "convolution", dtype },
    )?;
    if is_quantized {
        conv.check_int8()?;
    }
    if precision == Precision::Tf32 {
        ensure(dtype == DType::F32, PlanError::Tf32OfOther { dtype })?;
        ensure(fragment(task).is_some(), PlanError::NoTf32)?;
    }
    let sizes = [conv.input().elements(), conv.output().elements(), conv.filter().elements()];
    for elements in sizes {
        // Offsets are 32-bit in the kernels.
        ensure(elements <= LIMIT, PlanError::TooManyElements { elements, limit: LIMIT })?;
        let size = device.computed(dtype).size() as u64;
        let (bytes, limit) = (elements as u64 * size, device.buffer_bytes);
        ensure(bytes <= limit, PlanError::BufferTooLarge { bytes, limit })?;
    }
    Ok(())
}
