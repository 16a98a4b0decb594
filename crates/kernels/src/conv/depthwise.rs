//! A filter for each channel: nothing is summed over channels, so nothing is a product of matrices.
//!
//! ```text
//! for each run of neighbouring rows along the width, for each vector of channels:    one unit
//!     for each tap row inside:
//!         for each pixel that the run reads:     once, whatever the taps that read it
//!             for each row and tap by which it does:  sums[row] += pixel · w[tap]
//! ```
//!
//! Lanes lie along the channels. The taps of a row are unrolled, and with them which of a pixel's
//! readers exist: a pixel is loaded once for all rows of the run. The gradient of the data is the
//! same thing over the windows that read a coordinate.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Convolution, DType, Layout};

use super::epilogue::{Epilogue, EpilogueForm, finish_at};
use super::gather::{Gather, GatherArgs, GatherForm, Sweep, read_at, row_point, tap_point};
use super::launch::{buffer, grid};
use super::pack::Packing;
use super::plan::{Pass, Plan, results};
use crate::dtype::{accumulator, elem};
use crate::pool::direct::unit_position;

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// The rows of a unit, and the pixels between those that neighbours read by one tap.
    run: u32,
    step: i32,
    /// The taps along the width, and the pixels between them.
    taps: u32,
    tap_step: i32,
    /// Whether the channels of a pixel lie together.
    channels_last: bool,
    gather: GatherForm,
    epilogue: EpilogueForm,
    runs: bool,
}

impl Form {
    /// The first pixel of a tap row that some row of the run reads, from the run's first, and how
    /// many there are from it to the last.
    fn pixels(&self) -> (i32, u32) {
        let rows = (self.run as i32 - 1) * self.step;
        let taps = (self.taps.max(1) as i32 - 1) * self.tap_step;
        let (first, last) = (taps.min(0), rows + taps.max(0));
        (first, (last - first + 1) as u32)
    }

    /// Whether row `r` reads pixel `p` of those by tap `t`.
    fn reads(&self, r: u32, t: u32, p: u32) -> bool {
        r as i32 * self.step + t as i32 * self.tap_step == self.pixels().0 + p as i32
    }

    /// Whether any row reads pixel `p`.
    fn is_read(&self, p: u32) -> bool {
        (0..self.run).any(|r| (0..self.taps).any(|t| self.reads(r, t, p)))
    }
}

/// The numbers of a launch beside those of the gather.
#[derive(CubeType, CubeLaunch)]
struct RunArgs {
    units: u32,
    runs: FastDivmod<u32>,
    rows: u32,
    vectors: FastDivmod<u32>,
    outer: FastDivmod<u32>,
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
    let packing = Packing::depthwise(conv, pass);
    let packed = packing.pack(client, conv, dtype, plan, w);
    let channels = conv.input().channels();
    let inputs = match pass {
        Pass::Data => conv.output().elements(),
        _ => conv.input().elements(),
    };
    let results = results(conv, pass);
    for gather in Gather::all(conv, pass) {
        let Sweep { rows, step, taps, tap_step, .. } = gather.axes[2];
        let form = Form {
            run: tile.ratio_m,
            step: step as i32,
            taps: taps as u32,
            tap_step: tap_step as i32,
            channels_last: conv.layout() == Layout::ChannelsLast,
            gather: GatherForm::new(conv, pass),
            epilogue: epilogue.form(dtype),
            runs: plan.runs,
        };
        let runs = rows.div_ceil(tile.ratio_m as usize);
        let outer = gather.rows(conv) / rows;
        let units = outer * runs * (channels / lanes);
        let (cubes, dim) = grid(client, plan, units);
        // SAFETY: rows past the last are the last again and stored nowhere, and reads outside are
        // moved inside.
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
                RunArgsLaunch::new(
                    units as u32,
                    runs as u32,
                    rows as u32,
                    (channels / lanes) as u32,
                    outer as u32,
                    epilogue.slope(),
                ),
                form,
                elem(dtype),
                elem(accumulator(dtype)),
            )
        }
    }
}

/// The samples and lines before a unit's, its run in the line, and its vector of channels.
#[cube]
fn place_of(run: &RunArgs, i: u32, #[comptime] channels_last: bool) -> (u32, u32, u32) {
    if comptime!(channels_last) {
        let (rest, vector) = run.vectors.div_mod(i);
        let (outer, along) = run.runs.div_mod(rest);
        (outer, along, vector)
    } else {
        let (rest, along) = run.runs.div_mod(i);
        let (vector, outer) = run.outer.div_mod(rest);
        (outer, along, vector)
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
    run: &RunArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let i = unit_position(form.runs);
    if i >= run.units {
        terminate!();
    }
    let (outer, along, vector) = place_of(run, i, form.channels_last);
    let first = along * comptime!(form.run);
    let lanes = N::value() as u32;
    let channel = vector * lanes;
    let row = row_point(gather, outer * run.rows + first, form.gather);

    let mut sums = Sequence::<RuntimeCell<Vector<A, N>>>::new();
    #[unroll]
    for _ in 0..form.run {
        sums.push(RuntimeCell::new(Vector::new(A::from_int(0))));
    }
    let (first_pixel, pixels) = comptime!(form.pixels());
    let zero = Vector::<A, N>::new(A::from_int(0));
    for td in 0..gather.depth.taps_count {
        for th in 0..gather.height.taps_count {
            let mut tap = tap_point(gather, td, th, 0u32);
            let weights = (tap.other + channel) / lanes;
            let step = gather.width.b_step / lanes;
            // The row of the first pixel: its own width is looked at pixel by pixel.
            tap.width = -row.width;
            let line = read_at(gather, &row, &tap, form.gather);
            if line.inside {
                let mut w = Sequence::<Vector<A, N>>::new();
                #[unroll]
                for t in 0..form.taps {
                    w.push(packed[(weights + t * step) as usize]);
                }
                let at = line.at + channel * gather.a_group;
                #[unroll]
                for p in 0..pixels {
                    if comptime!(form.is_read(p)) {
                        let x = row.width + comptime!(first_pixel + p as i32);
                        let inside = x >= 0 && x < gather.width.extent;
                        let x = select(inside, x, 0i32) * gather.width.a_step;
                        let pixel =
                            Vector::<A, N>::cast_from(a[((at + x as u32) / lanes) as usize]);
                        let pixel = select(inside, pixel, zero);
                        #[unroll]
                        for r in 0..form.run {
                            #[unroll]
                            for t in 0..form.taps {
                                if comptime!(form.reads(r, t, p)) {
                                    let sum = sums.index(comptime!(r as usize));
                                    let weight = *w.index(comptime!(t as usize));
                                    sum.store(fma(pixel, weight, sum.read()));
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    let base = row.other + channel * gather.out_group;
    #[unroll]
    for r in 0..form.run {
        if first + r < run.rows {
            let at = (base + r * gather.width.out_step) / lanes;
            let sum = sums.index(comptime!(r as usize)).read();
            out[at as usize] =
                finish_at::<S, A, N>(&bias, &residual, sum, vector, at, run.slope, form.epilogue);
        }
    }
}
