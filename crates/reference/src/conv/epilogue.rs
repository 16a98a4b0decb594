use core::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use windowpane_geometry::Activation;

use crate::Total;

/// The operations after a sum, in this order: add a bias, add a residual, apply an activation, round.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a, T> {
    /// One number per filter.
    pub bias: Option<&'a [T]>,
    /// A tensor of the output's shape.
    pub residual: Option<&'a [T]>,
    /// The activation, applied last.
    pub activation: Activation,
}

impl<T> Epilogue<'_, T> {
    /// No operation: the sum is the result.
    pub const NONE: Self = Self { bias: None, residual: None, activation: Activation::None };
}

impl<'a, T> Epilogue<'a, T> {
    /// Only a bias.
    pub fn bias(bias: &'a [T]) -> Self {
        Self { bias: Some(bias), ..Self::NONE }
    }
}

/// An activation of a number.
pub fn activate(activation: Activation, v: f64) -> f64 {
    match activation {
        Activation::None => v,
        // Written as a comparison so that NaN stays NaN.
        Activation::Relu => {
            if v < 0.0 {
                0.0
            } else {
                v
            }
        }
        Activation::Relu6 => v.clamp(0.0, 6.0),
        Activation::Gelu => v * 0.5 * (1.0 + erf(v * FRAC_1_SQRT_2)),
        Activation::Silu => v / (1.0 + (-v).exp()),
        Activation::Leaky(slope) => {
            if v < 0.0 {
                v * f64::from(slope)
            } else {
                v
            }
        }
        other => unreachable!("{other} has no formula"),
    }
}

/// An activation of a sum, including its error.
///
/// The activation's steepest slope `s` multiplies the error of the sum, and evaluating it adds `e`
/// roundings of the sum's size:
///
/// ```text
/// |f(v + δ) + ε − f(v)| ≤ s·|δ| + e·u·|v|          |δ| ≤ n·u·Σ|terms|
/// ```
///
/// The returned magnitude contains both, so that the bound of a [`Total`] needs no change.
pub fn activate_total(activation: Activation, total: Total) -> Total {
    let Total { value, magnitude, terms } = total;
    // The steepest slopes of v·Φ(v), at √2, and of v/(1 + e⁻ᵛ), near 2.4, rounded up.
    let (slope, roundings) = match activation {
        Activation::Gelu => (1.129, EVALUATION),
        Activation::Silu => (1.1, EVALUATION),
        Activation::Leaky(slope) => (f64::from(slope).abs().max(1.0), 1.0),
        _ => (1.0, 0.0),
    };
    let evaluation = roundings * value.abs() / terms.max(1) as f64;
    Total { value: activate(activation, value), magnitude: slope * magnitude + evaluation, terms }
}

/// The roundings, of the argument's size, for evaluating an exponential or an error function. WebGPU's
/// exponential is within 3 + 2|v| units in the last place, each worth two roundings, and is damped by its
/// own size; the error function that devices use is within 1.5·10⁻⁷, of which half counts.
const EVALUATION: f64 = 16.0;

/// The error function: near 0 by a series whose terms all have one sign; further out, where the series
/// would lose digits, by the continued fraction of its distance to 1.
///
/// ```text
/// erf(z)     = 2/√π · e⁻ᶻ² · Σ 2ⁿ z²ⁿ⁺¹ / (1·3·…·(2n+1))
/// 1 − erf(z) = 1/√π · e⁻ᶻ² / (z + (1/2)/(z + (2/2)/(z + (3/2)/(z + …))))
/// ```
fn erf(z: f64) -> f64 {
    if z.is_nan() {
        return z;
    }
    let distance = z.abs();
    if distance > 2.5 {
        let fraction =
            (1..=60).rev().fold(distance, |rest, k| distance + f64::from(k) / 2.0 / rest);
        let missing = FRAC_2_SQRT_PI / 2.0 * (-z * z).exp() / fraction;
        return z.signum() * (1.0 - missing);
    }
    let (mut term, mut sum, mut odd) = (z, 0.0, 1.0);
    while sum + term != sum {
        sum += term;
        odd += 2.0;
        term *= 2.0 * z * z / odd;
    }
    FRAC_2_SQRT_PI * (-z * z).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a table of the error function.
    #[test]
    fn the_error_function_is_that_of_tables() {
        for (z, expected) in [
            (0.0, 0.0),
            (0.1, 0.112_462_916_018_284_9),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (2.6, 0.999_763_965_583_470_7),
            (3.5, 0.999_999_256_901_627_7),
            (7.0, 1.0),
        ] {
            assert!((erf(z) - expected).abs() < 1e-15, "erf({z}) is {}, not {expected}", erf(z));
            assert_eq!(erf(-z), -erf(z));
        }
        assert!(erf(f64::NAN).is_nan());
    }

    #[test]
    fn activations_are_their_formulas() {
        let of = |activation| [-8.0, -1.0, 0.0, 1.0, 8.0].map(|v| activate(activation, v));
        assert_eq!(of(Activation::None), [-8.0, -1.0, 0.0, 1.0, 8.0]);
        assert_eq!(of(Activation::Relu), [0.0, 0.0, 0.0, 1.0, 8.0]);
        assert_eq!(of(Activation::Relu6), [0.0, 0.0, 0.0, 1.0, 6.0]);
        assert_eq!(of(Activation::Leaky(0.5)), [-4.0, -0.5, 0.0, 1.0, 8.0]);
        assert!((activate(Activation::Gelu, 1.0) - 0.841_344_746_068_542_9).abs() < 1e-15);
        assert!((activate(Activation::Silu, 1.0) - 0.731_058_578_630_004_9).abs() < 1e-15);
        for activation in [Activation::Relu, Activation::Relu6, Activation::Leaky(0.1)] {
            assert!(activate(activation, f64::NAN).is_nan(), "{activation}");
        }
    }

    /// The slopes in the bound are the steepest ones.
    #[test]
    fn no_activation_is_steeper_than_its_bound() {
        let step = 1e-4;
        for activation in [
            Activation::None,
            Activation::Relu,
            Activation::Relu6,
            Activation::Gelu,
            Activation::Silu,
            Activation::Leaky(-3.0),
        ] {
            let unit = Total { value: 0.0, magnitude: 1.0, terms: 1 };
            let steepest = activate_total(activation, unit).magnitude;
            let slopes = (-100_000..100_000).map(|i| {
                let v = f64::from(i) * step;
                (activate(activation, v + step) - activate(activation, v)).abs() / step
            });
            let found = slopes.fold(0.0, f64::max);
            assert!(found <= steepest + 1e-6, "{activation}: {found} above {steepest}");
            assert!(found >= steepest * 0.99, "{activation}: {found} far below {steepest}");
        }
    }
}
