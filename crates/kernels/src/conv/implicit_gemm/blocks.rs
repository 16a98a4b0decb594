//! Blocks of a product, for the mainloops that stage them in shared memory: the memory layout of the operands, the
//! rows, columns and terms that a cube computes, how they are loaded, and where results are stored.
//!
//! Rows and columns past the end repeat the last one, and their results are not stored. Terms past the end, and
//! taps outside the input, are zeros.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Convolution, Layout, Tile};

use crate::conv::common::{
    EpilogueArgs, Gather, GatherArgs, GatherArgsLaunch, Phase, PhasesArgs, Point, columns,
    finish_at, finish_with, further, has_result, inner, load_if, moved, only_phase, phase,
    reads_inside, row_point, term_point, weight_steps, with_offset,
};
use crate::conv::implicit_gemm::rules::{longest_product, windows_are_pixels};
use crate::conv::problem::{Pass, results};
use crate::cube::numbers;

/// The number of columns that a unit stores at once.
pub(crate) const QUAD: u32 = 4;

/// One of the two matrices that are multiplied: A is rows by terms, B is terms by columns. A line of
/// a factor is a row of A, or a column of B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    A,
    B,
}

/// How a factor is loaded from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Side {
    /// Whether neighbours in memory are terms of one line; otherwise they are lines of one term.
    pub(crate) along_terms: bool,
    /// The number of elements per load.
    pub(crate) lanes: u32,
}

impl Side {
    /// The number of lines per load: 1 where neighbours are terms.
    pub(crate) fn lines_per_load(self) -> u32 {
        if self.along_terms { 1 } else { self.lanes }
    }
}

/// What a store writes: vectors of neighbouring columns or rows, or single elements where neither are neighbours in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stores {
    Columns,
    Rows,
    Elements,
}

/// The compile-time options of a product, besides those of its tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Product {
    pub(crate) a: Side,
    pub(crate) b: Side,
    /// Whether rows and terms are exchanged, as in the weight gradient.
    pub(crate) is_weight: bool,
    /// Whether the launch computes several phases of a data gradient.
    pub(crate) phased: bool,
    /// Whether all terms of every block exist and belong to one tap, which is then computed once per block.
    pub(crate) one_tap: bool,
    /// Whether the filters have only one tap.
    pointwise: bool,
    pub(crate) stores: Stores,
}

impl Product {
    /// A load reads at most `terms` terms of a line, or `lines` lines of a term.
    pub(crate) fn new(
        conv: &Convolution,
        pass: Pass,
        tile: &Tile,
        [terms, lines]: [u32; 2],
    ) -> Self {
        let is_weight = pass == Pass::Weight;
        let last = conv.layout() == Layout::ChannelsLast;
        let (inner, columns) = (inner(conv, pass), columns(conv, pass));
        let steps = weight_steps(conv, pass);
        // A vector load must read neighbours in memory, and must not cross into another tap or group.
        let side = |along_terms: bool, neighbours: usize| {
            let most = if along_terms { terms } else { lines };
            Side { along_terms, lanes: 1 << neighbours.trailing_zeros().min(most.ilog2()) }
        };
        // Channels first, neighbours are pixels of a plane, and read by neighbouring windows if each window is a pixel.
        let pixels = if windows_are_pixels(conv) { conv.input().plane() } else { 1 };
        let (a, b) = match (is_weight, last) {
            (true, true) => (side(false, inner), side(false, columns)),
            // Vectors of one factor alone were slower than none.
            (true, false) => (side(pixels > 1, pixels), side(true, pixels)),
            (false, _) => {
                let a = if last { side(true, inner) } else { side(false, pixels) };
                let b = match [steps.inner, steps.column] {
                    [_, 1] => side(false, columns),
                    [1, _] => side(true, inner),
                    _ => side(true, 1),
                };
                (a, b)
            }
        };
        let contiguous = if is_weight { steps.column == 1 } else { last };
        let whole = contiguous && columns.is_multiple_of(QUAD as usize);
        let stores = if whole { Stores::Columns } else { Stores::Elements };
        let one_tap = !is_weight && inner.is_multiple_of(tile.block_k as usize);
        let (_, phases) = Gather::largest(conv, pass);
        let (phased, pointwise) = (phases.is_some(), conv.filter().taps() == 1);
        Self { a, b, is_weight, phased, one_tap, pointwise, stores }
    }

    /// The same with results that are stored as whole vectors of rows, if rows are neighbours in memory. Where sums are
    /// `scaled`, scales would have to be read one by one.
    pub(crate) fn with_whole_rows(self, conv: &Convolution, pass: Pass, scaled: bool) -> Self {
        let results = if pass == Pass::Data { conv.input() } else { conv.output() };
        let whole_rows = !self.is_weight
            && !self.phased
            && !scaled
            && conv.layout() == Layout::ChannelsFirst
            && [results.plane(), columns(conv, pass)].iter().all(|of| of % QUAD as usize == 0);
        match self.stores {
            Stores::Elements if whole_rows => Self { stores: Stores::Rows, ..self },
            _ => self,
        }
    }

    pub(crate) fn side(&self, factor: Factor) -> Side {
        match factor {
            Factor::A => self.a,
            Factor::B => self.b,
        }
    }

    /// The time of the loads of a step.
    pub(crate) fn loading(&self, tile: &Tile, times: LoadTimes) -> f64 {
        let finding = match (self.is_weight, self.one_tap || self.pointwise) {
            (true, _) => times.of_windows,
            (false, false) => times.of_taps,
            (false, true) => 1.0,
        };
        let [m, n, k] = [tile.block_m, tile.block_n, tile.block_k].map(f64::from);
        let [a, b] = [self.a, self.b].map(|side| f64::from(side.lanes));
        k * (times.element * (m + n) + times.vector * (finding * m / a + n / b))
    }

    /// The number of results per store.
    pub(crate) fn stored_lanes(&self) -> usize {
        if self.stores == Stores::Elements { 1 } else { QUAD as usize }
    }
}

/// What loads take, in cycles of a multiprocessor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadTimes {
    /// An element, on the way through registers to shared memory.
    pub(crate) element: f64,
    /// A load, and how many times as long it takes where its address follows from a window or from one of several taps.
    pub(crate) vector: f64,
    pub(crate) of_windows: f64,
    pub(crate) of_taps: f64,
}

/// The numbers of a launch, besides those of the product.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct BlockArgs {
    pub(crate) rows: u32,
    pub(crate) terms: u32,
    pub(crate) terms_per_part: u32,
    pub(crate) parts: FastDivmod<u32>,
    /// The number of results of a part.
    pub(crate) part_step: u32,
    pub(crate) b_column: u32,
    pub(crate) b_group: u32,
    pub(crate) out_column: u32,
    pub(crate) out_group: u32,
    phased: ComptimeOption<PhasedBlocks>,
}

/// The further numbers of a launch that computes several phases.
#[derive(CubeType, CubeLaunch)]
struct PhasedBlocks {
    phases: PhasesArgs,
    /// The blocks of rows of a phase.
    blocks: FastDivmod<u32>,
    parts_count: u32,
}

/// The launch of a pass.
pub(crate) struct Launch {
    pub(crate) cubes: CubeCount,
    pub(crate) gather: GatherArgsLaunch,
    pub(crate) block: BlockArgsLaunch,
}

/// The launch of a pass. All phases of a data gradient are computed at once.
pub(crate) fn launch_of(conv: &Convolution, pass: Pass, splits: usize, tile: &Tile) -> Launch {
    let (steps, columns) = (weight_steps(conv, pass), columns(conv, pass));
    let channel = match pass {
        Pass::Data => conv.input().strides(conv.layout()).channel,
        _ => conv.output().strides(conv.layout()).channel,
    };
    let is_weight = pass == Pass::Weight;
    let (weight, window) = ([steps.column, steps.group], [channel, channel * columns]);
    let (b, out) = if is_weight { (window, weight) } else { (weight, window) };
    let (gather, phases) = Gather::largest(conv, pass);
    let (rows, terms) = longest_product(conv, pass);
    let blocks = rows.div_ceil(tile.block_m as usize);
    let part = terms.div_ceil(splits).next_multiple_of(tile.block_k as usize);
    let phased = phases.map(|phases| PhasedBlocksLaunch {
        phases: phases.args(conv, &steps),
        blocks: blocks as u32,
        parts_count: splits as u32,
    });
    Launch {
        cubes: CubeCount::Static(
            (blocks * phases.map_or(1, |phases| phases.count())) as u32,
            columns.div_ceil(tile.block_n as usize) as u32,
            (conv.groups() * splits) as u32,
        ),
        gather: gather.args(conv, &steps),
        block: numbers! { BlockArgsLaunch {
            rows, terms, terms_per_part: part, parts: splits, part_step: results(conv, pass),
            b_column: b[0], b_group: b[1], out_column: out[0], out_group: out[1],
            phased: ComptimeOptionArgs::from(phased),
        } },
    }
}

/// The work of a cube: a block of results, and one part of their terms.
#[derive(CubeType)]
pub(crate) struct CubeWork<'a> {
    pub(crate) block: &'a BlockArgs,
    #[cube(comptime)]
    pub(crate) product: Product,
    pub(crate) phase: Phase,
    pub(crate) group: u32,
    pub(crate) part: u32,
    pub(crate) first_row: u32,
    pub(crate) first_column: u32,
    pub(crate) first_term: u32,
    pub(crate) end_term: u32,
    /// The number of blocks of terms.
    pub(crate) blocks: u32,
}

/// The work of this cube.
///
/// Cubes that run at the same time are neighbours along the columns first. They read the same rows, which are then
/// loaded from memory once for all columns, and are still in the cache for the next tap.
#[cube]
pub(crate) fn work_of<'a>(
    gather: &GatherArgs,
    block: &'a BlockArgs,
    #[comptime] tile: Tile,
    #[comptime] product: Product,
) -> CubeWork<'a> {
    let cube = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
    let (group, part) = block.parts.div_mod(CUBE_POS_Z);
    let (phase, row_block, terms, terms_per_part) = if comptime!(product.phased) {
        let phased = block.phased.as_ref().unwrap();
        let (nth, row_block) = phased.blocks.div_mod(cube / CUBE_COUNT_Y);
        let phase = phase(gather, &phased.phases, nth);
        let own = &phase.gather;
        let taps = own.depth.taps_count * own.height.taps_count * own.width.taps_count;
        let terms = taps * own.inner_count;
        let part = block.parts.div(terms + phased.parts_count - 1);
        let blocks = (part + comptime!(tile.block_k - 1)) / comptime!(tile.block_k);
        (phase, row_block, terms, blocks * comptime!(tile.block_k))
    } else {
        (only_phase(gather), cube / CUBE_COUNT_Y, block.terms, block.terms_per_part)
    };
    let first_term = part * terms_per_part;
    let end_term = min(first_term + terms_per_part, terms);
    let blocks = if end_term > first_term {
        (end_term - first_term + comptime!(tile.block_k - 1)) / comptime!(tile.block_k)
    } else {
        0u32.runtime()
    };
    CubeWork::<'a> {
        block,
        product,
        phase,
        group,
        part,
        first_row: row_block * comptime!(tile.block_m),
        first_column: cube % CUBE_COUNT_Y * comptime!(tile.block_n),
        first_term,
        end_term,
        blocks,
    }
}

/// Whether a unit has a `slot`-th piece of work, if all units together have `pieces`.
#[cube]
pub(crate) fn has_piece(
    #[comptime] slot: u32,
    #[comptime] units: u32,
    #[comptime] pieces: u32,
) -> bool {
    if comptime!((slot + 1) * units <= pieces) {
        true.runtime()
    } else {
        UNIT_POS + comptime!(slot * units) < pieces
    }
}

/// A row of `a`. In a weight gradient it is a term of the gather, and a term is a row of it.
#[cube]
pub(crate) fn point_of_row(work: &CubeWork<'_>, row: u32) -> Point {
    if comptime!(work.product.is_weight) {
        term_point(&work.phase.gather, row)
    } else {
        row_point(&work.phase.gather, row)
    }
}

/// A row of `a` of this group, limited to the last row that can be loaded.
#[cube]
pub(crate) fn loaded_row(work: &CubeWork<'_>, row: u32) -> Point {
    // A load is either entirely before the end or entirely past it.
    let last = work.block.rows - comptime!(work.product.a.lines_per_load());
    let point = point_of_row(work, min(work.first_row + row, last));
    let point = with_offset(&work.phase.gather, &point);
    moved(&point, point.a + work.group * work.phase.gather.a_group, point.other)
}

/// A term of the product, ready for loading.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Term {
    pub(crate) point: Point,
    /// Whether it belongs to this cube's part.
    pub(crate) there: bool,
}

/// Term `term` of the block of terms that starts at `first`.
#[cube]
pub(crate) fn loaded_term(work: &CubeWork<'_>, first: u32, term: u32) -> Term {
    if comptime!(work.product.one_tap) {
        let tap = term_point(&work.phase.gather, first);
        let tap = with_offset(&work.phase.gather, &tap);
        Term { point: further(&work.phase.gather, &tap, term), there: true.runtime() }
    } else {
        let there = first + term < work.end_term;
        let term = select(there, first + term, first);
        let point = if comptime!(work.product.is_weight) {
            row_point(&work.phase.gather, term)
        } else {
            term_point(&work.phase.gather, term)
        };
        Term { point: with_offset(&work.phase.gather, &point), there }
    }
}

/// The elements of `a` that a row and a term read together.
#[cube]
pub(crate) fn load_a<S: Float, N: Size>(
    a: &[Vector<S, N>],
    work: &CubeWork<'_>,
    row: &Point,
    term: &Term,
) -> Vector<S, N> {
    let inside = reads_inside(&work.phase.gather, row, &term.point);
    let there = if comptime!(work.product.one_tap) { inside } else { term.there && inside };
    load_if(a, there, (row.a + term.point.a) / comptime!(work.product.a.lanes))
}

/// The elements of `b` that a term and a column read together.
#[cube]
pub(crate) fn load_b<S: Float, N: Size>(
    b: &[Vector<S, N>],
    work: &CubeWork<'_>,
    column: u32,
    term: &Term,
) -> Vector<S, N> {
    let last = work.phase.gather.columns - comptime!(work.product.b.lines_per_load());
    let column = min(work.first_column + column, last);
    let at = term.point.other + work.group * work.block.b_group + column * work.block.b_column;
    let at = at / comptime!(work.product.b.lanes);
    if comptime!(work.product.one_tap) { b[at as usize] } else { load_if(b, term.there, at) }
}

/// Stores 4 columns of a row, except those past the last column.
#[cube]
pub(crate) fn store_quad<A: Float, R: Float, O: Size>(
    epilogue: &EpilogueArgs<R, O>,
    out: &mut [Vector<R, O>],
    work: &CubeWork<'_>,
    sum: Vector<A, Const<4>>,
    row: &Point,
    column: u32,
) {
    let base = work.part * work.block.part_step + work.group * work.block.out_group + row.other;
    let first_channel = work.group * work.phase.gather.columns;
    let there =
        if comptime!(work.product.phased) { has_result(&work.phase, row) } else { true.runtime() };
    if comptime!(work.product.stores == Stores::Columns) {
        if there && column < work.phase.gather.columns {
            let at = (base + column) / QUAD;
            let channel = (first_channel + column) / QUAD;
            let sum = Vector::<A, O>::cast_from(sum);
            out[at as usize] = finish_at::<R, A, O>(epilogue, sum, channel, at);
        }
    } else {
        #[unroll]
        for lane in 0..QUAD {
            let column = column + lane;
            if there && column < work.phase.gather.columns {
                let at = base + column * work.block.out_column;
                let channel = first_channel + column;
                let sum = Vector::<A, O>::new(sum.extract(comptime!(lane as usize)));
                out[at as usize] = finish_at::<R, A, O>(epilogue, sum, channel, at);
            }
        }
    }
}

/// Stores 4 rows of a column, the first of which is `row`, except those past the last row or column. `lane` is the place of
/// the column among 4, and `sums` are those of these.
#[cube]
pub(crate) fn store_rows<A: Float, R: Float, O: Size>(
    epilogue: &EpilogueArgs<R, O>,
    out: &mut [Vector<R, O>],
    work: &CubeWork<'_>,
    sums: &Sequence<Vector<A, Const<4>>>,
    row: &Point,
    column: u32,
    #[comptime] lane: usize,
) {
    if column < work.phase.gather.columns {
        let base = work.part * work.block.part_step + work.group * work.block.out_group + row.other;
        let at = (base + column * work.block.out_column) / QUAD;
        let mut sum = Vector::<A, O>::empty();
        #[unroll]
        for r in 0..QUAD as usize {
            sum.insert(r, sums.index(r).extract(lane));
        }
        #[comptime]
        match &epilogue.bias.given {
            ComptimeOption::Some(bias) => {
                let channel = work.group * work.phase.gather.columns + column;
                let bias = bias[(channel / QUAD) as usize].extract(lane);
                sum += Vector::new(A::cast_from(bias));
            }
            ComptimeOption::None => {}
        }
        out[at as usize] = finish_with::<R, A, O>(epilogue, sum, at);
    }
}
