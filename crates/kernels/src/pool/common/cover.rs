//! The position of an input, and which windows read it.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, Pooling};

use crate::cube::axis::{AxisArgs, AxisForm, EvenSplit, split, split_above, split_below};
use crate::cube::numbers;
use crate::cube::ranges::{Point, Ranges};
use crate::pool::common::window::{ProblemArgs, WindowForm, problem_args, split_row};
use crate::pool::common::{Settings, Task};

/// The numbers of an axis, seen from its input coordinates.
#[derive(CubeType, CubeLaunch)]
struct CoverArgs {
    input: FastDivmod<u32>,
    stride: FastDivmod<u32>,
    outputs: i32,
    /// For uneven axes: where the windows over a coordinate begin and end.
    split: ComptimeOption<EvenSplit>,
}

fn cover_args(axis: &Axis) -> CoverArgsLaunch {
    numbers! { CoverArgsLaunch {
        input: axis.input(), stride: axis.stride(), outputs: axis.output(),
        split: split(axis, axis.output(), axis.input()),
    } }
}

/// The numbers of a gradient that is gathered.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct GatherArgs {
    pub(crate) problem: ProblemArgs,
    depth: CoverArgs,
    height: CoverArgs,
    width: CoverArgs,
}

pub(crate) fn gather_args(task: Task<'_>) -> GatherArgsLaunch {
    let [depth, height, width] = task.axes().each_ref().map(cover_args);
    GatherArgsLaunch::new(problem_args(task), depth, height, width)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GatherForm {
    pub(crate) window: WindowForm,
    /// The most windows over one coordinate of each axis, if the loops over them are unrolled.
    pub(crate) windows: Option<[u32; AXES]>,
}

/// The most windows over one input for which the loops over them are unrolled.
const UNROLLED_WINDOWS: usize = 27;

impl GatherForm {
    pub(crate) fn new(task: Task<'_>) -> Self {
        let windows = task.axes().each_ref().map(|axis| most_windows_over(axis) as u32);
        let unrolled = unrolled_windows(task.pooling()).is_some();
        Self {
            window: WindowForm::new(task.with(Settings { unrolled: false, ..task.settings })),
            windows: unrolled.then_some(windows),
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
pub(crate) struct InputSite {
    pub(crate) sample: u32,
    /// The vector within the pixel.
    pub(crate) pixel_vector: u32,
    /// The position in the plane of one channel.
    pub(crate) position: i32,
    pub(crate) depth: Cover,
    pub(crate) height: Cover,
    pub(crate) width: Cover,
}

#[cube]
impl InputSite {
    /// The windows that may have read the input.
    pub(crate) fn windows(&self) -> Ranges {
        let (depth, height, width) = (&self.depth, &self.height, &self.width);
        Ranges {
            first: Point { d: depth.first, h: height.first, w: width.first },
            end: Point { d: depth.end, h: height.end, w: width.end },
        }
    }
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
fn cover_of(axis: &AxisArgs, args: &CoverArgs, x: u32, #[comptime] form: AxisForm) -> Cover {
    if comptime!(form.uneven) {
        // Window `o` covers `⌊o·L/O⌋ .. ⌈(o+1)·L/O⌉`, so that `x·O/L − 1 < o < (x+1)·O/L`.
        let first = split_below(args.split.as_ref().unwrap(), x) as i32;
        let end = split_above(args.split.as_ref().unwrap(), x + 1u32) as i32;
        Cover { x: x as i32, first, end }
    } else {
        let x = x as i32 + axis.before;
        let reach = (axis.kernel - 1) * axis.dilation;
        let beyond = max(x - reach, 0i32) as u32;
        let (below, rest) = args.stride.div_mod(beyond);
        let first = below as i32 + i32::cast_from(rest != 0);
        let end = min(args.stride.div(x as u32) as i32 + 1, args.outputs);
        Cover { x, first, end }
    }
}

#[cube]
pub(crate) fn site_of(args: &GatherArgs, vector: u32, #[comptime] form: WindowForm) -> InputSite {
    let problem = &args.problem;
    let (pixel, pixel_vector) =
        if comptime!(form.channels) { problem.pixel.div_mod(vector) } else { (vector, 0u32) };
    let (row, w) = args.width.input.div_mod(pixel);
    let (sample, d, h) = split_row(row, &args.depth.input, &args.height.input, form.rank);
    let plane = problem.depth.input * problem.height.input * problem.width.input;
    InputSite {
        sample,
        pixel_vector,
        position: pixel as i32 - sample as i32 * plane,
        depth: cover_of(&problem.depth, &args.depth, d, form.axes[0]),
        height: cover_of(&problem.height, &args.height, h, form.axes[1]),
        width: cover_of(&problem.width, &args.width, w, form.axes[2]),
    }
}

/// A window that may have read an input.
#[derive(CubeType)]
pub(crate) struct Window {
    /// Whether it exists and has a tap on the input.
    pub(crate) reads: bool,
    /// Its position, clamped to those that exist.
    pub(crate) at: Point,
    /// The vector of its output.
    pub(crate) vector: u32,
}

/// The window at `o`. Unrolled loops run past the last window.
#[cube]
pub(crate) fn window_at(
    args: &GatherArgs,
    site: &InputSite,
    o: Point,
    #[comptime] form: GatherForm,
) -> Window {
    let problem = &args.problem;
    let [depth, height, width] = comptime!(form.window.axes);
    let reads = reads(&problem.depth, &site.depth, o.d, depth)
        && reads(&problem.height, &site.height, o.h, height)
        && reads(&problem.width, &site.width, o.w, width);
    let unrolled = comptime!(form.windows.is_some());
    let d = existing(&args.depth, o.d, unrolled);
    let h = existing(&args.height, o.h, unrolled);
    let w = existing(&args.width, o.w, unrolled);
    let plane = args.depth.outputs * args.height.outputs * args.width.outputs;
    let window = (d * args.height.outputs + h) * args.width.outputs + w;
    let pixel = site.sample * plane as u32 + window as u32;
    let channels = comptime!(form.window.channels);
    let vector = if channels { pixel * problem.pixel_vectors + site.pixel_vector } else { pixel };
    Window { reads, at: Point { d, h, w }, vector }
}

/// The window `o`; the last one instead of those past it in an unrolled loop.
#[cube]
fn existing(args: &CoverArgs, o: i32, #[comptime] unrolled: bool) -> i32 {
    if comptime!(unrolled) { min(o, args.outputs - 1) } else { o }
}

/// Whether the window at `o` has a tap on the coordinate.
#[cube]
fn reads(axis: &AxisArgs, cover: &Cover, o: i32, #[comptime] form: AxisForm) -> bool {
    if comptime!(form.dilated) {
        o < cover.end && (cover.x - o * axis.stride) % axis.dilation == 0
    } else {
        o < cover.end
    }
}
