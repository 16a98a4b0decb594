//! The compile-time options of the kernel.

use windowpane_geometry::{Convolution, Layout};

use super::config::Config;
use crate::conv::common::{Gather, Run};

/// The compile-time options of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) along: Run,
    /// The distance in filter taps from one used tap along the width to the next.
    pub(super) tap_jump: u32,
    /// The number of lines of a unit, and whether later taps read earlier lines.
    pub(super) lines: u32,
    pub(super) up: bool,
    /// The number of vectors of channels whose weights are contiguous.
    pub(super) chunk_vectors: u32,
    /// How lanes run along the width, if they do.
    pub(super) across: Option<Across>,
    /// Whether units are threads of a processor.
    pub(super) contiguous: bool,
}

/// How lanes run along the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Across {
    pub(super) lanes: i32,
    /// The coordinate that the first row reads at its first tap.
    pub(super) start: i32,
}

impl Form {
    pub(super) fn new(
        conv: &Convolution,
        contiguous: bool,
        config: Config,
        gather: &Gather,
        chunk_vectors: usize,
    ) -> Self {
        let [_, height, width] = gather.axes;
        // Lines share pixels if the next line of results reads the next line of pixels.
        let shares = conv.grid().rank() > 1
            && height.step == 1
            && height.tap_step.abs() == 1
            && gather.terms(conv) > 0;
        let lanes = config.lanes as i32;
        let across = (conv.layout() == Layout::ChannelsFirst && lanes > 1)
            .then_some(Across { lanes, start: width.start as i32 });
        Self {
            along: Run::new(config.rows, &width),
            tap_jump: width.tap_jump as u32,
            lines: if shares && (!contiguous || across.is_some()) { config.lines } else { 1 },
            up: height.tap_step < 0,
            chunk_vectors: chunk_vectors as u32,
            across,
            contiguous,
        }
    }

    /// The number of units of a launch, for vectors of `lanes` channels or rows.
    pub(super) fn units(&self, conv: &Convolution, gather: &Gather, lanes: usize) -> usize {
        let [depth, height, width] = gather.axes;
        let channels = conv.input().channels();
        let (rows, vectors) = match conv.layout() {
            Layout::ChannelsLast => (width.rows, channels / lanes),
            Layout::ChannelsFirst => (width.rows / lanes, channels),
        };
        let lines = height.rows.div_ceil(self.lines as usize);
        let runs = rows.div_ceil(self.along.rows as usize);
        conv.input().batch() * depth.rows * lines * runs * vectors
    }

    /// How many vectors before its first row a unit's lines of pixels start.
    pub(super) fn lead(&self, across: Across) -> i32 {
        -(across.start + self.along.pixels().0).div_euclid(across.lanes)
    }

    /// The index, in the vectors of a line, of the element that lane `i` of row `r` reads at tap `t`.
    pub(super) fn element(&self, across: Across, r: u32, t: u32, i: usize) -> usize {
        let first = (self.lead(across) + r as i32) * across.lanes + across.start;
        (first + t as i32 * self.along.tap_step + i as i32) as usize
    }

    /// The number of vectors of a line.
    pub(super) fn vectors(&self, across: Across) -> u32 {
        let last = |t| self.element(across, self.along.rows - 1, t, across.lanes as usize - 1);
        let last = last(0).max(last(self.along.taps.max(1) - 1));
        (last / across.lanes as usize + 1) as u32
    }

    /// How many lines of pixels after the first one of the unit its line `r` starts to read.
    pub(super) fn ahead(&self, r: u32) -> u32 {
        if self.up { self.lines - 1 - r } else { r }
    }
}
