//! The implicit matrix product on matrix units: blocks in shared memory, multiplied in fragments by whole planes.
//!
//! ```text
//! for each block of BLOCK_M rows by BLOCK_N columns:           one cube
//!     for each BLOCK_K terms:
//!         all units load a[rows, terms] and b[terms, columns] into shared memory
//!         for each fragment's terms:                          one plane, RATIO_M by RATIO_N fragments
//!             fragments += a[its rows, terms] · b[terms, its columns]
//! ```
//!
//! The product is the same as in [`simt`](super::simt), in every pass. Operands keep their memory order in shared
//! memory, whether neighbours are terms or lines, because matrix units can read both. Each line ends in padding, so
//! that neighbouring lines of a fragment do not cause bank conflicts.
//!
//! The real code departs from this with 2 stages: a block is loaded two steps ahead. In the middle of a step,
//! between the products of its first and its second half, the block that was loaded in the previous step is stored
//! next to the block that is being multiplied, and the loads of the block after it start. One barrier per step is
//! enough. There are no branches around these parts, so that the compiler can interleave them with the products. In
//! the epilogue a plane stores its fragments to shared memory, one strip of neighbours at a time, from which each
//! unit reads four columns.
//!
//! The size of a block decides its speed. On NVIDIA GPUs one 16×16×16 product takes two `mma` instructions. Per fragment
//! product, a plane of 4 by 2 fragments reads 3/4 of a fragment from shared memory, and one of 4 by 4 half. With a block
//! of 128 by 256 by 64 terms of 16 bits, a step reads 128 KiB, stores 48 and loads 48. All of it passes through one
//! pipe at 128 bytes per cycle, which takes 1800 cycles; an H200's matrix units, according to its counters, are busy
//! for 1540. This block reaches 370 TFLOP/s there, and 128 by 128 by 32 terms with 4 by 2 fragments 235 (2026-11-21,
//! `bench --algorithm mma`, `big_3x3_1024_32` in bf16).
//!
//! Factors are 16 bits wide, or `f32` rounded to the 11 significant bits of tf32 on the way to shared memory.
//! Accumulators are `f32`. Integers of 8 bits have accumulators in `i32`; through CUDA their fragments are in registers that
//! each unit chooses (`registers`).

use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;
use windowpane_geometry::Precision;

use crate::conv::common::{Arguments, buffer};
use crate::conv::implicit_gemm::blocks::launch_of;
use crate::conv::problem::{Request, Task, operands, results};
use crate::cube::{accumulator, elem};
use crate::error::PlanError;

pub(crate) mod config;
mod form;
mod kernel;
mod registers;

pub use config::Config;
use form::{Form, line_padding, strip};

/// Launches the kernel.
fn launch(arguments: &Arguments<'_>, config: Config) -> Result<(), PlanError> {
    let Config { tile, fragment, plane } = config;
    let Arguments { client, splits, stored, epilogue, .. } = *arguments;
    let Task { conv, request: Request { pass, dtype, precision }, .. } = arguments.task;
    let ([a, b], out) = (arguments.operands, arguments.out);
    let form = Form {
        tile,
        fragment,
        plane,
        product: config::product(conv, arguments.task.request, &tile),
        tf32: precision == Precision::Tf32,
        line_padding: line_padding(dtype.size()),
        strip: strip(&tile, fragment, plane, dtype, arguments.task.device.shared_bytes),
    };
    let factor = match precision {
        Precision::Tf32 => ElemType::Float(FloatKind::TF32),
        Precision::Strict => elem(dtype),
    };
    let (results, [a_len, b_len]) = (results(conv, pass), operands(conv, pass));
    let [a_lanes, b_lanes] = [form.product.a, form.product.b].map(|side| side.lanes as usize);
    let out_lanes = form.product.stored_lanes();
    let launch = launch_of(conv, pass, splits, &tile);
    // SAFETY: rows and columns past the last are clamped for loads and not stored, terms past the last are clamped
    // too, and reads outside the tensors are moved inside.
    unsafe {
        kernel::mma::launch_unchecked(
            client,
            launch.cubes,
            CubeDim::new_1d(form.units()),
            a_lanes,
            b_lanes,
            out_lanes,
            buffer(a, a_len / a_lanes),
            buffer(b, b_len / b_lanes),
            epilogue.args(conv.filter().count(), results, out_lanes, stored),
            buffer(out, results * splits / out_lanes),
            launch.gather,
            launch.block,
            form,
            elem(dtype),
            factor,
            elem(accumulator(dtype)),
            elem(stored),
        )
    }
    Ok(())
}
