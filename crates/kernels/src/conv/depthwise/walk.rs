//! What the units that walk down lines share: the runs of rows, and the loads of lines of pixels.
//!
//! The last run of a line ends at its end, so all runs are whole. Only pixels at the ends of a run may then be outside the
//! line, and which ones is known when the kernel is compiled.

use cubecl::prelude::*;

use super::config::Config;
use crate::conv::common::gather::{GatherArgs, Sweep};
use crate::conv::common::run::Run;
use crate::cube::convert::{Widening, widen_kept};
use crate::cube::registers::Registers;

/// The most lines whose loads are in flight while a line is multiplied.
pub(super) const MOST_AHEAD: u32 = 3;

/// The run of a walk, no longer than a line.
pub(super) fn run(config: Config, width: &Sweep) -> Run {
    Run::new(config.rows.clamp(1, (width.rows as u32).max(1)), width)
}

/// The largest divisor of `of` that is at most `most`. A buffer of so many lines is filled again at the place of an unrolled
/// loop where it was read: moving a register would wait for its load.
pub(super) fn divisor(of: u32, most: u32) -> u32 {
    (1..=most.max(1)).rev().find(|count| of.is_multiple_of(*count)).unwrap_or(1)
}

/// The pixels of a line that a run reads, as compile-time numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pixels {
    pub(super) along: Run,
    /// The number of first pixels, and of last ones, that may be outside the line.
    before: u32,
    after: u32,
    pub(super) widening: Widening,
}

impl Pixels {
    pub(super) fn new(along: Run, width: &Sweep, widening: Widening) -> Self {
        let (first, count) = along.pixels();
        let first = width.start + i64::from(first);
        let last_run = width.rows.saturating_sub(along.rows as usize) * width.step;
        let end = first + last_run as i64 + i64::from(count);
        let outside = |pixels: i64| pixels.clamp(0, i64::from(count)) as u32;
        let (before, after) = (outside(-first), outside(end - width.extent as i64));
        Self { along, before, after, widening }
    }

    /// The number of vectors of pixels.
    pub(super) fn count(&self) -> u32 {
        self.along.pixels().1
    }

    /// Whether pixel `p` may be outside the line.
    fn may_be_outside(&self, p: u32) -> bool {
        p < self.before || p + self.after >= self.count()
    }

    /// The register of pixel `p` of the line in a buffer.
    fn register(&self, buffer: u32, p: u32) -> usize {
        (buffer * self.count() + p) as usize
    }
}

/// Where a unit reads its lines of pixels.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Origin {
    /// The index of the vector at the first coordinate of the plane of pixels.
    pub(super) plane: u32,
    /// The first line and the first pixel that are read.
    pub(super) top: i32,
    pub(super) start: i32,
}

/// The first row of a run of `rows` that begins at row `first`, moved back where the line of `width` rows ends before the run does.
#[cube]
pub(super) fn first_row(first: u32, width: u32, #[comptime] rows: u32) -> u32 {
    min(first, width - rows)
}

/// Starts the loads of the pixels of the unit's line `y` into a buffer. Those outside are replaced by others: a load under a
/// condition would need a move, which waits for it.
#[cube]
pub(super) fn load_pixels<S: Float, N: Size>(
    a: &[Vector<S, N>],
    gather: &GatherArgs,
    origin: &Origin,
    y: u32,
    ahead: &Registers<S, N>,
    #[comptime] buffer: u32,
    #[comptime] pixels: Pixels,
) {
    let lanes = N::value() as u32;
    let step = gather.width.a_step as u32 / lanes;
    let h = max(min(origin.top + y as i32, gather.height.extent - 1), 0i32);
    let line = origin.plane + (h * gather.height.a_step) as u32 / lanes;
    #[unroll]
    for p in 0..pixels.count() {
        if comptime!(pixels.along.is_read(p)) {
            let x = origin.start as u32 + p;
            let x = if comptime!(pixels.may_be_outside(p)) {
                select(x < gather.width.extent as u32, x, 0u32)
            } else {
                x
            };
            ahead.index(comptime!(pixels.register(buffer, p))).store(a[(line + x * step) as usize]);
        }
    }
}

/// The loaded pixels of the line in a buffer, in the type of the sums; zeros for those outside, and for all of them if the
/// line is not `inside`.
#[cube]
pub(super) fn widened<S: Float, A: Float, N: Size>(
    ahead: &Registers<S, N>,
    gather: &GatherArgs,
    origin: &Origin,
    inside: bool,
    #[comptime] buffer: u32,
    #[comptime] pixels: Pixels,
) -> Sequence<Vector<A, N>> {
    let mut widened = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for p in 0..pixels.count() {
        let pixel = ahead.index(comptime!(pixels.register(buffer, p))).read();
        let inside = if comptime!(pixels.may_be_outside(p)) {
            // As an unsigned number, a negative coordinate is larger than every extent.
            inside && origin.start as u32 + p < gather.width.extent as u32
        } else {
            inside
        };
        widened.push(widen_kept::<S, A, N>(pixel, inside, pixels.widening));
    }
    widened
}
