//! Unpooling: moves maxima back to their positions; also the gradient of that.
//!
//! ```text
//! sources = −1                                                   one unit per input
//! for each output o:  sources[winner(o)] = max(itself, o)        one unit per output, atomic
//! x[i]  = y[sources[i]], or 0 if that is −1                      one unit per input
//! dy[o] = dx[winner(o)] if that source is o, or 0                one unit per output
//! ```
//!
//! If several windows name one position, the last of them wins in whatever order units run, because the maximum of
//! integers does not depend on the order. An index of −1 goes nowhere. An index that is no position of its own plane
//! goes nowhere either, and the first such element is recorded in a note, which the caller has to check when it reads
//! the result.

mod kernel;

use cubecl::client::Client;
use cubecl::server::Handle;

use crate::pool::common::place::place_args;
use crate::pool::common::{Settings, Task, Tensor};

/// The note of [`launch_unpool`](super::launch_unpool) if no index was out of range.
pub const NONE_OUT_OF_RANGE: i32 = i32::MAX;

/// The settings for one unit per element, with the workspace for the sources.
pub(super) fn settings(task: Task<'_>) -> Settings {
    // One element for each input and one for the note: every channel has winners of its own.
    let workspace = (task.inputs() + 1) * size_of::<i32>();
    Settings { lanes: 1, unrolled: false, workspace, ..task.settings }
}

/// Launches unpooling, or its gradient: moves the elements of `from` to `to`. The caller has checked the plan and the
/// tensors. Returns the note.
pub(super) fn launch(
    client: &Client,
    task: Task<'_>,
    gradient: bool,
    [from, indices, to]: [Tensor<'_>; 3],
) -> Handle {
    let (sources, note) = settle(client, task, indices);
    if to.elements == 0 {
        return note;
    }
    let sources = Tensor::new(&sources, task.inputs()).vectors(1);
    let (from, contiguous) = (from.vectors(1), task.settings.contiguous);
    let (cubes, units) = task.grid(client, to.elements);
    // SAFETY: `settle` has checked that sources are inside `from`, and a gradient reads `from` only where inputs are.
    unsafe {
        if gradient {
            kernel::unpool_backward::launch_unchecked(
                client,
                cubes,
                units,
                from,
                indices.vectors(1),
                sources,
                to.vectors(1),
                place_args(task),
                contiguous,
                task.elem(),
            )
        } else {
            kernel::unpool::launch_unchecked(
                client,
                cubes,
                units,
                from,
                sources,
                to.vectors(1),
                to.elements as u32,
                contiguous,
                task.elem(),
            )
        }
    };
    note
}

/// Determines the source of every input, and the first index that is out of range.
fn settle(client: &Client, task: Task<'_>, indices: Tensor<'_>) -> (Handle, Handle) {
    let inputs = task.inputs();
    let note = client.create_from_slice(&NONE_OUT_OF_RANGE.to_ne_bytes());
    let sources = client.empty(inputs.max(1) * size_of::<i32>());
    if inputs == 0 {
        return (sources, note);
    }
    let (cubes, units) = task.grid(client, inputs);
    // SAFETY: the buffer has `inputs` elements.
    unsafe {
        kernel::forget::launch_unchecked(
            client,
            cubes,
            units,
            Tensor::new(&sources, inputs).vectors(1),
            inputs as u32,
            task.settings.contiguous,
        )
    };
    let (cubes, units) = task.grid(client, task.outputs());
    // SAFETY: `place_of` returns only positions of elements of `sources`.
    unsafe {
        kernel::settle_sources::launch_unchecked(
            client,
            cubes,
            units,
            indices.vectors(1),
            Tensor::new(&sources, inputs).vectors(1),
            Tensor::new(&note, 1).vectors(1),
            place_args(task),
            task.settings.contiguous,
        )
    };
    (sources, note)
}
