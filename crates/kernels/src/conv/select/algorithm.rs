//! The registry: the only file that names all kernels. Each kernel's own folder has its conditions.

use core::fmt;

use windowpane_geometry::TileOverrides;

use crate::conv::common::kernel::Kernel;
use crate::conv::implicit_gemm::{mma, simt, wgmma};
use crate::conv::problem::{Pass, Task};
use crate::conv::{cpu, depthwise, direct, grouped, grouped_mma};
use crate::error::{NotApplicable, PlanError};

/// Declares the kernels, in the order in which they are listed: each has a configuration and a name.
macro_rules! kernels {
    ($($(#[$doc:meta])* $kernel:ident($config:ty): $name:expr,)*) => {
        /// The kernels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Algorithm {
            $($(#[$doc])* $kernel,)*
        }

        /// A kernel's configuration.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Config {
            $($(#[$doc])* $kernel($config),)*
        }

        impl Algorithm {
            /// All algorithms, in the order in which they are listed.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$kernel),*];

            /// The printed name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kernel => $name,)*
                }
            }
        }

        impl Config {
            /// The kernel that this configures.
            pub fn algorithm(&self) -> Algorithm {
                match self {
                    $(Self::$kernel(_) => Algorithm::$kernel,)*
                }
            }

            pub(super) fn kernel(&self) -> &dyn Kernel {
                match self {
                    $(Self::$kernel(config) => config,)*
                }
            }
        }
    };
}

kernels! {
    /// Groups with few channels on matrix units, with filters as banded matrices.
    GroupedMma(grouped_mma::Config): grouped_mma::config::NAME,
    /// One filter per channel: a unit computes a block of windows by a vector of channels.
    Depthwise(depthwise::Config): depthwise::config::NAME,
    /// A processor's thread computes a few windows by a few vectors of filters.
    Cpu(cpu::Config): cpu::config::NAME,
    /// Groups with few channels: a unit computes a run of windows by a vector of a group's filters.
    Grouped(grouped::Config): grouped::config::NAME,
    /// Implicit GEMM on Hopper's warpgroups, fed by the tensor copy engine.
    Wgmma(wgmma::Config): wgmma::config::NAME,
    /// Implicit GEMM with fragments on matrix units.
    Mma(mma::Config): mma::config::NAME,
    /// Implicit GEMM with blocks in shared memory and accumulators in registers.
    Simt(simt::Config): simt::config::NAME,
    /// One unit computes one output element from all taps.
    Direct(direct::Config): direct::NAME,
}

impl Algorithm {
    /// Whether the kernel can compute a problem on a device, and if not, why.
    pub(super) fn applies(self, task: Task<'_>) -> Result<(), NotApplicable> {
        // The bias gradient is a sum without products; it has a kernel of its own.
        if task.request.pass == Pass::Bias && self != Self::Direct {
            return Err(NotApplicable("a bias gradient has no products"));
        }
        let multiplies_integers = matches!(self, Self::Direct | Self::Simt | Self::Mma);
        if task.request.is_quantized() && !multiplies_integers {
            return Err(NotApplicable("it does not multiply integers"));
        }
        match self {
            Self::Cpu => cpu::config::applies(task),
            Self::Depthwise => depthwise::config::applies(task),
            Self::Direct => direct::applies(task.request),
            Self::Grouped => grouped::config::applies(task),
            Self::GroupedMma => grouped_mma::config::applies(task),
            Self::Mma => mma::config::applies(task),
            Self::Simt => simt::config::applies(task),
            Self::Wgmma => wgmma::config::applies(task),
        }
    }

    /// The best configuration for a problem and a device.
    pub(super) fn config(self, task: Task<'_>) -> Option<Config> {
        Some(match self {
            Self::Cpu => Config::Cpu(cpu::Config::new(task)),
            Self::Depthwise => Config::Depthwise(depthwise::Config::new(task)),
            Self::Direct => Config::Direct(direct::Config),
            Self::Grouped => Config::Grouped(grouped::Config::DEFAULT),
            Self::GroupedMma => Config::GroupedMma(grouped_mma::Config::new(task)?),
            Self::Mma => Config::Mma(mma::Config::new(task)?),
            Self::Simt => Config::Simt(simt::Config::new(task)?),
            Self::Wgmma => Config::Wgmma(wgmma::Config::new(task)?),
        })
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Config {
    /// The configuration with some numbers of its tile replaced.
    pub(super) fn over(self, overrides: &TileOverrides) -> Result<Self, PlanError> {
        Ok(match self {
            Self::Cpu(config) => Self::Cpu(config.over(overrides)?),
            Self::Depthwise(config) => Self::Depthwise(config.over(overrides)?),
            Self::Direct(_) if *overrides != TileOverrides::default() => {
                return Err(PlanError::Untiled { kernel: direct::NAME });
            }
            Self::Direct(config) => Self::Direct(config),
            Self::Grouped(config) => Self::Grouped(config.over(overrides)?),
            Self::GroupedMma(config) => Self::GroupedMma(config.over(overrides)?),
            Self::Mma(config) => Self::Mma(config.over(overrides)),
            Self::Simt(config) => Self::Simt(config.over(overrides)),
            Self::Wgmma(config) => Self::Wgmma(config.over(overrides)?),
        })
    }
}

/// Prints the kernel and its numbers, `simt block_m=128,…`.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: &dyn fmt::Display = match self {
            Self::Direct(_) => return f.write_str(direct::NAME),
            Self::Cpu(config) => config,
            Self::Depthwise(config) => config,
            Self::Grouped(config) => config,
            Self::GroupedMma(config) => config,
            Self::Mma(config) => config,
            Self::Simt(config) => config,
            Self::Wgmma(config) => config,
        };
        write!(f, "{} {numbers}", self.algorithm())
    }
}
