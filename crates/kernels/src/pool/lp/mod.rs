//! The norm of each window, `(Σ|x|^p)^(1/p)`: one unit per output vector visits its taps twice.
//!
//! ```text
//! m = max |x|                               the result itself, if it is 0, infinite or NaN
//! y = m · (Σ (|x|/m)^p)^(1/p)
//! ```
//!
//! Without `m`, the square of 1e30 would overflow f32. The code departs from this in two ways. `p = 1` needs no `m`.
//! And f32 numbers are first scaled by a power of two near `1/m` instead of by `1/m`, which costs nothing and keeps
//! every quotient in the range in which devices promise exact results. For `p = 2` this is all; otherwise numbers are
//! then divided by the rest of `m`, a number from ½ to 4.
//!
//! `windowpane_reference::pool::lp` states the error bounds.

mod bits;
mod gradient;
mod kernel;

use core::fmt;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use windowpane_geometry::{DType, Exponent, Pooling};

use crate::cube::convert::{accumulator, elem};
use crate::cube::unit::grid;
use crate::device::Capabilities;
use crate::pool::common::buffers::{Buffers, buffer};
use crate::pool::common::cost::Meter;
use crate::pool::common::kernel::Kernel;
use crate::pool::common::settings::Settings;
use crate::pool::common::window::{Form, ProblemArgs, problem_args};
use crate::pool::error::PlanError;
use crate::pool::problem::{Problem, Reduction, check_workspace};

use gradient::launch_gradient;

const NAME: &str = "lp";

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

    /// Plans one unit per output vector, or per input vector of the gradient.
    fn plan(problem: Problem<'_>, device: &Capabilities) -> Result<(Settings, Self), PlanError> {
        let Problem { pooling, reduction, dtype, gradient } = problem;
        let Reduction::Norm(p) = reduction else {
            let reason = "it only computes norms and their gradients";
            return Err(PlanError::NotFor { kernel: NAME, reason });
        };
        let workspace = if gradient { workspace(pooling, p, dtype) } else { 0 };
        let settings = Settings { workspace, ..Settings::new(problem, device) };
        Self.check(&settings, problem, device)?;
        Ok((settings, Self))
    }

    /// Refuses lanes that do not divide a pixel, and a scratch buffer of norms that the device cannot bind.
    fn check(
        &self,
        settings: &Settings,
        problem: Problem<'_>,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        settings.check_lanes(problem)?;
        check_workspace(problem.pooling.output().elements(), settings.workspace, device)
    }

    fn seconds(&self, settings: &Settings, problem: Problem<'_>, device: &Capabilities) -> f64 {
        let meter = Meter::new(problem, settings, device);
        let (pooling, lanes) = (problem.pooling, settings.lanes);
        let taps = pooling.grid().taps() as f64;
        let units = pooling.output().elements() / lanes;
        let taps = 2.0 * taps * (meter.load(lanes, meter.step()) + meter.reduce(lanes));
        meter.seconds(units, taps, 1.0)
    }

    fn launch(
        &self,
        client: &Client,
        problem: Problem<'_>,
        settings: &Settings,
        buffers: Buffers<'_>,
    ) -> Result<(), PlanError> {
        let Problem { pooling, reduction, dtype, .. } = problem;
        let Reduction::Norm(p) = reduction else {
            return Err(PlanError::Foreign { kernel: NAME });
        };
        let Buffers { input, output, pooled, .. } = buffers;
        if problem.gradient {
            let pooled = pooled.ok_or(PlanError::Foreign { kernel: NAME })?;
            let buffers = [input, pooled, output];
            launch_gradient(client, pooling, p, dtype, settings, buffers);
            return Ok(());
        }
        launch_into(client, pooling, p, [dtype, dtype], false, settings, [input, output]);
        Ok(())
    }
}

/// The bytes of the gradient's scratch buffer, which holds the norms.
fn workspace(pooling: &Pooling, p: Exponent, dtype: DType) -> usize {
    match Power::of(p) {
        Power::One => 0,
        _ => pooling.output().elements() * accumulator(dtype).size(),
    }
}

/// Launches the norm for its gradient, into `buffers[1]`, whose elements have the accumulator's type. A 32-bit norm
/// that overflows although its numbers are finite is stored negative and divided by two to the power of [`LESS`].
fn launch_for_gradient(
    client: &Client,
    pooling: &Pooling,
    p: Exponent,
    dtype: DType,
    settings: &Settings,
    buffers: [&Handle; 2],
) {
    let sums = accumulator(dtype);
    launch_into(client, pooling, p, [dtype, sums], sums != DType::F64, settings, buffers);
}

fn launch_into(
    client: &Client,
    pooling: &Pooling,
    p: Exponent,
    [dtype, result]: [DType; 2],
    marks: bool,
    settings: &Settings,
    [input, output]: [&Handle; 2],
) {
    let settings = &Settings { unrolled: false, ..*settings };
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let (cubes, units) = grid(client, settings.units, outputs / settings.lanes);
    let reduction = Reduction::Norm(p);
    let sums = accumulator(dtype);
    let form = NormForm {
        window: Form::new(pooling, reduction, dtype, settings),
        power: Power::of(p),
        double: sums == DType::F64,
        rounds: settings.rounds && result == DType::BF16,
        marks,
    };
    let args = NormArgsLaunch::new(
        problem_args(pooling, reduction, dtype, settings),
        InputScalar::new(p.get(), elem(sums)),
        InputScalar::new(1.0 / p.get(), elem(sums)),
    );
    // SAFETY: every access of the kernel is inside the tensors by the arithmetic of `Axis`.
    unsafe {
        kernel::norm::launch_unchecked(
            client,
            cubes,
            units,
            settings.lanes,
            buffer(input, inputs, settings),
            buffer(output, outputs, settings),
            args,
            form,
            elem(dtype),
            elem(sums),
            elem(result),
        )
    };
}

/// The numbers of a problem. They are run-time values, so they may change without compiling a new kernel.
#[derive(CubeType, CubeLaunch)]
struct NormArgs {
    problem: ProblemArgs,
    exponent: InputScalar,
    /// The reciprocal of the exponent.
    root: InputScalar,
}

/// The parameters that change the kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NormForm {
    window: Form,
    power: Power,
    /// Whether sums have 64 bits.
    double: bool,
    /// Whether the kernel rounds results to `bf16` itself.
    rounds: bool,
    /// Whether norms that are too large for 32 bits are marked.
    marks: bool,
}

/// The exponent of the power of two by which a norm too large for 32 bits is divided. It is large enough: a window has
/// fewer than 2³¹ numbers, so its norm is less than 2³¹ times the largest of them.
const LESS: i32 = 32;

/// How powers are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Power {
    /// The power of a number is the number itself.
    One,
    /// By a multiplication, and the root by a square root.
    Two,
    /// By the device's power function.
    Any,
}

impl Power {
    fn of(p: Exponent) -> Self {
        match p.get() {
            1.0 => Self::One,
            2.0 => Self::Two,
            _ => Self::Any,
        }
    }
}
