//! The kernel of stochastic pooling, which visits taps twice.

use cubecl::prelude::*;

use super::{StochasticArgs, StochasticForm};
use crate::cube::convert::{rectified, round, widen};
use crate::cube::optional::Optional;
use crate::cube::random::uniform;
use crate::cube::unit::unit_position;
use crate::pool::common::window::Site;

#[cube(launch_unchecked)]
pub(super) fn stochastic<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    mut indices: Optional<Box<[Vector<i32, N>]>>,
    args: &StochasticArgs,
    #[comptime] form: StochasticForm,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let vector = unit_position(form.window.contiguous);
    if vector >= args.problem.vectors {
        terminate!();
    }
    let site = Site::new(&args.problem, vector, form.window);
    let weights = weights_of::<S, A, N>(input, &site);
    if comptime!(form.draws) {
        let limit = weights.total * randoms::<A, N>(args, &site, vector);
        let drawn = draw::<S, A, N>(input, &site, &weights, limit);
        output[vector as usize] = drawn.value;
        #[comptime]
        match &mut indices.given {
            ComptimeOption::Some(indices) => {
                let none = drawn.position.less_than(&Vector::new(0i32));
                let index = site.index::<N>(drawn.position);
                indices[vector as usize] = select_many(none, Vector::new(-1i32), index);
            }
            ComptimeOption::None => {}
        }
    } else {
        let most = Vector::new(args.most.get::<A>());
        let mean = mean::<S, A, N>(input, &site, &weights, most);
        output[vector as usize] = round::<A, S, N>(mean, form.window.rounds);
    }
}

/// What the first visit of a window finds.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Weights<A: Float, N: Size> {
    /// The sum of the weights; NaN if there is one.
    total: Vector<A, N>,
    /// The largest weight that is a number.
    largest: Vector<A, N>,
}

#[cube]
fn weights_of<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    site: &Site<'_>,
) -> Weights<A, N> {
    let zero = Vector::<A, N>::new(A::from_int(0));
    let mut weights = Weights::<A, N> { total: zero, largest: zero };
    for at in site.taps() {
        let tap = site.tap(at);
        let number = widen::<S, A, N>(input[tap.vector as usize], site.form.widened);
        let weight = rectified::<A, N>(number);
        weights.total += weight;
        let larger = weight.greater_than(&weights.largest);
        weights.largest = select_many(larger, weight, weights.largest);
    }
    weights
}

/// The random number of each lane's output.
#[cube]
fn randoms<A: Float, N: Size>(args: &StochasticArgs, site: &Site<'_>, vector: u32) -> Vector<A, N> {
    let pixel =
        if comptime!(site.form.channels) { args.problem.pixel.div_mod(vector).0 } else { vector };
    let window = pixel - site.sample * args.windows;
    let channel = site.sample * args.channels + site.pixel_vector * N::value() as u32;
    let mut randoms = Vector::<A, N>::new(A::from_int(0));
    #[unroll]
    for i in 0..N::value() {
        let position = (channel + i as u32) * args.windows + window;
        randoms.insert(i, A::cast_from(uniform(args.seed, position)));
    }
    randoms
}

/// A drawn number and its position in the plane; −1 in a window without taps.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Drawn<S: Float, N: Size> {
    value: Vector<S, N>,
    position: Vector<i32, N>,
}

/// The first number whose running sum exceeds the limit or equals the total; the first NaN if there is one.
#[cube]
fn draw<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    site: &Site<'_>,
    weights: &Weights<A, N>,
    limit: Vector<A, N>,
) -> Drawn<S, N> {
    let mut running = Vector::<A, N>::new(A::from_int(0));
    let mut value = Vector::<S, N>::new(S::from_int(0));
    let mut position = Vector::<i32, N>::new(-1i32);
    for at in site.taps() {
        let tap = site.tap(at);
        let element = input[tap.vector as usize];
        let number = widen::<S, A, N>(element, site.form.widened);
        running += rectified::<A, N>(number);
        let reached = running.greater_than(&limit).or(running.equal(&weights.total));
        let wins = reached.or(number.is_nan());
        let takes = wins.vec_and(position.less_than(&Vector::new(0i32)));
        value = select_many(takes, element, value);
        position = select_many(takes, Vector::new(tap.position), position);
    }
    Drawn::<S, N> { value, position }
}

/// The mean of what is drawn.
#[cube]
fn mean<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    site: &Site<'_>,
    weights: &Weights<A, N>,
    most: Vector<A, N>,
) -> Vector<A, N> {
    let (zero, one) = (Vector::<A, N>::new(A::from_int(0)), Vector::new(A::from_int(1)));
    let largest = weights.largest;
    let scales = largest.greater_than(&zero).vec_and(largest.less_equal(&most));
    // In a shader, division by a number above 2¹²⁶ may give anything.
    let quarter = Vector::<A, N>::new(A::new(0.25));
    let factor = select_many(largest.greater_than(&one), quarter, one);
    let scale = select_many(scales, largest * factor, one);
    let mut sum = zero;
    let mut squares = zero;
    for at in site.taps() {
        let tap = site.tap(at);
        let number = widen::<S, A, N>(input[tap.vector as usize], site.form.widened);
        let share = rectified::<A, N>(number) * factor / scale;
        sum += share;
        squares += share * share;
    }
    let proper = scales.vec_and(sum.greater_than(&zero));
    let mean = largest * (squares / select_many(proper, sum, one));
    let plain = select_many(proper, mean, weights.total);
    select_many(weights.total.is_nan(), weights.total, plain)
}
