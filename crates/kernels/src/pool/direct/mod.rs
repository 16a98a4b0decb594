//! One unit per output vector reads every tap, like Caffe's kernel.
//!
//! ```text
//! for each output (n, o, c):            one unit, lanes along c
//!     for each tap t inside the input:  row-major
//!         accumulate x[n, o·s − before + t·d, c]
//! ```
//!
//! The code departs from this for short windows: their loops are unrolled, and a tap outside the input is not skipped
//! but clamped to the nearest tap inside. For a maximum the repeated tap changes nothing, not even the index; an
//! average drops it with a select. Every load is therefore unconditional, and all of them can be in flight at once.

mod kernel;

use crate::device::Capabilities;
use crate::error::{PlanError, ensure, only_if};
use crate::pool::common::window::{WindowForm, problem_args};
use crate::pool::common::{
    Buffers, Kernel, MOST_UNROLLED_TAPS, Settings, Task, no_config, optional,
};
use crate::pool::problem::Problem;

pub(super) const NAME: &str = "direct";

/// The instructions of a unit besides its taps; of a tap besides its load and its reduction, twice if its position is
/// clamped; and those that a loop adds to each tap.
const OF_UNIT: f64 = 80.0;
const OF_TAP: f64 = 1.3;
const OF_LOOP: f64 = 5.3;

/// The taps whose loads are in flight together in a loop.
const IN_FLIGHT: f64 = 4.0;

no_config!();

impl Kernel for Config {
    fn applies(problem: Problem<'_>, _device: &Capabilities) -> Result<(), PlanError> {
        only_if(NAME, !problem.gradient, "it computes no gradients")?;
        only_if(NAME, problem.folds(), "it computes only extrema and averages")
    }

    /// Plans one unit per output vector.
    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError> {
        Ok((task.settings, Self))
    }

    /// Refuses lanes that do not divide a pixel, and loops that are too long to unroll.
    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        task.check_lanes()?;
        let taps = task.taps();
        let fits = !task.settings.unrolled || taps <= MOST_UNROLLED_TAPS;
        ensure(fits, PlanError::Unrolled { taps, limit: MOST_UNROLLED_TAPS })
    }

    fn seconds(&self, task: Task<'_>) -> f64 {
        let (lanes, taps) = (task.lanes(), task.taps() as f64);
        let address = OF_TAP * (1.0 + f64::from(task.is_clipped()));
        // Each tap of a signal's window finds what the taps before it loaded.
        let step = match task.is_signal() {
            true => task.load_step().div_ceil(task.taps()),
            false => task.load_step(),
        };
        let tap = address + task.load_cost(lanes, step) + task.reduce_cost(lanes);
        let of_unit = OF_UNIT + task.single_cost();
        let (looped, waits) =
            if task.settings.unrolled { (0.0, 1.0) } else { (OF_LOOP, taps / IN_FLIGHT) };
        task.launch_seconds(task.outputs() / lanes, of_unit + taps * (tap + looped), waits)
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        let client = buffers.client;
        let lanes = task.lanes();
        let (cubes, units) = task.grid(client, task.outputs() / lanes);
        // SAFETY: every access of the kernel is inside the tensors by the arithmetic of `Axis`.
        unsafe {
            kernel::direct::launch_unchecked(
                client,
                cubes,
                units,
                lanes,
                buffers.input.vectors(lanes),
                buffers.output.vectors(lanes),
                optional(buffers.indices, lanes),
                problem_args(task),
                WindowForm::new(task),
                task.types(),
            )
        };
        Ok(())
    }
}
