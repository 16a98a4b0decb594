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
//! cut into parts where its tiles are few, and a launch of its own (`split_k`) adds them.
//!
//! Some operands are repacked first (`repack`): pixels of few channels, which the engine cannot read or which
//! would fill a fraction of a line, become lines of all that a window reads of a row; filters whose terms are
//! not contiguous are transposed; and a strict `f32` becomes two `tf32`, three products of which make up the
//! whole product. For the gradient of the filters it becomes three `bf16` and six products, since matrix units
//! take operands that are not contiguous along the terms in 16 bits only. The zeros and the neighbours' values
//! that this multiplies do not change finite results, but may turn infinite ones into NaN. So where anything was
//! repacked the warps flag NaN results, and these are recomputed from the operands as they were given
//! (`nonfinite_fixup`).

use cubecl::ir::{ElemType, FloatKind, UIntKind};
use cubecl::prelude::*;
use windowpane_geometry::{Convolution, DType, Tile};

use crate::conv::common::arguments::Arguments;
use crate::conv::common::buffer::buffer;
use crate::conv::common::gather::Gather;
use crate::conv::common::kernel::Kernel;
use crate::conv::error::PlanError;
use crate::conv::problem::{Pass, Request, results};
use crate::cube::convert::elem;
use crate::device::Capabilities;

pub(in crate::conv) mod config;
mod kernel;
mod nonfinite_fixup;
mod product;
mod repack;
mod tile;
mod walk;

pub use config::Config;
use kernel::{Form, Numbers, flat_map, image_map};
use product::Product;
use tile::{CHUNK, PAIR};

impl Kernel for Config {
    fn tile(&self) -> Option<Tile> {
        Some(self.as_tile())
    }

    fn check(
        &self,
        conv: &Convolution,
        request: Request,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        config::check(&self.as_tile(), conv, request, device)
    }

    fn units(&self, _: &Convolution, _: Request, _: &Capabilities) -> u32 {
        tile::units(&self.as_tile())
    }

    fn fixes_units(&self) -> bool {
        true
    }

    fn splits(&self, conv: &Convolution, request: Request, device: &Capabilities) -> usize {
        config::splits(conv, request, &self.as_tile(), device)
    }

    fn depends_on_batch(&self) -> bool {
        true
    }

    /// The operands as they are repacked, and the flags of results to compute again.
    fn workspace(&self, conv: &Convolution, request: Request, splits: usize) -> usize {
        config::workspace(conv, request, &self.as_tile(), splits)
    }

    fn factors(&self, conv: &Convolution, request: Request) -> &'static str {
        config::factors(conv, request)
    }

    fn launch(&self, arguments: &Arguments<'_>) -> Result<(), PlanError> {
        launch(arguments, &self.as_tile())
    }
}

/// Launches a pass.
fn launch(arguments: &Arguments<'_>, tile: &Tile) -> Result<(), PlanError> {
    let Arguments { client, device, conv, request, splits, stored, epilogue, .. } = *arguments;
    let Request { pass, dtype, .. } = request;
    let ([image, flat], out) = (arguments.operands, arguments.out);
    let product =
        Product::new(conv, request).ok_or(PlanError::NoKernel { kernel: Some(config::NAME) })?;
    let laid_image = product.is_checked().then(|| repack::image(client, &product, dtype, image));
    let laid_flat = product.packed.then(|| repack::flat(client, &product, dtype, flat));
    let (read_image, read_flat) =
        (laid_image.as_ref().unwrap_or(image), laid_flat.as_ref().unwrap_or(flat));
    let factor = match dtype {
        DType::F32 if product.parts > 2 => elem(DType::BF16),
        DType::F32 => ElemType::Float(FloatKind::TF32),
        _ => elem(dtype),
    };
    let results = results(conv, pass);
    for (walk, given) in product.walks(tile).zip(Gather::all(conv, pass)) {
        let form = Form::new(&product, &walk, *tile, stored, epilogue);
        let pair = form.finished() as usize;
        // What warps turn over is stored as words of 32 bits.
        let (word, words) = match form.packed {
            true => (ElemType::UInt(UIntKind::U32), CHUNK / PAIR),
            false => (elem(stored), 1),
        };
        let cubes = config::cubes(&product, tile, &walk, device);
        let numbers = Numbers::launch(&product, &walk, &form, splits, cubes, epilogue);
        let cubes = cubes.min(numbers.tiles as usize);
        let flags = product.flags(&walk, tile, splits);
        // Where nothing is checked nothing is told, and any buffer does.
        let told = match flags {
            0 => out.clone(),
            _ => client.empty(flags * size_of::<u32>()),
        };
        // SAFETY: rows and columns past the last are stored nowhere, the copy engine gives zeros
        // for what is outside of a tensor, and there is a flag for each band of each tile.
        unsafe {
            kernel::wgmma::launch_unchecked(
                client,
                CubeCount::Static(cubes as u32, 1, 1),
                CubeDim::new_1d(form.units()),
                pair,
                words as usize,
                image_map(read_image, &product, &walk, &form, factor),
                flat_map(read_flat, &product, &form, factor),
                epilogue.bias(conv.filter().count(), pair),
                epilogue.residual(results, pair),
                buffer(out, results * splits / form.stored_at_once() as usize),
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
                Pass::Filter => nonfinite_fixup::filter::launch(
                    client, &product, &walk, &given, tile, splits, tensors,
                ),
                _ => {
                    nonfinite_fixup::launch(
                        client, &product, &walk, &given, dtype, tile, tensors, epilogue,
                    );
                }
            }
        }
    }
    Ok(())
}
