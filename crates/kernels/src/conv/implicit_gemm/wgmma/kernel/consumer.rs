//! A consumer: a warpgroup that computes its rows of a tile, and stores them while the others keep multiplying.

use cubecl::prelude::*;
use cubecl::wgmma::{Accumulator, MatrixDescriptor};

use super::super::tile::{ROWS, WARP, WARPGROUP};
use super::accumulators::{Accumulators, multiply, multiply_all, started, values, zeros};
use super::args::Args;
use super::epilogue::Results;
use super::form::Form;
use super::pipeline::{Pipeline, PipelineState, following, place};
use super::scheduler::{Work, first_stride, is_warp_leader, next_stride, work};
use crate::conv::common::reach;

#[cube]
pub(super) fn consume<E: Float, R: Float, P: Size, W: Numeric, O: Size>(
    pipeline: &Pipeline<E>,
    results: &mut Results<'_, R, P, W, O>,
    warp: u32,
    args: &Args,
    #[comptime] form: Form,
) {
    let first_row = warp / comptime!(WARPGROUP / WARP) * comptime!(form.rows());
    let mut run = 0u32.runtime();
    let mut state = PipelineState::first();
    let mut tile = CUBE_POS_X;
    let mut stride = first_stride(CUBE_POS_X, CUBE_COUNT_X, form);
    let mine = select(first_row == 0, args.tiles, args.whole);
    while tile < mine {
        let work = work(tile, args, form);
        let sums = if comptime!(form.parts > 1) {
            sums_of_parts::<E>(pipeline, &work, first_row, &mut state, form)
        } else {
            sums::<E>(pipeline, &work, first_row, &mut state, &mut run, args, form)
        };
        #[unroll]
        for i in 0..form.tile.ratio_m {
            let row = work.row + first_row + i * ROWS;
            results.store_rows(sums.index(comptime!(i as usize)), row, &work);
        }
        tile += stride;
        stride = next_stride(stride, CUBE_COUNT_X, form);
    }
    // Only the first warpgroup computes a share of a tile. The others release its stages without multiplying.
    if tile < args.tiles {
        let work = work(tile, args, form);
        let leads = is_warp_leader();
        for _ in work.first..work.end {
            pipeline.wait_full(state);
            pipeline.release(state.stage, leads);
            state.advance(form.tile.stages);
        }
    }
}

/// Multiplies each stage as soon as it is full, and releases it one stage later:
///
/// ```text
/// step s     wait full[s]   first products of s   the others of s   wait for the first   release s - 1
/// step s+1                                                          wait full[s+1]   first products ..
/// units      .. of s - 1 ─────────────────────── of s ──────────────────────────────────────── of s+1 ..
/// ```
#[cube]
fn sums<E: Float>(
    pipeline: &Pipeline<E>,
    work: &Work,
    first_row: u32,
    state: &mut PipelineState,
    run: &mut u32,
    args: &Args,
    #[comptime] form: Form,
) -> Sequence<Accumulators> {
    let leads = is_warp_leader();
    let sums = zeros(form);
    let mut held = 0u32.runtime();
    let mut tap = 0u32.runtime();
    let width = &work.phase.gather.width;
    // Where the first of the taps that share a run reads it.
    let begin = if comptime!(form.phased) { reach(width) } else { args.width_first };
    // Resident rows are those of a whole tile; a share begins within them.
    let before = if comptime!(form.resident.rows > 0) { work.row } else { 0u32.runtime() };
    let first_row = first_row + before;
    for step in work.first..work.end {
        // Steps count slices before taps, but where taps share a run. There no step has fewer products.
        let is_last_slice = args.slices.modulo(step) == args.last_slice;
        pipeline.wait_full(*state);
        let (at, first) = if comptime!(form.shares()) {
            // At each further tap the same rows are offset by some pixels.
            let shift = tap as i32 * width.tap_step + begin;
            (*run, first_row + shift as u32)
        } else {
            (place(step, *state, form.resident.rows), first_row)
        };
        let rows = pipeline.rows_of(at, first, form);
        let columns = pipeline.columns_of(place(step, *state, form.resident.columns), form);
        // The last slice of a tap's channels has fewer products; in either branch a step is whole.
        if comptime!(form.ends_early()) {
            if is_last_slice {
                multiply_step(&sums, &rows, &columns, form.last_instructions, form);
            } else {
                multiply_step(&sums, &rows, &columns, form.instructions, form);
            }
        } else {
            multiply_step(&sums, &rows, &columns, form.instructions, form);
        }
        pipeline.release(held, leads && step > work.first);
        held = state.stage;
        state.advance(form.tile.stages);
        if comptime!(form.shares()) {
            let next = tap + 1;
            let ends = next == width.taps_count;
            tap = select(ends, 0u32, next);
            *run = select(ends, following(*run, form.row_stages), *run);
        }
    }
    let sums = started(&sums);
    let mut done = Sequence::<Accumulators>::new();
    #[unroll]
    for i in 0..form.tile.ratio_m {
        done.push(values(&sums.index(comptime!(i as usize)).clone().wait()));
    }
    pipeline.release(held, leads && work.end > work.first);
    done
}

/// The same for factors that are split into parts. Matrix units do not round their sums but truncate them, always
/// towards zero, so that long sums would be too small. Therefore the sums of each stage are added to the total in
/// f32. While one warpgroup adds, another multiplies.
#[cube]
fn sums_of_parts<E: Float>(
    pipeline: &Pipeline<E>,
    work: &Work,
    first_row: u32,
    state: &mut PipelineState,
    #[comptime] form: Form,
) -> Sequence<Accumulators> {
    let leads = is_warp_leader();
    let count = comptime!((form.tile.block_n / 2) as usize);
    let mut all = Sequence::<Accumulators>::new();
    let none = zeros(form);
    #[unroll]
    for i in 0..form.tile.ratio_m {
        all.push(values(none.index(comptime!(i as usize))));
    }
    for _ in work.first..work.end {
        pipeline.wait_full(*state);
        let mut sums = started(&zeros(form));
        let highest = state.stage * comptime!(form.parts);
        // The small products come first, because the truncation of small sums loses less. Products that are smaller
        // than that of the last part and the first part are omitted.
        #[unroll]
        for i in 0..form.parts {
            let smallness = comptime!(form.parts - 1 - i);
            #[unroll]
            for part in 0..comptime!(smallness + 1) {
                let rows = highest + comptime!(smallness - part);
                let rows = pipeline.rows_of(rows, first_row, form);
                let columns = pipeline.columns_of(highest + part, form);
                multiply_all(&mut sums, &rows, &columns, form);
            }
        }
        #[unroll]
        for i in 0..form.tile.ratio_m {
            let sums = sums.index(comptime!(i as usize)).clone().wait();
            if comptime!(i == 0) {
                pipeline.release(state.stage, leads);
            }
            #[unroll]
            for n in 0..count {
                all.index_mut(comptime!(i as usize))[n] += sums.get(n);
            }
        }
        state.advance(form.tile.stages);
    }
    all
}

/// Issues the `count` products of a step for each 64 rows, and waits for all products of the steps before it.
#[cube]
fn multiply_step<E: Float>(
    sums: &Sequence<Accumulator<f32>>,
    rows: &MatrixDescriptor<E>,
    columns: &MatrixDescriptor<E>,
    #[comptime] count: usize,
    #[comptime] form: Form,
) {
    // The accumulators are handed over again for each stage. The compiler must see that they are handed over on
    // every path into the loop; otherwise it makes all products wait for each other.
    let mut sums = started(sums);
    // The first products are committed as a group of their own: when they are done, so are those of all previous
    // stages, while the other products of this stage continue.
    multiply(&mut sums, rows, columns, 0usize, form);
    let begun = sums.index_mut(0usize).commit();
    // The assembler fills an empty group with a product that does nothing.
    if comptime!(count > 1) {
        #[unroll]
        for k in 1..count {
            multiply(&mut sums, rows, columns, k, form);
        }
        let _others = sums.index_mut(0usize).commit();
    }
    begun.wait();
}
