//! The division of a gradient's elements by their windows' divisors, for passes that do not divide what they read.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Pooling};

use crate::cube::axis::{AxisArgs, AxisForm, axis_args};
use crate::cube::convert::{Widening, widen};
use crate::cube::numbers;
use crate::cube::unit::{plain_grid, unit_position, widest_lanes};
use crate::device::Target;
use crate::pool::common::window::{Fold, counted_at};
use crate::pool::common::{Task, Tensor};

/// Divides each element of `input`, which belongs to a window of `windows`, by the number of the window's taps inside its
/// input. The result has the type of sums.
pub(super) fn launch(client: &Client, task: Task<'_>, windows: &Pooling, input: &Handle) -> Handle {
    let accumulator = task.settings.accumulator;
    let elements = task.inputs();
    let lanes = widest_lanes(task.device, accumulator.size(), task.pixel());
    let vectors = elements / lanes;
    let output = client.empty(elements * accumulator.size());
    let (cubes, dim) = plain_grid(Target { client, device: task.device }, vectors);
    let [depth, height, width] = windows.grid().axes().each_ref().map(axis_args);
    let args = numbers! { DivisionArgsLaunch {
        vectors, pixel: task.pixel() / lanes, depth, height, width,
    } };
    let form = DivisionForm {
        axes: windows.grid().axes().each_ref().map(|axis| AxisForm::new(axis, false)),
        widened: task.widening(task.dtype()),
        contiguous: task.settings.contiguous,
    };
    // SAFETY: units past the last vector end at once.
    unsafe {
        divide::launch_unchecked(
            client,
            cubes,
            dim,
            lanes,
            Tensor::new(input, elements).vectors(lanes),
            Tensor::new(&output, elements).vectors(lanes),
            args,
            form,
            task.types(),
        )
    };
    output
}

/// The bytes of the result.
pub(super) fn bytes(task: Task<'_>) -> usize {
    task.inputs() * task.settings.accumulator.size()
}

/// The estimated time.
pub(super) fn seconds(task: Task<'_>) -> f64 {
    let device = task.device;
    device.launch_seconds(1)
        + device.copy_seconds((bytes(task) + task.inputs() * task.dtype().size()) as f64)
}

#[derive(CubeType, CubeLaunch)]
struct DivisionArgs {
    vectors: u32,
    /// The number of vectors in a pixel.
    pixel: FastDivmod<u32>,
    depth: AxisArgs,
    height: AxisArgs,
    width: AxisArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct DivisionForm {
    axes: [AxisForm; AXES],
    widened: Widening,
    contiguous: bool,
}

/// Divides, because multiplying by a reciprocal would round twice.
#[cube(launch_unchecked)]
fn divide<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<A, N>],
    args: &DivisionArgs,
    #[comptime] form: DivisionForm,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let vector = unit_position(form.contiguous);
    if vector >= args.vectors {
        terminate!();
    }
    let [depth, height, width] = comptime!(form.axes);
    let (rest, w) = args.width.output.div_mod(args.pixel.div(vector));
    let (rest, h) = args.height.output.div_mod(rest);
    let d = args.depth.output.modulo(rest);
    let taps = counted_at(&args.depth, d, depth, Fold::AverageValid)
        * counted_at(&args.height, h, height, Fold::AverageValid)
        * counted_at(&args.width, w, width, Fold::AverageValid);
    let elements = widen::<S, A, N>(input[vector as usize], form.widened);
    output[vector as usize] = elements / Vector::new(A::cast_from(taps));
}
