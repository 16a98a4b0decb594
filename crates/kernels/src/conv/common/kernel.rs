//! The interface that all kernels implement.

use core::fmt::{Debug, Display};

use windowpane_geometry::{Convolution, Precision, Tile, TileOverrides};

use super::{Arguments, split_k};
use crate::conv::problem::{Request, Task};
use crate::error::{NotApplicable, PlanError};

/// A kernel and its configuration. Each kernel's `Config` implements it, and prints its numbers.
pub(crate) trait Kernel: Debug + Display {
    /// Whether it computes quantized convolutions.
    fn multiplies_integers() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// Whether it computes bias gradients, which are sums without products.
    fn computes_bias_gradients() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// Whether the kernel can compute a problem on a device, and if not, why.
    fn applies(task: Task<'_>) -> Result<(), NotApplicable>
    where
        Self: Sized;

    /// The best configuration for a problem and a device.
    fn new(task: Task<'_>) -> Option<Self>
    where
        Self: Sized;

    /// The configuration with some numbers of its tile replaced.
    fn over(self, overrides: &TileOverrides) -> Result<Self, PlanError>
    where
        Self: Sized;

    /// The configuration as a tile, with the names that all kernels share; none where there is nothing to
    /// configure.
    fn tile(&self) -> Option<Tile>;

    /// Returns an error for a configuration that the kernel does not support.
    fn check(&self, task: Task<'_>) -> Result<(), PlanError>;

    /// The units of a cube, for a configuration that has been checked.
    fn units(&self, task: Task<'_>) -> u32;

    /// Whether the units of a cube follow from the configuration.
    fn fixes_units(&self) -> bool {
        false
    }

    /// The number of parts that each sum is split into.
    fn splits(&self, task: Task<'_>) -> usize {
        split_k::splits(task)
    }

    /// The largest number of parts that the kernel supports.
    fn most_splits(&self, task: Task<'_>) -> usize {
        split_k::most(task.conv, task.request.pass)
    }

    /// The bytes of scratch memory that the launch needs besides its tensors and partial sums.
    fn workspace(&self, _conv: &Convolution, _request: Request, _splits: usize) -> usize {
        0
    }

    /// A description of the form in which the kernel multiplies its factors.
    fn factors(&self, _conv: &Convolution, request: Request) -> &'static str {
        match request.precision {
            Precision::Tf32 => "rounded to tf32",
            Precision::Strict => "as they are",
        }
    }

    /// The estimated seconds of the kernel and of what it launches besides, except for the addition of the parts of sums.
    fn seconds(&self, task: Task<'_>, splits: usize) -> f64;

    /// Launches the kernel.
    fn launch(&self, arguments: &Arguments<'_>) -> Result<(), PlanError>;
}
