//! Which problems bands are for, and the tile of one: a walk a plane.

use windowpane_geometry::{AXES, Convolution, DType, Layout, Tile};

use super::form::{CHUNK, Form, HALVES, PLANE, TILES, WALKS, walk_windows};
use crate::conv::epilogue::Epilogue;
use crate::conv::gather::{Gather, columns, inner, phases};
use crate::conv::plan::rules::{
    self, MOST_BLOCK, MOST_CUBES, check_block, check_divisor, check_number, check_shared,
    check_units, widest_factor_load,
};
use crate::conv::plan::{Pass, PlanError, Request};
use crate::{Fragment, Limits};

/// The most strips that a tile reads, and that it is from a tile to the next.
const MOST_STRIPS: u64 = 16;
const MOST_STEP: usize = 4;

/// The most walks of a cube side by side.
const MOST_WALKS: u32 = 8;

/// Whether there is such a kernel for a problem and a device.
pub(in crate::conv) fn can(conv: &Convolution, request: Request, limits: &Limits) -> bool {
    limits.cores.is_none()
        && conv.input().batch() <= MOST_CUBES
        && suits(conv, request.pass, request.dtype)
        && tile(conv, request, limits).is_some()
}

/// Whether a problem's channels, taps and layout are such that it can be computed so.
pub(super) fn suits(conv: &Convolution, pass: Pass, dtype: DType) -> bool {
    let chunk = CHUNK as usize;
    let (inner, columns) = (inner(conv, pass), columns(conv, pass));
    let grouped = dtype.size() == 2
        && matches!(pass, Pass::Forward | Pass::Data)
        && conv.layout() == Layout::ChannelsLast
        && conv.grid().rank() == 2
        && conv.groups() > 1
        && inner == columns
        && chunk.is_multiple_of(inner)
        && conv.input().channels().is_multiple_of(chunk)
        && phases(conv, pass) == [1; AXES];
    grouped && Gather::all(conv, pass).all(|gather| is_near(&gather, conv, inner))
}

/// Whether what a tile reads is near enough that strips and lines of it can be counted, and cubes too.
fn is_near(gather: &Gather, conv: &Convolution, group: usize) -> bool {
    // Coordinates that are in no window have a gradient of zeros, which others write.
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

/// The fragment of a request, where a plane's units can hold such as bands are laid out for.
pub(in crate::conv) fn fragment(request: Request, limits: &Limits) -> Option<(Fragment, u32)> {
    let held = |plane| limits.holds_fragments && plane == PLANE;
    let whole = request.dtype.size() == 2 && widest_factor_load(request.dtype, limits) == CHUNK;
    rules::fragment(request, limits).filter(|&(_, plane)| whole && held(plane))
}

/// A walk a plane: 56 windows wide where channels are single, and 14 where they are 8; with 64 bytes of a
/// pixel, and as many groups a plane as leave 8 planes; smaller where shared memory is small, or
/// channels are few.
pub(in crate::conv) fn tile(conv: &Convolution, request: Request, limits: &Limits) -> Option<Tile> {
    let groups = chunk_groups(conv, request.pass);
    // Single channels are walked down in two halves.
    let lines = if groups == CHUNK { 7 } else { 14 };
    let tile = |lines: u32, chunks: u32| Tile {
        block_m: block(conv, request.pass, lines),
        block_n: CHUNK * chunks,
        block_k: 16,
        ratio_m: lines,
        ratio_n: (groups * chunks / 8).max(1),
        elems_per_thread: widest_factor_load(request.dtype, limits),
        stages: 1,
    };
    [(lines, 4), (lines, 2), (lines, 1), (4, 1)]
        .map(|(lines, chunks)| tile(lines, chunks))
        .into_iter()
        .find(|tile| check(tile, conv, request, limits).is_ok())
}

/// Refuses a tile that there is no such kernel for.
pub(in crate::conv) fn check(
    tile: &Tile,
    conv: &Convolution,
    request: Request,
    limits: &Limits,
) -> Result<(), PlanError> {
    let lanes = widest_factor_load(request.dtype, limits);
    check_number("block_k", tile.block_k, 16)?;
    check_number("elems_per_thread", tile.elems_per_thread, lanes)?;
    check_number("stages", tile.stages, 1)?;
    let sums = tile.ratio_m;
    if !WALKS.contains(&sums) {
        let [.., limit] = WALKS;
        return Err(PlanError::Sums { sums, limit });
    }
    let walk = block(conv, request.pass, sums);
    check_block("block_m", tile.block_m, walk, MOST_WALKS * walk)?;
    check_block("block_n", tile.block_n, CHUNK, MOST_BLOCK)?;
    let groups = chunk_groups(conv, request.pass) * tile.block_n / CHUNK;
    check_divisor("ratio_n", tile.ratio_n, groups as usize, "groups of channels in a block")?;
    check_divisor("block_n", tile.block_n, conv.input().channels(), "channels")?;
    check_units(units(tile, conv, request.pass), limits)?;
    // Without fragments nothing is staged.
    let bytes = match fragment(request, limits) {
        Some(_) => shared_bytes(tile, conv, request.pass, request.dtype),
        None => 0,
    };
    check_shared(bytes, limits)
}

/// The units of a cube.
pub(in crate::conv) fn units(tile: &Tile, conv: &Convolution, pass: Pass) -> u32 {
    let groups = tile.block_n / inner(conv, pass) as u32;
    (groups / tile.ratio_n.max(1)).saturating_mul(PLANE)
}

/// The windows of a cube whose planes walk so many lines, once.
fn block(conv: &Convolution, pass: Pass, lines: u32) -> u32 {
    walk_windows(inner(conv, pass) as u32, lines)
}

/// The groups of a chunk.
fn chunk_groups(conv: &Convolution, pass: Pass) -> u32 {
    CHUNK / inner(conv, pass) as u32
}

/// The bytes of shared memory that a tile takes on matrix units.
fn shared_bytes(tile: &Tile, conv: &Convolution, pass: Pass, dtype: DType) -> usize {
    // Sums are the largest where they are laid out as they are.
    let form = |gather| Form {
        late: true,
        ..Form::new(conv, pass, &gather, tile, true, &Epilogue::NONE, dtype)
    };
    let strips = Gather::all(conv, pass).map(|gather| form(gather).shared()).max();
    strips.unwrap_or(0) as usize * CHUNK as usize * dtype.size()
}
