//! The interface between a kernel and the selection.

use core::fmt;

use cubecl::client::Client;

use crate::device::Capabilities;
use crate::pool::common::buffers::Buffers;
use crate::pool::common::settings::Settings;
use crate::pool::error::PlanError;
use crate::pool::problem::Problem;

/// One way to compute a pooling or its gradient. The implementing type is its configuration: the settings that only
/// this kernel has.
pub(in crate::pool) trait Kernel: Copy + fmt::Display {
    /// The name that plans print, and by which users select the kernel.
    const NAME: &'static str;

    /// Plans the kernel for a problem; an error if it cannot compute the problem on the device.
    fn plan(problem: Problem<'_>, device: &Capabilities) -> Result<(Settings, Self), PlanError>;

    /// Refuses settings and a configuration that the kernel cannot run with.
    fn check(
        &self,
        settings: &Settings,
        problem: Problem<'_>,
        device: &Capabilities,
    ) -> Result<(), PlanError>;

    /// The estimated time of all launches of a checked plan.
    fn seconds(&self, settings: &Settings, problem: Problem<'_>, device: &Capabilities) -> f64;

    /// Launches the kernel. The plan and the buffers must have been checked.
    fn launch(
        &self,
        client: &Client,
        problem: Problem<'_>,
        settings: &Settings,
        buffers: Buffers<'_>,
    ) -> Result<(), PlanError>;
}
