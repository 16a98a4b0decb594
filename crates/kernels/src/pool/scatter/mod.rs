//! Gradients of maxima whose windows do not overlap: zeros, and then each window's gradient at its maximum.
//!
//! ```text
//! dx = 0                         one unit per vector of inputs
//! dx[winner(o)] = dy[o]          one unit per window
//! ```
//!
//! An index outside its own window is ignored, as by the kernels that gather; so no two windows name one position, and
//! the result does not depend on the order of units. Stores are far from each other, so that this is for large windows.

mod kernel;

use windowpane_geometry::Axis;

use crate::cube::unit::{plain_grid, widest_lanes};
use crate::device::{Capabilities, Target};
use crate::error::{PlanError, only_if};
use crate::pool::common::place::place_args;
use crate::pool::common::window::problem_args;
use crate::pool::common::{Buffers, Kernel, PART_STORE, Settings, Task, WORD, Work, no_config};
use crate::pool::problem::Problem;

use kernel::WindowsLaunch;

pub(super) const NAME: &str = "scatter";

/// The instructions of a unit that writes zeros, and of one for a window.
const OF_ZEROS: f64 = 10.0;
const OF_WINDOW: f64 = 100.0;

no_config!();

impl Kernel for Config {
    fn applies(problem: Problem<'_>, _device: &Capabilities) -> Result<(), PlanError> {
        let Problem { pooling, reduction, gradient, .. } = problem;
        let apart = |axis: &Axis| {
            axis.output() == 1 || (axis.kernel() - 1) * axis.dilation() < axis.stride()
        };
        only_if(NAME, gradient, "it only computes gradients")?;
        only_if(NAME, reduction.is_extremum(), "it only computes gradients of extrema")?;
        only_if(NAME, !pooling.grid().is_uneven(), "windows differ in size or step")?;
        only_if(NAME, pooling.grid().axes().iter().all(apart), "windows overlap")
    }

    /// Plans one unit per window.
    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError> {
        Ok((Settings { lanes: 1, unrolled: false, ..task.settings }, Self))
    }

    fn seconds(&self, task: Task<'_>) -> f64 {
        let (inputs, outputs, size) = (task.inputs(), task.outputs(), task.dtype().size());
        let zeros = Work {
            bytes: (inputs * size) as f64,
            units: (inputs / zero_lanes(task)) as f64,
            instructions: OF_ZEROS,
            waits: 0.0,
        };
        let windows = Work {
            bytes: (outputs * (size + WORD + PART_STORE)) as f64,
            units: outputs as f64,
            instructions: OF_WINDOW,
            waits: 1.0,
        };
        zeros.seconds(task.device) + windows.seconds(task.device)
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        let Buffers { client, input: dy, output: dx, indices, .. } = buffers;
        let winners = indices.ok_or(PlanError::Indices { needed: true })?;
        let target = Target { client, device: task.device };
        let lanes = zero_lanes(task);
        let vectors = task.inputs() / lanes;
        let (cubes, units) = plain_grid(target, vectors);
        // SAFETY: a unit past the last vector ends.
        unsafe {
            kernel::zeros::launch_unchecked(
                client,
                cubes,
                units,
                lanes,
                dx.vectors(lanes),
                vectors as u32,
                task.settings.contiguous,
                task.elem(),
            );
        }
        let [_, height, width] = task.axes().each_ref().map(|axis| axis.input() as u32);
        let (cubes, units) = task.grid(client, task.outputs());
        // SAFETY: what is stored is stored at a position of a plane of `dx`, which the kernel checks.
        unsafe {
            kernel::scatter::launch_unchecked(
                client,
                cubes,
                units,
                dy.vectors(1),
                winners.vectors(1),
                dx.vectors(1),
                WindowsLaunch::new(problem_args(task), place_args(task), height, width),
                task.settings.contiguous,
                task.types(),
            );
        }
        Ok(())
    }
}

/// The zeros that are written at once.
fn zero_lanes(task: Task<'_>) -> usize {
    widest_lanes(task.device, task.dtype().size(), task.inputs())
}
