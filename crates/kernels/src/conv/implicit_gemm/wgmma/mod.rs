//! The implicit matrix product with Hopper's own instructions.
//!
//! For readers who know CUDA but not CubeCL: a *cube* is a block, a *unit* a thread, and `comptime!` corresponds to a
//! template parameter. The kernel is persistent: each multiprocessor has one cube, or two where tiles are small. A
//! cube computes one tile of the product after another, or a *share* of a tile (`scheduler`).
//!
//! Words of this folder: a *chunk* is 16 bytes, the unit of the copy engine and of the swizzle (in results, 8 columns).
//! A *line* in shared memory is 128 bytes. A *slice* is as many channels of a tap as fit in a line, which is narrower
//! where half or a quarter of it holds all of them. The *flat operand* is the one that is not the image. An operand is
//! *K-major* if the terms of a sum are contiguous, and *MN-major* if rows or columns are. *Parts* are the low-precision
//! numbers that a factor is split into, or the pieces that a long sum is split into (split-K).
//!
//! ```text
//!           pipeline of stages in shared memory
//!           ┌────┬────┬────┬────┐
//! producer →│ 0  │ 1  │ 2  │ 3  │→ warpgroups, 64 or 128 rows each
//!           └────┴────┴────┴────┘
//!            full[s]: the stage has been loaded      empty[s]: every warp has read it
//! ```
//!
//! * The *producer* is one unit. For each stage it waits until its place is `empty`, and has the
//!   tensor copy engine (TMA) load a block of rows and a block of columns. Rows are loaded with an *im2col
//!   map*: the engine itself walks windows over the image, steps over strides and returns zeros outside the
//!   image; a tap is an offset into the window. The other operand is loaded with a plain map.
//!   Where a tile is so narrow that its products finish before the next rows are loaded, a run of
//!   pixels is loaded once for all taps along the width, and each tap reads it at a different offset
//!   (`Im2colWalk`). Where one tile has all columns and there is room for those of all its steps, they are *resident*:
//!   a cube loads them only once, for all its tiles. So are rows, if one tile has all of them and each sample has a
//!   product of its own.
//! * The *warpgroups* wait until a stage is `full` and multiply it (`wgmma`), with their accumulators in
//!   registers. The products are asynchronous. A stage is released when the first products of the next
//!   stage are done, while the others are still running, so that the matrix units are never idle between
//!   two stages.
//! * At the end of a tile a warpgroup stores its results independently, and the producer runs ahead into
//!   the next tile: nothing waits for the whole cube. Each warp rearranges its own rows in shared
//!   memory, so that it stores two whole memory lines of a row at a time.
//!
//! One unit of a warp broadcasts the warp's role, and the code of the role is uniform across the warp as far as
//! possible. Then the assembler keeps the numbers of a stage in uniform registers, from which the matrix instructions
//! read them, and there are few instructions between the products of two stages.
//!
//! Both operands may be contiguous along the terms or across them (`K` or `MN` major), so the same loop computes
//! all three passes (`producer`).
//!
//! With one tap and channels first, the planes of samples are matrices already (`pointwise`). In a weight gradient of
//! small groups, several groups are multiplied as one, and the results between two groups are not stored.
//!
//! A data gradient with strides is one such product for each phase (`Gather`). One launch computes all of them
//! (`Im2colWalk::over`), except where results may have to be recomputed.
//!
//! Where tiles are few, sums are split into parts, which a separate launch (`split_k`) adds; where factors are split
//! or pixels are put in lines, only those of a weight gradient.
//!
//! Some operands are repacked first (`repack`): pixels with few channels become lines that hold all that a window reads
//! of a row, other pixels and filters are padded where that pays off, and a strict `f32` is split into parts: two
//! `tf32`, or three `bf16` for the weight gradient, since matrix units accept operands that are not contiguous along
//! the terms only in 16 bits. The zeros and the neighbours' values that are multiplied in addition may turn infinite
//! results into NaN, so results that are not finite are recomputed from the original operands (`nonfinite_fixup`).

use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;
use windowpane_geometry::DType;

use crate::conv::common::{Arguments, Gather, buffer};
use crate::conv::problem::{Pass, Request, Task, results};
use crate::cube::elem;
use crate::device::Target;
use crate::error::PlanError;

pub(crate) mod config;
mod cost;
mod im2col;
mod kernel;
mod nonfinite_fixup;
mod pointwise;
mod product;
mod repack;
mod tile;

pub use config::Config;
use kernel::{Args, Form, flat_map, image_map};

/// Launches the kernel.
fn launch(arguments: &Arguments<'_>, config: Config) -> Result<(), PlanError> {
    let Arguments { client, task, splits, stored, epilogue, .. } = *arguments;
    let Task { conv, request, device } = task;
    let Request { pass, dtype, .. } = request;
    let (tile, out) = (&config.tile, arguments.out);
    let target = Target { client, device };
    let product = config.product(conv, request).ok_or(PlanError::Foreign)?;
    let [image, flat] = product.image_first(arguments.operands);
    let repacked_image =
        product.repacks_image().then(|| repack::image(client, &product, dtype, image));
    let repacked_flat = product.packed.then(|| repack::flat(target, &product, dtype, flat));
    let (read_image, read_flat) =
        (repacked_image.as_ref().unwrap_or(image), repacked_flat.as_ref().unwrap_or(flat));
    let factor = match dtype {
        DType::F32 if product.parts > 2 => elem(DType::BF16),
        DType::F32 => ElemType::Float(FloatKind::TF32),
        _ => elem(dtype),
    };
    let results = results(conv, pass);
    for (walk, given) in product.walks(tile).zip(Gather::all(conv, pass)) {
        let form = Form::new(&product, &walk, *tile, stored);
        let pair = form.finished() as usize;
        let (word, words) = form.words();
        let cubes = config::cubes(&product, tile, &walk, device);
        let args = Args::launch(&product, &walk, &form, splits, cubes);
        let cubes = cubes.min(args.tiles as usize);
        let flags = product.flags(&walk, tile, splits);
        // If nothing is checked, the kernel writes no flags, and any buffer can be passed.
        let flag_words = match flags {
            0 => out.clone(),
            _ => client.empty(flags * size_of::<u32>()),
        };
        // SAFETY: rows and columns past the last are not stored, the copy engine returns zeros outside a tensor, and
        // there is a flag for each band of each tile.
        unsafe {
            kernel::wgmma::launch_unchecked(
                client,
                CubeCount::Static(cubes as u32, 1, 1),
                CubeDim::new_1d(form.units()),
                pair,
                words as usize,
                image_map(read_image, &product, &walk, &form, factor),
                flat_map(read_flat, &product, &form, factor),
                epilogue.args(conv.filter().count(), results, pair, stored),
                buffer(out, results * splits / form.stored_at_once() as usize),
                buffer(&flag_words, flags),
                args,
                form,
                factor,
                elem(stored),
                ElemType::UInt(word),
            )
        }
        if product.is_checked() {
            let tensors = [image, flat, out, &flag_words];
            match pass {
                Pass::Weight => nonfinite_fixup::weight::launch(
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
