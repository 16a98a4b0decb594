//! Groups of at most 8 channels, one channel among them, on matrix units: filters as matrices of bands.
//!
//! ```text
//! for each block of lines by windows by chunks of 8 channels:                       one cube
//!     all units bring the pixels that its windows read to shared memory, group by group, as strips
//!     for each group of a few, for each walk of tiles side by side:                  one plane
//!         for each line of pixels, from the first that the walk reads to the last:
//!             for each line of windows that reads it, by some line of taps, for each pair of strips, s:
//!                 sums[line of windows] += pixels[tile, pixel and channel of the strips] · band[line of taps, s]
//!             the sums of the line of windows that read it last take the place of pixels
//!     all units bring the results to memory, whole vectors of channels
//! ```
//!
//! A strip is 8 elements of a line of a group: 8 pixels of one channel, or 4 of two, or 2 of four, or one of
//! eight. A tile is as many neighbouring windows, and its results are the 8 columns of a fragment; its rows
//! are tiles side by side, or half as many of them in two lines of windows, half a block from each other,
//! where strips are wide. The weight between an element and a column is that of the tap by which the window
//! reads the pixel, or 0 where none does. Strips are made as pixels are staged, and results, which are
//! laid out as strips, go the same way back.
//!
//! A plane walks down the image: it loads a line of pixels once, for all lines of taps, while a group's
//! weights stay in its registers. Where these would be too many, it goes over its lines of windows once
//! for each line of taps.
//!
//! A structural zero times Inf gives NaN, so NaN results are recomputed term by term from memory. On devices
//! without these fragments all results are computed that way; no plan chooses the kernel there by itself.

use cubecl::prelude::*;
use windowpane_geometry::{Convolution, Tile};

use crate::conv::common::arguments::Arguments;
use crate::conv::common::buffer::buffer;
use crate::conv::common::gather::{Gather, weight_steps};
use crate::conv::common::kernel::Kernel;
use crate::conv::error::PlanError;
use crate::conv::problem::{Request, operands, results};
use crate::cube::convert::{accumulator, elem};
use crate::device::Capabilities;

mod block;
pub(in crate::conv) mod config;
mod form;
mod kernel;
mod nonfinite_fixup;
mod pixels;
mod results;
mod walk;
mod weights;

use block::BlockArgsLaunch;
pub use config::Config;
use form::{CHUNK, Form, PLANE};

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
        self.refuse(conv, request, device)
    }

    fn units(&self, conv: &Convolution, request: Request, _: &Capabilities) -> u32 {
        self.planes(conv, request.pass).saturating_mul(PLANE)
    }

    fn fixes_units(&self) -> bool {
        true
    }

    fn launch(&self, arguments: &Arguments<'_>) -> Result<(), PlanError> {
        launch(arguments, *self);
        Ok(())
    }
}

/// Launches the convolution or the gradient of its input, on matrix units or without them.
fn launch(arguments: &Arguments<'_>, config: Config) {
    let Arguments { client, conv, epilogue, .. } = *arguments;
    let Request { pass, dtype, .. } = arguments.request;
    let ([a, w], out) = (arguments.operands, arguments.out);
    let (tile, lanes) = (config.as_tile(), config.elems_per_thread as usize);
    let chunks = conv.input().channels() / CHUNK as usize;
    let [inputs, weights] = operands(conv, pass);
    let results = results(conv, pass);
    let steps = weight_steps(conv, pass);
    for gather in Gather::all(conv, pass) {
        let form = Form::new(conv, pass, &gather, &tile, config.has_matrix, &epilogue, dtype);
        let [_, height, width] = gather.axes;
        let chunk_blocks = chunks / form.chunks as usize;
        let cubes = CubeCount::Static(
            (chunk_blocks * width.rows.div_ceil(form.windows() as usize)) as u32,
            height.rows.div_ceil(form.lines() as usize) as u32,
            conv.input().batch() as u32,
        );
        let laid = if form.late { accumulator(dtype) } else { dtype };
        // SAFETY: pixels outside are not read; weights are read where there are some; windows past the
        // last are stored nowhere.
        unsafe {
            kernel::grouped_mma::launch_unchecked(
                client,
                cubes,
                CubeDim::new_1d(form.units()),
                lanes,
                buffer(a, inputs / lanes),
                buffer(w, weights),
                epilogue.bias(conv.filter().count(), lanes),
                epilogue.residual(results, lanes),
                buffer(out, results / lanes),
                gather.args(conv, &steps),
                BlockArgsLaunch::new(
                    chunk_blocks as u32,
                    height.rows as u32,
                    width.rows as u32,
                    steps.column as u32,
                    lanes as u32,
                    form.members,
                    form.walks,
                    epilogue.slope(),
                ),
                form,
                elem(dtype),
                elem(accumulator(dtype)),
                elem(laid),
            )
        }
    }
}
