//! One unit a strip of outputs: what their windows share is loaded and reduced once.
//!
//! ```text
//! for each strip of R outputs (n, o .. o + R, c) along the outermost axis that has a window:
//!     for each row x that the strip reads:       (R − 1)·s + k of them, all unrolled
//!         row[x] = fold the taps of the inner axes at x
//!     for each output of the strip:
//!         fold its k rows
//! ```
//!
//! The rows live in registers, the loops being unrolled. A row outside the input is, for a
//! maximum, moved to the nearest one inside, which the window has too; for an average it is
//! dropped. Folding rows in their order keeps the first of equals, and the last NaN: so `positions`
//! does it, where they are asked for; `values` alone are folded in the order that costs least.
//!
//! With channels first the lanes of a vector are neighbours along the width: a row is loaded as
//! the whole vectors that its taps touch, from which each tap takes its lanes. Those that are read divide
//! the input's width, so that each is inside or outside as a whole, and those that are written the
//! output's; from one of these to the next there are whole vectors to read.

mod form;
mod kernel;
mod positions;
mod taps;
mod tiles;
mod values;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Pooling};

use super::launch::{buffer, optional, vectors};
use super::plan::{Plan, Reduction};
use super::window::problem_args;
use crate::dtype::elem;
use crate::unit::grid;

pub(super) use form::Form;
pub(super) use taps::step;
pub(super) use tiles::{Tiles, tiled, tiles_args};

/// Launches the kernel; the caller has checked the plan and the buffers.
pub(super) fn launch(
    client: &Client,
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
    [input, output]: [&Handle; 2],
    indices: Option<&Handle>,
) {
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let (cubes, dim) = grid(client, plan.units, units(pooling, plan));
    // SAFETY: every access is inside the tensors by the arithmetic of `Axis`, and vectors outside the
    // input are moved inside before they are read.
    unsafe {
        kernel::strip::launch_unchecked(
            client,
            cubes,
            dim,
            plan.lanes,
            reads(pooling, plan),
            vectors(input, inputs, reads(pooling, plan)),
            buffer(output, outputs, plan),
            optional(indices, outputs, plan),
            problem_args(pooling, reduction, dtype, plan),
            strips_args(pooling, dtype, plan),
            Form::new(pooling, reduction, dtype, plan),
            elem(dtype),
            elem(plan.accumulator),
        )
    };
}

/// Where the units of a problem are; numbers, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct Strips {
    units: u32,
    tiles: Tiles,
    /// The positions of units on each axis: strips on the one that they lie along, vectors on the
    /// width where the lanes do.
    depth: FastDivmod<u32>,
    height: FastDivmod<u32>,
    width: FastDivmod<u32>,
    /// The outputs on each axis, in vectors on the width where the lanes lie along it.
    outputs_depth: u32,
    outputs_height: u32,
    outputs_width: u32,
    /// The vectors of the input's width, where the lanes lie along it.
    width_vectors: u32,
}

fn strips_args(pooling: &Pooling, dtype: DType, plan: &Plan) -> StripsLaunch {
    let along = outermost(pooling);
    let outputs = vectors_on_axes(pooling, plan);
    let mut places = outputs;
    places[along] = places[along].div_ceil(plan.strip);
    places[AXES - 1] = places[AXES - 1].div_ceil(columns(pooling, plan));
    let width = pooling.grid().axes()[AXES - 1].input() / reads(pooling, plan);
    StripsLaunch::new(
        units(pooling, plan) as u32,
        tiles_args(pooling, dtype, plan, places[AXES - 2], false),
        places[0] as u32,
        places[1] as u32,
        places[2] as u32,
        outputs[0] as u32,
        outputs[1] as u32,
        outputs[2] as u32,
        width as u32,
    )
}

/// The output vectors on each axis.
fn vectors_on_axes(pooling: &Pooling, plan: &Plan) -> [usize; AXES] {
    let mut outputs = pooling.grid().axes().each_ref().map(Axis::output);
    if plan.across {
        outputs[AXES - 1] /= plan.lanes;
    }
    outputs
}

/// The lanes of an input vector: those of an output vector, but along the width a GPU's are as many as divide the
/// input's and the step from one output vector to the next.
pub(super) fn reads(pooling: &Pooling, plan: &Plan) -> usize {
    let width = &pooling.grid().axes()[AXES - 1];
    let step = plan.lanes * width.stride();
    let both = 1 << (width.input() | step).trailing_zeros();
    if plan.across && !plan.runs { plan.widest.min(both) } else { plan.lanes }
}

/// The strips of a problem, each a unit's work.
fn units(pooling: &Pooling, plan: &Plan) -> usize {
    let along = outermost(pooling);
    let vectors = vectors_on_axes(pooling, plan);
    let (outputs, width) = (vectors[along], vectors[AXES - 1]);
    let strips = pooling.output().elements() / plan.lanes / outputs * outputs.div_ceil(plan.strip);
    match columns(pooling, plan) {
        1 => strips,
        columns => strips / width * width.div_ceil(columns),
    }
}

/// The neighbouring columns of a strip: more than one only where lanes are channels, and there are as
/// many columns.
fn columns(pooling: &Pooling, plan: &Plan) -> usize {
    let width = &pooling.grid().axes()[AXES - 1];
    let fits = outermost(pooling) < AXES - 1 && width.dilation() == 1 && !width.may_be_empty();
    if fits && !plan.across && width.output() >= plan.columns { plan.columns } else { 1 }
}

/// The outermost axis that has a window, or the last.
pub(super) fn outermost(pooling: &Pooling) -> usize {
    let axes = pooling.grid().axes();
    axes.iter().position(|axis| axis.kernel() > 1).unwrap_or(AXES - pooling.grid().rank())
}
