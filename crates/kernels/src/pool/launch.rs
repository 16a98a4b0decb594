use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use windowpane_geometry::{DType, Pooling};

use super::direct::{Form, direct, problem_args};
use super::plan::{Algorithm, Plan, PlanError, Reduction};
use super::strip::{StripForm, strip};
use crate::Limits;
use crate::dtype::{accumulator, elem};

/// Launches a pooling: `input` and `output` hold elements of `dtype`, `indices` one `i32` for
/// each output where the reduction returns them.
///
/// The launch is asynchronous; what goes wrong on the device is told by the call that reads the
/// output. The handles must be as large as the problem says.
pub fn launch(
    client: &Client,
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
    [input, output]: [&Handle; 2],
    indices: Option<&Handle>,
) -> Result<(), PlanError> {
    plan.check(pooling, reduction, &Limits::of(client))?;
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    if outputs == 0 {
        return Ok(());
    }
    let (cubes, units) = grid(client, plan, plan.work(pooling));
    let input = buffer(input, inputs, plan);
    let output = buffer(output, outputs, plan);
    let problem = problem_args(pooling, reduction, dtype, plan);
    let form = Form::new(pooling, reduction, dtype, plan);
    let (stored, summed) = (elem(dtype), elem(accumulator(dtype)));
    // SAFETY: every access of the kernels is inside the tensors by the arithmetic of `Axis`.
    match plan.algorithm {
        Algorithm::Direct => unsafe {
            let indices = optional_buffer(indices, outputs, plan);
            direct::launch_unchecked(
                client, cubes, units, plan.lanes, input, output, indices, problem, form, stored,
                summed,
            )
        },
        Algorithm::Strip => unsafe {
            let row = pooling.grid().axes()[2].output() as u32;
            let form = StripForm::new(pooling, form);
            strip::launch_unchecked(
                client, cubes, units, plan.lanes, input, output, problem, row, form, stored, summed,
            )
        },
    }
    Ok(())
}

/// The cubes, and the units of each, that give every piece of work its unit.
pub(super) fn grid(client: &Client, plan: &Plan, work: usize) -> (CubeCount, CubeDim) {
    let units = CubeDim::new_1d(plan.units);
    (cubecl::calculate_cube_count_elemwise(client, work, units), units)
}

/// A tensor of so many elements as a kernel's vectors.
pub(super) fn buffer(handle: &Handle, elements: usize, plan: &Plan) -> BufferArg {
    // SAFETY: the handle holds `elements` elements, as the launch's caller promised.
    unsafe { BufferArg::from_raw_parts(handle.clone(), elements / plan.lanes) }
}

/// A tensor that a kernel may do without.
pub(super) fn optional_buffer(
    handle: Option<&Handle>,
    elements: usize,
    plan: &Plan,
) -> ComptimeOptionArgs<Box<[Vector<i32, DynamicLanes>]>> {
    match handle {
        Some(handle) => ComptimeOptionArgs::Some(buffer(handle, elements, plan)),
        None => ComptimeOptionArgs::None,
    }
}
