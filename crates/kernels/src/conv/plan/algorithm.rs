//! The ladder: which kernel can compute a problem, with which tile. What a kernel itself asks stands in
//! its own room, in a `plan` of its own.

use core::fmt;

use windowpane_geometry::{Convolution, Precision, Tile};

use super::rules::{fragment, is_product};
use super::{Pass, PlanError, Request};
use crate::conv::{banded, depthwise, grouped, hopper, matrix, tiled, wide};
use crate::dtype::accumulator;
use crate::{Fragment, Limits};

/// The kernels of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// One unit an output element reads every tap.
    Direct,
    /// Groups of few channels, filters as matrices of bands that matrix units multiply with.
    Banded,
    /// A filter a channel: a block of windows by a vector of channels a unit.
    Depthwise,
    /// Groups of few channels: a run of windows by a vector of a group's filters a unit.
    Grouped,
    /// The implicit product of matrices on Hopper's warpgroups, fed by the tensor copy engine.
    Hopper,
    /// The implicit product of matrices, its fragments multiplied by matrix units.
    Matrix,
    /// The implicit product of matrices: blocks in shared memory, sums in registers.
    Tiled,
    /// A processor's thread computes a few windows by a few vectors of filters.
    Wide,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
            Self::Banded => "banded",
            Self::Depthwise => "depthwise",
            Self::Grouped => "grouped",
            Self::Hopper => "hopper",
            Self::Matrix => "matrix",
            Self::Tiled => "tiled",
            Self::Wide => "wide",
        })
    }
}

/// The units of a cube on a GPU where one does not work with another, and of a cube of those that have so
/// many rows each that their registers are many.
const UNITS: u32 = 256;
const UNITS_OF_RUNS: u32 = 128;

impl Algorithm {
    /// Every algorithm, in the order in which they are tried: the fastest where it can and pays.
    pub(super) const LADDER: [Self; 8] = [
        Self::Banded,
        Self::Depthwise,
        Self::Wide,
        Self::Grouped,
        Self::Hopper,
        Self::Matrix,
        Self::Tiled,
        Self::Direct,
    ];

    /// Whether a plan may choose it unasked.
    pub(super) fn pays(self, conv: &Convolution, request: Request, limits: &Limits) -> bool {
        match self {
            Self::Banded => banded::plan::fragment(request, limits).is_some(),
            Self::Hopper => hopper::plan::pays(conv, request),
            _ => true,
        }
    }

    /// Whether there is such a kernel for a problem and a device.
    pub(super) fn can(self, conv: &Convolution, request: Request, limits: &Limits) -> bool {
        let rounds = matches!(self, Self::Hopper | Self::Matrix);
        if request.precision == Precision::Tf32 && !rounds {
            // A bias's gradient has no products to round.
            return request.pass == Pass::Bias;
        }
        match self {
            Self::Direct => true,
            Self::Banded => banded::plan::can(conv, request, limits),
            Self::Depthwise => depthwise::plan::can(conv, request),
            Self::Grouped => grouped::plan::can(conv, request, limits),
            Self::Wide => wide::plan::can(conv, request, limits),
            // One product, on units of three kinds.
            Self::Hopper | Self::Matrix | Self::Tiled if !is_product(conv, request, limits) => {
                false
            }
            Self::Hopper => hopper::plan::can(conv, request, limits),
            Self::Matrix => matrix::plan::tile(conv, request, limits).is_some(),
            Self::Tiled => tiled::plan::tile(conv, request, limits).is_some(),
        }
    }

    /// The tile that suits a problem and a device.
    pub(super) fn tile(
        self,
        conv: &Convolution,
        request: Request,
        limits: &Limits,
    ) -> Option<Tile> {
        match self {
            Self::Direct => None,
            Self::Banded => banded::plan::tile(conv, request, limits),
            Self::Depthwise => Some(depthwise::plan::tile(conv, request, limits)),
            Self::Grouped => Some(grouped::plan::TILE),
            Self::Hopper => hopper::plan::tile(conv, request, limits),
            Self::Matrix => matrix::plan::tile(conv, request, limits),
            Self::Tiled => tiled::plan::tile(conv, request, limits),
            Self::Wide => Some(wide::plan::tile(conv, request, limits)),
        }
    }

    /// Refuses a tile that there is no such kernel for.
    pub(super) fn check(
        self,
        tile: Option<Tile>,
        conv: &Convolution,
        request: Request,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        match (self, tile) {
            (Self::Direct, None) => Ok(()),
            (Self::Banded, Some(tile)) => banded::plan::check(&tile, conv, request, limits),
            (Self::Depthwise, Some(tile)) => depthwise::plan::check(&tile, conv, request, limits),
            (Self::Grouped, Some(tile)) => grouped::plan::check(&tile, request, limits),
            (Self::Hopper, Some(tile)) => hopper::plan::check(&tile, conv, request, limits),
            (Self::Matrix, Some(tile)) => matrix::plan::check(&tile, request, limits),
            (Self::Tiled, Some(tile)) => tiled::plan::check(&tile, request, limits),
            (Self::Wide, Some(tile)) => wide::plan::check(&tile, conv, request, limits),
            _ => Err(PlanError::Untiled { algorithm: self }),
        }
    }

    /// The units of a cube, for a tile that was checked.
    pub(super) fn units(
        self,
        tile: Option<Tile>,
        conv: &Convolution,
        request: Request,
        limits: &Limits,
    ) -> u32 {
        let alone = |units: u32| limits.cores.unwrap_or(units.min(limits.units_per_cube));
        match (self, tile) {
            (Self::Banded, Some(tile)) => banded::plan::units(&tile, conv, request.pass),
            (Self::Hopper, Some(tile)) => hopper::plan::units(&tile),
            (Self::Matrix, Some(tile)) => matrix::plan::units(&tile, request, limits),
            (Self::Tiled, Some(tile)) => tiled::plan::units(&tile),
            (Self::Depthwise | Self::Grouped, _) => alone(UNITS_OF_RUNS),
            _ => alone(UNITS),
        }
    }

    /// Whether the units of a cube follow from its tile.
    pub(super) fn has_units_of_tile(self) -> bool {
        matches!(self, Self::Banded | Self::Hopper | Self::Matrix | Self::Tiled)
    }

    /// The fragments that its matrix units multiply, and the units of a plane.
    pub(super) fn fragment(self, request: Request, limits: &Limits) -> Option<(Fragment, u32)> {
        match self {
            Self::Matrix => fragment(request, limits),
            Self::Banded => banded::plan::fragment(request, limits),
            _ => None,
        }
    }

    /// The bytes of operands that it lays out anew before it reads them.
    pub(super) fn laid(
        self,
        tile: Option<Tile>,
        splits: usize,
        conv: &Convolution,
        request: Request,
    ) -> usize {
        let pass = request.pass;
        let packing = match (self, tile) {
            (Self::Hopper, Some(tile)) => {
                return hopper::plan::workspace(conv, request, &tile, splits);
            }
            (Self::Depthwise, Some(tile)) => {
                depthwise::packing(conv, pass, tile.elems_per_thread as usize)
            }
            (Self::Grouped, _) => grouped::packing(conv, pass),
            (Self::Wide, Some(tile)) if pass != Pass::Filter => {
                wide::packing(conv, pass, tile.elems_per_thread as usize)
            }
            _ => return 0,
        };
        packing.elements() * accumulator(request.dtype).size()
    }
}
