//! Sums in two passes: parts by many units, and then the parts in one order.
//!
//! ```text
//! parts[p, i] = Σ { terms of sum i whose number lies in part p }
//! sum[i]      = parts[0, i] + parts[1, i] + …
//! ```
//!
//! A gradient of a filter is few sums of very many terms; one unit a sum would leave a GPU idle.
//! The bias's gradient is the plainest of them.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use windowpane_geometry::{DType, Shape};

use super::launch::{buffer, grid};
use super::plan::{Pass, Plan};
use super::tensor::{TensorArgs, offset, row, tensor_args};
use crate::dtype::{accumulator, elem, round};
use crate::pool::direct::unit_position;

/// Adds the parts of each sum: `parts` has `plan.splits` times `elements` numbers.
pub(super) fn add_parts(
    client: &Client,
    dtype: DType,
    plan: &Plan,
    [parts, out]: [&Handle; 2],
    elements: usize,
) {
    let (cubes, units) = grid(client, plan, elements);
    // SAFETY: a unit past the last sum ends; the parts are as many as the plan says.
    unsafe {
        sum_parts::launch_unchecked(
            client,
            cubes,
            units,
            buffer(parts, elements * plan.splits),
            buffer(out, elements),
            elements as u32,
            plan.splits as u32,
            plan.runs,
            dtype == DType::BF16,
            elem(accumulator(dtype)),
            elem(dtype),
        )
    };
}

#[cube(launch_unchecked)]
fn sum_parts<A: Float, S: Float>(
    parts: &[A],
    out: &mut [S],
    elements: u32,
    splits: u32,
    #[comptime] runs: bool,
    #[comptime] bf16: bool,
    #[define(A)] _accumulator: ElemType,
    #[define(S)] _stored: ElemType,
) {
    let i = unit_position(runs);
    if i >= elements {
        terminate!();
    }
    let mut sum = A::from_int(0);
    for part in 0..splits {
        sum += parts[(part * elements + i) as usize];
    }
    out[i as usize] = round::<A, S, Const<1>>(Vector::new(sum), bf16).extract(0usize);
}

/// Sums the output's gradient over samples and positions, in parts: `out` has the parts, or the
/// sums themselves where there is one part.
pub(super) fn sum_rows(
    client: &Client,
    output: &Shape,
    layout: windowpane_geometry::Layout,
    dtype: DType,
    plan: &Plan,
    [dy, out]: [&Handle; 2],
) {
    let stored = plan.stored(Pass::Bias, dtype);
    let rows = output.batch() * output.plane();
    let sums = output.channels();
    let (cubes, units) = grid(client, plan, sums * plan.splits);
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
