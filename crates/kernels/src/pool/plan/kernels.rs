//! How each kernel is planned, and beside it what it refuses.

use windowpane_geometry::{AXES, DType, LIMIT, Pooling};

use super::lanes::{lanes_across, lanes_written, pixel_channels, widest_divisor, widest_load};
use super::{Algorithm, MOST_UNROLLED_TAPS, Output, Plan, PlanError, Reduction};
use crate::Limits;
use crate::dtype::{MaximumForm, accumulator};
use crate::pool::reach::Reach;
use crate::pool::reduce::{self, Teams};
use crate::pool::strip::outermost;
use crate::pool::{
    backward_strip, flat, fused, paired, plane, rolling, sliding, staged, strip, walk,
};

/// More taps than this and a loop over them is no longer unrolled.
pub(super) const UNROLLED_TAPS: usize = 49;

/// The most vectors, as wide as loads are, that the sums of a strip share.
const WIDE_LOADS: usize = 40;

/// Fewer strips than this, of lanes along the width, and a large GPU has no others to run meanwhile.
const ENOUGH_STRIPS: usize = 1 << 19;

/// The units of a cube on a GPU: enough warps to hide latency, few enough to fill every
/// multiprocessor evenly.
const UNITS: u32 = 128;

impl Algorithm {
    /// Whether the kernel can compute the problem, on some device.
    pub(super) fn fits(self, pooling: &Pooling, reduction: Reduction) -> bool {
        match self {
            Self::Direct => true,
            Self::Strip => {
                let along = &pooling.grid().axes()[outermost(pooling)];
                unrolls(pooling, reduction) && along.dilation() == 1
            }
            Self::Sliding => !matches!(reduction, Reduction::Norm(_)) && sliding::fits(pooling),
            Self::Reduce => !matches!(reduction, Reduction::Norm(_)),
            Self::Fused => fused::fits(pooling, reduction),
            Self::Walk => walk::fits(pooling, reduction),
            Self::Flat => flat::fits(pooling, reduction),
            Self::Rolling => rolling::fits(pooling, reduction),
            // Of gradients alone.
            Self::Staged => false,
            // By the units and the memory of the device too: `check_planes`.
            Self::Plane => pixel_channels(pooling) == 1,
        }
    }

    /// Refuses the kernel where it cannot.
    pub(super) fn check(self, pooling: &Pooling, reduction: Reduction) -> Result<(), PlanError> {
        self.only_if(self.fits(pooling, reduction))
    }

    /// Refuses the kernel, unless it `fits`.
    pub(super) fn only_if(self, fits: bool) -> Result<(), PlanError> {
        if fits { Ok(()) } else { Err(PlanError::NotFor { algorithm: self }) }
    }
}

/// Whether the loops over the taps are unrolled: few taps, and not those of a fitted window, which
/// follow from the extents and must not change the kernel. A norm visits its taps twice, by loops.
fn unrolls(pooling: &Pooling, reduction: Reduction) -> bool {
    let grid = pooling.grid();
    let norm = matches!(reduction, Reduction::Norm(_));
    grid.taps() <= UNROLLED_TAPS && !grid.is_fitted() && !norm
}

/// Refuses a workspace of more elements than kernels count, or more bytes than the device binds.
pub(in crate::pool) fn check_workspace(
    elements: usize,
    bytes: usize,
    limits: &Limits,
) -> Result<(), PlanError> {
    if elements > LIMIT {
        return Err(PlanError::TooManyElements { elements, limit: LIMIT });
    }
    let (bytes, limit) = (bytes as u64, limits.buffer_bytes);
    if bytes > limit {
        return Err(PlanError::Workspace { bytes, limit });
    }
    Ok(())
}

impl Plan {
    /// The columns that a cube writes and the units that it takes, of no more than `most`.
    fn tile(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        most: u32,
    ) -> Option<(usize, u32)> {
        match paired::serves(reduction, dtype, self) {
            true => paired::tile(pooling, most),
            false => fused::tile(pooling, reduction, most),
        }
    }

    /// Refuses a problem or a device that the plan's kernel is not for, and values of its own that it
    /// cannot run with.
    pub(super) fn check_kernel(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        self.algorithm.check(pooling, reduction)?;
        match self.algorithm {
            Algorithm::Direct | Algorithm::Staged => Ok(()),
            Algorithm::Strip => self.check_strip(pooling),
            Algorithm::Sliding => self.check_passes(pooling, reduction, dtype, limits),
            Algorithm::Walk => self.check_walk(pooling, dtype, limits),
            Algorithm::Reduce => self.check_teams(pooling, reduction, limits),
            Algorithm::Fused => self.check_tile(pooling, reduction, dtype, limits),
            Algorithm::Plane => self.check_planes(pooling, reduction, dtype, limits, false),
            Algorithm::Flat => self.check_flat(pooling, reduction, dtype, limits),
            Algorithm::Rolling => self.check_rolling(pooling, reduction, dtype, limits),
        }
    }

    /// The plan that the others begin with.
    pub(super) fn direct(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Self {
        let accumulator = match reduction {
            // A GPU that compares halves compares two at a time.
            Reduction::Max(Output::Values)
                if dtype.is_float() && limits.llvm && limits.cores.is_none() =>
            {
                dtype
            }
            // Comparing numbers as IEEE 754 says takes six instructions where there is none for it, and
            // some devices take the least of them for 0.
            Reduction::Max(_)
                if dtype.is_float() && dtype.size() <= DType::I32.size() && !limits.llvm =>
            {
                DType::I32
            }
            _ => accumulator(dtype),
        };
        let widest = widest_load(dtype, limits);
        Self {
            algorithm: Algorithm::Direct,
            lanes: widest_divisor(pixel_channels(pooling), widest),
            across: false,
            strip: 1,
            widest,
            columns: 1,
            team: 1,
            parts: 1,
            units: limits.cores.unwrap_or(UNITS.min(limits.units_per_cube)),
            unrolled: unrolls(pooling, reduction),
            runs: limits.cores.is_some(),
            workspace: 0,
            accumulator,
            maximum: MaximumForm::new(accumulator, limits),
            rounds: dtype == DType::BF16 && !limits.llvm,
            llvm: limits.llvm,
            shared_bytes: limits.shared_bytes,
        }
    }

    /// The plan that those of gradients begin with, which are sums.
    pub(super) fn gathered(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Self {
        let plan = Self::direct(pooling, reduction, dtype, limits);
        Self { accumulator: accumulator(dtype), ..plan }
    }

    /// Strips of as many outputs as share taps, and columns of vectors where these do.
    pub(super) fn strip(
        self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Self {
        let along = &pooling.grid().axes()[outermost(pooling)];
        let across = lanes_written(pooling, self.widest, self.runs);
        let longest = match along.stride() {
            s if s >= along.kernel() || along.output() == 1 => 1,
            1 => 4,
            // A thread that takes lanes of a row apart has more to share than a GPU's unit, which
            // would need the registers.
            _ if across.is_some() && self.runs => 4,
            _ => 2,
        };
        let row = pooling.grid().taps() / along.kernel();
        let loads = |strip: usize| ((strip - 1) * along.stride() + along.kernel()) * row;
        let fits = |&strip: &usize| strip <= longest && loads(strip) <= UNROLLED_TAPS;
        let strip = [4, 2].into_iter().find(fits).unwrap_or(1);
        // Few strips of short numbers are waited for: shorter ones read more, but are soon done.
        let few = |lanes: usize| pooling.output().elements() / lanes / strip < ENOUGH_STRIPS;
        let short = !self.runs && dtype.size() == 2 && limits.llvm && across.is_some_and(few);
        let strip = if short { strip.min(2) } else { strip };
        let indexed = matches!(reduction, Reduction::Max(Output::ValuesAndIndices(_)));
        let width = &pooling.grid().axes()[AXES - 1];
        // Two columns of vectors share most of what they read, if few of it is neither's own.
        let shares = width.kernel() > 2 * width.stride() && width.output() > 1 && !indexed;
        let pairs = (loads(strip) / width.kernel()) * (width.kernel() + width.stride());
        let blocks = shares && !self.runs && self.lanes < pixel_channels(pooling);
        let columns = if blocks && pairs <= UNROLLED_TAPS { 2 } else { 1 };
        let sums = matches!(reduction, Reduction::Average(_));
        let many = columns > 1 || (strip > 1 && loads(strip) > WIDE_LOADS);
        let plan = if indexed || (sums && many) { self.narrowed(limits) } else { self };
        // Of positions too a GPU compares halves two at a time, where NaN is looked for apart.
        let halves = indexed && dtype.is_float() && limits.llvm && !self.runs;
        let accumulator = if halves { dtype } else { self.accumulator };
        Self { columns, accumulator, ..plan.in_strips(strip, across) }
    }

    /// Refuses strips that read more vectors than code is unrolled for.
    fn check_strip(&self, pooling: &Pooling) -> Result<(), PlanError> {
        let along = &pooling.grid().axes()[outermost(pooling)];
        let [.., width] = pooling.grid().axes();
        let rows = self.strip.saturating_sub(1) * along.stride() + along.kernel();
        let inner = pooling.grid().taps() / along.kernel();
        let vectors = match self.across {
            true => {
                let reach = Reach::new(pooling, strip::reads(pooling, self), self.lanes);
                inner / width.kernel() * reach.vectors()
            }
            false => inner,
        };
        self.algorithm.only_if(rows.saturating_mul(vectors) <= MOST_UNROLLED_TAPS)
    }

    /// The plan for strips of so many outputs, or of steps of inputs, lanes along the width where
    /// they may be.
    fn in_strips(self, strip: usize, across: Option<usize>) -> Self {
        Self {
            algorithm: Algorithm::Strip,
            lanes: across.unwrap_or(self.lanes),
            across: across.is_some(),
            strip,
            ..self
        }
    }

    /// The gradient by blocks, if it serves the problem: no norm's, which is gathered tap by tap.
    pub(super) fn blocks(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Option<Self> {
        if matches!(reduction, Reduction::Norm(_)) {
            return None;
        }
        let plan = Self::gathered(pooling, reduction, dtype, limits);
        let longest = if pooling.grid().axes()[outermost(pooling)].stride() == 1 { 4 } else { 1 };
        let columns = if plan.runs { 1 } else { backward_strip::columns(pooling, reduction) };
        let mut strips = [4, 2, 1].into_iter().filter(|&strip| strip <= longest);
        let strip = strips.find(|&strip| backward_strip::fits(pooling, strip, columns))?;
        let across = lanes_across(pooling, widest_load(dtype, limits), true);
        let plan = if columns > 1 { plan.narrowed(limits) } else { plan };
        Some(Self { columns, ..plan.in_strips(strip, across) })
    }

    /// Refuses blocks of a gradient that hold too much.
    pub(super) fn check_blocks(&self, pooling: &Pooling) -> Result<(), PlanError> {
        Algorithm::Strip.only_if(backward_strip::fits(pooling, self.strip, self.columns))
    }

    /// Strips of as many rows as registers hold the lines of.
    pub(super) fn walk(self, pooling: &Pooling, dtype: DType, limits: &Limits) -> Self {
        let along = &pooling.grid().axes()[outermost(pooling)];
        let alone = along.stride() >= along.kernel() || along.output() == 1;
        let longest = if alone { 1 } else { 4 };
        let fits =
            |&strip: &usize| strip <= longest && walk::lines(pooling, strip) <= walk::MOST_LINES;
        let strip = [4, 2].into_iter().find(fits).unwrap_or(1);
        let plan = self.in_strips(strip, lanes_across(pooling, widest_load(dtype, limits), false));
        Self { algorithm: Algorithm::Walk, unrolled: true, ..plan }
    }

    /// Refuses rows that no thread can walk.
    fn check_walk(
        &self,
        pooling: &Pooling,
        dtype: DType,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        let walks = limits.cores.is_some() && walk::fits_plan(pooling, dtype, self);
        self.algorithm.only_if(walks)
    }

    /// Passes, and the workspace between them.
    pub(super) fn sliding(self, pooling: &Pooling, reduction: Reduction, dtype: DType) -> Self {
        let plan = Self { algorithm: Algorithm::Sliding, unrolled: false, ..self };
        let (_, workspace) = sliding::written(pooling, reduction, &plan, dtype);
        Self { workspace, ..plan }
    }

    /// Refuses passes that write more between them than kernels count or the device binds.
    fn check_passes(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        let (elements, bytes) = sliding::written(pooling, reduction, self, dtype);
        check_workspace(elements, bytes, limits)
    }

    /// Teams, and the workspace of their parts.
    pub(super) fn reduce(
        self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Self {
        // Shared vectors of more than four lanes are not for every device.
        let widest = widest_load(dtype, limits).min(if limits.llvm { 16 } else { 4 });
        let lanes = self.lanes.min(widest);
        let Teams { lanes, across, team, parts } = Teams::new(pooling, self.units, lanes, widest);
        let algorithm = Algorithm::Reduce;
        let plan = Self { algorithm, lanes, across, team, parts, unrolled: false, ..self };
        Self { workspace: reduce::workspace(pooling, reduction, &plan), ..plan }
    }

    /// Refuses teams that a cube has no room for, or more parts than are folded.
    fn check_teams(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        let (team, parts, units) = (self.team, self.parts, self.units);
        let halves = team.is_power_of_two() && team <= units;
        if !halves || !(1..=reduce::MOST_PARTS).contains(&parts) {
            return Err(PlanError::Teams { team, units, parts, limit: reduce::MOST_PARTS });
        }
        let written = parts.saturating_mul(pooling.output().elements());
        check_workspace(written, reduce::workspace(pooling, reduction, self), limits)?;
        self.algorithm.only_if(reduce::shared_bytes(reduction, self) <= limits.shared_bytes)
    }

    /// A tile for the units of a cube, if there is one.
    pub(super) fn fused(
        self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        let algorithm = Algorithm::Fused;
        let tile = self.tile(pooling, reduction, dtype, limits.units_per_cube);
        // A core would wait at every block for those that have not come as far.
        let tile = tile.filter(|_| limits.cores.is_none());
        let (_, units) = tile.ok_or(PlanError::NotFor { algorithm })?;
        // Its maxima are folded as its sums are.
        let pairs = paired::serves(reduction, dtype, &self);
        let accumulator = if pairs { accumulator(dtype) } else { self.accumulator };
        Ok(Self { algorithm, units, accumulator, lanes: 1, unrolled: false, ..self })
    }

    /// Refuses units that no tile can be walked with, or more memory for it than there is.
    fn check_tile(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        let bytes = match paired::serves(reduction, dtype, self) {
            true => paired::shared_bytes(pooling, self),
            false => fused::shared_bytes(pooling, reduction, self),
        };
        let tile = self.tile(pooling, reduction, dtype, self.units);
        self.algorithm.only_if(bytes <= limits.shared_bytes && tile.is_some())
    }

    /// Vectors as wide as loads are, wherever rows end.
    pub(super) fn flat(self, pooling: &Pooling, dtype: DType, limits: &Limits) -> Self {
        let lanes = flat::lanes(pooling, widest_load(dtype, limits)).unwrap_or(1);
        Self { algorithm: Algorithm::Flat, lanes, across: true, unrolled: true, ..self }
    }

    /// Refuses windows, types and devices that runs are not for, lanes that do not divide them, and so few that
    /// vectors a row further are more than 32 bits count.
    pub(super) fn check_flat(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        let lanes = flat::lanes(pooling, widest_load(dtype, limits));
        let fits = flat::fits(pooling, reduction) && dtype != DType::F64 && limits.cores.is_none();
        self.algorithm.only_if(fits && lanes.is_some())?;
        let (elements, row) = (pooling.input().elements(), pooling.grid().axes()[AXES - 1].input());
        let (lanes, widest) = (self.lanes, lanes.unwrap_or(1));
        // A row of taps ends in the vector after that of its last element.
        if lanes.is_power_of_two() && lanes <= widest && (elements + row) / lanes < LIMIT {
            return Ok(());
        }
        Err(PlanError::Lanes { lanes, neighbours: elements, widest })
    }

    /// Rows as many as a unit walks down, of columns and channels as many as it has registers for.
    pub(super) fn rolling(self, pooling: &Pooling, limits: &Limits) -> Self {
        let lanes = self.lanes.min(rolling::most_lanes(limits));
        let strip = rolling::ROWS.min(pooling.grid().axes()[AXES - 2].input().max(1));
        let algorithm = Algorithm::Rolling;
        Self { algorithm, lanes, strip, columns: rolling::COLUMNS, unrolled: true, ..self }
    }

    /// Refuses windows, types and devices that walking down is not for.
    pub(super) fn check_rolling(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        let fits = rolling::fits(pooling, reduction);
        self.algorithm.only_if(fits && dtype != DType::F64 && limits.cores.is_none())?;
        let (lanes, widest) = (self.lanes, rolling::most_lanes(limits));
        if lanes <= widest {
            return Ok(());
        }
        Err(PlanError::Lanes { lanes, neighbours: pixel_channels(pooling), widest })
    }

    /// Cubes of a tile of blocks.
    pub(super) fn staged(self, pooling: &Pooling, dtype: DType) -> Self {
        let lanes = staged::LANES;
        let plan = Self { algorithm: Algorithm::Staged, lanes, unrolled: true, ..self };
        Self { units: staged::units(pooling, dtype, &plan), ..plan }
    }

    /// Refuses problems and devices that tiles of blocks are not for, lanes that are not the plan's own, and more
    /// memory than there is.
    pub(super) fn check_staged(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        let lanes = self.lanes == staged::LANES && self.lanes <= widest_load(dtype, limits);
        let fits = lanes && staged::fits(pooling, reduction) && limits.cores.is_none();
        self.algorithm.only_if(fits)?;
        let units = staged::units(pooling, dtype, self);
        let room = staged::shared_bytes(pooling, dtype, self) <= limits.shared_bytes;
        self.algorithm.only_if(self.units == units && units <= limits.units_per_cube && room)
    }

    /// As many planes a cube as it has room for, of `most` units; of a `gradient` too.
    pub(super) fn plane(self, pooling: &Pooling, dtype: DType, most: u32, gradient: bool) -> Self {
        let algorithm = Algorithm::Plane;
        let plan = Self { algorithm, across: true, unrolled: true, ..self };
        match plane::Tile::new(pooling, dtype, gradient, self.shared_bytes) {
            None => plan,
            Some(tile) => {
                let units = if self.runs { self.units } else { plane::UNITS.min(most) };
                Self { lanes: tile.lanes, strip: tile.columns, units, ..plan }
            }
        }
    }

    /// Refuses planes that are not for staging, or not on this device, strips that are not the tile's, and lanes that
    /// planes cannot be moved in.
    pub(super) fn check_planes(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
        gradient: bool,
    ) -> Result<(), PlanError> {
        let most = limits.shared_bytes;
        let room = plane::SHARED_BYTES <= most;
        let fits = plane::fits(pooling, reduction, dtype, gradient, most);
        self.algorithm.only_if(room && fits)?;
        let tile = plane::Tile::new(pooling, dtype, gradient, self.shared_bytes);
        if tile.as_ref().is_some_and(|tile| self.strip != tile.columns) {
            return Err(PlanError::Fixed { name: "strip", algorithm: self.algorithm });
        }
        let (lanes, widest) = (self.lanes, tile.map_or(1, |tile| tile.lanes));
        if lanes.is_power_of_two() && lanes <= widest {
            return Ok(());
        }
        Err(PlanError::Lanes { lanes, neighbours: widest, widest })
    }
}
