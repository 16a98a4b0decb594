//! The product that the kernel computes: the rows, columns and terms of a pass, and the layout of its factors.

use cubecl::wgmma::WgmmaTileLayout;
use windowpane_geometry::{AXES, Convolution, DType, FilterLayout, LIMIT, Layout, Precision, Tile};

use super::im2col::Im2colWalk;
use super::pointwise::Pointwise;
use super::repack::image::{PLANE_LINE, PLANES, Planar, RepackedImage};
use super::tile::{self, CHUNK, CHUNK_BYTES, HALF_BAND, LINE, bands, is_narrow};
use crate::conv::common::{Gather, Phases, WeightSteps, gather, weight_steps};
use crate::conv::problem::{Pass, Request, results, windows};

/// The fewest terms of a sum whose factors may be split.
///
/// With two parts, the omitted products are at most 6 units of roundoff, and adding a step of 32 terms has an error of
/// at most 26 units of its terms' magnitudes, because the matrix units truncate sums where they align them; after that,
/// sums are added in f32. So the error is below the 64 or more units that SEMANTICS allows, whatever the factors.
/// With three parts, the omitted products are 1 unit, and adding a step of 64 terms has an error of at most 45: each of
/// four instructions aligns 17 numbers, with an error of half a unit of the largest for each of them, and truncates its
/// result, with an error of two.
const LEAST_TERMS: usize = 64;

/// The fewest terms inside the image of any sum whose factors are split in two: a step of 32 terms, with an error of 6 and
/// 26 units. Taps outside are zeros, which add no error.
const LEAST_INSIDE: usize = 32;

/// A pass, in the form in which the kernel multiplies it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) conv: Convolution,
    pub(super) pass: Pass,
    /// The bytes of a factor.
    pub(super) size: usize,
    /// The number of parts that each factor is split into: one if it is not split; two tf32 for an f32; three bf16 for
    /// an f32 whose terms are not contiguous, because matrix units require contiguous terms except for 16-bit factors.
    pub(super) parts: usize,
    /// The number of groups that are multiplied as one. Only in a weight gradient: the results between two groups are
    /// not stored.
    pub(super) merged: usize,
    /// How pixels are repacked: as lines, if they have few channels, or padded.
    pub(super) repacked: Option<RepackedImage>,
    /// The matrices of channels-first tensors, if the kernel reads these; `conv` and `pass` are then what it sees.
    pub(super) pointwise: Option<Pointwise>,
    /// The layout of the other operand, and whether it is repacked.
    pub(super) flat: Flat,
    pub(super) packed: bool,
    /// Whether filters are only repacked as rows that are padded to whole lines of memory.
    pub(super) pads_filters: bool,
}

impl Product {
    /// None if the copy engine cannot read the operands, and repacking does not help; or if the filters are to be
    /// `aligned`, padded to whole lines of memory, and are not read as they are or have whole lines (with channels first,
    /// whole sectors).
    pub(super) fn new(conv: &Convolution, request: Request, aligned: bool) -> Option<Self> {
        let Request { pass, dtype, precision } = request;
        let (parts, size) = match (dtype, precision) {
            (DType::F16 | DType::BF16, Precision::Strict) => (1, 2),
            (DType::F32, Precision::Tf32) => (1, 4),
            (DType::F32, Precision::Strict) if pass == Pass::Weight => (3, 2),
            (DType::F32, Precision::Strict) => (2, 4),
            _ => return None,
        };
        if conv.layout() == Layout::ChannelsFirst {
            return Self::pointwise(conv, request, aligned);
        }
        let chunked = |elements: usize| (elements * size).is_multiple_of(CHUNK_BYTES);
        // A weight gradient does not split repacked factors as well.
        let repacked = RepackedImage::new(conv, pass, size)
            .filter(|_| pass != Pass::Weight || (parts == 1 && size == 2));
        // 32-bit factors are only read along the terms.
        let readable = |flat: &Flat| {
            chunked(flat.dimensions[2])
                && chunked(flat.group_step())
                && (size == 2 || !flat.mn_major)
        };
        // Parts of the output gradient keep its layout; filters in parts are contiguous along the terms. Past the filters,
        // where pixels are padded, the copy engine finds zeros.
        let kept = pass == Pass::Weight
            || (parts == 1 && repacked.is_none_or(|repacked| pass == Pass::Data && repacked.pads));
        let merged = if pass == Pass::Weight && parts == 1 { merged(conv, size) } else { 1 };
        let own = Flat::new(conv, pass)
            .map(|flat| Flat { across_group: merged * flat.across_group, ..flat });
        let flat = own.filter(|flat| kept && readable(flat));
        let padded = own.filter(|_| pass == Pass::Weight && parts == 1 && conv.groups() == 1);
        let padded = padded.map(|own| own.padded(CHUNK_BYTES / size)).filter(readable);
        if aligned {
            let can = pass != Pass::Weight && conv.groups() == 1;
            let flat = flat.filter(|flat| can && flat.ends_within_lines(size))?;
            let flat = flat.padded(LINE as usize / size);
            return Self::new(conv, request, false).map(|own| Self {
                flat,
                packed: true,
                pads_filters: true,
                ..own
            });
        }
        let product = Self {
            conv: *conv,
            pass,
            size,
            parts,
            merged,
            repacked,
            pointwise: None,
            flat: flat.or(padded).unwrap_or_else(|| Flat::packed(conv, pass, repacked, size)),
            packed: parts > 1 || flat.is_none(),
            pads_filters: false,
        };
        let image_channels = match pass {
            Pass::Data => conv.output().channels(),
            _ => conv.input().channels(),
        };
        // A slice of channels must not extend into the next group. A copy must start at a whole 16-byte chunk of
        // memory, or the device is lost with an illegal instruction, so each group has to start at one.
        let whole = conv.groups() == 1
            || match pass {
                Pass::Weight => chunked(product.inner()),
                _ => product.inner().is_multiple_of(product.slice()),
            };
        let has_terms = || match pass {
            Pass::Weight => fewest_windows(conv) >= LEAST_TERMS,
            _ => {
                let inner = gather::inner(conv, pass);
                conv.filter().taps() * inner >= LEAST_TERMS
                    && fewest_taps(conv, pass) * inner >= LEAST_INSIDE
            }
        };
        let can = pass != Pass::Bias
            && conv.layout() == Layout::ChannelsLast
            && (repacked.is_some() || chunked(image_channels))
            && whole
            && (pass != Pass::Weight || flat.or(padded).is_some())
            && (parts == 1 || has_terms())
            && product.image_elements().max(product.flat_elements()) <= LIMIT
            && (product.planar().is_some()
                || product.bare_walks().all(|walk| walk.fits(conv.grid().rank())));
        can.then_some(product)
    }

    /// The products of channels-first matrices.
    fn pointwise(conv: &Convolution, request: Request, aligned: bool) -> Option<Self> {
        let size = request.dtype.size();
        let own = Pointwise::new(conv, request)?;
        let readable = own.is_readable(size);
        if aligned && !readable {
            return None;
        }
        let pointwise = if aligned || !readable { own.padded(size)? } else { own };
        let mn_major = !pointwise.sums_samples;
        Some(Self {
            conv: pointwise.convolution()?,
            pass: Pass::Forward,
            size,
            parts: 1,
            merged: 1,
            repacked: None,
            pointwise: Some(pointwise),
            flat: Flat {
                dimensions: pointwise.dimensions(),
                tap_first: true,
                mn_major,
                across_group: 0,
                term_group: 0,
            },
            packed: false,
            pads_filters: aligned || !readable,
        })
    }

    /// What belongs to the image, then what belongs to the flat operand, from the order of the pass's operands.
    pub(super) fn image_first<T>(&self, [one, other]: [T; 2]) -> [T; 2] {
        let swaps = self.pointwise.is_some_and(|pointwise| pointwise.swaps);
        if swaps { [other, one] } else { [one, other] }
    }

    /// The number of products that are computed side by side: groups, or samples.
    pub(super) fn groups(&self) -> usize {
        match self.pointwise {
            Some(pointwise) if !pointwise.sums_samples => pointwise.samples,
            _ => self.conv.groups() / self.merged,
        }
    }

    /// Whether the image's rows are contiguous in memory, instead of the terms of a sum.
    pub(super) fn rows_mn_major(&self) -> bool {
        self.pointwise.is_some_and(|pointwise| pointwise.rows_mn_major)
    }

    /// The number of results of the pass.
    pub(super) fn results(&self) -> usize {
        match self.pointwise {
            Some(pointwise) => pointwise.rows * pointwise.columns * self.groups(),
            None => results(&self.conv, self.pass),
        }
    }

    /// The matrix products that the pass consists of, as the copy engine walks them for a tile.
    pub(super) fn walks(&self, tile: &Tile) -> impl Iterator<Item = Im2colWalk> + use<> {
        let rank = self.conv.grid().rank();
        let shares = self.pass != Pass::Weight && !self.is_checked();
        let narrow = is_narrow(tile);
        self.bare_walks().map(move |walk| {
            let shared = walk.shared().filter(|walk| walk.fits(rank));
            shared.filter(|walk| shares && (narrow || walk.has_few_zeros())).unwrap_or(walk)
        })
    }

    /// The same without shared pixels: a walk over all phases of a data gradient, or one for each product. Results
    /// that may have to be recomputed are recomputed one phase after the other.
    fn bare_walks(&self) -> impl Iterator<Item = Im2colWalk> + use<> {
        let Self { conv, repacked, pointwise, .. } = *self;
        let phased = self.pass == Pass::Data && !self.is_checked();
        let phases = Phases::new(&conv).filter(|phases| phased && phases.fits());
        let lines = self.lines();
        let alone = phases.is_none().then(|| Gather::all(&conv, self.pass));
        let alone = alone.into_iter().flatten().map(move |gather| {
            let gather = repacked.map_or(gather, |repacked| repacked.over(gather));
            let walk =
                Im2colWalk::new(pointwise.map_or(gather, |pointwise| pointwise.over(gather)));
            let rows = lines.map(|repacked| (repacked.window_rows, repacked.windows));
            let (plane_rows, line_rows) = rows.unwrap_or((walk.plane_rows, walk.line_rows));
            Im2colWalk { line_rows, plane_rows, ..walk }
        });
        phases.map(|phases| Im2colWalk::over(phases, &conv)).into_iter().chain(alone)
    }

    /// The number of elements of a whole line in shared memory.
    pub(super) fn line(&self) -> usize {
        LINE as usize / self.size
    }

    /// The channels of a slice: a line, or the half or quarter of one that holds all channels. Then fewer zeros behind
    /// the last channel are loaded and multiplied. Several narrow slices were slower, because there are more steps.
    pub(super) fn slice(&self) -> usize {
        let (inner, line) = (self.inner(), self.line());
        let narrow = [line / 4, line / 2].into_iter().find(|slice| inner <= *slice);
        narrow.filter(|_| self.parts == 1 && self.lines().is_none()).unwrap_or(line)
    }

    /// The terms of a step: a slice, or in a weight gradient a line of windows.
    pub(super) fn terms_per_step(&self) -> usize {
        if self.pass == Pass::Weight { self.line() } else { self.slice() }
    }

    /// The number of terms of a tap (in a weight gradient, columns of a tap), and the number of their slices.
    pub(super) fn inner(&self) -> usize {
        let own = || self.merged * gather::inner(&self.conv, self.pass);
        self.repacked.map_or_else(own, |repacked| repacked.line(self.size))
    }

    pub(super) fn slices(&self) -> usize {
        self.inner().div_ceil(self.slice())
    }

    /// The number of matrix instructions for a step's terms.
    pub(super) fn instructions_per_step(&self) -> usize {
        self.terms_per_step() / WgmmaTileLayout::k_step(self.size)
    }

    /// The same for the last slice of a tap. Behind its last channel there are only zeros, which need not be multiplied.
    pub(super) fn instructions_of_last_slice(&self) -> usize {
        if self.pass == Pass::Weight || self.planar().is_some() || self.parts > 1 {
            return self.instructions_per_step();
        }
        let terms = self.inner() - (self.slices() - 1) * self.slice();
        // At least two: the second one runs while a warpgroup waits for the first, and for the step before.
        terms.div_ceil(WgmmaTileLayout::k_step(self.size)).max(2).min(self.instructions_per_step())
    }

    /// The columns of a group; in a weight gradient these are the rows.
    pub(super) fn columns(&self) -> usize {
        self.merged * gather::columns(&self.conv, self.pass)
    }

    /// The bytes of a result: those of a factor that is not split into parts.
    pub(super) fn stored(&self) -> u32 {
        if self.parts > 1 { 4 } else { self.size as u32 }
    }

    /// Whether the rows of a tile follow one another in memory, and eight of them are whole chunks although one is not.
    pub(super) fn is_dense(&self, walk: &Im2colWalk, tile: &Tile) -> bool {
        let [_, height, width] = &walk.gather.axes;
        let rows = walk.gather.rows(&self.conv);
        let has_all = walk.reach == 0
            && walk.phases.is_none()
            && self.planar().is_none()
            && [walk.plane_rows, walk.line_rows] == [height.rows, width.rows]
            && rows * self.columns() == self.results();
        self.pass != Pass::Weight
            && self.pointwise.is_none()
            && self.groups() == 1
            && has_all
            && rows.is_multiple_of(HALF_BAND as usize)
            && self.columns() <= tile.block_n as usize
            && !self.columns().is_multiple_of(CHUNK as usize)
    }

    /// The number of axes of an image's map.
    pub(super) fn rank(&self) -> usize {
        self.conv.grid().rank().max(2)
    }

    /// The memory step from one column's result to the next column's, and the columns of a group, or of a tap.
    pub(super) fn result_columns(&self) -> [usize; 2] {
        match self.pass {
            Pass::Weight => [self.weights().inner, self.inner()],
            _ => [1, self.columns()],
        }
    }

    pub(super) fn planar(&self) -> Option<Planar> {
        self.repacked.and_then(|repacked| repacked.planar)
    }

    /// The taps of the filters on each axis, as they are repacked.
    pub(super) fn kernel(&self) -> [usize; AXES] {
        let kernel = self.conv.filter().kernel().three(1);
        self.lines().map_or(kernel, |repacked| [kernel[0], repacked.taps, 1])
    }

    /// The index of a tap among all taps of the filters, in the form of weight steps.
    pub(super) fn tap_steps(&self) -> WeightSteps {
        let [_, height, width] = self.kernel();
        WeightSteps { inner: 0, column: 0, group: 0, kernel: [height * width, width, 1] }
    }

    /// The number of products that replace one product of unsplit factors. With parts, these are the ones that are not
    /// negligibly small.
    pub(super) fn times(&self) -> usize {
        self.parts * (self.parts + 1) / 2
    }

    /// Whether results may be wrong where factors are not finite, or too small to be split, because the image is repacked.
    /// The sums of such results are not finite, by which they are found and recomputed.
    ///
    /// The padding of a weight gradient belongs to other results, and that of a data gradient, or of lines of one pixel, is
    /// multiplied by zeros.
    pub(super) fn is_checked(&self) -> bool {
        let lines = self.repacked.filter(|repacked| !repacked.is_pixel());
        self.parts > 1 || (lines.is_some() && self.pass == Pass::Forward)
    }

    /// Whether the image is repacked. In products of channels-first matrices, it is the filters.
    pub(super) fn repacks_image(&self) -> bool {
        self.parts > 1 || self.repacked.is_some() || (self.pointwise.is_some() && self.pads_filters)
    }

    /// The lines that the image's pixels become, if they do.
    pub(super) fn lines(&self) -> Option<RepackedImage> {
        self.repacked.filter(|repacked| !repacked.pads)
    }

    /// The sizes of the image, outermost first, and the memory steps between them. The parts of factors are outermost,
    /// in the dimension of the samples.
    pub(super) fn image(&self) -> (Vec<usize>, Vec<usize>) {
        let shape = match self.pass {
            Pass::Data => self.conv.output(),
            _ => self.conv.input(),
        };
        let [depth, height, width] = shape.space().three(1);
        let samples = self.pointwise.filter(|pointwise| pointwise.sums_samples);
        let batch = samples.map_or(shape.batch() * self.parts, |pointwise| pointwise.samples);
        let (space, channels, row, step) = match self.repacked {
            None => {
                let pitch = self.pointwise.map_or(shape.channels(), |pointwise| pointwise.pitch);
                let lines = if self.rows_mn_major() { shape.channels() } else { width };
                ([height, lines], pitch, lines * pitch, pitch)
            }
            Some(RepackedImage { planar: Some(planar), pixel, .. }) => {
                // A run of pixels may start at any pixel: at the `h`-th pixel of the `w`-th line of pixels.
                let line = PLANE_LINE * pixel;
                // The last line exists for runs that start inside the previous one.
                let lines = planar.pixels / PLANE_LINE - 1;
                return (
                    vec![PLANES * planar.row_sets * self.parts, PLANE_LINE, lines, line],
                    vec![planar.pixels * pixel, pixel, line, 1],
                );
            }
            Some(repacked) => {
                let space = [repacked.height, repacked.windows];
                (
                    space,
                    repacked.line(self.size),
                    repacked.width * repacked.pixel,
                    repacked.step * repacked.pixel,
                )
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

    /// The bytes of the rows of a stage, or of a run, for one part.
    pub(super) fn rows_bytes(&self, walk: &Im2colWalk, tile: &Tile) -> usize {
        match self.planar() {
            Some(_) => PLANES * (tile.block_m as usize + PLANE_LINE) * CHUNK_BYTES,
            None => {
                let rows = (tile.block_m as usize + walk.reach).next_multiple_of(8);
                rows * self.terms_per_step() * self.size
            }
        }
    }

    /// The elements of the other operand as it is read.
    pub(super) fn flat_elements(&self) -> usize {
        self.parts * self.flat.dimensions.iter().product::<usize>()
    }

    /// The sizes of the other operand, outermost first, and the memory steps between them. Parts follow one another.
    /// Those of the output gradient, which has no taps, take the place of taps, so that reads past the last window of
    /// each part give zeros.
    pub(super) fn flat(&self) -> ([usize; 3], [usize; 3]) {
        let [outer, middle, inner] = self.flat.dimensions;
        match self.pass {
            Pass::Weight => ([outer, self.parts, inner], [inner, outer * inner, 1]),
            _ => ([self.parts * outer, middle, inner], [middle * inner, inner, 1]),
        }
    }

    /// The bytes of the repacked operands, and of the flags.
    pub(super) fn workspace(&self, tile: &Tile, splits: usize) -> usize {
        let image = if self.repacks_image() { self.image_elements() } else { 0 };
        let flat = if self.packed { self.flat_elements() } else { 0 };
        let flags = |walk: Im2colWalk| self.flags(&walk, tile, splits);
        let flags = self.walks(tile).map(flags).max().unwrap_or(0);
        (image + flat) * self.size + flags * size_of::<u32>()
    }

    /// The number of flags: bands of rows, times blocks of columns, times the parts that sums are split into.
    pub(super) fn flags(&self, walk: &Im2colWalk, tile: &Tile, splits: usize) -> usize {
        match self.is_checked() {
            true => {
                let [tiles_m, tiles_n] = self.tiles(walk, tile);
                tiles_m * bands(tile) * tiles_n * splits * self.groups()
            }
            false => 0,
        }
    }

    /// The number of tiles of a product along the rows and along the columns.
    pub(super) fn tiles(&self, walk: &Im2colWalk, tile: &Tile) -> [usize; 2] {
        let taps = walk.gather.axes.iter().map(|axis| axis.taps).product::<usize>();
        let (rows, columns) = match self.pass {
            Pass::Weight => (self.columns(), taps * self.slices() * self.slice()),
            _ => (walk.gather.rows(&self.conv), self.columns()),
        };
        [rows.div_ceil(tile.block_m as usize), columns.div_ceil(tile.block_n as usize)]
    }

    /// The number of steps of the longest sum.
    pub(super) fn steps(&self, walk: &Im2colWalk) -> usize {
        self.steps_of(walk.taps(0))
    }

    fn steps_of(&self, taps: [usize; AXES]) -> usize {
        match self.pass {
            Pass::Weight => windows(&self.conv).div_ceil(self.line()),
            _ => taps.iter().product::<usize>() * self.slices(),
        }
    }

    /// The number of steps of each of `splits` parts of a product's sums. Taps that share pixels stay together.
    pub(super) fn steps_per_part(&self, walk: &Im2colWalk, nth: usize, splits: usize) -> usize {
        let taps = walk.taps(nth);
        let shared = if walk.reach > 0 { taps[AXES - 1].max(1) } else { 1 };
        self.steps_of(taps).div_ceil(splits).next_multiple_of(shared)
    }

    /// What all tiles of a cube have in common: the columns, or the rows that each sample's product has. Several steps are
    /// worth their memory only where cubes compute several tiles.
    pub(super) fn resident(&self, walk: &Im2colWalk, tile: &Tile) -> Resident {
        let steps = self.steps(walk);
        let [tiles_m, tiles_n] = self.tiles(walk, tile);
        let can = self.pass != Pass::Weight && self.parts == 1;
        let same_columns = self.groups() == 1
            && tiles_n == 1
            && (walk.phases.is_none() || self.conv.filter().taps() == 1);
        let same_rows = self.pointwise.is_some_and(|it| !it.sums_samples) && tiles_m == 1;
        let worth = |tiles: usize, step: usize| {
            steps == 1 || (tiles >= MANY_TILES && steps * step <= MOST_RESIDENT)
        };
        let steps = steps as u32;
        if can && same_columns && worth(tiles_m, self.columns_bytes(tile)) {
            Resident { columns: steps, ..Resident::default() }
        } else if can && same_rows && worth(tiles_n * self.groups(), self.rows_bytes(walk, tile)) {
            Resident { rows: steps, ..Resident::default() }
        } else {
            Resident::default()
        }
    }

    /// Whether the columns are loaded in panels one line wide: they are those of the flat operand, which is MN-major.
    pub(super) fn columns_in_panels(&self) -> bool {
        self.pass != Pass::Weight && self.flat.mn_major
    }

    /// The bytes of the columns of a stage, for one part.
    pub(super) fn columns_bytes(&self, tile: &Tile) -> usize {
        let columns = tile::columns(tile, self.columns_in_panels(), self.line() as u32);
        columns as usize * self.terms_per_step() * self.size
    }

    /// The layout of the original weights.
    pub(super) fn weights(&self) -> WeightSteps {
        weight_steps(&self.conv, self.pass)
    }
}

/// The number of groups that a weight gradient multiplies as one, so that their channels fill lines and tiles: the one
/// with the fewest products, including those between two groups and the padding.
fn merged(conv: &Convolution, size: usize) -> usize {
    let (channels, filters) = (conv.filter().channels(), conv.filter().count() / conv.groups());
    let line = LINE as usize / size;
    let whole = |count: usize| (count * size).is_multiple_of(CHUNK_BYTES);
    let can = |count: &usize| {
        let (channels, filters) = (count * channels, count * filters);
        conv.groups().is_multiple_of(*count) && whole(channels) && whole(filters)
    };
    let cost = |count: &usize| {
        let padded = |of: usize| (count * of).next_multiple_of(line);
        padded(channels) * padded(filters) * (conv.groups() / count)
    };
    let most = (MOST_MERGED / channels.max(filters)).clamp(1, conv.groups());
    (1..=most).filter(can).min_by_key(cost).unwrap_or(1)
}

/// The steps of a tile whose rows, or whose columns, a cube loads only once, for all its tiles; otherwise 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Resident {
    pub(super) rows: u32,
    pub(super) columns: u32,
}

impl Resident {
    pub(super) fn steps(self) -> u32 {
        self.rows.max(self.columns)
    }
}

/// The fewest tiles for which rows or columns of several steps are resident, and the most bytes that these may have: two
/// tiles for each multiprocessor of a large device, and what leaves room for a ring of the other operand.
const MANY_TILES: usize = 264;
const MOST_RESIDENT: usize = 96 << 10;

/// The most channels, or filters, of groups that are multiplied as one.
const MOST_MERGED: usize = 256;

/// The number of terms of the shortest non-empty sum of a weight gradient: the windows that read inside the image at
/// a tap.
fn fewest_windows(conv: &Convolution) -> usize {
    let axes = conv.grid().axes().each_ref().map(|axis| {
        let windows = (0..axis.kernel()).map(|tap| axis.windows_inside(tap).len());
        windows.filter(|windows| *windows > 0).min().unwrap_or(0)
    });
    conv.input().batch() * axes.iter().product::<usize>()
}

/// The fewest taps inside the image of any result that has some: at a border, or in a phase of a data gradient with strides.
fn fewest_taps(conv: &Convolution, pass: Pass) -> usize {
    let axes = conv.grid().axes().each_ref().map(|axis| {
        // A tap belongs to every `step`-th result of a range, which are of one class. From one result of a class to the
        // next, taps only change where a range begins or ends.
        let step = if pass == Pass::Data { axis.stride() as i64 } else { 1 };
        let changes = |tap: usize| {
            let windows = axis.windows_inside(tap);
            let at = |window: usize| match pass {
                Pass::Data => axis.start(window) + (tap * axis.dilation()) as i64,
                _ => window as i64,
            };
            let class = at(windows.start).rem_euclid(step);
            [(class, at(windows.start), 1), (class, at(windows.end), -1)]
        };
        let mut changes: Vec<(i64, i64, i64)> = (0..axis.kernel()).flat_map(changes).collect();
        changes.sort_unstable();
        let (mut taps, mut fewest) = (0, None);
        for result in changes.chunk_by(|one, other| (one.0, one.1) == (other.0, other.1)) {
            taps += result.iter().map(|(.., change)| change).sum::<i64>();
            if taps > 0 {
                fewest = Some(fewest.map_or(taps, |fewest: i64| fewest.min(taps)));
            }
        }
        fewest.unwrap_or(0) as usize
    });
    axes.iter().product()
}

/// The layout of the operand that is not the image: the filters, or the output gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flat {
    /// Outermost first; one of them is the taps.
    pub(super) dimensions: [usize; 3],
    pub(super) tap_first: bool,
    /// Whether rows or columns are contiguous, instead of the terms of a sum.
    pub(super) mn_major: bool,
    /// The distance from one group to the next: in lines or columns, and in terms.
    pub(super) across_group: usize,
    pub(super) term_group: usize,
}

impl Flat {
    /// The original layout; none if its lines are not contiguous in memory.
    fn new(conv: &Convolution, pass: Pass) -> Option<Self> {
        let filter = conv.filter();
        let (count, taps, channels) = (filter.count(), filter.taps(), filter.channels());
        let (across_group, term_group) = match pass {
            Pass::Data => (0, gather::inner(conv, pass)),
            _ => (gather::columns(conv, pass), 0),
        };
        let flat = |dimensions, tap_first, mn_major| {
            Some(Self { dimensions, tap_first, mn_major, across_group, term_group })
        };
        if pass == Pass::Weight {
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

    /// The same with its rows padded to a multiple of this number of elements.
    fn padded(self, multiple: usize) -> Self {
        let [outer, middle, inner] = self.dimensions;
        let inner = inner.next_multiple_of(multiple);
        Self { dimensions: [outer, middle, inner], across_group: inner, ..self }
    }

    /// Whether its rows are longer than a line of memory and do not begin at whole lines. The copy engine loads them more
    /// slowly.
    fn ends_within_lines(&self, size: usize) -> bool {
        let bytes = self.dimensions[2] * size;
        bytes > LINE as usize && !bytes.is_multiple_of(LINE as usize)
    }

    /// The repacked layout: the columns of all groups, their taps, and the terms of these, padded to whole chunks.
    fn packed(
        conv: &Convolution,
        pass: Pass,
        repacked: Option<RepackedImage>,
        size: usize,
    ) -> Self {
        let columns = gather::columns(conv, pass);
        let [depth, height, width] = conv.filter().kernel().three(1);
        let (taps, inner) = match repacked {
            Some(repacked) if repacked.pads => (depth * height * width, repacked.pixel),
            Some(repacked) => (depth * repacked.taps, repacked.line(size)),
            None => (depth * height * width, gather::inner(conv, pass)),
        };
        // What is written anew begins at whole lines of memory, which are loaded faster.
        let line = LINE as usize / size;
        let multiple = if inner > line { line } else { CHUNK_BYTES / size };
        Self {
            dimensions: [columns * conv.groups(), taps, inner.next_multiple_of(multiple)],
            tap_first: false,
            mn_major: false,
            across_group: columns,
            term_group: 0,
        }
    }

    /// The distance from one group to the next along a line, in elements.
    fn group_step(&self) -> usize {
        if self.mn_major { self.across_group } else { self.term_group }
    }

    /// The size of one copy: whole lines, as many as a block has, or panels that are one line wide.
    pub(super) fn box_size(&self, lines: u32, line: u32, terms: u32) -> [usize; 3] {
        let lines = if self.mn_major { terms } else { lines } as usize;
        match self.tap_first {
            true => [1, lines, line as usize],
            false => [lines, 1, line as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use windowpane_geometry::{Extents, Filter, Shape, Window};

    use super::*;

    /// 1×1, channels first: 32 images of 64 × 64 pixels.
    fn pointwise(channels: usize, filters: usize, aligned: bool) -> Option<Product> {
        let shape = Shape::new(32, channels, Extents::from([64, 64])).unwrap();
        let filter = Filter::new(filters, channels, Extents::from([1, 1])).unwrap();
        let layouts = (Layout::ChannelsFirst, FilterLayout::Fchw);
        let window = Window::new([1, 1]);
        let conv = Convolution::new(shape, filter, &window, 1, layouts.0, layouts.1).unwrap();
        let request =
            Request { pass: Pass::Forward, dtype: DType::F16, precision: Precision::Strict };
        Product::new(&conv, request, aligned)
    }

    /// Rows stay in shared memory if one tile has them all, and there is room.
    #[test]
    fn rows_of_one_tile_are_resident() {
        let resident = |channels, filters, block_m| {
            let product = pointwise(channels, filters, false).unwrap();
            let tile = tile::with_block(block_m, 128);
            assert_eq!(product.terms_per_step(), 64);
            let walk = product.walks(&tile).next().unwrap();
            product.resident(&walk, &tile)
        };
        let rows = |rows| Resident { rows, columns: 0 };
        assert_eq!(resident(40, 48, 64), rows(1));
        assert_eq!(resident(144, 48, 64), rows(3));
        assert_eq!([resident(40, 72, 64), resident(40, 72, 128)], [rows(0), rows(1)]);
        assert_eq!([resident(1024, 64, 64), resident(704, 64, 64)], [rows(0), rows(11)]);
    }

    /// Filters are padded to whole lines of memory if they begin within sectors of 32 bytes.
    #[test]
    fn lines_within_sectors_are_padded() {
        let padded = |channels: usize| Some(pointwise(channels, 64, true)?.image());
        assert_eq!(padded(136), Some((vec![1, 1, 64, 192], vec![64 * 192, 64 * 192, 192, 1])));
        assert_eq!([padded(128), padded(48), padded(480)], [const { None }; 3]);
    }

    /// Filters that the copy engine cannot read as they are, are always padded.
    #[test]
    fn lines_of_no_whole_chunks_are_padded() {
        let product = pointwise(54, 64, false).unwrap();
        assert_eq!((product.pads_filters, product.image().0), (true, vec![1, 1, 64, 64]));
        assert!(pointwise(54, 64, true).is_none());
        assert!(!pointwise(56, 64, false).unwrap().pads_filters);
        // Biases are read in pairs.
        assert!(pointwise(64, 57, false).is_none());
    }

    /// Channels last: images of 28 × 28 pixels and 230 filters.
    fn last(batch: usize, channels: usize, kernel: usize) -> Product {
        let shape = Shape::new(batch, channels, Extents::from([28, 28])).unwrap();
        let filter = Filter::new(230, channels, Extents::from([kernel, kernel])).unwrap();
        let layouts = (Layout::ChannelsLast, FilterLayout::Fhwc);
        let window = Window::new([kernel, kernel]).padding([kernel / 2, kernel / 2]);
        let conv = Convolution::new(shape, filter, &window, 1, layouts.0, layouts.1).unwrap();
        let request =
            Request { pass: Pass::Forward, dtype: DType::F16, precision: Precision::Strict };
        Product::new(&conv, request, false).unwrap()
    }

    /// Rows are put one after the other if a tile has all columns, and taps share no runs with zeros between lines.
    #[test]
    fn rows_of_whole_tiles_are_dense() {
        let dense = |product: &Product, block_n: u32| {
            let tile = tile::with_block(128, block_n);
            let walk = product.walks(&tile).next().unwrap();
            (product.is_dense(&walk, &tile), walk.reach)
        };
        assert_eq!(dense(&last(2, 64, 1), 256), (true, 0));
        assert_eq!(dense(&last(2, 64, 1), 224), (false, 0));
        assert_eq!(dense(&last(2, 64, 3), 256), (true, 0));
        assert_eq!(dense(&last(2, 64, 3), 96), (false, 2));
    }

    /// Forward, pixels of many channels are padded where the copy engine cannot read them; those of few become lines.
    #[test]
    fn pixels_of_many_channels_are_padded() {
        let repacked = |channels, kernel| last(2, channels, kernel).repacked;
        assert!([116, 230, 921].iter().all(|of| repacked(*of, 3).unwrap().pads));
        assert!([3, 20, 36, 54].iter().all(|of| !repacked(*of, 3).unwrap().pads));
        assert!(!last(2, 230, 3).is_checked() && !last(2, 54, 1).is_checked());
        assert!(last(2, 20, 3).is_checked());
        assert_eq!(repacked(56, 3), None);
    }

    /// The fewest taps are those that are found by looking at each result.
    #[test]
    fn the_fewest_taps_are_found() {
        for (input, kernel, stride) in [1, 7, 24]
            .into_iter()
            .flat_map(|x| (1..=6).flat_map(move |k| (1..=4).map(move |s| (x, k, s))))
        {
            for (dilation, padding) in [(1, 0), (1, 1), (1, 3), (2, 2), (3, 0), (5, 5)] {
                let window = Window::new([kernel]).stride([stride]).dilation([dilation]);
                let shape = Shape::new(1, 8, Extents::from([input])).unwrap();
                let filter = Filter::new(8, 8, Extents::from([kernel])).unwrap();
                let layouts = (Layout::ChannelsLast, FilterLayout::Fhwc);
                let window = window.padding([padding]);
                let conv = Convolution::new(shape, filter, &window, 1, layouts.0, layouts.1);
                let Ok(conv) = conv else { continue };
                let axis = &conv.grid().axes()[AXES - 1];
                let inside = |o: usize, t: usize| {
                    let at = axis.coordinate(o, t);
                    (0..input as i64).contains(&at).then_some(at)
                };
                let all = || (0..axis.output()).flat_map(|o| (0..kernel).map(move |t| (o, t)));
                let fewest = |result: &dyn Fn(usize, usize) -> Option<i64>| {
                    let counted =
                        |at: i64| all().filter(|(o, t)| result(*o, *t) == Some(at)).count();
                    (0..64).map(counted).filter(|count| *count > 0).min().unwrap_or(0)
                };
                let forward = fewest(&|o, t| inside(o, t).map(|_| o as i64));
                assert_eq!(fewest_taps(&conv, Pass::Forward), forward, "{conv:?}");
                assert_eq!(fewest_taps(&conv, Pass::Data), fewest(&inside), "{conv:?}");
            }
        }
    }

    /// Factors are split where every sum has enough terms: with a stride of five, a tap is the only one of its phase, and
    /// without padding there is one tap at a corner.
    #[test]
    fn short_sums_are_not_of_split_factors() {
        let data = |filters, stride, padding| {
            let shape = Shape::new(1, 32, Extents::from([25, 25])).unwrap();
            let filter = Filter::new(filters, 32, Extents::from([5, 5])).unwrap();
            let layouts = (Layout::ChannelsLast, FilterLayout::Fhwc);
            let window = Window::new([5, 5]).stride([stride, stride]).padding([padding, padding]);
            let conv = Convolution::new(shape, filter, &window, 1, layouts.0, layouts.1).unwrap();
            let request =
                Request { pass: Pass::Data, dtype: DType::F32, precision: Precision::Strict };
            Product::new(&conv, request, false).is_some()
        };
        assert_eq!([data(6, 1, 2), data(6, 1, 0), data(6, 5, 0)], [true, false, false]);
        assert_eq!([data(64, 5, 0), data(255, 1, 0)], [true, true]);
    }
}
