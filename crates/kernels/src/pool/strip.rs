//! One unit a strip of outputs along the width: what neighbouring windows share is loaded once.
//!
//! ```text
//! for each strip (n, d, h, w₀ … w₀+R−1, c):      one unit, its lanes along c
//!     for each row of taps inside the input:     row-major
//!         for each coordinate x the strip spans:
//!             load x once, fold it into each of the R windows that it is in
//! ```
//!
//! A strip of R windows of k taps and stride s spans (R−1)·s + k coordinates where the windows
//! have R·k taps, so that overlapping windows cost fewer loads and less arithmetic on positions.
//! Windows see their taps in the same order as in [`direct`](super::direct), ties and NaN with it.
//!
//! Only undilated width: then the coordinates outside the input may be moved to the nearest one
//! inside, which is in every window that reaches over the edge and so changes no maximum. An
//! average drops them by a select.

use cubecl::prelude::*;
use windowpane_geometry::Pooling;

use super::direct::{
    Form, Place, Problem, Site, divisor, is_empty, place_of, plane_position, unit_position, wins,
};
use crate::axis::{coordinate, is_inside, taps_of};
use crate::dtype::round;

/// The outputs of a strip.
pub(super) const STRIP: usize = 4;

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StripForm {
    form: Form,
    /// The taps and the stride of the width.
    kernel: u32,
    stride: u32,
}

impl StripForm {
    pub(super) fn new(pooling: &Pooling, form: Form) -> Self {
        let width = &pooling.grid().axes()[2];
        Self { form, kernel: width.kernel() as u32, stride: width.stride() as u32 }
    }

    /// The coordinates that a strip spans.
    fn span(&self) -> u32 {
        (STRIP as u32 - 1) * self.stride + self.kernel
    }

    /// Whether coordinate `x` of the span is a tap of output `r`.
    fn reads(&self, r: u32, x: u32) -> bool {
        (r * self.stride..r * self.stride + self.kernel).contains(&x)
    }
}

/// The types are those of `direct`.
#[cube(launch_unchecked)]
pub(super) fn strip<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    problem: &Problem,
    row: u32,
    #[comptime] strip: StripForm,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let form = comptime!(strip.form);
    let unit = unit_position(form.runs);
    if unit >= problem.units {
        terminate!();
    }
    let place = place_of(problem, unit, form);
    let first = place.w * comptime!(STRIP as u32);
    let site = site_at(problem, place, first, form);

    let start =
        if comptime!(form.fold.is_max()) { problem.lowest.get::<A>() } else { A::from_int(0) };
    let mut folded = Array::<Vector<A, N>>::new(STRIP);
    #[unroll]
    for r in 0..STRIP {
        folded[r] = Vector::new(start);
    }
    let [taps_d, taps_h, _] = comptime!(form.taps());
    #[unroll]
    for td in 0..taps_d {
        #[unroll]
        for th in 0..taps_h {
            #[unroll]
            for x in 0..comptime!(strip.span()) {
                let value = load::<S, A, N>(input, problem, &site, td as i32, th as i32, x, strip);
                #[unroll]
                for r in 0..STRIP {
                    if comptime!(strip.reads(r as u32, x)) {
                        if comptime!(form.fold.is_max()) {
                            let wins = wins(value, folded[r], form.float);
                            folded[r] = select_many(wins, value, folded[r]);
                        } else {
                            folded[r] = folded[r] + value;
                        }
                    }
                }
            }
        }
    }

    #[unroll]
    for r in 0..STRIP {
        let w = first + r as u32;
        if w < row {
            let site = site_at(problem, place, w, form);
            let value = finish::<A, N>(problem, &site, folded[r], form);
            let pixel = place.row * row + w;
            let offset = if comptime!(form.channels) {
                pixel * problem.pixel_vectors + place.lane
            } else {
                pixel
            };
            output[offset as usize] = round::<A, S, N>(value, form.bf16 && !form.fold.is_max());
        }
    }
}

/// The windows of output `w` of the unit's row.
#[cube]
fn site_at(problem: &Problem, place: Place, w: u32, #[comptime] form: Form) -> Site {
    Site {
        sample: place.sample,
        lane: place.lane,
        depth: taps_of(&problem.depth, place.d, form.depth),
        height: taps_of(&problem.height, place.h, form.height),
        width: taps_of(&problem.width, w, form.width),
    }
}

/// The tap at coordinate `x` of the span, in row (`td`, `th`) of taps; of an average, 0 outside.
#[cube]
fn load<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    problem: &Problem,
    site: &Site,
    td: i32,
    th: i32,
    x: u32,
    #[comptime] strip: StripForm,
) -> Vector<A, N> {
    let form = comptime!(strip.form);
    let w = site.width.start + x as i32;
    // The last strip of a row may reach past what any window of it reads.
    let inside = min(max(w, 0i32), problem.width.input - 1);
    let position = plane_position(
        problem,
        coordinate(&problem.depth, &site.depth, td, form.depth),
        coordinate(&problem.height, &site.height, th, form.height),
        inside,
    );
    let plane = problem.depth.input * problem.height.input * problem.width.input;
    let pixel = site.sample * plane as u32 + position as u32;
    let offset =
        if comptime!(form.channels) { pixel * problem.pixel_vectors + site.lane } else { pixel };
    let value = Vector::<A, N>::cast_from(input[offset as usize]);
    if comptime!(form.fold.is_max()) {
        value
    } else {
        let counts = w == inside
            && is_inside(&site.depth, td, form.depth)
            && is_inside(&site.height, th, form.height);
        select(counts, value, Vector::new(A::from_int(0)))
    }
}

/// What a window's output is, once all of its taps are folded.
#[cube]
fn finish<A: Float, N: Size>(
    problem: &Problem,
    site: &Site,
    folded: Vector<A, N>,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let empty = is_empty(site, form);
    if comptime!(form.fold.is_max()) {
        select(empty, Vector::new(problem.lowest.get::<A>()), folded)
    } else {
        let average = folded / Vector::new(divisor::<A>(problem, site, form));
        select(empty, Vector::new(A::from_int(0)), average)
    }
}
