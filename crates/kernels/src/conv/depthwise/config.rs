//! Which problems are depthwise, and the block of rows and lines that a unit computes.

use core::fmt;

use windowpane_geometry::{AXES, Axis, Convolution, Layout, Precision, Tile, Tiling};

use super::filter;
use crate::conv::common::rules::{
    MOST_ROWS, check_neighbours, check_registers, check_sums, has_few_phases, has_few_taps,
    register_tile, registers, widest_vector,
};
use crate::conv::error::{NotApplicable, PlanError, require};
use crate::conv::problem::{Pass, Request};
use crate::device::Capabilities;

/// The name of the kernel.
pub(in crate::conv) const NAME: &str = "depthwise";

/// The register tile of a unit: lines of rows by a vector of channels. With channels first, it is by a vector of rows.
/// In a weight gradient, a run of windows, whose products are added for some lines of taps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of neighbouring windows (or coordinates, for a data gradient) along the width.
    pub rows: u32,
    /// The number of lines of them along the height; in a weight gradient, of lines of taps.
    pub lines: u32,
    /// The elements of a vector.
    pub lanes: u32,
}

impl Config {
    /// On a processor, as many rows as leave enough registers for the weights of a row of taps. On a GPU, as many as
    /// divide a line well, and two lines where these have most of their pixels in common.
    pub(in crate::conv) fn new(
        conv: &Convolution,
        request: Request,
        device: &Capabilities,
    ) -> Self {
        let widest = widest_vector(request.dtype, device);
        let lanes = 1 << neighbours(conv).trailing_zeros().min(widest.ilog2());
        if request.pass == Pass::Filter {
            return Self::of_filter(conv, lanes);
        }
        // Processors with 64-byte vectors have 32 vector registers, others have 16.
        let registers: usize = if device.load_bytes >= 64 { 30 } else { 14 };
        let [_, height, width] = conv.grid().axes();
        let taps = width.kernel();
        let results = |axis: &Axis| match request.pass {
            Pass::Data => axis.input().div_ceil(axis.stride()),
            _ => axis.output(),
        };
        let (rows, lines) = match (device.cores, conv.layout()) {
            // The lines of images are most often a multiple of 7 vectors long.
            (Some(_), Layout::ChannelsFirst) if lanes > 1 => {
                (if registers > 14 { 7 } else { 4 }, 2)
            }
            (Some(_), _) => (registers.saturating_sub(taps + 1).clamp(4, MOST_ROWS), 1),
            (None, Layout::ChannelsLast) => {
                let rows = rows(results(width), taps);
                let held = 3 * rows + taps - 1;
                (rows, if height.kernel() >= HIGH && held <= MOST_HELD { 2 } else { 1 })
            }
            (None, Layout::ChannelsFirst) => (rows(results(width) / lanes as usize, taps), 1),
        };
        Self { rows: rows as u32, lines, lanes }
    }

    /// For the weight gradient, one line of taps: more lines would be read less often, but units with more registers
    /// hide less latency, which costs more.
    fn of_filter(conv: &Convolution, lanes: u32) -> Self {
        let [.., width] = conv.grid().axes();
        Self { rows: rows(width.output(), width.kernel()) as u32, lines: 1, lanes }
    }

    pub(super) fn as_tile(self) -> Tile {
        register_tile(self.rows, self.lines, self.lanes)
    }

    /// The configuration with some numbers of its tile replaced.
    pub(in crate::conv) fn over(self, tiling: &Tiling) -> Result<Self, PlanError> {
        let [rows, lines, lanes] = registers(tiling, [self.rows, self.lines, self.lanes])?;
        Ok(Self { rows, lines, lanes })
    }

    pub(super) fn validate(
        self,
        conv: &Convolution,
        request: Request,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        if request.pass == Pass::Filter {
            let taps = conv.grid().axes()[AXES - 1].kernel() as u32;
            check_registers([self.rows, 1, self.lanes], request, device)?;
            check_sums(self.lines, taps.saturating_mul(self.lanes), MOST_FILTER_REGISTERS)?;
        } else {
            check_registers([self.rows, self.lines, self.lanes], request, device)?;
        }
        check_neighbours(self.lanes, neighbours(conv))
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows={},lines={},lanes={}", self.rows, self.lines, self.lanes)
    }
}

/// The fewest taps along the height for which a unit of a GPU has two lines, and the most vectors of pixels and sums that
/// it then holds in registers.
const HIGH: usize = 5;
const MOST_HELD: usize = 26;

/// The number of neighbouring windows of a unit of a GPU. Lines are most often multiples of 7 or 8 windows long. Each run
/// reads the pixels of its windows, and those that further taps read.
fn rows(line: usize, taps: usize) -> usize {
    let cost = |rows: &usize| line.div_ceil(*rows) * (rows + taps.min(4));
    [8, 7, 4].into_iter().min_by_key(cost).unwrap_or(8)
}

/// The most registers of a unit for the sums of a weight gradient that the kernel is compiled for.
const MOST_FILTER_REGISTERS: u32 = 160;

/// Whether the kernel can compute a problem on a device.
pub(in crate::conv) fn applies(
    conv: &Convolution,
    request: Request,
    device: &Capabilities,
) -> Result<(), NotApplicable> {
    let one_each =
        conv.filter().channels() == 1 && conv.filter().count() == conv.input().channels();
    require(one_each, "there is not one filter of one channel for each channel")?;
    require(request.precision == Precision::Strict, "it does not round to tf32")?;
    require(has_few_taps(conv), "taps along the width are too many or too far apart")?;
    if request.pass == Pass::Filter {
        require(device.cores.is_none(), "on processors it has no weight gradient")?;
        require(conv.layout() == Layout::ChannelsLast, "channels are not last")?;
        require(device.shared_bytes >= filter::SHARED_BYTES, "the device has no shared memory")?;
    }
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
