//! How planes are distributed to cubes and units, the layout of shared memory, and the parameters that change the
//! kernel's code.

use windowpane_geometry::{Axis, DType, Pooling};

use super::between;
use crate::cube::axis::AxisForm;
use crate::cube::convert::{Comparison, accumulator};
use crate::device::Capabilities;
use crate::error::{PlanError, only_if};
use crate::pool::common::window::WindowForm;
use crate::pool::common::{Settings, Task, widest_divisor};
use crate::pool::problem::{Problem, Reduction, pixel_channels};
use crate::pool::van_herk::NAME;

/// The most units of a cube. With more, their registers leave room for few cubes; with fewer, tiles read more columns
/// in addition to those that they write.
const MOST_UNITS: u32 = 384;

/// The most channels of a cube with channels last: of the narrowest types that are summed, these are as many bytes as
/// memory moves at once. And the units of a cube with channels: with all of a pixel, and with some.
const CHANNELS: usize = 16;
const UNITS_OF_PIXELS: u32 = 512;
const UNITS_OF_CHANNELS: u32 = 768;

/// The rows of a block. The windows of a block are held in registers.
const ROWS: usize = 8;

/// The columns of a block for each column that a unit reads, so that as many units reduce rows as columns.
const COLUMNS: usize = 8;

/// The most elements of a block, and the most whole blocks of fewer: their reductions are held in registers too.
const MOST_BLOCK: usize = 16;
const MOST_SHORT_BLOCKS: usize = 16;

/// The same for maxima of four bytes along lines that are at least so many windows long. Shorter lines would leave much
/// of their last block empty.
const MOST_SHORT_BLOCKS_OF_MAXIMA: usize = 6;
const LONG_LINE: usize = 8;

/// The number of neighbours, columns or channels, that a unit handles together if they are one word.
const LANES: usize = 2;

/// The bytes that a unit loads from shared memory at once and stores to memory at once.
pub(super) const WORD_BYTES: usize = 16;

/// The fewest bytes that a unit stores at once; narrower results go through shared memory.
const LEAST_BYTES: usize = 8;

/// The number of banks of shared memory.
const BANKS: usize = 32;

/// Refuses planes whose two axes this pass cannot both walk, and devices whose cubes share nothing.
pub(super) fn check(problem: Problem<'_>, device: &Capabilities) -> Result<(), PlanError> {
    let Problem { pooling, reduction, .. } = problem;
    let [depth, height, width] = pooling.grid().axes();
    let whole = pixel_channels(pooling).is_multiple_of(channels(pooling));
    let idle = height.kernel() == 1;
    // On a processor, a core would wait at every block for threads that have not come as far.
    only_if(NAME, device.cores.is_none(), "one launch for two axes is for GPUs")?;
    only_if(NAME, !reduction.has_indices(), "one launch for two axes computes no indices")?;
    only_if(NAME, whole, "channels are not a multiple of 16")?;
    only_if(NAME, width.kernel() > 1, "windows have one column")?;
    only_if(NAME, height.stride() == 1 && width.stride() == 1, "strides are not 1")?;
    only_if(NAME, !idle || depth.kernel() == 1, "windows have one row but several planes")?;
    // With narrower padding, a row has at most as many outputs as inputs, and every window contains an input.
    only_if(NAME, width.before() + width.after() < width.kernel(), "padding is too wide")
}

/// The units of a cube; `None` if no tile fits.
pub(in crate::pool::van_herk) fn units(task: Task<'_>) -> Option<u32> {
    check(task.problem, task.device).ok()?;
    let (_, units) = tile(task.problem, task.device.units_per_cube)?;
    let own = own(task);
    (SharedLayout::new(own, units).bytes(own) <= task.device.shared_bytes).then_some(units)
}

/// Whether a single launch pays off where it is possible. If a cube has only some channels of a pixel, the rows of a
/// tile are read piece by piece. That costs less than separate passes if the pieces are whole words and if the passes
/// would write more between them than they read, as sums do.
pub(in crate::pool::van_herk) fn pays(problem: Problem<'_>, units: u32) -> bool {
    let Problem { pooling, reduction, .. } = problem;
    let [_, _, width] = pooling.grid().axes();
    let wide = tile(problem, units).is_some_and(|(tile, _)| tile >= width.kernel());
    let sums = matches!(reduction, Reduction::Average(_)) && problem.dtype.size() == 2;
    channels(pooling) == pixel_channels(pooling) || (sums && wide && channels(pooling) == CHANNELS)
}

/// The task of this pass: 16-bit maxima are computed in the type in which sums are computed.
pub(super) fn own(task: Task<'_>) -> Task<'_> {
    let (dtype, settings) = (task.dtype(), task.settings);
    let widens = dtype.is_float() && settings.extremum.by == Comparison::Native;
    let own = if widens { accumulator(dtype) } else { settings.accumulator };
    task.with(Settings { accumulator: own, ..settings })
}

/// The type that this pass reads.
pub(super) fn read(task: Task<'_>) -> DType {
    match task.axes()[0].kernel() {
        1 => task.dtype(),
        _ => between(task),
    }
}

/// The planes of a problem, after the pass along the depth.
pub(super) struct Plane {
    pub(super) count: usize,
    /// The rows of a plane, as they are read and as they are written.
    pub(super) input: usize,
    pub(super) output: usize,
    /// The channels of a pixel.
    pub(super) pixel: usize,
}

impl Plane {
    pub(super) fn of(pooling: &Pooling) -> Self {
        let [_, height, width] = pooling.grid().axes();
        let pixel = pixel_channels(pooling);
        let rows = pooling.output().elements() / width.output() / pixel;
        match height.kernel() {
            1 => Self { count: 1, input: rows, output: rows, pixel },
            _ => {
                let (input, output) = (height.input(), height.output());
                Self { count: rows / output, input, output, pixel }
            }
        }
    }
}

/// The number of rows in a block of rows, and of columns in a block of a row.
fn blocks(problem: Problem<'_>) -> [usize; 2] {
    let [_, height, width] = problem.pooling.grid().axes();
    let wide = problem.reduction.is_extremum() && problem.dtype.size() == 4;
    let block = |axis: &Axis, short: usize| {
        let short = short.min(axis.kernel() - 1);
        let most = match axis.output() / axis.kernel() {
            LONG_LINE.. if wide => MOST_SHORT_BLOCKS_OF_MAXIMA,
            _ => MOST_SHORT_BLOCKS,
        };
        let few = (axis.kernel() - 1) / short <= most;
        if few { short } else { MOST_BLOCK.min(axis.kernel() - 1) }
    };
    let columns =
        if is_one_channel(problem.pooling) { COLUMNS * LANES.min(lanes(problem)) } else { COLUMNS };
    [if height.kernel() == 1 { ROWS } else { block(height, ROWS) }, block(width, columns)]
}

/// Whether a pixel is one element, so that neighbours lie along the width.
fn is_one_channel(pooling: &Pooling) -> bool {
    pixel_channels(pooling) == 1
}

/// The number of channels of a cube.
pub(super) fn channels(pooling: &Pooling) -> usize {
    match pixel_channels(pooling) {
        few if few <= CHANNELS => few,
        many => widest_divisor(many, CHANNELS),
    }
}

/// Whether each channel has rows of its own in shared memory: if a cube has all channels of a pixel, and a unit has one.
fn is_planar(problem: Problem<'_>) -> bool {
    let pixel = pixel_channels(problem.pooling);
    pixel > 1 && channels(problem.pooling) == pixel && lanes(problem) == 1
}

/// The number of neighbours, columns or channels, that a unit handles together.
fn lanes(problem: Problem<'_>) -> usize {
    let [_, height, width] = problem.pooling.grid().axes();
    let one_channel = is_one_channel(problem.pooling);
    let neighbours = if one_channel { width.input() } else { channels(problem.pooling) };
    // Two columns of long blocks do not fit in registers.
    let short = height.kernel() == 1 || (height.kernel() - 1) / ROWS <= MOST_SHORT_BLOCKS;
    let two = problem.dtype.size() == 2;
    widest_divisor(neighbours, if short && two { LANES } else { 1 })
}

/// The number of columns that a cube writes and of units that it has, at most `most` units.
pub(super) fn tile(problem: Problem<'_>, most: u32) -> Option<(usize, u32)> {
    let pooling = problem.pooling;
    let [_, _, width] = pooling.grid().axes();
    let (one_channel, lanes) = (is_one_channel(pooling), lanes(problem));
    let most = most.min(match one_channel {
        true => MOST_UNITS,
        false if channels(pooling) == pixel_channels(pooling) => UNITS_OF_PIXELS,
        false => UNITS_OF_CHANNELS,
    });
    let tiled = |tiles: usize| {
        let tile = width.output().div_ceil(tiles);
        // Each of several tiles is a whole number of words.
        let tile = if tiles > 1 { tile.next_multiple_of(MOST_BLOCK) } else { tile };
        // A unit's column begins at a vector boundary.
        let more = if one_channel { lanes - 1 } else { 0 };
        let there = width.input().min(tile + width.kernel() - 1 + more);
        (tile, (there * channels(pooling)).div_ceil(lanes).next_multiple_of(32) as u32)
    };
    // A tile reads at most three times as much as it writes.
    let worth = |&(tile, _): &(usize, u32)| 2 * tile >= width.kernel().min(width.output());
    let (tile, units) =
        (1..=width.output()).map(tiled).take_while(worth).find(|tile| tile.1 <= most)?;
    // With channels last, the number of units is the same for images of all sizes, so that a new size compiles no new
    // kernel.
    Some((tile, if one_channel { units } else { most }))
}

/// How an axis is divided into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Blocking {
    /// The number of elements in a block.
    pub(super) block: u32,
    /// The position in a block at which its first window starts: 1 instead of 0 if all windows of a block then have the
    /// same whole blocks.
    pub(super) phase: u32,
    /// How many blocks after its first the last tap of the first window is, and the position of this tap in that block.
    /// Both are 0 if the axis has no window.
    pub(super) whole: u32,
    pub(super) rest: u32,
}

impl Blocking {
    fn new(axis: &Axis, block: usize) -> Self {
        if axis.kernel() == 1 {
            return Self { block: block as u32, phase: 0, whole: 0, rest: 0 };
        }
        let phase = usize::from(axis.kernel() % block == block - 1);
        let end = phase + axis.kernel() - 1;
        let (whole, rest) = (end / block, end % block);
        let [block, phase, whole, rest] = [block, phase, whole, rest].map(|n| n as u32);
        Self { block, phase, whole, rest }
    }

    /// The number of windows of a block that end before the end of its last whole block; these are the first ones.
    pub(super) fn shorter(&self) -> u32 {
        self.block - 1 - self.rest
    }
}

/// The layout of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SharedLayout {
    /// The number of elements that are loaded at once along a row.
    pub(super) word: u32,
    /// The number of columns in front of the first one that a window reads.
    pub(super) margin: u32,
    /// The columns of a row, padding included, and the rows of a block.
    pub(super) row: u32,
    pub(super) rows: u32,
    /// The number of buffers, each for a block of rows.
    pub(super) buffers: u32,
    /// The number of block reductions kept for all rows; 0 if windows do not share them.
    pub(super) totals: u32,
    /// The number of columns of a row's outputs, in whole blocks.
    pub(super) columns: u32,
    /// The number of channels of a cube, and whether each has rows of its own.
    pub(super) channels: u32,
    pub(super) planar: bool,
}

impl SharedLayout {
    pub(super) fn new(task: Task<'_>, units: u32) -> Self {
        let (problem, pooling) = (task.problem, task.pooling());
        let [_, _, width] = pooling.grid().axes();
        let [rows, block] = blocks(problem);
        let (channels, lanes) = (channels(pooling), lanes(problem));
        let blocking = Blocking::new(width, block);
        let word = WORD_BYTES / task.settings.accumulator.size();
        let planar = channels == 1 || is_planar(problem);
        let whole = task.device.shared_vectors && planar && block.is_multiple_of(word);
        let word = if whole { word } else { 1 };
        let margin = if is_one_channel(pooling) && lanes > 1 { word } else { 0 };
        // A cube writes no more columns than its units have, and windows reach one window and one block further.
        let blocks = (units as usize * lanes / channels).div_ceil(block);
        let reach = blocks + blocking.whole as usize + 1;
        let row = margin + reach * block;
        // Padded so that the rows, or the blocks of a row, that neighbouring units access are on different banks.
        let row = if word > 1 { apart(row, word, 8 * word) } else { row | 1 };
        let totals = if planar { apart(reach, BANKS / rows.min(BANKS), BANKS) } else { reach | 1 };
        let layout = Self {
            word: word as u32,
            margin: margin as u32,
            row: row as u32,
            rows: rows as u32,
            buffers: 2,
            totals: if blocking.whole > 1 { (totals * rows) as u32 } else { 0 },
            columns: (blocks * block) as u32,
            channels: channels as u32,
            planar,
        };
        let fits = layout.bytes(task) <= task.device.shared_bytes;
        Self { buffers: if fits { 2 } else { 1 }, ..layout }
    }

    pub(super) fn bytes(&self, task: Task<'_>) -> usize {
        let rows = self.buffers * self.rows * self.row + self.totals.max(1);
        // The divisors, and the results if they go through shared memory.
        let more = 2 * self.columns + (self.rows * self.results()).max(1);
        (rows * self.channels + more) as usize * task.settings.accumulator.size()
    }

    /// The elements of a row of results, padding included; 0 if neighbouring units have neighbouring channels anyway.
    pub(super) fn results(&self) -> u32 {
        if self.planar { (self.columns * self.channels) | 1 } else { 0 }
    }
}

/// The smallest number that is at least `least` and is `rest` more than a multiple of `of`.
fn apart(least: usize, rest: usize, of: usize) -> usize {
    least.saturating_sub(rest).next_multiple_of(of) + rest
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) window: WindowForm,
    pub(super) height: Blocking,
    pub(super) width: Blocking,
    pub(super) layout: SharedLayout,
    /// Whether neighbours lie along the width, and the number of lanes of a unit's column.
    pub(super) one_channel: bool,
    pub(super) lanes: u32,
    /// The number of elements that a unit writes at once; 0 if results go through shared memory to be written one by
    /// one.
    pub(super) written: u32,
    /// Whether windows have a depth, so that their divisors depend on the plane.
    pub(super) deep: bool,
    /// The height and the width of the pooling whose divisors elements are divided by, if there is one.
    pub(super) divisors: Option<[AxisForm; 2]>,
}

impl Form {
    pub(super) fn new(task: Task<'_>, divisors: Option<&Pooling>, tile: usize) -> Self {
        let (problem, dtype) = (task.problem, task.dtype());
        let [depth, height, width] = task.axes();
        let [rows, block] = blocks(problem);
        let one_channel = is_one_channel(task.pooling());
        let most = task.device.vector_lanes.min(8);
        let neighbours = [width.output(), tile, block].into_iter();
        let written =
            neighbours.fold(most.min(WORD_BYTES / dtype.size()), |n, of| widest_divisor(of, n));
        let window = WindowForm::new(task.with(task.settings.one_by_one()));
        Self {
            window: WindowForm { widened: task.widening(read(task)), ..window },
            height: Blocking::new(height, rows),
            width: Blocking::new(width, block),
            layout: SharedLayout::new(task, task.settings.units),
            one_channel,
            lanes: lanes(problem) as u32,
            written: match one_channel {
                _ if is_planar(problem) => 0,
                true if lanes(problem) == 1 || written * dtype.size() < LEAST_BYTES => 0,
                true => written as u32,
                false => lanes(problem) as u32,
            },
            deep: depth.kernel() > 1,
            divisors: divisors.map(|divisors| {
                let [_, height, width] = divisors.grid().axes();
                [height, width].map(|axis| AxisForm::new(axis, false))
            }),
        }
    }

    /// The number of lanes of a unit's column that are adjacent in shared memory too.
    pub(super) fn shared_lanes(&self) -> u32 {
        if self.one_channel { 1 } else { self.lanes }
    }

    /// The number of vectors in a cube's pixel.
    pub(super) fn vectors(&self) -> u32 {
        self.layout.channels / self.shared_lanes()
    }

    /// The step from one column to the next in shared memory, and from one vector of a pixel to the next.
    pub(super) fn column_step(&self) -> u32 {
        if self.layout.planar { 1 } else { self.vectors() }
    }

    pub(super) fn vector_step(&self) -> u32 {
        if self.layout.planar { self.layout.rows * self.layout.row } else { 1 }
    }

    /// The number of vectors in all buffers for rows.
    pub(super) fn shared(&self) -> u32 {
        self.layout.buffers * self.rows()
    }

    /// The number of vectors in one buffer for rows.
    pub(super) fn rows(&self) -> u32 {
        self.layout.rows * self.layout.row * self.vectors()
    }

    /// The number of vectors for the kept reductions of a block of rows; 1 if nothing is kept.
    pub(super) fn totals(&self) -> u32 {
        (self.layout.totals * self.vectors()).max(1)
    }

    /// The number of elements for the results of a block of rows; 1 if they are written directly.
    pub(super) fn results(&self) -> u32 {
        if self.written == 0 { self.layout.rows * self.layout.results() } else { 1 }
    }

    /// A mask that leaves positions in shared memory unchanged. It shows the compiler that offsets from a position stay
    /// within 32 bits, so that they can become part of the access.
    pub(super) fn place(&self) -> u32 {
        self.shared().next_power_of_two() - 1
    }

    /// Whether the columns have divisors of their own.
    pub(super) fn counts(&self) -> bool {
        self.window.fold.counts() && self.window.axes[2].clipped
    }

    /// The blocks of rows that are reduced before the first windows are complete.
    pub(super) fn before(&self) -> u32 {
        if self.height.whole > 0 { self.height.whole + 1 } else { 0 }
    }
}
