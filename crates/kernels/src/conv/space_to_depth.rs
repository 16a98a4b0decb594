//! Space to depth: copies a tensor to blocks of pixels, and back. A block has the pixels that a window moves by in one step.
//!
//! ```text
//! gather:   blocks[n, b, (j, c)] = x[n, b·s − before + j, c]                       0 if x has no such pixel
//! scatter:  x[n, i, c] = blocks[n, (i + before) / s, ((i + before) mod s, c)]      0 past the last block
//! ```
//!
//! Filters are copied in the same way: a filter takes the place of a sample, and its taps that of pixels. The taps that
//! complete their last blocks are zeros, which change no sum of finite factors. A data gradient with them may have NaN where
//! there should be none, so `scatter` recomputes results that are not finite from the factors.
//!
//! A row is what lies in one line of memory: with channels last the pixels of a line with their channels, of which those
//! of a block are a run in the block too; with channels first the pixels of a line in one channel.

use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Convolution, DType, Layout};

use super::common::{Coordinates, Problem, buffer, data_sum, problem_args};
use super::problem::{Pass, operands};
use crate::cube::unit::{plain_grid, unit_position, widest_lanes};
use crate::cube::{accumulator, elem, numbers, round};
use crate::device::{Capabilities, Target};

/// The bits of the exponent of an f32 that is infinite or NaN.
const INFINITE: u32 = 0x7f80_0000;

/// The instructions of a unit for each vector that it reads.
const INSTRUCTIONS: f64 = 40.0;

/// A tensor of a convolution, and the same as blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    conv: Convolution,
    sides: [Side; AXES],
    samples: usize,
    channels: usize,
    /// Whether a row has one channel.
    channels_first: bool,
    /// The elements of a block.
    block: usize,
}

/// An axis: its extent, the pixels of a block, those before the first one that the tensor has, and the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side {
    extent: usize,
    step: usize,
    before: usize,
    blocks: usize,
}

impl Blocks {
    /// The input of a convolution, in this layout; the convolution is `blocked` over blocks.
    pub(super) fn of_input(conv: &Convolution, blocked: &Convolution, layout: Layout) -> Self {
        let (own, over) = (conv.grid().axes(), blocked.grid().axes());
        let side = |i: usize| {
            let axis = &own[i];
            let before = if axis.stride() == 1 { 0 } else { axis.before() };
            let (extent, step, blocks) = (axis.input(), axis.stride(), over[i].input());
            Side { extent, step, before, blocks }
        };
        Self {
            conv: *conv,
            sides: [side(0), side(1), side(2)],
            samples: conv.input().batch(),
            channels: conv.input().channels(),
            channels_first: layout == Layout::ChannelsFirst,
            block: blocked.input().channels(),
        }
    }

    /// Its filters, with their taps or their channels in one line of memory.
    pub(super) fn of_filters(conv: &Convolution, blocked: &Convolution, layout: Layout) -> Self {
        let (own, over) = (conv.grid().axes(), blocked.grid().axes());
        let side = |i: usize| {
            let (extent, step, blocks) = (own[i].kernel(), own[i].stride(), over[i].kernel());
            Side { extent, step, before: 0, blocks }
        };
        let (samples, sides) = (conv.filter().count(), [side(0), side(1), side(2)]);
        Self { samples, sides, ..Self::of_input(conv, blocked, layout) }
    }

    /// The number of elements of the blocks.
    pub(super) fn elements(&self) -> usize {
        self.samples * self.sides.iter().map(|side| side.blocks).product::<usize>() * self.block
    }

    /// The number of elements of the tensor.
    fn own(&self) -> usize {
        self.samples * self.channels * self.sides.iter().map(|side| side.extent).product::<usize>()
    }

    /// The elements of a row; those of them in one block, and those before the first one.
    fn row(&self) -> [usize; 3] {
        let Side { extent, step, before, .. } = self.sides[AXES - 1];
        let channels = if self.channels_first { 1 } else { self.channels };
        [extent, step, before].map(|pixels| pixels * channels)
    }

    /// The form of a kernel that writes rows of `written` elements.
    fn form(&self, device: &Capabilities, dtype: DType, written: usize, recomputes: bool) -> Form {
        let [row, run, before] = self.row();
        let read = if self.channels_first { 1 } else { row | run | before };
        let [written, read] =
            [written, read].map(|elements| widest_lanes(device, dtype.size(), elements));
        Form {
            read: read.min(written),
            written,
            channels_first: self.channels_first,
            contiguous: device.cores.is_some(),
            recomputes,
            rounds: dtype == DType::BF16 && !device.rounds_bf16,
        }
    }

    /// The estimated seconds of either copy.
    pub(super) fn seconds(&self, dtype: DType, device: &Capabilities) -> f64 {
        let (own, blocks) = (self.own(), self.elements());
        let loads = own.max(blocks) / self.form(device, dtype, self.block, false).read;
        let units = device.multiprocessor_count() as f64 * device.units_per_cycle();
        let computing = loads as f64 * INSTRUCTIONS / units / device.clock();
        let moving = device.copy_seconds(((own + blocks) * dtype.size()) as f64);
        device.next_launch_seconds() + moving.max(computing)
    }

    fn args(&self, vectors: usize) -> ArgsLaunch {
        let [row, run, before] = self.row();
        let side = |i: usize| {
            let Side { extent, step, before, blocks } = self.sides[i];
            numbers! { SideArgsLaunch {
                extent_divisor: extent, extent, step_divisor: step, step, before,
                blocks_divisor: blocks, blocks,
            } }
        };
        let pixel_step = if self.channels_first { self.channels } else { 1 };
        let outer = if self.channels_first { self.channels } else { 1 };
        let Side { step, blocks, .. } = self.sides[AXES - 1];
        let line = step * self.channels;
        numbers! { ArgsLaunch {
            vectors, row_divisor: row, row, run_divisor: run, run, before, blocks_divisor: blocks,
            blocks, height: side(1), depth: side(0), outer_divisor: outer, outer,
            channels_divisor: self.channels, pixel_step, line_divisor: line, line,
            block_divisor: self.block, block: self.block,
        } }
    }

    /// Copies the tensor to its blocks.
    pub(super) fn gather(&self, target: Target<'_>, dtype: DType, from: &Handle, to: &Handle) {
        let Target { client, device } = target;
        let form = self.form(device, dtype, self.block, false);
        let Form { read, written, .. } = form;
        let vectors = self.elements() / written;
        let (cubes, units) = plain_grid(target, vectors);
        // SAFETY: the buffers hold what is read and written, a unit past the last vector ends, and for a pixel outside of
        // the tensor the first one is read.
        unsafe {
            gathered::launch_unchecked(
                client,
                cubes,
                units,
                read,
                written,
                buffer(from, self.own() / read),
                buffer(to, vectors),
                self.args(vectors),
                form,
                elem(dtype),
            );
        }
    }

    /// Copies blocks back to the tensor. With the factors of a data gradient, the output's gradient and the filters, results
    /// that are not finite are recomputed from them.
    pub(super) fn scatter(
        &self,
        target: Target<'_>,
        dtype: DType,
        from: &Handle,
        to: &Handle,
        factors: Option<[&Handle; 2]>,
    ) {
        let Target { client, device } = target;
        let [row, ..] = self.row();
        let form = self.form(device, dtype, row, factors.is_some());
        let Form { read, written, .. } = form;
        let vectors = self.own() / written;
        let (cubes, units) = plain_grid(target, vectors);
        let [gradient, filters] = factors.unwrap_or([from, from]);
        let [gradients, weights] = match factors {
            Some(_) => operands(&self.conv, Pass::Data),
            None => [self.elements(); 2],
        };
        // SAFETY: as above, and for a pixel past the last block the first one is read.
        unsafe {
            scattered::launch_unchecked(
                client,
                cubes,
                units,
                read,
                written,
                buffer(from, self.elements() / read),
                buffer(to, vectors),
                buffer(gradient, gradients),
                buffer(filters, weights),
                self.args(vectors),
                problem_args(&self.conv, self.own(), 1),
                form,
                elem(dtype),
                elem(accumulator(dtype)),
            );
        }
    }
}

/// The numbers of both kernels. A number that is divided by is a `divisor` too.
#[derive(CubeType, CubeLaunch)]
struct Args {
    /// The vectors that are written.
    vectors: u32,
    /// The elements of a row, those of them in one block, and those before the first one.
    row_divisor: FastDivmod<u32>,
    row: u32,
    run_divisor: FastDivmod<u32>,
    run: u32,
    before: u32,
    /// The blocks along a row.
    blocks_divisor: FastDivmod<u32>,
    blocks: u32,
    height: SideArgs,
    depth: SideArgs,
    /// The channels outside of the rows, and all of them.
    outer_divisor: FastDivmod<u32>,
    outer: u32,
    channels_divisor: FastDivmod<u32>,
    /// The elements of a block from one element of a row to the next, those of one line of its pixels, and all of them.
    pixel_step: u32,
    line_divisor: FastDivmod<u32>,
    line: u32,
    block_divisor: FastDivmod<u32>,
    block: u32,
}

#[derive(CubeType, CubeLaunch)]
struct SideArgs {
    extent_divisor: FastDivmod<u32>,
    extent: u32,
    step_divisor: FastDivmod<u32>,
    step: u32,
    before: u32,
    blocks_divisor: FastDivmod<u32>,
    blocks: u32,
}

/// The compile-time options of both kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// The elements that a unit reads and writes at once.
    read: usize,
    written: usize,
    /// Whether a row has one channel.
    channels_first: bool,
    contiguous: bool,
    /// Whether results that are not finite are recomputed.
    recomputes: bool,
    /// Whether the kernel must round bf16 itself.
    rounds: bool,
}

#[cube(launch_unchecked)]
fn gathered<S: Numeric, M: Size, N: Size>(
    tensor: &[Vector<S, M>],
    blocks: &mut [Vector<S, N>],
    args: &Args,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
) {
    let vector = unit_position(form.contiguous);
    if vector >= args.vectors {
        terminate!();
    }
    let (rest, first) = args.block_divisor.div_mod(vector * comptime!(form.written as u32));
    let (rest, along) = args.blocks_divisor.div_mod(rest);
    let (rest, height) = args.height.blocks_divisor.div_mod(rest);
    let (sample, depth) = args.depth.blocks_divisor.div_mod(rest);
    let mut elements = Vector::<S, N>::empty();
    #[unroll]
    for nth in 0..comptime!(form.written / form.read) {
        let (line, i) = args.line_divisor.div_mod(first + comptime!((nth * form.read) as u32));
        let (d, h) = args.height.step_divisor.div_mod(line);
        let (mut i, mut channel) = (i, 0u32);
        if comptime!(form.channels_first) {
            (i, channel) = args.channels_divisor.div_mod(i);
        }
        // The position in the tensor. Positions before its start wrap around to numbers above every extent.
        let x = along * args.run + i - args.before;
        let h = height * args.height.step + h - args.height.before;
        let z = depth * args.depth.step + d - args.depth.before;
        let inside =
            x < args.row && h < args.height.extent && d < args.depth.step && z < args.depth.extent;
        let at = (sample * args.outer + channel) * args.depth.extent + z;
        let at = (at * args.height.extent + h) * args.row + x;
        let read = tensor[select(inside, at, 0u32) as usize / comptime!(form.read)];
        let read = select(inside, read, Vector::new(S::from_int(0)));
        #[unroll]
        for lane in 0..comptime!(form.read) {
            elements.insert(comptime!(nth * form.read + lane), read.extract(lane));
        }
    }
    blocks[vector as usize] = elements;
}

#[cube(launch_unchecked)]
fn scattered<S: Float, A: Float, M: Size, N: Size>(
    blocks: &[Vector<S, M>],
    tensor: &mut [Vector<S, N>],
    gradient: &[S],
    filters: &[S],
    args: &Args,
    problem: &Problem,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let vector = unit_position(form.contiguous);
    if vector >= args.vectors {
        terminate!();
    }
    let (rest, x) = args.row_divisor.div_mod(vector * comptime!(form.written as u32));
    let (rest, height) = args.height.extent_divisor.div_mod(rest);
    let (rest, depth) = args.depth.extent_divisor.div_mod(rest);
    let (sample, channel) = args.outer_divisor.div_mod(rest);
    let (h, line) = args.height.step_divisor.div_mod(height + args.height.before);
    let (d, plane) = args.depth.step_divisor.div_mod(depth + args.depth.before);
    let there = h < args.height.blocks && d < args.depth.blocks;
    let row = (sample * args.depth.blocks + d) * args.height.blocks + h;
    let line = (plane * args.height.step + line) * args.line + channel;
    let (mut along, mut i) = args.run_divisor.div_mod(x + args.before);
    let mut at = (row * args.blocks + along) * args.block + line + i * args.pixel_step;
    let step = comptime!(form.read as u32) * args.pixel_step;
    // From the end of a run to its place in the next block.
    let jump = args.block - args.run * args.pixel_step;
    let mut elements = Vector::<S, N>::empty();
    #[unroll]
    for nth in 0..comptime!(form.written / form.read) {
        let inside = there && along < args.blocks;
        let read = blocks[select(inside, at, 0u32) as usize / comptime!(form.read)];
        let read = select(inside, read, Vector::new(S::from_int(0)));
        #[unroll]
        for lane in 0..comptime!(form.read) {
            elements.insert(comptime!(nth * form.read + lane), read.extract(lane));
        }
        i += comptime!(form.read as u32);
        let ends = i == args.run;
        i = select(ends, 0u32, i);
        along += u32::cast_from(ends);
        at += select(ends, step + jump, step);
    }
    if comptime!(form.recomputes) {
        #[unroll]
        for lane in 0..comptime!(form.written) {
            // Tested by its bits: some drivers compile comparisons as if NaN and infinity did not exist.
            let value = f32::cast_from(elements.extract(lane));
            if u32::reinterpret(value) & INFINITE == INFINITE {
                let x = x + lane as u32;
                let at = if comptime!(form.channels_first) {
                    Coordinates { sample, channel, depth, height, width: x }
                } else {
                    let (width, channel) = args.channels_divisor.div_mod(x);
                    Coordinates { sample, channel, depth, height, width }
                };
                let sum = data_sum::<S, A>(gradient, filters, problem, &at);
                let sum = Vector::<A, Const<1>>::new(sum);
                let sum = round::<A, S, Const<1>>(sum, form.rounds).extract(0usize);
                elements.insert(lane, sum);
            }
        }
    }
    tensor[vector as usize] = elements;
}
