//! How planes are distributed to cubes and units, the layout of shared memory, and the parameters that change the
//! kernel's code.

use windowpane_geometry::{Axis, DType, Pooling};

use crate::cube::convert::MaximumForm;
use crate::pool::common::lanes::widest_divisor;
use crate::pool::common::settings::Settings;
use crate::pool::common::window::Form as Tap;
use crate::pool::problem::{Output, Reduction, pixel_channels};

/// The most units of a cube. With more, their registers leave room for few cubes; with fewer, tiles read more columns
/// in addition to those that they write.
const MOST_UNITS: u32 = 384;

/// The most channels of a cube with channels last: of the narrowest types that are summed, these are as many bytes as
/// memory moves at once. And the units of such a cube.
const CHANNELS: usize = 16;
const UNITS_OF_CHANNELS: u32 = 768;

/// The most elements of a block. The windows of a block are held in registers: for two columns along the height, for
/// one along the width.
const MOST_ROWS: usize = 8;
const MOST_COLUMNS: usize = 16;

/// The same for a row's columns if a cube has several channels: as many units then sum rows as columns.
const MOST_COLUMNS_OF_CHANNELS: usize = 8;

/// The most whole short blocks in a window along the height, because their reductions are held in registers too.
const MOST_SHORT_BLOCKS: usize = 16;

/// The number of neighbours, columns or channels, that a unit handles together.
const LANES: usize = 2;

/// The bytes that a unit loads from shared memory at once and stores to memory at once.
pub(super) const WORD_BYTES: usize = 16;

/// The fewest bytes that a unit stores at once; narrower results go through shared memory.
const LEAST_BYTES: usize = 8;

/// The number of banks of shared memory.
const BANKS: usize = 32;

/// The number of rows in a block of rows, and of columns in a block of a row.
fn blocks(pooling: &Pooling) -> [usize; 2] {
    let [_, height, width] = pooling.grid().axes();
    let most = |axis: &Axis, most: usize| most.min(axis.kernel() - 1);
    let short = most(height, MOST_ROWS);
    let few = (height.kernel() - 1) / short <= MOST_SHORT_BLOCKS;
    let rows = if few { short } else { most(height, 2 * MOST_ROWS) };
    let columns = if is_flat(pooling) { MOST_COLUMNS } else { MOST_COLUMNS_OF_CHANNELS };
    [rows, most(width, columns)]
}

/// Whether a pixel is one element, so that neighbours lie along the width.
fn is_flat(pooling: &Pooling) -> bool {
    pixel_channels(pooling) == 1
}

/// The number of channels of a cube.
pub(super) fn channels(pooling: &Pooling) -> usize {
    widest_divisor(pixel_channels(pooling), CHANNELS)
}

/// The number of neighbours, columns or channels, that a unit handles together.
pub(super) fn lanes(pooling: &Pooling) -> usize {
    let [_, _, width] = pooling.grid().axes();
    let neighbours = if is_flat(pooling) { width.input() } else { channels(pooling) };
    widest_divisor(neighbours, if blocks(pooling)[0] <= MOST_ROWS { LANES } else { 1 })
}

/// The number of columns that a cube writes and of units that it has, at most `most` units.
pub(super) fn tile(pooling: &Pooling, most: u32) -> Option<(usize, u32)> {
    let [_, _, width] = pooling.grid().axes();
    let (flat, lanes) = (is_flat(pooling), lanes(pooling));
    let most = most.min(if flat { MOST_UNITS } else { UNITS_OF_CHANNELS });
    let tiled = |tiles: usize| {
        let tile = width.output().div_ceil(tiles);
        // Each of several tiles is a whole number of words.
        let tile = if tiles > 1 { tile.next_multiple_of(MOST_COLUMNS) } else { tile };
        // A unit's column begins at a vector boundary.
        let more = if flat { lanes - 1 } else { 0 };
        let there = width.input().min(tile + width.kernel() - 1 + more);
        (tile, (there * channels(pooling)).div_ceil(lanes).next_multiple_of(32) as u32)
    };
    // A tile reads at most three times as much as it writes.
    let worth = |&(tile, _): &(usize, u32)| 2 * tile >= width.kernel().min(width.output());
    let (tile, units) =
        (1..=width.output()).map(tiled).take_while(worth).find(|tile| tile.1 <= most)?;
    // With channels last, the number of units is the same for images of all sizes, so that a new size compiles no new
    // kernel.
    Some((tile, if flat { units } else { most }))
}

/// Whether elements are summed, or compared by a native instruction of the device.
pub(super) fn folds_pairs(reduction: Reduction, maximum: MaximumForm) -> bool {
    match reduction {
        Reduction::Average(_) => true,
        Reduction::Max(Output::Values) => maximum == MaximumForm::Native,
        _ => false,
    }
}

/// Whether a single launch pays off where it is possible. With channels last, the rows of a tile are read piece by
/// piece. That costs less than separate passes if the pieces are whole words and if the passes would write more between
/// them than they read, as sums do.
pub(in crate::pool) fn pays(pooling: &Pooling, reduction: Reduction, settings: &Settings) -> bool {
    let [_, _, width] = pooling.grid().axes();
    let wide = tile(pooling, settings.units).is_some_and(|(tile, _)| tile >= width.kernel());
    let sums = matches!(reduction, Reduction::Average(_));
    is_flat(pooling) || (sums && wide && channels(pooling) == CHANNELS)
}

/// The bytes of shared memory of a cube.
pub(super) fn shared_bytes(pooling: &Pooling, settings: &Settings) -> usize {
    Room::new(pooling, settings).bytes(settings)
}

/// How an axis is divided into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Walk {
    /// The number of elements in a block.
    pub(super) block: u32,
    /// The position in a block at which its first window starts: 1 instead of 0 if all windows of a block then have the
    /// same whole blocks.
    pub(super) phase: u32,
    /// How many blocks after its first the last tap of the first window is, and the position of this tap in that block.
    pub(super) whole: u32,
    pub(super) rest: u32,
}

impl Walk {
    fn new(axis: &Axis, block: usize) -> Self {
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
pub(super) struct Room {
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
    /// The number of channels of a cube.
    pub(super) channels: u32,
}

impl Room {
    fn new(pooling: &Pooling, settings: &Settings) -> Self {
        let [_, _, width] = pooling.grid().axes();
        let [rows, block] = blocks(pooling);
        let (channels, lanes) = (channels(pooling), lanes(pooling));
        let walk = Walk::new(width, block);
        let word = WORD_BYTES / settings.accumulator.size();
        let whole = settings.shared_vectors && channels == 1 && block.is_multiple_of(word);
        let word = if whole { word } else { 1 };
        let margin = if is_flat(pooling) && lanes > 1 { word } else { 0 };
        // A cube writes no more columns than its units have, and windows reach one window and one block further.
        let blocks = (settings.units as usize * lanes / channels).div_ceil(block);
        let reach = blocks + walk.whole as usize + 1;
        let row = margin + reach * block;
        // Padded so that the rows, or the blocks of a row, that neighbouring units access are on different banks.
        let row = if word > 1 { apart(row, word, 8 * word) } else { row | 1 };
        let totals =
            if channels == 1 { apart(reach, BANKS / rows.min(BANKS), BANKS) } else { reach | 1 };
        let room = Self {
            word: word as u32,
            margin: margin as u32,
            row: row as u32,
            rows: rows as u32,
            buffers: 2,
            totals: if walk.whole > 1 { (totals * rows) as u32 } else { 0 },
            columns: (blocks * block) as u32,
            channels: channels as u32,
        };
        let fits = room.bytes(settings) <= settings.shared_bytes;
        Self { buffers: if fits { 2 } else { 1 }, ..room }
    }

    fn bytes(&self, settings: &Settings) -> usize {
        let rows = self.buffers * self.rows * self.row + self.totals.max(1);
        // The divisors, and the results if they go through shared memory.
        let more = 2 * self.columns + (self.rows * self.results()).max(1);
        (rows * self.channels + more) as usize * settings.accumulator.size()
    }

    /// The number of columns in a row of results, padding included; 0 with several channels.
    pub(super) fn results(&self) -> u32 {
        if self.channels == 1 { self.columns | 1 } else { 0 }
    }
}

/// The smallest number that is at least `least` and is `rest` more than a multiple of `of`.
fn apart(least: usize, rest: usize, of: usize) -> usize {
    least.saturating_sub(rest).next_multiple_of(of) + rest
}

/// The parameters that change the kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) tap: Tap,
    pub(super) height: Walk,
    pub(super) width: Walk,
    pub(super) room: Room,
    /// Whether neighbours lie along the width, and the number of lanes of a unit's column.
    pub(super) flat: bool,
    pub(super) lanes: u32,
    /// The number of elements that a unit writes at once; 0 if results go through shared memory to be written one by
    /// one.
    pub(super) written: u32,
}

impl Form {
    pub(super) fn new(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        settings: &Settings,
        tile: usize,
    ) -> Self {
        let [_, height, width] = pooling.grid().axes();
        let [rows, block] = blocks(pooling);
        let each = settings.one_by_one();
        let flat = is_flat(pooling);
        let most = settings.vector_lanes.min(8);
        let neighbours = [width.output(), tile, block].into_iter();
        let written =
            neighbours.fold(most.min(WORD_BYTES / dtype.size()), |n, of| widest_divisor(of, n));
        Self {
            tap: Tap::new(pooling, reduction, dtype, &each),
            height: Walk::new(height, rows),
            width: Walk::new(width, block),
            room: Room::new(pooling, settings),
            flat,
            lanes: lanes(pooling) as u32,
            written: match (flat, written * dtype.size() >= LEAST_BYTES) {
                (true, true) => written as u32,
                (true, false) => 0,
                (false, _) => lanes(pooling) as u32,
            },
        }
    }

    /// The number of lanes of a unit's column that are adjacent in shared memory too.
    pub(super) fn together(&self) -> u32 {
        if self.flat { 1 } else { self.lanes }
    }

    /// The number of vectors in a cube's pixel.
    pub(super) fn vectors(&self) -> u32 {
        self.room.channels / self.together()
    }

    /// The number of vectors in all buffers for rows.
    pub(super) fn shared(&self) -> u32 {
        self.room.buffers * self.rows()
    }

    /// The number of vectors in one buffer for rows.
    pub(super) fn rows(&self) -> u32 {
        self.room.rows * self.room.row * self.vectors()
    }

    /// The number of vectors for the kept reductions of a block of rows; 1 if nothing is kept.
    pub(super) fn totals(&self) -> u32 {
        (self.room.totals * self.vectors()).max(1)
    }

    /// The number of elements for the results of a block of rows; 1 if they are written directly.
    pub(super) fn results(&self) -> u32 {
        if self.written == 0 { self.room.rows * self.room.results() } else { 1 }
    }

    /// A mask that leaves positions in shared memory unchanged. It shows the compiler that offsets from a position stay
    /// within 32 bits, so that they can become part of the access.
    pub(super) fn place(&self) -> u32 {
        self.shared().next_power_of_two() - 1
    }

    /// Whether the columns have divisors of their own.
    pub(super) fn counts(&self) -> bool {
        self.tap.fold.counts() && self.tap.width.clipped
    }
}
