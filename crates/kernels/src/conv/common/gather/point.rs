//! The index arithmetic of a product inside a kernel: the coordinates of rows and terms, and the element that a row
//! and a term read together.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;

use super::GatherForm;

/// One axis of a product, as run-time values.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct SweepArgs {
    /// The number of row positions on this axis.
    pub(crate) rows: FastDivmod<u32>,
    pub(crate) start: i32,
    pub(crate) step: i32,
    pub(crate) tap_step: i32,
    pub(crate) extent: i32,
    pub(crate) taps: FastDivmod<u32>,
    pub(crate) taps_count: u32,
    /// The memory steps between coordinates, taps and results, and the offsets of the first tap and result.
    pub(crate) a_step: i32,
    pub(crate) b_first: u32,
    pub(crate) b_step: u32,
    pub(crate) out_first: u32,
    pub(crate) out_step: u32,
}

/// A product, as run-time values.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct GatherArgs {
    pub(crate) depth: SweepArgs,
    pub(crate) height: SweepArgs,
    pub(crate) width: SweepArgs,
    /// The number of rows, of columns per group, and of terms per tap.
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    pub(crate) inner: FastDivmod<u32>,
    pub(crate) inner_count: u32,
    /// The memory steps to the next sample, term or column, and group.
    pub(crate) a_batch: u32,
    pub(crate) a_inner: u32,
    pub(crate) a_group: u32,
    pub(crate) b_inner: u32,
    pub(crate) b_group: u32,
    pub(crate) out_batch: u32,
    pub(crate) out_column: u32,
    pub(crate) out_group: u32,
    #[cube(comptime)]
    pub(crate) form: GatherForm,
}

/// A row of the product, or one of its terms. A row holds the coordinates that its first tap reads; a term holds
/// the distance that its tap adds to them. Both hold a part of the offset of the element that is read, and a row
/// also the offset of its result, a term that of its weight.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Point {
    pub(crate) depth: i32,
    pub(crate) height: i32,
    pub(crate) width: i32,
    /// The part of the offset in `a`.
    pub(crate) a: u32,
    /// The offset in `out` for a row, in `b` for a term.
    pub(crate) other: u32,
}

/// The sample and the position of a row.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Position {
    pub(crate) sample: u32,
    pub(crate) depth: u32,
    pub(crate) height: u32,
    pub(crate) width: u32,
}

/// The sample and the position of row `m`.
#[cube]
pub(crate) fn row_position(gather: &GatherArgs, m: u32) -> Position {
    let (m, width) = gather.width.rows.div_mod(m);
    let (m, height) =
        if comptime!(gather.form.rank > 1) { gather.height.rows.div_mod(m) } else { (m, 0u32) };
    let (sample, depth) =
        if comptime!(gather.form.rank > 2) { gather.depth.rows.div_mod(m) } else { (m, 0u32) };
    Position { sample, depth, height, width }
}

/// The coordinate that position `q` reads at the first tap.
#[cube]
pub(crate) fn read(sweep: &SweepArgs, q: u32) -> i32 {
    sweep.start + q as i32 * sweep.step
}

/// The distance from the smallest coordinate that a row of a data gradient reads to that of its first tap.
#[cube]
pub(crate) fn reach(sweep: &SweepArgs) -> i32 {
    (1 - sweep.taps_count as i32) * sweep.tap_step
}

/// The offset of a row's result.
#[cube]
pub(crate) fn row_result(gather: &GatherArgs, row: &Position) -> u32 {
    row.sample * gather.out_batch
        + result(&gather.depth, row.depth)
        + result(&gather.height, row.height)
        + result(&gather.width, row.width)
}

/// Row `m` of the product.
#[cube]
pub(crate) fn row_point(gather: &GatherArgs, m: u32) -> Point {
    let row = row_position(gather, m);
    Point {
        depth: read(&gather.depth, row.depth),
        height: read(&gather.height, row.height),
        width: read(&gather.width, row.width),
        a: row.sample * gather.a_batch,
        other: row_result(gather, &row),
    }
}

/// The offset of position `q` among the results.
#[cube]
pub(crate) fn result(sweep: &SweepArgs, q: u32) -> u32 {
    sweep.out_first + q * sweep.out_step
}

/// Term `k` of the product, with channels innermost.
#[cube]
pub(crate) fn term_point(gather: &GatherArgs, k: u32) -> Point {
    if comptime!(gather.form.pointwise) {
        let tap = tap_point(gather, 0u32, 0u32, 0u32);
        further(gather, &tap, k)
    } else {
        let (tap, inner) = gather.inner.div_mod(k);
        let (tap, tw) = gather.width.taps.div_mod(tap);
        let (td, th) = if comptime!(gather.form.rank > 1) {
            gather.height.taps.div_mod(tap)
        } else {
            (tap, 0u32)
        };
        let tap = tap_point(gather, td, th, tw);
        further(gather, &tap, inner)
    }
}

/// The first term of tap (`td`, `th`, `tw`).
#[cube]
pub(crate) fn tap_point(gather: &GatherArgs, td: u32, th: u32, tw: u32) -> Point {
    Point {
        depth: td as i32 * gather.depth.tap_step,
        height: th as i32 * gather.height.tap_step,
        width: tw as i32 * gather.width.tap_step,
        a: 0u32,
        other: weight(&gather.depth, td) + weight(&gather.height, th) + weight(&gather.width, tw),
    }
}

/// The offset of tap `t` among the weights.
#[cube]
fn weight(sweep: &SweepArgs, t: u32) -> u32 {
    sweep.b_first + t * sweep.b_step
}

/// The term that is `by` terms after another one of the same tap.
#[cube]
pub(crate) fn further(gather: &GatherArgs, term: &Point, by: u32) -> Point {
    moved(term, term.a + by * gather.a_inner, term.other + by * gather.b_inner)
}

/// A row or a term with the coordinates of another one and offsets of its own.
#[cube]
pub(crate) fn moved(point: &Point, a: u32, other: u32) -> Point {
    Point { depth: point.depth, height: point.height, width: point.width, a, other }
}

/// The element that a row reads at a term.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Read {
    /// Whether it is inside the tensor.
    pub(crate) inside: bool,
    /// Its offset; if it is outside, some offset inside the tensor.
    pub(crate) at: u32,
}

/// The element that a row and a term read together. The order of the two does not matter.
#[cube]
pub(crate) fn read_at(gather: &GatherArgs, one: &Point, other: &Point) -> Read {
    let d = one.depth + other.depth;
    let h = one.height + other.height;
    let w = one.width + other.width;
    let inside = reads_inside(gather, one, other);
    let at = place(gather, d, h, w);
    let at = if comptime!(gather.form.clipped) { select(inside, at, 0i32) } else { at };
    Read { inside, at: one.a + other.a + at as u32 }
}

/// The offset of coordinates from the first element of a sample.
#[cube]
fn place(gather: &GatherArgs, d: i32, h: i32, w: i32) -> i32 {
    let mut at = w * gather.width.a_step;
    if comptime!(gather.form.rank > 1) {
        at += h * gather.height.a_step;
    }
    if comptime!(gather.form.rank > 2) {
        at += d * gather.depth.a_step;
    }
    at
}

/// Whether an axis has coordinate `x`.
#[cube]
fn is_inside(sweep: &SweepArgs, x: i32, #[comptime] clipped: bool) -> bool {
    // As an unsigned number, a negative coordinate is larger than every extent.
    if comptime!(clipped) { (x as u32) < sweep.extent as u32 } else { true.runtime() }
}

/// A row or a term with its coordinates added to its part of the offset. The offset that a row and a term read
/// together is then the sum of the two parts, if it is inside.
#[cube]
pub(crate) fn with_offset(gather: &GatherArgs, point: &Point) -> Point {
    let at = place(gather, point.depth, point.height, point.width);
    moved(point, point.a + at as u32, point.other)
}

/// Whether the element that a row and a term read together is inside the tensor.
#[cube]
pub(crate) fn reads_inside(gather: &GatherArgs, one: &Point, other: &Point) -> bool {
    let clipped = comptime!(gather.form.clipped);
    let mut inside = is_inside(&gather.width, one.width + other.width, clipped);
    if comptime!(gather.form.rank > 1) {
        inside = inside && is_inside(&gather.height, one.height + other.height, clipped);
    }
    if comptime!(gather.form.rank > 2) {
        inside = inside && is_inside(&gather.depth, one.depth + other.depth, clipped);
    }
    inside
}

/// The vector at `at` if `there`, otherwise zeros.
///
/// It is a branch, not a `select`, which would wait for the load: loads must stay in flight while the previous
/// block is multiplied.
#[cube]
pub(crate) fn load_if<S: Float, N: Size>(
    from: &[Vector<S, N>],
    there: bool,
    at: u32,
) -> Vector<S, N> {
    let mut value = Vector::new(S::from_int(0));
    if there {
        value = from[at as usize];
    }
    value
}
