//! The memory layout of a convolution's tensors: one description for both data layouts and all filter layouts.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Convolution, FilterLayout, Layout, Shape};

/// The extents of a tensor and its steps in memory, as run-time values.
///
/// It also describes the filters: a filter takes the place of a sample, and taps the place of positions.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct TensorArgs {
    samples: FastDivmod<u32>,
    pub(crate) channels: FastDivmod<u32>,
    depth: FastDivmod<u32>,
    height: FastDivmod<u32>,
    width: FastDivmod<u32>,
    pub(crate) sample_step: u32,
    pub(crate) channel_step: u32,
    pub(crate) depth_step: u32,
    pub(crate) height_step: u32,
    pub(crate) width_step: u32,
}

/// The order of a tensor's elements in memory, named after the innermost dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    /// Sample, position, channel.
    Channels,
    /// Sample, channel, position.
    Positions,
    /// Position, channel, sample.
    Samples,
}

impl From<Layout> for Order {
    fn from(layout: Layout) -> Self {
        match layout {
            Layout::ChannelsLast => Self::Channels,
            Layout::ChannelsFirst => Self::Positions,
        }
    }
}

impl From<FilterLayout> for Order {
    fn from(layout: FilterLayout) -> Self {
        match layout {
            FilterLayout::Fhwc => Self::Channels,
            FilterLayout::Fchw => Self::Positions,
            FilterLayout::Hwcf => Self::Samples,
        }
    }
}

/// The arguments of an input or an output.
pub(crate) fn tensor_args(shape: &Shape, layout: Layout) -> TensorArgsLaunch {
    let [depth, height, width] = shape.space().three(1);
    let steps = shape.strides(layout);
    let numbers = [shape.batch(), shape.channels(), depth, height, width];
    args(numbers, [steps.batch, steps.channel], steps.space)
}

/// The arguments of the filters.
pub(crate) fn filter_args(conv: &Convolution) -> TensorArgsLaunch {
    let filter = conv.filter();
    let [depth, height, width] = filter.kernel().three(1);
    let steps = filter.strides(conv.filter_layout());
    let numbers = [filter.count(), filter.channels(), depth, height, width];
    args(numbers, [steps.count, steps.channel], steps.kernel)
}

/// All numbers fit in `u32`: the plan has checked the number of elements.
fn args(extents: [usize; 5], steps: [usize; 2], space: [usize; 3]) -> TensorArgsLaunch {
    let [samples, channels, depth, height, width] = extents.map(|extent| extent as u32);
    let [sample, channel] = steps.map(|step| step as u32);
    let [d, h, w] = space.map(|step| step as u32);
    TensorArgsLaunch::new(samples, channels, depth, height, width, sample, channel, d, h, w)
}

/// The coordinates of an element.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Coordinates {
    pub(crate) sample: u32,
    pub(crate) channel: u32,
    pub(crate) depth: u32,
    pub(crate) height: u32,
    pub(crate) width: u32,
}

/// The coordinates of the `i`-th element in memory.
#[cube]
pub(crate) fn place(tensor: &TensorArgs, i: u32, #[comptime] order: Order) -> Coordinates {
    if comptime!(order == Order::Channels) {
        let (position, channel) = tensor.channels.div_mod(i);
        let (position, width) = tensor.width.div_mod(position);
        let (position, height) = tensor.height.div_mod(position);
        let (sample, depth) = tensor.depth.div_mod(position);
        Coordinates { sample, channel, depth, height, width }
    } else if comptime!(order == Order::Positions) {
        let (position, width) = tensor.width.div_mod(i);
        let (position, height) = tensor.height.div_mod(position);
        let (position, depth) = tensor.depth.div_mod(position);
        let (sample, channel) = tensor.channels.div_mod(position);
        Coordinates { sample, channel, depth, height, width }
    } else {
        let (position, sample) = tensor.samples.div_mod(i);
        let (position, channel) = tensor.channels.div_mod(position);
        let (position, width) = tensor.width.div_mod(position);
        let (depth, height) = tensor.height.div_mod(position);
        Coordinates { sample, channel, depth, height, width }
    }
}

/// The coordinates of the `i`-th position in row-major order of samples and positions, at channel 0.
#[cube]
pub(crate) fn row(tensor: &TensorArgs, i: u32) -> Coordinates {
    let (position, width) = tensor.width.div_mod(i);
    let (position, height) = tensor.height.div_mod(position);
    let (sample, depth) = tensor.depth.div_mod(position);
    Coordinates { sample, channel: 0u32, depth, height, width }
}

/// The offset of an element in memory.
#[cube]
pub(crate) fn offset(tensor: &TensorArgs, at: &Coordinates) -> u32 {
    at.sample * tensor.sample_step
        + at.channel * tensor.channel_step
        + at.depth * tensor.depth_step
        + at.height * tensor.height_step
        + at.width * tensor.width_step
}
