//! What the kernel multiplies: the rows, columns and terms of a pass, and how its factors lie.

use windowpane_geometry::{AXES, Convolution, DType, FilterLayout, LIMIT, Layout, Precision, Tile};

use super::repack::fold::{COMB_LINE, Comb, Fold, PLANES};
use super::tile::{CHUNK_BYTES, LINE, ROWS, bands, is_narrow};
use super::walk::{Walk, fits};
use crate::conv::common::gather::{self, Gather, WeightSteps, weight_steps};
use crate::conv::problem::{Pass, Request, windows};

/// The fewest terms of a sum whose factors may be split.
///
/// Two parts leave out of a product at most 6 units of roundoff, and a step of 32 terms adds up with an
/// error of at most 26 of its terms' magnitudes, for the matrix units cut sums off where they align
/// them; from there on sums are added in f32. So the error stays under the 64 and more that SEMANTICS
/// grants, whatever the factors. Three parts leave out 1 unit, and a step of 64 terms adds up with at most
/// 45: each of four instructions aligns 17 numbers, half a unit of the largest each, and cuts its result
/// off, by two.
const LEAST_TERMS: usize = 64;

/// A pass, as the kernel multiplies it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) conv: Convolution,
    pub(super) pass: Pass,
    /// The bytes of a factor.
    pub(super) size: usize,
    /// What each factor is the sum of: itself, or of an f32 two tf32, or three bf16 where the terms do not
    /// lie side by side, which only factors of 16 bits need not.
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
        let (parts, size) = match (dtype, precision) {
            (DType::F16 | DType::BF16, Precision::Strict) => (1, 2),
            (DType::F32, Precision::Tf32) => (1, 4),
            (DType::F32, Precision::Strict) if pass == Pass::Filter => (3, 2),
            (DType::F32, Precision::Strict) => (2, 4),
            _ => return None,
        };
        let aligned = |elements: usize| (elements * size).is_multiple_of(CHUNK_BYTES);
        let fold = Fold::new(conv, pass, size);
        // Factors of 32 bits are read along the terms alone.
        let readable = |flat: &Flat| {
            aligned(flat.dimensions[2]) && aligned(flat.group_step()) && (size == 2 || !flat.across)
        };
        // Parts of a gradient lie as it does; filters in parts lie along the terms.
        let kept = pass == Pass::Filter || (parts == 1 && fold.is_none());
        let flat = Flat::new(conv, pass).filter(|flat| kept && readable(flat));
        let product = Self {
            conv: *conv,
            pass,
            size,
            parts,
            fold,
            flat: flat.unwrap_or_else(|| Flat::packed(conv, pass, fold, size)),
            packed: parts > 1 || flat.is_none(),
        };
        let image_channels = match pass {
            Pass::Data => conv.output().channels(),
            _ => conv.input().channels(),
        };
        // A slice of channels does not run into the next group's; and a copy starts at a whole chunk of
        // memory, or the device is lost by an illegal instruction, so that each group has to.
        let whole = conv.groups() == 1
            || match pass {
                Pass::Filter => aligned(product.inner()),
                _ => product.inner().is_multiple_of(product.line()),
            };
        let terms = match pass {
            Pass::Filter => fewest_windows(conv),
            _ => conv.filter().taps() * gather::inner(conv, pass),
        };
        let can = pass != Pass::Bias
            && conv.layout() == Layout::ChannelsLast
            && (fold.is_some() || aligned(image_channels))
            && whole
            && (pass != Pass::Filter || flat.is_some())
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

    /// The bytes of a result: those of a factor that is not cut in parts.
    pub(super) fn stored(&self) -> u32 {
        if self.parts > 1 { 4 } else { self.size as u32 }
    }

    /// The axes of an image's map.
    pub(super) fn rank(&self) -> usize {
        self.conv.grid().rank().max(2)
    }

    /// The step in memory from one column's result to the next one's, and the columns of a group, or of a
    /// tap.
    pub(super) fn result_columns(&self) -> [usize; 2] {
        match self.pass {
            Pass::Filter => [self.weights().inner, self.inner()],
            _ => [1, self.columns()],
        }
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
    pub(super) fn tap_numbers(&self) -> WeightSteps {
        let [_, height, width] = self.kernel();
        WeightSteps { inner: 0, column: 0, group: 0, kernel: [height * width, width, 1] }
    }

    /// The instructions' worth of products that one of the factors themselves takes: of parts those that
    /// are not too small to count.
    pub(super) fn times(&self) -> usize {
        self.parts * (self.parts + 1) / 2
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

    /// The sizes of the other operand, outermost first, and the steps in memory between them. Parts lie one
    /// after the other; those of the output's gradient, which has no taps, are in the place of taps, so
    /// that past the last window of each are zeros.
    pub(super) fn flat(&self) -> ([usize; 3], [usize; 3]) {
        let [outer, middle, inner] = self.flat.dimensions;
        match self.pass {
            Pass::Filter => ([outer, self.parts, inner], [inner, outer * inner, 1]),
            _ => ([self.parts * outer, middle, inner], [middle * inner, inner, 1]),
        }
    }

    /// The factors of both operands, each in parts or not.
    pub(super) fn factors(&self) -> usize {
        (self.image_elements() + self.flat_elements()) / self.parts
    }

    /// The products of a gradient of the filters, with those that fill up lines and the rows of the narrowest
    /// tile.
    pub(super) fn multiplied(&self) -> usize {
        let columns = self.conv.filter().taps() * self.slices() * self.line();
        let rows = self.columns().next_multiple_of(2 * ROWS as usize);
        windows(&self.conv) * self.conv.groups() * rows * columns
    }

    /// The bytes that are laid anew, and the flags of what is checked.
    pub(super) fn workspace(&self, tile: &Tile, splits: usize) -> usize {
        let image = if self.is_checked() { self.image_elements() } else { 0 };
        let flat = if self.packed { self.flat_elements() } else { 0 };
        let flags = |walk: Walk| self.flags(&walk, tile, splits);
        let flags = self.walks(tile).map(flags).max().unwrap_or(0);
        (image + flat) * self.size + flags * size_of::<u32>()
    }

    /// The bands of rows that a warp checks, by the blocks of columns and the parts that sums are cut into.
    pub(super) fn flags(&self, walk: &Walk, tile: &Tile, splits: usize) -> usize {
        match self.is_checked() {
            true => {
                let [tiles_m, tiles_n] = self.tiles(walk, tile);
                tiles_m * bands(tile) * tiles_n * splits * self.conv.groups()
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

    /// Whether a cube has the same columns in all steps of all its tiles: then they are brought once.
    pub(super) fn stays(&self, walk: &Walk, tile: &Tile) -> bool {
        self.pass != Pass::Filter
            && self.parts == 1
            && self.conv.groups() == 1
            && self.steps(walk) == 1
            && self.columns() <= tile.block_n as usize
    }

    /// The weights as they were given.
    pub(super) fn weights(&self) -> WeightSteps {
        weight_steps(&self.conv, self.pass)
    }
}

/// The terms of the shortest sums of a gradient of the filters, of those that have any: the windows that
/// read the image by a tap, and not beside it.
fn fewest_windows(conv: &Convolution) -> usize {
    let axes = conv.grid().axes().each_ref().map(|axis| {
        let windows = (0..axis.kernel()).map(|tap| axis.windows_inside(tap).len());
        windows.filter(|windows| *windows > 0).min().unwrap_or(0)
    });
    conv.input().batch() * axes.iter().product::<usize>()
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

    /// The elements along a line from one group to the next.
    fn group_step(&self) -> usize {
        if self.across { self.across_group } else { self.term_group }
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
