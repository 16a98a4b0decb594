//! Runs of neighbouring rows along the width. Most pixels of a line are read by several rows and taps of a run,
//! and are loaded only once.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;

use super::{GatherArgs, Sweep};

/// Neighbouring rows along the width, and the pixels of a line that they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Run {
    pub(crate) rows: u32,
    /// The distance between the pixels that neighbouring rows read at the same tap.
    pub(crate) step: i32,
    /// The number of taps along the width, and the distance between their pixels.
    pub(crate) taps: u32,
    pub(crate) tap_step: i32,
}

impl Run {
    pub(crate) fn new(rows: u32, width: &Sweep) -> Self {
        let (step, tap_step) = (width.step as i32, width.tap_step as i32);
        Self { rows, step, taps: width.taps as u32, tap_step }
    }

    /// The first pixel that any row reads, relative to the first row's start, and the number of pixels from it to
    /// the last one.
    pub(crate) fn pixels(&self) -> (i32, u32) {
        let rows = (self.rows as i32 - 1) * self.step;
        let taps = (self.taps.max(1) as i32 - 1) * self.tap_step;
        let (first, last) = (taps.min(0), rows + taps.max(0));
        (first, (last - first + 1) as u32)
    }

    /// The index of the pixel that row `r` reads at tap `t`.
    pub(crate) fn pixel(&self, r: u32, t: u32) -> u32 {
        (r as i32 * self.step + t as i32 * self.tap_step - self.pixels().0) as u32
    }

    /// Whether `p` is the first pixel that row `r` reads.
    pub(crate) fn is_first(&self, r: u32, p: u32) -> bool {
        (0..self.taps).map(|t| self.pixel(r, t)).min() == Some(p)
    }

    /// Whether any row reads pixel `p`.
    pub(crate) fn is_read(&self, p: u32) -> bool {
        (0..self.rows).any(|r| (0..self.taps).any(|t| self.pixel(r, t) == p))
    }
}

/// The numbers of a launch whose units each compute runs of rows by a vector, besides those of the gather.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct RunArgs {
    pub(crate) units: u32,
    /// The number of blocks along the height, of runs along the width, and of chunks of vectors with contiguous weights.
    pub(crate) lines: FastDivmod<u32>,
    pub(crate) runs: FastDivmod<u32>,
    pub(crate) chunks: FastDivmod<u32>,
    /// The number of rows along the height, and of rows (or vectors of rows) along the width.
    pub(crate) height: u32,
    pub(crate) width: u32,
}

/// The pixels of a line that a run reads, from coordinate `start` on; zeros outside the line.
#[cube]
pub(crate) fn pixels_of<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    gather: &GatherArgs,
    line: usize,
    start: i32,
    extent: i32,
    #[comptime] clipped: bool,
    #[comptime] run: Run,
) -> Sequence<Vector<A, N>> {
    let zero = Vector::<A, N>::new(A::from_int(0));
    let mut pixels = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for p in 0..comptime!(run.pixels().1) {
        if comptime!(!run.is_read(p)) {
            pixels.push(zero);
        } else if comptime!(clipped) {
            let x = start + p as i32;
            let inside = x >= 0 && x < extent;
            let pixel = pixel_at::<S, A, N>(a, gather, line, select(inside, x, 0i32), 0u32);
            pixels.push(select(inside, pixel, zero));
        } else {
            pixels.push(pixel_at::<S, A, N>(a, gather, line, start, p));
        }
    }
    pixels
}

/// The pixel at coordinate `x + p` of a line; `x` must not be negative.
#[cube]
pub(crate) fn pixel_at<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    gather: &GatherArgs,
    line: usize,
    x: i32,
    #[comptime] p: u32,
) -> Vector<A, N> {
    // The arithmetic uses `usize`: offsets that may wrap at 32 bits cannot be folded into an address.
    let step = (gather.width.a_step as u32 / N::value() as u32) as usize;
    Vector::cast_from(a[line + x as u32 as usize * step + comptime!(p as usize) * step])
}
