//! Why a kernel was chosen, and why the other kernels were not.

use core::fmt;

use windowpane_geometry::Convolution;

use super::{Algorithm, Plan, Wish};
use crate::conv::error::{NotApplicable, PlanError};
use crate::conv::problem::Request;
use crate::device::Capabilities;

/// The result of the selection for one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It is the plan's kernel.
    Chosen,
    /// It applies, but another kernel that is preferred, because it is faster for most such problems, applies too.
    Slower {
        /// The preferred kernel.
        than: Algorithm,
    },
    /// It applies, but would be slower than kernels that are tried later. It is used only if it is requested.
    DoesNotPay,
    /// It does not apply.
    DoesNotApply(NotApplicable),
    /// It applies, but the device cannot run its configuration.
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
/// Returns an error if the problem itself is rejected, as one of integers is.
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
        let read = algorithm.reads(conv, request);
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
