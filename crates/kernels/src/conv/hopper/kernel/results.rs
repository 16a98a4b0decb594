//! What becomes of the sums of a tile: told of if they are no numbers, finished, and stored.
//!
//! A unit holds pairs of neighbouring columns of two rows of each band of 16, one band a warp:
//!
//! ```text
//!            columns 0 1   2 3   4 5   6 7     8 9  ..        4 units have a chunk of 8 columns between them
//! row 0            unit 0  1     2     3       0    ..        the first half of a unit's sums
//! row 1            unit 4  5     6     7       4    ..
//! ..
//! row 8            unit 0  1     2     3       0    ..        the second half
//! ```
//!
//! Results of 32 bits are stored in these pairs, for four neighbours have a whole sector of memory between
//! them (`store`). Of 16 bits, a warp turns its rows over in shared memory and stores whole lines (`turn_over`), or
//! two of a row at a time (`turn_panels_over`).

use cubecl::cmma::{MmaDefinition, StMatrixForm};
use cubecl::prelude::*;

use super::super::super::epilogue::finish_at;
use super::super::super::gather::{row_place, row_result};
use super::super::product::BAND;
use super::form::{CHUNK, Form, PAIR, STAGED, STAGED_LINE, WARP, WARPGROUP};
use super::numbers::Numbers;
use super::order::Work;
use super::speaks_for_warp;
use super::sums::Sums;

/// The units that have a chunk between them, and the chunks that an instruction lays down.
const QUAD: u32 = 4;

/// Where rows lie that have no results.
const NOWHERE: u32 = u32::MAX;

/// Where results go, and what is added to them.
#[derive(CubeType)]
pub(super) struct Results<'a, R: Float, P: Size, W: Numeric, O: Size> {
    bias: ComptimeOption<Box<[Vector<R, P>]>>,
    residual: ComptimeOption<Box<[Vector<R, P>]>>,
    /// The memory in which warps turn rows over.
    turned: Shared<[Vector<u32, O>]>,
    out: &'a mut [Vector<W, O>],
    /// For each band of rows of a tile, whether it has sums that are no numbers.
    flags: &'a mut [u32],
}

#[cube]
impl<'a, R: Float, P: Size, W: Numeric, O: Size> Results<'a, R, P, W, O> {
    pub(super) fn new(
        bias: ComptimeOption<Box<[Vector<R, P>]>>,
        residual: ComptimeOption<Box<[Vector<R, P>]>>,
        turned: Shared<[Vector<u32, O>]>,
        out: &'a mut [Vector<W, O>],
        flags: &'a mut [u32],
    ) -> Results<'a, R, P, W, O> {
        Results::<'a, R, P, W, O> { bias, residual, turned, out, flags }
    }

    /// Stores 64 rows of a tile.
    pub(super) fn keep(
        &mut self,
        sums: &Sums,
        first_row: u32,
        work: &Work,
        numbers: &Numbers,
        #[comptime] form: Form,
    ) {
        if comptime!(form.checked) {
            self.tell(sums, first_row, work, numbers, form);
        }
        if comptime!(form.packed && form.long) {
            self.turn_over(sums, first_row, work, numbers, form);
        } else if comptime!(form.packed) {
            self.turn_panels_over(sums, first_row, work, numbers, form);
        } else {
            self.store(sums, first_row, work, numbers, form);
        }
    }

    /// Tells whether a band of rows has sums that are no numbers.
    fn tell(
        &mut self,
        sums: &Sums,
        first_row: u32,
        work: &Work,
        numbers: &Numbers,
        #[comptime] form: Form,
    ) {
        // Zero times a number is zero.
        let mut doubt = 0.0f32;
        #[unroll]
        for i in 0..comptime!((form.tile.block_n / 2) as usize) {
            doubt = fma(sums[i], 0.0f32, doubt);
        }
        let found = plane_any(doubt != 0.0);
        let band = first_row / BAND + UNIT_POS % WARPGROUP / WARP;
        let group = if comptime!(form.filter) {
            work.group * numbers.parts_count + work.part
        } else {
            work.group
        };
        let column = group * numbers.tiles_n_count + work.column / comptime!(form.tile.block_n);
        if speaks_for_warp() {
            self.flags[(column * numbers.bands + band) as usize] = u32::cast_from(found);
        }
    }

    /// As the units hold them.
    fn store(
        &mut self,
        sums: &Sums,
        first_row: u32,
        work: &Work,
        numbers: &Numbers,
        #[comptime] form: Form,
    ) {
        let unit = UNIT_POS % WARPGROUP;
        let mine = unit % QUAD;
        #[unroll]
        for half in 0..2u32 {
            let row = first_row + unit / WARP * 16 + unit % WARP / QUAD + half * 8;
            let (base, there) = row_base(row, work, numbers, form);
            #[unroll]
            for quad in 0..comptime!(form.tile.block_n / CHUNK / QUAD) {
                let first = work.column + comptime!(quad * QUAD * CHUNK);
                #[unroll]
                for chunk in 0..QUAD {
                    #[unroll]
                    for lane in 0..comptime!(PAIR / form.finished) {
                        let column = first + chunk * CHUNK + mine * PAIR + lane;
                        let to = target(column, base, there, work, numbers, form);
                        let nth = comptime!(nth(quad, chunk, half) + lane as usize);
                        let value = self.finished(sums, nth, &to, numbers, form);
                        if to.there {
                            self.out[to.at as usize / P::value()] =
                                Vector::<W, O>::cast_from(value);
                        }
                    }
                }
            }
        }
    }

    /// Of 16 bits and short sums, two lines of a row at a time: memory takes these sooner than one line each of
    /// two rows. A warp lays both halves of its rows of a panel down in shared memory, and takes them up row after
    /// row.
    fn turn_panels_over(
        &mut self,
        sums: &Sums,
        first_row: u32,
        work: &Work,
        numbers: &Numbers,
        #[comptime] form: Form,
    ) {
        #[unroll]
        for nth in 0..comptime!(panels(form)) {
            let panel = comptime!(panel(nth, form));
            #[unroll]
            for half in 0..2u32 {
                self.lay_down(sums, panel, half, first_row, work, numbers, form);
            }
            self.take_up(panel, first_row, work, numbers, form);
        }
    }

    /// Chunks are permuted, as the copy engine would, so that those of eight rows, and of one, lie in different
    /// banks.
    #[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
    fn lay_down(
        &mut self,
        sums: &Sums,
        #[comptime] panel: Panel,
        #[comptime] half: u32,
        first_row: u32,
        work: &Work,
        numbers: &Numbers,
        #[comptime] form: Form,
    ) {
        let size!(One) = 1usize;
        let definition = MmaDefinition::<R, R, f32>::new(16usize, 8usize, 16usize);
        let lane = UNIT_POS % WARP;
        let mine = lane % QUAD;
        let band = first_row + UNIT_POS % WARPGROUP / WARP * BAND;
        let down = lane % HALF;
        let place = UNIT_POS / WARP * comptime!(form.staged_by_warp());
        let laid = place + down * PANEL_LINE + ((lane / HALF) ^ down);
        #[unroll]
        for quad in 0..comptime!(panel.chunks / QUAD) {
            let mut words = Array::<Vector<u32, One>>::new(4usize);
            #[unroll]
            for nth_chunk in 0..QUAD {
                let chunk = comptime!(panel.begin + quad * QUAD + nth_chunk);
                let column = work.column + comptime!(chunk * CHUNK) + mine * PAIR;
                let to = if comptime!(self.residual.is_some()) {
                    let row = band + lane / QUAD + comptime!(half * HALF);
                    let (base, there) = row_base(row, work, numbers, form);
                    target(column, base, there, work, numbers, form)
                } else {
                    target(column, 0u32.runtime(), true.runtime(), work, numbers, form)
                };
                let nth = comptime!(nth(chunk / QUAD, chunk % QUAD, half));
                let pair = self.finished(sums, nth, &to, numbers, form);
                let mut single = Vector::<u32, One>::empty();
                single.insert(0usize, u32::reinterpret(pair));
                words[nth_chunk as usize] = single;
            }
            let at = ((laid ^ comptime!(quad * QUAD)) + comptime!(half * STAGED)) as usize;
            definition.store_matrix_with_form::<Vector<u32, O>, One>(
                &mut self.turned[at..at + 1],
                &words,
                StMatrixForm::M8N8B16,
                4usize,
                false,
            );
        }
    }

    fn take_up(
        &mut self,
        #[comptime] panel: Panel,
        first_row: u32,
        work: &Work,
        numbers: &Numbers,
        #[comptime] form: Form,
    ) {
        let lane = UNIT_POS % WARP;
        let place = UNIT_POS / WARP * comptime!(form.staged_by_warp());
        let band = first_row + UNIT_POS % WARPGROUP / WARP * BAND;
        let (base, there) = row_base(band + lane % BAND, work, numbers, form);
        let base = select(there, base, NOWHERE);
        sync_plane();
        let rows = comptime!(WARP / panel.chunks);
        let chunk = lane % panel.chunks;
        let down = lane / panel.chunks;
        let taken = place + down * PANEL_LINE + (chunk ^ down);
        let column = work.column + comptime!(panel.begin * CHUNK) + chunk * CHUNK;
        #[unroll]
        for half in 0..2u32 {
            #[unroll]
            for i in 0..comptime!(HALF / rows) {
                let base = plane_shuffle(base, comptime!(half * HALF + i * rows) + down);
                let to = target(column, base, base != NOWHERE, work, numbers, form);
                let at = (taken ^ comptime!(i * rows))
                    + comptime!(half * STAGED + i * rows * PANEL_LINE);
                if to.there {
                    self.out[(to.at / CHUNK) as usize] =
                        Vector::<W, O>::reinterpret(self.turned[at as usize]);
                }
            }
        }
        sync_plane();
    }

    /// Of 16 bits and long sums, in whole lines. A warp lays its 16 rows down in shared memory, a line of columns at a
    /// time, and takes up whole lines. Chunks are permuted, as the copy engine would, so that those of
    /// eight rows, and of one, lie in different banks.
    fn turn_over(
        &mut self,
        sums: &Sums,
        first_row: u32,
        work: &Work,
        numbers: &Numbers,
        #[comptime] form: Form,
    ) {
        let size!(One) = 1usize;
        let definition = MmaDefinition::<R, R, f32>::new(16usize, 8usize, 16usize);
        let lane = UNIT_POS % WARP;
        let mine = lane % QUAD;
        let place = UNIT_POS / WARP * comptime!(form.staged_by_warp());
        let band = first_row + UNIT_POS % WARPGROUP / WARP * BAND;
        let down = lane % BAND;
        let laid = place + down * STAGED_LINE + ((lane / BAND) ^ (down % STAGED_LINE));
        let (base, there) = row_base(band + down, work, numbers, form);
        let base = select(there, base, NOWHERE);
        let chunks = comptime!(form.tile.block_n / CHUNK);
        #[unroll]
        for panel in 0..comptime!(chunks.div_ceil(STAGED_LINE)) {
            let begin = comptime!(panel * STAGED_LINE);
            let count = comptime!((chunks - begin).min(STAGED_LINE));
            #[unroll]
            for two in 0..comptime!(count / 2) {
                let mut words = Array::<Vector<u32, One>>::new(4usize);
                #[unroll]
                for word in 0..4u32 {
                    let chunk = comptime!(begin + 2 * two + word / 2);
                    let half = comptime!(word % 2);
                    let column = work.column + comptime!(chunk * CHUNK) + mine * PAIR;
                    let to = if comptime!(self.residual.is_some()) {
                        let row = band + lane / QUAD + half * 8;
                        let (base, there) = row_base(row, work, numbers, form);
                        target(column, base, there, work, numbers, form)
                    } else {
                        target(column, 0u32.runtime(), true.runtime(), work, numbers, form)
                    };
                    let nth = comptime!(nth(chunk / QUAD, chunk % QUAD, half));
                    let pair = self.finished(sums, nth, &to, numbers, form);
                    let mut single = Vector::<u32, One>::empty();
                    single.insert(0usize, u32::reinterpret(pair));
                    words[word as usize] = single;
                }
                let at = (laid ^ comptime!(2 * two)) as usize;
                definition.store_matrix_with_form::<Vector<u32, O>, One>(
                    &mut self.turned[at..at + 1],
                    &words,
                    StMatrixForm::M8N8B16,
                    4usize,
                    false,
                );
            }
            sync_plane();
            let rows = comptime!(WARP / count);
            let chunk = lane % count;
            let taken = place + lane / count * STAGED_LINE + (chunk ^ (lane / count));
            let column = work.column + comptime!(begin * CHUNK) + chunk * CHUNK;
            #[unroll]
            for i in 0..comptime!(BAND / rows) {
                let down = comptime!(i * rows) + lane / count;
                let base = plane_shuffle(base, down);
                let to = target(column, base, base != NOWHERE, work, numbers, form);
                let at =
                    (taken ^ comptime!(i * rows % STAGED_LINE)) + comptime!(i * rows * STAGED_LINE);
                if to.there {
                    self.out[(to.at / CHUNK) as usize] =
                        Vector::<W, O>::reinterpret(self.turned[at as usize]);
                }
            }
            sync_plane();
        }
    }

    /// Sums with what follows them.
    fn finished(
        &self,
        sums: &Sums,
        #[comptime] nth: usize,
        to: &Target,
        numbers: &Numbers,
        #[comptime] form: Form,
    ) -> Vector<R, P> {
        let mut sum = Vector::<f32, P>::empty();
        #[unroll]
        for lane in 0..P::value() {
            sum.insert(lane, sums[comptime!(nth + lane)]);
        }
        let (channel, at) = (to.channel / P::value() as u32, to.at / P::value() as u32);
        finish_at::<R, f32, P>(
            &self.bias,
            &self.residual,
            sum,
            channel,
            at,
            numbers.slope,
            form.epilogue,
        )
    }
}

/// The rows of a half of a band, and the chunks of one of them in a panel at most.
const HALF: u32 = BAND / 2;
const PANEL_LINE: u32 = STAGED / HALF;

/// Neighbouring chunks of columns that a warp turns over at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Panel {
    begin: u32,
    chunks: u32,
}

/// The panels of a tile: as many chunks as a line has, then fewer by powers of two, so that a warp takes up whole
/// rows.
fn panels(form: Form) -> u32 {
    let chunks = form.tile.block_n / CHUNK;
    chunks / PANEL_LINE + (chunks % PANEL_LINE).count_ones()
}

fn panel(nth: u32, form: Form) -> Panel {
    let mut left = form.tile.block_n / CHUNK;
    let mut panel = Panel { begin: 0, chunks: 0 };
    for _ in 0..=nth {
        panel.begin += panel.chunks;
        panel.chunks = PANEL_LINE.min(1 << left.ilog2());
        left -= panel.chunks;
    }
    panel
}

/// The first register of a warpgroup's unit for a pair of columns.
fn nth(quad: u32, chunk: u32, half: u32) -> usize {
    (((quad * QUAD + chunk) * 2 + half) * PAIR) as usize
}

/// Where a result lies.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Target {
    /// Its channel, and its place in the tensor; 0 where it is not there.
    channel: u32,
    at: u32,
    there: bool,
}

/// The place of a column of a row that begins at `base`.
#[cube]
fn target(
    column: u32,
    base: u32,
    there: bool,
    work: &Work,
    numbers: &Numbers,
    #[comptime] form: Form,
) -> Target {
    // A column of the filters' gradient is a channel of a tap.
    let (column, base, there) = if comptime!(form.filter) {
        let (tap, slice) = numbers.slices.div_mod(column / comptime!(form.line()));
        let channel = slice * comptime!(form.line()) + column % comptime!(form.line());
        (channel, base + tap * numbers.tap_step, there && tap < numbers.taps)
    } else {
        (column, base, there)
    };
    let there = there && column < numbers.columns;
    Target {
        channel: select(there, work.group * numbers.columns + column, 0u32),
        at: select(there, base + column * numbers.column_step, 0u32),
        there,
    }
}

/// Where the results of a row begin, and whether it has any.
#[cube]
fn row_base(row: u32, work: &Work, numbers: &Numbers, #[comptime] form: Form) -> (u32, bool) {
    let base = work.part * numbers.part_step + work.group * numbers.out_group;
    if comptime!(form.filter) {
        (base + row * numbers.row_step, row < numbers.rows)
    } else {
        let place = row_place(&numbers.gather, row, form.gather);
        let there = row < numbers.rows && place.width < numbers.line_rows;
        let there = if comptime!(form.comb.is_some()) {
            there && place.height < numbers.plane_rows
        } else {
            there
        };
        (base + row_result(&numbers.gather, &place), there)
    }
}
