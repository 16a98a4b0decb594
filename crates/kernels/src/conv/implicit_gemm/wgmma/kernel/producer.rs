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
use crate::conv::common::{GatherArgs, Point, Position, reach, read, row_position, tap_point};

#[cube]
pub(super) fn produce<'a, E: Float>(
    image: &'a TensorMap<E, Im2col>,
    flat: &'a TensorMap<E, Tiled>,
    pipeline: &mut Pipeline<E>,
    args: &'a Args,
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
            let loads = Loads::<'a, E> { image, flat, barrier, args, work, form };
            if comptime!(form.is_weight) {
                loads.load_windows(rows, columns, step);
            } else {
                let loaded = (loads_rows, loads_columns);
                loads.load_taps(rows, columns, first_row, &windows, &term, loaded);
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

/// The loads of a step.
#[derive(CubeType)]
struct Loads<'a, E: Float> {
    image: &'a TensorMap<E, Im2col>,
    flat: &'a TensorMap<E, Tiled>,
    /// The barrier of the stage.
    barrier: Barrier,
    args: &'a Args,
    work: Work,
    #[cube(comptime)]
    form: Form,
}

#[cube]
impl<E: Float> Loads<'_, E> {
    /// Loads a stage of the weight gradient. Its terms are windows, its columns are slices of taps.
    fn load_windows(&self, rows: &mut [E], columns: &mut [E], step: u32) {
        let form = comptime!(self.form);
        let first = step * comptime!(form.tile.block_k);
        let windows = row_position(&self.args.gather, first);
        #[unroll]
        for part in 0..form.parts {
            let size = comptime!(form.rows_part() as usize);
            let at = comptime!(part as usize * size);
            let rows = &mut rows[at..at + size];
            // The map has no taps; the parts take their place.
            self.load_flat(rows, self.work.row, first, part);
        }
        let size = comptime!((form.slice * form.tile.block_k) as usize);
        #[unroll]
        for panel in 0..comptime!((form.tile.block_n / form.slice) as usize) {
            let column = self.work.column / form.slice + comptime!(panel as u32);
            let (tap, slice) = self.args.slices.div_mod(column);
            // Columns past the last tap are not stored.
            let term = lone_term(min(tap, self.args.taps - 1), slice, &self.args.gather);
            #[unroll]
            for part in 0..form.parts {
                let at = comptime!((part * form.columns_part()) as usize + panel * size);
                let to = &mut columns[at..at + size];
                self.load_image(to, &windows, &term, part);
            }
        }
    }

    /// Loads a stage of the other passes. Its terms are a slice of a tap's channels.
    fn load_taps(
        &self,
        rows: &mut [E],
        columns: &mut [E],
        first_row: u32,
        windows: &Position,
        term: &Term,
        loaded: (bool, bool),
    ) {
        let form = comptime!(self.form);
        let (loads_rows, loads_columns) = loaded;
        let first = term.slice * comptime!(form.tile.block_k);
        #[unroll]
        for part in 0..form.parts {
            let size = comptime!(form.rows_part() as usize);
            let at = comptime!(part as usize * size);
            let rows = &mut rows[at..at + size];
            if comptime!(form.planar.is_some()) {
                self.load_planar(rows, term, part);
            } else if loads_rows {
                if comptime!(form.rows_mn_major) {
                    self.load_panels(rows, first, first_row);
                } else {
                    self.load_image(rows, windows, term, part);
                }
            }
            let size = comptime!(form.columns_part() as usize);
            let at = comptime!(part as usize * size);
            let columns = &mut columns[at..at + size];
            let column = self.work.column + part * self.args.flat_part;
            if loads_columns {
                let tap = term.tap.other;
                self.load_flat(columns, column, first, tap);
            }
        }
    }

    /// Loads the pixels that a run of windows reads at one tap, or at all taps along the width: a slice of their
    /// channels.
    fn load_image(&self, to: &mut [E], windows: &Position, term: &Term, part: u32) {
        let form = comptime!(self.form);
        // The start of the window, and the offset of this tap, as the map defines them.
        let phase = &self.work.phase;
        let height_first = self.args.height_first - phase.height.back;
        let width_first = self.args.width_first - phase.width.back;
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
            (windows.sample + part * self.args.image_part) as i32
        };
        let channel = (self.work.group * self.args.image_group + term.slice * form.slice) as i32;
        if comptime!(form.rank > 2) {
            let depth_first = self.args.depth_first - phase.depth.back;
            let d = read(&phase.gather.depth, windows.depth) - depth_first;
            let td = term.tap.depth + depth_first;
            self.barrier.tma_load_im2col_5d(
                self.image, to, sample, d, h, w, channel, td as u16, th as u16, tw as u16,
            );
        } else {
            self.barrier
                .tma_load_im2col_4d(self.image, to, sample, h, w, channel, th as u16, tw as u16);
        }
    }

    /// Loads rows that are contiguous: panels of them, each with all terms of the step.
    fn load_panels(&self, to: &mut [E], first_term: u32, first_row: u32) {
        let form = comptime!(self.form);
        let size = comptime!(form.panel() as usize);
        #[unroll]
        for panel in 0..comptime!((form.tile.block_m / form.line()) as usize) {
            let row = first_row + comptime!(panel as u32 * form.line());
            let at = comptime!(panel * size);
            let to = &mut to[at..at + size];
            self.barrier.tma_load_im2col_4d(
                self.image,
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
    fn load_planar(&self, to: &mut [E], term: &Term, part: u32) {
        let form = comptime!(self.form);
        let planar = self.args.planar.as_ref().unwrap();
        let (down, row_set) = planar.row_sets.div_mod(term.tap.height as u32);
        let first = self.work.row + down * planar.line;
        let line = (first / comptime!(PLANE_LINE as u32)) as i32;
        let within = (first % comptime!(PLANE_LINE as u32)) as i32;
        let size = comptime!(form.plane() as usize);
        #[unroll]
        for plane in 0..PLANES {
            let at = comptime!(plane * size);
            let to = &mut to[at..at + size];
            let nth =
                (part * self.args.image_part + row_set) * comptime!(PLANES as u32) + plane as u32;
            self.barrier
                .tma_load_im2col_4d(self.image, to, nth as i32, within, line, 0i32, 0u16, 0u16);
        }
    }

    /// Loads a block of the flat operand: the filters, or the output gradient.
    fn load_flat(&self, to: &mut [E], across: u32, term: u32, tap: u32) {
        let form = comptime!(self.form);
        let across = across + self.work.group * self.args.across_group;
        let term = term + self.work.group * self.args.term_group;
        // A sample takes the place of a tap.
        let tap = if comptime!(form.separate_samples()) { tap + self.work.group } else { tap };
        if comptime!(form.flat_mn_major) {
            let lines =
                comptime!(if form.is_weight { form.tile.block_m } else { form.tile.block_n });
            let size = comptime!(form.panel() as usize);
            #[unroll]
            for panel in 0..comptime!(lines.div_ceil(form.line()) as usize) {
                let across = across + comptime!(panel as u32 * form.line());
                let at = comptime!(panel * size);
                let to = &mut to[at..at + size];
                self.load_box(to, term, tap, across);
            }
        } else {
            self.load_box(to, across, tap, term);
        }
    }

    fn load_box(&self, to: &mut [E], line: u32, tap: u32, along: u32) {
        if comptime!(self.form.tap_first) {
            self.barrier.tma_load_3d(self.flat, to, tap as i32, line as i32, along as i32);
        } else {
            self.barrier.tma_load_3d(self.flat, to, line as i32, tap as i32, along as i32);
        }
    }
}
