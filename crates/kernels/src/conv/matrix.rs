//! The implicit product of matrices on matrix units: blocks in shared memory, multiplied in
//! fragments by whole planes.
//!
//! ```text
//! for each block of BLOCK_M rows by BLOCK_N columns:           one cube
//!     for each BLOCK_K terms:
//!         all units bring a[rows, terms] and b[terms, columns] to shared memory
//!         for each fragment's terms:                          one plane, RATIO_M by RATIO_N fragments
//!             fragments += a[its rows, terms] · b[terms, its columns]
//! ```
//!
//! The same product as [`tiled`](super::tiled)'s, in every pass, its blocks loaded ahead in the same
//! way. What comes from memory along the terms stays so in shared memory, and what comes along the
//! lines too: matrix units take either, and each line ends in a gap, so that neighbours in a fragment
//! do not meet in one bank. At last a plane lays its fragments down in shared memory, one after
//! another, where its units pick up four columns each.
//!
//! Factors are 16 bits wide, or `f32` rounded to the 11 digits of tf32 on the way to shared memory, and
//! sums `f32`.

use cubecl::client::Client;
use cubecl::cmma;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Convolution, DType, Layout, Precision, Tile};

use super::epilogue::{Epilogue, EpilogueForm, finish_at};
use super::gather::{
    Gather, GatherArgs, GatherForm, Point, columns, inner, read_at, row_point, term_point,
    weight_steps,
};
use super::launch::buffer;
use super::plan::{Pass, Plan, results};
use crate::dtype::{accumulator, elem};
use crate::limits::Fragment;

/// The bytes on whose multiples fragments begin: 16 elements of 16 bits, or 8 of 32.
const ALIGNMENT: usize = 32;

/// The columns that a unit stores at once.
const QUAD: u32 = 4;

/// How one operand comes from memory, and lies in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Side {
    /// Whether neighbours are terms of one line, or else lines of one term.
    along_terms: bool,
    /// The elements of a load.
    lanes: u32,
    /// The lines of a block.
    lines: u32,
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    tile: Tile,
    fragment: Fragment,
    /// The units of a plane.
    plane: u32,
    a: Side,
    b: Side,
    /// Whether rows and terms have changed places.
    filter: bool,
    /// Whether factors are rounded to tf32.
    tf32: bool,
    /// The elements of the gap after each line in shared memory.
    gap: u32,
    gather: GatherForm,
    /// Whether results are stored a vector of columns at a time.
    whole: bool,
    epilogue: EpilogueForm,
}

impl Form {
    /// The planes of a cube along the columns.
    fn planes_n(&self) -> u32 {
        self.tile.block_n / (self.fragment.n * self.tile.ratio_n)
    }

    fn units(&self) -> u32 {
        units(&self.tile, self.fragment, self.plane)
    }

    fn side(&self, a: bool) -> Side {
        if a { self.a } else { self.b }
    }

    /// The elements from one line, or term, to the next in shared memory.
    fn stride(&self, a: bool) -> u32 {
        let side = self.side(a);
        (if side.along_terms { self.tile.block_k } else { side.lines }) + self.gap
    }

    /// The vectors of a block in shared memory.
    fn vectors(&self, a: bool) -> u32 {
        let side = self.side(a);
        let rows = if side.along_terms { side.lines } else { self.tile.block_k };
        rows * self.stride(a) / side.lanes
    }

    /// The loads of a block.
    fn loads(&self, a: bool) -> u32 {
        self.side(a).lines * self.tile.block_k / self.side(a).lanes
    }

    /// The loads of a unit.
    fn slots(&self, a: bool) -> u32 {
        self.loads(a).div_ceil(self.units())
    }
}

/// The units of a cube.
pub(super) fn units(tile: &Tile, fragment: Fragment, plane: u32) -> u32 {
    let planes_m = tile.block_m / (fragment.m * tile.ratio_m);
    planes_m * (tile.block_n / (fragment.n * tile.ratio_n)) * plane
}

/// The elements of the gap after each line: 16 bytes.
fn gap(size: usize) -> u32 {
    (16 / size) as u32
}

/// The bytes of shared memory that a tile takes, whatever lies along what.
pub(super) fn shared_bytes(tile: &Tile, fragment: Fragment, plane: u32, dtype: DType) -> usize {
    let gap = gap(dtype.size());
    let block = |lines: u32| {
        let along_terms = lines * (tile.block_k + gap);
        along_terms.max(tile.block_k * (lines + gap)) as usize
    };
    let blocks = (block(tile.block_m) + block(tile.block_n)) * tile.stages as usize * dtype.size();
    let planes = units(tile, fragment, plane) / plane.max(1);
    blocks + (planes * fragment.m * fragment.n) as usize * size_of::<f32>()
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
#[allow(clippy::too_many_arguments, reason = "all that a launch is made of")]
pub(super) fn launch(
    client: &Client,
    conv: &Convolution,
    pass: Pass,
    dtype: DType,
    precision: Precision,
    plan: &Plan,
    [a, b, out]: [&Handle; 3],
    epilogue: Epilogue<'_>,
) {
    // The plan was checked: it has a tile, and the device the fragment.
    let (Some(tile), Some(matrix)) = (plan.tile, plan.matrix) else { return };
    let stored = plan.stored(pass, dtype);
    let form = form(conv, pass, dtype, precision, stored, &tile, matrix, &epilogue);
    let factor = match precision {
        Precision::Tf32 => ElemType::Float(FloatKind::TF32),
        Precision::Strict => elem(dtype),
    };
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
        let window = match pass {
            Pass::Data => conv.input().strides(conv.layout()).channel,
            _ => conv.output().strides(conv.layout()).channel,
        };
        let (weight, window) = ([steps.column, steps.group], [window, window * columns]);
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
            matrix_units::launch_unchecked(
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
                factor,
                elem(accumulator(dtype)),
                elem(stored),
            )
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "all that a form is made of")]
fn form(
    conv: &Convolution,
    pass: Pass,
    dtype: DType,
    precision: Precision,
    stored: DType,
    tile: &Tile,
    (fragment, plane): (Fragment, u32),
    epilogue: &Epilogue<'_>,
) -> Form {
    let filter = pass == Pass::Filter;
    let last = conv.layout() == Layout::ChannelsLast;
    let (inner, columns) = (inner(conv, pass), columns(conv, pass));
    let steps = weight_steps(conv, pass);
    // A load of several elements: neighbours in memory, never of two taps or groups.
    let side = |along_terms: bool, lines: u32, together: usize| {
        let most = tile.elems_per_thread.ilog2();
        Side { along_terms, lanes: 1 << together.trailing_zeros().min(most), lines }
    };
    let (m, n) = (tile.block_m, tile.block_n);
    let (a, b) = if filter {
        let (a, b) = if last { (inner, columns) } else { (1, 1) };
        (side(false, m, a), side(!last, n, b))
    } else {
        let a = side(last, m, if last { inner } else { 1 });
        let b = match (steps.inner, steps.column) {
            (_, 1) => side(false, n, columns),
            (1, _) => side(true, n, inner),
            _ => side(true, n, 1),
        };
        (a, b)
    };
    let contiguous = if filter { steps.column == 1 } else { last };
    Form {
        tile: *tile,
        fragment,
        plane,
        a,
        b,
        filter,
        tf32: precision == Precision::Tf32,
        gap: gap(dtype.size()),
        gather: GatherForm::new(conv, pass),
        whole: contiguous && columns.is_multiple_of(QUAD as usize),
        epilogue: epilogue.form(stored),
    }
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "the tensors and numbers of a launch")]
fn matrix_units<S: Float, E: Float, A: Float, R: Float, NA: Size, NB: Size, O: Size>(
    a: &[Vector<S, NA>],
    b: &[Vector<S, NB>],
    bias: ComptimeOption<Box<[Vector<R, O>]>>,
    residual: ComptimeOption<Box<[Vector<R, O>]>>,
    out: &mut [Vector<R, O>],
    gather: &GatherArgs,
    block: &BlockArgs,
    #[comptime] form: Form,
    #[define(S)] _read: ElemType,
    #[define(E)] _factor: ElemType,
    #[define(A)] _accumulator: ElemType,
    #[define(R)] _stored: ElemType,
) {
    let (stage_a, stage_b) = comptime!((form.vectors(true), form.vectors(false)));
    let stages = comptime!(form.tile.stages);
    let mut shared_a = Shared::<[Vector<E, NA>]>::new_aligned_slice(
        comptime!((stage_a * stages) as usize),
        ALIGNMENT,
    );
    let mut shared_b = Shared::<[Vector<E, NB>]>::new_aligned_slice(
        comptime!((stage_b * stages) as usize),
        ALIGNMENT,
    );

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
    let mut held_a = held::<S, NA>(comptime!(form.slots(true)));
    let mut held_b = held::<S, NB>(comptime!(form.slots(false)));
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
        stage::<S, E, NA>(&held_a, &mut shared_a, 0u32, true, form);
        stage::<S, E, NB>(&held_b, &mut shared_b, 0u32, false, form);
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
        multiply::<E, A, NA, NB>(
            &shared_a,
            &shared_b,
            &sums,
            present * stage_a,
            present * stage_b,
            form,
        );
        if comptime!(stages == 1) {
            sync_cube();
        }
        if more {
            stage::<S, E, NA>(&held_a, &mut shared_a, next * stage_a, true, form);
            stage::<S, E, NB>(&held_b, &mut shared_b, next * stage_b, false, form);
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

/// The first line, or column, and the first term of a unit's load, within the block.
#[cube]
fn load_of(#[comptime] slot: u32, #[comptime] a: bool, #[comptime] form: Form) -> (u32, u32) {
    let load = UNIT_POS + comptime!(slot * form.units());
    let side = comptime!(form.side(a));
    if comptime!(side.along_terms) {
        let loads = comptime!(form.tile.block_k / side.lanes);
        (load / loads, load % loads * comptime!(side.lanes))
    } else {
        let loads = comptime!(side.lines / side.lanes);
        (load % loads * comptime!(side.lanes), load / loads)
    }
}

/// Whether a unit has such a load.
#[cube]
fn has_load(#[comptime] slot: u32, #[comptime] a: bool, #[comptime] form: Form) -> bool {
    let loads = comptime!(form.loads(a));
    if comptime!((slot + 1) * form.units() <= loads) {
        true.runtime()
    } else {
        UNIT_POS + comptime!(slot * form.units()) < loads
    }
}

/// The lines of a load: 1 where it lies along the terms.
fn lines_a_load(side: Side) -> u32 {
    if side.along_terms { 1 } else { side.lanes }
}

/// A line of `a`.
#[cube]
fn line_point(gather: &GatherArgs, line: u32, #[comptime] form: Form) -> Point {
    if comptime!(form.filter) {
        term_point(gather, line, form.gather)
    } else {
        row_point(gather, line, form.gather)
    }
}

/// A term of the product.
#[cube]
fn summed_point(gather: &GatherArgs, term: u32, #[comptime] form: Form) -> Point {
    if comptime!(form.filter) {
        row_point(gather, term, form.gather)
    } else {
        term_point(gather, term, form.gather)
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
    #[unroll]
    for slot in 0..comptime!(form.slots(true)) {
        let (line, _) = load_of(slot, true, form);
        // Whole loads lie before the last line or after it.
        let line = min(first_line + line, block.lines - comptime!(lines_a_load(form.a)));
        let point = line_point(gather, line, form);
        lines.push(Point {
            depth: point.depth,
            height: point.height,
            width: point.width,
            a: point.a + group * gather.a_group,
            other: point.other,
        });
    }
    lines
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
    let zero = Vector::<S, N>::new(S::from_int(0));
    #[unroll]
    for slot in 0..comptime!(form.slots(true)) {
        if has_load(slot, true, form) {
            let (_, term) = load_of(slot, true, form);
            let term = first + term;
            let there = term < end;
            let point = summed_point(gather, select(there, term, first), form);
            let index = comptime!(slot as usize);
            let read = read_at(gather, lines.index(index), &point, form.gather);
            let value = a[(read.at / comptime!(form.a.lanes)) as usize];
            held.index(index).store(select(there && read.inside, value, zero));
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
    let zero = Vector::<S, N>::new(S::from_int(0));
    #[unroll]
    for slot in 0..comptime!(form.slots(false)) {
        if has_load(slot, false, form) {
            let (column, term) = load_of(slot, false, form);
            let term = first + term;
            let there = term < end;
            let point = summed_point(gather, select(there, term, first), form);
            let last = gather.columns - comptime!(lines_a_load(form.b));
            let column = min(first_column + column, last);
            let at = point.other + group * block.b_group + column * block.b_column;
            let value = b[(at / comptime!(form.b.lanes)) as usize];
            held.index(comptime!(slot as usize)).store(select(there, value, zero));
        }
    }
}

/// Stores what a unit holds in shared memory, as it came.
#[cube]
fn stage<S: Float, E: Float, N: Size>(
    held: &Sequence<RuntimeCell<Vector<S, N>>>,
    shared: &mut Shared<[Vector<E, N>]>,
    offset: u32,
    #[comptime] is_a: bool,
    #[comptime] form: Form,
) {
    let side = comptime!(form.side(is_a));
    let stride = comptime!(form.stride(is_a));
    #[unroll]
    for slot in 0..comptime!(form.slots(is_a)) {
        if has_load(slot, is_a, form) {
            let (line, term) = load_of(slot, is_a, form);
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

/// Rounds `f32` to the 11 digits of tf32, to nearest even, in which a device might cut it off.
#[cube]
fn round_to_tf32<S: Float, N: Size>(value: Vector<S, N>) -> Vector<S, N> {
    let bits = Vector::<u32, N>::reinterpret(value);
    let odd = (bits >> Vector::new(13u32)) & Vector::new(1u32);
    let rounded = (bits + odd + Vector::new(0xfffu32)) & Vector::new(0xffff_e000u32);
    let rounded = Vector::<S, N>::reinterpret(rounded);
    select_many(value.is_nan(), value, rounded)
}

/// Multiplies a block: every plane its fragments.
#[cube]
fn multiply<E: Float, A: Float, NA: Size, NB: Size>(
    shared_a: &Shared<[Vector<E, NA>]>,
    shared_b: &Shared<[Vector<E, NB>]>,
    sums: &Sequence<cmma::Matrix<A>>,
    offset_a: u32,
    offset_b: u32,
    #[comptime] form: Form,
) {
    let plane = UNIT_POS / comptime!(form.plane);
    let planes_n = comptime!(form.planes_n());
    let (ratio_m, ratio_n) = comptime!((form.tile.ratio_m, form.tile.ratio_n));
    let (m, n, k) = comptime!((form.fragment.m, form.fragment.n, form.fragment.k));
    let first_m = plane / planes_n * comptime!(ratio_m * m);
    let first_n = plane % planes_n * comptime!(ratio_n * n);
    #[unroll]
    for step in 0..comptime!(form.tile.block_k / k) {
        let term = comptime!(step * k);
        let mut columns = Sequence::<cmma::Matrix<Vector<E, NB>>>::new();
        #[unroll]
        for j in 0..ratio_n {
            let at = first_of(first_n + j * n, term, false, form);
            columns.push(cmma::Matrix::<Vector<E, NB>>::from_slice(
                cmma::MatrixIdent::B,
                comptime!(m as usize),
                comptime!(n as usize),
                comptime!(k as usize),
                comptime!(match form.b.along_terms {
                    true => cmma::MatrixLayout::ColMajor,
                    false => cmma::MatrixLayout::RowMajor,
                }),
                &shared_b[(offset_b + at) as usize..],
                comptime!(form.stride(false)),
            ));
        }
        #[unroll]
        for i in 0..ratio_m {
            let at = first_of(first_m + i * m, term, true, form);
            let rows = cmma::Matrix::<Vector<E, NA>>::from_slice(
                cmma::MatrixIdent::A,
                comptime!(m as usize),
                comptime!(n as usize),
                comptime!(k as usize),
                comptime!(match form.a.along_terms {
                    true => cmma::MatrixLayout::RowMajor,
                    false => cmma::MatrixLayout::ColMajor,
                }),
                &shared_a[(offset_a + at) as usize..],
                comptime!(form.stride(true)),
            );
            #[unroll]
            for j in 0..ratio_n {
                let sum = sums.index(comptime!((i * ratio_n + j) as usize));
                cmma::execute(&rows, columns.index(comptime!(j as usize)), sum, sum);
            }
        }
    }
}

/// The vector in shared memory at which a fragment begins.
#[cube]
fn first_of(line: u32, #[comptime] term: u32, #[comptime] a: bool, #[comptime] form: Form) -> u32 {
    let (side, stride) = comptime!((form.side(a), form.stride(a)));
    let at = if comptime!(side.along_terms) { line * stride + term } else { line + term * stride };
    at / comptime!(side.lanes)
}

/// Stores a plane's results, one fragment after another by way of shared memory.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn store<A: Float, R: Float, O: Size>(
    bias: &ComptimeOption<Box<[Vector<R, O>]>>,
    residual: &ComptimeOption<Box<[Vector<R, O>]>>,
    out: &mut [Vector<R, O>],
    gather: &GatherArgs,
    block: &BlockArgs,
    sums: &Sequence<cmma::Matrix<A>>,
    first_line: u32,
    first_column: u32,
    group: u32,
    part: u32,
    #[comptime] form: Form,
) {
    let units = comptime!(form.plane);
    let (plane, unit) = (UNIT_POS / units, UNIT_POS % units);
    let planes_n = comptime!(form.planes_n());
    let (ratio_m, ratio_n) = comptime!((form.tile.ratio_m, form.tile.ratio_n));
    let (m, n) = comptime!((form.fragment.m, form.fragment.n));
    let quads = comptime!(m * n / QUAD);
    let planes = comptime!(form.units() / units);
    let mut laid = Shared::<[Vector<A, Const<4>>]>::new_aligned_slice(
        comptime!((quads * planes) as usize),
        ALIGNMENT,
    );
    let mine = plane * quads;
    let base = part * block.part_step + group * block.out_group;
    let first_line = first_line + plane / planes_n * comptime!(ratio_m * m);
    let first_column = first_column + plane % planes_n * comptime!(ratio_n * n);
    #[unroll]
    for i in 0..ratio_m {
        #[unroll]
        for j in 0..ratio_n {
            let sum = sums.index(comptime!((i * ratio_n + j) as usize));
            cmma::store(
                &mut laid[mine as usize..(mine + quads) as usize],
                sum,
                n,
                cmma::MatrixLayout::RowMajor,
            );
            sync_cube();
            #[unroll]
            for turn in 0..comptime!(quads.div_ceil(units)) {
                let quad = unit + turn * units;
                if quad < quads {
                    let line = first_line + i * m + quad / comptime!(n / QUAD);
                    let column = first_column + j * n + quad % comptime!(n / QUAD) * QUAD;
                    if line < block.lines {
                        let point = line_point(gather, line, form);
                        let sum = laid[(mine + quad) as usize];
                        let at = base + point.other;
                        store_quad::<A, R, O>(
                            bias, residual, out, gather, block, sum, at, column, group, form,
                        );
                    }
                }
            }
            sync_cube();
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
