use core::fmt::Debug;

use half::{bf16, f16};

/// An element type.
pub trait Scalar: Copy + Debug + PartialEq + Send + Sync + 'static {
    /// The maximum of an empty window: `−∞`, or the minimum of an integer type.
    const LOWEST: Self;
    /// The minimum of an empty window: `+∞`, or the maximum of an integer type.
    const HIGHEST: Self;
    /// The number zero.
    const ZERO: Self;
    /// The unit roundoff: the largest relative error of one rounding; 0 for integers.
    const ROUNDOFF: f64;

    /// The same number as an `f64`: exactly, but `i64` is rounded to the nearest one.
    fn to_f64(self) -> f64;

    /// The nearest number of this type, rounded once, ties to even; integers saturate. For `bool`, whether it is not 0.
    fn from_f64(value: f64) -> Self;

    /// An integer, exactly; `None` for floats.
    fn to_integer(self) -> Option<i128>;

    /// The number of this type that is nearest to an integer of at most 64 bits, as [`from_f64`](Self::from_f64) says;
    /// for integer types, any integer.
    fn from_integer(value: i128) -> Self;

    /// A number of another type in this one, rounded once, as [`from_f64`](Self::from_f64) says.
    fn converted_from<S: Scalar>(number: S) -> Self {
        match number.to_integer() {
            Some(integer) => Self::from_integer(integer),
            None => Self::from_f64(number.to_f64()),
        }
    }

    /// Whether this element, later in a window than `best`, replaces it as the maximum: a greater number
    /// does, an equal one does not, NaN replaces everything, and only NaN replaces NaN.
    fn beats(self, best: Self) -> bool;

    /// Whether this element, and not `best`, is the maximum of the two as IEEE 754 defines it: like
    /// [`beats`](Self::beats), but +0 is greater than −0, so that the order of taps does not matter.
    fn exceeds(self, best: Self) -> bool;

    /// The element at the mirrored place of the order, exactly: `−x`, or `!x`, which is `−1 − x`, for integers.
    fn mirrored(self) -> Self;

    /// The difference, rounded once; of integers the nearest number that the type has.
    fn minus(self, other: Self) -> Self;
}

/// An element whose order is reversed, so that a maximum of such elements is the minimum of the elements.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
pub(crate) struct Reversed<T>(pub(crate) T);

impl<T> Reversed<T> {
    /// The same elements in reversed order.
    pub(crate) fn of(elements: &[T]) -> &[Self] {
        // SAFETY: the wrapper is transparent, so both slices have the same layout.
        unsafe { core::slice::from_raw_parts(elements.as_ptr().cast(), elements.len()) }
    }
}

impl<T: Scalar> Scalar for Reversed<T> {
    const LOWEST: Self = Self(T::HIGHEST);
    const HIGHEST: Self = Self(T::LOWEST);
    const ZERO: Self = Self(T::ZERO);
    const ROUNDOFF: f64 = T::ROUNDOFF;

    #[inline]
    fn to_f64(self) -> f64 {
        self.0.to_f64()
    }

    #[inline]
    fn from_f64(value: f64) -> Self {
        Self(T::from_f64(value))
    }

    #[inline]
    fn to_integer(self) -> Option<i128> {
        self.0.to_integer()
    }

    #[inline]
    fn from_integer(value: i128) -> Self {
        Self(T::from_integer(value))
    }

    #[inline]
    fn beats(self, best: Self) -> bool {
        self.0.mirrored().beats(best.0.mirrored())
    }

    #[inline]
    fn exceeds(self, best: Self) -> bool {
        self.0.mirrored().exceeds(best.0.mirrored())
    }

    #[inline]
    fn mirrored(self) -> Self {
        Self(self.0.mirrored())
    }

    #[inline]
    fn minus(self, other: Self) -> Self {
        Self(self.0.minus(other.0))
    }
}

/// Runs a block with `$T` as the Rust type of a `DType`, or another block for other types.
///
/// ```
/// use windowpane_geometry::DType;
/// use windowpane_reference::{Scalar, with_element};
///
/// let lowest = |dtype| with_element!(dtype, T => T::LOWEST.to_f64(), other => panic!("{other}"));
/// assert_eq!((lowest(DType::I8), lowest(DType::U8)), (-128.0, 0.0));
/// ```
#[macro_export]
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr, $other:ident => $otherwise:expr) => {
        $crate::with_element!(@arms $dtype, $T, $body, $other, $otherwise, [
            F64 f64, F32 f32, F16 $crate::types::f16, BF16 $crate::types::bf16,
            I64 i64, I32 i32, U32 u32, I16 i16, U16 u16, I8 i8, U8 u8, Bool bool
        ])
    };
    (
        @arms $dtype:expr, $T:ident, $body:expr, $other:ident, $otherwise:expr,
        [$($variant:ident $type:ty),*]
    ) => {
        match $dtype {
            $($crate::types::DType::$variant => {
                type $T = $type;
                $body
            })*
            $other => $otherwise,
        }
    };
}

macro_rules! float {
    ($type:ty, $roundoff:expr) => {
        impl Scalar for $type {
            const LOWEST: Self = <$type>::NEG_INFINITY;
            const HIGHEST: Self = <$type>::INFINITY;
            const ZERO: Self = 0.0;
            const ROUNDOFF: f64 = $roundoff;

            #[inline]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            #[inline]
            fn from_f64(value: f64) -> Self {
                value as Self
            }

            #[inline]
            fn to_integer(self) -> Option<i128> {
                None
            }

            #[inline]
            fn from_integer(value: i128) -> Self {
                value as Self
            }

            #[inline]
            fn beats(self, best: Self) -> bool {
                self > best || self.is_nan()
            }

            #[inline]
            fn exceeds(self, best: Self) -> bool {
                let sign = best.is_sign_negative() & !self.is_sign_negative();
                self.beats(best) | (self == best && sign)
            }

            #[inline]
            fn mirrored(self) -> Self {
                -self
            }

            #[inline]
            fn minus(self, other: Self) -> Self {
                self - other
            }
        }
    };
}

float!(f64, f64::EPSILON / 2.0);
float!(f32, f32::EPSILON as f64 / 2.0);

macro_rules! half_float {
    ($type:ty, $roundoff:expr) => {
        impl Scalar for $type {
            const LOWEST: Self = <$type>::NEG_INFINITY;
            const HIGHEST: Self = <$type>::INFINITY;
            const ZERO: Self = <$type>::ZERO;
            const ROUNDOFF: f64 = $roundoff;

            #[inline]
            fn to_f64(self) -> f64 {
                <$type>::to_f64(self)
            }

            // Not `half`'s conversion from f64: it goes through a rounded or truncated number, so it
            // rounds some ties the wrong way.
            #[inline]
            fn from_f64(value: f64) -> Self {
                <$type>::from_f32(to_odd(value))
            }

            #[inline]
            fn to_integer(self) -> Option<i128> {
                None
            }

            // Integers of more than 53 bits are cut to so few that an f64 holds them; the last bit that is left says
            // whether any that is cut off is set.
            #[inline]
            fn from_integer(value: i128) -> Self {
                let (high, low) = (value >> 12, value & 0xfff);
                let is_short = value.unsigned_abs() <= 1 << 53;
                let cut = if is_short { value } else { (high | i128::from(low != 0)) << 12 };
                <Self as Scalar>::from_f64(cut as f64)
            }

            #[inline]
            fn beats(self, best: Self) -> bool {
                half_beats(self.to_bits(), best.to_bits(), <$type>::INFINITY.to_bits())
            }

            #[inline]
            fn exceeds(self, best: Self) -> bool {
                let (value, best) = (self.to_bits(), best.to_bits());
                let sign = (value == 0) & (best == 1 << 15);
                half_beats(value, best, <$type>::INFINITY.to_bits()) | sign
            }

            #[inline]
            fn mirrored(self) -> Self {
                -self
            }

            #[inline]
            fn minus(self, other: Self) -> Self {
                Self::from_f64(Scalar::to_f64(self) - Scalar::to_f64(other))
            }
        }
    };
}

half_float!(f16, 1.0 / 2048.0);
half_float!(bf16, 1.0 / 256.0);

/// Rounds to the `f32` towards zero, setting the last bit if that was not exact.
///
/// The result can be rounded again to a type at least two bits shorter, with the same result as rounding
/// once: the set bit prevents a false tie.
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let exact = f64::from(nearest);
    if exact == value || value.is_nan() {
        return nearest;
    }
    let away = exact.abs() > value.abs();
    f32::from_bits((nearest.to_bits() - u32::from(away)) | 1)
}

/// [`Scalar::beats`] for the bits of a 16-bit float, without branches, so that it vectorises.
#[inline]
fn half_beats(value: u16, best: u16, infinity: u16) -> bool {
    /// Ordered as the numbers are, with equal zeros.
    #[inline]
    fn key(bits: u16) -> i16 {
        let magnitude = (bits & 0x7fff) as i16;
        if bits >> 15 == 1 { -magnitude } else { magnitude }
    }
    let is_nan = |bits: u16| bits & 0x7fff > infinity;
    is_nan(value) | (!is_nan(best) & (key(value) > key(best)))
}

macro_rules! integer {
    ($type:ty, $lowest:expr, $highest:expr, $zero:expr, $to_f64:expr, $from_f64:expr, $from:expr, $minus:expr) => {
        impl Scalar for $type {
            const LOWEST: Self = $lowest;
            const HIGHEST: Self = $highest;
            const ZERO: Self = $zero;
            const ROUNDOFF: f64 = 0.0;

            #[inline]
            fn to_f64(self) -> f64 {
                $to_f64(self)
            }

            #[inline]
            fn from_f64(value: f64) -> Self {
                $from_f64(value)
            }

            #[inline]
            fn to_integer(self) -> Option<i128> {
                Some(i128::from(self))
            }

            #[inline]
            fn from_integer(value: i128) -> Self {
                $from(value)
            }

            #[inline]
            fn beats(self, best: Self) -> bool {
                self > best
            }

            #[inline]
            fn exceeds(self, best: Self) -> bool {
                self > best
            }

            #[inline]
            fn mirrored(self) -> Self {
                !self
            }

            #[inline]
            fn minus(self, other: Self) -> Self {
                $minus(self, other)
            }
        }
    };
    ($($type:ident)*) => {$(
        integer!(
            $type, $type::MIN, $type::MAX, 0, |x| x as f64,
            |value: f64| value.round_ties_even() as $type,
            |value: i128| value.clamp($type::MIN.into(), $type::MAX.into()) as $type,
            |a: $type, b: $type| a.saturating_sub(b)
        );
    )*};
}

integer!(i64 i32 u32 i16 u16 i8 u8);
integer!(
    bool,
    false,
    true,
    false,
    |x| f64::from(u8::from(x)),
    |value| value != 0.0,
    |value| value != 0,
    |a: bool, b: bool| a & !b
);

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds to the nearest number of a 16-bit type by searching all of its numbers and the one that would follow
    /// the largest.
    fn nearest<T: Scalar>(value: f64, from_bits: fn(u16) -> T, largest: u16, next: f64) -> T {
        let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
        let candidates = (0..=largest).map(|bits| (bits, from_bits(bits).to_f64()));
        let (mut best, mut closest) = (0, f64::INFINITY);
        for (bits, candidate) in candidates.chain([(largest + 1, next)]) {
            let distance = (candidate - value.abs()).abs();
            if distance < closest || (distance == closest && bits % 2 == 0) {
                (best, closest) = (bits, distance);
            }
        }
        from_bits(best | sign)
    }

    /// Ties between two 16-bit numbers, and numbers so close to a tie that rounding to `f32` gives the tie.
    #[test]
    fn halves_are_rounded_once() {
        let between = |a: f64, b: f64| (a + b) / 2.0;
        for bits in [0, 1, 2, 0x03ff, 0x0400, 0x3c00, 0x3c01, 0x7bfe, 0x7bff] {
            let tie = between(
                f16::from_bits(bits).to_f64(),
                match bits {
                    0x7bff => 65536.0,
                    bits => f16::from_bits(bits + 1).to_f64(),
                },
            );
            for value in around(tie) {
                let expected = nearest(value, f16::from_bits, 0x7bff, 65536.0);
                assert_eq!(<f16 as Scalar>::from_f64(value).to_bits(), expected.to_bits());
            }
        }
        let next = 2.0f64.powi(128);
        for bits in [0, 1, 2, 0x007f, 0x0080, 0x3f80, 0x3f81, 0x7f7e, 0x7f7f] {
            let tie = between(
                bf16::from_bits(bits).to_f64(),
                match bits {
                    0x7f7f => next,
                    bits => bf16::from_bits(bits + 1).to_f64(),
                },
            );
            for value in around(tie) {
                let expected = nearest(value, bf16::from_bits, 0x7f7f, next);
                assert_eq!(<bf16 as Scalar>::from_f64(value).to_bits(), expected.to_bits());
            }
        }
        assert!(<f16 as Scalar>::from_f64(f64::NAN).is_nan());
        assert_eq!(<f16 as Scalar>::from_f64(f64::NEG_INFINITY), f16::NEG_INFINITY);
    }

    /// A number, its neighbours, and numbers slightly farther away, of both signs.
    fn around(tie: f64) -> impl Iterator<Item = f64> {
        let values = [0.0, 1e-15, 1e-12, 1e-9, 1e-5].map(|off| tie * (1.0 + off));
        let below = [1e-15, 1e-12, 1e-9, 1e-5].map(|off| tie * (1.0 - off));
        values.into_iter().chain(below).flat_map(|value| [value, -value])
    }

    #[test]
    fn every_half_comes_back() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            assert!(half.is_nan() || <f16 as Scalar>::from_f64(half.to_f64()) == half);
            let half = bf16::from_bits(bits);
            assert!(half.is_nan() || <bf16 as Scalar>::from_f64(half.to_f64()) == half);
        }
    }

    /// The comparison without branches agrees with that of the numbers.
    #[test]
    fn halves_beat_as_their_numbers_do() {
        let every = |step| (0..=u16::MAX).step_by(step);
        let edges = [0, 1, 0x8000, 0x8001, 0x7c00, 0xfc00, 0x7c01, 0x7f80, 0xff80, 0x7f81, 0xffff];
        for best in every(97).chain(edges) {
            for value in every(89).chain(edges) {
                let (v, b) = (f16::from_bits(value), f16::from_bits(best));
                assert_eq!(v.beats(b), v.to_f64().beats(b.to_f64()), "{v:?} {b:?}");
                let (v, b) = (bf16::from_bits(value), bf16::from_bits(best));
                assert_eq!(v.beats(b), v.to_f64().beats(b.to_f64()), "{v:?} {b:?}");
            }
        }
    }

    /// Integers that no `f64` holds are rounded once too.
    #[test]
    fn long_integers_are_converted_in_one_step() {
        let odd = (1i64 << 53) + 1;
        assert_eq!(i64::converted_from(odd), odd);
        assert_eq!((u32::converted_from(odd), i32::converted_from(-odd)), (u32::MAX, i32::MIN));
        assert_eq!(u8::converted_from(u32::MAX), 255);
        // A tie of f32 and of bf16, and one more: rounded to f64 first, it is the tie.
        let tie = (1i64 << 62) + (1 << 38);
        assert_eq!(f32::converted_from(tie).to_f64(), (1i64 << 62) as f64);
        assert_eq!(f32::converted_from(tie + 1).to_f64(), ((1i64 << 62) + (1 << 39)) as f64);
        let tie = (1i64 << 62) + (1 << 54);
        assert_eq!(bf16::converted_from(tie), bf16::from_bits(0x5e80));
        assert_eq!(bf16::converted_from(tie + 1), bf16::from_bits(0x5e81));
        assert_eq!(bf16::converted_from(-tie - 1), bf16::from_bits(0xde81));
        assert_eq!(f16::converted_from(i64::MIN), f16::NEG_INFINITY);
    }

    #[test]
    fn a_bool_is_whether_a_number_is_not_zero() {
        let of = |number: f64| bool::converted_from(number);
        assert_eq!([0.0, -0.0, 0.25, -3.0, f64::NAN].map(of), [false, false, true, true, true]);
        assert_eq!((bool::converted_from(-1i64), i64::converted_from(true)), (true, 1));
        assert!(true.exceeds(false) && !true.exceeds(true) && !false.beats(true));
    }

    #[test]
    fn integers_round_and_saturate() {
        assert_eq!([2.5, 3.5, -0.5, 300.0, -1.0].map(<u8 as Scalar>::from_f64), [2, 4, 0, 255, 0]);
        assert_eq!([1e10, -1e10, 7.4].map(<i32 as Scalar>::from_f64), [i32::MAX, i32::MIN, 7]);
    }
}
