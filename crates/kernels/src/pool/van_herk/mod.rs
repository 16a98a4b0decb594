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
//! window's divisor. `adjoint` is the pooling that computes it.
//!
//! A pass reads and writes memory once. `lines` is the pass along one axis: a unit walks a line. `planes` is the pass
//! along the height and the width together: a cube walks a tile of a plane, and the reductions of its columns stay in
//! shared memory until its rows are reduced. A volume takes a pass of `lines` along the depth first. `axes` says which
//! axes can be walked, and in which blocks.

mod adjoint;
mod axes;
mod lines;
mod planes;

use core::fmt;

use cubecl::client::Client;
use cubecl::server::Handle;

use crate::device::Capabilities;
use crate::pool::common::buffers::Buffers;
use crate::pool::common::kernel::Kernel;
use crate::pool::common::settings::Settings;
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Problem, Reduction, check_workspace};

use adjoint::Sums;

const NAME: &str = "van_herk";

/// The passes of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Whether the height and the width of a plane are reduced in one launch.
    pub fused: bool,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.fused {
            "both axes of a plane in one launch"
        } else {
            "one launch per axis"
        })
    }
}

impl Kernel for Config {
    const NAME: &'static str = NAME;

    /// Plans one launch for height and width if that is possible and pays off, else one for each axis.
    fn plan(problem: Problem<'_>, device: &Capabilities) -> Result<(Settings, Self), PlanError> {
        let sums = Sums::of(problem)?;
        let problem = sums.problem(problem);
        fits(problem)?;
        let own = Settings { unrolled: false, ..Settings::new(problem, device) };
        let fused = planes::units(problem, &own, device)
            .filter(|&units| sums.weights.is_some() || planes::pays(problem, units));
        let settings = match fused {
            Some(units) => Settings { units, lanes: 1, ..own },
            None => own,
        };
        let config = Self { fused: fused.is_some() };
        let workspace = config.scratch(problem, &settings);
        let settings = Settings { workspace, ..settings };
        config.check_sums(&sums, &settings, problem, device)?;
        Ok((settings, config))
    }

    /// Refuses passes whose intermediate tensors have more elements than kernels can count, or more bytes than the
    /// device can bind, and tiles that do not fit in a cube.
    fn check(
        &self,
        settings: &Settings,
        problem: Problem<'_>,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        let sums = Sums::of(problem)?;
        let problem = sums.problem(problem);
        fits(problem)?;
        self.check_sums(&sums, settings, problem, device)
    }

    fn seconds(&self, settings: &Settings, problem: Problem<'_>, device: &Capabilities) -> f64 {
        let Ok(sums) = Sums::of(problem) else { return f64::INFINITY };
        let problem = sums.problem(problem);
        let lines = self.line_units(settings);
        let walks = self.walks(problem, settings);
        let walks = walks.iter().map(|walk| lines::seconds(problem, settings, walk, lines, device));
        let planes = match self.fused {
            true => planes::seconds(problem, settings, sums.weights.is_some(), device),
            false => 0.0,
        };
        walks.sum::<f64>() + planes
    }

    fn launch(
        &self,
        client: &Client,
        problem: Problem<'_>,
        settings: &Settings,
        buffers: Buffers<'_>,
    ) -> Result<(), PlanError> {
        let Buffers { input, output, indices, .. } = buffers;
        let sums = Sums::of(problem)?;
        let problem = sums.problem(problem);
        let mut values = input.clone();
        let mut positions: Option<Handle> = None;
        let walks = self.walks(problem, settings);
        for (nth, walk) in walks.iter().enumerate() {
            let last = !self.fused && nth + 1 == walks.len();
            let [bytes, position_bytes] = walk.scratch();
            let tensors = Tensors {
                input: values,
                positions,
                output: if last { output.clone() } else { client.empty(bytes) },
                indices: match last {
                    true => indices.cloned(),
                    false => (position_bytes > 0).then(|| client.empty(position_bytes)),
                },
            };
            lines::launch(client, problem, settings, walk, self.line_units(settings), &tensors);
            (values, positions) = (tensors.output, tensors.indices);
        }
        if self.fused {
            planes::launch(client, problem, settings, sums.weights, [&values, output])?;
        }
        Ok(())
    }
}

impl Config {
    /// The passes of single axes.
    fn walks(self, problem: Problem<'_>, settings: &Settings) -> Vec<lines::Walk> {
        match self.fused {
            true => lines::depth(problem, settings).into_iter().collect(),
            false => lines::all_axes(problem, settings),
        }
    }

    /// The bytes of the scratch buffers.
    fn scratch(self, problem: Problem<'_>, settings: &Settings) -> usize {
        self.walks(problem, settings).iter().flat_map(lines::Walk::scratch).sum()
    }

    /// The checks of a problem whose axes can be walked.
    fn check_sums(
        self,
        sums: &Sums<'_>,
        settings: &Settings,
        problem: Problem<'_>,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        settings.check_lanes(problem)?;
        if self.fused {
            planes::check(problem, settings, device)?;
        }
        let flat = problem.pooling.grid().axes()[0].kernel() == 1;
        let weighs = sums.weights.is_none() || (self.fused && flat);
        only_if(NAME, weighs, "the divisors of a gradient are known in one launch per plane only")?;
        let most = self.walks(problem, settings).iter().map(lines::Walk::written).max();
        check_workspace(most.unwrap_or(0), self.scratch(problem, settings), device)
    }

    /// The units of a cube in a pass along one axis.
    fn line_units(self, settings: &Settings) -> u32 {
        if self.fused { settings.units.min(LINE_UNITS) } else { settings.units }
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

/// Refuses problems with an axis that has a window but cannot be walked in blocks.
fn fits(problem: Problem<'_>) -> Result<(), PlanError> {
    let norm = matches!(problem.reduction, Reduction::Norm(_));
    only_if(NAME, !norm, "it computes no norms")?;
    axes::fits(problem.pooling)
}
