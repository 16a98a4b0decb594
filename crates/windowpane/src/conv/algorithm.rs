//! The ways to convolve by their public names, which are there without any kernel.

use core::fmt;
use core::str::FromStr;

#[cfg(feature = "kernels")]
use windowpane_kernels::conv::Algorithm;

/// A way to convolve, whatever the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConvAlgorithm {
    /// Every element of the result for itself: there for every problem, best for none but the
    /// smallest.
    Direct,
    /// Groups of few channels, or one, their filters as matrices of bands for matrix units.
    Banded,
    /// A filter a channel, a run of windows at a time.
    Depthwise,
    /// Groups of few channels, a run of windows by a vector of a group's filters at a time.
    Grouped,
    /// Blocks of windows by filters in shared memory, summed in registers.
    Tiled,
    /// The same, multiplied by matrix units.
    Matrix,
    /// The same on Hopper's warpgroups, fed by its tensor copy engine.
    Hopper,
    /// On a processor, a few windows by a few vectors of filters a thread.
    Wide,
}

impl ConvAlgorithm {
    /// Every algorithm.
    pub const ALL: [Self; 8] = [
        Self::Direct,
        Self::Banded,
        Self::Depthwise,
        Self::Grouped,
        Self::Tiled,
        Self::Matrix,
        Self::Hopper,
        Self::Wide,
    ];

    /// The name as it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Banded => "banded",
            Self::Depthwise => "depthwise",
            Self::Grouped => "grouped",
            Self::Tiled => "tiled",
            Self::Matrix => "matrix",
            Self::Hopper => "hopper",
            Self::Wide => "wide",
        }
    }
}

impl fmt::Display for ConvAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not that of a way to convolve.
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
            .ok_or_else(|| UnknownConvAlgorithm(name.into()))
    }
}

/// The kernel by its public name. The two enums are two because a name is there without any kernel, and
/// because the kernels' planner is to decide about every one of its own.
#[cfg(feature = "kernels")]
impl From<Algorithm> for ConvAlgorithm {
    fn from(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Direct => Self::Direct,
            Algorithm::Banded => Self::Banded,
            Algorithm::Depthwise => Self::Depthwise,
            Algorithm::Grouped => Self::Grouped,
            Algorithm::Hopper => Self::Hopper,
            Algorithm::Matrix => Self::Matrix,
            Algorithm::Tiled => Self::Tiled,
            Algorithm::Wide => Self::Wide,
            // The enum may grow; this crate grows with it.
            other => unreachable!("{other} has no public name"),
        }
    }
}

#[cfg(feature = "kernels")]
impl From<ConvAlgorithm> for Algorithm {
    fn from(algorithm: ConvAlgorithm) -> Self {
        match algorithm {
            ConvAlgorithm::Direct => Self::Direct,
            ConvAlgorithm::Banded => Self::Banded,
            ConvAlgorithm::Depthwise => Self::Depthwise,
            ConvAlgorithm::Grouped => Self::Grouped,
            ConvAlgorithm::Hopper => Self::Hopper,
            ConvAlgorithm::Matrix => Self::Matrix,
            ConvAlgorithm::Tiled => Self::Tiled,
            ConvAlgorithm::Wide => Self::Wide,
        }
    }
}
