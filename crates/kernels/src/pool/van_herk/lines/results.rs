//! How a pass turns the reductions of its windows into results, and where it writes them.

use cubecl::prelude::*;

use super::kernel::Line;
use super::{Form, Pass};
use crate::cube::optional::Optional;
use crate::pool::common::window::{Accumulator, Fold, counted_at, index_of, quotient, stored};

/// Writes the outputs of a block. If `whole`, all of them exist and have all their taps.
#[cube]
pub(super) fn write_results<T: Float, A: Float, N: Size, M: Size>(
    output: &mut [Vector<T, M>],
    indices: &mut Optional<Box<[Vector<i32, M>]>>,
    pass: &Pass,
    line: &Line,
    divisors: &Divisors<A>,
    first: u32,
    results: &Sequence<Accumulator<A, N>>,
    #[comptime] whole: bool,
    #[comptime] form: Form,
) {
    let group = comptime!(form.group());
    #[unroll]
    for g in 0..comptime!((form.block / form.stride) as usize / group) {
        let o = first + comptime!((g * group) as u32);
        if comptime!(whole) || o < pass.outputs {
            let mut value = Vector::<A, M>::new(A::from_int(0));
            let mut position = Vector::<i32, M>::new(0i32);
            #[unroll]
            for m in 0..M::value() {
                let (i, lane) = comptime!(form.source(g, m));
                let o = first + comptime!(i as u32);
                let folded = results.index(i);
                let result = finished::<A, N>(pass, line, divisors, o, folded, whole, form);
                value.insert(m, result.value.extract(lane));
                position.insert(m, result.position.extract(lane));
            }
            let at = if comptime!(form.transposes) {
                (line.output + o) / comptime!(group as u32)
            } else {
                line.output + o * pass.inner_vectors
            };
            output[at as usize] = stored::<A, T, M>(value, form.window);
            #[comptime]
            match &mut indices.given {
                ComptimeOption::Some(indices) => indices[at as usize] = position,
                ComptimeOption::None => {}
            }
        }
    }
}

/// The divisors of the windows of a line.
#[derive(CubeType)]
pub(super) struct Divisors<A: Float> {
    /// The number of taps counted on the other axes.
    pub(super) others: i32,
    /// The reciprocal of the divisor of a window that has all its taps on this axis.
    pub(super) usual: A,
}

#[cube]
pub(super) fn divisors_of<A: Float>(
    pass: &Pass,
    line: &Line,
    #[comptime] form: Form,
) -> Divisors<A> {
    if comptime!(!form.counts()) {
        Divisors::<A> { others: 1i32.runtime(), usual: pass.problem.reciprocal.get::<A>() }
    } else {
        let others =
            if comptime!(form.rows_inside) { line.inner } else { pass.others.modulo(line.outer) };
        let (d, h) = pass.height.div_mod(others);
        let problem = &pass.problem;
        let (axes, fold) = comptime!((form.window.axes, form.window.fold));
        let others = if comptime!(form.axis == 2) {
            counted_at(&problem.depth, d, axes[0], fold)
                * counted_at(&problem.height, h, axes[1], fold)
        } else if comptime!(form.axis == 1) {
            counted_at(&problem.depth, d, axes[0], fold)
        } else {
            1i32.runtime()
        };
        let usual = if comptime!(form.window.reciprocal) {
            A::from_int(1) / A::cast_from(others * pass.axis.kernel)
        } else {
            // Not used.
            A::from_int(1)
        };
        Divisors::<A> { others, usual }
    }
}

/// The result of a window in the last pass: the average for a sum, the index for a position.
#[cube]
fn finished<A: Float, N: Size>(
    pass: &Pass,
    line: &Line,
    divisors: &Divisors<A>,
    o: u32,
    folded: &Accumulator<A, N>,
    #[comptime] whole: bool,
    #[comptime] form: Form,
) -> Accumulator<A, N> {
    if comptime!(!form.last || form.window.fold == Fold::Extremum) {
        *folded
    } else if comptime!(form.window.fold.is_extremum()) {
        let lane = if comptime!(form.window.channels) {
            pass.pixel.modulo(line.inner)
        } else {
            0u32.runtime()
        };
        let sample = pass.others.div(line.outer);
        let position = index_of::<N>(&pass.problem, sample, lane, folded.position, form.window);
        Accumulator::<A, N> { value: folded.value, position }
    } else {
        let value = average::<A, N>(pass, divisors, o, folded.value, whole, form);
        Accumulator::<A, N> { value, position: folded.position }
    }
}

#[cube]
fn average<A: Float, N: Size>(
    pass: &Pass,
    divisors: &Divisors<A>,
    o: u32,
    sum: Vector<A, N>,
    #[comptime] whole: bool,
    #[comptime] form: Form,
) -> Vector<A, N> {
    if comptime!(form.window.reciprocal && (whole || form.window.fold.is_fixed())) {
        sum * Vector::new(divisors.usual)
    } else if comptime!(form.window.fold.is_fixed()) {
        let divisor = Vector::new(A::cast_from(pass.problem.divisor));
        quotient::<A, N>(sum, divisor, form.window)
    } else {
        let own = counted_at(
            &pass.axis,
            min(o, pass.outputs - 1),
            form.window.axes[form.axis],
            form.window.fold,
        );
        let taps = A::cast_from(own * divisors.others);
        if comptime!(form.window.reciprocal) {
            sum * Vector::new(A::from_int(1) / taps)
        } else {
            quotient::<A, N>(sum, Vector::new(taps), form.window)
        }
    }
}
