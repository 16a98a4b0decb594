//! The selection of a kernel, a pure function of the problem and the device's capabilities.
//!
//! It makes a [`Plan`] from a [`Request`] and a [`Wish`]. `algorithm` is the registry, the only file that names all
//! kernels; `search` finds the neighbours of a plan, for tuning by measurement.

use core::fmt;

use windowpane_geometry::{Convolution, DType, Layout, Tile, Tiling};

use super::bias;
use super::common::arguments::Arguments;
use super::common::rules;
use super::error::PlanError;
use super::problem::{self, Pass, Request, in_layout, results};
use super::transposes::Transposes;
use crate::cube::convert::accumulator;
use crate::device::Capabilities;

mod algorithm;
mod explain;
#[cfg(test)]
mod recorded;
mod search;
#[cfg(test)]
mod tests;

pub use algorithm::{Algorithm, Config};
pub use explain::{Verdict, explain};

/// The parts of a plan that are requested; the planner chooses the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The kernel.
    pub algorithm: Option<Algorithm>,
    /// The layout that the kernel computes in.
    pub layout: Option<Layout>,
    /// Numbers of its tile.
    pub tiling: Tiling,
}

/// How a convolution will run.
///
/// The fields may be overridden one by one before the launch; [`Plan::check`] rejects values that are not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The kernel and its configuration.
    pub config: Config,
    /// The layout that the kernel computes in. Tensors in another layout are transposed in the same call.
    pub layout: Layout,
    /// The units of a cube.
    pub units: u32,
    /// Whether a unit computes a run of neighbouring outputs (threads of a processor) or every n-th output (lanes of a
    /// GPU, whose accesses are then contiguous).
    pub runs: bool,
    /// The number of parts that each sum is split into; 1 where there are enough sums.
    pub splits: usize,
}

impl Plan {
    /// Chooses the kernel for a problem and its configuration, as far as the wish leaves them open.
    pub fn new(
        conv: &Convolution,
        request: Request,
        wish: Wish,
        device: &Capabilities,
    ) -> Result<Self, PlanError> {
        problem::check(conv, request, device)?;
        let Some((algorithm, layout)) = first_of_ladder(conv, request, wish, device) else {
            return Err(PlanError::NoKernel { kernel: wish.algorithm.map(Algorithm::name) });
        };
        let plan = Self::of(algorithm, layout, conv, request, wish, device);
        let is_free = wish.algorithm.is_none() && wish.layout.is_none();
        if plan.is_err() && is_free && layout != conv.layout() {
            // A problem that does not fit with transposes may fit in its own layout.
            return Self::new(conv, request, Wish { layout: Some(conv.layout()), ..wish }, device);
        }
        plan
    }

    /// The plan for a kernel that can compute the problem in this layout.
    fn of(
        algorithm: Algorithm,
        layout: Layout,
        conv: &Convolution,
        request: Request,
        wish: Wish,
        device: &Capabilities,
    ) -> Result<Self, PlanError> {
        let given = conv;
        let conv = &in_layout(given, request.pass, layout);
        let config = algorithm.config(conv, request, device);
        let config = config.ok_or(PlanError::NoKernel { kernel: Some(algorithm.name()) })?;
        let config = config.over(&wish.tiling)?;
        let kernel = config.kernel();
        kernel.check(conv, request, device)?;
        let plan = Self {
            config,
            layout,
            units: kernel.units(conv, request, device),
            runs: device.cores.is_some(),
            splits: kernel.splits(conv, request, device),
        };
        plan.check_counts(given, request, device)?;
        Ok(plan)
    }

    /// The kernel.
    pub fn algorithm(&self) -> Algorithm {
        self.config.algorithm()
    }

    /// The kernel's configuration as a tile, with the names that all kernels share; none where there is nothing to
    /// configure.
    pub fn tile(&self) -> Option<Tile> {
        self.config.kernel().tile()
    }

    /// Rejects values that no kernel can run with.
    pub fn check(
        &self,
        conv: &Convolution,
        request: Request,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        problem::check(conv, request, device)?;
        let given = conv;
        let conv = &in_layout(given, request.pass, self.layout);
        if self.algorithm().applies(conv, request, device).is_err() {
            return Err(PlanError::NoKernel { kernel: Some(self.algorithm().name()) });
        }
        let kernel = self.config.kernel();
        kernel.check(conv, request, device)?;
        let units = kernel.units(conv, request, device);
        if kernel.fixes_units() && self.units != units {
            return Err(PlanError::UnitsOfTile { units: self.units, expected: units });
        }
        self.check_counts(given, request, device)
    }

    /// Rejects units, parts and memory that the device does not have.
    fn check_counts(
        &self,
        conv: &Convolution,
        request: Request,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        rules::check_units(self.units, device)?;
        let read = in_layout(conv, request.pass, self.layout);
        let most = self.config.kernel().most_splits(&read, request, device);
        if self.splits == 0 || self.splits > most {
            return Err(PlanError::Splits { splits: self.splits, most });
        }
        // A transposed tensor is as large as the original, whose size was checked.
        let bytes = self.kernels_workspace(conv, request) as u64;
        if bytes > device.buffer_bytes {
            return Err(PlanError::Workspace { bytes, limit: device.buffer_bytes });
        }
        Ok(())
    }

    /// The bytes of device memory that the launch needs besides its tensors. If a residual must be transposed, the
    /// launch needs the size of the output in addition.
    pub fn workspace(&self, conv: &Convolution, request: Request) -> usize {
        let transposes = Transposes::new(conv, self.layout, request.pass).bytes(request.dtype);
        self.kernels_workspace(conv, request).saturating_add(transposes)
    }

    /// The bytes of the kernel's own scratch memory, and of the partial sums.
    fn kernels_workspace(&self, conv: &Convolution, request: Request) -> usize {
        let parts = match self.cuts(request.pass, request.dtype) {
            false => 0,
            true => self.splits.saturating_mul(results(conv, request.pass)),
        };
        let conv = &in_layout(conv, request.pass, self.layout);
        let own = self.config.kernel().workspace(conv, request, self.splits);
        parts.saturating_mul(accumulator(request.dtype).size()).saturating_add(own)
    }

    /// A description of the form in which the kernel multiplies its factors.
    pub fn factors(&self, conv: &Convolution, request: Request) -> &'static str {
        self.config.kernel().factors(&in_layout(conv, request.pass, self.layout), request)
    }

    /// Whether a kernel stores partial sums. Where sums are long, it always stores them as wide as partial sums, so
    /// that another batch size, with another number of parts, does not need another kernel.
    pub(super) fn cuts(&self, pass: Pass, dtype: DType) -> bool {
        let long = matches!(pass, Pass::Filter | Pass::Bias);
        let fixed = self.config.kernel().depends_on_batch();
        self.splits > 1 || (long && !fixed && dtype != accumulator(dtype))
    }

    /// The type in which a kernel stores its sums.
    pub(super) fn stored(&self, pass: Pass, dtype: DType) -> DType {
        if self.cuts(pass, dtype) { accumulator(dtype) } else { dtype }
    }

    /// Launches the kernel on tensors that have been checked.
    pub(super) fn launch(&self, arguments: &Arguments<'_>) -> Result<(), PlanError> {
        match arguments.request.pass {
            Pass::Bias => {
                bias::launch(arguments);
                Ok(())
            }
            _ => self.config.kernel().launch(arguments),
        }
    }
}

/// Prints `simt block_m=128,… layout=channels-last units=256 splits=1`.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, layout, units, splits, .. } = self;
        write!(f, "{config} layout={layout} units={units} splits={splits}")
    }
}

/// The first kernel of the ladder that can compute a problem and that pays off (or is the requested one), and the
/// layout that it computes in.
fn first_of_ladder(
    conv: &Convolution,
    request: Request,
    wish: Wish,
    device: &Capabilities,
) -> Option<(Algorithm, Layout)> {
    let layout =
        |algorithm: Algorithm| wish.layout.unwrap_or(algorithm.reads(conv, request).layout());
    let is_asked = |algorithm: Algorithm| match wish.algorithm {
        Some(wished) => wished == algorithm,
        None => algorithm.pays(conv, request, device),
    };
    // The direct kernel has no tile, so it cannot satisfy a wish for one.
    let has_tile = |algorithm| algorithm != Algorithm::Direct || wish.tiling == Tiling::default();
    let found = Algorithm::LADDER.into_iter().find(|&algorithm| {
        let conv = in_layout(conv, request.pass, layout(algorithm));
        is_asked(algorithm)
            && has_tile(algorithm)
            && algorithm.applies(&conv, request, device).is_ok()
    });
    found.map(|algorithm| (algorithm, layout(algorithm)))
}
