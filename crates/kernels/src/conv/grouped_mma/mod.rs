//! Groups of at most 8 channels, including depthwise, on matrix units: filters as banded matrices.
//!
//! ```text
//! for each block of lines by windows by chunks of 8 channels:                       one cube
//!     all units load the pixels that its windows read into shared memory, group by group, as strips
//!     for each of a few groups, for each walk of neighbouring tiles:                 one plane
//!         for each line of pixels, from the first that the walk reads to the last:
//!             for each line of windows that reads it at some line of taps, for each pair of strips, s:
//!                 sums[line of windows] += pixels[tile, pixel and channel of the strips] · band[line of taps, s]
//!             the sums of the line of windows that is then complete take the place of pixels
//!     all units store the results to memory, as whole vectors of channels
//! ```
//!
//! A strip is 8 elements of a line of a group: 8 pixels of one channel, 4 of two, 2 of four, or one of eight. A tile
//! is the same number of neighbouring windows, and its results are the 8 columns of a fragment. The rows of a fragment
//! are neighbouring tiles of one line of windows. If strips are 8 pixels wide (one channel per group), half of the rows
//! are tiles of one line, and the other half are the same tiles of another line, half a block further down. The weight
//! between an element and a column is that of the tap at which the window reads the pixel, or 0 if there is none.
//! Pixels are converted to strips when they are staged. Results are stored in shared memory as strips and converted
//! back in the same way.
//!
//! A plane walks down the image. It loads a line of pixels once for all lines of taps, and the weights of a group stay
//! in its registers. Where there are too many of these, it instead goes over its lines of windows once for each line
//! of taps.
//!
//! A structural zero times Inf gives NaN, so NaN results are recomputed term by term from memory.

use cubecl::prelude::*;

use crate::conv::common::{Arguments, Gather, buffer, weight_steps};
use crate::conv::problem::{Request, Task, operands, results};
use crate::cube::{accumulator, elem, numbers};
use crate::error::PlanError;

mod block;
pub(crate) mod config;
mod cost;
mod form;
mod kernel;
mod mainloop;
mod nonfinite_fixup;
mod pixels;
mod results;
mod weights;

use block::BlockArgsLaunch;
pub use config::Config;
use form::{CHUNK, Form};

/// Launches the kernel.
fn launch(arguments: &Arguments<'_>, config: Config) -> Result<(), PlanError> {
    let Arguments { client, epilogue, .. } = *arguments;
    let Task { conv, request: Request { pass, dtype, .. }, .. } = arguments.task;
    let ([a, w], out) = (arguments.operands, arguments.out);
    let (tile, lanes) = (config.tile, config.tile.elems_per_thread as usize);
    let chunks = conv.input().channels() / CHUNK as usize;
    let [inputs, weights] = operands(conv, pass);
    let results = results(conv, pass);
    let steps = weight_steps(conv, pass);
    for gather in Gather::all(conv, pass) {
        let form = Form::new(conv, pass, &gather, &tile, &epilogue);
        let [_, height, width] = gather.axes;
        let chunk_blocks = chunks / form.chunks as usize;
        let [x, y, z] = form.cubes(conv, &gather).map(|cubes| cubes as u32);
        let cubes = CubeCount::Static(x, y, z);
        let laid = if form.late { accumulator(dtype) } else { dtype };
        // SAFETY: pixels outside the tensor are not read, padding weights are read at an existing weight, and windows
        // past the last are not stored.
        unsafe {
            kernel::grouped_mma::launch_unchecked(
                client,
                cubes,
                CubeDim::new_1d(form.units()),
                lanes,
                buffer(a, inputs / lanes),
                buffer(w, weights),
                epilogue.args(conv.filter().count(), results, lanes, dtype),
                buffer(out, results / lanes),
                gather.args(conv, &steps),
                numbers! { BlockArgsLaunch {
                    chunks: chunk_blocks, height: height.rows, width: width.rows,
                    column_step: steps.column, lanes, members: form.members, walks: form.walks,
                } },
                form,
                elem(dtype),
                elem(accumulator(dtype)),
                elem(laid),
            )
        }
    }
    Ok(())
}
