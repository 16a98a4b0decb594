//! Which kernel a problem gets: the most special one that can compute it and pays.

use windowpane_geometry::{AXES, Axis, DType, Pooling};

use super::kernels::UNROLLED_TAPS;
use super::lanes::{pixel_channels, widest_divisor, widest_load};
use super::{Algorithm, Plan, PlanError, Reduction};
use crate::Limits;
use crate::pool::strip::outermost;
use crate::pool::{paired, plane, reduce, rolling, staged};

impl Plan {
    /// Chooses the kernel of a problem.
    pub fn new(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        let fits = |algorithm: Algorithm| algorithm.fits(pooling, reduction);
        let algorithm = if Self::is_one_run(pooling, reduction, dtype, limits, false) {
            Algorithm::Flat
        } else if Self::rolls(pooling, reduction, dtype, limits, false) {
            Algorithm::Rolling
        } else if Self::holds_planes(pooling, reduction, dtype, limits, false) {
            Algorithm::Plane
        } else if fits(Algorithm::Reduce) && reduces(pooling, dtype, limits) {
            Algorithm::Reduce
        } else if Self::with(Algorithm::Walk, pooling, reduction, dtype, limits).is_ok() {
            Algorithm::Walk
        } else if fits(Algorithm::Strip) && !scatters(pooling, limits) {
            Algorithm::Strip
        } else if fits(Algorithm::Sliding) && slides(pooling) {
            let fused = Self::with(Algorithm::Fused, pooling, reduction, dtype, limits);
            // With channels last a tile's rows are read piece by piece, which costs more than it saves
            // but where passes write more than they read.
            let pays = |plan: &Self| match paired::serves(reduction, dtype, plan) {
                true => paired::pays(pooling, reduction, plan),
                false => pixel_channels(pooling) == 1,
            };
            if fused.is_ok_and(|plan| pays(&plan)) {
                Algorithm::Fused
            } else if Self::with(Algorithm::Sliding, pooling, reduction, dtype, limits).is_ok() {
                Algorithm::Sliding
            } else {
                Algorithm::Direct
            }
        } else {
            Algorithm::Direct
        };
        Self::with(algorithm, pooling, reduction, dtype, limits)
    }

    /// Chooses the kernel of a problem's gradient.
    pub fn gradient(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        let algorithm = if Self::is_one_run(pooling, reduction, dtype, limits, true) {
            Algorithm::Flat
        } else if Self::rolls(pooling, reduction, dtype, limits, true) {
            Algorithm::Rolling
        } else if Self::holds_planes(pooling, reduction, dtype, limits, true) {
            Algorithm::Plane
        } else if Self::stages(pooling, reduction, dtype, limits) {
            Algorithm::Staged
        } else if Self::blocks(pooling, reduction, dtype, limits).is_some() {
            Algorithm::Strip
        } else {
            Algorithm::Direct
        };
        Self::gradient_with(algorithm, pooling, reduction, dtype, limits)
    }

    /// Whether staging planes pays: on a GPU, where no vector of eight bytes divides a row, and
    /// windows overlap or cover most of a plane.
    fn holds_planes(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
        gradient: bool,
    ) -> bool {
        let plan = Self::direct(pooling, reduction, dtype, limits);
        let plan = plan.plane(pooling, dtype, limits.units_per_cube, gradient);
        let fits = plan.check_planes(pooling, reduction, dtype, limits, gradient).is_ok();
        let [_, height, width] = pooling.grid().axes();
        let overlaps = plane::overlaps(height) && plane::overlaps(width);
        let few = pooling.output().plane() <= 4 && pooling.grid().taps() <= UNROLLED_TAPS;
        let one = !gradient && few && pooling.grid().taps() >= TEAM_TAPS;
        fits && limits.cores.is_none() && has_narrow_rows(pooling, dtype) && (overlaps || one)
    }

    /// Whether walking down the rows pays: of short numbers, where there are units enough that each has many.
    fn rolls(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
        gradient: bool,
    ) -> bool {
        let plan =
            || Self::of_pass(Algorithm::Rolling, pooling, reduction, dtype, limits, gradient);
        let pays = |plan: Self| {
            plan.lanes * dtype.size() >= 8 && rolling::units(pooling, &plan) >= ENOUGH_ROLLING_UNITS
        };
        dtype.size() == 2 && limits.llvm && plan().is_ok_and(pays)
    }

    /// Whether laying windows down in shared memory pays: of windows that overlap and are a few inputs apart, in many
    /// whole cubes.
    fn stages(pooling: &Pooling, reduction: Reduction, dtype: DType, limits: &Limits) -> bool {
        let overlaps = |axis: &Axis| axis.kernel() > axis.stride() && axis.stride() > 1;
        let whole = pixel_channels(pooling).is_multiple_of(staged::CHANNELS);
        let plan = || Self::gradient_with(Algorithm::Staged, pooling, reduction, dtype, limits);
        let many = |plan: Self| staged::cubes(pooling, dtype, &plan) >= ENOUGH_CUBES;
        limits.llvm
            && dtype.is_float()
            && whole
            && pooling.grid().axes().iter().all(overlaps)
            && plan().is_ok_and(many)
    }

    /// Whether one run of all planes pays: where no vector of eight bytes divides a row, and one does the
    /// run.
    fn is_one_run(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
        gradient: bool,
    ) -> bool {
        let plan = || Self::of_pass(Algorithm::Flat, pooling, reduction, dtype, limits, gradient);
        has_narrow_rows(pooling, dtype) && plan().is_ok_and(|plan| plan.lanes * dtype.size() >= 8)
    }

    /// The plan of a kernel that has a gradient too.
    fn of_pass(
        algorithm: Algorithm,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
        gradient: bool,
    ) -> Result<Self, PlanError> {
        match gradient {
            false => Self::with(algorithm, pooling, reduction, dtype, limits),
            true => Self::gradient_with(algorithm, pooling, reduction, dtype, limits),
        }
    }
}

/// Whether no vector of eight bytes divides a row.
fn has_narrow_rows(pooling: &Pooling, dtype: DType) -> bool {
    let width = &pooling.grid().axes()[AXES - 1];
    let along = [width.input(), width.output()].map(|n| widest_divisor(n, 8 / dtype.size()));
    along.into_iter().min() < Some(8 / dtype.size())
}

/// Whether walking pays: windows are large, and there are many along each line.
fn slides(pooling: &Pooling) -> bool {
    let many = |axis: &Axis| axis.kernel() == 1 || 2 * axis.output() > axis.kernel();
    pooling.grid().taps() > UNROLLED_TAPS && pooling.grid().axes().iter().all(many)
}

/// Whether teams pay, on a GPU: windows of many taps that neighbouring units would read far from each
/// other, or so few windows that there are not units enough.
fn reduces(pooling: &Pooling, dtype: DType, limits: &Limits) -> bool {
    let grid = pooling.grid();
    let few = |axis: &Axis| axis.kernel() == 1 || 2 * axis.output() <= axis.kernel();
    let near_global = grid.taps() >= TEAM_TAPS && grid.axes().iter().all(few);
    let channels = pixel_channels(pooling);
    let lanes = widest_divisor(channels, widest_load(dtype, limits));
    let scarce = pooling.output().elements() / lanes < ENOUGH_UNITS;
    // A window that was asked for as the whole plane has one kernel, whatever the plane.
    let global = grid.is_fitted() && reduce::is_flat(pooling);
    let pays = global || (near_global && (channels == 1 || scarce));
    limits.cores.is_none() && limits.shared_bytes > 0 && pays
}

/// Fewer taps than this are one unit's.
const TEAM_TAPS: usize = 32;

/// Fewer units than this leave a large GPU waiting.
const ENOUGH_UNITS: usize = 1 << 15;

/// The same of units that walk down rows, each of which takes long.
const ENOUGH_ROLLING_UNITS: usize = 1 << 17;

/// Fewer cubes that walk along planes than this, of which a large GPU runs some hundreds at once, are done at
/// uneven times.
const ENOUGH_CUBES: usize = 1 << 11;

/// Whether the units of strips would read and write far from their neighbours: strips along the
/// width of single-element pixels, on a GPU.
fn scatters(pooling: &Pooling, limits: &Limits) -> bool {
    let along_width = outermost(pooling) == AXES - 1;
    limits.cores.is_none() && pixel_channels(pooling) == 1 && along_width
}
