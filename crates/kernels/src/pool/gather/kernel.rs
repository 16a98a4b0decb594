//! The kernel that gathers a gradient, one input vector per unit.

use cubecl::prelude::*;

use crate::cube::convert::round;
use crate::cube::unit::unit_position;
use crate::pool::common::cover::{GatherArgs, GatherForm, InputSite, site_of, window_at};
use crate::pool::common::window::{counted_at, index_of};

#[cube(launch_unchecked)]
pub(super) fn backward<S: Float, A: Float, N: Size>(
    dy: &[Vector<S, N>],
    winners: ComptimeOption<Box<[Vector<i32, N>]>>,
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
                    sum += share::<S, A, N>(dy, &winners, args, &site, index, od, oh, ow, form);
                }
            }
        }
    } else {
        for od in site.depth.first..site.depth.end {
            for oh in site.height.first..site.height.end {
                for ow in site.width.first..site.width.end {
                    sum += share::<S, A, N>(dy, &winners, args, &site, index, od, oh, ow, form);
                }
            }
        }
    }
    if comptime!(form.window.has_one_divisor()) {
        sum /= Vector::new(divisor::<A>(args, 0i32, 0i32, 0i32, form));
    }
    dx[vector as usize] = round::<A, S, N>(sum, form.window.rounds);
}

/// The part of the gradient that the input gets from the window at (`od`, `oh`, `ow`).
#[cube]
fn share<S: Float, A: Float, N: Size>(
    dy: &[Vector<S, N>],
    winners: &ComptimeOption<Box<[Vector<i32, N>]>>,
    args: &GatherArgs,
    site: &InputSite,
    index: Vector<i32, N>,
    od: i32,
    oh: i32,
    ow: i32,
    #[comptime] form: GatherForm,
) -> Vector<A, N> {
    let window = window_at(args, site, od, oh, ow, form);
    let at = window.vector as usize;
    let gradient = Vector::<A, N>::cast_from(dy[at]);
    let zero = Vector::<A, N>::new(A::from_int(0));
    #[comptime]
    match winners {
        ComptimeOption::Some(winners) => {
            let kept = select_many(winners[at].equal(&index), gradient, zero);
            select(window.reads, kept, zero)
        }
        ComptimeOption::None => {
            // Dividing, not multiplying by the reciprocal, which would round twice.
            let share = if comptime!(form.window.has_one_divisor()) {
                gradient
            } else {
                gradient / Vector::new(divisor::<A>(args, window.d, window.h, window.w, form))
            };
            select(window.reads, share, zero)
        }
    }
}

/// The divisor of the window at (`d`, `h`, `w`).
#[cube]
fn divisor<A: Float>(args: &GatherArgs, d: i32, h: i32, w: i32, #[comptime] form: GatherForm) -> A {
    let problem = &args.problem;
    let [depth, height, width] = comptime!(form.window.axes);
    if comptime!(form.window.fold.is_fixed()) {
        A::cast_from(problem.divisor)
    } else {
        let taps = counted_at(&problem.depth, d as u32, depth, form.window.fold)
            * counted_at(&problem.height, h as u32, height, form.window.fold)
            * counted_at(&problem.width, w as u32, width, form.window.fold);
        A::cast_from(taps)
    }
}
