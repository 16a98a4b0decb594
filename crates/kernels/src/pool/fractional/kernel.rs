//! The kernels of fractional max pooling and of its gradient, one element per unit.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;

use super::{FractionalArgs, StepArgs};
use crate::cube::convert::{round, widen};
use crate::cube::optional::Optional;
use crate::cube::random::uniform;
use crate::cube::unit::unit_position;
use crate::pool::common::window::{
    Accumulator, ProblemArgs, WindowForm, fold, identity, index_of, plane_position, split_row,
    stored,
};

#[cube(launch_unchecked)]
pub(super) fn fractional<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    samples: Optional<Box<[f32]>>,
    output: &mut [Vector<S, N>],
    mut indices: Optional<Box<[Vector<i32, N>]>>,
    args: &FractionalArgs,
    #[comptime] form: WindowForm,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let at = unit_position(form.contiguous);
    if at >= args.problem.vectors {
        terminate!();
    }
    let (depth, height, width) = (&args.depth, &args.height, &args.width);
    let place = place_of(&args.problem, at, &depth.output, &height.output, &width.output, form);
    let channel = place.sample * args.problem.pixel_vectors + place.pixel_vector;
    let first_d = start_of(depth, place.d, random(args, &samples, channel, 0usize, form));
    let first_h = start_of(height, place.h, random(args, &samples, channel, 1usize, form));
    let first_w = start_of(width, place.w, random(args, &samples, channel, 2usize, form));

    let position = plane_position(&args.problem, first_d as i32, first_h as i32, first_w as i32);
    let value = identity::<A, N>(&args.problem, form.fold);
    let mut folded = Accumulator::<A, N> { value, position: Vector::new(position) };
    for d in first_d..first_d + depth.kernel {
        for h in first_h..first_h + height.kernel {
            for w in first_w..first_w + width.kernel {
                let position = plane_position(&args.problem, d as i32, h as i32, w as i32);
                let element = input[element_at(&args.problem, &place, position) as usize];
                let value = widen::<S, A, N>(element, form.widened);
                let next = Accumulator::<A, N> { value, position: Vector::new(position) };
                fold::<A, N>(&mut folded, &next, form);
            }
        }
    }
    output[at as usize] = stored::<A, S, N>(folded.value, form);
    #[comptime]
    match &mut indices.given {
        ComptimeOption::Some(indices) => {
            let (problem, position) = (&args.problem, folded.position);
            indices[at as usize] =
                index_of(problem, place.sample, place.pixel_vector, position, form);
        }
        ComptimeOption::None => {}
    }
}

/// `S` is the type of the gradients, `A` the type in which they are added.
#[cube(launch_unchecked)]
pub(super) fn gradient<S: Float, A: Float, N: Size>(
    dy: &[Vector<S, N>],
    winners: &[Vector<i32, N>],
    samples: Optional<Box<[f32]>>,
    dx: &mut [Vector<S, N>],
    args: &FractionalArgs,
    #[comptime] form: WindowForm,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let at = unit_position(form.contiguous);
    if at >= args.problem.vectors {
        terminate!();
    }
    let (depth, height, width) = (&args.depth, &args.height, &args.width);
    let place = place_of(&args.problem, at, &depth.input, &height.input, &width.input, form);
    let position = plane_position(&args.problem, place.d as i32, place.h as i32, place.w as i32);
    let index = Vector::new(position);
    let index = index_of::<N>(&args.problem, place.sample, place.pixel_vector, index, form);
    let channel = place.sample * args.problem.pixel_vectors + place.pixel_vector;
    let over_d = windows_over(depth, place.d, random(args, &samples, channel, 0usize, form));
    let over_h = windows_over(height, place.h, random(args, &samples, channel, 1usize, form));
    let over_w = windows_over(width, place.w, random(args, &samples, channel, 2usize, form));
    let zero = Vector::<A, N>::new(A::from_int(0));
    let mut sum = zero;
    for d in over_d.first..over_d.end {
        for h in over_h.first..over_h.end {
            for w in over_w.first..over_w.end {
                let row = (place.sample * depth.windows + d) * height.windows + h;
                let pixel = row * width.windows + w;
                let from = (pixel * args.problem.pixel_vectors + place.pixel_vector) as usize;
                let share = Vector::<A, N>::cast_from(dy[from]);
                sum += select_many(winners[from].equal(&index), share, zero);
            }
        }
    }
    dx[at as usize] = round::<A, S, N>(sum, form.rounds);
}

/// The position of an element.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Place {
    sample: u32,
    /// The channel in the pixel.
    pixel_vector: u32,
    d: u32,
    h: u32,
    w: u32,
}

/// The position of element `at` of a tensor with these extents.
#[cube]
fn place_of(
    problem: &ProblemArgs,
    at: u32,
    depth: &FastDivmod<u32>,
    height: &FastDivmod<u32>,
    width: &FastDivmod<u32>,
    #[comptime] form: WindowForm,
) -> Place {
    let (pixel, pixel_vector) =
        if comptime!(form.channels) { problem.pixel.div_mod(at) } else { (at, 0u32) };
    let (row, w) = width.div_mod(pixel);
    let (sample, d, h) = split_row(row, depth, height, form.rank);
    Place { sample, pixel_vector, d, h, w }
}

/// The element of the input at a position in the plane.
#[cube]
fn element_at(problem: &ProblemArgs, place: &Place, position: i32) -> u32 {
    let plane = problem.depth.input * problem.height.input * problem.width.input;
    let pixel = place.sample * plane as u32 + position as u32;
    pixel * problem.pixel_vectors + place.pixel_vector
}

/// The random number of a channel on an axis; missing axes have one window and need none.
#[cube]
fn random(
    args: &FractionalArgs,
    samples: &Optional<Box<[f32]>>,
    channel: u32,
    #[comptime] axis: usize,
    #[comptime] form: WindowForm,
) -> f32 {
    let missing = comptime!(3 - form.rank);
    if comptime!(axis < missing) {
        0.0f32.runtime()
    } else {
        let at = channel * comptime!(form.rank as u32) + comptime!((axis - missing) as u32);
        #[comptime]
        match &samples.given {
            ComptimeOption::Some(samples) => samples[at as usize],
            ComptimeOption::None => uniform(args.seed, at),
        }
    }
}

/// Where window `i` starts.
#[cube]
fn start_of(axis: &StepArgs, i: u32, u: f32) -> u32 {
    let start = u32::cast_from((f32::cast_from(i) + u) * axis.step) - u32::cast_from(u * axis.step);
    select(i + 1 == axis.windows, axis.last, min(start, axis.last))
}

/// A range of windows.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Windows {
    first: u32,
    end: u32,
}

/// The windows over coordinate `x`.
#[cube]
fn windows_over(axis: &StepArgs, x: u32, u: f32) -> Windows {
    Windows { first: begun(axis, x as i32 - axis.kernel as i32, u), end: begun(axis, x as i32, u) }
}

/// How many windows start at coordinate `x` or before.
#[cube]
fn begun(axis: &StepArgs, x: i32, u: f32) -> u32 {
    let mut low = 0u32;
    let mut high = axis.windows;
    while low < high {
        let middle = (low + high) / 2;
        if start_of(axis, middle, u) as i32 <= x {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}
