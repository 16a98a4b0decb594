//! What the units that walk down lines share: the runs of rows, and the loads of lines of pixels.
//!
//! The last run of a line ends at its end, so all runs are whole. Only pixels at the ends of a run may then be outside the
//! line, and which ones is known when the kernel is compiled.

use cubecl::prelude::*;

use super::config::Config;
use crate::conv::common::{GatherArgs, Run, Sweep};
use crate::cube::{Registers, Widening, widen_kept};

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

/// The pixels of a line that a run reads, as compile-time numbers. With channels last, each pixel is a vector of channels.
/// With channels first, `lanes` neighbouring pixels of a channel are loaded as a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pixels {
    pub(super) along: Run,
    /// Whether neighbouring pixels are contiguous, as with channels first.
    pub(super) across: bool,
    pub(super) lanes: u32,
    /// The place of the first pixel in its vector.
    offset: u32,
    /// The number of first vectors, and of last ones, that may be outside the line.
    before: u32,
    after: u32,
    pub(super) widening: Widening,
}

impl Pixels {
    /// Pixels of vectors of channels.
    pub(super) fn new(along: Run, width: &Sweep, widening: Widening) -> Self {
        Self::of_lines(along, width, 1, widening)
    }

    /// Contiguous pixels, in the widest vectors of at most `most` that divide lines and runs.
    pub(super) fn contiguous(along: Run, width: &Sweep, most: u32, widening: Widening) -> Self {
        let last = last_run(&along, width) as u32;
        let together = (along.rows * along.step as u32) | width.extent as u32 | last;
        let lanes = 1 << together.trailing_zeros().min(most.max(1).ilog2());
        Self { across: true, ..Self::of_lines(along, width, lanes, widening) }
    }

    fn of_lines(along: Run, width: &Sweep, lanes: u32, widening: Widening) -> Self {
        let (first, pixels) = along.pixels();
        let of = i64::from(lanes);
        let first = width.start + i64::from(first);
        let (start, offset) = (first.div_euclid(of), first.rem_euclid(of) as u32);
        let count = i64::from((offset + pixels).div_ceil(lanes));
        let end = start + last_run(&along, width) as i64 / of + count;
        let outside = |vectors: i64| vectors.clamp(0, count) as u32;
        let (before, after) = (outside(-start), outside(end - width.extent as i64 / of));
        Self { along, across: false, lanes, offset, before, after, widening }
    }

    /// The number of vectors.
    pub(super) fn count(&self) -> u32 {
        (self.offset + self.along.pixels().1).div_ceil(self.lanes)
    }

    /// The number of pixels.
    pub(super) fn pixels(&self) -> u32 {
        self.along.pixels().1
    }

    /// Where a run's first vector is, relative to its first row's first pixel, in pixels.
    pub(super) fn first(&self) -> i32 {
        self.along.pixels().0 - self.offset as i32
    }

    /// The vector of a pixel, and its lane.
    fn place(&self, pixel: u32) -> (u32, u32) {
        let at = pixel + self.offset;
        (at / self.lanes, at % self.lanes)
    }

    /// Whether any row reads a pixel of vector `v`.
    fn is_read(&self, v: u32) -> bool {
        (0..self.pixels()).any(|pixel| self.place(pixel).0 == v && self.along.is_read(pixel))
    }

    /// Whether vector `v` may be outside the line.
    fn may_be_outside(&self, v: u32) -> bool {
        v < self.before || v + self.after >= self.count()
    }

    /// The register of vector `v` of the line in a buffer.
    fn register(&self, buffer: u32, v: u32) -> usize {
        (buffer * self.count() + v) as usize
    }
}

/// The distance from the first pixel of the first run to that of the last one.
fn last_run(along: &Run, width: &Sweep) -> usize {
    width.rows.saturating_sub(along.rows as usize) * width.step
}

/// Where a unit reads its lines of pixels.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Origin {
    /// The index of the vector at the first coordinate of the plane of pixels.
    pub(super) plane: u32,
    /// The first line that is read, and the first vector of it.
    pub(super) top: i32,
    pub(super) start: i32,
}

/// The first row of a run of `rows` that begins at row `first`, moved back where the line of `width` rows ends before the run does.
#[cube]
pub(super) fn first_row(first: u32, width: u32, #[comptime] rows: u32) -> u32 {
    min(first, width - rows)
}

/// Starts the loads of the vectors of the unit's line `y` into a buffer. Those outside are replaced by others: a load under a
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
    let step =
        if comptime!(pixels.across) { 1u32.runtime() } else { gather.width.a_step as u32 / lanes };
    let extent = gather.width.extent as u32 / comptime!(pixels.lanes);
    let h = max(min(origin.top + y as i32, gather.height.extent - 1), 0i32);
    let line = origin.plane + (h * gather.height.a_step) as u32 / lanes;
    // The first vector that is always inside: offsets from it can be folded into an address.
    let inside = (line + origin.start as u32 + comptime!(pixels.before)) as usize;
    #[unroll]
    for v in 0..pixels.count() {
        if comptime!(pixels.is_read(v)) {
            let at = if comptime!(pixels.may_be_outside(v)) {
                let x = origin.start as u32 + v;
                (line + select(x < extent, x, 0u32) * step) as usize
            } else if comptime!(pixels.across) {
                inside + comptime!((v - pixels.before) as usize)
            } else {
                (line + (origin.start as u32 + v) * step) as usize
            };
            ahead.index(comptime!(pixels.register(buffer, v))).store(a[at]);
        }
    }
}

/// The loaded pixels of the line in a buffer, in the type of the sums; zeros for those outside, and for all of them if the
/// line is not `inside`.
#[cube]
pub(super) fn widened<S: Float, A: Float, N: Size, O: Size>(
    ahead: &Registers<S, N>,
    gather: &GatherArgs,
    origin: &Origin,
    inside: bool,
    #[comptime] buffer: u32,
    #[comptime] pixels: Pixels,
) -> Sequence<Vector<A, O>> {
    let extent = gather.width.extent as u32 / comptime!(pixels.lanes);
    let mut vectors = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for v in 0..pixels.count() {
        let vector = ahead.index(comptime!(pixels.register(buffer, v))).read();
        let inside = if comptime!(pixels.may_be_outside(v)) {
            // As an unsigned number, a negative coordinate is larger than every extent.
            inside && origin.start as u32 + v < extent
        } else {
            inside
        };
        vectors.push(widen_kept::<S, A, N>(vector, inside, pixels.widening));
    }
    let mut widened = Sequence::<Vector<A, O>>::new();
    #[unroll]
    for p in 0..pixels.pixels() {
        let vector = *vectors.index(comptime!(pixels.place(p).0 as usize));
        if comptime!(pixels.across) {
            widened.push(Vector::new(vector.extract(comptime!(pixels.place(p).1 as usize))));
        } else {
            widened.push(Vector::cast_from(vector));
        }
    }
    widened
}
