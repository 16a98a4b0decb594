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
use crate::pool::common::kernel::Kernel;
use crate::pool::common::settings::{MOST_UNROLLED_TAPS, Settings};
use crate::pool::common::window::{Form, problem_args};
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Problem, Reduction};

const NAME: &str = "direct";

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
