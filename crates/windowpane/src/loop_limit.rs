//! Limits the loop iterations of a thread on drivers that end loops early.
//!
//! Mesa's software Vulkan counts the iterations of all loops of a thread together and silently leaves them
//! after 65535, so that a sum would be incomplete. Problems that may need more are refused there.

use windowpane_geometry::{AXES, Axis, Convolution, Fractional, Padded, Pass, Pooling};
use windowpane_kernels::{Capabilities, conv, pool};

use crate::pool::Operator;
use crate::{Device, Error, Result};

/// The iterations after which Mesa's software Vulkan ends loops.
const MOST: usize = 65_535;

/// The most passes over a window by which a rank is found, with the loop over them.
const PASSES: usize = 66;

/// Refuses this number of iterations on a device that would not complete them.
fn check(device: &Device, iterations: usize) -> Result<()> {
    match iterations > MOST && device.is_emulated() {
        true => Err(Error::LoopLimit { device: device.clone(), iterations, limit: MOST }),
        false => Ok(()),
    }
}

/// Refuses a pooling whose threads would exceed the driver's limit on iterations.
pub(crate) fn check_pooling(
    device: &Device,
    operator: Operator,
    pooling: &Pooling,
    plan: &pool::Plan,
) -> Result<()> {
    let axes = pooling.grid().axes();
    let (taps, windows) = (nested(axes.each_ref().map(taps)), nested(axes.each_ref().map(windows)));
    let iterations = match operator {
        // Long walks along an axis are split; scattering has no loops.
        _ if plan.algorithm() == pool::Algorithm::VanHerk => 0,
        Operator::Unpool(_) | Operator::UnpoolBackward(_) => 0,
        Operator::Extremum(..) | Operator::Average(_) => match plan.config {
            // The plan is not checked yet, so the divisor may be 0.
            pool::Config::BlockReduce(config) => {
                taps / (config.team as usize).saturating_mul(config.parts).max(1)
            }
            _ => taps,
        },
        Operator::ExtremumBackward(..)
        | Operator::DrawnBackward(_)
        | Operator::AverageBackward(_) => windows,
        // One pass for the largest magnitude or the total, then one for the result.
        Operator::Norm(_) | Operator::Drawn(..) | Operator::MeanDrawn => taps.saturating_mul(2),
        Operator::Rank(_) | Operator::Mode if plan.settings.unrolled => 0,
        Operator::Rank(_) => taps.saturating_add(1).saturating_mul(PASSES),
        // A pass for the largest number, then one for each number that a window has.
        Operator::Mode => taps.saturating_add(1).saturating_mul(taps.saturating_add(1)),
        Operator::NormBackward(_) => taps.saturating_mul(2).max(windows),
    };
    check(device, iterations)
}

/// Refuses a fractional pooling whose threads would exceed the driver's limit on iterations, or its gradient.
pub(crate) fn check_fractional(device: &Device, problem: &Fractional) -> Result<()> {
    // No more windows than a window has coordinates are over one of them. The gradient finds the first and the last of
    // them by bisection on each axis.
    let bisections = 2 * AXES * usize::BITS as usize;
    check(device, nested(problem.kernel()).saturating_add(bisections))
}

/// Refuses the gradient of a padding whose threads would exceed the driver's limit on iterations.
pub(crate) fn check_padding(device: &Device, padded: &Padded) -> Result<()> {
    // Each axis has a loop over the two sides of reflections as well.
    check(device, nested(padded.most_copies().map(|copies| copies + 2)))
}

/// Refuses a convolution whose threads would exceed the driver's limit on iterations.
pub(crate) fn check_convolution(
    device: &Device,
    pass: Pass,
    problem: &Convolution,
    plan: &conv::Plan,
) -> Result<()> {
    check(device, turns_of_plan(pass, problem, plan).div_ceil(plan.splits.max(1)))
}

/// Splits the sums of a convolution's plan so that the driver does not end any thread's loops early; an error if the
/// kernel cannot split them.
pub(crate) fn cut_convolution(
    device: &Device,
    request: conv::Request,
    problem: &Convolution,
    plan: conv::Plan,
    capabilities: &Capabilities,
) -> Result<conv::Plan> {
    let refused = match check_convolution(device, request.pass, problem, &plan) {
        Ok(()) => return Ok(plan),
        Err(refused) => refused,
    };
    let mut cut = plan;
    cut.splits = turns_of_plan(request.pass, problem, &plan).div_ceil(MOST);
    cut.check(problem, request, capabilities).map(|()| cut).map_err(|_| refused)
}

/// The loop iterations of a thread that computes a whole sum, of the problem as it is or as the plan's kernel reads it, of
/// which either may have more.
fn turns_of_plan(pass: Pass, problem: &Convolution, plan: &conv::Plan) -> usize {
    let read = plan.read(problem, pass).map_or(0, |read| turns_of(pass, &read));
    read.max(turns_of(pass, problem))
}

/// The loop iterations of a thread that computes a whole sum.
fn turns_of(pass: Pass, problem: &Convolution) -> usize {
    let (axes, output) = (problem.grid().axes(), problem.output());
    let (channels, filters) = (problem.filter().channels(), problem.filter().count());
    let inside = axes.each_ref().map(taps);
    let all = axes.each_ref().map(Axis::kernel);
    let of = |taps: [usize; AXES], terms: usize| {
        nested(taps).saturating_add(taps.iter().product::<usize>().saturating_mul(terms))
    };
    match pass {
        Pass::Forward => of(inside, channels),
        Pass::Data => of(all, filters / problem.groups()),
        Pass::Weight | Pass::Bias => output.batch() * output.plane(),
    }
}

/// The largest number of taps of a window that are inside the input.
fn taps(axis: &Axis) -> usize {
    axis.kernel().min(axis.input().div_ceil(axis.dilation()))
}

/// The largest number of windows that read one coordinate.
fn windows(axis: &Axis) -> usize {
    let reach = (axis.kernel() - 1) * axis.dilation();
    axis.output().min(reach / axis.stride() + 1)
}

/// The iterations of three nested loops.
fn nested([depth, height, width]: [usize; AXES]) -> usize {
    let planes = depth.saturating_mul(height);
    depth.saturating_add(planes).saturating_add(planes.saturating_mul(width))
}
