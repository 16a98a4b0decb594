//! A filter for each channel: nothing is summed over channels, so nothing is a product of matrices.
//!
//! ```text
//! for each block of LINES by RUN neighbouring rows, for each vector of channels:       one unit
//!     for each line of pixels that the block reads:
//!         for each pixel of it that a row reads:     once, whatever the rows and taps that do
//!             for each row and tap by which it does:  sums[row] += pixel · w[tap]
//! ```
//!
//! Lanes lie along the channels. The taps along the width are unrolled, and with them which of a
//! pixel's readers exist; those along the height are counted. A block whose pixels are all there along
//! the width, as those of most are, has code of its own that does not ask. The gradient of the data is
//! the same thing over the windows that read a coordinate.
//!
//! Units that follow each other take neighbouring vectors of channels, 16 of them at most, then
//! neighbouring lines: a plane's loads fall together, its units are at the edge of the width together,
//! and what one block of lines reads the next finds in the cache. The weights of so many vectors lie
//! side by side, those of one tap after those of another, at distances that are compiled in.
//!
//! With channels first the lanes lie along the width, where the step from row to row is 1 and vectors divide
//! the lines: a line is loaded as whole vectors, inside or outside as such, and each tap takes its lanes
//! from two of them. Rows are then vectors of rows; a weight is one for all lanes.
//!
//! A GPU's unit holds a line's pixels in registers, and a weight only until its products are added. It
//! has several lines, and most of its pixels serve each. A processor's has one line, but a longer one,
//! holds the weights of a line of taps, and a pixel only until its products are added: its registers
//! are fewer and its loads cheaper.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Convolution, DType, Layout, Tile};

use super::blocks::operands;
use super::epilogue::{Epilogue, EpilogueForm, finish_with};
use super::gather::{Gather, GatherArgs, GatherForm, Sweep, row_point, tap_point};
use super::launch::{buffer, grid};
use super::pack::Packing;
use super::plan::{Pass, Plan, results};
use crate::dtype::{accumulator, elem};
use crate::pool::direct::unit_position;

/// The most vectors of channels whose weights lie side by side.
const MOST_TOGETHER: u32 = 16;

/// Neighbouring rows along the width, and the pixels of a line that they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Run {
    pub(super) rows: u32,
    /// The pixels between those that neighbours read by one tap.
    pub(super) step: i32,
    /// The taps along the width, and the pixels between them.
    pub(super) taps: u32,
    pub(super) tap_step: i32,
}

impl Run {
    pub(super) fn new(rows: u32, width: &Sweep) -> Self {
        let (step, tap_step) = (width.step as i32, width.tap_step as i32);
        Self { rows, step, taps: width.taps as u32, tap_step }
    }

    /// The first pixel that some row reads, from the first row's own, and how many there are from it to
    /// the last.
    pub(super) fn pixels(&self) -> (i32, u32) {
        let rows = (self.rows as i32 - 1) * self.step;
        let taps = (self.taps.max(1) as i32 - 1) * self.tap_step;
        let (first, last) = (taps.min(0), rows + taps.max(0));
        (first, (last - first + 1) as u32)
    }

    /// The pixel that row `r` reads by tap `t`.
    pub(super) fn pixel(&self, r: u32, t: u32) -> u32 {
        (r as i32 * self.step + t as i32 * self.tap_step - self.pixels().0) as u32
    }

    /// Whether any row reads pixel `p`.
    pub(super) fn is_read(&self, p: u32) -> bool {
        (0..self.rows).any(|r| (0..self.taps).any(|t| self.pixel(r, t) == p))
    }
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    along: Run,
    /// How many of the filter's taps along the width are from one of them to the next.
    tap_jump: u32,
    /// The lines of a unit, and whether later taps read earlier lines.
    lines: u32,
    up: bool,
    /// The vectors of channels whose weights lie side by side.
    together: u32,
    /// Where lanes lie along the width.
    across: Option<Across>,
    gather: GatherForm,
    epilogue: EpilogueForm,
    /// Whether units are threads of a processor.
    runs: bool,
}

/// How lanes lie along the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Across {
    lanes: i32,
    /// The coordinate that the first row reads by its first tap.
    start: i32,
}

impl Form {
    /// The vectors of pixels before those of a unit's first row at which its lines begin.
    fn lead(&self, across: Across) -> i32 {
        -(across.start + self.along.pixels().0).div_euclid(across.lanes)
    }

    /// Where in the vectors of a line lane `i` of row `r` finds tap `t`.
    fn element(&self, across: Across, r: u32, t: u32, i: usize) -> usize {
        let first = (self.lead(across) + r as i32) * across.lanes + across.start;
        (first + t as i32 * self.along.tap_step + i as i32) as usize
    }

    /// The vectors of a line.
    fn vectors(&self, across: Across) -> u32 {
        let last = |t| self.element(across, self.along.rows - 1, t, across.lanes as usize - 1);
        let last = last(0).max(last(self.along.taps.max(1) - 1));
        (last / across.lanes as usize + 1) as u32
    }

    /// The lines of pixels from the first that the unit reads to the first that line `r` of it does.
    fn ahead(&self, r: u32) -> u32 {
        if self.up { self.lines - 1 - r } else { r }
    }
}

/// The elements that lie together in memory and may be the lanes of a vector.
pub(super) fn neighbours(conv: &Convolution) -> usize {
    let width = &conv.grid().axes()[AXES - 1];
    match conv.layout() {
        Layout::ChannelsLast => conv.input().channels(),
        Layout::ChannelsFirst if width.stride() == 1 => {
            1 << width.input().trailing_zeros().min(width.output().trailing_zeros())
        }
        Layout::ChannelsFirst => 1,
    }
}

/// The vectors of channels whose weights lie side by side.
fn together(conv: &Convolution, lanes: usize) -> usize {
    match conv.layout() {
        Layout::ChannelsLast => {
            let vectors = conv.input().channels() / lanes;
            1 << vectors.trailing_zeros().min(MOST_TOGETHER.ilog2())
        }
        Layout::ChannelsFirst => 1,
    }
}

/// How the weights are laid out for so many lanes.
pub(super) fn packing(conv: &Convolution, pass: Pass, lanes: usize) -> Packing {
    match conv.layout() {
        Layout::ChannelsLast => Packing::beside(conv, pass, together(conv, lanes) * lanes),
        Layout::ChannelsFirst => Packing::repeated(conv, pass, lanes),
    }
}

/// The numbers of a launch beside those of the gather.
#[derive(CubeType, CubeLaunch)]
struct BlockArgs {
    units: u32,
    /// The blocks along the height and the width, and the chunks of vectors side by side.
    lines: FastDivmod<u32>,
    runs: FastDivmod<u32>,
    chunks: FastDivmod<u32>,
    /// The rows along the height, and the rows or vectors of them along the width.
    height: u32,
    width: u32,
    slope: f32,
}

/// Launches the convolution or the gradient of its input, `[a, w, out]`.
pub(super) fn launch(
    client: &Client,
    conv: &Convolution,
    pass: Pass,
    dtype: DType,
    plan: &Plan,
    [a, w, out]: [&Handle; 3],
    epilogue: Epilogue<'_>,
) {
    // The plan was checked: it has a tile.
    let Some(tile) = plan.tile else { return };
    let lanes = tile.elems_per_thread as usize;
    let channels = conv.input().channels();
    let packing = packing(conv, pass, lanes);
    let packed = packing.pack(client, conv, dtype, plan, w);
    // The lanes along the channels, and those along the width.
    let (of_channels, of_rows) = match conv.layout() {
        Layout::ChannelsLast => (lanes, 1),
        Layout::ChannelsFirst => (1, lanes),
    };
    let together = together(conv, lanes);
    let [inputs, _] = operands(conv, pass);
    let results = results(conv, pass);
    for gather in Gather::all(conv, pass) {
        let form = form(conv, pass, plan, &tile, &gather, together, epilogue.form(dtype));
        let [_, Sweep { rows: height, .. }, Sweep { rows: columns, .. }] = gather.axes;
        let (width, vectors) = (columns / of_rows, channels / of_channels);
        let lines = height.div_ceil(form.lines as usize);
        let runs = width.div_ceil(form.along.rows as usize);
        let units = gather.rows(conv) / height / columns * lines * runs * vectors;
        let (cubes, dim) = grid(client, plan, units);
        // SAFETY: lines outside are skipped and pixels outside moved inside, or skipped; rows past the
        // last are stored nowhere.
        unsafe {
            depthwise::launch_unchecked(
                client,
                cubes,
                dim,
                lanes,
                of_channels,
                buffer(a, inputs / lanes),
                buffer(&packed, packing.elements() / lanes),
                epilogue.bias(channels, of_channels),
                epilogue.residual(results, lanes),
                buffer(out, results / lanes),
                gather.args(conv, &packing.steps()),
                BlockArgsLaunch::new(
                    units as u32,
                    lines as u32,
                    runs as u32,
                    (vectors / together) as u32,
                    height as u32,
                    width as u32,
                    epilogue.slope(),
                ),
                form,
                elem(dtype),
                elem(accumulator(dtype)),
            )
        }
    }
}

fn form(
    conv: &Convolution,
    pass: Pass,
    plan: &Plan,
    tile: &Tile,
    gather: &Gather,
    together: usize,
    epilogue: EpilogueForm,
) -> Form {
    let [_, height, width] = gather.axes;
    // Lines share pixels where the next of them reads the next line.
    let shares = conv.grid().rank() > 1 && height.step == 1 && height.tap_step.abs() == 1;
    let lanes = tile.elems_per_thread as i32;
    let across = (conv.layout() == Layout::ChannelsFirst && lanes > 1)
        .then_some(Across { lanes, start: width.start as i32 });
    Form {
        along: Run::new(tile.ratio_m, &width),
        tap_jump: width.tap_jump as u32,
        lines: if shares && (!plan.runs || across.is_some()) { tile.ratio_n } else { 1 },
        up: height.tap_step < 0,
        together: together as u32,
        across,
        gather: GatherForm::new(conv, pass),
        epilogue,
        runs: plan.runs,
    }
}

/// Where a unit's work is.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Place {
    /// The samples and depths before it.
    outer: u32,
    /// Its first row.
    line: u32,
    along: u32,
    /// The chunk of its vector of channels, and the vector's place there.
    chunk: u32,
    beside: u32,
}

#[cube]
fn place_of(block: &BlockArgs, i: u32, #[comptime] form: Form) -> Place {
    let (rest, beside) = (i / comptime!(form.together), i % comptime!(form.together));
    let (rest, line) = block.lines.div_mod(rest);
    let (rest, along) = block.runs.div_mod(rest);
    let (outer, chunk) = block.chunks.div_mod(rest);
    Place {
        outer,
        line: line * comptime!(form.lines),
        along: along * comptime!(form.along.rows),
        chunk,
        beside,
    }
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "the tensors and numbers of a launch")]
fn depthwise<S: Float, A: Float, N: Size, C: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    bias: ComptimeOption<Box<[Vector<S, C>]>>,
    residual: ComptimeOption<Box<[Vector<S, N>]>>,
    out: &mut [Vector<S, N>],
    gather: &GatherArgs,
    block: &BlockArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let i = unit_position(form.runs);
    if i >= block.units {
        terminate!();
    }
    let lanes = N::value() as u32;
    let place = place_of(block, i, form);
    let vector = place.chunk * comptime!(form.together) + place.beside;
    let (channel, rows) = if comptime!(form.across.is_some()) {
        (vector, lanes)
    } else {
        (vector * lanes, 1u32.runtime())
    };
    let first = (place.outer * block.height + place.line) * block.width + place.along;
    let row = row_point(gather, first * rows, form.gather);

    let mut sums = Sequence::<RuntimeCell<Vector<A, N>>>::new();
    #[unroll]
    for _ in 0..comptime!(form.lines * form.along.rows) {
        sums.push(RuntimeCell::new(Vector::new(A::from_int(0))));
    }
    let (start, reach, extent) = if comptime!(form.across.is_some()) {
        let across = comptime!(form.across.unwrap_or(Across { lanes: 1, start: 0 }));
        let start = place.along as i32 - comptime!(form.lead(across));
        let reach = comptime!(form.vectors(across) as i32);
        (start, reach.runtime(), gather.width.extent / lanes as i32)
    } else {
        let (first, pixels) = comptime!(form.along.pixels());
        (row.width + first, (pixels as i32).runtime(), gather.width.extent)
    };
    let whole = start >= 0 && start + reach <= extent;
    let first_line =
        if comptime!(form.up) { row.height + comptime!(form.lines as i32 - 1) } else { row.height };
    let plane = row.a + channel * gather.a_group;
    for td in 0..gather.depth.taps_count {
        let d = row.depth + td as i32 * gather.depth.tap_step;
        if d >= 0 && d < gather.depth.extent {
            let plane = plane + (d * gather.depth.a_step) as u32;
            let weights = tap_point(gather, td, 0u32, 0u32).other + place.chunk * gather.b_group;
            for y in 0..gather.height.taps_count + comptime!(form.lines - 1) {
                let h = first_line + y as i32 * gather.height.tap_step;
                if h >= 0 && h < gather.height.extent {
                    let line = Line {
                        at: ((plane + (h * gather.height.a_step) as u32) / lanes) as usize,
                        start,
                        extent,
                        y,
                        weights: weights / lanes + place.beside,
                    };
                    if whole {
                        add_line::<S, A, N>(a, packed, gather, &line, &sums, false, form);
                    } else {
                        add_line::<S, A, N>(a, packed, gather, &line, &sums, true, form);
                    }
                }
            }
        }
    }

    let base = row.other + channel * gather.out_group;
    #[unroll]
    for l in 0..form.lines {
        if place.line + l < block.height {
            #[unroll]
            for r in 0..form.along.rows {
                if place.along + r < block.width {
                    let along = r * rows * gather.width.out_step;
                    let at = (base + l * gather.height.out_step + along) / lanes;
                    let sum = sums.index(comptime!((l * form.along.rows + r) as usize)).read();
                    let sum = with_bias::<S, A, N, C>(&bias, sum, vector, form);
                    out[at as usize] =
                        finish_with::<S, A, N>(&residual, sum, at, block.slope, form.epilogue);
                }
            }
        }
    }
}

/// A sum and its bias: one for each lane, or one for all.
#[cube]
fn with_bias<S: Float, A: Float, N: Size, C: Size>(
    bias: &ComptimeOption<Box<[Vector<S, C>]>>,
    sum: Vector<A, N>,
    vector: u32,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let mut sum = sum;
    #[comptime]
    match bias {
        ComptimeOption::Some(bias) => {
            let bias = bias[vector as usize];
            if comptime!(form.across.is_some()) {
                sum += Vector::new(A::cast_from(bias.extract(0usize)));
            } else {
                sum += Vector::cast_from(bias);
            }
        }
        ComptimeOption::None => {}
    }
    sum
}

/// A line of pixels.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Line {
    /// The vector in memory of its coordinate 0.
    at: usize,
    /// The coordinate of the first pixel, or vector of them, that the unit reads, and how many there are.
    start: i32,
    extent: i32,
    /// The lines that the unit reads before it.
    y: u32,
    /// The vector of packed weights that the first line of taps begins with.
    weights: u32,
}

/// Adds what a line of pixels gives to all rows that read it.
#[cube]
fn add_line<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    gather: &GatherArgs,
    line: &Line,
    sums: &Sequence<RuntimeCell<Vector<A, N>>>,
    #[comptime] clipped: bool,
    #[comptime] form: Form,
) {
    if comptime!(form.across.is_some()) {
        add_across::<S, A, N>(a, packed, gather, line, sums, clipped, form);
    } else if comptime!(form.runs) {
        add_by_pixel::<S, A, N>(a, packed, gather, line, sums, clipped, form);
    } else {
        add_by_tap::<S, A, N>(a, packed, gather, line, sums, clipped, form);
    }
}

/// Adds a line whose weights are held, one pixel after another.
#[cube]
fn add_by_pixel<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    gather: &GatherArgs,
    line: &Line,
    sums: &Sequence<RuntimeCell<Vector<A, N>>>,
    #[comptime] clipped: bool,
    #[comptime] form: Form,
) {
    let weights = weights_of::<N>(gather, line, line.y);
    let mut held = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for t in 0..form.along.taps {
        held.push(packed[weights + comptime!((t * form.tap_jump * form.together) as usize)]);
    }
    #[unroll]
    for p in 0..comptime!(form.along.pixels().1) {
        if comptime!(form.along.is_read(p)) {
            if comptime!(clipped) {
                let x = line.start + p as i32;
                if x >= 0 && x < line.extent {
                    let pixel = pixel_at::<S, A, N>(a, gather, line.at, x, 0u32);
                    add_pixel::<A, N>(&held, pixel, sums, p, form);
                }
            } else {
                let pixel = pixel_at::<S, A, N>(a, gather, line.at, line.start, p);
                add_pixel::<A, N>(&held, pixel, sums, p, form);
            }
        }
    }
}

/// Adds what a pixel gives to each row that reads it.
#[cube]
fn add_pixel<A: Float, N: Size>(
    weights: &Sequence<Vector<A, N>>,
    pixel: Vector<A, N>,
    sums: &Sequence<RuntimeCell<Vector<A, N>>>,
    #[comptime] p: u32,
    #[comptime] form: Form,
) {
    #[unroll]
    for r in 0..form.along.rows {
        #[unroll]
        for t in 0..form.along.taps {
            if comptime!(form.along.pixel(r, t) == p) {
                let sum = sums.index(comptime!(r as usize));
                sum.store(fma(pixel, *weights.index(comptime!(t as usize)), sum.read()));
            }
        }
    }
}

/// Adds a line whose pixels are held, one weight after another.
#[cube]
fn add_by_tap<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    gather: &GatherArgs,
    line: &Line,
    sums: &Sequence<RuntimeCell<Vector<A, N>>>,
    #[comptime] clipped: bool,
    #[comptime] form: Form,
) {
    let pixels =
        pixels_of::<S, A, N>(a, gather, line.at, line.start, line.extent, clipped, form.along);
    #[unroll]
    for l in 0..form.lines {
        let ahead = comptime!(form.ahead(l));
        let reads = if comptime!(form.lines > 1) {
            line.y >= ahead && line.y - ahead < gather.height.taps_count
        } else {
            true.runtime()
        };
        if reads {
            let weights = weights_of::<N>(gather, line, line.y - ahead);
            #[unroll]
            for t in 0..form.along.taps {
                let tap = comptime!((t * form.tap_jump * form.together) as usize);
                let weight = packed[weights + tap];
                #[unroll]
                for r in 0..form.along.rows {
                    let sum = sums.index(comptime!((l * form.along.rows + r) as usize));
                    let pixel = *pixels.index(comptime!(form.along.pixel(r, t) as usize));
                    sum.store(fma(pixel, weight, sum.read()));
                }
            }
        }
    }
}

/// Adds a line along which the lanes lie.
#[cube]
fn add_across<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    gather: &GatherArgs,
    line: &Line,
    sums: &Sequence<RuntimeCell<Vector<A, N>>>,
    #[comptime] clipped: bool,
    #[comptime] form: Form,
) {
    let across = comptime!(form.across.unwrap_or(Across { lanes: 1, start: 0 }));
    let mut vectors = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for v in 0..comptime!(form.vectors(across)) {
        if comptime!(clipped) {
            let x = line.start + v as i32;
            let inside = x >= 0 && x < line.extent;
            let there = line.at + select(inside, x, 0i32) as u32 as usize;
            let vector = Vector::<A, N>::cast_from(a[there]);
            vectors.push(select(inside, vector, Vector::new(A::from_int(0))));
        } else {
            let first = line.at + line.start as u32 as usize;
            vectors.push(Vector::cast_from(a[first + comptime!(v as usize)]));
        }
    }
    // Only the first and the last lines are not read for all of the unit's.
    let taps = gather.height.taps_count;
    if line.y >= comptime!(form.lines - 1) && line.y < taps {
        #[unroll]
        for t in 0..form.along.taps {
            let mut weights = Sequence::<Vector<A, N>>::new();
            #[unroll]
            for l in 0..form.lines {
                let th = line.y - comptime!(form.ahead(l));
                let at = weights_of::<N>(gather, line, th);
                weights.push(packed[at + comptime!((t * form.tap_jump) as usize)]);
            }
            #[unroll]
            for r in 0..form.along.rows {
                let pixels = lanes_of::<A, N>(&vectors, r, t, form);
                #[unroll]
                for l in 0..form.lines {
                    let sum = sums.index(comptime!((l * form.along.rows + r) as usize));
                    let weight = *weights.index(comptime!(l as usize));
                    sum.store(fma(pixels, weight, sum.read()));
                }
            }
        }
    } else {
        #[unroll]
        for l in 0..form.lines {
            let ahead = comptime!(form.ahead(l));
            if line.y >= ahead && line.y - ahead < taps {
                let weights = weights_of::<N>(gather, line, line.y - ahead);
                #[unroll]
                for t in 0..form.along.taps {
                    let weight = packed[weights + comptime!((t * form.tap_jump) as usize)];
                    #[unroll]
                    for r in 0..form.along.rows {
                        let pixels = lanes_of::<A, N>(&vectors, r, t, form);
                        let sum = sums.index(comptime!((l * form.along.rows + r) as usize));
                        sum.store(fma(pixels, weight, sum.read()));
                    }
                }
            }
        }
    }
}

/// What the lanes of row `r` find at tap `t`.
#[cube]
fn lanes_of<A: Float, N: Size>(
    vectors: &Sequence<Vector<A, N>>,
    #[comptime] r: u32,
    #[comptime] t: u32,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let across = comptime!(form.across.unwrap_or(Across { lanes: 1, start: 0 }));
    let mut pixels = Vector::<A, N>::new(A::from_int(0));
    #[unroll]
    for i in 0..N::value() {
        let element = comptime!(form.element(across, r, t, i));
        let vector = *vectors.index(comptime!(element / across.lanes as usize));
        pixels.insert(i, vector.extract(comptime!(element % across.lanes as usize)));
    }
    pixels
}

/// The pixels of a line from coordinate `start` on that a run reads, zeros where there are none.
#[cube]
pub(super) fn pixels_of<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    gather: &GatherArgs,
    line: usize,
    start: i32,
    extent: i32,
    #[comptime] clipped: bool,
    #[comptime] run: Run,
) -> Sequence<Vector<A, N>> {
    let zero = Vector::<A, N>::new(A::from_int(0));
    let mut pixels = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for p in 0..comptime!(run.pixels().1) {
        if comptime!(!run.is_read(p)) {
            pixels.push(zero);
        } else if comptime!(clipped) {
            let x = start + p as i32;
            let inside = x >= 0 && x < extent;
            let pixel = pixel_at::<S, A, N>(a, gather, line, select(inside, x, 0i32), 0u32);
            pixels.push(select(inside, pixel, zero));
        } else {
            pixels.push(pixel_at::<S, A, N>(a, gather, line, start, p));
        }
    }
    pixels
}

/// The pixel at coordinate `x + p` of a line, of which `x` is not negative.
#[cube]
fn pixel_at<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    gather: &GatherArgs,
    line: usize,
    x: i32,
    #[comptime] p: u32,
) -> Vector<A, N> {
    // Positions as wide as addresses are: what wraps cannot be folded into them.
    let step = (gather.width.a_step as u32 / N::value() as u32) as usize;
    Vector::cast_from(a[line + x as u32 as usize * step + comptime!(p as usize) * step])
}

/// Where the weights of line `th` of taps begin.
#[cube]
fn weights_of<N: Size>(gather: &GatherArgs, line: &Line, th: u32) -> usize {
    (line.weights + th * (gather.height.b_step / N::value() as u32)) as usize
}
