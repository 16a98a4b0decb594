//! Which problems the kernel is for, and how it divides their work.

use core::fmt;

use windowpane_geometry::{AXES, Convolution, DType, Layout, Precision, Tile, TileOverrides};

use super::cost;
use super::form::{CHUNK, Form, HALVES, PLANE, TILES, WALKS, walk_windows};
use crate::conv::common::{
    Arguments, Epilogue, Gather, Kernel, MOST_BLOCK, MOST_CUBES, check_block, check_divisor,
    check_number, check_shared, check_units, columns, inner, phases, widest_factor_load,
};
use crate::conv::problem::{self, Pass, Task};
use crate::error::{NotApplicable, PlanError, ensure, require};

/// The most strips that a tile reads, and the largest distance in strips from one tile to the next.
const MOST_STRIPS: u64 = 16;
const MOST_STEP: usize = 4;

/// The number of terms that a fragment multiplies and adds.
const TERMS: u32 = 16;

/// The lines of windows of a half of a walk.
const LINES: u32 = 7;

/// The most neighbouring walks of a cube.
const MOST_WALKS: u32 = 8;

/// The tile of a cube, whose planes walk down the image, each for a few groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The tile: the windows of one walk, times the number of neighbouring walks, by the channels of a cube. `ratio_m`
    /// is the number of lines of windows that a plane walks, 4, 7 or 14, and `ratio_n` that of its groups.
    pub tile: Tile,
}

impl Config {
    /// The planes of a cube.
    fn planes(self, conv: &Convolution, pass: Pass) -> u32 {
        let groups = self.tile.block_n / inner(conv, pass) as u32;
        groups / self.tile.ratio_n.max(1)
    }

    /// The bytes of shared memory that a cube needs.
    fn shared_bytes(self, conv: &Convolution, pass: Pass, dtype: DType) -> usize {
        // The results are largest where they are staged as unfinished sums.
        let form = |gather| Form {
            late: true,
            ..Form::new(conv, pass, &gather, &self.tile, &Epilogue::NONE)
        };
        let strips = Gather::all(conv, pass).map(|gather| form(gather).shared()).max();
        strips.unwrap_or(0) as usize * CHUNK as usize * dtype.size()
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tile { block_m, block_n, ratio_m, ratio_n, elems_per_thread, .. } = self.tile;
        write!(f, "block_m={block_m},block_n={block_n},ratio_m={ratio_m},ratio_n={ratio_n}")?;
        write!(f, ",elems_per_thread={elems_per_thread}")
    }
}

impl Kernel for Config {
    fn applies(task: Task<'_>) -> Result<(), NotApplicable> {
        let Task { conv, request, device } = task;
        require(device.cores.is_none(), "it is for GPUs")?;
        require(request.precision == Precision::Strict, "it does not round to tf32")?;
        require(conv.input().batch() <= MOST_CUBES, "the batch is too large for one launch")?;
        supports(conv, request.pass, request.dtype)?;
        require(has_fragment(task), "the device has no matrix units of 16×8×16 in registers")?;
        require(
            Config::new(task).is_some(),
            "the device has too little shared memory or too few units, or channels do not fill a block",
        )
    }

    /// One walk per plane: 56 windows wide for groups of one channel, and 14 for groups of 8. A cube has 64 bytes of
    /// each pixel, and so many groups per plane that there are 8 planes. The tile is smaller where shared memory is
    /// small, or where there are few channels.
    fn new(task: Task<'_>) -> Option<Self> {
        let Task { conv, request, device } = task;
        let groups = chunk_groups(conv, request.pass);
        // Groups of one channel are walked in two halves.
        let lines = if groups == CHUNK { LINES } else { HALVES * LINES };
        let config = |lines: u32, chunks: u32| Self {
            tile: Tile {
                block_m: block(conv, request.pass, lines),
                block_n: CHUNK * chunks,
                block_k: TERMS,
                ratio_m: lines,
                ratio_n: (groups * chunks / 8).max(1),
                elems_per_thread: widest_factor_load(request.dtype, device),
                stages: 1,
            },
        };
        [(lines, 4), (lines, 2), (lines, 1), (4, 1)]
            .map(|(lines, chunks)| config(lines, chunks))
            .into_iter()
            .find(|config| config.check(task).is_ok())
    }

    fn over(self, overrides: &TileOverrides) -> Result<Self, PlanError> {
        Ok(Self { tile: overrides.over(self.tile) })
    }

    fn tile(&self) -> Option<Tile> {
        Some(self.tile)
    }

    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        let Task { conv, request, device } = task;
        let tile = self.tile;
        check_number("block_k", tile.block_k, TERMS)?;
        check_number("stages", tile.stages, 1)?;
        ensure(has_fragment(task), PlanError::Foreign)?;
        let lanes = widest_factor_load(request.dtype, device);
        check_number("elems_per_thread", tile.elems_per_thread, lanes)?;
        let sums = tile.ratio_m;
        if !WALKS.contains(&sums) {
            let [.., limit] = WALKS;
            return Err(PlanError::Accumulators { sums, limit });
        }
        let walk = block(conv, request.pass, sums);
        check_block("block_m", tile.block_m, walk, MOST_WALKS * walk)?;
        check_block("block_n", tile.block_n, CHUNK, MOST_BLOCK)?;
        let groups = chunk_groups(conv, request.pass) * tile.block_n / CHUNK;
        check_divisor("ratio_n", tile.ratio_n, groups as usize, "groups of channels in a block")?;
        check_divisor("block_n", tile.block_n, conv.input().channels(), "channels")?;
        check_units(self.planes(conv, request.pass).saturating_mul(PLANE), device)?;
        check_shared(self.shared_bytes(conv, request.pass, request.dtype), device)
    }

    fn units(&self, task: Task<'_>) -> u32 {
        self.planes(task.conv, task.request.pass).saturating_mul(PLANE)
    }

    fn fixes_units(&self) -> bool {
        true
    }

    fn seconds(&self, task: Task<'_>, _: usize) -> f64 {
        cost::seconds(*self, task)
    }

    fn launch(&self, arguments: &Arguments<'_>) -> Result<(), PlanError> {
        super::launch(arguments, *self)
    }
}

/// Whether the kernel can compute a problem, judged by its channels, taps and layout.
pub(super) fn supports(conv: &Convolution, pass: Pass, dtype: DType) -> Result<(), NotApplicable> {
    let chunk = CHUNK as usize;
    let (inner, columns) = (inner(conv, pass), columns(conv, pass));
    require(dtype.size() == 2, "elements are not of 16 bits")?;
    require(
        matches!(pass, Pass::Forward | Pass::Data),
        "it computes only the forward pass and the data gradient",
    )?;
    require(conv.layout() == Layout::ChannelsLast, "channels are not last")?;
    require(conv.grid().rank() == 2, "it is for two axes")?;
    require(conv.groups() > 1, "there is one group")?;
    require(
        inner == columns
            && chunk.is_multiple_of(inner)
            && conv.input().channels().is_multiple_of(chunk),
        "a group must have 1, 2, 4 or 8 channels and as many filters, and the channels must be a multiple of 8",
    )?;
    require(phases(conv, pass) == [1; AXES], "strides make several phases")?;
    require(
        Gather::all(conv, pass).all(|gather| is_near(&gather, conv, inner)),
        "taps are too many or too far apart, or the image is too large",
    )
}

/// Whether the pixels that a tile reads are close enough together for the limits on strips, lines and cubes.
fn is_near(gather: &Gather, conv: &Convolution, group: usize) -> bool {
    // Coordinates that are in no window have a gradient of zeros, which other kernels write.
    if gather.axes.iter().any(|axis| axis.taps == 0) {
        return false;
    }
    let [_, height, width] = gather.axes;
    let [fewest, .., most] = WALKS;
    let span = |taps: usize, step: i64| (taps as u64 - 1) * step.unsigned_abs();
    let chunk = CHUNK as usize;
    let wide = (chunk / group) as u64;
    let near = span(width.taps, width.tap_step) + (wide - 1) * width.step as u64 + 1;
    let lines = u64::from(HALVES * most);
    let high = span(height.taps, height.tap_step) + lines * height.step as u64;
    let runs = width.rows.div_ceil(TILES as usize * chunk / group);
    let across = conv.input().channels() / chunk * runs;
    let cubes = across.max(height.rows.div_ceil(fewest as usize));
    let narrow = near.div_ceil(wide) <= MOST_STRIPS && width.step <= MOST_STEP;
    narrow && high < 256 && cubes <= MOST_CUBES
}

/// Whether the units of a plane can hold fragments in registers in the layout that bands need.
fn has_fragment(task: Task<'_>) -> bool {
    let Task { request, device, .. } = task;
    let whole = request.dtype.size() == 2 && widest_factor_load(request.dtype, device) == CHUNK;
    let plane = problem::fragment(task).map(|(_, plane)| plane);
    whole && device.mma_registers && plane == Some(PLANE)
}

/// The windows of a cube whose planes walk `lines` lines once.
fn block(conv: &Convolution, pass: Pass, lines: u32) -> u32 {
    walk_windows(inner(conv, pass) as u32, lines)
}

/// The number of groups in a chunk.
fn chunk_groups(conv: &Convolution, pass: Pass) -> u32 {
    CHUNK / inner(conv, pass) as u32
}
