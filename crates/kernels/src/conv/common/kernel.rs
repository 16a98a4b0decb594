//! The shape that all kernels have.

use core::fmt::Debug;

use windowpane_geometry::{Convolution, Precision, Tile};

use super::arguments::Arguments;
use super::split_k;
use crate::conv::error::PlanError;
use crate::conv::problem::{Pass, Request};
use crate::device::Capabilities;

/// A kernel with all that it may be configured by: the configurations of kernels implement it.
pub(in crate::conv) trait Kernel: Debug {
    /// The configuration by the names that tiles of all kernels share; none where there is nothing to
    /// configure.
    fn tile(&self) -> Option<Tile>;

    /// Refuses a configuration that there is no such kernel for.
    fn check(
        &self,
        conv: &Convolution,
        request: Request,
        device: &Capabilities,
    ) -> Result<(), PlanError>;

    /// The units of a cube, for a configuration that was checked.
    fn units(&self, conv: &Convolution, request: Request, device: &Capabilities) -> u32;

    /// Whether the units of a cube follow from the configuration.
    fn fixes_units(&self) -> bool {
        false
    }

    /// Whether another batch may have another configuration.
    fn depends_on_batch(&self) -> bool {
        false
    }

    /// The parts that each sum is cut into.
    fn splits(&self, conv: &Convolution, request: Request, device: &Capabilities) -> usize {
        split_k::splits(conv, request.pass, device)
    }

    /// The most parts whose number the kernel can count.
    fn most_splits(&self, conv: &Convolution, pass: Pass) -> usize {
        split_k::most(conv, pass)
    }

    /// The bytes of device memory that the launch takes beside its tensors and the parts of sums.
    fn workspace(&self, _conv: &Convolution, _request: Request, _splits: usize) -> usize {
        0
    }

    /// How the kernel takes its factors, in words.
    fn factors(&self, _conv: &Convolution, request: Request) -> &'static str {
        match request.precision {
            Precision::Tf32 => "rounded to tf32",
            Precision::Strict => "as they are",
        }
    }

    /// Launches the kernel.
    fn launch(&self, arguments: &Arguments<'_>) -> Result<(), PlanError>;
}
