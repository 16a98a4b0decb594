//! A problem as run-time values, and the sum of one element of a data gradient: the formula taken literally.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::Convolution;

use super::tensor::{Coordinates, TensorArgs, filter_args, tensor_args};
use crate::conv::problem::windows;
use crate::cube::{AxisArgs, axis_args, numbers};

/// The parameters of a problem, as run-time values.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Problem {
    /// The number of elements of the result, or of its parts.
    pub(crate) elements: u32,
    pub(crate) x: TensorArgs,
    pub(crate) w: TensorArgs,
    pub(crate) y: TensorArgs,
    pub(crate) depth: AxisArgs,
    pub(crate) height: AxisArgs,
    pub(crate) width: AxisArgs,
    /// The channels and the filters of one group.
    pub(crate) channels: FastDivmod<u32>,
    pub(crate) channels_per_group: u32,
    pub(crate) filters: FastDivmod<u32>,
    pub(crate) filters_per_group: u32,
    /// The elements of a part, the windows of a part, and all windows.
    pub(crate) part: FastDivmod<u32>,
    pub(crate) part_windows: u32,
    pub(crate) windows: u32,
    /// The number of windows on each axis.
    outputs_depth: i32,
    outputs_height: i32,
    outputs_width: i32,
}

/// The arguments of a problem with `elements` results, which include the parts of split sums.
pub(crate) fn problem_args(conv: &Convolution, elements: usize, splits: usize) -> ProblemLaunch {
    let [depth, height, width] = conv.grid().axes().each_ref().map(axis_args);
    let channels = conv.filter().channels();
    let filters = conv.filter().count() / conv.groups();
    let windows = windows(conv);
    let outputs = conv.grid().axes().each_ref().map(|axis| axis.output() as i32);
    numbers! { ProblemLaunch {
        elements, x: tensor_args(&conv.input(), conv.layout()), w: filter_args(conv),
        y: tensor_args(&conv.output(), conv.layout()), depth, height, width, channels,
        channels_per_group: channels, filters, filters_per_group: filters,
        part: elements / splits, part_windows: windows.div_ceil(splits), windows,
        outputs_depth: outputs[0], outputs_height: outputs[1], outputs_width: outputs[2],
    } }
}

/// The sum of the products of one element of a data gradient, whose place in the input is given.
#[cube]
pub(crate) fn data_sum<S: Float, A: Float>(
    dy: &[S],
    w: &[S],
    problem: &Problem,
    at: &Coordinates,
) -> A {
    let (group, channel) = problem.channels.div_mod(at.channel);
    let filter = group * problem.filters_per_group;
    let y_first = at.sample * problem.y.sample_step + filter * problem.y.channel_step;
    let w_first = filter * problem.w.sample_step + channel * problem.w.channel_step;

    let mut sum = A::from_int(0);
    for td in 0..problem.depth.kernel {
        let od = window_over(&problem.depth, problem.outputs_depth, at.depth, td);
        for th in 0..problem.height.kernel {
            let oh = window_over(&problem.height, problem.outputs_height, at.height, th);
            for tw in 0..problem.width.kernel {
                let ow = window_over(&problem.width, problem.outputs_width, at.width, tw);
                if od >= 0 && oh >= 0 && ow >= 0 {
                    let window = od as u32 * problem.y.depth_step
                        + oh as u32 * problem.y.height_step
                        + ow as u32 * problem.y.width_step;
                    let tap = tap_offset(&problem.w, td, th, tw);
                    for f in 0..problem.filters_per_group {
                        let dy = dy[(y_first + window + f * problem.y.channel_step) as usize];
                        let w = w[(w_first + tap + f * problem.w.sample_step) as usize];
                        sum = fma(A::cast_from(dy), A::cast_from(w), sum);
                    }
                }
            }
        }
    }
    sum
}

/// The offset of a tap's weight from that of the first tap.
#[cube]
pub(crate) fn tap_offset(w: &TensorArgs, td: i32, th: i32, tw: i32) -> u32 {
    td as u32 * w.depth_step + th as u32 * w.height_step + tw as u32 * w.width_step
}

/// The window that reads coordinate `x` at tap `t`; −1 if there is none.
#[cube]
fn window_over(axis: &AxisArgs, outputs: i32, x: u32, t: i32) -> i32 {
    let distance = x as i32 + axis.before - t * axis.dilation;
    let window = distance / axis.stride;
    let reads = distance >= 0 && distance % axis.stride == 0 && window < outputs;
    select(reads, window, -1i32)
}
