//! The interface between a kernel and the selection.

use core::fmt;

use crate::device::Capabilities;
use crate::error::PlanError;
use crate::pool::common::{Buffers, Settings, Task};
use crate::pool::problem::Problem;

/// One way to compute a pooling or its gradient. The implementing type is its configuration: the settings that only
/// this kernel has.
pub(crate) trait Kernel: Copy + fmt::Display {
    /// Refuses problems and devices that the kernel does not support, whatever the settings.
    fn applies(problem: Problem<'_>, device: &Capabilities) -> Result<(), PlanError>;

    /// Plans the kernel for a problem that it applies to: the settings that replace the task's, and the configuration. The
    /// selection checks both.
    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError>;

    /// Refuses settings and a configuration that the kernel cannot run with, for a problem that it applies to. Most
    /// kernels need lanes that divide a pixel.
    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        task.check_lanes()
    }

    /// The estimated time of all launches of a checked plan.
    fn seconds(&self, task: Task<'_>) -> f64;

    /// Launches the kernel. The plan and the buffers must have been checked.
    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError>;
}

/// Declares the configuration of a kernel that has no settings of its own.
macro_rules! no_config {
    () => {
        /// This kernel has no settings of its own.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Config;

        impl core::fmt::Display for Config {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str("as planned")
            }
        }
    };
}

pub(crate) use no_config;
