//! Why a kernel was chosen, and why the other kernels were not.

use windowpane_geometry::Convolution;

use super::{Algorithm, Plan, PlanOptions, forms};
use crate::conv::problem::{Request, Task};
use crate::device::Capabilities;
use crate::error::{PlanError, Verdict};

/// The verdict on every kernel.
///
/// Returns an error if the problem itself is rejected, as one of integers is.
pub fn explain(
    conv: &Convolution,
    request: Request,
    device: &Capabilities,
) -> Result<Vec<(Algorithm, Verdict)>, PlanError> {
    let chosen = Plan::new(conv, request, PlanOptions::default(), device)?.algorithm();
    let task = Task { conv, request: request.computed(device), device };
    Ok(Algorithm::ALL.map(|kernel| (kernel, verdict(kernel, chosen, request, task))).into())
}

fn verdict(kernel: Algorithm, chosen: Algorithm, request: Request, task: Task<'_>) -> Verdict {
    let Task { conv, device, .. } = task;
    let options = PlanOptions { algorithm: Some(kernel), ..PlanOptions::default() };
    let applied =
        forms(task, options).map(|(_, read)| kernel.applies(Task { conv: &read, ..task }));
    let applied: Vec<_> = applied.collect();
    // The reason in the last form is about more than the form.
    if let (true, Some(Err(reason))) = (applied.iter().all(Result::is_err), applied.last()) {
        return Verdict::DoesNotApply(*reason);
    }
    let plan = Plan::new(conv, request, options, device);
    let seconds = plan.map(|plan| plan.seconds(task));
    Verdict::new(kernel == chosen, seconds)
}
