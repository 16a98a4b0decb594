//! The work of a cube: its units load pixels, its planes walk over them, and its units store the results.

use cubecl::prelude::*;

use super::block::{BlockArgs, PlaneWork, work_of};
use super::form::Form;
use super::mainloop::{Walk, go_over, walk_down};
use super::nonfinite_fixup::recomputed;
use super::pixels::stage;
use super::results::{
    are_numbers, is_there, piece_of, read_piece, result_of, store_vector, window_of,
};
use super::weights::{fill, no_weights, offsets_of};
use crate::conv::common::{EpilogueArgs, GatherArgs};

/// The alignment of strips in bytes.
const ALIGNMENT: usize = 16;

#[cube(launch_unchecked)]
pub(super) fn grouped_mma<S: Float, A: Float, R: Float, N: Size>(
    a: &[Vector<S, N>],
    w: &[S],
    epilogue: &EpilogueArgs<S, N>,
    out: &mut [Vector<S, N>],
    gather: &GatherArgs,
    block: &BlockArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
    #[define(R)] _staged: ElemType,
) {
    let work = work_of(gather, block, form);
    let mut shared =
        Shared::<[Vector<S, N>]>::new_aligned_slice(comptime!(form.shared() as usize), ALIGNMENT);
    sum_walks::<S, A, R, N>(a, w, epilogue, &work, &mut shared);
    sync_cube();
    store_pieces::<S, A, R, N>(a, w, epilogue, out, &work, &shared);
}

/// Loads the cube's pixels into shared memory, computes the walks of a plane group by group, and writes the sums to
/// the place of the pixels.
#[cube]
fn sum_walks<S: Float, A: Float, R: Float, N: Size>(
    a: &[Vector<S, N>],
    w: &[S],
    epilogue: &EpilogueArgs<S, N>,
    work: &PlaneWork<'_>,
    shared: &mut Shared<[Vector<S, N>]>,
) {
    let form = comptime!(work.form);
    let offsets = offsets_of(work);
    let weights = no_weights::<S>(form);
    stage::<S, N>(a, work, shared);
    // These loads overlap with the other planes' loads of pixels.
    fill::<S>(w, work, &offsets, &weights, work.group, 0u32);
    sync_cube();
    for member in 0..work.block.members {
        let group = work.group + member;
        for walk in 0..work.block.walks {
            if work.column + walk * comptime!(form.walk_windows()) < work.block.width {
                let walked = Walk { group, walk };
                if comptime!(form.is_held()) {
                    walk_down::<S, A, R, N>(shared, &weights, epilogue, work, &walked);
                } else {
                    go_over::<S, A, R, N>(shared, w, &offsets, &weights, epilogue, work, &walked);
                }
            }
        }
        if comptime!(form.is_held()) {
            let next = member + 1;
            if next < work.block.members {
                let next = work.group + next;
                fill::<S>(w, work, &offsets, &weights, next, 0u32);
            }
        }
    }
}

/// Stores the results from shared memory to memory, and recomputes those that are NaN.
#[cube]
fn store_pieces<S: Float, A: Float, R: Float, N: Size>(
    a: &[Vector<S, N>],
    w: &[S],
    epilogue: &EpilogueArgs<S, N>,
    out: &mut [Vector<S, N>],
    work: &PlaneWork<'_>,
    shared: &Shared<[Vector<S, N>]>,
) {
    let form = comptime!(work.form);
    let ahead = comptime!(form.ahead());
    let further = work.gather.width.out_step / comptime!(form.lanes);
    for round in 0..comptime!(form.result_tiles().div_ceil(form.units() * form.ahead())).runtime() {
        // The windows that must be recomputed, one bit each.
        let mut left = 0u32.runtime();
        #[unroll]
        for turn in 0..ahead {
            let piece = piece_of(UNIT_POS + (round * ahead + turn) * comptime!(form.units()), form);
            let results = read_piece::<S, R, N>(shared, &piece, form);
            let first = window_of(work, &piece, 0u32);
            let at = result_of(work, &first);
            let whole = are_numbers::<R, N>(&results, form);
            #[unroll]
            for i in 0..form.wide() {
                let window = window_of(work, &piece, i);
                if is_there(work, &window) {
                    if whole {
                        let result = *results.index(comptime!(i as usize));
                        let at = at + i * further;
                        let vector = window.vector;
                        store_vector::<S, A, R, N>(result, epilogue, out, vector, at, form);
                    } else {
                        left |= comptime!(1u32 << (turn * form.wide() + i));
                    }
                }
            }
        }
        while left != 0 {
            let bit = left.trailing_zeros();
            left &= left - 1;
            let (turn, i) = (bit / comptime!(form.wide()), bit % comptime!(form.wide()));
            let piece = piece_of(UNIT_POS + (round * ahead + turn) * comptime!(form.units()), form);
            let window = window_of(work, &piece, i);
            recomputed::<S, A, N>(a, w, epilogue, out, work, &window);
        }
    }
}
