//! Element types as CubeCL knows them.

use cubecl::ir::{ElemType, FloatKind, IntKind, UIntKind};
use windowpane_geometry::DType;

/// CubeCL's name of the type.
pub(crate) fn elem(dtype: DType) -> ElemType {
    match dtype {
        DType::F64 => ElemType::Float(FloatKind::F64),
        DType::F32 => ElemType::Float(FloatKind::F32),
        DType::F16 => ElemType::Float(FloatKind::F16),
        DType::BF16 => ElemType::Float(FloatKind::BF16),
        DType::I64 => ElemType::Int(IntKind::I64),
        DType::I32 => ElemType::Int(IntKind::I32),
        DType::U32 => ElemType::UInt(UIntKind::U32),
        DType::I16 => ElemType::Int(IntKind::I16),
        DType::U16 => ElemType::UInt(UIntKind::U16),
        DType::I8 => ElemType::Int(IntKind::I8),
        // A bool is a byte, 0 or 1, and kernels compute with it as a number.
        DType::U8 | DType::Bool => ElemType::UInt(UIntKind::U8),
        // The enum is non-exhaustive; a new type has to be added here.
        other => unreachable!("{other} has no kernel type"),
    }
}

/// The type in which elements are compared and summed.
pub(crate) fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        DType::F32 | DType::F16 | DType::BF16 => DType::F32,
        DType::I64 | DType::U32 => dtype,
        _ => DType::I32,
    }
}

/// The elements in a word of 32 bits, if the type is packed.
pub(crate) fn lanes(dtype: DType) -> usize {
    size_of::<u32>() / dtype.size()
}

/// The words of `elements` packed elements.
pub(crate) fn words(dtype: DType, elements: usize) -> usize {
    elements.div_ceil(lanes(dtype))
}
