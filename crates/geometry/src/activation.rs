use core::fmt;
use core::str::FromStr;

use crate::{DType, Error};

/// The activation of a convolution, applied to a sum before it is rounded and stored.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Activation {
    /// No activation.
    #[default]
    None,
    /// `max(v, 0)`.
    Relu,
    /// `min(max(v, 0), 6)`.
    Relu6,
    /// `v·Φ(v)` with the normal distribution `Φ`: the exact form, not the approximation with `tanh`.
    Gelu,
    /// `v / (1 + e⁻ᵛ)`.
    Silu,
    /// `v` if it is positive, otherwise the slope times `v`.
    Leaky(f32),
}

impl Activation {
    /// The default slope of [`Leaky`](Self::Leaky).
    pub const SLOPE: f32 = 0.01;

    /// Refuses an output that a quantized convolution with this activation cannot have. The numbers of an output in `i8`
    /// are multiples of the caller's unit, on which `relu6`, `gelu` and `silu` depend.
    ///
    /// ```
    /// use windowpane_geometry::{Activation, DType};
    ///
    /// assert!(Activation::Relu.check_quantized(DType::I8).is_ok());
    /// assert!(Activation::Gelu.check_quantized(DType::I8).is_err());
    /// assert!(Activation::Gelu.check_quantized(DType::F32).is_ok());
    /// assert!(Activation::None.check_quantized(DType::I32).is_err());
    /// ```
    pub fn check_quantized(self, output: DType) -> Result<(), Error> {
        match (output, self) {
            (DType::F32 | DType::F16 | DType::BF16, _)
            | (DType::I8, Self::None | Self::Relu | Self::Leaky(_)) => Ok(()),
            (DType::I8, _) => Err(Error::QuantizedActivation),
            _ => Err(Error::QuantizedOutput { output }),
        }
    }
}

/// Prints `relu`, or `leaky:0.01`.
impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad("none"),
            Self::Relu => f.pad("relu"),
            Self::Relu6 => f.pad("relu6"),
            Self::Gelu => f.pad("gelu"),
            Self::Silu => f.pad("silu"),
            Self::Leaky(slope) => write!(f, "leaky:{slope}"),
        }
    }
}

/// The error for an unknown activation name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownActivation;

impl fmt::Display for UnknownActivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "unknown activation; use one of none, relu, relu6, gelu, silu, leaky or leaky:SLOPE",
        )
    }
}

impl core::error::Error for UnknownActivation {}

impl FromStr for Activation {
    type Err = UnknownActivation;

    fn from_str(name: &str) -> Result<Self, UnknownActivation> {
        Ok(match name {
            "none" => Self::None,
            "relu" => Self::Relu,
            "relu6" => Self::Relu6,
            "gelu" => Self::Gelu,
            "silu" => Self::Silu,
            "leaky" => Self::Leaky(Self::SLOPE),
            _ => {
                let slope = name.strip_prefix("leaky:").and_then(|slope| slope.parse::<f32>().ok());
                match slope {
                    Some(slope) if slope.is_finite() => Self::Leaky(slope),
                    _ => return Err(UnknownActivation),
                }
            }
        })
    }
}

/// The precision of the products of an `f32` convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// As accurate as multiply-adds in `f32`.
    #[default]
    Strict,
    /// Factors are rounded to 11 significant bits; matrix units are many times faster that way.
    Tf32,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Strict => "strict",
            Self::Tf32 => "tf32",
        })
    }
}

/// The error for an unknown precision name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPrecision;

impl fmt::Display for UnknownPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown precision; use one of strict, tf32")
    }
}

impl core::error::Error for UnknownPrecision {}

impl FromStr for Precision {
    type Err = UnknownPrecision;

    fn from_str(name: &str) -> Result<Self, UnknownPrecision> {
        match name {
            "strict" => Ok(Self::Strict),
            "tf32" => Ok(Self::Tf32),
            _ => Err(UnknownPrecision),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn what_is_printed_is_read() {
        for activation in [
            Activation::None,
            Activation::Relu,
            Activation::Relu6,
            Activation::Gelu,
            Activation::Silu,
            Activation::Leaky(0.25),
        ] {
            assert_eq!(activation.to_string().parse(), Ok(activation));
        }
        assert_eq!("leaky".parse(), Ok(Activation::Leaky(Activation::SLOPE)));
        for bad in ["", "ReLU", "leaky:", "leaky:inf", "leaky:nan", "tanh"] {
            assert!(bad.parse::<Activation>().is_err(), "{bad}");
        }
        for precision in [Precision::Strict, Precision::Tf32] {
            assert_eq!(precision.to_string().parse(), Ok(precision));
        }
        assert!("f32".parse::<Precision>().is_err());
    }
}
