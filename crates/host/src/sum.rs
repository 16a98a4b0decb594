//! The types of sums: matrix products, and vectors of the processor's widest instructions.

use core::ops::{Add, Div, Mul};

use gemm_common::Parallelism;
use pulp::Simd;

use crate::element::Element;

/// A matrix in memory: where it begins, and the distances to the next row and to the next column.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<P> {
    pub(crate) start: P,
    pub(crate) row: usize,
    pub(crate) column: usize,
}

impl<P> Matrix<P> {
    fn transposed(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }
}

/// What a sum can do.
pub(crate) trait Sum:
    Element<Sum = Self>
    + Default
    + PartialOrd
    + Add<Output = Self>
    + Div<Output = Self>
    + Mul<Output = Self>
{
    /// As many of them as one instruction works on.
    type Vector<S: Simd>: Copy;

    /// Their number.
    fn lanes<S: Simd>() -> usize;

    /// The same number in every lane.
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Vector<S>;

    /// The numbers from an address on.
    ///
    /// # Safety
    /// All lanes are in memory that may be read.
    unsafe fn load<S: Simd>(from: *const Self) -> Self::Vector<S>;

    /// The numbers of a slice, then zeros.
    fn load_some<S: Simd>(simd: S, from: &[Self]) -> Self::Vector<S>;

    /// Stores every lane.
    ///
    /// # Safety
    /// All lanes are in memory that may be written.
    unsafe fn store<S: Simd>(to: *mut Self, vector: Self::Vector<S>);

    /// `a·b + c`, rounded once or twice.
    fn multiply_add<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;

    /// The exponential.
    fn exp(self) -> Self;

    /// The error function.
    fn erf(self) -> Self;

    /// Writes the product of an `m × k` and a `k × n` matrix to `to`, or adds it.
    ///
    /// # Safety
    /// The elements of all matrices are in memory that may be read; those of `to` may be written, and nobody else
    /// uses them meanwhile.
    unsafe fn product(
        size: [usize; 3],
        to: Matrix<*mut Self>,
        adds: bool,
        left: Matrix<*const Self>,
        right: Matrix<*const Self>,
    );
}

/// Whether [`Sum::product`] runs on this processor: `gemm` panics where there are fused multiply-adds, or AVX-512, without
/// the other instructions of their generation.
pub(crate) fn have_products() -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    {
        use gemm_common::simd::{MixedSimd, V3, V4};
        let v3 = || <V3 as MixedSimd<f32, f32, f32, f32>>::try_new().is_some();
        let v4 = || <V4 as MixedSimd<f32, f32, f32, f32>>::try_new().is_some();
        if is_x86_feature_detected!("avx512f") {
            v4()
        } else {
            !is_x86_feature_detected!("fma") || v3()
        }
    }
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
    true
}

macro_rules! sum {
    ($type:ty, $vector:ident, $lanes:ident, $splat:ident, $partial:ident, $fma:ident, $erf:path, $gemm:path) => {
        impl Sum for $type {
            type Vector<S: Simd> = S::$vector;

            #[inline(always)]
            fn lanes<S: Simd>() -> usize {
                S::$lanes
            }

            #[inline(always)]
            fn splat<S: Simd>(simd: S, value: Self) -> S::$vector {
                simd.$splat(value)
            }

            #[inline(always)]
            unsafe fn load<S: Simd>(from: *const Self) -> S::$vector {
                // SAFETY: the caller guarantees that the lanes may be read.
                unsafe { from.cast::<S::$vector>().read_unaligned() }
            }

            #[inline(always)]
            fn load_some<S: Simd>(simd: S, from: &[Self]) -> S::$vector {
                simd.$partial(from)
            }

            #[inline(always)]
            unsafe fn store<S: Simd>(to: *mut Self, vector: S::$vector) {
                // SAFETY: the caller guarantees that the lanes may be written.
                unsafe { to.cast::<S::$vector>().write_unaligned(vector) }
            }

            #[inline(always)]
            fn multiply_add<S: Simd>(
                simd: S,
                a: S::$vector,
                b: S::$vector,
                c: S::$vector,
            ) -> S::$vector {
                simd.$fma(a, b, c)
            }

            fn exp(self) -> Self {
                <$type>::exp(self)
            }

            fn erf(self) -> Self {
                $erf(self)
            }

            unsafe fn product(
                [m, n, k]: [usize; 3],
                to: Matrix<*mut Self>,
                adds: bool,
                left: Matrix<*const Self>,
                right: Matrix<*const Self>,
            ) {
                // The kernels store vectors along the columns of the result.
                if to.column < to.row {
                    let (left, right) = (right.transposed(), left.transposed());
                    // SAFETY: the same matrices.
                    return unsafe { Self::product([n, m, k], to.transposed(), adds, left, right) };
                }
                // SAFETY: the caller guarantees that the matrices may be read and written.
                unsafe {
                    $gemm()(
                        m,
                        n,
                        k,
                        to.start,
                        to.column as isize,
                        to.row as isize,
                        adds,
                        left.start,
                        left.column as isize,
                        left.row as isize,
                        right.start,
                        right.column as isize,
                        right.row as isize,
                        1.0,
                        1.0,
                        false,
                        false,
                        false,
                        Parallelism::None,
                    );
                }
            }
        }
    };
}

sum!(
    f32,
    f32s,
    F32_LANES,
    splat_f32s,
    partial_load_f32s,
    mul_add_e_f32s,
    libm::erff,
    gemm_f32::gemm::f32::get_gemm_fn
);
sum!(
    f64,
    f64s,
    F64_LANES,
    splat_f64s,
    partial_load_f64s,
    mul_add_e_f64s,
    libm::erf,
    gemm_f64::gemm::f64::get_gemm_fn
);
