//! Gradients by blocks: one unit a block of inputs, the windows over it read once.
//!
//! ```text
//! for each block of inputs:                      s on each axis, or a strip of them, or two columns
//!     for each window o over the block:          ⌊(k−1)/s⌋ + 1 on each axis, or a few more
//!         load dy[o], and the winner or the divisor
//!     for each input x of the block:
//!         for each window over x:                known when the kernel is compiled
//!             add dy[o] if its winner is x, or dy[o] / divisor(o)
//! ```
//!
//! Blocks are whole steps of the stride: which windows are over the i-th input of a block is then
//! the same for all blocks. Blocks at the edges read windows that are not there as zeros.
//!
//! With channels first the lanes of a vector are neighbours along the width, and each takes its
//! windows from the vectors of `dy` that hold them. These have as many windows as start in a vector of
//! inputs, so that a block is one vector wide and neighbouring units write neighbouring vectors; where
//! the stride does not divide the lanes they have as many as `dx`'s, and a block is a stride of vectors.

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
use crate::pool::common::blocks::window_lanes;
use crate::pool::common::buffers::{Buffers, buffer, optional_vectors, vectors};
use crate::pool::common::kernel::Kernel;
use crate::pool::common::lanes::{lanes_across, widest_load};
use crate::pool::common::settings::{Settings, check_strip};
use crate::pool::common::tiles::{Tiles, tiles_args};
use crate::pool::common::window::{full_divisor, indexing, pixel_vectors};
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Gradient, Problem, Reduction, outermost};

use form::{Form, columns_of, fits};

const NAME: &str = "gather_tile";

/// How inputs are shared out to units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The steps of the stride in a block, along the outermost axis that has a window.
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

    /// Plans blocks of a step of the stride, or of several: no norm's, which is gathered tap by tap.
    fn plan(problem: Problem<'_>, device: &Capabilities) -> Result<(Settings, Self), PlanError> {
        let Problem { pooling, reduction, dtype, .. } = problem;
        let norm = matches!(reduction, Reduction::Norm(_));
        only_if(NAME, problem.gradient, "it only computes gradients")?;
        only_if(NAME, !norm, "it computes no gradients of norms")?;
        let own = Settings::new(problem, device);
        let longest = if pooling.grid().axes()[outermost(pooling)].stride() == 1 { 4 } else { 1 };
        let columns = columns_of(pooling, reduction, &own);
        let mut strips = [4, 2, 1].into_iter().filter(|&strip| strip <= longest);
        // Where none fits, the check says why a block of one step does not.
        let strip = strips.find(|&strip| fits(pooling, strip, columns).is_ok()).unwrap_or(1);
        let across = lanes_across(pooling, widest_load(dtype, device), true);
        let own = if columns > 1 { own.narrowed(device) } else { own };
        let settings = own.with_lanes(across);
        let config = Self { strip };
        config.check(&settings, problem, device)?;
        Ok((settings, config))
    }

    /// Refuses blocks that hold too much, and lanes that divide no row of inputs or of windows.
    fn check(
        &self,
        settings: &Settings,
        problem: Problem<'_>,
        _device: &Capabilities,
    ) -> Result<(), PlanError> {
        let Problem { pooling, reduction, .. } = problem;
        check_strip(self.strip)?;
        fits(pooling, self.strip, columns_of(pooling, reduction, settings))?;
        settings.check_lanes(problem)
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
        let window_lanes =
            if settings.across { form.window_lanes as usize } else { settings.lanes };
        let places = places(pooling, &form);
        let pixel = pixel_vectors(pooling, settings) as usize;
        let samples = inputs
            / settings.lanes
            / pixel
            / vectors_on_axes(pooling, settings).iter().product::<usize>();
        let units = samples * pixel * places.iter().product::<usize>();
        let (cubes, dim) = grid(client, settings.units, units);
        // SAFETY: windows and inputs that are not there are neither read nor written.
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
                blocks_args(pooling, gradient, dtype, settings, units, places),
                form,
                elem(dtype),
                elem(settings.accumulator),
            )
        };
        Ok(())
    }
}

/// The input vectors on each axis.
fn vectors_on_axes(pooling: &Pooling, settings: &Settings) -> [usize; AXES] {
    let mut inputs = pooling.grid().axes().each_ref().map(Axis::input);
    if settings.across {
        inputs[AXES - 1] /= settings.lanes;
    }
    inputs
}

/// The blocks on each axis.
fn places(pooling: &Pooling, form: &Form) -> [usize; AXES] {
    let axes = pooling.grid().axes();
    [0, 1, 2].map(|i| axes[i].input().div_ceil(form.axes[i].inputs as usize))
}

/// An axis as its blocks see it.
#[derive(CubeType, CubeLaunch)]
struct BlockAxis {
    axis: AxisArgs,
    places: FastDivmod<u32>,
    /// The windows, in vectors where the lanes lie along the axis.
    outputs: i32,
    /// The inputs, in vectors where the lanes lie along the axis.
    inputs: i32,
}

/// The numbers of a problem, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct Blocks {
    units: u32,
    tiles: Tiles,
    /// The vectors of a pixel.
    pixel_vectors: i32,
    depth: BlockAxis,
    height: BlockAxis,
    width: BlockAxis,
    /// What a fixed divisor divides by.
    divisor: u32,
    /// One over the divisor of a window that is inside with all its taps.
    reciprocal: InputScalar,
    /// The steps of an index to the next sample, position, and lane of a vector.
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
    let lanes = |i| if across(i) { window_lanes(&axes[i], settings.lanes) } else { 1 };
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
