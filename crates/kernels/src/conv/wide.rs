//! A processor's kernel: a unit computes a few rows by a few vectors of columns in registers.
//!
//! ```text
//! for each block of rows and of columns:         one unit
//!     for each tap, for each term k of it:
//!         b ← the block's columns of packed weights    a few vectors
//!         for each row:  sums[row] += a[row, k] · b     one load, spread over a vector
//! ```
//!
//! A processor's units are threads with wide vectors and no memory to share, so nothing is staged:
//! the weights of a block stay in the caches while one block of rows after another uses them. A
//! tap that lies outside for every row is skipped, one that does for some reads zeros for those.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Convolution, DType, Layout};

use super::blocks::operands;
use super::epilogue::{Epilogue, EpilogueForm, finish_at};
use super::gather::{
    Gather, GatherArgs, GatherForm, Point, Read, columns, read_at, row_point, tap_point,
};
use super::launch::buffer;
use super::pack::Packing;
use super::plan::{Pass, Plan, results};
use crate::dtype::{accumulator, elem};

/// The bytes of weights that stay near a core while all columns of a few rows are computed.
const NEAR: usize = 128 << 10;

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// The rows and the vectors of a unit.
    rows: u32,
    vectors: u32,
    gather: GatherForm,
    /// Whether the terms of a tap lie side by side.
    dense: bool,
    /// Whether blocks of columns follow each other, or else blocks of rows.
    columns_first: bool,
    /// Whether results are stored a vector at a time.
    whole: bool,
    epilogue: EpilogueForm,
}

/// The numbers of a launch beside those of the product.
#[derive(CubeType, CubeLaunch)]
struct BlockArgs {
    blocks: u32,
    row_blocks: FastDivmod<u32>,
    column_blocks: FastDivmod<u32>,
    slope: f32,
}

/// Launches the convolution or the gradient of its input, `[a, w, out]`.
#[allow(clippy::too_many_arguments, reason = "all that a launch is made of")]
pub(super) fn launch(
    client: &Client,
    conv: &Convolution,
    pass: Pass,
    dtype: DType,
    plan: &Plan,
    [a, w, out]: [&Handle; 3],
    epilogue: Epilogue<'_>,
) {
    // The plan was checked: it has a tile.
    let Some(tile) = plan.tile else { return };
    let lanes = tile.elems_per_thread as usize;
    let packing = Packing::new(conv, pass, lanes);
    let packed = packing.pack(client, conv, dtype, plan, w);
    let columns = columns(conv, pass);
    let whole = conv.layout() == Layout::ChannelsLast && columns.is_multiple_of(lanes);
    let form = Form {
        rows: tile.ratio_m,
        vectors: tile.ratio_n,
        gather: GatherForm::new(conv, pass),
        dense: conv.layout() == Layout::ChannelsLast,
        columns_first: packing.elements() / conv.groups() * accumulator(dtype).size() <= NEAR,
        whole,
        epilogue: epilogue.form(dtype),
    };
    let [inputs, _] = operands(conv, pass);
    let (results, out_lanes) = (results(conv, pass), if whole { lanes } else { 1 });
    let column_blocks = columns.div_ceil(tile.block_n as usize);
    for gather in Gather::all(conv, pass) {
        let row_blocks = gather.rows(conv).div_ceil(tile.ratio_m as usize);
        let blocks = row_blocks * column_blocks * conv.groups();
        let cubes = CubeCount::Static(blocks.div_ceil(plan.units as usize) as u32, 1, 1);
        // SAFETY: rows past the last are those of the last again and stored nowhere, columns past
        // the last are zeros among the packed weights, and taps outside are read inside.
        unsafe {
            wide::launch_unchecked(
                client,
                cubes,
                CubeDim::new_1d(plan.units),
                lanes,
                out_lanes,
                buffer(a, inputs),
                buffer(&packed, packing.elements() / lanes),
                epilogue.bias(conv.filter().count(), out_lanes),
                epilogue.residual(results, out_lanes),
                buffer(out, results / out_lanes),
                gather.args(conv, &packing.steps()),
                BlockArgsLaunch::new(
                    blocks as u32,
                    row_blocks as u32,
                    column_blocks as u32,
                    epilogue.slope(),
                ),
                form,
                elem(dtype),
                elem(accumulator(dtype)),
            )
        }
    }
}

/// The group, the block of rows and the block of columns of a unit's turn.
#[cube]
fn place_of(block: &BlockArgs, i: u32, #[comptime] columns_first: bool) -> (u32, u32, u32) {
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
fn wide<S: Float, A: Float, N: Size, O: Size>(
    a: &[S],
    packed: &[Vector<A, N>],
    bias: ComptimeOption<Box<[Vector<S, O>]>>,
    residual: ComptimeOption<Box<[Vector<S, O>]>>,
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
    let (group, row_block, column_block) = place_of(block, i, form.columns_first);
    let first_row = row_block * comptime!(form.rows);
    let lanes = N::value() as u32;
    let first_column = column_block * comptime!(form.vectors) * lanes;

    let mut rows = Sequence::<Point>::new();
    let mut sums = Sequence::<RuntimeCell<Vector<A, N>>>::new();
    #[unroll]
    for r in 0..form.rows {
        let row = row_point(gather, min(first_row + r, gather.rows - 1), form.gather);
        rows.push(Point {
            depth: row.depth,
            height: row.height,
            width: row.width,
            a: row.a + group * gather.a_group,
            other: row.other + group * gather.out_group,
        });
        #[unroll]
        for _ in 0..form.vectors {
            sums.push(RuntimeCell::new(Vector::new(A::from_int(0))));
        }
    }

    // Positions as wide as addresses are: what wraps cannot be folded into them.
    let vectors_a_term = (gather.b_inner / lanes) as usize;
    let step = if comptime!(form.dense) { 1usize.runtime() } else { gather.a_inner as usize };
    let terms = gather.inner_count as usize;
    let first_weight = group * gather.b_group + first_column;
    for td in 0..gather.depth.taps_count {
        for th in 0..gather.height.taps_count {
            for tw in 0..gather.width.taps_count {
                let tap = tap_point(gather, td, th, tw);
                let weights = ((tap.other + first_weight) / lanes) as usize;
                let mut reads = Sequence::<Read>::new();
                let mut all = true.runtime();
                let mut any = false.runtime();
                #[unroll]
                for r in 0..form.rows {
                    let read = read_at(gather, rows.index(r as usize), &tap, form.gather);
                    all = all && read.inside;
                    any = any || read.inside;
                    reads.push(read);
                }
                if all {
                    for k in 0..terms {
                        let weights = weights + k * vectors_a_term;
                        add_term::<S, A, N>(
                            a,
                            packed,
                            &reads,
                            &mut sums,
                            k * step,
                            weights,
                            false,
                            form,
                        );
                    }
                } else if any {
                    for k in 0..terms {
                        let weights = weights + k * vectors_a_term;
                        add_term::<S, A, N>(
                            a,
                            packed,
                            &reads,
                            &mut sums,
                            k * step,
                            weights,
                            true,
                            form,
                        );
                    }
                }
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
                store::<S, A, N, O>(
                    &bias, &residual, out, gather, block, row, sum, group, column, form,
                );
            }
        }
    }
}

/// Adds one term of a tap to every sum.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn add_term<S: Float, A: Float, N: Size>(
    a: &[S],
    packed: &[Vector<A, N>],
    reads: &Sequence<Read>,
    sums: &mut Sequence<RuntimeCell<Vector<A, N>>>,
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

/// Stores a vector of results, or of one the columns that there are.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn store<S: Float, A: Float, N: Size, O: Size>(
    bias: &ComptimeOption<Box<[Vector<S, O>]>>,
    residual: &ComptimeOption<Box<[Vector<S, O>]>>,
    out: &mut [Vector<S, O>],
    gather: &GatherArgs,
    block: &BlockArgs,
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
            out[at as usize] =
                finish_at::<S, A, O>(bias, residual, sum, channel, at, block.slope, form.epilogue);
        }
    } else {
        #[unroll]
        for lane in 0..N::value() {
            let column = column + lane as u32;
            if column < gather.columns {
                let at = row.other + column * gather.out_column;
                let channel = group * gather.columns + column;
                let sum = Vector::<A, O>::new(sum.extract(lane));
                out[at as usize] = finish_at::<S, A, O>(
                    bias,
                    residual,
                    sum,
                    channel,
                    at,
                    block.slope,
                    form.epilogue,
                );
            }
        }
    }
}
