//! The producer: one unit that has the copy engine fill stage after stage. It runs ahead of the warpgroups as far as
//! the pipeline allows, and into the next tile.
//!
//! For each step it waits until the stage has been read, sets the number of bytes that the stage's barrier must wait
//! for, and issues the loads:
//!
//! ```text
//!           rows                                 columns
//! forward   the image's windows, at a tap        a block of the filters
//! data      the gradient's windows, at a tap     a block of the filters
//! weight    a block of the gradient              the image's windows, a panel for each slice of a tap
//! ```

use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;

use super::super::repack::image::{PLANE_LINE, PLANES};
use super::args::Args;
use super::form::Form;
use super::pipeline::{Pipeline, PipelineState, following, place};
use super::scheduler::{Work, first_stride, next_stride, work};
use crate::conv::common::gather::{
    GatherArgs, Point, Position, reach, read, row_position, tap_point,
};

#[cube]
pub(super) fn produce<E: Float>(
    image: &TensorMap<E, Im2col>,
    flat: &TensorMap<E, Tiled>,
    pipeline: &mut Pipeline<E>,
    args: &Args,
    #[comptime] form: Form,
) {
    let mut run = 0u32.runtime();
    let mut state = PipelineState::first();
    let mut tile = CUBE_POS_X;
    let mut stride = first_stride(CUBE_POS_X, CUBE_COUNT_X, form);
    while tile < args.tiles {
        let work = work(tile, args, form);
        // Resident rows are loaded whole, even if the first tile is only a share of one.
        let first_row = if comptime!(form.resident.rows > 0) { 0u32.runtime() } else { work.row };
        let windows = row_position(&work.phase.gather, first_row);
        for step in work.first..work.end {
            let term = term(step, &work, args, form);
            let barrier = pipeline.wait_empty(state);
            let at = place(step, state, form.resident.columns);
            let at = (at * comptime!(form.columns_stage())) as usize;
            let columns = &mut pipeline.columns[at..at + comptime!(form.columns_stage() as usize)];
            let at =
                if comptime!(form.shares()) { run } else { place(step, state, form.resident.rows) };
            let at = (at * comptime!(form.rows_stage())) as usize;
            let rows = &mut pipeline.rows[at..at + comptime!(form.rows_stage() as usize)];
            let loads_rows =
                if comptime!(form.resident.rows > 0) { tile == CUBE_POS_X } else { term.starts };
            let loads_columns = if comptime!(form.resident.columns > 0) {
                tile == CUBE_POS_X
            } else {
                true.runtime()
            };
            let own = select(loads_rows, comptime!(form.stage_bytes(true, false)), 0u32);
            let other = select(loads_columns, comptime!(form.stage_bytes(false, true)), 0u32);
            barrier.arrive_and_expect_tx(1u32, own + other);
            if comptime!(form.is_weight) {
                load_windows::<E>(image, flat, &barrier, rows, columns, &work, step, args, form);
            } else {
                load_taps::<E>(
                    image,
                    flat,
                    &barrier,
                    rows,
                    columns,
                    &work,
                    first_row,
                    &windows,
                    &term,
                    loads_rows,
                    loads_columns,
                    args,
                    form,
                );
            }
            state.advance(form.tile.stages);
            run = select(term.ends, following(run, form.row_stages), run);
        }
        tile += stride;
        stride = next_stride(stride, CUBE_COUNT_X, form);
    }
}

/// The terms of a step: a slice of a tap's channels.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Term {
    tap: Point,
    slice: u32,
    /// Whether it is the first, or the last, of the terms that share a run of pixels.
    starts: bool,
    ends: bool,
}

#[cube]
fn term(step: u32, work: &Work, args: &Args, #[comptime] form: Form) -> Term {
    let gather = &work.phase.gather;
    if comptime!(form.shares()) {
        // The taps along the width follow one another, so that all of them read the pixels that were loaded for the
        // first.
        let (rest, tw) = gather.width.taps.div_mod(step);
        let (rest, slice) = args.slices.div_mod(rest);
        let (td, th) = gather.height.taps.div_mod(rest);
        let tap = tap_point(gather, td, th, tw);
        Term { tap, slice, starts: tw == 0, ends: tw + 1 == gather.width.taps_count }
    } else {
        let (tap, slice) = args.slices.div_mod(step);
        lone_term(tap, slice, gather)
    }
}

/// Terms that share no pixels with others, given the index of their tap.
#[cube]
fn lone_term(tap: u32, slice: u32, gather: &GatherArgs) -> Term {
    let (tap, tw) = gather.width.taps.div_mod(tap);
    let (td, th) = gather.height.taps.div_mod(tap);
    let tap = tap_point(gather, td, th, tw);
    Term { tap, slice, starts: true.runtime(), ends: true.runtime() }
}

/// Loads a stage of the weight gradient. Its terms are windows, its columns are slices of taps.
#[cube]
fn load_windows<E: Float>(
    image: &TensorMap<E, Im2col>,
    flat: &TensorMap<E, Tiled>,
    barrier: &Barrier,
    rows: &mut [E],
    columns: &mut [E],
    work: &Work,
    step: u32,
    args: &Args,
    #[comptime] form: Form,
) {
    let first = step * comptime!(form.tile.block_k);
    let windows = row_position(&args.gather, first);
    #[unroll]
    for part in 0..form.parts {
        let size = comptime!(form.rows_part() as usize);
        let at = comptime!(part as usize * size);
        let rows = &mut rows[at..at + size];
        // The map has no taps; the parts take their place.
        load_flat::<E>(flat, barrier, rows, work.row, first, part, work, args, form);
    }
    let size = comptime!((form.slice * form.tile.block_k) as usize);
    #[unroll]
    for panel in 0..comptime!((form.tile.block_n / form.slice) as usize) {
        let column = work.column / form.slice + comptime!(panel as u32);
        let (tap, slice) = args.slices.div_mod(column);
        // Columns past the last tap are not stored.
        let term = lone_term(min(tap, args.taps - 1), slice, &args.gather);
        #[unroll]
        for part in 0..form.parts {
            let at = comptime!((part * form.columns_part()) as usize + panel * size);
            let to = &mut columns[at..at + size];
            load_image::<E>(image, barrier, to, &windows, &term, part, work, args, form);
        }
    }
}

/// Loads a stage of the other passes. Its terms are a slice of a tap's channels.
#[cube]
fn load_taps<E: Float>(
    image: &TensorMap<E, Im2col>,
    flat: &TensorMap<E, Tiled>,
    barrier: &Barrier,
    rows: &mut [E],
    columns: &mut [E],
    work: &Work,
    first_row: u32,
    windows: &Position,
    term: &Term,
    loads_rows: bool,
    loads_columns: bool,
    args: &Args,
    #[comptime] form: Form,
) {
    let first = term.slice * comptime!(form.tile.block_k);
    #[unroll]
    for part in 0..form.parts {
        let size = comptime!(form.rows_part() as usize);
        let at = comptime!(part as usize * size);
        let rows = &mut rows[at..at + size];
        if comptime!(form.planar.is_some()) {
            load_planar::<E>(image, barrier, rows, term, part, work, args, form);
        } else if loads_rows {
            if comptime!(form.rows_mn_major) {
                load_panels::<E>(image, barrier, rows, first, first_row, form);
            } else {
                load_image::<E>(image, barrier, rows, windows, term, part, work, args, form);
            }
        }
        let size = comptime!(form.columns_part() as usize);
        let at = comptime!(part as usize * size);
        let columns = &mut columns[at..at + size];
        let column = work.column + part * args.flat_part;
        if loads_columns {
            let tap = term.tap.other;
            load_flat::<E>(flat, barrier, columns, column, first, tap, work, args, form);
        }
    }
}

/// Loads the pixels that a run of windows reads at one tap, or at all taps along the width: a slice of their channels.
#[cube]
fn load_image<E: Float>(
    image: &TensorMap<E, Im2col>,
    barrier: &Barrier,
    to: &mut [E],
    windows: &Position,
    term: &Term,
    part: u32,
    work: &Work,
    args: &Args,
    #[comptime] form: Form,
) {
    // The start of the window, and the offset of this tap, as the map defines them.
    let phase = &work.phase;
    let height_first = args.height_first - phase.height.back;
    let width_first = args.width_first - phase.width.back;
    let h = read(&phase.gather.height, windows.height) - height_first;
    let w = read(&phase.gather.width, windows.width) - width_first;
    let th = term.tap.height + height_first;
    let tw = if comptime!(!form.shares()) {
        term.tap.width + width_first
    } else if comptime!(form.phased) {
        // The run begins with the pixel of the last tap.
        width_first - reach(&phase.gather.width)
    } else {
        0i32.runtime()
    };
    let sample = if comptime!(form.sums_samples) {
        term.tap.other as i32
    } else {
        (windows.sample + part * args.image_part) as i32
    };
    let channel = (work.group * args.image_group + term.slice * form.slice) as i32;
    if comptime!(form.rank > 2) {
        let depth_first = args.depth_first - phase.depth.back;
        let d = read(&phase.gather.depth, windows.depth) - depth_first;
        let td = term.tap.depth + depth_first;
        barrier.tma_load_im2col_5d(
            image, to, sample, d, h, w, channel, td as u16, th as u16, tw as u16,
        );
    } else {
        barrier.tma_load_im2col_4d(image, to, sample, h, w, channel, th as u16, tw as u16);
    }
}

/// Loads rows that are contiguous: panels of them, each with all terms of the step.
#[cube]
fn load_panels<E: Float>(
    image: &TensorMap<E, Im2col>,
    barrier: &Barrier,
    to: &mut [E],
    first_term: u32,
    first_row: u32,
    #[comptime] form: Form,
) {
    let size = comptime!(form.panel() as usize);
    #[unroll]
    for panel in 0..comptime!((form.tile.block_m / form.line()) as usize) {
        let row = first_row + comptime!(panel as u32 * form.line());
        let at = comptime!(panel * size);
        let to = &mut to[at..at + size];
        barrier.tma_load_im2col_4d(
            image,
            to,
            0i32,
            0i32,
            first_term as i32,
            row as i32,
            0u16,
            0u16,
        );
    }
}

/// Loads the pixels that a run of windows reads at all taps along the width, from both planes.
#[cube]
fn load_planar<E: Float>(
    image: &TensorMap<E, Im2col>,
    barrier: &Barrier,
    to: &mut [E],
    term: &Term,
    part: u32,
    work: &Work,
    args: &Args,
    #[comptime] form: Form,
) {
    let planar = args.planar.as_ref().unwrap();
    let (down, row_set) = planar.row_sets.div_mod(term.tap.height as u32);
    let first = work.row + down * planar.line;
    let line = (first / comptime!(PLANE_LINE as u32)) as i32;
    let within = (first % comptime!(PLANE_LINE as u32)) as i32;
    let size = comptime!(form.plane() as usize);
    #[unroll]
    for plane in 0..PLANES {
        let at = comptime!(plane * size);
        let to = &mut to[at..at + size];
        let nth = (part * args.image_part + row_set) * comptime!(PLANES as u32) + plane as u32;
        barrier.tma_load_im2col_4d(image, to, nth as i32, within, line, 0i32, 0u16, 0u16);
    }
}

/// Loads a block of the flat operand: the filters, or the output gradient.
#[cube]
fn load_flat<E: Float>(
    flat: &TensorMap<E, Tiled>,
    barrier: &Barrier,
    to: &mut [E],
    across: u32,
    term: u32,
    tap: u32,
    work: &Work,
    args: &Args,
    #[comptime] form: Form,
) {
    let across = across + work.group * args.across_group;
    let term = term + work.group * args.term_group;
    // A sample takes the place of a tap.
    let tap = if comptime!(form.separate_samples()) { tap + work.group } else { tap };
    if comptime!(form.flat_mn_major) {
        let lines = comptime!(if form.is_weight { form.tile.block_m } else { form.tile.block_n });
        let size = comptime!(form.panel() as usize);
        #[unroll]
        for panel in 0..comptime!(lines.div_ceil(form.line()) as usize) {
            let across = across + comptime!(panel as u32 * form.line());
            let at = comptime!(panel * size);
            let to = &mut to[at..at + size];
            load_box::<E>(flat, barrier, to, term, tap, across, form);
        }
    } else {
        load_box::<E>(flat, barrier, to, across, tap, term, form);
    }
}

#[cube]
fn load_box<E: Float>(
    flat: &TensorMap<E, Tiled>,
    barrier: &Barrier,
    to: &mut [E],
    line: u32,
    tap: u32,
    along: u32,
    #[comptime] form: Form,
) {
    if comptime!(form.tap_first) {
        barrier.tma_load_3d(flat, to, tap as i32, line as i32, along as i32);
    } else {
        barrier.tma_load_3d(flat, to, line as i32, tap as i32, along as i32);
    }
}
