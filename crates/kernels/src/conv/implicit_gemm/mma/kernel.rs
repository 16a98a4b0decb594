//! The work of a cube: blocks are loaded through registers into shared memory, fragments of them are multiplied, and
//! results are stored by way of shared memory.

use cubecl::cmma;
use cubecl::prelude::*;

use super::form::Form;
use crate::conv::common::epilogue::EpilogueArgs;
use crate::conv::common::gather::{GatherArgs, Point};
use crate::conv::implicit_gemm::blocks::{
    BlockArgs, CubeWork, Factor, QUAD, has_piece, line_point, load_a, load_b, loaded_line,
    loaded_term, place_of, store_quad,
};
use crate::cube::registers::{Registers, zeros};

/// The alignment of fragments in bytes: 16 elements of 16 bits, or 8 of 32 bits.
const ALIGNMENT: usize = 32;

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "the tensors and numbers of a launch")]
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

    let place = place_of(gather, block, form.tile, form.product);
    let gather = &place.phase.gather;
    let lines = lines_of(gather, block, &place, form);
    let held_a = zeros::<S, NA>(comptime!(form.slots(Factor::A)));
    let held_b = zeros::<S, NB>(comptime!(form.slots(Factor::B)));
    let mut sums = Sequence::<cmma::Matrix<A>>::new();
    #[unroll]
    for _ in 0..comptime!(form.tile.ratio_m * form.tile.ratio_n) {
        sums.push(cmma::Matrix::<A>::from_value(
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
    let last = max(place.blocks, 1u32) - 1;
    if place.blocks > 0 {
        bring_a::<S, NA>(a, gather, &place, &lines, &held_a, place.first_term, form);
        bring_b::<S, NB>(b, gather, block, &place, &held_b, place.first_term, form);
        stage::<S, E, NA>(&held_a, &mut shared_a, 0u32, Factor::A, form);
        stage::<S, E, NB>(&held_b, &mut shared_b, 0u32, Factor::B, form);
        if comptime!(stages > 1) {
            let term = place.first_term + min(1u32, last) * comptime!(form.tile.block_k);
            bring_a::<S, NA>(a, gather, &place, &lines, &held_a, term, form);
            bring_b::<S, NB>(b, gather, block, &place, &held_b, term, form);
        }
    }
    sync_cube();
    let steps = comptime!(form.tile.block_k / form.fragment.k);
    for i in 0..place.blocks {
        let term = place.first_term + min(i + stages, last) * comptime!(form.tile.block_k);
        if comptime!(stages > 1) {
            let (present, next) = (i % 2u32, (i + 1) % 2u32);
            let (at_a, at_b) = (present * stage_a, present * stage_b);
            let half = comptime!(steps / 2);
            multiply::<E, A, NA, NB>(&shared_a, &shared_b, &sums, at_a, at_b, (0, half), form);
            stage::<S, E, NA>(&held_a, &mut shared_a, next * stage_a, Factor::A, form);
            stage::<S, E, NB>(&held_b, &mut shared_b, next * stage_b, Factor::B, form);
            bring_a::<S, NA>(a, gather, &place, &lines, &held_a, term, form);
            bring_b::<S, NB>(b, gather, block, &place, &held_b, term, form);
            multiply::<E, A, NA, NB>(&shared_a, &shared_b, &sums, at_a, at_b, (half, steps), form);
        } else {
            bring_a::<S, NA>(a, gather, &place, &lines, &held_a, term, form);
            bring_b::<S, NB>(b, gather, block, &place, &held_b, term, form);
            multiply::<E, A, NA, NB>(&shared_a, &shared_b, &sums, 0u32, 0u32, (0, steps), form);
            sync_cube();
            stage::<S, E, NA>(&held_a, &mut shared_a, 0u32, Factor::A, form);
            stage::<S, E, NB>(&held_b, &mut shared_b, 0u32, Factor::B, form);
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
    store::<A, R, O>(epilogue, out, gather, block, &place, &sums, form);
}

/// The first line (or column) and the first term of a unit's load, within the block.
#[cube]
fn load_of(
    #[comptime] slot: u32,
    #[comptime] factor: Factor,
    #[comptime] form: Form,
) -> (u32, u32) {
    let load = UNIT_POS + comptime!(slot * form.units());
    let side = comptime!(form.product.side(factor));
    if comptime!(side.along_terms) {
        let loads = comptime!(form.tile.block_k / side.lanes);
        let (line, term) = (load / loads, load % loads * comptime!(side.lanes));
        // Lines that are stored together are spread as far apart as possible within each group of 8, so that with
        // their padding they do not share a bank.
        let together = comptime!(form.together());
        let low = line % 8;
        (line - low + low % together * comptime!(8 / together) + low / together, term)
    } else {
        let loads = comptime!(form.lines(factor) / side.lanes);
        (load % loads * comptime!(side.lanes), load / loads)
    }
}

/// Whether a unit has this load.
#[cube]
fn has_load(#[comptime] slot: u32, #[comptime] factor: Factor, #[comptime] form: Form) -> bool {
    has_piece(slot, comptime!(form.units()), comptime!(form.loads(factor)))
}

/// The lines of `a` that a unit loads. They are the same in every block of terms.
#[cube]
fn lines_of(
    gather: &GatherArgs,
    block: &BlockArgs,
    place: &CubeWork,
    #[comptime] form: Form,
) -> Sequence<Point> {
    let mut lines = Sequence::<Point>::new();
    #[unroll]
    for slot in 0..comptime!(form.slots(Factor::A)) {
        let (line, _) = load_of(slot, Factor::A, form);
        lines.push(loaded_line(gather, block, place, line, form.product));
    }
    lines
}

/// Loads a unit's part of a block of `a` into registers.
#[cube]
fn bring_a<S: Float, N: Size>(
    a: &[Vector<S, N>],
    gather: &GatherArgs,
    place: &CubeWork,
    lines: &Sequence<Point>,
    held: &Registers<S, N>,
    first: u32,
    #[comptime] form: Form,
) {
    #[unroll]
    for slot in 0..comptime!(form.slots(Factor::A)) {
        if has_load(slot, Factor::A, form) {
            let (_, term) = load_of(slot, Factor::A, form);
            let term = loaded_term(gather, place, first, term, form.product);
            let index = comptime!(slot as usize);
            let value = load_a::<S, N>(a, gather, lines.index(index), &term, form.product);
            held.index(index).store(value);
        }
    }
}

/// Loads a unit's part of a block of `b` into registers.
#[cube]
fn bring_b<S: Float, N: Size>(
    b: &[Vector<S, N>],
    gather: &GatherArgs,
    block: &BlockArgs,
    place: &CubeWork,
    held: &Registers<S, N>,
    first: u32,
    #[comptime] form: Form,
) {
    #[unroll]
    for slot in 0..comptime!(form.slots(Factor::B)) {
        if has_load(slot, Factor::B, form) {
            let (column, term) = load_of(slot, Factor::B, form);
            let term = loaded_term(gather, place, first, term, form.product);
            let value = load_b::<S, N>(b, gather, block, place, column, &term, form.product);
            held.index(comptime!(slot as usize)).store(value);
        }
    }
}

/// Stores the loaded elements of a unit in shared memory, in the order in which they were loaded.
#[cube]
fn stage<S: Float, E: Float, N: Size>(
    held: &Registers<S, N>,
    shared: &mut Shared<[Vector<E, N>]>,
    offset: u32,
    #[comptime] factor: Factor,
    #[comptime] form: Form,
) {
    let side = comptime!(form.product.side(factor));
    let stride = comptime!(form.stride(factor));
    #[unroll]
    for slot in 0..comptime!(form.slots(factor)) {
        if has_load(slot, factor, form) {
            let (line, term) = load_of(slot, factor, form);
            let value = held.index(comptime!(slot as usize)).read();
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
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn multiply<E: Float, A: Float, NA: Size, NB: Size>(
    shared_a: &Shared<[Vector<E, NA>]>,
    shared_b: &Shared<[Vector<E, NB>]>,
    sums: &Sequence<cmma::Matrix<A>>,
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
    #[unroll]
    for step in comptime!(steps.0)..comptime!(steps.1) {
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
                let sum = sums.index(comptime!((i * ratio_n + j) as usize));
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
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn store<A: Float, R: Float, O: Size>(
    epilogue: &EpilogueArgs<R, O>,
    out: &mut [Vector<R, O>],
    gather: &GatherArgs,
    block: &BlockArgs,
    place: &CubeWork,
    sums: &Sequence<cmma::Matrix<A>>,
    #[comptime] form: Form,
) {
    let units = comptime!(form.plane);
    let (plane, unit) = (UNIT_POS / units, UNIT_POS % units);
    let planes_n = comptime!(form.planes_n());
    let (ratio_m, ratio_n) = comptime!((form.tile.ratio_m, form.tile.ratio_n));
    let (m, n) = comptime!((form.fragment.m, form.fragment.n));
    let strip = comptime!(form.strip);
    // The vectors of a line of a strip, and of a whole strip.
    let row = comptime!(strip * n / QUAD);
    let quads = comptime!(m * row);
    let planes = comptime!(form.units() / units);
    let mut laid = Shared::<[Vector<A, Const<4>>]>::new_aligned_slice(
        comptime!((quads * planes) as usize),
        ALIGNMENT,
    );
    let mine = plane * quads;
    let first_line = place.first_line + plane / planes_n * comptime!(ratio_m * m);
    let first_column = place.first_column + plane % planes_n * comptime!(ratio_n * n);
    #[unroll]
    for i in 0..ratio_m {
        #[unroll]
        for part in 0..comptime!(ratio_n / strip) {
            #[unroll]
            for j in 0..strip {
                let sum = comptime!((i * ratio_n + part * strip + j) as usize);
                let at = mine + j * comptime!(n / QUAD);
                cmma::store(
                    &mut laid[at as usize..(mine + quads) as usize],
                    sums.index(sum),
                    comptime!(strip * n),
                    cmma::MatrixLayout::RowMajor,
                );
            }
            sync_cube();
            #[unroll]
            for turn in 0..comptime!(quads.div_ceil(units)) {
                let quad = unit + turn * units;
                if quad < quads {
                    let line = first_line + i * m + quad / row;
                    let column = first_column + part * comptime!(strip * n) + quad % row * QUAD;
                    if line < block.lines {
                        let point = line_point(gather, line, form.product);
                        let sum = laid[(mine + quad) as usize];
                        store_quad::<A, R, O>(
                            epilogue,
                            out,
                            gather,
                            block,
                            place,
                            sum,
                            &point,
                            column,
                            form.product,
                        );
                    }
                }
            }
            sync_cube();
        }
    }
}
