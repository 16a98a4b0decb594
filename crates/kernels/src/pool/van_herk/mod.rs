//! Large windows at a cost that does not grow with the window: the algorithm of van Herk, Gil and Werman, one axis
//! after the other, each line walked in blocks.
//!
//! ```text
//! for each axis that has a window:                       D, H, W
//!     for each line along it, block by block of B inputs:
//!         prefix[j] = reduction of the block's first j + 1 inputs
//!         suffix[i] = reduction of inputs i .. of the block that the window starts in
//!         y[o] = suffix[i] · whole blocks between · prefix[j]
//! ```
//!
//! A block is no longer than the window, so a window always ends in a later block than it starts in. Prefixes and
//! suffixes are held in registers. The block in which windows start was read k inputs earlier: each unit keeps what it
//! reads in shared memory until then, or reads it again if there is no room. The next block is loaded while the current
//! one is reduced. A sum is reduced like a maximum: nothing is ever subtracted, so it does not drift, and values
//! outside a window have no influence on it.
//!
//! With channels first, the lines along the width are not adjacent in memory. Each pass then moves its axis to the last
//! place: it reads adjacent elements and writes runs, and after all passes the axes are in their original order.

mod blocks;
mod kernel;
mod passes;
mod results;

use core::fmt;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Layout, Pooling};

use crate::cube::axis::{AxisArgs, AxisForm, axis_args};
use crate::cube::convert::{MaximumForm, Widening, elem};
use crate::cube::unit::grid;
use crate::device::Capabilities;
use crate::pool::common::buffers::{Buffers, optional_vectors, vectors};
use crate::pool::common::kernel::Kernel;
use crate::pool::common::settings::Settings;
use crate::pool::common::van_herk::{self, block};
use crate::pool::common::window::{Fold, full_divisor, indexing};
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{
    Output, Problem, Reduction, check_workspace, outermost, pixel_channels,
};

use passes::{Walk, keeps, passes, written};

const NAME: &str = "van_herk";

/// This kernel has no settings of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config;

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as planned")
    }
}

impl Kernel for Config {
    const NAME: &'static str = NAME;

    /// Plans the passes and the scratch buffers between them.
    fn plan(problem: Problem<'_>, device: &Capabilities) -> Result<(Settings, Self), PlanError> {
        fits(problem)?;
        let settings = Settings { unrolled: false, ..Settings::new(problem, device) };
        let (_, workspace) = written(problem.pooling, problem.reduction, &settings, problem.dtype);
        let settings = Settings { workspace, ..settings };
        Self.check(&settings, problem, device)?;
        Ok((settings, Self))
    }

    /// Refuses passes whose intermediate tensors have more elements than kernels can count, or more bytes than the
    /// device can bind.
    fn check(
        &self,
        settings: &Settings,
        problem: Problem<'_>,
        device: &Capabilities,
    ) -> Result<(), PlanError> {
        fits(problem)?;
        settings.check_lanes(problem)?;
        let (elements, bytes) =
            written(problem.pooling, problem.reduction, settings, problem.dtype);
        check_workspace(elements, bytes, device)
    }

    fn launch(
        &self,
        client: &Client,
        problem: Problem<'_>,
        settings: &Settings,
        buffers: Buffers<'_>,
    ) -> Result<(), PlanError> {
        let Problem { pooling, reduction, dtype, .. } = problem;
        let Buffers { input, output, indices, .. } = buffers;
        let passes = passes(pooling, reduction, settings, dtype);
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
            let (cubes, dim) = grid(client, settings.units, units);
            // SAFETY: coordinates are clamped to the line before they are read, and outputs that do not exist
            // are not written.
            unsafe {
                kernel::slide::launch_unchecked(
                    client,
                    cubes,
                    dim,
                    read,
                    write,
                    vectors(&values, elements, read),
                    optional_vectors(positions.as_ref(), elements, read),
                    vectors(&next, written, write),
                    optional_vectors(next_positions.as_ref(), written, write),
                    pass_args(pooling, reduction, settings, walk, units, pieces, blocks),
                    Form::new(pooling, reduction, dtype, settings, walk),
                    elem(walk.dtypes[0]),
                    elem(walk.dtypes[1]),
                    elem(settings.accumulator),
                )
            };
            (values, positions, elements) = (next, next_positions, written);
        }
        Ok(())
    }
}

/// Refuses problems with an axis that has a window but cannot be walked in blocks.
fn fits(problem: Problem<'_>) -> Result<(), PlanError> {
    let norm = matches!(problem.reduction, Reduction::Norm(_));
    only_if(NAME, !problem.gradient, "it computes no gradients")?;
    only_if(NAME, !norm, "it computes no norms")?;
    van_herk::fits(NAME, problem.pooling)
}

/// The numbers of a pass. They are run-time values, so they may change without compiling a new kernel.
#[derive(CubeType, CubeLaunch)]
struct Pass {
    units: u32,
    /// The number of vectors across neighbouring lines, and the number of pieces of a line.
    inner: FastDivmod<u32>,
    inner_vectors: u32,
    pieces: FastDivmod<u32>,
    /// The number of blocks of outputs in a line, and in a piece.
    blocks: u32,
    run: u32,
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
    depth_axis: AxisArgs,
    height_axis: AxisArgs,
    /// The value of a fixed divisor.
    divisor: u32,
    /// The reciprocal of the divisor of a window that has all its taps.
    reciprocal: InputScalar,
    /// The index steps to the next sample, position, and lane of a vector.
    index_batch: u32,
    index_position: u32,
    index_lane: u32,
}

fn pass_args(
    pooling: &Pooling,
    reduction: Reduction,
    settings: &Settings,
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
        InputScalar::new(1.0 / full_divisor(pooling, reduction), elem(settings.accumulator)),
        index_batch,
        index_position,
        index_channel,
    )
}

/// The parameters that change the kernel's code.
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
    /// How elements are converted to the accumulator's type.
    widened: Widening,
    runs: bool,
    /// The inputs of a block, and the step between windows, which divides it.
    block: u32,
    stride: u32,
    /// For a window that starts at the first input of a block: how many blocks later its last tap is, and the position
    /// of this tap in that block.
    whole: u32,
    rest: u32,
    /// Whether the outputs of a line are adjacent in what is written, and whether this pass writes the result.
    turns: bool,
    last: bool,
    /// Whether a pixel has several channels.
    channels: bool,
    /// The number of axes before this one.
    others: usize,
    /// The lanes of written vectors.
    written: usize,
    /// The number of units in a cube.
    units: u32,
    /// Whether a unit keeps what it has read in shared memory until it needs it again.
    keeps: bool,
}

impl Form {
    fn new(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        settings: &Settings,
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
                Reduction::Norm(_) => Fold::Norm,
            },
            maximum: settings.maximum,
            float: dtype.is_float(),
            reciprocal: dtype != DType::F64,
            rounds: settings.rounds && walk.last,
            widened: settings.widening(walk.dtypes[0]),
            runs: settings.runs,
            block: block as u32,
            stride: axis.stride() as u32,
            whole: ((axis.kernel() - 1) / block) as u32,
            rest: ((axis.kernel() - 1) % block) as u32,
            turns: walk.turns,
            last: walk.last,
            channels: pooling.layout() == Layout::ChannelsLast && pixel_channels(pooling) > 1,
            others: walk.axis,
            written: walk.lanes[1],
            units: settings.units,
            keeps: keeps(axis, settings, walk),
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
        if self.turns { self.written } else { 1 }
    }

    /// Which result, and which lane of it, is lane `m` of written vector `g` of a block.
    fn source(&self, g: usize, m: usize) -> (usize, usize) {
        if self.turns { (g * self.written + m, 0) } else { (g, m) }
    }

    /// Whether the next block is loaded while the current one is reduced. A processor's thread does not wait for loads
    /// in this way, and with indices, positions would take the registers.
    fn fetches(&self) -> bool {
        !self.runs && !self.fold.has_index()
    }

    /// Whether windows have divisors of their own.
    fn counts(&self) -> bool {
        self.last && self.fold.counts()
    }
}
