//! The work of a cube: blocks are loaded through registers into shared memory, and each unit multiplies its part of
//! them.

use cubecl::prelude::*;

use super::form::Form;
use crate::conv::common::{EpilogueArgs, GatherArgs};
use crate::conv::implicit_gemm::blocks::{
    BlockArgs, CubeWork, Factor, QUAD, Stores, point_of_row, store_quad, store_rows, work_of,
};
use crate::conv::implicit_gemm::staging::{Loaded, has_work, piece};
use crate::cube::{Registers, multiply_add, zeros};

#[cube(launch_unchecked)]
pub(super) fn simt<S: Float, A: Float, R: Float, NA: Size, NB: Size, O: Size>(
    a: &[Vector<S, NA>],
    b: &[Vector<S, NB>],
    epilogue: &EpilogueArgs<R, O>,
    out: &mut [Vector<R, O>],
    gather: &GatherArgs,
    block: &BlockArgs,
    #[comptime] form: Form,
    #[define(S)] _read: ElemType,
    #[define(A)] _accumulator: ElemType,
    #[define(R)] _stored: ElemType,
) {
    let quads_a = comptime!(form.quads(Factor::A));
    let quads_b = comptime!(form.quads(Factor::B));
    let stage_a = comptime!(quads_a * form.tile.block_k);
    let stage_b = comptime!(quads_b * form.tile.block_k);
    let stages = comptime!(form.tile.stages);
    let mut shared_a =
        Shared::<[Vector<A, Const<4>>]>::new_slice(comptime!((stage_a * stages) as usize));
    let mut shared_b =
        Shared::<[Vector<A, Const<4>>]>::new_slice(comptime!((stage_b * stages) as usize));

    let work = work_of(gather, block, form.tile, form.product);
    let staging = comptime!(form.staging());
    let loaded = Loaded::<S, NA, NB>::new(&work, staging);
    let sums = zeros::<A, Const<4>>(comptime!(form.tile.ratio_m * form.tile.ratio_n * QUAD));

    if work.blocks > 0 {
        loaded.load(a, b, &work, work.first_term, staging);
        store_shared::<S, A, NA>(&loaded.a, &mut shared_a, 0u32, Factor::A, form);
        store_shared::<S, A, NB>(&loaded.b, &mut shared_b, 0u32, Factor::B, form);
    }
    sync_cube();
    for i in 0..work.blocks {
        let more = i + 1 < work.blocks;
        let term = work.first_term + (i + 1) * comptime!(form.tile.block_k);
        if more {
            loaded.load(a, b, &work, term, staging);
        }
        let (present, next) = if comptime!(stages > 1) {
            (i % 2u32, (i + 1) % 2u32)
        } else {
            (0u32.runtime(), 0u32.runtime())
        };
        multiply::<A>(&shared_a, &shared_b, &sums, present * stage_a, present * stage_b, form);
        if comptime!(stages == 1) {
            sync_cube();
        }
        if more {
            store_shared::<S, A, NA>(&loaded.a, &mut shared_a, next * stage_a, Factor::A, form);
            store_shared::<S, A, NB>(&loaded.b, &mut shared_b, next * stage_b, Factor::B, form);
        }
        sync_cube();
    }
    store::<A, R, O>(epilogue, out, &work, &sums, form);
}

/// The XOR mask that swizzles the vectors of a term. Neighbouring units store vectors of different loads of the
/// same few lines at the same time; the mask puts them into different banks.
#[cube]
fn swizzle(term: u32, #[comptime] factor: Factor, #[comptime] form: Form) -> u32 {
    let terms = comptime!(form.staging().terms_per_load(factor));
    let loads = comptime!((form.tile.block_k / terms).clamp(1, 8));
    if comptime!(form.swizzles(factor)) {
        term / terms % loads * comptime!(8 / loads)
    } else {
        0u32.runtime()
    }
}

/// The row and the column of a unit in its cube. In a square, neighbouring units have the same column in pairs, and every
/// second unit the same row. On NVIDIA GPUs that is a little faster than row by row.
#[cube]
fn unit_place(#[comptime] form: Form) -> (u32, u32) {
    let units_n = comptime!(form.units_n());
    if comptime!(form.in_squares()) {
        let squares = comptime!(units_n / 8);
        let (square, unit) = (UNIT_POS / 32, UNIT_POS % 32);
        let (row, column) = (unit / 16 * 2 + unit % 2, unit % 16 / 2);
        (square / squares * 4 + row, square % squares * 8 + column)
    } else {
        (UNIT_POS / units_n, UNIT_POS % units_n)
    }
}

/// Stores the loaded elements of a unit in shared memory, as one vector of 4 lines per term.
#[cube]
fn store_shared<S: Float, A: Float, N: Size>(
    loaded: &Registers<S, N>,
    shared: &mut Shared<[Vector<A, Const<4>>]>,
    offset: u32,
    #[comptime] factor: Factor,
    #[comptime] form: Form,
) {
    let staging = comptime!(form.staging());
    let (loads, terms) = comptime!((staging.loads(factor), staging.terms_per_load(factor)));
    let quads = comptime!(form.quads(factor));
    let along_terms = comptime!(form.product.side(factor).along_terms);
    #[unroll]
    for slot in 0..staging.slots(factor) {
        if has_work(slot, factor, staging) {
            let (line, term) = piece(slot, factor, staging);
            #[unroll]
            for k in 0..terms {
                let mut quad = Vector::<A, Const<4>>::new(A::from_int(0));
                #[unroll]
                for i in 0..QUAD {
                    let load = comptime!(if along_terms { i } else { i * loads / QUAD });
                    let lane = comptime!(if along_terms { k } else { i % (QUAD / loads) });
                    let value = loaded.index(comptime!((slot * loads + load) as usize)).read();
                    quad.insert(
                        comptime!(i as usize),
                        A::cast_from(value.extract(comptime!(lane as usize))),
                    );
                }
                let place = (line / QUAD) ^ swizzle(term, factor, form);
                let at = offset + (term + k) * quads + place;
                shared[at as usize] = quad;
            }
        }
    }
}

/// Multiplies a block; every unit updates its own accumulators.
#[cube]
fn multiply<A: Float>(
    shared_a: &Shared<[Vector<A, Const<4>>]>,
    shared_b: &Shared<[Vector<A, Const<4>>]>,
    sums: &Registers<A, Const<4>>,
    offset_a: u32,
    offset_b: u32,
    #[comptime] form: Form,
) {
    let (units_m, units_n) = comptime!((form.units_m(), form.units_n()));
    let (quads_a, quads_b) = comptime!((form.quads(Factor::A), form.quads(Factor::B)));
    let (ratio_m, ratio_n) = comptime!((form.tile.ratio_m, form.tile.ratio_n));
    let (row, column) = unit_place(form);
    let unrolled = comptime!(if form.tile.block_k.is_multiple_of(4) { 4u32 } else { 1u32 });
    for step in 0..comptime!(form.tile.block_k / unrolled) {
        #[unroll]
        for k in 0..unrolled {
            let term = step * unrolled + k;
            let my_a = offset_a + (row ^ swizzle(term, Factor::A, form));
            let my_b = offset_b + (column ^ swizzle(term, Factor::B, form));
            let mut columns = Sequence::<Vector<A, Const<4>>>::new();
            #[unroll]
            for j in 0..ratio_n {
                columns.push(shared_b[(my_b + term * quads_b + j * units_n) as usize]);
            }
            #[unroll]
            for i in 0..ratio_m {
                let rows = shared_a[(my_a + term * quads_a + i * units_m) as usize];
                #[unroll]
                for r in 0..QUAD {
                    let row = Vector::<A, Const<4>>::new(rows.extract(comptime!(r as usize)));
                    #[unroll]
                    for j in 0..ratio_n {
                        let sum = sums.index(comptime!(((i * QUAD + r) * ratio_n + j) as usize));
                        let column = *columns.index(comptime!(j as usize));
                        sum.store(multiply_add::<A, Const<4>>(row, column, sum.read()));
                    }
                }
            }
        }
    }
}

/// Stores a unit's results.
#[cube]
fn store<A: Float, R: Float, O: Size>(
    epilogue: &EpilogueArgs<R, O>,
    out: &mut [Vector<R, O>],
    work: &CubeWork<'_>,
    sums: &Registers<A, Const<4>>,
    #[comptime] form: Form,
) {
    let (units_m, units_n) = comptime!((form.units_m(), form.units_n()));
    let (ratio_m, ratio_n) = comptime!((form.tile.ratio_m, form.tile.ratio_n));
    let (unit_row, unit_column) = unit_place(form);
    #[unroll]
    for i in 0..ratio_m {
        let first = work.first_row + (i * units_m + unit_row) * QUAD;
        if comptime!(form.product.stores == Stores::Rows) {
            // The number of rows is a multiple of 4.
            if first < work.block.rows {
                let point = point_of_row(work, first);
                #[unroll]
                for j in 0..ratio_n {
                    let mut rows = Sequence::<Vector<A, Const<4>>>::new();
                    #[unroll]
                    for r in 0..QUAD {
                        let index = comptime!(((i * QUAD + r) * ratio_n + j) as usize);
                        rows.push(sums.index(index).read());
                    }
                    let column = work.first_column + (j * units_n + unit_column) * QUAD;
                    #[unroll]
                    for lane in 0..QUAD {
                        store_rows::<A, R, O>(
                            epilogue,
                            out,
                            work,
                            &rows,
                            &point,
                            column + lane,
                            comptime!(lane as usize),
                        );
                    }
                }
            }
        } else {
            #[unroll]
            for r in 0..QUAD {
                if first + r < work.block.rows {
                    let point = point_of_row(work, first + r);
                    #[unroll]
                    for j in 0..ratio_n {
                        let index = comptime!(((i * QUAD + r) * ratio_n + j) as usize);
                        let sum = sums.index(index).read();
                        let column = work.first_column + (j * units_n + unit_column) * QUAD;
                        store_quad::<A, R, O>(epilogue, out, work, sum, &point, column);
                    }
                }
            }
        }
    }
}
