//! The work of a cube: blocks are loaded through registers into shared memory, fragments of them are multiplied, and
//! results are stored by way of shared memory.

use cubecl::cmma;
use cubecl::prelude::*;

use super::form::Form;
use super::registers;
use crate::conv::common::{EpilogueArgs, GatherArgs};
use crate::conv::implicit_gemm::blocks::{
    BlockArgs, CubeWork, Factor, QUAD, point_of_row, store_quad, work_of,
};
use crate::conv::implicit_gemm::staging::{Loaded, has_work, piece};
use crate::cube::Registers;

/// The fragments of a plane's sums: opaque ones, or those in registers that units choose.
#[derive(CubeType)]
struct Sums<A: Float> {
    opaque: Sequence<cmma::Matrix<A>>,
    held: Sequence<Array<Vector<A, Const<2>>>>,
}

/// The alignment of fragments in bytes: 16 elements of 16 bits, or 8 of 32 bits.
const ALIGNMENT: usize = 32;

#[cube(launch_unchecked)]
pub(super) fn mma<S: Float, E: Float, A: Float, R: Float, NA: Size, NB: Size, O: Size>(
    a: &[Vector<S, NA>],
    b: &[Vector<S, NB>],
    epilogue: &EpilogueArgs<R, O>,
    out: &mut [Vector<R, O>],
    gather: &GatherArgs,
    block: &BlockArgs,
    #[comptime] form: Form,
    #[define(S)] _read: ElemType,
    #[define(E)] _factor: ElemType,
    #[define(A)] _accumulator: ElemType,
    #[define(R)] _stored: ElemType,
) {
    let (stage_a, stage_b) = comptime!((form.vectors(Factor::A), form.vectors(Factor::B)));
    let stages = comptime!(form.tile.stages);
    let mut shared_a = Shared::<[Vector<E, NA>]>::new_aligned_slice(
        comptime!((stage_a * stages) as usize),
        ALIGNMENT,
    );
    let mut shared_b = Shared::<[Vector<E, NB>]>::new_aligned_slice(
        comptime!((stage_b * stages) as usize),
        ALIGNMENT,
    );

    let work = work_of(gather, block, form.tile, form.product);
    let staging = comptime!(form.staging());
    let loaded = Loaded::<S, NA, NB>::new(&work, staging);
    let mut sums = Sums::<A> {
        opaque: Sequence::new(),
        held: registers::no_sums::<A>(comptime!(if form.in_registers() {
            form.fragments()
        } else {
            0
        })),
    };
    #[unroll]
    for _ in 0..comptime!(if form.in_registers() { 0 } else { form.fragments() }) {
        sums.opaque.push(cmma::Matrix::<A>::from_value(
            cmma::MatrixIdent::Accumulator,
            comptime!(form.fragment.m as usize),
            comptime!(form.fragment.n as usize),
            comptime!(form.fragment.k as usize),
            cmma::MatrixLayout::Undefined,
            A::from_int(0),
        ));
    }

    // A block is loaded into registers one step before it is stored to shared memory with 2 stages, and in the same
    // step with 1. Loads past the last block repeat it and are never multiplied, so that no branch separates loads
    // from products.
    let last = max(work.blocks, 1u32) - 1;
    if work.blocks > 0 {
        loaded.load(a, b, &work, work.first_term, staging);
        store_shared::<S, E, NA>(&loaded.a, &mut shared_a, 0u32, Factor::A, form);
        store_shared::<S, E, NB>(&loaded.b, &mut shared_b, 0u32, Factor::B, form);
        if comptime!(stages > 1) {
            let term = work.first_term + min(1u32, last) * comptime!(form.tile.block_k);
            loaded.load(a, b, &work, term, staging);
        }
    }
    sync_cube();
    let steps = comptime!(form.tile.block_k / form.fragment.k);
    for i in 0..work.blocks {
        let term = work.first_term + min(i + stages, last) * comptime!(form.tile.block_k);
        if comptime!(stages > 1) {
            let (present, next) = (i % 2u32, (i + 1) % 2u32);
            let (at_a, at_b) = (present * stage_a, present * stage_b);
            let half = comptime!(steps / 2);
            multiply::<E, A, NA, NB>(&shared_a, &shared_b, &mut sums, at_a, at_b, (0, half), form);
            store_shared::<S, E, NA>(&loaded.a, &mut shared_a, next * stage_a, Factor::A, form);
            store_shared::<S, E, NB>(&loaded.b, &mut shared_b, next * stage_b, Factor::B, form);
            loaded.load(a, b, &work, term, staging);
            multiply::<E, A, NA, NB>(
                &shared_a,
                &shared_b,
                &mut sums,
                at_a,
                at_b,
                (half, steps),
                form,
            );
        } else {
            loaded.load(a, b, &work, term, staging);
            multiply::<E, A, NA, NB>(&shared_a, &shared_b, &mut sums, 0u32, 0u32, (0, steps), form);
            sync_cube();
            store_shared::<S, E, NA>(&loaded.a, &mut shared_a, 0u32, Factor::A, form);
            store_shared::<S, E, NB>(&loaded.b, &mut shared_b, 0u32, Factor::B, form);
        }
        sync_cube();
    }
    // SAFETY: all units have passed the barrier, and the freed memory is not read again.
    unsafe {
        shared_a.free();
        shared_b.free();
    }
    // Results may now overwrite the memory of the blocks.
    sync_cube();
    store::<A, R, O>(epilogue, out, &work, &sums, form);
}

/// Stores the loaded elements of a unit in shared memory, in the order in which they were loaded.
#[cube]
fn store_shared<S: Float, E: Float, N: Size>(
    loaded: &Registers<S, N>,
    shared: &mut Shared<[Vector<E, N>]>,
    offset: u32,
    #[comptime] factor: Factor,
    #[comptime] form: Form,
) {
    let staging = comptime!(form.staging());
    let side = comptime!(form.product.side(factor));
    let stride = comptime!(form.stride(factor));
    #[unroll]
    for slot in 0..staging.slots(factor) {
        if has_work(slot, factor, staging) {
            let (line, term) = piece(slot, factor, staging);
            let value = loaded.index(comptime!(slot as usize)).read();
            let value = if comptime!(form.tf32) { round_to_tf32::<S, N>(value) } else { value };
            let at = if comptime!(side.along_terms) {
                line * stride + term
            } else {
                term * stride + line
            };
            shared[(offset + at / comptime!(side.lanes)) as usize] = Vector::cast_from(value);
        }
    }
}

/// Rounds `f32` to the 11 significant bits of tf32, to nearest even. A device might truncate it instead.
#[cube]
fn round_to_tf32<S: Float, N: Size>(value: Vector<S, N>) -> Vector<S, N> {
    let bits = Vector::<u32, N>::reinterpret(value);
    let odd = (bits >> Vector::new(13u32)) & Vector::new(1u32);
    let rounded = (bits + odd + Vector::new(0xfffu32)) & Vector::new(0xffff_e000u32);
    let rounded = Vector::<S, N>::reinterpret(rounded);
    select_many(value.is_nan(), value, rounded)
}

/// Multiplies the terms of some steps of a block; every plane updates its own fragments.
#[cube]
fn multiply<E: Float, A: Float, NA: Size, NB: Size>(
    shared_a: &Shared<[Vector<E, NA>]>,
    shared_b: &Shared<[Vector<E, NB>]>,
    sums: &mut Sums<A>,
    offset_a: u32,
    offset_b: u32,
    #[comptime] steps: (u32, u32),
    #[comptime] form: Form,
) {
    let plane = UNIT_POS / comptime!(form.plane);
    let planes_n = comptime!(form.planes_n());
    let (ratio_m, ratio_n) = comptime!((form.tile.ratio_m, form.tile.ratio_n));
    let (m, n, k) = comptime!((form.fragment.m, form.fragment.n, form.fragment.k));
    let first_m = plane / planes_n * comptime!(ratio_m * m);
    let first_n = plane % planes_n * comptime!(ratio_n * n);
    if comptime!(form.in_registers()) {
        registers::multiply::<E, A, NA, NB>(
            shared_a,
            shared_b,
            &mut sums.held,
            offset_a,
            offset_b,
            first_m,
            first_n,
            steps,
            form,
        );
    }
    #[unroll]
    for step in comptime!(steps.0)..comptime!(if form.in_registers() { steps.0 } else { steps.1 }) {
        let term = comptime!(step * k);
        let mut columns = Sequence::<cmma::Matrix<Vector<E, NB>>>::new();
        #[unroll]
        for j in 0..ratio_n {
            let at = first_of(first_n + j * n, term, Factor::B, form);
            columns.push(cmma::Matrix::<Vector<E, NB>>::from_slice(
                cmma::MatrixIdent::B,
                comptime!(m as usize),
                comptime!(n as usize),
                comptime!(k as usize),
                comptime!(match form.product.b.along_terms {
                    true => cmma::MatrixLayout::ColMajor,
                    false => cmma::MatrixLayout::RowMajor,
                }),
                &shared_b[(offset_b + at) as usize..],
                comptime!(form.stride(Factor::B)),
            ));
        }
        #[unroll]
        for i in 0..ratio_m {
            let at = first_of(first_m + i * m, term, Factor::A, form);
            let rows = cmma::Matrix::<Vector<E, NA>>::from_slice(
                cmma::MatrixIdent::A,
                comptime!(m as usize),
                comptime!(n as usize),
                comptime!(k as usize),
                comptime!(match form.product.a.along_terms {
                    true => cmma::MatrixLayout::RowMajor,
                    false => cmma::MatrixLayout::ColMajor,
                }),
                &shared_a[(offset_a + at) as usize..],
                comptime!(form.stride(Factor::A)),
            );
            #[unroll]
            for j in 0..ratio_n {
                let sum = sums.opaque.index(comptime!((i * ratio_n + j) as usize));
                cmma::execute(&rows, columns.index(comptime!(j as usize)), sum, sum);
            }
        }
    }
}

/// The index of the vector in shared memory at which a fragment starts.
#[cube]
fn first_of(
    line: u32,
    #[comptime] term: u32,
    #[comptime] factor: Factor,
    #[comptime] form: Form,
) -> u32 {
    let (side, stride) = comptime!((form.product.side(factor), form.stride(factor)));
    let at = if comptime!(side.along_terms) { line * stride + term } else { line + term * stride };
    at / comptime!(side.lanes)
}

/// Stores a plane's results by way of shared memory, one strip of fragments at a time.
#[cube]
fn store<A: Float, R: Float, O: Size>(
    epilogue: &EpilogueArgs<R, O>,
    out: &mut [Vector<R, O>],
    work: &CubeWork<'_>,
    sums: &Sums<A>,
    #[comptime] form: Form,
) {
    let units = comptime!(form.plane);
    let (plane, unit) = (UNIT_POS / units, UNIT_POS % units);
    let planes_n = comptime!(form.planes_n());
    let (ratio_m, ratio_n) = comptime!((form.tile.ratio_m, form.tile.ratio_n));
    let (m, n) = comptime!((form.fragment.m, form.fragment.n));
    let strip = comptime!(form.strip);
    // The vectors of a row of a strip, and of a whole strip.
    let width = comptime!(strip * n / QUAD);
    let quads = comptime!(m * width);
    let planes = comptime!(form.units() / units);
    let mut laid = Shared::<[Vector<A, Const<4>>]>::new_aligned_slice(
        comptime!((quads * planes) as usize),
        ALIGNMENT,
    );
    let mine = plane * quads;
    let first_row = work.first_row + plane / planes_n * comptime!(ratio_m * m);
    let first_column = work.first_column + plane % planes_n * comptime!(ratio_n * n);
    #[unroll]
    for i in 0..ratio_m {
        #[unroll]
        for part in 0..comptime!(ratio_n / strip) {
            #[unroll]
            for j in 0..strip {
                let sum = comptime!((i * ratio_n + part * strip + j) as usize);
                if comptime!(form.in_registers()) {
                    let all = comptime!((quads * planes) as usize);
                    let pairs: &mut [Vector<A, Const<2>>] = laid[0..all].with_vector_size_mut();
                    let held = sums.held.index(sum);
                    let row = mine * 2 + unit / 4 * comptime!(strip * n / 2);
                    let at = row + j * comptime!(n / 2) + unit % 4;
                    pairs[at as usize] = held[0];
                    let at = at + comptime!(registers::ROWS * strip * n / 2);
                    pairs[at as usize] = held[1];
                } else {
                    let at = mine + j * comptime!(n / QUAD);
                    cmma::store(
                        &mut laid[at as usize..(mine + quads) as usize],
                        sums.opaque.index(sum),
                        comptime!(strip * n),
                        cmma::MatrixLayout::RowMajor,
                    );
                }
            }
            sync_cube();
            #[unroll]
            for turn in 0..comptime!(quads.div_ceil(units)) {
                let quad = unit + turn * units;
                if quad < quads {
                    let row = first_row + i * m + quad / width;
                    let column = first_column + part * comptime!(strip * n) + quad % width * QUAD;
                    if row < work.block.rows {
                        let point = point_of_row(work, row);
                        let sum = laid[(mine + quad) as usize];
                        store_quad::<A, R, O>(epilogue, out, work, sum, &point, column);
                    }
                }
            }
            sync_cube();
        }
    }
}
