//! Which problems are depthwise, and the block of rows and lines that a unit computes.

use core::fmt;

use windowpane_geometry::{AXES, Convolution, Layout, Precision, Tile, Tiling};

use crate::conv::common::rules::{
    MOST_ROWS, check_neighbours, check_registers, has_few_phases, has_few_taps, register_tile,
    registers, widest_vector,
};
use crate::conv::error::{NotApplicable, PlanError, require};
use crate::conv::problem::{Pass, Request};
use crate::device::Capabilities;

/// The name of the kernel.
pub(in crate::conv) const NAME: &str = "depthwise";

/// The register tile of a unit: lines of rows by a vector of channels. With channels first, it is by a vector of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of neighbouring windows (or coordinates, for a data gradient) along the width.
    pub rows: u32,
    /// The number of lines of them along the height.
    pub lines: u32,
    /// The elements of a vector.
    pub lanes: u32,
}

impl Config {
    /// On a processor, as many rows as leave enough registers for the weights of a row of taps. On a GPU, a block of
    /// rows and lines; it is smaller where neighbouring units of a plane are not neighbouring channels, so that their
    /// loads are closer together in memory.
    pub(in crate::conv) fn new(
        conv: &Convolution,
        request: Request,
        device: &Capabilities,
    ) -> Self {
        let widest = widest_vector(request.dtype, device);
        let lanes = 1 << neighbours(conv).trailing_zeros().min(widest.ilog2());
        // Processors with 64-byte vectors have 32 vector registers, others have 16.
        let registers: usize = if device.load_bytes >= 64 { 30 } else { 14 };
        let taps = conv.grid().axes()[AXES - 1].kernel();
        let (rows, lines) = match (device.cores, conv.layout()) {
            // The lines of images are most often a multiple of 7 vectors long.
            (Some(_), Layout::ChannelsFirst) if lanes > 1 => {
                (if registers > 14 { 7 } else { 4 }, 2)
            }
            (Some(_), _) => (registers.saturating_sub(taps + 1).clamp(4, MOST_ROWS), 1),
            (None, Layout::ChannelsLast) => (8, 2),
            (None, Layout::ChannelsFirst) => (4, 2),
        };
        Self { rows: rows as u32, lines, lanes }
    }

    pub(super) fn as_tile(self) -> Tile {
        register_tile(self.rows, self.lines, self.lanes)
    }

    /// The configuration with some numbers of its tile replaced.
    pub(in crate::conv) fn over(self, tiling: &Tiling) -> Result<Self, PlanError> {
        let [rows, lines, lanes] = registers(tiling, [self.rows, self.lines, self.lanes])?;
        Ok(Self { rows, lines, lanes })
    }

    pub(super) fn refuse(
        self,
        conv: &Convolution,
        request: Request,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        check_registers([self.rows, self.lines, self.lanes], request, device)?;
        check_neighbours(self.lanes, neighbours(conv))
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows={},lines={},lanes={}", self.rows, self.lines, self.lanes)
    }
}

/// Whether the kernel can compute a problem.
pub(in crate::conv) fn applies(conv: &Convolution, request: Request) -> Result<(), NotApplicable> {
    let one_each =
        conv.filter().channels() == 1 && conv.filter().count() == conv.input().channels();
    require(one_each, "there is not one filter of one channel for each channel")?;
    require(request.precision == Precision::Strict, "it does not round to tf32")?;
    require(
        matches!(request.pass, Pass::Forward | Pass::Data),
        "it computes the forward pass and the gradient of the data",
    )?;
    require(has_few_taps(conv), "taps along the width are too many or too far apart")?;
    require(has_few_phases(conv, request.pass), "strides make too many phases")
}

/// The number of elements that are contiguous in memory and may be the lanes of vectors.
fn neighbours(conv: &Convolution) -> usize {
    let width = &conv.grid().axes()[AXES - 1];
    match conv.layout() {
        Layout::ChannelsLast => conv.input().channels(),
        Layout::ChannelsFirst if width.stride() == 1 => {
            1 << width.input().trailing_zeros().min(width.output().trailing_zeros())
        }
        Layout::ChannelsFirst => 1,
    }
}
