//! One kernel per pass: a unit computes the coordinates of its element and sums the products of all its taps.

use cubecl::prelude::*;
use windowpane_geometry::AXES;

use crate::conv::common::{
    Coordinates, EpilogueArgs, EpilogueForm, Order, Problem, data_sum, finish, finish_at, offset,
    place, row, tap_offset,
};
use crate::cube::{AxisArgs, AxisForm, coordinate, multiply_add, taps_of, unit_position};

/// The compile-time options of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) axes: [AxisForm; AXES],
    /// The order of the result's elements.
    pub(super) order: Order,
    pub(super) epilogue: EpilogueForm,
    pub(super) contiguous: bool,
}

#[cube(launch_unchecked)]
pub(super) fn forward<S: Float, A: Float, R: Float>(
    x: &[S],
    w: &[S],
    epilogue: &EpilogueArgs<R, Const<1>>,
    y: &mut [Vector<R, Const<1>>],
    problem: &Problem,
    #[comptime] form: Form,
    #[define(S)] _read: ElemType,
    #[define(A)] _accumulator: ElemType,
    #[define(R)] _stored: ElemType,
) {
    let i = unit_position(form.contiguous);
    if i >= problem.elements {
        terminate!();
    }
    let at = place(&problem.y, i, form.order);
    let filter = at.channel;
    let group = problem.filters.div(filter);
    let x_first = at.sample * problem.x.sample_step
        + group * problem.channels_per_group * problem.x.channel_step;
    let w_first = filter * problem.w.sample_step;
    let depth = taps_of(&problem.depth, at.depth, form.axes[0]);
    let height = taps_of(&problem.height, at.height, form.axes[1]);
    let width = taps_of(&problem.width, at.width, form.axes[2]);

    let mut sum = Vector::<A, Const<1>>::new(A::from_int(0));
    for td in depth.first..depth.end {
        for th in height.first..height.end {
            for tw in width.first..width.end {
                let pixel = coordinate(&problem.depth, &depth, td, form.axes[0]) as u32
                    * problem.x.depth_step
                    + coordinate(&problem.height, &height, th, form.axes[1]) as u32
                        * problem.x.height_step
                    + coordinate(&problem.width, &width, tw, form.axes[2]) as u32
                        * problem.x.width_step;
                let tap = tap_offset(&problem.w, td, th, tw);
                for c in 0..problem.channels_per_group {
                    let x = x[(x_first + pixel + c * problem.x.channel_step) as usize];
                    let w = w[(w_first + tap + c * problem.w.channel_step) as usize];
                    let (x, w) = (Vector::new(A::cast_from(x)), Vector::new(A::cast_from(w)));
                    sum = multiply_add::<A, Const<1>>(x, w, sum);
                }
            }
        }
    }
    y[i as usize] = finish_at::<R, A, Const<1>>(epilogue, sum, filter, i);
}

#[cube(launch_unchecked)]
pub(super) fn data<S: Float, A: Float>(
    dy: &[S],
    w: &[S],
    dx: &mut [S],
    problem: &Problem,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let i = unit_position(form.contiguous);
    if i >= problem.elements {
        terminate!();
    }
    let at = place(&problem.x, i, form.order);
    let sum = Vector::<A, Const<1>>::new(data_sum::<S, A>(dy, w, problem, &at));
    dx[i as usize] = finish::<S, A, Const<1>>(sum, 0.0f32, form.epilogue).extract(0usize);
}

#[cube(launch_unchecked)]
pub(super) fn weight<S: Float, A: Float, O: Float>(
    dy: &[S],
    x: &[S],
    dw: &mut [O],
    problem: &Problem,
    #[comptime] form: Form,
    #[define(S)] _read: ElemType,
    #[define(A)] _accumulator: ElemType,
    #[define(O)] _stored: ElemType,
) {
    let i = unit_position(form.contiguous);
    if i >= problem.elements {
        terminate!();
    }
    let (part, element) = problem.part.div_mod(i);
    let at = place(&problem.w, element, form.order);
    let group = problem.filters.div(at.sample);
    let channel = group * problem.channels_per_group + at.channel;

    let first = part * problem.part_windows;
    let end = min(first + problem.part_windows, problem.windows);
    let mut sum = A::from_int(0);
    for r in first..end {
        let mut window = row(&problem.y, r);
        let d = read_by(&problem.depth, window.depth, at.depth);
        let h = read_by(&problem.height, window.height, at.height);
        let w = read_by(&problem.width, window.width, at.width);
        if d >= 0 && h >= 0 && w >= 0 {
            window.channel = at.sample;
            let pixel = Coordinates {
                sample: window.sample,
                channel,
                depth: d as u32,
                height: h as u32,
                width: w as u32,
            };
            let dy = dy[offset(&problem.y, &window) as usize];
            let x = x[offset(&problem.x, &pixel) as usize];
            sum = fma(A::cast_from(dy), A::cast_from(x), sum);
        }
    }
    let sum = Vector::<A, Const<1>>::new(sum);
    dw[i as usize] = finish::<O, A, Const<1>>(sum, 0.0f32, form.epilogue).extract(0usize);
}

/// The coordinate that tap `t` of window `o` reads; −1 if it is outside the input.
#[cube]
fn read_by(axis: &AxisArgs, o: u32, t: u32) -> i32 {
    let x = o as i32 * axis.stride - axis.before + t as i32 * axis.dilation;
    select(x >= 0 && x < axis.input, x, -1i32)
}
