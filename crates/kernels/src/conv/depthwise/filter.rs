//! The weight gradient. A unit holds the sums of some lines of taps of a vector of channels in registers, and walks down
//! pieces of the images:
//!
//! ```text
//! for each part of the walks, each block of LINES lines of taps, each chunk of vectors of channels:      one cube
//!     for each vector of channels of the chunk:                                                      some units
//!         for each walk of the part:                                                      one of these units
//!             for each line of pixels that the walk reads:
//!                 dy[line mod SLOTS] ← the gradients of the line of windows that begins here
//!                 pixels ← those that these windows read on this line
//!                 the loads of the next lines are started
//!                 for each line of windows that reads this line:  sums[tap] += pixel · dy[window]
//!         dw[part] ← the sums of these units, added in shared memory
//! ```
//!
//! A walk is a piece of the height, of a run of neighbouring windows along the width. Taps of a block read neighbouring
//! lines, so each line is loaded once for all of them, and `SLOTS` lines of windows read the same line of pixels. The loop
//! is unrolled `SLOTS` times, after which each line of gradients has the same registers again.
//!
//! Neighbouring units have neighbouring vectors of channels, and then the pieces below one another, so that the loads of a
//! cube are close together and its units reach the border of the image together. The parts are added by another launch
//! (`split_k`).

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Convolution, DType};

use super::config::Config;
use super::cost::{ROLLING_LINE, ROLLING_PRODUCT, WALK, with_tensors};
use super::walk::{Walk, is_inside, load, widened};
use crate::conv::common::arguments::Arguments;
use crate::conv::common::buffer::buffer;
use crate::conv::common::gather::{
    Gather, GatherArgs, GatherForm, Sweep, row_point, tap_point, weight_steps,
};
use crate::conv::common::run::Run;
use crate::conv::common::split_k;
use crate::conv::problem::{Pass, Request, results};
use crate::cube::convert::{Widening, accumulator, elem};
use crate::cube::registers::{Registers, zeros};
use crate::cube::unit::grid;
use crate::device::Capabilities;

/// The units of a cube. There are few, because each uses many registers.
pub(super) const UNITS: u32 = 128;

/// The most vectors of channels of a cube: those whose pixels are neighbours in memory.
const MOST_ACROSS: usize = 32;

/// The shared memory in which sums are added.
pub(super) const SHARED_BYTES: usize = 16 << 10;

/// The number of cubes of a multiprocessor, that number where multiprocessors are not counted, and the fewest lines of
/// windows that are worth a unit.
const CUBES_EACH: usize = 4;
const CUBES: usize = 128;
const LEAST_LINES: usize = 4;

/// What a walk costs besides its lines of windows, in lines: it reads some lines that another walk reads too.
const REREAD: usize = 2;

/// What a unit holds in registers: the compile-time numbers of its loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Block {
    along: Run,
    /// The lines of taps, and the lines of pixels from one line of windows to the next.
    taps: u32,
    step: u32,
}

impl Block {
    pub(super) fn new(conv: &Convolution, config: Config) -> Self {
        let [_, height, width] = conv.grid().axes();
        Self {
            along: Run::new(config.rows, &Sweep::forward(width)),
            taps: config.lines,
            step: height.stride() as u32,
        }
    }

    /// The lines of windows that read the same line of pixels.
    pub(super) fn slots(&self) -> u32 {
        self.taps.div_ceil(self.step)
    }

    /// The lines of pixels that are read from one line of windows to the next.
    fn lines(&self) -> u32 {
        self.taps.min(self.step)
    }

    /// The number of vectors of pixels of a line.
    fn pixels(&self) -> u32 {
        self.along.pixels().1
    }

    /// The number of sums.
    fn sums(&self) -> u32 {
        self.taps * self.along.taps
    }

    /// The registers for `lanes` elements of a type: for sums, gradients and a line of pixels in the type of the sums, and
    /// for the line of pixels and of gradients whose loads are in flight.
    pub(super) fn registers(&self, lanes: u32, dtype: DType) -> u32 {
        let words = |dtype: DType| (lanes * dtype.size() as u32).div_ceil(4);
        let held = self.sums() + self.slots() * self.along.rows + self.pixels();
        held * words(accumulator(dtype)) + (self.pixels() + self.along.rows) * words(dtype)
    }

    /// The instructions of a line of windows.
    pub(super) fn instructions(&self, lanes: u32) -> f64 {
        let loaded = f64::from(self.lines() * self.pixels() + self.along.rows);
        let products = f64::from(self.sums() * self.along.rows * lanes);
        loaded * (LOAD + f64::from(lanes)) + ROLLING_PRODUCT * products
    }
}

/// The instructions of a load, besides one for each lane that is converted.
const LOAD: f64 = 2.2;

/// How the work is divided among cubes and among their units.
#[derive(Clone, Copy, Debug)]
struct Shares {
    /// The vectors of channels, those of a cube, and the chunks of vectors.
    vectors: usize,
    across: usize,
    chunks: usize,
    /// The blocks of lines of taps at a tap along the depth.
    tap_blocks: usize,
    depth_taps: usize,
    /// The lines of windows of a plane, and the runs of windows along the width of all planes.
    height: usize,
    runs: usize,
}

impl Shares {
    fn new(conv: &Convolution, config: Config, units: u32) -> Self {
        let vectors = conv.input().channels() / config.lanes as usize;
        let chunks = vectors.div_ceil(MOST_ACROSS.min(units as usize));
        let [depth, height, width] = conv.grid().axes();
        let runs = width.output().div_ceil(config.rows as usize);
        Self {
            vectors,
            across: vectors.div_ceil(chunks.max(1)),
            chunks,
            tap_blocks: height.kernel().div_ceil(config.lines as usize),
            depth_taps: depth.kernel(),
            height: height.output(),
            runs: runs * conv.output().batch() * depth.output(),
        }
    }

    /// The number of cubes for one part of the walks.
    fn cubes(&self) -> usize {
        (self.chunks * self.tap_blocks * self.depth_taps).max(1)
    }

    /// The number of units of a cube that share the walks of a vector.
    fn strips(&self, units: u32) -> usize {
        units as usize / self.across.max(1)
    }

    /// The number of pieces of the height with which the last of this many units ends first.
    fn pieces(&self, units: usize) -> usize {
        let most = (self.height / LEAST_LINES).max(1);
        (1..=most).min_by_key(|pieces| self.lines(*pieces, units)).unwrap_or(1)
    }

    /// The lines of the unit that has the most.
    fn lines(&self, pieces: usize, units: usize) -> usize {
        let walks = (self.runs * pieces).div_ceil(units.max(1));
        walks * (self.height.div_ceil(pieces) + REREAD)
    }
}

/// The number of parts that the walks are split into.
pub(super) fn splits(
    conv: &Convolution,
    config: Config,
    units: u32,
    device: &Capabilities,
) -> usize {
    let shares = Shares::new(conv, config, units);
    let cubes = device.multiprocessors.map_or(CUBES, |all| all as usize * CUBES_EACH);
    let worth = shares.runs * shares.height / (shares.strips(units).max(1) * LEAST_LINES);
    (cubes / shares.cubes()).min(worth).clamp(1, split_k::most(conv, Pass::Filter))
}

/// The estimated seconds.
pub(super) fn seconds(
    config: Config,
    conv: &Convolution,
    request: Request,
    [units, splits]: [usize; 2],
    device: &Capabilities,
) -> f64 {
    let shares = Shares::new(conv, config, units as u32);
    let block = Block::new(conv, config);
    let strips = shares.strips(units as u32).max(1) * splits;
    let pieces = shares.pieces(strips);
    let lines = shares.lines(pieces, strips) as f64;
    let walks = lines / (shares.height.div_ceil(pieces) + REREAD) as f64;
    let each = lines * block.instructions(config.lanes) + walks * WALK;
    let cubes = shares.cubes() * splits;
    let multiprocessors = device.multiprocessor_count();
    let most = cubes.max(multiprocessors) as f64;
    let waves = cubes.div_ceil(multiprocessors * CUBES_EACH) as f64;
    let waiting = waves * lines * ROLLING_LINE * f64::from(block.lines());
    device.launching(1) + with_tensors(most * units as f64 * each, waiting, conv, request, device)
}

/// The compile-time options of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    block: Block,
    /// Whether the last run of a line has fewer windows.
    partial: bool,
    units: u32,
    /// The number of sums of each unit that are in shared memory at once.
    at_once: u32,
    widening: Widening,
    gather: GatherForm,
}

/// The numbers of a launch, besides those of the gather.
#[derive(CubeType, CubeLaunch)]
struct FilterArgs {
    /// The cubes of all parts; the chunks of vectors, and the blocks of lines of taps of all depths and of one.
    cubes: u32,
    chunks: FastDivmod<u32>,
    all_taps: FastDivmod<u32>,
    tap_blocks: FastDivmod<u32>,
    /// The taps along the height.
    taps: u32,
    vectors: u32,
    /// The vectors of a cube, and the units that share the walks of each.
    across: FastDivmod<u32>,
    across_count: u32,
    strips: u32,
    /// The windows of a line, the runs of a line, the lines of a plane, its pieces, and the lines of a piece.
    width: u32,
    runs: FastDivmod<u32>,
    height: u32,
    pieces: FastDivmod<u32>,
    lines: u32,
    /// All walks, and those of a part.
    walks: u32,
    walks_a_part: u32,
    /// The memory steps between channels and between parts of the gradient.
    channel_step: u32,
    part_step: u32,
}

/// Launches the weight gradient.
pub(super) fn launch(arguments: &Arguments<'_>, config: Config) {
    let Arguments { client, conv, units, splits, stored, .. } = *arguments;
    let dtype = arguments.request.dtype;
    let ([x, dy], dw) = (arguments.operands, arguments.out);
    let lanes = config.lanes as usize;
    let shares = Shares::new(conv, config, units);
    let pieces = shares.pieces(shares.strips(units) * splits);
    let walks = shares.runs * pieces;
    for gather in Gather::all(conv, Pass::Filter) {
        let steps = weight_steps(conv, Pass::Filter);
        let results = results(conv, Pass::Filter);
        let [_, height, width] = conv.grid().axes();
        let cubes = shares.cubes() * splits;
        let (count, dim) = grid(client, units, cubes * units as usize);
        let block = Block::new(conv, config);
        let form = Form {
            block,
            partial: !width.output().is_multiple_of(config.rows as usize),
            units,
            at_once: sums_at_once(dtype, config.lanes, units).min(block.sums()),
            widening: Widening::of_sums(dtype, false, arguments.device),
            gather: GatherForm::new(conv, Pass::Filter),
        };
        // SAFETY: vectors past the last repeat the last one and are not stored, windows past the last and pixels outside
        // are not read, and taps past the last are not stored.
        unsafe {
            depthwise_filter::launch_unchecked(
                client,
                count,
                dim,
                lanes,
                buffer(x, conv.input().elements() / lanes),
                buffer(dy, conv.output().elements() / lanes),
                buffer(dw, results * splits),
                gather.args(conv, &steps),
                FilterArgsLaunch::new(
                    cubes as u32,
                    shares.chunks as u32,
                    (shares.tap_blocks * shares.depth_taps) as u32,
                    shares.tap_blocks as u32,
                    height.kernel() as u32,
                    shares.vectors as u32,
                    shares.across as u32,
                    shares.across as u32,
                    shares.strips(units) as u32,
                    width.output() as u32,
                    width.output().div_ceil(config.rows as usize) as u32,
                    shares.height as u32,
                    pieces as u32,
                    shares.height.div_ceil(pieces) as u32,
                    walks as u32,
                    walks.div_ceil(splits) as u32,
                    conv.filter().strides(conv.filter_layout()).count as u32,
                    results as u32,
                ),
                form,
                elem(dtype),
                elem(stored),
            )
        }
    }
}

/// The number of sums of each unit that fit in the shared memory.
fn sums_at_once(dtype: DType, lanes: u32, units: u32) -> u32 {
    let bytes = units as usize * lanes as usize * accumulator(dtype).size();
    (SHARED_BYTES / bytes).max(1) as u32
}

/// What a walk computes and where.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Column {
    pixels: Walk,
    /// The offset of the first window's gradient, the lines of windows, and the windows of a line.
    gradients: u32,
    lines: u32,
    rows: u32,
}

#[cube(launch_unchecked)]
fn depthwise_filter<S: Float, A: Float, N: Size>(
    x: &[Vector<S, N>],
    dy: &[Vector<S, N>],
    dw: &mut [A],
    gather: &GatherArgs,
    args: &FilterArgs,
    #[comptime] form: Form,
    #[define(S)] _read: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let cube = CUBE_POS as u32;
    if cube >= args.cubes {
        terminate!();
    }
    let (strip, across) = args.across.div_mod(UNIT_POS);
    let (rest, chunk) = args.chunks.div_mod(cube);
    let (part, tap_block) = args.all_taps.div_mod(rest);
    let (td, tap_block) = args.tap_blocks.div_mod(tap_block);
    let first_tap = tap_block * comptime!(form.block.taps);
    let first_vector = chunk * args.across_count;
    let vector = min(first_vector + across, args.vectors - 1);
    let lanes = N::value() as u32;

    let sums = zeros::<A, N>(form.block.sums());
    let first = part * args.walks_a_part;
    let end = min(first + args.walks_a_part, args.walks);
    // Units past the last strip have no walks.
    let mut walk = select(strip < args.strips, first + strip, end);
    while walk < end {
        let (rest, piece) = args.pieces.div_mod(walk);
        let (plane, run) = args.runs.div_mod(rest);
        let line = piece * args.lines;
        let along = run * comptime!(form.block.along.rows);
        let left = select(line < args.height, args.height - line, 0u32);
        let line = min(line, args.height - 1);
        let row = row_point(gather, (plane * args.height + line) * args.width + along, form.gather);
        let depth = row.depth + td as i32 * gather.depth.tap_step;
        let inside = depth >= 0 && depth < gather.depth.extent;
        let offset = select(inside, depth, 0i32) * gather.depth.a_step;
        let lines = select(inside, min(args.lines, left), 0u32);
        let read = (max(lines, 1u32) - 1) * comptime!(form.block.step) + comptime!(form.block.taps);
        let start = row.width + comptime!(form.block.along.pixels().0);
        let column = Column {
            pixels: Walk {
                plane: (row.a + offset as u32) / lanes + vector,
                top: row.height + first_tap as i32 * gather.height.tap_step,
                start,
                read,
                extent: gather.height.extent as u32,
            },
            gradients: row.other / lanes + vector,
            lines,
            rows: args.width - along,
        };
        let whole = start >= 0
            && start + comptime!(form.block.pixels() as i32) <= gather.width.extent
            && along + comptime!(form.block.along.rows) <= args.width;
        if whole {
            add_walk::<S, A, N>(x, dy, gather, &column, &sums, false, form);
        } else {
            add_walk::<S, A, N>(x, dy, gather, &column, &sums, true, form);
        }
        walk += args.strips;
    }
    add_strips::<A, N>(dw, gather, args, &sums, part, first_vector, td, first_tap, form);
}

/// Adds the products of a walk.
#[cube]
fn add_walk<S: Float, A: Float, N: Size>(
    x: &[Vector<S, N>],
    dy: &[Vector<S, N>],
    gather: &GatherArgs,
    column: &Column,
    sums: &Registers<A, N>,
    #[comptime] clipped: bool,
    #[comptime] form: Form,
) {
    let block = comptime!(form.block);
    let along = comptime!(block.along);
    let gradients = zeros::<A, N>(comptime!(block.slots() * along.rows));
    let next = zeros::<S, N>(along.rows);
    let ahead = zeros::<S, N>(block.pixels());
    load_gradients::<S, N>(dy, gather, column, 0u32.runtime(), &next, clipped, form);
    load::<S, N>(x, gather, &column.pixels, 0u32.runtime(), &ahead, 0u32, clipped, along);
    // After the last line of windows, the lines before it read further lines of pixels.
    let end = select(column.lines > 0, column.lines + comptime!(block.slots() - 1), 0u32);
    let mut newest = 0u32;
    while newest < end {
        #[unroll]
        for i in 0..block.slots() {
            // Line `newest + i` of the windows begins here.
            let line = newest + i;
            if line < end {
                let begun = widened::<S, A, N>(&next, 0u32, along.rows, form.widening);
                #[unroll]
                for r in 0..along.rows {
                    let gradient = gradients.index(comptime!((i * along.rows + r) as usize));
                    gradient.store(*begun.index(comptime!(r as usize)));
                }
                load_gradients::<S, N>(dy, gather, column, line + 1, &next, clipped, form);
                #[unroll]
                for j in 0..block.lines() {
                    let y = line * comptime!(block.step) + j;
                    let pixels =
                        widened::<S, A, N>(&ahead, 0u32, comptime!(block.pixels()), form.widening);
                    let following =
                        comptime!(if j + 1 < block.lines() { 1 } else { block.step - j });
                    let walk = &column.pixels;
                    load::<S, N>(x, gather, walk, y + following, &ahead, 0u32, clipped, along);
                    if is_inside(walk, y) {
                        add_line::<A, N>(
                            &pixels, &gradients, sums, column, line, i, j, clipped, form,
                        );
                    }
                }
            }
        }
        newest += comptime!(block.slots());
    }
}

/// Starts the loads of the gradients of a line of windows.
#[cube]
fn load_gradients<S: Float, N: Size>(
    dy: &[Vector<S, N>],
    gather: &GatherArgs,
    column: &Column,
    line: u32,
    gradients: &Registers<S, N>,
    #[comptime] clipped: bool,
    #[comptime] form: Form,
) {
    if line < column.lines {
        let lanes = N::value() as u32;
        let first = column.gradients + line * (gather.height.out_step / lanes);
        let step = gather.width.out_step / lanes;
        #[unroll]
        for r in 0..form.block.along.rows {
            if comptime!(!clipped || !form.partial) || r < column.rows {
                let gradient = gradients.index(comptime!(r as usize));
                gradient.store(dy[(first + r * step) as usize]);
            }
        }
    }
}

/// Adds the products of a line of pixels: the `j`-th of those at which line `line` of the windows begins, whose gradients
/// are in slot `i`.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn add_line<A: Float, N: Size>(
    pixels: &Sequence<Vector<A, N>>,
    gradients: &Registers<A, N>,
    sums: &Registers<A, N>,
    column: &Column,
    line: u32,
    #[comptime] i: u32,
    #[comptime] j: u32,
    #[comptime] clipped: bool,
    #[comptime] form: Form,
) {
    let block = comptime!(form.block);
    #[unroll]
    for before in 0..block.slots() {
        let tap = comptime!(before * block.step + j);
        // A line before the first one wraps, and is then not less than their number either.
        if comptime!(tap < block.taps) && line - before < column.lines {
            let slot = comptime!((i + block.slots() - before) % block.slots());
            #[unroll]
            for r in 0..block.along.rows {
                let first = comptime!(slot * block.along.rows);
                let gradient = gradients.index(comptime!((first + r) as usize)).read();
                if comptime!(!clipped || !form.partial) || r < column.rows {
                    #[unroll]
                    for t in 0..block.along.taps {
                        let pixel = *pixels.index(comptime!(block.along.pixel(r, t) as usize));
                        let sum = sums.index(comptime!((tap * block.along.taps + t) as usize));
                        sum.store(fma(pixel, gradient, sum.read()));
                    }
                }
            }
        }
    }
}

/// Adds the sums of the units that share the walks of a vector, and stores them.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn add_strips<A: Float, N: Size>(
    dw: &mut [A],
    gather: &GatherArgs,
    args: &FilterArgs,
    sums: &Registers<A, N>,
    part: u32,
    first_vector: u32,
    td: u32,
    first_tap: u32,
    #[comptime] form: Form,
) {
    let lanes = N::value() as u32;
    let mut shared =
        Shared::<[Vector<A, N>]>::new_slice(comptime!((form.units * form.at_once) as usize));
    #[unroll]
    for first in range_stepped(0, comptime!(form.block.sums()), comptime!(form.at_once)) {
        let count = comptime!(form.at_once.min(form.block.sums() - first));
        #[unroll]
        for i in 0..count {
            shared[(UNIT_POS + comptime!(i * form.units)) as usize] =
                sums.index(comptime!((first + i) as usize)).read();
        }
        sync_cube();
        let mut place = UNIT_POS;
        while place < count * args.across_count {
            let (i, across) = args.across.div_mod(place);
            let mut sum = Vector::<A, N>::new(A::from_int(0));
            for strip in 0..args.strips {
                let unit = strip * args.across_count + across;
                sum += shared[(i * comptime!(form.units) + unit) as usize];
            }
            let tap = first + i;
            let th = first_tap + tap / comptime!(form.block.along.taps);
            let vector = first_vector + across;
            if th < args.taps && vector < args.vectors {
                let tap = tap_point(gather, td, th, tap % comptime!(form.block.along.taps));
                let at = part * args.part_step + tap.other + vector * lanes * args.channel_step;
                #[unroll]
                for lane in 0..N::value() {
                    dw[(at + lane as u32 * args.channel_step) as usize] = sum.extract(lane);
                }
            }
            place += comptime!(form.units);
        }
        sync_cube();
    }
}
