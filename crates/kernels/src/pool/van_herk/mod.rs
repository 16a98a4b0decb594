//! Large windows at a cost that does not grow with the window: the algorithm of van Herk, Gil and Werman, one axis
//! after the other, each line walked in blocks.
//!
//! ```text
//! for each axis that has a window:                       D, H, W
//!     for each line along it, block by block of B inputs:
//!         prefix[j] = reduction of the block's first j + 1 inputs
//!         suffix[i] = reduction of inputs i .. of the block that the window starts in
//!         y[o] = suffix[i] · whole blocks between · prefix[j]
//! ```
//!
//! A block is no longer than the window, so a window always ends in a later block than it starts in. Prefixes and
//! suffixes are held in registers. A sum is reduced like a maximum: nothing is ever subtracted, so it does not drift,
//! and values outside a window have no influence on it.
//!
//! The gradient of an average is itself a sum over windows: of the output's gradient, each element divided by its
//! window's divisor. `adjoint` is the pooling that computes it. A launch over planes divides what it reads; for other
//! passes, `division` divides everything first.
//!
//! A pass reads and writes memory once. `lines` is the pass along one axis: a unit walks a line. With channels first,
//! planes are transposed before the pass along their rows and after it, where the estimate says that this is faster.
//! `planes` is the pass along the height and the width together: a cube walks a tile of a plane, and the reductions of its
//! columns stay in shared memory until its rows are reduced. A volume takes a pass of `lines` along the depth first.
//! `axes` says which axes can be walked, and in which blocks.

mod adjoint;
mod axes;
mod division;
mod lines;
mod planes;

use core::fmt;

use cubecl::server::Handle;
use windowpane_geometry::Pooling;

use crate::cube::transpose;
use crate::device::Capabilities;
use crate::error::{PlanError, only_if};
use crate::pool::common::{Buffers, Kernel, Settings, Task};
use crate::pool::problem::{Problem, check_workspace};

use adjoint::Sums;

pub(super) const NAME: &str = "van_herk";

/// The passes of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Config {
    /// The height and the width of a plane in one launch, after one along the depth of a volume.
    Fused,
    /// One launch per axis.
    Separate,
    /// One launch per axis, where planes are transposed before and after the pass along the width. Neighbouring units
    /// then have neighbouring elements.
    Turned,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fused => "both axes of a plane in one launch",
            Self::Separate => "one launch per axis",
            Self::Turned => "one launch per axis, with transposes",
        })
    }
}

impl Kernel for Config {
    /// Refuses problems with an axis that has a window but cannot be walked in blocks.
    fn applies(problem: Problem<'_>, _device: &Capabilities) -> Result<(), PlanError> {
        let sums = Sums::of(problem)?;
        let problem = sums.problem(problem);
        only_if(NAME, problem.folds(), "it computes only extrema and averages")?;
        axes::check(problem.pooling)
    }

    /// Plans one launch for height and width if that is possible and pays off, else one for each axis.
    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError> {
        let sums = Sums::of(task.problem)?;
        let task = Task { problem: sums.problem(task.problem), ..task };
        let own = Settings { unrolled: false, ..task.settings };
        let [_, read] = Self::Fused.divisors(&sums, task);
        let fused = planes::units(task.with(own))
            .filter(|&units| read.is_some() || planes::pays(task.problem, units));
        let settings = match fused {
            Some(units) => Settings { units, lanes: 1, ..own },
            None => own,
        };
        let task = task.with(settings);
        let turns = || {
            lines::can_turn(task)
                && transpose::is_tiled(task.device)
                && Self::Turned.check_passes(&sums, task).is_ok()
                && Self::Turned.estimated(&sums, task) < Self::Separate.estimated(&sums, task)
        };
        let config = match fused {
            Some(_) => Self::Fused,
            None if turns() => Self::Turned,
            None => Self::Separate,
        };
        let workspace = config.scratch(&sums, task);
        Ok((Settings { workspace, ..settings }, config))
    }

    /// Refuses passes whose intermediate tensors have more elements than kernels can count, or more bytes than the
    /// device can bind, and tiles that do not fit in a cube.
    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        let sums = Sums::of(task.problem)?;
        let task = Task { problem: sums.problem(task.problem), ..task };
        task.check_lanes()?;
        match self {
            Self::Fused => planes::check(task)?,
            Self::Separate => {}
            Self::Turned => only_if(
                NAME,
                lines::can_turn(task),
                "rows are only transposed after a pass along another axis",
            )?,
        }
        self.check_passes(&sums, task)
    }

    fn seconds(&self, task: Task<'_>) -> f64 {
        let Ok(sums) = Sums::of(task.problem) else { return f64::INFINITY };
        self.estimated(&sums, Task { problem: sums.problem(task.problem), ..task })
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        let Buffers { client, input, output, indices, .. } = buffers;
        let sums = Sums::of(task.problem)?;
        let task = Task { problem: sums.problem(task.problem), ..task };
        let [first, read] = self.divisors(&sums, task);
        let mut values = match first {
            Some(windows) => division::launch(client, task, windows, input.handle),
            None => input.handle.clone(),
        };
        let mut positions: Option<Handle> = None;
        let passes = self.passes(&sums, task);
        for (nth, axis_pass) in passes.iter().enumerate() {
            let last = *self != Self::Fused && nth + 1 == passes.len();
            let [bytes, position_bytes] = axis_pass.scratch();
            let tensors = Tensors {
                input: values,
                positions,
                output: if last { output.handle.clone() } else { client.empty(bytes) },
                indices: match last {
                    true => indices.map(|indices| indices.handle.clone()),
                    false => (position_bytes > 0).then(|| client.empty(position_bytes)),
                },
            };
            let launch = |tensors: &Tensors| {
                lines::launch(client, task, axis_pass, self.line_units(task), tensors);
            };
            if axis_pass.turned {
                lines::launch_turned(client, task, axis_pass, &tensors, launch);
            } else {
                launch(&tensors);
            }
            (values, positions) = (tensors.output, tensors.indices);
        }
        if *self == Self::Fused {
            planes::launch(client, task, read, [&values, output.handle])?;
        }
        Ok(())
    }
}

impl Config {
    /// The pooling by whose windows' divisors elements are divided: in a launch before the passes, or by a launch over
    /// planes as it reads them. That is possible if it is the first.
    fn divisors<'a>(self, sums: &Sums<'a>, task: Task<'_>) -> [Option<&'a Pooling>; 2] {
        match self == Self::Fused && task.axes()[0].kernel() == 1 {
            true => [None, sums.divisors],
            false => [sums.divisors, None],
        }
    }

    /// Refuses intermediate tensors that are too large. The task is that of the pooling that is computed.
    fn check_passes(self, sums: &Sums<'_>, task: Task<'_>) -> Result<(), PlanError> {
        let [first, _] = self.divisors(sums, task);
        let divided = first.map(|_| task.inputs());
        let passes = self.passes(sums, task);
        let moved = passes.iter().map(|axis_pass| axis_pass.moved(task.pooling()));
        let most = moved.chain(divided).max();
        check_workspace(most.unwrap_or(0), self.scratch(sums, task), task.device)
    }

    /// The estimated time. The task is that of the pooling that is computed.
    fn estimated(self, sums: &Sums<'_>, task: Task<'_>) -> f64 {
        let lines = self.line_units(task);
        let passes = self.passes(sums, task);
        let passes = passes.iter().map(|axis_pass| lines::seconds(task, axis_pass, lines));
        let [first, read] = self.divisors(sums, task);
        let planes = if self == Self::Fused { planes::seconds(task, read.is_some()) } else { 0.0 };
        first.map_or(0.0, |_| division::seconds(task)) + passes.sum::<f64>() + planes
    }

    /// The passes of single axes.
    fn passes(self, sums: &Sums<'_>, task: Task<'_>) -> Vec<lines::AxisPass> {
        let [first, _] = self.divisors(sums, task);
        let source = first.map_or(task.dtype(), |_| task.settings.accumulator);
        match self {
            Self::Fused => lines::depth(task, source).into_iter().collect(),
            Self::Separate | Self::Turned => lines::all_axes(task, source, self == Self::Turned),
        }
    }

    /// The bytes of the scratch buffers.
    fn scratch(self, sums: &Sums<'_>, task: Task<'_>) -> usize {
        let [first, _] = self.divisors(sums, task);
        let divided = first.map_or(0, |_| division::bytes(task));
        let passes = self.passes(sums, task);
        let turned = passes.iter().map(|axis_pass| axis_pass.turned_bytes(task.pooling()));
        let turned: usize = turned.flatten().sum();
        divided + turned + passes.iter().flat_map(lines::AxisPass::scratch).sum::<usize>()
    }

    /// The units of a cube in a pass along one axis.
    fn line_units(self, task: Task<'_>) -> u32 {
        let units = task.settings.units;
        if self == Self::Fused { units.min(LINE_UNITS) } else { units }
    }
}

/// The units of a cube in a pass along one axis, if the plan's units are those of a tile.
const LINE_UNITS: u32 = 128;

/// What a pass reads and writes.
struct Tensors {
    input: Handle,
    positions: Option<Handle>,
    output: Handle,
    indices: Option<Handle>,
}
