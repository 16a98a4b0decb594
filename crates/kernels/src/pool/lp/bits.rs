//! Operations on the bits of 32-bit magnitudes: comparisons, and products with powers of two. No device takes these
//! for 0 or NaN, and no compiler reorders their factors.

use cubecl::prelude::*;

/// The bits of infinity. The bits of NaN are greater, those of all numbers less.
pub(super) const INFINITY: i32 = 0x7f80_0000;

/// The bits of a NaN.
pub(super) const NAN: i32 = 0x7fc0_0000;

/// The bits of the smallest normal number.
const NORMAL: i32 = 0x0080_0000;

/// The bits of a number's magnitude; as integers they are in the order of the magnitudes.
#[cube]
pub(super) fn size_bits<A: Float, N: Size>(number: Vector<A, N>) -> Vector<i32, N> {
    Vector::<i32, N>::reinterpret(number) & Vector::new(i32::MAX)
}

/// A magnitude as a number from 1 to 2 and an exponent, biased as it is stored.
#[derive(CubeType)]
pub(super) struct Parts<A: Float, N: Size> {
    pub(super) fraction: Vector<A, N>,
    pub(super) exponent: Vector<i32, N>,
}

/// Splits a number that is neither 0, infinite nor NaN.
#[cube]
pub(super) fn parts_of<A: Float, N: Size>(bits: Vector<i32, N>) -> Parts<A, N> {
    // The bits of a subnormal number count steps of 2⁻¹⁴⁹, and as a number this count is normal.
    let count = Vector::<i32, N>::reinterpret(Vector::<A, N>::cast_from(bits));
    let is_normal = bits.greater_equal(&Vector::new(NORMAL));
    let shift = Vector::new(23i32);
    let exponent = select_many(is_normal, bits >> shift, (count >> shift) - Vector::new(149i32));
    let digits = select_many(is_normal, bits, count) & Vector::new(NORMAL - 1);
    let fraction = Vector::<A, N>::reinterpret(digits | Vector::new(0x3f80_0000i32));
    Parts::<A, N> { fraction, exponent }
}

/// A normal number times a power of two, or 0 if the product is not normal; the product must not overflow.
#[cube]
pub(super) fn shifted<A: Float, N: Size>(number: Vector<A, N>, by: Vector<i32, N>) -> Vector<A, N> {
    let (bits, shift) = (Vector::<i32, N>::reinterpret(number), Vector::new(23i32));
    let is_normal = ((bits >> shift) + by).greater_than(&Vector::new(0i32));
    let product = select_many(is_normal, bits + (by << shift), Vector::new(0i32));
    Vector::<A, N>::reinterpret(product)
}

/// The exponent, as it is stored, of the power of two that scales a number to between ½ and 1; to less than 4, if the
/// number is too large for that.
#[cube]
pub(super) fn down_exponent<A: Float, N: Size>(number: Vector<A, N>) -> Vector<i32, N> {
    let exponent = size_bits::<A, N>(number) >> Vector::new(23i32);
    max(Vector::new(253i32) - exponent, Vector::new(1i32))
}

/// The power of two with this exponent, as it is stored, which is from 1 to 254.
#[cube]
pub(super) fn power_of_two<A: Float, N: Size>(exponent: Vector<i32, N>) -> Vector<A, N> {
    Vector::<A, N>::reinterpret(exponent << Vector::new(23i32))
}
