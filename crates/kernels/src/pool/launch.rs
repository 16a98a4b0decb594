//! The launch of a pooling: what is given is checked, and the plan's kernel launched. Beside it what all
//! launches have in common.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use windowpane_geometry::{DType, Pooling};

use super::plan::{Algorithm, Output, Plan, PlanError, Reduction};
use super::{direct, flat, fused, lp, paired, plane, reduce, rolling, sliding, strip, walk};
use crate::Target;
use crate::limits::has_powers;

/// Launches a pooling: `input` and `output` hold elements of `dtype`, `indices` one `i32` for
/// each output where the reduction returns them.
///
/// The launch is asynchronous; what goes wrong on the device is told by the call that reads the
/// output.
pub fn launch(
    Target { client, limits }: Target<'_>,
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
    [input, output]: [&Handle; 2],
    indices: Option<&Handle>,
) -> Result<(), PlanError> {
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    plan.check(pooling, reduction, dtype, limits)?;
    check_powers(client, reduction, dtype)?;
    check_buffers(dtype, [(input, inputs), (output, outputs)])?;
    check_indices(reduction, indices, outputs)?;
    if outputs == 0 {
        return Ok(());
    }
    if let Reduction::Norm(p) = reduction {
        lp::launch(client, pooling, p, dtype, plan, [input, output]);
        return Ok(());
    }
    match plan.algorithm {
        Algorithm::Sliding => {
            sliding::launch(client, pooling, reduction, dtype, plan, [input, output], indices);
        }
        Algorithm::Fused if paired::serves(reduction, dtype, plan) => {
            paired::launch(client, pooling, reduction, dtype, plan, [input, output]);
        }
        Algorithm::Fused => {
            fused::launch(client, pooling, reduction, dtype, plan, [input, output]);
        }
        Algorithm::Plane => {
            plane::launch(client, pooling, reduction, dtype, plan, [input, output], false);
        }
        Algorithm::Flat => {
            flat::launch(client, pooling, reduction, dtype, plan, [input, output], false);
        }
        Algorithm::Rolling => {
            rolling::launch(client, pooling, reduction, dtype, plan, [input, output], false);
        }
        // Of gradients alone: no plan of a pooling has it.
        Algorithm::Staged => {}
        Algorithm::Walk => {
            walk::launch(client, pooling, reduction, dtype, plan, [input, output]);
        }
        Algorithm::Reduce => {
            reduce::launch(client, pooling, reduction, dtype, plan, [input, output], indices);
        }
        Algorithm::Direct => {
            direct::launch(client, pooling, reduction, dtype, plan, [input, output], indices);
        }
        Algorithm::Strip => {
            strip::launch(client, pooling, reduction, dtype, plan, [input, output], indices);
        }
    }
    Ok(())
}

/// Refuses a norm whose powers the device cannot compute.
pub(super) fn check_powers(
    client: &Client,
    reduction: Reduction,
    dtype: DType,
) -> Result<(), PlanError> {
    match reduction {
        Reduction::Norm(p) if !has_powers(client, p, dtype) => Err(PlanError::NoPowers { dtype }),
        _ => Ok(()),
    }
}

/// Refuses buffers that are smaller than their tensors.
pub(super) fn check_buffers<const N: usize>(
    dtype: DType,
    buffers: [(&Handle, usize); N],
) -> Result<(), PlanError> {
    for (handle, elements) in buffers {
        let (needed, found) = (elements as u64 * dtype.size() as u64, handle.size());
        if found < needed {
            return Err(PlanError::BufferTooSmall { needed, found });
        }
    }
    Ok(())
}

/// Refuses indices that a reduction does not have, none where it has them, and too few of them.
pub(super) fn check_indices(
    reduction: Reduction,
    indices: Option<&Handle>,
    outputs: usize,
) -> Result<(), PlanError> {
    let needed = matches!(reduction, Reduction::Max(Output::ValuesAndIndices(_)));
    match indices {
        Some(indices) if needed => check_buffers(DType::I32, [(indices, outputs)]),
        None if !needed => Ok(()),
        _ => Err(PlanError::Indices { needed }),
    }
}

/// A tensor of so many elements as a kernel's vectors.
pub(super) fn buffer(handle: &Handle, elements: usize, plan: &Plan) -> BufferArg {
    vectors(handle, elements, plan.lanes)
}

/// The same, where the kernel may have it or not.
pub(super) fn optional<T: LaunchArg<RuntimeArg = BufferArg>>(
    handle: Option<&Handle>,
    elements: usize,
    plan: &Plan,
) -> ComptimeOptionArgs<T> {
    optional_vectors(handle, elements, plan.lanes)
}

/// A tensor of so many elements as vectors of so many lanes.
pub(super) fn vectors(handle: &Handle, elements: usize, lanes: usize) -> BufferArg {
    // SAFETY: `check_buffers` has seen that the handle holds `elements` elements, or it was made so.
    unsafe { BufferArg::from_raw_parts(handle.clone(), elements / lanes) }
}

/// The same, where the kernel may have it or not.
pub(super) fn optional_vectors<T: LaunchArg<RuntimeArg = BufferArg>>(
    handle: Option<&Handle>,
    elements: usize,
    lanes: usize,
) -> ComptimeOptionArgs<T> {
    match handle {
        Some(handle) => ComptimeOptionArgs::Some(vectors(handle, elements, lanes)),
        None => ComptimeOptionArgs::None,
    }
}
