use crate::{AXES, Error, Extents, Quantity};

/// The taps of a window that count, for windows that are not rectangles: a flat structuring element.
///
/// ```
/// use windowpane_geometry::{Extents, Footprint, Run};
///
/// let taps = [false, true, false, true, true, true, false, true, false];
/// let cross = Footprint::new(Extents::from([3, 3]), &taps)?;
/// assert_eq!(cross.taps().count(), 5);
/// assert_eq!(cross.runs().nth(1), Some(Run { start: [0, 1, 0], length: 3 }));
/// # Ok::<(), windowpane_geometry::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint<'a> {
    extents: Extents,
    taps: &'a [bool],
}

/// Neighbouring taps along the last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// The first tap, on three axes.
    pub start: [usize; AXES],
    /// The number of taps.
    pub length: usize,
}

impl<'a> Footprint<'a> {
    /// The taps of a window of these extents that are true, in row-major order. At least one must be.
    pub fn new(extents: Extents, taps: &'a [bool]) -> Result<Self, Error> {
        extents.check_nonzero(Quantity::Kernel)?;
        let product = |all: Option<usize>, extent: usize| all?.checked_mul(extent);
        let expected = extents.three(1).into_iter().fold(Some(1), product);
        if expected != Some(taps.len()) {
            return Err(Error::Footprint { extents, found: taps.len() });
        }
        if !taps.contains(&true) {
            return Err(Error::EmptyFootprint);
        }
        Ok(Self { extents, taps })
    }

    /// The extents of the window.
    pub fn extents(&self) -> Extents {
        self.extents
    }

    /// Whether every tap of the window counts.
    pub fn is_whole(&self) -> bool {
        !self.taps.contains(&false)
    }

    /// Whether a tap, on three axes, counts.
    pub fn has(&self, [d, h, w]: [usize; AXES]) -> bool {
        let [_, height, width] = self.extents.three(1);
        self.taps[(d * height + h) * width + w]
    }

    /// The taps that count, on three axes, in row-major order.
    pub fn taps(self) -> impl Iterator<Item = [usize; AXES]> + Clone + 'a {
        let [_, height, width] = self.extents.three(1);
        let all = self.taps.iter().enumerate().filter(|(_, counts)| **counts);
        all.map(move |(i, _)| [i / width / height, i / width % height, i % width])
    }

    /// The taps that count, in runs as long as possible, in row-major order.
    pub fn runs(self) -> impl Iterator<Item = Run> + Clone + 'a {
        let width = self.extents.three(1)[AXES - 1];
        let before =
            move |tap: &[usize; AXES]| tap[2] > 0 && self.has([tap[0], tap[1], tap[2] - 1]);
        self.taps().filter(move |tap| !before(tap)).map(move |start| {
            let last = (start[2] + 1..width).find(|w| !self.has([start[0], start[1], *w]));
            Run { start, length: last.unwrap_or(width) - start[2] }
        })
    }

    /// The runs in pieces whose lengths are powers of two: each run is one piece, or two that overlap. The extremum of a
    /// run is that of its pieces.
    pub fn pieces(self) -> impl Iterator<Item = Run> + Clone + 'a {
        self.runs().flat_map(|Run { start, length }| {
            let piece = 1 << length.ilog2();
            let last = [start[0], start[1], start[2] + length - piece];
            let both = [Run { start, length: piece }, Run { start: last, length: piece }];
            both.into_iter().take(if piece == length { 1 } else { 2 })
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;
    use std::vec::Vec;

    use super::*;

    /// Every footprint of 2×3 taps: its runs are its taps, none follows another, and the empty one is refused.
    #[test]
    fn runs_are_the_taps() {
        for bits in 0..64u32 {
            let taps: Vec<bool> = (0..6).map(|i| bits >> i & 1 == 1).collect();
            let footprint = match Footprint::new(Extents::from([2, 3]), &taps) {
                Ok(footprint) => footprint,
                Err(error) => {
                    assert_eq!((bits, error), (0, Error::EmptyFootprint));
                    continue;
                }
            };
            let of_run =
                |run: Run| (0..run.length).map(move |i| [0, run.start[1], run.start[2] + i]);
            let from_runs: Vec<_> = footprint.runs().flat_map(of_run).collect();
            assert_eq!(from_runs, footprint.taps().collect::<Vec<_>>());
            assert_eq!(from_runs.len(), bits.count_ones() as usize);
            let row = |h: u32| bits >> (3 * h) & 7;
            let runs = |row: u32| (row & !(row << 1)).count_ones() as usize;
            assert_eq!(footprint.runs().count(), runs(row(0)) + runs(row(1)));
            assert_eq!(footprint.is_whole(), bits == 63);
            let mut from_pieces: Vec<_> = footprint.pieces().flat_map(of_run).collect();
            assert!(footprint.pieces().all(|piece| piece.length.is_power_of_two()));
            from_pieces.sort();
            from_pieces.dedup();
            assert_eq!(from_pieces, from_runs);
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let error = Footprint::new(Extents::from([2, 2]), &[true; 3]).unwrap_err();
        assert!(
            error.to_string().contains("3 taps") && error.to_string().contains("2×2"),
            "{error}"
        );
        assert!(Footprint::new(Extents::from([usize::MAX, 2]), &[true]).is_err());
        assert!(Footprint::new(Extents::from([0]), &[]).is_err());
        assert!(Footprint::new(Extents::from(3), &[true; 3]).is_err());
    }
}
