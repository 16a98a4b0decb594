//! A processor's kernel: a unit computes a few rows by a few vectors of columns in registers.
//!
//! ```text
//! for each block of rows and of columns:         one unit
//!     for each tap, for each term k of it:
//!         b ← the block's columns of packed weights    a few vectors
//!         for each row:  sums[row] += a[row, k] · b     one load, spread over a vector
//! ```
//!
//! A processor's units are threads with wide vectors and no memory to share, so nothing is staged:
//! the weights of a block stay in the caches while one block of rows after another uses them. A
//! tap that lies outside for every row is skipped, one that does for some reads zeros for those.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use windowpane_geometry::{Convolution, DType, Layout};

use super::blocks::operands;
use super::epilogue::{Epilogue, EpilogueForm};
use super::gather::{Gather, GatherForm, columns};
use super::launch::buffer;
use super::pack::Packing;
use super::plan::{Pass, Plan, results};
use crate::dtype::{accumulator, elem};

pub mod filter;
mod kernel;
pub(super) mod plan;

use kernel::BlockArgsLaunch;

/// The bytes of weights that stay near a core while all columns of a few rows are computed.
const NEAR: usize = 128 << 10;

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// The rows and the vectors of a unit.
    rows: u32,
    vectors: u32,
    gather: GatherForm,
    /// Whether the terms of a tap lie side by side.
    dense: bool,
    /// Whether blocks of columns follow each other, or else blocks of rows.
    columns_first: bool,
    /// Whether results are stored a vector at a time.
    whole: bool,
    epilogue: EpilogueForm,
}

/// How the weights are laid out for so many lanes.
pub(super) fn packing(conv: &Convolution, pass: Pass, lanes: usize) -> Packing {
    Packing::new(conv, pass, lanes)
}

/// Launches the convolution or the gradient of its input, `[a, w, out]`.
#[allow(clippy::too_many_arguments, reason = "all that a launch is made of")]
pub(super) fn launch(
    client: &Client,
    conv: &Convolution,
    pass: Pass,
    dtype: DType,
    plan: &Plan,
    [a, w, out]: [&Handle; 3],
    epilogue: Epilogue<'_>,
) {
    // The plan was checked: it has a tile.
    let Some(tile) = plan.tile else { return };
    let lanes = tile.elems_per_thread as usize;
    let packing = packing(conv, pass, lanes);
    let packed = packing.pack(client, conv, dtype, plan, w);
    let columns = columns(conv, pass);
    let whole = conv.layout() == Layout::ChannelsLast && columns.is_multiple_of(lanes);
    let form = Form {
        rows: tile.ratio_m,
        vectors: tile.ratio_n,
        gather: GatherForm::new(conv, pass),
        dense: conv.layout() == Layout::ChannelsLast,
        columns_first: packing.elements() / conv.groups() * accumulator(dtype).size() <= NEAR,
        whole,
        epilogue: epilogue.form(dtype),
    };
    let [inputs, _] = operands(conv, pass);
    let (results, out_lanes) = (results(conv, pass), if whole { lanes } else { 1 });
    let column_blocks = columns.div_ceil(tile.block_n as usize);
    for gather in Gather::all(conv, pass) {
        let row_blocks = gather.rows(conv).div_ceil(tile.ratio_m as usize);
        let blocks = row_blocks * column_blocks * conv.groups();
        let cubes = CubeCount::Static(blocks.div_ceil(plan.units as usize) as u32, 1, 1);
        // SAFETY: rows past the last are those of the last again and stored nowhere, columns past
        // the last are zeros among the packed weights, and taps outside are read inside.
        unsafe {
            kernel::wide::launch_unchecked(
                client,
                cubes,
                CubeDim::new_1d(plan.units),
                lanes,
                out_lanes,
                buffer(a, inputs),
                buffer(&packed, packing.elements() / lanes),
                epilogue.bias(conv.filter().count(), out_lanes),
                epilogue.residual(results, out_lanes),
                buffer(out, results / out_lanes),
                gather.args(conv, &packing.steps()),
                BlockArgsLaunch::new(
                    blocks as u32,
                    row_blocks as u32,
                    column_blocks as u32,
                    epilogue.slope(),
                ),
                form,
                elem(dtype),
                elem(accumulator(dtype)),
            )
        }
    }
}
