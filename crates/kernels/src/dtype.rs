use cubecl::prelude::*;

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

/// Rounds sums to the type that they are stored in, to nearest even.
///
/// Some drivers cut an f32 off to make a bf16; so the rounding is done here, and leaves a number
/// that a cut keeps.
#[cube]
pub(crate) fn round<A: Float, S: Float, N: Size>(
    sums: Vector<A, N>,
    #[comptime] bf16: bool,
) -> Vector<S, N> {
    if comptime!(bf16) {
        let bits = Vector::<u32, N>::reinterpret(sums);
        let odd = (bits >> Vector::new(16u32)) & Vector::new(1u32);
        let rounded = (bits + odd + Vector::new(0x7fffu32)) & Vector::new(0xffff_0000u32);
        let rounded = Vector::<A, N>::reinterpret(rounded);
        Vector::cast_from(select_many(sums.is_nan(), sums, rounded))
    } else {
        Vector::cast_from(sums)
    }
}
