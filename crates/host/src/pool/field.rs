//! A pooling as `outer × depth × height × width × lanes`, for both layouts.

use windowpane_geometry::{AXES, Grid, Layout, Pooling, Strides};

/// With channels last the outer positions are the samples and the lanes are the channels; with channels first the outer
/// positions are samples and channels, and there is one lane.
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) grid: &'a Grid,
    pub(super) outer: usize,
    pub(super) lanes: usize,
    channels: usize,
    layout: Layout,
}

impl<'a> Field<'a> {
    pub(super) fn of(pooling: &'a Pooling) -> Self {
        let (grid, layout) = (pooling.grid(), pooling.layout());
        let (batch, channels) = (pooling.input().batch(), pooling.input().channels());
        let (outer, lanes) = match layout {
            Layout::ChannelsLast => (batch, channels),
            Layout::ChannelsFirst => (batch * channels, 1),
        };
        Self { grid, outer, lanes, channels, layout }
    }

    /// The place of the first lane of an output.
    pub(super) fn output_at(&self, outer: usize, [d, h, w]: [usize; AXES]) -> usize {
        let depth = self.grid.axes()[0].output();
        self.grid.output_index([outer * depth + d, h, w]) * self.lanes
    }

    /// The items of a row of outputs.
    pub(super) fn row(&self) -> usize {
        self.grid.axes()[AXES - 1].output() * self.lanes
    }

    /// The output a number of windows behind another one, in its row or in the next ones.
    pub(super) fn behind(&self, [d, h, w]: [usize; AXES], windows: usize) -> [usize; AXES] {
        let width = self.grid.axes()[AXES - 1].output();
        [d, h + (w + windows) / width, (w + windows) % width]
    }

    /// What (`outer`, `lane`) adds to an index within the plane.
    pub(super) fn index_base(&self, strides: &Strides, outer: usize, lane: usize) -> usize {
        let (n, c) = match self.layout {
            Layout::ChannelsLast => (outer, lane),
            Layout::ChannelsFirst => (outer / self.channels, outer % self.channels),
        };
        strides.offset(n, c, [0; AXES])
    }

    /// The positions that a window reads.
    pub(super) fn inside(&self, o: [usize; AXES]) -> impl Iterator<Item = [usize; AXES]> {
        let [depth, height, width] = self.grid.axes();
        // Inside taps have coordinates of at least 0.
        depth.inside(o[0]).flat_map(move |d| {
            height.inside(o[1]).flat_map(move |h| {
                width.inside(o[2]).map(move |w| {
                    let [d, h] = [depth.coordinate(o[0], d), height.coordinate(o[1], h)];
                    [d, h, width.coordinate(o[2], w)].map(|x| x as usize)
                })
            })
        })
    }
}
