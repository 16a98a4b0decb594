//! What the kernels of a product in blocks have in common: how operands lie in memory, which lines,
//! columns and terms a cube has, how they are read, and where results go.
//!
//! Lines and columns past the last are the last again, and stored nowhere; terms past the last, and
//! taps outside, are zeros.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Convolution, Layout, Tile};

use super::epilogue::{EpilogueForm, finish_at};
use super::gather::{
    Gather, GatherArgs, GatherArgsLaunch, GatherForm, Point, columns, further, inner, placed,
    reads_inside, row_point, term_point, weight_steps,
};
use super::plan::{Pass, Plan, results};

/// The columns that a unit stores at once.
pub(super) const QUAD: u32 = 4;

/// One of the two matrices that are multiplied: lines by terms, or terms by columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Factor {
    A,
    B,
}

/// How a factor comes from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Side {
    /// Whether neighbours in memory are terms of one line, or else lines of one term.
    pub(super) along_terms: bool,
    /// The elements of a load.
    pub(super) lanes: u32,
}

impl Side {
    /// The lines of a load: 1 where it lies along the terms.
    pub(super) fn lines_a_load(self) -> u32 {
        if self.along_terms { 1 } else { self.lanes }
    }
}

/// What of a product changes the code of a kernel, beside how it is cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Product {
    pub(super) a: Side,
    pub(super) b: Side,
    /// Whether rows and terms have changed places.
    pub(super) filter: bool,
    /// Whether a block's terms are all there and of one tap, which is then found once for all of them.
    pub(super) one_tap: bool,
    pub(super) gather: GatherForm,
    /// Whether results are stored a vector of columns at a time.
    pub(super) whole: bool,
    pub(super) epilogue: EpilogueForm,
}

impl Product {
    /// Loads bring at most so many terms of a line, or so many lines of a term, of a tile's block.
    pub(super) fn new(
        conv: &Convolution,
        pass: Pass,
        tile: &Tile,
        [terms, lines]: [u32; 2],
        epilogue: EpilogueForm,
    ) -> Self {
        let filter = pass == Pass::Filter;
        let last = conv.layout() == Layout::ChannelsLast;
        let (inner, columns) = (inner(conv, pass), columns(conv, pass));
        let steps = weight_steps(conv, pass);
        // A load of several elements: neighbours in memory, never of two taps or groups.
        let side = |along_terms: bool, together: usize| {
            let most = if along_terms { terms } else { lines };
            Side { along_terms, lanes: 1 << together.trailing_zeros().min(most.ilog2()) }
        };
        let if_last = |count: usize| if last { count } else { 1 };
        let (a, b) = match (filter, steps.inner, steps.column) {
            (true, ..) => (side(false, if_last(inner)), side(!last, if_last(columns))),
            (false, _, 1) => (side(last, if_last(inner)), side(false, columns)),
            (false, 1, _) => (side(last, if_last(inner)), side(true, inner)),
            (false, ..) => (side(last, if_last(inner)), side(true, 1)),
        };
        let contiguous = if filter { steps.column == 1 } else { last };
        let whole = contiguous && columns.is_multiple_of(QUAD as usize);
        let one_tap = !filter && inner.is_multiple_of(tile.block_k as usize);
        Self { a, b, filter, one_tap, gather: GatherForm::new(conv, pass), whole, epilogue }
    }

    pub(super) fn side(&self, factor: Factor) -> Side {
        match factor {
            Factor::A => self.a,
            Factor::B => self.b,
        }
    }

    /// The lanes of what is stored.
    pub(super) fn stored_lanes(&self) -> usize {
        if self.whole { QUAD as usize } else { 1 }
    }
}

/// The numbers of a launch beside those of the product.
#[derive(CubeType, CubeLaunch)]
pub(super) struct BlockArgs {
    pub(super) lines: u32,
    pub(super) terms: u32,
    pub(super) terms_a_part: u32,
    pub(super) parts: FastDivmod<u32>,
    /// The results of a part.
    pub(super) part_step: u32,
    pub(super) b_column: u32,
    pub(super) b_group: u32,
    pub(super) out_column: u32,
    pub(super) out_group: u32,
    pub(super) slope: f32,
}

/// The elements of the operands that a pass reads.
pub(super) fn operands(conv: &Convolution, pass: Pass) -> [usize; 2] {
    let (inputs, outputs) = (conv.input().elements(), conv.output().elements());
    let weights = conv.filter().elements();
    match pass {
        Pass::Forward => [inputs, weights],
        Pass::Filter => [inputs, outputs],
        _ => [outputs, weights],
    }
}

/// One launch of a pass.
pub(super) struct Launch {
    pub(super) cubes: CubeCount,
    pub(super) gather: GatherArgsLaunch,
    pub(super) block: BlockArgsLaunch,
}

/// The launches of a pass, one a phase.
pub(super) fn launches<'a>(
    conv: &'a Convolution,
    pass: Pass,
    plan: &'a Plan,
    tile: &'a Tile,
    slope: f32,
) -> impl Iterator<Item = Launch> + 'a {
    let (steps, columns) = (weight_steps(conv, pass), columns(conv, pass));
    let channel = match pass {
        Pass::Data => conv.input().strides(conv.layout()).channel,
        _ => conv.output().strides(conv.layout()).channel,
    };
    let filter = pass == Pass::Filter;
    let (weight, window) = ([steps.column, steps.group], [channel, channel * columns]);
    let (b, out) = if filter { (window, weight) } else { (weight, window) };
    Gather::all(conv, pass).map(move |gather| {
        let (rows, terms) = (gather.rows(conv), gather.terms(conv));
        let (lines, terms) = if filter { (terms, rows) } else { (rows, terms) };
        let part = terms.div_ceil(plan.splits).next_multiple_of(tile.block_k as usize);
        Launch {
            cubes: CubeCount::Static(
                lines.div_ceil(tile.block_m as usize) as u32,
                columns.div_ceil(tile.block_n as usize) as u32,
                (conv.groups() * plan.splits) as u32,
            ),
            gather: gather.args(conv, &steps),
            block: BlockArgsLaunch::new(
                lines as u32,
                terms as u32,
                part as u32,
                plan.splits as u32,
                results(conv, pass) as u32,
                b[0] as u32,
                b[1] as u32,
                out[0] as u32,
                out[1] as u32,
                slope,
            ),
        }
    })
}

/// The lines of the longest of a pass's products.
pub(super) fn lines(conv: &Convolution, pass: Pass) -> usize {
    let lines = |gather: Gather| match pass {
        Pass::Filter => gather.terms(conv),
        _ => gather.rows(conv),
    };
    Gather::all(conv, pass).map(lines).max().unwrap_or(0)
}

/// What a cube computes: a block of results, and a part of their terms.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Place {
    pub(super) group: u32,
    pub(super) part: u32,
    pub(super) first_line: u32,
    pub(super) first_column: u32,
    pub(super) first_term: u32,
    pub(super) end_term: u32,
    /// The blocks of terms.
    pub(super) blocks: u32,
}

/// What this cube computes.
///
/// Cubes that run together are neighbours along the columns first: they read the same lines, which then
/// come from memory once for all columns, and soon enough again for the next tap.
#[cube]
pub(super) fn place_of(block: &BlockArgs, #[comptime] tile: Tile) -> Place {
    let cube = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
    let (group, part) = block.parts.div_mod(CUBE_POS_Z);
    let first_term = part * block.terms_a_part;
    let end_term = min(first_term + block.terms_a_part, block.terms);
    let blocks = if end_term > first_term {
        (end_term - first_term + comptime!(tile.block_k - 1)) / comptime!(tile.block_k)
    } else {
        0u32.runtime()
    };
    Place {
        group,
        part,
        first_line: cube / CUBE_COUNT_Y * comptime!(tile.block_m),
        first_column: cube % CUBE_COUNT_Y * comptime!(tile.block_n),
        first_term,
        end_term,
        blocks,
    }
}

/// Whether a unit has the `slot`-th of its pieces of work, of so many for all units.
#[cube]
pub(super) fn has_piece(
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

/// A line of `a`.
#[cube]
pub(super) fn line_point(gather: &GatherArgs, line: u32, #[comptime] product: Product) -> Point {
    if comptime!(product.filter) {
        term_point(gather, line, product.gather)
    } else {
        row_point(gather, line, product.gather)
    }
}

/// A line of `a` that is loaded, of this group.
#[cube]
pub(super) fn loaded_line(
    gather: &GatherArgs,
    block: &BlockArgs,
    place: &Place,
    line: u32,
    #[comptime] product: Product,
) -> Point {
    // Whole loads lie before the last line or after it.
    let last = block.lines - comptime!(product.a.lines_a_load());
    let point = line_point(gather, min(place.first_line + line, last), product);
    let point = placed(gather, &point, product.gather);
    Point {
        depth: point.depth,
        height: point.height,
        width: point.width,
        a: point.a + place.group * gather.a_group,
        other: point.other,
    }
}

/// A term of the product.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Term {
    pub(super) point: Point,
    /// Whether it is one of the part's.
    pub(super) there: bool,
}

/// Term `term` of the block of terms that begins with `first`.
#[cube]
pub(super) fn loaded_term(
    gather: &GatherArgs,
    place: &Place,
    first: u32,
    term: u32,
    #[comptime] product: Product,
) -> Term {
    if comptime!(product.one_tap) {
        let tap = term_point(gather, first, product.gather);
        let tap = placed(gather, &tap, product.gather);
        Term { point: further(gather, &tap, term), there: true.runtime() }
    } else {
        let there = first + term < place.end_term;
        let term = select(there, first + term, first);
        let point = if comptime!(product.filter) {
            row_point(gather, term, product.gather)
        } else {
            term_point(gather, term, product.gather)
        };
        Term { point: placed(gather, &point, product.gather), there }
    }
}

/// What a line and a term read of `a`.
#[cube]
pub(super) fn load_a<S: Float, N: Size>(
    a: &[Vector<S, N>],
    gather: &GatherArgs,
    line: &Point,
    term: &Term,
    #[comptime] product: Product,
) -> Vector<S, N> {
    let inside = reads_inside(gather, line, &term.point, product.gather);
    let there = if comptime!(product.one_tap) { inside } else { term.there && inside };
    load_if(a, there, (line.a + term.point.a) / comptime!(product.a.lanes))
}

/// What a term and a column read of `b`.
#[cube]
pub(super) fn load_b<S: Float, N: Size>(
    b: &[Vector<S, N>],
    gather: &GatherArgs,
    block: &BlockArgs,
    place: &Place,
    column: u32,
    term: &Term,
    #[comptime] product: Product,
) -> Vector<S, N> {
    let last = gather.columns - comptime!(product.b.lines_a_load());
    let column = min(place.first_column + column, last);
    let at = term.point.other + place.group * block.b_group + column * block.b_column;
    let at = at / comptime!(product.b.lanes);
    if comptime!(product.one_tap) { b[at as usize] } else { load_if(b, term.there, at) }
}

/// What lies at `at`, or zeros.
///
/// Not a selection of what was loaded, which would wait for it: a load must be on its way while the block
/// before it is multiplied.
#[cube]
pub(super) fn load_if<S: Float, N: Size>(
    from: &[Vector<S, N>],
    there: bool,
    at: u32,
) -> Vector<S, N> {
    let mut value = Vector::new(S::from_int(0));
    if there {
        value = from[at as usize];
    }
    value
}

/// Stores 4 columns of a line, or those of them that there are.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
pub(super) fn store_quad<A: Float, R: Float, O: Size>(
    bias: &ComptimeOption<Box<[Vector<R, O>]>>,
    residual: &ComptimeOption<Box<[Vector<R, O>]>>,
    out: &mut [Vector<R, O>],
    gather: &GatherArgs,
    block: &BlockArgs,
    place: &Place,
    sum: Vector<A, Const<4>>,
    line: &Point,
    column: u32,
    #[comptime] product: Product,
) {
    let base = place.part * block.part_step + place.group * block.out_group + line.other;
    let first_channel = place.group * gather.columns;
    if comptime!(product.whole) {
        if column < gather.columns {
            let at = (base + column) / QUAD;
            let channel = (first_channel + column) / QUAD;
            let sum = Vector::<A, O>::cast_from(sum);
            let form = comptime!(product.epilogue);
            out[at as usize] =
                finish_at::<R, A, O>(bias, residual, sum, channel, at, block.slope, form);
        }
    } else {
        #[unroll]
        for lane in 0..QUAD {
            let column = column + lane;
            if column < gather.columns {
                let at = base + column * block.out_column;
                let channel = first_channel + column;
                let sum = Vector::<A, O>::new(sum.extract(comptime!(lane as usize)));
                let form = comptime!(product.epilogue);
                out[at as usize] =
                    finish_at::<R, A, O>(bias, residual, sum, channel, at, block.slope, form);
            }
        }
    }
}
