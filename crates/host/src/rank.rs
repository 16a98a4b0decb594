//! Rank filters: the number of each window that a given number of others precede.
//!
//! ```text
//! for a block of windows at once, in vectors:
//!     hold some of the taps; repeat:
//!         drop the smallest held one if more others are held than may follow the wanted one
//!         drop the largest held one  if more others are held than may precede the wanted one
//!         otherwise hold one tap more
//! for a single window: select among its taps
//! ```
//!
//! Numbers are compared as integers that have their order. Which taps are held is the same for all windows, so there are
//! no branches that depend on numbers, and the comparisons are minima and maxima of vectors.

use half::{bf16, f16};
use windowpane_geometry::{Pooling, Rank};
use windowpane_reference::Scalar;

use crate::windows::{BLOCK, Choice, Keys, Taps, bytes, chosen, order};

/// The most taps that are held in blocks. The work for a window grows with the square of its taps; selecting among the
/// taps of each window is then faster.
const MOST: usize = 200;

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

    /// The place of a key in the order of all keys, if there are at most 256.
    fn place(key: Self::Key) -> Option<u8>;
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

            #[inline(always)]
            fn place(key: Self) -> Option<u8> {
                (Self::BITS == 8).then(|| key.wrapping_sub(Self::MIN) as u8)
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

            #[inline(always)]
            fn place(_: $key) -> Option<u8> {
                None
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

integer!(i64, i32, i16, u16, i8, u8);

/// Keys are signed, so that there is room for an index beside one in 64 bits.
impl Ranked for u32 {
    type Key = i32;
    const GREATEST: i32 = i32::MAX;

    #[inline(always)]
    fn key(self) -> i32 {
        (self ^ (1 << 31)) as i32
    }

    #[inline(always)]
    fn of(key: i32) -> Self {
        key as Self ^ (1 << 31)
    }

    #[inline(always)]
    fn place(_: i32) -> Option<u8> {
        None
    }
}

impl Ranked for bool {
    type Key = u8;
    const GREATEST: u8 = 1;

    #[inline(always)]
    fn key(self) -> u8 {
        self.into()
    }

    #[inline(always)]
    fn of(key: u8) -> Self {
        key != 0
    }

    #[inline(always)]
    fn place(key: u8) -> Option<u8> {
        Some(key)
    }
}

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
    chosen(pooling, rank, x)
}

/// The most bytes that [`rank()`] allocates at any time, including its result; `usize::MAX` if they cannot be counted.
pub fn rank_bytes<T: Ranked>(pooling: &Pooling) -> usize {
    bytes::<T>(pooling, MOST / 2 + 3)
}

impl<T: Ranked> Choice<T> for Rank {
    const MOST: usize = MOST;

    fn of_one(self, keys: &mut [T::Key]) -> T::Key {
        *keys.select_nth_unstable(self.of(keys.len())).1
    }

    #[inline(always)]
    fn of_block(self, mut taps: impl Taps<T>, held: &mut Vec<Keys<T>>) -> Keys<T> {
        let mut count = 0;
        // The taps that are left, and how many of them precede the wanted one.
        let (mut left, mut before) = (taps.count(), self.of(taps.count()));
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
            if !taps.hold(held, count) {
                break;
            }
            count += 1;
        }
        held[0]
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
