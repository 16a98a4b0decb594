//! The kernel for processors: a unit computes a few rows by a few vectors of columns in registers.
//!
//! ```text
//! for each block of rows and of columns:         one unit
//!     for each tap, for each term k of it:
//!         b ← the block's columns of packed weights    a few vectors
//!         for each row:  sums[row] += a[row, k] · b     one load, broadcast to a vector
//! ```
//!
//! A processor's units are threads with wide vectors and no shared memory, so nothing is staged. The weights of a
//! block stay in the caches while one block of rows after another uses them. A tap that is outside for all rows is
//! skipped; where it is outside for some rows, these read zeros.

use cubecl::prelude::*;
use windowpane_geometry::Layout;

use crate::conv::common::{Arguments, Gather, Packing, buffer, columns};
use crate::conv::problem::{Request, Task, operands, results};
use crate::cube::{accumulator, elem, numbers};

pub(crate) mod config;
mod kernel;
pub mod weight;

pub use config::Config;
use kernel::BlockArgsLaunch;

/// The bytes of weights that stay in a core's caches while all columns of a few rows are computed.
const NEAR: usize = 128 << 10;

/// The compile-time options of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// The rows and the vectors of a unit.
    rows: u32,
    vectors: u32,
    /// Whether the terms of a tap are contiguous.
    dense: bool,
    /// Whether consecutive units take consecutive blocks of columns; otherwise they take blocks of rows.
    columns_first: bool,
    /// Whether results are stored as whole vectors.
    whole: bool,
}

/// Launches the forward pass or the data gradient.
fn launch(arguments: &Arguments<'_>, config: Config) {
    let Arguments { client, units, epilogue, .. } = *arguments;
    let Task { conv, request: Request { pass, dtype, .. }, .. } = arguments.task;
    let ([a, w], out) = (arguments.operands, arguments.out);
    let lanes = config.lanes as usize;
    let packing = Packing::new(conv, pass, lanes);
    let packed = packing.pack(arguments, w);
    let columns = columns(conv, pass);
    let whole = conv.layout() == Layout::ChannelsLast && columns.is_multiple_of(lanes);
    let form = Form {
        rows: config.rows,
        vectors: config.vectors,
        dense: conv.layout() == Layout::ChannelsLast,
        columns_first: packing.elements() / conv.groups() * accumulator(dtype).size() <= NEAR,
        whole,
    };
    let [inputs, _] = operands(conv, pass);
    let (results, out_lanes) = (results(conv, pass), if whole { lanes } else { 1 });
    let column_blocks = columns.div_ceil((config.vectors * config.lanes) as usize);
    for gather in Gather::all(conv, pass) {
        let row_blocks = gather.rows(conv).div_ceil(config.rows as usize);
        let blocks = row_blocks * column_blocks * conv.groups();
        let cubes = CubeCount::Static(blocks.div_ceil(units as usize) as u32, 1, 1);
        // SAFETY: rows past the last repeat the last one and are not stored, columns past the last are zeros in the
        // packed weights, and reads at taps outside the tensor are moved inside.
        unsafe {
            kernel::cpu::launch_unchecked(
                client,
                cubes,
                CubeDim::new_1d(units),
                lanes,
                out_lanes,
                buffer(a, inputs),
                buffer(&packed, packing.elements() / lanes),
                epilogue.args(conv.filter().count(), results, out_lanes, dtype),
                buffer(out, results / out_lanes),
                gather.args(conv, &packing.steps()),
                numbers! { BlockArgsLaunch { blocks, row_blocks, column_blocks } },
                form,
                elem(dtype),
                elem(accumulator(dtype)),
            )
        }
    }
}
