//! How often the loops of a unit turn, for a device that ends them.
//!
//! Mesa's software Vulkan counts the turns of all loops of a unit together, and leaves them at 65535 without
//! a word: what is summed is then a part of the sum. So a problem that may take more is refused there.

use windowpane_geometry::{AXES, Axis, Convolution, Pass, Pooling};
use windowpane_kernels::{conv, pool};

use crate::pool::Operator;
use crate::{Device, Error, Result};

/// The turns after which Mesa's software Vulkan ends loops.
const MOST: usize = 65_535;

/// Refuses so many turns where they would not all be made.
fn check(device: &Device, turns: usize) -> Result<()> {
    match turns > MOST && device.is_emulated() {
        true => Err(Error::TooManyTurns { device: device.clone(), turns, limit: MOST }),
        false => Ok(()),
    }
}

/// Refuses a pooling whose units turn too often.
pub(crate) fn check_pooling(
    device: &Device,
    operator: Operator,
    pooling: &Pooling,
    plan: &pool::Plan,
) -> Result<()> {
    let axes = pooling.grid().axes();
    let (taps, windows) = (nested(axes.each_ref().map(taps)), nested(axes.each_ref().map(windows)));
    let turns = match operator {
        // A walk along an axis is cut where it is long; scattering has no loops.
        _ if plan.algorithm == pool::Algorithm::Sliding => 0,
        Operator::Unpool(_) | Operator::UnpoolBackward(_) => 0,
        Operator::Max(_) | Operator::Average(_) => taps / (plan.team as usize * plan.parts).max(1),
        Operator::MaxBackward(_) | Operator::AverageBackward(_) => windows,
        // The largest number first, and then the sum.
        Operator::Norm(_) => taps.saturating_mul(2),
        Operator::NormBackward(_) => taps.saturating_mul(2).max(windows),
    };
    check(device, turns)
}

/// Refuses a convolution whose units turn too often.
pub(crate) fn check_convolution(
    device: &Device,
    pass: Pass,
    problem: &Convolution,
    plan: &conv::Plan,
) -> Result<()> {
    let (axes, output) = (problem.grid().axes(), problem.output());
    let (channels, filters) = (problem.filter().channels(), problem.filter().count());
    let inside = axes.each_ref().map(taps);
    let all = axes.each_ref().map(Axis::kernel);
    let of = |taps: [usize; AXES], terms: usize| {
        nested(taps).saturating_add(taps.iter().product::<usize>().saturating_mul(terms))
    };
    let turns = match pass {
        Pass::Forward => of(inside, channels),
        Pass::Data => of(all, filters / problem.groups()),
        Pass::Filter | Pass::Bias => output.batch() * output.plane(),
    };
    check(device, turns.div_ceil(plan.splits.max(1)))
}

/// The most taps of a window that are inside the input.
fn taps(axis: &Axis) -> usize {
    axis.kernel().min(axis.input().div_ceil(axis.dilation()))
}

/// The most windows over a coordinate.
fn windows(axis: &Axis) -> usize {
    let reach = (axis.kernel() - 1) * axis.dilation();
    axis.output().min(reach / axis.stride() + 1)
}

/// The turns of three loops, each in the one before.
fn nested([depth, height, width]: [usize; AXES]) -> usize {
    let planes = depth.saturating_mul(height);
    depth.saturating_add(planes).saturating_add(planes.saturating_mul(width))
}
