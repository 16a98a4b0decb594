//! A filter for each channel: nothing is summed over channels, so nothing is a product of matrices.
//!
//! ```text
//! for each block of LINES by RUN neighbouring rows, for each vector of channels:       one unit
//!     for each line of pixels that the block reads:
//!         for each pixel of it that a row reads:     once, whatever the rows and taps that do
//!             for each row and tap by which it does:  sums[row] += pixel · w[tap]
//! ```
//!
//! Lanes lie along the channels. The taps along the width are unrolled, and with them which of a
//! pixel's readers exist; those along the height are counted. A block whose pixels are all there along
//! the width, as those of most are, has code of its own that does not ask. The gradient of the data is
//! the same thing over the windows that read a coordinate.
//!
//! Units that follow each other take neighbouring vectors of channels, 16 of them at most, then
//! neighbouring lines: a plane's loads fall together, its units are at the edge of the width together,
//! and what one block of lines reads the next finds in the cache. The weights of these
//! vectors are contiguous, those of one tap after those of another, at distances that are compiled in.
//!
//! With channels first the lanes lie along the width, where the step from row to row is 1 and vectors divide
//! the lines: a line is loaded as whole vectors, inside or outside as such, and each tap takes its lanes
//! from two of them. Rows are then vectors of rows; a weight is one for all lanes.
//!
//! A GPU's unit holds a line's pixels in registers, and a weight only until its products are added. It
//! has several lines, and most of its pixels serve each. A processor's has one line, but a longer one,
//! holds the weights of a line of taps, and a pixel only until its products are added: its registers
//! are fewer and its loads cheaper.

use windowpane_geometry::{Convolution, Layout, Tile};

use crate::conv::common::arguments::Arguments;
use crate::conv::common::buffer::buffer;
use crate::conv::common::gather::{Gather, Sweep};
use crate::conv::common::kernel::Kernel;
use crate::conv::common::pack::Packing;
use crate::conv::common::rules::independent_units;
use crate::conv::error::PlanError;
use crate::conv::problem::{Pass, Request, operands, results};
use crate::cube::convert::{accumulator, elem};
use crate::cube::unit::grid;
use crate::device::Capabilities;

pub(in crate::conv) mod config;
mod form;
mod kernel;
mod lines;

pub use config::Config;
use form::Form;
use kernel::BlockArgsLaunch;

/// The units of a cube on a GPU: each has many registers.
const UNITS: u32 = 128;

/// The most vectors of channels whose weights lie side by side.
const MOST_TOGETHER: u32 = 16;

/// The vectors of channels whose weights lie side by side.
fn together(conv: &Convolution, lanes: usize) -> usize {
    match conv.layout() {
        Layout::ChannelsLast => {
            let vectors = conv.input().channels() / lanes;
            1 << vectors.trailing_zeros().min(MOST_TOGETHER.ilog2())
        }
        Layout::ChannelsFirst => 1,
    }
}

/// The layout of the weights for vectors of `lanes`.
fn packing(conv: &Convolution, pass: Pass, lanes: usize) -> Packing {
    match conv.layout() {
        Layout::ChannelsLast => Packing::beside(conv, pass, together(conv, lanes) * lanes),
        Layout::ChannelsFirst => Packing::repeated(conv, pass, lanes),
    }
}

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

    fn units(&self, _: &Convolution, _: Request, device: &Capabilities) -> u32 {
        independent_units(UNITS, device)
    }

    /// The filters as they are packed.
    fn workspace(&self, conv: &Convolution, request: Request, _: usize) -> usize {
        packing(conv, request.pass, self.lanes as usize).bytes(request.dtype)
    }

    fn launch(&self, arguments: &Arguments<'_>) -> Result<(), PlanError> {
        launch(arguments, *self);
        Ok(())
    }
}

/// Launches the convolution or the gradient of its input.
fn launch(arguments: &Arguments<'_>, config: Config) {
    let Arguments { client, conv, epilogue, .. } = *arguments;
    let Request { pass, dtype, .. } = arguments.request;
    let ([a, w], out) = (arguments.operands, arguments.out);
    let lanes = config.lanes as usize;
    let channels = conv.input().channels();
    let packing = packing(conv, pass, lanes);
    let packed = packing.pack(arguments, w);
    // The lanes along the channels, and those along the width.
    let (of_channels, of_rows) = match conv.layout() {
        Layout::ChannelsLast => (lanes, 1),
        Layout::ChannelsFirst => (1, lanes),
    };
    let together = together(conv, lanes);
    let [inputs, _] = operands(conv, pass);
    let results = results(conv, pass);
    for gather in Gather::all(conv, pass) {
        let (runs, epilogue_form) = (arguments.runs, epilogue.form(dtype));
        let form = Form::new(conv, pass, runs, config, &gather, together, epilogue_form);
        let [_, Sweep { rows: height, .. }, Sweep { rows: columns, .. }] = gather.axes;
        let (width, vectors) = (columns / of_rows, channels / of_channels);
        let lines = height.div_ceil(form.lines as usize);
        let row_runs = width.div_ceil(form.along.rows as usize);
        let units = gather.rows(conv) / height / columns * lines * row_runs * vectors;
        let (cubes, dim) = grid(client, arguments.units, units);
        // SAFETY: lines outside are skipped and pixels outside moved inside, or skipped; rows past the
        // last are stored nowhere.
        unsafe {
            kernel::depthwise::launch_unchecked(
                client,
                cubes,
                dim,
                lanes,
                of_channels,
                buffer(a, inputs / lanes),
                buffer(&packed, packing.elements() / lanes),
                epilogue.bias(channels, of_channels),
                epilogue.residual(results, lanes),
                buffer(out, results / lanes),
                gather.args(conv, &packing.steps()),
                BlockArgsLaunch::new(
                    units as u32,
                    lines as u32,
                    row_runs as u32,
                    (vectors / together) as u32,
                    height as u32,
                    width as u32,
                    epilogue.slope(),
                ),
                form,
                elem(dtype),
                elem(accumulator(dtype)),
            )
        }
    }
}
