//! Small planes, whole in shared memory: for channels-first images whose rows no vector divides.
//!
//! ```text
//! for each cube: a few planes, which lie one after the other in memory
//!     stage them:       word after word, as they lie
//!     for each block of R rows by V columns of their windows:      one unit, all unrolled
//!         for each row x that the block reads:
//!             load what its windows read; fold for each column its taps of the width
//!         fold for each window its rows
//!     write the results over the planes, and then word after word to memory
//! ```
//!
//! A plane of 35 × 35 has no row but the first that begins where a vector could; yet several planes
//! do as a whole. So memory sees nothing but full words in a row, whatever the extents, and each of
//! them once. Coordinates outside the input are moved to the nearest inside, which for a maximum the
//! window has too; in a sum they are dropped.
//!
//! The gradient of an average whose windows are one step apart is such a sum as well: that of the
//! shares of the windows over an input, which are made while they are staged.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Pooling};

use super::backward::Gradient;
use super::direct::{Form as Tap, Problem, counted_at, problem_args};
use super::launch::{grid, vectors};
use super::plan::{Output, Plan, Reduction, pixel_channels, widest_divisor};
use crate::axis::AxisForm;
use crate::dtype::{elem, maximum, round, widen};

/// The bytes of a cube's planes.
pub(super) const SHARED_BYTES: usize = 24 << 10;

/// The most loads of a block, all unrolled.
const MOST_LOADS: usize = 128;

/// The loads of a unit that are in flight at once while planes are staged.
const FLIGHT: u32 = 8;

/// The bytes that a unit moves at once.
const WORD_BYTES: usize = 4;

/// One number.
type One = Const<1>;

/// An axis as the blocks of windows see it: of a gradient the windows are those over an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side {
    input: usize,
    output: usize,
    kernel: usize,
    stride: usize,
    before: i32,
}

fn sides(pooling: &Pooling, gradient: bool) -> [Side; AXES] {
    pooling.grid().axes().each_ref().map(|axis| match gradient {
        false => Side {
            input: axis.input(),
            output: axis.output(),
            kernel: axis.kernel(),
            stride: axis.stride(),
            before: axis.before() as i32,
        },
        true => Side {
            input: axis.output(),
            output: axis.input(),
            kernel: axis.kernel(),
            stride: 1,
            before: axis.kernel() as i32 - 1 - axis.before() as i32,
        },
    })
}

/// The rows and columns of windows of a block: several where windows overlap, as many as unrolled
/// loops have room for. An odd number of columns keeps neighbouring units on different banks.
pub(super) fn block(pooling: &Pooling) -> [usize; 2] {
    let [depth, height, width] = pooling.grid().axes();
    let most = |axis: &Axis, n: usize| if overlaps(axis) { n } else { 1 };
    let sizes = [[4, 5], [4, 3], [2, 3], [2, 1], [1, 1]];
    let sizes = sizes.map(|[rows, columns]| [most(height, rows), most(width, columns)]);
    let fits = |&size: &[usize; 2]| depth.kernel() * loads(pooling, size) <= MOST_LOADS;
    sizes.into_iter().find(fits).unwrap_or([1, 1])
}

/// Whether there are windows that overlap.
pub(super) fn overlaps(axis: &Axis) -> bool {
    axis.kernel() > axis.stride() && axis.output() > 1
}

/// The elements of a plane that a block reads.
fn loads(pooling: &Pooling, [rows, columns]: [usize; 2]) -> usize {
    let reads = |n: usize, axis: &Axis| (n - 1) * axis.stride() + axis.kernel();
    let [_, height, width] = pooling.grid().axes();
    reads(rows, height) * reads(columns, width)
}

/// The planes of a cube: those that fit in its memory and whose blocks have a unit each.
fn planes_a_cube(pooling: &Pooling, accumulator: DType, units: u32, gradient: bool) -> usize {
    let sides = sides(pooling, gradient);
    let [rows, columns] = block(pooling);
    let [depth, height, width] = sides.map(|side| side.output);
    let blocks = depth * height.div_ceil(rows) * width.div_ceil(columns);
    let plane = |of: fn(&Side) -> usize| sides.iter().map(of).product::<usize>();
    let longest = plane(|side| side.input).max(plane(|side| side.output));
    let room = SHARED_BYTES / accumulator.size() / longest;
    let fit = room.min(units as usize / blocks);
    // Whole words, where several planes make them.
    let words = WORD_BYTES / 2;
    if fit > words { fit / words * words } else { fit }
}

/// The elements of a word that divides the planes of a cube, and all of them.
pub(super) fn lanes(
    pooling: &Pooling,
    dtype: DType,
    accumulator: DType,
    units: u32,
    gradient: bool,
) -> usize {
    let word = (WORD_BYTES / dtype.size()).max(1);
    let group = planes_a_cube(pooling, accumulator, units, gradient).max(1);
    let samples = pooling.input().elements() / pooling.input().plane();
    [pooling.input(), pooling.output()].into_iter().fold(word, |lanes, shape| {
        let divided = widest_divisor(group * shape.plane(), lanes);
        widest_divisor(samples * shape.plane(), divided)
    })
}

/// Whether planes are small enough, and their windows such that blocks of them can be unrolled.
pub(super) fn fits(
    pooling: &Pooling,
    reduction: Reduction,
    accumulator: DType,
    units: u32,
    gradient: bool,
) -> bool {
    let axes = pooling.grid().axes();
    let plain = |axis: &Axis| axis.dilation() == 1 && !axis.may_be_empty() && !axis.is_fitted();
    let computed = match reduction {
        Reduction::Max(Output::Values) => !gradient,
        Reduction::Average(_) => !gradient || axes.iter().all(|axis| axis.stride() == 1),
        _ => false,
    };
    pixel_channels(pooling) == 1
        && computed
        && axes.iter().all(plain)
        && axes[0].kernel() * loads(pooling, block(pooling)) <= MOST_LOADS
        && planes_a_cube(pooling, accumulator, units, gradient) > 0
}

/// The numbers of an axis, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct SideArgs {
    input: i32,
    inputs: FastDivmod<u32>,
    output: u32,
    before: i32,
}

/// The numbers of the planes, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct PlaneArgs {
    /// All planes, and those of a cube.
    planes: u32,
    group: FastDivmod<u32>,
    group_planes: u32,
    /// The elements of a plane that is read, and of one that is written.
    input: u32,
    output: u32,
    /// The blocks along the width and the height, and the rows of blocks of a plane.
    columns: FastDivmod<u32>,
    rows: FastDivmod<u32>,
    all_rows: u32,
    depth: SideArgs,
    height: SideArgs,
    width: SideArgs,
}

fn side_args(side: Side) -> SideArgsLaunch {
    SideArgsLaunch::new(side.input as i32, side.input as u32, side.output as u32, side.before)
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    tap: Tap,
    gradient: bool,
    /// The rows and columns of a block.
    rows: u32,
    columns: u32,
    /// The taps and the steps of the windows on each axis.
    kernel: [u32; AXES],
    stride: [u32; AXES],
    units: u32,
    /// The elements of a cube's planes.
    capacity: usize,
}

impl Form {
    /// The rows that a block reads, or the columns.
    fn reads(&self, axis: usize) -> u32 {
        let windows = [1, self.rows, self.columns][axis];
        (windows - 1) * self.stride[axis] + self.kernel[axis]
    }

    fn axis(&self, i: usize) -> AxisForm {
        [self.tap.depth, self.tap.height, self.tap.width][i]
    }

    /// Whether coordinates of axis `i` may be outside for a window that is there.
    fn drops(&self, i: usize) -> bool {
        !self.tap.fold.is_max() && (self.axis(i).clipped || (self.gradient && self.kernel[i] > 1))
    }

    /// Whether all windows are divided by the same number, so that sums may be.
    fn divides_once(&self) -> bool {
        self.tap.fold.is_fixed() || (0..AXES).all(|i| !self.axis(i).clipped)
    }

    /// Whether each sum is divided by a number of its window's own; of a gradient the shares are.
    fn divides_each(&self) -> bool {
        !self.tap.fold.is_max() && !self.gradient && !self.divides_once()
    }
}

/// Launches the forward kernel; the caller has checked plan and buffers.
pub(super) fn launch(
    client: &Client,
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
    buffers: [&Handle; 2],
) {
    run(client, pooling, reduction, dtype, plan, buffers, false);
}

/// Launches the gradient; the caller has checked plan and buffers.
pub(super) fn launch_backward(
    client: &Client,
    pooling: &Pooling,
    gradient: Gradient,
    dtype: DType,
    plan: &Plan,
    buffers: [&Handle; 2],
) {
    run(client, pooling, gradient.reduction(), dtype, plan, buffers, true);
}

fn run(
    client: &Client,
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
    [input, output]: [&Handle; 2],
    gradient: bool,
) {
    let sides = sides(pooling, gradient);
    let [rows, columns] = block(pooling);
    let form = Form {
        tap: Tap::new(pooling, reduction, dtype, &each(plan)),
        gradient,
        rows: rows as u32,
        columns: columns as u32,
        kernel: sides.map(|side| side.kernel as u32),
        stride: sides.map(|side| side.stride as u32),
        units: plan.units,
        capacity: SHARED_BYTES / plan.accumulator.size(),
    };
    let group = planes_a_cube(pooling, plan.accumulator, plan.units, gradient);
    let planes = pooling.input().elements() / pooling.input().plane();
    let [depth, height, width] = sides;
    let row_blocks = height.output.div_ceil(rows);
    let plane = |of: fn(&Side) -> usize| sides.iter().map(of).product::<usize>();
    let (inputs, outputs) = (plane(|side| side.input), plane(|side| side.output));
    let args = PlaneArgsLaunch::new(
        planes as u32,
        group as u32,
        group as u32,
        inputs as u32,
        outputs as u32,
        width.output.div_ceil(columns) as u32,
        row_blocks as u32,
        (depth.output * row_blocks) as u32,
        side_args(depth),
        side_args(height),
        side_args(width),
    );
    let (cubes, dim) = grid(client, plan, planes.div_ceil(group) * plan.units as usize);
    // SAFETY: coordinates and words are moved inside before they are read, and what is not there is
    // not written.
    unsafe {
        blocks::launch_unchecked(
            client,
            cubes,
            dim,
            plan.lanes,
            vectors(input, planes * inputs, plan.lanes),
            vectors(output, planes * outputs, plan.lanes),
            problem_args(pooling, reduction, dtype, &each(plan)),
            args,
            form,
            elem(dtype),
            elem(plan.accumulator),
        )
    };
}

/// The plan as windows see it, whose results are single numbers.
fn each(plan: &Plan) -> Plan {
    Plan { lanes: 1, across: false, unrolled: false, ..*plan }
}

/// `S` is how elements are stored, `A` how they are compared and summed.
#[cube(launch_unchecked)]
fn blocks<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    problem: &Problem,
    args: &PlaneArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let mut shared = Shared::<[Vector<A, One>]>::new_slice(form.capacity);
    let first = CUBE_POS as u32 * args.group_planes;
    let planes = min(max(args.planes, first) - first, args.group_planes);
    stage::<S, A, N>(input, &mut shared, problem, args, first, planes, form);
    sync_cube();

    let place = place_of(args, planes, form);
    let results = block_of::<A>(&shared, problem, args, &place, form);
    sync_cube();

    #[unroll]
    for i in 0..form.rows {
        let h = place.height + i;
        #[unroll]
        for j in 0..form.columns {
            let w = place.width + j;
            if place.works && h < args.height.output && w < args.width.output {
                let row = place.depth * args.height.output + h;
                let at = place.plane * args.output + row * args.width.output + w;
                shared[at as usize] = *results.index(comptime!((i * form.columns + j) as usize));
            }
        }
    }
    sync_cube();

    let base = first * args.output / N::value() as u32;
    for v in range_stepped(UNIT_POS, planes * args.output / N::value() as u32, form.units) {
        let mut word = Vector::<A, N>::new(A::from_int(0));
        #[unroll]
        for i in 0..N::value() {
            word.insert(i, shared[v as usize * N::value() + i].extract(0usize));
        }
        output[(base + v) as usize] = if comptime!(form.tap.fold.is_max()) {
            Vector::cast_from(word)
        } else {
            round::<A, S, N>(word, form.tap.rounds)
        };
    }
}

/// Brings a cube's planes to shared memory; of a gradient, each window's share.
#[cube]
fn stage<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    shared: &mut Shared<[Vector<A, One>]>,
    problem: &Problem,
    args: &PlaneArgs,
    first: u32,
    planes: u32,
    #[comptime] form: Form,
) {
    let base = first * args.input / N::value() as u32;
    let words = planes * args.input / N::value() as u32;
    let step = comptime!(form.units * FLIGHT);
    let rounds = words / step;
    for i in 0..rounds {
        let v = i * step + UNIT_POS;
        round_of::<S, A, N>(input, shared, problem, args, base, v, words, true, form);
    }
    if rounds * step < words {
        let v = rounds * step + UNIT_POS;
        round_of::<S, A, N>(input, shared, problem, args, base, v, words, false, form);
    }
}

/// Stages the words of a unit that are in flight at once; all are there, if they are `whole`.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn round_of<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    shared: &mut Shared<[Vector<A, One>]>,
    problem: &Problem,
    args: &PlaneArgs,
    base: u32,
    v: u32,
    words: u32,
    #[comptime] whole: bool,
    #[comptime] form: Form,
) {
    let mut loaded = Sequence::<Vector<S, N>>::new();
    #[unroll]
    for i in 0..FLIGHT {
        let v = v + comptime!(i * form.units);
        let there = if comptime!(whole) { v } else { min(v, words - 1) };
        loaded.push(input[(base + there) as usize]);
    }
    #[unroll]
    for i in 0..FLIGHT {
        let v = v + comptime!(i * form.units);
        if comptime!(whole) || v < words {
            keep::<S, A, N>(shared, problem, args, v, *loaded.index(i as usize), form);
        }
    }
}

#[cube]
fn keep<S: Float, A: Float, N: Size>(
    shared: &mut Shared<[Vector<A, One>]>,
    problem: &Problem,
    args: &PlaneArgs,
    v: u32,
    word: Vector<S, N>,
    #[comptime] form: Form,
) {
    let wide = widen::<S, A, N>(word, form.tap.widened);
    #[unroll]
    for i in 0..N::value() {
        let at = v * N::value() as u32 + i as u32;
        let element = Vector::<A, One>::new(wide.extract(i));
        shared[at as usize] = if comptime!(form.gradient && !form.divides_once()) {
            share::<A>(problem, args, at, element, form)
        } else {
            element
        };
    }
}

/// What each tap gets of the gradient of the window that is element `at` of a cube's planes.
#[cube]
fn share<A: Float>(
    problem: &Problem,
    args: &PlaneArgs,
    at: u32,
    gradient: Vector<A, One>,
    #[comptime] form: Form,
) -> Vector<A, One> {
    let (row, w) = args.width.inputs.div_mod(at);
    let (line, h) = args.height.inputs.div_mod(row);
    let d = args.depth.inputs.modulo(line);
    let taps = counted_at(&problem.depth, d, form.axis(0), form.tap.fold)
        * counted_at(&problem.height, h, form.axis(1), form.tap.fold)
        * counted_at(&problem.width, w, form.axis(2), form.tap.fold);
    if comptime!(form.tap.reciprocal) {
        gradient * Vector::new(A::from_int(1) / A::cast_from(taps))
    } else {
        gradient / Vector::new(A::cast_from(taps))
    }
}

/// Where a block of windows is.
#[derive(CubeType)]
struct Place {
    /// The plane among the cube's, and the first window on each axis.
    plane: u32,
    depth: u32,
    height: u32,
    width: u32,
    /// Whether there is such a block.
    works: bool,
}

/// The blocks at the edges lie together, so that few warps have any.
#[cube]
fn place_of(args: &PlaneArgs, planes: u32, #[comptime] form: Form) -> Place {
    let (rest, column) = args.columns.div_mod(UNIT_POS);
    let (row, plane) = args.group.div_mod(rest);
    let works = row < args.all_rows && plane < planes;
    let (d, h) = args.rows.div_mod(min(row, args.all_rows - 1));
    Place { plane, depth: d, height: h * form.rows, width: column * form.columns, works }
}

/// A coordinate inside the input, and whether it was so before it was moved there.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Coordinate {
    x: i32,
    inside: bool,
}

/// Coordinate `j` of those that a block reads which begins at window `o`.
#[cube]
fn coordinate(
    side: &SideArgs,
    o: u32,
    #[comptime] j: u32,
    #[comptime] axis: usize,
    #[comptime] form: Form,
) -> Coordinate {
    let x = (o * comptime!(form.stride[axis])) as i32 - side.before + j as i32;
    let there = min(max(x, 0i32), side.input - 1);
    Coordinate { x: there, inside: x == there }
}

/// Computes the windows of a block, row by row.
#[cube]
fn block_of<A: Float>(
    shared: &Shared<[Vector<A, One>]>,
    problem: &Problem,
    args: &PlaneArgs,
    place: &Place,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let mut columns = Sequence::<Coordinate>::new();
    #[unroll]
    for j in 0..form.reads(2) {
        columns.push(coordinate(&args.width, place.width, j, 2usize, form));
    }
    // Of each row and column of windows, the fold of the taps of the width and the depth.
    let mut rows = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for i in 0..form.reads(1) {
        let y = coordinate(&args.height, place.height, i, 1usize, form);
        let mut lines = Sequence::<Vector<A, One>>::new();
        #[unroll]
        for t in 0..form.kernel[0] {
            line::<A>(shared, args, place, &columns, t, &y, &mut lines, form);
        }
        #[unroll]
        for j in 0..form.columns {
            let mut fold = *lines.index(j as usize);
            #[unroll]
            for t in 1..form.kernel[0] {
                let next = *lines.index(comptime!((t * form.columns + j) as usize));
                fold = folded::<A>(fold, next, form);
            }
            rows.push(fold);
        }
    }
    let mut results = Sequence::<Vector<A, One>>::new();
    let divisors = divisors::<A>(problem, args, place, form);
    #[unroll]
    for i in 0..form.rows {
        #[unroll]
        for j in 0..form.columns {
            let top = comptime!((i * form.stride[1] * form.columns + j) as usize);
            let mut fold = *rows.index(top);
            #[unroll]
            for t in 1..form.kernel[1] {
                let next = comptime!(((i * form.stride[1] + t) * form.columns + j) as usize);
                fold = folded::<A>(fold, *rows.index(next), form);
            }
            let divisor = if comptime!(form.divides_each()) {
                *divisors.index(comptime!((i * form.columns + j) as usize))
            } else {
                Vector::new(A::from_int(1))
            };
            results.push(finished::<A>(problem, fold, divisor, form));
        }
    }
    results
}

#[cube]
fn folded<A: Float>(
    a: Vector<A, One>,
    b: Vector<A, One>,
    #[comptime] form: Form,
) -> Vector<A, One> {
    if comptime!(form.tap.fold.is_max()) {
        maximum::<A, One>(a, b, form.tap.maximum)
    } else {
        a + b
    }
}

/// Of each column of windows, the fold of the taps of the width on one line.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn line<A: Float>(
    shared: &Shared<[Vector<A, One>]>,
    args: &PlaneArgs,
    place: &Place,
    columns: &Sequence<Coordinate>,
    #[comptime] td: u32,
    y: &Coordinate,
    folds: &mut Sequence<Vector<A, One>>,
    #[comptime] form: Form,
) {
    let z = coordinate(&args.depth, place.depth, td, 0usize, form);
    let line = (z.x * args.height.input + y.x) * args.width.input;
    let line = (place.plane * args.input) as i32 + line;
    let zero = Vector::<A, One>::new(A::from_int(0));
    let mut loaded = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for j in 0..form.reads(2) {
        let column = columns.index(j as usize);
        let value = shared[(line + column.x) as usize];
        if comptime!(form.drops(2)) {
            loaded.push(select(column.inside, value, zero));
        } else {
            loaded.push(value);
        }
    }
    #[unroll]
    for j in 0..form.columns {
        let mut fold = *loaded.index(comptime!((j * form.stride[2]) as usize));
        #[unroll]
        for t in 1..form.kernel[2] {
            let next = *loaded.index(comptime!((j * form.stride[2] + t) as usize));
            fold = folded::<A>(fold, next, form);
        }
        if comptime!(form.drops(0) || form.drops(1)) {
            folds.push(select(y.inside && z.inside, fold, zero));
        } else {
            folds.push(fold);
        }
    }
}

/// What the sums of a block's windows are divided by, or one over it; nothing, where that is not
/// the windows' own.
#[cube]
fn divisors<A: Float>(
    problem: &Problem,
    args: &PlaneArgs,
    place: &Place,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let mut divisors = Sequence::<Vector<A, One>>::new();
    if comptime!(form.divides_each()) {
        let depth = counted_at(&problem.depth, place.depth, form.axis(0), form.tap.fold);
        // Most rows have all their taps: what their windows are divided by hangs on the column only.
        let all = comptime!((form.kernel[0] * form.kernel[1]) as i32);
        let mut columns = Sequence::<i32>::new();
        let mut usual = Sequence::<A>::new();
        #[unroll]
        for j in 0..form.columns {
            let o = min(place.width + j, args.width.output - 1);
            let taps = counted_at(&problem.width, o, form.axis(2), form.tap.fold);
            columns.push(taps);
            usual.push(over::<A>(taps * all, form));
        }
        #[unroll]
        for i in 0..form.rows {
            let o = min(place.height + i, args.height.output - 1);
            let taps = depth * counted_at(&problem.height, o, form.axis(1), form.tap.fold);
            let mut own = Sequence::<RuntimeCell<A>>::new();
            #[unroll]
            for j in 0..form.columns as usize {
                own.push(RuntimeCell::new(*usual.index(j)));
            }
            if taps != all {
                #[unroll]
                for j in 0..form.columns as usize {
                    own.index(j).store(over::<A>(taps * *columns.index(j), form));
                }
            }
            #[unroll]
            for j in 0..form.columns as usize {
                divisors.push(Vector::new(own.index(j).read()));
            }
        }
    }
    divisors
}

/// A number of taps, or one over it where sums are multiplied by that.
#[cube]
fn over<A: Float>(taps: i32, #[comptime] form: Form) -> A {
    if comptime!(form.tap.reciprocal) {
        A::from_int(1) / A::cast_from(taps)
    } else {
        A::cast_from(taps)
    }
}

/// What becomes of a fold.
#[cube]
fn finished<A: Float>(
    problem: &Problem,
    fold: Vector<A, One>,
    divisor: Vector<A, One>,
    #[comptime] form: Form,
) -> Vector<A, One> {
    if comptime!(form.divides_each()) {
        if comptime!(form.tap.reciprocal) { fold * divisor } else { fold / divisor }
    } else if comptime!(!form.tap.fold.is_max() && form.divides_once()) {
        if comptime!(form.tap.reciprocal) {
            fold * Vector::new(problem.reciprocal.get::<A>())
        } else if comptime!(form.tap.fold.is_fixed()) {
            fold / Vector::new(A::cast_from(problem.divisor))
        } else {
            fold / Vector::new(A::cast_from(comptime!(form.kernel.iter().product::<u32>())))
        }
    } else {
        fold
    }
}
