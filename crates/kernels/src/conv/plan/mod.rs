//! The choice of a kernel, a pure function of the problem and the device's limits.
//!
//! Here is what is asked, a [`Request`] and a [`Wish`], and what is answered, a [`Plan`]. `algorithm` has
//! the ladder that it goes down; whether a kernel can, by which tile, and why not by another, is told by
//! the kernel's own room, and what several of them ask alike by `rules`. `splits` cuts long sums,
//! `candidates` knows the plans near a plan, for a search by measuring.

use windowpane_geometry::{Convolution, DType, LIMIT, Precision, Tile, Tiling};

use super::{blocks, hopper};
use crate::dtype::accumulator;
use crate::{Fragment, Limits};

mod algorithm;
mod candidates;
mod error;
pub(super) mod rules;
mod splits;
#[cfg(test)]
mod tests;

pub use algorithm::Algorithm;
pub use error::PlanError;
pub(super) use splits::{results, windows};
pub use windowpane_geometry::Pass;

/// What is asked of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What is computed.
    pub pass: Pass,
    /// The type of all tensors.
    pub dtype: DType,
    /// How exact the products are.
    pub precision: Precision,
}

/// What of a plan is asked for; the rest is the plan's own choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The kernel.
    pub algorithm: Option<Algorithm>,
    /// Numbers of its tile.
    pub tiling: Tiling,
}

/// How a convolution will run.
///
/// The fields may be overridden one by one before the launch; [`Plan::check`] says which values
/// cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The kernel.
    pub algorithm: Algorithm,
    /// How its product of matrices is cut up; none where it has no product.
    pub tile: Option<Tile>,
    /// The fragments of its matrix units, and the units of a plane.
    pub(super) matrix: Option<(Fragment, u32)>,
    /// The units of a cube.
    pub units: u32,
    /// Whether a unit takes a run of neighbouring outputs (threads of a processor) or every
    /// n-th one (lanes of a GPU, whose accesses then fall together).
    pub runs: bool,
    /// The parts that each sum is cut into; 1 where the sums are many enough.
    pub splits: usize,
}

impl Plan {
    /// Chooses the kernel of a problem, but for what is wished.
    pub fn new(
        conv: &Convolution,
        request: Request,
        wish: Wish,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        check_problem(conv, request, limits)?;
        let Some(algorithm) = first_of_ladder(conv, request, wish, limits) else {
            return Err(PlanError::NoKernel { algorithm: wish.algorithm });
        };
        let tile = algorithm.tile(conv, request, limits).map(|tile| wish.tiling.over(tile));
        algorithm.check(tile, conv, request, limits)?;
        let plan = Self {
            algorithm,
            tile,
            matrix: algorithm.fragment(request, limits),
            units: algorithm.units(tile, conv, request, limits),
            runs: limits.cores.is_some(),
            splits: splits::splits(algorithm, tile, conv, request, limits),
        };
        plan.check_counts(conv, request, limits)?;
        Ok(plan)
    }

    /// Refuses values that no kernel can run with.
    pub fn check(
        &self,
        conv: &Convolution,
        request: Request,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        check_problem(conv, request, limits)?;
        if !self.algorithm.can(conv, request, limits) {
            return Err(PlanError::NoKernel { algorithm: Some(self.algorithm) });
        }
        self.algorithm.check(self.tile, conv, request, limits)?;
        if self.matrix != self.algorithm.fragment(request, limits) {
            return Err(PlanError::Foreign);
        }
        let units = self.algorithm.units(self.tile, conv, request, limits);
        if self.algorithm.has_units_of_tile() && self.units != units {
            return Err(PlanError::UnitsOfTile { units: self.units, expected: units });
        }
        self.check_counts(conv, request, limits)
    }

    /// Refuses units, parts and memory that the device has not, of a kernel and a tile that it has.
    fn check_counts(
        &self,
        conv: &Convolution,
        request: Request,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        rules::check_units(self.units, limits)?;
        let most = splits::most_splits(self.algorithm, conv, request.pass);
        if self.splits == 0 || self.splits > most {
            return Err(PlanError::Splits { splits: self.splits, most });
        }
        if let (Algorithm::Tiled | Algorithm::Matrix, Some(tile)) = (self.algorithm, self.tile) {
            let cubes = blocks::lines(conv, request.pass).div_ceil(tile.block_m as usize);
            if cubes > limits.cubes as usize {
                return Err(PlanError::Cubes { cubes, limit: limits.cubes });
            }
        }
        let bytes = self.workspace(conv, request) as u64;
        if bytes > limits.buffer_bytes {
            return Err(PlanError::Workspace { bytes, limit: limits.buffer_bytes });
        }
        Ok(())
    }

    /// The bytes of device memory that the launch takes beside its tensors.
    pub fn workspace(&self, conv: &Convolution, request: Request) -> usize {
        let parts = match self.cuts(request.pass, request.dtype) {
            false => 0,
            true => self.splits * results(conv, request.pass),
        };
        parts * accumulator(request.dtype).size()
            + self.algorithm.laid(self.tile, self.splits, conv, request)
    }

    /// How the kernel takes its factors, in words.
    pub fn factors(&self, conv: &Convolution, request: Request) -> &'static str {
        match self.algorithm {
            Algorithm::Hopper => hopper::plan::factors(conv, request),
            _ => match request.precision {
                Precision::Tf32 => "rounded to tf32",
                Precision::Strict => "as they are",
            },
        }
    }

    /// Whether sums leave a kernel in parts; or, where they are long, as wide as parts would be, so that
    /// another batch, with another number of parts, asks for no other kernel.
    pub(super) fn cuts(&self, pass: Pass, dtype: DType) -> bool {
        let long = matches!(pass, Pass::Filter | Pass::Bias);
        // Its tile depends on the batch as it is.
        let fixed = self.algorithm == Algorithm::Hopper;
        self.splits > 1 || (long && !fixed && dtype != accumulator(dtype))
    }

    /// The type in which sums leave a kernel.
    pub(super) fn stored(&self, pass: Pass, dtype: DType) -> DType {
        if self.cuts(pass, dtype) { accumulator(dtype) } else { dtype }
    }
}

/// The first kernel of the ladder that can compute a problem, of those that pay or the one that is wished.
fn first_of_ladder(
    conv: &Convolution,
    request: Request,
    wish: Wish,
    limits: &Limits,
) -> Option<Algorithm> {
    let is_asked = |algorithm: Algorithm| match wish.algorithm {
        Some(wished) => wished == algorithm,
        None => algorithm.pays(conv, request, limits),
    };
    // The direct kernel has no tile to wish for.
    let has_tile = |algorithm| algorithm != Algorithm::Direct || wish.tiling == Tiling::default();
    Algorithm::LADDER.into_iter().find(|&algorithm| {
        is_asked(algorithm) && has_tile(algorithm) && algorithm.can(conv, request, limits)
    })
}

/// Refuses what no kernel could compute, whatever its tile.
fn check_problem(conv: &Convolution, request: Request, limits: &Limits) -> Result<(), PlanError> {
    let Request { dtype, precision, .. } = request;
    if !dtype.is_float() {
        return Err(PlanError::Integers { dtype });
    }
    if precision == Precision::Tf32 {
        if dtype != DType::F32 {
            return Err(PlanError::Tf32OfOther { dtype });
        }
        if rules::fragment(request, limits).is_none() {
            return Err(PlanError::NoTf32);
        }
    }
    let sizes = [conv.input().elements(), conv.output().elements(), conv.filter().elements()];
    for elements in sizes {
        // Positions are 32-bit in the kernels.
        if elements > LIMIT {
            return Err(PlanError::TooManyElements { elements, limit: LIMIT });
        }
        let bytes = elements as u64 * dtype.size() as u64;
        if bytes > limits.buffer_bytes {
            return Err(PlanError::BufferTooLarge { bytes, limit: limits.buffer_bytes });
        }
    }
    Ok(())
}
