//! The weight-gradient kernel for processors: a unit computes a few channels of one tap by a few vectors of filters,
//! over all windows.
//!
//! ```text
//! for each tap, for each block of its channels and of filters:      one unit
//!     for each window that reads inside the input at the tap:
//!         b ← the block's filters of dy[window]                       a few vectors
//!         for each channel:  sums[channel] += x[window's pixel, channel] · b
//! ```
//!
//! The windows that read inside the input at a tap are a range on each axis, so that no window is visited in vain and
//! nothing is padded. Filters are contiguous in memory only with channels last; with channels first, a vector has one
//! lane.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, DType};

use super::config::Config;
use crate::conv::common::{Arguments, buffer};
use crate::conv::problem::{Pass, Request, Task, results};
use crate::cube::{AxisArgs, Registers, accumulator, axis_args, elem, numbers, round, zeros};

/// The compile-time options of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// The channels, and the vectors of filters, of a unit.
    channels: u32,
    vectors: u32,
    bf16: bool,
}

/// The memory steps of a tensor. For the filters, `sample` is the step from one filter to the next.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Steps {
    sample: u32,
    channel: u32,
    depth: u32,
    height: u32,
    width: u32,
}

/// The parameters of a problem, as run-time values.
#[derive(CubeType, CubeLaunch)]
struct Problem {
    blocks: u32,
    column_blocks: FastDivmod<u32>,
    channel_blocks: FastDivmod<u32>,
    taps: FastDivmod<u32>,
    taps_height: FastDivmod<u32>,
    taps_width: FastDivmod<u32>,
    samples: u32,
    /// The channels and the filters of a group.
    channels: u32,
    filters: u32,
    depth: AxisArgs,
    height: AxisArgs,
    width: AxisArgs,
    outputs_depth: i32,
    outputs_height: i32,
    outputs_width: i32,
    x: Steps,
    dy: Steps,
    dw: Steps,
}

fn steps(sample: usize, channel: usize, space: [usize; AXES]) -> StepsLaunch {
    let [depth, height, width] = space.map(|step| step as u32);
    StepsLaunch::new(sample as u32, channel as u32, depth, height, width)
}

/// Launches the weight gradient.
pub(super) fn launch(arguments: &Arguments<'_>, config: Config) {
    let Arguments { client, units, stored, .. } = *arguments;
    let Task { conv, request: Request { dtype, .. }, .. } = arguments.task;
    let ([x, dy], dw) = (arguments.operands, arguments.out);
    let lanes = config.lanes as usize;
    let (filter, layout) = (conv.filter(), conv.layout());
    let filters = filter.count() / conv.groups();
    let column_blocks = filters.div_ceil((config.vectors * config.lanes) as usize);
    let channel_blocks = filter.channels().div_ceil(config.rows as usize);
    let blocks = conv.groups() * filter.taps() * channel_blocks * column_blocks;
    let [_, height, width] = filter.kernel().three(1);
    let [depth_args, height_args, width_args] = conv.grid().axes().each_ref().map(axis_args);
    let outputs = conv.grid().axes().each_ref().map(|axis| axis.output() as i32);
    let (x_steps, dy_steps) = (conv.input().strides(layout), conv.output().strides(layout));
    let dw_steps = filter.strides(conv.filter_layout());
    let form = Form { channels: config.rows, vectors: config.vectors, bf16: stored == DType::BF16 };
    // SAFETY: channels and filters past the last repeat the last one and are not stored, and every window of the
    // ranges reads inside the input.
    unsafe {
        cpu_weight::launch_unchecked(
            client,
            CubeCount::Static(blocks.div_ceil(units as usize) as u32, 1, 1),
            CubeDim::new_1d(units),
            lanes,
            buffer(x, conv.input().elements()),
            buffer(dy, conv.output().elements() / lanes),
            buffer(dw, results(conv, Pass::Weight)),
            numbers! { ProblemLaunch {
                blocks, column_blocks, channel_blocks, taps: filter.taps(), taps_height: height,
                taps_width: width, samples: conv.input().batch(), channels: filter.channels(),
                filters, depth: depth_args, height: height_args, width: width_args,
                outputs_depth: outputs[0], outputs_height: outputs[1], outputs_width: outputs[2],
                x: steps(x_steps.batch, x_steps.channel, x_steps.space),
                dy: steps(dy_steps.batch, dy_steps.channel, dy_steps.space),
                dw: steps(dw_steps.count, dw_steps.channel, dw_steps.kernel),
            } },
            form,
            elem(dtype),
            elem(accumulator(dtype)),
            elem(stored),
        )
    }
}

/// The range of windows of an axis that read inside the input at one tap.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Windows {
    first: i32,
    end: i32,
    /// The coordinate that window 0 reads.
    shift: i32,
}

#[cube]
fn windows_inside(axis: &AxisArgs, outputs: i32, tap: u32) -> Windows {
    let shift = tap as i32 * axis.dilation - axis.before;
    Windows {
        first: min(windows_below(axis, 0i32 - shift), outputs),
        end: min(windows_below(axis, axis.input - shift), outputs),
        shift,
    }
}

/// The number of windows whose start is less than `distance`.
#[cube]
fn windows_below(axis: &AxisArgs, distance: i32) -> i32 {
    let distance = max(distance, 0i32);
    distance / axis.stride + i32::cast_from(distance % axis.stride != 0)
}

#[cube(launch_unchecked)]
fn cpu_weight<S: Float, A: Float, R: Float, N: Size>(
    x: &[S],
    dy: &[Vector<S, N>],
    dw: &mut [R],
    problem: &Problem,
    #[comptime] form: Form,
    #[define(S)] _read: ElemType,
    #[define(A)] _accumulator: ElemType,
    #[define(R)] _stored: ElemType,
) {
    let i = UNIT_POS * CUBE_COUNT as u32 + CUBE_POS as u32;
    if i >= problem.blocks {
        terminate!();
    }
    let lanes = N::value() as u32;
    let (rest, column_block) = problem.column_blocks.div_mod(i);
    let (rest, channel_block) = problem.channel_blocks.div_mod(rest);
    let (group, tap) = problem.taps.div_mod(rest);
    let (tap, tw) = problem.taps_width.div_mod(tap);
    let (td, th) = problem.taps_height.div_mod(tap);
    let depth = windows_inside(&problem.depth, problem.outputs_depth, td);
    let height = windows_inside(&problem.height, problem.outputs_height, th);
    let width = windows_inside(&problem.width, problem.outputs_width, tw);
    let first_channel = channel_block * comptime!(form.channels);
    let first_column = column_block * comptime!(form.vectors) * lanes;

    let sums = zeros::<A, N>(comptime!(form.channels * form.vectors));
    let mut channels = Sequence::<usize>::new();
    let mut columns = Sequence::<usize>::new();
    #[unroll]
    for c in 0..form.channels {
        let channel = min(first_channel + c, problem.channels - 1) + group * problem.channels;
        channels.push((channel * problem.x.channel) as usize);
    }
    #[unroll]
    for v in 0..form.vectors {
        let column = min(first_column + v * lanes, problem.filters - lanes);
        let column = (column + group * problem.filters) * problem.dy.channel;
        columns.push((column / lanes) as usize);
    }

    for n in 0..problem.samples {
        for od in depth.first..depth.end {
            for oh in height.first..height.end {
                let xd = (od * problem.depth.stride + depth.shift) as u32;
                let xh = (oh * problem.height.stride + height.shift) as u32;
                let x_line = n * problem.x.sample + xd * problem.x.depth + xh * problem.x.height;
                let dy_line = n * problem.dy.sample
                    + od as u32 * problem.dy.depth
                    + oh as u32 * problem.dy.height;
                for ow in width.first..width.end {
                    let xw = (ow * problem.width.stride + width.shift) as u32;
                    let pixel = (x_line + xw * problem.x.width) as usize;
                    let window = ((dy_line + ow as u32 * problem.dy.width) / lanes) as usize;
                    add_window::<S, A, N>(x, dy, &channels, &columns, pixel, window, &sums, form);
                }
            }
        }
    }

    let first = td * problem.dw.depth + th * problem.dw.height + tw * problem.dw.width;
    #[unroll]
    for c in 0..form.channels {
        let channel = first_channel + c;
        #[unroll]
        for v in 0..form.vectors {
            let sum = sums.index(comptime!((c * form.vectors + v) as usize)).read();
            let sum = round::<A, R, N>(sum, form.bf16);
            #[unroll]
            for lane in 0..N::value() {
                let column = first_column + v * lanes + lane as u32;
                if channel < problem.channels && column < problem.filters {
                    let filter = group * problem.filters + column;
                    let at = first + filter * problem.dw.sample + channel * problem.dw.channel;
                    dw[at as usize] = sum.extract(lane);
                }
            }
        }
    }
}

/// Adds the products of a window: the pixel's channels, at offsets `channels`, times the gradients, at `columns`.
#[cube]
fn add_window<S: Float, A: Float, N: Size>(
    x: &[S],
    dy: &[Vector<S, N>],
    channels: &Sequence<usize>,
    columns: &Sequence<usize>,
    pixel: usize,
    window: usize,
    sums: &Registers<A, N>,
    #[comptime] form: Form,
) {
    let mut b = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for v in 0..form.vectors {
        let column = *columns.index(comptime!(v as usize));
        b.push(Vector::cast_from(dy[window + column]));
    }
    #[unroll]
    for c in 0..form.channels {
        let value = A::cast_from(x[pixel + *channels.index(comptime!(c as usize))]);
        let value = Vector::<A, N>::new(value);
        #[unroll]
        for v in 0..form.vectors {
            let sum = sums.index(comptime!((c * form.vectors + v) as usize));
            sum.store(fma(value, *b.index(comptime!(v as usize)), sum.read()));
        }
    }
}
