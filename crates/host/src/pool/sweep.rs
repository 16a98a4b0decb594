//! How a pooling is cut into tasks, and which of its axes share partial results between windows.
//!
//! ```text
//! for each task: some rows of outputs of a plane, and some windows of these rows
//!     combine the rows of the input that each row of outputs reads     (block.rs, or rows.rs)
//!     combine neighbouring pixels of the combined rows                 (columns.rs)
//! ```
//!
//! Items outside the input are [`Item::EMPTY`], so that all windows of a row are alike.

use windowpane_geometry::AXES;
use windowpane_reference::pool::Algorithm;

use super::block::{self, Block};
use super::columns::{self, Columns, Planes};
use super::field::Field;
use super::item::Item;
use super::line::{Line, lines};
use super::rows::{self, Rows};
use super::sink::Sink;
use super::source::Source;
use crate::shared;

/// About the most items of a row that a task works on, and of the rows whose columns are combined together.
const ROW: usize = 4096;

/// The same for sums of one lane, in bytes: they are combined in passes over lists of up to twice as many, of which the
/// first cache has room for those of a pass. With more lanes the pixels that two tasks read would weigh more.
const SUMS: usize = 1 << 13;

/// About the least items of a row that a task works on, unless the row has fewer.
const LEAST: usize = 256;

/// The least items of a task.
const TASK: usize = 1 << 16;

/// The items of the whole input below which one thread computes it.
const SMALL: usize = 1 << 15;

/// The most bytes that a thread may need; beyond, the reference runs.
const MOST: usize = 1 << 26;

/// A pooling, cut into tasks.
#[derive(Clone, Copy)]
pub(super) struct Sweep {
    outer: usize,
    pub(super) lanes: usize,
    pub(super) lines: [Line; AXES],
    /// Whether windows share partial results along the height, and along the width.
    pub(super) slides: [bool; 2],
    /// The windows of a row in a task.
    pub(super) windows: usize,
    /// The pixels that the windows of a task read in a row, padding included.
    pub(super) span: usize,
    /// The rows of a task.
    rows: usize,
    /// The planes of a task.
    planes: usize,
    /// The rows whose columns are combined together, of each plane.
    pub(super) group: usize,
    /// The planes whose rows and columns are combined together; if several, with all their rows.
    pub(super) stack: usize,
    /// Whether items can leave.
    pub(super) can_leave: bool,
    /// The bytes of an item.
    size: usize,
}

/// The part of a row that a task works on.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// The windows.
    pub(super) windows: [usize; 2],
    /// The columns of the input that are inside.
    pub(super) inside: [usize; 2],
    /// The pixels of the padding before them.
    pub(super) before: usize,
    /// All pixels.
    pub(super) span: usize,
}

impl Sweep {
    /// The cut of a pooling that has outputs, for items of a type; `None` if a thread would need too much memory.
    pub(super) fn new<I: Item>(field: &Field<'_>, algorithm: Algorithm) -> Option<Self> {
        let (outer, lanes) = (field.outer, field.lanes);
        let lines = lines(field.grid.axes(), lanes);
        let [depth, height, width] = &lines;
        let slides = match algorithm {
            Algorithm::Sliding => sliding(&lines, lanes),
            _ => [false; 2],
        };
        let longest = width.span(1);
        let most = if I::IS_IDEMPOTENT || lanes > 1 { ROW } else { SUMS / size_of::<I>() };
        let kept = match slides[0] {
            // No items are kept, but the rows themselves should stay in the cache.
            true if I::CAN_LEAVE => height.kernel().min(height.input()).div_ceil(8),
            true => height.kernel().min(height.input()),
            false => 1,
        };
        let room = (TASK / kept).clamp(LEAST, most) / lanes;
        let room = room.max(longest.saturating_mul(4));
        let windows = if width.is_uneven() || width.span(width.output()) <= room + room / 4 {
            width.output()
        } else {
            let most = (room - longest) / width.stride() + 1;
            width.output().div_ceil(width.output().div_ceil(most))
        };
        let span = width.span(windows);
        let row = span.checked_mul(lanes)?;
        let least = if slides[0] { 8 * height.kernel() / height.stride() } else { 1 };
        let rows = (TASK / row).max(least).max(1);
        let rows = if rows + rows / 2 >= height.output() { height.output() } else { rows };
        let whole = rows == height.output() && windows == width.output();
        let plane = height.input().saturating_mul(row);
        let planes = if whole { (TASK / plane.max(1)).max(1) } else { 1 };
        let group = (most / row).clamp(1, rows);
        let copy = height.span(height.output()).saturating_mul(row);
        let is_flat = depth.input() == 1 && depth.output() == 1;
        let stacks = whole && is_flat && block::can_stack(height, slides[0]);
        let stack = if stacks { (most / copy).clamp(1, planes) } else { 1 };
        let (can_leave, size) = (I::CAN_LEAVE, size_of::<I>());
        let sweep = Self {
            outer,
            lanes,
            lines,
            slides,
            windows,
            span,
            rows,
            planes,
            group,
            stack,
            can_leave,
            size,
        };
        (sweep.bytes() <= MOST).then_some(sweep)
    }

    /// The items that a task needs.
    fn scratch(&self) -> usize {
        self.scratch_of_rows().saturating_add(columns::scratch(self))
    }

    fn scratch_of_rows(&self) -> usize {
        if block::suits(self) { block::scratch(self) } else { rows::scratch(self) }
    }

    /// The rows whose columns are combined together, of all planes, with those of no use between planes.
    pub(super) fn together(&self) -> usize {
        if self.stack > 1 { block::rows(self) } else { self.group }
    }

    /// The bytes that a task needs.
    pub(super) fn bytes(&self) -> usize {
        self.scratch().saturating_mul(self.size)
    }

    /// Computes all windows.
    pub(super) fn run<I: Item>(&self, source: &dyn Source<I>, sink: &dyn Sink<I>) {
        let [depth, height, width] = &self.lines;
        let all = self.outer * depth.output();
        let parts = [height.output().div_ceil(self.rows), width.output().div_ceil(self.windows)];
        let tasks = all.div_ceil(self.planes) * parts[0] * parts[1];
        let inputs = [depth, height, width].map(Line::input).iter().product::<usize>();
        let is_small = self.outer * inputs * self.lanes <= SMALL;
        shared::run(tasks, self.scratch(), is_small, |task, scratch: &mut [I]| {
            let first = task / parts[1] / parts[0] * self.planes;
            let row = task / parts[1] % parts[0] * self.rows;
            let rows = [row, (row + self.rows).min(height.output())];
            let part = self.part(task % parts[1] * self.windows);
            let (of_rows, of_columns) = scratch.split_at_mut(self.scratch_of_rows());
            let mut combined = match block::suits(self) {
                true => Combined::Block(Block::new(self, source, &part, of_rows)),
                false => Combined::Rows(Rows::new(self, source, &part, of_rows)),
            };
            let mut columns = Columns::new(self, &part, of_columns);
            let end = (first + self.planes).min(all);
            for plane in (first..end).step_by(self.stack) {
                let [outer, d] = [plane / depth.output(), plane % depth.output()];
                combined.start([outer, d], self.stack.min(end - plane));
                for first in (rows[0]..rows[1]).step_by(self.group) {
                    let count = self.group.min(rows[1] - first);
                    let results = columns.combine(count, combined.rows(first, count));
                    sink.store(outer, [d, first, part.windows[0]], &results);
                }
            }
        });
    }

    /// The part of a row from a window on.
    pub(super) fn part(&self, from: usize) -> Part {
        let width = &self.lines[AXES - 1];
        let to = (from + self.windows).min(width.output());
        let first = width.start(from);
        let span = match width.is_uneven() {
            true => {
                let last = width.taps(to - 1);
                last.first + last.count - first as usize
            }
            false => width.span(to - from),
        };
        let inside = [first, first + span as i64];
        let inside = inside.map(|x| x.clamp(0, width.input() as i64) as usize);
        // Without columns inside, all of them are before or after the input.
        let before = (inside[0] as i64 - first).clamp(0, span as i64) as usize;
        Part { windows: [from, to], inside, before, span }
    }
}

/// What combines rows of the input.
enum Combined<'a, I> {
    Block(Block<'a, I>),
    Rows(Rows<'a, I>),
}

impl<I: Item> Combined<'_, I> {
    /// Goes to an outer position and a coordinate of the first axis, and to the outer positions behind it.
    fn start(&mut self, plane: [usize; 2], planes: usize) {
        match self {
            Self::Block(block) => block.start(plane, planes),
            Self::Rows(rows) => rows.start(plane),
        }
    }

    /// The combined rows of some rows of windows of each plane.
    fn rows(&mut self, first: usize, count: usize) -> Planes<'_, I> {
        match self {
            Self::Block(block) => block.rows(first, count),
            Self::Rows(rows) => rows.rows(first, count),
        }
    }
}

/// Whether windows share partial results along the height and along the width: where that pays off, or if it does along
/// neither, wherever they can.
fn sliding(lines: &[Line; AXES], lanes: usize) -> [bool; 2] {
    let [_, height, width] = lines;
    let can = |line: &Line| !line.is_uneven() && line.kernel() > 1 && line.output() > 1;
    let can = [can(height) && height.dilation() == 1, can(width)];
    match pays(lines, lanes) {
        [false, false] => can,
        pays => pays,
    }
}

/// Whether sharing partial results is likely to be faster along the height, and along the width.
fn pays(lines: &[Line; AXES], lanes: usize) -> [bool; 2] {
    let [_, height, width] = lines;
    let taps = |line: &Line| line.output().saturating_mul(line.kernel());
    // Every row is read twice and added to a suffix or prefix.
    let rows = height.span(height.output()).min(height.input()).saturating_mul(3);
    let rows = rows.saturating_add(height.output());
    // All pixels are combined with their neighbours once for each doubling. Single numbers some pixels apart are slow.
    let doublings = 2 * (usize::BITS - width.kernel().leading_zeros()) as usize;
    let columns = width.span(width.output()).saturating_mul(doublings);
    let slow = if lanes == 1 && width.stride() > 1 { 4 } else { 1 };
    let slides = |line: &Line| {
        !line.is_uneven() && line.kernel() > 3 && line.output() > 1 && line.dilation() == 1
    };
    let wide = width.kernel() > 3 && width.output() > 1 && !width.is_uneven();
    [
        slides(height) && taps(height) > rows + rows / 4,
        wide && taps(width).saturating_mul(slow) > columns,
    ]
}

/// The algorithm that is likely the faster one.
pub(super) fn choose(field: &Field<'_>) -> Algorithm {
    let lines = lines(field.grid.axes(), field.lanes);
    match pays(&lines, field.lanes) {
        [false, false] => Algorithm::Direct,
        _ => Algorithm::Sliding,
    }
}
