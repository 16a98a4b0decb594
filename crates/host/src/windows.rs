//! Takes one number of each window, in blocks of neighbouring windows: [`mod@crate::rank`] and [`mod@crate::mode`].
//!
//! ```text
//! for each block of outputs in a row, all of whose taps are inside:
//!     choose for all its windows at once, in vectors
//! for each other window, and where there are very many taps:
//!     choose among its taps
//! ```

use core::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use windowpane_geometry::{Axis, Layout, Pooling};

use crate::check_length;
use crate::rank::Ranked;
use crate::shared::{Shared, with_scratch};

/// The outputs that are computed at once.
pub(crate) const BLOCK: usize = 64;

/// The least number of outputs per task.
const TASK: usize = 4096;

/// One key of each window of a block.
pub(crate) type Keys<T> = [<T as Ranked>::Key; BLOCK];

/// Which number is taken of a window. Windows with NaN and without numbers are not asked about.
pub(crate) trait Choice<T: Ranked>: Copy + Sync {
    /// The most taps of a window in a block.
    const MOST: usize;

    /// The choice among the keys of one window, in any order.
    fn of_one(self, keys: &mut [T::Key]) -> T::Key;

    /// The choice in each window of a block. Inlined, so that it is compiled for the processor's vectors.
    fn of_block(self, taps: impl Taps<T>, held: &mut Vec<Keys<T>>) -> Keys<T>;
}

/// The taps of a block of windows, one after the other.
pub(crate) trait Taps<T: Ranked> {
    /// The number of taps of a window.
    fn count(&self) -> usize;

    /// Writes the keys of the next tap to place `at` of those that are held, of which there are at least `at`. False if
    /// there is none left.
    fn hold(&mut self, held: &mut Vec<Keys<T>>, at: usize) -> bool;
}

/// The choice in each window of a pooling.
pub(crate) fn chosen<T: Ranked, C: Choice<T>>(pooling: &Pooling, choice: C, x: &[T]) -> Vec<T> {
    check_length("the input", x.len(), pooling.input().elements());
    let windows = Windows::of(pooling, choice, x);
    let [depth, height, width] = pooling.grid().axes();
    let row = width.output() * windows.lanes;
    let mut y = vec![T::ZERO; pooling.output().elements()];
    let rows = Shared::of(&mut y);
    with_scratch(rows.len() / row, TASK.div_ceil(row), |at, scratch| {
        let (outer, d, h) = (
            at / height.output() / depth.output(),
            at / height.output() % depth.output(),
            at % height.output(),
        );
        // SAFETY: no other task has this row.
        windows.row(scratch, [outer, d, h], unsafe { rows.slice(at * row, row) });
    });
    y
}

/// The most bytes that [`chosen`] allocates at any time, including its result, if a block holds this many taps;
/// `usize::MAX` if they cannot be counted.
pub(crate) fn bytes<T: Ranked>(pooling: &Pooling, most_held: usize) -> usize {
    let [depth, height, width] = pooling.grid().axes();
    let result = pooling.output().elements().saturating_mul(size_of::<T>());
    let lines = depth.kernel().saturating_mul(height.kernel());
    let held = most_held * size_of::<Keys<T>>();
    // A list that grows may have three times the memory that it needs.
    let window = lines.saturating_mul(width.kernel()).saturating_mul(3 * size_of::<T::Key>());
    let each = window
        .saturating_add(lines.saturating_mul(3 * size_of::<usize>()))
        .saturating_add(2 * held);
    let workers = rayon::current_num_threads();
    result.saturating_add(each.saturating_mul(workers)).saturating_add(1 << 18)
}

/// The windows of a pooling, as `outer × depth × height × width × lanes`: with channels last the lanes are the channels,
/// with channels first there is one, and the outer positions are samples and channels.
struct Windows<'a, T, C> {
    axes: &'a [Axis; 3],
    lanes: usize,
    choice: C,
    x: &'a [T],
    /// The windows of a row whose taps are all inside along the width.
    whole: Range<usize>,
}

/// The memory of a worker.
struct Scratch<K> {
    /// Where in the input the lines of the current row of windows begin.
    lines: Vec<usize>,
    window: Vec<K>,
    held: Vec<[K; BLOCK]>,
}

impl<K> Default for Scratch<K> {
    fn default() -> Self {
        Self { lines: Vec::new(), window: Vec::new(), held: Vec::new() }
    }
}

impl<'a, T: Ranked, C: Choice<T>> Windows<'a, T, C> {
    fn of(pooling: &'a Pooling, choice: C, x: &'a [T]) -> Self {
        let lanes = match pooling.layout() {
            Layout::ChannelsLast => pooling.input().channels(),
            Layout::ChannelsFirst => 1,
        };
        let axes = pooling.grid().axes();
        let width = &axes[2];
        let (first, last) = (width.windows_inside(0), width.windows_inside(width.kernel() - 1));
        let whole = if width.is_uneven() { 0..0 } else { first.start..last.end.max(first.start) };
        Self { axes, lanes, choice, x, whole }
    }

    /// Computes a row of outputs.
    fn row(&self, scratch: &mut Scratch<T::Key>, [outer, d, h]: [usize; 3], y: &mut [T]) {
        let Self { axes: [depth, height, width], lanes, .. } = self;
        scratch.lines.clear();
        for x in depth.inside(d).map(|t| depth.coordinate(d, t) as usize) {
            let lines = height.inside(h).map(|t| height.coordinate(h, t) as usize);
            let line =
                |y: usize| ((outer * depth.input() + x) * height.input() + y) * width.input();
            scratch.lines.extend(lines.map(|y| line(y) * lanes));
        }
        if scratch.lines.is_empty() {
            return;
        }
        let taps = scratch.lines.len() * width.kernel();
        let whole = if taps <= C::MOST { self.whole.clone() } else { 0..0 };
        for o in (0..whole.start).chain(whole.end..width.output()) {
            for lane in 0..*lanes {
                y[o * lanes + lane] = self.one(scratch, o, lane);
            }
        }
        let y = &mut y[whole.start * lanes..][..whole.len() * lanes];
        for (block, y) in y.chunks_mut(BLOCK).enumerate() {
            let first = whole.start * lanes + block * BLOCK;
            let offsets = core::array::from_fn(|i| self.offset(first + i.min(y.len() - 1)));
            Arch::new().dispatch(Block { windows: self, scratch, offsets, taps, y });
        }
    }

    /// The number of window `o` of a row.
    fn one(&self, scratch: &mut Scratch<T::Key>, o: usize, lane: usize) -> T {
        let width = &self.axes[2];
        let Scratch { lines, window, .. } = scratch;
        window.clear();
        for line in lines {
            let at = |t| *line + width.coordinate(o, t) as usize * self.lanes + lane;
            window.extend(width.inside(o).map(|t| self.x[at(t)].key()));
        }
        let Some(&greatest) = window.iter().max() else { return T::ZERO };
        T::of(if greatest > T::GREATEST { greatest } else { self.choice.of_one(window) })
    }

    /// Where, in a line of the input, output `at` of a row has its first tap. It is inside.
    fn offset(&self, at: usize) -> usize {
        let width = &self.axes[2];
        width.start(at / self.lanes) as usize * self.lanes + at % self.lanes
    }
}

/// Neighbouring outputs of a row, with all their taps inside.
struct Block<'a, T: Ranked, C> {
    windows: &'a Windows<'a, T, C>,
    scratch: &'a mut Scratch<T::Key>,
    /// Where the first taps are in a line. Those behind the last output repeat it.
    offsets: [usize; BLOCK],
    taps: usize,
    y: &'a mut [T],
}

impl<T: Ranked, C: Choice<T>> WithSimd for Block<'_, T, C> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        simd.vectorize(
            #[inline(always)]
            || self.compute(),
        );
    }
}

impl<T: Ranked, C: Choice<T>> Block<'_, T, C> {
    #[inline(always)]
    fn compute(self) {
        let Self { windows, scratch, offsets, taps: count, y } = self;
        let [.., width] = windows.axes;
        let step = width.dilation() * windows.lanes;
        let is_run = offsets[y.len() - 1] - offsets[0] == y.len() - 1 && y.len() == BLOCK;
        let starts =
            scratch.lines.iter().flat_map(|line| (0..width.kernel()).map(move |t| line + t * step));
        let mut greatest = [T::GREATEST; BLOCK];
        let taps = Loaded {
            x: windows.x,
            starts,
            count,
            offsets: &offsets,
            is_run,
            greatest: &mut greatest,
        };
        let chosen = windows.choice.of_block(taps, &mut scratch.held);
        for ((y, key), most) in y.iter_mut().zip(&chosen).zip(&greatest) {
            *y = T::of(if *most > T::GREATEST { *most } else { *key });
        }
    }
}

/// The taps of a block, as they are loaded.
struct Loaded<'a, T: Ranked, I> {
    x: &'a [T],
    /// Where each tap is, of a window whose first tap is at the start of a line.
    starts: I,
    count: usize,
    offsets: &'a [usize; BLOCK],
    /// Whether the windows' taps are next to each other.
    is_run: bool,
    /// The greatest keys so far, which show where there is a NaN.
    greatest: &'a mut Keys<T>,
}

impl<T: Ranked, I: Iterator<Item = usize>> Taps<T> for Loaded<'_, T, I> {
    #[inline(always)]
    fn count(&self) -> usize {
        self.count
    }

    #[inline(always)]
    fn hold(&mut self, held: &mut Vec<Keys<T>>, at: usize) -> bool {
        let Some(start) = self.starts.next() else { return false };
        if at == held.len() {
            held.push([T::Key::default(); BLOCK]);
        }
        let keys = &mut held[at];
        if self.is_run {
            let run = &self.x[start + self.offsets[0]..][..BLOCK];
            keys.iter_mut().zip(run).for_each(|(key, x)| *key = x.key());
        } else {
            let numbers = self.offsets.iter().map(|offset| self.x[start + offset]);
            keys.iter_mut().zip(numbers).for_each(|(key, x)| *key = x.key());
        }
        self.greatest.iter_mut().zip(&*keys).for_each(|(most, key)| *most = (*most).max(*key));
        true
    }
}

/// Puts the smaller keys at `i` and the larger ones at `j`, which is greater than `i`.
#[inline(always)]
pub(crate) fn order<K: Copy + Ord>(held: &mut [[K; BLOCK]], i: usize, j: usize) {
    let (front, back) = held.split_at_mut(j);
    for (a, b) in front[i].iter_mut().zip(&mut back[0]) {
        (*a, *b) = ((*a).min(*b), (*a).max(*b));
    }
}
