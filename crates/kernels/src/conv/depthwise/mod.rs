//! Depthwise convolution: one filter per channel. Nothing is summed over channels, so there is no matrix product. The
//! weight gradient is in `weight`; the other passes are:
//!
//! ```text
//! for each block of LINES by RUN neighbouring rows, for each vector of channels:       one unit
//!     for each line of pixels that the block reads:
//!         for each pixel of it that a row reads:     once, however many rows and taps read it
//!             for each row and tap that reads it:  sums[row] += pixel · w[tap]
//! ```
//!
//! Lanes run along the channels. The taps along the width are unrolled, so that it is known at compile time which
//! rows and taps read a pixel; the taps along the height are a loop. Most blocks read only pixels inside the width;
//! they have separate code without checks. The data gradient is the same computation over the windows that read a
//! coordinate. With strides it consists of several such products (phases), which one launch computes: each has code and units
//! of its own.
//!
//! Consecutive units take neighbouring vectors of channels, at most 32, and then neighbouring lines. So a plane's loads
//! are close together, its units reach the edge of the width together, and the next block of lines finds pixels in the
//! cache. The weights of these vectors are contiguous for each tap, and the distances between taps are compile-time
//! constants.
//!
//! With channels first, the lanes run along the width, if the step from row to row is 1 and vectors divide the lines.
//! A line is loaded as whole vectors, which are either inside or outside, and each tap combines lanes of two vectors.
//! Rows are then vectors of rows, and a weight is the same for all lanes.
//!
//! With few taps, a GPU's unit walks down lines instead and reads each line of pixels once (`rolling`). With more taps, it
//! holds the pixels of a line in registers, and a weight only until its products are added. It has several lines, and most
//! of its pixels are used for each of them. A processor's unit has one line, but a longer one. It holds the weights of a
//! line of taps, and a pixel only until its products are added, because it has fewer registers and cheaper loads.

use windowpane_geometry::{Convolution, Layout};

use crate::conv::common::{
    Arguments, Epilogue, Gather, MOST_TOGETHER, Packing, RunArgsLaunch, Sweep, buffer, optional,
};
use crate::conv::problem::{Pass, Request, Task, operands, results};
use crate::cube::{accumulator, elem, grid, numbers};

pub(crate) mod config;
mod cost;
mod form;
mod kernel;
mod lines;
mod rolling;
mod walk;
mod weight;

pub use config::Config;
use form::Form;
use kernel::BlockArgsLaunch;

/// The units of a cube on a GPU. There are few, because each uses many registers.
const UNITS: u32 = 128;

/// The most vectors of channels whose weights are contiguous.
const MOST_CHUNK_VECTORS: usize = 32;

/// The number of vectors of channels whose weights are contiguous: as many as divide all vectors.
fn chunk_vectors(conv: &Convolution, lanes: usize) -> usize {
    let vectors = conv.input().channels() / lanes;
    match conv.layout() {
        Layout::ChannelsLast => {
            (1..=MOST_CHUNK_VECTORS).rev().find(|count| vectors.is_multiple_of(*count)).unwrap_or(1)
        }
        Layout::ChannelsFirst => 1,
    }
}

/// The layout of the weights for vectors of `lanes`.
fn packing(conv: &Convolution, pass: Pass, lanes: usize) -> Packing {
    match conv.layout() {
        Layout::ChannelsLast => Packing::beside(conv, pass, chunk_vectors(conv, lanes) * lanes),
        Layout::ChannelsFirst => Packing::repeated(conv, pass, lanes),
    }
}

/// Launches the forward pass or the data gradient.
fn launch(arguments: &Arguments<'_>, config: Config) {
    let Task { conv, request: Request { pass, .. }, .. } = arguments.task;
    let mut blocks: Vec<_> = Gather::all(conv, pass).collect();
    if rolling::walks(arguments.task, config) {
        let [_, w] = arguments.operands;
        let (source, _) = rolling::source(arguments.task, config, arguments.units, &blocks);
        let filters = rolling::Filters::new(arguments, w, source);
        let mut walks = Vec::new();
        // A product without terms has nothing to walk down.
        blocks.retain(|gather| {
            let form = rolling::Form::new(arguments.task, config, gather);
            walks.extend(form.map(|form| (*gather, form)));
            form.is_none()
        });
        rolling::launch(arguments, config, walks, &filters);
    }
    if !blocks.is_empty() {
        launch_blocks(arguments, config, &blocks);
    }
}

/// Launches products whose units compute blocks.
fn launch_blocks(arguments: &Arguments<'_>, config: Config, gathers: &[Gather]) {
    let Arguments { client, epilogue, contiguous, .. } = *arguments;
    let Task { conv, request: Request { pass, dtype, .. }, .. } = arguments.task;
    let ([a, w], out) = (arguments.operands, arguments.out);
    let lanes = config.lanes as usize;
    let channels = conv.input().channels();
    let packing = packing(conv, pass, lanes);
    let packed = packing.pack(arguments, w);
    // The number of lanes along the channels, and along the width.
    let (of_channels, of_rows) = match conv.layout() {
        Layout::ChannelsLast => (lanes, 1),
        Layout::ChannelsFirst => (1, lanes),
    };
    let (vectors, chunk_vectors) = (channels / of_channels, chunk_vectors(conv, lanes));
    let [inputs, _] = operands(conv, pass);
    let results = results(conv, pass);
    for together in gathers.chunks(MOST_TOGETHER) {
        let (mut products, mut units) = (Vec::new(), 0);
        for gather in together {
            let form = Form::new(conv, contiguous, config, gather, chunk_vectors);
            let [_, Sweep { rows: height, .. }, Sweep { rows: columns, .. }] = gather.axes;
            let width = columns / of_rows;
            let run = numbers! { RunArgsLaunch {
                units: form.units(conv, gather, lanes), lines: height.div_ceil(form.lines as usize),
                runs: width.div_ceil(form.along.rows as usize), chunks: vectors / chunk_vectors,
                height, width,
            } };
            products.push(numbers! { BlockArgsLaunch {
                gather: gather.args(conv, &packing.steps()), run, first: units, form,
            } });
            units += form.units(conv, gather, lanes).next_multiple_of(arguments.units as usize);
        }
        let (cubes, dim) = grid(client, arguments.units, units);
        // SAFETY: lines outside are skipped, pixels outside are skipped or their reads are moved inside, and rows past
        // the last are not stored.
        unsafe {
            kernel::depthwise::launch_unchecked(
                client,
                cubes,
                dim,
                lanes,
                of_channels,
                buffer(a, inputs / lanes),
                buffer(&packed, packing.elements() / lanes),
                optional(epilogue.bias, channels / of_channels),
                Epilogue { bias: None, ..epilogue }.args(channels, results, lanes, dtype),
                buffer(out, results / lanes),
                products.into_iter().collect(),
                contiguous,
                elem(dtype),
                elem(accumulator(dtype)),
            )
        }
    }
}
