//! Code that window kernels share: the numbers of a problem, the parameters that change the kernels' code, the position
//! of an output, how its taps are reduced, and how the result is written.

mod folds;
mod results;
mod site;

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Divisor, Extremum, IndexBase, Layout, Pooling};

use crate::cube::axis::{AxisArgs, AxisArgsLaunch, AxisForm, axis_args};
use crate::cube::convert::{Comparison, ExtremumForm, Widening};
use crate::pool::common::settings::Settings;
use crate::pool::common::task::Task;
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Output, Reduction};

pub(in crate::pool) use folds::{
    Accumulator, accumulator_at, fold, fold_with, merge, neutral, prefixes, together,
};
pub(in crate::pool) use results::{counted_at, finish, index_of, reciprocal, scale};
pub(in crate::pool) use site::{Site, plane_position, site_of};

/// The numbers of a problem. They are run-time values, so they may change without compiling a new kernel.
#[derive(CubeType, CubeLaunch)]
pub(in crate::pool) struct ProblemArgs {
    /// The number of output vectors.
    pub(in crate::pool) vectors: u32,
    /// The number of vectors in a pixel.
    pub(in crate::pool) pixel: FastDivmod<u32>,
    pub(in crate::pool) pixel_vectors: u32,
    pub(in crate::pool) depth: AxisArgs,
    pub(in crate::pool) height: AxisArgs,
    pub(in crate::pool) width: AxisArgs,
    /// The value of a fixed divisor.
    pub(in crate::pool) divisor: u32,
    /// The reciprocal of the divisor of a window with all its taps inside the input.
    pub(in crate::pool) reciprocal: InputScalar,
    /// The index steps to the next sample, position, and lane of a vector.
    pub(in crate::pool) index_batch: u32,
    pub(in crate::pool) index_position: u32,
    pub(in crate::pool) index_lane: u32,
    /// The extremum of an empty window, which every number beats.
    pub(in crate::pool) empty: InputScalar,
}

pub(in crate::pool) fn problem_args(task: Task<'_>) -> ProblemArgsLaunch {
    let reduction = task.reduction();
    let [depth, height, width]: [AxisArgsLaunch; AXES] = task.axes().each_ref().map(axis_args);
    let [index_batch, index_channel, index_position] = indexing(task.pooling(), reduction.base());
    let index_lane = match task.settings.across {
        true => index_position * task.axes()[AXES - 1].stride() as u32,
        false => index_channel,
    };
    let pixel = task.pixel_vectors();
    ProblemArgsLaunch::new(
        (task.outputs() / task.lanes()) as u32,
        pixel,
        pixel,
        depth,
        height,
        width,
        reduction.fixed_divisor(),
        task.reciprocal(),
        index_batch,
        index_position,
        index_lane,
        empty(task),
    )
}

/// Refuses `kernel` unless windows are 3×3 with stride 1 and planes have several rows and keep their extents.
pub(in crate::pool) fn keeps_planes(
    kernel: &'static str,
    pooling: &Pooling,
) -> Result<(), PlanError> {
    let [depth, height, width] = pooling.grid().axes();
    let all = |holds: fn(&Axis) -> bool| pooling.grid().axes().iter().all(holds);
    let keeps = |axis: &Axis| axis.kernel() == 3 && axis.before() == 1 && axis.after() == 1;
    let alone = depth.kernel() == 1 && depth.before() == 0 && depth.after() == 0;
    let keeps = alone && keeps(height) && keeps(width);
    only_if(kernel, !pooling.grid().is_fitted(), "window sizes follow from the input")?;
    only_if(kernel, all(|axis| axis.stride() == 1), "strides are not 1")?;
    only_if(kernel, all(|axis| axis.dilation() == 1), "windows are dilated")?;
    only_if(kernel, keeps, "windows are not 3 by 3 with a padding of 1")?;
    only_if(kernel, height.input() > 1, "planes have a single row")
}

/// The index steps to the next sample, channel and position of the plane.
pub(in crate::pool) fn indexing(pooling: &Pooling, base: IndexBase) -> [u32; 3] {
    let steps = pooling.index_strides(base);
    // With channels first, a channel is treated as a sample with one channel.
    let batch = match pooling.layout() {
        Layout::ChannelsLast => steps.batch,
        Layout::ChannelsFirst => steps.channel,
    };
    [batch, steps.channel, steps.space[AXES - 1]].map(|step| step as u32)
}

/// The position on each axis of element `i`, in row-major order over `counts`.
pub(in crate::pool) fn split(counts: [u32; AXES], i: u32) -> [u32; AXES] {
    [i / counts[2] / counts[1], i / counts[2] % counts[1], i % counts[2]]
}

/// The extremum of an empty window, in the accumulator's type.
fn empty(task: Task<'_>) -> InputScalar {
    let (accumulator, extremum) = (task.accumulator(), task.settings.extremum);
    let is_max = extremum.of_compared() == Extremum::Max;
    let (least, most) = match (extremum.by, task.dtype()) {
        (Comparison::Native | Comparison::Select, _) => {
            let infinity = if is_max { f64::NEG_INFINITY } else { f64::INFINITY };
            return InputScalar::new(infinity, accumulator);
        }
        (Comparison::Integers, DType::I8) => (i8::MIN.into(), i8::MAX.into()),
        (Comparison::Integers, DType::U8) => (u8::MIN.into(), u8::MAX.into()),
        (Comparison::Integers | Comparison::Keys, _) => (i32::MIN, i32::MAX),
    };
    InputScalar::new(if is_max { least } else { most }, accumulator)
}

/// The parameters that change the kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::pool) struct Form {
    pub(in crate::pool) depth: AxisForm,
    pub(in crate::pool) height: AxisForm,
    pub(in crate::pool) width: AxisForm,
    pub(in crate::pool) fold: Fold,
    pub(in crate::pool) extremum: ExtremumForm,
    pub(in crate::pool) rounds: bool,
    /// How elements are converted to the accumulator's type.
    pub(in crate::pool) widened: Widening,
    pub(in crate::pool) runs: bool,
    /// Whether a pixel has several vectors.
    pub(in crate::pool) channels: bool,
    /// Whether the lanes of a vector are neighbours along the width, not channels.
    pub(in crate::pool) across: bool,
    /// Whether sums are multiplied by the reciprocal of their divisor. That rounds once more, and the error bound of a
    /// sum has room for it: the reference is not computed in the same type, and of the `n` roundings that the bound
    /// allows, the last addition's is already that of the result.
    pub(in crate::pool) reciprocal: bool,
    /// The number of axes of the problem.
    pub(in crate::pool) rank: usize,
}

/// How taps are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::pool) enum Fold {
    Extremum,
    ExtremumAndIndex,
    AveragePadded,
    AverageValid,
    AverageFixed,
    /// Computed by a kernel of its own: `lp` or `rank`.
    Own,
}

impl Fold {
    pub(in crate::pool) fn is_extremum(self) -> bool {
        matches!(self, Self::Extremum | Self::ExtremumAndIndex)
    }

    pub(in crate::pool) fn is_fixed(self) -> bool {
        self == Self::AverageFixed
    }

    /// Whether a window's sum is divided by the number of taps that it counts.
    pub(in crate::pool) fn counts(self) -> bool {
        !self.is_extremum() && !self.is_fixed()
    }

    pub(in crate::pool) fn has_index(self) -> bool {
        self == Self::ExtremumAndIndex
    }

    pub(in crate::pool) fn of(reduction: Reduction) -> Self {
        match reduction {
            Reduction::Extremum(_, Output::Values) => Self::Extremum,
            Reduction::Extremum(_, Output::ValuesAndIndices(_)) => Self::ExtremumAndIndex,
            Reduction::Average(Divisor::Padded) => Self::AveragePadded,
            Reduction::Average(Divisor::Valid) => Self::AverageValid,
            Reduction::Average(Divisor::Fixed(_)) => Self::AverageFixed,
            Reduction::Norm(_) | Reduction::Rank(_) => Self::Own,
        }
    }
}

impl Form {
    pub(in crate::pool) fn new(task: Task<'_>) -> Self {
        let Settings { unrolled, extremum, runs, across, .. } = task.settings;
        let [depth, height, width] =
            task.axes().each_ref().map(|axis| AxisForm::new(axis, unrolled));
        Self {
            depth,
            height,
            width,
            fold: Fold::of(task.reduction()),
            extremum,
            rounds: task.rounds(),
            widened: task.widening(task.dtype()),
            runs,
            channels: task.pixel_vectors() > 1,
            across,
            reciprocal: task.dtype() != DType::F64,
            rank: task.pooling().grid().rank(),
        }
    }

    /// The form of windows with all their taps inside the input; this includes the width only if `width` is true.
    pub(in crate::pool) fn unclipped(self, width: bool) -> Self {
        Self {
            depth: self.depth.unclipped(),
            height: self.height.unclipped(),
            width: if width { self.width.unclipped() } else { self.width },
            ..self
        }
    }

    /// Whether the loops over the taps are unrolled.
    pub(in crate::pool) fn unrolled(&self) -> bool {
        self.width.taps.is_some()
    }

    /// The number of taps on each axis of an unrolled loop.
    pub(in crate::pool) fn taps(&self) -> [u32; AXES] {
        [self.depth, self.height, self.width].map(|axis| axis.taps.unwrap_or(0))
    }

    fn may_be_empty(&self) -> bool {
        self.depth.may_be_empty || self.height.may_be_empty || self.width.may_be_empty
    }
}
