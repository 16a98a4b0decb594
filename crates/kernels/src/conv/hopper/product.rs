//! What the kernel multiplies: the rows, columns and terms of a pass, and how its factors lie.

use windowpane_geometry::{AXES, Convolution, DType, FilterLayout, LIMIT, Layout, Precision, Tile};

use super::super::gather::{self, Gather, Sweep, WeightSteps, weight_steps};
use super::super::plan::{Pass, Request, windows};
use super::kernel::LINE;
use super::plan::is_narrow;

/// The copy engine takes addresses and steps that are multiples of so many bytes.
pub(super) const CHUNK_BYTES: usize = 16;

/// The fewest terms of a sum whose factors may be split.
///
/// Two parts leave out of a product at most 6 units of roundoff, and a step of 32 terms adds up with an
/// error of at most 26 of its terms' magnitudes, for the matrix units cut sums off where they align
/// them; from there on sums are added in f32. So the error stays under the 64 and more that SEMANTICS
/// grants, whatever the factors.
const LEAST_TERMS: usize = 64;

/// A pass, as the kernel multiplies it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) conv: Convolution,
    pub(super) pass: Pass,
    /// The bytes of a factor.
    pub(super) size: usize,
    /// What each factor is the sum of: itself, or two tf32 of which an f32 is made.
    pub(super) parts: usize,
    /// How pixels of few channels are made lines.
    pub(super) fold: Option<Fold>,
    /// How the other operand lies, and whether it has to be laid so.
    pub(super) flat: Flat,
    pub(super) packed: bool,
}

impl Product {
    /// None where the copy engine cannot read the operands, and none is laid anew so that it can.
    pub(super) fn new(conv: &Convolution, request: Request) -> Option<Self> {
        let Request { pass, dtype, precision } = request;
        let size = dtype.size();
        let parts = match (dtype, precision) {
            (DType::F16 | DType::BF16, Precision::Strict) | (DType::F32, Precision::Tf32) => 1,
            (DType::F32, Precision::Strict) => 2,
            _ => return None,
        };
        let aligned = |elements: usize| (elements * size).is_multiple_of(CHUNK_BYTES);
        let fold = Fold::new(conv, pass, size);
        // Factors of 32 bits are read along the terms alone.
        let readable = |flat: &Flat| aligned(flat.dimensions[2]) && (size == 2 || !flat.across);
        let flat =
            Flat::new(conv, pass).filter(|flat| parts == 1 && fold.is_none() && readable(flat));
        let product = Self {
            conv: *conv,
            pass,
            size,
            parts,
            fold,
            flat: flat.unwrap_or_else(|| Flat::packed(conv, pass, fold, size)),
            packed: flat.is_none(),
        };
        let image_channels = match pass {
            Pass::Data => conv.output().channels(),
            _ => conv.input().channels(),
        };
        // A slice of channels does not run into the next group's.
        let whole = conv.groups() == 1
            || pass == Pass::Filter
            || product.inner().is_multiple_of(product.line());
        let terms = conv.filter().taps() * gather::inner(conv, pass);
        let can = pass != Pass::Bias
            && conv.layout() == Layout::ChannelsLast
            && (fold.is_some() || aligned(image_channels))
            && whole
            && (pass != Pass::Filter || !product.packed)
            && (parts == 1 || terms >= LEAST_TERMS)
            && product.image_elements().max(product.flat_elements()) <= LIMIT
            && (product.comb().is_some()
                || product.gathers().all(|gather| fits(&gather, conv.grid().rank())));
        can.then_some(product)
    }

    /// The products of matrices that the pass is made of, as the copy engine walks them for a tile.
    pub(super) fn walks(&self, tile: &Tile) -> impl Iterator<Item = Walk> + use<> {
        let rank = self.conv.grid().rank();
        let fold = self.fold;
        let shares = self.pass != Pass::Filter && !self.is_checked();
        let narrow = is_narrow(tile);
        self.gathers().map(move |gather| {
            let [_, height, width] = gather.axes;
            let (plane_rows, line_rows) = match fold {
                Some(fold) => (fold.window_rows, fold.windows),
                None => (height.rows, width.rows),
            };
            let alone = Walk { line_rows, plane_rows, gather, reach: 0 };
            let shared = Walk::shared(gather).filter(|walk| fits(&walk.gather, rank));
            shared.filter(|walk| shares && (narrow || walk.has_few_zeros())).unwrap_or(alone)
        })
    }

    /// The same, whatever the tile.
    fn gathers(&self) -> impl Iterator<Item = Gather> + use<> {
        let fold = self.fold;
        Gather::all(&self.conv, self.pass)
            .map(move |gather| fold.map_or(gather, |fold| fold.over(gather)))
    }

    /// The elements of a line in shared memory.
    pub(super) fn line(&self) -> usize {
        LINE as usize / self.size
    }

    /// The terms of a tap, or the columns of one in a gradient of the filters, and the lines of those.
    pub(super) fn inner(&self) -> usize {
        self.fold.map_or_else(|| gather::inner(&self.conv, self.pass), |fold| fold.line(self.size))
    }

    pub(super) fn slices(&self) -> usize {
        self.inner().div_ceil(self.line())
    }

    /// The columns of a group, rows of a gradient of the filters.
    pub(super) fn columns(&self) -> usize {
        gather::columns(&self.conv, self.pass)
    }

    /// The axes of an image's map.
    pub(super) fn rank(&self) -> usize {
        self.conv.grid().rank().max(2)
    }

    pub(super) fn comb(&self) -> Option<Comb> {
        self.fold.and_then(|fold| fold.comb)
    }

    /// The taps of the filters on each axis, as they lie.
    pub(super) fn kernel(&self) -> [usize; AXES] {
        let kernel = self.conv.filter().kernel().three(1);
        self.fold.map_or(kernel, |fold| [kernel[0], fold.taps, 1])
    }

    /// The number of a tap among all of the filters', as steps of weights.
    pub(super) fn numbers(&self) -> WeightSteps {
        let [_, height, width] = self.kernel();
        WeightSteps { inner: 0, column: 0, group: 0, kernel: [height * width, width, 1] }
    }

    /// Whether the image is laid anew. Results may then come out wrong where factors are not finite, or
    /// too small to be split: they are found by their sums, which are no numbers, and computed again.
    pub(super) fn is_checked(&self) -> bool {
        self.parts > 1 || self.fold.is_some()
    }

    /// The sizes of the image, outermost first and the parts of factors before all, and the steps in
    /// memory between them.
    pub(super) fn image(&self) -> (Vec<usize>, Vec<usize>) {
        let shape = match self.pass {
            Pass::Data => self.conv.output(),
            _ => self.conv.input(),
        };
        let [depth, height, width] = shape.space().three(1);
        let batch = shape.batch() * self.parts;
        let (space, channels, row, step) = match self.fold {
            None => ([height, width], shape.channels(), width * shape.channels(), shape.channels()),
            Some(Fold { comb: Some(comb), pixel, .. }) => {
                // A run of pixels begins at any of them: at the `h`-th of the `w`-th line of pixels.
                let line = COMB_LINE * pixel;
                // The last line is there for runs that begin within the one before.
                let lines = comb.pixels / COMB_LINE - 1;
                return (
                    vec![PLANES * comb.deals * self.parts, COMB_LINE, lines, line],
                    vec![comb.pixels * pixel, pixel, line, 1],
                );
            }
            Some(fold) => {
                let space = [fold.height, fold.windows];
                (space, fold.line(self.size), fold.width * fold.pixel, fold.step * fold.pixel)
            }
        };
        let steps = [depth * space[0] * row, space[0] * row, row, step, 1];
        let sizes = [batch, depth, space[0], space[1], channels];
        let axes = |all: [usize; 5]| [&all[..1], &all[4 - self.rank()..]].concat();
        (axes(sizes), axes(steps))
    }

    /// The elements of the image as it is read.
    pub(super) fn image_elements(&self) -> usize {
        let (sizes, steps) = self.image();
        sizes[0] * steps[0]
    }

    /// The bytes that the rows of a stage take, or those of a run, without their parts.
    pub(super) fn rows_bytes(&self, walk: &Walk, tile: &Tile) -> usize {
        match self.comb() {
            Some(_) => PLANES * (tile.block_m as usize + COMB_LINE) * CHUNK_BYTES,
            None => (tile.block_m as usize + walk.reach).next_multiple_of(8) * LINE as usize,
        }
    }

    /// The elements of the other operand as it is read.
    pub(super) fn flat_elements(&self) -> usize {
        self.parts * self.flat.dimensions.iter().product::<usize>()
    }

    /// The bytes that are laid anew, and the flags of what is checked.
    pub(super) fn workspace(&self, tile: &Tile) -> usize {
        let image = if self.is_checked() { self.image_elements() } else { 0 };
        let flat = if self.packed { self.flat_elements() } else { 0 };
        let flags = |walk: Walk| self.flags(&walk, tile);
        let flags = self.walks(tile).map(flags).max().unwrap_or(0);
        (image + flat) * self.size + flags * size_of::<u32>()
    }

    /// The bands of rows that a warp checks, by the blocks of columns.
    pub(super) fn flags(&self, walk: &Walk, tile: &Tile) -> usize {
        match self.is_checked() {
            true => {
                let [tiles_m, tiles_n] = self.tiles(walk, tile);
                tiles_m * bands(tile) * tiles_n * self.conv.groups()
            }
            false => 0,
        }
    }

    /// The tiles along the rows and along the columns.
    pub(super) fn tiles(&self, walk: &Walk, tile: &Tile) -> [usize; 2] {
        let taps = walk.gather.axes.iter().map(|axis| axis.taps).product::<usize>();
        let (rows, columns) = match self.pass {
            Pass::Filter => (self.columns(), taps * self.slices() * self.line()),
            _ => (walk.gather.rows(&self.conv), self.columns()),
        };
        [rows.div_ceil(tile.block_m as usize), columns.div_ceil(tile.block_n as usize)]
    }

    /// The steps of each sum, a line of terms each.
    pub(super) fn steps(&self, walk: &Walk) -> usize {
        let taps = walk.gather.axes.iter().map(|axis| axis.taps).product::<usize>();
        match self.pass {
            Pass::Filter => windows(&self.conv).div_ceil(self.line()),
            _ => taps * self.slices(),
        }
    }

    /// The weights as they were given.
    pub(super) fn weights(&self) -> WeightSteps {
        weight_steps(&self.conv, self.pass)
    }
}

/// The rows of a tile that one warp has at a time.
pub(super) const BAND: u32 = 16;

/// The bands of a tile's rows.
pub(super) fn bands(tile: &Tile) -> usize {
    (tile.block_m / BAND) as usize
}

/// Pixels of few channels as lines: all that a window reads of a row of pixels is one line. Where windows
/// step over rows, so many rows lie side by side in a pixel.
///
/// ```text
/// pixel[h, w] = (x[h·rows + 0, w, 0..C], x[h·rows + 1, w, 0..C], .., 0)    to whole chunks
/// ```
///
/// A line begins where the window does, so that neighbouring lines overlap in memory, each the step of the
/// windows further on; the copy engine brings each for itself. Where a pixel is one chunk there is a better
/// way ([`Comb`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fold {
    /// The rows of a pixel, and its elements.
    pub(super) rows: usize,
    pub(super) pixel: usize,
    /// The pixels of a line, and from one line to the next.
    pub(super) reach: usize,
    pub(super) step: usize,
    /// The lines of a row that have results, and the rows.
    pub(super) windows: usize,
    pub(super) window_rows: usize,
    /// The rows of pixels, and the pixels of one, in each plane of a comb.
    pub(super) height: usize,
    pub(super) width: usize,
    /// The rows of pixels that a window reads, and from one to the next.
    pub(super) taps: usize,
    pub(super) tap_step: usize,
    pub(super) comb: Option<Comb>,
}

/// Pixels of a chunk each, dealt out to two planes so that every second pixel of a window lies in the same
/// plane, one after the other, and so do those of neighbouring windows:
///
/// ```text
/// plane[p, i] = pixel[i·step + p]        window o reads pixel o·step + 2j + p at plane[p, o + j·2/step]
/// ```
///
/// Matrix units take their rows a chunk of each plane at a time, wherever those begin. So each pixel is
/// brought once, for all windows and all taps along the width. Where windows step over rows that do not
/// share a pixel, the rows are dealt out likewise, and each deal has its planes. Planes go on from row to
/// row and from sample to sample; what is read between two of them is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Comb {
    /// The pixels of a plane, those that are brought past the last included.
    pub(super) pixels: usize,
    /// The pixels from one pair of taps to the next.
    pub(super) shift: usize,
    /// Every how many-th row lies in the same plane.
    pub(super) deals: usize,
}

/// The planes of a comb.
pub(super) const PLANES: usize = 2;

/// The pixels that the copy engine takes for one, and those that a tile's rows read past its last.
pub(super) const COMB_LINE: usize = 16;

/// The rows of the largest tile.
const MOST_ROWS: usize = 256;

impl Fold {
    /// The lines that take fewest steps, if the copy engine cannot read the pixels as they lie or they
    /// would take twice as many.
    fn new(conv: &Convolution, pass: Pass, size: usize) -> Option<Self> {
        if pass != Pass::Forward || conv.groups() > 1 {
            return None;
        }
        let channels = conv.input().channels();
        let (line, chunk) = (LINE as usize / size, CHUNK_BYTES / size);
        let [_, height, width] = conv.grid().axes();
        let over = |rows: usize| {
            let taps = height.kernel().div_ceil(rows);
            let reach = (width.kernel() - 1) * width.dilation() + 1;
            let fold = Self {
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
                comb: None,
            };
            let deals = fold.pixel == chunk
                && (1..=PLANES).contains(&fold.step)
                && height.stride().is_multiple_of(rows)
                && reach * chunk <= line
                && conv.grid().rank() < 3;
            match deals {
                true => fold.dealt(conv.input().batch(), height.stride() / rows),
                false => fold,
            }
        };
        let steps = |fold: &Self| fold.taps * fold.line(size).div_ceil(line);
        let stepped = (height.kernel() > 1 && height.dilation() == 1).then(|| height.stride());
        let fold = [Some(1), stepped].into_iter().flatten().map(over).min_by_key(steps)?;
        let plain = height.kernel() * width.kernel() * channels.div_ceil(line);
        let aligned = (channels * size).is_multiple_of(CHUNK_BYTES);
        (!aligned || 2 * steps(&fold) <= plain).then_some(fold)
    }

    /// The same pixels in planes.
    fn dealt(self, batch: usize, deals: usize) -> Self {
        // Rows that lie outside are laid too, for there the copy engine does not know of rows.
        let past = (self.taps - 1) * self.tap_step / deals;
        let height = self.window_rows + past;
        let width = self.windows + (self.reach - 1) / self.step;
        let past = past * width + MOST_ROWS + 2 * COMB_LINE;
        let pixels = (batch * height * width + past).next_multiple_of(COMB_LINE);
        let comb = Some(Comb { pixels, shift: PLANES / self.step, deals });
        Self { height, width, comb, ..self }
    }

    /// The elements of a line.
    pub(super) fn line(&self, size: usize) -> usize {
        match self.comb {
            Some(_) => LINE as usize / size,
            None => self.reach * self.pixel,
        }
    }

    /// The product with the lines as its pixels.
    fn over(&self, gather: Gather) -> Gather {
        let mut folded = gather;
        let [_, height, width] = &mut folded.axes;
        match self.comb {
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
        folded
    }
}

/// An axis whose rows read the coordinates one after another.
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

/// How the operand that is not the image lies: the filters, or the output's gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flat {
    /// Outermost first; one of them is the taps.
    pub(super) dimensions: [usize; 3],
    pub(super) tap_first: bool,
    /// Whether rows or columns lie side by side, and not the terms of a sum.
    pub(super) across: bool,
    /// What comes from one group to the next: lines or columns, and terms.
    pub(super) across_group: usize,
    pub(super) term_group: usize,
}

impl Flat {
    /// As it was given; none where its lines are no lines in memory.
    fn new(conv: &Convolution, pass: Pass) -> Option<Self> {
        let filter = conv.filter();
        let (count, taps, channels) = (filter.count(), filter.taps(), filter.channels());
        let (across_group, term_group) = match pass {
            Pass::Data => (0, gather::inner(conv, pass)),
            _ => (gather::columns(conv, pass), 0),
        };
        let flat = |dimensions, tap_first, across| {
            Some(Self { dimensions, tap_first, across, across_group, term_group })
        };
        if pass == Pass::Filter {
            return flat([windows(conv), 1, count], false, true);
        }
        let forward = pass == Pass::Forward;
        match conv.filter_layout() {
            FilterLayout::Fchw if taps > 1 => None,
            FilterLayout::Fhwc | FilterLayout::Fchw => {
                flat([count, taps, channels], false, !forward)
            }
            FilterLayout::Hwcf => flat([taps, channels, count], true, forward),
        }
    }

    /// As it is laid anew: the columns of all groups, their taps, and the terms of these, which fill
    /// whole chunks.
    fn packed(conv: &Convolution, pass: Pass, fold: Option<Fold>, size: usize) -> Self {
        let columns = gather::columns(conv, pass);
        let [depth, height, width] = conv.filter().kernel().three(1);
        let (taps, inner) = match fold {
            Some(fold) => (depth * fold.taps, fold.line(size)),
            None => (depth * height * width, gather::inner(conv, pass)),
        };
        Self {
            dimensions: [columns * conv.groups(), taps, inner.next_multiple_of(CHUNK_BYTES / size)],
            tap_first: false,
            across: false,
            across_group: columns,
            term_group: 0,
        }
    }

    /// What a copy brings at once: whole lines, as many as a block has, or panels a line wide.
    pub(super) fn brought(&self, lines: u32, line: u32, terms: u32) -> [usize; 3] {
        let lines = if self.across { terms } else { lines } as usize;
        match self.tap_first {
            true => [1, lines, line as usize],
            false => [lines, 1, line as usize],
        }
    }
}

/// An axis as the copy engine walks it: from `first` on, `rows` windows.
pub(super) fn corners(sweep: &Sweep) -> (i64, i64) {
    let lower = sweep.start - first_offset(sweep);
    let last = lower + (sweep.rows.saturating_sub(1) * sweep.step) as i64;
    (lower, last - (sweep.extent as i64 - 1))
}

/// How far on the first tap is from the least coordinate that a window reads.
pub(super) fn first_offset(sweep: &Sweep) -> i64 {
    -(sweep.taps.saturating_sub(1) as i64 * sweep.tap_step).min(0)
}

/// A product, as the copy engine walks it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    /// With lines as long as they are brought.
    pub(super) gather: Gather,
    /// The rows of a line that have results, and the lines of a plane.
    pub(super) line_rows: usize,
    pub(super) plane_rows: usize,
    /// The pixels past a row's first that it reads, if taps along the width share what is brought.
    pub(super) reach: usize,
}

/// A run of pixels that taps share is no longer than its rows by more.
const MOST_REACH: usize = 64;

/// Of so many rows no more than one may be a zero between lines for taps to share runs at any tile.
const FEW_ZEROS: usize = 64;

impl Walk {
    /// Where neighbouring windows are neighbouring pixels, all taps along the width can read one run of
    /// pixels, each a little further on. Runs go on from line to line, so that between two lines lie
    /// as many zeros as a window can read beside one: what runs over the end of a line reads the
    /// zeros before the next.
    fn shared(gather: Gather) -> Option<Self> {
        let along = &gather.axes[AXES - 1];
        let reach = along.taps.saturating_sub(1) * along.tap_step.unsigned_abs() as usize;
        let (rows, lower) = (along.rows as i64, along.start - first_offset(along));
        let zeros_before = rows + reach as i64 + lower;
        let zeros_after = along.extent as i64 - lower;
        let line = zeros_before.max(zeros_after).max(rows).min(rows + reach as i64) as usize;
        let plane_rows = gather.axes[AXES - 2].rows;
        let mut walk = Self { line_rows: along.rows, plane_rows, gather, reach };
        walk.gather.axes[AXES - 1].rows = line;
        // The rows between the lines are multiplied for nothing.
        let worth = 4 * along.rows >= 3 * line;
        (along.step == 1 && (1..=MOST_REACH).contains(&reach) && worth).then_some(walk)
    }

    /// Whether hardly any of its rows are zeros between lines: then sharing saves bytes, and the power that
    /// moving them takes, for nothing.
    fn has_few_zeros(&self) -> bool {
        let line = self.gather.axes[AXES - 1].rows;
        FEW_ZEROS * (line - self.line_rows) <= line
    }

    /// The runs that there is a place for beside so many stages: one more than those of the stages, so
    /// that where a stage's place is free, so is that of the run before all that are needed.
    pub(super) fn runs(&self, stages: u32) -> u32 {
        let taps = self.gather.axes[AXES - 1].taps as u32;
        if self.reach > 0 { stages.div_ceil(taps) + 1 } else { 0 }
    }
}

/// Whether the copy engine's map can say how a product walks.
fn fits(gather: &Gather, rank: usize) -> bool {
    let (corner, offset) = if rank > 2 { (-16..=15, 31) } else { (-128..=127, 255) };
    gather.axes.iter().all(|axis| {
        let (lower, upper) = corners(axis);
        let reach = axis.taps.saturating_sub(1) as i64 * axis.tap_step.abs();
        corner.contains(&lower)
            && corner.contains(&upper)
            && reach.max(first_offset(axis)) <= offset
            && axis.step <= 8
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use windowpane_geometry::{Extents, Filter, Shape, Window};

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

    /// The pixel of the image that a window reads by a tap, and the row of a pixel's that holds it.
    fn found(
        conv: &Convolution,
        fold: &Fold,
        [oh, ow]: [usize; 2],
        [th, tw]: [usize; 2],
    ) -> [i64; 2] {
        let [_, height, width] = conv.grid().axes();
        let over = tw * width.dilation();
        let (tap, further) = (th / fold.rows * fold.tap_step, th % fold.rows);
        // As the kernel steps through what is laid ..
        let (row, column, deal, tooth) = match fold.comb {
            Some(comb) => {
                let column = ow + over / PLANES * comb.shift;
                (oh + tap / comb.deals, column, tap % comb.deals, over % PLANES)
            }
            None if fold.rows > 1 => (oh + tap, ow * fold.step + over, 0, 0),
            None => {
                let row = height.start(oh) + (th * height.dilation()) as i64;
                return [row, width.start(0) + (ow * fold.step + over) as i64];
            }
        };
        // .. and as it was laid.
        let (deals, step) = fold.comb.map_or((1, 1), |comb| (comb.deals, fold.step));
        assert!(row < fold.height, "{fold:?}");
        let h = (row * deals + deal) * fold.rows + further;
        [height.start(0) + h as i64, width.start(0) + (column * step + tooth) as i64]
    }

    /// Lines hold what windows read, wherever they were laid.
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
                let Some(fold) = Fold::new(&conv, Pass::Forward, size) else {
                    assert_eq!((channels, size), (16, 4), "lines of these save too few steps");
                    continue;
                };
                kinds[fold.comb.map_or(0, |comb| comb.deals.min(2))] += 1;
                let [_, height, width] = conv.grid().axes();
                for (oh, ow) in [(0, 0), (1, 2), (height.output() - 1, width.output() - 1)] {
                    for (th, tw) in (0..kernel[0]).flat_map(|t| (0..kernel[1]).map(move |u| (t, u)))
                    {
                        let expected = [
                            height.start(oh) + (th * height.dilation()) as i64,
                            width.start(ow) + (tw * width.dilation()) as i64,
                        ];
                        let found = found(&conv, &fold, [oh, ow], [th, tw]);
                        assert_eq!(found, expected, "{conv:?} {fold:?} {size}: tap {th}, {tw}");
                    }
                }
            }
        }
        assert!(
            kinds.iter().all(|kind| *kind > 0),
            "lines, and combs of one deal and more: {kinds:?}"
        );
    }

    /// Pixels that the copy engine reads as they lie, and fill most of a line, are left as they are.
    #[test]
    fn only_few_channels_become_lines() {
        let fold = |channels, kernel: [usize; 2], pass, size| {
            Fold::new(&conv(channels, [9, 9], kernel, Window::new(kernel)), pass, size)
        };
        assert_eq!(fold(64, [3, 3], Pass::Forward, 2), None);
        assert_eq!(fold(32, [3, 3], Pass::Forward, 2), None);
        assert_eq!(fold(8, [1, 1], Pass::Forward, 2), None);
        assert_eq!(fold(3, [3, 3], Pass::Data, 2), None);
        assert!(fold(16, [3, 3], Pass::Forward, 2).is_some_and(|fold| fold.comb.is_none()));
        assert!(fold(65, [1, 1], Pass::Forward, 2).is_some(), "130 bytes are no whole chunks");
    }

    /// A run of a tile's rows, and what they read by the last tap, lies within its plane.
    #[test]
    fn combs_hold_all_that_is_brought() {
        for (size, kernel) in [(2, [7, 7]), (4, [7, 7]), (2, [1, 8]), (4, [9, 5])] {
            let window = Window::new(kernel).stride([2, 2]).padding([3, 3]);
            let conv = conv(3, [20, 20], kernel, window);
            let fold = Fold::new(&conv, Pass::Forward, size).expect("few channels");
            let comb = fold.comb.expect("pixels of a chunk");
            let rows = conv.input().batch() * fold.height * fold.width;
            let down = (fold.taps - 1) * fold.tap_step / comb.deals;
            let last = (rows - 1) / MOST_ROWS * MOST_ROWS + down * fold.width;
            assert!(last + MOST_ROWS + COMB_LINE <= comb.pixels - COMB_LINE, "{fold:?}");
        }
    }
}
