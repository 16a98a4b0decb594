//! The implicit matrix product on a GPU's plain units: blocks in shared memory, accumulators in registers.
//!
//! ```text
//! for each block of BLOCK_M rows by BLOCK_N columns:           one cube
//!     for each BLOCK_K terms:
//!         all units load a[rows, terms] and b[terms, columns] into shared memory
//!         for each term:                                       one unit, 4·RATIO_M by 4·RATIO_N sums
//!             sums += a[its rows, term] ⊗ b[term, its columns]
//! ```
//!
//! A weight gradient is the same product with rows and terms exchanged: its rows are taps and channels, and its
//! terms, of which there are very many, are windows.
//!
//! ```text
//! forward          row of a = window          term = tap, channel    b = weights
//! data             row of a = coordinate      term = tap, filter     b = weights
//! weight           row of a = tap, channel    term = window          b = dy
//! ```
//!
//! The real code departs from this as follows. The next block of terms is loaded into registers while the current
//! one is multiplied; with 2 stages it is then stored next to the current block, so that one barrier per block is
//! enough. Shared memory holds vectors of 4 lines per term. Operands whose neighbours in memory are terms are
//! transposed on the way there, and the vectors of a term are swizzled, so that the stores of a plane cause no bank
//! conflicts. Neighbouring units are arranged in groups of 4 by 8, so that together they read few vectors.

use cubecl::prelude::*;

use crate::conv::common::{Arguments, buffer};
use crate::conv::implicit_gemm::blocks::launch_of;
use crate::conv::problem::{Request, Task, operands, results};
use crate::cube::{accumulator, elem};
use crate::error::PlanError;

pub(crate) mod config;
mod form;
mod kernel;

pub use config::Config;
use form::Form;

/// Launches the kernel.
fn launch(arguments: &Arguments<'_>, config: Config) -> Result<(), PlanError> {
    let Config { tile } = config;
    let Arguments { client, splits, stored, epilogue, .. } = *arguments;
    let Task { conv, request: Request { pass, dtype, .. }, .. } = arguments.task;
    let ([a, b], out) = (arguments.operands, arguments.out);
    let product = config::product(conv, arguments.task.request, &tile, epilogue.scale.is_some());
    let form = Form { tile, product };
    let (results, [a_len, b_len]) = (results(conv, pass), operands(conv, pass));
    let [a_lanes, b_lanes] = [form.product.a, form.product.b].map(|side| side.lanes as usize);
    let out_lanes = form.product.stored_lanes();
    let launch = launch_of(conv, pass, splits, &tile);
    // SAFETY: rows and columns past the last are clamped for loads and not stored, terms past the last are clamped
    // too, and reads outside the tensors are moved inside.
    unsafe {
        kernel::simt::launch_unchecked(
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
            elem(accumulator(dtype)),
            elem(stored),
        )
    }
    Ok(())
}
