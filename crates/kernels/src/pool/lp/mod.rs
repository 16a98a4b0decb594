//! The norm of each window, `(Σ|x|^p)^(1/p)`: one unit an output vector visits its taps twice.
//!
//! ```text
//! m = max |x|                               which is the result where it is 0, infinite or NaN
//! y = m · (Σ (|x|/m)^p)^(1/p)
//! ```
//!
//! Without `m` the square of 1e30 would be no f32. Where the code departs from this: `p = 1` needs no
//! `m`; and f32 are scaled not by `m` but, first, by a power of two near it, which costs nothing and
//! keeps every quotient in the range where devices promise to be exact: for `p = 2` that is all, and else
//! the rest of `m`, a number from ½ to 4, is divided by afterwards.
//!
//! `windowpane_reference::pool::lp` says how far all this may be off.

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
use crate::pool::common::kernel::Kernel;
use crate::pool::common::settings::Settings;
use crate::pool::common::window::{Form, ProblemArgs, problem_args};
use crate::pool::error::PlanError;
use crate::pool::problem::{Problem, Reduction, check_workspace};

use gradient::launch_gradient;

const NAME: &str = "lp";

/// This kernel has no numbers of its own.
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

    /// Plans one unit an output vector, or an input vector of the gradient.
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

    /// Refuses lanes that divide no pixel, and more norms beside a gradient than the device binds.
    fn check(
        &self,
        settings: &Settings,
        problem: Problem<'_>,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        settings.check_lanes(problem)?;
        check_workspace(problem.pooling.output().elements(), settings.workspace, device)
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

/// The bytes that the gradient takes beside its tensors: the norms.
fn workspace(pooling: &Pooling, p: Exponent, dtype: DType) -> usize {
    match Power::of(p) {
        Power::One => 0,
        _ => pooling.output().elements() * accumulator(dtype).size(),
    }
}

/// Launches the norm for its gradient, into `buffers[1]` of the type that sums are gathered in. Of 32 bits, a
/// norm that these cannot hold though its numbers are finite is there as [`LESS`] of it, negative.
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

/// The numbers of a problem, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct NormArgs {
    problem: ProblemArgs,
    exponent: InputScalar,
    /// One over it.
    root: InputScalar,
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NormForm {
    window: Form,
    power: Power,
    /// Whether sums are of 64 bits.
    double: bool,
    /// Whether results are to be rounded to `bf16`.
    rounds: bool,
    /// Whether norms that are too large for 32 bits are marked.
    marks: bool,
}

/// The power of two that a norm too large for 32 bits is divided by. The norm of as many equal numbers as an index
/// counts is less than 2³¹ times one of them, so that this is enough.
const LESS: i32 = 32;

/// How powers of an exponent are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Power {
    /// A number is its own.
    One,
    /// By a product, and the root by the square root.
    Two,
    /// By the device's power.
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
