//! Rank filters: the number of each window that a given number of others precede.
//!
//! ```text
//! for each block of outputs in a row, all of whose taps are inside:
//!     for all its windows at once, in vectors:
//!         hold some of the taps; repeat:
//!             drop the smallest held one if more others are held than may follow the wanted one
//!             drop the largest held one  if more others are held than may precede the wanted one
//!             otherwise hold one tap more
//! for each other window, and where there are very many taps:
//!     select among its taps
//! ```
//!
//! Numbers are compared as integers that have their order. Which taps are held is the same for all windows, so there are
//! no branches that depend on numbers, and the comparisons are minima and maxima of vectors.

use core::ops::Range;

use half::{bf16, f16};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use windowpane_geometry::{Axis, Layout, Pooling, Rank};
use windowpane_reference::Scalar;

use crate::check_length;

/// The outputs that are computed at once.
const BLOCK: usize = 64;

/// The most taps that are held in blocks. The work for a window grows with the square of its taps; selecting among the
/// taps of each window is then faster.
const MOST: usize = 200;

/// The least number of outputs per task.
const TASK: usize = 4096;

/// An element type whose numbers can be ranked.
pub trait Ranked: Scalar {
    /// Integers that have the order of the numbers.
    type Key: Copy + Ord + Default + Send + Sync;

    /// The greatest key of a number; those of NaN are greater.
    const GREATEST: Self::Key;

    /// The key of a number.
    fn key(self) -> Self::Key;

    /// The number with this key.
    fn of(key: Self::Key) -> Self;
}

macro_rules! integer {
    ($($type:ty),*) => {$(
        impl Ranked for $type {
            type Key = Self;
            const GREATEST: Self = Self::MAX;

            #[inline(always)]
            fn key(self) -> Self {
                self
            }

            #[inline(always)]
            fn of(key: Self) -> Self {
                key
            }
        }
    )*};
}

/// Bits with all but the sign inverted below zero, as an integer. It is its own inverse.
macro_rules! turned {
    ($bits:expr, $key:ty) => {{
        let bits: $key = $bits;
        bits ^ ((bits >> (<$key>::BITS - 1)) & <$key>::MAX)
    }};
}

/// A key is the number's bits as an integer, with all but the sign inverted below zero, less `BELOW`, so that −∞ has the
/// least key. A NaN whose sign is set has one of the greatest then.
macro_rules! float {
    ($($type:ty: $key:ty, $bits:ty;)*) => {$(
        impl Ranked for $type {
            type Key = $key;
            const GREATEST: $key = (<$type>::INFINITY.to_bits() as $key) - Self::BELOW;

            #[inline(always)]
            fn key(self) -> $key {
                turned!(self.to_bits() as $key, $key).wrapping_sub(Self::BELOW)
            }

            #[inline(always)]
            fn of(key: $key) -> Self {
                Self::from_bits(turned!(key.wrapping_add(Self::BELOW), $key) as $bits)
            }
        }

        impl Below for $type {
            type Key = $key;
            const BELOW: $key = !(<$type>::NEG_INFINITY.to_bits() as $key) & <$key>::MAX;
        }
    )*};
}

/// The distance of the least key of a number from the least integer.
trait Below {
    type Key;
    const BELOW: Self::Key;
}

integer!(i32, i16, u16, i8, u8);
float! {
    f64: i64, u64;
    f32: i32, u32;
    f16: i16, u16;
    bf16: i16, u16;
}

/// The number of each window at a rank, which must pass [`Rank::check`]: what `windowpane_reference::pool::rank`
/// defines.
///
/// ```
/// use windowpane_geometry::{Extents, Layout, Pooling, Rank, Shape, Window};
///
/// let line = Shape::new(1, 1, Extents::from([5]))?;
/// let pooling = Pooling::new(line, &Window::new([3]).padding([1]), Layout::ChannelsLast)?;
/// assert_eq!(windowpane_host::rank(&pooling, Rank::MEDIAN, &[7, 1, 9, 2, 3]), [7, 7, 2, 3, 3]);
/// # Ok::<(), windowpane_geometry::Error>(())
/// ```
pub fn rank<T: Ranked>(pooling: &Pooling, rank: Rank, x: &[T]) -> Vec<T> {
    check_length("the input", x.len(), pooling.input().elements());
    let windows = Windows::of(pooling, rank, x);
    let [depth, height, width] = pooling.grid().axes();
    let row = width.output() * windows.lanes;
    let mut y = vec![T::ZERO; pooling.output().elements()];
    let rows = y.par_chunks_mut(row).with_min_len(TASK.div_ceil(row)).enumerate();
    rows.for_each_init(Scratch::default, |scratch, (at, y)| {
        let (outer, d, h) = (
            at / height.output() / depth.output(),
            at / height.output() % depth.output(),
            at % height.output(),
        );
        windows.row(scratch, [outer, d, h], y);
    });
    y
}

/// The most bytes that [`rank()`] allocates at any time, including its result; `usize::MAX` if they cannot be counted.
pub fn rank_bytes<T: Ranked>(pooling: &Pooling) -> usize {
    let [depth, height, width] = pooling.grid().axes();
    let result = pooling.output().elements().saturating_mul(size_of::<T>());
    let lines = depth.kernel().saturating_mul(height.kernel());
    let held = (MOST / 2 + 3) * size_of::<[T::Key; BLOCK]>();
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
struct Windows<'a, T> {
    axes: &'a [Axis; 3],
    lanes: usize,
    rank: Rank,
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

impl<'a, T: Ranked> Windows<'a, T> {
    fn of(pooling: &'a Pooling, rank: Rank, x: &'a [T]) -> Self {
        let lanes = match pooling.layout() {
            Layout::ChannelsLast => pooling.input().channels(),
            Layout::ChannelsFirst => 1,
        };
        let axes = pooling.grid().axes();
        let width = &axes[2];
        let (first, last) = (width.windows_inside(0), width.windows_inside(width.kernel() - 1));
        let whole = if width.is_uneven() { 0..0 } else { first.start..last.end.max(first.start) };
        Self { axes, lanes, rank, x, whole }
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
        let whole = if taps <= MOST { self.whole.clone() } else { 0..0 };
        for o in (0..whole.start).chain(whole.end..width.output()) {
            for lane in 0..*lanes {
                y[o * lanes + lane] = self.one(scratch, o, lane);
            }
        }
        let (rank, many) = (self.rank.of(taps), whole.len() * lanes);
        let y = &mut y[whole.start * lanes..][..many];
        for (block, y) in y.chunks_mut(BLOCK).enumerate() {
            let first = whole.start * lanes + block * BLOCK;
            let offsets = core::array::from_fn(|i| self.offset(first + i.min(y.len() - 1)));
            Arch::new().dispatch(Block { windows: self, scratch, offsets, taps, rank, y });
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
        let rank = self.rank.of(window.len());
        T::of(if greatest > T::GREATEST { greatest } else { *window.select_nth_unstable(rank).1 })
    }

    /// Where, in a line of the input, output `at` of a row has its first tap. It is inside.
    fn offset(&self, at: usize) -> usize {
        let width = &self.axes[2];
        width.start(at / self.lanes) as usize * self.lanes + at % self.lanes
    }
}

/// Neighbouring outputs of a row, with all their taps inside.
struct Block<'a, T: Ranked> {
    windows: &'a Windows<'a, T>,
    scratch: &'a mut Scratch<T::Key>,
    /// Where the first taps are in a line. Those behind the last output repeat it.
    offsets: [usize; BLOCK],
    taps: usize,
    rank: usize,
    y: &'a mut [T],
}

impl<T: Ranked> WithSimd for Block<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        simd.vectorize(
            #[inline(always)]
            || self.compute(),
        );
    }
}

impl<T: Ranked> Block<'_, T> {
    #[inline(always)]
    fn compute(self) {
        let Self { windows, scratch, offsets, taps, rank, y } = self;
        let [.., width] = windows.axes;
        let step = width.dilation() * windows.lanes;
        let is_run = offsets[y.len() - 1] - offsets[0] == y.len() - 1 && y.len() == BLOCK;
        let mut lines =
            scratch.lines.iter().flat_map(|line| (0..width.kernel()).map(move |t| line + t * step));
        let (held, mut count) = (&mut scratch.held, 0);
        let mut greatest = [T::GREATEST; BLOCK];
        // The taps that are left, and how many of them precede the wanted one.
        let (mut left, mut before) = (taps, rank);
        loop {
            let drops_least = before > 0 && count > left - before;
            let drops_most = before + 1 < left && count > before + 1;
            if drops_least || drops_most {
                separate(&mut held[..count], drops_least, drops_most);
                if drops_most {
                    (count, left) = (count - 1, left - 1);
                }
                if drops_least {
                    (count, left, before) = (count - 1, left - 1, before - 1);
                    held.swap(0, count);
                    if drops_most {
                        // The largest is behind the others too.
                        held.swap(count, count + 1);
                    }
                }
                continue;
            }
            let Some(line) = lines.next() else { break };
            if count == held.len() {
                held.push([T::Key::default(); BLOCK]);
            }
            let keys = &mut held[count];
            if is_run {
                let run = &windows.x[line + offsets[0]..][..BLOCK];
                keys.iter_mut().zip(run).for_each(|(key, x)| *key = x.key());
            } else {
                let at = offsets.iter().map(|offset| windows.x[line + offset]);
                keys.iter_mut().zip(at).for_each(|(key, x)| *key = x.key());
            }
            greatest.iter_mut().zip(&*keys).for_each(|(most, key)| *most = (*most).max(*key));
            count += 1;
        }
        for ((y, key), most) in y.iter_mut().zip(&held[0]).zip(&greatest) {
            *y = T::of(if *most > T::GREATEST { *most } else { *key });
        }
    }
}

/// Moves the smallest keys to the front if `least`, and the largest to the end if `most`.
#[inline(always)]
fn separate<K: Copy + Ord>(held: &mut [[K; BLOCK]], least: bool, most: bool) {
    let last = held.len() - 1;
    if least && most {
        // Afterwards the smallest is in the first half, and the largest in the second.
        for i in 0..held.len() / 2 {
            order(held, i, last - i);
        }
    }
    let (low, high) = if least && most { (last / 2, last.div_ceil(2)) } else { (last, 0) };
    if least {
        (1..=low).for_each(|i| order(held, 0, i));
    }
    if most {
        (high..last).for_each(|i| order(held, i, last));
    }
}

/// Puts the smaller keys at `i` and the larger ones at `j`, which is greater than `i`.
#[inline(always)]
fn order<K: Copy + Ord>(held: &mut [[K; BLOCK]], i: usize, j: usize) {
    let (front, back) = held.split_at_mut(j);
    for (a, b) in front[i].iter_mut().zip(&mut back[0]) {
        (*a, *b) = ((*a).min(*b), (*a).max(*b));
    }
}
