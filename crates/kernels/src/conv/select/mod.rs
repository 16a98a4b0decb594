//! The selection of a kernel, a pure function of the problem and the device's capabilities.
//!
//! It makes a [`Plan`] from a [`Request`] and [`PlanOptions`]. `algorithm` is the registry, the only file that names all
//! kernels; `search` finds the neighbours of a plan, for tuning by measurement.

use core::fmt;

use windowpane_geometry::{Change, Convolution, Tile, TileOverrides};

use super::arrangement::{Arrangement, Rearrangement};
use super::bias;
use super::common::{Arguments, rules, split_k};
use super::problem::{self, Pass, Request, Task, results};
use crate::cube::accumulator;
use crate::device::Capabilities;
use crate::error::{NotApplicable, PlanError, ensure};
use crate::packed;

mod algorithm;
mod explain;
#[cfg(test)]
mod recorded;
mod search;
#[cfg(test)]
mod tests;

pub use algorithm::{Algorithm, Config};
pub use explain::explain;

/// The parts of a plan that are requested; the planner chooses the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    /// The kernel.
    pub algorithm: Option<Algorithm>,
    /// The arrangement that the kernel computes in.
    pub arrangement: Option<Arrangement>,
    /// Numbers of its tile.
    pub tile: TileOverrides,
}

/// How a convolution will run.
///
/// The fields may be overridden one by one before the launch; [`Plan::check`] rejects values that are not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The kernel and its configuration.
    pub config: Config,
    /// The arrangement that the kernel computes in. Tensors in another one are rearranged in the same call.
    pub arrangement: Arrangement,
    /// The units of a cube.
    pub units: u32,
    /// Whether a unit computes a run of neighbouring outputs (threads of a processor) or every n-th output (lanes of a
    /// GPU, whose accesses are then coalesced).
    pub contiguous: bool,
    /// The number of parts that each sum is split into; 1 where there are enough sums.
    pub splits: usize,
}

impl Plan {
    /// Chooses the kernel for a problem and its configuration, as far as the options leave them open: the plan with the
    /// lowest estimated time among those that the device can run.
    pub fn new(
        conv: &Convolution,
        request: Request,
        options: PlanOptions,
        device: &Capabilities,
    ) -> Result<Self, PlanError> {
        problem::check(Task { conv, request, device })?;
        let task = Task { conv, request: request.computed(device), device };
        let mut best: Option<(f64, Self)> = None;
        let mut refused: Option<(f64, PlanError)> = None;
        for (algorithm, arrangement) in candidates(task, options) {
            let tiled = Self::of(algorithm, arrangement, task, options.tile);
            match tiled {
                Ok(plan) => keep_least(&mut best, plan.seconds(task), plan),
                Err(error) => {
                    // The reason of the kernel that would be chosen without the requested tile.
                    let untiled = Self::of(algorithm, arrangement, task, TileOverrides::default());
                    let seconds = untiled.map_or(f64::MAX, |plan| plan.seconds(task));
                    keep_least(&mut refused, seconds, error);
                }
            }
        }
        match (best, refused) {
            (Some((_, plan)), _) => Ok(plan),
            (None, Some((_, error))) => Err(error),
            (None, None) => Err(no_candidate(task, options)),
        }
    }

    /// The estimated seconds of the launch, with the rearrangement and with the addition of the parts of sums.
    fn seconds(&self, task: Task<'_>) -> f64 {
        let Task { conv, request, device } = task;
        let Some(read) = self.read(conv, request.pass) else { return f64::INFINITY };
        let rearrangement = Rearrangement::new(conv, self.arrangement, request.pass);
        let task = Task { conv: &read, ..task };
        let parts = split_k::seconds(task, self.splits);
        let kernel = self.config.kernel().seconds(task, self.splits);
        kernel + parts + rearrangement.seconds(request.dtype, device)
    }

    /// The problem in the arrangement that the kernel computes in; none if the plan is of another problem.
    pub fn read(&self, conv: &Convolution, pass: Pass) -> Option<Convolution> {
        self.arrangement.of(conv, pass)
    }

    /// The plan for a kernel that can compute the problem in this arrangement.
    fn of(
        algorithm: Algorithm,
        arrangement: Arrangement,
        given: Task<'_>,
        overrides: TileOverrides,
    ) -> Result<Self, PlanError> {
        let read = arrangement.of(given.conv, given.request.pass).ok_or(PlanError::Foreign)?;
        let task = Task { conv: &read, ..given };
        let config = algorithm.config(task);
        let none = NotApplicable("none of its tiles fits this device");
        let config = config.ok_or(none.by(algorithm.name()))?;
        let config = config.over(&overrides)?;
        let kernel = config.kernel();
        kernel.check(task)?;
        let plan = Self {
            config,
            arrangement,
            units: kernel.units(task),
            contiguous: task.device.cores.is_some(),
            splits: kernel.splits(task),
        };
        plan.check_counts(given)?;
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
        problem::check(Task { conv, request, device })?;
        let given = Task { conv, request: request.computed(device), device };
        let read = self.read(conv, request.pass).ok_or(PlanError::Foreign)?;
        let task = Task { conv: &read, ..given };
        let algorithm = self.algorithm();
        let refused = algorithm.applies(task);
        refused.map_err(|reason| reason.by(algorithm.name()))?;
        let kernel = self.config.kernel();
        kernel.check(task)?;
        let units = kernel.units(task);
        let fits = !kernel.fixes_units() || self.units == units;
        ensure(fits, PlanError::UnitsOfTile { units: self.units, expected: units })?;
        self.check_counts(given)
    }

    /// Rejects units, parts and memory that the device does not have.
    fn check_counts(&self, task: Task<'_>) -> Result<(), PlanError> {
        let Task { conv, request, device } = task;
        rules::check_units(self.units, device)?;
        let read = self.read(conv, request.pass).ok_or(PlanError::Foreign)?;
        let most = self.config.kernel().most_splits(Task { conv: &read, ..task });
        let splits = self.splits;
        ensure((1..=most).contains(&splits), PlanError::Splits { splits, most })?;
        let rearranged = Rearrangement::new(conv, self.arrangement, request.pass);
        let bytes = self.kernels_workspace(conv, request).max(rearranged.largest(request.dtype));
        let bytes = bytes as u64;
        let limit = device.buffer_bytes;
        ensure(bytes <= limit, PlanError::Workspace { bytes, limit })
    }

    /// The bytes of device memory that the launch needs besides its tensors. If a residual must be transposed, the
    /// launch needs the size of the output in addition. The output of a quantized convolution is counted in `f32`, its
    /// largest type.
    pub fn workspace(&self, conv: &Convolution, request: Request, device: &Capabilities) -> usize {
        let computed = request.computed(device);
        let rearrangement = Rearrangement::new(conv, self.arrangement, request.pass);
        let unpacked = match device.packs(request.dtype) {
            false => 0,
            true => {
                let tensors =
                    [conv.input().elements(), conv.filter().elements(), conv.output().elements()];
                let bytes = tensors.map(|elements| packed::unpacked_bytes(request.dtype, elements));
                bytes.into_iter().fold(0, usize::saturating_add)
            }
        };
        self.kernels_workspace(conv, computed)
            .saturating_add(rearrangement.bytes(computed.dtype))
            .saturating_add(unpacked)
    }

    /// The bytes of the kernel's own scratch memory, and of the partial sums.
    fn kernels_workspace(&self, conv: &Convolution, request: Request) -> usize {
        let Some(read) = self.read(conv, request.pass) else { return 0 };
        let parts = match self.stores_partial_sums() {
            false => 0,
            true => self.splits.saturating_mul(results(&read, request.pass)),
        };
        let own = self.config.kernel().workspace(&read, request, self.splits);
        parts.saturating_mul(accumulator(request.dtype).size()).saturating_add(own)
    }

    /// A description of the form in which the kernel multiplies its factors.
    pub fn factors(&self, conv: &Convolution, request: Request) -> &'static str {
        let read = self.read(conv, request.pass);
        self.config.kernel().factors(read.as_ref().unwrap_or(conv), request)
    }

    /// Whether the kernel stores partial sums, which another launch adds.
    pub(super) fn stores_partial_sums(&self) -> bool {
        self.splits > 1
    }

    /// Launches the kernel on tensors that have been checked.
    pub(super) fn launch(&self, arguments: &Arguments<'_>) -> Result<(), PlanError> {
        match arguments.task.request.pass {
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
        let Self { config, arrangement, units, splits, .. } = self;
        write!(f, "{config} layout={arrangement} units={units} splits={splits}")
    }
}

/// The kernels that can compute a problem and that the options allow, with each arrangement in which they can.
fn candidates(
    task: Task<'_>,
    options: PlanOptions,
) -> impl Iterator<Item = (Algorithm, Arrangement)> {
    let is_allowed =
        move |algorithm: &Algorithm| options.algorithm.is_none_or(|own| own == *algorithm);
    // The direct kernel has no tile, so it cannot have a requested one.
    let has_tile = move |algorithm: &Algorithm| {
        *algorithm != Algorithm::Direct || options.tile == TileOverrides::default()
    };
    let forms: Vec<_> = forms(task, options).collect();
    let allowed =
        Algorithm::ALL.into_iter().filter(move |kernel| is_allowed(kernel) && has_tile(kernel));
    allowed.flat_map(move |algorithm| {
        let applies = |(_, read): &&(Arrangement, Convolution)| {
            algorithm.applies(Task { conv: read, ..task }).is_ok()
        };
        let applicable = forms.iter().filter(applies);
        applicable.map(|(arrangement, _)| (algorithm, *arrangement)).collect::<Vec<_>>()
    })
}

/// The forms that the options allow, with the problem in each of them.
fn forms(task: Task<'_>, options: PlanOptions) -> impl Iterator<Item = (Arrangement, Convolution)> {
    let allowed = match options.arrangement {
        Some(arrangement) => vec![arrangement],
        None => Arrangement::all(task.conv).collect(),
    };
    let read = move |arrangement: Arrangement| arrangement.of(task.conv, task.request.pass);
    allowed.into_iter().filter_map(move |own| Some((own, read(own)?)))
}

/// Why no kernel can compute a problem with these options.
fn no_candidate(task: Task<'_>, options: PlanOptions) -> PlanError {
    let Task { conv, request, .. } = task;
    let tiled = options.tile != TileOverrides::default();
    match options.algorithm {
        Some(Algorithm::Direct) if tiled => PlanError::Untiled { kernel: Algorithm::Direct.name() },
        Some(algorithm) => {
            let arrangement = options.arrangement.unwrap_or_else(|| Arrangement::own(conv));
            let Some(read) = arrangement.of(conv, request.pass) else {
                let reason = match arrangement.change {
                    Some(Change::Sampled) => "its windows skip no pixels",
                    Some(Change::SpaceToDepth) => {
                        "space to depth needs channels last, windows with a stride and at least as many taps, and whole blocks of \
                         pixels, or a gradient of few channels"
                    }
                    _ => "it reads no filters of several channels whose taps are contiguous",
                };
                return NotApplicable(reason).by(algorithm.name());
            };
            let refused = algorithm.applies(Task { conv: &read, ..task }).err();
            refused
                .unwrap_or(NotApplicable("it cannot be used with these options"))
                .by(algorithm.name())
        }
        None if tiled => PlanError::NoTiledKernel,
        // In other precisions, the direct kernel computes every problem.
        None => PlanError::NoTf32,
    }
}

/// Replaces a value by one with a lower estimate.
fn keep_least<T>(least: &mut Option<(f64, T)>, seconds: f64, value: T) {
    if least.as_ref().is_none_or(|(before, _)| seconds < *before) {
        *least = Some((seconds, value));
    }
}
