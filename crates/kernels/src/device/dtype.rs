//! Types of elements as a device has them.

use cubecl::ir::{ElemType, FloatKind, IntKind, UIntKind};
use windowpane_geometry::DType;

/// The type as CubeCL names it.
pub(crate) fn elem(dtype: DType) -> ElemType {
    match dtype {
        DType::F64 => ElemType::Float(FloatKind::F64),
        DType::F32 => ElemType::Float(FloatKind::F32),
        DType::F16 => ElemType::Float(FloatKind::F16),
        DType::BF16 => ElemType::Float(FloatKind::BF16),
        DType::I32 => ElemType::Int(IntKind::I32),
        DType::I8 => ElemType::Int(IntKind::I8),
        DType::U8 => ElemType::UInt(UIntKind::U8),
        // The enum may grow; this crate grows with it.
        other => unreachable!("{other} has no kernel type"),
    }
}

/// The type that elements are compared and summed in.
pub(crate) fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        DType::F32 | DType::F16 | DType::BF16 => DType::F32,
        _ => DType::I32,
    }
}
