//! The epilogue of a tile: its sums are flagged if they are not finite, finished, and stored.
//!
//! A unit holds pairs of neighbouring columns of two rows of each band of 16 rows. Each warp has one band:
//!
//! ```text
//!            columns 0 1   2 3   4 5   6 7     8 9  ..        4 units together have a chunk of 8 columns
//! row 0            unit 0  1     2     3       0    ..        the first half of a unit's sums
//! row 1            unit 4  5     6     7       4    ..
//! ..
//! row 8            unit 0  1     2     3       0    ..        the second half
//! ```
//!
//! A warp rearranges its rows in shared memory, and then stores two memory lines of a row at a time. Results that are not
//! contiguous in whole chunks are read from there, and stored, in pairs or one by one: neighbouring units still have
//! neighbouring results. Where the rows of a tile follow one another in memory, eight of them are whole chunks in any case, and
//! are put one after the other in shared memory too (`store_dense`).

use cubecl::cmma::{MmaDefinition, StMatrixForm};
use cubecl::prelude::*;

use super::super::tile::{BAND, CHUNK, HALF_BAND, PAIR, WARP, WARPGROUP};
use super::accumulators::Accumulators;
use super::args::Args;
use super::form::{Form, Panel};
use super::scheduler::{Work, is_warp_leader};
use crate::conv::common::{EpilogueArgs, finish_at, finish_with, row_position, row_result};

/// The number of units that share a chunk, and the number of chunks that one instruction writes to shared memory.
const QUAD: u32 = 4;

/// The offset of rows that have no results.
const NOWHERE: u32 = u32::MAX;

/// The output tensor and the tensors that are added to the sums.
#[derive(CubeType)]
pub(super) struct Results<'a, R: Float, P: Size, W: Numeric, O: Size> {
    epilogue: &'a EpilogueArgs<R, P>,
    /// The shared memory in which warps rearrange rows.
    rearranged: Shared<[Vector<u32, Const<4>>]>,
    /// The shared memory in which warps put rows one after the other.
    dense: Shared<[Vector<R, Const<1>>]>,
    out: &'a mut [Vector<W, O>],
    /// For each band of rows of a tile, whether it has non-finite sums.
    flags: &'a mut [u32],
    args: &'a Args,
    #[cube(comptime)]
    form: Form,
}

#[cube]
impl<'a, R: Float, P: Size, W: Numeric, O: Size> Results<'a, R, P, W, O> {
    pub(super) fn new(
        epilogue: &'a EpilogueArgs<R, P>,
        rearranged: Shared<[Vector<u32, Const<4>>]>,
        dense: Shared<[Vector<R, Const<1>>]>,
        out: &'a mut [Vector<W, O>],
        flags: &'a mut [u32],
        args: &'a Args,
        #[comptime] form: Form,
    ) -> Results<'a, R, P, W, O> {
        Results::<'a, R, P, W, O> { epilogue, rearranged, dense, out, flags, args, form }
    }

    /// Stores 64 rows of a tile.
    pub(super) fn store_rows(&mut self, sums: &Accumulators, first_row: u32, work: &Work) {
        let form = comptime!(self.form);
        if comptime!(form.checked) {
            self.flag_nonfinite(sums, first_row, work);
        }
        if comptime!(form.dense) {
            self.store_dense(sums, first_row, work);
        } else {
            self.store_panels(sums, first_row, work);
        }
    }

    /// Stores 64 rows in whole lines, one panel or a few at a time. Memory accepts two whole lines of a row faster than pieces of
    /// eight columns.
    fn store_panels(&mut self, sums: &Accumulators, first_row: u32, work: &Work) {
        let form = comptime!(self.form);
        #[unroll]
        for first in
            range_stepped(0, comptime!(form.result_panels()), comptime!(form.panels_at_once()))
        {
            let end = comptime!(form.result_panels().min(first + form.panels_at_once()));
            #[unroll]
            for nth in first..end {
                let panel = comptime!(form.result_panel(nth));
                let words = self.words(sums, panel, first_row, work);
                if comptime!(form.stored == 2) {
                    self.write_panel(&words, panel);
                } else {
                    self.write_wide_panel(&words, panel);
                }
            }
            sync_plane();
            #[unroll]
            for nth in first..end {
                self.store_panel(comptime!(form.result_panel(nth)), first_row, work);
            }
            sync_plane();
        }
    }

    /// Stores 64 rows, of each warp eight at a time, which are contiguous in memory.
    fn store_dense(&mut self, sums: &Accumulators, first_row: u32, work: &Work) {
        let form = comptime!(self.form);
        let lane = UNIT_POS % WARP;
        let band = first_row + UNIT_POS % WARPGROUP / WARP * BAND;
        let at_once = comptime!(form.stored_at_once());
        let place = UNIT_POS / WARP * comptime!(form.dense_by_warp() / at_once);
        #[unroll]
        for half in 0..2u32 {
            self.write_dense(sums, half, band, work);
            sync_plane();
            let row = band + comptime!(half * HALF_BAND);
            let first = (work.part * self.args.part_step + row * self.args.columns) / at_once;
            let stores = self.args.columns * comptime!(HALF_BAND) / at_once;
            #[unroll]
            for turn in 0..comptime!((form.dense_by_warp() / at_once).div_ceil(WARP)) {
                let store = lane + comptime!(turn * WARP);
                if store < stores && row < self.args.rows {
                    self.out[(first + store) as usize] = self.read_dense(place + store);
                }
            }
            sync_plane();
        }
    }

    /// Puts half of a warp's rows one after the other in shared memory.
    fn write_dense(&mut self, sums: &Accumulators, #[comptime] half: u32, band: u32, work: &Work) {
        let form = comptime!(self.form);
        let all = comptime!(form.dense_elements() as usize);
        let lane = UNIT_POS % WARP;
        let (down, mine) = (lane / QUAD, lane % QUAD);
        let row = band + comptime!(half * HALF_BAND) + down;
        let begin = UNIT_POS / WARP * comptime!(form.dense_by_warp()) + down * self.args.columns;
        #[unroll]
        for chunk in 0..comptime!(form.tile.block_n / CHUNK) {
            let column = comptime!(chunk * CHUNK) + mine * PAIR;
            let nth = comptime!(nth(chunk, half));
            let pair = self.pair(sums, nth, row, column, work);
            if comptime!(form.finished() == PAIR) {
                if column < self.args.columns {
                    let pairs: &mut [Vector<R, Const<2>>] =
                        self.dense[0..all].with_vector_size_mut();
                    pairs[((begin + column) / PAIR) as usize] = pair;
                }
            } else {
                #[unroll]
                for lane in 0..PAIR {
                    if column + lane < self.args.columns {
                        let one =
                            Vector::<R, Const<1>>::new(pair.extract(comptime!(lane as usize)));
                        self.dense[(begin + column + lane) as usize] = one;
                    }
                }
            }
        }
    }

    /// The results that are stored at once, at a place that is counted in these.
    fn read_dense(&self, at: u32) -> Vector<W, O> {
        let form = comptime!(self.form);
        let all = comptime!(form.dense_elements() as usize);
        if comptime!(form.stored == 2) {
            let results: &[Vector<R, Const<8>>] = self.dense[0..all].with_vector_size();
            Vector::<W, O>::reinterpret(results[at as usize])
        } else {
            let results: &[Vector<R, Const<4>>] = self.dense[0..all].with_vector_size();
            Vector::<W, O>::reinterpret(results[at as usize])
        }
    }

    /// Flags a band of rows that has non-finite sums.
    fn flag_nonfinite(&mut self, sums: &Accumulators, first_row: u32, work: &Work) {
        let form = comptime!(self.form);
        // Zero times a finite number is zero; zero times anything else is NaN.
        let mut doubt = 0.0f32;
        #[unroll]
        for i in 0..comptime!((form.tile.block_n / 2) as usize) {
            doubt = fma(sums[i], 0.0f32, doubt);
        }
        let found = plane_any(doubt != 0.0);
        let band = first_row / BAND + UNIT_POS % WARPGROUP / WARP;
        let group = if comptime!(form.is_weight) {
            work.group * self.args.parts_count + work.part
        } else {
            work.group
        };
        let column = group * self.args.tiles_n_count + work.column / comptime!(form.tile.block_n);
        if is_warp_leader() {
            self.flags[(column * self.args.bands + band) as usize] = u32::cast_from(found);
        }
    }

    /// The finished results of a unit for a panel: one pair of each chunk.
    fn words(
        &self,
        sums: &Accumulators,
        #[comptime] panel: Panel,
        first_row: u32,
        work: &Work,
    ) -> Array<u32> {
        let form = comptime!(self.form);
        let lane = UNIT_POS % WARP;
        let mine = lane % QUAD;
        let band = first_row + UNIT_POS % WARPGROUP / WARP * BAND;
        let mut words = Array::<u32>::new(comptime!((panel.chunks * form.stored / 2) as usize));
        #[unroll]
        for nth_chunk in 0..comptime!(panel.chunks as usize) {
            let chunk = comptime!(panel.begin + nth_chunk as u32);
            let column = work.column + comptime!(chunk * CHUNK) + mine * PAIR;
            let row = band + lane / QUAD + comptime!(panel.half * HALF_BAND);
            let nth = comptime!(nth(chunk, panel.half));
            let pair = self.pair(sums, nth, row, column, work);
            if comptime!(form.stored == 2) {
                words[nth_chunk] = u32::reinterpret(pair);
            } else {
                words[comptime!(2 * nth_chunk)] = u32::reinterpret(pair.extract(0usize));
                words[comptime!(2 * nth_chunk + 1)] = u32::reinterpret(pair.extract(1usize));
            }
        }
        words
    }

    /// The finished results of a unit in two neighbouring columns.
    fn pair(
        &self,
        sums: &Accumulators,
        #[comptime] nth: usize,
        row: u32,
        column: u32,
        work: &Work,
    ) -> Vector<R, Const<2>> {
        let form = comptime!(self.form);
        let (base, there) = if comptime!(self.epilogue.residual.is_given || form.bias_of_row) {
            row_base(row, work, self.args, form)
        } else {
            (0u32.runtime(), true.runtime())
        };
        let mut pair = Vector::<R, Const<2>>::empty();
        #[unroll]
        for lane in range_stepped(0, PAIR, comptime!(form.finished())) {
            let to = target(row, column + lane, base, there, work, self.args, form);
            let some = self.finished(sums, comptime!(nth + lane as usize), &to);
            #[unroll]
            for i in 0..P::value() {
                pair.insert(comptime!(lane as usize + i), some.extract(i));
            }
        }
        pair
    }

    /// Writes a panel of 16-bit results to shared memory, eight rows of four chunks at a time. The chunks of each row
    /// are swizzled, as the copy engine would do it, so that one chunk of eight rows, and eight chunks of one row, are
    /// in different banks.
    fn write_panel(&mut self, words: &Array<u32>, #[comptime] panel: Panel) {
        let form = comptime!(self.form);
        let size!(One) = 1usize;
        let definition = MmaDefinition::<R, R, f32>::new(16usize, 8usize, 16usize);
        let lane = UNIT_POS % WARP;
        let down = lane % HALF_BAND;
        let place = panel_start(panel, form);
        let start = place + down * comptime!(form.staged_line()) + ((lane / HALF_BAND) ^ down);
        #[unroll]
        for quad in 0..comptime!(panel.chunks / QUAD) {
            let mut matrices = Array::<Vector<u32, One>>::new(4usize);
            #[unroll]
            for chunk in 0..QUAD {
                let mut single = Vector::<u32, One>::empty();
                single.insert(0usize, words[comptime!((quad * QUAD + chunk) as usize)]);
                matrices[chunk as usize] = single;
            }
            let at = (start ^ comptime!(quad * QUAD)) as usize;
            definition.store_matrix_with_form::<Vector<u32, Const<4>>, One>(
                &mut self.rearranged[at..at + 1],
                &matrices,
                StMatrixForm::M8N8B16,
                4usize,
                false,
            );
        }
    }

    /// The same for 32-bit results. Neighbouring units exchange pairs, so that each has four columns of one of two
    /// chunks. Every other row is permuted in steps of four vectors, so that the vectors of eight units are in
    /// different banks.
    fn write_wide_panel(&mut self, words: &Array<u32>, #[comptime] panel: Panel) {
        let form = comptime!(self.form);
        let lane = UNIT_POS % WARP;
        let (down, mine) = (lane / QUAD, lane % QUAD);
        let odd = mine & 1u32 != 0u32;
        let place = panel_start(panel, form);
        let four = (mine / 2 + mine % 2 * 2) ^ (down % 2 * QUAD);
        let start = place + down * comptime!(form.staged_line()) + four;
        #[unroll]
        for two in 0..comptime!(panel.chunks as usize / 2) {
            let mut columns = Vector::<u32, Const<4>>::empty();
            #[unroll]
            for i in 0..2usize {
                let (even, uneven) =
                    (words[comptime!(4 * two + i)], words[comptime!(4 * two + 2 + i)]);
                let kept = select(odd, uneven, even);
                let given = plane_shuffle_xor(select(odd, even, uneven), 1u32);
                columns.insert(i, select(odd, given, kept));
                columns.insert(comptime!(i + 2), select(odd, kept, given));
            }
            self.rearranged[(start ^ comptime!(two as u32 * QUAD)) as usize] = columns;
        }
    }

    /// Reads a panel from shared memory, row by row, and stores it.
    fn store_panel(&mut self, #[comptime] panel: Panel, first_row: u32, work: &Work) {
        let form = comptime!(self.form);
        let lane = UNIT_POS % WARP;
        let place = panel_start(panel, form);
        let band = first_row + UNIT_POS % WARPGROUP / WARP * BAND;
        let (base, there) = row_base(band + lane % BAND, work, self.args, form);
        let base = select(there, base, NOWHERE);
        let at_once = comptime!(form.stored_at_once());
        // The stores of a row of the panel, and of a warp at a time: how many along a row, and in how many rows.
        let line = comptime!(panel.chunks * CHUNK / at_once);
        let across = comptime!(line.min(WARP));
        let rows = comptime!(WARP / across);
        let (down, mine) = (lane / across, lane % across);
        #[unroll]
        for turn in 0..comptime!(line / across) {
            let first = (mine + comptime!(turn * across)) * at_once;
            let column = work.column + comptime!(panel.begin * CHUNK) + first;
            let vector = first / comptime!(form.in_vector());
            let permuted = if comptime!(form.stored == 2) {
                vector ^ down
            } else {
                vector ^ (down % 2 * QUAD)
            };
            let from = place + down * comptime!(form.staged_line()) + permuted;
            let within = first % comptime!(form.in_vector()) / at_once;
            #[unroll]
            for i in 0..comptime!(HALF_BAND / rows) {
                let place = comptime!(panel.half * HALF_BAND + i * rows) + down;
                let base = plane_shuffle(base, place);
                let to = target(band + place, column, base, base != NOWHERE, work, self.args, form);
                // For 32-bit results, the permutation repeats every two rows.
                let permuted =
                    comptime!(if form.stored == 2 { i * rows } else { i * rows % 2 * QUAD });
                let at = (from ^ permuted) + comptime!(i * rows * form.staged_line());
                let results = self.read(at * comptime!(form.in_vector() / at_once) + within);
                if to.there {
                    self.out[(to.at / at_once) as usize] = results;
                }
            }
        }
    }

    /// The results that are stored at once, at a place in shared memory that is counted in these.
    fn read(&self, at: u32) -> Vector<W, O> {
        let form = comptime!(self.form);
        let all = comptime!(form.staged() as usize);
        let words: &[Vector<u32, O>] = self.rearranged[0..all].with_vector_size();
        if comptime!(form.stored_at_once() * form.stored == 2) {
            let two = words[(at / PAIR) as usize];
            Vector::<W, O>::cast_from(two >> Vector::new(at % PAIR * 16))
        } else {
            Vector::<W, O>::reinterpret(words[at as usize])
        }
    }

    /// Applies the epilogue to neighbouring sums.
    fn finished(&self, sums: &Accumulators, #[comptime] nth: usize, to: &Target) -> Vector<R, P> {
        let form = comptime!(self.form);
        let mut sum = Vector::<f32, P>::empty();
        #[unroll]
        for lane in 0..P::value() {
            sum.insert(lane, sums[comptime!(nth + lane)]);
        }
        let (channel, at) = (to.channel / P::value() as u32, to.at / P::value() as u32);
        if comptime!(form.bias_of_row) {
            let sum = sum + Vector::new(self.bias_of(to.channel));
            finish_with::<R, f32, P>(self.epilogue, sum, at)
        } else {
            finish_at::<R, f32, P>(self.epilogue, sum, channel, at)
        }
    }

    /// The bias of a row; 0 if there is none.
    fn bias_of(&self, row: u32) -> f32 {
        let mut bias_of_row = 0.0f32;
        #[comptime]
        match &self.epilogue.bias.given {
            ComptimeOption::Some(bias) => {
                let lanes = P::value();
                let pair = bias[(row / lanes as u32) as usize];
                bias_of_row = f32::cast_from(pair.extract(0usize));
                #[unroll]
                for lane in 1..lanes {
                    let other = f32::cast_from(pair.extract(lane));
                    bias_of_row = select(row % lanes as u32 == lane as u32, other, bias_of_row);
                }
            }
            ComptimeOption::None => {}
        }
        bias_of_row
    }
}

/// The place in shared memory of a warp's panel.
#[cube]
fn panel_start(#[comptime] panel: Panel, #[comptime] form: Form) -> u32 {
    UNIT_POS / WARP * comptime!(form.staged_by_warp())
        + comptime!(panel.place * HALF_BAND * form.staged_line())
}

/// The index of a unit's first accumulator for its pair of a chunk.
fn nth(chunk: u32, half: u32) -> usize {
    ((chunk * 2 + half) * PAIR) as usize
}

/// The place of a result.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Target {
    /// Its channel, and its place in the tensor; both 0 where there is no such result.
    channel: u32,
    at: u32,
    there: bool,
}

/// The place of a column's result in a row of the tile's group that starts at `base`.
#[cube]
fn target(
    row: u32,
    column: u32,
    base: u32,
    there: bool,
    work: &Work,
    args: &Args,
    #[comptime] form: Form,
) -> Target {
    // A column of the weight gradient is a channel of a tap, or an element of a line.
    let (column, base, there) = if comptime!(form.is_weight) {
        let (tap, slice) = args.slices.div_mod(column / form.slice);
        let column = slice * form.slice + column % form.slice;
        let there = there && tap < args.taps && column < args.columns;
        let base = base + tap * args.tap_step;
        if comptime!(form.merges) {
            let (group, channel) = args.own_channels.div_mod(column);
            (channel, base, there && group == args.own_filters.div(row))
        } else if comptime!(form.lines) {
            let lines = args.lines.as_ref().unwrap();
            let (pixel, element) = lines.pixel.div_mod(column);
            let (image_row, channel) = args.own_channels.div_mod(element);
            let (tw, between) = lines.dilation.div_mod(pixel);
            let th = args.gather.height.taps.modulo(tap) * lines.image_rows + image_row;
            let has_tap = image_row < lines.image_rows
                && between == 0
                && tw < lines.taps
                && th < lines.tap_rows;
            let tap = image_row * lines.taps + tw;
            (channel, base + tap * lines.tap_step, there && has_tap)
        } else {
            (column, base, there)
        }
    } else {
        (column, base, there && column < args.columns)
    };
    let channel =
        if comptime!(form.bias_of_row) { row } else { work.group * args.columns + column };
    Target {
        channel: select(there, channel, 0u32),
        at: select(there, base + column * args.column_step, 0u32),
        there,
    }
}

/// The offset of a row's results, and whether the row has any.
#[cube]
fn row_base(row: u32, work: &Work, args: &Args, #[comptime] form: Form) -> (u32, bool) {
    let base = work.part * args.part_step + work.group * args.out_group;
    if comptime!(form.is_weight) {
        (base + row * args.row_step, row < args.rows)
    } else {
        let phase = &work.phase;
        let place = row_position(&phase.gather, row);
        let there = row < args.rows && place.width < args.line_rows;
        let there = if comptime!(form.planar.is_some()) {
            there && place.height < args.plane_rows
        } else if comptime!(form.phased) {
            there
                && place.width < phase.width.rows
                && place.height < phase.height.rows
                && place.depth < phase.depth.rows
        } else {
            there
        };
        (base + row_result(&phase.gather, &place), there)
    }
}
