//! How planes are shared out among cubes and units, how much a cube shares, and what of that changes the
//! code of the kernel.

use windowpane_geometry::{Axis, DType, Pooling};

use crate::cube::convert::MaximumForm;
use crate::pool::common::lanes::widest_divisor;
use crate::pool::common::settings::Settings;
use crate::pool::common::window::Form as Tap;
use crate::pool::problem::{Output, Reduction, pixel_channels};

/// The most units of a cube: more, and their registers leave room for few cubes; fewer, and tiles read
/// more columns beside those that they write.
const MOST_UNITS: u32 = 384;

/// The most channels of a cube, where they are last: as many bytes as memory moves at once, of the
/// shortest numbers that are summed. And the units of such a cube.
const CHANNELS: usize = 16;
const UNITS_OF_CHANNELS: u32 = 768;

/// The most elements of a block: along the height the windows of a block are registers of two columns,
/// along the width of one.
const MOST_ROWS: usize = 8;
const MOST_COLUMNS: usize = 16;

/// The same of a row's columns where a cube has several channels: as many units sum rows as columns.
const MOST_COLUMNS_OF_CHANNELS: usize = 8;

/// The most whole blocks in a window of short ones along the height, whose folds are registers too.
const MOST_SHORT_BLOCKS: usize = 16;

/// The neighbours that a unit's column is of.
const LANES: usize = 2;

/// The bytes that a unit loads from shared memory at once, and stores to memory.
pub(super) const WORD_BYTES: usize = 16;

/// The least bytes that a unit stores at once without going by shared memory.
const LEAST_BYTES: usize = 8;

/// The banks of shared memory.
const BANKS: usize = 32;

/// The elements of a block of rows, and of one of a row's columns.
fn blocks(pooling: &Pooling) -> [usize; 2] {
    let [_, height, width] = pooling.grid().axes();
    let most = |axis: &Axis, most: usize| most.min(axis.kernel() - 1);
    let short = most(height, MOST_ROWS);
    let few = (height.kernel() - 1) / short <= MOST_SHORT_BLOCKS;
    let rows = if few { short } else { most(height, 2 * MOST_ROWS) };
    let columns = if is_flat(pooling) { MOST_COLUMNS } else { MOST_COLUMNS_OF_CHANNELS };
    [rows, most(width, columns)]
}

/// Whether a pixel is one element, and neighbours lie along the width.
fn is_flat(pooling: &Pooling) -> bool {
    pixel_channels(pooling) == 1
}

/// The channels of a cube.
pub(super) fn channels(pooling: &Pooling) -> usize {
    widest_divisor(pixel_channels(pooling), CHANNELS)
}

/// The neighbours, columns or channels, that a unit's column is of.
pub(super) fn lanes(pooling: &Pooling) -> usize {
    let [_, _, width] = pooling.grid().axes();
    let neighbours = if is_flat(pooling) { width.input() } else { channels(pooling) };
    widest_divisor(neighbours, if blocks(pooling)[0] <= MOST_ROWS { LANES } else { 1 })
}

/// The columns that a cube writes and the units that it takes, of no more than `most`.
pub(super) fn tile(pooling: &Pooling, most: u32) -> Option<(usize, u32)> {
    let [_, _, width] = pooling.grid().axes();
    let (flat, lanes) = (is_flat(pooling), lanes(pooling));
    let most = most.min(if flat { MOST_UNITS } else { UNITS_OF_CHANNELS });
    let tiled = |tiles: usize| {
        let tile = width.output().div_ceil(tiles);
        // Whole words of several.
        let tile = if tiles > 1 { tile.next_multiple_of(MOST_COLUMNS) } else { tile };
        // A column begins where a vector does.
        let more = if flat { lanes - 1 } else { 0 };
        let there = width.input().min(tile + width.kernel() - 1 + more);
        (tile, (there * channels(pooling)).div_ceil(lanes).next_multiple_of(32) as u32)
    };
    // A tile reads no more than three times what it writes.
    let worth = |&(tile, _): &(usize, u32)| 2 * tile >= width.kernel().min(width.output());
    let (tile, units) =
        (1..=width.output()).map(tiled).take_while(worth).find(|tile| tile.1 <= most)?;
    // Of channels, as many for images of all sizes: a new one compiles no new kernel.
    Some((tile, if flat { units } else { most }))
}

/// Whether numbers are summed, or compared by an instruction of the device.
pub(super) fn folds_pairs(reduction: Reduction, maximum: MaximumForm) -> bool {
    match reduction {
        Reduction::Average(_) => true,
        Reduction::Max(Output::Values) => maximum == MaximumForm::Native,
        _ => false,
    }
}

/// Whether one launch pays where it can be had. With channels last a tile's rows are read piece by piece,
/// which costs less than passes where it is whole words and these would write more between them than they
/// read, as sums do.
pub(in crate::pool) fn pays(pooling: &Pooling, reduction: Reduction, settings: &Settings) -> bool {
    let [_, _, width] = pooling.grid().axes();
    let wide = tile(pooling, settings.units).is_some_and(|(tile, _)| tile >= width.kernel());
    let sums = matches!(reduction, Reduction::Average(_));
    is_flat(pooling) || (sums && wide && channels(pooling) == CHANNELS)
}

/// The bytes that a cube's units share.
pub(super) fn shared_bytes(pooling: &Pooling, settings: &Settings) -> usize {
    Room::new(pooling, settings).bytes(settings)
}

/// How an axis is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Walk {
    /// The elements of a block.
    pub(super) block: u32,
    /// Where in a block the first of its windows starts: the one after the first element, if that makes
    /// all windows of a block have the same whole blocks.
    pub(super) phase: u32,
    /// The blocks from that in which the first window starts to that of its last tap, and the place there.
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

    /// The windows of a block, the first ones, that end before the last of the whole blocks does.
    pub(super) fn shorter(&self) -> u32 {
        self.block - 1 - self.rest
    }
}

/// What a cube's units share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Room {
    /// The elements that are loaded at once along a row.
    pub(super) word: u32,
    /// The columns before the first that a window has.
    pub(super) margin: u32,
    /// The columns of a row, and the rows of a block.
    pub(super) row: u32,
    pub(super) rows: u32,
    /// The blocks of rows.
    pub(super) buffers: u32,
    /// The blocks of a row, whose folds are kept if windows share them.
    pub(super) totals: u32,
    /// The columns of a row's outputs, in whole blocks.
    pub(super) columns: u32,
    /// The channels of a pixel.
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
        // No more columns are written than units have; and windows reach a window and a block further.
        let blocks = (settings.units as usize * lanes / channels).div_ceil(block);
        let reach = blocks + walk.whole as usize + 1;
        let row = margin + reach * block;
        // Such that rows, or blocks of a row, are on different banks where neighbouring units have them.
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
        // What sums are divided by, and the results, if they go by shared memory.
        let more = 2 * self.columns + (self.rows * self.results()).max(1);
        (rows * self.channels + more) as usize * settings.accumulator.size()
    }

    /// The columns of a row of results.
    pub(super) fn results(&self) -> u32 {
        if self.channels == 1 { self.columns | 1 } else { 0 }
    }
}

/// The least number that is no less than `least`, and is `rest` more than a multiple of `of`.
fn apart(least: usize, rest: usize, of: usize) -> usize {
    least.saturating_sub(rest).next_multiple_of(of) + rest
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) tap: Tap,
    pub(super) height: Walk,
    pub(super) width: Walk,
    pub(super) room: Room,
    /// Whether neighbours lie along the width, and the lanes of a unit's column.
    pub(super) flat: bool,
    pub(super) lanes: u32,
    /// The elements that a unit writes at once; where results go by shared memory to be written one by
    /// one, none.
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

    /// The lanes of a unit's column that are neighbours in shared memory too.
    pub(super) fn together(&self) -> u32 {
        if self.flat { 1 } else { self.lanes }
    }

    /// The vectors of a cube's pixel.
    pub(super) fn vectors(&self) -> u32 {
        self.room.channels / self.together()
    }

    /// The vectors of a cube's blocks of rows, and of one.
    pub(super) fn shared(&self) -> u32 {
        self.room.buffers * self.rows()
    }

    pub(super) fn rows(&self) -> u32 {
        self.room.rows * self.room.row * self.vectors()
    }

    /// The vectors of what is kept of a block of rows; one, where nothing is.
    pub(super) fn totals(&self) -> u32 {
        (self.room.totals * self.vectors()).max(1)
    }

    /// The elements of the results of a block of rows; one, where they are written at once.
    pub(super) fn results(&self) -> u32 {
        if self.written == 0 { self.room.rows * self.room.results() } else { 1 }
    }

    /// A mask that places in shared memory are unchanged by. With it a compiler sees that steps from
    /// there stay within 32 bits, and makes them a part of the access.
    pub(super) fn place(&self) -> u32 {
        self.shared().next_power_of_two() - 1
    }

    /// Whether windows are divided by numbers of their own columns.
    pub(super) fn counts(&self) -> bool {
        self.tap.fold.counts() && self.tap.width.clipped
    }
}
