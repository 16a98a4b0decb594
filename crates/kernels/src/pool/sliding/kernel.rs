//! Large windows, at a cost that does not grow with them: one axis after the other, each walked in
//! blocks, as van Herk, Gil and Werman found it for maxima.
//!
//! ```text
//! for each axis that has a window:                       D, H, W
//!     for each line along it, block by block of B inputs:
//!         prefix[j] = fold of the block's first j + 1 inputs
//!         suffix[i] = fold of inputs i .. of the block that the window starts in
//!         y[o] = suffix[i] · whole blocks between · prefix[j]
//! ```
//!
//! A block is no longer than the window, which so ends in a later block than it starts in. Prefixes
//! and suffixes are registers; the block in which windows start has been read k inputs earlier: each
//! unit keeps what it reads in shared memory until then, or reads it again where there is no room. The
//! next block is on its way while one is folded.
//! A sum is folded like a maximum: nothing is ever taken away from it, so that it does not drift, and
//! what is outside a window has no influence on it.
//!
//! With channels first the lines along the width are not neighbours in memory. There each pass
//! leaves its axis last: it reads neighbours and writes runs, and after all passes the axes are in
//! their order again.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Layout, Pooling};

use super::direct::unit_position;
use super::launch::{grid, optional_vectors, vectors};
use super::plan::{Output, Plan, Reduction, pixel_channels};
use super::strip::outermost;
use super::window::{Accumulator, Fold, counted_at, full_divisor, indexing, merge};
use crate::axis::{AxisArgs, AxisForm, axis_args};
use crate::dtype::{MaximumForm, elem, round, widen};

/// The most inputs of a block: what their prefixes and suffixes leave of the registers. Short blocks
/// leave room for more units; long ones are for windows of many blocks, and for long steps.
const BLOCKS: [usize; 2] = [8, 16];

/// The most whole blocks in a window of short ones: more, and what is in flight at once is too little for
/// the few units that have room.
const MOST_SHORT_BLOCKS: usize = 6;

/// The same, where units are many and sums are registers.
const MOST_SHORT_SUMS: usize = 16;

/// The most whole blocks in a window, whose folds are registers too.
const MOST_BLOCKS: usize = 32;

/// The inputs of a block: whole steps of the stride, fewer than the window's taps.
pub(super) fn block(axis: &Axis) -> usize {
    block_of(axis, MOST_SHORT_BLOCKS)
}

/// The inputs of a block of sums, of units that are many.
pub(super) fn block_of_sums(axis: &Axis) -> usize {
    block_of(axis, MOST_SHORT_SUMS)
}

fn block_of(axis: &Axis, most_short: usize) -> usize {
    let [short, long] = BLOCKS.map(|most| {
        let most = most.min(axis.kernel() - 1);
        most / axis.stride() * axis.stride()
    });
    let few = short > 0 && (axis.kernel() - 1) / short <= most_short;
    if few { short } else { long }
}

/// The axes that have a window.
fn windowed(pooling: &Pooling) -> impl Iterator<Item = usize> + '_ {
    (0..AXES).filter(|&i| pooling.grid().axes()[i].kernel() > 1)
}

/// Whether every axis can be walked, or has nothing to walk for.
pub(super) fn fits(pooling: &Pooling) -> bool {
    let walked = |axis: &Axis| {
        axis.dilation() == 1
            && !axis.may_be_empty()
            && !axis.is_uneven()
            && block(axis) > 0
            && (axis.kernel() - 1) / block(axis) <= MOST_BLOCKS
    };
    // As many outputs as inputs are not yet the inputs: there are strides over padding.
    let idle = |axis: &Axis| {
        axis.kernel() == 1
            && axis.stride() == 1
            && axis.before() == 0
            && axis.input() == axis.output()
    };
    let fits = |axis: &Axis| if axis.kernel() > 1 { walked(axis) } else { idle(axis) };
    windowed(pooling).next().is_some() && pooling.grid().axes().iter().all(fits)
}

/// The bytes of the passes' intermediate tensors.
pub(super) fn workspace(
    pooling: &Pooling,
    reduction: Reduction,
    plan: &Plan,
    dtype: DType,
) -> usize {
    passes(pooling, reduction, plan, dtype).iter().map(Walk::workspace).sum()
}

/// A pass along one axis.
struct Walk {
    axis: usize,
    /// The lines are `outer × inner`, neighbours along `inner`.
    outer: usize,
    inner: usize,
    /// Whether the outputs of a line are neighbours, not those of neighbouring lines.
    turns: bool,
    last: bool,
    /// The lanes of what is read, and of what is written.
    lanes: [usize; 2],
    /// What is read, and what is written.
    dtypes: [DType; 2],
    indexed: bool,
    outputs: usize,
    /// The blocks of outputs that a unit walks.
    run: usize,
}

impl Walk {
    /// The elements that it writes.
    fn written(&self) -> usize {
        self.outer * self.outputs * self.inner
    }

    /// The bytes of workspace that it writes: none, where it writes the result.
    fn workspace(&self) -> usize {
        let index = if self.indexed { DType::I32.size() } else { 0 };
        if self.last { 0 } else { self.written() * (self.dtypes[1].size() + index) }
    }
}

/// The most bytes that a cube's units keep of what they have read: more, and there is room for few cubes.
const KEPT_BYTES: usize = 72 << 10;

/// Whether a unit of a pass keeps in shared memory what it has read, until the windows that start there
/// end: read from memory again, it would have left all caches where lines are long.
fn keeps(axis: &Axis, plan: &Plan, walk: &Walk) -> bool {
    let block = block(axis);
    let blocks = (axis.kernel() - 1) / block + 2;
    let unit = blocks * block * walk.lanes[0] * walk.dtypes[0].size();
    let room = plan.units as usize * unit <= plan.shared_bytes.min(KEPT_BYTES);
    // Not all devices share memory of narrow types.
    let shared = plan.reinterprets || walk.dtypes[0] == DType::F32;
    shared && room && !walk.indexed && !plan.runs
}

/// Fewer units than this and lines are cut, though each piece then reads a window more.
const ENOUGH_UNITS: usize = 1 << 17;

fn passes(pooling: &Pooling, reduction: Reduction, plan: &Plan, dtype: DType) -> Vec<Walk> {
    let axes = pooling.grid().axes();
    let walked: Vec<_> = windowed(pooling).collect();
    let channels = pixel_channels(pooling);
    // The windowed axes are the last ones, so that turning each of them ends in order.
    let turns = channels == 1 && !plan.runs && walked.len() > 1 && walked[0] + walked.len() == AXES;
    let indexed = matches!(reduction, Reduction::Max(Output::ValuesAndIndices(_)));
    let between = match reduction {
        Reduction::Average(_) => plan.accumulator,
        _ => dtype,
    };
    let mut extents = axes.each_ref().map(Axis::input);
    let samples = pooling.input().elements() / channels / extents.iter().product::<usize>();
    let mut passes = Vec::new();
    for (n, &axis) in walked.iter().enumerate() {
        let (first, last) = (n == 0, n + 1 == walked.len());
        let before: usize = extents[..axis].iter().product();
        let after: usize = extents[axis + 1..].iter().product();
        extents[axis] = axes[axis].output();
        let (outer, inner) = match turns {
            // The axes that were turned before lie behind those that follow.
            true => (
                samples * extents[..walked[0]].iter().product::<usize>(),
                extents[walked[0]..axis].iter().product::<usize>() * after,
            ),
            false => (samples * before, after * channels),
        };
        let outputs = axes[axis].output();
        let dtypes = [if first { dtype } else { between }, if last { dtype } else { between }];
        // Lanes with positions are channels of one pixel.
        let neighbours = if indexed { channels } else { inner };
        let run = block(&axes[axis]) / axes[axis].stride();
        let lanes = lanes(neighbours, outputs, run, dtypes, turns, plan);
        let blocks = (outputs * axes[axis].stride()).div_ceil(block(&axes[axis]));
        let lines = outer * inner / lanes[0];
        let pieces = (ENOUGH_UNITS / lines.max(1)).clamp(1, blocks);
        let run = if plan.runs { blocks } else { blocks.div_ceil(pieces) };
        passes.push(Walk { axis, outer, inner, turns, last, lanes, dtypes, indexed, outputs, run });
    }
    passes
}

/// The lanes of what a pass reads and of what it writes: a word on a GPU, where registers are
/// short, all that a load takes on a processor.
fn lanes(
    inner: usize,
    outputs: usize,
    run: usize,
    dtypes: [DType; 2],
    turns: bool,
    plan: &Plan,
) -> [usize; 2] {
    let divisor = |n: usize, most: usize| (1usize << n.trailing_zeros()).min(most);
    if turns {
        let most = (16 / dtypes[1].size()).min(4);
        return [1, divisor(outputs, most).min(divisor(run, most))];
    }
    let widest = dtypes[0].size().max(dtypes[1].size());
    let most = if plan.runs { (64 / widest).min(16) } else { (4 / dtypes[0].size()).max(1) };
    let lanes = divisor(inner, most.max(1));
    [lanes; 2]
}

/// The numbers of a pass, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct Pass {
    units: u32,
    /// The vectors of neighbouring lines, and the pieces of a line.
    inner: FastDivmod<u32>,
    inner_vectors: u32,
    pieces: FastDivmod<u32>,
    /// The blocks of outputs of a line, and of a piece.
    blocks: u32,
    run: u32,
    axis: AxisArgs,
    outputs: u32,
    /// The vectors of a pixel, and the pixels that follow each other on the lines' inner axes.
    pixel: FastDivmod<u32>,
    inner_pixels: u32,
    /// The lines of a sample's outer axes, in the input's order.
    before: FastDivmod<u32>,
    /// The lines of a sample on outer axes, in the output's order, and those of a row of them.
    others: FastDivmod<u32>,
    height: FastDivmod<u32>,
    depth_axis: AxisArgs,
    height_axis: AxisArgs,
    divisor: u32,
    /// One over the divisor of a window that has all its taps.
    reciprocal: InputScalar,
    index_batch: u32,
    index_position: u32,
    index_lane: u32,
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    axis: AxisForm,
    depth: AxisForm,
    height: AxisForm,
    fold: Fold,
    maximum: MaximumForm,
    float: bool,
    reciprocal: bool,
    rounds: bool,
    /// Whether elements are widened by their bits.
    widened: bool,
    runs: bool,
    /// The inputs of a block, and its outputs.
    block: u32,
    stride: u32,
    /// The blocks from the one that a window starts in to the one that its first tap plus its
    /// length is in, and the place there.
    whole: u32,
    rest: u32,
    turns: bool,
    last: bool,
    channels: bool,
    /// The axes before this one.
    others: usize,
    /// The lanes that are written.
    written: usize,
    /// The units of a cube.
    units: u32,
    /// Whether a unit keeps what it has read until it is read again.
    keeps: bool,
}

/// Launches the passes; the caller has checked the plan and the buffers.
pub(super) fn launch(
    client: &Client,
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
    [input, output]: [&Handle; 2],
    indices: Option<&Handle>,
) {
    let passes = passes(pooling, reduction, plan, dtype);
    let mut values = input.clone();
    let mut positions: Option<Handle> = None;
    let mut elements = pooling.input().elements();
    for walk in &passes {
        let written = walk.written();
        let (next, next_positions) = match walk.last {
            true => (output.clone(), indices.cloned()),
            false => (
                client.empty(written * walk.dtypes[1].size()),
                walk.indexed.then(|| client.empty(written * DType::I32.size())),
            ),
        };
        let axis = &pooling.grid().axes()[walk.axis];
        let blocks = (walk.outputs * axis.stride()).div_ceil(block(axis));
        let pieces = blocks.div_ceil(walk.run);
        let [read, write] = walk.lanes;
        let units = walk.outer * pieces * walk.inner / read;
        let (cubes, dim) = grid(client, plan, units);
        // SAFETY: coordinates are moved inside the line before they are read, and outputs that are
        // not there are not written.
        unsafe {
            slide::launch_unchecked(
                client,
                cubes,
                dim,
                read,
                write,
                vectors(&values, elements, read),
                optional_vectors(positions.as_ref(), elements, read),
                vectors(&next, written, write),
                optional_vectors(next_positions.as_ref(), written, write),
                pass_args(pooling, reduction, plan, walk, units, pieces, blocks),
                Form::new(pooling, reduction, dtype, plan, walk),
                elem(walk.dtypes[0]),
                elem(walk.dtypes[1]),
                elem(plan.accumulator),
            )
        };
        (values, positions, elements) = (next, next_positions, written);
    }
}

fn pass_args(
    pooling: &Pooling,
    reduction: Reduction,
    plan: &Plan,
    walk: &Walk,
    units: usize,
    pieces: usize,
    blocks: usize,
) -> PassLaunch {
    let axes = pooling.grid().axes();
    let pixel = (pixel_channels(pooling) / walk.lanes[0]).max(1) as u32;
    let [index_batch, index_channel, index_position] = indexing(pooling, reduction.base());
    let lead = if walk.turns { outermost(pooling) } else { walk.axis };
    let others = axes[..lead].iter().map(Axis::output).product::<usize>();
    let extent =
        |range: std::ops::Range<usize>| axes[range].iter().map(Axis::input).product::<usize>();
    PassLaunch::new(
        units as u32,
        (walk.inner / walk.lanes[0]) as u32,
        (walk.inner / walk.lanes[0]) as u32,
        pieces as u32,
        blocks as u32,
        walk.run as u32,
        axis_args(&axes[walk.axis]),
        walk.outputs as u32,
        pixel,
        extent(walk.axis + 1..AXES) as u32,
        extent(0..walk.axis) as u32,
        others as u32,
        if walk.axis == AXES - 1 { axes[1].output() as u32 } else { 1 },
        axis_args(&axes[0]),
        axis_args(&axes[1]),
        reduction.fixed_divisor(),
        InputScalar::new(1.0 / full_divisor(pooling, reduction), elem(plan.accumulator)),
        index_batch,
        index_position,
        index_channel,
    )
}

impl Form {
    /// The blocks that a unit keeps: from that in which windows start to that after their last whole
    /// one.
    fn blocks(&self) -> u32 {
        self.whole + 2
    }

    /// The vectors that the units of a cube keep; one, where they keep none.
    fn kept(&self) -> usize {
        if self.keeps { (self.blocks() * self.block * self.units) as usize } else { 1 }
    }

    /// The outputs of a line in a vector that is written.
    fn group(&self) -> usize {
        if self.turns { self.written } else { 1 }
    }

    /// The result, and its lane, that lane `m` of written vector `g` of a block is.
    fn source(&self, g: usize, m: usize) -> (usize, usize) {
        if self.turns { (g * self.written + m, 0) } else { (g, m) }
    }

    fn new(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        plan: &Plan,
        walk: &Walk,
    ) -> Self {
        let axes = pooling.grid().axes();
        let axis = &axes[walk.axis];
        let block = block(axis);
        Self {
            axis: AxisForm::new(axis, false),
            depth: AxisForm::new(&axes[0], false),
            height: AxisForm::new(&axes[1], false),
            fold: match reduction {
                Reduction::Max(Output::Values) => Fold::Max,
                Reduction::Max(Output::ValuesAndIndices(_)) => Fold::MaxAndIndex,
                Reduction::Average(divisor) => Fold::average(divisor),
                Reduction::Norm(_) => unreachable!("a norm has kernels of its own"),
            },
            maximum: plan.maximum,
            float: dtype.is_float(),
            reciprocal: dtype != DType::F64,
            rounds: plan.rounds && walk.last,
            widened: walk.dtypes[0] == dtype && plan.widens(dtype),
            runs: plan.runs,
            block: block as u32,
            stride: axis.stride() as u32,
            whole: ((axis.kernel() - 1) / block) as u32,
            rest: ((axis.kernel() - 1) % block) as u32,
            turns: walk.turns,
            last: walk.last,
            channels: pooling.layout() == Layout::ChannelsLast && pixel_channels(pooling) > 1,
            others: walk.axis,
            written: walk.lanes[1],
            units: plan.units,
            keeps: keeps(axis, plan, walk),
        }
    }
}

impl Form {
    /// Whether the next block is loaded while one is folded: a thread of a processor has nothing to wait
    /// for, and positions would take the registers.
    fn fetches(&self) -> bool {
        !self.runs && !self.fold.has_index()
    }

    /// Whether windows are divided by numbers of their own.
    fn counts(&self) -> bool {
        self.last && !self.fold.is_max() && !self.fold.is_fixed()
    }
}

/// What is kept of a block from one step to the next.
#[derive(CubeType)]
struct Kept<A: Float, N: Size> {
    value: RuntimeCell<Vector<A, N>>,
    position: RuntimeCell<Vector<i32, N>>,
}

/// Where a piece of a line is.
#[derive(CubeType)]
struct Line {
    /// The vector of its first input, as if the line began there, and the step to the next.
    input: u32,
    /// The vector of its first output, or its element where the outputs are neighbours.
    output: u32,
    outer: u32,
    inner: u32,
    /// The plane position of its first input.
    position: u32,
}

/// `S` is how elements are read, `T` how they are written, `A` how they are folded.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a pass reads and writes values and positions")]
fn slide<S: Float, T: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, N>],
    positions: ComptimeOption<Box<[Vector<i32, N>]>>,
    output: &mut [Vector<T, M>],
    mut indices: ComptimeOption<Box<[Vector<i32, M>]>>,
    pass: &Pass,
    #[comptime] form: Form,
    #[define(S)] _read: ElemType,
    #[define(T)] _written: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let unit = unit_position(form.runs);
    if unit >= pass.units {
        terminate!();
    }
    let (rest, inner) = pass.inner.div_mod(unit);
    let (outer, piece) = pass.pieces.div_mod(rest);
    let line = line_of(pass, outer, inner, form);
    let divisors = divisors_of::<A>(pass, &line, form);
    let first = piece * pass.run;
    let end = min(first + pass.run, pass.blocks);

    let mut ending = Sequence::<Kept<A, N>>::new();
    #[unroll]
    for _ in 0..form.block {
        ending.push(kept::<A, N>());
    }
    let mut totals = Sequence::<Kept<A, N>>::new();
    #[unroll]
    for _ in 0..form.whole {
        totals.push(kept::<A, N>());
    }
    let mut own = Shared::<[Vector<S, N>]>::new_slice(comptime!(form.kept()));
    let mut next = Sequence::<RuntimeCell<Vector<S, N>>>::new();
    if comptime!(form.fetches()) {
        #[unroll]
        for _ in 0..form.block {
            next.push(RuntimeCell::new(Vector::new(S::from_int(0))));
        }
        fetch::<S, N>(input, pass, &line, first, &next, form);
    }

    // Windows that start in block b end in block b + whole or the one after, which is step's.
    for step in first..end + comptime!(form.whole + 1) {
        let elements = if comptime!(form.fetches()) {
            fetched::<S, A, N>(input, &mut own, pass, &line, step, &next, form)
        } else {
            elements::<S, A, N>(input, &positions, &mut own, pass, &line, step, form)
        };
        let prefixes = prefixes::<A, N>(&elements, form);
        if step >= first + comptime!(form.whole + 1) {
            let start = step - comptime!(form.whole + 1);
            let suffixes =
                suffixes::<S, A, N>(input, &positions, &mut own, pass, &line, start, form);
            write_block::<T, A, N, M>(
                output,
                &mut indices,
                pass,
                &line,
                start,
                &suffixes,
                &totals,
                &ending,
                &prefixes,
                &divisors,
                form,
            );
        }
        // The oldest whole block leaves, the one that was ending last is whole now.
        #[unroll]
        for i in 1..form.whole {
            keep::<A, N>(
                totals.index(comptime!((i - 1) as usize)),
                &read::<A, N>(totals.index(comptime!(i as usize))),
            );
        }
        let newest = comptime!((form.whole - 1) as usize);
        keep::<A, N>(totals.index(newest), prefixes.index(comptime!((form.block - 1) as usize)));
        #[unroll]
        for j in 0..form.block {
            keep::<A, N>(
                ending.index(comptime!(j as usize)),
                prefixes.index(comptime!(j as usize)),
            );
        }
    }
}

#[cube]
fn line_of(pass: &Pass, outer: u32, inner: u32, #[comptime] form: Form) -> Line {
    let length = pass.axis.input as u32;
    let input = outer * length * pass.inner_vectors + inner;
    let output = if comptime!(form.turns) {
        (outer * pass.inner_vectors + inner) * pass.outputs
    } else {
        outer * pass.outputs * pass.inner_vectors + inner
    };
    let pixel = if comptime!(form.channels) { pass.pixel.div(inner) } else { inner };
    let position = pass.before.modulo(outer) * length * pass.inner_pixels + pixel;
    Line { input, output, outer, inner, position }
}

#[cube]
fn kept<A: Float, N: Size>() -> Kept<A, N> {
    Kept::<A, N> {
        value: RuntimeCell::<Vector<A, N>>::new(Vector::new(A::from_int(0))),
        position: RuntimeCell::<Vector<i32, N>>::new(Vector::new(0i32)),
    }
}

#[cube]
fn keep<A: Float, N: Size>(kept: &Kept<A, N>, folded: &Accumulator<A, N>) {
    kept.value.store(folded.value);
    kept.position.store(folded.position);
}

#[cube]
fn read<A: Float, N: Size>(kept: &Kept<A, N>) -> Accumulator<A, N> {
    Accumulator::<A, N> { value: kept.value.read(), position: kept.position.read() }
}

/// The folds of the first 1, 2, … inputs of a block.
#[cube]
fn prefixes<A: Float, N: Size>(
    elements: &Sequence<Accumulator<A, N>>,
    #[comptime] form: Form,
) -> Sequence<Accumulator<A, N>> {
    let mut prefixes = Sequence::<Accumulator<A, N>>::new();
    prefixes.push(same::<A, N>(elements.index(0usize)));
    #[unroll]
    for j in 1..form.block {
        let next = comptime!(j as usize);
        prefixes.push(both::<A, N>(
            prefixes.index(comptime!(next - 1)),
            elements.index(next),
            form,
        ));
    }
    prefixes
}

/// The folds of the last 1, 2, … inputs of a block.
#[cube]
fn suffixes<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    positions: &ComptimeOption<Box<[Vector<i32, N>]>>,
    own: &mut Shared<[Vector<S, N>]>,
    pass: &Pass,
    line: &Line,
    block: u32,
    #[comptime] form: Form,
) -> Sequence<Accumulator<A, N>> {
    let elements = if comptime!(form.keeps) {
        kept_elements::<S, A, N>(own, block, form)
    } else {
        elements::<S, A, N>(input, positions, own, pass, line, block, form)
    };
    let last = comptime!((form.block - 1) as usize);
    let mut suffixes = Sequence::<Accumulator<A, N>>::new();
    suffixes.push(same::<A, N>(elements.index(last)));
    #[unroll]
    for j in 1..form.block {
        let next = comptime!(j as usize);
        let element = elements.index(comptime!(last - next));
        suffixes.push(both::<A, N>(element, suffixes.index(comptime!(next - 1)), form));
    }
    suffixes
}

/// The inputs of a block: most blocks are inside.
#[cube]
fn elements<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    positions: &ComptimeOption<Box<[Vector<i32, N>]>>,
    own: &mut Shared<[Vector<S, N>]>,
    pass: &Pass,
    line: &Line,
    block: u32,
    #[comptime] form: Form,
) -> Sequence<Accumulator<A, N>> {
    let mut cells = Sequence::<Kept<A, N>>::new();
    #[unroll]
    for _ in 0..form.block {
        cells.push(kept::<A, N>());
    }
    let first = (block * form.block) as i32 - pass.axis.before;
    let inside = first >= 0 && first + comptime!(form.block as i32) <= pass.axis.input;
    // A maximum has nothing to drop, and two ways would only keep their addresses in registers.
    if comptime!(!form.fold.is_max()) && inside {
        load::<S, A, N>(input, positions, own, pass, line, block, &cells, true, form);
    } else {
        load::<S, A, N>(input, positions, own, pass, line, block, &cells, false, form);
    }
    let mut elements = Sequence::<Accumulator<A, N>>::new();
    #[unroll]
    for j in 0..form.block {
        elements.push(read::<A, N>(cells.index(comptime!(j as usize))));
    }
    elements
}

/// Has a block of inputs come, where they are not inside from the nearest that are.
#[cube]
fn fetch<S: Float, N: Size>(
    input: &[Vector<S, N>],
    pass: &Pass,
    line: &Line,
    block: u32,
    next: &Sequence<RuntimeCell<Vector<S, N>>>,
    #[comptime] form: Form,
) {
    let first = (block * form.block) as i32 - pass.axis.before;
    #[unroll]
    for j in 0..form.block {
        let there = min(max(first + j as i32, 0i32), pass.axis.input - 1);
        let at = (line.input + there as u32 * pass.inner_vectors) as usize;
        next.index(comptime!(j as usize)).store(input[at]);
    }
}

/// The inputs of a block that has come, while the next one sets out. What is outside the input is, for a
/// maximum, the nearest inside, which every window over it has too; in a sum it is nothing.
#[cube]
fn fetched<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    own: &mut Shared<[Vector<S, N>]>,
    pass: &Pass,
    line: &Line,
    block: u32,
    next: &Sequence<RuntimeCell<Vector<S, N>>>,
    #[comptime] form: Form,
) -> Sequence<Accumulator<A, N>> {
    let first = (block * form.block) as i32 - pass.axis.before;
    let kept = if comptime!(form.keeps) { kept_at(block, form) } else { 0u32.runtime() };
    let mut elements = Sequence::<Accumulator<A, N>>::new();
    #[unroll]
    for j in 0..form.block {
        let x = first + j as i32;
        let come = next.index(comptime!(j as usize)).read();
        let element = if comptime!(form.fold.is_max()) {
            come
        } else {
            select(x >= 0 && x < pass.axis.input, come, Vector::new(S::from_int(0)))
        };
        if comptime!(form.keeps) {
            own[(kept + comptime!(j * form.units)) as usize] = element;
        }
        let value = widen::<S, A, N>(element, form.widened);
        elements.push(Accumulator::<A, N> { value, position: Vector::new(0i32) });
    }
    fetch::<S, N>(input, pass, line, block + 1u32, next, form);
    elements
}

/// The inputs of a block that a unit has read before.
#[cube]
fn kept_elements<S: Float, A: Float, N: Size>(
    own: &mut Shared<[Vector<S, N>]>,
    block: u32,
    #[comptime] form: Form,
) -> Sequence<Accumulator<A, N>> {
    let first = kept_at(block, form);
    let mut elements = Sequence::<Accumulator<A, N>>::new();
    #[unroll]
    for j in 0..form.block {
        let value = own[(first + comptime!(j * form.units)) as usize];
        let value = widen::<S, A, N>(value, form.widened);
        elements.push(Accumulator::<A, N> { value, position: Vector::new(0i32) });
    }
    elements
}

/// Where a unit keeps the first input of a block.
#[cube]
fn kept_at(block: u32, #[comptime] form: Form) -> u32 {
    block % comptime!(form.blocks()) * comptime!(form.block * form.units) + UNIT_POS
}

/// Loads a block, all of it `inside` or not. What is outside the input is, for a maximum, the nearest
/// inside, which every window over it has too; in a sum it is nothing.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn load<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    positions: &ComptimeOption<Box<[Vector<i32, N>]>>,
    own: &mut Shared<[Vector<S, N>]>,
    pass: &Pass,
    line: &Line,
    block: u32,
    cells: &Sequence<Kept<A, N>>,
    #[comptime] inside: bool,
    #[comptime] form: Form,
) {
    let first = (block * form.block) as i32 - pass.axis.before;
    let kept = if comptime!(form.keeps) { kept_at(block, form) } else { 0u32.runtime() };
    #[unroll]
    for j in 0..form.block {
        let x = first + j as i32;
        let there = if comptime!(inside) { x } else { min(max(x, 0i32), pass.axis.input - 1) };
        let at = (line.input + there as u32 * pass.inner_vectors) as usize;
        let element = if comptime!(inside || form.fold.is_max()) {
            input[at]
        } else {
            select(x == there, input[at], Vector::new(S::from_int(0)))
        };
        if comptime!(form.keeps) {
            own[(kept + comptime!(j * form.units)) as usize] = element;
        }
        let value = widen::<S, A, N>(element, form.widened);
        #[comptime]
        let position = match positions {
            ComptimeOption::Some(positions) => positions[at],
            ComptimeOption::None => {
                Vector::new((line.position + there as u32 * pass.inner_pixels) as i32)
            }
        };
        let element = Accumulator::<A, N> { value, position };
        keep::<A, N>(cells.index(comptime!(j as usize)), &element);
    }
}

#[cube]
fn same<A: Float, N: Size>(folded: &Accumulator<A, N>) -> Accumulator<A, N> {
    Accumulator::<A, N> { value: folded.value, position: folded.position }
}

/// Two folds as one: axes may be walked in any order.
#[cube]
fn both<A: Float, N: Size>(
    a: &Accumulator<A, N>,
    b: &Accumulator<A, N>,
    #[comptime] form: Form,
) -> Accumulator<A, N> {
    merge::<A, N>(a, b, form.fold, form.maximum, form.float)
}

/// Writes the outputs whose windows start in block `start`.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn write_block<T: Float, A: Float, N: Size, M: Size>(
    output: &mut [Vector<T, M>],
    indices: &mut ComptimeOption<Box<[Vector<i32, M>]>>,
    pass: &Pass,
    line: &Line,
    start: u32,
    suffixes: &Sequence<Accumulator<A, N>>,
    totals: &Sequence<Kept<A, N>>,
    ending: &Sequence<Kept<A, N>>,
    prefixes: &Sequence<Accumulator<A, N>>,
    divisors: &Divisors<A>,
    #[comptime] form: Form,
) {
    // The whole blocks of a window that ends in the earlier of its two last blocks, and of the rest.
    let sum = kept::<A, N>();
    keep::<A, N>(&sum, &read::<A, N>(totals.index(0usize)));
    #[unroll]
    for i in 1..comptime!(form.whole.max(2) - 1) {
        let next = read::<A, N>(totals.index(comptime!(i as usize)));
        keep::<A, N>(&sum, &both::<A, N>(&read::<A, N>(&sum), &next, form));
    }
    let middle = read::<A, N>(&sum);
    let newest = read::<A, N>(totals.index(comptime!((form.whole - 1) as usize)));
    let longer =
        if comptime!(form.whole > 1) { both::<A, N>(&middle, &newest, form) } else { newest };

    let first = start * comptime!(form.block / form.stride);
    let mut results = Sequence::<Accumulator<A, N>>::new();
    #[unroll]
    for i in 0..comptime!(form.block / form.stride) {
        let from = comptime!((form.block - 1 - i * form.stride) as usize);
        let to = comptime!(i * form.stride + form.rest);
        let suffix = suffixes.index(from);
        let folded = if comptime!(to >= form.block) {
            let prefix = prefixes.index(comptime!((to - form.block) as usize));
            both::<A, N>(&both::<A, N>(suffix, &longer, form), prefix, form)
        } else {
            let prefix = read::<A, N>(ending.index(comptime!(to as usize)));
            if comptime!(form.whole > 1) {
                both::<A, N>(&both::<A, N>(suffix, &middle, form), &prefix, form)
            } else {
                both::<A, N>(suffix, &prefix, form)
            }
        };
        results.push(folded);
    }
    // Most blocks are of windows that all have all their taps.
    let last = first + comptime!(form.block / form.stride - 1);
    if last < pass.outputs && counts_all(pass, first, last, form) {
        write_results::<T, A, N, M>(
            output, indices, pass, line, divisors, first, &results, true, form,
        );
    } else {
        write_results::<T, A, N, M>(
            output, indices, pass, line, divisors, first, &results, false, form,
        );
    }
}

/// Whether the windows from `first` to `last` have all their taps on the axis: then those between have.
#[cube]
fn counts_all(pass: &Pass, first: u32, last: u32, #[comptime] form: Form) -> bool {
    if comptime!(!form.counts()) {
        true.runtime()
    } else {
        let all = pass.axis.kernel;
        counted_at(&pass.axis, first, form.axis, form.fold) == all
            && counted_at(&pass.axis, last, form.axis, form.fold) == all
    }
}

/// Writes the outputs of a block; all are there and counted in full, if they are `whole`.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn write_results<T: Float, A: Float, N: Size, M: Size>(
    output: &mut [Vector<T, M>],
    indices: &mut ComptimeOption<Box<[Vector<i32, M>]>>,
    pass: &Pass,
    line: &Line,
    divisors: &Divisors<A>,
    first: u32,
    results: &Sequence<Accumulator<A, N>>,
    #[comptime] whole: bool,
    #[comptime] form: Form,
) {
    let group = comptime!(form.group());
    #[unroll]
    for g in 0..comptime!((form.block / form.stride) as usize / group) {
        let o = first + comptime!((g * group) as u32);
        if comptime!(whole) || o < pass.outputs {
            let mut value = Vector::<A, M>::new(A::from_int(0));
            let mut position = Vector::<i32, M>::new(0i32);
            #[unroll]
            for m in 0..M::value() {
                let (i, lane) = comptime!(form.source(g, m));
                let o = first + comptime!(i as u32);
                let folded = results.index(i);
                let result = finished::<A, N>(pass, line, divisors, o, folded, whole, form);
                value.insert(m, result.value.extract(lane));
                position.insert(m, result.position.extract(lane));
            }
            let at = if comptime!(form.turns) {
                (line.output + o) / comptime!(group as u32)
            } else {
                line.output + o * pass.inner_vectors
            };
            write::<T, A, M>(output, indices, at, value, position, form);
        }
    }
}

#[cube]
fn write<T: Float, A: Float, M: Size>(
    output: &mut [Vector<T, M>],
    indices: &mut ComptimeOption<Box<[Vector<i32, M>]>>,
    at: u32,
    value: Vector<A, M>,
    position: Vector<i32, M>,
    #[comptime] form: Form,
) {
    output[at as usize] = round::<A, T, M>(value, form.rounds);
    #[comptime]
    match indices {
        ComptimeOption::Some(indices) => indices[at as usize] = position,
        ComptimeOption::None => {}
    }
}

/// What the windows of a line are divided by.
#[derive(CubeType)]
struct Divisors<A: Float> {
    /// The taps that are counted on the other axes.
    others: i32,
    /// One over the divisor of a window that has all its taps on this axis.
    usual: A,
}

#[cube]
fn divisors_of<A: Float>(pass: &Pass, line: &Line, #[comptime] form: Form) -> Divisors<A> {
    if comptime!(!form.counts()) {
        Divisors::<A> { others: 1i32.runtime(), usual: pass.reciprocal.get::<A>() }
    } else {
        let others =
            if comptime!(form.turns) { line.inner } else { pass.others.modulo(line.outer) };
        let (d, h) = pass.height.div_mod(others);
        let others = if comptime!(form.others == 2) {
            counted_at(&pass.depth_axis, d, form.depth, form.fold)
                * counted_at(&pass.height_axis, h, form.height, form.fold)
        } else if comptime!(form.others == 1) {
            counted_at(&pass.depth_axis, d, form.depth, form.fold)
        } else {
            1i32.runtime()
        };
        let usual = A::from_int(1) / A::cast_from(others * pass.axis.kernel);
        Divisors::<A> { others, usual }
    }
}

/// What the last pass makes of a window: the average of a sum, the index of a position.
#[cube]
fn finished<A: Float, N: Size>(
    pass: &Pass,
    line: &Line,
    divisors: &Divisors<A>,
    o: u32,
    folded: &Accumulator<A, N>,
    #[comptime] whole: bool,
    #[comptime] form: Form,
) -> Accumulator<A, N> {
    if comptime!(!form.last || form.fold == Fold::Max) {
        same::<A, N>(folded)
    } else if comptime!(form.fold.is_max()) {
        let lane =
            if comptime!(form.channels) { pass.pixel.modulo(line.inner) } else { 0u32.runtime() };
        let lane = lane * N::value() as u32 * pass.index_lane;
        let sample = pass.others.div(line.outer);
        let base = (sample * pass.index_batch + lane) as i32;
        let mut position = folded.position * Vector::new(pass.index_position as i32);
        #[unroll]
        for i in 0..N::value() {
            let step = if comptime!(form.channels) {
                i as i32 * pass.index_lane as i32
            } else {
                0i32.runtime()
            };
            position.insert(i, position.extract(i) + base + step);
        }
        Accumulator::<A, N> { value: folded.value, position }
    } else {
        let value = average::<A, N>(pass, divisors, o, folded.value, whole, form);
        Accumulator::<A, N> { value, position: folded.position }
    }
}

#[cube]
fn average<A: Float, N: Size>(
    pass: &Pass,
    divisors: &Divisors<A>,
    o: u32,
    sum: Vector<A, N>,
    #[comptime] whole: bool,
    #[comptime] form: Form,
) -> Vector<A, N> {
    if comptime!(form.reciprocal && (whole || form.fold.is_fixed())) {
        sum * Vector::new(divisors.usual)
    } else if comptime!(form.fold.is_fixed()) {
        sum / Vector::new(A::cast_from(pass.divisor))
    } else {
        let own = counted_at(&pass.axis, min(o, pass.outputs - 1), form.axis, form.fold);
        let taps = A::cast_from(own * divisors.others);
        if comptime!(form.reciprocal) {
            sum * Vector::new(A::from_int(1) / taps)
        } else {
            sum / Vector::new(taps)
        }
    }
}
