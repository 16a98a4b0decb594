//! Gradients as a gather: one unit per input vector collects from every window that read it.
//!
//! ```text
//! for each input (n, x, c):                 one unit, lanes along c
//!     for each window o over x:             row-major, so that the sum has one order
//!         max:      add dy[n, o, c] if the window's winner is x
//!         average:  add dy[n, o, c] / divisor(o)
//! ```
//!
//! Nothing is scattered, so no atomics are needed and the same inputs give the same bits. With windows of `k` taps,
//! dilation `d` and stride `s`, at most ⌊(k−1)·d/s⌋ + 1 windows can reach a coordinate. If they are few, the loop is
//! unrolled; a window that does not cover `x` is then read anyway, at the nearest valid position, and dropped by a
//! select, so that every load is unconditional.

mod kernel;

use crate::device::Capabilities;
use crate::error::{PlanError, only_if};
use crate::pool::common::cover::{GatherForm, gather_args, unrolled_windows};
use crate::pool::common::{Buffers, Kernel, Settings, Task, no_config, optional};
use crate::pool::problem::Problem;

pub(super) const NAME: &str = "gather";

/// The instructions of a unit besides its windows; and of a window besides its loads and its additions, twice if it has
/// a divisor.
const OF_UNIT: f64 = 120.0;
const OF_WINDOW: f64 = 16.0;

/// The windows whose loads are in flight together in a loop.
const IN_FLIGHT: f64 = 4.0;

no_config!();

impl Kernel for Config {
    fn applies(problem: Problem<'_>, _device: &Capabilities) -> Result<(), PlanError> {
        only_if(NAME, problem.gradient, "it only computes gradients")?;
        only_if(NAME, !problem.is_norm(), "it computes no gradients of norms")
    }

    /// Plans one unit per input vector.
    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError> {
        Ok((task.settings, Self))
    }

    fn seconds(&self, task: Task<'_>) -> f64 {
        let (inputs, lanes) = (task.inputs(), task.lanes());
        let unrolled = unrolled_windows(task.pooling());
        // A loop visits only the windows that exist.
        let over = (task.taps() * task.outputs()) as f64 / inputs as f64;
        let windows = unrolled.map_or(over.max(1.0), |windows| windows as f64);
        let own = OF_WINDOW * if task.reduction().is_extremum() { 1.0 } else { 2.0 };
        let window = own + task.load_windows_cost(lanes) + task.reduce_cost(lanes);
        let waits = if unrolled.is_some() { 1.0 } else { windows / IN_FLIGHT };
        task.launch_seconds(inputs / lanes, OF_UNIT + windows * window, waits)
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        let Buffers { client, input: dy, output: dx, indices: winners, .. } = buffers;
        let lanes = task.lanes();
        let (cubes, units) = task.grid(client, task.inputs() / lanes);
        // SAFETY: every access of the kernel is inside the tensors by the arithmetic of `Axis`.
        unsafe {
            kernel::backward::launch_unchecked(
                client,
                cubes,
                units,
                lanes,
                dy.vectors(lanes),
                optional(winners, lanes),
                dx.vectors(lanes),
                gather_args(task),
                GatherForm::new(task),
                task.types(),
            )
        };
        Ok(())
    }
}
