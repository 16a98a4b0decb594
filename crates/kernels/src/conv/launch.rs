//! The entry point: checks the caller's tensors and plan, and launches the plan's kernel.

use cubecl::server::Handle;
use windowpane_geometry::{Activation, Convolution, DType, Precision};

use super::arrangement::Rearrangement;
use super::common::{Arguments, Epilogue, split_k};
use super::problem::{Pass, Request, Task, operands, results, windows};
use super::select::Plan;
use crate::cube::accumulator;
use crate::cube::buffers::{self, BufferError, Given};
use crate::device::{Capabilities, Target};
use crate::error::{PlanError, ensure};
use crate::packed;

/// The tensors of a launch. All have the same type, except in a quantized convolution.
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
    /// A quantized convolution: `activation(scale · sum + bias)` of exact sums of products of `i8`, with a scale and a bias
    /// in `f32` for each filter.
    Quantized {
        /// The input, in `i8`.
        x: &'a Handle,
        /// The filters, in `i8`.
        w: &'a Handle,
        /// One number in `f32` per filter.
        scale: &'a Handle,
        /// One number in `f32` per filter.
        bias: Option<&'a Handle>,
        /// The activation function that is applied last, before rounding.
        activation: Activation,
        /// The type of the output: `f32`, `f16`, `bf16` or `i8`.
        output: DType,
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
            Self::Forward { .. } | Self::Quantized { .. } => Pass::Forward,
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
            Self::Quantized { x, w, scale, bias, activation, y, .. } => {
                ([x, w], y, Epilogue { bias, scale: Some(scale), activation, ..Epilogue::NONE })
            }
            Self::Data { dy, w, dx } => ([dy, w], dx, Epilogue::NONE),
            Self::Weight { dy, x, dw } => ([x, dy], dw, Epilogue::NONE),
            Self::Bias { dy, db } => ([dy, dy], db, Epilogue::NONE),
        }
    }

    /// The type of the results, if those of the factors can have such results.
    fn result(&self, dtype: DType) -> Result<DType, PlanError> {
        match *self {
            Self::Quantized { activation, output, .. } => {
                ensure(dtype == DType::I8, PlanError::Int8Only { dtype })?;
                activation.check_quantized(output)?;
                Ok(output)
            }
            _ => {
                let error = PlanError::FloatsOnly { operator: "convolution", dtype };
                ensure(dtype.is_float(), error)?;
                Ok(dtype)
            }
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
            Self::Quantized { x, w, scale, bias, output: result, y, .. } => {
                let number =
                    |name, handle| Given { dtype: DType::F32, ..given(name, handle, filters) };
                let read =
                    [input("the input", x), weights("the filters", w), number("the scales", scale)];
                let bias = bias.map(|bias| number("the bias", bias));
                let read: Vec<_> = read.into_iter().chain(bias).collect();
                let y = Given { dtype: result, ..output("the output", y) };
                buffers::check(device, &read, &[y])
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
    tensors: Operands<'_>,
) -> Result<(), PlanError> {
    let Target { client, device } = target;
    let request = Request { pass: tensors.pass(), dtype, precision };
    let result = tensors.result(dtype)?;
    plan.check(conv, request, device)?;
    tensors.check(conv, dtype, device)?;
    if results(conv, request.pass) == 0 {
        return Ok(());
    }
    if windows(conv) == 0 {
        return Err(PlanError::NoWindows);
    }
    let (factors, out, epilogue) = tensors.parts();
    let unpacked = Unpacked::new(target, request, result, conv, (factors, out));
    let (request, stored) = (request.computed(device), device.computed(result));
    let read = plan.arrangement.of(conv, request.pass).ok_or(PlanError::Foreign)?;
    let rearrangement = Rearrangement::new(conv, plan.arrangement, request.pass);
    let types = [request.dtype, stored];
    let factors = unpacked.factors.each_ref();
    let own = rearrangement.before(target, types, factors, epilogue.residual, &unpacked.out);
    let arguments = Arguments {
        client,
        task: Task { conv: &read, request, device },
        units: plan.units,
        contiguous: plan.contiguous,
        splits: plan.splits,
        stored,
        operands: own.factors.each_ref(),
        out: &own.out,
        epilogue: Epilogue {
            residual: own.residual.as_ref(),
            rounds: device.rounds_bf16,
            ..epilogue
        },
    };
    compute(plan, &arguments)?;
    rearrangement.after(target, stored, &own.out, &unpacked.out);
    if device.packs(result) {
        packed::pack(target, result, &unpacked.out, out, results(conv, request.pass));
    }
    Ok(())
}

/// The tensors of a launch in types that the device's kernels have.
struct Unpacked {
    factors: [Handle; 2],
    out: Handle,
}

impl Unpacked {
    /// Unpacks the factors, and allocates the result, where the device packs their types.
    fn new(
        target: Target<'_>,
        request: Request,
        result: DType,
        conv: &Convolution,
        (factors, out): ([&Handle; 2], &Handle),
    ) -> Self {
        let Request { pass, dtype, .. } = request;
        let device = target.device;
        let unpack = |handle: &Handle, elements| match device.packs(dtype) {
            true => packed::unpack(target, dtype, handle, elements),
            false => handle.clone(),
        };
        let [first, second] = operands(conv, pass);
        Self {
            factors: [unpack(factors[0], first), unpack(factors[1], second)],
            out: match device.packs(result) {
                true => packed::room(target.client, result, results(conv, pass)),
                false => out.clone(),
            },
        }
    }
}

/// Launches the plan's kernel, and the addition of its parts if sums are split.
fn compute(plan: &Plan, arguments: &Arguments<'_>) -> Result<(), PlanError> {
    let Arguments { client, task, .. } = *arguments;
    let Task { conv, request: Request { pass, dtype, .. }, device } = task;
    if !plan.stores_partial_sums() {
        return plan.launch(arguments);
    }
    let elements = plan.splits * results(conv, pass);
    let stored = accumulator(dtype);
    let parts = client.empty(elements * stored.size());
    let epilogue = Epilogue { rounds: device.rounds_bf16, ..Epilogue::NONE };
    plan.launch(&Arguments { out: &parts, stored, epilogue, ..*arguments })?;
    split_k::add_parts(arguments, &parts);
    Ok(())
}
