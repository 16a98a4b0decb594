//! Sums in two passes: parts by many units, and then the parts in one order.
//!
//! ```text
//! parts[p, i] = Σ { terms of sum i whose number lies in part p }
//! sum[i]      = parts[0, i] + parts[1, i] + …
//! ```
//!
//! A gradient of a filter is few sums of very many terms; one unit a sum, or one cube a block of them, would
//! leave a GPU idle. The bias's gradient is the plainest of them. A convolution of one small image with
//! many channels is few sums too; what follows a sum then follows the addition of its parts.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Convolution, DType, Layout, Shape};

use super::epilogue::{Epilogue, EpilogueForm, finish_at};
use super::launch::buffer;
use super::plan::{Pass, Plan, Request, results};
use super::tensor::{TensorArgs, offset, row, tensor_args};
use crate::dtype::{accumulator, elem, round};
use crate::unit::{grid, unit_position};

/// Adds the parts of each sum, `[parts, out]`, and finishes it: there are `plan.splits` times as many parts as
/// results.
pub(super) fn add_parts(
    client: &Client,
    conv: &Convolution,
    request: Request,
    plan: &Plan,
    [parts, out]: [&Handle; 2],
    epilogue: Epilogue<'_>,
) {
    let Request { pass, dtype, .. } = request;
    let elements = results(conv, pass);
    let filters = conv.filter().count();
    let plane = match conv.layout() {
        Layout::ChannelsLast => 1,
        Layout::ChannelsFirst => conv.output().plane(),
    };
    let (cubes, units) = grid(client, plan.units, elements);
    // SAFETY: a unit past the last sum ends; the parts are as many as the plan says; a bias has a number for
    // each filter, and a residual one for each result.
    unsafe {
        sum_parts::launch_unchecked(
            client,
            cubes,
            units,
            1,
            buffer(parts, elements * plan.splits),
            epilogue.bias(filters, 1),
            epilogue.residual(elements, 1),
            buffer(out, elements),
            elements as u32,
            plan.splits as u32,
            plane as u32,
            filters as u32,
            epilogue.slope(),
            plan.runs,
            epilogue.form(dtype),
            elem(accumulator(dtype)),
            elem(dtype),
        )
    };
}

/// `O` is one result: what follows a sum takes vectors.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "the numbers of a launch")]
fn sum_parts<A: Float, S: Float, O: Size>(
    parts: &[Vector<A, O>],
    bias: ComptimeOption<Box<[Vector<S, O>]>>,
    residual: ComptimeOption<Box<[Vector<S, O>]>>,
    out: &mut [Vector<S, O>],
    elements: u32,
    splits: u32,
    plane: FastDivmod<u32>,
    filters: FastDivmod<u32>,
    slope: f32,
    #[comptime] runs: bool,
    #[comptime] form: EpilogueForm,
    #[define(A)] _accumulator: ElemType,
    #[define(S)] _stored: ElemType,
) {
    let i = unit_position(runs);
    if i >= elements {
        terminate!();
    }
    let mut sum = Vector::<A, O>::new(A::from_int(0));
    for part in 0..splits {
        sum += parts[(part * elements + i) as usize];
    }
    // Of results that have a bias.
    let filter = filters.modulo(plane.div(i));
    out[i as usize] = finish_at::<S, A, O>(&bias, &residual, sum, filter, i, slope, form);
}

/// Sums the output's gradient over samples and positions, in parts: `out` has the parts, or the
/// sums themselves where there is one part.
pub(super) fn sum_rows(
    client: &Client,
    output: &Shape,
    layout: Layout,
    dtype: DType,
    plan: &Plan,
    [dy, out]: [&Handle; 2],
) {
    let stored = plan.stored(Pass::Bias, dtype);
    let rows = output.batch() * output.plane();
    let sums = output.channels();
    let (cubes, units) = grid(client, plan.units, sums * plan.splits);
    // SAFETY: every access is inside the tensors by the arithmetic of `Place`.
    unsafe {
        bias::launch_unchecked(
            client,
            cubes,
            units,
            buffer(dy, output.elements()),
            buffer(out, sums * plan.splits),
            tensor_args(output, layout),
            sums as u32,
            plan.splits as u32,
            rows as u32,
            rows.div_ceil(plan.splits) as u32,
            plan.runs,
            stored == DType::BF16,
            elem(dtype),
            elem(accumulator(dtype)),
            elem(stored),
        )
    };
}

/// Unit (`part`, `f`) adds the rows of its part.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "the numbers of a launch")]
fn bias<S: Float, A: Float, O: Float>(
    dy: &[S],
    out: &mut [O],
    tensor: &TensorArgs,
    sums: u32,
    splits: u32,
    rows: u32,
    rows_a_part: u32,
    #[comptime] runs: bool,
    #[comptime] bf16: bool,
    #[define(S)] _read: ElemType,
    #[define(A)] _accumulator: ElemType,
    #[define(O)] _stored: ElemType,
) {
    let i = unit_position(runs);
    if i >= sums * splits {
        terminate!();
    }
    let part = i / sums;
    let first = part * rows_a_part;
    let end = min(first + rows_a_part, rows);
    let mut sum = A::from_int(0);
    for r in first..end {
        let mut at = row(tensor, r);
        at.channel = i % sums;
        sum += A::cast_from(dy[offset(tensor, &at) as usize]);
    }
    out[i as usize] = round::<A, O, Const<1>>(Vector::new(sum), bf16).extract(0usize);
}
