//! The kernel that reads every tap of an output vector's window.

use cubecl::prelude::*;

use crate::cube::convert::{widen, widen_kept};
use crate::cube::optional::Optional;
use crate::cube::unit::unit_position;
use crate::pool::common::window::{
    Accumulator, ProblemArgs, Site, WindowForm, accumulator_at, fold,
};

/// `S` is the type in which elements are stored, `A` the type in which they are compared and summed. `A` may be an
/// integer type: the `Float` bound lets one kernel serve both, and no fractional operation is used on integers.
#[cube(launch_unchecked)]
pub(super) fn direct<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    mut indices: Optional<Box<[Vector<i32, N>]>>,
    problem: &ProblemArgs,
    #[comptime] form: WindowForm,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let vector = unit_position(form.contiguous);
    if vector >= problem.vectors {
        terminate!();
    }
    let site = Site::new(problem, vector, form);
    let mut folded = accumulator_at::<A, N>(&site);
    let unrolled = comptime!(form.unrolled());
    let taps = if comptime!(unrolled) { site.all_taps() } else { site.taps() };
    #[unroll(unrolled)]
    for at in taps {
        let tap = site.tap(at);
        let value = if comptime!(form.fold.is_extremum()) {
            widen::<S, A, N>(input[tap.vector as usize], form.widened)
        } else {
            let inside = site.has(at);
            widen_kept::<S, A, N>(input[tap.vector as usize], inside, form.widened)
        };
        let next = Accumulator::<A, N> { value, position: Vector::new(tap.position) };
        fold::<A, N>(&mut folded, &next, form);
    }
    site.finish::<S, A, N>(output, &mut indices, &folded, vector);
}
