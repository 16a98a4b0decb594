//! The entry point: checks the caller's tensors and plan, and launches the plan's kernel.

use cubecl::server::Handle;
use windowpane_geometry::{Activation, Convolution, DType, Precision};

use super::arrangement::Rearrangement;
use super::common::arguments::Arguments;
use super::common::epilogue::Epilogue;
use super::common::split_k;
use super::problem::{Pass, Request, Task, results, windows};
use super::select::Plan;
use crate::cube::buffers::BufferError;
use crate::cube::buffers::{self, Given};
use crate::cube::convert::accumulator;
use crate::device::{Capabilities, Target};
use crate::error::PlanError;

/// The tensors of a launch. All have the same type.
#[derive(Clone, Copy, Debug)]
pub enum Operands<'a> {
    /// The convolution, with its epilogue.
    Forward {
        /// The input.
        x: &'a Handle,
        /// The filters.
        w: &'a Handle,
        /// One element per filter.
        bias: Option<&'a Handle>,
        /// A tensor with the output's shape, which is added to the sums.
        residual: Option<&'a Handle>,
        /// The activation function that is applied last.
        activation: Activation,
        /// The output.
        y: &'a Handle,
    },
    /// The gradient with respect to the input.
    Data {
        /// The gradient with respect to the sums, that is, to the output before its activation.
        dy: &'a Handle,
        /// The filters.
        w: &'a Handle,
        /// The data gradient.
        dx: &'a Handle,
    },
    /// The gradient with respect to the filters.
    Weight {
        /// The gradient with respect to the sums, that is, to the output before its activation.
        dy: &'a Handle,
        /// The input.
        x: &'a Handle,
        /// The weight gradient.
        dw: &'a Handle,
    },
    /// The gradient with respect to the bias.
    Bias {
        /// The gradient with respect to the sums, that is, to the output before its activation.
        dy: &'a Handle,
        /// The bias gradient.
        db: &'a Handle,
    },
}

impl Operands<'_> {
    /// The pass that the launch computes.
    pub fn pass(&self) -> Pass {
        match self {
            Self::Forward { .. } => Pass::Forward,
            Self::Data { .. } => Pass::Data,
            Self::Weight { .. } => Pass::Weight,
            Self::Bias { .. } => Pass::Bias,
        }
    }

    /// The two factors, the results, and the epilogue.
    fn parts(&self) -> ([&Handle; 2], &Handle, Epilogue<'_>) {
        match *self {
            Self::Forward { x, w, bias, residual, activation, y } => {
                ([x, w], y, Epilogue { bias, residual, activation, ..Epilogue::NONE })
            }
            Self::Data { dy, w, dx } => ([dy, w], dx, Epilogue::NONE),
            Self::Weight { dy, x, dw } => ([x, dy], dw, Epilogue::NONE),
            Self::Bias { dy, db } => ([dy, dy], db, Epilogue::NONE),
        }
    }

    /// Rejects buffers that kernels, which do not check their accesses, could not use safely.
    fn check(
        &self,
        conv: &Convolution,
        dtype: DType,
        device: &Capabilities,
    ) -> Result<(), BufferError> {
        let given = |name, handle, elements| Given { name, handle, dtype, elements };
        let filters = conv.filter().count();
        let input = |name, handle| given(name, handle, conv.input().elements());
        let output = |name, handle| given(name, handle, conv.output().elements());
        let weights = |name, handle| given(name, handle, conv.filter().elements());
        match *self {
            Self::Forward { x, w, bias, residual, y, .. } => {
                let bias = bias.map(|bias| given("the bias", bias, filters));
                let residual = residual.map(|residual| output("the residual", residual));
                let read = [input("the input", x), weights("the filters", w)];
                let read: Vec<_> = read.into_iter().chain(bias).chain(residual).collect();
                buffers::check(device, &read, &[output("the output", y)])
            }
            Self::Data { dy, w, dx } => {
                let read = [output("the output's gradient", dy), weights("the filters", w)];
                buffers::check(device, &read, &[input("the input's gradient", dx)])
            }
            Self::Weight { dy, x, dw } => {
                let read = [output("the output's gradient", dy), input("the input", x)];
                buffers::check(device, &read, &[weights("the filters' gradient", dw)])
            }
            Self::Bias { dy, db } => {
                let read = [output("the output's gradient", dy)];
                buffers::check(device, &read, &[given("the bias's gradient", db, filters)])
            }
        }
    }
}

/// Launches a convolution or one of its gradients.
///
/// The launch is asynchronous; errors on the device are reported by the call that reads the result. A weight or bias
/// gradient over no windows is an error: no kernel would write its result, and the caller must fill it with zeros.
pub fn launch(
    target: Target<'_>,
    conv: &Convolution,
    dtype: DType,
    precision: Precision,
    plan: &Plan,
    operands: Operands<'_>,
) -> Result<(), PlanError> {
    let Target { client, device } = target;
    let request = Request { pass: operands.pass(), dtype, precision };
    plan.check(conv, request, device)?;
    operands.check(conv, dtype, device)?;
    if results(conv, request.pass) == 0 {
        return Ok(());
    }
    if windows(conv) == 0 {
        return Err(PlanError::NoWindows);
    }
    let (factors, out, epilogue) = operands.parts();
    let read = plan.arrangement.of(conv, request.pass).ok_or(PlanError::Foreign)?;
    let rearrangement = Rearrangement::new(conv, plan.arrangement, request.pass);
    let tensors = rearrangement.before(target, dtype, factors, epilogue.residual, out);
    let arguments = Arguments {
        client,
        task: Task { conv: &read, request, device },
        units: plan.units,
        contiguous: plan.contiguous,
        splits: plan.splits,
        stored: plan.stored(dtype),
        operands: tensors.factors.each_ref(),
        out: &tensors.out,
        epilogue: Epilogue {
            residual: tensors.residual.as_ref(),
            rounds: device.rounds_bf16,
            ..epilogue
        },
    };
    compute(plan, &arguments)?;
    rearrangement.after(target, dtype, &tensors.out, out);
    Ok(())
}

/// Launches the plan's kernel, and the addition of its parts if sums are split.
fn compute(plan: &Plan, arguments: &Arguments<'_>) -> Result<(), PlanError> {
    let Arguments { client, task, .. } = *arguments;
    let Task { conv, request: Request { pass, dtype, .. }, device } = task;
    if !plan.stores_partial_sums() {
        return plan.launch(arguments);
    }
    let elements = plan.splits * results(conv, pass);
    let parts = client.empty(elements * accumulator(dtype).size());
    let epilogue = Epilogue { rounds: device.rounds_bf16, ..Epilogue::NONE };
    plan.launch(&Arguments { out: &parts, epilogue, ..*arguments })?;
    split_k::add_parts(arguments, &parts);
    Ok(())
}
