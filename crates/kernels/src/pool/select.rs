//! The registry of pooling kernels: the only file that names all of them. It chooses one for each problem.
//!
//! The choice is a pure function of the problem and the device's capabilities, so it can be queried, printed,
//! overridden and tested without a device.

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;

use core::fmt;

use windowpane_geometry::{Axis, DType, IndexBase, Pooling};

use super::common::{Buffers, Kernel, Settings, Task};
use super::problem::{Output, Problem, Reduction};
use super::strips::{cpu_rows, register_tile};
use super::{
    block_reduce, direct, gather, gather_staged, gather_tile, lp, rank, scatter, segmented_scatter,
    stencil, stochastic, unpacked, unpool, van_herk,
};
use crate::device::Capabilities;
use crate::error::{PlanError, Verdict, ensure};

/// Declares the kernels: each has a name and a module, whose `NAME` plans print and whose `Config` implements [`Kernel`].
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
                    $(Self::$name => $module::NAME,)*
                }
            }

            /// Plans the kernel for a problem; an error if it cannot compute the problem.
            fn plan(self, problem: Problem<'_>, device: &Capabilities) -> Result<Plan, PlanError> {
                match self {
                    $(Self::$name => {
                        let (settings, config) = planned::<$module::Config>(problem, device)?;
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

            fn seconds(&self, task: Task<'_>) -> f64 {
                match self {
                    $(Self::$name(config) => config.seconds(task),)*
                }
            }

            fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
                match self {
                    $(Self::$name(config) => config.check(task),)*
                }
            }

            fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
                match self {
                    $(Self::$name(config) => config.launch(task, buffers),)*
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
    /// Averages of 3×3 that keep the extents of a plane, and their gradients.
    Stencil: stencil,
    /// A thread of a processor walks along the rows of a strip.
    CpuRows: cpu_rows,
    /// Gradients: one unit per input vector reads every window over it.
    Gather: gather,
    /// Gradients: one unit per block of inputs reads the windows over it once.
    GatherTile: gather_tile,
    /// Gradients of maxima: cubes walk along planes and keep the windows in shared memory.
    GatherStaged: gather_staged,
    /// Gradients of maxima of windows that do not overlap: one unit per window.
    Scatter: scatter,
    /// Gradients of maxima: segments of windows with the same winner are added up, row by row.
    SegmentedScatter: segmented_scatter,
    /// Norms and their gradients: one unit per vector.
    Lp: lp,
    /// Medians, other ranks and modes: one unit per vector.
    Rank: rank,
    /// Stochastic pooling: one unit per vector visits its taps twice.
    Stochastic: stochastic,
}

/// The settings and the configuration of a kernel for a problem; an error if it cannot compute the problem.
fn planned<K: Kernel>(
    problem: Problem<'_>,
    device: &Capabilities,
) -> Result<(Settings, K), PlanError> {
    K::applies(problem, device)?;
    let task = Task::new(problem, device);
    let (settings, config) = K::plan(task)?;
    config.check(task.with(settings))?;
    Ok((settings, config))
}

impl Algorithm {
    /// The kernel to use when a user names `self`: gradients and some reductions have kernels of their own.
    fn for_problem(self, problem: Problem<'_>) -> Self {
        match (self, problem.reduction) {
            (Self::Direct, Reduction::Norm(_)) => Self::Lp,
            (Self::Direct, Reduction::Rank(_) | Reduction::Mode) => Self::Rank,
            (Self::Direct, Reduction::Drawn { .. } | Reduction::MeanDrawn) => Self::Stochastic,
            (Self::Direct, _) if problem.gradient => Self::Gather,
            (Self::RegisterTile, _) if problem.gradient => Self::GatherTile,
            _ => self,
        }
    }

    /// Whether the kernel is taken whatever the estimates: for an adaptive window, so that new extents do not compile another
    /// kernel. Windows much larger than their number are the exception: one unit per window would take too long.
    fn is_fixed_for(self, problem: Problem<'_>, device: &Capabilities) -> bool {
        let grid = problem.pooling.grid();
        let few = |axis: &Axis| axis.kernel() == 1 || 2 * axis.output() <= axis.kernel();
        grid.is_adaptive()
            && match self {
                Self::BlockReduce => {
                    block_reduce::is_whole_plane(problem.pooling) && device.cores.is_none()
                }
                Self::Direct => device.cores.is_some() || !grid.axes().iter().all(few),
                Self::Gather => true,
                _ => false,
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

    /// Chooses the kernel for a problem: the one with the lowest estimated time among those that can compute it. Most
    /// adaptive windows have a fixed kernel instead, so that new extents compile nothing.
    pub fn new(problem: Problem<'_>, device: &Capabilities) -> Result<Self, PlanError> {
        choose(problem.checked(device)?, device)
    }

    /// The verdict on every kernel when a plan is chosen for a problem: which one is taken, and why the others are not.
    pub fn explain(
        problem: Problem<'_>,
        device: &Capabilities,
    ) -> Result<Vec<(Algorithm, Verdict)>, PlanError> {
        Ok(verdicts(problem.checked(device)?, device))
    }

    /// Plans a kernel chosen by name, if it can compute the problem.
    pub fn with(
        algorithm: Algorithm,
        problem: Problem<'_>,
        device: &Capabilities,
    ) -> Result<Self, PlanError> {
        let problem = problem.checked(device)?;
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
        let problem = Problem::new(pooling, reduction, dtype).checked(device)?;
        let plan = Algorithm::Direct.plan(problem, device)?;
        let task = Task::new(problem, device).with(plan.settings);
        Ok(Self { settings: unpool::settings(task), ..plan })
    }

    /// The bytes of the scratch buffers: the kernel's own, and unpacked copies of tensors whose type the device lacks.
    pub fn workspace(&self, pooling: &Pooling, dtype: DType, device: &Capabilities) -> usize {
        self.settings.workspace.saturating_add(unpacked::bytes(pooling, dtype, device))
    }

    /// Refuses values that the plan's kernel cannot run with.
    pub fn check(&self, problem: Problem<'_>, device: &Capabilities) -> Result<(), PlanError> {
        self.task(problem, device).map(drop)
    }

    /// The task of the plan's kernel; an error for values that the kernel cannot run with.
    pub(super) fn task<'a>(
        &self,
        problem: Problem<'a>,
        device: &'a Capabilities,
    ) -> Result<Task<'a>, PlanError> {
        let problem = problem.checked(device)?;
        let (algorithm, settings) = (self.algorithm(), &self.settings);
        let own = algorithm.plan(problem, device)?.settings;
        let kernel = algorithm.name();
        settings.check_made(&own, kernel, device)?;
        // The code of the other kernels is written for the planned value.
        let rolled = matches!(
            algorithm,
            Algorithm::Direct | Algorithm::Gather | Algorithm::Lp | Algorithm::Rank
        );
        let same = settings.unrolled == own.unrolled || rolled;
        ensure(same, PlanError::Fixed { name: "unrolled", kernel })?;
        // A processor's vectors may be wider than a GPU's language supports.
        let same = settings.contiguous == own.contiguous || rolled;
        ensure(same, PlanError::Fixed { name: "contiguous", kernel })?;
        let task = Task { problem, settings: self.settings, device };
        self.config.check(task)?;
        Ok(task)
    }

    /// Launches the kernel for its [`task`](Self::task). The buffers must have been checked.
    pub(super) fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        self.config.launch(task, buffers)
    }

    /// The estimated time.
    fn seconds(&self, problem: Problem<'_>, device: &Capabilities) -> f64 {
        self.config.seconds(Task { problem, settings: self.settings, device })
    }
}

/// Chooses the kernel with the lowest estimated time among those that can compute the problem, unless one is
/// [fixed](Algorithm::is_fixed_for), as for most adaptive windows.
fn choose(problem: Problem<'_>, device: &Capabilities) -> Result<Plan, PlanError> {
    let kernel = Algorithm::Direct.name();
    let mut error = PlanError::NotApplicable { kernel, reason: "no kernel computes this problem" };
    let mut best: Option<(f64, Plan)> = None;
    for &algorithm in Algorithm::ALL {
        match algorithm.plan(problem, device) {
            Ok(plan) if algorithm.is_fixed_for(problem, device) => return Ok(plan),
            Ok(plan) => {
                let seconds = plan.seconds(problem, device);
                if best.is_none_or(|(least, _)| seconds < least) {
                    best = Some((seconds, plan));
                }
            }
            Err(refused) => error = refused,
        }
    }
    best.map(|(_, plan)| plan).ok_or(error)
}

/// The verdict on every kernel: first the chosen one, then the others from the fastest to the slowest, then those that
/// do not compute the problem.
fn verdicts(problem: Problem<'_>, device: &Capabilities) -> Vec<(Algorithm, Verdict)> {
    let chosen = choose(problem, device).map(|plan| plan.algorithm());
    let verdict = |&algorithm: &Algorithm| {
        let seconds = algorithm.plan(problem, device).map(|plan| plan.seconds(problem, device));
        (algorithm, Verdict::new(chosen == Ok(algorithm), seconds))
    };
    let mut verdicts: Vec<_> = Algorithm::ALL.iter().map(verdict).collect();
    verdicts.sort_by_key(|(_, verdict)| match *verdict {
        Verdict::Chosen { .. } => (0, 0),
        Verdict::NotChosen { nanoseconds } | Verdict::Overrides { nanoseconds } => (1, nanoseconds),
        Verdict::DoesNotApply(_) | Verdict::CannotRun(_) => (2, 0),
    });
    verdicts
}
