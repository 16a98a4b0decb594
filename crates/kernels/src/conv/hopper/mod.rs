//! The implicit product of matrices on Hopper's own instructions.
//!
//! For somebody who knows CUDA and meets CubeCL here: a *cube* is a block, a *unit* a thread, and
//! `comptime!` is what a template parameter would be. One cube lives on each multiprocessor, or
//! two where their tiles are small, and takes one tile of the product after another
//! (`tile = CUBE_POS_X; tile += CUBE_COUNT_X`), columns first, so that the cubes that run together
//! read the same rows. Where few tiles are left for a last wave, each is shared: a cube takes the rows of one
//! warpgroup.
//!
//! ```text
//!           ring of stages in shared memory
//!           ┌────┬────┬────┬────┐
//! producer →│ 0  │ 1  │ 2  │ 3  │→ warpgroups, 64 or 128 rows each
//!           └────┴────┴────┴────┘
//!            full[s]: a stage's bytes have come      empty[s]: every warp has read them
//! ```
//!
//! * The *producer* is one unit. For each stage it waits until its place is `empty`, and has the
//!   tensor copy engine (TMA) bring a block of rows and a block of columns. Rows come by an *im2col
//!   map*: the engine itself walks windows over the image, steps over strides and gives zeros for
//!   what lies outside; a tap is an offset into the window. The other operand comes by a plain map.
//!   Where a tile is so narrow that its products are done before the next rows have come, a run of
//!   pixels is brought once for all taps along the width, each of which reads it a little further on
//!   (`Walk`). Columns that are the same in every step of every tile, as those of one tap and few channels
//!   are, are brought once and stay.
//! * The *warpgroups* wait until a stage is `full` and multiply out of it (`wgmma`), their sums in
//!   registers. The products run by themselves; a stage is given back when the first of the next
//!   one's are done, with the others still on their way, so that the units never stand idle between
//!   two.
//! * At the end of a tile a warpgroup stores its results on its own, and the producer runs ahead into
//!   the next tile: nothing in a cube waits for all of it. Each warp turns its own rows over in shared
//!   memory, so that it stores two whole lines of a row at a time.
//!
//! What a warp is to do is told to it by one of its units, and what it does there is the same for all of
//! them as far as can be: then the assembler keeps the numbers of a stage once for a warp, where the
//! products look for them, and few instructions stand between two stages' products.
//!
//! Both operands may lie along the terms or across them (`K` or `MN` major), so the same loop computes
//! all three passes:
//!
//! ```text
//!           rows                      columns                   terms of a step
//! forward   windows, by im2col        filters                   a tap's slice of channels
//! data      coordinates, by im2col    channels, across          a tap's slice of filters
//! filter    filters, across           slices of taps, im2col    windows
//! ```
//!
//! A data gradient with strides is one such product for each phase (`Gather`); a filter gradient is
//! cut into parts where its tiles are few, and [`reduce`](super::reduce) adds them.
//!
//! Some operands are laid anew before (`prepare`): pixels of few channels, which the engine cannot read or
//! which would fill a fraction of a line, become lines of all that a window reads of a row; filters whose
//! terms do not lie side by side are turned; and a strict `f32` becomes two `tf32`, of whose products three
//! make up that of the whole, or three `bf16` for the gradient of the filters, and six products, for what
//! lies across the terms matrix units take in 16 bits alone. Zeros and leavings that come with this do no
//! harm to numbers, but may make NaN of what is not finite. So where anything was laid anew the warps tell
//! of sums that are no numbers, and those results are computed again from what was given (`repair`).

use cubecl::client::Client;
use cubecl::ir::{ElemType, FloatKind, UIntKind};
use cubecl::prelude::*;
use cubecl::server::Handle;
use windowpane_geometry::{Convolution, DType};

use super::epilogue::Epilogue;
use super::gather::Gather;
use super::launch::buffer;
use super::plan::{Pass, Plan, Request, results};
use crate::Limits;
use crate::dtype::elem;

mod fold;
mod kernel;
pub(super) mod plan;
mod prepare;
mod product;
mod repair;
mod walk;

use kernel::{CHUNK, Form, Numbers, PAIR, flat_map, image_map};
use product::Product;

/// Launches a pass, `[image, flat, out]`: `out` has the parts of the sums where the plan cuts them.
#[allow(clippy::too_many_arguments, reason = "all that a launch is made of")]
pub(super) fn launch(
    client: &Client,
    conv: &Convolution,
    request: Request,
    plan: &Plan,
    limits: &Limits,
    [image, flat, out]: [&Handle; 3],
    epilogue: Epilogue<'_>,
) {
    let Request { pass, dtype, .. } = request;
    // The plan was checked: it has a tile, and the operands lie, or can be laid, as maps read them.
    let (Some(tile), Some(product)) = (plan.tile, Product::new(conv, request)) else { return };
    let laid_image = product.is_checked().then(|| prepare::image(client, &product, dtype, image));
    let laid_flat = product.packed.then(|| prepare::flat(client, &product, dtype, flat));
    let (read_image, read_flat) =
        (laid_image.as_ref().unwrap_or(image), laid_flat.as_ref().unwrap_or(flat));
    let stored = plan.stored(pass, dtype);
    let factor = match dtype {
        DType::F32 if product.parts > 2 => elem(DType::BF16),
        DType::F32 => ElemType::Float(FloatKind::TF32),
        _ => elem(dtype),
    };
    let results = results(conv, pass);
    for (walk, given) in product.walks(&tile).zip(Gather::all(conv, pass)) {
        let form = Form::new(&product, &walk, tile, stored, epilogue);
        let pair = form.finished() as usize;
        // What warps turn over is stored as words of 32 bits.
        let (word, words) = match form.packed {
            true => (ElemType::UInt(UIntKind::U32), CHUNK / PAIR),
            false => (elem(stored), 1),
        };
        let cubes = plan::cubes(&product, &tile, &walk, limits);
        let numbers = Numbers::launch(&product, &walk, &form, plan.splits, cubes, epilogue);
        let cubes = cubes.min(numbers.tiles as usize);
        let flags = product.flags(&walk, &tile, plan.splits);
        // Where nothing is checked nothing is told, and any buffer does.
        let told = match flags {
            0 => out.clone(),
            _ => client.empty(flags * size_of::<u32>()),
        };
        // SAFETY: rows and columns past the last are stored nowhere, the copy engine gives zeros
        // for what is outside of a tensor, and there is a flag for each band of each tile.
        unsafe {
            kernel::hopper::launch_unchecked(
                client,
                CubeCount::Static(cubes as u32, 1, 1),
                CubeDim::new_1d(form.units()),
                pair,
                words as usize,
                image_map(read_image, &product, &walk, &form, factor),
                flat_map(read_flat, &product, &form, factor),
                epilogue.bias(conv.filter().count(), pair),
                epilogue.residual(results, pair),
                buffer(out, results * plan.splits / form.stored_at_once() as usize),
                buffer(&told, flags),
                numbers,
                form,
                factor,
                elem(stored),
                word,
            )
        }
        if product.is_checked() {
            let tensors = [image, flat, out, &told];
            match pass {
                Pass::Filter => repair::filter::launch(client, &product, &given, plan, tensors),
                _ => {
                    repair::launch(
                        client, &product, &walk, &given, dtype, &tile, tensors, epilogue,
                    );
                }
            }
        }
    }
}
