//! Copies planes to shared memory, and results back to memory.

use cubecl::prelude::*;

use super::{FLIGHT, Form, MARGIN, One, PlaneArgs};

/// Copies a cube's planes to shared memory.
#[cube]
pub(super) fn stage<S: Float, N: Size>(
    input: &[Vector<S, N>],
    shared: &mut Shared<[Vector<S, One>]>,
    args: &PlaneArgs,
    first: u32,
    planes: u32,
    #[comptime] form: Form,
) {
    let base = first * args.input / N::value() as u32;
    let words = planes * args.input / N::value() as u32;
    let step = comptime!(form.units * FLIGHT);
    for round in 0..words.div_ceil(step) {
        let at = round * step + UNIT_POS;
        let mut loaded = Sequence::<Vector<S, N>>::new();
        #[unroll]
        for i in 0..FLIGHT {
            let there = min(at + comptime!(i * form.units), words - 1);
            loaded.push(input[(base + there) as usize]);
        }
        #[unroll]
        for i in 0..FLIGHT {
            let v = at + comptime!(i * form.units);
            if v < words {
                put::<S, N>(shared, v, *loaded.index(i as usize), form);
            }
        }
    }
}

/// Writes vector `v` of a cube's planes to shared memory.
#[cube]
fn put<S: Float, N: Size>(
    shared: &mut Shared<[Vector<S, One>]>,
    v: u32,
    vector: Vector<S, N>,
    #[comptime] form: Form,
) {
    if comptime!(form.vectors) {
        let at = v as usize + MARGIN / N::value();
        let words: &mut [Vector<S, N>] = shared[0..form.capacity].with_vector_size_mut();
        words[at] = vector;
    } else {
        let at = v as usize * N::value() + MARGIN;
        #[unroll]
        for i in 0..N::value() {
            shared[at + i] = Vector::new(vector.extract(i));
        }
    }
}

/// Copies a cube's results to memory.
#[cube]
pub(super) fn unstage<S: Float, N: Size>(
    shared: &Shared<[Vector<S, One>]>,
    output: &mut [Vector<S, N>],
    args: &PlaneArgs,
    first: u32,
    planes: u32,
    #[comptime] form: Form,
) {
    let base = first * args.output / N::value() as u32;
    for v in range_stepped(UNIT_POS, planes * args.output / N::value() as u32, form.units) {
        let word = if comptime!(form.vectors) {
            let at = v as usize + args.results as usize / N::value();
            let words: &[Vector<S, N>] = shared[0..form.capacity].with_vector_size();
            words[at]
        } else {
            let at = v as usize * N::value() + args.results as usize;
            let mut word = Vector::<S, N>::new(shared[at].extract(0usize));
            #[unroll]
            for i in 1..N::value() {
                word.insert(i, shared[at + i].extract(0usize));
            }
            word
        };
        output[(base + v) as usize] = word;
    }
}
