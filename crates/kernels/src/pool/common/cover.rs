//! The position of an input, and which windows read it.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, Pooling};

use crate::cube::axis::{
    AxisArgs, AxisForm, EvenSplit, axis_args, split, split_above, split_below,
};
use crate::pool::common::Task;
use crate::pool::common::window::{Fold, indexing};
use crate::pool::problem::Gradient;

/// The numbers of an axis, seen from its input coordinates.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct CoverArgs {
    pub(crate) axis: AxisArgs,
    input: FastDivmod<u32>,
    pub(crate) stride: FastDivmod<u32>,
    pub(crate) outputs: i32,
    /// For uneven axes: where the windows over a coordinate begin and end.
    split: EvenSplit,
}

fn cover_args(axis: &Axis) -> CoverArgsLaunch {
    CoverArgsLaunch::new(
        axis_args(axis),
        axis.input() as u32,
        axis.stride() as u32,
        axis.output() as i32,
        split(axis.output(), axis.input()),
    )
}

/// The numbers of a problem. They are run-time values, so they may change without compiling a new kernel.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct GatherArgs {
    /// The number of input vectors.
    pub(crate) vectors: u32,
    /// The number of vectors in a pixel.
    pixel: FastDivmod<u32>,
    pub(crate) pixel_vectors: u32,
    pub(crate) depth: CoverArgs,
    pub(crate) height: CoverArgs,
    pub(crate) width: CoverArgs,
    /// The value of a fixed divisor.
    pub(crate) divisor: u32,
    /// The index steps to the next sample, channel and position.
    index_batch: u32,
    pub(crate) index_channel: u32,
    index_position: u32,
}

pub(crate) fn gather_args(task: Task<'_>, gradient: Gradient, vectors: usize) -> GatherArgsLaunch {
    let [depth, height, width] = task.axes().each_ref().map(cover_args);
    let reduction = gradient.reduction();
    let pixel_vectors = (task.pixel() / task.lanes()) as u32;
    let [batch, channel, position] = indexing(task.pooling(), reduction.base());
    GatherArgsLaunch::new(
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

/// The parameters that change the kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    pub(crate) axes: [AxisForm; AXES],
    /// The most windows over one coordinate of each axis, if the loops over them are unrolled.
    pub(crate) windows: Option<[u32; AXES]>,
    pub(crate) fold: Fold,
    pub(crate) rounds: bool,
    pub(crate) runs: bool,
    /// Whether a pixel has several vectors.
    pub(crate) channels: bool,
    /// The number of axes of the problem.
    rank: usize,
}

/// The most windows over one input for which the loops over them are unrolled.
const UNROLLED_WINDOWS: usize = 27;

impl Form {
    pub(crate) fn new(task: Task<'_>, gradient: Gradient) -> Self {
        let (pooling, axes) = (task.pooling(), task.axes());
        let windows = axes.each_ref().map(most_windows_over);
        let unrolled = unrolled_windows(pooling).is_some();
        Self {
            axes: axes.each_ref().map(|axis| AxisForm::new(axis, false)),
            windows: unrolled.then_some(windows.map(|n| n as u32)),
            fold: Fold::of(gradient.reduction()),
            rounds: task.rounds(),
            runs: task.settings.runs,
            channels: task.pixel() > task.lanes(),
            rank: pooling.grid().rank(),
        }
    }

    /// Whether all windows have the same divisor, so that their sum can be divided once.
    pub(crate) fn divides_once(&self) -> bool {
        match self.fold {
            Fold::Extremum | Fold::ExtremumAndIndex | Fold::Own => false,
            Fold::AverageFixed => true,
            Fold::AveragePadded | Fold::AverageValid => self.axes.iter().all(|axis| !axis.clipped),
        }
    }
}

/// The windows over an input in a loop that is unrolled; `None` if it is not.
pub(crate) fn unrolled_windows(pooling: &Pooling) -> Option<usize> {
    let windows = pooling.grid().axes().iter().map(most_windows_over).product();
    // The number of windows over a coordinate of an uneven axis depends on the axis's extent.
    (windows <= UNROLLED_WINDOWS && !pooling.grid().is_uneven()).then_some(windows)
}

/// The most windows that can reach one coordinate, whatever the extents.
fn most_windows_over(axis: &Axis) -> usize {
    (axis.kernel() - 1) * axis.dilation() / axis.stride() + 1
}

/// The position of an input, and which windows may have read it.
#[derive(CubeType)]
pub(crate) struct Site {
    pub(crate) sample: u32,
    /// The vector within the pixel.
    pub(crate) lane: u32,
    pub(crate) depth: Cover,
    pub(crate) height: Cover,
    pub(crate) width: Cover,
    /// The index by which a window names this input as its winner, without the channel's part.
    pub(crate) index: i32,
}

/// The windows over one coordinate.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Cover {
    /// The coordinate, counted from the start of the padding.
    pub(crate) x: i32,
    /// The first window that can reach it.
    pub(crate) first: i32,
    /// The end of these windows (exclusive).
    pub(crate) end: i32,
}

#[cube]
fn cover_of(args: &CoverArgs, x: u32, #[comptime] form: AxisForm) -> Cover {
    if comptime!(form.uneven) {
        // Window `o` covers `⌊o·L/O⌋ .. ⌈(o+1)·L/O⌉`, so that `x·O/L − 1 < o < (x+1)·O/L`.
        let first = split_below(&args.split, x) as i32;
        let end = split_above(&args.split, x + 1u32) as i32;
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
pub(crate) fn site_of(problem: &GatherArgs, vector: u32, #[comptime] form: Form) -> Site {
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

/// The offset of the output of the window at (`od`, `oh`, `ow`).
#[cube]
pub(crate) fn offset_of(
    problem: &GatherArgs,
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
pub(crate) fn reads(args: &CoverArgs, cover: &Cover, o: i32, #[comptime] form: AxisForm) -> bool {
    if comptime!(form.dilated) {
        o < cover.end && (cover.x - o * args.axis.stride) % args.axis.dilation == 0
    } else {
        o < cover.end
    }
}
