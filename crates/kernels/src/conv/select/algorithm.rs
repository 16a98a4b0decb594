//! The registry: the only file that names all kernels. Each kernel's own folder has its conditions.

use core::fmt;

use windowpane_geometry::TileOverrides;

use crate::conv::common::Kernel;
use crate::conv::implicit_gemm::{mma, simt, wgmma};
use crate::conv::problem::{Pass, Task};
use crate::conv::{cpu, depthwise, direct, grouped, grouped_mma};
use crate::error::{NotApplicable, PlanError, require};

/// Declares the kernels, in the order in which they are listed: each has a module of its name, whose `Config`
/// implements [`Kernel`].
macro_rules! kernels {
    ($($(#[$doc:meta])* $kernel:ident: $module:ident,)*) => {
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
            $($(#[$doc])* $kernel($module::Config),)*
        }

        impl Algorithm {
            /// All algorithms, in the order in which they are listed.
            pub const ALL: [Self; [$(Self::$kernel),*].len()] = [$(Self::$kernel),*];

            /// The printed name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kernel => stringify!($module),)*
                }
            }

            /// Whether the kernel can compute a problem on a device, and if not, why.
            pub(super) fn applies(self, task: Task<'_>) -> Result<(), NotApplicable> {
                match self {
                    $(Self::$kernel => applies::<$module::Config>(task),)*
                }
            }

            /// The best configuration for a problem and a device.
            pub(super) fn config(self, task: Task<'_>) -> Option<Config> {
                match self {
                    $(Self::$kernel => $module::Config::new(task).map(Config::$kernel),)*
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

            /// The configuration with some numbers of its tile replaced.
            pub(super) fn over(self, overrides: &TileOverrides) -> Result<Self, PlanError> {
                match self {
                    $(Self::$kernel(config) => config.over(overrides).map(Self::$kernel),)*
                }
            }
        }
    };
}

kernels! {
    /// Groups with few channels on matrix units, with filters as banded matrices.
    GroupedMma: grouped_mma,
    /// One filter per channel: a unit computes a block of windows by a vector of channels.
    Depthwise: depthwise,
    /// A processor's thread computes a few windows by a few vectors of filters.
    Cpu: cpu,
    /// Groups with few channels: a unit computes a run of windows by a vector of a group's filters.
    Grouped: grouped,
    /// Implicit GEMM on Hopper's warpgroups, fed by the tensor copy engine.
    Wgmma: wgmma,
    /// Implicit GEMM with fragments on matrix units.
    Mma: mma,
    /// Implicit GEMM with blocks in shared memory and accumulators in registers.
    Simt: simt,
    /// One unit computes one output element from all taps.
    Direct: direct,
}

fn applies<C: Kernel>(task: Task<'_>) -> Result<(), NotApplicable> {
    let adds = task.request.pass != Pass::Bias || C::computes_bias_gradients();
    require(adds, "a bias gradient has no products")?;
    let multiplies = !task.request.is_quantized() || C::multiplies_integers();
    require(multiplies, "it does not multiply integers")?;
    C::applies(task)
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Prints the kernel and its numbers, `simt block_m=128,…`.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = format!("{} {}", self.algorithm(), self.kernel());
        f.write_str(line.trim_end())
    }
}
