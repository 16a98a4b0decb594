//! The kernel that reads every tap of an output vector's window.

use cubecl::prelude::*;

use crate::cube::axis::{is_inside, visited};
use crate::cube::convert::{widen, widen_kept};
use crate::cube::unit::unit_position;
use crate::pool::common::window::{
    Accumulator, ProblemArgs, Site, WindowForm, accumulator_at, finish, fold, site_of, tap_of,
};

/// `S` is the type in which elements are stored, `A` the type in which they are compared and summed. `A` may be an
/// integer type: the `Float` bound lets one kernel serve both, and no fractional operation is used on integers.
#[cube(launch_unchecked)]
pub(super) fn direct<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    mut indices: ComptimeOption<Box<[Vector<i32, N>]>>,
    problem: &ProblemArgs,
    #[comptime] form: WindowForm,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let vector = unit_position(form.contiguous);
    if vector >= problem.vectors {
        terminate!();
    }
    let site = site_of(problem, vector, form);
    let mut folded = accumulator_at::<A, N>(problem, &site, form);
    let (first_d, end_d) = visited(&site.depth, form.axes[0]);
    let (first_h, end_h) = visited(&site.height, form.axes[1]);
    let (first_w, end_w) = visited(&site.width, form.axes[2]);
    let unrolled = comptime!(form.unrolled());
    #[unroll(unrolled)]
    for td in first_d..end_d {
        #[unroll(unrolled)]
        for th in first_h..end_h {
            #[unroll(unrolled)]
            for tw in first_w..end_w {
                fold_tap::<S, A, N>(input, problem, &site, &mut folded, td, th, tw, form);
            }
        }
    }
    finish::<S, A, N>(output, &mut indices, problem, &site, &folded, vector, form);
}

/// Combines the tap (`td`, `th`, `tw`) with the accumulator.
#[cube]
fn fold_tap<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    problem: &ProblemArgs,
    site: &Site,
    folded: &mut Accumulator<A, N>,
    td: i32,
    th: i32,
    tw: i32,
    #[comptime] form: WindowForm,
) {
    let tap = tap_of(problem, site, td, th, tw, form);
    let next = if comptime!(form.fold.is_extremum()) {
        widen::<S, A, N>(input[tap.vector as usize], form.widened)
    } else {
        let inside = is_inside(&site.depth, td, form.axes[0])
            && is_inside(&site.height, th, form.axes[1])
            && is_inside(&site.width, tw, form.axes[2]);
        widen_kept::<S, A, N>(input[tap.vector as usize], inside, form.widened)
    };
    let next = Accumulator::<A, N> { value: next, position: Vector::new(tap.position) };
    fold::<A, N>(folded, &next, form);
}
