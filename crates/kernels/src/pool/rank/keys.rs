//! Keys: integers in the order of the numbers, −0 below +0, and those of NaN above all others.

use cubecl::prelude::*;
use windowpane_geometry::DType;

use crate::cube::convert::{Widening, narrow, turned, widen};

/// The keys of a type's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Keys {
    dtype: DType,
    /// How numbers of at most 32 bits become keys of 32 bits.
    widened: Widening,
}

/// The distance of a key of 64 bits below the number's ordered bits, so that −∞ has the lowest key: a NaN whose sign is
/// set then has one of the highest.
const BELOW_INFINITY: i64 = 0x000f_ffff_ffff_ffff;

/// The same for keys of 32 bits, which `cube::convert` makes.
const BELOW_INFINITY_32: i64 = 0x007f_ffff;

impl Keys {
    pub(super) fn new(dtype: DType, widened: Widening) -> Self {
        Self { dtype, widened }
    }

    /// Whether keys have 64 bits.
    pub(super) fn is_wide(self) -> bool {
        matches!(self.dtype, DType::F64 | DType::I64)
    }

    pub(super) fn has_nan(self) -> bool {
        self.dtype.is_float()
    }

    /// The lowest key of a number.
    pub(super) fn lowest(self) -> i64 {
        match self.dtype.integers() {
            // Keys have a sign.
            Some(_) if self.dtype == DType::U32 => i32::MIN.into(),
            Some((least, _)) => least,
            None if self.is_wide() => i64::MIN,
            None => i32::MIN.into(),
        }
    }

    /// The highest key of a number: infinity's.
    pub(super) fn highest(self) -> i64 {
        match self.dtype {
            DType::F64 => f64::INFINITY.to_bits() as i64 - BELOW_INFINITY,
            _ => match self.dtype.integers() {
                Some(_) if self.dtype == DType::U32 => i32::MAX.into(),
                Some((_, most)) => most,
                None => i64::from(f32::INFINITY.to_bits()) - BELOW_INFINITY_32,
            },
        }
    }

    /// The highest bit besides the sign.
    pub(super) fn highest_bit(self) -> u32 {
        match self.dtype {
            DType::F64 | DType::I64 => 62,
            DType::Bool => 0,
            DType::I8 => 6,
            DType::U8 => 7,
            DType::I16 => 14,
            DType::U16 => 15,
            _ => 30,
        }
    }

    /// How many bits to search from the highest down. The bits that an f32 has in addition to a shorter type are the same
    /// in all keys, except that the last bit is set in those of positive numbers.
    pub(super) fn bits(self) -> u32 {
        match self.dtype {
            DType::F16 => 18,
            DType::BF16 => 15,
            _ => self.highest_bit() + 1,
        }
    }

    /// 1 if the last bit has to be searched as well, otherwise 0.
    pub(super) fn last_bit(self) -> u32 {
        u32::from(matches!(self.dtype, DType::F16 | DType::BF16))
    }

    /// How often a window is read.
    pub(super) fn passes(self) -> u32 {
        let sign = u32::from(self.lowest() < 0);
        sign + self.bits() + self.last_bit() + u32::from(self.has_nan())
    }
}

/// The keys of numbers.
#[cube]
pub(super) fn key_of<S: Float, A: Float, K: Int, N: Size>(
    numbers: Vector<S, N>,
    #[comptime] keys: Keys,
) -> Vector<K, N> {
    if comptime!(keys.dtype == DType::I64) {
        Vector::cast_from(numbers)
    } else if comptime!(keys.is_wide()) {
        let bits = Vector::<i64, N>::reinterpret(numbers);
        Vector::cast_from(turned::<i64, N>(bits) - Vector::new(BELOW_INFINITY))
    } else if comptime!(keys.dtype == DType::U32) {
        let bits = Vector::<i32, N>::reinterpret(numbers);
        Vector::cast_from(bits ^ Vector::new(i32::MIN))
    } else {
        Vector::<K, N>::cast_from(widen::<S, A, N>(numbers, keys.widened))
    }
}

/// The numbers with these keys.
#[cube]
pub(super) fn number_of<S: Float, A: Float, K: Int, N: Size>(
    of: Vector<K, N>,
    #[comptime] keys: Keys,
) -> Vector<S, N> {
    if comptime!(keys.dtype == DType::I64) {
        Vector::cast_from(of)
    } else if comptime!(keys.is_wide()) {
        let keys = Vector::<i64, N>::cast_from(of);
        Vector::<S, N>::reinterpret(turned::<i64, N>(keys + Vector::new(BELOW_INFINITY)))
    } else if comptime!(keys.dtype == DType::U32) {
        let keys = Vector::<i32, N>::cast_from(of);
        Vector::<S, N>::reinterpret(keys ^ Vector::new(i32::MIN))
    } else {
        narrow::<A, S, N>(Vector::<A, N>::cast_from(of), keys.widened)
    }
}

/// Whether keys are those of NaN.
#[cube]
pub(super) fn is_nan<K: Int, N: Size>(of: Vector<K, N>, #[comptime] keys: Keys) -> Vector<bool, N> {
    of.greater_than(&Vector::new(K::from_int(comptime!(keys.highest()))))
}
