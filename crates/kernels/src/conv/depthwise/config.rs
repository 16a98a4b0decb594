//! Which problems are depthwise, and the block of rows and lines that a unit computes.

use core::fmt;

use windowpane_geometry::{AXES, Axis, Convolution, Layout, Precision, Tile, TileOverrides};

use super::rolling::{self, walks};
use super::{cost, packing, weight};
use crate::conv::common::{
    Arguments, Kernel, MOST_ROWS, check_block, check_neighbours, check_number, check_registers,
    check_sums, has_few_phases, has_few_taps, independent_units, register_tile, registers,
    widest_vector,
};
use crate::conv::problem::{Pass, Request, Task};
use crate::error::{NotApplicable, PlanError, require};

/// The register tile of a unit: lines of rows by a vector of channels. With channels first, it is by a vector of rows.
/// In a weight gradient, a run of windows, whose products are added for some lines of taps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of neighbouring windows (or coordinates, for a data gradient) along the width.
    pub rows: u32,
    /// The number of lines of them along the height, which a unit holds at once or walks down; in a weight gradient, of
    /// lines of taps.
    pub lines: u32,
    /// The elements of a vector.
    pub lanes: u32,
    /// The number of neighbouring vectors of channels that a cube computes in a weight gradient; 1 in other passes.
    pub vectors: u32,
}

impl Config {
    /// The walks that are tried for lines of `width` results, of which there are `height`, with some of these lanes.
    fn walks(
        [width, height]: [u32; 2],
        layout: Layout,
        lanes: &[u32],
    ) -> impl Iterator<Item = Self> {
        let (lanes, least, longest) = match layout {
            Layout::ChannelsLast => (lanes.to_vec(), 2, LONGEST),
            // One channel; neighbouring rows are the lanes.
            Layout::ChannelsFirst => (vec![1], 1, LONGEST_ACROSS),
        };
        let rows = MOST_WALKING_ROWS.min(width);
        let sizes = (least.min(rows)..=rows)
            .flat_map(move |rows| lanes.clone().into_iter().map(move |lanes| (rows, lanes)));
        sizes.flat_map(move |(rows, lanes)| {
            // Those that make the pieces of a plane as even as they can be.
            let lengths = (1..=longest.min(height))
                .filter(move |lines| height.div_ceil(height.div_ceil(*lines)) == *lines);
            lengths.map(move |lines| Self { rows, lines, lanes, vectors: 1 })
        })
    }

    /// The blocks that are tried for lines of `line` results, with at most `most` lanes. Those with few rows and lanes come
    /// first, so that they win ties: they fill more of the device.
    fn blocks(task: Task<'_>, line: usize, most: u32) -> impl Iterator<Item = Self> {
        let [_, height, width] = task.conv.grid().axes();
        let dividing = rows(line, width.kernel());
        let held = 3 * dividing + width.kernel() - 1;
        let two = height.kernel() >= HIGH && held <= MOST_HELD;
        let mut lanes = vec![most.min(2), most];
        lanes.dedup();
        lanes.into_iter().flat_map(move |lanes| {
            let block = |(rows, lines)| Self { rows: rows as u32, lines, lanes, vectors: 1 };
            [(2, 1), (4, 1), (dividing, if two { 2 } else { 1 })].map(block)
        })
    }

    /// For the weight gradient, as many lines of taps as have few sums: units with more registers hide less latency.
    fn of_weight(task: Task<'_>, lanes: u32) -> Self {
        let [_, height, width] = task.conv.grid().axes();
        let rows = rows(width.output(), width.kernel()) as u32;
        let lanes = lanes.min(WEIGHT_LANES);
        let most = match height.dilation() {
            1 => (MOST_HELD_SUMS / (width.kernel() as u32 * lanes)).max(1),
            _ => 1,
        };
        let lines = most.min(height.kernel() as u32);
        let vectors = (task.conv.input().channels() as u32 / lanes).min(weight::VECTORS);
        Self { rows, lines, lanes, vectors }
    }

    fn as_tile(self) -> Tile {
        let unit = register_tile(self.rows, self.lines, self.lanes);
        Tile { block_n: unit.block_n.saturating_mul(self.vectors), ..unit }
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, lines, lanes, vectors } = self;
        write!(f, "rows={rows},lines={lines},lanes={lanes},vectors={vectors}")
    }
}

impl Kernel for Config {
    fn applies(task: Task<'_>) -> Result<(), NotApplicable> {
        let Task { conv, request, device } = task;
        let one_each =
            conv.filter().channels() == 1 && conv.filter().count() == conv.input().channels();
        require(one_each, "there is not one filter of one channel for each channel")?;
        require(request.precision == Precision::Strict, "it does not round to tf32")?;
        require(has_few_taps(conv), "taps along the width are too many or too far apart")?;
        if request.pass == Pass::Weight {
            require(device.cores.is_none(), "on processors it has no weight gradient")?;
            require(conv.layout() == Layout::ChannelsLast, "channels are not last")?;
            require(
                device.shared_bytes >= weight::SHARED_BYTES,
                "the device has no shared memory",
            )?;
        }
        require(has_few_phases(conv, request.pass), "strides make too many phases")
    }

    /// On a processor, as many rows as leave enough registers for the weights of a row of taps. On a GPU, the walk with the
    /// lowest estimate if units can walk down lines; otherwise, with channels last, the walk of one channel or the block with the
    /// lowest estimate, and with channels first as many rows as divide a line well.
    fn new(task: Task<'_>) -> Option<Self> {
        let Task { conv, request, device } = task;
        let widest = widest_vector(request.dtype, device);
        let lanes: u32 = 1 << neighbours(conv).trailing_zeros().min(widest.ilog2());
        if request.pass == Pass::Weight {
            return Some(Self::of_weight(task, lanes));
        }
        // Processors with 64-byte vectors have 32 vector registers, others have 16.
        let registers: usize = if device.load_bytes >= 64 { 30 } else { 14 };
        let [_, height, width] = conv.grid().axes();
        let taps = width.kernel();
        let results = |axis: &Axis| match request.pass {
            Pass::Data => axis.input().div_ceil(axis.stride()),
            _ => axis.output(),
        };
        if device.cores.is_none() {
            let extents = [results(width), results(height)].map(|extent| extent as u32);
            let mut several = WALKING_LANES.map(|most| lanes.min(most)).to_vec();
            several.dedup();
            let walks = Self::walks(extents, conv.layout(), &several);
            if let Some(walk) = cost::fastest(task, walks) {
                return Some(walk);
            }
            if conv.layout() == Layout::ChannelsLast {
                // Large filters leave room for the weights of one channel, or for none.
                let walk = cost::fastest(task, Self::walks(extents, conv.layout(), &[1]));
                let candidates = walk.into_iter().chain(Self::blocks(task, results(width), lanes));
                let seconds = |config: &Self| cost::seconds(*config, task);
                return candidates.min_by(|one, other| seconds(one).total_cmp(&seconds(other)));
            }
        }
        let (rows, lines) = match (device.cores, conv.layout()) {
            // The lines of images are most often a multiple of 7 vectors long.
            (Some(_), Layout::ChannelsFirst) if lanes > 1 => {
                (if registers > 14 { 7 } else { 4 }, 2)
            }
            (Some(_), _) => (registers.saturating_sub(taps + 1).clamp(4, MOST_ROWS), 1),
            (None, _) => (rows(results(width) / lanes as usize, taps), 1),
        };
        Some(Self { rows: rows as u32, lines, lanes, vectors: 1 })
    }

    fn over(self, overrides: &TileOverrides) -> Result<Self, PlanError> {
        let unit = TileOverrides { block_n: None, ..*overrides };
        let [rows, lines, lanes] = registers(&unit, [self.rows, self.lines, self.lanes])?;
        let mut config = Self { rows, lines, lanes, ..self };
        if let Some(block) = overrides.block_n {
            let of = register_tile(rows, lines, lanes).block_n;
            check_block("block_n", block, of, of.saturating_mul(weight::UNITS))?;
            config.vectors = block / of;
        }
        Ok(config)
    }

    fn tile(&self) -> Option<Tile> {
        Some(self.as_tile())
    }

    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        let Task { conv, request, .. } = task;
        if request.pass == Pass::Weight {
            let taps = conv.grid().axes()[AXES - 1].kernel() as u32;
            check_registers([self.rows, 1, self.lanes], task)?;
            check_sums(self.lines, taps.saturating_mul(self.lanes), MOST_WEIGHT_SUMS)?;
            // The lines of pixels that a unit reads are neighbours.
            if conv.grid().axes()[AXES - 2].dilation() > 1 {
                check_number("ratio_n", self.lines, 1)?;
            }
        } else if walks(task, *self) {
            check_registers([self.rows, 1, self.lanes], task)?;
            check_sums(self.lines, 1, MOST_LINES)?;
        } else {
            check_registers([self.rows, self.lines, self.lanes], task)?;
        }
        check_neighbours(self.lanes, neighbours(conv))?;
        let of = register_tile(self.rows, self.lines, self.lanes).block_n;
        let most = if request.pass == Pass::Weight { weight::UNITS } else { 1 };
        check_block("block_n", self.as_tile().block_n, of, of.saturating_mul(most))
    }

    fn units(&self, task: Task<'_>) -> u32 {
        let units = match task.request.pass {
            Pass::Weight => weight::UNITS,
            _ if walks(task, *self) => rolling::UNITS,
            _ => super::UNITS,
        };
        independent_units(units, task.device)
    }

    fn splits(&self, task: Task<'_>) -> usize {
        match task.request.pass {
            Pass::Weight => weight::splits(task, *self).0,
            _ => 1,
        }
    }

    /// The packed filters, at most: units that walk down lines may read the filters as they are.
    fn workspace(&self, conv: &Convolution, request: Request, _: usize) -> usize {
        match request.pass {
            Pass::Weight => 0,
            pass => packing(conv, pass, self.lanes as usize).bytes(request.dtype),
        }
    }

    fn seconds(&self, task: Task<'_>, splits: usize) -> f64 {
        match task.request.pass {
            Pass::Weight => weight::seconds(task, *self, splits),
            _ => cost::seconds(*self, task),
        }
    }

    fn launch(&self, arguments: &Arguments<'_>) -> Result<(), PlanError> {
        match arguments.task.request.pass {
            Pass::Weight => weight::launch(arguments, *self),
            _ => super::launch(arguments, *self),
        }
        Ok(())
    }
}

/// The fewest taps along the height for which a unit of a GPU that does not walk down lines may have two of them, and the most
/// vectors of pixels and sums that it then holds in registers.
const HIGH: usize = 5;
const MOST_HELD: usize = 26;

/// The most rows of the walks that are tried, their lanes, and their most lines with channels last and with channels first.
/// When long walks end, much of the device waits for the last of them.
const MOST_WALKING_ROWS: u32 = 8;
const WALKING_LANES: [u32; 2] = [2, 4];
const LONGEST: u32 = 14;
const LONGEST_ACROSS: u32 = 28;

/// The most lanes of a unit that walks down lines for a weight gradient: with more, its sums take too many registers.
const WEIGHT_LANES: u32 = 2;

/// The most lines of a walk that a tile may ask for.
const MOST_LINES: u32 = 256;

/// The number of neighbouring windows of a unit of a GPU. Lines are most often multiples of 7 or 8 windows long. Each run
/// reads the pixels of its windows, and those that further taps read.
fn rows(line: usize, taps: usize) -> usize {
    let cost = |rows: &usize| line.div_ceil(*rows) * (rows + taps.min(4));
    [8, 7, 4].into_iter().min_by_key(cost).unwrap_or(8)
}

/// The most registers for the sums of a weight gradient, unless a tile says otherwise.
const MOST_HELD_SUMS: u32 = 20;

/// The most registers of a unit for the sums of a weight gradient that the kernel is compiled for.
const MOST_WEIGHT_SUMS: u32 = 160;

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
