//! The kernel that gathers a gradient, one input vector per unit.

use cubecl::prelude::*;

use crate::cube::convert::round;
use crate::cube::unit::unit_position;
use crate::pool::common::cover::{CoverArgs, Form, GatherArgs, Site, offset_of, reads, site_of};
use crate::pool::common::window::{Fold, counted_at};

#[cube(launch_unchecked)]
pub(super) fn backward<S: Float, A: Float, N: Size>(
    dy: &[Vector<S, N>],
    winners: ComptimeOption<Box<[Vector<i32, N>]>>,
    dx: &mut [Vector<S, N>],
    problem: &GatherArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let vector = unit_position(form.runs);
    if vector >= problem.vectors {
        terminate!();
    }
    let site = site_of(problem, vector, form);
    let mut sum = Vector::<A, N>::new(A::from_int(0));
    if comptime!(form.windows.is_some()) {
        let [over_d, over_h, over_w] = comptime!(form.windows.unwrap_or_default());
        #[unroll]
        for i in 0..over_d {
            #[unroll]
            for j in 0..over_h {
                #[unroll]
                for k in 0..over_w {
                    let od = site.depth.first + i as i32;
                    let oh = site.height.first + j as i32;
                    let ow = site.width.first + k as i32;
                    sum += share::<S, A, N>(dy, &winners, problem, &site, od, oh, ow, form);
                }
            }
        }
    } else {
        for od in site.depth.first..site.depth.end {
            for oh in site.height.first..site.height.end {
                for ow in site.width.first..site.width.end {
                    sum += share::<S, A, N>(dy, &winners, problem, &site, od, oh, ow, form);
                }
            }
        }
    }
    if comptime!(form.divides_once()) {
        sum /= Vector::new(divisor::<A>(problem, 0i32, 0i32, 0i32, form));
    }
    dx[vector as usize] = round::<A, S, N>(sum, form.rounds);
}

/// The part of the gradient that the input gets from the window at (`od`, `oh`, `ow`).
#[cube]
fn share<S: Float, A: Float, N: Size>(
    dy: &[Vector<S, N>],
    winners: &ComptimeOption<Box<[Vector<i32, N>]>>,
    problem: &GatherArgs,
    site: &Site,
    od: i32,
    oh: i32,
    ow: i32,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let covers = comptime!(form.axes);
    let reads = reads(&problem.depth, &site.depth, od, covers[0])
        && reads(&problem.height, &site.height, oh, covers[1])
        && reads(&problem.width, &site.width, ow, covers[2]);
    let od = there(&problem.depth, od, comptime!(form.windows.is_some()));
    let oh = there(&problem.height, oh, comptime!(form.windows.is_some()));
    let ow = there(&problem.width, ow, comptime!(form.windows.is_some()));
    let offset = offset_of(problem, site, od, oh, ow, form);
    let gradient = Vector::<A, N>::cast_from(dy[offset as usize]);
    let zero = Vector::<A, N>::new(A::from_int(0));
    #[comptime]
    match winners {
        ComptimeOption::Some(winners) => {
            let mut index = Vector::<i32, N>::new(site.index);
            #[unroll]
            for i in 0..N::value() {
                let channel = site.lane * N::value() as u32 + i as u32;
                index.insert(i, index.extract(i) + (channel * problem.index_channel) as i32);
            }
            let won = winners[offset as usize].equal(&index);
            let kept = select_many(won, gradient, zero);
            select(reads, kept, zero)
        }
        ComptimeOption::None => {
            // Dividing, not multiplying by the reciprocal, which would round twice.
            let share = if comptime!(form.divides_once()) {
                gradient
            } else {
                gradient / Vector::new(divisor::<A>(problem, od, oh, ow, form))
            };
            select(reads, share, zero)
        }
    }
}

/// The window `o`; in an unrolled loop that runs past the last window, the last one.
#[cube]
fn there(args: &CoverArgs, o: i32, #[comptime] unrolled: bool) -> i32 {
    if comptime!(unrolled) { min(o, args.outputs - 1) } else { o }
}

/// The divisor of the window at (`od`, `oh`, `ow`).
#[cube]
fn divisor<A: Float>(problem: &GatherArgs, od: i32, oh: i32, ow: i32, #[comptime] form: Form) -> A {
    if comptime!(form.fold == Fold::AverageFixed) {
        A::cast_from(problem.divisor)
    } else {
        let taps = counted_at(&problem.depth.axis, od as u32, form.axes[0], form.fold)
            * counted_at(&problem.height.axis, oh as u32, form.axes[1], form.fold)
            * counted_at(&problem.width.axis, ow as u32, form.axes[2], form.fold);
        A::cast_from(taps)
    }
}
