//! One axis: each unit walks a piece of a line, block by block.
//!
//! With channels first, the lines along the width are not adjacent in memory. If every axis is walked in this way, each
//! pass moves its axis to the last place: it reads adjacent elements and writes several adjacent ones, and after all
//! passes the axes are in their original order. These writes are far from each other, so that for large tensors it is
//! faster to transpose planes before the pass along the width and after it.

mod blocks;
mod kernel;
mod passes;
mod results;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType};

use super::Tensors;
use super::axes::block;
use crate::cube::axis::{AxisArgs, axis_args};
use crate::cube::convert::elem;
use crate::cube::numbers;
use crate::cube::transpose;
use crate::cube::unit::grid;
use crate::device::Target;
use crate::pool::common::window::{ProblemArgs, WindowForm, problem_args};
use crate::pool::common::{PART_STORE, Task, Tensor, WORD, Work, optional};
use crate::pool::problem::outermost;

pub(super) use passes::{AxisPass, all_axes, between, can_turn, depth};

/// The instructions of a unit for each element of its line, besides its loads and its reductions.
const OF_ELEMENT: f64 = 34.0;

/// The reductions for each element: to a prefix, to a suffix, and of the two.
const REDUCTIONS: f64 = 3.0;

/// The estimated time of a pass.
pub(super) fn seconds(task: Task<'_>, axis_pass: &AxisPass, units: u32) -> f64 {
    let axis = &task.axes()[axis_pass.axis];
    let position = if axis_pass.indexed { WORD } else { 0 };
    let read = axis_pass.dtypes[0].size() + position;
    // Where outputs of neighbouring units are a line apart, each store changes a part of a sector.
    let stores = axis_pass.written() / axis_pass.lanes[1];
    let stored = |size: usize| match axis_pass.transposes {
        true if size > 0 => stores * (axis_pass.lanes[1] * size).max(PART_STORE),
        _ => axis_pass.written() * size,
    };
    let written = stored(axis_pass.dtypes[1].size()) + stored(position);
    // Neighbouring units have neighbouring lines, which are far from each other if they are along the rows.
    let apart = if axis_pass.inner == 1 { axis.input() } else { 1 };
    let loads = if passes::keeps(task, axis_pass, units) { 1.0 } else { 2.0 };
    let load = loads * task.load_apart_cost(axis_pass.lanes[0] * read, apart);
    let element = OF_ELEMENT + REDUCTIONS * task.reduce_cost(axis_pass.lanes[0]) + load;
    let elements = (axis_pass.piece_blocks * block(axis) + axis.kernel()) as f64;
    let work = Work {
        bytes: (axis_pass.read(task.pooling()) * read + written) as f64,
        units: axis_pass.units(axis) as f64,
        instructions: elements * element,
        waits: elements / block(axis) as f64,
    };
    let turned = axis_pass.turned_bytes(task.pooling()).into_iter().filter(|bytes| *bytes > 0);
    let turned = turned.map(|bytes| bytes.max(axis_pass.outer * transpose::SMALL_MATRIX));
    let turned: f64 = turned.map(|bytes| transpose::seconds(bytes, task.device)).sum();
    work.seconds(task.device) + turned
}

/// Launches a pass over rows: transposes the planes that it reads, and those that it writes.
pub(super) fn launch_turned(
    client: &Client,
    task: Task<'_>,
    axis_pass: &AxisPass,
    tensors: &Tensors,
    launch: impl Fn(&Tensors),
) {
    let target = Target { client, device: task.device };
    let length = task.axes()[axis_pass.axis].input();
    let [read, written] = axis_pass.dtypes;
    let turn = |handle: &Handle, dtype: DType| {
        let turned = client.empty(axis_pass.read(task.pooling()) * dtype.size());
        let matrices = [axis_pass.outer, axis_pass.inner, length];
        transpose::launch(target, dtype, handle, &turned, matrices);
        turned
    };
    let room = |dtype: DType| client.empty(axis_pass.written() * dtype.size());
    let own = Tensors {
        input: turn(&tensors.input, read),
        positions: tensors.positions.as_ref().map(|positions| turn(positions, DType::I32)),
        output: room(written),
        indices: tensors.indices.as_ref().map(|_| room(DType::I32)),
    };
    launch(&own);
    let back = |from: &Handle, to: &Handle, dtype: DType| {
        let matrices = [axis_pass.outer, axis_pass.outputs, axis_pass.inner];
        transpose::launch(target, dtype, from, to, matrices);
    };
    back(&own.output, &tensors.output, written);
    if let (Some(from), Some(to)) = (&own.indices, &tensors.indices) {
        back(from, to, DType::I32);
    }
}

/// Launches a pass: reads and writes `tensors`.
pub(super) fn launch(
    client: &Client,
    task: Task<'_>,
    axis_pass: &AxisPass,
    units: u32,
    tensors: &Tensors,
) {
    let axis = &task.axes()[axis_pass.axis];
    let (blocks, pieces) =
        (axis_pass.blocks(axis), axis_pass.blocks(axis).div_ceil(axis_pass.piece_blocks));
    let [read, write] = axis_pass.lanes;
    let all = axis_pass.units(axis);
    let (cubes, dim) = grid(client, units, all);
    let (elements, written) = (axis_pass.read(task.pooling()), axis_pass.written());
    let positions = tensors.positions.as_ref().map(|positions| Tensor::new(positions, elements));
    let indices = tensors.indices.as_ref().map(|indices| Tensor::new(indices, written));
    // SAFETY: coordinates are clamped to the line before they are read, and outputs that do not exist are not written.
    unsafe {
        kernel::slide::launch_unchecked(
            client,
            cubes,
            dim,
            read,
            write,
            Tensor::new(&tensors.input, elements).vectors(read),
            optional(positions, read),
            Tensor::new(&tensors.output, written).vectors(write),
            optional(indices, write),
            pass_args(task, axis_pass, all, pieces, blocks),
            Form::new(task, axis_pass, units),
            [elem(axis_pass.dtypes[0]), elem(axis_pass.dtypes[1]), task.accumulator()],
        )
    };
}

/// The numbers of a pass.
#[derive(CubeType, CubeLaunch)]
struct Pass {
    units: u32,
    /// The number of vectors across neighbouring lines, and the number of pieces of a line.
    inner: FastDivmod<u32>,
    inner_vectors: u32,
    pieces: FastDivmod<u32>,
    /// The number of blocks of outputs in a line, and in a piece.
    blocks: u32,
    piece_blocks: u32,
    axis: AxisArgs,
    outputs: u32,
    /// The number of vectors in a pixel, and the number of pixels on the axes inside this one.
    pixel: FastDivmod<u32>,
    inner_pixels: u32,
    /// The number of lines per sample on the axes outside this one, in the input's order.
    before: FastDivmod<u32>,
    /// The number of lines per sample on the outer axes, in the output's order, and how many of them are along the
    /// height.
    others: FastDivmod<u32>,
    height: FastDivmod<u32>,
    problem: ProblemArgs,
}

fn pass_args(
    task: Task<'_>,
    axis_pass: &AxisPass,
    units: usize,
    pieces: usize,
    blocks: usize,
) -> PassLaunch {
    let axes = task.axes();
    let inner = axis_pass.inner / axis_pass.lanes[0];
    let lead = match () {
        _ if axis_pass.transposes => outermost(task.pooling()),
        _ if axis_pass.turned => 0,
        _ => axis_pass.axis,
    };
    let others = axes[..lead].iter().map(Axis::output).product::<usize>();
    let extent =
        |range: std::ops::Range<usize>| axes[range].iter().map(Axis::input).product::<usize>();
    numbers! { PassLaunch {
        units, inner, inner_vectors: inner, pieces, blocks, piece_blocks: axis_pass.piece_blocks,
        axis: axis_args(&axes[axis_pass.axis]), outputs: axis_pass.outputs,
        pixel: (task.pixel() / axis_pass.lanes[0]).max(1),
        inner_pixels: extent(axis_pass.axis + 1..AXES), before: extent(0..axis_pass.axis), others,
        height: if axis_pass.axis == AXES - 1 { axes[1].output() } else { 1 },
        problem: problem_args(task),
    } }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    window: WindowForm,
    /// The axis that lines lie along.
    axis: usize,
    /// The inputs of a block, and the step between windows, which divides it.
    block: u32,
    stride: u32,
    /// For a window that starts at the first input of a block: how many blocks later its last tap is, and the position
    /// of this tap in that block.
    whole: u32,
    rest: u32,
    /// Whether the outputs of a line are adjacent in what is written, and whether this pass writes the result.
    transposes: bool,
    last: bool,
    /// Whether `inner` numbers the lines of a sample, in place of a part of `outer`.
    rows_inside: bool,
    /// The lanes of written vectors.
    written: usize,
    /// The number of units in a cube.
    units: u32,
    /// Whether a unit keeps what it has read in shared memory until it needs it again.
    keeps: bool,
}

impl Form {
    fn new(task: Task<'_>, axis_pass: &AxisPass, units: u32) -> Self {
        let axis = &task.axes()[axis_pass.axis];
        let block = block(axis);
        Self {
            window: WindowForm {
                rounds: task.rounds() && axis_pass.last,
                widened: task.widening(axis_pass.dtypes[0]),
                channels: task.pixel() > axis_pass.lanes[0],
                ..WindowForm::new(task)
            },
            axis: axis_pass.axis,
            block: block as u32,
            stride: axis.stride() as u32,
            whole: ((axis.kernel() - 1) / block) as u32,
            rest: ((axis.kernel() - 1) % block) as u32,
            transposes: axis_pass.transposes,
            last: axis_pass.last,
            rows_inside: axis_pass.transposes || axis_pass.turned,
            written: axis_pass.lanes[1],
            units,
            keeps: passes::keeps(task, axis_pass, units),
        }
    }

    /// The number of blocks that a unit keeps: from the one in which windows start to the one after their last whole
    /// block.
    fn blocks(&self) -> u32 {
        self.whole + 2
    }

    /// The number of vectors that the units of a cube keep; 1 if they keep none.
    fn kept(&self) -> usize {
        if self.keeps { (self.blocks() * self.block * self.units) as usize } else { 1 }
    }

    /// The number of outputs of a line in a written vector.
    fn group(&self) -> usize {
        if self.transposes { self.written } else { 1 }
    }

    /// Which result, and which lane of it, is lane `m` of written vector `g` of a block.
    fn source(&self, g: usize, m: usize) -> (usize, usize) {
        if self.transposes { (g * self.written + m, 0) } else { (g, m) }
    }

    /// Whether the next block is loaded while the current one is reduced. A processor's thread does not wait for loads
    /// in this way, and with indices, positions would take the registers.
    fn fetches(&self) -> bool {
        !self.window.contiguous && !self.window.fold.has_index()
    }

    /// Whether windows have divisors of their own.
    fn counts(&self) -> bool {
        self.last && self.window.fold.counts()
    }
}
