//! The registry of pooling kernels: the only file that names all of them. It chooses one for each problem.
//!
//! The choice is a pure function of the problem and the device's capabilities, so it can be queried, printed,
//! overridden and tested without a device.

#[cfg(test)]
mod tests;

use core::fmt;

use cubecl::client::Client;
use windowpane_geometry::{AXES, Axis, DType, IndexBase, Pooling};

use super::common::buffers::Buffers;
use super::common::kernel::Kernel;
use super::common::lanes::{UNROLLED_TAPS, widest_divisor, widest_load};
use super::common::settings::Settings;
use super::error::PlanError;
use super::problem::{Output, Problem, Reduction, outermost, pixel_channels};
use super::{
    block_reduce, cpu_rows, direct, gather, gather_staged, gather_tile, lp, register_tile,
    segmented_scatter, stencil_flat, stencil_rolling, unpacked, unpool, van_herk,
};
use crate::device::Capabilities;

/// Declares the kernels: each has a name and a module, whose `Config` implements [`Kernel`].
macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident: $module:ident,)*) => {
        /// A pooling kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Algorithm {
            $($(#[$doc])* $name,)*
        }

        /// The settings that belong to the plan's kernel only.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Config {
            $($(#[$doc])* $name($module::Config),)*
        }

        impl Algorithm {
            /// Every kernel.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name that plans print.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => <$module::Config as Kernel>::NAME,)*
                }
            }

            /// Plans the kernel for a problem; an error if it cannot compute the problem.
            fn plan(self, problem: Problem<'_>, device: &Capabilities) -> Result<Plan, PlanError> {
                match self {
                    $(Self::$name => {
                        let (settings, config) = <$module::Config as Kernel>::plan(problem, device)?;
                        Ok(Plan { config: Config::$name(config), settings })
                    })*
                }
            }
        }

        impl Config {
            /// The kernel that this configures.
            pub fn algorithm(&self) -> Algorithm {
                match self {
                    $(Self::$name(_) => Algorithm::$name,)*
                }
            }

            fn check(
                &self,
                settings: &Settings,
                problem: Problem<'_>,
                device: &Capabilities,
            ) -> Result<(), PlanError> {
                match self {
                    $(Self::$name(config) => config.check(settings, problem, device),)*
                }
            }

            fn launch(
                &self,
                client: &Client,
                problem: Problem<'_>,
                settings: &Settings,
                buffers: Buffers<'_>,
            ) -> Result<(), PlanError> {
                match self {
                    $(Self::$name(config) => config.launch(client, problem, settings, buffers),)*
                }
            }
        }

        impl fmt::Display for Config {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name(config) => fmt::Display::fmt(config, f),)*
                }
            }
        }
    };
}

kernels! {
    /// One unit per output vector reads every tap.
    Direct: direct,
    /// One unit per strip of outputs loads and reduces once what the windows share.
    RegisterTile: register_tile,
    /// Van Herk's algorithm, one axis at a time or both axes of a plane in one launch.
    VanHerk: van_herk,
    /// A team of units shares the taps of a window, or a cube copies small planes to shared memory.
    BlockReduce: block_reduce,
    /// Averages of 3×3; all planes are treated as one run of elements.
    StencilFlat: stencil_flat,
    /// Averages of 3×3 that keep the extents of a plane; units walk down the rows.
    StencilRolling: stencil_rolling,
    /// A thread of a processor walks along the rows of a strip.
    CpuRows: cpu_rows,
    /// Gradients: one unit per input vector reads every window over it.
    Gather: gather,
    /// Gradients: one unit per block of inputs reads the windows over it once.
    GatherTile: gather_tile,
    /// Gradients of maxima: cubes walk along planes and keep the windows in shared memory.
    GatherStaged: gather_staged,
    /// Gradients of maxima: segments of windows with the same winner are added up, row by row.
    SegmentedScatter: segmented_scatter,
    /// Norms and their gradients: one unit per vector.
    Lp: lp,
}

impl Algorithm {
    /// The kernel to use when a user names `self`: gradients and norms have kernels of their own.
    fn for_problem(self, problem: Problem<'_>) -> Self {
        match self {
            Self::Direct if matches!(problem.reduction, Reduction::Norm(_)) => Self::Lp,
            Self::Direct if problem.gradient => Self::Gather,
            Self::RegisterTile if problem.gradient => Self::GatherTile,
            _ => self,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How a pooling will run: the kernel with its configuration, and the settings common to all kernels.
///
/// The fields may be overridden one by one before the launch; [`Plan::check`] refuses invalid values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The kernel and its own settings.
    pub config: Config,
    /// The settings that all kernels have.
    pub settings: Settings,
}

impl Plan {
    /// The plan's kernel.
    pub fn algorithm(&self) -> Algorithm {
        self.config.algorithm()
    }

    /// Chooses the kernel for a problem.
    pub fn new(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        device: &Capabilities,
    ) -> Result<Self, PlanError> {
        let problem = Problem { pooling, reduction, dtype, gradient: false }.checked(device)?;
        choose(problem, device)
    }

    /// Chooses the kernel for a problem's gradient.
    pub fn gradient(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        device: &Capabilities,
    ) -> Result<Self, PlanError> {
        let problem = Problem { pooling, reduction, dtype, gradient: true }.checked(device)?;
        choose(problem, device)
    }

    /// The verdict on every kernel when a plan is chosen for a problem or its gradient: which one is taken, and why the
    /// others are not.
    pub fn explain(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        gradient: bool,
        device: &Capabilities,
    ) -> Result<Vec<(Algorithm, Verdict)>, PlanError> {
        let problem = Problem { pooling, reduction, dtype, gradient }.checked(device)?;
        Ok(verdicts(problem, device))
    }

    /// Plans a kernel chosen by name, if it can compute the problem.
    pub fn with(
        algorithm: Algorithm,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        device: &Capabilities,
    ) -> Result<Self, PlanError> {
        let problem = Problem { pooling, reduction, dtype, gradient: false }.checked(device)?;
        algorithm.for_problem(problem).plan(problem, device)
    }

    /// Plans a gradient kernel chosen by name, if it can compute the problem.
    pub fn gradient_with(
        algorithm: Algorithm,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        device: &Capabilities,
    ) -> Result<Self, PlanError> {
        let problem = Problem { pooling, reduction, dtype, gradient: true }.checked(device)?;
        algorithm.for_problem(problem).plan(problem, device)
    }

    /// Chooses how to compute unpooling and its gradient.
    pub fn unpool(
        pooling: &Pooling,
        base: IndexBase,
        dtype: DType,
        device: &Capabilities,
    ) -> Result<Self, PlanError> {
        let reduction = Reduction::max(Output::ValuesAndIndices(base));
        let problem = Problem { pooling, reduction, dtype, gradient: false }.checked(device)?;
        let plan = Algorithm::Direct.plan(problem, device)?;
        Ok(Self { settings: unpool::settings(problem, plan.settings), ..plan })
    }

    /// The bytes of the scratch buffers: the kernel's own, and unpacked copies of tensors whose type the device lacks.
    pub fn workspace(&self, pooling: &Pooling, dtype: DType, device: &Capabilities) -> usize {
        self.settings.workspace.saturating_add(unpacked::bytes(pooling, dtype, device))
    }

    /// Refuses values that the plan's kernel cannot run with.
    pub fn check(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        self.check_for(Problem { pooling, reduction, dtype, gradient: false }, device)
    }

    /// The same for a [`Problem`], which may be a gradient.
    pub(super) fn check_for(
        &self,
        problem: Problem<'_>,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        let problem = problem.checked(device)?;
        let (algorithm, settings) = (self.algorithm(), &self.settings);
        let own = algorithm.plan(problem, device)?.settings;
        let kernel = algorithm.name();
        settings.check_made(&own, kernel, device)?;
        // The code of the other kernels is written for the planned value.
        let rolled = matches!(algorithm, Algorithm::Direct | Algorithm::Gather | Algorithm::Lp);
        if settings.unrolled != own.unrolled && !rolled {
            return Err(PlanError::Fixed { name: "unrolled", kernel });
        }
        // A processor's vectors may be wider than a GPU's language supports.
        if settings.runs != own.runs && !rolled {
            return Err(PlanError::Fixed { name: "runs", kernel });
        }
        self.config.check(settings, problem, device)
    }

    /// Launches the kernel. The plan and the buffers must have been checked.
    pub(super) fn launch(
        &self,
        client: &Client,
        problem: Problem<'_>,
        buffers: Buffers<'_>,
    ) -> Result<(), PlanError> {
        self.config.launch(client, problem, &self.settings, buffers)
    }
}

/// The order in which kernels are tried: the most specialised first.
const ORDER: [Algorithm; 12] = [
    Algorithm::Lp,
    Algorithm::StencilFlat,
    Algorithm::StencilRolling,
    Algorithm::BlockReduce,
    Algorithm::CpuRows,
    Algorithm::VanHerk,
    Algorithm::RegisterTile,
    Algorithm::SegmentedScatter,
    Algorithm::GatherStaged,
    Algorithm::GatherTile,
    Algorithm::Direct,
    Algorithm::Gather,
];

/// The outcome for one kernel when a plan was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It was chosen.
    Chosen,
    /// It computes the problem, but would be slower than another kernel, for this reason.
    Declined(&'static str),
    /// It computes the problem, but a kernel earlier in the order was chosen.
    Unneeded,
    /// It does not compute the problem.
    Refused(PlanError),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chosen => f.write_str("chosen"),
            Self::Declined(reason) => write!(f, "not taken: {reason}"),
            Self::Unneeded => f.write_str("not taken: the chosen kernel is preferred to it"),
            Self::Refused(PlanError::NotFor { reason, .. }) => {
                write!(f, "does not apply: {reason}")
            }
            Self::Refused(error) => write!(f, "does not apply: {error}"),
        }
    }
}

/// Chooses the first kernel that can compute the problem and pays off.
fn choose(problem: Problem<'_>, device: &Capabilities) -> Result<Plan, PlanError> {
    let kernel = Algorithm::Direct.name();
    let mut error = PlanError::NotFor { kernel, reason: "every kernel was declined" };
    for algorithm in ORDER {
        match algorithm.plan(problem, device) {
            Ok(plan) if declined(&plan, problem, device).is_none() => return Ok(plan),
            Ok(_) => {}
            Err(refused) => error = refused,
        }
    }
    Err(error)
}

/// The verdict on every kernel, in the order in which they are tried.
fn verdicts(problem: Problem<'_>, device: &Capabilities) -> Vec<(Algorithm, Verdict)> {
    let mut chosen = false;
    let mut verdict = |algorithm: Algorithm| match algorithm.plan(problem, device) {
        Err(error) => Verdict::Refused(error),
        Ok(plan) => match declined(&plan, problem, device) {
            Some(reason) => Verdict::Declined(reason),
            None if chosen => Verdict::Unneeded,
            None => {
                chosen = true;
                Verdict::Chosen
            }
        },
    };
    ORDER.map(|algorithm| (algorithm, verdict(algorithm))).to_vec()
}

/// Why a kernel that can compute a problem would not be the fastest; `None` if nothing speaks against it.
fn declined(plan: &Plan, problem: Problem<'_>, device: &Capabilities) -> Option<&'static str> {
    let Problem { pooling, dtype, .. } = problem;
    let (grid, settings) = (pooling.grid(), &plan.settings);
    let is_wide = settings.lanes * dtype.size() >= WORTHWHILE_BYTES;
    let reasons: &[(bool, &'static str)] = match &plan.config {
        Config::StencilFlat(_) => &[
            (
                has_narrow_rows(pooling, dtype) || grid.axes()[AXES - 1].input() <= SHORT_ROW,
                "rows are long, and vectors of eight bytes divide them",
            ),
            (is_wide, "no vector of eight bytes divides all planes together"),
        ],
        Config::StencilRolling(_) => &[(is_wide, "no vector of eight bytes divides the channels")],
        Config::BlockReduce(_) => &[(
            reduces(pooling, dtype, device),
            "windows are many, have few taps, or there is no memory that units share",
        )],
        Config::RegisterTile(_) => &[(
            !scatters(pooling, device),
            "neighbouring units would read far from each other along the width",
        )],
        Config::VanHerk(_) => {
            &[(slides(problem, plan), "windows have few taps, or there are few along a line")]
        }
        Config::SegmentedScatter(_) => {
            &[(windows_over(pooling) >= MANY_WINDOWS, "few windows are over an input")]
        }
        Config::GatherStaged(_) => {
            let overlaps = |axis: &Axis| axis.kernel() > axis.stride() && axis.stride() > 1;
            let whole = pixel_channels(pooling).is_multiple_of(gather_staged::CHANNELS);
            let cubes = gather_staged::cubes(pooling, dtype, settings);
            &[
                (
                    device.shared_vectors && dtype.is_float(),
                    "shared memory is not read as vectors of these numbers here",
                ),
                (whole, "the channels are not a multiple of a cube's"),
                (grid.axes().iter().all(overlaps), "windows share nothing, or are one step apart"),
                (cubes >= ENOUGH_CUBES, "there are too few cubes that walk"),
            ]
        }
        _ => &[],
    };
    reasons.iter().find(|(pays, _)| !pays).map(|(_, reason)| *reason)
}

/// The bytes of a vector below which a GPU's accesses are not worth their instructions.
const WORTHWHILE_BYTES: usize = 8;

/// Whether no vector of eight bytes divides a row.
fn has_narrow_rows(pooling: &Pooling, dtype: DType) -> bool {
    let width = &pooling.grid().axes()[AXES - 1];
    let along =
        [width.input(), width.output()].map(|n| widest_divisor(n, WORTHWHILE_BYTES / dtype.size()));
    along.into_iter().min() < Some(WORTHWHILE_BYTES / dtype.size())
}

/// Whether van Herk's algorithm pays off: windows are large, and there are many along each row.
fn slides(problem: Problem<'_>, plan: &Plan) -> bool {
    let Problem { pooling, dtype, gradient, .. } = problem;
    let axes = pooling.grid().axes();
    // A gradient has as many results as there are inputs. With several channels per pixel, a unit reads the few windows
    // over its inputs as vectors.
    let results = |axis: &Axis| match gradient && pixel_channels(pooling) == 1 {
        true => axis.input(),
        false => axis.output(),
    };
    let many = |axis: &Axis| axis.kernel() == 1 || 2 * results(axis) > axis.kernel();
    let fused = matches!(plan.config, Config::VanHerk(config) if config.fused);
    let along_width = outermost(pooling) == AXES - 1;
    let long_rows = dtype.size() == 4 && axes[AXES - 1].input() > SHORT_ROW;
    let few = match () {
        _ if plan.settings.runs => UNROLLED_TAPS,
        _ if gradient => FEW_TAPS_OF_GRADIENTS,
        // Units that share nothing would read each other's elements.
        _ if along_width && fused => FEW_TAPS_OF_ROWS,
        _ if along_width && pixel_channels(pooling) > 1 => FEW_TAPS_OF_PIXELS,
        _ if fused && long_rows => FEW_TAPS_OF_LONG_ROWS,
        _ => UNROLLED_TAPS,
    };
    pooling.grid().taps() > few && axes.iter().all(many)
}

/// The most taps of a window that other kernels read faster, by times on an H200: of gradients; of windows along the
/// width alone, with one element per pixel and with several; and of four-byte elements in long rows.
const FEW_TAPS_OF_GRADIENTS: usize = 16;
const FEW_TAPS_OF_ROWS: usize = 4;
const FEW_TAPS_OF_PIXELS: usize = 24;
const FEW_TAPS_OF_LONG_ROWS: usize = 48;

/// With rows of at most this length, treating all planes as one run beats strips of rows.
const SHORT_ROW: usize = 256;

/// Whether teams pay off on a GPU: windows have many taps that neighbouring units would read far from each other, or
/// there are too few windows to occupy the device with one unit each.
fn reduces(pooling: &Pooling, dtype: DType, device: &Capabilities) -> bool {
    let grid = pooling.grid();
    let few = |axis: &Axis| axis.kernel() == 1 || 2 * axis.output() <= axis.kernel();
    let near_global = grid.axes().iter().all(few);
    let channels = pixel_channels(pooling);
    let lanes = widest_divisor(channels, widest_load(dtype, device));
    let scarce = pooling.output().elements() / lanes < ENOUGH_UNITS;
    // A fitted window over the whole plane always uses the same kernel, whatever the plane's extents.
    let global = grid.is_fitted() && block_reduce::is_flat(pooling);
    let large = match channels {
        1 => grid.taps() >= TEAM_TAPS,
        // Up to this many vectors, one unit loads all at once.
        _ => grid.taps() > UNROLLED_TAPS && scarce,
    };
    let pays = global || (near_global && large);
    device.cores.is_none() && device.shared_bytes > 0 && pays
}

/// The windows over an input, on average.
fn windows_over(pooling: &Pooling) -> usize {
    let axes = pooling.grid().axes().iter();
    axes.map(|axis| axis.kernel()).product::<usize>()
        / pooling.grid().axes().iter().map(Axis::stride).product::<usize>()
}

/// With fewer windows over an input, reading all of them costs less than adding up segments.
const MANY_WINDOWS: usize = 36;

/// A window with fewer taps than this, of one channel per pixel, is left to one unit.
const TEAM_TAPS: usize = 32;

/// Fewer units than this leave a large GPU partly idle.
const ENOUGH_UNITS: usize = 1 << 15;

/// The fewest cubes that walk along planes: a large GPU runs some hundreds at once, and with fewer in total they finish
/// at uneven times.
const ENOUGH_CUBES: usize = 1 << 11;

/// Whether the units of strips would read and write far from their neighbours: on a GPU, with strips along the width
/// and one channel per pixel.
fn scatters(pooling: &Pooling, device: &Capabilities) -> bool {
    let along_width = outermost(pooling) == AXES - 1;
    device.cores.is_none() && pixel_channels(pooling) == 1 && along_width
}
