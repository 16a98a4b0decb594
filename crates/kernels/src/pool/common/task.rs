//! A problem on a device, with the settings that it is computed with: what every part of a kernel needs to know.

use cubecl::client::Client;
use cubecl::prelude::*;
use windowpane_geometry::{AXES, Axis, DType, Pooling};

use crate::cube::convert::{Widening, elem};
use crate::cube::unit;
use crate::device::Capabilities;
use crate::error::{PlanError, ensure};
use crate::pool::common::{Settings, divides_windows, lanes_along_width, widest_load};
use crate::pool::problem::{Problem, Reduction, pixel_channels};

/// A problem, the settings of its plan, and the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task<'a> {
    pub(crate) problem: Problem<'a>,
    pub(crate) settings: Settings,
    pub(crate) device: &'a Capabilities,
}

impl<'a> Task<'a> {
    /// A problem with the settings with which all plans begin.
    pub(crate) fn new(problem: Problem<'a>, device: &'a Capabilities) -> Self {
        Self { problem, settings: Settings::new(problem, device), device }
    }

    /// The same with other settings.
    pub(crate) fn with(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    pub(crate) fn pooling(&self) -> &'a Pooling {
        self.problem.pooling
    }

    pub(crate) fn axes(&self) -> &'a [Axis; AXES] {
        self.pooling().grid().axes()
    }

    pub(crate) fn reduction(&self) -> Reduction {
        self.problem.reduction
    }

    pub(crate) fn dtype(&self) -> DType {
        self.problem.dtype
    }

    /// The number of elements of the pooling's input.
    pub(crate) fn inputs(&self) -> usize {
        self.pooling().input().elements()
    }

    /// The number of elements of the pooling's output.
    pub(crate) fn outputs(&self) -> usize {
        self.pooling().output().elements()
    }

    /// The number of taps of a window.
    pub(crate) fn taps(&self) -> usize {
        self.pooling().grid().taps()
    }

    /// The number of adjacent elements that one unit handles at once.
    pub(crate) fn lanes(&self) -> usize {
        self.settings.lanes
    }

    /// The channels of a pixel that are adjacent in memory.
    pub(crate) fn pixel(&self) -> usize {
        pixel_channels(self.pooling())
    }

    /// The number of vectors in a pixel; 1 if lanes lie across pixels.
    pub(crate) fn pixel_vectors(&self) -> u32 {
        if self.settings.along_width { 1 } else { (self.pixel() / self.lanes()) as u32 }
    }

    /// The number of vectors on each axis, of inputs or of outputs.
    pub(crate) fn vectors_on_axes(&self, of: fn(&Axis) -> usize) -> [usize; AXES] {
        let mut vectors = self.axes().each_ref().map(of);
        if self.settings.along_width {
            vectors[AXES - 1] /= self.lanes();
        }
        vectors
    }

    /// The number of units with one at each of `places` on every axis, for every vector of a pixel of every sample.
    pub(crate) fn units_at(&self, places: [usize; AXES]) -> usize {
        let (elements, of): (_, fn(&Axis) -> usize) = match self.problem.gradient {
            true => (self.inputs(), Axis::input),
            false => (self.outputs(), Axis::output),
        };
        let vectors: usize = self.vectors_on_axes(of).iter().product();
        elements / self.lanes() / vectors * places.iter().product::<usize>()
    }

    /// The number of elements in the widest single load.
    pub(crate) fn widest(&self) -> usize {
        widest_load(self.dtype(), self.device)
    }

    /// Whether the kernel rounds sums to bf16 itself, because the device does not.
    pub(crate) fn rounds(&self) -> bool {
        self.dtype() == DType::BF16 && !self.device.rounds_bf16
    }

    /// How elements of `dtype` are converted to the type in which they are reduced.
    pub(crate) fn widening(&self, dtype: DType) -> Widening {
        let Settings { accumulator, extremum, contiguous, .. } = self.settings;
        if let Some(keys) = extremum.keys(dtype) {
            keys
        } else if accumulator == dtype {
            Widening::Cast
        } else {
            Widening::of_sums(dtype, contiguous, self.device)
        }
    }

    /// The types of the elements and of their comparisons and sums, for a launch.
    pub(crate) fn types(&self) -> [ElemType; 2] {
        [self.elem(), self.accumulator()]
    }

    /// The type of the elements, for a launch.
    pub(crate) fn elem(&self) -> ElemType {
        elem(self.dtype())
    }

    /// The type in which elements are compared and summed, for a launch.
    pub(crate) fn accumulator(&self) -> ElemType {
        elem(self.settings.accumulator)
    }

    /// The reciprocal of the divisor of a window with all its taps inside the input.
    pub(crate) fn reciprocal(&self) -> InputScalar {
        let divisor = self.reduction().fixed_divisor().map_or(self.taps() as f64, f64::from);
        InputScalar::new(1.0 / divisor, self.accumulator())
    }

    /// The number of cubes, and the units of each, that give every piece of work a unit.
    pub(crate) fn grid(&self, client: &Client, work: usize) -> (CubeCount, CubeDim) {
        unit::grid(client, self.settings.units, work)
    }

    /// The same for work that takes whole cubes.
    pub(crate) fn cubes(&self, client: &Client, cubes: usize) -> (CubeCount, CubeDim) {
        self.grid(client, cubes * self.settings.units as usize)
    }

    /// Refuses lanes that are not a vector of the problem. Vectors along the width are checked as most kernels need
    /// them.
    pub(crate) fn check_lanes(&self) -> Result<(), PlanError> {
        let neighbours = match self.settings.along_width {
            true => lanes_along_width(self.problem, self.widest()).unwrap_or(0),
            false => self.pixel(),
        };
        // A gradient with fewer lanes need not have fewer lanes of windows, so these are checked separately.
        let windows = self.settings.along_width && self.problem.gradient;
        if windows && !divides_windows(self.problem, self.lanes()) {
            let (lanes, widest) = (self.lanes(), self.widest());
            return Err(PlanError::Lanes { lanes, neighbours, widest });
        }
        self.check_lanes_of(neighbours)
    }

    /// Refuses lanes that do not divide `neighbours`, the number of adjacent elements; 0 means that no lanes are
    /// possible.
    pub(crate) fn check_lanes_of(&self, neighbours: usize) -> Result<(), PlanError> {
        let (lanes, widest) = (self.lanes(), self.widest());
        let divides = lanes.is_power_of_two() && neighbours.is_multiple_of(lanes);
        let fits = divides && neighbours > 0 && lanes <= widest;
        ensure(fits, PlanError::Lanes { lanes, neighbours, widest })
    }
}
