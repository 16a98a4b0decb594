//! Why a kernel was chosen, and why the other kernels were not.

use core::fmt;

use windowpane_geometry::Convolution;

use super::{Algorithm, Plan, PlanOptions, layouts};
use crate::conv::problem::{Request, in_layout};
use crate::device::Capabilities;
use crate::error::{NotApplicable, PlanError};

/// The result of the selection for one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It is the plan's kernel: no other has a lower estimate.
    Chosen {
        /// The estimated time.
        nanoseconds: u64,
    },
    /// It applies, but another kernel has a lower estimate.
    Slower {
        /// The estimated time.
        nanoseconds: u64,
    },
    /// It does not apply.
    DoesNotApply(NotApplicable),
    /// It applies, but the device cannot run its configuration.
    Refused(PlanError),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        match *self {
            Self::Chosen { nanoseconds } => {
                write!(f, "chosen; estimated {:.1} µs", micros(nanoseconds))
            }
            Self::Slower { nanoseconds } => {
                write!(f, "applies; estimated {:.1} µs", micros(nanoseconds))
            }
            Self::DoesNotApply(reason) => write!(f, "does not apply: {reason}"),
            Self::Refused(reason) => write!(f, "cannot run: {reason}"),
        }
    }
}

/// The verdict on every kernel.
///
/// Returns an error if the problem itself is rejected, as one of integers is.
pub fn explain(
    conv: &Convolution,
    request: Request,
    device: &Capabilities,
) -> Result<Vec<(Algorithm, Verdict)>, PlanError> {
    let chosen = Plan::new(conv, request, PlanOptions::default(), device)?.algorithm();
    Ok(Algorithm::ALL.map(|kernel| (kernel, verdict(kernel, chosen, conv, request, device))).into())
}

fn verdict(
    kernel: Algorithm,
    chosen: Algorithm,
    conv: &Convolution,
    request: Request,
    device: &Capabilities,
) -> Verdict {
    let options = PlanOptions { algorithm: Some(kernel), ..PlanOptions::default() };
    // The reason in the last layout is about more than the layout.
    let mut reason = None;
    for layout in layouts(conv, options) {
        let read = in_layout(conv, request.pass, layout);
        match kernel.applies(&read, request, device) {
            Err(found) => reason = Some(found),
            Ok(()) => {
                reason = None;
                break;
            }
        }
    }
    if let Some(reason) = reason {
        return Verdict::DoesNotApply(reason);
    }
    match Plan::new(conv, request, options, device) {
        Err(reason) => Verdict::Refused(reason),
        Ok(plan) => {
            let nanoseconds = (plan.seconds(conv, request, device) * 1e9) as u64;
            match kernel == chosen {
                true => Verdict::Chosen { nanoseconds },
                false => Verdict::Slower { nanoseconds },
            }
        }
    }
}
