//! Gradients by blocks: one unit a block of inputs, the windows over it read once.
//!
//! ```text
//! for each block of inputs:                      s on each axis, or a strip of them, or two columns
//!     for each window o over the block:          ⌊(k−1)/s⌋ + 1 on each axis, or a few more
//!         load dy[o], and the winner or the divisor
//!     for each input x of the block:
//!         for each window over x:                known when the kernel is compiled
//!             add dy[o] if its winner is x, or dy[o] / divisor(o)
//! ```
//!
//! Blocks are whole steps of the stride: which windows are over the i-th input of a block is then
//! the same for all blocks. Blocks at the edges read windows that are not there as zeros.
//!
//! With channels first the lanes of a vector are neighbours along the width, and each takes its
//! windows from the vectors of `dy` that hold them. These have as many windows as start in a vector of
//! inputs, so that a block is one vector wide and neighbouring units write neighbouring vectors; where
//! the stride does not divide the lanes they have as many as `dx`'s, and a block is a stride of vectors.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, IndexBase, Pooling};

use super::backward::Gradient;
use super::direct::unit_position;
use super::launch::{buffer, grid, optional_vectors, vectors};
use super::plan::{Plan, Reduction, pixel_channels};
use super::strip::{Tiles, tiled, tiles_args};
use super::window::{Fold, counted_at, full_divisor, indexing, pixel_vectors};
use crate::axis::{AxisArgs, AxisForm, axis_args};
use crate::dtype::{elem, round, widen, widen_kept};

/// Launches the gradient by blocks; the caller has checked the plan and the buffers.
pub(super) fn launch(
    client: &Client,
    pooling: &Pooling,
    gradient: Gradient,
    dtype: DType,
    plan: &Plan,
    [dy, dx]: [&Handle; 2],
    winners: Option<&Handle>,
) {
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let form = Form::new(pooling, gradient, dtype, plan);
    let window_lanes = if plan.across { form.window_lanes as usize } else { plan.lanes };
    let places = places(pooling, &form);
    let pixel = pixel_vectors(pooling, plan) as usize;
    let samples =
        inputs / plan.lanes / pixel / vectors_on_axes(pooling, plan).iter().product::<usize>();
    let units = samples * pixel * places.iter().product::<usize>();
    let (cubes, dim) = grid(client, plan, units);
    // SAFETY: windows and inputs that are not there are neither read nor written.
    unsafe {
        gather_blocks::launch_unchecked(
            client,
            cubes,
            dim,
            window_lanes,
            plan.lanes,
            vectors(dy, outputs, window_lanes),
            optional_vectors(winners, outputs, window_lanes),
            buffer(dx, inputs, plan),
            blocks_args(pooling, gradient, dtype, plan, units, places),
            form,
            elem(dtype),
            elem(plan.accumulator),
        )
    };
}

/// The input vectors on each axis.
fn vectors_on_axes(pooling: &Pooling, plan: &Plan) -> [usize; AXES] {
    let mut inputs = pooling.grid().axes().each_ref().map(Axis::input);
    if plan.across {
        inputs[AXES - 1] /= plan.lanes;
    }
    inputs
}

/// The blocks on each axis.
fn places(pooling: &Pooling, form: &Form) -> [usize; AXES] {
    let axes = pooling.grid().axes();
    [0, 1, 2].map(|i| axes[i].input().div_ceil(form.axes[i].inputs as usize))
}

/// An axis as its blocks see it.
#[derive(CubeType, CubeLaunch)]
struct BlockAxis {
    axis: AxisArgs,
    places: FastDivmod<u32>,
    /// The windows, in vectors where the lanes lie along the axis.
    outputs: i32,
    /// The inputs, in vectors where the lanes lie along the axis.
    inputs: i32,
}

/// The numbers of a problem, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct Blocks {
    units: u32,
    tiles: Tiles,
    /// The vectors of a pixel.
    pixel_vectors: i32,
    depth: BlockAxis,
    height: BlockAxis,
    width: BlockAxis,
    /// What a fixed divisor divides by.
    divisor: u32,
    /// One over the divisor of a window that is inside with all its taps.
    reciprocal: InputScalar,
    /// The steps of an index to the next sample, position, and lane of a vector.
    index_batch: u32,
    index_position: u32,
    index_lane: u32,
}

fn blocks_args(
    pooling: &Pooling,
    gradient: Gradient,
    dtype: DType,
    plan: &Plan,
    units: usize,
    places: [usize; AXES],
) -> BlocksLaunch {
    let inputs = vectors_on_axes(pooling, plan);
    let axes = pooling.grid().axes();
    let across = |i| plan.across && i == AXES - 1;
    let lanes = |i| if across(i) { window_lanes(&axes[i], plan.lanes) } else { 1 };
    let [depth, height, width] = [0, 1, 2].map(|i| {
        BlockAxisLaunch::new(
            axis_args(&axes[i]),
            places[i] as u32,
            (axes[i].output() / lanes(i)) as i32,
            inputs[i] as i32,
        )
    });
    let reduction = gradient.reduction();
    let pixel = pixel_vectors(pooling, plan);
    let [index_batch, index_channel, index_position] = indexing(pooling, reduction.base());
    BlocksLaunch::new(
        units as u32,
        tiles_args(pooling, dtype, plan, places[AXES - 2], true),
        pixel as i32,
        depth,
        height,
        width,
        reduction.fixed_divisor(),
        InputScalar::new(1.0 / full_divisor(pooling, reduction), elem(plan.accumulator)),
        index_batch,
        index_position,
        if plan.across { index_position } else { index_channel },
    )
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    axes: [Block; AXES],
    fold: Fold,
    /// Whether a share is made by a reciprocal: its second rounding is one that the sum's bound
    /// has room for, but not where the truth itself is computed in the same type.
    reciprocal: bool,
    rounds: bool,
    /// Whether elements are widened by their bits.
    widened: bool,
    runs: bool,
    /// Whether several vectors make a pixel.
    channels: bool,
    /// The lanes that lie along the width, or 1; of the inputs, and of the windows.
    lanes: u32,
    window_lanes: u32,
    /// Whether they do, be they one.
    across: bool,
    /// Whether the channels of a pixel have one index.
    one_index: bool,
    /// The axes that the problem has.
    rank: usize,
}

/// A block on one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Block {
    form: AxisForm,
    /// The inputs of a block: whole steps of the stride.
    inputs: u32,
    kernel: u32,
    stride: u32,
    before: u32,
    after: u32,
    /// Whether the last block is moved back, so that its inputs are all there.
    snug: bool,
    /// Whether the inputs are all there, and all the windows over them.
    whole: bool,
}

impl Block {
    /// Whether window `i` of those over a block is there wherever the block is.
    fn always(&self, i: u32) -> bool {
        // A step apart, the first window that starts at an input or later is there, and so is the last
        // one that ends at it or before.
        let (first, end) = (self.kernel.saturating_sub(1 + self.before), self.inputs + self.after);
        self.whole || (self.snug && (first..end).contains(&i))
    }

    /// The windows over input `i` of a block, counted from the first that starts at it or later
    /// if nothing is padded: the first one, and how many.
    fn over(&self, i: u32) -> (i32, u32) {
        let (step, phase) = ((i + self.before) / self.stride, (i + self.before) % self.stride);
        let count =
            if phase < self.kernel { (self.kernel - 1 - phase) / self.stride + 1 } else { 0 };
        (step as i32 + 1 - count as i32, count)
    }

    /// The windows over a block, as `over` counts them: the first one, and how many.
    fn all(&self) -> (i32, u32) {
        let over: Vec<_> = (0..self.inputs).map(|i| self.over(i)).filter(|o| o.1 > 0).collect();
        let first = over.iter().map(|o| o.0).min().unwrap_or(0);
        let end = over.iter().map(|o| o.0 + o.1 as i32).max().unwrap_or(0);
        (first, (end - first) as u32)
    }

    /// The vectors of `lanes` windows that hold them: the first one, and how many.
    fn vectors(&self, lanes: u32) -> (i32, u32) {
        let (first, count) = self.all();
        let lanes = lanes as i32;
        let start = first.div_euclid(lanes);
        (start, ((first + count as i32 - 1).div_euclid(lanes) - start + 1) as u32)
    }
}

/// More windows over a block than this, or more inputs in it, are left to the plain gather.
const MOST_WINDOWS: usize = 36;
const MOST_INPUTS: usize = 16;

/// The windows of a vector, where the lanes of the inputs lie along the width: those that start in
/// a vector of inputs, if the stride divides it.
pub(super) fn window_lanes(width: &Axis, lanes: usize) -> usize {
    if lanes.is_multiple_of(width.stride()) { lanes / width.stride() } else { lanes }
}

/// The neighbouring columns of a block where the lanes are channels, on a GPU: two of windows one step
/// apart, which share most of what they read. A window's winner takes the registers of a second. A last
/// column by itself is computed with the one before it, again.
pub(super) fn columns(pooling: &Pooling, reduction: Reduction) -> usize {
    let [depth, height, width] = pooling.grid().axes();
    let shared = |axis: &Axis| axis.stride() == 1 && axis.kernel() == 3;
    let average = matches!(reduction, Reduction::Average(_));
    let shared = depth.kernel() == 1 && shared(height) && shared(width);
    let two = average && shared && pixel_channels(pooling) > 1 && width.input() > 1;
    if two { 2 } else { 1 }
}

/// Whether blocks serve the problem at all.
pub(super) fn fits(pooling: &Pooling, strip: usize, columns: usize) -> bool {
    let axes = pooling.grid().axes();
    if axes.iter().any(|axis| axis.dilation() > 1 || axis.is_fitted()) {
        return false;
    }
    let blocks = blocks_of(pooling, strip, columns, 1);
    let product = |of: fn(&Block) -> u32| blocks.iter().map(|b| of(b) as usize).product::<usize>();
    product(|b| b.inputs) <= MOST_INPUTS && product(|b| b.all().1) <= MOST_WINDOWS
}

/// The blocks on each axis: a step of the stride, a strip of steps on the outermost axis that has a
/// window, columns of them on the width.
fn blocks_of(pooling: &Pooling, strip: usize, columns: usize, lanes: u32) -> [Block; AXES] {
    let axes = pooling.grid().axes();
    let along = super::strip::outermost(pooling);
    [0, 1, 2].map(|i| {
        let axis = &axes[i];
        let steps = match i {
            _ if i == along => strip as u32,
            _ if i == AXES - 1 => columns as u32,
            _ => 1,
        };
        let lanes = if i == AXES - 1 { lanes } else { 1 };
        Block {
            form: AxisForm::new(axis, true),
            inputs: axis.stride() as u32 * steps * lanes,
            kernel: axis.kernel() as u32,
            stride: axis.stride() as u32,
            before: axis.before() as u32,
            after: axis.after() as u32,
            snug: i == AXES - 1 && columns > 1,
            whole: false,
        }
    })
}

impl Form {
    fn new(pooling: &Pooling, gradient: Gradient, dtype: DType, plan: &Plan) -> Self {
        let lanes = if plan.across { plan.lanes } else { 1 };
        let window_lanes = window_lanes(&pooling.grid().axes()[AXES - 1], lanes) as u32;
        let window_lanes = if plan.across { window_lanes } else { 1 };
        Self {
            axes: blocks_of(pooling, plan.strip, plan.columns, window_lanes),
            fold: match gradient {
                Gradient::Max(_) => Fold::Max,
                Gradient::Average(divisor) => Fold::average(divisor),
            },
            reciprocal: dtype != DType::F64,
            rounds: plan.rounds,
            widened: plan.widens(dtype),
            runs: plan.runs,
            channels: pixel_vectors(pooling, plan) > 1,
            lanes: lanes as u32,
            window_lanes,
            across: plan.across,
            one_index: !plan.across && gradient.reduction().base() == IndexBase::Plane,
            rank: pooling.grid().rank(),
        }
    }

    /// The form of a block away from all edges, but for those of a width along which one warp would
    /// cross them.
    fn interior(self) -> Self {
        let mut axes =
            self.axes.map(|block| Block { form: block.form.unclipped(), whole: true, ..block });
        if self.crosses() {
            axes[AXES - 1] = self.axes[AXES - 1];
        }
        Self { axes, ..self }
    }

    /// Whether a warp crosses the edges of the width, so that units apart from them would wait for the
    /// others: where it has no channels, or tiles of few of them.
    fn crosses(&self) -> bool {
        !self.channels || self.axes[AXES - 1].snug
    }

    /// Whether what divides a window's gradient is found by comparison: a window has few taps, and with
    /// so few the factors of its lines and its columns make, rounded, the quotient itself.
    fn compares(&self) -> bool {
        self.reciprocal && self.axes[0].kernel == 1 && self.axes.iter().all(|a| a.kernel <= 3)
    }

    /// Whether every window is divided by the same number, so that their sum may be.
    fn divides_once(&self) -> bool {
        match self.fold {
            Fold::AverageFixed => true,
            Fold::AveragePadded | Fold::AverageValid => {
                self.axes.iter().all(|axis| !axis.form.clipped)
            }
            _ => false,
        }
    }

    /// Whether each gradient is divided by a number of its window's own.
    fn divides_each(&self) -> bool {
        !self.fold.is_max() && !self.divides_once()
    }

    /// The vectors of windows over a block, on each axis: the first one, and how many.
    fn windows(&self) -> [(i32, u32); AXES] {
        [self.axes[0].all(), self.axes[1].all(), self.axes[2].vectors(self.window_lanes)]
    }

    /// The vectors of inputs of a block on each axis.
    fn inputs(&self) -> [u32; AXES] {
        [self.axes[0].inputs, self.axes[1].inputs, self.axes[2].inputs / self.lanes]
    }

    /// The vectors of windows over a block.
    fn all_windows(&self) -> u32 {
        self.windows().iter().map(|windows| windows.1).product()
    }

    /// The vectors of inputs of a block.
    fn all_inputs(&self) -> u32 {
        self.inputs().iter().product()
    }

    /// Where on each axis vector `i` of `counts` is.
    fn split(counts: [u32; AXES], i: u32) -> [u32; AXES] {
        [i / counts[2] / counts[1], i / counts[2] % counts[1], i % counts[2]]
    }

    /// The steps of windows over input vector `x`: on the width, of all its lanes.
    fn steps(&self, x: [u32; AXES]) -> [u32; AXES] {
        let width = (0..self.lanes).map(|lane| self.over_lane(x[2], lane).1).max().unwrap_or(0);
        [self.axes[0].over(x[0]).1, self.axes[1].over(x[1]).1, width]
    }

    fn over_lane(&self, vector: u32, lane: u32) -> (i32, u32) {
        self.axes[2].over(vector * self.lanes + lane)
    }

    /// The lines of windows over a block.
    fn all_lines(&self) -> u32 {
        self.windows()[0].1 * self.windows()[1].1
    }

    /// The line of windows that is `step` of those over input `x`.
    fn line_over(&self, x: [u32; AXES], step: [u32; 2]) -> usize {
        let windows = self.windows();
        let at = |i: usize| (self.axes[i].over(x[i]).0 + step[i] as i32 - windows[i].0) as u32;
        (at(0) * windows[1].1 + at(1)) as usize
    }

    /// How many lines of windows are over input `x`.
    fn lines_over(&self, x: [u32; AXES]) -> u32 {
        self.axes[0].over(x[0]).1 * self.axes[1].over(x[1]).1
    }

    /// The sum that input vector `x` takes from line `i` of those over it.
    fn line_sum(&self, x: [u32; AXES], i: u32) -> usize {
        let steps = self.axes[1].over(x[1]).1;
        let line = self.line_over(x, [i / steps, i % steps]);
        line * self.inputs()[2] as usize + x[2] as usize
    }

    /// The loaded vector of a line, and the element in it, where a lane of input vector `w` finds
    /// window `step` of those over it.
    fn on_line(&self, w: u32, step: u32, lane: u32) -> (usize, usize) {
        let first = self.windows()[2].0 * self.window_lanes as i32;
        let element = (self.over_lane(w, lane).0 + step as i32 - first) as u32;
        ((element / self.window_lanes) as usize, (element % self.window_lanes) as usize)
    }
}

#[cube(launch_unchecked)]
fn gather_blocks<S: Float, A: Float, M: Size, N: Size>(
    dy: &[Vector<S, M>],
    winners: ComptimeOption<Box<[Vector<i32, M>]>>,
    dx: &mut [Vector<S, N>],
    problem: &Blocks,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let unit = unit_position(form.runs);
    if unit >= problem.units {
        terminate!();
    }
    let place = place_of(problem, unit, form);
    // A width without channels is one along which a warp would cross the edges, and run both.
    let inner = if comptime!(form.channels || !form.fold.is_max()) {
        is_interior(problem, &place, form)
    } else {
        false.runtime()
    };
    if inner {
        let form = comptime!(form.interior());
        block::<S, A, M, N>(dy, &winners, dx, problem, &place, form);
    } else {
        block::<S, A, M, N>(dy, &winners, dx, problem, &place, form);
    }
}

/// Where a block is: the first window that starts at it and its first input, on each axis, in
/// vectors where the lanes lie along it.
#[derive(CubeType)]
struct Place {
    sample: i32,
    /// The vector within the pixel.
    lane: i32,
    depth: Corner,
    height: Corner,
    width: Corner,
}

#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Corner {
    window: i32,
    input: i32,
}

#[cube]
fn place_of(problem: &Blocks, unit: u32, #[comptime] form: Form) -> Place {
    let (w, lane, row) = if comptime!(form.channels) {
        tiled(&problem.tiles, &problem.width.places, unit)
    } else {
        let (row, w) = problem.width.places.div_mod(unit);
        (w, 0u32.runtime(), row)
    };
    let (plane, h) =
        if comptime!(form.rank > 1) { problem.height.places.div_mod(row) } else { (row, 0u32) };
    let (sample, d) =
        if comptime!(form.rank > 2) { problem.depth.places.div_mod(plane) } else { (plane, 0u32) };
    Place {
        sample: sample as i32,
        lane: lane as i32,
        depth: corner(&problem.depth, d as i32, form.axes[0], 1u32, 1u32),
        height: corner(&problem.height, h as i32, form.axes[1], 1u32, 1u32),
        width: corner(&problem.width, w as i32, form.axes[2], form.window_lanes, form.lanes),
    }
}

#[cube]
fn corner(
    args: &BlockAxis,
    place: i32,
    #[comptime] block: Block,
    #[comptime] windows: u32,
    #[comptime] lanes: u32,
) -> Corner {
    let input = place * comptime!((block.inputs / lanes) as i32);
    if comptime!(block.snug) {
        // Windows are one step apart.
        let input = min(input, args.inputs - comptime!(block.inputs as i32));
        Corner { window: input, input }
    } else {
        Corner { window: place * comptime!((block.inputs / block.stride / windows) as i32), input }
    }
}

/// Whether a block is away from all edges.
#[cube]
fn is_interior(problem: &Blocks, place: &Place, #[comptime] form: Form) -> bool {
    let [depth, height, width] = comptime!(form.windows());
    let counts = comptime!(form.inputs());
    let inner = is_inner(&problem.depth, &place.depth, depth, counts[0], form.axes[0])
        && is_inner(&problem.height, &place.height, height, counts[1], form.axes[1]);
    if comptime!(form.crosses()) {
        inner
    } else {
        inner && is_inner(&problem.width, &place.width, width, counts[2], form.axes[2])
    }
}

/// Whether the inputs of a block and the windows over them are there, and these windows inside.
#[cube]
fn is_inner(
    args: &BlockAxis,
    corner: &Corner,
    #[comptime] windows: (i32, u32),
    #[comptime] inputs: u32,
    #[comptime] block: Block,
) -> bool {
    let (first, count) = comptime!((windows.0, windows.1 as i32));
    let there = corner.window + first >= 0
        && corner.window + first + count <= args.outputs
        && corner.input + comptime!(inputs as i32) <= args.inputs;
    if comptime!(block.form.clipped) {
        // Beyond the first and last inputs of the windows nothing is padded.
        let x = corner.input * comptime!(block.lanes_of(inputs));
        let reach = comptime!((block.kernel - 1) as i32);
        there && x >= reach && x + comptime!(block.inputs as i32) + reach <= args.axis.input
    } else {
        there
    }
}

impl Block {
    /// The lanes of a vector, of which a block has `vectors`.
    fn lanes_of(&self, vectors: u32) -> i32 {
        (self.inputs / vectors) as i32
    }
}

/// A window, and what it tells of its gradient.
#[derive(CubeType)]
struct Window<A: Float, N: Size> {
    /// The gradient, and what each tap's share of it is multiplied or divided by, where windows have
    /// divisors of their own.
    share: Vector<A, N>,
    weight: Vector<A, N>,
    winner: Vector<i32, N>,
}

/// Computes the inputs of a block.
#[cube]
fn block<S: Float, A: Float, M: Size, N: Size>(
    dy: &[Vector<S, M>],
    winners: &ComptimeOption<Box<[Vector<i32, M>]>>,
    dx: &mut [Vector<S, N>],
    problem: &Blocks,
    place: &Place,
    #[comptime] form: Form,
) {
    let mut windows = Sequence::<Window<A, M>>::new();
    #[unroll]
    for i in 0..form.all_windows() {
        windows.push(window::<S, A, M>(dy, winners, problem, place, i, form));
    }
    // Not while they are loaded: each would wait for the one before it.
    let windows = if comptime!(form.divides_each()) {
        shared_out::<A, M>(windows, problem, place, form)
    } else {
        windows
    };
    let lines = if comptime!(form.fold.is_max()) {
        Sequence::<Vector<A, N>>::new()
    } else {
        lines::<A, M, N>(&windows, form)
    };
    #[unroll]
    for i in 0..form.all_inputs() {
        let x = comptime!(Form::split(form.inputs(), i));
        let d = place.depth.input + comptime!(x[0] as i32);
        let h = place.height.input + comptime!(x[1] as i32);
        let w = place.width.input + comptime!(x[2] as i32);
        let there = is_below(d, problem.depth.inputs, form.axes[0])
            && is_below(h, problem.height.inputs, form.axes[1])
            && is_below(w, problem.width.inputs, form.axes[2]);
        if there {
            let line = (place.sample * problem.depth.inputs + d) * problem.height.inputs + h;
            let pixel = line * problem.width.inputs + w;
            let index = index_of::<N>(problem, place, d, h, w, form);
            let mut sum = if comptime!(form.fold.is_max()) {
                gather::<A, M, N>(&windows, index, x, form)
            } else {
                gather_lines::<A, N>(&lines, x, form)
            };
            if comptime!(form.divides_once()) {
                sum = divided_once::<A, N>(problem, sum, form);
            }
            let at = pixel * problem.pixel_vectors + place.lane;
            dx[at as usize] = round::<A, S, N>(sum, form.rounds);
        }
    }
}

/// The index by which a window that the input won names it.
#[cube]
fn index_of<N: Size>(
    problem: &Blocks,
    place: &Place,
    d: i32,
    h: i32,
    w: i32,
    #[comptime] form: Form,
) -> Vector<i32, N> {
    let lanes = comptime!(form.lanes as i32);
    let line = d * problem.height.axis.input + h;
    let position = line * problem.width.axis.input + w * lanes;
    let index =
        place.sample * problem.index_batch as i32 + position * problem.index_position as i32;
    if comptime!(form.one_index) {
        Vector::new(index)
    } else {
        let first = place.lane * N::value() as i32 * problem.index_lane as i32;
        let index = index + if comptime!(form.across) { 0i32.runtime() } else { first };
        let mut indices = Vector::<i32, N>::new(index);
        #[unroll]
        for i in 0..N::value() {
            indices.insert(i, index + i as i32 * problem.index_lane as i32);
        }
        indices
    }
}

/// Adds up what an input gets from the windows that it won.
#[cube]
fn gather<A: Float, M: Size, N: Size>(
    windows: &Sequence<Window<A, M>>,
    index: Vector<i32, N>,
    #[comptime] x: [u32; AXES],
    #[comptime] form: Form,
) -> Vector<A, N> {
    let zero = Vector::<A, N>::new(A::from_int(0));
    let steps = comptime!(form.steps(x));
    let mut sum = zero;
    #[unroll]
    for i in 0..comptime!(steps[0] * steps[1] * steps[2]) {
        let step = comptime!(Form::split(steps, i));
        let line = comptime!(form.line_over(x, [step[0], step[1]]));
        let window = window_at::<A, M, N>(windows, line, x[2], step[2], form);
        sum = select_many(window.winner.equal(&index), sum + window.share, sum);
    }
    sum
}

/// The window `step` on `line` of those over input vector `w`: of each lane its own.
#[cube]
fn window_at<A: Float, M: Size, N: Size>(
    windows: &Sequence<Window<A, M>>,
    #[comptime] line: usize,
    #[comptime] w: u32,
    #[comptime] step: u32,
    #[comptime] form: Form,
) -> Window<A, N> {
    let first = comptime!(line * form.windows()[2].1 as usize);
    if comptime!(!form.across) {
        // Lanes that are channels are as many in all vectors.
        let window = windows.index(comptime!(first + form.on_line(w, step, 0).0));
        Window::<A, N> {
            share: Vector::cast_from(window.share),
            weight: Vector::cast_from(window.weight),
            winner: Vector::cast_from(window.winner),
        }
    } else {
        let mut share = Vector::<A, N>::new(A::from_int(0));
        let mut weight = Vector::<A, N>::new(A::from_int(1));
        let mut winner = Vector::<i32, N>::new(-1i32);
        #[unroll]
        for lane in 0..N::value() {
            if comptime!(form.over_lane(w, lane as u32).1 > step) {
                let (vector, element) = comptime!(form.on_line(w, step, lane as u32));
                let window = windows.index(comptime!(first + vector));
                share.insert(lane, window.share.extract(element));
                weight.insert(lane, window.weight.extract(element));
                winner.insert(lane, window.winner.extract(element));
            }
        }
        Window::<A, N> { share, weight, winner }
    }
}

/// The shares of the inputs of a block from each line of windows, which inputs that differ only
/// in their lines have in common.
#[cube]
fn lines<A: Float, M: Size, N: Size>(
    windows: &Sequence<Window<A, M>>,
    #[comptime] form: Form,
) -> Sequence<Vector<A, N>> {
    let mut lines = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for line in 0..form.all_lines() {
        #[unroll]
        for w in 0..comptime!(form.inputs()[2]) {
            let steps = comptime!(form.steps([0, 0, w])[2]);
            let mut sum = Vector::<A, N>::new(A::from_int(0));
            #[unroll]
            for step in 0..steps {
                let window = window_at::<A, M, N>(windows, line as usize, w, step, form);
                sum = added::<A, N>(sum, &window, comptime!(step == 0), form);
            }
            lines.push(sum);
        }
    }
    lines
}

/// A sum and the share that a window adds to it; the share alone, if it is the `first`.
#[cube]
fn added<A: Float, N: Size>(
    sum: Vector<A, N>,
    window: &Window<A, N>,
    #[comptime] first: bool,
    #[comptime] form: Form,
) -> Vector<A, N> {
    if comptime!(form.divides_each() && form.reciprocal && !first) {
        fma(window.share, window.weight, sum)
    } else {
        let share = if comptime!(!form.divides_each()) {
            window.share
        } else if comptime!(form.reciprocal) {
            window.share * window.weight
        } else {
            window.share / window.weight
        };
        if comptime!(first) { share } else { sum + share }
    }
}

/// Adds up the shares of an input from the lines of windows over it.
#[cube]
fn gather_lines<A: Float, N: Size>(
    lines: &Sequence<Vector<A, N>>,
    #[comptime] x: [u32; AXES],
    #[comptime] form: Form,
) -> Vector<A, N> {
    let count = comptime!(form.lines_over(x));
    let mut sum = if comptime!(count > 0) {
        *lines.index(comptime!(form.line_sum(x, 0)))
    } else {
        Vector::<A, N>::new(A::from_int(0))
    };
    #[unroll]
    for i in 1..count {
        sum += *lines.index(comptime!(form.line_sum(x, i)));
    }
    sum
}

/// Loads vector `i` of the windows over a block; windows that are not there share nothing.
#[cube]
fn window<S: Float, A: Float, N: Size>(
    dy: &[Vector<S, N>],
    winners: &ComptimeOption<Box<[Vector<i32, N>]>>,
    problem: &Blocks,
    place: &Place,
    #[comptime] i: u32,
    #[comptime] form: Form,
) -> Window<A, N> {
    let windows = comptime!(form.windows());
    let at = comptime!(Form::split([windows[0].1, windows[1].1, windows[2].1], i));
    let d = place.depth.window + comptime!(windows[0].0 + at[0] as i32);
    let h = place.height.window + comptime!(windows[1].0 + at[1] as i32);
    let w = place.width.window + comptime!(windows[2].0 + at[2] as i32);
    let [always_d, always_h, always_w] = comptime!([0, 1, 2].map(|i| form.axes[i].always(at[i])));
    let there = is_there(&problem.depth, d, always_d)
        && is_there(&problem.height, h, always_h)
        && is_there(&problem.width, w, always_w);
    let d = moved(&problem.depth, d, always_d);
    let h = moved(&problem.height, h, always_h);
    let w = moved(&problem.width, w, always_w);
    let line = (place.sample * problem.depth.outputs + d) * problem.height.outputs + h;
    let pixel = line * problem.width.outputs + w;
    let at = (pixel * problem.pixel_vectors + place.lane) as usize;
    let share = if comptime!(always_d && always_h && always_w) {
        widen::<S, A, N>(dy[at], form.widened)
    } else {
        widen_kept::<S, A, N>(dy[at], there, form.widened)
    };
    let weight = Vector::new(A::from_int(1));
    #[comptime]
    match winners {
        ComptimeOption::Some(winners) => Window::<A, N> { share, weight, winner: winners[at] },
        ComptimeOption::None => Window::<A, N> { share, weight, winner: Vector::new(-1i32) },
    }
}

/// Whether an input of a block is there.
#[cube]
fn is_below(x: i32, inputs: i32, #[comptime] block: Block) -> bool {
    if comptime!(block.whole || block.snug) { true.runtime() } else { x < inputs }
}

#[cube]
fn is_there(args: &BlockAxis, o: i32, #[comptime] always: bool) -> bool {
    if comptime!(always) { true.runtime() } else { o >= 0 && o < args.outputs }
}

/// The window, or the nearest one that is there.
#[cube]
fn moved(args: &BlockAxis, o: i32, #[comptime] always: bool) -> i32 {
    if comptime!(always) { o } else { min(max(o, 0i32), args.outputs - 1) }
}

/// The windows of a block, with what each tap's share of their gradients is multiplied or divided by.
/// Lanes along the width have divisors of their own, those along the channels one, which is not to be
/// made for each.
#[cube]
fn shared_out<A: Float, N: Size>(
    windows: Sequence<Window<A, N>>,
    problem: &Blocks,
    place: &Place,
    #[comptime] form: Form,
) -> Sequence<Window<A, N>> {
    let [depth, height, width] = comptime!(form.windows());
    let lanes = comptime!(form.window_lanes as usize);
    let columns = comptime!(width.1 as usize);
    // Most lines have all their taps: what their windows are divided by hangs on the column only.
    let all = comptime!((form.axes[0].kernel * form.axes[1].kernel) as i32);
    let mut counts = Sequence::<i32>::new();
    let mut usual = Sequence::<A>::new();
    #[unroll]
    for i in 0..columns {
        let w = place.width.window + comptime!(width.0 + i as i32);
        let w = moved(&problem.width, w, comptime!(form.axes[2].always(i as u32))) * lanes as i32;
        #[unroll]
        for lane in 0..lanes {
            let o = (w + lane as i32) as u32;
            let count = counted_at(&problem.width.axis, o, form.axes[2].form, form.fold);
            counts.push(count);
            usual.push(if comptime!(form.compares()) {
                column_factor::<A>(count, form.axes[2])
            } else {
                usual_of::<A>(problem, count, all, form)
            });
        }
    }
    let mut shares = Sequence::<Window<A, N>>::new();
    #[unroll]
    for line in 0..comptime!(depth.1 * height.1) {
        let d = place.depth.window + comptime!(depth.0 + (line / height.1) as i32);
        let h = place.height.window + comptime!(height.0 + (line % height.1) as i32);
        let always = comptime!(form.axes[0].always(line / height.1));
        let d = moved(&problem.depth, d, always);
        let always = comptime!(form.axes[1].always(line % height.1));
        let h = moved(&problem.height, h, always);
        let taps = counted_at(&problem.depth.axis, d as u32, form.axes[0].form, form.fold)
            * counted_at(&problem.height.axis, h as u32, form.axes[1].form, form.fold);
        let mut own = Sequence::<RuntimeCell<A>>::new();
        let factor = if comptime!(form.compares()) {
            line_factor::<A>(problem, taps, form)
        } else {
            A::from_int(1)
        };
        #[unroll]
        for i in 0..comptime!(columns * lanes) {
            let usual = *usual.index(i);
            own.push(RuntimeCell::new(if comptime!(form.compares()) {
                factor * usual
            } else {
                usual
            }));
        }
        if comptime!(!form.compares()) && taps != all {
            #[unroll]
            for i in 0..comptime!(columns * lanes) {
                own.index(i).store(over::<A>(*counts.index(i) * taps, form));
            }
        }
        #[unroll]
        for i in 0..columns {
            let window = windows.index(comptime!(line as usize * columns + i));
            let mut divisors = Vector::<A, N>::new(own.index(comptime!(i * lanes)).read());
            #[unroll]
            for lane in 1..lanes {
                divisors.insert(lane, own.index(comptime!(i * lanes + lane)).read());
            }
            let (share, winner) = (window.share, window.winner);
            shares.push(Window::<A, N> { share, weight: divisors, winner });
        }
    }
    shares
}

/// What a column of windows multiplies that have `count` taps of the width: all of them over these.
#[cube]
fn column_factor<A: Float>(count: i32, #[comptime] block: Block) -> A {
    let kernel = comptime!(block.kernel);
    let mut factor = A::from_int(1);
    if comptime!(block.form.clipped) {
        #[unroll]
        for taps in 1..kernel {
            let own = A::new(comptime!(f64::from(kernel) / f64::from(taps)));
            factor = select(count == taps as i32, own, factor);
        }
    }
    factor
}

/// What a line of windows multiplies that have `count` taps on it, were all those of the width there.
#[cube]
fn line_factor<A: Float>(problem: &Blocks, count: i32, #[comptime] form: Form) -> A {
    let [_, height, width] = comptime!(form.axes.map(|block| block.kernel));
    let mut factor = problem.reciprocal.get::<A>();
    if comptime!(form.axes[1].form.clipped) {
        #[unroll]
        for taps in 1..height {
            let own = A::new(comptime!(1.0 / f64::from(taps * width)));
            factor = select(count == taps as i32, own, factor);
        }
    }
    factor
}

/// What `over` makes of `count` taps of the width and all of the other axes, without a division where
/// there are all of the width too.
#[cube]
fn usual_of<A: Float>(problem: &Blocks, count: i32, all: i32, #[comptime] form: Form) -> A {
    let divisor = if comptime!(form.reciprocal) {
        RuntimeCell::<A>::new(problem.reciprocal.get::<A>())
    } else {
        RuntimeCell::<A>::new(A::cast_from(count * all))
    };
    if comptime!(form.reciprocal) && count != problem.width.axis.kernel {
        divisor.store(over::<A>(count * all, form));
    }
    divisor.read()
}

/// A number of taps, or one over it where shares are made by reciprocals.
#[cube]
fn over<A: Float>(taps: i32, #[comptime] form: Form) -> A {
    if comptime!(form.reciprocal) {
        A::from_int(1) / A::cast_from(taps)
    } else {
        A::cast_from(taps)
    }
}

/// The sum of shares of windows that all have one divisor.
#[cube]
fn divided_once<A: Float, N: Size>(
    problem: &Blocks,
    sum: Vector<A, N>,
    #[comptime] form: Form,
) -> Vector<A, N> {
    if comptime!(form.reciprocal) {
        sum * Vector::new(problem.reciprocal.get::<A>())
    } else if comptime!(form.fold == Fold::AverageFixed) {
        sum / Vector::new(A::cast_from(problem.divisor))
    } else {
        let taps =
            problem.depth.axis.kernel * problem.height.axis.kernel * problem.width.axis.kernel;
        sum / Vector::new(A::cast_from(taps))
    }
}
