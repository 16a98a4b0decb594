//! Gradients by blocks: one unit a block of inputs, the windows over it read once.
//!
//! ```text
//! for each block of inputs:                      s on each axis, or a strip of them, or two columns
//!     for each window o over the block:          ⌊(k−1)/s⌋ + 1 on each axis, or a few more
//!         load dy[o], and the winner or the divisor
//!     for each input x of the block:
//!         for each window over x:                known when the kernel is compiled
//!             add dy[o] if its winner is x, or dy[o] / divisor(o)
//! ```
//!
//! Blocks are whole steps of the stride: which windows are over the i-th input of a block is then
//! the same for all blocks. Blocks at the edges read windows that are not there as zeros.
//!
//! With channels first the lanes of a vector are neighbours along the width, and each takes its
//! windows from the vectors of `dy` that hold them. These have as many windows as start in a vector of
//! inputs, so that a block is one vector wide and neighbouring units write neighbouring vectors; where
//! the stride does not divide the lanes they have as many as `dx`'s, and a block is a stride of vectors.

mod form;
mod kernel;
mod shares;
mod windows;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Pooling};

use super::backward::Gradient;
use super::launch::{buffer, optional_vectors, vectors};
use super::plan::Plan;
use super::strip::{Tiles, tiles_args};
use super::window::{full_divisor, indexing, pixel_vectors};
use crate::axis::{AxisArgs, axis_args};
use crate::dtype::elem;
use crate::unit::grid;

use form::Form;

pub(super) use form::{Block, columns, fits, window_lanes};

/// Launches the gradient by blocks; the caller has checked the plan and the buffers.
pub(super) fn launch(
    client: &Client,
    pooling: &Pooling,
    gradient: Gradient,
    dtype: DType,
    plan: &Plan,
    [dy, dx]: [&Handle; 2],
    winners: Option<&Handle>,
) {
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let form = Form::new(pooling, gradient, dtype, plan);
    let window_lanes = if plan.across { form.window_lanes as usize } else { plan.lanes };
    let places = places(pooling, &form);
    let pixel = pixel_vectors(pooling, plan) as usize;
    let samples =
        inputs / plan.lanes / pixel / vectors_on_axes(pooling, plan).iter().product::<usize>();
    let units = samples * pixel * places.iter().product::<usize>();
    let (cubes, dim) = grid(client, plan.units, units);
    // SAFETY: windows and inputs that are not there are neither read nor written.
    unsafe {
        kernel::gather_blocks::launch_unchecked(
            client,
            cubes,
            dim,
            window_lanes,
            plan.lanes,
            vectors(dy, outputs, window_lanes),
            optional_vectors(winners, outputs, window_lanes),
            buffer(dx, inputs, plan),
            blocks_args(pooling, gradient, dtype, plan, units, places),
            form,
            elem(dtype),
            elem(plan.accumulator),
        )
    };
}

/// The input vectors on each axis.
fn vectors_on_axes(pooling: &Pooling, plan: &Plan) -> [usize; AXES] {
    let mut inputs = pooling.grid().axes().each_ref().map(Axis::input);
    if plan.across {
        inputs[AXES - 1] /= plan.lanes;
    }
    inputs
}

/// The blocks on each axis.
fn places(pooling: &Pooling, form: &Form) -> [usize; AXES] {
    let axes = pooling.grid().axes();
    [0, 1, 2].map(|i| axes[i].input().div_ceil(form.axes[i].inputs as usize))
}

/// An axis as its blocks see it.
#[derive(CubeType, CubeLaunch)]
struct BlockAxis {
    axis: AxisArgs,
    places: FastDivmod<u32>,
    /// The windows, in vectors where the lanes lie along the axis.
    outputs: i32,
    /// The inputs, in vectors where the lanes lie along the axis.
    inputs: i32,
}

/// The numbers of a problem, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct Blocks {
    units: u32,
    tiles: Tiles,
    /// The vectors of a pixel.
    pixel_vectors: i32,
    depth: BlockAxis,
    height: BlockAxis,
    width: BlockAxis,
    /// What a fixed divisor divides by.
    divisor: u32,
    /// One over the divisor of a window that is inside with all its taps.
    reciprocal: InputScalar,
    /// The steps of an index to the next sample, position, and lane of a vector.
    index_batch: u32,
    index_position: u32,
    index_lane: u32,
}

fn blocks_args(
    pooling: &Pooling,
    gradient: Gradient,
    dtype: DType,
    plan: &Plan,
    units: usize,
    places: [usize; AXES],
) -> BlocksLaunch {
    let inputs = vectors_on_axes(pooling, plan);
    let axes = pooling.grid().axes();
    let across = |i| plan.across && i == AXES - 1;
    let lanes = |i| if across(i) { window_lanes(&axes[i], plan.lanes) } else { 1 };
    let [depth, height, width] = [0, 1, 2].map(|i| {
        BlockAxisLaunch::new(
            axis_args(&axes[i]),
            places[i] as u32,
            (axes[i].output() / lanes(i)) as i32,
            inputs[i] as i32,
        )
    });
    let reduction = gradient.reduction();
    let pixel = pixel_vectors(pooling, plan);
    let [index_batch, index_channel, index_position] = indexing(pooling, reduction.base());
    BlocksLaunch::new(
        units as u32,
        tiles_args(pooling, dtype, plan, places[AXES - 2], true),
        pixel as i32,
        depth,
        height,
        width,
        reduction.fixed_divisor(),
        InputScalar::new(1.0 / full_divisor(pooling, reduction), elem(plan.accumulator)),
        index_batch,
        index_position,
        if plan.across { index_position } else { index_channel },
    )
}
