//! The work of a unit: its block, the terms that it adds, and its results.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;

use super::Form;
use crate::conv::common::{
    EpilogueArgs, GatherArgs, Point, Read, finish_at, moved, read_at, row_point, tap_point,
};
use crate::cube::{Registers, zeros};

/// The numbers of a launch, besides those of the product.
#[derive(CubeType, CubeLaunch)]
pub(super) struct BlockArgs {
    pub(super) blocks: u32,
    pub(super) row_blocks: FastDivmod<u32>,
    pub(super) column_blocks: FastDivmod<u32>,
}

/// The group, the block of rows and the block of columns of unit `i`.
#[cube]
fn work_of(block: &BlockArgs, i: u32, #[comptime] columns_first: bool) -> (u32, u32, u32) {
    if comptime!(columns_first) {
        let (rest, column_block) = block.column_blocks.div_mod(i);
        let (group, row_block) = block.row_blocks.div_mod(rest);
        (group, row_block, column_block)
    } else {
        let (rest, row_block) = block.row_blocks.div_mod(i);
        let (group, column_block) = block.column_blocks.div_mod(rest);
        (group, row_block, column_block)
    }
}

#[cube(launch_unchecked)]
pub(super) fn cpu<S: Float, A: Float, N: Size, O: Size>(
    a: &[S],
    packed: &[Vector<A, N>],
    epilogue: &EpilogueArgs<S, O>,
    out: &mut [Vector<S, O>],
    gather: &GatherArgs,
    block: &BlockArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let i = UNIT_POS * CUBE_COUNT as u32 + CUBE_POS as u32;
    if i >= block.blocks {
        terminate!();
    }
    let (group, row_block, column_block) = work_of(block, i, form.columns_first);
    let first_row = row_block * comptime!(form.rows);
    let lanes = N::value() as u32;
    let first_column = column_block * comptime!(form.vectors) * lanes;

    let mut rows = Sequence::<Point>::new();
    #[unroll]
    for r in 0..form.rows {
        let row = row_point(gather, min(first_row + r, gather.rows - 1));
        let other = row.other + group * gather.out_group;
        rows.push(moved(&row, row.a + group * gather.a_group, other));
    }
    let sums = zeros::<A, N>(comptime!(form.rows * form.vectors));

    // The arithmetic uses `usize`: offsets that may wrap at 32 bits cannot be folded into an address.
    let terms = Terms {
        count: gather.inner_count as usize,
        step: if comptime!(form.dense) { 1usize.runtime() } else { gather.a_inner as usize },
        vectors: (gather.b_inner / lanes) as usize,
    };
    let first_weight = group * gather.b_group + first_column;
    for td in 0..gather.depth.taps_count {
        for th in 0..gather.height.taps_count {
            for tw in 0..gather.width.taps_count {
                let tap = tap_point(gather, td, th, tw);
                let weights = ((tap.other + first_weight) / lanes) as usize;
                add_tap::<S, A, N>(a, packed, gather, &rows, &tap, &terms, weights, &sums, form);
            }
        }
    }

    #[unroll]
    for r in 0..form.rows {
        if first_row + r < gather.rows {
            let row = rows.index(r as usize);
            #[unroll]
            for v in 0..form.vectors {
                let sum = sums.index((r * form.vectors + v) as usize).read();
                let column = first_column + v * lanes;
                store::<S, A, N, O>(epilogue, out, gather, row, sum, group, column, form);
            }
        }
    }
}

/// The terms of a tap.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Terms {
    count: usize,
    /// The step from one term to the next: in elements of `a`, and in vectors of weights.
    step: usize,
    vectors: usize,
}

/// Adds the terms of a tap to every sum, if any row reads inside the tensor at this tap.
#[cube]
fn add_tap<S: Float, A: Float, N: Size>(
    a: &[S],
    packed: &[Vector<A, N>],
    gather: &GatherArgs,
    rows: &Sequence<Point>,
    tap: &Point,
    terms: &Terms,
    weights: usize,
    sums: &Registers<A, N>,
    #[comptime] form: Form,
) {
    let mut reads = Sequence::<Read>::new();
    let mut all = true.runtime();
    let mut any = false.runtime();
    #[unroll]
    for r in 0..form.rows {
        let read = read_at(gather, rows.index(r as usize), tap);
        all = all && read.inside;
        any = any || read.inside;
        reads.push(read);
    }
    if all {
        for k in 0..terms.count {
            let weights = weights + k * terms.vectors;
            add_term::<S, A, N>(a, packed, &reads, sums, k * terms.step, weights, false, form);
        }
    } else if any {
        for k in 0..terms.count {
            let weights = weights + k * terms.vectors;
            add_term::<S, A, N>(a, packed, &reads, sums, k * terms.step, weights, true, form);
        }
    }
}

/// Adds one term of a tap to every sum.
#[cube]
fn add_term<S: Float, A: Float, N: Size>(
    a: &[S],
    packed: &[Vector<A, N>],
    reads: &Sequence<Read>,
    sums: &Registers<A, N>,
    term: usize,
    weights: usize,
    #[comptime] clipped: bool,
    #[comptime] form: Form,
) {
    let mut b = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for v in 0..form.vectors {
        b.push(packed[weights + comptime!(v as usize)]);
    }
    #[unroll]
    for r in 0..form.rows {
        let read = reads.index(r as usize);
        let value = A::cast_from(a[read.at as usize + term]);
        let value =
            if comptime!(clipped) { select(read.inside, value, A::from_int(0)) } else { value };
        let value = Vector::<A, N>::new(value);
        #[unroll]
        for v in 0..form.vectors {
            let sum = sums.index((r * form.vectors + v) as usize);
            sum.store(fma(value, *b.index(v as usize), sum.read()));
        }
    }
}

/// Stores a vector of results, except columns past the last.
#[cube]
fn store<S: Float, A: Float, N: Size, O: Size>(
    epilogue: &EpilogueArgs<S, O>,
    out: &mut [Vector<S, O>],
    gather: &GatherArgs,
    row: &Point,
    sum: Vector<A, N>,
    group: u32,
    column: u32,
    #[comptime] form: Form,
) {
    if comptime!(form.whole) {
        if column < gather.columns {
            let lanes = N::value() as u32;
            let at = (row.other + column) / lanes;
            let channel = (group * gather.columns + column) / lanes;
            let sum = Vector::<A, O>::cast_from(sum);
            out[at as usize] = finish_at::<S, A, O>(epilogue, sum, channel, at);
        }
    } else {
        #[unroll]
        for lane in 0..N::value() {
            let column = column + lane as u32;
            if column < gather.columns {
                let at = row.other + column * gather.out_column;
                let channel = group * gather.columns + column;
                let sum = Vector::<A, O>::new(sum.extract(lane));
                out[at as usize] = finish_at::<S, A, O>(epilogue, sum, channel, at);
            }
        }
    }
}
