//! The values of a strip's outputs. Their taps may be reduced in any order.
//!
//! ```text
//! for each row x that a strip reads:                 rows along its outermost axis
//!     if lanes are channels:                         a block of V neighbouring columns
//!         row[x] = reduction of each column's taps on the inner axes
//!     if lanes lie along the width:
//!         row[x] = reduction of each input vector over the inner axes except the width
//! for each output of the strip:
//!     reduce its k rows; then, if lanes lie along the width, each lane's taps there
//! ```
//!
//! The part that two neighbouring windows share is reduced once for both. Vectors are split into lanes once per output,
//! not once per line: vectors of 16-bit elements are reduced two elements per instruction, while splitting them takes
//! several instructions.
//!
//! A sum is multiplied by the reciprocal of its divisor, which all windows of a column share away from the edges of the
//! other axes.

use cubecl::prelude::*;

use super::kernel::{Tile, TileExpand, site_of};
use crate::cube::convert::{round, widen, widen_kept};
use crate::cube::optional::Optional;
use crate::pool::common::own_column;
use crate::pool::common::window::{Accumulator, ProblemArgs, combine, identity};
use crate::pool::strips::form::Form;
use crate::pool::strips::strip::{exists, row_at, vector_of};
use crate::pool::strips::taps::step;
use crate::pool::strips::windows::{PAIR, Windows, reduce_lanes, windows_of};

impl Form {
    /// The number of vectors that are kept of a row: one per column, or all vectors along the width.
    fn kept(&self) -> u32 {
        if self.window.along_width { self.reads() } else { self.columns }
    }

    /// The number of rows that the first `count` windows read.
    fn rows_of(&self, count: u32) -> u32 {
        if count == 0 { 0 } else { (count - 1) * self.along.stride + self.along.kernel }
    }

    /// The number of windows from `first` on that are computed together.
    fn windows_from(&self, first: u32) -> u32 {
        (self.along.outputs - first).min(PAIR)
    }

    /// How window `first` and those computed with it reduce the vectors kept at `place` of each row.
    fn along_rows(&self, first: u32, place: u32) -> Windows {
        Windows {
            first: first * self.along.stride * self.kept() + place,
            each: self.kept(),
            count: self.windows_from(first),
            kernel: self.along.kernel,
            stride: self.along.stride,
        }
    }

    /// Whether sums are multiplied by the reciprocal of a divisor that is the same for all windows of a column.
    fn scales_columns(&self) -> bool {
        let window = &self.window;
        let sums = !window.fold.is_extremum() && !window.may_be_empty();
        let same = !window.along_width && !window.axes[self.along.axis].clipped;
        sums && same && window.reciprocal
    }

    /// Whether vector `v` of a line must be dropped from a sum if it is outside the input.
    fn drops(&self, j: u32, v: u32) -> bool {
        !self.window.along_width && !self.window.fold.is_extremum() && self.read(j, v).drops
    }
}

#[cube]
impl<'a, S: Float, M: Size> Tile<'a, S, M> {
    /// Computes the outputs of the strip.
    pub(super) fn write_values<A: Float, N: Size>(
        &self,
        output: &mut [Vector<S, N>],
        indices: &mut Optional<Box<[Vector<i32, N>]>>,
    ) {
        let form = comptime!(self.form);
        let reads = self.reads(0u32);
        let scales = self.scales::<A, N>();
        let mut rows = Sequence::<Vector<A, M>>::new();
        #[unroll]
        for pair in 0..comptime!(form.along.outputs.div_ceil(PAIR)) {
            let first = comptime!(pair * PAIR);
            let count = comptime!(form.windows_from(first));
            let before = comptime!(form.rows_of(first));
            #[unroll]
            for new in 0..comptime!(form.rows_of(first + count) - before) {
                let j = comptime!(before + new);
                let row = if comptime!(form.along.axis == 2) {
                    self.row::<A>(&self.reads(j), j)
                } else {
                    self.row::<A>(&reads, j)
                };
                #[unroll]
                for v in 0..form.kept() {
                    rows.push(*row.index(v as usize));
                }
            }
            let mut folds = Sequence::<Vector<A, M>>::new();
            #[unroll]
            for v in 0..form.kept() {
                let windows = windows_of::<A, M>(&rows, form.along_rows(first, v), form.window);
                #[unroll]
                for i in 0..count {
                    folds.push(*windows.index(i as usize));
                }
            }
            #[unroll]
            for i in 0..count {
                let o = comptime!(first + i);
                if exists(self.strips, &self.strip, o, form) {
                    self.write::<A, N>(output, indices, &reads, &scales, &folds, o, count);
                }
            }
        }
    }

    /// What the strip reads of the lines of row `j`.
    fn reads(&self, #[comptime] j: u32) -> Reads {
        let form = comptime!(self.form);
        let site = &self.strip.site;
        let mut offsets = Sequence::<u32>::new();
        let mut inside = Sequence::<bool>::new();
        if comptime!(form.window.along_width) {
            let w = site.column / comptime!(form.reach.output as u32);
            #[unroll]
            for v in 0..form.reach.vectors() {
                let vector = vector_of(self.strips, w, v, form);
                offsets.push(vector.x as u32);
                inside.push(vector.inside);
            }
        } else {
            #[unroll]
            for x in 0..form.reads() {
                let tap = comptime!(form.read(j, x));
                let step = step(&site.problem.width, &site.width, tap, form.window.axes[2]);
                offsets.push(if comptime!(form.window.channels) {
                    step.x as u32 * site.problem.pixel_vectors + site.pixel_vector
                } else {
                    step.x as u32
                });
                inside.push(step.inside);
            }
        }
        Reads { offsets, inside }
    }

    /// Reduces the taps of the inner axes at row `j` of a strip: for each column, or for each vector along the width.
    fn row<A: Float>(&self, reads: &Reads, #[comptime] j: u32) -> Sequence<Vector<A, M>> {
        let form = comptime!(self.form);
        // `folds` holds, for each line, the reduction with all lines before it. So no vector is copied, which shading
        // languages cannot do with long vectors.
        let kept = comptime!(form.kept() as usize);
        let mut folds = Sequence::<Vector<A, M>>::new();
        #[unroll]
        for i in 0..form.lines() {
            let line = self.line::<A>(reads, j, i);
            #[unroll]
            for v in 0..kept {
                if comptime!(i == 0) {
                    folds.push(*line.index(v));
                } else {
                    let before = *folds.index(comptime!((i as usize - 1) * kept + v));
                    folds.push(combine::<A, M>(before, *line.index(v), form.window));
                }
            }
        }
        let mut row = Sequence::<Vector<A, M>>::new();
        #[unroll]
        for v in 0..kept {
            row.push(*folds.index(comptime!((form.lines() as usize - 1) * kept + v)));
        }
        row
    }

    /// The vectors that a row keeps of its line `i`.
    fn line<A: Float>(
        &self,
        reads: &Reads,
        #[comptime] j: u32,
        #[comptime] i: u32,
    ) -> Sequence<Vector<A, M>> {
        let form = comptime!(self.form);
        let line = comptime!(form.line(j, i));
        let (strips, site) = (self.strips, &self.strip.site);
        let row = row_at(site, line, form);
        let vectors = if comptime!(form.window.along_width) {
            strips.width_vectors
        } else {
            strips.problem.width.input as u32 * strips.problem.pixel_vectors
        };
        let first = row.x as u32 * vectors;
        let drops = comptime!(!form.window.fold.is_extremum() && line.drops());
        let mut loaded = Sequence::<Vector<A, M>>::new();
        #[unroll]
        for v in 0..form.reads() {
            if comptime!(form.window.along_width && !form.reach.touches(v as usize)) {
                loaded.push(Vector::new(A::from_int(0)));
            } else {
                let element = self.input[(first + *reads.offsets.index(v as usize)) as usize];
                loaded.push(if comptime!(form.drops(j, v)) {
                    widen_kept::<S, A, M>(
                        element,
                        *reads.inside.index(v as usize),
                        form.window.widened,
                    )
                } else if comptime!(form.window.along_width && drops) {
                    widen_kept::<S, A, M>(element, row.inside, form.window.widened)
                } else {
                    widen::<S, A, M>(element, form.window.widened)
                });
            }
        }
        if comptime!(form.window.along_width) {
            loaded
        } else {
            let columns = windows_of::<A, M>(&loaded, form.along_line(), form.window);
            let mut kept = Sequence::<Vector<A, M>>::new();
            #[unroll]
            for v in 0..form.columns {
                let fold = *columns.index(v as usize);
                kept.push(if comptime!(drops) {
                    select(row.inside, fold, Vector::new(A::from_int(0)))
                } else {
                    fold
                });
            }
            kept
        }
    }

    /// The reciprocal of the divisor of each column's windows, if they share one.
    fn scales<A: Float, N: Size>(&self) -> Sequence<Vector<A, N>> {
        let form = comptime!(self.form);
        let mut scales = Sequence::<Vector<A, N>>::new();
        if comptime!(form.scales_columns()) {
            #[unroll]
            for v in 0..form.columns {
                let site = site_of(&self.strip, 0u32, v, form);
                scales.push(site.scale::<A, N>());
            }
        }
        scales
    }

    /// Writes output `o` of a strip in all its columns. `folds` holds the reductions of `count` outputs, column by column.
    fn write<A: Float, N: Size>(
        &self,
        output: &mut [Vector<S, N>],
        indices: &mut Optional<Box<[Vector<i32, N>]>>,
        reads: &Reads,
        scales: &Sequence<Vector<A, N>>,
        folds: &Sequence<Vector<A, M>>,
        #[comptime] o: u32,
        #[comptime] count: u32,
    ) {
        let form = comptime!(self.form);
        let strip = &self.strip;
        let vector = strip.output + o * strip.step;
        let own = comptime!((o % PAIR) as usize);
        if comptime!(form.window.along_width) {
            let value = lanes_at::<A, N, M>(strip.site.problem, reads, folds, own, count, form);
            let folded = Accumulator::<A, N> { value, position: Vector::new(0i32) };
            let site = site_of(strip, o, 0u32, form);
            site.finish::<S, A, N>(output, indices, &folded, vector);
        } else {
            #[unroll]
            for v in 0..form.columns {
                // If lanes are channels, both vectors have the same number.
                let fold = *folds.index(comptime!((v * count) as usize + own));
                let value = Vector::<A, N>::cast_from(fold);
                // A maximum does not depend on the order, so it may be written twice.
                let column = if comptime!(form.window.fold.is_extremum()) {
                    v.runtime()
                } else {
                    own_column(v, self.first_own, form.columns)
                };
                let vector = vector + column * strip.site.problem.pixel_vectors;
                if comptime!(form.scales_columns()) {
                    let average = value * *scales.index(v as usize);
                    output[vector as usize] = round::<A, S, N>(average, form.window.rounds);
                } else {
                    let site = site_of(strip, o, v, form);
                    let folded = Accumulator::<A, N> { value, position: Vector::new(0i32) };
                    site.finish::<S, A, N>(output, indices, &folded, vector);
                }
            }
        }
    }
}

/// The offsets of a strip's vectors within a line, and whether each was inside the input before it was moved inside.
#[derive(CubeType)]
struct Reads {
    offsets: Sequence<u32>,
    inside: Sequence<bool>,
}

/// Reduces each lane's taps along the width, from vectors that hold the reductions of output `own` of `count`.
#[cube]
fn lanes_at<A: Float, N: Size, M: Size>(
    problem: &ProblemArgs,
    reads: &Reads,
    folds: &Sequence<Vector<A, M>>,
    #[comptime] own: usize,
    #[comptime] count: u32,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let outside = identity::<A, M>(problem, form.window.fold);
    let mut vectors = Sequence::<Vector<A, M>>::new();
    #[unroll]
    for v in 0..form.reach.vectors() {
        let vector = *folds.index(comptime!(v * count as usize + own));
        vectors.push(if comptime!(form.may_miss(v)) {
            select(*reads.inside.index(v), vector, outside)
        } else {
            vector
        });
    }
    reduce_lanes::<A, N, M>(&vectors, 1usize, 0usize, form)
}
