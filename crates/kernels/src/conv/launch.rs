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
        [dtype, result]: [DType; 2],
        device: &Capabilities,
    ) -> Result<(), BufferError> {
        let pass = self.pass();
        let ([one, other], out, epilogue) = self.parts();
        let given = |name, handle, dtype, elements| Given { name, handle, dtype, elements };
        let [one_name, other_name, out_name] = match pass {
            Pass::Forward => ["the input", "the filters", "the output"],
            Pass::Data => ["the output's gradient", "the filters", "the input's gradient"],
            Pass::Weight => ["the input", "the output's gradient", "the filters' gradient"],
            Pass::Bias => ["the output's gradient", "", "the bias's gradient"],
        };
        let ([first, second], results) = (operands(conv, pass), results(conv, pass));
        let mut read = vec![given(one_name, one, dtype, first)];
        if pass != Pass::Bias {
            read.push(given(other_name, other, dtype, second));
        }
        let filters = conv.filter().count();
        let number = if epilogue.scale.is_some() { DType::F32 } else { dtype };
        read.extend(epilogue.scale.map(|scale| given("the scales", scale, number, filters)));
        read.extend(epilogue.bias.map(|bias| given("the bias", bias, number, filters)));
        read.extend(epilogue.residual.map(|it| given("the residual", it, dtype, results)));
        buffers::check(device, &read, &[given(out_name, out, result, results)])
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
    tensors.check(conv, [dtype, result], device)?;
    if results(conv, request.pass) == 0 {
        return Ok(());
    }
    if windows(conv) == 0 {
        return Err(PlanError::NoWindows);
    }
    let ([one, other], out, epilogue) = tensors.parts();
    let unpack = |handle: &Handle, elements| match device.packs(dtype) {
        true => packed::unpack(target, dtype, handle, elements),
        false => handle.clone(),
    };
    let [first, second] = operands(conv, request.pass);
    let factors = [unpack(one, first), unpack(other, second)];
    let unpacked = match device.packs(result) {
        true => packed::room(client, result, results(conv, request.pass)),
        false => out.clone(),
    };
    let (request, stored) = (request.computed(device), device.computed(result));
    let read = plan.arrangement.of(conv, request.pass).ok_or(PlanError::Foreign)?;
    let rearrangement = Rearrangement::new(conv, plan.arrangement, request.pass);
    let types = [request.dtype, stored];
    let factors = factors.each_ref();
    let own = rearrangement.before(target, types, factors, epilogue.residual, &unpacked);
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
    rearrangement.after(target, stored, factors, &own.out, &unpacked);
    if device.packs(result) {
        packed::pack(target, result, &unpacked, out, results(conv, request.pass));
    }
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
    let stored = accumulator(dtype);
    let parts = client.empty(elements * stored.size());
    let epilogue = Epilogue { rounds: device.rounds_bf16, ..Epilogue::NONE };
    plan.launch(&Arguments { out: &parts, stored, epilogue, ..*arguments })?;
    split_k::add_parts(arguments, &parts);
    Ok(())
}
