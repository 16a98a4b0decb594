//! The choice of a kernel, a pure function of the problem and the device's limits.

use core::fmt;

use windowpane_geometry::{
    AXES, Axis, DType, Divisor, Exponent, IndexBase, LIMIT, Layout, Pooling,
};

use super::backward_strip;
use super::fused;
use super::plane;
use super::reduce::{self, Teams};
use super::sliding;
use super::strip::outermost;
use super::walk;
use crate::Limits;
use crate::dtype::{MaximumForm, accumulator};

/// What becomes of the taps of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their maximum, NaN above all.
    Max(Output),
    /// Their sum over a divisor.
    Average(Divisor),
    /// Their norm, `(Σ|x|^p)^(1/p)`.
    Norm(Exponent),
}

/// What a maximum is returned as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// The value.
    Values,
    /// The value, and the index of the tap that it came from.
    ValuesAndIndices(IndexBase),
}

impl Reduction {
    /// What indices count; the plane, where there are none.
    pub(super) fn base(self) -> IndexBase {
        match self {
            Self::Max(Output::ValuesAndIndices(base)) => base,
            _ => IndexBase::Plane,
        }
    }

    /// What a fixed divisor divides by; 1, where there is none.
    pub(super) fn fixed_divisor(self) -> u32 {
        match self {
            Self::Average(Divisor::Fixed(n)) => n,
            _ => 1,
        }
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Max(Output::Values) => "max",
            Self::Max(Output::ValuesAndIndices(_)) => "max with indices",
            Self::Average(_) => "average",
            Self::Norm(_) => "norm",
        })
    }
}

/// The kernels of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// One unit an output vector reads every tap.
    Direct,
    /// One unit a strip of outputs shares what their windows share.
    Strip,
    /// Lines are walked in blocks, an axis at a time.
    Sliding,
    /// A team of units shares the taps of a window.
    Reduce,
    /// Small planes are staged whole in shared memory.
    Plane,
    /// Lines are walked in blocks, both axes of a plane in one launch.
    Fused,
    /// A thread of a processor walks along the rows of a strip.
    Walk,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
            Self::Strip => "strip",
            Self::Sliding => "sliding",
            Self::Reduce => "reduce",
            Self::Plane => "plane",
            Self::Fused => "fused",
            Self::Walk => "walk",
        })
    }
}

/// How a pooling will run.
///
/// The fields may be overridden one by one before the launch; [`Plan::check`] says which values
/// cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The kernel.
    pub algorithm: Algorithm,
    /// The elements that one unit handles at once, neighbours in memory.
    pub lanes: usize,
    /// Whether the lanes are neighbours along the width, not channels of a pixel.
    pub across: bool,
    /// The outputs of a unit, where it has a strip of them.
    pub strip: usize,
    /// The units that share a window.
    pub team: u32,
    /// The parts that the taps of a window are cut into, to be folded by a second launch.
    pub parts: usize,
    /// The units of a cube.
    pub units: u32,
    /// Whether the loops over the taps are unrolled, their number then being compiled in.
    pub unrolled: bool,
    /// Whether a unit takes a run of neighbouring outputs (threads of a processor) or every
    /// n-th one (lanes of a GPU, whose accesses then fall together).
    pub runs: bool,
    /// The bytes of workspace.
    pub workspace: usize,
    /// The neighbouring columns of a unit of a gradient, where its lanes are channels.
    pub(super) columns: usize,
    /// The type that elements are compared and summed in.
    pub(super) accumulator: DType,
    pub(super) maximum: MaximumForm,
    /// Whether sums are rounded to bf16 here, not by the device.
    pub(super) rounds: bool,
    /// Whether what is shared can be seen as vectors.
    pub(super) reinterprets: bool,
    /// The bytes that the units of a cube may share.
    pub(super) shared_bytes: usize,
}

/// More taps than this and a loop over them is no longer unrolled.
const UNROLLED_TAPS: usize = 49;

/// The most vectors, as wide as loads are, that the sums of a strip share.
const WIDE_LOADS: usize = 40;

/// The units of a cube on a GPU: enough warps to hide latency, few enough to fill every
/// multiprocessor evenly.
const UNITS: u32 = 128;

impl Plan {
    /// Chooses the kernel of a problem.
    pub fn new(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        let fits = |algorithm: Algorithm| algorithm.fits(pooling, reduction);
        let algorithm = if Self::stages(pooling, reduction, dtype, limits, false) {
            Algorithm::Plane
        } else if fits(Algorithm::Reduce) && reduces(pooling, dtype, limits) {
            Algorithm::Reduce
        } else if Self::with(Algorithm::Walk, pooling, reduction, dtype, limits).is_ok() {
            Algorithm::Walk
        } else if fits(Algorithm::Strip) && !scatters(pooling, limits) {
            Algorithm::Strip
        } else if fits(Algorithm::Sliding) && slides(pooling) {
            let fused = Self::with(Algorithm::Fused, pooling, reduction, dtype, limits);
            // With channels last a tile's rows are read piece by piece, which costs more than it saves.
            let pays = pixel_channels(pooling) == 1;
            if fused.is_ok() && pays { Algorithm::Fused } else { Algorithm::Sliding }
        } else {
            Algorithm::Direct
        };
        Self::with(algorithm, pooling, reduction, dtype, limits)
    }

    /// Plans for a kernel that is named, where it can compute the problem.
    pub fn with(
        algorithm: Algorithm,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        check_problem(pooling, reduction, dtype, limits)?;
        algorithm.check(pooling, reduction)?;
        let plan = Self::direct(pooling, reduction, dtype, limits);
        Ok(match algorithm {
            Algorithm::Direct => plan,
            Algorithm::Strip => plan.strip(pooling, reduction, dtype, limits),
            Algorithm::Walk => {
                let plan = plan.walk(pooling, dtype, limits);
                plan.check_walk(pooling, dtype, limits)?;
                plan
            }
            Algorithm::Sliding => plan.sliding(pooling, reduction, dtype),
            Algorithm::Reduce => {
                let plan = plan.reduce(pooling, reduction, dtype, limits);
                plan.check_shared(reduction, limits)?;
                plan
            }
            Algorithm::Fused => {
                let plan = plan.fused(pooling, reduction, limits)?;
                plan.check_tile(pooling, reduction, limits)?;
                plan
            }
            Algorithm::Plane => {
                let plan = plan.plane(pooling, dtype, limits.units_per_cube, false);
                plan.check_planes(pooling, reduction, dtype, limits, false)?;
                plan
            }
        })
    }

    fn fused(
        self,
        pooling: &Pooling,
        reduction: Reduction,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        let algorithm = Algorithm::Fused;
        let most = limits.units_per_cube;
        // A core would wait at every block for those that have not come as far.
        let tile = fused::tile(pooling, reduction, most).filter(|_| limits.cores.is_none());
        let (_, units) = tile.ok_or(PlanError::NotFor { algorithm })?;
        Ok(Self { algorithm, units, lanes: 1, unrolled: false, ..self })
    }

    /// Refuses units that no tile can be walked with, or more memory for it than there is.
    fn check_tile(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        let room = fused::shared_bytes(pooling, reduction, self) <= limits.shared_bytes;
        match room && fused::tile(pooling, reduction, self.units).is_some() {
            true => Ok(()),
            false => Err(PlanError::NotFor { algorithm: self.algorithm }),
        }
    }

    fn plane(self, pooling: &Pooling, dtype: DType, most: u32, gradient: bool) -> Self {
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

    /// Whether staging planes pays: on a GPU, where no vector of eight bytes divides a row, and
    /// windows overlap or cover most of a plane.
    fn stages(
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
        let along = [width.input(), width.output()].map(|n| widest_divisor(n, 8 / dtype.size()));
        let narrow = along.into_iter().min() < Some(8 / dtype.size());
        let overlaps = plane::overlaps(height) && plane::overlaps(width);
        let few = pooling.output().plane() <= 4 && pooling.grid().taps() <= UNROLLED_TAPS;
        let one = !gradient && few && pooling.grid().taps() >= TEAM_TAPS;
        fits && limits.cores.is_none() && narrow && (overlaps || one)
    }

    /// Refuses planes that are not for staging, or not on this device.
    fn check_planes(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
        gradient: bool,
    ) -> Result<(), PlanError> {
        let most = limits.shared_bytes;
        let room = plane::SHARED_BYTES <= most;
        let algorithm = Algorithm::Plane;
        match room && plane::fits(pooling, reduction, dtype, gradient, most) {
            true => Ok(()),
            false => Err(PlanError::NotFor { algorithm }),
        }
    }

    fn reduce(
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

    /// Refuses teams that share more memory than there is.
    fn check_shared(&self, reduction: Reduction, limits: &Limits) -> Result<(), PlanError> {
        match reduce::shared_bytes(reduction, self) <= limits.shared_bytes {
            true => Ok(()),
            false => Err(PlanError::NotFor { algorithm: self.algorithm }),
        }
    }

    fn sliding(self, pooling: &Pooling, reduction: Reduction, dtype: DType) -> Self {
        let plan = Self { algorithm: Algorithm::Sliding, unrolled: false, ..self };
        let workspace = sliding::workspace(pooling, reduction, &plan, dtype);
        Self { workspace, ..plan }
    }

    /// Chooses the kernel of a problem's gradient.
    pub fn gradient(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        let algorithm = if Self::stages(pooling, reduction, dtype, limits, true) {
            Algorithm::Plane
        } else if Self::blocks(pooling, reduction, dtype, limits).is_some() {
            Algorithm::Strip
        } else {
            Algorithm::Direct
        };
        Self::gradient_with(algorithm, pooling, reduction, dtype, limits)
    }

    /// Plans for a kernel of the gradient that is named, where it can compute the problem.
    pub fn gradient_with(
        algorithm: Algorithm,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        check_problem(pooling, reduction, dtype, limits)?;
        match algorithm {
            Algorithm::Direct => Ok(Self::direct(pooling, reduction, dtype, limits)),
            Algorithm::Strip => {
                let plan = Self::blocks(pooling, reduction, dtype, limits);
                plan.ok_or(PlanError::NotFor { algorithm })
            }
            Algorithm::Plane => {
                let plan = Self::direct(pooling, reduction, dtype, limits);
                let plan = plan.plane(pooling, dtype, limits.units_per_cube, true);
                plan.check_planes(pooling, reduction, dtype, limits, true)?;
                Ok(plan)
            }
            Algorithm::Sliding | Algorithm::Reduce | Algorithm::Fused | Algorithm::Walk => {
                Err(PlanError::NotFor { algorithm })
            }
        }
    }

    fn blocks(
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Option<Self> {
        let plan = Self::direct(pooling, reduction, dtype, limits);
        let longest = if pooling.grid().axes()[outermost(pooling)].stride() == 1 { 4 } else { 1 };
        let columns = if plan.runs { 1 } else { backward_strip::columns(pooling, reduction) };
        let mut strips = [4, 2, 1].into_iter().filter(|&strip| strip <= longest);
        let strip = strips.find(|&strip| backward_strip::fits(pooling, strip, columns))?;
        let across = lanes_across(pooling, widest_load(dtype, limits), true);
        let plan = if columns > 1 { plan.narrowed(limits) } else { plan };
        Some(Self { columns, ..plan.in_strips(strip, across) })
    }

    /// Whether a GPU's elements are widened by their bits: those that are not folded as they are.
    pub(super) fn widens(&self, dtype: DType) -> bool {
        dtype == DType::BF16 && self.accumulator != dtype && self.reinterprets && !self.runs
    }

    fn direct(pooling: &Pooling, reduction: Reduction, dtype: DType, limits: &Limits) -> Self {
        let accumulator = match reduction {
            // A GPU that compares halves compares two at a time.
            Reduction::Max(Output::Values)
                if dtype.is_float() && limits.llvm && limits.cores.is_none() =>
            {
                dtype
            }
            _ => accumulator(dtype),
        };
        Self {
            algorithm: Algorithm::Direct,
            lanes: widest_divisor(pixel_channels(pooling), widest_load(dtype, limits)),
            across: false,
            strip: 1,
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
            reinterprets: limits.llvm,
            shared_bytes: limits.shared_bytes,
        }
    }

    fn strip(self, pooling: &Pooling, reduction: Reduction, dtype: DType, limits: &Limits) -> Self {
        let along = &pooling.grid().axes()[outermost(pooling)];
        let across = lanes_across(pooling, widest_load(dtype, limits), false);
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
        Self { columns, ..plan.in_strips(strip, across) }
    }

    fn walk(self, pooling: &Pooling, dtype: DType, limits: &Limits) -> Self {
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
        match limits.cores.is_some() && walk::fits_plan(pooling, dtype, self) {
            true => Ok(()),
            false => Err(PlanError::NotFor { algorithm: self.algorithm }),
        }
    }

    /// The plan with vectors of no more lanes than a load of words has: those of a GPU's unit that holds
    /// much are registers of which few units could have as many.
    fn narrowed(self, limits: &Limits) -> Self {
        let words = limits.load_bytes / DType::F32.size();
        Self { lanes: if self.runs { self.lanes } else { self.lanes.min(words.max(1)) }, ..self }
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

    /// Refuses values that no kernel can run with.
    pub fn check(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        self.check_units(pooling, reduction, dtype, limits)?;
        if self.algorithm != Algorithm::Plane {
            self.check_lanes(pooling, dtype, limits, false)?;
        }
        if !(1..=LONGEST_STRIP).contains(&self.strip) {
            return Err(PlanError::Strip { strip: self.strip, limit: LONGEST_STRIP });
        }
        self.algorithm.check(pooling, reduction)?;
        match self.algorithm {
            Algorithm::Reduce => {
                self.check_teams()?;
                self.check_shared(reduction, limits)?;
            }
            Algorithm::Fused => self.check_tile(pooling, reduction, limits)?,
            Algorithm::Walk => self.check_walk(pooling, dtype, limits)?,
            Algorithm::Plane => {
                self.check_planes(pooling, reduction, dtype, limits, false)?;
                return self.check_words(pooling, dtype, false);
            }
            _ => {}
        }
        let taps = pooling.grid().taps();
        if self.unrolled && taps > MOST_UNROLLED_TAPS {
            return Err(PlanError::Unrolled { taps, limit: MOST_UNROLLED_TAPS });
        }
        Ok(())
    }

    /// Refuses values that no gradient can run with; those of the forward kernels do not matter.
    pub(super) fn check_backward(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        self.check_units(pooling, reduction, dtype, limits)?;
        if self.algorithm == Algorithm::Plane {
            self.check_planes(pooling, reduction, dtype, limits, true)?;
            return self.check_words(pooling, dtype, true);
        }
        let strip = Algorithm::Strip;
        if self.algorithm == strip && !backward_strip::fits(pooling, self.strip, self.columns) {
            return Err(PlanError::NotFor { algorithm: strip });
        }
        self.check_lanes(pooling, dtype, limits, true)
    }

    fn check_units(
        &self,
        pooling: &Pooling,
        reduction: Reduction,
        dtype: DType,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        check_problem(pooling, reduction, dtype, limits)?;
        if self.units == 0 || self.units > limits.units_per_cube {
            return Err(PlanError::Units { units: self.units, limit: limits.units_per_cube });
        }
        Ok(())
    }

    fn check_words(
        &self,
        pooling: &Pooling,
        dtype: DType,
        gradient: bool,
    ) -> Result<(), PlanError> {
        let tile = plane::Tile::new(pooling, dtype, gradient, self.shared_bytes);
        let widest = tile.map_or(1, |tile| tile.lanes);
        let lanes = self.lanes;
        match lanes.is_power_of_two() && lanes <= widest {
            true => Ok(()),
            false => Err(PlanError::Lanes { lanes, neighbours: widest, widest }),
        }
    }

    fn check_teams(&self) -> Result<(), PlanError> {
        let (team, parts, units) = (self.team, self.parts, self.units);
        let halves = team.is_power_of_two() && team <= units;
        match halves && (1..=reduce::MOST_PARTS).contains(&parts) {
            true => Ok(()),
            false => Err(PlanError::Teams { team, units, parts, limit: reduce::MOST_PARTS }),
        }
    }

    fn check_lanes(
        &self,
        pooling: &Pooling,
        dtype: DType,
        limits: &Limits,
        gradient: bool,
    ) -> Result<(), PlanError> {
        let (lanes, widest) = (self.lanes, widest_load(dtype, limits));
        let neighbours = match (self.across, self.algorithm) {
            (true, Algorithm::Reduce) if !reduce::is_flat(pooling) => 0,
            (true, Algorithm::Reduce) => pooling.grid().taps(),
            (true, _) => lanes_across(pooling, widest, gradient).unwrap_or(0),
            (false, _) => pixel_channels(pooling),
        };
        let divides = lanes.is_power_of_two() && neighbours.is_multiple_of(lanes);
        if !divides || neighbours == 0 || lanes > widest {
            return Err(PlanError::Lanes { lanes, neighbours, widest });
        }
        Ok(())
    }
}

impl Algorithm {
    /// Whether the kernel can compute the problem.
    fn fits(self, pooling: &Pooling, reduction: Reduction) -> bool {
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
            // By the units and the memory of the device too: `check_planes`.
            Self::Plane => pixel_channels(pooling) == 1,
        }
    }

    /// Refuses the kernel where it cannot.
    fn check(self, pooling: &Pooling, reduction: Reduction) -> Result<(), PlanError> {
        match self.fits(pooling, reduction) {
            true => Ok(()),
            false => Err(PlanError::NotFor { algorithm: self }),
        }
    }
}

/// Whether the loops over the taps are unrolled: few taps, and not those of a fitted window, which
/// follow from the extents and must not change the kernel. A norm visits its taps twice, by loops.
fn unrolls(pooling: &Pooling, reduction: Reduction) -> bool {
    let grid = pooling.grid();
    let norm = matches!(reduction, Reduction::Norm(_));
    grid.taps() <= UNROLLED_TAPS && !grid.is_fitted() && !norm
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

/// Whether the units of strips would read and write far from their neighbours: strips along the
/// width of single-element pixels, on a GPU.
fn scatters(pooling: &Pooling, limits: &Limits) -> bool {
    let along_width = outermost(pooling) == AXES - 1;
    limits.cores.is_none() && pixel_channels(pooling) == 1 && along_width
}

/// The most outputs of a strip.
const LONGEST_STRIP: usize = 16;

/// More taps than this and an unrolled kernel would take minutes to compile.
const MOST_UNROLLED_TAPS: usize = 1024;

/// The channels that lie together in memory for each pixel.
pub(crate) fn pixel_channels(pooling: &Pooling) -> usize {
    match pooling.layout() {
        Layout::ChannelsLast => pooling.input().channels(),
        Layout::ChannelsFirst => 1,
    }
}

/// The most lanes that may lie along the width: where a pixel is one element, vectors divide the
/// width of input and output, and no window there is empty. A gradient's vectors of windows may be
/// shorter than those of inputs.
fn lanes_across(pooling: &Pooling, widest: usize, gradient: bool) -> Option<usize> {
    let width = &pooling.grid().axes()[AXES - 1];
    let fits =
        pixel_channels(pooling) == 1 && outermost(pooling) < AXES - 1 && !width.may_be_empty();
    let windows = |lanes| if gradient { backward_strip::window_lanes(width, lanes) } else { lanes };
    let divides = |&lanes: &usize| width.output().is_multiple_of(windows(lanes));
    let widest = widest_divisor(width.input(), widest);
    let lanes = (1..=widest.ilog2()).rev().map(|power| 1usize << power).find(divides);
    lanes.filter(|_| fits)
}

/// The elements of the widest single load.
fn widest_load(dtype: DType, limits: &Limits) -> usize {
    (limits.load_bytes / dtype.size()).max(1)
}

/// The largest power of two that divides `n` and is at most `limit`.
pub(super) fn widest_divisor(n: usize, limit: usize) -> usize {
    let divisor = 1 << n.trailing_zeros().min(usize::BITS - 2);
    divisor.min(1 << limit.ilog2())
}

fn check_problem(
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    limits: &Limits,
) -> Result<(), PlanError> {
    match reduction {
        Reduction::Max(Output::Values) => {}
        Reduction::Max(Output::ValuesAndIndices(base)) => pooling.check_indices(base)?,
        Reduction::Average(divisor) => {
            divisor.check()?;
            if !dtype.is_float() {
                return Err(PlanError::AverageOfIntegers { dtype });
            }
        }
        Reduction::Norm(p) => {
            p.check()?;
            if !dtype.is_float() {
                return Err(PlanError::NormOfIntegers { dtype });
            }
        }
    }
    let elements = pooling.input().elements().max(pooling.output().elements());
    // Positions are 32-bit in the kernels.
    if elements > LIMIT {
        return Err(PlanError::TooManyElements { elements, limit: LIMIT });
    }
    let taps = pooling.grid().taps();
    // A divisor counts them in 32 bits.
    if taps > LIMIT {
        return Err(PlanError::TooManyTaps { taps, limit: LIMIT });
    }
    let widest = match reduction {
        Reduction::Max(Output::ValuesAndIndices(_)) => dtype.size().max(DType::I32.size()),
        _ => dtype.size(),
    };
    let bytes = elements as u64 * widest as u64;
    if bytes > limits.buffer_bytes {
        return Err(PlanError::BufferTooLarge { bytes, limit: limits.buffer_bytes });
    }
    Ok(())
}

/// Why a problem has no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The problem itself is refused.
    #[error(transparent)]
    Geometry(#[from] windowpane_geometry::Error),
    /// Averages are of floating-point numbers.
    #[error("average pooling was asked of {dtype}; convert to f64, f32, f16 or bf16 first")]
    AverageOfIntegers {
        /// The type asked for.
        dtype: DType,
    },
    /// Norms are floating-point numbers.
    #[error("Lp pooling was asked of {dtype}; convert to f64, f32, f16 or bf16 first")]
    NormOfIntegers {
        /// The type asked for.
        dtype: DType,
    },
    /// The device has no powers of this type.
    #[error(
        "this device has no powers of {dtype}; use an exponent of 1 or 2, another type, or `host`"
    )]
    NoPowers {
        /// The type asked for.
        dtype: DType,
    },
    /// A tensor has more elements than a kernel can count.
    #[error("a tensor has {elements} elements, a kernel counts to {limit}; split the batch")]
    TooManyElements {
        /// The elements.
        elements: usize,
        /// The most that are counted.
        limit: usize,
    },
    /// A window has more taps than a kernel can count.
    #[error("a window has {taps} taps, a kernel counts to {limit}; use `host`")]
    TooManyTaps {
        /// The taps.
        taps: usize,
        /// The most that are counted.
        limit: usize,
    },
    /// A buffer does not hold its tensor.
    #[error("a buffer of {found} bytes was given for a tensor of {needed}")]
    BufferTooSmall {
        /// The bytes of the tensor.
        needed: u64,
        /// The bytes of the buffer.
        found: u64,
    },
    /// Indices were given where there are none, or not where there are.
    #[error("a buffer for indices is {}", if *needed { "needed" } else { "not needed" })]
    Indices {
        /// Whether the reduction has indices.
        needed: bool,
    },
    /// A tensor is larger than the device can bind.
    #[error("a tensor takes {bytes} bytes, this device binds {limit} at most; split the batch")]
    BufferTooLarge {
        /// The bytes.
        bytes: u64,
        /// The most that can be bound.
        limit: u64,
    },
    /// The kernel cannot compute this problem.
    #[error("the {algorithm} kernel does not compute this problem; use direct, or none by name")]
    NotFor {
        /// The kernel asked for.
        algorithm: Algorithm,
    },
    /// A unit cannot have so many outputs.
    #[error("strips of {strip} outputs were asked for; a unit has 1 to {limit}")]
    Strip {
        /// The outputs asked for.
        strip: usize,
        /// The most that a unit has.
        limit: usize,
    },
    /// A window cannot be shared out so.
    #[error(
        "teams of {team} of {units} units and {parts} parts were asked for; a team is a power of two, \
         no more than a cube's units, and there are 1 to {limit} parts"
    )]
    Teams {
        /// The units of a team asked for.
        team: u32,
        /// The units of a cube.
        units: u32,
        /// The parts asked for.
        parts: usize,
        /// The most parts.
        limit: usize,
    },
    /// The lanes of a vector do not divide the elements that lie together.
    #[error(
        "{lanes} lanes were asked for; use a power of two that divides {neighbours}, {widest} at most"
    )]
    Lanes {
        /// The lanes asked for.
        lanes: usize,
        /// The elements that lie together: channels, or the width.
        neighbours: usize,
        /// The elements of the widest load.
        widest: usize,
    },
    /// A cube cannot have so many units.
    #[error("{units} units a cube were asked for; this device has 1 to {limit}")]
    Units {
        /// The units asked for.
        units: u32,
        /// The most that the device has.
        limit: u32,
    },
    /// A loop is too long to unroll.
    #[error("{taps} taps are too many to unroll, {limit} the most; leave the loop rolled")]
    Unrolled {
        /// The taps.
        taps: usize,
        /// The most that are unrolled.
        limit: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use windowpane_geometry::{Extents, Shape, Window};

    const GPU: Limits = Limits {
        load_bytes: 16,
        units_per_cube: 1024,
        cores: None,
        shared_bytes: 48 << 10,
        plane: Some(32),
        matrix: crate::Fragments { f16: None, bf16: None, tf32: None },
        holds_fragments: false,
        buffer_bytes: 1 << 32,
        hopper: None,
        llvm: true,
    };
    const PROCESSOR: Limits = Limits { load_bytes: 64, cores: Some(2), ..GPU };

    fn pooling(batch: usize, channels: usize, layout: Layout) -> Pooling {
        let shape = Shape::new(batch, channels, Extents::from([56, 56])).unwrap();
        Pooling::new(shape, &Window::new([3, 3]), layout).unwrap()
    }

    fn lanes(channels: usize, layout: Layout, dtype: DType, limits: &Limits) -> usize {
        let max = Reduction::Max(Output::Values);
        Plan::new(&pooling(1, channels, layout), max, dtype, limits).unwrap().lanes
    }

    #[test]
    fn lanes_are_as_wide_as_loads_and_channels_allow() {
        assert_eq!(lanes(64, Layout::ChannelsLast, DType::F32, &GPU), 4);
        assert_eq!(lanes(64, Layout::ChannelsLast, DType::BF16, &GPU), 8);
        assert_eq!(lanes(64, Layout::ChannelsLast, DType::F32, &PROCESSOR), 16);
        assert_eq!(lanes(6, Layout::ChannelsLast, DType::F32, &GPU), 2);
        assert_eq!(lanes(3, Layout::ChannelsLast, DType::F32, &GPU), 1);
        // Along the width, of which there are 56 in and 54 out.
        assert_eq!(lanes(64, Layout::ChannelsFirst, DType::F32, &GPU), 2);
    }

    #[test]
    fn teams_share_windows_of_many_taps() {
        let mean = Reduction::Average(Divisor::Valid);
        let plan = |batch, channels, extent: usize, layout| {
            let shape = Shape::new(batch, channels, Extents::from([extent; 2])).unwrap();
            let pooling = Pooling::new(shape, &Window::new([extent; 2]), layout).unwrap();
            let plan = Plan::new(&pooling, mean, DType::F32, &GPU).unwrap();
            assert_eq!(plan.check(&pooling, mean, DType::F32, &GPU), Ok(()));
            plan
        };
        // Neighbours along the plane, in vectors where they divide it.
        let deep = plan(256, 2048, 14, Layout::ChannelsFirst);
        assert_eq!((deep.algorithm, deep.lanes, deep.across), (Algorithm::Reduce, 4, true));
        assert_eq!((deep.team, deep.parts, deep.workspace), (8, 1, 0));
        let odd = plan(256, 2048, 7, Layout::ChannelsFirst);
        assert_eq!((odd.algorithm, odd.lanes), (Algorithm::Plane, 4));
        // Units enough: a unit has a window of its own.
        assert_eq!(plan(256, 2048, 7, Layout::ChannelsLast).algorithm, Algorithm::Strip);
        // One sample's channels are few units, and one channel is one window.
        let few = plan(1, 64, 256, Layout::ChannelsLast);
        assert_eq!((few.algorithm, few.lanes, few.team), (Algorithm::Reduce, 4, 8));
        assert_eq!((few.parts, few.workspace), (128, 128 * 64 * 4));
        let one = plan(1, 1, 1024, Layout::ChannelsLast);
        assert!(one.across && one.team == 128 && one.parts == 128, "{one:?}");
    }

    #[test]
    fn columns_that_share_most_of_their_taps_are_one_units() {
        let mean = Reduction::Average(Divisor::Valid);
        let columns = |kernel: usize, stride, channels, layout, limits: &Limits| {
            let shape = Shape::new(8, channels, Extents::from([20; 2])).unwrap();
            let window = Window::new([kernel; 2]).stride([stride; 2]).padding([kernel / 2; 2]);
            let pooling = Pooling::new(shape, &window, layout).unwrap();
            let plan = Plan::with(Algorithm::Strip, &pooling, mean, DType::F32, limits).unwrap();
            assert_eq!(plan.check(&pooling, mean, DType::F32, limits), Ok(()));
            plan.columns
        };
        let (first, last) = (Layout::ChannelsFirst, Layout::ChannelsLast);
        assert_eq!(columns(3, 1, 64, last, &GPU), 2);
        assert_eq!(columns(5, 1, 64, last, &GPU), 2);
        // Too little is shared; one vector is all channels; lanes are columns; threads have no warp.
        assert_eq!(columns(3, 2, 64, last, &GPU), 1);
        assert_eq!(columns(3, 1, 4, last, &GPU), 1);
        assert_eq!(columns(3, 1, 64, first, &GPU), 1);
        assert_eq!(columns(3, 1, 64, last, &PROCESSOR), 1);
    }

    #[test]
    fn planes_that_no_vector_divides_are_staged() {
        let mean = Reduction::Average(Divisor::Valid);
        let pooling = |extent: usize, kernel: usize, padding: usize| {
            let shape = Shape::new(64, 288, Extents::from([extent; 2])).unwrap();
            let window = Window::new([kernel; 2]).stride([1, 1]).padding([padding; 2]);
            Pooling::new(shape, &window, Layout::ChannelsFirst).unwrap()
        };
        let inception = pooling(35, 3, 1);
        for (dtype, lanes) in [(DType::F32, 2), (DType::BF16, 4)] {
            let plan = Plan::new(&inception, mean, dtype, &GPU).unwrap();
            assert_eq!((plan.algorithm, plan.lanes), (Algorithm::Plane, lanes));
            assert_eq!(plan.check(&inception, mean, dtype, &GPU), Ok(()));
            // A gradient's planes are four of either type.
            let plan = Plan::gradient(&inception, mean, dtype, &GPU).unwrap();
            assert_eq!((plan.algorithm, plan.lanes), (Algorithm::Plane, 4));
        }
        let algorithm = |pooling: &Pooling, limits: &Limits| {
            Plan::new(pooling, mean, DType::F32, limits).unwrap().algorithm
        };
        assert_eq!(algorithm(&pooling(7, 7, 0), &GPU), Algorithm::Plane);
        // Vectors divide the width; the planes are too large; there is no memory to share.
        assert_eq!(algorithm(&pooling(56, 3, 1), &GPU), Algorithm::Strip);
        assert_eq!(algorithm(&pooling(111, 3, 1), &GPU), Algorithm::Strip);
        let bare = Limits { shared_bytes: 0, ..GPU };
        assert_eq!(algorithm(&inception, &bare), Algorithm::Strip);
        assert_eq!(algorithm(&inception, &PROCESSOR), Algorithm::Strip);
    }

    #[test]
    fn both_axes_of_large_windows_are_walked_at_once() {
        let huge = |kernel: usize, layout| {
            let shape = Shape::new(8, 64, Extents::from([256; 2])).unwrap();
            let window = Window::new([kernel; 2]).stride([1, 1]).padding([kernel / 2; 2]);
            Pooling::new(shape, &window, layout).unwrap()
        };
        let max = Reduction::Max(Output::Values);
        let plan = |kernel, reduction, layout, limits: &Limits| {
            let pooling = huge(kernel, layout);
            let plan = Plan::new(&pooling, reduction, DType::BF16, limits).unwrap();
            assert_eq!(plan.check(&pooling, reduction, DType::BF16, limits), Ok(()));
            plan
        };
        // One tile of 256 columns: a unit for each that there is, however long the window.
        for kernel in [31, 63, 127] {
            let plan = plan(kernel, max, Layout::ChannelsFirst, &GPU);
            assert_eq!((plan.algorithm, plan.units, plan.workspace), (Algorithm::Fused, 256, 0));
        }
        let sliding = |reduction, layout, limits| {
            assert_eq!(plan(31, reduction, layout, limits).algorithm, Algorithm::Sliding);
        };
        let indexed = Reduction::Max(Output::ValuesAndIndices(IndexBase::Plane));
        sliding(indexed, Layout::ChannelsFirst, &GPU);
        sliding(max, Layout::ChannelsLast, &GPU);
        sliding(max, Layout::ChannelsFirst, &PROCESSOR);
        sliding(max, Layout::ChannelsFirst, &Limits { shared_bytes: 0, ..GPU });
    }

    #[test]
    fn threads_of_a_processor_walk_along_rows() {
        let max = Reduction::Max(Output::Values);
        let mean = Reduction::Average(Divisor::Valid);
        let indexed = Reduction::Max(Output::ValuesAndIndices(IndexBase::Plane));
        let plan = |kernel: usize, stride, reduction, layout, limits: &Limits| {
            let shape = Shape::new(8, 64, Extents::from([56; 2])).unwrap();
            let window = Window::new([kernel; 2]).stride([stride; 2]).padding([kernel / 2; 2]);
            let pooling = Pooling::new(shape, &window, layout).unwrap();
            let plan = Plan::new(&pooling, reduction, DType::F32, limits).unwrap();
            assert_eq!(plan.check(&pooling, reduction, DType::F32, limits), Ok(()));
            plan
        };
        let (first, last) = (Layout::ChannelsFirst, Layout::ChannelsLast);
        for (kernel, stride, reduction, lanes) in [(3, 2, max, 4), (3, 1, mean, 8), (13, 1, max, 8)]
        {
            let plan = plan(kernel, stride, reduction, first, &PROCESSOR);
            assert_eq!((plan.algorithm, plan.lanes, plan.strip), (Algorithm::Walk, lanes, 4));
        }
        // Indices need rows before columns, channels lie together, a GPU's units are neighbours; and long
        // windows cost less in blocks.
        for (kernel, reduction, layout, limits, algorithm) in [
            (3, indexed, first, &PROCESSOR, Algorithm::Strip),
            (3, max, last, &PROCESSOR, Algorithm::Strip),
            (3, max, first, &GPU, Algorithm::Strip),
            (31, max, first, &PROCESSOR, Algorithm::Sliding),
        ] {
            assert_eq!(plan(kernel, 1, reduction, layout, limits).algorithm, algorithm);
        }
    }

    #[test]
    fn a_problem_that_no_kernel_can_hold_is_refused() {
        let max = Reduction::Max(Output::Values);
        let large = pooling(1 << 20, 64, Layout::ChannelsLast);
        let plan = Plan::new(&large, max, DType::I8, &GPU);
        assert!(matches!(plan, Err(PlanError::TooManyElements { .. })), "{plan:?}");
        let small = Limits { buffer_bytes: 1 << 20, ..GPU };
        let plan = Plan::new(&pooling(8, 64, Layout::ChannelsLast), max, DType::F32, &small);
        assert!(matches!(plan, Err(PlanError::BufferTooLarge { .. })), "{plan:?}");
        let mean = Reduction::Average(Divisor::Padded);
        let plan = Plan::new(&pooling(8, 64, Layout::ChannelsLast), mean, DType::U8, &GPU);
        assert!(matches!(plan, Err(PlanError::AverageOfIntegers { .. })), "{plan:?}");
    }

    /// Every second row of three more than there are is as many as there are, and not the same.
    #[test]
    fn strides_over_padding_do_not_slide() {
        let shape = Shape::new(3, 8, Extents::from([4, 2])).unwrap();
        let window = Window::new([1, 2]).stride([2, 1]).padding([(1, 2), (0, 0)]);
        let pooling = Pooling::new(shape, &window, Layout::ChannelsFirst).unwrap();
        let max = Reduction::Max(Output::Values);
        let plan = Plan::with(Algorithm::Sliding, &pooling, max, DType::F64, &GPU);
        assert!(matches!(plan, Err(PlanError::NotFor { .. })), "{plan:?}");
    }

    #[test]
    fn an_override_that_cannot_run_is_refused() {
        let pooling = pooling(1, 6, Layout::ChannelsLast);
        let max = Reduction::Max(Output::Values);
        let plan = Plan::new(&pooling, max, DType::F32, &GPU).unwrap();
        assert_eq!(plan.check(&pooling, max, DType::F32, &GPU), Ok(()));
        for lanes in [0, 3, 4] {
            assert!(
                Plan { lanes, ..plan }.check(&pooling, max, DType::F32, &GPU).is_err(),
                "{lanes} lanes"
            );
        }
        for units in [0, 1025] {
            assert!(
                Plan { units, ..plan }.check(&pooling, max, DType::F32, &GPU).is_err(),
                "{units} units"
            );
        }
    }
}
