//! The weight gradient. A unit holds the sums of some lines of taps of a vector of channels in registers. It walks down
//! lines of pixels, and reads each of them once for all of these taps:
//!
//! ```text
//! for each part of the walks, each block of lines of taps, each chunk of vectors of channels:        one cube
//!     for each vector of channels of the chunk:                                                      some units
//!         for each walk of the part, which is a run of neighbouring windows by some lines of them:   one of these units
//!             for each line of pixels that the windows read:
//!                 gradients[slot] ← those of the line of windows that begins here, if any
//!                 pixels ← those that the run reads on this line
//!                 the loads of later lines are started
//!                 for each line of windows that reads this line, each window:  sums[tap] += pixel · gradient
//!         dw[part] ← the sums of these units, added in shared memory
//! ```
//!
//! `SLOTS` lines of windows read the same line of pixels, and the loop is unrolled as often, so that each has the same
//! registers again. Neighbouring units have neighbouring vectors of channels, and then walks beside each other, so that the
//! loads of a cube are close together. The parts are added by another launch (`split_k`).

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Convolution, DType};

use super::config::Config;
use super::walk::{MOST_AHEAD, Origin, Pixels, divisor, first_row, load_pixels, run, widened};
use crate::conv::common::{
    Arguments, Gather, GatherArgs, Kernel, Sweep, buffer, cost, row_point, split_k, tap_point,
    weight_steps,
};
use crate::conv::problem::{Pass, Request, Task, results};
use crate::cube::{Registers, Widening, accumulator, elem, grid, numbers, round, widen, zeros};

/// The units of a cube. There are few, because each uses many registers.
pub(super) const UNITS: u32 = 128;

/// The vectors of channels of a cube, at most: those whose pixels are neighbours in memory.
pub(super) const VECTORS: u32 = 32;

/// The shared memory in which sums are added.
pub(super) const SHARED_BYTES: usize = 16 << 10;

/// The most cubes of a multiprocessor: of units with several lines of taps, which have more registers, and of others.
const CUBES_EACH: [usize; 2] = [2, 3];

/// How the work is divided among cubes and among their units.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    /// The vectors of channels, those of a cube, and the chunks of vectors.
    vectors: usize,
    across: usize,
    chunks: usize,
    /// The units of a cube that share the walks of a vector.
    strips: usize,
    /// The blocks of lines of taps, of one depth and of all.
    height_blocks: usize,
    tap_blocks: usize,
    /// The planes of windows, the lines of each, and the runs of a line.
    planes: usize,
    height: usize,
    runs: usize,
}

impl Blocks {
    fn new(conv: &Convolution, config: Config, units: u32) -> Self {
        let vectors = conv.input().channels() / config.lanes as usize;
        // A plan may have fewer units than the kernel's own.
        let across = config.vectors.min(units) as usize;
        let [depth, height, width] = conv.grid().axes();
        let height_blocks = height.kernel().div_ceil(config.lines as usize);
        Self {
            vectors,
            across,
            chunks: vectors.div_ceil(across),
            strips: units as usize / across,
            height_blocks,
            tap_blocks: depth.kernel() * height_blocks,
            planes: conv.output().batch() * depth.output(),
            height: height.output(),
            runs: width.output().div_ceil(run(config, &Sweep::forward(width)).rows as usize),
        }
    }

    /// The number of cubes for one part of the windows.
    fn cubes(&self) -> usize {
        self.chunks * self.tap_blocks
    }

    /// The number of walks down `lines` lines of windows.
    fn walks(&self, lines: usize) -> usize {
        self.planes * self.height.div_ceil(lines) * self.runs
    }
}

/// The compile-time options of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    pixels: Pixels,
    /// The lines of taps of a unit, and the lines of pixels from one line of windows to the next.
    lines: u32,
    step: u32,
    /// The lines of windows of an unrolled iteration.
    turns: u32,
    /// The lines of pixels, and those of windows, whose loads are in flight while a line is multiplied.
    ahead: u32,
    windows_ahead: u32,
    /// Whether the last run of a line has windows of the run before it.
    overlaps: bool,
    units: u32,
    /// The number of sums of each unit that are in shared memory at once.
    at_once: u32,
    /// Whether sums are rounded to bf16 here.
    bf16: bool,
}

impl Form {
    fn new(task: Task<'_>, config: Config, units: u32, stored: DType) -> Self {
        let Task { conv, request: Request { dtype, .. }, device } = task;
        let [_, height, width] = *conv.grid().axes();
        let step = height.stride() as u32;
        let width = Sweep::forward(&width);
        let along = run(config, &width);
        let widening = Widening::of_sums(dtype, false, device);
        let mut form = Self {
            pixels: Pixels::new(along, &width, widening),
            lines: config.lines,
            step,
            turns: 0,
            ahead: 0,
            windows_ahead: 0,
            overlaps: !width.rows.is_multiple_of(along.rows as usize),
            units,
            at_once: 0,
            bf16: stored == DType::BF16,
        };
        form.turns = if form.slots() == 1 { 2 } else { form.slots() };
        form.ahead = divisor(form.turns * form.used(), MOST_AHEAD);
        form.windows_ahead = divisor(form.turns, form.ahead.div_ceil(form.used()));
        form.at_once = sums_at_once(dtype, config.lanes, units).min(form.taps());
        form
    }

    /// The number of taps of a unit.
    fn taps(&self) -> u32 {
        self.lines * self.pixels.along.taps
    }

    /// The lines of windows that read the same line of pixels.
    fn slots(&self) -> u32 {
        self.lines.div_ceil(self.step)
    }

    /// The lines of pixels that are read from one line of windows to the next: not those between the taps.
    fn used(&self) -> u32 {
        self.step.min(self.lines)
    }

    /// The register of the gradient of window `r` of the line in a slot or a buffer.
    fn window(&self, slot: u32, r: u32) -> usize {
        (slot * self.pixels.along.rows + r) as usize
    }

    /// The slot of the line of windows `before` lines before the `i`-th of an iteration.
    fn slot(&self, i: u32, before: u32) -> u32 {
        (i + self.slots() - before) % self.slots()
    }
}

/// The numbers of a launch, besides those of the gather.
#[derive(CubeType, CubeLaunch)]
struct WeightArgs {
    /// The cubes of all parts; the chunks of vectors, and the blocks of lines of taps.
    cubes: u32,
    chunks: FastDivmod<u32>,
    tap_blocks: FastDivmod<u32>,
    height_blocks: FastDivmod<u32>,
    vectors: u32,
    /// The vectors of a cube, and the units that share the walks of each.
    across: FastDivmod<u32>,
    across_count: u32,
    strips: u32,
    /// The runs of a line, the pieces of a plane, the lines of a piece and of a plane, and the windows of a line.
    runs: FastDivmod<u32>,
    pieces: FastDivmod<u32>,
    lines: u32,
    height: u32,
    width: u32,
    /// All walks, and those of a part.
    walks: u32,
    walks_per_part: u32,
    /// The memory steps between channels and between parts of the gradient.
    channel_step: u32,
    part_step: u32,
}

/// Launches the weight gradient.
pub(super) fn launch(arguments: &Arguments<'_>, config: Config) {
    let Arguments { client, units, splits, stored, .. } = *arguments;
    let Task { conv, request: Request { dtype, .. }, .. } = arguments.task;
    let ([x, dy], dw) = (arguments.operands, arguments.out);
    let lanes = config.lanes as usize;
    let blocks = Blocks::new(conv, config, units);
    let lines = best(arguments.task, config, splits).1;
    for gather in Gather::all(conv, Pass::Weight) {
        let steps = weight_steps(conv, Pass::Weight);
        let results = results(conv, Pass::Weight);
        let [.., width] = conv.grid().axes();
        let cubes = blocks.cubes() * splits;
        let (count, dim) = grid(client, units, cubes * units as usize);
        let walks = blocks.walks(lines);
        // SAFETY: vectors past the last repeat the last one and are not stored, runs end with the line, and reads of lines
        // and pixels outside are moved inside.
        unsafe {
            depthwise_weight::launch_unchecked(
                client,
                count,
                dim,
                lanes,
                buffer(x, conv.input().elements() / lanes),
                buffer(dy, conv.output().elements() / lanes),
                buffer(dw, results * splits),
                gather.args(conv, &steps),
                numbers! { WeightArgsLaunch {
                    cubes, chunks: blocks.chunks, tap_blocks: blocks.tap_blocks,
                    height_blocks: blocks.height_blocks, vectors: blocks.vectors,
                    across: blocks.across, across_count: blocks.across, strips: blocks.strips,
                    runs: blocks.runs, pieces: blocks.height.div_ceil(lines), lines,
                    height: blocks.height, width: width.output(), walks,
                    walks_per_part: walks.div_ceil(splits),
                    channel_step: conv.filter().strides(conv.filter_layout()).count,
                    part_step: results,
                } },
                Form::new(arguments.task, config, units, stored),
                elem(dtype),
                elem(accumulator(dtype)),
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

/// What a unit reads on one walk, and where.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Walk {
    pixels: Origin,
    /// The lines of windows, the first of which has its first gradient at `first`. Another unit has the first `skipped`
    /// windows of each.
    lines: u32,
    first: u32,
    skipped: u32,
}

#[cube(launch_unchecked)]
fn depthwise_weight<S: Float, A: Float, R: Float, N: Size>(
    x: &[Vector<S, N>],
    dy: &[Vector<S, N>],
    dw: &mut [R],
    gather: &GatherArgs,
    block: &WeightArgs,
    #[comptime] form: Form,
    #[define(S)] _read: ElemType,
    #[define(A)] _accumulator: ElemType,
    #[define(R)] _stored: ElemType,
) {
    let cube = CUBE_POS as u32;
    if cube >= block.cubes {
        terminate!();
    }
    let (strip, across) = block.across.div_mod(UNIT_POS);
    let (rest, chunk) = block.chunks.div_mod(cube);
    let (part, tap_block) = block.tap_blocks.div_mod(rest);
    let (td, height_block) = block.height_blocks.div_mod(tap_block);
    let th = height_block * comptime!(form.lines);
    let first_vector = chunk * block.across_count;
    let vector = min(first_vector + across, block.vectors - 1);

    let sums = zeros::<A, N>(form.taps());
    let first = part * block.walks_per_part;
    let end = min(first + block.walks_per_part, block.walks);
    // Units past the last strip have no walks.
    let mut next = select(strip < block.strips, first + strip, end);
    while next < end {
        let (rest, run) = block.runs.div_mod(next);
        let (plane, piece) = block.pieces.div_mod(rest);
        let line = piece * block.lines;
        let rows = comptime!(form.pixels.along.rows);
        let along = first_row(run * rows, block.width, rows);
        let row = row_point(gather, (plane * block.height + line) * block.width + along);
        let depth = row.depth + td as i32 * gather.depth.tap_step;
        if depth >= 0 && depth < gather.depth.extent {
            let lanes = N::value() as u32;
            let walk = Walk {
                pixels: Origin {
                    plane: (row.a + (depth * gather.depth.a_step) as u32) / lanes + vector,
                    top: row.height + th as i32 * gather.height.tap_step,
                    start: row.width + comptime!(form.pixels.along.pixels().0),
                },
                lines: min(block.lines, block.height - line),
                first: row.other / lanes + vector,
                skipped: run * rows - along,
            };
            add_walk::<S, A, N>(x, dy, gather, &walk, &sums, form);
        }
        next += block.strips;
    }
    add_strips::<A, R, N>(dw, gather, block, &sums, part, first_vector, td, th, form);
}

/// Adds the products of a walk for all taps of the unit.
#[cube]
fn add_walk<S: Float, A: Float, N: Size>(
    x: &[Vector<S, N>],
    dy: &[Vector<S, N>],
    gather: &GatherArgs,
    walk: &Walk,
    sums: &Registers<A, N>,
    #[comptime] form: Form,
) {
    let pixels_ahead = zeros::<S, N>(comptime!(form.ahead * form.pixels.count()));
    let windows_ahead = zeros::<S, N>(comptime!(form.windows_ahead * form.pixels.along.rows));
    let gradients = zeros::<A, N>(comptime!(form.slots() * form.pixels.along.rows));
    #[unroll]
    for i in 0..form.windows_ahead {
        load_windows::<S, N>(dy, gather, walk, i.runtime(), &windows_ahead, i, form);
    }
    #[unroll]
    for n in 0..form.ahead {
        let y = comptime!(n / form.used() * form.step + n % form.used());
        load_pixels::<S, N>(x, gather, &walk.pixels, y.runtime(), &pixels_ahead, n, form.pixels);
    }
    let end = walk.lines + comptime!(form.slots() - 1);
    let mut newest = 0u32;
    while newest < end {
        #[unroll]
        for i in 0..form.turns {
            let line = newest + i;
            let buffer = comptime!(i % form.windows_ahead);
            #[unroll]
            for r in 0..form.pixels.along.rows {
                let gradient = windows_ahead.index(comptime!(form.window(buffer, r))).read();
                let slot = comptime!(form.slot(i, 0));
                gradients
                    .index(comptime!(form.window(slot, r)))
                    .store(widen::<S, A, N>(gradient, form.pixels.widening));
            }
            let later = line + comptime!(form.windows_ahead);
            load_windows::<S, N>(dy, gather, walk, later, &windows_ahead, buffer, form);
            #[unroll]
            for j in 0..form.used() {
                let buffer = comptime!((i * form.used() + j) % form.ahead);
                // `add_line` leaves out lines outside, so their pixels need not be zeros.
                let pixels = widened::<S, A, N, N>(
                    &pixels_ahead,
                    gather,
                    &walk.pixels,
                    true.runtime(),
                    buffer,
                    form.pixels,
                );
                let n = comptime!(j + form.ahead);
                let y = (line + comptime!(n / form.used())) * comptime!(form.step)
                    + comptime!(n % form.used());
                load_pixels::<S, N>(x, gather, &walk.pixels, y, &pixels_ahead, buffer, form.pixels);
                let h = walk.pixels.top + (line * comptime!(form.step) + j) as i32;
                // As an unsigned number, a negative coordinate is larger than every extent.
                let inside = (h as u32) < gather.height.extent as u32;
                add_line::<A, N>(&pixels, &gradients, sums, walk, line, inside, i, j, form);
            }
        }
        newest += comptime!(form.turns);
    }
}

/// Starts the loads of the gradients of the walk's line `line` into a buffer. Those that do not exist are replaced by others
/// and not used: a load under a condition would need a move, which waits for it.
#[cube]
fn load_windows<S: Float, N: Size>(
    dy: &[Vector<S, N>],
    gather: &GatherArgs,
    walk: &Walk,
    line: u32,
    ahead: &Registers<S, N>,
    #[comptime] buffer: u32,
    #[comptime] form: Form,
) {
    let lanes = N::value() as u32;
    let step = gather.width.out_step / lanes;
    let line = min(line, walk.lines - 1);
    let first = walk.first + line * (gather.height.out_step / lanes);
    #[unroll]
    for r in 0..form.pixels.along.rows {
        let gradient = dy[(first + r * step) as usize];
        ahead.index(comptime!(form.window(buffer, r))).store(gradient);
    }
}

/// Adds the products of a line of pixels, the `j`-th of those at which line `line` of the windows begins, with the lines of
/// windows that read it, if it is `inside` the image.
#[cube]
fn add_line<A: Float, N: Size>(
    pixels: &Sequence<Vector<A, N>>,
    gradients: &Registers<A, N>,
    sums: &Registers<A, N>,
    walk: &Walk,
    line: u32,
    inside: bool,
    #[comptime] i: u32,
    #[comptime] j: u32,
    #[comptime] form: Form,
) {
    #[unroll]
    for before in 0..form.slots() {
        let tap = comptime!(before * form.step + j);
        // There is no line of windows before the first, nor after the last.
        if comptime!(tap < form.lines) && inside && line - before < walk.lines {
            #[unroll]
            for r in 0..form.pixels.along.rows {
                // Another unit's windows are not multiplied by zeros, because pixels may be infinite.
                if comptime!(!form.overlaps) || r >= walk.skipped {
                    let slot = comptime!(form.slot(i, before));
                    let gradient = gradients.index(comptime!(form.window(slot, r))).read();
                    #[unroll]
                    for t in 0..form.pixels.along.taps {
                        let pixel =
                            *pixels.index(comptime!(form.pixels.along.pixel(r, t) as usize));
                        let sum =
                            sums.index(comptime!((tap * form.pixels.along.taps + t) as usize));
                        sum.store(fma(pixel, gradient, sum.read()));
                    }
                }
            }
        }
    }
}

/// Adds the sums of the units that share the walks of a vector, and stores them.
#[cube]
fn add_strips<A: Float, R: Float, N: Size>(
    dw: &mut [R],
    gather: &GatherArgs,
    block: &WeightArgs,
    sums: &Registers<A, N>,
    part: u32,
    first_vector: u32,
    td: u32,
    first_line: u32,
    #[comptime] form: Form,
) {
    let lanes = N::value() as u32;
    let mut shared =
        Shared::<[Vector<A, N>]>::new_slice(comptime!((form.units * form.at_once) as usize));
    #[unroll]
    for first in range_stepped(0, comptime!(form.taps()), comptime!(form.at_once)) {
        let count = comptime!(form.at_once.min(form.taps() - first));
        #[unroll]
        for i in 0..count {
            shared[(UNIT_POS + comptime!(i * form.units)) as usize] =
                sums.index(comptime!((first + i) as usize)).read();
        }
        sync_cube();
        let mut place = UNIT_POS;
        while place < count * block.across_count {
            let (i, across) = block.across.div_mod(place);
            let mut sum = Vector::<A, N>::new(A::from_int(0));
            for strip in 0..block.strips {
                let unit = strip * block.across_count + across;
                sum += shared[(i * comptime!(form.units) + unit) as usize];
            }
            let sum = round::<A, R, N>(sum, form.bf16);
            let tap = first + i;
            let th = first_line + tap / comptime!(form.pixels.along.taps);
            let vector = first_vector + across;
            if th < gather.height.taps_count && vector < block.vectors {
                let tap = tap_point(gather, td, th, tap % comptime!(form.pixels.along.taps));
                let at = part * block.part_step + tap.other + vector * lanes * block.channel_step;
                #[unroll]
                for lane in 0..N::value() {
                    dw[(at + lane as u32 * block.channel_step) as usize] = sum.extract(lane);
                }
            }
            place += comptime!(form.units);
        }
        sync_cube();
    }
}

/// The number of parts of the walks with the lowest estimate, and that estimate with the addition of the parts.
pub(super) fn splits(task: Task<'_>, config: Config) -> (usize, f64) {
    let Task { conv, device, .. } = task;
    let blocks = Blocks::new(conv, config, config.units(task));
    let most = blocks.walks(1).div_ceil(blocks.strips).clamp(1, split_k::most(conv, Pass::Weight));
    let [of_several, of_one] = CUBES_EACH;
    let most_each = if config.lines > 1 { of_several } else { of_one };
    let estimates = (1..=most_each).map(|each| {
        // The most parts of which no multiprocessor has more than `each` cubes.
        let parts = (each * device.multiprocessor_count() / blocks.cubes()).clamp(1, most);
        (parts, seconds(task, config, parts) + split_k::seconds(task, parts))
    });
    estimates.min_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or((1, f64::INFINITY))
}

/// The estimated seconds with this number of parts.
pub(super) fn seconds(task: Task<'_>, config: Config, splits: usize) -> f64 {
    best(task, config, splits).0
}

/// The cycles of each product and each load of a line, which count once, and once more for each cube of the multiprocessor;
/// and the lines that the start of a walk is worth. The numbers were fitted to 99 times of 17 layers.
const PRODUCT: f64 = 1.0;
const LOAD: f64 = 7.0;
const START: f64 = 2.0;

/// The pieces of a plane that are tried.
const MOST_PIECES: usize = 32;

/// The lowest estimate of any length of walks, and that length: the time of the multiprocessor with the most cubes, whose
/// units wait for their own loads and for those of the others.
fn best(task: Task<'_>, config: Config, splits: usize) -> (f64, usize) {
    let Task { conv, request, device } = task;
    let units = config.units(task);
    let blocks = Blocks::new(conv, config, units);
    let form = Form::new(task, config, units, request.dtype);
    let each = (blocks.cubes() * splits).div_ceil(device.multiprocessor_count());
    let loads = f64::from(form.used() * form.pixels.count() + form.pixels.along.rows);
    let products = f64::from(form.taps() * form.pixels.along.rows * config.lanes);
    let line = (PRODUCT * products + LOAD * loads) * (1 + each) as f64;
    let time = |pieces: usize| {
        let lines = blocks.height.div_ceil(pieces);
        let walks = blocks.walks(lines).div_ceil(splits).div_ceil(blocks.strips) as f64;
        let steps = (lines as u32).saturating_add(form.slots() - 1).next_multiple_of(form.turns);
        (walks * (f64::from(steps) + START) * line, lines)
    };
    let times = (1..=blocks.height.min(MOST_PIECES)).map(time);
    let (cycles, lines) =
        times.min_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or((f64::INFINITY, 1));
    let copy = device.copy_seconds(cost::bytes(conv, request));
    (device.launch_seconds(1) + copy.max(cycles / device.clock()), lines)
}
