//! The part of a source that a tile of positions reads, with the zeros of the padding.
//!
//! Lanes of vectors are channels if those are last, and positions of a line otherwise. In the second case coordinates
//! whose remainder by the step is the same are kept together, so that neighbouring positions read neighbours.

use windowpane_geometry::{Layout, Strides};
use windowpane_reference::Scalar;

use crate::columns::copy;
use crate::element::Element;
use crate::view::Views;

/// The most elements of a patch, and the number that tiles are cut for.
const MOST: usize = 1 << 17;
const GOOD: usize = 1 << 15;
/// The most positions of a tile on the last axis.
const WIDE: usize = 256;

/// The tiles of a view, and how the patch of a tile is laid out.
#[derive(Clone, Debug)]
pub(crate) struct Patches {
    layout: Layout,
    /// The positions of a tile on each axis, and those of all.
    pub(crate) tile: [usize; 3],
    counts: [usize; 3],
    /// Source coordinates from one position to the next.
    steps: [usize; 3],
    /// The first coordinate that position 0 reads.
    first: [i64; 3],
    /// The coordinates that the taps of one position span, without the first.
    reach: [usize; 3],
    extents: [usize; 3],
    /// The channels of a patch.
    pub(crate) channels: usize,
    /// Elements between coordinates with other remainders on the last axis, between lines, and between planes.
    phase: usize,
    line: usize,
    plane: usize,
    /// Where each tap reads at position 0.
    pub(crate) taps: Vec<usize>,
}

impl Patches {
    /// `None` if the patch of the smallest tile would be too large, as by a wide dilation.
    pub(crate) fn new(views: &Views<'_>, layout: Layout, channels: usize) -> Option<Self> {
        let counts = views.axes.map(|view| view.count);
        let steps = views.axes.map(|view| view.step);
        let mut reach = [0; 3];
        let mut first = [0; 3];
        for (axis, view) in views.axes.iter().enumerate() {
            let (low, high) = (view.taps.first()?.offset, view.taps.last()?.offset);
            (first[axis], reach[axis]) = (low, (high - low) as usize);
        }
        let extents = views.axes.map(|view| view.extent);
        let mut patches = Self {
            layout,
            tile: [1, 1, counts[2].min(WIDE)],
            counts,
            steps,
            first,
            reach,
            extents,
            channels,
            phase: 0,
            line: 0,
            plane: 0,
            taps: vec![],
        };
        while patches.elements() > GOOD && patches.tile[2] > 16 {
            patches.tile[2] = patches.tile[2].div_ceil(2);
        }
        if patches.elements() > MOST {
            return None;
        }
        // As many lines as the size allows, in tiles as even as possible.
        let fits = |lines: &usize| {
            let patches = Self { tile: [1, *lines, patches.tile[2]], ..patches.clone() };
            patches.elements() <= GOOD
        };
        let lines = (1..=counts[1].min(64)).rev().find(fits).unwrap_or(1);
        patches.tile[1] = counts[1].div_ceil(counts[1].div_ceil(lines));
        let [_, height, width] = patches.spans();
        (patches.phase, patches.line) = match layout {
            Layout::ChannelsLast => (0, width * channels),
            Layout::ChannelsFirst => {
                let phase = width.div_ceil(steps[2]);
                (phase, phase * steps[2])
            }
        };
        patches.plane = height * patches.line;
        let taps = (0..views.taps()).map(|i| {
            let tap = views.tap(i);
            let at = |axis: usize| (tap[axis].offset - first[axis]) as usize;
            at(0) * patches.plane + at(1) * patches.line + patches.along(at(2))
        });
        patches.taps = taps.collect();
        Some(patches)
    }

    /// The coordinates of a tile's patch on each axis.
    fn spans(&self) -> [usize; 3] {
        core::array::from_fn(|i| (self.tile[i] - 1) * self.steps[i] + self.reach[i] + 1)
    }

    /// The elements of a patch.
    pub(crate) fn elements(&self) -> usize {
        let [depth, height, width] = self.spans();
        // In phases, the last coordinates need not exist.
        let width = match self.layout {
            Layout::ChannelsLast => width.saturating_mul(self.channels),
            Layout::ChannelsFirst => width.next_multiple_of(self.steps[2]),
        };
        depth.saturating_mul(height).saturating_mul(width)
    }

    /// Whether the lanes of vectors are channels, and not positions.
    pub(crate) fn have_channels(&self) -> bool {
        self.layout == Layout::ChannelsLast
    }

    /// Where a coordinate is in its line.
    fn along(&self, x: usize) -> usize {
        match self.layout {
            Layout::ChannelsLast => x * self.channels,
            Layout::ChannelsFirst => x % self.steps[2] * self.phase + x / self.steps[2],
        }
    }

    /// The elements between neighbouring positions on an axis.
    pub(crate) fn step(&self, axis: usize) -> usize {
        match (axis, self.layout) {
            (0, _) => self.steps[0] * self.plane,
            (1, _) => self.steps[1] * self.line,
            (_, Layout::ChannelsLast) => self.steps[2] * self.channels,
            (_, Layout::ChannelsFirst) => 1,
        }
    }

    /// The number of tiles of a sample.
    pub(crate) fn tiles(&self) -> usize {
        let [depth, height, width] = self.grid();
        depth * height * width
    }

    fn grid(&self) -> [usize; 3] {
        core::array::from_fn(|i| self.counts[i].div_ceil(self.tile[i]))
    }

    /// The first position of a tile, and its extents.
    pub(crate) fn tile(&self, i: usize) -> ([usize; 3], [usize; 3]) {
        let [_, height, width] = self.grid();
        let place = [i / width / height, i / width % height, i % width];
        let first: [usize; 3] = core::array::from_fn(|i| place[i] * self.tile[i]);
        (first, core::array::from_fn(|i| self.tile[i].min(self.counts[i] - first[i])))
    }

    /// Copies the patch of a tile: `channels` channels from `channel` on.
    pub(crate) fn fill<T: Element>(
        &self,
        source: &[T],
        strides: &Strides,
        (sample, channel, channels): (usize, usize, usize),
        (first, extents): ([usize; 3], [usize; 3]),
        patch: &mut [T::Sum],
    ) {
        let low: [i64; 3] =
            core::array::from_fn(|i| (first[i] * self.steps[i]) as i64 + self.first[i]);
        let span: [usize; 3] =
            core::array::from_fn(|i| (extents[i] - 1) * self.steps[i] + self.reach[i] + 1);
        let inside = |axis: usize, x: i64| (0..self.extents[axis] as i64).contains(&x);
        for d in 0..span[0] {
            for h in 0..span[1] {
                let line = &mut patch[d * self.plane + h * self.line..][..self.line];
                let (z, y) = (low[0] + d as i64, low[1] + h as i64);
                if !inside(0, z) || !inside(1, y) {
                    line.fill(T::Sum::ZERO);
                    continue;
                }
                let start = strides.offset(sample, channel, [z as usize, y as usize, 0]);
                let source = &source[start..];
                match self.layout {
                    Layout::ChannelsLast => {
                        let pixels = line.chunks_mut(self.channels).take(span[2]);
                        for (w, pixel) in pixels.enumerate() {
                            let x = low[2] + w as i64;
                            if inside(2, x) {
                                let from = &source[x as usize * strides.space[2]..][..channels];
                                T::widen_all(from, &mut pixel[..channels]);
                                pixel[channels..].fill(T::Sum::ZERO);
                            } else {
                                pixel.fill(T::Sum::ZERO);
                            }
                        }
                    }
                    Layout::ChannelsFirst => {
                        for (w, phase) in line.chunks_mut(self.phase).enumerate() {
                            self.fill_phase(source, low[2] + w as i64, phase);
                        }
                    }
                }
            }
        }
    }

    /// Copies every `step`-th element of a line, from coordinate `x` on.
    fn fill_phase<T: Element>(&self, line: &[T], x: i64, phase: &mut [T::Sum]) {
        let step = self.steps[2] as i64;
        let below = |end: i64| ((end - x + step - 1).div_euclid(step)).clamp(0, phase.len() as i64);
        let (low, high) = (below(0) as usize, below(self.extents[2] as i64) as usize);
        if low < high {
            let from = &line[(x + low as i64 * step) as usize..];
            copy::<T>(from, self.steps[2], &mut phase[low..high]);
        }
        phase[..low].fill(T::Sum::ZERO);
        phase[high.max(low)..].fill(T::Sum::ZERO);
    }
}
