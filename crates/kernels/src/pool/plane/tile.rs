//! How planes are distributed to cubes and units, and which planes fit in shared memory.

use windowpane_geometry::{AXES, Axis, DType, Pooling};

use super::NAME;
use crate::pool::common::lanes::widest_divisor;
use crate::pool::error::{PlanError, only_if};
use crate::pool::problem::{Reduction, pixel_channels};

/// The bytes of a cube's planes and their results.
pub(super) const SHARED_BYTES: usize = 24 << 10;

/// The same for a gradient of windows with few taps and four-byte elements: of a common size, four planes fit instead
/// of two, which gives all units work, each with a longer column.
const MORE_BYTES: usize = 40 << 10;

/// The bytes of a cube's planes and their results, on a device with at most `most` bytes of shared memory per cube.
pub(super) fn shared_bytes(pooling: &Pooling, dtype: DType, gradient: bool, most: usize) -> usize {
    let more = gradient && has_few_taps(pooling) && dtype.size() == 4 && MORE_BYTES <= most;
    if more { MORE_BYTES } else { SHARED_BYTES }
}

/// The most loads of one window, which are all unrolled.
const MOST_LOADS: usize = 128;

/// The most bytes that a unit copies at once.
pub(super) const WORD_BYTES: usize = 16;

/// The elements before and after the planes in shared memory, because columns outside are loaded too.
pub(super) const MARGIN: usize = 128;

/// The units of a cube, the same for planes of all sizes, so that a new size compiles no new kernel.
pub(super) const UNITS: u32 = 160;

/// The fewest rows of windows of a unit, if a plane has as many.
const LEAST_ROWS: usize = 8;

/// An axis, seen from a unit's windows. For a gradient, these are the windows over an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) before: i32,
}

impl Side {
    /// Whether the axis is one window with all its taps inside.
    pub(super) fn is_whole(&self) -> bool {
        self.output == 1 && self.before == 0 && self.kernel == self.input
    }
}

/// The axes of a problem, or of its gradient.
pub(super) fn sides(pooling: &Pooling, gradient: bool) -> [Side; AXES] {
    pooling.grid().axes().each_ref().map(|axis| match gradient {
        false => Side {
            input: axis.input(),
            output: axis.output(),
            kernel: axis.kernel(),
            stride: axis.stride(),
            before: axis.before() as i32,
        },
        true => Side {
            input: axis.output(),
            output: axis.input(),
            kernel: axis.kernel(),
            stride: 1,
            before: axis.kernel() as i32 - 1 - axis.before() as i32,
        },
    })
}

/// Whether windows overlap.
pub(in crate::pool) fn overlaps(axis: &Axis) -> bool {
    axis.kernel() > axis.stride() && axis.output() > 1
}

/// How the planes of a problem are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    /// The number of planes of a cube.
    pub(super) group: usize,
    /// The number of neighbouring windows of a unit, and of segments that a plane's rows are divided into.
    pub(super) columns: usize,
    pub(super) segments: usize,
    /// The number of elements that a unit copies at once.
    pub(super) lanes: usize,
}

impl Tile {
    /// `None` if not even one plane fits; a cube has at most `most` bytes of shared memory.
    pub(super) fn new(
        pooling: &Pooling,
        dtype: DType,
        gradient: bool,
        most: usize,
    ) -> Option<Self> {
        let sides = sides(pooling, gradient);
        let [depth, height, width] = sides;
        let columns = columns(pooling, dtype, gradient);
        let lines = depth.output * width.output.div_ceil(columns);
        let [input, output] = elements(&sides);
        let units = UNITS as usize;
        // Results begin at a vector boundary, and one vector is spare.
        let room = |bytes: usize| (bytes / dtype.size()).checked_sub(2 * MARGIN + 2 * WORD_BYTES);
        // More memory is for more planes, not for larger ones.
        room(SHARED_BYTES).filter(|&room| input + output <= room)?;
        let bytes = shared_bytes(pooling, dtype, gradient, most);
        let fit = (room(bytes)? / (input + output)).min((units / lines).max(1));
        let word = (WORD_BYTES / dtype.size()).max(1);
        // A number of planes that is a whole number of vectors, if that is most of the planes that fit.
        let whole = (0..=word.ilog2()).rev().map(|power| fit >> power << power);
        let group = whole.clone().find(|&group| 4 * group >= 3 * fit).filter(|&group| group > 0)?;
        let samples = pooling.input().elements() / pooling.input().plane();
        let lanes = [input, output].into_iter().fold(word, |lanes, plane| {
            widest_divisor(samples * plane, widest_divisor(group * plane, lanes))
        });
        let most = (height.output / LEAST_ROWS).max(1);
        let segments = (units / (group * lines)).clamp(1, most);
        Some(Self { group, columns, segments, lanes })
    }
}

/// The number of neighbouring windows of a unit: two, if they share taps and the unrolled loops are short enough. It is
/// four for a gradient of windows with few taps and two-byte elements, because a cube has more planes of these. With
/// more columns of other types, neighbouring units would access the same banks.
fn columns(pooling: &Pooling, dtype: DType, gradient: bool) -> usize {
    let [_, _, width] = pooling.grid().axes();
    let there = if gradient { width.input() } else { width.output() };
    let many = gradient && has_few_taps(pooling) && dtype.size() == 2;
    let wanted = if many { 4 } else { 2 };
    let fits = |&n: &usize| n <= there && loads(pooling, n) <= MOST_LOADS;
    [wanted, 2].into_iter().find(fits).filter(|_| overlaps(width)).unwrap_or(1)
}

/// Whether windows lie in one plane and have so few taps that the product of their rows' and their columns' factor,
/// rounded, is the reciprocal of the number of taps itself.
pub(super) fn has_few_taps(pooling: &Pooling) -> bool {
    let [depth, height, width] = pooling.grid().axes().each_ref().map(Axis::kernel);
    depth == 1 && height <= 3 && width <= 3
}

/// The number of elements that `columns` neighbouring windows read.
fn loads(pooling: &Pooling, columns: usize) -> usize {
    let [depth, height, width] = pooling.grid().axes();
    let row = (columns - 1) * width.stride() + width.kernel();
    depth.kernel() * height.kernel() * row
}

/// The number of elements of a plane that is read, and of one that is written.
pub(super) fn elements(sides: &[Side; AXES]) -> [usize; 2] {
    let plane = |of: fn(&Side) -> usize| sides.iter().map(of).product::<usize>();
    [plane(|side| side.input), plane(|side| side.output)]
}

/// The reason to refuse planes that have no [`Tile`].
pub(super) const NO_ROOM: &str = "planes do not fit in shared memory";

/// Refuses planes that are too large, and windows that cannot be unrolled.
pub(super) fn fits(
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    gradient: bool,
    most: usize,
) -> Result<(), PlanError> {
    let all = |holds: fn(&Axis) -> bool| pooling.grid().axes().iter().all(holds);
    let norm = matches!(reduction, Reduction::Norm(_));
    let average = matches!(reduction, Reduction::Average(_));
    let near = !gradient || all(|axis| axis.stride() == 1);
    only_if(NAME, !norm, "it computes no norms")?;
    only_if(NAME, !gradient || average, "it computes no gradients of maxima")?;
    only_if(NAME, !reduction.has_indices(), "it computes no indices")?;
    only_if(NAME, near, "it only computes gradients of windows with stride 1")?;
    only_if(NAME, pixel_channels(pooling) == 1, "it is for channels-first tensors")?;
    only_if(NAME, !pooling.grid().is_fitted(), "window sizes follow from the input")?;
    only_if(NAME, all(|axis| axis.dilation() == 1), "windows are dilated")?;
    only_if(NAME, all(|axis| !axis.may_be_empty()), "windows may lie outside the input")?;
    only_if(NAME, loads(pooling, 1) <= MOST_LOADS, "windows have too many taps to unroll")?;
    only_if(NAME, Tile::new(pooling, dtype, gradient, most).is_some(), NO_ROOM)
}
