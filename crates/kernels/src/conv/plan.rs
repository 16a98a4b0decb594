//! The choice of a kernel, a pure function of the problem and the device's limits.

use core::fmt;

use windowpane_geometry::{AXES, Convolution, DType, LIMIT, Layout, Precision, Tile, Tiling};

use super::gather::{Gather, columns, inner, phases};
use super::pack::Packing;
use super::{banded, depthwise, grouped, hopper, matrix, tiled};
use crate::dtype::accumulator;
use crate::{Fragment, Fragments, Limits};

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// The output.
    Forward,
    /// The gradient with respect to the input.
    Data,
    /// The gradient with respect to the filters.
    Filter,
    /// The gradient with respect to the bias.
    Bias,
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Forward => "forward",
            Self::Data => "data gradient",
            Self::Filter => "filter gradient",
            Self::Bias => "bias gradient",
        })
    }
}

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

/// The units of a cube on a GPU, where one does not work with another.
const UNITS: u32 = 256;

/// The units that keep a GPU busy, and the fewest terms that are worth a unit.
const BUSY: usize = 1 << 16;
const TERMS: usize = 64;

impl Plan {
    /// Chooses the kernel of a problem, but for what is wished.
    pub fn new(
        conv: &Convolution,
        request: Request,
        wish: Wish,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        check_problem(conv, request, limits)?;
        let tiled = wish.tiling != Tiling::default();
        let candidates = Algorithm::LADDER.into_iter().filter(|algorithm| {
            wish.algorithm.map_or_else(
                || algorithm.pays(conv, request, limits),
                |wished| wished == *algorithm,
            ) && !(tiled && *algorithm == Algorithm::Direct)
        });
        let algorithm =
            candidates.into_iter().find(|algorithm| algorithm.can(conv, request, limits));
        let Some(algorithm) = algorithm else {
            return Err(PlanError::NoKernel { algorithm: wish.algorithm });
        };
        let tile = algorithm.tile(conv, request, limits).map(|tile| wish.tiling.over(tile));
        algorithm.check(tile, conv, request, limits)?;
        let plan = Self {
            algorithm,
            tile,
            matrix: match algorithm {
                Algorithm::Matrix => fragment(request, limits),
                Algorithm::Banded => banded_fragment(request, limits),
                _ => None,
            },
            units: algorithm.units(conv, request, tile, limits),
            runs: limits.cores.is_some(),
            splits: match tile {
                Some(tile) if algorithm == Algorithm::Hopper => {
                    hopper::plan::splits(conv, request, &tile, limits)
                }
                Some(tile) if algorithm.is_in_blocks() => tiled_splits(conv, request, &tile),
                _ => splits(algorithm, conv, request.pass, limits),
            },
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
        self.check_counts(conv, request, limits)
    }

    /// Refuses units, parts and memory that the device has not, of a kernel and a tile that it has.
    fn check_counts(
        &self,
        conv: &Convolution,
        request: Request,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        if self.units == 0 || self.units > limits.units_per_cube {
            return Err(PlanError::Units { units: self.units, limit: limits.units_per_cube });
        }
        let most = most_splits(self.algorithm, conv, request.pass);
        if self.splits == 0 || self.splits > most {
            return Err(PlanError::Splits { splits: self.splits, most });
        }
        let bytes = self.workspace(conv, request) as u64;
        if bytes > limits.buffer_bytes {
            return Err(PlanError::BufferTooLarge { bytes, limit: limits.buffer_bytes });
        }
        Ok(())
    }

    /// The bytes of device memory that the launch takes beside its tensors.
    pub fn workspace(&self, conv: &Convolution, request: Request) -> usize {
        let parts = match self.cuts(request.pass, request.dtype) {
            false => 0,
            true => self.splits * results(conv, request.pass),
        };
        let packed = match (self.algorithm, self.tile) {
            (Algorithm::Wide, Some(tile)) if request.pass != Pass::Filter => {
                Packing::new(conv, request.pass, tile.elems_per_thread as usize).elements()
            }
            (Algorithm::Depthwise, Some(tile)) => {
                depthwise::packing(conv, request.pass, tile.elems_per_thread as usize).elements()
            }
            (Algorithm::Grouped, _) => grouped::packing(conv, request.pass).elements(),
            _ => 0,
        };
        let laid = match (self.algorithm, self.tile) {
            (Algorithm::Hopper, Some(tile)) => hopper::plan::workspace(conv, request, &tile),
            _ => 0,
        };
        (parts + packed) * accumulator(request.dtype).size() + laid
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

impl Algorithm {
    /// Every algorithm, the fastest first.
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

    /// Whether it computes blocks of results, each by cubes of their own.
    fn is_in_blocks(self) -> bool {
        matches!(self, Self::Tiled | Self::Matrix)
    }

    /// Whether a plan may choose it unasked.
    fn pays(self, conv: &Convolution, request: Request, limits: &Limits) -> bool {
        match self {
            Self::Banded => banded_fragment(request, limits).is_some(),
            Self::Hopper => hopper::plan::pays(conv, request),
            _ => true,
        }
    }

    /// Whether there is such a kernel for a problem and a device.
    fn can(self, conv: &Convolution, request: Request, limits: &Limits) -> bool {
        let rounds = matches!(self, Self::Hopper | Self::Matrix);
        if request.precision == Precision::Tf32 && !rounds {
            return request.pass == Pass::Bias;
        }
        match self {
            Self::Hopper => {
                is_product(conv, request, limits) && hopper::plan::can(conv, request, limits)
            }
            // The same product as the tiled one's, on other units.
            Self::Matrix => {
                is_product(conv, request, limits) && matrix_tile(conv, request, limits).is_some()
            }
            Self::Direct => true,
            Self::Banded => {
                limits.cores.is_none()
                    && conv.input().batch() <= MOST_CUBES_Z
                    && banded::can(conv, request.pass, request.dtype)
                    && banded_tile(conv, request, limits).is_some()
            }
            Self::Depthwise => {
                let one_each = conv.filter().channels() == 1
                    && conv.filter().count() == conv.input().channels();
                one_each
                    && matches!(request.pass, Pass::Forward | Pass::Data)
                    && conv.grid().axes()[AXES - 1].kernel() <= MOST_TAPS
                    && phases(conv, request.pass).iter().product::<usize>() <= MOST_PHASES
            }
            Self::Grouped => is_grouped(conv, request, limits),
            Self::Tiled => {
                is_product(conv, request, limits) && tiled_tile(conv, request, limits).is_some()
            }
            Self::Wide => {
                if request.pass == Pass::Filter {
                    return limits.cores.is_some();
                }
                let gathers = matches!(request.pass, Pass::Forward | Pass::Data);
                let lanes = widest(request.dtype, limits);
                let packed = Packing::new(conv, request.pass, lanes).elements();
                limits.cores.is_some()
                    && gathers
                    && packed <= LIMIT
                    && phases(conv, request.pass).iter().product::<usize>() <= MOST_PHASES
            }
        }
    }

    /// The tile that suits a problem and a device.
    fn tile(self, conv: &Convolution, request: Request, limits: &Limits) -> Option<Tile> {
        match self {
            Self::Direct => None,
            Self::Banded => banded_tile(conv, request, limits),
            Self::Depthwise => Some(depthwise_tile(conv, request, limits)),
            Self::Grouped => Some(GROUPED_TILE),
            Self::Hopper => hopper::plan::tile(conv, request, limits),
            Self::Matrix => matrix_tile(conv, request, limits),
            Self::Tiled => tiled_tile(conv, request, limits),
            Self::Wide => Some(wide_tile(conv, request, limits)),
        }
    }

    /// Refuses a tile that there is no such kernel for.
    fn check(
        self,
        tile: Option<Tile>,
        conv: &Convolution,
        request: Request,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        match (self, tile) {
            (Self::Direct, None) => Ok(()),
            (Self::Banded, Some(tile)) => check_banded(&tile, conv, request, limits),
            (Self::Depthwise, Some(tile)) => check_depthwise(&tile, conv, request, limits),
            (Self::Grouped, Some(tile)) => check_grouped(&tile, request, limits),
            (Self::Hopper, Some(tile)) => hopper::plan::check(&tile, conv, request, limits),
            (Self::Matrix, Some(tile)) => check_matrix(&tile, request, limits),
            (Self::Tiled, Some(tile)) => check_tiled(&tile, request, limits),
            (Self::Wide, Some(tile)) => {
                check_wide(&tile, request, limits)?;
                let (lanes, channels) = (tile.elems_per_thread, together(conv));
                match request.pass == Pass::Filter && !channels.is_multiple_of(lanes as usize) {
                    true => Err(PlanError::Channels { lanes, channels }),
                    false => Ok(()),
                }
            }
            _ => Err(PlanError::Untiled { algorithm: self }),
        }
    }

    /// The units of a cube whose tile is one that there is a kernel for.
    fn units(
        self,
        conv: &Convolution,
        request: Request,
        tile: Option<Tile>,
        limits: &Limits,
    ) -> u32 {
        if let (Self::Matrix, Some(tile), Some((fragment, plane))) =
            (self, tile, fragment(request, limits))
        {
            return matrix::units(&tile, fragment, plane);
        }
        if let (Self::Banded, Some(tile)) = (self, tile) {
            return banded::units(conv, request.pass, &tile);
        }
        if let (Self::Hopper, Some(tile)) = (self, tile) {
            return hopper::plan::units(&tile);
        }
        if let (Self::Tiled, Some(tile)) = (self, tile) {
            return tiled::units(&tile);
        }
        let units = match self {
            Self::Depthwise | Self::Grouped => UNITS_OF_RUNS,
            _ => UNITS,
        };
        limits.cores.unwrap_or(units.min(limits.units_per_cube))
    }
}

/// The cubes that every device takes on the second and the third axis of a launch.
pub(super) const MOST_CUBES_Z: usize = 65535;

/// The most cubes that a long sum is cut up for, and the fewest blocks of terms that are worth one.
const BUSY_CUBES: usize = 1024;
const BLOCKS_A_PART: usize = 8;

/// The cubes of a launch forward, or for the data, that leave enough of a device idle for sums to be cut until
/// there are so many.
const FEW_CUBES: usize = 128;

/// A block as wide as the filters are many, and the windows that keep its units busy.
fn tiled_tile(conv: &Convolution, request: Request, limits: &Limits) -> Option<Tile> {
    let columns = columns(conv, request.pass);
    let wide = accumulator(request.dtype).size() > 4;
    let (block_m, block_n, ratio_m, ratio_n) = match columns {
        _ if wide => (64, 64, 1, 1),
        65.. => (128, 128, 2, 2),
        33.. => (128, 64, 2, 2),
        17.. => (128, 32, 2, 1),
        _ => (128, 16, 2, 1),
    };
    let elems_per_thread = widest_load(request.dtype, limits) as u32;
    let tile =
        Tile { block_m, block_n, block_k: 16, ratio_m, ratio_n, elems_per_thread, stages: 2 };
    smaller(tile).into_iter().find(|tile| check_tiled(tile, request, limits).is_ok())
}

/// A tile and what may take its place where a device has too little shared memory for it.
fn smaller(tile: Tile) -> [Tile; 4] {
    let single = Tile { stages: 1, ..tile };
    let low = Tile { block_m: 64, ratio_m: (tile.ratio_m / 2).max(1), ..single };
    let narrow = Tile { block_n: low.block_n.min(32), ratio_n: 1, ..low };
    [tile, single, low, narrow]
}

fn check_tiled(tile: &Tile, request: Request, limits: &Limits) -> Result<(), PlanError> {
    let widest = widest_load(request.dtype, limits) as u32;
    let lanes = tile.elems_per_thread;
    if !lanes.is_power_of_two() || lanes > widest {
        return Err(PlanError::Lanes { lanes, widest });
    }
    check_pieces(tile)?;
    let (bytes, limit) = (tiled::shared_bytes(tile, request.dtype), limits.shared_bytes);
    if bytes > limit {
        return Err(PlanError::Shared { bytes, limit });
    }
    let (units, limit) = (tiled::units(tile), limits.units_per_cube);
    if units > limit {
        return Err(PlanError::Units { units, limit });
    }
    Ok(())
}

/// Refuses blocks that are not made of whole pieces, which are 4 by 4 sums.
fn check_pieces(tile: &Tile) -> Result<(), PlanError> {
    let sums = tile.ratio_m.saturating_mul(tile.ratio_n);
    if sums == 0 || sums > MOST_PIECES {
        return Err(PlanError::Sums { sums, limit: MOST_PIECES });
    }
    for (name, block, ratio) in
        [("block_m", tile.block_m, tile.ratio_m), ("block_n", tile.block_n, tile.ratio_n)]
    {
        let of = ratio.saturating_mul(4);
        if block == 0 || !block.is_multiple_of(of) || block > MOST_BLOCK {
            return Err(PlanError::Block { name, block, of, limit: MOST_BLOCK });
        }
    }
    let block = tile.block_k;
    let lanes = tile.elems_per_thread;
    if block == 0 || !block.is_multiple_of(lanes) || block > MOST_BLOCK {
        return Err(PlanError::Block { name: "block_k", block, of: lanes, limit: MOST_BLOCK });
    }
    if !(1..=2).contains(&tile.stages) {
        return Err(PlanError::Stages { stages: tile.stages });
    }
    Ok(())
}

/// The fragments that a request's products are made of, where the device has matrix units for them,
/// and the units of a plane.
fn fragment(request: Request, limits: &Limits) -> Option<(Fragment, u32)> {
    let Fragments { f16, bf16, tf32 } = limits.matrix;
    let fragment = match (request.dtype, request.precision) {
        (DType::F16, Precision::Strict) => f16,
        (DType::BF16, Precision::Strict) => bf16,
        (DType::F32, Precision::Tf32) => tf32,
        _ => None,
    };
    fragment.zip(limits.plane)
}

/// A block as wide as the filters are many: the largest that a device has room for.
fn matrix_tile(conv: &Convolution, request: Request, limits: &Limits) -> Option<Tile> {
    let (fragment, _) = fragment(request, limits)?;
    let columns = columns(conv, request.pass);
    let elems_per_thread = widest_factor_load(request.dtype, limits);
    // As many bytes of terms whatever their type.
    let block_k = (64 / request.dtype.size() as u32).next_multiple_of(fragment.k);
    let tile = |block_n, ratio_m, ratio_n| {
        let block_m = 128;
        Tile { block_m, block_n, block_k, ratio_m, ratio_n, elems_per_thread, stages: 2 }
    };
    let plain = match columns {
        65.. => tile(128, 4, 2),
        33.. => tile(64, 2, 2),
        17.. => tile(32, 2, 1),
        _ => tile(16, 2, 1),
    };
    // Planes of 4 by 4 fragments read two thirds as much of shared memory for a product, and in blocks twice
    // as wide lines come half as often. They take all registers there are: short loads would need more of
    // them, and through a shading language they are slow (f16 on an H200, by Vulkan: 32 TFLOP/s, and 175
    // with 4 by 2).
    let wide = Tile { block_k: 2 * block_k, ..tile(256, 4, 4) };
    let whole = |count: usize| count.is_multiple_of(elems_per_thread as usize);
    let pays = limits.llvm
        && request.dtype.size() == 2
        && conv.layout() == Layout::ChannelsLast
        && whole(inner(conv, request.pass))
        && whole(columns);
    let large = [(columns > 128, wide), (columns > 64, tile(128, 4, 4))];
    let large = large.into_iter().filter_map(|(filled, tile)| (pays && filled).then_some(tile));
    large.chain(smaller(plain)).find(|tile| check_matrix(tile, request, limits).is_ok())
}

/// Refuses blocks that are not made of whole fragments.
fn matrix_blocks(tile: &Tile, fragment: Fragment) -> Result<(), PlanError> {
    let sums = tile.ratio_m.saturating_mul(tile.ratio_n);
    if sums == 0 || sums > MOST_FRAGMENTS {
        return Err(PlanError::Sums { sums, limit: MOST_FRAGMENTS });
    }
    for (name, block, of) in [
        ("block_m", tile.block_m, tile.ratio_m.saturating_mul(fragment.m)),
        ("block_n", tile.block_n, tile.ratio_n.saturating_mul(fragment.n)),
        ("block_k", tile.block_k, fragment.k),
        ("block_k", tile.block_k, tile.elems_per_thread),
    ] {
        if block == 0 || !block.is_multiple_of(of) || block > MOST_BLOCK {
            return Err(PlanError::Block { name, block, of, limit: MOST_BLOCK });
        }
    }
    Ok(())
}

/// The most fragments of sums that a plane's registers hold.
const MOST_FRAGMENTS: u32 = 16;

fn check_matrix(tile: &Tile, request: Request, limits: &Limits) -> Result<(), PlanError> {
    let Some((fragment, plane)) = fragment(request, limits) else {
        return Err(PlanError::NoKernel { algorithm: Some(Algorithm::Matrix) });
    };
    let widest = widest_factor_load(request.dtype, limits);
    let lanes = tile.elems_per_thread;
    if !lanes.is_power_of_two() || lanes > widest {
        return Err(PlanError::Lanes { lanes, widest });
    }
    matrix_blocks(tile, fragment)?;
    if !(1..=2).contains(&tile.stages) {
        return Err(PlanError::Stages { stages: tile.stages });
    }
    let bytes = matrix::shared_bytes(tile, fragment, plane, request.dtype);
    if bytes > limits.shared_bytes {
        return Err(PlanError::Shared { bytes, limit: limits.shared_bytes });
    }
    let (units, limit) = (matrix::units(tile, fragment, plane), limits.units_per_cube);
    if units > limit {
        return Err(PlanError::Units { units, limit });
    }
    Ok(())
}

/// The most 4 by 4 pieces that a unit's registers hold, and the largest block that is compiled.
const MOST_PIECES: u32 = 8;
const MOST_BLOCK: u32 = 256;

/// Whether a GPU computes a problem as a product of matrices.
fn is_product(conv: &Convolution, request: Request, limits: &Limits) -> bool {
    // A processor's barriers cost more than they bring.
    limits.cores.is_none()
        && request.pass != Pass::Bias
        && conv.groups() <= MOST_CUBES_Z
        && columns(conv, request.pass) <= MOST_CUBES_Z
        && phases(conv, request.pass).iter().product::<usize>() <= MOST_PHASES
}

/// More phases than this, each a launch, and a data gradient is computed directly.
const MOST_PHASES: usize = 256;

/// The taps along the width that a depthwise kernel unrolls.
const MOST_TAPS: usize = 32;

/// The units of a cube of a GPU that have so many rows each: their registers are many.
const UNITS_OF_RUNS: u32 = 128;

/// The tile of groups of few channels.
const GROUPED_TILE: Tile = Tile {
    block_m: 8,
    block_n: grouped::LANES as u32,
    block_k: 1,
    ratio_m: 8,
    ratio_n: 1,
    elems_per_thread: grouped::LANES as u32,
    stages: 1,
};

/// Whether a GPU computes a problem a vector of a group's filters at a time: where a block of a product
/// would be wider than the group's columns by half or more, and for matrix units, which are so much
/// faster, by still more.
fn is_grouped(conv: &Convolution, request: Request, limits: &Limits) -> bool {
    let most = if fragment(request, limits).is_some() { 8 } else { 16 };
    let few = |count: usize| count.is_multiple_of(grouped::LANES) && (1..=most).contains(&count);
    limits.cores.is_none()
        && conv.groups() > 1
        && conv.layout() == Layout::ChannelsLast
        && matches!(request.pass, Pass::Forward | Pass::Data)
        && few(inner(conv, request.pass))
        && few(columns(conv, request.pass))
        && widest_load(request.dtype, limits) == grouped::LANES
        && conv.grid().axes()[AXES - 1].kernel() <= MOST_TAPS
        && phases(conv, request.pass).iter().product::<usize>() <= MOST_PHASES
}

fn check_grouped(tile: &Tile, request: Request, limits: &Limits) -> Result<(), PlanError> {
    check_wide(tile, request, limits)?;
    let lanes = grouped::LANES as u32;
    let numbers =
        [("elems_per_thread", tile.elems_per_thread, lanes), ("ratio_n", tile.ratio_n, 1)];
    for (name, found, expected) in numbers {
        if found != expected {
            return Err(PlanError::Tile { name, found, expected });
        }
    }
    Ok(())
}

/// The fragment of a request, where a plane's units can hold such as bands are laid out for.
fn banded_fragment(request: Request, limits: &Limits) -> Option<(Fragment, u32)> {
    let held = |plane| limits.holds_fragments && plane == banded::PLANE;
    let whole =
        request.dtype.size() == 2 && widest_factor_load(request.dtype, limits) == banded::CHUNK;
    fragment(request, limits).filter(|&(_, plane)| whole && held(plane))
}

/// A walk a plane: 56 windows wide where channels are single, and 14 where they are 8; with 64 bytes of a
/// pixel, and as many groups a plane as leave 8 planes; smaller where shared memory is small, or
/// channels are few.
fn banded_tile(conv: &Convolution, request: Request, limits: &Limits) -> Option<Tile> {
    let groups = banded::chunk_groups(conv, request.pass);
    // Single channels are walked down in two halves.
    let lines = if groups == banded::CHUNK { 7 } else { 14 };
    let tile = |lines: u32, chunks: u32| Tile {
        block_m: banded::block(conv, request.pass, lines),
        block_n: banded::CHUNK * chunks,
        block_k: 16,
        ratio_m: lines,
        ratio_n: (groups * chunks / 8).max(1),
        elems_per_thread: widest_factor_load(request.dtype, limits),
        stages: 1,
    };
    [(lines, 4), (lines, 2), (lines, 1), (4, 1)]
        .map(|(lines, chunks)| tile(lines, chunks))
        .into_iter()
        .find(|tile| check_banded(tile, conv, request, limits).is_ok())
}

fn check_banded(
    tile: &Tile,
    conv: &Convolution,
    request: Request,
    limits: &Limits,
) -> Result<(), PlanError> {
    let numbers = [
        ("block_k", tile.block_k, 16),
        ("elems_per_thread", tile.elems_per_thread, widest_factor_load(request.dtype, limits)),
        ("stages", tile.stages, 1),
    ];
    for (name, found, expected) in numbers {
        if found != expected {
            return Err(PlanError::Tile { name, found, expected });
        }
    }
    let sums = tile.ratio_m;
    if !banded::WALKS.contains(&sums) {
        let [.., limit] = banded::WALKS;
        return Err(PlanError::Sums { sums, limit });
    }
    let walk = banded::block(conv, request.pass, sums);
    let blocks =
        [("block_m", tile.block_m, walk, 8 * walk), ("block_n", tile.block_n, 8, MOST_BLOCK)];
    for (name, block, of, limit) in blocks {
        if block == 0 || !block.is_multiple_of(of) || block > limit {
            return Err(PlanError::Block { name, block, of, limit });
        }
    }
    let groups = banded::chunk_groups(conv, request.pass) * tile.block_n / banded::CHUNK;
    if tile.ratio_n == 0 || !groups.is_multiple_of(tile.ratio_n) {
        return Err(PlanError::Block {
            name: "ratio_n",
            block: tile.ratio_n,
            of: 1,
            limit: groups,
        });
    }
    let channels = conv.input().channels();
    if !channels.is_multiple_of(tile.block_n as usize) {
        return Err(PlanError::Channels { lanes: tile.block_n, channels });
    }
    let (units, limit) = (banded::units(conv, request.pass, tile), limits.units_per_cube);
    if units > limit {
        return Err(PlanError::Units { units, limit });
    }
    let bytes = match banded_fragment(request, limits) {
        Some(_) => banded::shared_bytes(conv, request.pass, tile, request.dtype),
        None => 0,
    };
    match bytes > limits.shared_bytes {
        true => Err(PlanError::Shared { bytes, limit: limits.shared_bytes }),
        false => Ok(()),
    }
}

/// As many rows as leave a processor's registers room for the weights of a row of taps. On a GPU, where
/// neighbours in a plane are channels, a block of rows and lines; where they are not, a small one, so that
/// what they load lies nearer.
fn depthwise_tile(conv: &Convolution, request: Request, limits: &Limits) -> Tile {
    let widest = match limits.cores {
        Some(_) => widest(request.dtype, limits),
        None => widest_load(request.dtype, limits),
    };
    let lanes = 1 << depthwise::neighbours(conv).trailing_zeros().min(widest.ilog2());
    let registers: usize = if limits.load_bytes >= 64 { 30 } else { 14 };
    let taps = conv.grid().axes()[AXES - 1].kernel();
    let (rows, lines) = match (limits.cores, conv.layout()) {
        // Lines of images are most often 7 vectors long.
        (Some(_), Layout::ChannelsFirst) if lanes > 1 => (if registers > 14 { 7 } else { 4 }, 2),
        (Some(_), _) => (registers.saturating_sub(taps + 1).clamp(4, MOST_ROWS), 1),
        (None, Layout::ChannelsLast) => (8, 2),
        (None, Layout::ChannelsFirst) => (4, 2),
    };
    Tile {
        block_m: rows as u32,
        block_n: lines * lanes,
        block_k: 1,
        ratio_m: rows as u32,
        ratio_n: lines,
        elems_per_thread: lanes,
        stages: 1,
    }
}

fn check_depthwise(
    tile: &Tile,
    conv: &Convolution,
    request: Request,
    limits: &Limits,
) -> Result<(), PlanError> {
    check_wide(tile, request, limits)?;
    let lanes = tile.elems_per_thread as usize;
    let channels = depthwise::neighbours(conv);
    match channels.is_multiple_of(lanes) {
        true => Ok(()),
        false => Err(PlanError::Channels { lanes: tile.elems_per_thread, channels }),
    }
}

/// The elements of a GPU's load: not more than the vectors that every language has.
fn widest_load(dtype: DType, limits: &Limits) -> usize {
    (limits.load_bytes / dtype.size()).clamp(1, 4)
}

/// The factors that a load for matrix units may bring: four where vectors of more are taken apart
/// for a shading language, which copies of them do not survive.
fn widest_factor_load(dtype: DType, limits: &Limits) -> u32 {
    let most = if limits.llvm { 8 } else { 4 };
    (limits.load_bytes / dtype.size()).clamp(1, most) as u32
}

/// The sums that a vector register holds.
fn widest(dtype: DType, limits: &Limits) -> usize {
    (limits.load_bytes / accumulator(dtype).size()).max(1)
}

/// As many rows by vectors of sums as a processor's registers hold, with a term's weights and the
/// number that they are multiplied with beside them.
fn wide_tile(conv: &Convolution, request: Request, limits: &Limits) -> Tile {
    let columns = columns(conv, request.pass);
    let lanes = widest(request.dtype, limits).min(match request.pass {
        // Vectors of the output's gradient, as it lies.
        Pass::Filter => 1 << together(conv).trailing_zeros().min(30),
        _ => columns.next_power_of_two(),
    });
    // 64-byte vectors come with 32 registers, shorter ones with 16.
    let (registers, most) = if limits.load_bytes >= 64 { (31, 4) } else { (15, 2) };
    let vectors = columns.div_ceil(lanes).min(most);
    let rows = ((registers - 1 - vectors) / vectors).min(MOST_ROWS);
    Tile {
        block_m: rows as u32,
        block_n: (vectors * lanes) as u32,
        block_k: 1,
        ratio_m: rows as u32,
        ratio_n: vectors as u32,
        elems_per_thread: lanes as u32,
        stages: 1,
    }
}

/// The filters of a group that lie together in memory.
fn together(conv: &Convolution) -> usize {
    match conv.layout() {
        Layout::ChannelsLast => conv.filter().count() / conv.groups(),
        Layout::ChannelsFirst => 1,
    }
}

/// More rows than this hide no more latency.
const MOST_ROWS: usize = 14;

/// The most vectors of sums that a unit is compiled for.
const MOST_SUMS: u32 = 64;

fn check_wide(tile: &Tile, request: Request, limits: &Limits) -> Result<(), PlanError> {
    let lanes = tile.elems_per_thread;
    let widest = match limits.cores {
        Some(_) => widest(request.dtype, limits),
        None => widest_load(request.dtype, limits),
    } as u32;
    let must_be = |name, found: u32, expected: u32| match found == expected {
        true => Ok(()),
        false => Err(PlanError::Tile { name, found, expected }),
    };
    if !lanes.is_power_of_two() || lanes > widest {
        return Err(PlanError::Lanes { lanes, widest });
    }
    let sums = tile.ratio_m.saturating_mul(tile.ratio_n);
    if sums == 0 || sums > MOST_SUMS {
        return Err(PlanError::Sums { sums, limit: MOST_SUMS });
    }
    must_be("block_m", tile.block_m, tile.ratio_m)?;
    must_be("block_n", tile.block_n, tile.ratio_n.saturating_mul(lanes))?;
    must_be("block_k", tile.block_k, 1)?;
    must_be("stages", tile.stages, 1)
}

/// The elements that a pass computes.
pub(super) fn results(conv: &Convolution, pass: Pass) -> usize {
    match pass {
        Pass::Forward => conv.output().elements(),
        Pass::Data => conv.input().elements(),
        Pass::Filter => conv.filter().elements(),
        Pass::Bias => conv.filter().count(),
    }
}

/// The windows of all samples: the terms of each sum of the filter's and the bias's gradient.
pub(super) fn windows(conv: &Convolution) -> usize {
    conv.output().batch() * conv.output().plane()
}

/// Cuts few long sums into as many parts as keep the device busy.
fn splits(algorithm: Algorithm, conv: &Convolution, pass: Pass, limits: &Limits) -> usize {
    let busy = limits.cores.map_or(BUSY, |cores| cores as usize);
    let wanted = busy.div_ceil(results(conv, pass).max(1));
    wanted.min(windows(conv) / TERMS).clamp(1, most_splits(algorithm, conv, pass))
}

/// Cuts the sums of few blocks, for as many cubes as keep the device busy: of the filters' gradient, whose
/// sums are long, into many parts; else only where most of the device would be idle, for parts are written,
/// read and finished by a kernel more.
fn tiled_splits(conv: &Convolution, request: Request, tile: &Tile) -> usize {
    let (lines, terms) = longest_product(conv, request.pass);
    let blocks = lines.div_ceil(tile.block_m as usize).max(1)
        * columns(conv, request.pass).div_ceil(tile.block_n as usize)
        * conv.groups();
    let wanted = match request.pass {
        Pass::Filter => BUSY_CUBES.div_ceil(blocks),
        _ => FEW_CUBES / blocks,
    };
    let most = most_splits(Algorithm::Tiled, conv, request.pass).min(MOST_CUBES_Z / conv.groups());
    let worth = terms / (tile.block_k as usize * BLOCKS_A_PART);
    wanted.min(worth).clamp(1, most.max(1))
}

/// The lines of a product and the terms of its sums: of a gradient of the data, which is several products,
/// of that with the most terms.
fn longest_product(conv: &Convolution, pass: Pass) -> (usize, usize) {
    if pass == Pass::Filter {
        return (conv.filter().taps() * conv.filter().channels(), windows(conv));
    }
    let sizes = Gather::all(conv, pass).map(|product| (product.rows(conv), product.terms(conv)));
    sizes.max_by_key(|(_, terms)| *terms).unwrap_or_default()
}

/// The most parts whose number a kernel can count.
fn most_splits(algorithm: Algorithm, conv: &Convolution, pass: Pass) -> usize {
    let terms = match (algorithm, pass) {
        (Algorithm::Wide, _) => 1,
        (_, Pass::Filter | Pass::Bias) => windows(conv),
        (_, Pass::Forward | Pass::Data) if algorithm.is_in_blocks() => {
            longest_product(conv, pass).1
        }
        (_, Pass::Forward | Pass::Data) => 1,
    };
    (LIMIT / results(conv, pass).max(1)).min(terms).max(1)
}

fn check_problem(conv: &Convolution, request: Request, limits: &Limits) -> Result<(), PlanError> {
    let Request { dtype, precision, .. } = request;
    if !dtype.is_float() {
        return Err(PlanError::Integers { dtype });
    }
    if precision == Precision::Tf32 {
        if dtype != DType::F32 {
            return Err(PlanError::Tf32OfOther { dtype });
        }
        if fragment(request, limits).is_none() {
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

/// Why a problem has no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Convolutions are of floating-point numbers.
    #[error("a convolution was asked of {dtype}; convert to f64, f32, f16 or bf16 first")]
    Integers {
        /// The type asked for.
        dtype: DType,
    },
    /// The device has no matrix units that round to tf32.
    #[error("tf32 was asked for and this device has none; leave the precision strict")]
    NoTf32,
    /// Only f32 has a coarser precision.
    #[error("tf32 was asked of {dtype}; it is a precision of f32, leave it strict")]
    Tf32OfOther {
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
    /// A tensor is larger than the device can bind.
    #[error("a tensor takes {bytes} bytes, this device binds {limit} at most; split the batch")]
    BufferTooLarge {
        /// The bytes.
        bytes: u64,
        /// The most that can be bound.
        limit: u64,
    },
    /// A buffer does not hold its tensor.
    #[error("a buffer of {found} bytes was given for a tensor of {needed}")]
    BufferTooSmall {
        /// The bytes of the tensor.
        needed: u64,
        /// The bytes of the buffer.
        found: u64,
    },
    /// A gradient is a sum over the windows of no sample.
    #[error("the batch is empty and so is the sum; make a tensor of zeros")]
    NoWindows,
    /// No kernel, or not the one asked for, can do it on this device.
    #[error("this device has no {} for this; leave the choice to the plan", match algorithm {
        Some(algorithm) => format!("{algorithm} kernel"),
        None => "tiled kernel".into(),
    })]
    NoKernel {
        /// The kernel asked for.
        algorithm: Option<Algorithm>,
    },
    /// A tile was given to a kernel that has none, or none to one that needs it.
    #[error("the {algorithm} kernel and the tile do not belong together; plan again")]
    Untiled {
        /// The kernel.
        algorithm: Algorithm,
    },
    /// A number of a tile does not fit the others.
    #[error("{name} is {found} and the rest of the tile asks for {expected}")]
    Tile {
        /// The number's name.
        name: &'static str,
        /// What it is.
        found: u32,
        /// What it must be.
        expected: u32,
    },
    /// The elements of a load are too many, or no power of two.
    #[error("elems_per_thread is {lanes}; this device takes a power of two, {widest} at most")]
    Lanes {
        /// The elements asked for.
        lanes: u32,
        /// The most that the device loads at once.
        widest: u32,
    },
    /// The elements of a load do not divide those that lie together.
    #[error("elems_per_thread is {lanes}, which does not divide {channels} elements side by side")]
    Channels {
        /// The elements asked for.
        lanes: u32,
        /// The channels, or pixels of a line, that lie together.
        channels: usize,
    },
    /// A block is no multiple of its pieces, or too large.
    #[error("{name} is {block}; the rest of the tile asks for a multiple of {of}, {limit} at most")]
    Block {
        /// The number's name.
        name: &'static str,
        /// What it is.
        block: u32,
        /// What it must be a multiple of.
        of: u32,
        /// The largest block.
        limit: u32,
    },
    /// A block is kept once or twice.
    #[error("stages is {stages}; it is 1 or 2")]
    Stages {
        /// The stages asked for.
        stages: u32,
    },
    /// The ring of a producer has too few stages, or more than shared memory holds.
    #[error("stages is {stages}; with blocks of this size it is 2 to {most}")]
    Ring {
        /// The stages asked for.
        stages: u32,
        /// The most that there are.
        most: u32,
    },
    /// A tile's blocks do not fit in shared memory.
    #[error(
        "the tile takes {bytes} bytes of shared memory, this device has {limit}; shrink a block"
    )]
    Shared {
        /// The bytes of the tile.
        bytes: usize,
        /// The bytes that a cube has.
        limit: usize,
    },
    /// A unit has too many sums, or none.
    #[error("ratio_m by ratio_n are {sums} pieces a unit; its registers take 1 to {limit}")]
    Sums {
        /// The pieces asked for.
        sums: u32,
        /// The most that a unit has.
        limit: u32,
    },
    /// A cube cannot have so many units.
    #[error("{units} units a cube were asked for; this device has 1 to {limit}")]
    Units {
        /// The units asked for.
        units: u32,
        /// The most that the device has.
        limit: u32,
    },
    /// A sum cannot be cut into so many parts.
    #[error("{splits} splits were asked for; this problem has 1 to {most}")]
    Splits {
        /// The parts asked for.
        splits: usize,
        /// The most that there are.
        most: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use windowpane_geometry::{Extents, Filter, FilterLayout, Shape, Window};

    const FRAGMENT: Fragment = Fragment { m: 16, n: 16, k: 16 };
    const GPU: Limits = Limits {
        load_bytes: 16,
        units_per_cube: 1024,
        cores: None,
        shared_bytes: 48 << 10,
        plane: Some(32),
        matrix: Fragments {
            f16: Some(FRAGMENT),
            bf16: Some(FRAGMENT),
            tf32: Some(Fragment { k: 8, ..FRAGMENT }),
        },
        holds_fragments: true,
        hopper: None,
        buffer_bytes: 1 << 34,
        llvm: true,
    };
    /// As much shared memory as the largest GPUs have.
    const LARGE: Limits = Limits { shared_bytes: 227 << 10, ..GPU };
    /// One H200.
    const HOPPER: Limits = Limits { hopper: Some(132), ..LARGE };
    const PLAIN: Limits = Limits { matrix: Fragments { f16: None, bf16: None, tf32: None }, ..GPU };
    const PROCESSOR: Limits = Limits { load_bytes: 64, cores: Some(2), plane: Some(1), ..PLAIN };

    const F32: Request =
        Request { pass: Pass::Forward, dtype: DType::F32, precision: Precision::Strict };
    const BF16: Request = Request { dtype: DType::BF16, ..F32 };
    const TF32: Request = Request { precision: Precision::Tf32, ..F32 };

    fn conv(batch: usize, channels: usize, filters: usize, groups: usize) -> Convolution {
        let shape = Shape::new(batch, channels, Extents::from([28, 28])).unwrap();
        let filter = Filter::new(filters, channels / groups, Extents::from([3, 3])).unwrap();
        let window = Window::new([3, 3]).padding([1, 1]);
        let layout = FilterLayout::Fhwc;
        Convolution::new(shape, filter, &window, groups, Layout::ChannelsLast, layout).unwrap()
    }

    fn plan(conv: &Convolution, request: Request, limits: &Limits) -> Result<Plan, PlanError> {
        Plan::new(conv, request, Wish::default(), limits)
    }

    fn algorithm(conv: &Convolution, request: Request, limits: &Limits) -> Algorithm {
        plan(conv, request, limits).unwrap().algorithm
    }

    #[test]
    fn each_device_has_its_kernel() {
        let dense = conv(8, 64, 128, 1);
        assert_eq!(algorithm(&dense, F32, &GPU), Algorithm::Tiled);
        assert_eq!(algorithm(&dense, BF16, &GPU), Algorithm::Matrix);
        assert_eq!(algorithm(&dense, TF32, &GPU), Algorithm::Matrix);
        assert_eq!(algorithm(&dense, BF16, &PLAIN), Algorithm::Tiled);
        assert_eq!(
            algorithm(&dense, BF16, &Limits { shared_bytes: 0, ..PLAIN }),
            Algorithm::Direct
        );
        assert_eq!(algorithm(&dense, F32, &PROCESSOR), Algorithm::Wide);
        for limits in [GPU, PROCESSOR] {
            assert_eq!(algorithm(&conv(8, 64, 64, 64), F32, &limits), Algorithm::Depthwise);
        }
        // Matrix units are the faster for all but the fewest channels.
        let [few, more] = [conv(8, 256, 256, 32), conv(8, 256, 256, 16)];
        assert_eq!(algorithm(&few, F32, &GPU), Algorithm::Grouped);
        assert_eq!(algorithm(&few, BF16, &GPU), Algorithm::Banded);
        assert_eq!(algorithm(&few, BF16, &PLAIN), Algorithm::Grouped);
        assert_eq!(algorithm(&conv(8, 64, 64, 64), BF16, &GPU), Algorithm::Banded);
        assert_eq!(algorithm(&more, F32, &GPU), Algorithm::Grouped);
        assert_eq!(algorithm(&more, BF16, &GPU), Algorithm::Matrix);
        assert_eq!(algorithm(&few, F32, &PROCESSOR), Algorithm::Wide);
    }

    /// Every plan passes its own check, whatever the pass, the type and the counts.
    #[test]
    fn what_is_planned_can_run() {
        for (channels, filters, groups) in [
            (3, 64, 1),
            (64, 256, 1),
            (256, 256, 32),
            (7, 7, 7),
            (1, 1, 1),
            (96, 20, 4),
            (8, 40, 8),
        ] {
            for batch in [1, 8, 512] {
                let conv = conv(batch, channels, filters, groups);
                for pass in [Pass::Forward, Pass::Data, Pass::Filter, Pass::Bias] {
                    for request in [F32, BF16, Request { dtype: DType::F64, ..F32 }, TF32] {
                        let small = Limits { shared_bytes: 16384, ..GPU };
                        for limits in [GPU, LARGE, PLAIN, PROCESSOR, HOPPER, small] {
                            let request = Request { pass, ..request };
                            match plan(&conv, request, &limits) {
                                Ok(plan) => assert_eq!(plan.check(&conv, request, &limits), Ok(())),
                                Err(error) => {
                                    let none = limits.matrix.tf32.is_none();
                                    let expected = match none {
                                        true => PlanError::NoTf32,
                                        false => PlanError::NoKernel { algorithm: None },
                                    };
                                    assert_eq!(
                                        (request.precision, error),
                                        (Precision::Tf32, expected)
                                    );
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// The tile, which the code of a kernel depends on, is that of any batch.
    #[test]
    fn a_tile_does_not_depend_on_the_batch() {
        for pass in [Pass::Forward, Pass::Data, Pass::Filter] {
            for limits in [GPU, LARGE, PROCESSOR] {
                for (channels, filters) in [(48, 80), (256, 512)] {
                    let request = Request { pass, ..BF16 };
                    let conv = |batch| conv(batch, channels, filters, 1);
                    let tile = |batch| plan(&conv(batch), request, &limits).unwrap().tile;
                    assert_eq!(tile(1), tile(300));
                }
            }
        }
    }

    /// Whole loads, factors of 16 bits and LLVM make the largest blocks, where they have room.
    #[test]
    fn blocks_of_matrix_units_are_as_large_as_they_can_be() {
        let blocks = |channels, filters, request, limits: &Limits| {
            let tile = plan(&conv(8, channels, filters, 1), request, limits).unwrap().tile.unwrap();
            [tile.block_m, tile.block_n, tile.block_k, tile.ratio_m, tile.ratio_n]
        };
        assert_eq!(blocks(256, 256, BF16, &LARGE), [128, 256, 64, 4, 4]);
        assert_eq!(blocks(256, 256, BF16, &GPU), [128, 128, 32, 4, 4]);
        assert_eq!(blocks(256, 128, BF16, &LARGE), [128, 128, 32, 4, 4]);
        let shading = Limits { llvm: false, ..GPU };
        assert_eq!(blocks(256, 256, BF16, &shading), [128, 128, 32, 4, 2]);
        assert_eq!(blocks(3, 256, BF16, &LARGE), [128, 128, 32, 4, 2]);
        assert_eq!(blocks(256, 256, TF32, &LARGE), [128, 128, 16, 4, 2]);
        assert_eq!(blocks(256, 64, BF16, &LARGE), [128, 64, 32, 2, 2]);
    }

    #[test]
    fn an_impossible_tile_is_refused_by_its_limit() {
        let conv = conv(8, 64, 128, 1);
        let refused = |text: &str, request: Request, limits: &Limits| {
            let wish = Wish { tiling: text.parse().unwrap(), algorithm: None };
            Plan::new(&conv, request, wish, limits).unwrap_err().to_string()
        };
        for request in [F32, BF16, TF32] {
            assert!(refused("block_m=100", request, &GPU).contains("block_m is 100"));
            assert!(refused("block_n=4096", request, &GPU).contains("block_n is 4096"));
            assert!(refused("block_k=5", request, &GPU).contains("block_k is 5"));
            assert!(refused("ratio_m=64", request, &GPU).contains("ratio_m by ratio_n are"));
            assert!(refused("stages=3", request, &GPU).contains("stages is 3"));
            assert!(refused("elems_per_thread=3", request, &GPU).contains("elems_per_thread is 3"));
            assert!(refused("elems_per_thread=64", request, &GPU).contains("power of two"));
            assert!(
                refused("block_m=256,block_n=256,block_k=128", request, &GPU).contains("49152")
            );
        }
        let units = refused("ratio_m=1,ratio_n=1,block_m=256,block_n=256,block_k=8", F32, &GPU);
        assert!(units.contains("4096 units"), "{units}");
        assert!(refused("block_m=7", F32, &PROCESSOR).contains("block_m is 7"));
        assert!(refused("block_k=2", F32, &PROCESSOR).contains("block_k is 2"));
    }

    /// A search goes from a small block to none.
    #[test]
    fn a_tile_of_nothing_is_refused_by_every_kernel() {
        let (conv, none, all) = (conv(8, 64, 128, 1), Some(0), Tiling::default());
        let tilings = [
            Tiling { block_m: none, ..all },
            Tiling { block_n: none, ..all },
            Tiling { block_k: none, ..all },
            Tiling { ratio_m: none, ..all },
            Tiling { ratio_n: none, ..all },
            Tiling { stages: none, ..all },
        ];
        for pass in [Pass::Forward, Pass::Data, Pass::Filter] {
            for (limits, algorithm) in [GPU, PROCESSOR, HOPPER]
                .into_iter()
                .flat_map(|limits| Algorithm::LADDER.map(|algorithm| (limits, algorithm)))
            {
                for tiling in tilings {
                    let wish = Wish { algorithm: Some(algorithm), tiling };
                    let plan = Plan::new(&conv, Request { pass, ..BF16 }, wish, &limits);
                    assert!(plan.is_err(), "{pass} {algorithm} {tiling:?}: {plan:?}");
                }
            }
        }
    }

    /// Strict f32 is multiplied in parts where sums are long enough for their bound, and work enough to be
    /// worth the laying; three channels go the same way, and gradients of the filters another.
    #[test]
    fn hopper_takes_what_pays() {
        let large = conv(128, 64, 64, 1);
        assert_eq!(algorithm(&large, F32, &HOPPER), Algorithm::Hopper);
        assert_eq!(algorithm(&large, BF16, &HOPPER), Algorithm::Hopper);
        assert_eq!(algorithm(&conv(1, 64, 64, 1), F32, &HOPPER), Algorithm::Tiled);
        assert_eq!(algorithm(&conv(1, 64, 64, 1), BF16, &HOPPER), Algorithm::Hopper);
        assert_eq!(algorithm(&conv(128, 3, 64, 1), BF16, &HOPPER), Algorithm::Hopper);
        assert_eq!(algorithm(&conv(1, 3, 64, 1), BF16, &HOPPER), Algorithm::Matrix);
        let filter = Request { pass: Pass::Filter, ..F32 };
        assert_eq!(algorithm(&large, filter, &HOPPER), Algorithm::Tiled);
        let wish = Wish { algorithm: Some(Algorithm::Hopper), ..Wish::default() };
        let forced = |channels| Plan::new(&conv(1, channels, 64, 1), F32, wish, &HOPPER);
        // 63 terms and 72.
        assert!(forced(7).is_err() && forced(8).is_ok());
        // What is laid anew is told of.
        assert!(plan(&large, F32, &HOPPER).unwrap().workspace(&large, F32) > 0);
        assert_eq!(plan(&large, BF16, &HOPPER).unwrap().workspace(&large, BF16), 0);
    }

    #[test]
    fn long_sums_are_cut_and_short_ones_are_not() {
        let filter = Request { pass: Pass::Filter, ..F32 };
        assert!(plan(&conv(128, 64, 64, 1), filter, &GPU).unwrap().splits > 8);
        assert_eq!(
            plan(&conv(1, 4, 4, 1), Request { pass: Pass::Data, ..F32 }, &GPU).unwrap().splits,
            1
        );
        let bias = Request { pass: Pass::Bias, ..F32 };
        let plan = plan(&conv(128, 64, 64, 1), bias, &GPU).unwrap();
        assert!(plan.splits > 8 && plan.workspace(&conv(128, 64, 64, 1), bias) > 0, "{plan:?}");
    }

    #[test]
    fn tf32_is_of_f32_and_of_matrix_units() {
        let conv = conv(1, 8, 8, 1);
        let of_bf16 = Request { dtype: DType::BF16, ..TF32 };
        assert!(matches!(plan(&conv, of_bf16, &GPU), Err(PlanError::Tf32OfOther { .. })));
        assert_eq!(plan(&conv, TF32, &PLAIN), Err(PlanError::NoTf32));
        let wish = Wish { algorithm: Some(Algorithm::Tiled), ..Wish::default() };
        assert!(Plan::new(&conv, TF32, wish, &GPU).is_err());
    }
}
