//! Networks of comparisons: which pairs of values to compare, so that the value at a rank remains, or all are sorted.
//!
//! ```text
//! hold some of the n values; repeat:
//!     if the smallest held value is below more held values than may follow the wanted one:  it is dropped
//!     if the largest held value is above more held values than may precede the wanted one:  it is dropped
//!     otherwise hold one value more
//! ```
//!
//! Sorting is Batcher's merge exchange.
//!
//! A comparison gives the smaller and the larger of two values. Results that nothing uses are left out.

use windowpane_geometry::merge_exchange;

/// The smaller or the larger of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Step {
    pub(super) larger: bool,
    pub(super) a: usize,
    pub(super) b: usize,
}

/// The steps that select the value that `rank` of `count` others precede. Values are numbered: first the given ones,
/// then the result of each step. The last value is the selected one.
pub(super) fn selection(count: usize, rank: usize) -> Vec<Step> {
    let mut network = Network { count, steps: Vec::new() };
    let (mut held, mut next) = (Vec::new(), 0);
    // The values that are left, and how many of them precede the wanted one.
    let (mut left, mut before) = (count, rank);
    while left > 1 {
        let drops_least = before > 0 && held.len() > left - before;
        let drops_most = before + 1 < left && held.len() > before + 1;
        if !drops_least && !drops_most {
            held.push(next);
            next += 1;
            continue;
        }
        network.separate(&mut held, drops_least, drops_most);
        if drops_most {
            held.pop();
            left -= 1;
        }
        if drops_least {
            held.remove(0);
            (left, before) = (left - 1, before - 1);
        }
    }
    network.used_by(held.pop().unwrap_or(0))
}

/// The steps that sort values, and the numbers of the sorted ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sorting {
    pub(super) steps: Vec<Step>,
    /// The smallest value, the second smallest, and so on.
    pub(super) order: Vec<usize>,
}

/// The steps that sort `count` values.
pub(super) fn sorting(count: usize) -> Sorting {
    let mut network = Network { count, steps: Vec::new() };
    let mut held: Vec<usize> = (0..count).collect();
    merge_exchange(count).for_each(|(i, j)| network.order(&mut held, i, j));
    Sorting { steps: network.steps, order: held }
}

struct Network {
    count: usize,
    steps: Vec<Step>,
}

impl Network {
    /// Moves the smallest value to the front if `least`, and the largest to the end if `most`.
    fn separate(&mut self, held: &mut [usize], least: bool, most: bool) {
        let last = held.len() - 1;
        if least && most {
            // Afterwards the smallest is in the first half, and the largest in the second.
            for i in 0..held.len() / 2 {
                self.order(held, i, last - i);
            }
        }
        let (low, high) = if least && most { (last / 2, last.div_ceil(2)) } else { (last, 0) };
        if least {
            (1..=low).for_each(|i| self.order(held, 0, i));
        }
        if most {
            (high..last).for_each(|i| self.order(held, i, last));
        }
    }

    /// Puts the smaller of two values at `i` and the larger one at `j`.
    fn order(&mut self, held: &mut [usize], i: usize, j: usize) {
        let (a, b) = (held[i], held[j]);
        for (larger, at) in [(false, i), (true, j)] {
            held[at] = self.count + self.steps.len();
            self.steps.push(Step { larger, a, b });
        }
    }

    /// The steps that lead to a value, numbered anew.
    fn used_by(self, value: usize) -> Vec<Step> {
        let Self { count, steps } = self;
        let mut used = vec![false; count + steps.len()];
        used[value] = true;
        for (i, step) in steps.iter().enumerate().rev() {
            if used[count + i] {
                (used[step.a], used[step.b]) = (true, true);
            }
        }
        let mut numbers: Vec<usize> = (0..count).collect();
        let mut kept = Vec::new();
        for (i, step) in steps.iter().enumerate() {
            numbers.push(count + kept.len());
            if used[count + i] {
                kept.push(Step { a: numbers[step.a], b: numbers[step.b], ..*step });
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(numbers: &[u32], rank: usize) -> u32 {
        let mut values = numbers.to_vec();
        for Step { larger, a, b } in selection(numbers.len(), rank) {
            let (a, b) = (values[a], values[b]);
            values.push(if larger { a.max(b) } else { a.min(b) });
        }
        values[values.len() - 1]
    }

    /// A network of minima and maxima that is right for all zeros and ones is right for all numbers.
    #[test]
    fn networks_select_among_zeros_and_ones() {
        for count in 1..=11 {
            for rank in 0..count {
                for ones in 0..1u32 << count {
                    let bits: Vec<u32> = (0..count).map(|i| ones >> i & 1).collect();
                    let zeros = count - ones.count_ones() as usize;
                    assert_eq!(select(&bits, rank), u32::from(rank >= zeros), "{rank} of {bits:?}");
                }
            }
        }
    }

    #[test]
    fn networks_sort_zeros_and_ones() {
        for count in 1..=12 {
            let Sorting { steps, order } = sorting(count);
            for ones in 0..1u32 << count {
                let mut values: Vec<u32> = (0..count).map(|i| ones >> i & 1).collect();
                for Step { larger, a, b } in &steps {
                    let (a, b) = (values[*a], values[*b]);
                    values.push(if *larger { a.max(b) } else { a.min(b) });
                }
                assert!(order.is_sorted_by_key(|&at| values[at]), "{ones:b} of {count}");
            }
        }
        // 19 comparisons of 8 values, and none of one.
        assert_eq!((sorting(8).steps.len(), sorting(1).steps.len()), (2 * 19, 0));
    }

    #[test]
    fn networks_select_among_many() {
        for count in [16, 25, 27, 36, 49] {
            let mut state = 1u32;
            for rank in 0..count {
                let numbers: Vec<u32> = (0..count)
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        state >> 26
                    })
                    .collect();
                let mut sorted = numbers.clone();
                sorted.sort_unstable();
                assert_eq!(select(&numbers, rank), sorted[rank], "{rank} of {numbers:?}");
            }
        }
    }

    /// The extremes take one step for each value, and a median of 3×3 no more than twenty comparisons.
    #[test]
    fn networks_are_short() {
        assert_eq!((selection(9, 0).len(), selection(9, 8).len()), (8, 8));
        assert!(selection(9, 4).len() <= 40);
        assert!(selection(25, 12).len() <= 260);
    }
}
