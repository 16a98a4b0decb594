//! The weight gradient. A unit holds the sums of some taps of a vector of channels in registers, and adds the products
//! of every n-th run of windows:
//!
//! ```text
//! for each part of the windows, each block of lines of taps, each chunk of vectors of channels:      one cube
//!     for each vector of channels of the chunk:                                                      some units
//!         for each run of neighbouring windows of the part:                                  one of these units
//!             for each line of taps of the block:
//!                 pixels ← those that the run reads on this line         once, however many taps read them
//!                 for each tap of the line, for each window:  sums[tap] += pixel · dy[window]
//!         dw[part] ← the sums of these units, added in shared memory
//! ```
//!
//! Neighbouring units have neighbouring vectors of channels, and then the runs below one another, so that the loads of a
//! cube are close together, most lines are found in the cache when the next line of taps reads them, and the units of a
//! plane reach the border of the image together. The parts are added by another launch (`split_k`).

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Convolution, DType};

use super::config::Config;
use super::cost::with_tensors;
use crate::conv::common::arguments::Arguments;
use crate::conv::common::buffer::buffer;
use crate::conv::common::gather::{
    Gather, GatherArgs, GatherForm, Point, row_point, tap_point, weight_steps,
};
use crate::conv::common::kernel::Kernel;
use crate::conv::common::run::{Run, pixels_of};
use crate::conv::common::split_k;
use crate::conv::problem::{Pass, Request, Task, results};
use crate::cube::convert::{accumulator, elem, round};
use crate::cube::registers::{Registers, zeros};
use crate::cube::unit::grid;

/// The units of a cube. There are few, because each uses many registers.
pub(super) const UNITS: u32 = 128;

/// The vectors of channels of a cube, at most: those whose pixels are neighbours in memory. With fewer, more units of a
/// cube share the runs of a vector, so that fewer parts are as many cubes.
pub(super) const VECTORS: [u32; 2] = [32, 16];

/// The shared memory in which sums are added.
pub(super) const SHARED_BYTES: usize = 16 << 10;

/// The number of cubes of a multiprocessor, and the fewest runs that are worth a unit.
const CUBES_EACH: usize = 4;
const LEAST_RUNS: usize = 2;

/// How the work is divided among cubes and among their units.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    /// The vectors of channels, those of a cube, and the chunks of vectors.
    vectors: usize,
    across: usize,
    chunks: usize,
    /// The units of a cube that share the runs of a vector.
    strips: usize,
    /// The blocks of lines of taps.
    tap_blocks: usize,
    /// The lines of windows, and the runs of all lines.
    lines: usize,
    runs: usize,
}

impl Blocks {
    fn new(conv: &Convolution, config: Config, units: u32) -> Self {
        let vectors = conv.input().channels() / config.lanes as usize;
        // A plan may have fewer units than the kernel's own.
        let across = config.vectors.min(units) as usize;
        let [depth, height, width] = conv.grid().axes();
        let lines = conv.output().batch() * depth.output() * height.output();
        let tap_lines = depth.kernel() * height.kernel();
        Self {
            vectors,
            across,
            chunks: vectors.div_ceil(across),
            strips: units as usize / across,
            tap_blocks: tap_lines.div_ceil(config.lines as usize),
            lines,
            runs: width.output().div_ceil(config.rows as usize) * lines,
        }
    }

    /// The number of cubes for one part of the windows.
    fn cubes(&self) -> usize {
        self.chunks * self.tap_blocks
    }
}

/// The number of parts of the windows with the lowest estimate, and that estimate with the addition of the parts.
pub(super) fn splits(task: Task<'_>, config: Config) -> (usize, f64) {
    let Task { conv, device, .. } = task;
    let blocks = Blocks::new(conv, config, config.units(task));
    let most = blocks.runs / (blocks.strips * LEAST_RUNS);
    let most = most.clamp(1, split_k::most(conv, Pass::Weight));
    let estimates = (1..=CUBES_EACH).map(|each| {
        // The most parts of which no multiprocessor has more than `each` cubes.
        let parts = (each * device.multiprocessor_count() / blocks.cubes()).clamp(1, most);
        (parts, seconds(task, config, parts) + split_k::seconds(task, parts))
    });
    estimates.min_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or((1, f64::INFINITY))
}

/// The instructions of a product, with those that load and convert its factors; its cycles on the busiest multiprocessor
/// besides; and the cycles for which a unit waits for the loads of a run. They were fitted such that the divisions that
/// were faster are chosen.
const PRODUCT: f64 = 3.8;
const BUSIEST: f64 = 1.5;
const WAIT: f64 = 600.0;

/// The estimated seconds: those of all products if multiprocessors had equal shares, and those of the multiprocessor with
/// the most cubes, whose units wait for the loads of each run unless other cubes have work.
pub(super) fn seconds(task: Task<'_>, config: Config, splits: usize) -> f64 {
    let Task { conv, device, .. } = task;
    let blocks = Blocks::new(conv, config, config.units(task));
    let taps = conv.grid().axes()[AXES - 1].kernel() as f64;
    let products = f64::from(config.rows * config.lines * config.lanes) * taps;
    let all = (blocks.runs * blocks.vectors * blocks.tap_blocks) as f64 * products;
    let each = (blocks.cubes() * splits).div_ceil(device.multiprocessor_count()) as f64;
    let (busy, rounds) = (BUSIEST * products, (each / CUBES_EACH as f64).ceil());
    let runs = blocks.runs.div_ceil(splits).div_ceil(blocks.strips) as f64;
    let busiest = runs * (each * busy).max(rounds * (busy + WAIT));
    device.launch_seconds(1) + with_tensors(PRODUCT * all, 0.0, task) + busiest / device.clock()
}

/// The compile-time options of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    along: Run,
    /// The lines of taps of a unit.
    lines: u32,
    /// Whether the last run of a line has fewer windows.
    partial: bool,
    units: u32,
    /// The number of sums of each unit that are in shared memory at once.
    at_once: u32,
    gather: GatherForm,
    /// Whether sums are rounded to bf16 here.
    bf16: bool,
}

impl Form {
    /// The number of taps of a unit.
    fn taps(&self) -> u32 {
        self.lines * self.along.taps
    }
}

/// The numbers of a launch, besides those of the gather.
#[derive(CubeType, CubeLaunch)]
struct WeightArgs {
    /// The cubes of all parts; the chunks of vectors, and the blocks of lines of taps.
    cubes: u32,
    chunks: FastDivmod<u32>,
    tap_blocks: FastDivmod<u32>,
    vectors: u32,
    /// The vectors of a cube, and the units that share the runs of each.
    across: FastDivmod<u32>,
    across_count: u32,
    strips: u32,
    tap_lines: u32,
    /// The windows of a line, the lines, the runs of all lines, and those of a part.
    width: u32,
    lines: FastDivmod<u32>,
    runs: u32,
    runs_per_part: u32,
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
    for gather in Gather::all(conv, Pass::Weight) {
        let along = Run::new(config.rows, &gather.axes[AXES - 1]);
        let steps = weight_steps(conv, Pass::Weight);
        let results = results(conv, Pass::Weight);
        let [depth, height, width] = conv.grid().axes();
        let taps = config.lines * along.taps;
        let cubes = blocks.cubes() * splits;
        let (count, dim) = grid(client, units, cubes * units as usize);
        let form = Form {
            along,
            lines: config.lines,
            partial: !width.output().is_multiple_of(config.rows as usize),
            units,
            at_once: sums_at_once(dtype, config.lanes, units).min(taps),
            gather: GatherForm::new(conv, Pass::Weight),
            bf16: stored == DType::BF16,
        };
        // SAFETY: vectors past the last repeat the last one and are not stored, windows past the last are skipped, reads of
        // pixels outside are moved inside, and lines outside are skipped.
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
                WeightArgsLaunch::new(
                    cubes as u32,
                    blocks.chunks as u32,
                    blocks.tap_blocks as u32,
                    blocks.vectors as u32,
                    blocks.across as u32,
                    blocks.across as u32,
                    blocks.strips as u32,
                    (depth.kernel() * height.kernel()) as u32,
                    width.output() as u32,
                    blocks.lines as u32,
                    blocks.runs as u32,
                    blocks.runs.div_ceil(splits) as u32,
                    conv.filter().strides(conv.filter_layout()).count as u32,
                    results as u32,
                ),
                form,
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
    let first_line = tap_block * comptime!(form.lines);
    let first_vector = chunk * block.across_count;
    let vector = min(first_vector + across, block.vectors - 1);

    let sums = zeros::<A, N>(form.taps());
    let first = part * block.runs_per_part;
    let end = min(first + block.runs_per_part, block.runs);
    // Units past the last strip have no runs.
    let mut run = select(strip < block.strips, first + strip, end);
    while run < end {
        let (place, line) = block.lines.div_mod(run);
        let along = place * comptime!(form.along.rows);
        let row = row_point(gather, line * block.width + along, form.gather);
        let (first_pixel, pixels) = comptime!(form.along.pixels());
        let start = row.width + first_pixel;
        let whole = start >= 0
            && start + comptime!(pixels as i32) <= gather.width.extent
            && along + comptime!(form.along.rows) <= block.width;
        if whole {
            add_run::<S, A, N>(
                x, dy, gather, block, &row, vector, along, first_line, &sums, false, form,
            );
        } else {
            add_run::<S, A, N>(
                x, dy, gather, block, &row, vector, along, first_line, &sums, true, form,
            );
        }
        run += block.strips;
    }
    add_strips::<A, R, N>(dw, gather, block, &sums, part, first_vector, first_line, form);
}

/// Adds the products of a run of windows, the first of which is `row`, for all taps of the unit.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn add_run<S: Float, A: Float, N: Size>(
    x: &[Vector<S, N>],
    dy: &[Vector<S, N>],
    gather: &GatherArgs,
    block: &WeightArgs,
    row: &Point,
    vector: u32,
    along: u32,
    first_line: u32,
    sums: &Registers<A, N>,
    #[comptime] clipped: bool,
    #[comptime] form: Form,
) {
    let lanes = N::value() as u32;
    let first = (row.other / lanes + vector) as usize;
    let step = (gather.width.out_step / lanes) as usize;
    let mut gradients = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for r in 0..form.along.rows {
        if comptime!(clipped && form.partial) {
            let r = select(along + r < block.width, r.runtime(), 0u32) as usize;
            gradients.push(Vector::cast_from(dy[first + r * step]));
        } else {
            gradients.push(Vector::cast_from(dy[first + comptime!(r as usize) * step]));
        }
    }
    let start = row.width + comptime!(form.along.pixels().0);
    let extent = gather.width.extent;
    #[unroll]
    for l in 0..form.lines {
        let (td, th) = gather.height.taps.div_mod(first_line + l);
        let d = row.depth + td as i32 * gather.depth.tap_step;
        let h = row.height + th as i32 * gather.height.tap_step;
        let inside = first_line + l < block.tap_lines
            && d >= 0
            && d < gather.depth.extent
            && h >= 0
            && h < gather.height.extent;
        if inside {
            let at = (d * gather.depth.a_step + h * gather.height.a_step) as u32;
            let line = ((row.a + at) / lanes + vector) as usize;
            let pixels = pixels_of::<S, A, N>(x, gather, line, start, extent, clipped, form.along);
            #[unroll]
            for r in 0..form.along.rows {
                if comptime!(clipped && form.partial) {
                    if along + r < block.width {
                        add_window::<A, N>(&pixels, &gradients, sums, r, l, form);
                    }
                } else {
                    add_window::<A, N>(&pixels, &gradients, sums, r, l, form);
                }
            }
        }
    }
}

/// Adds the products of window `r` of a run for the taps of line `l`.
#[cube]
fn add_window<A: Float, N: Size>(
    pixels: &Sequence<Vector<A, N>>,
    gradients: &Sequence<Vector<A, N>>,
    sums: &Registers<A, N>,
    #[comptime] r: u32,
    #[comptime] l: u32,
    #[comptime] form: Form,
) {
    #[unroll]
    for t in 0..form.along.taps {
        let pixel = *pixels.index(comptime!(form.along.pixel(r, t) as usize));
        let gradient = *gradients.index(comptime!(r as usize));
        let sum = sums.index(comptime!((l * form.along.taps + t) as usize));
        sum.store(fma(pixel, gradient, sum.read()));
    }
}

/// Adds the sums of the units that share the runs of a vector, and stores them.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn add_strips<A: Float, R: Float, N: Size>(
    dw: &mut [R],
    gather: &GatherArgs,
    block: &WeightArgs,
    sums: &Registers<A, N>,
    part: u32,
    first_vector: u32,
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
            let line = first_line + tap / comptime!(form.along.taps);
            let vector = first_vector + across;
            if line < block.tap_lines && vector < block.vectors {
                let (td, th) = gather.height.taps.div_mod(line);
                let tap = tap_point(gather, td, th, tap % comptime!(form.along.taps));
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
