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

use core::fmt;

use cubecl::client::Client;

use crate::cube::convert::{accumulator, elem};
use crate::cube::unit::grid;
use crate::device::Capabilities;
use crate::pool::common::buffers::{Buffers, buffer, optional};
use crate::pool::common::cost::Meter;
use crate::pool::common::cover::{Form, gather_args, unrolled_windows};
use crate::pool::common::kernel::Kernel;
use crate::pool::common::settings::Settings;
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Problem, Reduction};

const NAME: &str = "gather";

/// The instructions of a unit besides its windows; and of a window besides its loads and its additions, twice if it has
/// a divisor.
const OF_UNIT: f64 = 120.0;
const OF_WINDOW: f64 = 16.0;

/// The windows whose loads are in flight together in a loop.
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

    /// Plans one unit per input vector.
    fn plan(problem: Problem<'_>, device: &Capabilities) -> Result<(Settings, Self), PlanError> {
        let norm = matches!(problem.reduction, Reduction::Norm(_));
        only_if(NAME, problem.gradient, "it only computes gradients")?;
        only_if(NAME, !norm, "it computes no gradients of norms")?;
        Ok((Settings::new(problem, device), Self))
    }

    /// Refuses lanes that do not divide a pixel.
    fn check(
        &self,
        settings: &Settings,
        problem: Problem<'_>,
        _device: &Capabilities,
    ) -> Result<(), PlanError> {
        settings.check_lanes(problem)
    }

    fn seconds(&self, settings: &Settings, problem: Problem<'_>, device: &Capabilities) -> f64 {
        let Problem { pooling, reduction, .. } = problem;
        let meter = Meter::new(problem, settings, device);
        let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
        let unrolled = unrolled_windows(pooling);
        // A loop visits only the windows that exist.
        let over = (pooling.grid().taps() * outputs) as f64 / inputs as f64;
        let windows = unrolled.map_or(over.max(1.0), |windows| windows as f64);
        let own = OF_WINDOW * if reduction.is_extremum() { 1.0 } else { 2.0 };
        let window = own + meter.load_windows(settings.lanes) + meter.reduce(settings.lanes);
        let waits = if unrolled.is_some() { 1.0 } else { windows / IN_FLIGHT };
        meter.seconds(inputs / settings.lanes, OF_UNIT + windows * window, waits)
    }

    fn launch(
        &self,
        client: &Client,
        problem: Problem<'_>,
        settings: &Settings,
        buffers: Buffers<'_>,
    ) -> Result<(), PlanError> {
        let Problem { pooling, reduction, dtype, .. } = problem;
        let Buffers { input: dy, output: dx, indices: winners, .. } = buffers;
        let gradient = reduction.gradient().ok_or(PlanError::Foreign { kernel: NAME })?;
        let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
        let vectors = inputs / settings.lanes;
        let (cubes, units) = grid(client, settings.units, vectors);
        // SAFETY: every access of the kernel is inside the tensors by the arithmetic of `Axis`.
        unsafe {
            kernel::backward::launch_unchecked(
                client,
                cubes,
                units,
                settings.lanes,
                buffer(dy, outputs, settings),
                optional(winners, outputs, settings),
                buffer(dx, inputs, settings),
                gather_args(pooling, gradient, settings, vectors),
                Form::new(pooling, gradient, settings),
                elem(dtype),
                elem(accumulator(dtype)),
            )
        };
        Ok(())
    }
}
