//! The pooling that this kernel computes: the problem's own, or the one whose result is the gradient of an average.

use windowpane_geometry::{AXES, Divisor, Extents, Pooling, Shape, Window};

use super::NAME;
use crate::error::{PlanError, only_if};
use crate::pool::problem::{Problem, Reduction};

/// What is computed.
pub(super) struct Sums<'a> {
    reduction: Reduction,
    /// The pooling, if it is not the problem's own.
    adjoint: Option<Pooling>,
    /// The pooling whose divisors the elements are divided by before they are summed, if these differ.
    pub(super) divisors: Option<&'a Pooling>,
}

impl<'a> Sums<'a> {
    /// The pooling for a problem. For a gradient, window `x` of the output's gradient has the windows over input `x` as
    /// its taps.
    pub(super) fn of(problem: Problem<'a>) -> Result<Self, PlanError> {
        let Problem { pooling, reduction, gradient, .. } = problem;
        let divisor = match reduction {
            Reduction::Average(divisor) if gradient => divisor,
            _ if gradient => {
                return Err(PlanError::NotApplicable {
                    kernel: NAME,
                    reason: "it only computes gradients of averages",
                });
            }
            _ => return Ok(Self { reduction, adjoint: None, divisors: None }),
        };
        let axes = pooling.grid().axes();
        let steps = axes.iter().all(|axis| axis.stride() == 1 && axis.dilation() == 1);
        only_if(NAME, steps, "strides are not 1 or windows are dilated")?;
        only_if(NAME, !pooling.grid().is_uneven(), "windows differ in size")?;
        let near = axes.iter().all(|axis| axis.before().max(axis.after()) < axis.kernel());
        only_if(NAME, near, "padding is too wide")?;
        let output = pooling.output();
        let shape = Shape::new(
            output.batch(),
            output.channels(),
            Extents::from(axes.each_ref().map(|axis| axis.output())),
        )?;
        let padding: [(usize, usize); AXES] = axes
            .each_ref()
            .map(|axis| (axis.kernel() - 1 - axis.before(), axis.kernel() - 1 - axis.after()));
        let window = Window::new(axes.each_ref().map(|axis| axis.kernel()))
            .stride([1; AXES])
            .padding(padding);
        let adjoint = Pooling::new(shape, &window, pooling.layout())?;
        // With strides of 1 no window hangs over the padding.
        let taps = pooling.grid().taps() as u32;
        let (fixed, divisors) = match divisor {
            Divisor::Fixed(taps) | Divisor::Truncated(taps) => (taps, None),
            Divisor::Padded => (taps, None),
            Divisor::Valid => match axes.iter().any(|axis| axis.clipped()) {
                false => (taps, None),
                true => (1, Some(pooling)),
            },
        };
        let reduction = Reduction::Average(Divisor::Fixed(fixed));
        Ok(Self { reduction, adjoint: Some(adjoint), divisors })
    }

    /// The problem that is computed.
    pub(super) fn problem<'b>(&'b self, problem: Problem<'b>) -> Problem<'b> {
        match &self.adjoint {
            None => problem,
            Some(pooling) => {
                Problem { pooling, reduction: self.reduction, gradient: false, ..problem }
            }
        }
    }
}
