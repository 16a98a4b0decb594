//! Code that window kernels share: the numbers of a problem, the parameters that change the kernels' code, the position
//! of an output, how its taps are reduced, and how the result is written.

mod folds;
mod results;
mod site;

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, DType, Divisor, Extremum, IndexBase, Layout, Pooling};

use crate::cube::axis::{AxisArgs, AxisArgsLaunch, AxisForm, axis_args};
use crate::cube::convert::{Comparison, ExtremumForm, Widening};
use crate::cube::numbers;
use crate::pool::common::{Settings, Task};
use crate::pool::problem::{Output, Reduction};

pub(crate) use folds::{
    Accumulator, accumulator_at, combine, fold, fold_with, identity, merge, prefixes,
};
pub(crate) use results::{counted_at, index_of, quotient, reciprocal, stored};
pub(crate) use site::{Site, plane_position, split_row};

/// The numbers of a problem.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct ProblemArgs {
    /// The number of output vectors; for a gradient, of input vectors.
    pub(crate) vectors: u32,
    /// The number of vectors in a pixel.
    pub(crate) pixel: FastDivmod<u32>,
    pub(crate) pixel_vectors: u32,
    pub(crate) depth: AxisArgs,
    pub(crate) height: AxisArgs,
    pub(crate) width: AxisArgs,
    /// The value of a fixed divisor.
    pub(crate) divisor: u32,
    /// The reciprocal of the divisor of a window with all its taps inside the input.
    pub(crate) reciprocal: InputScalar,
    /// The index steps to the next sample, position, and lane of a vector.
    pub(crate) index_batch: u32,
    pub(crate) index_position: u32,
    pub(crate) index_lane: u32,
    /// The extremum of an empty window, which every number beats.
    pub(crate) empty: InputScalar,
}

pub(crate) fn problem_args(task: Task<'_>) -> ProblemArgsLaunch {
    let reduction = task.reduction();
    let [depth, height, width]: [AxisArgsLaunch; AXES] = task.axes().each_ref().map(axis_args);
    let [index_batch, index_channel, index_position] = indexing(task.pooling(), reduction.base());
    // The lanes of a gradient's vectors are inputs, those of other vectors are windows.
    let (elements, step) = match task.problem.gradient {
        true => (task.inputs(), 1),
        false => (task.outputs(), task.axes()[AXES - 1].stride()),
    };
    let index_lane = match task.settings.along_width {
        true => index_position * step as u32,
        false => index_channel,
    };
    let pixel = task.pixel_vectors();
    numbers! { ProblemArgsLaunch {
        vectors: elements / task.lanes(), pixel, pixel_vectors: pixel, depth, height, width,
        divisor: reduction.fixed_divisor().unwrap_or(1), reciprocal: task.reciprocal(),
        index_batch, index_position, index_lane, empty: empty(task),
    } }
}

/// The index steps to the next sample, channel and position of the plane.
pub(crate) fn indexing(pooling: &Pooling, base: IndexBase) -> [u32; 3] {
    let steps = pooling.index_strides(base);
    // With channels first, a channel is treated as a sample with one channel.
    let batch = match pooling.layout() {
        Layout::ChannelsLast => steps.batch,
        Layout::ChannelsFirst => steps.channel,
    };
    [batch, steps.channel, steps.space[AXES - 1]].map(|step| step as u32)
}

/// The position on each axis of element `i`, in row-major order over `counts`.
pub(crate) fn split(counts: [u32; AXES], i: u32) -> [u32; AXES] {
    [i / counts[2] / counts[1], i / counts[2] % counts[1], i % counts[2]]
}

/// The extremum of an empty window, in the accumulator's type.
fn empty(task: Task<'_>) -> InputScalar {
    let (accumulator, extremum) = (task.accumulator(), task.settings.extremum);
    let is_max = extremum.of_compared() == Extremum::Max;
    let (least, most) = match (extremum.by, task.dtype().integers()) {
        (Comparison::Native | Comparison::Select { .. }, _) => {
            let infinity = if is_max { f64::NEG_INFINITY } else { f64::INFINITY };
            return InputScalar::new(infinity, accumulator);
        }
        (Comparison::Integers, Some(range)) => range,
        (Comparison::Integers | Comparison::Keys, _) => (i32::MIN.into(), i32::MAX.into()),
    };
    InputScalar::new(if is_max { least } else { most }, accumulator)
}

/// How the windows of a problem are reduced: the parameters that change the code of every kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WindowForm {
    pub(crate) axes: [AxisForm; AXES],
    pub(crate) fold: Fold,
    pub(crate) extremum: ExtremumForm,
    pub(crate) rounds: bool,
    /// How elements are converted to the accumulator's type.
    pub(crate) widened: Widening,
    pub(crate) contiguous: bool,
    /// Whether a pixel has several vectors.
    pub(crate) channels: bool,
    /// Whether the lanes of a vector are neighbours along the width, not channels.
    pub(crate) along_width: bool,
    /// Whether all lanes of a vector have the same index: channels that are indexed by their positions in a plane.
    pub(crate) one_index: bool,
    /// Whether sums are multiplied by the reciprocal of their divisor. That rounds once more, and the error bound of a
    /// sum has room for it: the reference is not computed in the same type, and of the `n` roundings that the bound
    /// allows, the last addition's is already that of the result.
    pub(crate) reciprocal: bool,
    /// For sums of integers, the least and the greatest number of the elements' type.
    pub(crate) integers: Option<(i64, i64)>,
    /// Whether these sums have 64 bits.
    pub(crate) sums_wide: bool,
    /// Whether their quotients are cut off.
    pub(crate) truncates: bool,
    /// The number of axes of the problem.
    pub(crate) rank: usize,
}

/// How taps are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fold {
    Extremum,
    ExtremumAndIndex,
    AveragePadded,
    AverageValid,
    AverageFixed,
    /// Computed by a kernel of its own: `lp`, `rank` or `stochastic`.
    Own,
}

impl Fold {
    pub(crate) fn is_extremum(self) -> bool {
        matches!(self, Self::Extremum | Self::ExtremumAndIndex)
    }

    pub(crate) fn is_fixed(self) -> bool {
        self == Self::AverageFixed
    }

    /// Whether a window's sum is divided by the number of taps that it counts.
    pub(crate) fn counts(self) -> bool {
        matches!(self, Self::AveragePadded | Self::AverageValid)
    }

    pub(crate) fn has_index(self) -> bool {
        self == Self::ExtremumAndIndex
    }

    pub(crate) fn of(reduction: Reduction) -> Self {
        match reduction {
            Reduction::Extremum(_, Output::Values) => Self::Extremum,
            Reduction::Extremum(_, Output::ValuesAndIndices(_)) => Self::ExtremumAndIndex,
            Reduction::Average(Divisor::Padded) => Self::AveragePadded,
            Reduction::Average(Divisor::Valid) => Self::AverageValid,
            Reduction::Average(Divisor::Fixed(_) | Divisor::Truncated(_)) => Self::AverageFixed,
            Reduction::Norm(_)
            | Reduction::Rank(_)
            | Reduction::Mode
            | Reduction::Drawn { .. }
            | Reduction::MeanDrawn => Self::Own,
        }
    }
}

impl WindowForm {
    pub(crate) fn new(task: Task<'_>) -> Self {
        let Settings { unrolled, extremum, contiguous, along_width, .. } = task.settings;
        Self {
            axes: task.axes().each_ref().map(|axis| AxisForm::new(axis, unrolled)),
            fold: Fold::of(task.reduction()),
            extremum,
            rounds: task.rounds(),
            widened: task.widening(task.dtype()),
            contiguous,
            channels: task.pixel_vectors() > 1,
            along_width,
            one_index: !along_width && task.reduction().base() == IndexBase::Plane,
            reciprocal: task.dtype().is_float() && task.dtype() != DType::F64,
            integers: task.dtype().integers().filter(|_| task.problem.sums_integers()),
            sums_wide: task.settings.accumulator == DType::I64,
            truncates: task.reduction().truncates(),
            rank: task.pooling().grid().rank(),
        }
    }

    /// The form of windows with all their taps inside the input; this includes the width only if `width` is true.
    pub(crate) fn unclipped(self, width: bool) -> Self {
        let mut axes = self.axes.map(AxisForm::unclipped);
        if !width {
            axes[AXES - 1] = self.axes[AXES - 1];
        }
        Self { axes, ..self }
    }

    /// Whether it is an average of which all windows have the same divisor.
    pub(crate) fn has_one_divisor(&self) -> bool {
        self.fold.is_fixed() || (self.fold.counts() && !self.is_clipped())
    }

    /// Whether the loops over the taps are unrolled.
    pub(crate) fn unrolled(&self) -> bool {
        self.axes[AXES - 1].taps.is_some()
    }

    /// Whether taps may be outside the input.
    pub(crate) fn is_clipped(&self) -> bool {
        self.axes.iter().any(|axis| axis.clipped)
    }

    /// Whether windows may have no tap inside the input.
    pub(crate) fn may_be_empty(&self) -> bool {
        self.axes.iter().any(|axis| axis.may_be_empty)
    }
}
