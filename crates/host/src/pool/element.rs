//! The element types of poolings, and what the loops over windows compute with in their place.
//!
//! * Maxima and minima compare integers that have the order of the numbers: [`Ranked::key`].
//! * Maxima with indices compare one integer for number and index. It is largest for the element that rule 2.2 of
//!   SEMANTICS names:
//!
//!   ```text
//!   high bits   the key, the same for both zeros, and one key for all NaN
//!   low bits    the index, inverted unless it is NaN, so that the first of equal numbers and the last NaN are largest
//!   ```
//! * Sums are computed in `f64`, those of integers of up to 16 bits in `i32` if they fit. The reference sums wider
//!   integers.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use windowpane_reference::Scalar;

use super::item::{Item, in_vectors};
use super::loops::Loops;
use crate::rank::Ranked;

/// An element type of poolings.
#[allow(private_bounds, reason = "what the loops compute with is of no use outside")]
pub trait Poolable: Ranked<Key: Item> + Loops {
    /// Whether there are two zeros and NaN.
    const IS_FLOAT: bool;

    /// An integer for an element and its index.
    type Packed: Item;

    /// The element with an index, which is less than 2³¹.
    fn pack(self, index: u32) -> Self::Packed;

    /// The element, with +0 for both zeros, and the index; of an empty window, anything.
    fn unpack(packed: Self::Packed) -> (Self, u32);

    /// Converts elements to `f64`, exactly but for those of `i64`, and writes what `join` makes of those that are there
    /// and them.
    fn widen(from: &[Self], to: &mut [f64], join: impl Fn(f64, f64) -> f64);

    /// Converts what `map` makes of places and numbers, rounding once.
    fn narrow(from: &[f64], to: &mut [Self], map: impl Fn(usize, f64) -> f64);
}

/// An integer of up to 16 bits.
pub(super) trait Narrow: Poolable + Into<i32> {
    /// The nearest number of this type.
    fn clamped(number: i32) -> Self;
}

macro_rules! narrow {
    ($($type:ty),*) => {$(
        impl Narrow for $type {
            #[inline(always)]
            fn clamped(number: i32) -> Self {
                number.clamp(Self::MIN.into(), Self::MAX.into()) as Self
            }
        }
    )*};
}

narrow!(i16, u16, i8, u8);

macro_rules! packed {
    ($packed:ty, $is_float:expr) => {
        const IS_FLOAT: bool = $is_float;

        type Packed = $packed;

        #[inline(always)]
        fn pack(self, index: u32) -> $packed {
            let key = self.key();
            let is_nan = Self::IS_FLOAT && key > Self::GREATEST;
            let is_negative_zero = Self::IS_FLOAT && key == Self::ZERO.mirrored().key();
            // The key of +0 follows that of −0.
            let key = if is_negative_zero { key + 1 } else { key };
            let key = if is_nan { <<Self as Ranked>::Key>::MAX } else { key };
            let index = if is_nan { index } else { !index };
            (<$packed>::from(key) << 32) | <$packed>::from(index)
        }

        #[inline(always)]
        fn unpack(packed: $packed) -> (Self, u32) {
            let (key, index) = ((packed >> 32) as <Self as Ranked>::Key, packed as u32);
            let is_nan = Self::IS_FLOAT && key == <<Self as Ranked>::Key>::MAX;
            (Self::of(key), if is_nan { index } else { !index })
        }
    };
}

macro_rules! plain {
    ($($type:ty, $packed:ty, $is_float:expr;)*) => {$(
        impl Poolable for $type {
            packed!($packed, $is_float);

            #[inline(always)]
            fn widen(from: &[Self], to: &mut [f64], join: impl Fn(f64, f64) -> f64) {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = join(*to, from.to_f64()));
            }

            #[inline(always)]
            fn narrow(from: &[f64], to: &mut [Self], map: impl Fn(usize, f64) -> f64) {
                let pairs = to.iter_mut().zip(from).enumerate();
                pairs.for_each(|(i, (to, from))| *to = Self::from_f64(map(i, *from)));
            }
        }
    )*};
}

/// The elements that are converted at once, by way of `f32`.
const CHUNK: usize = 64;

macro_rules! half {
    ($($type:ty),*) => {$(
        impl Poolable for $type {
            packed!(i64, true);

            #[inline(always)]
            fn widen(from: &[Self], to: &mut [f64], join: impl Fn(f64, f64) -> f64) {
                let mut numbers = [0.0f32; CHUNK];
                for (from, to) in from.chunks(CHUNK).zip(to.chunks_mut(CHUNK)) {
                    let numbers = &mut numbers[..from.len()];
                    from.convert_to_f32_slice(numbers);
                    let pairs = to.iter_mut().zip(numbers);
                    pairs.for_each(|(to, from)| *to = join(*to, f64::from(*from)));
                }
            }

            #[inline(always)]
            fn narrow(from: &[f64], to: &mut [Self], map: impl Fn(usize, f64) -> f64) {
                let mut numbers = [0.0f32; CHUNK];
                let chunks = from.chunks(CHUNK).zip(to.chunks_mut(CHUNK));
                for (first, (from, to)) in (0..).step_by(CHUNK).zip(chunks) {
                    let numbers = &mut numbers[..from.len()];
                    let pairs = numbers.iter_mut().zip(from).zip(first..);
                    pairs.for_each(|((to, from), i)| *to = to_odd(map(i, *from)));
                    to.convert_from_f32_slice(numbers);
                }
            }
        }
    )*};
}

plain! {
    f64, i128, true;
    f32, i64, true;
    i64, i128, false;
    i32, i64, false;
    u32, i64, false;
    i16, i64, false;
    u16, i64, false;
    i8, i64, false;
    u8, i64, false;
    bool, i64, false;
}
half!(f16, bf16);

/// Rounds to `f32` so that rounding again, to 16 bits, gives what rounding once would: towards zero, with the last bit
/// set if that was not exact.
#[inline(always)]
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let exact = f64::from(nearest);
    let away = u32::from(exact.abs() > value.abs());
    let odd = f32::from_bits(nearest.to_bits().wrapping_sub(away) | 1);
    if exact == value || value.is_nan() { nearest } else { odd }
}

/// Converts a slice from `f64`, rounding once.
pub(super) fn narrow<T: Poolable>(from: &[f64], to: &mut [T]) {
    in_vectors(
        #[inline(always)]
        || T::narrow(from, to, |_, number| number),
    );
}
