//! Tensors and a plan in, launches out: what a caller gives is checked, and goes to the plan's kernel.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use windowpane_geometry::{Activation, Convolution, DType, Precision};

use super::epilogue::Epilogue;
use super::plan::{Algorithm, Pass, Plan, PlanError, Request, results, windows};
use super::{banded, depthwise, direct, grouped, hopper, matrix, reduce, tiled, wide};
use crate::Target;
use crate::dtype::accumulator;

/// The tensors of a launch, all of one type.
#[derive(Clone, Copy, Debug)]
pub enum Operands<'a> {
    /// The convolution, and what follows each sum.
    Forward {
        /// The input.
        x: &'a Handle,
        /// The filters.
        w: &'a Handle,
        /// A number for each filter.
        bias: Option<&'a Handle>,
        /// A tensor of the output's shape.
        residual: Option<&'a Handle>,
        /// What becomes of a sum at last.
        activation: Activation,
        /// The output.
        y: &'a Handle,
    },
    /// The gradient with respect to the input.
    Data {
        /// The gradient with respect to the sums.
        dy: &'a Handle,
        /// The filters.
        w: &'a Handle,
        /// The gradient of the input.
        dx: &'a Handle,
    },
    /// The gradient with respect to the filters.
    Filter {
        /// The gradient with respect to the sums.
        dy: &'a Handle,
        /// The input.
        x: &'a Handle,
        /// The gradient of the filters.
        dw: &'a Handle,
    },
    /// The gradient with respect to the bias.
    Bias {
        /// The gradient with respect to the sums.
        dy: &'a Handle,
        /// The gradient of the bias.
        db: &'a Handle,
    },
}

impl Operands<'_> {
    /// What the launch computes.
    pub fn pass(&self) -> Pass {
        match self {
            Self::Forward { .. } => Pass::Forward,
            Self::Data { .. } => Pass::Data,
            Self::Filter { .. } => Pass::Filter,
            Self::Bias { .. } => Pass::Bias,
        }
    }

    /// What the sums are made of, where they go, and what follows them.
    fn parts(&self) -> ([&Handle; 2], &Handle, Epilogue<'_>) {
        match *self {
            Self::Forward { x, w, bias, residual, activation, y } => {
                ([x, w], y, Epilogue { bias, residual, activation, ..Epilogue::NONE })
            }
            Self::Data { dy, w, dx } => ([dy, w], dx, Epilogue::NONE),
            Self::Filter { dy, x, dw } => ([x, dy], dw, Epilogue::NONE),
            Self::Bias { dy, db } => ([dy, dy], db, Epilogue::NONE),
        }
    }

    /// Refuses buffers that are smaller than their tensors.
    fn check(&self, conv: &Convolution, dtype: DType) -> Result<(), PlanError> {
        let (inputs, outputs) = (conv.input().elements(), conv.output().elements());
        let (weights, filters) = (conv.filter().elements(), conv.filter().count());
        let check = |pairs: &[(&Handle, usize)]| {
            pairs.iter().try_for_each(|(handle, elements)| holds(handle, dtype, *elements))
        };
        match *self {
            Self::Forward { x, w, bias, residual, y, .. } => {
                check(&[(x, inputs), (w, weights), (y, outputs)])?;
                bias.map_or(Ok(()), |bias| holds(bias, dtype, filters))?;
                residual.map_or(Ok(()), |residual| holds(residual, dtype, outputs))
            }
            Self::Data { dy, w, dx } => check(&[(dy, outputs), (w, weights), (dx, inputs)]),
            Self::Filter { dy, x, dw } => check(&[(dy, outputs), (x, inputs), (dw, weights)]),
            Self::Bias { dy, db } => check(&[(dy, outputs), (db, filters)]),
        }
    }
}

/// Refuses a buffer that is smaller than its tensor.
fn holds(handle: &Handle, dtype: DType, elements: usize) -> Result<(), PlanError> {
    let (needed, found) = (elements as u64 * dtype.size() as u64, handle.size());
    if found < needed {
        return Err(PlanError::BufferTooSmall { needed, found });
    }
    Ok(())
}

/// Launches a convolution or one of its gradients.
///
/// The launch is asynchronous; what goes wrong on the device is told by the call that reads the
/// result. A gradient of the filters or the bias over no windows is refused: nothing would be
/// launched, and its zeros are the caller's to make.
pub fn launch(
    Target { client, limits }: Target<'_>,
    conv: &Convolution,
    dtype: DType,
    precision: Precision,
    plan: &Plan,
    operands: Operands<'_>,
) -> Result<(), PlanError> {
    let request = Request { pass: operands.pass(), dtype, precision };
    plan.check(conv, request, limits)?;
    operands.check(conv, dtype)?;
    if results(conv, request.pass) == 0 {
        return Ok(());
    }
    if windows(conv) == 0 {
        return Err(PlanError::NoWindows);
    }
    let (tensors, out, epilogue) = operands.parts();
    let epilogue = Epilogue { rounds: limits.llvm, ..epilogue };
    in_parts(client, conv, request, plan, out, epilogue, |out, epilogue| {
        let (pass, [a, b]) = (request.pass, tensors);
        let all = [a, b, out];
        match (plan.algorithm, pass) {
            (_, Pass::Bias) => {
                reduce::sum_rows(client, &conv.output(), conv.layout(), dtype, plan, [a, out]);
            }
            (Algorithm::Banded, _) => {
                banded::launch(client, conv, pass, dtype, plan, all, epilogue);
            }
            (Algorithm::Depthwise, _) => {
                depthwise::launch(client, conv, pass, dtype, plan, all, epilogue);
            }
            (Algorithm::Grouped, _) => {
                grouped::launch(client, conv, pass, dtype, plan, all, epilogue);
            }
            (Algorithm::Wide, Pass::Filter) => {
                wide::filter::launch(client, conv, dtype, plan, [b, a, out]);
            }
            (Algorithm::Wide, _) => wide::launch(client, conv, pass, dtype, plan, all, epilogue),
            (Algorithm::Hopper, _) => {
                hopper::launch(client, conv, request, plan, limits, all, epilogue);
            }
            (Algorithm::Matrix, _) => {
                matrix::launch(client, conv, request, plan, limits, all, epilogue);
            }
            (Algorithm::Tiled, _) => tiled::launch(client, conv, pass, dtype, plan, all, epilogue),
            (Algorithm::Direct, Pass::Filter) => {
                direct::launch_filter(client, conv, dtype, plan, [b, a, out]);
            }
            (Algorithm::Direct, _) => direct::launch(client, conv, dtype, plan, operands),
        }
    });
    Ok(())
}

/// Has sums finished and written where they belong, or where the plan cuts them into parts, the parts
/// written elsewhere, and then added and finished.
fn in_parts(
    client: &Client,
    conv: &Convolution,
    request: Request,
    plan: &Plan,
    out: &Handle,
    epilogue: Epilogue<'_>,
    sum: impl FnOnce(&Handle, Epilogue<'_>),
) {
    if !plan.cuts(request.pass, request.dtype) {
        return sum(out, epilogue);
    }
    let elements = results(conv, request.pass);
    let parts = client.empty(plan.splits * elements * accumulator(request.dtype).size());
    sum(&parts, Epilogue { rounds: epilogue.rounds, ..Epilogue::NONE });
    reduce::add_parts(client, conv, request, plan, [&parts, out], epilogue);
}

/// A tensor of so many elements, or vectors of them.
pub(super) fn buffer(handle: &Handle, elements: usize) -> BufferArg {
    // SAFETY: `Operands::check` has seen that the handle holds the elements, or they are a
    // workspace that was made for them.
    unsafe { BufferArg::from_raw_parts(handle.clone(), elements) }
}
