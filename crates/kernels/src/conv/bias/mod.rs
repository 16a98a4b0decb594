//! The bias gradient: the output gradient summed over samples and positions.
//!
//! ```text
//! db[f] = Σ { dy[n, o, f] : n, o }
//! ```
//!
//! One unit sums one part of the rows for one filter. The parts are then added as in every split-K sum.

use windowpane_geometry::DType;

use crate::conv::common::{Arguments, buffer, tensor_args};
use crate::conv::problem::Task;
use crate::cube::{accumulator, elem, grid};

mod kernel;

/// Launches the kernel that computes the sums, or their parts.
pub(crate) fn launch(arguments: &Arguments<'_>) {
    let Arguments { client, task: Task { conv, request, .. }, splits, stored, .. } = *arguments;
    let ([dy, _], out) = (arguments.operands, arguments.out);
    let (output, dtype) = (conv.output(), request.dtype);
    let rows = output.batch() * output.plane();
    let sums = output.channels();
    let (cubes, units) = grid(client, arguments.units, sums * splits);
    // SAFETY: every access is inside the tensors by the arithmetic of `Coordinates`.
    unsafe {
        kernel::bias::launch_unchecked(
            client,
            cubes,
            units,
            buffer(dy, output.elements()),
            buffer(out, sums * splits),
            tensor_args(&output, conv.layout()),
            sums as u32,
            splits as u32,
            rows as u32,
            rows.div_ceil(splits) as u32,
            arguments.contiguous,
            stored == DType::BF16,
            elem(dtype),
            elem(accumulator(dtype)),
            elem(stored),
        )
    }
}
