//! Repacking of pixels with few channels, as lines or in planes, and of pixels that are no whole chunks.

use windowpane_geometry::{Convolution, Shape};

use super::super::im2col::Im2colWalk;
use super::super::tile::{CHUNK_BYTES, LINE};
use crate::conv::common::{Gather, Sweep};
use crate::conv::problem::Pass;

/// Pixels with few channels as lines: one line holds all that a window reads of a row of pixels. Where windows have a
/// stride along the height, a pixel holds `rows` rows of the image.
///
/// ```text
/// pixel[h, w] = (x[h·rows + 0, w, 0..C], x[h·rows + 1, w, 0..C], .., 0)    padded to whole chunks
/// ```
///
/// A line starts where its window does, so that neighbouring lines overlap in memory, each one stride of the windows
/// after the other; the copy engine loads each line separately. Where a pixel is a single chunk there is a better
/// layout ([`Planar`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RepackedImage {
    /// The number of image rows in a pixel, and the number of its elements.
    pub(crate) rows: usize,
    pub(crate) pixel: usize,
    /// The number of pixels of a line, and the distance from one line to the next.
    pub(crate) reach: usize,
    pub(crate) step: usize,
    /// The number of lines of a row that have results, and the number of such rows.
    pub(crate) windows: usize,
    pub(crate) window_rows: usize,
    /// The number of rows of pixels, and of pixels per row, in each plane if planar.
    pub(crate) height: usize,
    pub(crate) width: usize,
    /// The number of rows of pixels that a window reads, and the distance between them.
    pub(crate) taps: usize,
    pub(crate) tap_step: usize,
    pub(crate) planar: Option<Planar>,
    /// Whether pixels are only padded: then there are no lines, and taps read pixels as in the original image.
    pub(crate) pads: bool,
}

/// Pixels of one chunk each, stored in two planes. With `step` the stride of the windows, plane `p` starts at pixel `p`
/// and has every `step`-th pixel from there. Tap `2j + p` of a window is in plane `p`, and neighbouring windows read
/// neighbouring pixels of the plane:
///
/// ```text
/// plane[p, i] = pixel[i·step + p]        window o reads pixel o·step + 2j + p at plane[p, o + j·2/step]
/// ```
///
/// Matrix units read their rows as one chunk of each plane, starting at any pixel. So each pixel of a plane is loaded
/// once for all windows and all taps along the width. Where windows have a stride along the height that does not fit in
/// a pixel, every `row_sets`-th row of pixels is in the same two planes, and the rows between have planes of their own. A
/// plane continues from row to row and from sample to sample; results that read across the border of two rows or
/// samples are not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planar {
    /// The number of pixels of a plane, including those that are loaded past the last.
    pub(crate) pixels: usize,
    /// The distance in pixels from one pair of taps to the next.
    pub(crate) shift: usize,
    /// The number of sets of rows: every `row_sets`-th row of pixels is in the same plane.
    pub(crate) row_sets: usize,
}

/// The number of planes of a set of rows.
pub(crate) const PLANES: usize = 2;

/// The number of pixels that are one pixel to the copy engine, and that a tile's rows read past its last pixel.
pub(crate) const PLANE_LINE: usize = 16;

/// Padded pixels may need an eighth more steps than lines: their sums need no check, and may be split.
const MORE_STEPS: usize = 8;

/// The number of rows of the largest tile.
const MOST_ROWS: usize = 256;

impl RepackedImage {
    /// The lines with the fewest steps, if the copy engine cannot read the original pixels, or in the forward pass if
    /// these would need at least twice as many steps. For a data gradient, padded pixels; for a forward pass too, if they
    /// are longer than a line of memory, need hardly more steps, and the copy engine can walk over them.
    pub(crate) fn new(conv: &Convolution, pass: Pass, size: usize) -> Option<Self> {
        if conv.groups() > 1 {
            return None;
        }
        let (line, chunk) = (LINE as usize / size, CHUNK_BYTES / size);
        let [depth, height, width] = conv.grid().axes();
        if pass == Pass::Data {
            let output = conv.output();
            return (!output.channels().is_multiple_of(chunk)).then(|| Self::padded(conv, output));
        }
        let forward = pass == Pass::Forward;
        let channels = conv.input().channels();
        let over = |rows: usize| {
            let taps = height.kernel().div_ceil(rows);
            let reach = (width.kernel() - 1) * width.dilation() + 1;
            let repacked = Self {
                rows,
                pixel: (rows * channels).next_multiple_of(chunk),
                reach,
                step: width.stride(),
                windows: width.output(),
                window_rows: height.output(),
                height: if rows > 1 { height.output() + taps - 1 } else { height.input() },
                width: width.output().saturating_sub(1) * width.stride() + reach,
                taps,
                tap_step: height.dilation(),
                planar: None,
                pads: false,
            };
            let is_planar = forward
                && repacked.pixel == chunk
                && (1..=PLANES).contains(&repacked.step)
                && height.stride().is_multiple_of(rows)
                && reach * chunk <= line
                && conv.grid().rank() < 3;
            match is_planar {
                true => repacked.planar(conv.input().batch(), height.stride() / rows),
                false => repacked,
            }
        };
        let steps = |repacked: &Self| repacked.taps * repacked.line(size).div_ceil(line);
        // In a weight gradient, the taps of a pixel's rows must follow those of its other rows in memory.
        let stepped = height.kernel() > 1 && height.dilation() == 1;
        let stepped = (stepped && (forward || depth.kernel() == 1)).then(|| height.stride());
        let repacked = [Some(1), stepped].into_iter().flatten().map(over).min_by_key(steps)?;
        let plain = height.kernel() * width.kernel() * channels.div_ceil(line);
        let aligned = (channels * size).is_multiple_of(CHUNK_BYTES);
        let pads = || {
            let rank = conv.grid().rank();
            let mut walks = Gather::all(conv, pass).map(Im2colWalk::new);
            forward
                && !aligned
                && size == 2
                && channels > line
                && plain <= steps(&repacked) + steps(&repacked) / MORE_STEPS
                && walks.all(|walk| walk.fits(rank))
        };
        if pads() {
            return Some(Self::padded(conv, conv.input()));
        }
        (!aligned || (forward && 2 * steps(&repacked) <= plain)).then_some(repacked)
    }

    /// An image with pixels of whole chunks of 16 bits.
    fn padded(conv: &Convolution, image: Shape) -> Self {
        let [_, height, width] = image.space().three(1);
        let [_, taps, _] = conv.filter().kernel().three(1);
        Self {
            rows: 1,
            pixel: image.channels().next_multiple_of(CHUNK_BYTES / 2),
            reach: 1,
            step: 1,
            windows: width,
            window_rows: height,
            height,
            width,
            taps,
            tap_step: 1,
            planar: None,
            pads: true,
        }
    }

    /// The same pixels in planes.
    fn planar(self, batch: usize, row_sets: usize) -> Self {
        // Rows outside the image are stored too, because the copy engine does not see the rows of a plane.
        let past = (self.taps - 1) * self.tap_step / row_sets;
        let height = self.window_rows + past;
        let width = self.windows + (self.reach - 1) / self.step;
        let past = past * width + MOST_ROWS + 2 * PLANE_LINE;
        let pixels = (batch * height * width + past).next_multiple_of(PLANE_LINE);
        let planar = Some(Planar { pixels, shift: PLANES / self.step, row_sets });
        Self { height, width, planar, ..self }
    }

    /// Whether a line is one pixel, with zeros behind its channels.
    pub(crate) fn is_pixel(&self) -> bool {
        self.rows == 1 && self.reach == 1 && self.planar.is_none()
    }

    /// The elements of a line.
    pub(crate) fn line(&self, size: usize) -> usize {
        match self.planar {
            Some(_) => LINE as usize / size,
            None => self.reach * self.pixel,
        }
    }

    /// The product with lines in the place of pixels.
    pub(crate) fn over(&self, mut gather: Gather) -> Gather {
        if self.pads {
            return gather;
        }
        let [_, height, width] = &mut gather.axes;
        match self.planar {
            Some(_) => {
                let (taps, tap_step) = (self.taps, self.tap_step as i64);
                *height = Sweep { taps, tap_step, ..side_by_side(self.height, self.height) };
                *width = side_by_side(self.width, self.width);
            }
            None => {
                if self.rows > 1 {
                    *height = Sweep { taps: self.taps, ..side_by_side(height.rows, self.height) };
                }
                *width = side_by_side(width.rows, self.windows);
            }
        }
        gather
    }
}

/// An axis whose rows read consecutive coordinates.
fn side_by_side(rows: usize, extent: usize) -> Sweep {
    Sweep {
        rows,
        start: 0,
        step: 1,
        tap_step: 1,
        extent,
        taps: 1,
        tap_first: 0,
        tap_jump: 1,
        out_first: 0,
        out_step: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windowpane_geometry::{Extents, Filter, FilterLayout, Layout, Shape, Window};

    fn conv(
        channels: usize,
        [h, w]: [usize; 2],
        kernel: [usize; 2],
        window: Window,
    ) -> Convolution {
        let input = Shape::new(2, channels, Extents::from([h, w])).unwrap();
        let filter = Filter::new(8, channels, Extents::from(kernel)).unwrap();
        let layouts = (Layout::ChannelsLast, FilterLayout::Fhwc);
        Convolution::new(input, filter, &window, 1, layouts.0, layouts.1).unwrap()
    }

    /// The coordinates in the image of the pixel that a window reads at a tap, computed through the repacked layout.
    fn found(
        conv: &Convolution,
        repacked: &RepackedImage,
        [oh, ow]: [usize; 2],
        [th, tw]: [usize; 2],
    ) -> [i64; 2] {
        let [_, height, width] = conv.grid().axes();
        let over = tw * width.dilation();
        let (tap, further) = (th / repacked.rows * repacked.tap_step, th % repacked.rows);
        // The address that the kernel computes in the repacked layout ..
        let (row, column, row_set, parity) = match repacked.planar {
            Some(planar) => {
                let column = ow + over / PLANES * planar.shift;
                (oh + tap / planar.row_sets, column, tap % planar.row_sets, over % PLANES)
            }
            None if repacked.rows > 1 => (oh + tap, ow * repacked.step + over, 0, 0),
            None => {
                let row = height.start(oh) + (th * height.dilation()) as i64;
                return [row, width.start(0) + (ow * repacked.step + over) as i64];
            }
        };
        // .. and the image pixel that was stored there.
        let (row_sets, step) =
            repacked.planar.map_or((1, 1), |planar| (planar.row_sets, repacked.step));
        assert!(row < repacked.height, "{repacked:?}");
        let h = (row * row_sets + row_set) * repacked.rows + further;
        [height.start(0) + h as i64, width.start(0) + (column * step + parity) as i64]
    }

    /// Lines hold the pixels that windows read, in every layout.
    #[test]
    fn windows_find_their_pixels_in_lines() {
        let mut kinds = [0; 3];
        for (channels, kernel, stride, dilation) in [
            (3, [7, 7], [2, 2], [1, 1]),
            (3, [3, 3], [1, 1], [1, 1]),
            (4, [3, 5], [3, 1], [1, 2]),
            (8, [4, 8], [2, 2], [1, 1]),
            (1, [11, 3], [4, 2], [2, 3]),
            (5, [5, 5], [1, 3], [1, 1]),
            (16, [3, 3], [2, 2], [1, 1]),
            (13, [2, 3], [2, 1], [3, 2]),
        ] {
            for size in [2, 4] {
                let window = Window::new(kernel).stride(stride).dilation(dilation);
                let conv = conv(channels, [31, 29], kernel, window.padding([2, 3]));
                let Some(repacked) = RepackedImage::new(&conv, Pass::Forward, size) else {
                    assert_eq!((channels, size), (16, 4), "lines of these save too few steps");
                    continue;
                };
                kinds[repacked.planar.map_or(0, |planar| planar.row_sets.min(2))] += 1;
                let [_, height, width] = conv.grid().axes();
                for (oh, ow) in [(0, 0), (1, 2), (height.output() - 1, width.output() - 1)] {
                    for (th, tw) in (0..kernel[0]).flat_map(|t| (0..kernel[1]).map(move |u| (t, u)))
                    {
                        let expected = [
                            height.start(oh) + (th * height.dilation()) as i64,
                            width.start(ow) + (tw * width.dilation()) as i64,
                        ];
                        let found = found(&conv, &repacked, [oh, ow], [th, tw]);
                        assert_eq!(found, expected, "{conv:?} {repacked:?} {size}: tap {th}, {tw}");
                    }
                }
            }
        }
        assert!(
            kinds.iter().all(|kind| *kind > 0),
            "lines, and one or more sets of rows in planes: {kinds:?}"
        );
    }

    /// Pixels that the copy engine can read, and that fill most of a line, are not repacked.
    #[test]
    fn only_few_channels_become_lines() {
        let repacked = |channels, kernel: [usize; 2], pass, size| {
            RepackedImage::new(&conv(channels, [9, 9], kernel, Window::new(kernel)), pass, size)
        };
        assert_eq!(repacked(64, [3, 3], Pass::Forward, 2), None);
        assert_eq!(repacked(32, [3, 3], Pass::Forward, 2), None);
        assert_eq!(repacked(8, [1, 1], Pass::Forward, 2), None);
        assert!(repacked(3, [3, 3], Pass::Data, 2).is_none(), "8 filters are a whole chunk");
        assert_eq!(repacked(16, [3, 3], Pass::Weight, 2), None);
        assert!(
            repacked(3, [3, 3], Pass::Weight, 2).is_some_and(|repacked| repacked.planar.is_none())
        );
        assert!(
            repacked(16, [3, 3], Pass::Forward, 2)
                .is_some_and(|repacked| repacked.planar.is_none())
        );
        assert!(repacked(65, [1, 1], Pass::Forward, 2).is_some(), "130 bytes are no whole chunks");
    }

    /// A run of a tile's rows, and all that they read at the last tap, are inside their plane.
    #[test]
    fn planes_hold_all_that_is_loaded() {
        for (size, kernel) in [(2, [7, 7]), (4, [7, 7]), (2, [1, 8]), (4, [9, 5])] {
            let window = Window::new(kernel).stride([2, 2]).padding([3, 3]);
            let conv = conv(3, [20, 20], kernel, window);
            let repacked = RepackedImage::new(&conv, Pass::Forward, size).expect("few channels");
            let planar = repacked.planar.expect("pixels of a chunk");
            let rows = conv.input().batch() * repacked.height * repacked.width;
            let down = (repacked.taps - 1) * repacked.tap_step / planar.row_sets;
            let last = (rows - 1) / MOST_ROWS * MOST_ROWS + down * repacked.width;
            assert!(last + MOST_ROWS + PLANE_LINE <= planar.pixels - PLANE_LINE, "{repacked:?}");
        }
    }
}
