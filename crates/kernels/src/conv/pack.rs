//! The filters laid out anew: group, tap, term, column, the columns of a group side by side and as
//! many as whole vectors hold.
//!
//! ```text
//! packed[g, t, k, n] = w[n of g, t, k of g], 0 where there is no such column
//! ```
//!
//! A processor's vectors lie along the columns, whatever the layout that the filters came in.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Convolution, DType};

use super::gather::{WeightSteps, columns, inner, weight_steps};
use super::launch::{buffer, grid};
use super::plan::{Pass, Plan};
use crate::dtype::{accumulator, elem};
use crate::pool::direct::unit_position;

/// The elements of packed filters, with columns rounded up to whole vectors.
pub(super) fn packed_elements(conv: &Convolution, pass: Pass, lanes: usize) -> usize {
    let columns = columns(conv, pass).next_multiple_of(lanes);
    conv.groups() * conv.filter().taps() * inner(conv, pass) * columns
}

/// Where packed weights lie.
pub(super) fn packed_steps(conv: &Convolution, pass: Pass, lanes: usize) -> WeightSteps {
    let columns = columns(conv, pass).next_multiple_of(lanes);
    let tap = inner(conv, pass) * columns;
    let [_, height, width] = conv.filter().kernel().three(1);
    let kernel: [usize; AXES] = [height * width * tap, width * tap, tap];
    let group = conv.filter().taps() * tap;
    WeightSteps { inner: columns, column: 1, group, kernel }
}

#[derive(CubeType, CubeLaunch)]
struct PackArgs {
    elements: u32,
    columns: u32,
    columns_whole: FastDivmod<u32>,
    inner: FastDivmod<u32>,
    taps: FastDivmod<u32>,
    width: FastDivmod<u32>,
    height: FastDivmod<u32>,
    inner_step: u32,
    column_step: u32,
    group_step: u32,
    depth_step: u32,
    height_step: u32,
    width_step: u32,
}

/// Packs filters, in the type that sums have.
pub(super) fn pack(
    client: &Client,
    conv: &Convolution,
    pass: Pass,
    dtype: DType,
    plan: &Plan,
    lanes: usize,
    w: &Handle,
) -> Handle {
    let elements = packed_elements(conv, pass, lanes);
    let packed = client.empty(elements * accumulator(dtype).size());
    let columns = columns(conv, pass);
    let steps = weight_steps(conv, pass);
    let [_, height, width] = conv.filter().kernel().three(1);
    let (cubes, units) = grid(client, plan, elements);
    // SAFETY: a unit past the last element ends; a weight is read where there is one.
    unsafe {
        pack_weights::launch_unchecked(
            client,
            cubes,
            units,
            buffer(w, conv.filter().elements()),
            buffer(&packed, elements),
            PackArgsLaunch::new(
                elements as u32,
                columns as u32,
                columns.next_multiple_of(lanes) as u32,
                inner(conv, pass) as u32,
                conv.filter().taps() as u32,
                width as u32,
                height as u32,
                steps.inner as u32,
                steps.column as u32,
                steps.group as u32,
                steps.kernel[0] as u32,
                steps.kernel[1] as u32,
                steps.kernel[2] as u32,
            ),
            plan.runs,
            elem(dtype),
            elem(accumulator(dtype)),
        )
    };
    packed
}

#[cube(launch_unchecked)]
fn pack_weights<S: Float, A: Float>(
    w: &[S],
    packed: &mut [A],
    args: &PackArgs,
    #[comptime] runs: bool,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let i = unit_position(runs);
    if i >= args.elements {
        terminate!();
    }
    let (rest, column) = args.columns_whole.div_mod(i);
    let (rest, term) = args.inner.div_mod(rest);
    let (group, tap) = args.taps.div_mod(rest);
    let (tap, tw) = args.width.div_mod(tap);
    let (td, th) = args.height.div_mod(tap);
    let there = column < args.columns;
    let at = select(there, column, 0u32) * args.column_step
        + term * args.inner_step
        + group * args.group_step
        + td * args.depth_step
        + th * args.height_step
        + tw * args.width_step;
    packed[i as usize] = select(there, A::cast_from(w[at as usize]), A::from_int(0));
}
