//! The order of comparisons that sorts any list.

use core::iter::{once, successors};

/// The pairs of places to compare, one after the other, to sort a list of `count` values: the smaller one goes to the
/// first place, which is before the second.
///
/// It is Batcher's merge exchange (Knuth, section 5.2.2, algorithm M). Kernels and `host` sort the taps of a window by it,
/// because the pairs do not depend on the values.
///
/// ```
/// let pairs: Vec<_> = windowpane_geometry::merge_exchange(3).collect();
/// assert_eq!(pairs, [(0, 2), (0, 1), (1, 2)]);
/// ```
pub fn merge_exchange(count: usize) -> impl Iterator<Item = (usize, usize)> {
    let half = count.next_power_of_two() / 2;
    let halves = move || successors(Some(half), |step| Some(step / 2));
    halves().take_while(|step| *step > 0).flat_map(move |step| {
        let later =
            halves().take_while(move |wide| *wide > step).map(move |wide| (wide - step, step));
        once((step, 0)).chain(later).flat_map(move |(distance, bit)| {
            let first = (0..count.saturating_sub(distance)).filter(move |i| i & step == bit);
            first.map(move |i| (i, i + distance))
        })
    })
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    /// A network that sorts all zeros and ones sorts all values.
    #[test]
    fn zeros_and_ones_are_sorted() {
        for count in 0..=12 {
            for ones in 0..1u32 << count {
                let mut bits: Vec<_> = (0..count).map(|i| ones >> i & 1).collect();
                for (i, j) in merge_exchange(count) {
                    assert!(i < j && j < count);
                    (bits[i], bits[j]) = (bits[i].min(bits[j]), bits[i].max(bits[j]));
                }
                assert!(bits.is_sorted(), "{ones:b} of {count}");
            }
        }
        // As many comparisons as Knuth counts.
        assert_eq!([1, 2, 4, 8, 16].map(|count| merge_exchange(count).count()), [0, 1, 5, 19, 63]);
    }
}
