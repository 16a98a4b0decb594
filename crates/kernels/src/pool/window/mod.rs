//! What kernels of windows have in common: the numbers of a problem, what of it changes their code, where
//! an output is, how its taps are folded, and what becomes of the fold.

mod folds;
mod results;
mod site;

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Divisor, IndexBase, Layout, Pooling};

use super::plan::{Output, Plan, Reduction, pixel_channels};
use crate::axis::{AxisArgs, AxisArgsLaunch, AxisForm, axis_args};
use crate::dtype::{MaximumForm, Widening, elem};

pub(super) use folds::{
    Accumulator, accumulator_at, fold, fold_with, merge, neutral, prefixes, together,
};
pub(super) use results::{counted_at, finish, index_of, reciprocal, scale};
pub(super) use site::{Site, plane_position, site_of};

/// The numbers of a problem, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Problem {
    /// The output vectors.
    pub(super) vectors: u32,
    /// The vectors of a pixel.
    pub(super) pixel: FastDivmod<u32>,
    pub(super) pixel_vectors: u32,
    pub(super) depth: AxisArgs,
    pub(super) height: AxisArgs,
    pub(super) width: AxisArgs,
    /// What a fixed divisor divides by.
    pub(super) divisor: u32,
    /// One over the divisor of a window that is inside with all its taps.
    pub(super) reciprocal: InputScalar,
    /// The steps of an index to the next sample, position, and lane of a vector.
    pub(super) index_batch: u32,
    pub(super) index_position: u32,
    pub(super) index_lane: u32,
    /// Less than every number: what an empty window's maximum is.
    pub(super) lowest: InputScalar,
}

pub(super) fn problem_args(
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
) -> ProblemLaunch {
    let [depth, height, width]: [AxisArgsLaunch; AXES] =
        pooling.grid().axes().each_ref().map(axis_args);
    let [index_batch, index_channel, index_position] = indexing(pooling, reduction.base());
    let index_lane = match plan.across {
        true => index_position * pooling.grid().axes()[AXES - 1].stride() as u32,
        false => index_channel,
    };
    let pixel = pixel_vectors(pooling, plan);
    ProblemLaunch::new(
        (pooling.output().elements() / plan.lanes) as u32,
        pixel,
        pixel,
        depth,
        height,
        width,
        reduction.fixed_divisor(),
        InputScalar::new(1.0 / full_divisor(pooling, reduction), elem(plan.accumulator)),
        index_batch,
        index_position,
        index_lane,
        lowest(dtype, plan.accumulator),
    )
}

/// The vectors of a pixel; lanes across pixels leave one.
pub(super) fn pixel_vectors(pooling: &Pooling, plan: &Plan) -> u32 {
    if plan.across { 1 } else { (pixel_channels(pooling) / plan.lanes) as u32 }
}

/// What the sum of a window with all its taps inside is divided by.
pub(super) fn full_divisor(pooling: &Pooling, reduction: Reduction) -> f64 {
    match reduction {
        Reduction::Average(Divisor::Fixed(n)) => f64::from(n),
        _ => pooling.grid().taps() as f64,
    }
}

/// Whether windows are three by three, one step apart, and leave a plane of rows its extents.
pub(super) fn keeps_planes(pooling: &Pooling) -> bool {
    let [depth, height, width] = pooling.grid().axes();
    let plain = |axis: &Axis| axis.stride() == 1 && axis.dilation() == 1 && !axis.is_fitted();
    let keeps = |axis: &Axis| axis.kernel() == 3 && axis.before() == 1 && axis.after() == 1;
    let alone = depth.kernel() == 1 && depth.before() == 0 && depth.after() == 0;
    [depth, height, width].into_iter().all(plain)
        && alone
        && keeps(height)
        && keeps(width)
        && height.input() > 1
}

/// The steps of an index to the next sample, channel and position of the plane.
pub(super) fn indexing(pooling: &Pooling, base: IndexBase) -> [u32; 3] {
    let steps = pooling.index_strides(base);
    // With channels first a channel is a sample of its own, one channel wide.
    let batch = match pooling.layout() {
        Layout::ChannelsLast => steps.batch,
        Layout::ChannelsFirst => steps.channel,
    };
    [batch, steps.channel, steps.space[AXES - 1]].map(|step| step as u32)
}

/// Where on each axis number `i` of `counts`, row-major, is.
pub(super) fn split(counts: [u32; AXES], i: u32) -> [u32; AXES] {
    [i / counts[2] / counts[1], i / counts[2] % counts[1], i % counts[2]]
}

/// The value of an empty window, in the accumulator's type.
fn lowest(dtype: DType, accumulator: DType) -> InputScalar {
    let accumulator = elem(accumulator);
    match dtype {
        DType::I32 => InputScalar::new(i32::MIN, accumulator),
        DType::I8 => InputScalar::new(i8::MIN, accumulator),
        DType::U8 => InputScalar::new(u8::MIN, accumulator),
        _ if !accumulator.is_float() => InputScalar::new(i32::MIN, accumulator),
        _ => InputScalar::new(f64::NEG_INFINITY, accumulator),
    }
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) depth: AxisForm,
    pub(super) height: AxisForm,
    pub(super) width: AxisForm,
    pub(super) fold: Fold,
    pub(super) maximum: MaximumForm,
    pub(super) float: bool,
    pub(super) rounds: bool,
    /// How elements are widened.
    pub(super) widened: Widening,
    pub(super) runs: bool,
    /// Whether several vectors make a pixel.
    pub(super) channels: bool,
    /// Whether the lanes of a vector are neighbours along the width, not channels.
    pub(super) across: bool,
    /// Whether sums are multiplied by one over their divisor. That rounds once more, for which the
    /// bound of a sum has room: the truth is not computed in the same type, and of `n` roundings that
    /// it allows the last addition's is already that of the result.
    pub(super) reciprocal: bool,
    /// The axes that the problem has.
    pub(super) rank: usize,
}

/// What becomes of a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fold {
    Max,
    MaxAndIndex,
    AveragePadded,
    AverageValid,
    AverageFixed,
    /// By a kernel of its own.
    Norm,
}

impl Fold {
    pub(super) fn is_max(self) -> bool {
        matches!(self, Self::Max | Self::MaxAndIndex)
    }

    pub(super) fn is_fixed(self) -> bool {
        self == Self::AverageFixed
    }

    /// Whether what a window's sum is divided by is the taps that it counts.
    pub(super) fn counts(self) -> bool {
        !self.is_max() && !self.is_fixed()
    }

    pub(super) fn has_index(self) -> bool {
        self == Self::MaxAndIndex
    }

    pub(super) fn average(divisor: Divisor) -> Self {
        match divisor {
            Divisor::Padded => Self::AveragePadded,
            Divisor::Valid => Self::AverageValid,
            Divisor::Fixed(_) => Self::AverageFixed,
        }
    }
}

impl Form {
    pub(super) fn new(pooling: &Pooling, reduction: Reduction, dtype: DType, plan: &Plan) -> Self {
        let [depth, height, width] =
            pooling.grid().axes().each_ref().map(|axis| AxisForm::new(axis, plan.unrolled));
        Self {
            depth,
            height,
            width,
            fold: match reduction {
                Reduction::Max(Output::Values) => Fold::Max,
                Reduction::Max(Output::ValuesAndIndices(_)) => Fold::MaxAndIndex,
                Reduction::Average(divisor) => Fold::average(divisor),
                Reduction::Norm(_) => Fold::Norm,
            },
            maximum: plan.maximum,
            float: dtype.is_float(),
            rounds: plan.rounds,
            widened: plan.widening(dtype),
            runs: plan.runs,
            channels: pixel_vectors(pooling, plan) > 1,
            across: plan.across,
            reciprocal: dtype != DType::F64,
            rank: pooling.grid().rank(),
        }
    }

    /// The form of windows that are inside with all their taps, on the width where that is said.
    pub(super) fn unclipped(self, width: bool) -> Self {
        Self {
            depth: self.depth.unclipped(),
            height: self.height.unclipped(),
            width: if width { self.width.unclipped() } else { self.width },
            ..self
        }
    }

    /// Whether the loops over the taps are unrolled.
    pub(super) fn unrolled(&self) -> bool {
        self.width.taps.is_some()
    }

    /// The taps on each axis of an unrolled loop.
    pub(super) fn taps(&self) -> [u32; AXES] {
        [self.depth, self.height, self.width].map(|axis| axis.taps.unwrap_or(0))
    }

    fn may_be_empty(&self) -> bool {
        self.depth.may_be_empty || self.height.may_be_empty || self.width.may_be_empty
    }
}
