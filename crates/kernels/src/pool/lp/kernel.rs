//! The kernel of norms, which visits taps twice.

use cubecl::prelude::*;

use super::bits::{INFINITY, down_exponent, power_of_two, size_bits};
use super::{LESS, NormArgs, NormForm, Power};
use crate::cube::convert::round;
use crate::cube::unit::unit_position;
use crate::pool::common::window::{ProblemArgs, Site};

#[cube(launch_unchecked)]
pub(super) fn norm<S: Float, A: Float, R: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<R, N>],
    args: &NormArgs,
    #[comptime] form: NormForm,
    #[define(S, A, R)] _types: [ElemType; 3],
) {
    let vector = unit_position(form.window.contiguous);
    if vector >= args.problem.vectors {
        terminate!();
    }
    let site = Site::new(&args.problem, vector, form.window);
    let zero = Vector::<A, N>::new(A::from_int(0));
    let y = if comptime!(form.power == Power::One) {
        let scale = Scale::<A, N> { by: zero, rest: zero, whole: zero };
        sum_of_powers::<S, A, N>(input, args, &site, &scale, form)
    } else {
        let largest = largest_of::<S, A, N>(input, &site, form);
        let finite = is_proper::<A, N>(largest, &args.problem, form);
        let scale = scale_of::<A, N>(largest, finite, form);
        let sum = sum_of_powers::<S, A, N>(input, args, &site, &scale, form);
        // A device may assume that no power is NaN, and a select afterwards is not safe from that assumption, so NaN is
        // removed before. On a device that flushes all numbers of the window to 0, the sum is 0 too.
        let proper = finite.vec_and(sum.greater_than(&zero));
        let sum = select_many(proper, sum, Vector::new(A::from_int(1)));
        let root = if comptime!(form.power == Power::Two) {
            sum.sqrt()
        } else {
            sum.powf(Vector::new(args.root.get::<A>()))
        };
        let y = product::<A, N>(scale.whole, root, largest, form);
        select_many(proper, y, largest)
    };
    output[vector as usize] = round::<A, R, N>(y, form.rounds);
}

/// Whether a largest magnitude is neither 0, infinite nor NaN. If it is one of these, it is the norm itself.
#[cube]
fn is_proper<A: Float, N: Size>(
    largest: Vector<A, N>,
    problem: &ProblemArgs,
    #[comptime] form: NormForm,
) -> Vector<bool, N> {
    if comptime!(form.double) {
        let infinity = Vector::new(-problem.empty.get::<A>());
        largest.greater_than(&Vector::new(A::from_int(0))).vec_and(largest.less_than(&infinity))
    } else {
        let bits = size_bits::<A, N>(largest);
        bits.greater_than(&Vector::new(0i32)).vec_and(bits.less_than(&Vector::new(INFINITY)))
    }
}

/// A norm from its two factors, marked if it is too large.
#[cube]
fn product<A: Float, N: Size>(
    whole: Vector<A, N>,
    root: Vector<A, N>,
    largest: Vector<A, N>,
    #[comptime] form: NormForm,
) -> Vector<A, N> {
    // A norm is at least its largest number, so it is not flushed to 0 if that number is not.
    let product = max(whole * root, largest);
    if comptime!(form.marks) {
        // The root is of fewer than 2³¹ terms, none of which is more than about 1.
        let bits = Vector::<i32, N>::reinterpret(whole);
        let large = bits.greater_equal(&Vector::new(LARGE));
        let less = Vector::<A, N>::reinterpret(bits - Vector::new(LESS << 23)) * root;
        let too_large = size_bits::<A, N>(less).greater_equal(&Vector::new(TOO_LARGE));
        select_many(large.vec_and(too_large), -less, product)
    } else {
        product
    }
}

/// The bits of 2⁶⁴, and of the smallest scaled-down norm that is too large for an f32.
const LARGE: i32 = (127 + 64) << 23;
const TOO_LARGE: i32 = (127 + 128 - LESS) << 23;

/// The largest magnitude in a window, where NaN is greater than every number; 0 if nothing is inside the input.
#[cube]
fn largest_of<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    site: &Site<'_>,
    #[comptime] form: NormForm,
) -> Vector<A, N> {
    let mut largest = Vector::<A, N>::new(A::from_int(0));
    for at in site.taps() {
        let size = Vector::<A, N>::cast_from(input[site.tap(at).vector as usize]).abs();
        largest = if comptime!(form.double) {
            let wins = size.greater_than(&largest).or(size.is_nan());
            select_many(wins, size, largest)
        } else {
            let larger = max(size_bits::<A, N>(size), size_bits::<A, N>(largest));
            Vector::<A, N>::reinterpret(larger)
        };
    }
    largest
}

/// The factors by which the numbers of a window are scaled.
#[derive(CubeType)]
struct Scale<A: Float, N: Size> {
    /// A power of two that scales the largest number to near 1, if sums have 32 bits.
    by: Vector<A, N>,
    /// The reciprocal of the largest number after that.
    rest: Vector<A, N>,
    /// The factor of the root in the norm.
    whole: Vector<A, N>,
}

#[cube]
fn scale_of<A: Float, N: Size>(
    largest: Vector<A, N>,
    finite: Vector<bool, N>,
    #[comptime] form: NormForm,
) -> Scale<A, N> {
    let one = Vector::<A, N>::new(A::from_int(1));
    if comptime!(form.double) {
        Scale::<A, N> { by: one, rest: one, whole: largest }
    } else {
        let exponent = down_exponent(largest);
        let by = power_of_two::<A, N>(exponent);
        if comptime!(form.power == Power::Two) {
            let whole = power_of_two::<A, N>(Vector::new(254i32) - exponent);
            Scale::<A, N> { by, rest: one, whole }
        } else {
            // A device without subnormal numbers takes one for 0.
            let near = largest * by;
            let there = finite.vec_and(near.greater_than(&Vector::new(A::from_int(0))));
            let near = select_many(there, near, one);
            Scale::<A, N> { by, rest: one / near, whole: largest }
        }
    }
}

/// The sum of the powers of the scaled numbers of a window.
#[cube]
fn sum_of_powers<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    args: &NormArgs,
    site: &Site<'_>,
    scale: &Scale<A, N>,
    #[comptime] form: NormForm,
) -> Vector<A, N> {
    let mut sum = Vector::<A, N>::new(A::from_int(0));
    let exponent = Vector::<A, N>::new(args.exponent.get::<A>());
    for at in site.taps() {
        let size = Vector::<A, N>::cast_from(input[site.tap(at).vector as usize]).abs();
        sum += match form.power {
            Power::One => size,
            Power::Two => {
                let scaled = scaled::<A, N>(size, scale, form);
                scaled * scaled
            }
            Power::Any => power::<A, N>(scaled::<A, N>(size, scale, form), exponent),
        };
    }
    sum
}

#[cube]
fn scaled<A: Float, N: Size>(
    size: Vector<A, N>,
    scale: &Scale<A, N>,
    #[comptime] form: NormForm,
) -> Vector<A, N> {
    if comptime!(form.double) {
        size / scale.whole
    } else if comptime!(form.power == Power::Two) {
        size * scale.by
    } else {
        // Through an integer: a compiler may multiply the last two of three factors first, and the reciprocal of a
        // large number is subnormal.
        let near = Vector::<i32, N>::reinterpret(size * scale.by);
        Vector::<A, N>::reinterpret(max(near, Vector::new(0i32))) * scale.rest
    }
}

/// `t^q` for a `t` that is not negative and a positive `q`. The results for 0 and NaN are `t` itself, which not every
/// device computes.
#[cube]
pub(super) fn power<A: Float, N: Size>(t: Vector<A, N>, q: Vector<A, N>) -> Vector<A, N> {
    let zero = Vector::<A, N>::new(A::from_int(0));
    let positive = t.greater_than(&zero);
    let power = select_many(positive, t, Vector::new(A::from_int(1))).powf(q);
    select_many(positive, power, t)
}
