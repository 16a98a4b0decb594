//! The outputs of a strip with their positions. Taps are reduced in their order, line by line and row by row, so that
//! the first of equal values wins.
//!
//! With lanes along the width, NaN is ignored at first, which leaves one comparison per tap. If a strip has a NaN,
//! which is rare, its windows are read once more to find the last one. Lanes that are channels handle NaN with the
//! rest, because reading twice took more registers than are available.

use cubecl::prelude::*;

use super::kernel::{Tile, TileExpand, site_of};
use crate::cube::axis::{AxisForm, coordinate};
use crate::cube::convert::{Comparison, narrow, widen};
use crate::cube::optional::Optional;
use crate::pool::common::lanes_of;
use crate::pool::common::window::{
    Accumulator, ProblemArgs, Site, combine, fold_with, plane_position,
};
use crate::pool::strips::form::Form;
use crate::pool::strips::strip::{exists, outputs_along, site_at, vector_of};
use crate::pool::strips::taps::{Line, TapForm, step};

impl Form {
    /// Whether taps are reduced together with the positions of NaN. Searching for NaN separately keeps vectors of
    /// positions over a loop, and graphics devices have such vectors with at most four lanes.
    fn folds_nans(&self) -> bool {
        !(self.window.along_width && self.window.extremum.by == Comparison::Native)
    }
}

#[cube]
impl<'a, S: Float, M: Size> Tile<'a, S, M> {
    /// Computes the outputs of the strip with their positions. Returns whether an output is NaN whose position is still
    /// unknown.
    pub(super) fn write_positions<A: Float, N: Size>(
        &self,
        output: &mut [Vector<S, N>],
        indices: &mut Optional<Box<[Vector<i32, N>]>>,
    ) -> bool {
        let form = comptime!(self.form);
        let strip = &self.strip;
        let mut rows = Sequence::<Accumulator<A, N>>::new();
        #[unroll]
        for j in 0..form.rows() {
            rows.push(self.folded_row::<A, N>(j));
        }
        let mut folds = Sequence::<Accumulator<A, N>>::new();
        #[unroll]
        for i in 0..form.along.outputs {
            let top = comptime!((i * form.along.stride) as usize);
            let mut folded = *rows.index(top);
            #[unroll]
            for t in 1..form.along.kernel {
                let next = comptime!((i * form.along.stride + t) as usize);
                fold_with::<A, N>(&mut folded, rows.index(next), form.folds_nans(), form.window);
            }
            folds.push(folded);
        }
        let has_nan = has_nan::<A, N>(&folds, form);
        #[unroll]
        for i in 0..form.along.outputs {
            let site = site_of(strip, i, 0u32, form);
            let vector = strip.output + i * strip.step;
            if exists(self.strips, strip, i, form) {
                site.finish::<S, A, N>(output, indices, folds.index(i as usize), vector);
            }
        }
        has_nan
    }

    /// Writes the indices of the outputs of a strip that are NaN.
    pub(super) fn index_nans<A: Float, N: Size>(
        &self,
        indices: &mut Optional<Box<[Vector<i32, N>]>>,
    ) {
        let form = comptime!(self.form);
        let strip = &self.strip;
        #[comptime]
        match &mut indices.given {
            ComptimeOption::Some(indices) => {
                if comptime!(!form.folds_nans()) {
                    let there =
                        min(outputs_along(self.strips, form) - strip.first, form.along.outputs);
                    for i in 0..there {
                        let o = strip.first + i;
                        let site = site_at(strip, o, strip.site.column, false, form);
                        let last = self.last_nan::<A, N>(&site);
                        let at = (strip.output + i * strip.step) as usize;
                        let index = site.index::<N>(last);
                        let is_there = last.greater_than(&Vector::new(i32::MIN));
                        indices[at] = select_many(is_there, index, indices[at]);
                    }
                }
            }
            ComptimeOption::None => {}
        }
    }

    /// The position of the last NaN in each lane's window; `i32::MIN` if there is none.
    fn last_nan<A: Float, N: Size>(&self, site: &Site<'_>) -> Vector<i32, N> {
        let form = comptime!(self.form);
        let problem = site.problem;
        let [depth, height, _] = comptime!(form.window.axes.map(AxisForm::unclipped));
        let last = RuntimeCell::<Vector<i32, N>>::new(Vector::new(i32::MIN));
        for td in site.depth.first..site.depth.end {
            let d = coordinate(&problem.depth, &site.depth, td, depth);
            for th in site.height.first..site.height.end {
                let h = coordinate(&problem.height, &site.height, th, height);
                let vectors = self.vectors::<A>(site, d, h);
                let start = plane_position(problem, d, h, site.width.start);
                #[unroll]
                for t in 0..form.reach.taps {
                    let value = lanes_of::<A, N, M>(&vectors, t, 1usize, 0usize, form.reach);
                    let own = Vector::new(start + (t * form.reach.dilation) as i32);
                    last.store(select_many(value.is_nan(), own, last.read()));
                }
            }
        }
        last.read()
    }

    /// Reduces the taps of the inner axes at row `j` of a strip, in their order.
    fn folded_row<A: Float, N: Size>(&self, #[comptime] j: u32) -> Accumulator<A, N> {
        let form = comptime!(self.form);
        let mut folded = self.folded_line::<A, N>(form.line(j, 0));
        #[unroll]
        for i in 1..form.lines() {
            let next = self.folded_line::<A, N>(form.line(j, i));
            fold_with::<A, N>(&mut folded, &next, form.folds_nans(), form.window);
        }
        folded
    }

    /// Reduces the taps along the width on a line.
    fn folded_line<A: Float, N: Size>(&self, #[comptime] line: Line) -> Accumulator<A, N> {
        let form = comptime!(self.form);
        let site = &self.strip.site;
        let depth = step(&site.problem.depth, &site.depth, line.depth, form.window.axes[0]);
        let height = step(&site.problem.height, &site.height, line.height, form.window.axes[1]);
        if comptime!(form.window.along_width) {
            self.lanes::<A, N>(depth.x, height.x)
        } else {
            self.pixels::<A, N>(depth.x, height.x, line.width)
        }
    }

    /// Reduces a line whose taps are pixels.
    fn pixels<A: Float, N: Size>(
        &self,
        d: i32,
        h: i32,
        #[comptime] first: TapForm,
    ) -> Accumulator<A, N> {
        let form = comptime!(self.form);
        let mut folded = self.pixel::<A, N>(d, h, first);
        #[unroll]
        for t in 1..form.taps(2) {
            let next = self.pixel::<A, N>(d, h, form.tap(2, t));
            fold_with::<A, N>(&mut folded, &next, form.folds_nans(), form.window);
        }
        folded
    }

    fn pixel<A: Float, N: Size>(
        &self,
        d: i32,
        h: i32,
        #[comptime] tap: TapForm,
    ) -> Accumulator<A, N> {
        let form = comptime!(self.form);
        let site = &self.strip.site;
        let width = step(&site.problem.width, &site.width, tap, form.window.axes[2]);
        let tap = site.tap_at(d, h, width.x);
        // If lanes are channels, both vectors have the same number.
        let element = Vector::<S, N>::cast_from(self.input[tap.vector as usize]);
        let value = widen::<S, A, N>(element, form.window.widened);
        Accumulator::<A, N> { value, position: Vector::new(tap.position) }
    }

    /// Reduces a line along which the lanes lie.
    ///
    /// A position is lane 0's for the same tap; `index_lane` later adds the lane's offset.
    fn lanes<A: Float, N: Size>(&self, d: i32, h: i32) -> Accumulator<A, N> {
        let form = comptime!(self.form);
        let site = &self.strip.site;
        let width = comptime!(form.reach);
        let vectors = self.vectors::<A>(site, d, h);
        let start = plane_position(site.problem, d, h, site.width.start);
        let mut folded = Accumulator::<A, N> {
            value: lanes_of::<A, N, M>(&vectors, 0usize, 1usize, 0usize, width),
            position: first_inside::<N>(site, d, h, form),
        };
        #[unroll]
        for t in 1..width.taps {
            let next = Accumulator::<A, N> {
                value: lanes_of::<A, N, M>(&vectors, t, 1usize, 0usize, width),
                position: Vector::new(start + (t * width.dilation) as i32),
            };
            fold_with::<A, N>(&mut folded, &next, form.folds_nans(), form.window);
        }
        folded
    }

    /// The vectors of a line along which the lanes lie; every number beats a vector outside the input.
    fn vectors<A: Float>(&self, site: &Site<'_>, d: i32, h: i32) -> Sequence<Vector<A, M>> {
        let form = comptime!(self.form);
        let width = comptime!(form.reach);
        let (strips, problem) = (self.strips, site.problem);
        let empty = Vector::<A, M>::new(problem.empty.get::<A>());
        let outside = narrow::<A, S, M>(empty, form.window.widened);
        let line = (site.sample as i32 * problem.depth.input + d) * problem.height.input + h;
        let line = line * strips.width_vectors as i32;
        let w = site.column / comptime!(width.output as u32);
        let mut vectors = Sequence::<Vector<A, M>>::new();
        #[unroll]
        for v in 0..width.vectors() {
            if comptime!(!width.touches(v)) {
                vectors.push(empty);
            } else {
                let vector = vector_of(strips, w, v, form);
                let value = self.input[(line + vector.x) as usize];
                let value = if comptime!(form.may_miss(v)) {
                    select(vector.inside, value, outside)
                } else {
                    value
                };
                vectors.push(widen::<S, A, M>(value, form.window.widened));
            }
        }
        vectors
    }
}

/// Whether the extremum of some window is NaN, if NaN is searched for separately.
#[cube]
fn has_nan<A: Float, N: Size>(folds: &Sequence<Accumulator<A, N>>, #[comptime] form: Form) -> bool {
    if comptime!(!form.folds_nans()) {
        let mut all = folds.index(0usize).value;
        #[unroll]
        for i in 1..folds.len() {
            all = combine::<A, N>(all, folds.index(i).value, form.window);
        }
        let mut one = Vector::<A, Const<1>>::new(all.extract(0usize));
        #[unroll]
        for lane in 1..N::value() {
            one = combine::<A, Const<1>>(one, Vector::new(all.extract(lane)), form.window);
        }
        select_many(one.is_nan(), Vector::new(1u32), Vector::new(0u32)).extract(0usize) == 1
    } else {
        false.runtime()
    }
}

/// For each lane, the position on a line of its first tap inside the input, given as lane 0's for the same tap.
#[cube]
fn first_inside<N: Size>(
    site: &Site<'_>,
    d: i32,
    h: i32,
    #[comptime] form: Form,
) -> Vector<i32, N> {
    let line = plane_position(site.problem, d, h, 0i32);
    if comptime!(form.window.axes[2].may_be_outside(0)) {
        let mut first = Vector::<i32, N>::new(line);
        #[unroll]
        for i in 0..N::value() {
            let lane = comptime!((i * form.reach.stride) as i32);
            let column =
                first_coordinate(site.problem, site.width.start + lane, form.window.axes[2]) - lane;
            first.insert(i, line + column);
        }
        first
    } else {
        Vector::new(line + site.width.start)
    }
}

/// The first coordinate inside the input of a window that starts at `start`.
#[cube]
fn first_coordinate(problem: &ProblemArgs, start: i32, #[comptime] form: AxisForm) -> i32 {
    if comptime!(form.dilated) {
        let below = max(-start, 0i32);
        let dilation = problem.width.dilation;
        start + (below + dilation - 1) / dilation * dilation
    } else {
        max(start, 0i32)
    }
}
