//! Fragments in registers that each unit chooses: NVIDIA's `mma`, which multiplies 8-bit integers where the opaque
//! fragments do not.
//!
//! ```text
//! unit 4·g + q of a plane holds, of a fragment of 16×8 sums with 32 terms:
//!     a     rows g and g + 8, terms 4q … 4q + 3 and 4q + 16 … 4q + 19       4 words
//!     b     column g, the same terms                                        2 words
//!     sums  rows g and g + 8, columns 2q and 2q + 1                         2 pairs
//! ```

use cubecl::cmma::MmaDefinition;
use cubecl::prelude::*;

use super::form::Form;
use crate::conv::implicit_gemm::blocks::Factor;

/// The terms of a word, and from the first word of a row to the second.
const WORD: u32 = 4;
const HALF: u32 = 16;

/// The rows from a unit's first pair of sums to its second.
pub(super) const ROWS: u32 = 8;

/// The fragments of a plane, without terms.
#[cube]
pub(super) fn no_sums<A: Float>(#[comptime] count: u32) -> Sequence<Array<Vector<A, Const<2>>>> {
    let mut sums = Sequence::<Array<Vector<A, Const<2>>>>::new();
    #[unroll]
    for _ in 0..count {
        let mut sum = Array::<Vector<A, Const<2>>>::new(2usize);
        sum[0] = Vector::new(A::from_int(0));
        sum[1] = Vector::new(A::from_int(0));
        sums.push(sum);
    }
    sums
}

/// Multiplies the terms of some steps of a block; every plane updates its own fragments. Lines are counted from the
/// plane's first, offsets in vectors.
#[cube]
pub(super) fn multiply<E: Float, A: Float, NA: Size, NB: Size>(
    shared_a: &Shared<[Vector<E, NA>]>,
    shared_b: &Shared<[Vector<E, NB>]>,
    sums: &mut Sequence<Array<Vector<A, Const<2>>>>,
    offset_a: u32,
    offset_b: u32,
    first_m: u32,
    first_n: u32,
    #[comptime] steps: (u32, u32),
    #[comptime] form: Form,
) {
    let fragment = MmaDefinition::<E, E, A>::new(16usize, 8usize, 32usize);
    let (ratio_m, ratio_n) = comptime!((form.tile.ratio_m, form.tile.ratio_n));
    let (m, n, k) = comptime!((form.fragment.m, form.fragment.n, form.fragment.k));
    let unit = UNIT_POS % comptime!(form.plane);
    let (line, term) = (unit / WORD, unit % WORD * WORD);
    let at_a = first_of(offset_a, first_m + line, term, Factor::A, form);
    let at_b = first_of(offset_b, first_n + line, term, Factor::B, form);
    #[unroll]
    for step in comptime!(steps.0)..comptime!(steps.1) {
        let term = comptime!(step * k);
        let mut columns = Sequence::<Array<Vector<E, Const<4>>>>::new();
        #[unroll]
        for j in 0..ratio_n {
            let line = comptime!(j * n);
            let mut column = Array::<Vector<E, Const<4>>>::new(2usize);
            column[0] = word::<E, NB>(shared_b, at_b, comptime!((line, term)), Factor::B, form);
            column[1] =
                word::<E, NB>(shared_b, at_b, comptime!((line, term + HALF)), Factor::B, form);
            columns.push(column);
        }
        #[unroll]
        for i in 0..ratio_m {
            let (line, below) = comptime!((i * m, i * m + ROWS));
            let mut rows = Array::<Vector<E, Const<4>>>::new(4usize);
            rows[0] = word::<E, NA>(shared_a, at_a, comptime!((line, term)), Factor::A, form);
            rows[1] = word::<E, NA>(shared_a, at_a, comptime!((below, term)), Factor::A, form);
            rows[2] =
                word::<E, NA>(shared_a, at_a, comptime!((line, term + HALF)), Factor::A, form);
            rows[3] =
                word::<E, NA>(shared_a, at_a, comptime!((below, term + HALF)), Factor::A, form);
            #[unroll]
            for j in 0..ratio_n {
                let sum = sums.index_mut(comptime!((i * ratio_n + j) as usize));
                fragment.execute_inplace(&rows, columns.index(comptime!(j as usize)), sum);
            }
        }
    }
}

/// The place in shared memory of a line's term: in words where neighbours are terms, else in elements.
#[cube]
fn first_of(
    offset: u32,
    line: u32,
    term: u32,
    #[comptime] factor: Factor,
    #[comptime] form: Form,
) -> u32 {
    let (side, stride) = comptime!((form.product.side(factor), form.stride(factor)));
    let first = offset * comptime!(side.lanes);
    if comptime!(side.along_terms) {
        (first + line * stride + term) / WORD
    } else {
        first + term * stride + line
    }
}

/// Four terms of a line, `ahead` lines and terms further than the place `at`.
#[cube]
fn word<E: Float, N: Size>(
    shared: &Shared<[Vector<E, N>]>,
    at: u32,
    #[comptime] ahead: (u32, u32),
    #[comptime] factor: Factor,
    #[comptime] form: Form,
) -> Vector<E, Const<4>> {
    let (side, stride) = comptime!((form.product.side(factor), form.stride(factor)));
    let all = comptime!((form.vectors(factor) * form.tile.stages) as usize);
    let (line, term) = ahead;
    if comptime!(side.along_terms) {
        let words: &[Vector<E, Const<4>>] = shared[0..all].with_vector_size();
        words[(at + comptime!((line * stride + term) / WORD)) as usize]
    } else {
        let elements: &[Vector<E, Const<1>>] = shared[0..all].with_vector_size();
        let mut word = Vector::<E, Const<4>>::new(E::from_int(0));
        #[unroll]
        for i in 0..WORD {
            let element = elements[(at + comptime!((term + i) * stride + line)) as usize];
            word.insert(comptime!(i as usize), element.extract(0usize));
        }
        word
    }
}
