//! The element types of convolutions.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use windowpane_reference::Scalar;

use crate::sum::Sum;

/// An element type of convolutions.
pub trait Element: Scalar {
    /// The type that sums are computed in: `f64` for `f64`, otherwise `f32`.
    #[allow(private_bounds, reason = "what sums can do is of no use outside")]
    type Sum: Sum;

    /// Whether sums have the type of the elements.
    const IS_SUM: bool;

    /// The same number as a sum, exactly.
    fn widen(self) -> Self::Sum;

    /// The sum, rounded once.
    fn narrow(sum: Self::Sum) -> Self;

    /// [`widen`](Self::widen) for slices of the same length.
    fn widen_all(from: &[Self], to: &mut [Self::Sum]);

    /// [`narrow`](Self::narrow) for slices of the same length.
    fn narrow_all(from: &[Self::Sum], to: &mut [Self]);

    /// Whether it is neither infinite nor NaN.
    fn is_finite(self) -> bool;
}

macro_rules! same {
    ($type:ty) => {
        impl Element for $type {
            type Sum = Self;
            const IS_SUM: bool = true;

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }

            #[inline(always)]
            fn narrow(sum: Self) -> Self {
                sum
            }

            #[inline(always)]
            fn widen_all(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }

            #[inline(always)]
            fn narrow_all(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }

            #[inline(always)]
            fn is_finite(self) -> bool {
                <$type>::is_finite(self)
            }
        }
    };
}

macro_rules! half {
    ($type:ty) => {
        impl Element for $type {
            type Sum = f32;
            const IS_SUM: bool = false;

            #[inline(always)]
            fn widen(self) -> f32 {
                self.to_f32()
            }

            #[inline(always)]
            fn narrow(sum: f32) -> Self {
                Self::from_f32(sum)
            }

            #[inline(always)]
            fn widen_all(from: &[Self], to: &mut [f32]) {
                from.convert_to_f32_slice(to);
            }

            #[inline(always)]
            fn narrow_all(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from);
            }

            #[inline(always)]
            fn is_finite(self) -> bool {
                <$type>::is_finite(self)
            }
        }
    };
}

same!(f64);
same!(f32);
half!(f16);
half!(bf16);
