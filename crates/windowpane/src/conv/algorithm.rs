//! The convolution algorithms by their public names, available in builds without kernels too.

use core::fmt;
use core::str::FromStr;

#[cfg(feature = "kernels")]
use windowpane_kernels::conv::Algorithm;

/// A convolution algorithm, independent of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConvAlgorithm {
    /// Computes every element of the result separately. Applies to every problem, except in tf32; best only for the
    /// smallest.
    Direct,
    /// Groups with few channels, or one, on matrix units: the filters become banded matrices.
    GroupedMma,
    /// Depthwise: one filter per channel, several windows at a time.
    Depthwise,
    /// On `host`: products of the weights with matrices of what the windows read (im2col).
    Gemm,
    /// Groups with few channels: several windows by a vector of the group's filters per thread.
    Grouped,
    /// Implicit GEMM: tiles in shared memory, multiply-adds in registers.
    Simt,
    /// Implicit GEMM on matrix units.
    Mma,
    /// Implicit GEMM with Hopper's warpgroup instructions and tensor copy engine.
    Wgmma,
    /// On a CPU: a few windows by a few vectors of filters per thread.
    Cpu,
}

impl ConvAlgorithm {
    /// Every algorithm.
    pub const ALL: [Self; 9] = [
        Self::Direct,
        Self::GroupedMma,
        Self::Depthwise,
        Self::Gemm,
        Self::Grouped,
        Self::Simt,
        Self::Mma,
        Self::Wgmma,
        Self::Cpu,
    ];

    /// The name as it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::GroupedMma => "grouped_mma",
            Self::Depthwise => "depthwise",
            Self::Gemm => "gemm",
            Self::Grouped => "grouped",
            Self::Simt => "simt",
            Self::Mma => "mma",
            Self::Wgmma => "wgmma",
            Self::Cpu => "cpu",
        }
    }

    /// The algorithm that had this name in an earlier version; case files and tuned tables may still contain it.
    fn by_former_name(name: &str) -> Option<Self> {
        Some(match name {
            "banded" => Self::GroupedMma,
            "tiled" => Self::Simt,
            "matrix" => Self::Mma,
            "hopper" => Self::Wgmma,
            "wide" => Self::Cpu,
            _ => return None,
        })
    }
}

impl fmt::Display for ConvAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for an unknown algorithm name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown algorithm `{0}`; use one of auto, {names}", names = names())]
pub struct UnknownConvAlgorithm(String);

fn names() -> String {
    ConvAlgorithm::ALL.map(ConvAlgorithm::name).join(", ")
}

impl FromStr for ConvAlgorithm {
    type Err = UnknownConvAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownConvAlgorithm> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .or_else(|| Self::by_former_name(name))
            .ok_or_else(|| UnknownConvAlgorithm(name.into()))
    }
}

/// The public name of a kernel; [`kernel`](ConvAlgorithm::kernel) is the way back. There are two enums because the names exist in builds without kernels, and
/// because the planner must handle every variant of its own.
#[cfg(feature = "kernels")]
impl From<Algorithm> for ConvAlgorithm {
    fn from(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Direct => Self::Direct,
            Algorithm::GroupedMma => Self::GroupedMma,
            Algorithm::Depthwise => Self::Depthwise,
            Algorithm::Grouped => Self::Grouped,
            Algorithm::Simt => Self::Simt,
            Algorithm::Mma => Self::Mma,
            Algorithm::Wgmma => Self::Wgmma,
            Algorithm::Cpu => Self::Cpu,
            // The enum may grow; this crate grows with it.
            other => unreachable!("{other} has no public name"),
        }
    }
}

#[cfg(feature = "kernels")]
impl ConvAlgorithm {
    /// The kernel of this name; `None` for what only `host` has.
    pub fn kernel(self) -> Option<Algorithm> {
        Some(match self {
            Self::Direct => Algorithm::Direct,
            Self::GroupedMma => Algorithm::GroupedMma,
            Self::Depthwise => Algorithm::Depthwise,
            Self::Grouped => Algorithm::Grouped,
            Self::Simt => Algorithm::Simt,
            Self::Mma => Algorithm::Mma,
            Self::Wgmma => Algorithm::Wgmma,
            Self::Cpu => Algorithm::Cpu,
            Self::Gemm => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel has the same name here and in its own crate; the conversions are inverse to each other.
    #[test]
    #[cfg(feature = "kernels")]
    fn every_algorithm_is_a_kernel_of_its_name() {
        for algorithm in ConvAlgorithm::ALL {
            let Some(kernel) = algorithm.kernel() else {
                assert_eq!(algorithm, ConvAlgorithm::Gemm);
                continue;
            };
            assert_eq!(kernel.name(), algorithm.name());
            assert_eq!(ConvAlgorithm::from(kernel), algorithm);
        }
    }

    /// Former names are still read; they are printed as the current names.
    #[test]
    fn former_names_are_read() {
        for (former, name) in [
            ("banded", "grouped_mma"),
            ("tiled", "simt"),
            ("matrix", "mma"),
            ("hopper", "wgmma"),
            ("wide", "cpu"),
        ] {
            assert_eq!(former.parse(), name.parse::<ConvAlgorithm>());
            assert_eq!(former.parse::<ConvAlgorithm>().map(ConvAlgorithm::name), Ok(name));
        }
        for algorithm in ConvAlgorithm::ALL {
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
        }
    }
}
