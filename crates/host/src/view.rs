//! Gathers: which source coordinates each position of a result reads.
//!
//! The forward pass and the data gradient are the same sum over taps,
//!
//! ```text
//! result[first + q·result_step] = Σ { source[q·step + offset(tap)] · weight[tap] : inside the source }
//! ```
//!
//! on each axis. The forward pass is one such view: `step` is the stride `s` and `offset` is `t·d − before`. In the data
//! gradient, coordinate `r + q·s` is read by the windows `q + (r + before − t·d)/s` of those taps `t` for which that is
//! whole: one view for each remainder `r` that has taps, with `step = 1` and `result_step = s`.

use windowpane_geometry::{AXES, Axis, Convolution, Pass};

/// One tap of an axis of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tap {
    /// Its number in the filter.
    pub(crate) number: usize,
    /// The source coordinate that it reads at position 0.
    pub(crate) offset: i64,
}

/// One axis of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// The positions.
    pub(crate) count: usize,
    /// Source coordinates from one position to the next.
    pub(crate) step: usize,
    /// The coordinate of position 0 in the result.
    pub(crate) first: usize,
    /// Coordinates of the result from one position to the next.
    pub(crate) result_step: usize,
    /// The source's extent.
    pub(crate) extent: usize,
    /// The taps that are inside at some position, in ascending order of their offsets, so that neighbours in this list
    /// read neighbours in memory.
    pub(crate) taps: Vec<Tap>,
}

impl View {
    fn new(count: usize, step: usize, extent: usize, taps: impl Iterator<Item = Tap>) -> Self {
        let reach = ((count - 1) * step) as i64;
        let inside = |tap: &Tap| tap.offset < extent as i64 && tap.offset + reach >= 0;
        let mut taps: Vec<Tap> = taps.filter(inside).collect();
        taps.sort_unstable_by_key(|tap| tap.offset);
        Self { count, step, first: 0, result_step: 1, extent, taps }
    }

    /// The view of a forward pass.
    fn forward(axis: &Axis) -> Self {
        let taps =
            (0..axis.kernel()).map(|number| Tap { number, offset: axis.coordinate(0, number) });
        Self::new(axis.output(), axis.stride(), axis.input(), taps)
    }

    /// The views of a data gradient that have taps.
    fn data(axis: &Axis) -> Vec<Self> {
        let stride = axis.stride() as i64;
        // The first coordinate that reads tap `t`, and its window, which may be outside.
        let mut taps: Vec<(usize, Tap)> = (0..axis.kernel())
            .map(|number| {
                let read = axis.coordinate(0, number);
                let first = read.rem_euclid(stride);
                (first as usize, Tap { number, offset: (first - read) / stride })
            })
            .filter(|(first, _)| *first < axis.input())
            .collect();
        taps.sort_unstable_by_key(|(first, tap)| (*first, tap.offset));
        let phases = taps.chunk_by(|a, b| a.0 == b.0).map(|phase| {
            let first = phase[0].0;
            let count = (axis.input() - first).div_ceil(axis.stride());
            let view = Self::new(count, 1, axis.output(), phase.iter().map(|(_, tap)| *tap));
            Self { first, result_step: axis.stride(), ..view }
        });
        phases.filter(|view| !view.taps.is_empty()).collect()
    }

    /// Whether neighbouring taps read neighbouring coordinates.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.taps.windows(2).all(|pair| pair[1].offset == pair[0].offset + 1)
    }

    /// Whether positions are the coordinates of the result, in order.
    fn is_whole(&self) -> bool {
        self.result_step == 1
    }

    /// Whether it only renames coordinates: each position reads the coordinate of its number.
    fn is_identity(&self) -> bool {
        let one = matches!(self.taps[..], [Tap { offset: 0, .. }]);
        one && self.is_whole() && self.step == 1 && self.count == self.extent
    }

    /// The positions below this one whose tap of this offset is inside, and those from there on: `lo..hi`.
    pub(crate) fn inside(&self, offset: i64) -> core::ops::Range<usize> {
        let step = self.step as i64;
        let below = |x: i64| (x - offset + step - 1).div_euclid(step).max(0) as usize;
        let first = below(0).min(self.count);
        first..below(self.extent as i64).min(self.count).max(first)
    }
}

/// The axes of a view.
#[derive(Clone, Copy)]
pub(crate) struct Views<'a> {
    pub(crate) axes: [&'a View; AXES],
}

impl Views<'_> {
    /// The positions of one sample.
    pub(crate) fn plane(&self) -> usize {
        self.axes.iter().map(|view| view.count).product()
    }

    /// The number of taps.
    pub(crate) fn taps(&self) -> usize {
        self.axes.iter().map(|view| view.taps.len()).product()
    }

    /// Tap `i` of all, in row-major order.
    pub(crate) fn tap(&self, i: usize) -> [Tap; AXES] {
        let [d, h, w] = self.axes.map(|view| &view.taps);
        [d[i / w.len() / h.len()], h[i / w.len() % h.len()], w[i % w.len()]]
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.axes.iter().all(|view| view.is_whole())
    }

    pub(crate) fn is_identity(&self) -> bool {
        self.axes.iter().all(|view| view.is_identity())
    }
}

/// The views of each axis for a pass; the weight gradient reads as the forward pass does.
pub(crate) fn views(conv: &Convolution, pass: Pass) -> [Vec<View>; AXES] {
    conv.grid().axes().each_ref().map(|axis| match pass {
        Pass::Data => View::data(axis),
        _ => vec![View::forward(axis)],
    })
}

/// Every combination of the axes' views.
pub(crate) fn combinations(views: &[Vec<View>; AXES]) -> impl Iterator<Item = Views<'_>> {
    let [depth, height, width] = views;
    depth.iter().flat_map(move |d| {
        height.iter().flat_map(move |h| width.iter().map(move |w| Views { axes: [d, h, w] }))
    })
}

#[cfg(test)]
mod tests {
    use windowpane_geometry::{Extents, Window};

    use super::*;

    /// Every pair of a window and a tap that reads a coordinate is in exactly one place of the views.
    #[test]
    fn views_are_the_taps_of_the_axis() {
        for (input, kernel, stride, dilation, padding) in [
            (7, 3, 1, 1, (1, 1)),
            (8, 3, 2, 1, (1, 0)),
            (9, 4, 3, 2, (0, 5)),
            (5, 2, 4, 3, (2, 7)),
            (3, 1, 2, 1, (0, 0)),
            (4, 5, 7, 1, (9, 9)),
        ] {
            let window =
                Window::new([kernel]).stride([stride]).dilation([dilation]).padding([padding]);
            let grid = window.over(Extents::from([input])).unwrap();
            let axis = grid.axis(0);
            let mut expected = vec![];
            for o in 0..axis.output() {
                for t in axis.inside(o) {
                    expected.push((o, t, axis.coordinate(o, t) as usize));
                }
            }
            let read = |view: &View, of: fn(usize, usize, usize) -> (usize, usize, usize)| {
                let mut found = vec![];
                for tap in &view.taps {
                    let range = view.inside(tap.offset);
                    for q in 0..view.count {
                        let source = (q * view.step) as i64 + tap.offset;
                        assert_eq!(range.contains(&q), (0..view.extent as i64).contains(&source));
                        if range.contains(&q) {
                            let result = view.first + q * view.result_step;
                            found.push(of(result, tap.number, source as usize));
                        }
                    }
                }
                found
            };
            let mut forward = read(&View::forward(axis), |o, t, x| (o, t, x));
            forward.sort_unstable();
            assert_eq!(forward, expected);
            let data = View::data(axis);
            let mut data: Vec<_> =
                data.iter().flat_map(|view| read(view, |x, t, o| (o, t, x))).collect();
            data.sort_unstable();
            assert_eq!(data, expected);
        }
    }
}
