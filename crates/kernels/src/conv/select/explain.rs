//! Why a kernel was chosen, and why each of the others was not.

use core::fmt;

use windowpane_geometry::Convolution;

use super::{Algorithm, Plan, Wish};
use crate::conv::error::{NotApplicable, PlanError};
use crate::conv::problem::Request;
use crate::device::Capabilities;

/// The outcome of the choice for one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It is the kernel of the plan.
    Chosen,
    /// It applies, and a kernel that comes before it, as it is faster for most such problems, applies too.
    Slower {
        /// That kernel.
        than: Algorithm,
    },
    /// It applies, and would take longer than the kernels after it: it is used only where it is asked for.
    DoesNotPay,
    /// It does not apply.
    DoesNotApply(NotApplicable),
    /// It applies, and the device cannot run it as it would be configured.
    Refused(PlanError),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chosen => f.write_str("chosen"),
            Self::Slower { than } => write!(f, "applies; {than} is preferred for such problems"),
            Self::DoesNotPay => f.write_str("applies, but does not pay off here"),
            Self::DoesNotApply(reason) => write!(f, "does not apply: {reason}"),
            Self::Refused(reason) => write!(f, "cannot run: {reason}"),
        }
    }
}

/// The verdict on every kernel, in the order in which they are tried.
///
/// The problem itself may be refused, as one of integers is.
pub fn explain(
    conv: &Convolution,
    request: Request,
    device: &Capabilities,
) -> Result<Vec<(Algorithm, Verdict)>, PlanError> {
    let chosen = Plan::new(conv, request, Wish::default(), device)?.algorithm();
    let verdict = |algorithm: Algorithm| {
        if algorithm == chosen {
            return Verdict::Chosen;
        }
        let read = algorithm.reads(conv, request.pass);
        if let Err(reason) = algorithm.applies(&read, request, device) {
            return Verdict::DoesNotApply(reason);
        }
        let wish = Wish { algorithm: Some(algorithm), ..Wish::default() };
        match Plan::new(conv, request, wish, device) {
            Err(reason) => Verdict::Refused(reason),
            Ok(_) if !algorithm.pays(conv, request, device) => Verdict::DoesNotPay,
            Ok(_) => Verdict::Slower { than: chosen },
        }
    };
    Ok(Algorithm::LADDER.map(|algorithm| (algorithm, verdict(algorithm))).into())
}
