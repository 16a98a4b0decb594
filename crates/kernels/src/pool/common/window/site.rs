//! The position of an output, and which taps of its window are inside the input.

use cubecl::prelude::*;

use super::{Form, ProblemArgs};
use crate::cube::axis::{Taps, coordinate, taps_of};

/// The position of an output, and which taps of its window are inside the input.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Site {
    pub(crate) sample: u32,
    /// The vector within the pixel.
    pub(crate) lane: u32,
    /// The position along the width.
    pub(crate) column: u32,
    pub(crate) depth: Taps,
    pub(crate) height: Taps,
    pub(crate) width: Taps,
}

#[cube]
pub(crate) fn site_of(problem: &ProblemArgs, vector: u32, #[comptime] form: Form) -> Site {
    let (pixel, lane) =
        if comptime!(form.channels) { problem.pixel.div_mod(vector) } else { (vector, 0u32) };
    let (row, w) = problem.width.output.div_mod(pixel);
    let (plane, h) =
        if comptime!(form.rank > 1) { problem.height.output.div_mod(row) } else { (row, 0u32) };
    let (sample, d) =
        if comptime!(form.rank > 2) { problem.depth.output.div_mod(plane) } else { (plane, 0u32) };
    Site {
        sample,
        lane,
        column: w,
        depth: taps_of(&problem.depth, d, form.depth),
        height: taps_of(&problem.height, h, form.height),
        width: taps_of(&problem.width, w, form.width),
    }
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
    #[comptime] form: Form,
) -> Tap {
    let d = coordinate(&problem.depth, &site.depth, td, form.depth);
    let h = coordinate(&problem.height, &site.height, th, form.height);
    let w = coordinate(&problem.width, &site.width, tw, form.width);
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
    #[comptime] form: Form,
) -> Tap {
    let position = plane_position(problem, d, h, w);
    let plane = problem.depth.input * problem.height.input * problem.width.input;
    let pixel = site.sample * plane as u32 + position as u32;
    let vector =
        if comptime!(form.channels) { pixel * problem.pixel_vectors + site.lane } else { pixel };
    Tap { position, vector }
}
