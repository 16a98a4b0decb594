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

/// This kernel has no numbers of its own.
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

    /// Plans the passes, and the workspace between them.
    fn plan(problem: Problem<'_>, device: &Capabilities) -> Result<(Settings, Self), PlanError> {
        fits(problem)?;
        let settings = Settings { unrolled: false, ..Settings::new(problem, device) };
        let (_, workspace) = written(problem.pooling, problem.reduction, &settings, problem.dtype);
        let settings = Settings { workspace, ..settings };
        Self.check(&settings, problem, device)?;
        Ok((settings, Self))
    }

    /// Refuses passes that write more between them than kernels count or the device binds.
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
            // SAFETY: coordinates are moved inside the line before they are read, and outputs that are
            // not there are not written.
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

/// Refuses problems of which an axis has a window, but cannot be walked in blocks.
fn fits(problem: Problem<'_>) -> Result<(), PlanError> {
    let norm = matches!(problem.reduction, Reduction::Norm(_));
    only_if(NAME, !problem.gradient, "it computes no gradients")?;
    only_if(NAME, !norm, "it computes no norms")?;
    van_herk::fits(NAME, problem.pooling)
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
    /// What a fixed divisor divides by.
    divisor: u32,
    /// One over the divisor of a window that has all its taps.
    reciprocal: InputScalar,
    /// The steps of an index to the next sample, position, and lane of a vector.
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
    /// How elements are widened.
    widened: Widening,
    runs: bool,
    /// The inputs of a block, and the step between windows, of which it has whole ones.
    block: u32,
    stride: u32,
    /// The blocks from the one that a window starts in to the one that its first tap plus its
    /// length is in, and the place there.
    whole: u32,
    rest: u32,
    /// Whether outputs of a line are neighbours in what is written, and whether that is the result.
    turns: bool,
    last: bool,
    /// Whether several channels make a pixel.
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

    /// Whether the next block is loaded while one is folded: a thread of a processor has nothing to wait
    /// for, and positions would take the registers.
    fn fetches(&self) -> bool {
        !self.runs && !self.fold.has_index()
    }

    /// Whether windows are divided by numbers of their own.
    fn counts(&self) -> bool {
        self.last && self.fold.counts()
    }
}
