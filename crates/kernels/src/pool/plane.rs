//! Small planes, whole in shared memory: for channels-first images whose rows no vector divides.
//!
//! ```text
//! for each cube: a few planes, which lie one after the other in memory
//!     stage them:            vector after vector, as they lie
//!     for each V columns of windows, and each segment of their rows:      one unit
//!         for each row x, from top to bottom:
//!             load what the windows read of it; fold for each its taps of the width
//!             fold for each the rows of the window that ends here
//!     write the results beside the planes, and then vector after vector to memory
//! ```
//!
//! A plane of 35 × 35 has no row but the first that begins where a vector could; yet several planes
//! do as a whole. So memory sees nothing but full vectors in a row, whatever the extents, and each of
//! them once. A row's folds stay in registers for the windows below that have it too, and a window
//! that is inside costs no test of where it is: columns outside are dropped by what is known of a unit's
//! columns, rows outside only where there are some.
//!
//! The gradient of an average whose windows are one step apart is such a sum as well: that of the
//! shares of the windows over an input, each its gradient times one over its divisor. Where a window has few
//! taps these are found by comparison, and its rows are computed a few at once to the last.

use core::ops::Range;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Pooling};

use super::backward::Gradient;
use super::launch::{grid, vectors};
use super::plan::{Output, Plan, Reduction, pixel_channels, widest_divisor};
use super::runs::{Run, windows};
use super::window::{Fold, Form as Tap, Problem, counted_at, problem_args, together};
use crate::axis::AxisForm;
use crate::dtype::{elem, round, widen};

/// The bytes of a cube's planes and their results.
pub(super) const SHARED_BYTES: usize = 24 << 10;

/// Those of a gradient of windows of few taps, of elements of four bytes: four planes of a common size,
/// where there had been two, are work for all units, each with a longer column.
const MORE_BYTES: usize = 40 << 10;

/// The bytes of a cube's planes and their results on a device whose cubes have `most`.
fn shared_bytes(pooling: &Pooling, dtype: DType, gradient: bool, most: usize) -> usize {
    let more = gradient && has_few_taps(pooling) && dtype.size() == 4 && MORE_BYTES <= most;
    if more { MORE_BYTES } else { SHARED_BYTES }
}

/// The most loads of one window, all unrolled.
const MOST_LOADS: usize = 128;

/// The loads of a unit that are in flight at once while planes are staged: most cubes' planes.
const FLIGHT: u32 = 9;

/// The most bytes that a unit moves at once.
const WORD_BYTES: usize = 16;

/// The elements before and after the planes in shared memory, for columns outside are loaded too.
const MARGIN: usize = 128;

/// The units of a cube, for planes of all sizes: new ones compile no new kernel.
pub(super) const UNITS: u32 = 160;

/// The least rows of windows of a unit, where a plane has as many.
const LEAST_ROWS: usize = 8;

/// One number, and a pair.
type One = Const<1>;
type Two = Const<2>;

/// An axis as the windows of a unit see it: of a gradient the windows are those over an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side {
    input: usize,
    output: usize,
    kernel: usize,
    stride: usize,
    before: i32,
}

impl Side {
    /// Whether it is one window, with all its taps inside.
    fn is_whole(&self) -> bool {
        self.output == 1 && self.before == 0 && self.kernel == self.input
    }
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

/// Whether there are windows that overlap.
pub(super) fn overlaps(axis: &Axis) -> bool {
    axis.kernel() > axis.stride() && axis.output() > 1
}

/// How the planes of a problem are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    /// The planes of a cube.
    group: usize,
    /// The neighbouring windows of a unit, and the segments that a plane's rows are cut into.
    pub(super) columns: usize,
    segments: usize,
    /// The elements that a unit moves at once.
    pub(super) lanes: usize,
}

impl Tile {
    /// None, where not even one plane fits; a cube has `most` bytes to share.
    pub(super) fn new(
        pooling: &Pooling,
        dtype: DType,
        gradient: bool,
        most: usize,
    ) -> Option<Self> {
        let sides = sides(pooling, gradient);
        let [depth, height, width] = sides;
        let columns = columns(pooling, dtype, gradient);
        let lines = depth.output * width.output.div_ceil(columns);
        let [input, output] = elements(&sides);
        let units = UNITS as usize;
        // Results begin with a whole vector, and there is one to spare.
        let room = |bytes: usize| (bytes / dtype.size()).checked_sub(2 * MARGIN + 2 * WORD_BYTES);
        // More memory is for more planes, not for larger ones.
        room(SHARED_BYTES).filter(|&room| input + output <= room)?;
        let bytes = shared_bytes(pooling, dtype, gradient, most);
        let fit = (room(bytes)? / (input + output)).min((units / lines).max(1));
        let word = (WORD_BYTES / dtype.size()).max(1);
        // As many planes as whole vectors divide, if that is most of them.
        let whole = (0..=word.ilog2()).rev().map(|power| fit >> power << power);
        let group = whole.clone().find(|&group| 4 * group >= 3 * fit).filter(|&group| group > 0)?;
        let samples = pooling.input().elements() / pooling.input().plane();
        let lanes = [input, output].into_iter().fold(word, |lanes, plane| {
            widest_divisor(samples * plane, widest_divisor(group * plane, lanes))
        });
        let most = (height.output / LEAST_ROWS).max(1);
        let segments = (units / (group * lines)).clamp(1, most);
        Some(Self { group, columns, segments, lanes })
    }
}

/// The neighbouring windows of a unit: two, where they share taps and unrolled loops have room; of a
/// gradient of windows of few taps four, of elements of two bytes: of these a cube has more. With more of
/// others, units that are neighbours are on the same banks.
fn columns(pooling: &Pooling, dtype: DType, gradient: bool) -> usize {
    let [_, _, width] = pooling.grid().axes();
    let there = if gradient { width.input() } else { width.output() };
    let many = gradient && has_few_taps(pooling) && dtype.size() == 2;
    let wanted = if many { 4 } else { 2 };
    let fits = |&n: &usize| n <= there && loads(pooling, n) <= MOST_LOADS;
    [wanted, 2].into_iter().find(fits).filter(|_| overlaps(width)).unwrap_or(1)
}

/// Whether windows are of one plane and so few taps that the factors of their rows and of their columns
/// make, rounded, the reciprocal of their number itself.
fn has_few_taps(pooling: &Pooling) -> bool {
    let [depth, height, width] = pooling.grid().axes().each_ref().map(Axis::kernel);
    depth == 1 && height <= 3 && width <= 3
}

/// The elements that so many neighbouring windows read.
fn loads(pooling: &Pooling, columns: usize) -> usize {
    let [depth, height, width] = pooling.grid().axes();
    let row = (columns - 1) * width.stride() + width.kernel();
    depth.kernel() * height.kernel() * row
}

/// The elements of a plane that is read, and of one that is written.
fn elements(sides: &[Side; AXES]) -> [usize; 2] {
    let plane = |of: fn(&Side) -> usize| sides.iter().map(of).product::<usize>();
    [plane(|side| side.input), plane(|side| side.output)]
}

/// Whether planes are small enough, and their windows such that they can be unrolled.
pub(super) fn fits(
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    gradient: bool,
    most: usize,
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
        && loads(pooling, 1) <= MOST_LOADS
        && Tile::new(pooling, dtype, gradient, most).is_some()
}

/// The numbers of an axis, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct SideArgs {
    input: i32,
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
    /// The elements of a plane that is read, and of one that is written, and where in shared memory
    /// these are.
    input: u32,
    output: u32,
    results: u32,
    /// The groups of columns of a line of windows, and the lines along the depth.
    columns: FastDivmod<u32>,
    depths: FastDivmod<u32>,
    /// The works of a cube's units, and the rows of windows of each: the first segment has those above
    /// all others too, and the last what is left.
    works: u32,
    segments: u32,
    above: u32,
    rows: u32,
    /// The first of the rows that are inside, and of a gradient's those whose windows have all their
    /// rows, and the end of them.
    full: i32,
    full_end: i32,
    depth: SideArgs,
    height: SideArgs,
    width: SideArgs,
}

fn side_args(side: Side) -> SideArgsLaunch {
    SideArgsLaunch::new(side.input as i32, side.output as u32, side.before)
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    tap: Tap,
    gradient: bool,
    /// The neighbouring windows of a unit.
    columns: u32,
    /// The taps and the steps of the windows on each axis.
    kernel: [u32; AXES],
    stride: [u32; AXES],
    /// The taps of each axis that are inside in every window.
    inside: [(u32, u32); AXES],
    units: u32,
    /// The elements of shared memory.
    capacity: usize,
    /// Whether shared memory is read and written in vectors; else element by element.
    vectors: bool,
    /// The rows of windows that a unit computes at once where they are inside.
    run: u32,
    /// Whether windows have few taps.
    few_taps: bool,
    /// Of a gradient, the columns of windows before an input that may not be there, and the padding
    /// behind the last.
    ahead: u32,
    behind: u32,
    /// Whether a plane is one window, and elements can be seen two to a word.
    flat: bool,
    pairs: bool,
}

impl Form {
    /// The elements of a plane that is one window.
    fn taps(&self) -> u32 {
        self.kernel.iter().product()
    }

    /// The windows of a unit on a row.
    fn along_row(&self) -> Run {
        let (count, kernel, stride) = (self.columns, self.kernel[2], self.stride[2]);
        Run { first: 0, each: 1, count, kernel, stride }
    }

    /// The windows of column `v` of so many rows of windows, in what is folded of the rows.
    fn along_rows(&self, count: u32, v: u32) -> Run {
        let stride = self.new_rows();
        Run { first: v, each: self.columns, count, kernel: self.kernel[1], stride }
    }

    /// The elements of a row that a unit's windows read.
    fn reads(&self) -> u32 {
        (self.columns - 1) * self.stride[2] + self.kernel[2]
    }

    /// Whether element `j` of these may be outside, for a window that is there.
    fn drops(&self, j: u32) -> bool {
        (0..self.columns).any(|v| {
            let from = v * self.stride[2];
            let tap = |t: u32| from + t < self.inside[2].0 || t >= self.inside[2].1;
            (from..from + self.kernel[2]).contains(&j) && tap(j - from)
        })
    }

    /// Whether tap `t` of the depth may be outside.
    fn drops_line(&self, t: u32) -> bool {
        !(self.inside[0].0..self.inside[0].1).contains(&t)
    }

    /// Whether some row may be outside.
    fn drops_rows(&self) -> bool {
        self.inside[1] != (0, self.kernel[1])
    }

    fn axis(&self, i: usize) -> AxisForm {
        [self.tap.depth, self.tap.height, self.tap.width][i]
    }

    /// The rows of a window that the one below it has too.
    fn shared_rows(&self) -> u32 {
        self.kernel[1].saturating_sub(self.stride[1])
    }

    /// The rows that a window has and the one above it has not.
    fn new_rows(&self) -> u32 {
        self.kernel[1].min(self.stride[1])
    }

    /// Where among the rows of a run of windows row `t` of window `i` is.
    fn row(&self, i: u32, t: u32) -> usize {
        (i * self.new_rows() + t) as usize
    }

    /// A mask that places in shared memory are unchanged by. With it a compiler sees that steps from
    /// there stay within 32 bits, and makes them a part of the access.
    fn place(&self) -> u32 {
        self.capacity.next_power_of_two() as u32 - 1
    }

    /// Whether all windows are divided by the same number, so that sums may be.
    fn divides_once(&self) -> bool {
        self.tap.fold.is_fixed() || (0..AXES).all(|i| !self.axis(i).clipped)
    }

    /// Whether each sum is divided by a number of its window's own.
    fn divides_each(&self) -> bool {
        !self.tap.fold.is_max() && !self.gradient && !self.divides_once()
    }

    /// Whether each element, a window's gradient, is divided by a number of its own.
    fn shares(&self) -> bool {
        !self.tap.fold.is_max() && self.gradient && !self.divides_once()
    }

    /// Whether what it is multiplied by is found by comparison.
    fn compares(&self) -> bool {
        self.shares() && self.tap.reciprocal && self.few_taps
    }

    /// Whether column `j` of the windows over a unit's inputs, which are all there, may not be.
    fn may_lack(&self, j: u32) -> bool {
        !(self.ahead..self.columns + self.behind).contains(&j)
    }
}

/// The most windows that a unit computes at once, and the most loads for them.
const LONGEST_RUN: u32 = 4;
const MOST_RUN_LOADS: u32 = 128;

/// The rows of a gradient that a unit computes at once where what divides a share is found by comparison:
/// its rows are a few times as many in planes of common sizes.
const COMPARED_RUN: u32 = 3;

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
    // The plan has been checked: planes fit.
    let Some(tile) = Tile::new(pooling, dtype, gradient, plan.shared_bytes) else { return };
    let form = form(pooling, reduction, dtype, plan, &tile, gradient);
    let planes = pooling.input().elements() / pooling.input().plane();
    let [inputs, outputs] = elements(&sides);
    let [depth, height, width] = sides;
    let full = full_rows(pooling, &height, form.tap.fold, gradient);
    let columns = width.output.div_ceil(tile.columns);
    let works = tile.group * depth.output * columns * tile.segments;
    let (above, rows) = segments(&height, tile.segments, form.run as usize);
    let args = PlaneArgsLaunch::new(
        planes as u32,
        tile.group as u32,
        tile.group as u32,
        inputs as u32,
        outputs as u32,
        (2 * MARGIN + (tile.group * inputs).next_multiple_of(WORD_BYTES)) as u32,
        columns as u32,
        depth.output as u32,
        works as u32,
        tile.segments as u32,
        above as u32,
        rows as u32,
        full.start,
        full.end,
        side_args(depth),
        side_args(height),
        side_args(width),
    );
    let (cubes, dim) = grid(client, plan, planes.div_ceil(tile.group) * plan.units as usize);
    // SAFETY: rows and planes are moved inside before they are read, columns outside are in the margins
    // or in neighbouring rows, and what is not there is not written.
    unsafe {
        walk::launch_unchecked(
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

/// The rows of windows that reach above the first row, and those of a segment below these: whole runs,
/// where it has some.
fn segments(height: &Side, segments: usize, run: usize) -> (usize, usize) {
    let above = (height.before.max(0) as usize).div_ceil(height.stride).min(height.output - 1);
    let rows = (height.output - above).div_ceil(segments);
    (above, if segments > 1 && rows >= run { (rows + run / 2) / run * run } else { rows })
}

/// The rows that are inside; of a gradient those whose windows count all their taps of the height.
fn full_rows(pooling: &Pooling, height: &Side, fold: Fold, gradient: bool) -> Range<i32> {
    let axis = &pooling.grid().axes()[1];
    // Windows one step apart have no taps but those inside or padded.
    if gradient && fold == Fold::AverageValid {
        let first = axis.before() as i32;
        first..first + axis.input() as i32 - axis.kernel() as i32 + 1
    } else {
        0..height.input as i32
    }
}

fn form(
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
    tile: &Tile,
    gradient: bool,
) -> Form {
    let sides = sides(pooling, gradient);
    let always = |range: Range<usize>| (range.start as u32, range.end as u32);
    let inside = pooling.grid().axes().each_ref().map(|axis| match gradient {
        false => always(axis.always_inside()),
        // Of a gradient every window over an input may be none.
        true if axis.kernel() > 1 => (0, 0),
        true => (0, 1),
    });
    let form = Form {
        tap: Tap::new(pooling, reduction, dtype, &each(plan)),
        gradient,
        columns: tile.columns as u32,
        kernel: sides.map(|side| side.kernel as u32),
        stride: sides.map(|side| side.stride as u32),
        inside,
        units: plan.units,
        capacity: shared_bytes(pooling, dtype, gradient, plan.shared_bytes) / dtype.size(),
        vectors: plan.reinterprets,
        run: 1,
        few_taps: has_few_taps(pooling),
        ahead: sides[2].before.max(0) as u32,
        behind: pooling.grid().axes()[2].after() as u32,
        flat: !gradient && sides.iter().all(Side::is_whole),
        pairs: plan.reinterprets && dtype.size() == 2,
    };
    let most = match pooling.grid().axes()[1].output() {
        1 => 1,
        _ if form.compares() => COMPARED_RUN,
        _ => LONGEST_RUN,
    };
    let row = form.kernel[0] * form.reads();
    let fits = |&run: &u32| (form.shared_rows() + run * form.new_rows()) * row <= MOST_RUN_LOADS;
    Form { run: (1..=most).rev().find(fits).unwrap_or(1), ..form }
}

/// The plan as windows see it, whose results are single numbers.
fn each(plan: &Plan) -> Plan {
    Plan { lanes: 1, across: false, unrolled: false, ..*plan }
}

/// Registers that live from one row to the next.
type Cells<A> = Sequence<RuntimeCell<Vector<A, One>>>;

/// `S` is how elements are stored, `A` how they are compared and summed.
#[cube(launch_unchecked)]
fn walk<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    problem: &Problem,
    args: &PlaneArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let mut shared =
        Shared::<[Vector<S, One>]>::new_aligned_slice(form.capacity, comptime!(WORD_BYTES));
    let first = CUBE_POS as u32 * args.group_planes;
    let planes = min(max(args.planes, first) - first, args.group_planes);
    stage::<S, N>(input, &mut shared, args, first, planes, form);
    sync_cube();
    for work in range_stepped(UNIT_POS, args.works, form.units) {
        let (rest, column) = args.columns.div_mod(work);
        let (rest, depth) = args.depths.div_mod(rest);
        let (segment, plane) = args.group.div_mod(rest);
        let first = args.above + segment * args.rows;
        let row = if segment == 0 { 0u32.runtime() } else { first };
        if comptime!(form.flat) {
            if plane < planes {
                flat_of::<S, A>(&mut shared, problem, args, plane, form);
            }
        } else if plane < planes && row < args.height.output {
            // The last group is whole too, and computes some windows again.
            let column = min(column * form.columns, args.width.output - form.columns);
            let place = place_of::<A>(problem, args, plane, depth, column, form);
            let end = min(first + args.rows, args.height.output);
            let end = if segment + 1 == args.segments { args.height.output } else { end };
            if comptime!(form.compares()) {
                gather_segment::<S, A>(&mut shared, problem, args, &place, row, end, form);
            } else {
                segment_of::<S, A>(&mut shared, problem, args, &place, row, end, form);
            }
        }
    }
    sync_cube();
    unstage::<S, N>(&shared, output, args, first, planes, form);
}

/// Brings a cube's planes to shared memory.
#[cube]
fn stage<S: Float, N: Size>(
    input: &[Vector<S, N>],
    shared: &mut Shared<[Vector<S, One>]>,
    args: &PlaneArgs,
    first: u32,
    planes: u32,
    #[comptime] form: Form,
) {
    let base = first * args.input / N::value() as u32;
    let words = planes * args.input / N::value() as u32;
    let step = comptime!(form.units * FLIGHT);
    for round in 0..words.div_ceil(step) {
        let at = round * step + UNIT_POS;
        let mut loaded = Sequence::<Vector<S, N>>::new();
        #[unroll]
        for i in 0..FLIGHT {
            let there = min(at + comptime!(i * form.units), words - 1);
            loaded.push(input[(base + there) as usize]);
        }
        #[unroll]
        for i in 0..FLIGHT {
            let v = at + comptime!(i * form.units);
            if v < words {
                put::<S, N>(shared, v, *loaded.index(i as usize), form);
            }
        }
    }
}

/// Writes vector `v` of a cube's planes to shared memory.
#[cube]
fn put<S: Float, N: Size>(
    shared: &mut Shared<[Vector<S, One>]>,
    v: u32,
    vector: Vector<S, N>,
    #[comptime] form: Form,
) {
    if comptime!(form.vectors) {
        let at = v as usize + MARGIN / N::value();
        let words: &mut [Vector<S, N>] = shared[0..form.capacity].with_vector_size_mut();
        words[at] = vector;
    } else {
        let at = v as usize * N::value() + MARGIN;
        #[unroll]
        for i in 0..N::value() {
            shared[at + i] = Vector::new(vector.extract(i));
        }
    }
}

/// Brings a cube's results to memory.
#[cube]
fn unstage<S: Float, N: Size>(
    shared: &Shared<[Vector<S, One>]>,
    output: &mut [Vector<S, N>],
    args: &PlaneArgs,
    first: u32,
    planes: u32,
    #[comptime] form: Form,
) {
    let base = first * args.output / N::value() as u32;
    for v in range_stepped(UNIT_POS, planes * args.output / N::value() as u32, form.units) {
        let word = if comptime!(form.vectors) {
            let at = v as usize + args.results as usize / N::value();
            let words: &[Vector<S, N>] = shared[0..form.capacity].with_vector_size();
            words[at]
        } else {
            let at = v as usize * N::value() + args.results as usize;
            let mut word = Vector::<S, N>::new(shared[at].extract(0usize));
            #[unroll]
            for i in 1..N::value() {
                word.insert(i, shared[at + i].extract(0usize));
            }
            word
        };
        output[(base + v) as usize] = word;
    }
}

/// Computes the window that a plane is: in pairs, where elements are two to a word. A plane of an odd
/// number of them begins or ends with half a word.
#[cube]
fn flat_of<S: Float, A: Float>(
    shared: &mut Shared<[Vector<S, One>]>,
    problem: &Problem,
    args: &PlaneArgs,
    plane: u32,
    #[comptime] form: Form,
) {
    let taps = comptime!(form.taps());
    let first = plane * args.input + comptime!(MARGIN as u32);
    let result = if comptime!(form.pairs && taps > 2) {
        let odd = first % 2;
        let pairs: &[Vector<S, Two>] = shared[0..form.capacity].with_vector_size();
        let at = (((first + odd) / 2) & comptime!(form.place())) as usize;
        let count = comptime!((taps / 2) as usize);
        let fold =
            RuntimeCell::<Vector<A, Two>>::new(widen::<S, A, Two>(pairs[at], form.tap.widened));
        #[unroll]
        for i in 1..count {
            let next = widen::<S, A, Two>(pairs[at + i], form.tap.widened);
            fold.store(together::<A, Two>(fold.read(), next, form.tap));
        }
        let fold = fold.read();
        let own = Vector::<A, One>::new(fold.extract(0usize));
        let fold = together::<A, One>(own, Vector::new(fold.extract(1usize)), form.tap);
        let rest = if odd == 1 { first } else { first + (taps - 1) };
        if comptime!(taps % 2 == 1) {
            together::<A, One>(fold, Vector::cast_from(shared[rest as usize]), form.tap)
        } else {
            fold
        }
    } else {
        let at = (first & comptime!(form.place())) as usize;
        let fold = RuntimeCell::<Vector<A, One>>::new(Vector::cast_from(shared[at]));
        #[unroll]
        for i in 1..taps {
            let next = Vector::<A, One>::cast_from(shared[at + i as usize]);
            fold.store(together::<A, One>(fold.read(), next, form.tap));
        }
        fold.read()
    };
    // All its taps are inside: what divides a window is what divides every one.
    let divided = if comptime!(form.tap.fold.is_max()) {
        Vector::cast_from(result)
    } else {
        let all = Vector::new(A::cast_from(comptime!(form.taps())));
        let average = if comptime!(form.tap.reciprocal) {
            result * Vector::new(problem.reciprocal.get::<A>())
        } else if comptime!(form.tap.fold.is_fixed()) {
            result / Vector::new(A::cast_from(problem.divisor))
        } else {
            result / all
        };
        round::<A, S, One>(average, form.tap.rounds)
    };
    shared[(args.results + plane) as usize] = divided;
}

/// Where the windows of a unit are, and what they have in common.
#[derive(CubeType)]
struct Place<A: Float> {
    /// The element of shared memory where the unit's columns begin, before any row, and that of its
    /// first result.
    input: i32,
    output: u32,
    /// The first of its columns of windows, and the line along the depth.
    column: u32,
    depth: u32,
    /// Whether each element of a row that may be outside is inside.
    inside: Sequence<bool>,
    /// What the sums of each column are divided by where windows have all their rows, or what each
    /// element is, for each tap of the depth; or one over that; or the factor of each column alone.
    divisors: Sequence<Vector<A, One>>,
}

#[cube]
fn place_of<A: Float>(
    problem: &Problem,
    args: &PlaneArgs,
    plane: u32,
    depth: u32,
    column: u32,
    #[comptime] form: Form,
) -> Place<A> {
    let x = (column * comptime!(form.stride[2])) as i32 - args.width.before;
    let mut inside = Sequence::<bool>::new();
    #[unroll]
    for j in 0..form.reads() {
        inside.push(if comptime!(form.drops(j)) {
            x + j as i32 >= 0 && x + (j as i32) < args.width.input
        } else {
            true.runtime()
        });
    }
    let mut divisors = Sequence::<Vector<A, One>>::new();
    if comptime!(form.divides_each()) {
        let lines = counted_at(&problem.depth, depth, form.axis(0), form.tap.fold);
        let rows = problem.height.kernel;
        #[unroll]
        for v in 0..form.columns {
            let taps = counted_at(&problem.width, column + v, form.axis(2), form.tap.fold);
            divisors.push(over::<A>(lines * rows * taps, form));
        }
    }
    if comptime!(form.compares()) {
        #[unroll]
        for j in 0..form.reads() {
            let taps = column_taps(problem, args, x + j as i32, form);
            divisors.push(column_factor::<A>(taps, form));
        }
    } else if comptime!(form.shares()) {
        let rows = problem.height.kernel;
        #[unroll]
        for t in 0..form.kernel[0] {
            let lines = line_taps(problem, args, depth, t, form);
            #[unroll]
            for j in 0..form.reads() {
                let taps = column_taps(problem, args, x + j as i32, form);
                divisors.push(over::<A>(lines * rows * taps, form));
            }
        }
    }
    let line = (depth * args.height.output) * args.width.output;
    Place::<A> {
        input: (plane * args.input) as i32 + x + comptime!(MARGIN as i32),
        output: args.results + plane * args.output + line + column,
        column,
        depth,
        inside,
        divisors,
    }
}

/// The taps of the depth that the window at tap `t` of line `depth` of a gradient has.
#[cube]
fn line_taps(
    problem: &Problem,
    args: &PlaneArgs,
    depth: u32,
    #[comptime] t: u32,
    #[comptime] form: Form,
) -> i32 {
    let o = depth as i32 - args.depth.before + t as i32;
    let there = min(max(o, 0i32), args.depth.input - 1);
    counted_at(&problem.depth, there as u32, form.axis(0), form.tap.fold)
}

/// The taps of the width that the window at column `o` of a gradient has.
#[cube]
fn column_taps(problem: &Problem, args: &PlaneArgs, o: i32, #[comptime] form: Form) -> i32 {
    let there = min(max(o, 0i32), args.width.input - 1);
    counted_at(&problem.width, there as u32, form.axis(2), form.tap.fold)
}

/// A number of taps, or one over it where sums are multiplied by that.
#[cube]
fn over<A: Float>(taps: i32, #[comptime] form: Form) -> Vector<A, One> {
    let taps = Vector::<A, One>::new(A::cast_from(taps));
    if comptime!(form.tap.reciprocal) { Vector::new(A::from_int(1)) / taps } else { taps }
}

/// Divides by a number that `over` made.
#[cube]
fn divided<A: Float>(
    sum: Vector<A, One>,
    divisor: Vector<A, One>,
    #[comptime] form: Form,
) -> Vector<A, One> {
    if comptime!(form.tap.reciprocal) { sum * divisor } else { sum / divisor }
}

/// Computes the windows of a unit on rows `row` to `end`.
#[cube]
fn segment_of<S: Float, A: Float>(
    shared: &mut Shared<[Vector<S, One>]>,
    problem: &Problem,
    args: &PlaneArgs,
    place: &Place<A>,
    row: u32,
    end: u32,
    #[comptime] form: Form,
) {
    // The folds of those rows of the next window that the one before it had too.
    let mut kept = Sequence::<RuntimeCell<Vector<A, One>>>::new();
    let top = (row * comptime!(form.stride[1])) as i32 - args.height.before;
    #[unroll]
    for t in 0..form.shared_rows() {
        let folds = row_of::<S, A>(shared, problem, args, place, top + t as i32, false, form);
        #[unroll]
        for v in 0..form.columns {
            kept.push(RuntimeCell::new(*folds.index(v as usize)));
        }
    }
    let mut o = row;
    if comptime!(form.run > 1) {
        while o < end {
            if o + form.run <= end && is_inner(args, o, form) {
                run_of::<S, A>(shared, problem, args, place, o, &kept, form.run, true, form);
                o += form.run;
            } else {
                run_of::<S, A>(shared, problem, args, place, o, &kept, 1u32, false, form);
                o += 1u32;
            }
        }
    } else {
        while o < end {
            run_of::<S, A>(shared, problem, args, place, o, &kept, 1u32, false, form);
            o += 1u32;
        }
    }
}

/// The same of a gradient, what divides a share being found by comparison.
#[cube]
fn gather_segment<S: Float, A: Float>(
    shared: &mut Shared<[Vector<S, One>]>,
    problem: &Problem,
    args: &PlaneArgs,
    place: &Place<A>,
    row: u32,
    end: u32,
    #[comptime] form: Form,
) {
    let mut kept = Sequence::<RuntimeCell<Vector<A, One>>>::new();
    let top = row as i32 - args.height.before;
    #[unroll]
    for t in 0..form.shared_rows() {
        let sums = gather_row::<S, A>(shared, problem, args, place, top + t as i32, false, form);
        #[unroll]
        for v in 0..form.columns {
            kept.push(RuntimeCell::new(*sums.index(v as usize)));
        }
    }
    let mut o = row;
    while o < end {
        if o + form.run <= end && is_inner(args, o, form) {
            gather_run::<S, A>(shared, problem, args, place, o, end, &kept, true, form);
        } else {
            gather_run::<S, A>(shared, problem, args, place, o, end, &kept, false, form);
        }
        o += form.run;
    }
}

/// Computes a run of a unit's rows of a gradient from row `o`, which are `inner` or not, up to row `end`.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn gather_run<S: Float, A: Float>(
    shared: &mut Shared<[Vector<S, One>]>,
    problem: &Problem,
    args: &PlaneArgs,
    place: &Place<A>,
    o: u32,
    end: u32,
    kept: &Cells<A>,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) {
    let columns = comptime!(form.columns as usize);
    let mut rows = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for i in 0..kept.len() {
        rows.push(kept.index(i).read());
    }
    let top = o as i32 - args.height.before + comptime!(form.shared_rows() as i32);
    #[unroll]
    for i in 0..form.run {
        let sums = gather_row::<S, A>(shared, problem, args, place, top + i as i32, inner, form);
        #[unroll]
        for v in 0..columns {
            rows.push(*sums.index(v));
        }
    }
    #[unroll]
    for i in 0..form.run {
        if inner || o + i < end {
            #[unroll]
            for v in 0..columns {
                let mut sum = *rows.index(comptime!(form.row(i, 0) * columns + v));
                #[unroll]
                for t in 1..form.kernel[1] {
                    sum += *rows.index(comptime!(form.row(i, t) * columns + v));
                }
                let at = comptime!(form.place()) & (place.output + (o + i) * args.width.output);
                shared[at as usize + v] = round::<A, S, One>(sum, form.tap.rounds);
            }
        }
    }
    #[unroll]
    for i in 0..kept.len() {
        kept.index(i).store(*rows.index(comptime!(form.row(form.run, 0) * columns + i)));
    }
}

/// For each of a unit's columns the sum of the shares of row `y` of windows, which are there and have all
/// their rows if it is `inner`.
#[cube]
fn gather_row<S: Float, A: Float>(
    shared: &mut Shared<[Vector<S, One>]>,
    problem: &Problem,
    args: &PlaneArgs,
    place: &Place<A>,
    y: i32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let zero = Vector::<A, One>::new(A::from_int(0));
    let moves = comptime!(!inner && form.drops_rows());
    let there = if comptime!(moves) { min(max(y, 0i32), args.height.input - 1) } else { y };
    let line = place.depth as i32 * args.height.input + there;
    let at = comptime!(form.place()) & (place.input + line * args.width.input) as u32;
    let factor = row_factor::<A>(problem, there, inner, form);
    let mut shares = Sequence::<Vector<A, One>>::new();
    let mut factors = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for j in 0..comptime!(form.reads() as usize) {
        let value = Vector::<A, One>::cast_from(shared[at as usize + j]);
        shares.push(if comptime!(form.may_lack(j as u32)) {
            select(*place.inside.index(j), value, zero)
        } else {
            value
        });
        factors.push(*place.divisors.index(j) * factor);
    }
    let mut sums = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for v in 0..comptime!(form.columns as usize) {
        let mut sum = *shares.index(v) * *factors.index(v);
        #[unroll]
        for t in 1..comptime!(form.kernel[2] as usize) {
            let j = comptime!(v + t);
            sum = fma(*shares.index(j), *factors.index(j), sum);
        }
        sums.push(if comptime!(moves) { select(there == y, sum, zero) } else { sum });
    }
    sums
}

/// What the factors of the columns are multiplied by on row `y` of a gradient: one over the taps of a
/// window that has all those of the width.
#[cube]
fn row_factor<A: Float>(
    problem: &Problem,
    y: i32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Vector<A, One> {
    let [_, height, width] = comptime!(form.kernel);
    let mut factor = problem.reciprocal.get::<A>();
    if comptime!(!inner && form.axis(1).clipped) {
        let count = counted_at(&problem.height, y as u32, form.axis(1), form.tap.fold);
        #[unroll]
        for taps in 1..height {
            let own = A::new(comptime!(1.0 / f64::from(taps * width)));
            factor = select(count == taps as i32, own, factor);
        }
    }
    Vector::new(factor)
}

/// What a column of windows multiplies that have so many taps of the width: all of them over these.
#[cube]
fn column_factor<A: Float>(count: i32, #[comptime] form: Form) -> Vector<A, One> {
    let kernel = comptime!(form.kernel[2]);
    let mut factor = A::from_int(1);
    #[unroll]
    for taps in 1..kernel {
        let own = A::new(comptime!(f64::from(kernel) / f64::from(taps)));
        factor = select(count == taps as i32, own, factor);
    }
    Vector::new(factor)
}

/// Whether the rows that a run of windows adds from row `o` on are inside and all counted, and the run's
/// windows counted whole.
#[cube]
fn is_inner(args: &PlaneArgs, o: u32, #[comptime] form: Form) -> bool {
    if comptime!(!form.drops_rows()) {
        true.runtime()
    } else {
        // What a window shares with the one above it is folded already.
        let shared = comptime!(if form.divides_each() { 0 } else { form.shared_rows() as i32 });
        let first = (o * comptime!(form.stride[1])) as i32 - args.height.before;
        let reach = comptime!(((form.run - 1) * form.stride[1] + form.kernel[1]) as i32);
        first + shared >= args.full && first + reach <= args.full_end
    }
}

/// Computes `count` rows of a unit's windows from row `o`, which are `inner` or not.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn run_of<S: Float, A: Float>(
    shared: &mut Shared<[Vector<S, One>]>,
    problem: &Problem,
    args: &PlaneArgs,
    place: &Place<A>,
    o: u32,
    kept: &Cells<A>,
    #[comptime] count: u32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) {
    let columns = comptime!(form.columns as usize);
    let mut rows = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for i in 0..kept.len() {
        rows.push(kept.index(i).read());
    }
    let top = (o * comptime!(form.stride[1])) as i32 - args.height.before;
    #[unroll]
    for i in 0..count {
        #[unroll]
        for t in 0..form.new_rows() {
            let y = top + comptime!((i * form.stride[1] + form.shared_rows() + t) as i32);
            let folds = row_of::<S, A>(shared, problem, args, place, y, inner, form);
            #[unroll]
            for v in 0..columns {
                rows.push(*folds.index(v));
            }
        }
    }
    let width = args.width.output;
    let divisors = divisors_at::<A>(problem, place, o, inner, form);
    let mut folds = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for v in 0..columns {
        let run = comptime!(form.along_rows(count, v as u32));
        let windows = windows::<A, One>(&rows, run, form.tap);
        #[unroll]
        for i in 0..count {
            folds.push(*windows.index(i as usize));
        }
    }
    #[unroll]
    for i in 0..count {
        let at = comptime!(form.place()) & (place.output + (o + i) * width);
        #[unroll]
        for v in 0..columns {
            let fold = *folds.index(comptime!(v * count as usize + i as usize));
            shared[at as usize + v] = finished::<S, A>(problem, fold, &divisors, v, form);
        }
    }
    #[unroll]
    for i in 0..kept.len() {
        let next = comptime!(form.row(count, 0) * columns + i);
        kept.index(i).store(*rows.index(next));
    }
}

/// For each of a unit's columns the fold of its taps on row `y`, which is inside and counted in full if
/// it is `inner`. What is outside is less than any number, or adds nothing.
#[cube]
fn row_of<S: Float, A: Float>(
    shared: &mut Shared<[Vector<S, One>]>,
    problem: &Problem,
    args: &PlaneArgs,
    place: &Place<A>,
    y: i32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let outside = if comptime!(form.tap.fold.is_max()) {
        Vector::<A, One>::new(problem.lowest.get::<A>())
    } else {
        Vector::<A, One>::new(A::from_int(0))
    };
    let moves = comptime!(!inner && form.drops_rows());
    let there = if comptime!(moves) { min(max(y, 0i32), args.height.input - 1) } else { y };
    let reads = comptime!(form.reads() as usize);
    let mut folds = Sequence::<RuntimeCell<Vector<A, One>>>::new();
    #[unroll]
    for t in 0..form.kernel[0] {
        let z = (place.depth * comptime!(form.stride[0])) as i32 - args.depth.before + t as i32;
        let near =
            if comptime!(form.drops_line(t)) { min(max(z, 0i32), args.depth.input - 1) } else { z };
        let at = place.input + (near * args.height.input + there) * args.width.input;
        let at = comptime!(form.place()) & at as u32;
        let mut loaded = Sequence::<Vector<A, One>>::new();
        #[unroll]
        for j in 0..reads {
            let value = Vector::<A, One>::cast_from(shared[at as usize + j]);
            loaded.push(if comptime!(form.drops(j as u32)) {
                select(*place.inside.index(j), value, outside)
            } else {
                value
            });
        }
        let divisors = line_divisors::<A>(problem, args, place, there, t, inner, form);
        let inside = (z == near) && (y == there);
        let windows = if comptime!(form.shares()) {
            shares_of::<A>(&loaded, &divisors, form)
        } else {
            windows::<A, One>(&loaded, form.along_row(), form.tap)
        };
        #[unroll]
        for v in 0..comptime!(form.columns as usize) {
            let mut fold = *windows.index(v);
            if comptime!(moves || form.drops_line(t)) {
                fold = select(inside, fold, outside);
            }
            if comptime!(t == 0) {
                folds.push(RuntimeCell::new(fold));
            } else {
                let before = folds.index(v).read();
                folds.index(v).store(together::<A, One>(before, fold, form.tap));
            }
        }
    }
    let mut row = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for v in 0..comptime!(form.columns as usize) {
        row.push(folds.index(v).read());
    }
    row
}

/// The sums of a row's windows, each element divided by a number of its own.
#[cube]
fn shares_of<A: Float>(
    loaded: &Sequence<Vector<A, One>>,
    divisors: &Sequence<Vector<A, One>>,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let stride = comptime!(form.stride[2] as usize);
    let mut sums = Sequence::<Vector<A, One>>::new();
    #[unroll]
    for v in 0..comptime!(form.columns as usize) {
        let first = comptime!(v * stride);
        let mut sum = divided::<A>(*loaded.index(first), *divisors.index(first), form);
        #[unroll]
        for tw in 1..comptime!(form.kernel[2] as usize) {
            let j = comptime!(first + tw);
            let next = *loaded.index(j);
            sum = if comptime!(form.tap.reciprocal) {
                fma(next, *divisors.index(j), sum)
            } else {
                sum + next / *divisors.index(j)
            };
        }
        sums.push(sum);
    }
    sums
}

/// What each element of row `y` of a gradient is divided by, for tap `t` of the depth; nothing, where
/// that is not its own. Most rows have all their taps: these divisors a unit knows.
#[cube]
fn line_divisors<A: Float>(
    problem: &Problem,
    args: &PlaneArgs,
    place: &Place<A>,
    y: i32,
    #[comptime] t: u32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let mut divisors = Sequence::<Vector<A, One>>::new();
    if comptime!(form.shares()) {
        let reads = comptime!(form.reads() as usize);
        let mut cells = Sequence::<RuntimeCell<Vector<A, One>>>::new();
        #[unroll]
        for j in 0..reads {
            cells.push(RuntimeCell::new(*place.divisors.index(comptime!(t as usize * reads + j))));
        }
        if comptime!(!inner) {
            let short = y < args.full || y >= args.full_end;
            if short {
                let rows = counted_at(&problem.height, y as u32, form.axis(1), form.tap.fold);
                let taps = rows * line_taps(problem, args, place.depth, t, form);
                #[unroll]
                for j in 0..reads {
                    let x = (place.column as i32) - args.width.before + j as i32;
                    let columns = column_taps(problem, args, x, form);
                    cells.index(j).store(over::<A>(taps * columns, form));
                }
            }
        }
        #[unroll]
        for j in 0..reads {
            divisors.push(cells.index(j).read());
        }
    }
    divisors
}

/// What the sums of each column are divided by on row `o`; nothing, where that is not their own.
#[cube]
fn divisors_at<A: Float>(
    problem: &Problem,
    place: &Place<A>,
    o: u32,
    #[comptime] inner: bool,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let mut divisors = Sequence::<Vector<A, One>>::new();
    if comptime!(form.divides_each() && inner) {
        #[unroll]
        for v in 0..form.columns {
            divisors.push(*place.divisors.index(v as usize));
        }
    } else if comptime!(form.divides_each()) {
        let mut cells = Sequence::<RuntimeCell<Vector<A, One>>>::new();
        #[unroll]
        for v in 0..form.columns {
            cells.push(RuntimeCell::new(*place.divisors.index(v as usize)));
        }
        let rows = counted_at(&problem.height, o, form.axis(1), form.tap.fold);
        if rows != problem.height.kernel {
            let taps = rows * counted_at(&problem.depth, place.depth, form.axis(0), form.tap.fold);
            #[unroll]
            for v in 0..form.columns {
                let column = place.column + v;
                let columns = counted_at(&problem.width, column, form.axis(2), form.tap.fold);
                cells.index(v as usize).store(over::<A>(taps * columns, form));
            }
        }
        #[unroll]
        for v in 0..form.columns {
            divisors.push(cells.index(v as usize).read());
        }
    }
    divisors
}

/// What becomes of the fold of a window in column `v`.
#[cube]
fn finished<S: Float, A: Float>(
    problem: &Problem,
    fold: Vector<A, One>,
    divisors: &Sequence<Vector<A, One>>,
    #[comptime] v: usize,
    #[comptime] form: Form,
) -> Vector<S, One> {
    if comptime!(form.tap.fold.is_max()) {
        Vector::cast_from(fold)
    } else {
        let average = if comptime!(form.divides_each()) {
            divided::<A>(fold, *divisors.index(v), form)
        } else if comptime!(!form.divides_once()) {
            fold
        } else if comptime!(form.tap.reciprocal) {
            fold * Vector::new(problem.reciprocal.get::<A>())
        } else if comptime!(form.tap.fold.is_fixed()) {
            fold / Vector::new(A::cast_from(problem.divisor))
        } else {
            fold / Vector::new(A::cast_from(comptime!(form.kernel.iter().product::<u32>())))
        };
        round::<A, S, One>(average, form.tap.rounds)
    }
}
