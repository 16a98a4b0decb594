//! Element types: the types in which elements are computed, and the conversions to these and back.

use cubecl::prelude::*;

use windowpane_geometry::{DType, Extremum};

use crate::device::Capabilities;
pub(crate) use crate::device::dtype::{accumulator, elem};

/// Rounds sums to the type in which they are stored, to nearest even.
///
/// Some drivers truncate f32 to bf16. With `bf16`, the rounding is therefore done here and gives a number that
/// truncation does not change; of a NaN whose upper half has no bit that makes it one, that bit is set.
#[cube]
pub(crate) fn round<A: Float, S: Float, N: Size>(
    sums: Vector<A, N>,
    #[comptime] bf16: bool,
) -> Vector<S, N> {
    if comptime!(bf16) {
        let bits = Vector::<u32, N>::reinterpret(sums);
        let odd = (bits >> Vector::new(16u32)) & Vector::new(1u32);
        let rounded = (bits + odd + Vector::new(0x7fffu32)) & Vector::new(0xffff_0000u32);
        let nan = Vector::<A, N>::reinterpret(bits | Vector::new(0x0040_0000u32));
        let rounded = Vector::<A, N>::reinterpret(rounded);
        Vector::cast_from(select_many(sums.is_nan(), nan, rounded))
    } else {
        Vector::cast_from(sums)
    }
}

/// The nearest integers from `least` to `most`, of two the even one; 0 for NaN. It uses no rounding of the device, which may
/// round ties in any direction.
#[cube]
pub(crate) fn nearest_integers<N: Size>(
    numbers: Vector<f32, N>,
    #[comptime] least: i32,
    #[comptime] most: i32,
) -> Vector<i32, N> {
    let lowest = Vector::<f32, N>::new(comptime!(least as f32));
    // The largest f32 below 2³¹: a device may convert larger ones to anything.
    let highest = Vector::<f32, N>::new(comptime!((most as f32).min(2_147_483_520.0)));
    let zero = Vector::<f32, N>::new(0.0);
    let inside = select_many(numbers.is_nan(), zero, numbers);
    let inside = select_many(inside.less_than(&lowest), lowest, inside);
    let inside = select_many(inside.greater_than(&highest), highest, inside);
    let cut = Vector::<i32, N>::cast_from(inside);
    // Exact, as only numbers below 2²³ have a fraction.
    let rest = inside - Vector::<f32, N>::cast_from(cut);
    let one = Vector::<i32, N>::new(1i32);
    let odd = cut & one;
    let half = Vector::<f32, N>::new(0.5);
    let up = select_many(rest.equal(&half), odd, Vector::new(0i32));
    let up = select_many(rest.greater_than(&half), one, up);
    let down = select_many(rest.equal(&-half), odd, Vector::new(0i32));
    let down = select_many(rest.less_than(&-half), one, down);
    let beyond = Vector::<f32, N>::new(2_147_483_520.0);
    select_many(numbers.greater_than(&beyond), Vector::new(most), cut + up - down)
}

/// A number, or 0 in place of a negative one; NaN and −0 stay. Both are tested for, because the compiler of a shader
/// may turn a selection into a maximum, which keeps neither.
#[cube]
pub(crate) fn rectified<A: Float, N: Size>(number: Vector<A, N>) -> Vector<A, N> {
    let zero = Vector::<A, N>::new(A::from_int(0));
    let stays = number.is_nan().or(number.equal(&zero));
    select_many(stays, number, select_many(number.less_than(&zero), zero, number))
}

/// The sum of a product and a number: fused for floats. Shading languages have no such function of integers.
#[cube]
pub(crate) fn multiply_add<A: Float, N: Size>(
    a: Vector<A, N>,
    b: Vector<A, N>,
    sum: Vector<A, N>,
) -> Vector<A, N> {
    let elem = elem_type_of::<A>();
    if comptime!(matches!(elem, ElemType::Int(_))) { a * b + sum } else { fma(a, b, sum) }
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
    /// The same, one by one; extrema are converted back by their bits too. A compiler that sees conversions converts
    /// each maximum of two numbers, and a processor's own conversion to bf16 flushes subnormal numbers to 0.
    EachBits,
    /// To integer keys in the order that the extremum needs, on devices that have no IEEE 754 maximum.
    Keys(Extremum),
    /// The same for bf16, by bits: such a device may flush subnormal numbers to 0 when it converts them.
    UpperKeys(Extremum),
}

impl Widening {
    /// The conversion of floats that are summed; `contiguous` says whether units are threads of a processor.
    pub(crate) fn of_sums(dtype: DType, contiguous: bool, device: &Capabilities) -> Self {
        match dtype {
            DType::BF16 if device.fuses_conversions && contiguous => Self::EachBits,
            DType::BF16 if device.fuses_conversions => Self::Bits,
            _ => Self::Cast,
        }
    }

    pub(crate) fn is_keys(self) -> bool {
        matches!(self, Self::Keys(_) | Self::UpperKeys(_))
    }

    fn is_upper(self) -> bool {
        matches!(self, Self::UpperKeys(_))
    }

    /// Whether keys are those of the negated numbers, so that the least number has the greatest key.
    fn negates(self) -> bool {
        matches!(self, Self::Keys(Extremum::Min) | Self::UpperKeys(Extremum::Min))
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
        Widening::Keys(_) => {
            let numbers = Vector::<f32, N>::cast_from(elements);
            keys::<A, N>(Vector::<i32, N>::reinterpret(numbers), how)
        }
        Widening::UpperKeys(_) => {
            keys::<A, N>(Vector::<i32, N>::reinterpret(words::<S, N>(elements)), how)
        }
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

/// Converts extrema back to the type in which they are stored: the inverse of [`widen`].
#[cube]
pub(crate) fn narrow<A: Float, S: Float, N: Size>(
    extrema: Vector<A, N>,
    #[comptime] how: Widening,
) -> Vector<S, N> {
    if comptime!(how.is_keys()) {
        let keys = Vector::<i32, N>::cast_from(extrema);
        let bits = turned::<i32, N>(keys + Vector::new(BELOW_INFINITY));
        let bits = if comptime!(how.negates()) { negated::<N>(bits) } else { bits };
        if comptime!(how.is_upper()) {
            upper::<S, N>(Vector::<u32, N>::reinterpret(bits))
        } else {
            Vector::cast_from(Vector::<f32, N>::reinterpret(bits))
        }
    } else if comptime!(how == Widening::EachBits) {
        upper::<S, N>(Vector::<u32, N>::reinterpret(extrema))
    } else {
        Vector::cast_from(extrema)
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
fn keys<A: Float, N: Size>(bits: Vector<i32, N>, #[comptime] how: Widening) -> Vector<A, N> {
    let bits = if comptime!(how.negates()) { negated::<N>(bits) } else { bits };
    Vector::cast_from(turned::<i32, N>(bits) - Vector::new(BELOW_INFINITY))
}

/// The bits of the numbers with the other sign.
#[cube]
fn negated<N: Size>(bits: Vector<i32, N>) -> Vector<i32, N> {
    bits ^ Vector::new(i32::MIN)
}

/// The keys of the two zeros and of infinity; the keys above infinity's are NaNs.
const MINUS_ZERO: i32 = -1 - BELOW_INFINITY;
const PLUS_ZERO: i32 = -BELOW_INFINITY;
const INFINITY: i32 = 0x7f80_0000 - BELOW_INFINITY;

/// Whether later numbers, given as keys, win against those before: those with greater keys do, and every NaN.
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
pub(crate) fn turned<I: Int, N: Size>(bits: Vector<I, N>) -> Vector<I, N> {
    // Not by a shift: for vectors CubeCL's LLVM compiler shifts in zeros.
    let zero = Vector::<I, N>::new(I::from_int(0));
    bits ^ select_many(bits.less_than(&zero), Vector::new(I::max_value()), zero)
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

/// IEEE 754's maximum or minimum: NaN if either is; of two zeros, +0 is the maximum and −0 the minimum.
#[cube]
pub(crate) fn extremum<A: Float, N: Size>(
    a: Vector<A, N>,
    b: Vector<A, N>,
    #[comptime] form: ExtremumForm,
) -> Vector<A, N> {
    match comptime!((form.by, form.of_compared())) {
        (Comparison::Native, Extremum::Max) => max_nan(a, b),
        (Comparison::Native, Extremum::Min) => min_nan(a, b),
        (Comparison::Select { bits }, of_zeros) => {
            let best = select_many(beats::<A, N>(a, b, form).or(a.is_nan()), a, b);
            let zero = Vector::new(A::from_int(0));
            let zeros = a.equal(&zero).vec_and(b.equal(&zero));
            let zero = match comptime!((bits, of_zeros)) {
                (true, Extremum::Max) => Vector::<A, N>::reinterpret(
                    Vector::<u64, N>::reinterpret(a) & Vector::<u64, N>::reinterpret(b),
                ),
                (true, Extremum::Min) => Vector::<A, N>::reinterpret(
                    Vector::<u64, N>::reinterpret(a) | Vector::<u64, N>::reinterpret(b),
                ),
                (false, Extremum::Max) => a + b,
                (false, Extremum::Min) => -(-a - b),
            };
            select_many(zeros, zero, best)
        }
        (_, Extremum::Max) => max(a, b),
        (_, Extremum::Min) => min(a, b),
    }
}

/// Whether `a` is greater than `b`, or less for a minimum.
#[cube]
pub(crate) fn beats<A: Float, N: Size>(
    a: Vector<A, N>,
    b: Vector<A, N>,
    #[comptime] form: ExtremumForm,
) -> Vector<bool, N> {
    if comptime!(form.of_compared() == Extremum::Max) {
        a.greater_than(&b)
    } else {
        a.less_than(&b)
    }
}

/// How an extremum is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ExtremumForm {
    extremum: Extremum,
    pub(crate) by: Comparison,
}

/// How two numbers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Comparison {
    /// By the device's native maximum or minimum.
    Native,
    /// By comparison; for two zeros, by their bits, or by their sum where there are no 64-bit integers. Some drivers give
    /// sums of zeros the wrong sign.
    Select { bits: bool },
    /// As integers.
    Integers,
    /// As the integer keys of floats, whose maximum is that of the numbers or of the negated numbers.
    Keys,
}

impl ExtremumForm {
    /// The form for elements of type `dtype` that are compared as `compared`.
    pub(crate) fn new(
        extremum: Extremum,
        dtype: DType,
        compared: DType,
        device: &Capabilities,
    ) -> Self {
        let by = match compared.is_float() {
            false if dtype.is_float() => Comparison::Keys,
            false => Comparison::Integers,
            true if device.ieee_max => Comparison::Native,
            true => Comparison::Select { bits: compared == DType::F64 && device.int64 },
        };
        Self { extremum, by }
    }

    /// The extremum of what is compared.
    pub(crate) fn of_compared(self) -> Extremum {
        if self.by == Comparison::Keys { Extremum::Max } else { self.extremum }
    }

    /// The keys in which floats are compared, if they are.
    pub(crate) fn keys(self, dtype: DType) -> Option<Widening> {
        let keys = if dtype == DType::BF16 { Widening::UpperKeys } else { Widening::Keys };
        (self.by == Comparison::Keys).then(|| keys(self.extremum))
    }

    /// Whether NaN has to be told from numbers before comparing.
    pub(crate) fn has_nan(self) -> bool {
        matches!(self.by, Comparison::Native | Comparison::Select { .. })
    }
}
