//! Gradients, gathered: one unit an input vector collects from every window that read it.
//!
//! ```text
//! for each input (n, x, c):                 one unit, its lanes along c
//!     for each window o over x:             row-major, so that the sum has one order
//!         max:      add dy[n, o, c] if the window's winner is x
//!         average:  add dy[n, o, c] / divisor(o)
//! ```
//!
//! Nothing is scattered, so nothing is atomic and the same inputs give the same bits. A window of
//! `k` taps, `d` apart, and stride `s` leaves a coordinate in the reach of ⌊(k−1)·d/s⌋ + 1 windows
//! at most; few are unrolled, and then a window that does not cover `x` is read all the same, at the
//! nearest that is there, and dropped by a select: every load is unconditional.

use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Divisor, IndexBase, Pooling};

use super::backward_strip;
use super::launch::{buffer, check_buffers, check_indices, optional};
use super::plan::{Algorithm, Output, Plan, PlanError, Reduction, pixel_channels};
use super::window::{Fold, counted_at, indexing};
use super::{flat, plane, rolling, staged};
use crate::Target;
use crate::axis::{AxisArgs, AxisForm, Shares, axis_args, share_above, share_below, shares};
use crate::dtype::{accumulator, elem, round};
use crate::unit::{grid, unit_position};

/// What a gradient goes back through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gradient {
    /// A maximum, whose winners are given by indices of this base.
    Max(IndexBase),
    /// An average.
    Average(Divisor),
}

impl Gradient {
    /// The pooling that it is the gradient of.
    pub(super) fn reduction(self) -> Reduction {
        match self {
            Self::Max(base) => Reduction::Max(Output::ValuesAndIndices(base)),
            Self::Average(divisor) => Reduction::Average(divisor),
        }
    }
}

/// Launches the gradient of a pooling: `dy` has the output's elements, `dx` the input's, and
/// `winners`, for a maximum, one `i32` for each output.
///
/// Asynchronous, as the forward launch is.
pub fn launch_backward(
    Target { client, limits }: Target<'_>,
    pooling: &Pooling,
    gradient: Gradient,
    dtype: DType,
    plan: &Plan,
    [dy, dx]: [&Handle; 2],
    winners: Option<&Handle>,
) -> Result<(), PlanError> {
    let inputs = pooling.input().elements();
    let outputs = pooling.output().elements();
    let reduction = gradient.reduction();
    plan.check_backward(pooling, reduction, dtype, limits)?;
    check_buffers(dtype, [(dy, outputs), (dx, inputs)])?;
    check_indices(reduction, winners, outputs)?;
    if inputs == 0 {
        return Ok(());
    }
    match (plan.algorithm, winners) {
        (Algorithm::Strip, _) => {
            backward_strip::launch(client, pooling, gradient, dtype, plan, [dy, dx], winners);
        }
        (Algorithm::Plane, _) => {
            plane::launch(client, pooling, reduction, dtype, plan, [dy, dx], true);
        }
        (Algorithm::Flat, _) => {
            flat::launch(client, pooling, reduction, dtype, plan, [dy, dx], true);
        }
        (Algorithm::Rolling, _) => {
            rolling::launch(client, pooling, reduction, dtype, plan, [dy, dx], true);
        }
        (Algorithm::Staged, Some(winners)) => {
            staged::launch(client, pooling, dtype, plan, [dy, dx], winners);
        }
        _ => launch_plain(client, pooling, gradient, dtype, plan, [dy, dx], winners),
    }
    Ok(())
}

/// Launches the plain gather; the caller has checked plan and buffers.
fn launch_plain(
    client: &Client,
    pooling: &Pooling,
    gradient: Gradient,
    dtype: DType,
    plan: &Plan,
    [dy, dx]: [&Handle; 2],
    winners: Option<&Handle>,
) {
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let vectors = inputs / plan.lanes;
    let (cubes, units) = grid(client, plan.units, vectors);
    // SAFETY: every access of the kernel is inside the tensors by the arithmetic of `Axis`.
    unsafe {
        backward::launch_unchecked(
            client,
            cubes,
            units,
            plan.lanes,
            buffer(dy, outputs, plan),
            optional(winners, outputs, plan),
            buffer(dx, inputs, plan),
            problem_args(pooling, gradient, plan, vectors),
            Form::new(pooling, gradient, plan),
            elem(dtype),
            elem(accumulator(dtype)),
        )
    };
}

/// The numbers of an axis as its coordinates see them.
#[derive(CubeType, CubeLaunch)]
pub(super) struct CoverArgs {
    axis: AxisArgs,
    input: FastDivmod<u32>,
    stride: FastDivmod<u32>,
    outputs: i32,
    /// Where the windows over a coordinate of an uneven axis begin and end.
    shares: Shares,
}

fn cover_args(axis: &Axis) -> CoverArgsLaunch {
    CoverArgsLaunch::new(
        axis_args(axis),
        axis.input() as u32,
        axis.stride() as u32,
        axis.output() as i32,
        shares(axis.output(), axis.input()),
    )
}

/// The numbers of a problem, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Problem {
    /// The input vectors.
    pub(super) vectors: u32,
    /// The vectors of a pixel.
    pixel: FastDivmod<u32>,
    pub(super) pixel_vectors: u32,
    pub(super) depth: CoverArgs,
    pub(super) height: CoverArgs,
    pub(super) width: CoverArgs,
    /// What a fixed divisor divides by.
    divisor: u32,
    /// The steps of an index to the next sample, channel and position.
    index_batch: u32,
    index_channel: u32,
    index_position: u32,
}

pub(super) fn problem_args(
    pooling: &Pooling,
    gradient: Gradient,
    plan: &Plan,
    vectors: usize,
) -> ProblemLaunch {
    let [depth, height, width] = pooling.grid().axes().each_ref().map(cover_args);
    let reduction = gradient.reduction();
    let pixel_vectors = (pixel_channels(pooling) / plan.lanes) as u32;
    let [batch, channel, position] = indexing(pooling, reduction.base());
    ProblemLaunch::new(
        vectors as u32,
        pixel_vectors,
        pixel_vectors,
        depth,
        height,
        width,
        reduction.fixed_divisor(),
        batch,
        channel,
        position,
    )
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) axes: [AxisForm; AXES],
    /// The most windows over one coordinate of each axis, where the loops over them are unrolled.
    windows: Option<[u32; AXES]>,
    fold: Fold,
    pub(super) rounds: bool,
    pub(super) runs: bool,
    /// Whether several vectors make a pixel.
    pub(super) channels: bool,
    /// The axes that the problem has.
    rank: usize,
}

/// More windows over one coordinate than this and a loop over them is no longer unrolled.
const UNROLLED_WINDOWS: usize = 27;

impl Form {
    pub(super) fn new(pooling: &Pooling, gradient: Gradient, plan: &Plan) -> Self {
        let axes = pooling.grid().axes();
        let windows = axes.each_ref().map(most_windows_over);
        let few = windows.iter().product::<usize>() <= UNROLLED_WINDOWS;
        // How many windows of an uneven axis share a coordinate depends on its extent.
        let unrolled = few && !pooling.grid().is_uneven();
        Self {
            axes: axes.each_ref().map(|axis| AxisForm::new(axis, false)),
            windows: unrolled.then_some(windows.map(|n| n as u32)),
            fold: match gradient {
                Gradient::Max(_) => Fold::Max,
                Gradient::Average(divisor) => Fold::average(divisor),
            },
            rounds: plan.rounds,
            runs: plan.runs,
            channels: pixel_channels(pooling) > plan.lanes,
            rank: pooling.grid().rank(),
        }
    }

    /// Whether every window is divided by the same number, so that their sum may be.
    fn divides_once(&self) -> bool {
        match self.fold {
            Fold::Max | Fold::MaxAndIndex | Fold::Norm => false,
            Fold::AverageFixed => true,
            Fold::AveragePadded | Fold::AverageValid => self.axes.iter().all(|axis| !axis.clipped),
        }
    }
}

/// The most windows that one coordinate is in the reach of, whatever the extents.
fn most_windows_over(axis: &Axis) -> usize {
    (axis.kernel() - 1) * axis.dilation() / axis.stride() + 1
}

#[cube(launch_unchecked)]
fn backward<S: Float, A: Float, N: Size>(
    dy: &[Vector<S, N>],
    winners: ComptimeOption<Box<[Vector<i32, N>]>>,
    dx: &mut [Vector<S, N>],
    problem: &Problem,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let vector = unit_position(form.runs);
    if vector >= problem.vectors {
        terminate!();
    }
    let site = site_of(problem, vector, form);
    let mut sum = Vector::<A, N>::new(A::from_int(0));
    if comptime!(form.windows.is_some()) {
        let [over_d, over_h, over_w] = comptime!(form.windows.unwrap_or_default());
        #[unroll]
        for i in 0..over_d {
            #[unroll]
            for j in 0..over_h {
                #[unroll]
                for k in 0..over_w {
                    let od = site.depth.first + i as i32;
                    let oh = site.height.first + j as i32;
                    let ow = site.width.first + k as i32;
                    sum += share::<S, A, N>(dy, &winners, problem, &site, od, oh, ow, form);
                }
            }
        }
    } else {
        for od in site.depth.first..site.depth.end {
            for oh in site.height.first..site.height.end {
                for ow in site.width.first..site.width.end {
                    sum += share::<S, A, N>(dy, &winners, problem, &site, od, oh, ow, form);
                }
            }
        }
    }
    if comptime!(form.divides_once()) {
        sum /= Vector::new(divisor::<A>(problem, 0i32, 0i32, 0i32, form));
    }
    dx[vector as usize] = round::<A, S, N>(sum, form.rounds);
}

/// Where an input is, and which windows may have read it.
#[derive(CubeType)]
pub(super) struct Site {
    pub(super) sample: u32,
    /// The vector within the pixel.
    pub(super) lane: u32,
    pub(super) depth: Cover,
    pub(super) height: Cover,
    pub(super) width: Cover,
    /// The index by which a window that it won names it, but for the channel.
    index: i32,
}

/// The windows over one coordinate.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Cover {
    /// The coordinate, counted from the start of the padding.
    pub(super) x: i32,
    /// The first window in whose reach it is.
    pub(super) first: i32,
    /// One more than the last.
    pub(super) end: i32,
}

#[cube]
fn cover_of(args: &CoverArgs, x: u32, #[comptime] form: AxisForm) -> Cover {
    if comptime!(form.uneven) {
        // Window `o` covers `⌊o·L/O⌋ .. ⌈(o+1)·L/O⌉`, so that `x·O/L − 1 < o < (x+1)·O/L`.
        let first = share_below(&args.shares, x) as i32;
        let end = share_above(&args.shares, x + 1u32) as i32;
        Cover { x: x as i32, first, end }
    } else {
        let x = x as i32 + args.axis.before;
        let reach = (args.axis.kernel - 1) * args.axis.dilation;
        let beyond = max(x - reach, 0i32) as u32;
        let (below, rest) = args.stride.div_mod(beyond);
        let first = below as i32 + i32::cast_from(rest != 0);
        let end = min(args.stride.div(x as u32) as i32 + 1, args.outputs);
        Cover { x, first, end }
    }
}

#[cube]
pub(super) fn site_of(problem: &Problem, vector: u32, #[comptime] form: Form) -> Site {
    let (position, lane) =
        if comptime!(form.channels) { problem.pixel.div_mod(vector) } else { (vector, 0u32) };
    let (rows, w) = problem.width.input.div_mod(position);
    let (planes, h) =
        if comptime!(form.rank > 1) { problem.height.input.div_mod(rows) } else { (rows, 0u32) };
    let (sample, d) =
        if comptime!(form.rank > 2) { problem.depth.input.div_mod(planes) } else { (planes, 0u32) };
    let plane = problem.depth.axis.input * problem.height.axis.input * problem.width.axis.input;
    let in_plane = position - sample * plane as u32;
    let index = sample * problem.index_batch + in_plane * problem.index_position;
    Site {
        sample,
        lane,
        depth: cover_of(&problem.depth, d, form.axes[0]),
        height: cover_of(&problem.height, h, form.axes[1]),
        width: cover_of(&problem.width, w, form.axes[2]),
        index: index as i32,
    }
}

/// What the input gets from the window at (`od`, `oh`, `ow`).
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn share<S: Float, A: Float, N: Size>(
    dy: &[Vector<S, N>],
    winners: &ComptimeOption<Box<[Vector<i32, N>]>>,
    problem: &Problem,
    site: &Site,
    od: i32,
    oh: i32,
    ow: i32,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let covers = comptime!(form.axes);
    let reads = reads(&problem.depth, &site.depth, od, covers[0])
        && reads(&problem.height, &site.height, oh, covers[1])
        && reads(&problem.width, &site.width, ow, covers[2]);
    let od = there(&problem.depth, od, comptime!(form.windows.is_some()));
    let oh = there(&problem.height, oh, comptime!(form.windows.is_some()));
    let ow = there(&problem.width, ow, comptime!(form.windows.is_some()));
    let offset = offset_of(problem, site, od, oh, ow, form);
    let gradient = Vector::<A, N>::cast_from(dy[offset as usize]);
    let zero = Vector::<A, N>::new(A::from_int(0));
    #[comptime]
    match winners {
        ComptimeOption::Some(winners) => {
            let mut index = Vector::<i32, N>::new(site.index);
            #[unroll]
            for i in 0..N::value() {
                let channel = site.lane * N::value() as u32 + i as u32;
                index.insert(i, index.extract(i) + (channel * problem.index_channel) as i32);
            }
            let won = winners[offset as usize].equal(&index);
            let kept = select_many(won, gradient, zero);
            select(reads, kept, zero)
        }
        ComptimeOption::None => {
            // Not times the reciprocal, which would be rounded twice.
            let share = if comptime!(form.divides_once()) {
                gradient
            } else {
                gradient / Vector::new(divisor::<A>(problem, od, oh, ow, form))
            };
            select(reads, share, zero)
        }
    }
}

/// Where the output of the window at (`od`, `oh`, `ow`) lies.
#[cube]
pub(super) fn offset_of(
    problem: &Problem,
    site: &Site,
    od: i32,
    oh: i32,
    ow: i32,
    #[comptime] form: Form,
) -> u32 {
    let plane = problem.depth.outputs * problem.height.outputs * problem.width.outputs;
    let window = (od * problem.height.outputs + oh) * problem.width.outputs + ow;
    let pixel = site.sample * plane as u32 + window as u32;
    if comptime!(form.channels) { pixel * problem.pixel_vectors + site.lane } else { pixel }
}

/// Whether the window at `o` has a tap on the coordinate.
#[cube]
pub(super) fn reads(args: &CoverArgs, cover: &Cover, o: i32, #[comptime] form: AxisForm) -> bool {
    if comptime!(form.dilated) {
        o < cover.end && (cover.x - o * args.axis.stride) % args.axis.dilation == 0
    } else {
        o < cover.end
    }
}

/// The window, or where a loop is unrolled past the last, the last.
#[cube]
fn there(args: &CoverArgs, o: i32, #[comptime] unrolled: bool) -> i32 {
    if comptime!(unrolled) { min(o, args.outputs - 1) } else { o }
}

/// What the sum of the window at (`od`, `oh`, `ow`) was divided by.
#[cube]
fn divisor<A: Float>(problem: &Problem, od: i32, oh: i32, ow: i32, #[comptime] form: Form) -> A {
    if comptime!(form.fold == Fold::AverageFixed) {
        A::cast_from(problem.divisor)
    } else {
        let taps = counted_at(&problem.depth.axis, od as u32, form.axes[0], form.fold)
            * counted_at(&problem.height.axis, oh as u32, form.axes[1], form.fold)
            * counted_at(&problem.width.axis, ow as u32, form.axes[2], form.fold);
        A::cast_from(taps)
    }
}
