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

use core::fmt;

use cubecl::client::Client;

use crate::cube::convert::elem;
use crate::cube::unit::grid;
use crate::device::Capabilities;
use crate::pool::common::buffers::{Buffers, buffer, optional};
use crate::pool::common::cost::Meter;
use crate::pool::common::kernel::Kernel;
use crate::pool::common::settings::{MOST_UNROLLED_TAPS, Settings};
use crate::pool::common::window::{Form, problem_args};
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Problem, Reduction};

const NAME: &str = "direct";

/// The instructions of a unit besides its taps; of a tap besides its load and its reduction, twice if its position is
/// clamped; and those that a loop adds to each tap.
const OF_UNIT: f64 = 80.0;
const OF_TAP: f64 = 1.3;
const OF_LOOP: f64 = 5.3;

/// The taps whose loads are in flight together in a loop.
const IN_FLIGHT: f64 = 4.0;

/// This kernel has no settings of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config;

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as planned")
    }
}

impl Kernel for Config {
    const NAME: &'static str = NAME;

    /// Plans one unit per output vector.
    fn plan(problem: Problem<'_>, device: &Capabilities) -> Result<(Settings, Self), PlanError> {
        let norm = matches!(problem.reduction, Reduction::Norm(_));
        only_if(NAME, !problem.gradient, "it computes no gradients")?;
        only_if(NAME, !norm, "it computes no norms")?;
        Ok((Settings::new(problem, device), Self))
    }

    /// Refuses lanes that do not divide a pixel, and loops that are too long to unroll.
    fn check(
        &self,
        settings: &Settings,
        problem: Problem<'_>,
        _device: &Capabilities,
    ) -> Result<(), PlanError> {
        settings.check_lanes(problem)?;
        let taps = problem.pooling.grid().taps();
        if settings.unrolled && taps > MOST_UNROLLED_TAPS {
            return Err(PlanError::Unrolled { taps, limit: MOST_UNROLLED_TAPS });
        }
        Ok(())
    }

    fn seconds(&self, settings: &Settings, problem: Problem<'_>, device: &Capabilities) -> f64 {
        let meter = Meter::new(problem, settings, device);
        let (lanes, taps) = (settings.lanes, problem.pooling.grid().taps() as f64);
        let address = OF_TAP * (1.0 + f64::from(meter.is_clipped()));
        let tap = address + meter.load(lanes, meter.step()) + meter.reduce(lanes);
        let (looped, waits) =
            if settings.unrolled { (0.0, 1.0) } else { (OF_LOOP, taps / IN_FLIGHT) };
        let units = problem.pooling.output().elements() / lanes;
        meter.seconds(units, OF_UNIT + taps * (tap + looped), waits)
    }

    fn launch(
        &self,
        client: &Client,
        problem: Problem<'_>,
        settings: &Settings,
        buffers: Buffers<'_>,
    ) -> Result<(), PlanError> {
        let Problem { pooling, reduction, dtype, .. } = problem;
        let Buffers { input, output, indices, .. } = buffers;
        let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
        let (cubes, units) = grid(client, settings.units, outputs / settings.lanes);
        // SAFETY: every access of the kernel is inside the tensors by the arithmetic of `Axis`.
        unsafe {
            kernel::direct::launch_unchecked(
                client,
                cubes,
                units,
                settings.lanes,
                buffer(input, inputs, settings),
                buffer(output, outputs, settings),
                optional(indices, outputs, settings),
                problem_args(pooling, reduction, dtype, settings),
                Form::new(pooling, reduction, dtype, settings),
                elem(dtype),
                elem(settings.accumulator),
            )
        };
        Ok(())
    }
}
