//! Element types: the types in which elements are computed, and the conversions to these and back.

use cubecl::prelude::*;

use windowpane_geometry::DType;

use crate::device::Capabilities;
pub(crate) use crate::device::dtype::{accumulator, elem};

/// Rounds sums to the type in which they are stored, to nearest even.
///
/// Some drivers truncate f32 to bf16. With `bf16`, the rounding is therefore done here and gives a number that
/// truncation does not change.
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

/// How elements are converted to the type in which they are compared and summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Widening {
    /// By the device's conversion.
    Cast,
    /// By bits, for bf16, which is the upper half of an f32. A compiler that sees a conversion before a comparison
    /// compares the unconverted numbers, two bf16 at a time, and then splits the results at several times the cost; and
    /// its conversion takes two instructions for each upper half of a word.
    Bits,
    /// The same, one by one; maxima are converted back by their bits too. A compiler that sees conversions converts
    /// each maximum of two numbers, and a processor's own conversion to bf16 flushes subnormal numbers to 0.
    EachBits,
    /// To integer keys in the order that maxima need, on devices that have no IEEE 754 maximum.
    Keys,
    /// The same for bf16, by bits: such a device may flush subnormal numbers to 0 when it converts them.
    UpperKeys,
}

impl Widening {
    pub(crate) fn is_keys(self) -> bool {
        matches!(self, Self::Keys | Self::UpperKeys)
    }
}

/// The factor that moves the lower half of a word to its upper half.
pub(crate) const UPPER: u32 = 1 << 16;

/// Converts elements to the type in which they are compared and summed.
#[cube]
pub(crate) fn widen<S: Float, A: Float, N: Size>(
    elements: Vector<S, N>,
    #[comptime] how: Widening,
) -> Vector<A, N> {
    widen_by::<S, A, N>(elements, UPPER.runtime(), how)
}

/// The same with [`UPPER`] as a run-time value. A compiler that knows the value turns the products into shifts, which
/// use the same pipe as comparisons and selections. A compiler that does not know it keeps the products, which have a
/// pipe of their own.
#[cube]
pub(crate) fn widen_by<S: Float, A: Float, N: Size>(
    elements: Vector<S, N>,
    upper: u32,
    #[comptime] how: Widening,
) -> Vector<A, N> {
    let lanes = N::value();
    match how {
        Widening::Cast => Vector::cast_from(elements),
        Widening::Bits => {
            if comptime!(lanes.is_multiple_of(2)) {
                let size!(W) = comptime!(lanes / 2);
                halves::<A, N, W>(Vector::<u32, W>::reinterpret(elements), upper)
            } else {
                Vector::<A, N>::reinterpret(words::<S, N>(elements))
            }
        }
        Widening::EachBits => Vector::<A, N>::reinterpret(words::<S, N>(elements)),
        Widening::Keys => {
            let numbers = Vector::<f32, N>::cast_from(elements);
            keys::<A, N>(Vector::<i32, N>::reinterpret(numbers))
        }
        Widening::UpperKeys => keys::<A, N>(Vector::<i32, N>::reinterpret(words::<S, N>(elements))),
    }
}

/// Like [`widen`], but returns zeros if the elements are not `kept`.
#[cube]
pub(crate) fn widen_kept<S: Float, A: Float, N: Size>(
    elements: Vector<S, N>,
    kept: bool,
    #[comptime] how: Widening,
) -> Vector<A, N> {
    let lanes = N::value();
    if comptime!(how == Widening::Bits && lanes.is_multiple_of(2)) {
        let size!(W) = comptime!(lanes / 2);
        let words = Vector::<u32, W>::reinterpret(elements);
        halves::<A, N, W>(select(kept, words, Vector::new(0u32)), UPPER.runtime())
    } else {
        select(kept, widen::<S, A, N>(elements, how), Vector::new(A::from_int(0)))
    }
}

/// Converts maxima back to the type in which they are stored: the inverse of [`widen`].
#[cube]
pub(crate) fn narrow<A: Float, S: Float, N: Size>(
    maxima: Vector<A, N>,
    #[comptime] how: Widening,
) -> Vector<S, N> {
    if comptime!(how.is_keys()) {
        let keys = Vector::<i32, N>::cast_from(maxima);
        let bits = turned::<N>(keys + Vector::new(BELOW_INFINITY));
        if comptime!(how == Widening::UpperKeys) {
            upper::<S, N>(Vector::<u32, N>::reinterpret(bits))
        } else {
            Vector::cast_from(Vector::<f32, N>::reinterpret(bits))
        }
    } else if comptime!(how == Widening::EachBits) {
        upper::<S, N>(Vector::<u32, N>::reinterpret(maxima))
    } else {
        Vector::cast_from(maxima)
    }
}

/// Words whose upper halves are two-byte elements.
#[cube]
fn words<S: Float, N: Size>(elements: Vector<S, N>) -> Vector<u32, N> {
    let halves = Vector::<u16, N>::reinterpret(elements);
    Vector::<u32, N>::cast_from(halves) << Vector::new(16u32)
}

/// The upper halves of words.
#[cube]
fn upper<S: Float, N: Size>(words: Vector<u32, N>) -> Vector<S, N> {
    Vector::<S, N>::reinterpret(Vector::<u16, N>::cast_from(words >> Vector::new(16u32)))
}

/// The distance of a key below a number's [`turned`] bits. The turned bits of a NaN whose sign is set are the lowest
/// integers; subtracting this wraps them around to the top, where the other NaNs are, and makes −∞ the lowest key.
const BELOW_INFINITY: i32 = 0x007f_ffff;

/// The keys of the numbers with these bits.
#[cube]
fn keys<A: Float, N: Size>(bits: Vector<i32, N>) -> Vector<A, N> {
    Vector::cast_from(turned::<N>(bits) - Vector::new(BELOW_INFINITY))
}

/// The keys of the two zeros and of infinity; the keys above infinity's are NaNs.
const MINUS_ZERO: i32 = -1 - BELOW_INFINITY;
const PLUS_ZERO: i32 = -BELOW_INFINITY;
const INFINITY: i32 = 0x7f80_0000 - BELOW_INFINITY;

/// Whether later numbers, given as keys, win a maximum against those before: greater numbers do, and every NaN.
#[cube]
pub(crate) fn wins_later<A: Float, N: Size>(
    later: Vector<A, N>,
    before: Vector<A, N>,
) -> Vector<bool, N> {
    let before = min(level::<A, N>(before), Vector::new(INFINITY));
    Vector::<i32, N>::cast_from(later).greater_than(&before)
}

/// Keys for which equal numbers are equal: both zeros have +0's key, and all NaNs have the same key.
#[cube]
pub(crate) fn leveled<A: Float, N: Size>(keys: Vector<A, N>) -> Vector<i32, N> {
    min(level::<A, N>(keys), Vector::new(INFINITY + 1))
}

/// Whether a key that was [`leveled`] is a NaN's.
#[cube]
pub(crate) fn is_leveled_nan<N: Size>(key: Vector<i32, N>) -> Vector<bool, N> {
    key.greater_than(&Vector::new(INFINITY))
}

/// The keys, with −0's raised to +0's.
#[cube]
fn level<A: Float, N: Size>(keys: Vector<A, N>) -> Vector<i32, N> {
    let keys = Vector::<i32, N>::cast_from(keys);
    select_many(keys.equal(&Vector::new(MINUS_ZERO)), Vector::new(PLUS_ZERO), keys)
}

/// The bits of numbers, with all bits except the sign inverted for numbers below zero, so that as integers they are in
/// the numbers' order, −0 below +0. The function is its own inverse.
#[cube]
fn turned<N: Size>(bits: Vector<i32, N>) -> Vector<i32, N> {
    bits ^ ((bits >> Vector::new(31i32)) & Vector::new(0x7fff_ffffi32))
}

/// Both halves of each word, each as the upper half of a number.
#[cube]
fn halves<A: Float, N: Size, W: Size>(words: Vector<u32, W>, upper: u32) -> Vector<A, N> {
    let mut numbers = Vector::<A, N>::new(A::from_int(0));
    #[unroll]
    for i in 0..W::value() {
        let word = words.extract(i);
        numbers.insert(2 * i, A::reinterpret(word * upper));
        numbers.insert(2 * i + 1, A::reinterpret(word & 0xffff_0000u32));
    }
    numbers
}

/// IEEE 754's maximum: NaN if either is, and +0 above −0.
#[cube]
pub(crate) fn maximum<A: Float, N: Size>(
    a: Vector<A, N>,
    b: Vector<A, N>,
    #[comptime] form: MaximumForm,
) -> Vector<A, N> {
    match form {
        MaximumForm::Native => max_nan(a, b),
        MaximumForm::Integers => max(a, b),
        MaximumForm::Sum => {
            let best = select_many(a.greater_than(&b).or(a.is_nan()), a, b);
            let zero = Vector::new(A::from_int(0));
            let zeros = a.equal(&zero).vec_and(b.equal(&zero));
            select_many(zeros, a + b, best)
        }
    }
}

/// How a maximum is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MaximumForm {
    /// By the device's native instruction.
    Native,
    /// By comparison; for two zeros, by their sum.
    Sum,
    /// By the integer maximum, which serves keys too.
    Integers,
}

impl MaximumForm {
    /// The form for numbers that are compared as `dtype`.
    pub(crate) fn new(dtype: DType, device: &Capabilities) -> Self {
        match dtype {
            dtype if !dtype.is_float() => Self::Integers,
            _ if device.ieee_max => Self::Native,
            _ => Self::Sum,
        }
    }
}
