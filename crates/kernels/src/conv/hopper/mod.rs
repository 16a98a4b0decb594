//! The implicit product of matrices on Hopper's own instructions.
//!
//! For somebody who knows CUDA and meets CubeCL here: a *cube* is a block, a *unit* a thread, and
//! `comptime!` is what a template parameter would be. One cube lives on each multiprocessor, or
//! two where their tiles are small, and takes one tile of the product after another
//! (`tile = CUBE_POS_X; tile += CUBE_COUNT_X`), columns first, so that the cubes that run together
//! read the same rows.
//!
//! ```text
//!           ring of stages in shared memory
//!           ┌────┬────┬────┬────┐
//! producer →│ 0  │ 1  │ 2  │ 3  │→ warpgroups, 64 or 128 rows each
//!           └────┴────┴────┴────┘
//!            full[s]: a stage's bytes have come      empty[s]: every warp has read them
//! ```
//!
//! * The *producer* is one unit. For each stage it waits until its place is `empty`, and has the
//!   tensor copy engine (TMA) bring a block of rows and a block of columns. Rows come by an *im2col
//!   map*: the engine itself walks windows over the image, steps over strides and gives zeros for
//!   what lies outside; a tap is an offset into the window. The other operand comes by a plain map.
//!   Where a tile is so narrow that its products are done before the next rows have come, a run of
//!   pixels is brought once for all taps along the width, each of which reads it a little further on
//!   (`Walk`).
//! * The *warpgroups* wait until a stage is `full` and multiply out of it (`wgmma`), their sums in
//!   registers. The products run by themselves; a stage is given back when the first of the next
//!   one's are done, with the others still on their way, so that the units never stand idle between
//!   two.
//! * At the end of a tile a warpgroup stores its results on its own, and the producer runs ahead into
//!   the next tile: nothing in a cube waits for all of it.
//!
//! Both operands may lie along the terms or across them (`K` or `MN` major), so the same loop computes
//! all three passes:
//!
//! ```text
//!           rows                      columns                   terms of a step
//! forward   windows, by im2col        filters                   a tap's slice of channels
//! data      coordinates, by im2col    channels, across          a tap's slice of filters
//! filter    filters, across           slices of taps, im2col    windows
//! ```
//!
//! A data gradient with strides is one such product for each phase (`Gather`); a filter gradient is
//! cut into parts where its tiles are few, and [`reduce`](super::reduce) adds them.

use cubecl::client::Client;
use cubecl::ir::{ElemType, FloatKind, UIntKind};
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::wgmma::Swizzle;
use cubecl::zspace::{Shape, Strides};
use windowpane_geometry::{AXES, Convolution, FilterLayout, Precision, Tile};

use super::epilogue::Epilogue;
use super::gather::{Gather, GatherForm, Sweep, WeightSteps, columns, inner, weight_steps};
use super::launch::buffer;
use super::plan::{Pass, Plan, Request, results, windows};
use crate::Limits;
use crate::dtype::elem;

mod kernel;
pub(super) mod plan;

use kernel::{CHUNK, Form, HopperArgsLaunch, LINE, PAIR};

/// How the operand that is not the image lies: the filters, or the output's gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flat {
    /// Outermost first; one of them is the taps.
    dimensions: [usize; 3],
    tap_first: bool,
    /// Whether rows or columns lie side by side, and not the terms of a sum.
    across: bool,
}

impl Flat {
    /// None where its lines are no lines in memory.
    fn new(conv: &Convolution, pass: Pass) -> Option<Self> {
        let filter = conv.filter();
        let (count, taps, channels) = (filter.count(), filter.taps(), filter.channels());
        if pass == Pass::Filter {
            let dimensions = [windows(conv), 1, count];
            return Some(Self { dimensions, tap_first: false, across: true });
        }
        let forward = pass == Pass::Forward;
        match conv.filter_layout() {
            FilterLayout::Fchw if taps > 1 => None,
            FilterLayout::Fhwc | FilterLayout::Fchw => Some(Self {
                dimensions: [count, taps, channels],
                tap_first: false,
                across: !forward,
            }),
            FilterLayout::Hwcf => {
                Some(Self { dimensions: [taps, channels, count], tap_first: true, across: forward })
            }
        }
    }

    /// What a copy brings at once: whole lines, as many as a block has, or panels a line wide.
    fn brought(&self, lines: u32, line: u32, terms: u32) -> [usize; 3] {
        let lines = if self.across { terms } else { lines } as usize;
        match self.tap_first {
            true => [1, lines, line as usize],
            false => [lines, 1, line as usize],
        }
    }
}

/// An axis as the copy engine walks it: from `first` on, `rows` windows.
fn corners(sweep: &Sweep) -> (i64, i64) {
    let lower = sweep.start - first_offset(sweep);
    let last = lower + (sweep.rows.saturating_sub(1) * sweep.step) as i64;
    (lower, last - (sweep.extent as i64 - 1))
}

/// How far on the first tap is from the least coordinate that a window reads.
fn first_offset(sweep: &Sweep) -> i64 {
    -(sweep.taps.saturating_sub(1) as i64 * sweep.tap_step).min(0)
}

/// A product, as the copy engine walks it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    /// With lines as long as they are brought.
    gather: Gather,
    /// The rows of a line that have results.
    line_rows: usize,
    /// The pixels past a row's first that it reads, if taps along the width share what is brought.
    reach: usize,
}

/// A run of pixels that taps share is no longer than its rows by more.
const MOST_REACH: usize = 64;

impl Walk {
    /// The products that a pass is made of.
    fn all(conv: &Convolution, pass: Pass, tile: &Tile) -> impl Iterator<Item = Self> {
        let (rank, narrow) = (conv.grid().rank(), plan::is_narrow(tile));
        Gather::all(conv, pass).map(move |gather| {
            let alone = Self { line_rows: gather.axes[AXES - 1].rows, gather, reach: 0 };
            let shared = Self::shared(gather).filter(|walk| fits(&walk.gather, rank));
            shared.filter(|_| narrow && pass != Pass::Filter).unwrap_or(alone)
        })
    }

    /// Where neighbouring windows are neighbouring pixels, all taps along the width can read one run of
    /// pixels, each a little further on. Runs go on from line to line, so that between two lines lie
    /// as many zeros as a window can read beside one: what runs over the end of a line reads the
    /// zeros before the next.
    fn shared(gather: Gather) -> Option<Self> {
        let along = &gather.axes[AXES - 1];
        let reach = along.taps.saturating_sub(1) * along.tap_step.unsigned_abs() as usize;
        let (rows, lower) = (along.rows as i64, along.start - first_offset(along));
        let zeros_before = rows + reach as i64 + lower;
        let zeros_after = along.extent as i64 - lower;
        let line = zeros_before.max(zeros_after).max(rows).min(rows + reach as i64) as usize;
        let mut walk = Self { line_rows: along.rows, gather, reach };
        walk.gather.axes[AXES - 1].rows = line;
        // The rows between the lines are multiplied for nothing.
        let worth = 4 * along.rows >= 3 * line;
        (along.step == 1 && (1..=MOST_REACH).contains(&reach) && worth).then_some(walk)
    }

    /// The runs that there is a place for beside so many stages: one more than those of the stages, so
    /// that where a stage's place is free, so is that of the run before all that are needed.
    fn runs(&self, stages: u32) -> u32 {
        let taps = self.gather.axes[AXES - 1].taps as u32;
        if self.reach > 0 { stages.div_ceil(taps) + 1 } else { 0 }
    }
}

/// Whether the copy engine's map can say how a product walks.
fn fits(gather: &Gather, rank: usize) -> bool {
    let (corner, offset) = if rank > 2 { (-16..=15, 31) } else { (-128..=127, 255) };
    gather.axes.iter().all(|axis| {
        let (lower, upper) = corners(axis);
        let reach = axis.taps.saturating_sub(1) as i64 * axis.tap_step.abs();
        corner.contains(&lower)
            && corner.contains(&upper)
            && reach.max(first_offset(axis)) <= offset
            && axis.step <= 8
    })
}

/// Launches a pass, `[image, flat, out]`: `out` has the parts of the sums where the plan cuts them.
#[allow(clippy::too_many_arguments, reason = "all that a launch is made of")]
pub(super) fn launch(
    client: &Client,
    conv: &Convolution,
    request: Request,
    plan: &Plan,
    limits: &Limits,
    [image, flat, out]: [&Handle; 3],
    epilogue: Epilogue<'_>,
) {
    let Request { pass, dtype, precision } = request;
    // The plan was checked: it has a tile, and the filters lie as a map can read them.
    let (Some(tile), Some(lies)) = (plan.tile, Flat::new(conv, pass)) else { return };
    let (columns, inner, filter) = (columns(conv, pass), inner(conv, pass), pass == Pass::Filter);
    let stored = plan.stored(pass, dtype);
    let steps = weight_steps(conv, pass);
    let rank = conv.grid().rank().max(2);
    let row_step = conv.filter().strides(conv.filter_layout()).count;
    let (column_step, width) = if filter { (steps.inner, inner) } else { (1, columns) };
    let whole = column_step == 1 && width.is_multiple_of(CHUNK as usize);
    let packed = whole && stored.size() == 2;
    let pair = if whole { PAIR as usize } else { 1 };
    let form = |walk: &Walk| Form {
        tile,
        size: dtype.size() as u32,
        rank,
        filter,
        reach: walk.reach as u32,
        runs: walk.runs(tile.stages),
        tap_first: lies.tap_first,
        flat_across: lies.across,
        finished: pair as u32,
        packed,
        epilogue: epilogue.form(stored),
        gather: GatherForm::new(conv, pass),
    };
    let factor = match precision {
        Precision::Tf32 => ElemType::Float(FloatKind::TF32),
        Precision::Strict => elem(dtype),
    };
    let line = LINE / dtype.size() as u32;
    let image_shape = match pass {
        Pass::Data => conv.output(),
        _ => conv.input(),
    };
    let slices = inner.div_ceil(line as usize);
    // Chunks of 16 bits are stored as words of 32.
    let (word, words, chunk) = match packed {
        true => (ElemType::UInt(UIntKind::U32), CHUNK / PAIR, CHUNK),
        false => (elem(stored), pair as u32, pair as u32),
    };
    let across = if filter { tile.block_m } else { tile.block_n };
    let results = results(conv, pass);
    let [_, kernel_height, kernel_width] = conv.filter().kernel().three(1);
    let numbers = WeightSteps {
        inner: 0,
        column: 0,
        group: 0,
        kernel: [kernel_height * kernel_width, kernel_width, 1],
    };
    for walk in Walk::all(conv, pass, &tile) {
        let gather = walk.gather;
        let taps = gather.axes.iter().map(|axis| axis.taps).product::<usize>();
        let (rows, all_columns, sum) = match filter {
            true => (columns, taps * slices * line as usize, windows(conv)),
            false => (gather.rows(conv), columns, taps * slices * tile.block_k as usize),
        };
        let steps = sum.div_ceil(tile.block_k as usize);
        let tiles_m = rows.div_ceil(tile.block_m as usize);
        let tiles_n = all_columns.div_ceil(tile.block_n as usize);
        let tiles = tiles_m * tiles_n * plan.splits * conv.groups();
        let most = plan::cubes(&tile, &walk, limits);
        let form = form(&walk);
        let cubes = tiles.min(most);
        let [depth_first, height_first, width_first] = gather.axes.each_ref().map(first_offset);
        // SAFETY: rows and columns past the last are stored nowhere, and the copy engine gives zeros
        // for what is outside of a tensor.
        unsafe {
            kernel::hopper::launch_unchecked(
                client,
                CubeCount::Static(cubes as u32, 1, 1),
                CubeDim::new_1d(form.units()),
                pair,
                words as usize,
                image_map(image, &image_shape, &gather, &form, factor),
                flat_map(flat, &lies, lies.brought(across, line, tile.block_k), factor),
                epilogue.bias(conv.filter().count(), pair),
                epilogue.residual(results, pair),
                buffer(out, results * plan.splits / chunk as usize),
                gather.args(conv, &numbers),
                HopperArgsLaunch::new(
                    tiles as u32,
                    tiles_n as u32,
                    tiles_m as u32,
                    plan.splits as u32,
                    rows as u32,
                    walk.line_rows as u32,
                    width as u32,
                    row_step as u32,
                    conv.filter().strides(conv.filter_layout()).kernel[AXES - 1] as u32,
                    column_step as u32,
                    steps as u32,
                    steps.div_ceil(plan.splits) as u32,
                    slices as u32,
                    taps as u32,
                    inner as u32,
                    if pass == Pass::Data { 0 } else { columns as u32 },
                    if pass == Pass::Data { inner as u32 } else { 0 },
                    depth_first as i32,
                    height_first as i32,
                    width_first as i32,
                    results as u32,
                    if filter { columns * row_step } else { columns } as u32,
                    epilogue.slope(),
                ),
                form,
                factor,
                elem(stored),
                word,
            )
        }
    }
}

/// The map by which the copy engine walks the windows over an image.
fn image_map(
    image: &Handle,
    shape: &windowpane_geometry::Shape,
    gather: &Gather,
    form: &Form,
    factor: ElemType,
) -> TensorMapArg<Im2col> {
    let axes = &gather.axes[AXES - form.rank..];
    let space = &shape.space().three(1)[AXES - form.rank..];
    let dimensions: Vec<usize> = [&[shape.batch()], space, &[shape.channels()]].concat();
    let (lower, upper): (Vec<_>, Vec<_>) = axes.iter().map(corners).unzip();
    let args = Im2colArgs {
        pixel_box_lower_corner: lower.into_iter().map(|x| x as i32).collect(),
        pixel_box_upper_corner: upper.into_iter().map(|x| x as i32).collect(),
        channels_per_pixel: form.line(),
        pixels_per_column: if form.filter { form.tile.block_k } else { form.run() },
    };
    let steps: Vec<usize> =
        [vec![1], axes.iter().map(|axis| axis.step).collect(), vec![1]].concat();
    TensorMapArg::new(args, tensor(image, &dimensions), factor)
        .with_elem_stride(Strides::new(&steps))
        .with_swizzle(Swizzle::B128.into())
}

/// The map of the other operand.
fn flat_map(
    flat: &Handle,
    lies: &Flat,
    brought: [usize; 3],
    factor: ElemType,
) -> TensorMapArg<Tiled> {
    let args = TiledArgs { tile_size: Shape::new(brought) };
    TensorMapArg::new(args, tensor(flat, &lies.dimensions), factor)
        .with_swizzle(Swizzle::B128.into())
}

/// A tensor whose elements lie one after another.
fn tensor(handle: &Handle, dimensions: &[usize]) -> TensorArg {
    let mut strides = vec![1; dimensions.len()];
    for i in (1..dimensions.len()).rev() {
        strides[i - 1] = strides[i] * dimensions[i];
    }
    // SAFETY: `Operands::check` has seen that the handle holds the elements.
    unsafe {
        TensorArg::from_raw_parts(
            handle.clone(),
            Strides::new(&strides),
            dimensions.iter().copied().collect(),
        )
    }
}
