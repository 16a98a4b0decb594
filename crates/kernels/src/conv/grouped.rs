//! Groups of few channels: too few columns for a block of a product, too many terms for one filter a
//! channel.
//!
//! ```text
//! for each run of neighbouring rows along the width, for each vector of filters:       one unit
//!     for each line of taps, for each vector of its group's channels:
//!         pixels ← those that the run reads              a few vectors, each for several rows and taps
//!         for each tap, for each channel of the vector:
//!             for each row:  sums[row] += pixel[channel] · w[tap, channel]
//! ```
//!
//! A unit's vector of filters is of one group. Units that follow each other take the vectors of
//! neighbouring groups, whose weights are laid side by side for them, and then neighbouring lines: so what
//! a plane loads lies together, though each group sees only its own channels. The gradient of the data is
//! the same over the windows that read a coordinate.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Convolution, DType};

use super::blocks::operands;
use super::depthwise::{Run, pixels_of};
use super::epilogue::{Epilogue, EpilogueForm, finish_at};
use super::gather::{Gather, GatherArgs, GatherForm, Sweep, columns, inner, row_point, tap_point};
use super::launch::{buffer, grid};
use super::pack::Packing;
use super::plan::{Pass, Plan, results};
use crate::dtype::{accumulator, elem};
use crate::pool::direct::unit_position;

/// The lanes of every vector: channels that are read, or filters.
pub(super) const LANES: usize = 4;

/// The most vectors of filters whose weights lie side by side.
const MOST_TOGETHER: usize = 16;

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    along: Run,
    /// How many of the filter's taps along the width are from one of them to the next.
    tap_jump: u32,
    /// The vectors of channels that a group reads.
    inner: u32,
    /// The vectors of filters of a group, and of the groups whose weights lie side by side.
    columns: u32,
    together: u32,
    gather: GatherForm,
    epilogue: EpilogueForm,
}

impl Form {
    /// The vectors of packed weights from a tap to the next along the width.
    fn tap(&self) -> u32 {
        self.tap_jump * self.inner * LANES as u32 * self.together
    }
}

/// The numbers of a launch beside those of the gather.
#[derive(CubeType, CubeLaunch)]
struct BlockArgs {
    units: u32,
    /// The rows along the height, the runs along the width, and the chunks of vectors side by side.
    lines: FastDivmod<u32>,
    runs: FastDivmod<u32>,
    chunks: FastDivmod<u32>,
    /// The rows along the height and the width.
    height: u32,
    width: u32,
    slope: f32,
}

/// How the weights are laid out.
pub(super) fn packing(conv: &Convolution, pass: Pass) -> Packing {
    let most = MOST_TOGETHER / (columns(conv, pass) / LANES).max(1);
    let beside = 1 << conv.groups().trailing_zeros().min(most.max(1).ilog2());
    Packing::beside(conv, pass, beside)
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
    let packing = packing(conv, pass);
    let packed = packing.pack(client, conv, dtype, plan, w);
    let (inner, columns) = (inner(conv, pass) / LANES, columns(conv, pass) / LANES);
    let together = packing.steps().inner / LANES;
    let vectors = conv.groups() * columns;
    let [inputs, _] = operands(conv, pass);
    let results = results(conv, pass);
    for gather in Gather::all(conv, pass) {
        let [_, Sweep { rows: height, .. }, along] = gather.axes;
        let form = Form {
            along: Run::new(tile.ratio_m, &along),
            tap_jump: along.tap_jump as u32,
            inner: inner as u32,
            columns: columns as u32,
            together: together as u32,
            gather: GatherForm::new(conv, pass),
            epilogue: epilogue.form(dtype),
        };
        let runs = along.rows.div_ceil(tile.ratio_m as usize);
        let units = gather.rows(conv) / along.rows * runs * vectors;
        let (cubes, dim) = grid(client, plan, units);
        // SAFETY: lines outside are skipped and pixels outside moved inside; rows past the last are
        // stored nowhere.
        unsafe {
            grouped::launch_unchecked(
                client,
                cubes,
                dim,
                LANES,
                buffer(a, inputs / LANES),
                buffer(&packed, packing.elements() / LANES),
                epilogue.bias(conv.filter().count(), LANES),
                epilogue.residual(results, LANES),
                buffer(out, results / LANES),
                gather.args(conv, &packing.steps()),
                BlockArgsLaunch::new(
                    units as u32,
                    height as u32,
                    runs as u32,
                    (vectors / together) as u32,
                    height as u32,
                    along.rows as u32,
                    epilogue.slope(),
                ),
                form,
                elem(dtype),
                elem(accumulator(dtype)),
            )
        }
    }
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "the tensors and numbers of a launch")]
fn grouped<S: Float, A: Float, N: Size>(
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
    let i = unit_position(false);
    if i >= block.units {
        terminate!();
    }
    let lanes = N::value() as u32;
    let (rest, beside) = (i / comptime!(form.together), i % comptime!(form.together));
    let (rest, line) = block.lines.div_mod(rest);
    let (rest, run) = block.runs.div_mod(rest);
    let (outer, chunk) = block.chunks.div_mod(rest);
    let vector = chunk * comptime!(form.together) + beside;
    let group = vector / comptime!(form.columns);
    let first = run * comptime!(form.along.rows);
    let row = row_point(gather, (outer * block.height + line) * block.width + first, form.gather);

    let mut sums = Sequence::<RuntimeCell<Vector<A, N>>>::new();
    #[unroll]
    for _ in 0..form.along.rows {
        sums.push(RuntimeCell::new(Vector::new(A::from_int(0))));
    }
    let (first_pixel, pixels) = comptime!(form.along.pixels());
    let start = row.width + first_pixel;
    let whole = start >= 0 && start + comptime!(pixels as i32) <= gather.width.extent;
    let plane = row.a + group * gather.a_group;
    for td in 0..gather.depth.taps_count {
        let d = row.depth + td as i32 * gather.depth.tap_step;
        for th in 0..gather.height.taps_count {
            let h = row.height + th as i32 * gather.height.tap_step;
            let inside = d >= 0 && d < gather.depth.extent && h >= 0 && h < gather.height.extent;
            if inside {
                let at = (d * gather.depth.a_step + h * gather.height.a_step) as u32;
                let line = ((plane + at) / lanes) as usize;
                let tap = tap_point(gather, td, th, 0u32);
                let weights = ((tap.other + chunk * gather.b_group) / lanes + beside) as usize;
                for channels in 0..comptime!(form.inner).runtime() {
                    let line = line + channels as usize;
                    let step = comptime!((LANES as u32 * form.together) as usize);
                    let weights = weights + channels as usize * step;
                    if whole {
                        add_line::<S, A, N>(
                            a, packed, gather, line, start, weights, &sums, false, form,
                        );
                    } else {
                        add_line::<S, A, N>(
                            a, packed, gather, line, start, weights, &sums, true, form,
                        );
                    }
                }
            }
        }
    }

    let base = row.other + vector * lanes;
    #[unroll]
    for r in 0..form.along.rows {
        if first + r < block.width {
            let at = (base + r * gather.width.out_step) / lanes;
            let sum = sums.index(comptime!(r as usize)).read();
            out[at as usize] =
                finish_at::<S, A, N>(&bias, &residual, sum, vector, at, block.slope, form.epilogue);
        }
    }
}

/// Adds what a line of pixels, a vector of whose channels begins at `line`, gives to all rows.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn add_line<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    gather: &GatherArgs,
    line: usize,
    start: i32,
    weights: usize,
    sums: &Sequence<RuntimeCell<Vector<A, N>>>,
    #[comptime] clipped: bool,
    #[comptime] form: Form,
) {
    let extent = gather.width.extent;
    let pixels = pixels_of::<S, A, N>(a, gather, line, start, extent, clipped, form.along);
    #[unroll]
    for t in 0..form.along.taps {
        #[unroll]
        for channel in 0..N::value() {
            let at = comptime!(t * form.tap() + channel as u32 * form.together);
            let weight = packed[weights + comptime!(at as usize)];
            #[unroll]
            for r in 0..form.along.rows {
                let pixel = *pixels.index(comptime!(form.along.pixel(r, t) as usize));
                let pixel = Vector::<A, N>::new(pixel.extract(channel));
                let sum = sums.index(comptime!(r as usize));
                sum.store(fma(pixel, weight, sum.read()));
            }
        }
    }
}
