//! The position of an output, and which taps of its window are inside the input.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;

use super::{ProblemArgs, WindowForm};
use crate::cube::axis::{Taps, coordinate, taps_of};

/// The position of an output, and which taps of its window are inside the input.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Site {
    pub(crate) sample: u32,
    /// The vector within the pixel.
    pub(crate) pixel_vector: u32,
    /// The position along the width.
    pub(crate) column: u32,
    pub(crate) depth: Taps,
    pub(crate) height: Taps,
    pub(crate) width: Taps,
}

#[cube]
pub(crate) fn site_of(problem: &ProblemArgs, vector: u32, #[comptime] form: WindowForm) -> Site {
    let (pixel, pixel_vector) =
        if comptime!(form.channels) { problem.pixel.div_mod(vector) } else { (vector, 0u32) };
    let (row, w) = problem.width.output.div_mod(pixel);
    let (sample, d, h) = split_row(row, &problem.depth.output, &problem.height.output, form.rank);
    Site {
        sample,
        pixel_vector,
        column: w,
        depth: taps_of(&problem.depth, d, form.axes[0]),
        height: taps_of(&problem.height, h, form.axes[1]),
        width: taps_of(&problem.width, w, form.axes[2]),
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

/// The tap (`td`, `th`, `tw`) of a window.
#[cube]
pub(crate) fn tap_of(
    problem: &ProblemArgs,
    site: &Site,
    td: i32,
    th: i32,
    tw: i32,
    #[comptime] form: WindowForm,
) -> Tap {
    let d = coordinate(&problem.depth, &site.depth, td, form.axes[0]);
    let h = coordinate(&problem.height, &site.height, th, form.axes[1]);
    let w = coordinate(&problem.width, &site.width, tw, form.axes[2]);
    tap_at(problem, site, d, h, w, form)
}

/// The tap at a coordinate of the input.
#[cube]
pub(crate) fn tap_at(
    problem: &ProblemArgs,
    site: &Site,
    d: i32,
    h: i32,
    w: i32,
    #[comptime] form: WindowForm,
) -> Tap {
    let position = plane_position(problem, d, h, w);
    Tap { position, vector: vector_at(problem, site, position, form) }
}

/// The vector of the input at a position within the plane of one channel.
#[cube]
pub(crate) fn vector_at(
    problem: &ProblemArgs,
    site: &Site,
    position: i32,
    #[comptime] form: WindowForm,
) -> u32 {
    let plane = problem.depth.input * problem.height.input * problem.width.input;
    let pixel = site.sample * plane as u32 + position as u32;
    if comptime!(form.channels) { pixel * problem.pixel_vectors + site.pixel_vector } else { pixel }
}
