//! One unit per element of the result, summing over all taps: the formula taken literally.
//!
//! ```text
//! y[n, o, f]  = Σ { x[n, o·s − before + t·d, c] · w[f, t, c] : t, c }
//! dx[n, x, c] = Σ { dy[n, o, f] · w[f, t, c] : f, t, where o·s = x + before − t·d }
//! dw[f, t, c] = Σ { dy[n, o, f] · x[n, o·s − before + t·d, c] : n, o }
//! ```
//!
//! Only taps inside the input are read. This kernel computes every problem, except in tf32, and is the baseline for the
//! others; where one of them applies and the problem is large, it is many times slower.

use core::fmt;

use windowpane_geometry::{Layout, Precision, Tile, TileOverrides};

use crate::conv::common::{
    Arguments, Epilogue, Kernel, Order, buffer, cost, independent_units, inner, problem_args,
    weight_steps,
};
use crate::conv::problem::{Pass, Request, Task, operands, results, windows};
use crate::cube::{AxisForm, SECTOR, accumulator, elem, grid};
use crate::error::{NotApplicable, PlanError, ensure, require};

mod kernel;

use kernel::Form;

/// The units of a cube on a GPU.
const UNITS: u32 = 256;

/// Empty: the kernel has nothing to configure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config;

/// Prints nothing.
impl fmt::Display for Config {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

/// The cycles from one term of a unit's sum to the next, and the instructions of a term.
const LATENCY: f64 = 55.0;
const TERM: f64 = 8.0;

/// The time of finding a tap's pixel, or a window of a weight gradient, in terms; and that of finding an element.
const TAP: f64 = 8.0;
const ELEMENT: f64 = 50.0;

/// The instructions that take as long as a sector of memory for a plane.
const OF_SECTOR: f64 = 2.0;

impl Kernel for Config {
    fn multiplies_integers() -> bool {
        true
    }

    fn computes_bias_gradients() -> bool {
        true
    }

    /// A bias gradient has no factors to round.
    fn applies(Task { request, .. }: Task<'_>) -> Result<(), NotApplicable> {
        let is_exact = request.precision == Precision::Strict || request.pass == Pass::Bias;
        require(is_exact, "it does not round to tf32")
    }

    fn new(_: Task<'_>) -> Option<Self> {
        Some(Self)
    }

    fn over(self, overrides: &TileOverrides) -> Result<Self, PlanError> {
        let error = PlanError::Untiled { kernel: "direct" };
        ensure(*overrides == TileOverrides::default(), error)?;
        Ok(self)
    }

    fn tile(&self) -> Option<Tile> {
        None
    }

    fn check(&self, _: Task<'_>) -> Result<(), PlanError> {
        Ok(())
    }

    fn units(&self, task: Task<'_>) -> u32 {
        independent_units(UNITS, task.device)
    }

    /// Estimates the time from the instructions of all units, and from the latency of one unit's loads, each of which
    /// waits for the one before.
    fn seconds(&self, task: Task<'_>, splits: usize) -> f64 {
        let Task { conv, request, device } = task;
        let pass = request.pass;
        let (taps, terms) = match pass {
            Pass::Forward | Pass::Data => {
                let taps = conv.filter().taps();
                (taps, taps * inner(conv, pass))
            }
            Pass::Weight | Pass::Bias => {
                (windows(conv).div_ceil(splits), windows(conv).div_ceil(splits))
            }
        };
        // Units with neighbouring filters read weights that are not neighbours, each in a sector of its own. With
        // channels first, neighbouring units read neighbouring pixels.
        let step = match (pass, conv.layout()) {
            (Pass::Weight | Pass::Bias, _) => 0,
            (_, Layout::ChannelsFirst) => 1,
            _ if conv.filter().count() > conv.groups() => weight_steps(conv, pass).column,
            _ => weight_steps(conv, pass).group,
        };
        let spread = (step * request.dtype.size()).min(SECTOR);
        let (taps, terms) = (taps as f64 * TAP, terms as f64);
        let instructions = TERM * (ELEMENT + taps + terms) + OF_SECTOR * spread as f64 * terms;
        let elements = (results(conv, pass) * splits) as f64;
        let units = device.multiprocessor_count() as f64 * device.units_per_cycle();
        // The cores of a processor compute one element after the other.
        let turns = device.cores.map_or(1.0, |cores| (elements / f64::from(cores)).max(1.0));
        let cycles = (elements * instructions / units).max(turns * LATENCY * (taps + terms));
        let moving = cost::moving(cost::bytes(conv, request), device);
        device.launch_seconds(1) + moving.max(cycles / device.clock())
    }

    fn launch(&self, arguments: &Arguments<'_>) -> Result<(), PlanError> {
        let Arguments { client, splits, stored, .. } = *arguments;
        let Task { conv, request: Request { pass, dtype, .. }, .. } = arguments.task;
        let ([a, b], out) = (arguments.operands, arguments.out);
        // This kernel does its own bf16 rounding on every device.
        let epilogue = Epilogue { rounds: false, ..arguments.epilogue };
        let elements = results(conv, pass) * splits;
        let [a_len, b_len] = operands(conv, pass);
        let (cubes, units) = grid(client, arguments.units, elements);
        let order = match pass {
            Pass::Weight => Order::from(conv.filter_layout()),
            _ => Order::from(conv.layout()),
        };
        let axes = conv.grid().axes().each_ref().map(|axis| AxisForm::new(axis, false));
        let form =
            Form { axes, order, epilogue: epilogue.form(stored), contiguous: arguments.contiguous };
        let problem = problem_args(conv, elements, splits);
        match pass {
            // SAFETY: every access is inside the tensors by the arithmetic of `Axis` and `Coordinates`.
            Pass::Forward => unsafe {
                kernel::forward::launch_unchecked(
                    client,
                    cubes,
                    units,
                    buffer(a, a_len),
                    buffer(b, b_len),
                    epilogue.args(conv.filter().count(), elements, 1, stored),
                    buffer(out, elements),
                    problem,
                    form,
                    elem(dtype),
                    elem(accumulator(dtype)),
                    elem(stored),
                )
            },
            // SAFETY: as above.
            Pass::Data => unsafe {
                kernel::data::launch_unchecked(
                    client,
                    cubes,
                    units,
                    buffer(a, a_len),
                    buffer(b, b_len),
                    buffer(out, elements),
                    problem,
                    form,
                    elem(dtype),
                    elem(accumulator(dtype)),
                )
            },
            // SAFETY: as above.
            Pass::Weight => unsafe {
                kernel::weight::launch_unchecked(
                    client,
                    cubes,
                    units,
                    buffer(b, b_len),
                    buffer(a, a_len),
                    buffer(out, elements),
                    problem,
                    form,
                    elem(dtype),
                    elem(accumulator(dtype)),
                    elem(stored),
                )
            },
            Pass::Bias => return Err(PlanError::Foreign),
        }
        Ok(())
    }
}
