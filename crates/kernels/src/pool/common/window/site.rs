//! The position of an output, and which taps of its window are inside the input.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;

use super::{ProblemArgs, WindowForm};
use crate::cube::axis::{Taps, coordinate, is_inside, taps_of};
use crate::cube::ranges::{Point, Ranges};

/// The position of an output, and which taps of its window are inside the input.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Site<'a> {
    pub(crate) problem: &'a ProblemArgs,
    pub(crate) sample: u32,
    /// The vector within the pixel.
    pub(crate) pixel_vector: u32,
    /// The position along the width.
    pub(crate) column: u32,
    pub(crate) depth: Taps,
    pub(crate) height: Taps,
    pub(crate) width: Taps,
    #[cube(comptime)]
    pub(crate) form: WindowForm,
}

#[cube]
impl<'a> Site<'a> {
    /// The site of output `vector`.
    pub(crate) fn new(
        problem: &'a ProblemArgs,
        vector: u32,
        #[comptime] form: WindowForm,
    ) -> Site<'a> {
        let (pixel, pixel_vector) =
            if comptime!(form.channels) { problem.pixel.div_mod(vector) } else { (vector, 0u32) };
        let (row, w) = problem.width.output.div_mod(pixel);
        let (sample, d, h) =
            split_row(row, &problem.depth.output, &problem.height.output, form.rank);
        Site::<'a> {
            problem,
            sample,
            pixel_vector,
            column: w,
            depth: taps_of(&problem.depth, d, form.axes[0]),
            height: taps_of(&problem.height, h, form.axes[1]),
            width: taps_of(&problem.width, w, form.axes[2]),
            form,
        }
    }

    /// The taps inside the input.
    pub(crate) fn taps(&self) -> Ranges {
        let (depth, height, width) = (&self.depth, &self.height, &self.width);
        Ranges {
            first: Point { d: depth.first, h: height.first, w: width.first },
            end: Point { d: depth.end, h: height.end, w: width.end },
        }
    }

    /// All taps, for a loop that is unrolled.
    pub(crate) fn all_taps(&self) -> Ranges {
        Ranges::of(comptime!(self.form.axes.map(|axis| axis.taps.unwrap_or(0))))
    }

    /// The number of taps inside the input.
    pub(crate) fn count(&self) -> i32 {
        (self.depth.end - self.depth.first)
            * (self.height.end - self.height.first)
            * (self.width.end - self.width.first)
    }

    /// Whether a tap of an unrolled loop is inside the input.
    pub(crate) fn has(&self, tap: Point) -> bool {
        let [depth, height, width] = comptime!(self.form.axes);
        is_inside(&self.depth, tap.d, depth)
            && is_inside(&self.height, tap.h, height)
            && is_inside(&self.width, tap.w, width)
    }

    /// The position and the vector of a tap.
    pub(crate) fn tap(&self, tap: Point) -> Tap {
        let [depth, height, width] = comptime!(self.form.axes);
        let d = coordinate(&self.problem.depth, &self.depth, tap.d, depth);
        let h = coordinate(&self.problem.height, &self.height, tap.h, height);
        let w = coordinate(&self.problem.width, &self.width, tap.w, width);
        self.tap_at(d, h, w)
    }

    /// The tap at a coordinate of the input.
    pub(crate) fn tap_at(&self, d: i32, h: i32, w: i32) -> Tap {
        let position = plane_position(self.problem, d, h, w);
        Tap { position, vector: self.vector_at(position) }
    }

    /// The vector of the input at a position within the plane of one channel.
    pub(crate) fn vector_at(&self, position: i32) -> u32 {
        let problem = self.problem;
        let plane = problem.depth.input * problem.height.input * problem.width.input;
        let pixel = self.sample * plane as u32 + position as u32;
        if comptime!(self.form.channels) {
            pixel * problem.pixel_vectors + self.pixel_vector
        } else {
            pixel
        }
    }
}

/// The sample of a row, and its position along the depth and the height, which have the given numbers of rows.
#[cube]
pub(crate) fn split_row(
    row: u32,
    depth: &FastDivmod<u32>,
    height: &FastDivmod<u32>,
    #[comptime] rank: usize,
) -> (u32, u32, u32) {
    let (plane, h) = if comptime!(rank > 1) { height.div_mod(row) } else { (row, 0u32) };
    let (sample, d) = if comptime!(rank > 2) { depth.div_mod(plane) } else { (plane, 0u32) };
    (sample, d, h)
}

/// The position of a coordinate within the plane of one channel.
#[cube]
pub(crate) fn plane_position(problem: &ProblemArgs, d: i32, h: i32, w: i32) -> i32 {
    (d * problem.height.input + h) * problem.width.input + w
}

/// A tap: its position within the plane of one channel, and its vector in the input.
#[derive(CubeType)]
pub(crate) struct Tap {
    pub(crate) position: i32,
    pub(crate) vector: u32,
}
