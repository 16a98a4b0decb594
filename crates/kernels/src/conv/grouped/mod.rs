//! Groups with few channels: too few columns for a block of a matrix product, and several channels per filter, so that
//! they are not depthwise.
//!
//! ```text
//! for each run of neighbouring rows along the width, for each vector of filters:       one unit
//!     for each line of taps, for each vector of its group's channels:
//!         pixels ← those that the run reads              a few vectors, each used for several rows and taps
//!         for each tap, for each channel of the vector:
//!             for each row:  sums[row] += pixel[channel] · w[tap, channel]
//! ```
//!
//! The vector of filters of a unit belongs to one group. Consecutive units take the vectors of neighbouring groups,
//! whose weights are repacked to be contiguous, and then neighbouring lines. So the loads of a plane are close
//! together, although each group reads only its own channels. The data gradient is the same computation over the
//! windows that read a coordinate.

use windowpane_geometry::Convolution;

use crate::conv::common::{
    Arguments, Gather, MOST_TOGETHER, Packing, Run, RunArgsLaunch, Sweep, buffer, columns, inner,
};
use crate::conv::problem::{Pass, Request, Task, operands, results};
use crate::cube::{accumulator, elem, grid, numbers};
use crate::error::PlanError;

pub(crate) mod config;
mod kernel;

pub use config::Config;
use kernel::ProductArgsLaunch;

/// The lanes of every vector.
const LANES: usize = config::LANES as usize;

/// The units of a cube. There are few, because each uses many registers.
const UNITS: u32 = 128;

/// The most vectors of filters whose weights are contiguous.
const MOST_CHUNK_VECTORS: usize = 16;

/// The compile-time options of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    along: Run,
    /// The distance in filter taps from one used tap along the width to the next.
    tap_jump: u32,
    /// The number of vectors of channels that a group reads.
    inner: u32,
    /// The number of vectors of filters of a group, and of the groups whose weights are contiguous.
    columns: u32,
    chunk_vectors: u32,
}

impl Form {
    /// The distance from one tap along the width to the next, in vectors of packed weights.
    fn tap(&self) -> u32 {
        self.tap_jump * self.inner * LANES as u32 * self.chunk_vectors
    }
}

/// The layout of the weights.
fn packing(conv: &Convolution, pass: Pass) -> Packing {
    let most = MOST_CHUNK_VECTORS / (columns(conv, pass) / LANES).max(1);
    let beside = 1 << conv.groups().trailing_zeros().min(most.max(1).ilog2());
    Packing::beside(conv, pass, beside)
}

/// Launches the kernel.
fn launch(arguments: &Arguments<'_>, config: Config) -> Result<(), PlanError> {
    let Arguments { client, epilogue, .. } = *arguments;
    let Task { conv, request: Request { pass, dtype, .. }, .. } = arguments.task;
    let ([a, w], out) = (arguments.operands, arguments.out);
    let packing = packing(conv, pass);
    let packed = packing.pack(arguments, w);
    let (inner, columns) = (inner(conv, pass) / LANES, columns(conv, pass) / LANES);
    let chunk_vectors = packing.steps().inner / LANES;
    let vectors = conv.groups() * columns;
    let [inputs, _] = operands(conv, pass);
    let results = results(conv, pass);
    let gathers: Vec<_> = Gather::all(conv, pass).collect();
    for together in gathers.chunks(MOST_TOGETHER) {
        let (mut products, mut units) = (Vec::new(), 0);
        for gather in together {
            let [_, Sweep { rows: height, .. }, along] = gather.axes;
            let form = Form {
                along: Run::new(config.rows, &along),
                tap_jump: along.tap_jump as u32,
                inner: inner as u32,
                columns: columns as u32,
                chunk_vectors: chunk_vectors as u32,
            };
            let runs = along.rows.div_ceil(config.rows as usize);
            let of_product = gather.rows(conv) / along.rows * runs * vectors;
            let run = numbers! { RunArgsLaunch {
                units: of_product, lines: height, runs, chunks: vectors / chunk_vectors, height,
                width: along.rows,
            } };
            products.push(numbers! { ProductArgsLaunch {
                gather: gather.args(conv, &packing.steps()), run, first: units, form,
            } });
            units += of_product.next_multiple_of(arguments.units as usize);
        }
        let (cubes, dim) = grid(client, arguments.units, units);
        // SAFETY: lines outside are skipped, reads of pixels outside are moved inside, and rows past the last are not
        // stored.
        unsafe {
            kernel::grouped::launch_unchecked(
                client,
                cubes,
                dim,
                LANES,
                buffer(a, inputs / LANES),
                buffer(&packed, packing.elements() / LANES),
                epilogue.args(conv.filter().count(), results, LANES, dtype),
                buffer(out, results / LANES),
                products.into_iter().collect(),
                elem(dtype),
                elem(accumulator(dtype)),
            )
        }
    }
    Ok(())
}
