//! The bias gradient: each unit computes one part of one sum.

use cubecl::prelude::*;

use crate::conv::common::{TensorArgs, offset, row};
use crate::cube::{round, unit_position};

/// Unit (`part`, `f`) adds the rows of its part.
#[cube(launch_unchecked)]
pub(super) fn bias<S: Float, A: Float, O: Float>(
    dy: &[S],
    out: &mut [O],
    tensor: &TensorArgs,
    sums: u32,
    splits: u32,
    rows: u32,
    rows_per_part: u32,
    #[comptime] contiguous: bool,
    #[comptime] bf16: bool,
    #[define(S)] _read: ElemType,
    #[define(A)] _accumulator: ElemType,
    #[define(O)] _stored: ElemType,
) {
    let i = unit_position(contiguous);
    if i >= sums * splits {
        terminate!();
    }
    let part = i / sums;
    let first = part * rows_per_part;
    let end = min(first + rows_per_part, rows);
    let mut sum = A::from_int(0);
    for r in first..end {
        let mut at = row(tensor, r);
        at.channel = i % sums;
        sum += A::cast_from(dy[offset(tensor, &at) as usize]);
    }
    out[i as usize] = round::<A, O, Const<1>>(Vector::new(sum), bf16).extract(0usize);
}
