//! The kernel: a producer that fills a pipeline of stages, and warpgroups (the consumers) that empty it.
//!
//! ```text
//! form           compile-time options: the tile, and the layout of the operands
//! args           run-time values: extents, steps in memory, counts
//! maps           where the copy engine finds the operands
//! scheduler      which tile a cube computes next, and the steps of its sums
//! pipeline       the stages in shared memory, and the barriers that hand them over
//! producer       one unit: has the copy engine fill stage after stage
//! consumer       a warpgroup: multiplies each stage as soon as it is full
//! accumulators   what the products are added to
//! epilogue       the results of a tile
//! ```
//!
//! Both roles go through the same tiles and the same steps in the same order, so that the barriers of the stages are
//! all the communication between them.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::tile::WARP;
use crate::conv::common::EpilogueArgs;

mod accumulators;
mod args;
mod consumer;
mod epilogue;
mod form;
mod maps;
mod pipeline;
mod producer;
mod scheduler;

pub(super) use args::Args;
use consumer::consume;
use epilogue::Results;
pub(super) use form::{Form, staged_bytes};
pub(super) use maps::{flat_map, image_map};
use pipeline::{Pipeline, barriers, memory};
use producer::produce;
use scheduler::is_warp_leader;

#[cube(launch_unchecked)]
pub(super) fn wgmma<E: Float, R: Float, P: Size, W: Numeric, O: Size>(
    image: &TensorMap<E, Im2col>,
    flat: &TensorMap<E, Tiled>,
    epilogue: &EpilogueArgs<R, P>,
    out: &mut [Vector<W, O>],
    flags: &mut [u32],
    args: &Args,
    #[comptime] form: Form,
    #[define(E)] _factor: ElemType,
    #[define(R)] _stored: ElemType,
    #[define(W)] _word: ElemType,
) {
    let rows = memory::<E>(comptime!(form.stages_of_rows() * form.rows_stage()));
    let columns = memory::<E>(comptime!(form.stages_of_columns() * form.columns_stage()));
    let staged = comptime!(form.staged() as usize);
    let rearranged = Shared::<[Vector<u32, Const<4>>]>::new_aligned_slice(staged, 128usize);
    let dense = comptime!(form.dense_elements() as usize);
    let dense = Shared::<[Vector<R, Const<1>>]>::new_aligned_slice(dense, 128usize);
    let full = barriers(form.tile.stages, 1u32);
    let empty = barriers(form.tile.stages, comptime!(form.warps()));
    let mut pipeline = Pipeline::<E> { rows, columns, full, empty };
    sync_async_proxy_shared();
    sync_cube();

    // The warp index is the same in all units of a warp. It is broadcast from one of them so that the assembler knows
    // this: only then, and only in code that cannot diverge, does it keep a warp's values in uniform registers, from
    // which the matrix instructions read them.
    let warp = plane_broadcast(UNIT_POS / WARP, 0u32);
    if warp < comptime!(form.warps()) {
        let mut results =
            Results::<R, P, W, O>::new(epilogue, rearranged, dense, out, flags, args, form);
        consume::<E, R, P, W, O>(&pipeline, &mut results, warp, args, form);
    } else if is_warp_leader() {
        produce::<E>(image, flat, &mut pipeline, args, form);
    }
}
