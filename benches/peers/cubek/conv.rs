//! cubek-convolution: implicit GEMM with each of its algorithms, on matrix units or in registers, and
//! separate kernels for groups.

use cubek_convolution::{
    AcceleratedTileKind, ConvAlgorithm, ConvolutionArgs, ConvolutionInputs, DepthwiseStrategy,
    DepthwiseTensors, DepthwiseWeightBackwardTensors, DirectTensors, Strategy, UnitStrategy,
    UnitTiling, launch_depthwise, launch_depthwise_weight_backward, launch_direct, launch_ref,
};
use cubek_matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek_matmul::multi_level::routines::TileSizeSelection;
use cubek_std::InputBinding;
use windowpane::{Conv, ConvPlan, DType, Device, Precision, Tensor};

use crate::case::Case;
use crate::contest::{Candidate, Contest, Expected, Memory};
use crate::{Result, one_line, text};

const ALGORITHMS: [ConvAlgorithm; 9] = [
    ConvAlgorithm::SimpleSyncCyclic,
    ConvAlgorithm::SimpleSyncStrided,
    ConvAlgorithm::SimpleSyncTilewise,
    ConvAlgorithm::SimpleAsyncCyclic,
    ConvAlgorithm::SimpleAsyncStrided,
    ConvAlgorithm::SimpleAsyncTma,
    ConvAlgorithm::SpecializedAsyncCyclic,
    ConvAlgorithm::SpecializedAsyncStrided,
    ConvAlgorithm::SpecializedTma,
];

const IN_REGISTERS: [UnitStrategy; 7] = [
    UnitStrategy::Inferred(TileSizeSelection::MinTileSize),
    UnitStrategy::Inferred(TileSizeSelection::MaxTileSize),
    UnitStrategy::Fixed(UnitTiling::NARROW),
    UnitStrategy::Fixed(UnitTiling::BALANCED),
    UnitStrategy::Fixed(UnitTiling::WIDE),
    UnitStrategy::Fixed(UnitTiling::DEEP),
    UnitStrategy::Fixed(UnitTiling::TALL),
];

/// The operands of a pass, including the one that it writes.
#[derive(Clone)]
struct Operands {
    x: Memory,
    w: Memory,
    y: Memory,
}

pub(crate) fn contest(case: &Case, device: &Device) -> Result<Contest> {
    match case.size.len() {
        1 => of_rank::<1>(case, device),
        2 => of_rank::<2>(case, device),
        3 => of_rank::<3>(case, device),
        rank => Err(format!("cubek-convolution does not support {rank} dimensions")),
    }
}

fn of_rank<const N: usize>(case: &Case, device: &Device) -> Result<Contest> {
    let (input, dtype) = (case.input(), case.dtype()?);
    let filters = [&[case.cout], &*case.k, &[case.c / case.groups.max(1)]].concat();
    let conv = Conv::with_window(case.window()?).groups(case.groups).precision(precision(case)?);
    let plan = match &*case.pass {
        "fwd" => conv.plan(device, dtype, &input, &filters),
        "data" | "dgrad" => conv.plan_backward_data(device, dtype, &input, &filters),
        "weight" | "wgrad" => conv.plan_backward_weight(device, dtype, &input, &filters),
        pass => return Err(format!("conv has no pass `{pass}`")),
    };
    let plan = plan.map_err(text)?;
    let output: Vec<usize> =
        plan.problem().output().dims(windowpane::Layout::ChannelsLast).collect();
    let expected = expected(case, &plan, [&input, &filters, &output])?;
    let operands = Operands {
        x: Memory::random(device, dtype, &input, 1)?,
        w: Memory::random(device, dtype, &filters, 2)?,
        y: Memory::random(device, dtype, &output, 3)?,
    };
    let written = match &*case.pass {
        "fwd" => operands.y.clone(),
        "data" | "dgrad" => operands.x.clone(),
        _ => operands.w.clone(),
    };
    let candidates = match case.groups {
        1 => products::<N>(case, device, &operands)?,
        _ => grouped::<N>(case, device, &operands)?,
    };
    let (bytes, operations) = (plan.bytes(), Some(plan.operations()));
    Ok(Contest { bytes, operations, output: written, expected, candidates })
}

fn precision(case: &Case) -> Result<Precision> {
    case.precision.as_deref().map_or(Ok(Precision::Strict), |name| name.parse().map_err(text))
}

/// Our result from the same numbers.
fn expected(case: &Case, plan: &ConvPlan, dims: [&[usize]; 3]) -> Result<Expected> {
    let (device, dtype) = (plan.device(), case.dtype()?);
    let [x, w, y] = dims;
    let random = |dims: &[usize], seed| Tensor::random(device, dtype, dims, seed).map_err(text);
    let (first, second) = match &*case.pass {
        "fwd" => (random(x, 1)?, random(w, 2)?),
        "data" | "dgrad" => (random(y, 3)?, random(w, 2)?),
        _ => (random(y, 3)?, random(x, 1)?),
    };
    let mut results = Vec::new();
    plan.run(&[&first, &second], &mut results).map_err(text)?;
    Expected::of(&results[0])
}

fn arguments<const N: usize>(case: &Case) -> Result<ConvolutionArgs<N>> {
    Ok(ConvolutionArgs {
        stride: case.axes(&case.s)?,
        padding: case.axes(&case.p)?,
        dilation: case.axes(&case.d)?,
    })
}

/// The strategies of an implicit GEMM. Those on matrix units silently round f32 to tf32, so strict cases use
/// only those in registers.
fn products<const N: usize>(
    case: &Case,
    device: &Device,
    operands: &Operands,
) -> Result<Vec<Candidate>> {
    let strict = case.dtype()? == DType::F32 && precision(case)? == Precision::Strict;
    let strategies: Vec<Strategy> = match strict {
        true => IN_REGISTERS.into_iter().map(Strategy::Unit).collect(),
        false => {
            let kinds = [AcceleratedTileKind::Cmma, AcceleratedTileKind::Mma];
            let all = ALGORITHMS.into_iter().flat_map(|algorithm| {
                kinds.map(|tile_kind| Strategy::Inferred { algorithm, tile_kind })
            });
            all.collect()
        }
    };
    let mut candidates = Vec::new();
    for strategy in strategies {
        let (args, pass) = (arguments::<N>(case)?, case.pass.clone());
        let (client, operands) = (device.client().ok_or("no kernels")?.clone(), operands.clone());
        let elem = operands.x.elem();
        let types =
            MatmulElems::from_globals(&MatmulGlobalElems { lhs: elem, rhs: elem, out: elem });
        candidates.push(Candidate::new(strategy.to_string(), move || {
            let inputs = inputs(&operands, &pass);
            launch_ref::<N>(&strategy, &client, inputs, args.clone(), types.clone())
                .map_err(|error| one_line(&format!("{error:?}")))
        }));
    }
    Ok(candidates)
}

fn inputs(operands: &Operands, pass: &str) -> ConvolutionInputs {
    let Operands { x, w, y } = operands;
    let read = |memory: &Memory| InputBinding::new(memory.binding(), memory.elem());
    match pass {
        "fwd" => ConvolutionInputs::Forward {
            input: read(x),
            weight: read(w),
            bias: None,
            out: y.binding(),
        },
        "data" | "dgrad" => ConvolutionInputs::BackwardData {
            out_grad: read(y),
            weights: read(w),
            in_grad: x.binding(),
        },
        _ => ConvolutionInputs::BackwardWeight {
            input: read(x),
            out_grad: read(y),
            weight_grad: w.binding(),
        },
    }
}

/// The kernels for groups: one for any, and two for groups of one channel.
fn grouped<const N: usize>(
    case: &Case,
    device: &Device,
    operands: &Operands,
) -> Result<Vec<Candidate>> {
    let groups = case.groups;
    let depthwise = groups == case.c && N == 2;
    let client = device.client().ok_or("no kernels")?;
    let mut candidates = Vec::new();
    if case.pass == "fwd" {
        let (args, client, own) = (arguments::<N>(case)?, client.clone(), operands.clone());
        candidates.push(Candidate::new("direct", move || {
            let (input, weight, out) = (own.x.binding(), own.w.binding(), own.y.binding());
            let tensors = DirectTensors { input, weight, bias: None, out };
            launch_direct::<N>(&client, tensors, args.clone(), groups, own.x.elem())
                .map_err(|error| one_line(&format!("{error:?}")))
        }));
    }
    if case.pass == "fwd" && depthwise {
        let (args, client, own) = (arguments::<2>(case)?, client.clone(), operands.clone());
        candidates.push(Candidate::new("depthwise", move || {
            let (input, weight, out) = (own.x.binding(), own.w.binding(), own.y.binding());
            let (tensors, how) =
                (DepthwiseTensors { input, weight, out }, DepthwiseStrategy::Routine);
            launch_depthwise(&client, tensors, args.clone(), groups, own.x.elem(), how)
                .map_err(|error| one_line(&format!("{error:?}")))
        }));
    }
    if matches!(&*case.pass, "weight" | "wgrad") && depthwise {
        let (args, client, own) = (arguments::<2>(case)?, client.clone(), operands.clone());
        candidates.push(Candidate::new("depthwise_weight_backward", move || {
            let (input, out_grad) = (own.x.binding(), own.y.binding());
            let weight_grad = own.w.binding();
            let tensors = DepthwiseWeightBackwardTensors { input, out_grad, weight_grad };
            launch_depthwise_weight_backward(&client, tensors, args.clone(), groups, own.x.elem())
                .map_err(|error| one_line(&format!("{error:?}")))
        }));
    }
    match candidates.is_empty() {
        true => Err(format!("cubek-convolution does not support {} with groups", case.pass)),
        false => Ok(candidates),
    }
}
