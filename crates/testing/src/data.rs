use proptest::prelude::*;
use windowpane::Element;
use windowpane_geometry::DType;

use crate::bounds::smallest;

/// The kind of numbers in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Small whole numbers: many ties, and every sum exact.
    Ties,
    /// Fractions around 0, with some outliers.
    Mixed,
    /// Magnitudes from tiny to huge.
    Scales,
    /// Ties with NaN, infinities and zeros of both signs.
    Special,
    /// The smallest numbers of the type around zeros of both signs, of one sign or both, and rarely NaN. Not
    /// for sums, which no bound covers on every device.
    Least,
}

/// A compact description of a tensor's numbers, which shrinks well and can be pasted into a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The kind of numbers.
    pub flavour: Flavour,
    /// The seed.
    pub seed: u64,
}

impl Fill {
    /// Any seed, and any kind except [`Flavour::Least`].
    pub fn any() -> impl Strategy<Value = Self> {
        use Flavour::{Mixed, Scales, Special, Ties};
        (prop_oneof![Just(Ties), Just(Mixed), Just(Scales), Just(Special)], 0..1u64 << 32)
            .prop_map(|(flavour, seed)| Self { flavour, seed })
    }

    /// The first `len` numbers.
    pub fn elements<T: Element>(self, len: usize) -> Vec<T> {
        let mut state = self.seed;
        let element = |bits| match T::DTYPE.integers() {
            Some(range) => T::from_integer(self.integer(range, bits)),
            None => T::from_f64(self.number(T::DTYPE, bits)),
        };
        (0..len).map(|_| element(splitmix(&mut state))).collect()
    }

    /// An integer, which the type clamps.
    fn integer(self, (least, most): (i64, i64), bits: u64) -> i128 {
        let unit = (bits >> 11) as f64 / (1u64 << 53) as f64;
        match (self.flavour, bits >> 60) {
            // A bool is what is not 0.
            _ if most == 1 => i128::from(bits & 1),
            (Flavour::Ties, _) => i128::from(bits % 9) - 4,
            // The limits of the type are among the ties, and their neighbours.
            (_, 0) => i128::from(least) + i128::from(bits >> 6 & 1),
            (_, 1) => i128::from(most) - i128::from(bits >> 6 & 1),
            // Numbers that differ by less than an f64 says, if the type has such.
            (_, 2) => (1 << 53) + i128::from(bits % 4),
            (_, 3) => i128::from(least) + i128::from(bits) % (i128::from(most) - i128::from(least)),
            _ => (unit * 300.0 - 150.0).round() as i128,
        }
    }

    fn number(self, dtype: DType, bits: u64) -> f64 {
        let small = (bits % 9) as f64 - 4.0;
        let unit = (bits >> 11) as f64 / (1u64 << 53) as f64;
        // The largest f16 is 65504, and a sum of several numbers must fit.
        let widest: f64 = if dtype == DType::F16 { 4.0 } else { 60.0 };
        match (self.flavour, bits >> 60) {
            (Flavour::Ties, _) => small,
            (Flavour::Mixed, 0) => (unit - 0.5) * 1e3,
            (Flavour::Mixed, _) => unit - 0.5,
            (Flavour::Scales, _) => small.signum() * (widest * (unit - 0.5)).exp2(),
            (Flavour::Least, _) if bits >> 58 == 0 => f64::NAN.copysign(small),
            (Flavour::Least, _) => match (bits % 9) as f64 - (self.seed % 9) as f64 {
                0.0 => 0.0f64.copysign(unit - 0.5),
                steps => steps * smallest(dtype),
            },
            (Flavour::Special, 0) => f64::NAN.copysign(small),
            (Flavour::Special, 1) => f64::INFINITY,
            (Flavour::Special, 2..=4) => f64::NEG_INFINITY,
            (Flavour::Special, 5 | 6) => -0.0,
            (Flavour::Special, _) => small,
        }
    }
}

/// A generator of 64 pseudo-random bits, not for cryptography.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
