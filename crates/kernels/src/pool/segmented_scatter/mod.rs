//! Gradients of maxima of large windows, at a cost that does not grow with the window.
//!
//! ```text
//! for each tile of columns of a plane, and some channels or planes:  one cube; one unit per column of windows
//!     for each block of R rows of windows:
//!         each unit walks down its column:
//!             add up the gradients of a segment of windows with the same winner
//!             at its end, leave the sum and the winner's column in the winner's row of a ring in shared memory
//!         for each row of inputs that no later window contains, piece by piece:
//!             add the sums left on that row to their winners
//!         write these rows
//! ```
//!
//! Two facts make this a scatter without atomics. In one column of windows, the windows with the same winner are
//! neighbours: a winner is greater than all that came before it, and stays the winner until a window starts after it.
//! And a row of inputs has at most one winner in a column of windows: the greatest of the columns that they read. So
//! sums never meet at one place of the ring, and every input's sum has one order: down each column, then along the row.
//!
//! Both facts need indices that come from a maximum over the same problem. Indices outside their own window are ignored;
//! of other indices some sums may be lost, but always the same memory is accessed.
//!
//! For volumes, a first launch (`depth`) turns windows that span planes into windows of single planes.

mod depth;
mod kernel;

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType};

use crate::cube::SECTOR;
use crate::cube::convert::Widening;
use crate::cube::numbers;
use crate::device::Capabilities;
use crate::error::{PlanError, only_if};
use crate::pool::common::window::indexing;
use crate::pool::common::{
    Buffers, Cubes, CubesArgs, Kernel, Planes, Settings, Task, Tensor, Work, no_config,
    widest_divisor,
};
use crate::pool::problem::{Problem, check_workspace};

pub(super) const NAME: &str = "segmented_scatter";

/// The instructions of a unit for each row of windows, besides its loads; for each input that it completes, besides its
/// store; and for each block.
const OF_ROW: f64 = 39.0;
const OF_INPUT: f64 = 11.0;
const OF_BLOCK: f64 = 580.0;

/// The barriers of a block: after its rows of windows, and after its rows of inputs.
const BARRIERS: f64 = 2.0;

no_config!();

impl Kernel for Config {
    /// Refuses problems whose segments are not neighbours, and devices whose cubes share nothing.
    fn applies(problem: Problem<'_>, device: &Capabilities) -> Result<(), PlanError> {
        let Problem { pooling, reduction, gradient, any_winner, .. } = problem;
        let [depth, height, width] = pooling.grid().axes();
        let both = |holds: fn(&Axis) -> bool| holds(height) && holds(width);
        let all = |holds: fn(&Axis) -> bool| holds(depth) && both(holds);
        only_if(NAME, device.cores.is_none(), "it is for GPUs")?;
        only_if(NAME, gradient, "it only computes gradients")?;
        only_if(NAME, reduction.is_extremum(), "it only computes gradients of extrema")?;
        only_if(NAME, !any_winner, "windows with the same winner may not be neighbours")?;
        only_if(NAME, height.kernel() > 1, "windows have one row")?;
        only_if(
            NAME,
            all(|axis| axis.kernel() == 1 || axis.dilation() == 1),
            "windows are dilated",
        )?;
        only_if(NAME, all(|axis| !axis.is_uneven()), "windows differ in size or step")?;
        let short = both(|axis| axis.kernel().max(axis.stride()) <= LONGEST);
        only_if(NAME, short, "windows or strides are too long")
    }

    fn plan(task: Task<'_>) -> Result<(Settings, Self), PlanError> {
        let own = Settings { lanes: 1, unrolled: false, ..task.settings };
        let units = Tile::new(task.with(own)).ok_or(NO_TILE)?.units();
        let mut workspace = 0;
        if depth::is_volume(task) {
            depth::units(task)?;
            workspace = depth::bytes(task);
        }
        Ok((Settings { units, workspace, ..own }, Self))
    }

    /// Refuses problems that this kernel does not support, and a number of units other than the tile's.
    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        task.check_lanes()?;
        if depth::is_volume(task) {
            depth::units(task)?;
            check_workspace(depth::windows(task), depth::bytes(task), task.device)?;
        }
        let units = Tile::new(task).ok_or(NO_TILE)?.units();
        only_if(NAME, task.settings.units == units, "a tile takes another number of units")?;
        only_if(NAME, units <= task.device.units_per_cube, "the device has too few units per cube")
    }

    fn seconds(&self, task: Task<'_>) -> f64 {
        let Some(tile) = Tile::new(task) else { return f64::INFINITY };
        let form = Form::new(task, tile);
        let cubes = cubes(task, &tile, &form);
        // A cube with few channels of a pixel uses only a part of each sector.
        let apart = match task.pixel() {
            1 => 1,
            _ => (SECTOR / (tile.lanes * task.dtype().size())).max(1),
        };
        let access = task.load_cost(1, 1) * apart as f64;
        let inputs = (form.done as usize * tile.columns * tile.lanes) as f64;
        let inputs = inputs / f64::from(task.settings.units) * (OF_INPUT + access);
        let rows = tile.rows as f64 * (OF_ROW + 2.0 * access);
        let blocks = (cubes.piece_blocks + halo(task, &form)) as f64;
        let (before, bytes) = match depth::is_volume(task) {
            true => {
                let written = task.inputs() * task.dtype().size();
                (depth::seconds(task), (depth::bytes(task) + written) as f64)
            }
            false => (0.0, task.bytes()),
        };
        let work = Work {
            bytes,
            units: (cubes.count * task.settings.units as usize) as f64,
            instructions: blocks * (rows + inputs + OF_BLOCK),
            waits: BARRIERS * blocks,
        };
        before + work.seconds(task.device)
    }

    fn launch(&self, task: Task<'_>, buffers: Buffers<'_>) -> Result<(), PlanError> {
        let pooling = task.pooling();
        let Buffers { client, input: dy, output: dx, indices, .. } = buffers;
        let winners = indices.ok_or(PlanError::Indices { needed: true })?;
        let tile = Tile::new(task).ok_or(NO_TILE)?;
        let form = Form::new(task, tile);
        let axes = task.axes();
        let cubes = cubes(task, &tile, &form);
        let in_planes = match depth::is_volume(task) {
            true => Some(depth::launch(task, dy, winners, client)?),
            false => None,
        };
        let (shares, [dy, winners]) = match &in_planes {
            Some(tensors) => {
                let tensor = |handle| Tensor::new(handle, depth::windows(task));
                (task.accumulator(), tensors.each_ref().map(tensor))
            }
            None => (task.elem(), [dy, winners]),
        };
        let [batch, channel, position] = indexing(pooling, task.reduction().base());
        let args = numbers! { ScatterArgsLaunch {
            cubes: cubes.args(), pixel: task.pixel(), planes: planes(task),
            halo: halo(task, &form), depth: axes[0].input(), height: span(&axes[1]),
            width: span(&axes[2]), index_batch: batch, index_channel: channel,
            index_position: position,
        } };
        let (count, dim) = task.cubes(client, cubes.count);
        // SAFETY: windows and inputs that do not exist are neither read nor written, and positions in shared memory are
        // those of a tile whatever the indices are.
        unsafe {
            kernel::scatter::launch_unchecked(
                client,
                count,
                dim,
                dy.vectors(1),
                winners.vectors(1),
                dx.vectors(1),
                args,
                form,
                [shares, task.elem(), task.accumulator()],
            )
        };
        Ok(())
    }
}

/// The error if no tile fits in a cube.
const NO_TILE: PlanError =
    PlanError::NotApplicable { kernel: NAME, reason: "a tile of columns does not fit in a cube" };

/// The most units of a cube, one for each column of windows and lane.
const MOST_UNITS: usize = 512;

/// The most channels of a pixel that a cube computes, or the most planes if a pixel is one element.
const MOST_CHANNELS: usize = 16;

/// The rows of windows of a block.
const ROWS: [usize; 2] = [8, 4];

/// The longest windows and strides: the places of a ring are counted in 32 bits.
const LONGEST: usize = 1 << 12;

/// The columns of a row of inputs whose sums one unit adds up.
const CHUNK: u32 = 16;

/// The places of a row of the ring that a unit reads at once.
const AT_ONCE: u32 = 4;

/// The units that keep a multiprocessor busy.
const UNITS_EACH: usize = 768;

/// The part of a plane that a cube computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    /// The channels of a pixel, or the planes.
    lanes: usize,
    /// The columns of inputs, and the windows of a row that read them.
    columns: usize,
    windows: usize,
    /// The rows of windows of a block.
    rows: usize,
}

impl Tile {
    /// The tile with which a multiprocessor does the most at once.
    fn new(task: Task<'_>) -> Option<Self> {
        let tiles = lanes(task)
            .flat_map(|lanes| ROWS.map(|rows| (lanes, rows)))
            .flat_map(|(lanes, rows)| Self::with(task, lanes, rows));
        let rated = tiles.map(|tile| (tile.rate(task), tile));
        // The first of the best, which has the most lanes.
        rated.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, tile)| tile)
    }

    /// A measure of how many units of a multiprocessor work on inputs of their own: not on windows over other tiles'
    /// inputs, and not on parts of a sector of memory.
    fn rate(&self, task: Task<'_>) -> f64 {
        let width = &task.axes()[AXES - 1];
        let own = width.output() as f64 / width.input().div_ceil(self.columns) as f64;
        let bytes = Form::new(task, *self).bytes(task.settings.accumulator);
        let cubes = (task.device.shared_bytes / bytes).min(RESIDENT / self.units() as usize);
        // Few units would wait for each other's steps.
        let units = (cubes * self.units() as usize).min(ENOUGH_UNITS);
        let units = (units * self.units().min(MANY_UNITS) as usize) as f64;
        // The other parts of a sector are another cube's, which finds most of them in a cache.
        let sector = match task.pixel() {
            1 => 1.0,
            _ => {
                (2.0 + (self.lanes * task.dtype().size()).min(SECTOR) as f64 / SECTOR as f64) / 3.0
            }
        };
        // Longer blocks synchronise less often.
        let often = self.rows as f64 / (self.rows + 1) as f64;
        own / self.windows as f64 * units * sector * often
    }

    /// The widest tile with these lanes and rows that fits in a cube, and one half as wide, of which more cubes fit on a
    /// multiprocessor.
    fn with(task: Task<'_>, lanes: usize, rows: usize) -> impl Iterator<Item = Self> {
        let width = task.axes()[AXES - 1];
        let tiled = |tiles: usize| {
            let columns = width.input().div_ceil(tiles).next_multiple_of(LEAST_COLUMNS);
            let windows = (columns + width.kernel() - 2) / width.stride() + 1;
            let windows = windows.min(width.output().next_multiple_of(LEAST_COLUMNS));
            Self { lanes, columns, windows, rows }
        };
        let fits = |tile: &Self| {
            let bytes = Form::new(task, *tile).bytes(task.settings.accumulator);
            tile.windows * lanes <= MOST_UNITS && bytes <= task.device.shared_bytes
        };
        let least = (width.output() * lanes).div_ceil(MOST_UNITS).max(1);
        let most = width.input().div_ceil(LEAST_COLUMNS);
        let widest = (least..=most).find(|&tiles| fits(&tiled(tiles)));
        let tiles = widest.into_iter().flat_map(|tiles| [tiles, 2 * tiles]);
        tiles.map(tiled).filter(fits).collect::<Vec<_>>().into_iter()
    }

    /// The units of a cube.
    fn units(&self) -> u32 {
        (self.windows * self.lanes).next_multiple_of(32) as u32
    }
}

/// The units of a cube that is not slowed by its barriers, and those of a multiprocessor that hide its waits.
const MANY_UNITS: u32 = 256;
const ENOUGH_UNITS: usize = 1024;

/// The units that a multiprocessor has room for.
const RESIDENT: usize = 2048;

/// The columns of a tile are a multiple of this, so that similar widths have the same kernel.
const LEAST_COLUMNS: usize = 8;

/// The lanes that a cube may have, the most first.
fn lanes(task: Task<'_>) -> impl Iterator<Item = usize> {
    let all = match task.pixel() {
        1 => MOST_CHANNELS.min(planes(task).next_power_of_two()),
        few if few <= MOST_CHANNELS => few,
        many => widest_divisor(many, MOST_CHANNELS),
    };
    (0..=all.trailing_zeros()).map(move |power| all >> power)
}

/// The cubes of a problem.
fn cubes(task: Task<'_>, tile: &Tile, form: &Form) -> Cubes {
    let ([_, height, width], done) = (task.axes(), form.done as usize);
    let planes = Planes {
        count: if form.one_channel { planes(task).div_ceil(tile.lanes) } else { planes(task) },
        groups: (task.pixel() / tile.lanes).max(1),
        columns: width.input(),
        tile: tile.columns,
        blocks: (height.input() + height.before()).div_ceil(done),
        halo: halo(task, form),
    };
    planes.cubes(task, UNITS_EACH)
}

/// The number of planes.
fn planes(task: Task<'_>) -> usize {
    let [_, height, width] = task.axes();
    task.inputs() / height.input() / width.input() / task.pixel()
}

/// The number of blocks before a piece that reach into it.
fn halo(task: Task<'_>, form: &Form) -> usize {
    (task.axes()[1].kernel() - 1).div_ceil(form.done as usize)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// Whether lanes are planes, not channels.
    one_channel: bool,
    lanes: u32,
    columns: u32,
    windows: u32,
    /// The rows of windows of a block, and the rows of inputs of the ring.
    rows: u32,
    ring: u32,
    /// The rows of inputs that are complete after a block.
    done: u32,
    rounds: bool,
    /// How elements are converted to the type in which they are summed.
    widened: Widening,
    /// Whether neighbouring positions have consecutive indices.
    consecutive: bool,
}

impl Form {
    fn new(task: Task<'_>, tile: Tile) -> Self {
        let [_, height, _] = task.axes();
        let (stride, kernel) = (height.stride(), height.kernel());
        Self {
            one_channel: task.pixel() == 1,
            lanes: tile.lanes as u32,
            columns: tile.columns as u32,
            windows: tile.windows as u32,
            rows: tile.rows as u32,
            ring: ((tile.rows - 1) * stride + kernel.max(stride)) as u32,
            done: (tile.rows * stride) as u32,
            rounds: task.rounds(),
            widened: match depth::is_volume(task) {
                true => Widening::Cast,
                false => task.widening(task.dtype()),
            },
            consecutive: indexing(task.pooling(), task.reduction().base())[2] == 1,
        }
    }

    /// The columns of windows of all lanes, each of which is a unit's.
    fn window_columns(&self) -> u32 {
        self.windows * self.lanes
    }

    /// The columns of inputs of all lanes.
    fn line(&self) -> u32 {
        self.columns * self.lanes
    }

    /// The steps between rows of the ring and between rows of results: units on neighbouring rows are on other banks.
    fn ring_row(&self) -> u32 {
        self.window_columns() + self.apart()
    }

    fn result_row(&self) -> u32 {
        self.line() + self.apart()
    }

    fn apart(&self) -> u32 {
        if self.one_channel { 1 } else { self.lanes }
    }

    /// The chunks of a row of results.
    fn chunks(&self) -> u32 {
        self.columns.div_ceil(CHUNK)
    }

    /// The step from one lane to the next and from one column to the next, in the ring and in a row of results: units
    /// that are neighbours in memory are neighbours in shared memory.
    fn steps(&self, columns: u32) -> [u32; 2] {
        if self.one_channel { [columns, 1] } else { [1, self.lanes] }
    }

    fn bytes(&self, accumulator: DType) -> usize {
        let (ring, results) = (self.ring * self.ring_row(), self.done * self.result_row());
        let (ring, results) = (ring as usize, results as usize);
        ring * (accumulator.size() + DType::I32.size()) + results * accumulator.size()
    }
}

#[cube]
fn is_below(number: i32, end: i32) -> bool {
    number >= 0 && number < end
}

/// The numbers of an axis.
#[derive(CubeType, CubeLaunch)]
struct Span {
    input: FastDivmod<u32>,
    inputs: i32,
    outputs: i32,
    kernel: i32,
    stride: i32,
    before: i32,
}

fn span(axis: &Axis) -> SpanLaunch {
    numbers! { SpanLaunch {
        input: axis.input(), inputs: axis.input(), outputs: axis.output(), kernel: axis.kernel(),
        stride: axis.stride(), before: axis.before(),
    } }
}

#[derive(CubeType, CubeLaunch)]
struct ScatterArgs {
    cubes: CubesArgs,
    /// The channels of a pixel.
    pixel: u32,
    planes: u32,
    /// The blocks before a piece that reach into it.
    halo: u32,
    /// The planes of a sample.
    depth: FastDivmod<u32>,
    height: Span,
    width: Span,
    /// The index steps to the next sample, channel and position.
    index_batch: u32,
    index_channel: u32,
    index_position: FastDivmod<u32>,
}
