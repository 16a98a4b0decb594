//! The kernel that gathers a gradient, one input vector per unit.

use cubecl::prelude::*;

use crate::cube::convert::round;
use crate::cube::optional::Optional;
use crate::cube::ranges::{Point, Ranges};
use crate::cube::unit::unit_position;
use crate::pool::common::cover::{GatherArgs, GatherForm, InputSite, site_of, window_at};
use crate::pool::common::window::{counted_at, index_of};

#[cube(launch_unchecked)]
pub(super) fn backward<S: Float, A: Float, N: Size>(
    dy: &[Vector<S, N>],
    winners: Optional<Box<[Vector<i32, N>]>>,
    dx: &mut [Vector<S, N>],
    args: &GatherArgs,
    #[comptime] form: GatherForm,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let vector = unit_position(form.window.contiguous);
    if vector >= args.problem.vectors {
        terminate!();
    }
    let site = site_of(args, vector, form.window);
    let index = if comptime!(form.window.fold.is_extremum()) {
        let position = Vector::new(site.position);
        index_of::<N>(&args.problem, site.sample, site.pixel_vector, position, form.window)
    } else {
        Vector::new(0i32)
    };
    let mut sum = Vector::<A, N>::new(A::from_int(0));
    let first = site.windows().first;
    let unrolled = comptime!(form.windows.is_some());
    let windows = if comptime!(unrolled) {
        Ranges::of(form.windows.unwrap_or_default())
    } else {
        site.windows()
    };
    #[unroll(unrolled)]
    for i in windows {
        let o = if comptime!(unrolled) {
            Point { d: first.d + i.d, h: first.h + i.h, w: first.w + i.w }
        } else {
            i
        };
        sum += share::<S, A, N>(dy, &winners, args, &site, index, o, form);
    }
    if comptime!(form.window.has_one_divisor()) {
        sum /= Vector::new(divisor::<A>(args, Point { d: 0i32, h: 0i32, w: 0i32 }, form));
    }
    dx[vector as usize] = round::<A, S, N>(sum, form.window.rounds);
}

/// The part of the gradient that the input gets from the window at `o`.
#[cube]
fn share<S: Float, A: Float, N: Size>(
    dy: &[Vector<S, N>],
    winners: &Optional<Box<[Vector<i32, N>]>>,
    args: &GatherArgs,
    site: &InputSite,
    index: Vector<i32, N>,
    o: Point,
    #[comptime] form: GatherForm,
) -> Vector<A, N> {
    let window = window_at(args, site, o, form);
    let at = window.vector as usize;
    let gradient = Vector::<A, N>::cast_from(dy[at]);
    let zero = Vector::<A, N>::new(A::from_int(0));
    #[comptime]
    match &winners.given {
        ComptimeOption::Some(winners) => {
            let kept = select_many(winners[at].equal(&index), gradient, zero);
            select(window.reads, kept, zero)
        }
        ComptimeOption::None => {
            // Dividing, not multiplying by the reciprocal, which would round twice.
            let share = if comptime!(form.window.has_one_divisor()) {
                gradient
            } else {
                gradient / Vector::new(divisor::<A>(args, window.at, form))
            };
            select(window.reads, share, zero)
        }
    }
}

/// The divisor of the window at `o`.
#[cube]
fn divisor<A: Float>(args: &GatherArgs, o: Point, #[comptime] form: GatherForm) -> A {
    let problem = &args.problem;
    let [depth, height, width] = comptime!(form.window.axes);
    if comptime!(form.window.fold.is_fixed()) {
        A::cast_from(problem.divisor)
    } else {
        let taps = counted_at(&problem.depth, o.d as u32, depth, form.window.fold)
            * counted_at(&problem.height, o.h as u32, height, form.window.fold)
            * counted_at(&problem.width, o.w as u32, width, form.window.fold);
        A::cast_from(taps)
    }
}
