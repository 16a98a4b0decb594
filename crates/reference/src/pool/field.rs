use std::borrow::Cow;
use std::ops::Range;

use windowpane_geometry::{AXES, Grid, Layout, Pooling, Strides};

use crate::parallel;

/// The least number of outputs per task.
const TASK: usize = 4096;

/// The largest number of taps of the last axis that are listed at once. Further taps are computed again for each row.
pub(super) const MOST_LISTED: usize = 4096;

/// A tap of the last axis, and the windows for which it is inside.
pub(super) type Tap = (usize, Range<usize>);

/// A pooling problem as `outer × depth × height × width × lanes`, for any layout.
///
/// With channels last, `outer` is the samples and the lanes are the channels; with channels first, `outer`
/// is samples and channels, with one lane. The same loops serve both and run in memory order.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a> {
    pub(crate) grid: &'a Grid,
    pub(crate) outer: usize,
    pub(crate) lanes: usize,
    channels: usize,
    layout: Layout,
}

impl<'a> Field<'a> {
    pub(crate) fn of(pooling: &'a Pooling) -> Self {
        let (grid, layout) = (pooling.grid(), pooling.layout());
        let (batch, channels) = (pooling.input().batch(), pooling.input().channels());
        let (outer, lanes) = match layout {
            Layout::ChannelsLast => (batch, channels),
            Layout::ChannelsFirst => (batch * channels, 1),
        };
        Self { grid, outer, lanes, channels, layout }
    }

    /// The offset that (`outer`, `lane`) adds to an index within the plane.
    pub(crate) fn index_base(&self, strides: &Strides, outer: usize, lane: usize) -> usize {
        let (n, c) = match self.layout {
            Layout::ChannelsLast => (outer, lane),
            Layout::ChannelsFirst => (outer / self.channels, outer % self.channels),
        };
        strides.offset(n, c, [0; AXES])
    }

    /// The number of elements in a row of outputs.
    pub(crate) fn row(&self) -> usize {
        self.grid.axes()[2].output() * self.lanes
    }

    /// The first output position of row `row`, and its outer position.
    pub(crate) fn row_position(&self, row: usize) -> (usize, [usize; AXES]) {
        let [depth, height, _] = self.grid.axes().map(|axis| axis.output());
        (row / height / depth, [row / height % depth, row % height, 0])
    }

    /// Calls `each` with every row of outputs and its number, on all cores.
    pub(crate) fn for_each_row<Y: Send>(
        &self,
        y: &mut [Y],
        each: impl Fn(usize, &mut [Y]) + Send + Sync,
    ) {
        parallel::chunks(y, self.row(), TASK.div_ceil(self.row()), each);
    }

    /// The first taps of the last axis, for [`for_each_tap`](Self::for_each_tap).
    pub(crate) fn width_taps(&self) -> Vec<Tap> {
        self.all_width_taps().take(MOST_LISTED).collect()
    }

    /// The taps of the last axis, each with a range of windows for which it is inside and whose starts are one stride
    /// apart. The taps of each window appear in order.
    fn all_width_taps(&self) -> impl Iterator<Item = Tap> + use<'a> {
        let width = &self.grid.axes()[2];
        // On an uneven axis windows have no common step, so each window is listed separately.
        let each = if width.is_uneven() { 0..width.output() } else { 0..0 };
        let uneven = each.flat_map(|o| width.inside(o).map(move |t| (t, o..o + 1)));
        // On other axes the inside taps start and end earlier in later windows.
        let last = width.inside(width.output() - 1).start;
        let taps = if width.is_uneven() { 0..0 } else { last..width.inside(0).end };
        let even = taps.map(|t| (t, width.windows_inside(t))).filter(|(_, o)| !o.is_empty());
        uneven.chain(even)
    }

    /// Calls `each` with the taps of a row of windows, row-major: for each tap, the range of windows for which
    /// it is inside.
    #[inline]
    pub(crate) fn for_each_tap(
        &self,
        row: usize,
        width_taps: &[Tap],
        mut each: impl FnMut(RowTap),
    ) {
        let (outer, o) = self.row_position(row);
        let [depth, height, width] = self.grid.axes();
        for d in depth.inside(o[0]).map(|t| depth.coordinate(o[0], t) as usize) {
            for h in height.inside(o[1]).map(|t| height.coordinate(o[1], t) as usize) {
                let input_row = (outer * depth.input() + d) * height.input() + h;
                let (mut taps, mut rest) = (Cow::Borrowed(width_taps), None);
                loop {
                    for (t, windows) in &*taps {
                        let w = width.coordinate(windows.start, *t) as usize;
                        each(RowTap {
                            outputs: windows.start * self.lanes..windows.end * self.lanes,
                            input: (input_row * width.input() + w) * self.lanes,
                            position: [d, h, w],
                        });
                    }
                    if taps.len() < MOST_LISTED {
                        break;
                    }
                    let rest = rest.get_or_insert_with(|| self.all_width_taps().skip(MOST_LISTED));
                    taps = rest.by_ref().take(MOST_LISTED).collect();
                }
            }
        }
    }

    /// Calls `each` with every output of a row that has the tap, and the input that it reads.
    #[inline]
    pub(crate) fn zip<Y, X: Copy>(
        &self,
        tap: &RowTap,
        y: &mut [Y],
        x: &[X],
        mut each: impl FnMut(&mut Y, X),
    ) {
        let (y, x) = (&mut y[tap.outputs.clone()], &x[tap.input..]);
        let stride = self.grid.axes()[2].stride();
        if stride == 1 {
            y.iter_mut().zip(x).for_each(|(y, &x)| each(y, x));
        } else if self.lanes == 1 {
            y.iter_mut().zip(x.iter().step_by(stride)).for_each(|(y, &x)| each(y, x));
        } else {
            let pixels = y.chunks_exact_mut(self.lanes).zip(x.chunks(stride * self.lanes));
            pixels.for_each(|(y, x)| y.iter_mut().zip(x).for_each(|(y, &x)| each(y, x)));
        }
    }
}

/// One tap of the windows of a row of outputs.
pub(crate) struct RowTap {
    /// The outputs of the row that have it.
    pub(crate) outputs: Range<usize>,
    /// The input that it reads for the first of them.
    pub(crate) input: usize,
    /// The coordinates of that input.
    pub(crate) position: [usize; AXES],
}

/// The lanes per task of a [`sweep`].
pub(super) const LANES: usize = 32;

/// Passes along one axis, from `outer × L × lanes` to `outer × outputs × lanes`, on all cores.
///
/// `pass` is given a block of lanes: the outer position, the first lane, and the outputs, one
/// slice for each position on the axis.
pub(crate) fn sweep<Y: Copy + Send + Sync>(
    [outer, outputs, lanes]: [usize; 3],
    empty: Y,
    pass: impl Fn(usize, usize, &mut [&mut [Y]]) + Send + Sync,
) -> Vec<Y> {
    let mut y = vec![empty; outer * outputs * lanes];
    let column = outputs * lanes;
    parallel::chunks(&mut y, column, TASK.div_ceil(column), |outer, y| {
        let mut blocks: Vec<Vec<&mut [Y]>> = Vec::new();
        blocks.resize_with(lanes.div_ceil(LANES), || Vec::with_capacity(outputs));
        for row in y.chunks_exact_mut(lanes) {
            for (block, part) in blocks.iter_mut().zip(row.chunks_mut(LANES)) {
                block.push(part);
            }
        }
        parallel::chunks(&mut blocks, 1, 1, |i, block| pass(outer, i * LANES, &mut block[0]));
    });
    y
}
