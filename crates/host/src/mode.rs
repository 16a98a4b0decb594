//! Modes: the most frequent number of each window.
//!
//! ```text
//! for a block of windows at once, in vectors:
//!     sort the taps of each window by a network of comparisons, the same for all windows
//!     count each run of equal keys from its start; keep the key of the longest one
//! for a single window:
//!     sort its taps and do the same, or count how often each number occurs if a type has only 256
//! ```
//!
//! Keys ascend, and only a longer run wins: if several are equally frequent, the smallest is kept.

use windowpane_geometry::{Pooling, merge_exchange};

use crate::rank::Ranked;
use crate::windows::{BLOCK, Choice, Keys, Taps, bytes, chosen, order};

/// The most taps that are sorted in blocks. Runs are counted in 8 bits.
const MOST: usize = 200;

/// The taps from which on 256 counters are faster than sorting.
const COUNTED: usize = 64;

/// The most frequent number of each window; the smallest one if several are equally frequent. It is what
/// `windowpane_reference::pool::mode` defines.
///
/// ```
/// use windowpane_geometry::{Extents, Layout, Pooling, Shape, Window};
///
/// let line = Shape::new(1, 1, Extents::from([6]))?;
/// let pooling = Pooling::new(line, &Window::new([3]).padding([1]), Layout::ChannelsLast)?;
/// assert_eq!(windowpane_host::mode(&pooling, &[7, 1, 7, 7, 3, 9]), [1, 7, 7, 7, 3, 3]);
/// # Ok::<(), windowpane_geometry::Error>(())
/// ```
pub fn mode<T: Ranked>(pooling: &Pooling, x: &[T]) -> Vec<T> {
    chosen(pooling, Mode, x)
}

/// The most bytes that [`mode()`] allocates at any time, including its result; `usize::MAX` if they cannot be counted.
pub fn mode_bytes<T: Ranked>(pooling: &Pooling) -> usize {
    bytes::<T>(pooling, MOST)
}

/// The most frequent number.
#[derive(Clone, Copy)]
struct Mode;

impl<T: Ranked> Choice<T> for Mode {
    const MOST: usize = MOST;

    fn of_one(self, keys: &mut [T::Key]) -> T::Key {
        if keys.len() >= COUNTED && T::place(keys[0]).is_some() {
            return by_counting::<T>(keys);
        }
        keys.sort_unstable();
        let mut longest: &[T::Key] = &[];
        for run in keys.chunk_by(|a, b| a == b) {
            if run.len() > longest.len() {
                longest = run;
            }
        }
        longest[0]
    }

    #[inline(always)]
    fn of_block(self, mut taps: impl Taps<T>, held: &mut Vec<Keys<T>>) -> Keys<T> {
        let count = taps.count();
        for at in 0..count {
            taps.hold(held, at);
        }
        let keys = &mut held[..count];
        for (i, j) in merge_exchange(count) {
            order(keys, i, j);
        }
        longest_runs(keys)
    }
}

/// The most frequent key, by counting each.
fn by_counting<T: Ranked>(keys: &[T::Key]) -> T::Key {
    let mut counts = [0u32; 256];
    let place = |key: T::Key| usize::from(T::place(key).unwrap_or(0));
    keys.iter().for_each(|key| counts[place(*key)] += 1);
    let most = counts.iter().max().copied().unwrap_or(0);
    let first = counts.iter().position(|count| *count == most);
    keys.iter().copied().find(|key| Some(place(*key)) == first).unwrap_or(keys[0])
}

/// The key of the longest run in each window of sorted keys, and of several the first.
#[inline(always)]
fn longest_runs<K: Copy + Ord>(sorted: &[[K; BLOCK]]) -> [K; BLOCK] {
    let mut found = sorted[0];
    let (mut run, mut longest) = ([1u8; BLOCK], [1u8; BLOCK]);
    for (before, keys) in sorted.iter().zip(&sorted[1..]) {
        for lane in 0..BLOCK {
            let more = run[lane].wrapping_add(1);
            run[lane] = if keys[lane] == before[lane] { more } else { 1 };
            found[lane] = if run[lane] > longest[lane] { keys[lane] } else { found[lane] };
            longest[lane] = longest[lane].max(run[lane]);
        }
    }
    found
}
