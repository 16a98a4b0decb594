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
//! A GPU's unit holds a line's pixels in registers, and a weight only until its products are added. It
//! has several lines, and most of its pixels serve each. A processor's has one line, but a longer one,
//! holds the weights of a line of taps, and a pixel only until its products are added: its registers
//! are fewer and its loads cheaper.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Convolution, DType, Layout, Tile};

use super::epilogue::{Epilogue, EpilogueForm, finish_at};
use super::gather::{Gather, GatherArgs, GatherForm, Sweep, row_point, tap_point};
use super::launch::{buffer, grid};
use super::pack::Packing;
use super::plan::{Pass, Plan, results};
use crate::dtype::{accumulator, elem};
use crate::pool::direct::unit_position;

/// The most vectors of channels whose weights lie side by side.
const MOST_TOGETHER: u32 = 16;

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// The rows of a unit along the width, and the pixels between those that neighbours read by one
    /// tap.
    run: u32,
    step: i32,
    /// The taps along the width, the pixels between them, and how many of the filter's lie between.
    taps: u32,
    tap_step: i32,
    tap_jump: u32,
    /// The lines of a unit, and whether later taps read earlier lines.
    lines: u32,
    up: bool,
    /// The vectors of channels whose weights lie side by side.
    together: u32,
    gather: GatherForm,
    epilogue: EpilogueForm,
    /// Whether units are threads of a processor.
    runs: bool,
}

impl Form {
    /// The first pixel of a line that some row of the run reads, from the run's first, and how many
    /// there are from it to the last.
    fn pixels(&self) -> (i32, u32) {
        let rows = (self.run as i32 - 1) * self.step;
        let taps = (self.taps.max(1) as i32 - 1) * self.tap_step;
        let (first, last) = (taps.min(0), rows + taps.max(0));
        (first, (last - first + 1) as u32)
    }

    /// The pixel that row `r` reads by tap `t`.
    fn pixel(&self, r: u32, t: u32) -> u32 {
        (r as i32 * self.step + t as i32 * self.tap_step - self.pixels().0) as u32
    }

    /// Whether any row reads pixel `p`.
    fn is_read(&self, p: u32) -> bool {
        (0..self.run).any(|r| (0..self.taps).any(|t| self.pixel(r, t) == p))
    }

    /// The lines of pixels from the first that the unit reads to the first that line `r` of it does.
    fn ahead(&self, r: u32) -> u32 {
        if self.up { self.lines - 1 - r } else { r }
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
    /// The rows along the height and the width.
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
    let vectors = channels / lanes;
    let together = match conv.layout() {
        Layout::ChannelsLast => 1 << vectors.trailing_zeros().min(MOST_TOGETHER.ilog2()),
        Layout::ChannelsFirst => 1,
    };
    let packing = Packing::depthwise(conv, pass, together * lanes);
    let packed = packing.pack(client, conv, dtype, plan, w);
    let inputs = match pass {
        Pass::Data => conv.output().elements(),
        _ => conv.input().elements(),
    };
    let results = results(conv, pass);
    for gather in Gather::all(conv, pass) {
        let form = form(conv, pass, plan, &tile, &gather, together, epilogue.form(dtype));
        let [_, Sweep { rows: height, .. }, Sweep { rows: width, .. }] = gather.axes;
        let lines = height.div_ceil(form.lines as usize);
        let runs = width.div_ceil(form.run as usize);
        let units = gather.rows(conv) / height / width * lines * runs * vectors;
        let (cubes, dim) = grid(client, plan, units);
        // SAFETY: lines outside are skipped and pixels outside moved inside, or skipped; rows past the
        // last are stored nowhere.
        unsafe {
            depthwise::launch_unchecked(
                client,
                cubes,
                dim,
                lanes,
                buffer(a, inputs / lanes),
                buffer(&packed, packing.elements() / lanes),
                epilogue.bias(channels, lanes),
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
    Form {
        run: tile.ratio_m,
        step: width.step as i32,
        taps: width.taps as u32,
        tap_step: width.tap_step as i32,
        tap_jump: width.tap_jump as u32,
        lines: if shares && !plan.runs { tile.ratio_n } else { 1 },
        up: height.tap_step < 0,
        together: together as u32,
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
        along: along * comptime!(form.run),
        chunk,
        beside,
    }
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "the tensors and numbers of a launch")]
fn depthwise<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    bias: ComptimeOption<Box<[Vector<S, N>]>>,
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
    let channel = vector * lanes;
    let first = (place.outer * block.height + place.line) * block.width + place.along;
    let row = row_point(gather, first, form.gather);

    let mut sums = Sequence::<RuntimeCell<Vector<A, N>>>::new();
    #[unroll]
    for _ in 0..comptime!(form.lines * form.run) {
        sums.push(RuntimeCell::new(Vector::new(A::from_int(0))));
    }
    let (first_pixel, pixels) = comptime!(form.pixels());
    let start = row.width + first_pixel;
    let whole = start >= 0 && start + comptime!(pixels as i32) <= gather.width.extent;
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
            for r in 0..form.run {
                if place.along + r < block.width {
                    let at = base + l * gather.height.out_step + r * gather.width.out_step;
                    let at = at / lanes;
                    let sum = sums.index(comptime!((l * form.run + r) as usize)).read();
                    out[at as usize] = finish_at::<S, A, N>(
                        &bias,
                        &residual,
                        sum,
                        vector,
                        at,
                        block.slope,
                        form.epilogue,
                    );
                }
            }
        }
    }
}

/// A line of pixels.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Line {
    /// The vector in memory of its coordinate 0.
    at: usize,
    /// The coordinate of the first pixel that some row of the run reads.
    start: i32,
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
    if comptime!(form.runs) {
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
    for t in 0..form.taps {
        held.push(packed[weights + comptime!((t * form.tap_jump * form.together) as usize)]);
    }
    #[unroll]
    for p in 0..comptime!(form.pixels().1) {
        if comptime!(form.is_read(p)) {
            if comptime!(clipped) {
                let x = line.start + p as i32;
                if x >= 0 && x < gather.width.extent {
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
    for r in 0..form.run {
        #[unroll]
        for t in 0..form.taps {
            if comptime!(form.pixel(r, t) == p) {
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
    let zero = Vector::<A, N>::new(A::from_int(0));
    let mut pixels = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for p in 0..comptime!(form.pixels().1) {
        if comptime!(!form.is_read(p)) {
            pixels.push(zero);
        } else if comptime!(clipped) {
            let x = line.start + p as i32;
            let inside = x >= 0 && x < gather.width.extent;
            let x = select(inside, x, 0i32);
            let pixel = pixel_at::<S, A, N>(a, gather, line.at, x, 0u32);
            pixels.push(select(inside, pixel, zero));
        } else {
            pixels.push(pixel_at::<S, A, N>(a, gather, line.at, line.start, p));
        }
    }
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
            for t in 0..form.taps {
                let tap = comptime!((t * form.tap_jump * form.together) as usize);
                let weight = packed[weights + tap];
                #[unroll]
                for r in 0..form.run {
                    let sum = sums.index(comptime!((l * form.run + r) as usize));
                    let pixel = *pixels.index(comptime!(form.pixel(r, t) as usize));
                    sum.store(fma(pixel, weight, sum.read()));
                }
            }
        }
    }
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
