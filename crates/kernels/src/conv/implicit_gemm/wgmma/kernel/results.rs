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
//! A warp turns its rows over in shared memory, and stores two lines of memory of a row at a time (`turn_over`).
//! Results that do not lie side by side in whole chunks are stored one by one (`store`).

use cubecl::cmma::{MmaDefinition, StMatrixForm};
use cubecl::prelude::*;

use super::super::tile::BAND;
use super::super::tile::{CHUNK, PAIR, WARP, WARPGROUP};
use super::form::{Form, Panel};
use super::numbers::Numbers;
use super::order::{Work, speaks_for_warp};
use super::sums::Sums;
use crate::conv::common::epilogue::finish_at;
use crate::conv::common::gather::{row_place, row_result};

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
        if comptime!(form.packed) {
            self.turn_over(sums, first_row, work, numbers, form);
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
            let row = first_row + unit / WARP * BAND + unit % WARP / QUAD + half * HALF;
            let (base, there) = row_base(row, work, numbers, form);
            #[unroll]
            for chunk in 0..comptime!(form.tile.block_n / CHUNK) {
                #[unroll]
                for lane in 0..PAIR {
                    let column = work.column + comptime!(chunk * CHUNK + lane) + mine * PAIR;
                    let to = target(column, base, there, work, numbers, form);
                    let nth = comptime!(nth(chunk, half) + lane as usize);
                    let value = self.finished(sums, nth, &to, numbers, form);
                    if to.there {
                        self.out[to.at as usize] = Vector::<W, O>::cast_from(value);
                    }
                }
            }
        }
    }

    /// In whole lines, a panel at a time or a few: memory takes two lines of a row sooner than pieces of eight.
    fn turn_over(
        &mut self,
        sums: &Sums,
        first_row: u32,
        work: &Work,
        numbers: &Numbers,
        #[comptime] form: Form,
    ) {
        #[unroll]
        for first in
            range_stepped(0, comptime!(form.result_panels()), comptime!(form.panels_at_once()))
        {
            let end = comptime!(form.result_panels().min(first + form.panels_at_once()));
            #[unroll]
            for nth in first..end {
                let panel = comptime!(form.result_panel(nth));
                let words = self.words(sums, panel, first_row, work, numbers, form);
                if comptime!(form.stored == 2) {
                    self.lay_down(&words, panel, form);
                } else {
                    self.lay_down_wide(&words, panel, form);
                }
            }
            sync_plane();
            #[unroll]
            for nth in first..end {
                self.take_up(comptime!(form.result_panel(nth)), first_row, work, numbers, form);
            }
            sync_plane();
        }
    }

    /// What a unit has of a panel, finished: a pair of each chunk.
    fn words(
        &self,
        sums: &Sums,
        #[comptime] panel: Panel,
        first_row: u32,
        work: &Work,
        numbers: &Numbers,
        #[comptime] form: Form,
    ) -> Array<u32> {
        let lane = UNIT_POS % WARP;
        let mine = lane % QUAD;
        let band = first_row + UNIT_POS % WARPGROUP / WARP * BAND;
        let mut words = Array::<u32>::new(comptime!((panel.chunks * form.stored / 2) as usize));
        #[unroll]
        for nth_chunk in 0..comptime!(panel.chunks as usize) {
            let chunk = comptime!(panel.begin + nth_chunk as u32);
            let column = work.column + comptime!(chunk * CHUNK) + mine * PAIR;
            let to = if comptime!(self.residual.is_some()) {
                let row = band + lane / QUAD + comptime!(panel.half * HALF);
                let (base, there) = row_base(row, work, numbers, form);
                target(column, base, there, work, numbers, form)
            } else {
                target(column, 0u32.runtime(), true.runtime(), work, numbers, form)
            };
            let nth = comptime!(nth(chunk, panel.half));
            let pair = self.finished(sums, nth, &to, numbers, form);
            if comptime!(form.stored == 2) {
                words[nth_chunk] = u32::reinterpret(pair);
            } else {
                words[comptime!(2 * nth_chunk)] = u32::reinterpret(pair.extract(0usize));
                words[comptime!(2 * nth_chunk + 1)] = u32::reinterpret(pair.extract(1usize));
            }
        }
        words
    }

    /// A warp lays a panel of 16 bits down in shared memory, eight rows of four chunks at a time. In each row they are
    /// permuted, as the copy engine would, so that a chunk of eight rows and eight chunks of a row lie in different
    /// banks.
    fn lay_down(&mut self, words: &Array<u32>, #[comptime] panel: Panel, #[comptime] form: Form) {
        let size!(One) = 1usize;
        let definition = MmaDefinition::<R, R, f32>::new(16usize, 8usize, 16usize);
        let lane = UNIT_POS % WARP;
        let down = lane % HALF;
        let place = place_of(panel, form);
        let laid = place + down * comptime!(form.staged_line()) + ((lane / HALF) ^ down);
        #[unroll]
        for quad in 0..comptime!(panel.chunks / QUAD) {
            let mut matrices = Array::<Vector<u32, One>>::new(4usize);
            #[unroll]
            for chunk in 0..QUAD {
                let mut single = Vector::<u32, One>::empty();
                single.insert(0usize, words[comptime!((quad * QUAD + chunk) as usize)]);
                matrices[chunk as usize] = single;
            }
            let at = (laid ^ comptime!(quad * QUAD)) as usize;
            definition.store_matrix_with_form::<Vector<u32, O>, One>(
                &mut self.turned[at..at + 1],
                &matrices,
                StMatrixForm::M8N8B16,
                4usize,
                false,
            );
        }
    }

    /// The same of 32 bits. Neighbouring units exchange pairs, so that of two chunks of columns each has four
    /// columns of one. Every other row is permuted by four such, so that those of eight units lie in different banks.
    fn lay_down_wide(
        &mut self,
        words: &Array<u32>,
        #[comptime] panel: Panel,
        #[comptime] form: Form,
    ) {
        let lane = UNIT_POS % WARP;
        let (down, mine) = (lane / QUAD, lane % QUAD);
        let odd = mine & 1u32 != 0u32;
        let place = place_of(panel, form);
        let four = (mine / 2 + mine % 2 * 2) ^ (down % 2 * QUAD);
        let laid = place + down * comptime!(form.staged_line()) + four;
        #[unroll]
        for two in 0..comptime!(panel.chunks as usize / 2) {
            let mut columns = Vector::<u32, O>::empty();
            #[unroll]
            for i in 0..2usize {
                let (even, uneven) =
                    (words[comptime!(4 * two + i)], words[comptime!(4 * two + 2 + i)]);
                let kept = select(odd, uneven, even);
                let given = plane_shuffle_xor(select(odd, even, uneven), 1u32);
                columns.insert(i, select(odd, given, kept));
                columns.insert(comptime!(i + 2), select(odd, kept, given));
            }
            self.turned[(laid ^ comptime!(two as u32 * QUAD)) as usize] = columns;
        }
    }

    /// Then it takes the panel up row after row, and stores it.
    fn take_up(
        &mut self,
        #[comptime] panel: Panel,
        first_row: u32,
        work: &Work,
        numbers: &Numbers,
        #[comptime] form: Form,
    ) {
        let lane = UNIT_POS % WARP;
        let place = place_of(panel, form);
        let band = first_row + UNIT_POS % WARPGROUP / WARP * BAND;
        let (base, there) = row_base(band + lane % BAND, work, numbers, form);
        let base = select(there, base, NOWHERE);
        let at_once = comptime!(form.stored_at_once());
        let line = comptime!(panel.chunks * CHUNK / at_once);
        let rows = comptime!(WARP / line);
        let (down, mine) = (lane / line, lane % line);
        let permuted =
            if comptime!(form.stored == 2) { mine ^ down } else { mine ^ (down % 2 * QUAD) };
        let taken = place + down * comptime!(form.staged_line()) + permuted;
        let column = work.column + comptime!(panel.begin * CHUNK) + mine * at_once;
        #[unroll]
        for i in 0..comptime!(HALF / rows) {
            let base = plane_shuffle(base, comptime!(panel.half * HALF + i * rows) + down);
            let to = target(column, base, base != NOWHERE, work, numbers, form);
            // Of 32 bits rows by twos are permuted alike.
            let permuted = comptime!(if form.stored == 2 { i * rows } else { 0 });
            let at = (taken ^ permuted) + comptime!(i * rows * form.staged_line());
            if to.there {
                self.out[(to.at / at_once) as usize] =
                    Vector::<W, O>::reinterpret(self.turned[at as usize]);
            }
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

/// The rows of half a band, whose sums are one half of a unit's.
const HALF: u32 = BAND / 2;

/// Where a warp lays a panel down.
#[cube]
fn place_of(#[comptime] panel: Panel, #[comptime] form: Form) -> u32 {
    UNIT_POS / WARP * comptime!(form.staged_by_warp())
        + comptime!(panel.place * HALF * form.staged_line())
}

/// The first register of a warpgroup's unit for its pair of a chunk.
fn nth(chunk: u32, half: u32) -> usize {
    ((chunk * 2 + half) * PAIR) as usize
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
