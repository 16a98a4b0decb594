//! The implicit product of matrices on a GPU's plain units: blocks in shared memory, sums in
//! registers.
//!
//! ```text
//! for each block of BLOCK_M rows by BLOCK_N columns:           one cube
//!     for each BLOCK_K terms:
//!         all units bring a[rows, terms] and b[terms, columns] to shared memory
//!         for each term:                                       one unit, 4·RATIO_M by 4·RATIO_N sums
//!             sums += a[its rows, term] ⊗ b[term, its columns]
//! ```
//!
//! A gradient of the filters is the same product with rows and terms changing places: its rows are
//! taps and channels, and its terms, which are very many, windows.
//!
//! ```text
//! forward, data    line of a = row     term = tap, channel      b = weights
//! filter           line of a = tap, channel     term = window   b = dy
//! ```
//!
//! Where the code departs from this: the next block of terms is loaded into registers while the
//! present one is multiplied, and with 2 stages stored beside it, so that one barrier a block does.
//! Shared memory holds vectors of 4 lines a term; what comes from memory along the terms is
//! turned on the way. Lines and columns past the last are the last again, and stored nowhere;
//! terms past the last are zeros.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Convolution, DType, Layout, Tile};

use super::epilogue::{Epilogue, EpilogueForm, finish_at};
use super::gather::{
    Gather, GatherArgs, GatherForm, Point, columns, inner, read_at, row_point, term_point,
    weight_steps,
};
use super::launch::buffer;
use super::plan::{Pass, Plan, results};
use crate::dtype::{accumulator, elem};

/// The lines of a vector in shared memory, and the columns of one.
const QUAD: u32 = 4;

/// How one operand comes from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Side {
    /// Whether neighbours in memory are terms of one line, or else lines of one term.
    along_terms: bool,
    /// The elements of a load.
    lanes: u32,
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    tile: Tile,
    a: Side,
    b: Side,
    /// Whether rows and terms have changed places.
    filter: bool,
    gather: GatherForm,
    /// Whether results are stored a vector of columns at a time.
    whole: bool,
    epilogue: EpilogueForm,
}

impl Form {
    /// The units of a cube along the columns, and all of them.
    fn units_n(&self) -> u32 {
        self.tile.block_n / (QUAD * self.tile.ratio_n)
    }

    fn units(&self) -> u32 {
        units(&self.tile)
    }

    /// The vectors of a block's terms in shared memory.
    fn quads(&self, a: bool) -> u32 {
        (if a { self.tile.block_m } else { self.tile.block_n }) / QUAD
    }

    fn side(&self, a: bool) -> Side {
        if a { self.a } else { self.b }
    }

    /// The loads by which a unit brings 4 lines, and how many such quarters of work it has a block.
    fn loads(&self, a: bool) -> u32 {
        let side = self.side(a);
        if side.along_terms { QUAD } else { QUAD / side.lanes }
    }

    fn slots(&self, a: bool) -> u32 {
        self.pieces(a).div_ceil(self.units())
    }

    /// The pieces of work of a block: 4 lines by the terms of a load.
    fn pieces(&self, a: bool) -> u32 {
        self.quads(a) * (self.tile.block_k / self.terms_a_load(a))
    }

    fn terms_a_load(&self, a: bool) -> u32 {
        let side = self.side(a);
        if side.along_terms { side.lanes } else { 1 }
    }
}

/// The units of a cube.
pub(super) fn units(tile: &Tile) -> u32 {
    (tile.block_m / (QUAD * tile.ratio_m)) * (tile.block_n / (QUAD * tile.ratio_n))
}

/// The bytes of shared memory that a tile takes.
pub(super) fn shared_bytes(tile: &Tile, dtype: DType) -> usize {
    let elements = (tile.block_m as usize + tile.block_n as usize) * tile.block_k as usize;
    elements * tile.stages as usize * accumulator(dtype).size()
}

/// The numbers of a launch beside those of the product.
#[derive(CubeType, CubeLaunch)]
struct BlockArgs {
    lines: u32,
    terms: u32,
    terms_a_part: u32,
    parts: FastDivmod<u32>,
    /// The results of a part.
    part_step: u32,
    b_column: u32,
    b_group: u32,
    out_column: u32,
    out_group: u32,
    slope: f32,
}

/// Launches a pass, `[a, b, out]`: `out` has the parts of the sums where the plan cuts them.
pub(super) fn launch(
    client: &Client,
    conv: &Convolution,
    pass: Pass,
    dtype: DType,
    plan: &Plan,
    [a, b, out]: [&Handle; 3],
    epilogue: Epilogue<'_>,
) {
    // The plan was checked: it has a tile.
    let Some(tile) = plan.tile else { return };
    let stored = plan.stored(pass, dtype);
    let form = form(conv, pass, stored, &tile, &epilogue);
    let (inputs, outputs) = (conv.input().elements(), conv.output().elements());
    let weights = conv.filter().elements();
    let (a_len, b_len) = match pass {
        Pass::Forward => (inputs, weights),
        Pass::Filter => (inputs, outputs),
        _ => (outputs, weights),
    };
    let results = results(conv, pass);
    let out_lanes = if form.whole { QUAD as usize } else { 1 };
    let (steps, columns) = (weight_steps(conv, pass), columns(conv, pass));
    for gather in Gather::all(conv, pass) {
        let (rows, terms) = (gather.rows(conv), gather.terms(conv));
        let (lines, terms) = if form.filter { (terms, rows) } else { (rows, terms) };
        let out_steps = conv.output().strides(conv.layout());
        let weight = [steps.column, steps.group];
        let window = match pass {
            Pass::Data => {
                let steps = conv.input().strides(conv.layout());
                [steps.channel, steps.channel * columns]
            }
            _ => [out_steps.channel, out_steps.channel * columns],
        };
        let ([b_column, b_group], [out_column, out_group]) =
            if form.filter { (window, weight) } else { (weight, window) };
        let part = terms.div_ceil(plan.splits).next_multiple_of(tile.block_k as usize);
        let cubes = CubeCount::Static(
            lines.div_ceil(tile.block_m as usize) as u32,
            columns.div_ceil(tile.block_n as usize) as u32,
            (conv.groups() * plan.splits) as u32,
        );
        // SAFETY: lines and columns past the last are clamped for loads and stored nowhere, terms
        // past the last too, and reads outside are moved inside.
        unsafe {
            tiled::launch_unchecked(
                client,
                cubes,
                CubeDim::new_1d(form.units()),
                form.a.lanes as usize,
                form.b.lanes as usize,
                out_lanes,
                buffer(a, a_len / form.a.lanes as usize),
                buffer(b, b_len / form.b.lanes as usize),
                epilogue.bias(conv.filter().count(), out_lanes),
                epilogue.residual(results, out_lanes),
                buffer(out, results * plan.splits / out_lanes),
                gather.args(conv, &steps),
                BlockArgsLaunch::new(
                    lines as u32,
                    terms as u32,
                    part as u32,
                    plan.splits as u32,
                    results as u32,
                    b_column as u32,
                    b_group as u32,
                    out_column as u32,
                    out_group as u32,
                    epilogue.slope(),
                ),
                form,
                elem(dtype),
                elem(accumulator(dtype)),
                elem(stored),
            )
        }
    }
}

fn form(
    conv: &Convolution,
    pass: Pass,
    stored: DType,
    tile: &Tile,
    epilogue: &Epilogue<'_>,
) -> Form {
    let filter = pass == Pass::Filter;
    let last = conv.layout() == Layout::ChannelsLast;
    let (inner, columns) = (inner(conv, pass), columns(conv, pass));
    let steps = weight_steps(conv, pass);
    // A load of several elements: neighbours in memory, never of two taps or groups.
    let widest = |count: usize, contiguous: bool, most: u32| match contiguous {
        true => 1 << count.trailing_zeros().min(most.ilog2()),
        false => 1,
    };
    let load = tile.elems_per_thread;
    let quad = load.min(QUAD);
    let (a, b) = if filter {
        let a = Side { along_terms: false, lanes: widest(inner, last, quad) };
        (a, Side { along_terms: !last, lanes: widest(columns, last, quad) })
    } else {
        let a = Side { along_terms: last, lanes: widest(inner, last, load.min(tile.block_k)) };
        let b = match (steps.inner, steps.column) {
            (_, 1) => Side { along_terms: false, lanes: widest(columns, true, quad) },
            (1, _) => {
                Side { along_terms: true, lanes: widest(inner, true, load.min(tile.block_k)) }
            }
            _ => Side { along_terms: true, lanes: 1 },
        };
        (a, b)
    };
    let contiguous = if filter { steps.column == 1 } else { last };
    let whole = contiguous && columns.is_multiple_of(QUAD as usize);
    let gather = GatherForm::new(conv, pass);
    Form { tile: *tile, a, b, filter, gather, whole, epilogue: epilogue.form(stored) }
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "the tensors and numbers of a launch")]
fn tiled<S: Float, A: Float, R: Float, NA: Size, NB: Size, O: Size>(
    a: &[Vector<S, NA>],
    b: &[Vector<S, NB>],
    bias: ComptimeOption<Box<[Vector<R, O>]>>,
    residual: ComptimeOption<Box<[Vector<R, O>]>>,
    out: &mut [Vector<R, O>],
    gather: &GatherArgs,
    block: &BlockArgs,
    #[comptime] form: Form,
    #[define(S)] _read: ElemType,
    #[define(A)] _accumulator: ElemType,
    #[define(R)] _stored: ElemType,
) {
    let quads_a = comptime!(form.quads(true));
    let quads_b = comptime!(form.quads(false));
    let stage_a = comptime!(quads_a * form.tile.block_k);
    let stage_b = comptime!(quads_b * form.tile.block_k);
    let stages = comptime!(form.tile.stages);
    let mut shared_a =
        Shared::<[Vector<A, Const<4>>]>::new_slice(comptime!((stage_a * stages) as usize));
    let mut shared_b =
        Shared::<[Vector<A, Const<4>>]>::new_slice(comptime!((stage_b * stages) as usize));

    let (group, part) = block.parts.div_mod(CUBE_POS_Z);
    let first_line = CUBE_POS_X * comptime!(form.tile.block_m);
    let first_column = CUBE_POS_Y * comptime!(form.tile.block_n);
    let first_term = part * block.terms_a_part;
    let end_term = min(first_term + block.terms_a_part, block.terms);
    let blocks = if end_term > first_term {
        (end_term - first_term + comptime!(form.tile.block_k - 1)) / comptime!(form.tile.block_k)
    } else {
        0u32.runtime()
    };

    let lines = lines_of(gather, block, first_line, group, form);
    let mut held_a = held::<S, NA>(comptime!(form.slots(true) * form.loads(true)));
    let mut held_b = held::<S, NB>(comptime!(form.slots(false) * form.loads(false)));
    let mut sums = Sequence::<RuntimeCell<Vector<A, Const<4>>>>::new();
    #[unroll]
    for _ in 0..comptime!(form.tile.ratio_m * form.tile.ratio_n * QUAD) {
        sums.push(RuntimeCell::new(Vector::new(A::from_int(0))));
    }

    if blocks > 0 {
        load_a::<S, NA>(a, gather, &lines, &mut held_a, first_term, end_term, form);
        load_b::<S, NB>(
            b,
            gather,
            block,
            &mut held_b,
            first_column,
            group,
            first_term,
            end_term,
            form,
        );
        stage::<S, A, NA>(&held_a, &mut shared_a, 0u32, true, form);
        stage::<S, A, NB>(&held_b, &mut shared_b, 0u32, false, form);
    }
    sync_cube();
    for i in 0..blocks {
        let more = i + 1 < blocks;
        let term = first_term + (i + 1) * comptime!(form.tile.block_k);
        if more {
            load_a::<S, NA>(a, gather, &lines, &mut held_a, term, end_term, form);
            load_b::<S, NB>(
                b,
                gather,
                block,
                &mut held_b,
                first_column,
                group,
                term,
                end_term,
                form,
            );
        }
        let (present, next) = if comptime!(stages > 1) {
            (i % 2u32, (i + 1) % 2u32)
        } else {
            (0u32.runtime(), 0u32.runtime())
        };
        multiply::<A>(&shared_a, &shared_b, &mut sums, present * stage_a, present * stage_b, form);
        if comptime!(stages == 1) {
            sync_cube();
        }
        if more {
            stage::<S, A, NA>(&held_a, &mut shared_a, next * stage_a, true, form);
            stage::<S, A, NB>(&held_b, &mut shared_b, next * stage_b, false, form);
        }
        sync_cube();
    }
    store::<A, R, O>(
        &bias,
        &residual,
        out,
        gather,
        block,
        &sums,
        first_line,
        first_column,
        group,
        part,
        form,
    );
}

/// Registers for what is on its way to shared memory.
#[cube]
fn held<S: Float, N: Size>(#[comptime] count: u32) -> Sequence<RuntimeCell<Vector<S, N>>> {
    let mut held = Sequence::<RuntimeCell<Vector<S, N>>>::new();
    #[unroll]
    for _ in 0..count {
        held.push(RuntimeCell::new(Vector::new(S::from_int(0))));
    }
    held
}

/// The first line, or column, and the first term of a unit's piece of work, within the block.
#[cube]
fn piece(#[comptime] slot: u32, #[comptime] a: bool, #[comptime] form: Form) -> (u32, u32) {
    let piece = UNIT_POS + comptime!(slot * form.units());
    let quads = comptime!(form.quads(a));
    let terms = comptime!(form.terms_a_load(a));
    if comptime!(form.side(a).along_terms) {
        let loads = comptime!(form.tile.block_k / terms);
        (piece / loads * QUAD, piece % loads * terms)
    } else {
        (piece % quads * QUAD, piece / quads * terms)
    }
}

/// Whether a unit has such a piece of work.
#[cube]
fn has_piece(#[comptime] slot: u32, #[comptime] a: bool, #[comptime] form: Form) -> bool {
    let pieces = comptime!(form.pieces(a));
    if comptime!((slot + 1) * form.units() <= pieces) {
        true.runtime()
    } else {
        UNIT_POS + comptime!(slot * form.units()) < pieces
    }
}

/// The lines of `a` that a unit loads, which are the same in every block of terms.
#[cube]
fn lines_of(
    gather: &GatherArgs,
    block: &BlockArgs,
    first_line: u32,
    group: u32,
    #[comptime] form: Form,
) -> Sequence<Point> {
    let mut lines = Sequence::<Point>::new();
    let step = comptime!(if form.a.along_terms { 1 } else { form.a.lanes });
    #[unroll]
    for slot in 0..form.slots(true) {
        let (line, _) = piece(slot, true, form);
        #[unroll]
        for i in 0..form.loads(true) {
            // Whole loads lie before the last line or after it.
            let line = min(first_line + line + i * step, block.lines - step);
            let point = if comptime!(form.filter) {
                term_point(gather, line, form.gather)
            } else {
                row_point(gather, line, form.gather)
            };
            lines.push(Point {
                depth: point.depth,
                height: point.height,
                width: point.width,
                a: point.a + group * gather.a_group,
                other: point.other,
            });
        }
    }
    lines
}

/// A term of the product, that of a load.
#[cube]
fn term_of(gather: &GatherArgs, term: u32, #[comptime] form: Form) -> Point {
    if comptime!(form.filter) {
        row_point(gather, term, form.gather)
    } else {
        term_point(gather, term, form.gather)
    }
}

/// Brings a unit's part of a block of `a` to registers.
#[cube]
fn load_a<S: Float, N: Size>(
    a: &[Vector<S, N>],
    gather: &GatherArgs,
    lines: &Sequence<Point>,
    held: &mut Sequence<RuntimeCell<Vector<S, N>>>,
    first: u32,
    end: u32,
    #[comptime] form: Form,
) {
    let loads = comptime!(form.loads(true));
    let zero = Vector::<S, N>::new(S::from_int(0));
    #[unroll]
    for slot in 0..form.slots(true) {
        if has_piece(slot, true, form) {
            let (_, term) = piece(slot, true, form);
            let term = first + term;
            let there = term < end;
            let point = term_of(gather, select(there, term, first), form);
            #[unroll]
            for i in 0..loads {
                let index = comptime!((slot * loads + i) as usize);
                let read = read_at(gather, lines.index(index), &point, form.gather);
                let value = a[(read.at / comptime!(form.a.lanes)) as usize];
                held.index(index).store(select(there && read.inside, value, zero));
            }
        }
    }
}

/// Brings a unit's part of a block of `b` to registers.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn load_b<S: Float, N: Size>(
    b: &[Vector<S, N>],
    gather: &GatherArgs,
    block: &BlockArgs,
    held: &mut Sequence<RuntimeCell<Vector<S, N>>>,
    first_column: u32,
    group: u32,
    first: u32,
    end: u32,
    #[comptime] form: Form,
) {
    let loads = comptime!(form.loads(false));
    let step = comptime!(if form.b.along_terms { 1 } else { form.b.lanes });
    let zero = Vector::<S, N>::new(S::from_int(0));
    #[unroll]
    for slot in 0..form.slots(false) {
        if has_piece(slot, false, form) {
            let (column, term) = piece(slot, false, form);
            let term = first + term;
            let there = term < end;
            let point = term_of(gather, select(there, term, first), form);
            let base = point.other + group * block.b_group;
            #[unroll]
            for i in 0..loads {
                let index = comptime!((slot * loads + i) as usize);
                let column = min(first_column + column + i * step, gather.columns - step);
                let at = base + column * block.b_column;
                let value = b[(at / comptime!(form.b.lanes)) as usize];
                held.index(index).store(select(there, value, zero));
            }
        }
    }
}

/// Stores what a unit holds in shared memory, a vector of 4 lines a term.
#[cube]
fn stage<S: Float, A: Float, N: Size>(
    held: &Sequence<RuntimeCell<Vector<S, N>>>,
    shared: &mut Shared<[Vector<A, Const<4>>]>,
    offset: u32,
    #[comptime] is_a: bool,
    #[comptime] form: Form,
) {
    let loads = comptime!(form.loads(is_a));
    let terms = comptime!(form.terms_a_load(is_a));
    let quads = comptime!(form.quads(is_a));
    let along_terms = comptime!(form.side(is_a).along_terms);
    #[unroll]
    for slot in 0..form.slots(is_a) {
        if has_piece(slot, is_a, form) {
            let (line, term) = piece(slot, is_a, form);
            #[unroll]
            for k in 0..terms {
                let mut quad = Vector::<A, Const<4>>::new(A::from_int(0));
                #[unroll]
                for i in 0..QUAD {
                    let load = comptime!(if along_terms { i } else { i * loads / QUAD });
                    let lane = comptime!(if along_terms { k } else { i % (QUAD / loads) });
                    let value = held.index(comptime!((slot * loads + load) as usize)).read();
                    quad.insert(
                        comptime!(i as usize),
                        A::cast_from(value.extract(comptime!(lane as usize))),
                    );
                }
                let at = offset + (term + k) * quads + line / QUAD;
                shared[at as usize] = quad;
            }
        }
    }
}

/// Multiplies a block: every unit its sums.
#[cube]
fn multiply<A: Float>(
    shared_a: &Shared<[Vector<A, Const<4>>]>,
    shared_b: &Shared<[Vector<A, Const<4>>]>,
    sums: &mut Sequence<RuntimeCell<Vector<A, Const<4>>>>,
    offset_a: u32,
    offset_b: u32,
    #[comptime] form: Form,
) {
    let units_n = comptime!(form.units_n());
    let units_m = comptime!(form.units() / units_n);
    let (quads_a, quads_b) = comptime!((form.quads(true), form.quads(false)));
    let (ratio_m, ratio_n) = comptime!((form.tile.ratio_m, form.tile.ratio_n));
    let my_a = offset_a + UNIT_POS / units_n;
    let my_b = offset_b + UNIT_POS % units_n;
    let unrolled = comptime!(if form.tile.block_k.is_multiple_of(4) { 4u32 } else { 1u32 });
    for step in 0..comptime!(form.tile.block_k / unrolled) {
        #[unroll]
        for k in 0..unrolled {
            let term = step * unrolled + k;
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
                        sum.store(fma(row, *columns.index(comptime!(j as usize)), sum.read()));
                    }
                }
            }
        }
    }
}

/// Stores a unit's results.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn store<A: Float, R: Float, O: Size>(
    bias: &ComptimeOption<Box<[Vector<R, O>]>>,
    residual: &ComptimeOption<Box<[Vector<R, O>]>>,
    out: &mut [Vector<R, O>],
    gather: &GatherArgs,
    block: &BlockArgs,
    sums: &Sequence<RuntimeCell<Vector<A, Const<4>>>>,
    first_line: u32,
    first_column: u32,
    group: u32,
    part: u32,
    #[comptime] form: Form,
) {
    let units_n = comptime!(form.units_n());
    let units_m = comptime!(form.units() / units_n);
    let (ratio_m, ratio_n) = comptime!((form.tile.ratio_m, form.tile.ratio_n));
    let base = part * block.part_step + group * block.out_group;
    #[unroll]
    for i in 0..ratio_m {
        #[unroll]
        for r in 0..QUAD {
            let line = first_line + (i * units_m + UNIT_POS / units_n) * QUAD + r;
            if line < block.lines {
                let point = if comptime!(form.filter) {
                    term_point(gather, line, form.gather)
                } else {
                    row_point(gather, line, form.gather)
                };
                let at = base + point.other;
                #[unroll]
                for j in 0..ratio_n {
                    let index = comptime!(((i * QUAD + r) * ratio_n + j) as usize);
                    let sum = sums.index(index).read();
                    let column = first_column + (j * units_n + UNIT_POS % units_n) * QUAD;
                    store_quad::<A, R, O>(
                        bias, residual, out, gather, block, sum, at, column, group, form,
                    );
                }
            }
        }
    }
}

/// Stores 4 columns of a line, or those of them that there are.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn store_quad<A: Float, R: Float, O: Size>(
    bias: &ComptimeOption<Box<[Vector<R, O>]>>,
    residual: &ComptimeOption<Box<[Vector<R, O>]>>,
    out: &mut [Vector<R, O>],
    gather: &GatherArgs,
    block: &BlockArgs,
    sum: Vector<A, Const<4>>,
    at: u32,
    column: u32,
    group: u32,
    #[comptime] form: Form,
) {
    if comptime!(form.whole) {
        if column < gather.columns {
            let at = (at + column) / QUAD;
            let channel = (group * gather.columns + column) / QUAD;
            let sum = Vector::<A, O>::cast_from(sum);
            out[at as usize] =
                finish_at::<R, A, O>(bias, residual, sum, channel, at, block.slope, form.epilogue);
        }
    } else {
        #[unroll]
        for lane in 0..QUAD {
            let column = column + lane;
            if column < gather.columns {
                let at = at + column * block.out_column;
                let channel = group * gather.columns + column;
                let sum = Vector::<A, O>::new(sum.extract(comptime!(lane as usize)));
                out[at as usize] = finish_at::<R, A, O>(
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
