//! Gradients in blocks: one unit per block of inputs, which reads the windows over it once.
//!
//! ```text
//! for each block of inputs:                      s on each axis, or a strip of them
//!     for each window o over the block:          ⌊(k−1)/s⌋ + 1 on each axis, or a few more
//!         load dy[o], and the winner or the divisor
//!     for each input x of the block:
//!         for each window over x:                known when the kernel is compiled
//!             add dy[o] if its winner is x, or dy[o] / divisor(o)
//! ```
//!
//! A block is a whole number of strides, so the windows over the i-th input are the same for all blocks. Blocks at the
//! edges read windows that do not exist as zeros.
//!
//! With channels first, the lanes of a vector are neighbours along the width, and each takes its windows from the
//! vectors of `dy` that hold them. A vector of `dy` has as many windows as start in a vector of inputs, so that a block
//! is one vector wide and neighbouring units write adjacent vectors. If the stride does not divide the lanes, vectors
//! of `dy` are as long as those of `dx`, and a block is `stride` vectors wide.

mod cost;
mod form;
mod kernel;
mod shares;
mod windows;

use core::fmt;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Pooling};

use crate::cube::axis::{AxisArgs, axis_args};
use crate::cube::convert::elem;
use crate::cube::unit::grid;
use crate::device::Capabilities;
use crate::pool::common::blocks;
use crate::pool::common::buffers::{Buffers, buffer, optional_vectors, vectors};
use crate::pool::common::kernel::Kernel;
use crate::pool::common::lanes::{lanes_across, widest_load};
use crate::pool::common::settings::{Settings, check_strip};
use crate::pool::common::tiles::{Tiles, tiles_args};
use crate::pool::common::window::{full_divisor, indexing, pixel_vectors};
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Gradient, Problem, Reduction, outermost};

use form::{Form, fits};

const NAME: &str = "gather_tile";

/// How inputs are distributed to units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The number of strides in a block, along the outermost axis that has a window.
    pub strip: usize,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { strip } = self;
        write!(f, "strips of {strip} steps")
    }
}

impl Kernel for Config {
    const NAME: &'static str = NAME;

    /// Plans blocks of one stride or of several. Norms are refused: their gradient is gathered tap by tap.
    fn plan(problem: Problem<'_>, device: &Capabilities) -> Result<(Settings, Self), PlanError> {
        let Problem { pooling, reduction, dtype, .. } = problem;
        let norm = matches!(reduction, Reduction::Norm(_));
        only_if(NAME, problem.gradient, "it only computes gradients")?;
        only_if(NAME, !norm, "it computes no gradients of norms")?;
        let own = Settings::new(problem, device);
        let longest = if pooling.grid().axes()[outermost(pooling)].stride() == 1 { 4 } else { 1 };
        let mut strips = [4, 2, 1].into_iter().filter(|&strip| strip <= longest);
        // If no strip fits, the check reports why a block of one stride does not.
        let strip = strips.find(|&strip| fits(pooling, strip).is_ok()).unwrap_or(1);
        let across = lanes_across(pooling, widest_load(dtype, device), true);
        // The indices of all windows over several steps would not fit in registers.
        let many = strip > 1 && reduction.is_extremum();
        let own = if many { own.narrowed(device) } else { own };
        let settings = own.with_lanes(across);
        let config = Self { strip };
        config.check(&settings, problem, device)?;
        Ok((settings, config))
    }

    /// Refuses blocks that hold too much, and lanes that do not divide the rows of inputs and of windows.
    fn check(
        &self,
        settings: &Settings,
        problem: Problem<'_>,
        _device: &Capabilities,
    ) -> Result<(), PlanError> {
        check_strip(self.strip)?;
        fits(problem.pooling, self.strip)?;
        settings.check_lanes(problem)
    }

    fn seconds(&self, settings: &Settings, problem: Problem<'_>, device: &Capabilities) -> f64 {
        cost::seconds(self, settings, problem, device)
    }

    fn launch(
        &self,
        client: &Client,
        problem: Problem<'_>,
        settings: &Settings,
        buffers: Buffers<'_>,
    ) -> Result<(), PlanError> {
        let Problem { pooling, reduction, dtype, .. } = problem;
        let Buffers { input: dy, output: dx, indices: winners, .. } = buffers;
        let gradient = reduction.gradient().ok_or(PlanError::Foreign { kernel: NAME })?;
        let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
        let form = Form::new(pooling, gradient, dtype, settings, self.strip);
        let window_lanes = window_lanes(&form, settings);
        let units = units(pooling, settings, &form);
        let (cubes, dim) = grid(client, settings.units, units);
        // SAFETY: windows and inputs that do not exist are neither read nor written.
        unsafe {
            kernel::gather_blocks::launch_unchecked(
                client,
                cubes,
                dim,
                window_lanes,
                settings.lanes,
                vectors(dy, outputs, window_lanes),
                optional_vectors(winners, outputs, window_lanes),
                buffer(dx, inputs, settings),
                blocks_args(pooling, gradient, dtype, settings, units, places(pooling, &form)),
                form,
                elem(dtype),
                elem(settings.accumulator),
            )
        };
        Ok(())
    }
}

/// The lanes of a vector of windows.
fn window_lanes(form: &Form, settings: &Settings) -> usize {
    if settings.across { form.window_lanes as usize } else { settings.lanes }
}

/// The number of blocks, each of which is a unit's.
fn units(pooling: &Pooling, settings: &Settings, form: &Form) -> usize {
    let pixel = pixel_vectors(pooling, settings) as usize;
    let positions = vectors_on_axes(pooling, settings).iter().product::<usize>();
    let samples = pooling.input().elements() / settings.lanes / pixel / positions;
    samples * pixel * places(pooling, form).iter().product::<usize>()
}

/// The number of input vectors on each axis.
fn vectors_on_axes(pooling: &Pooling, settings: &Settings) -> [usize; AXES] {
    let mut inputs = pooling.grid().axes().each_ref().map(Axis::input);
    if settings.across {
        inputs[AXES - 1] /= settings.lanes;
    }
    inputs
}

/// The number of blocks on each axis.
fn places(pooling: &Pooling, form: &Form) -> [usize; AXES] {
    let axes = pooling.grid().axes();
    [0, 1, 2].map(|i| axes[i].input().div_ceil(form.axes[i].inputs as usize))
}

/// The numbers of an axis, seen from its blocks.
#[derive(CubeType, CubeLaunch)]
struct BlockAxis {
    axis: AxisArgs,
    places: FastDivmod<u32>,
    /// The number of windows, in vectors if the lanes lie along the axis.
    outputs: i32,
    /// The number of inputs, in vectors if the lanes lie along the axis.
    inputs: i32,
}

/// The numbers of a problem. They are run-time values, so they may change without compiling a new kernel.
#[derive(CubeType, CubeLaunch)]
struct Blocks {
    units: u32,
    tiles: Tiles,
    /// The number of vectors in a pixel.
    pixel_vectors: i32,
    depth: BlockAxis,
    height: BlockAxis,
    width: BlockAxis,
    /// The value of a fixed divisor.
    divisor: u32,
    /// The reciprocal of the divisor of a window with all its taps inside the input.
    reciprocal: InputScalar,
    /// The index steps to the next sample, position, and lane of a vector.
    index_batch: u32,
    index_position: u32,
    index_lane: u32,
}

fn blocks_args(
    pooling: &Pooling,
    gradient: Gradient,
    dtype: DType,
    settings: &Settings,
    units: usize,
    places: [usize; AXES],
) -> BlocksLaunch {
    let inputs = vectors_on_axes(pooling, settings);
    let axes = pooling.grid().axes();
    let across = |i| settings.across && i == AXES - 1;
    let lanes = |i| if across(i) { blocks::window_lanes(&axes[i], settings.lanes) } else { 1 };
    let [depth, height, width] = [0, 1, 2].map(|i| {
        BlockAxisLaunch::new(
            axis_args(&axes[i]),
            places[i] as u32,
            (axes[i].output() / lanes(i)) as i32,
            inputs[i] as i32,
        )
    });
    let reduction = gradient.reduction();
    let pixel = pixel_vectors(pooling, settings);
    let [index_batch, index_channel, index_position] = indexing(pooling, reduction.base());
    BlocksLaunch::new(
        units as u32,
        tiles_args(pooling, dtype, settings, places[AXES - 2], true),
        pixel as i32,
        depth,
        height,
        width,
        reduction.fixed_divisor(),
        InputScalar::new(1.0 / full_divisor(pooling, reduction), elem(settings.accumulator)),
        index_batch,
        index_position,
        if settings.across { index_position } else { index_channel },
    )
}
