//! The gradients of pooling, as scatters.
//!
//! ```text
//! max     dx[winner(o)] += dy[o]                                an index of −1 adds nothing
//! average dx[x(o, t)]   += dy[o] / divisor(o)                   for each inside tap t
//! ```
//!
//! Sums are computed in `f64`, in the row-major order of the outputs, and rounded once. Planes run on all
//! cores; outputs of different planes never add to the same element.

use std::convert::Infallible;
use std::fmt;

use windowpane_geometry::{AXES, Divisor, IndexBase, Pooling, Strides};

use super::field::Field;
use super::{check_input, check_output, divisors, index_strides};
use crate::total::{Accumulator, Shares};
use crate::{Scalar, Total, parallel, taps};

/// The error for an index that is not a position in its own sample and channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexOutOfRange {
    /// The element of the indices, in memory order.
    pub at: usize,
    /// The index.
    pub index: i32,
}

impl fmt::Display for IndexOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, index } = self;
        write!(
            f,
            "index {index} of element {at} is not a position in the plane of its own sample and \
             channel; use the indices of a forward pass with the same shapes, layout \
             and index base"
        )
    }
}

impl std::error::Error for IndexOutOfRange {}

/// Refuses the first index that is not a position in the input plane of its sample and channel.
pub fn check_indices(
    pooling: &Pooling,
    base: IndexBase,
    indices: &[i32],
) -> Result<(), IndexOutOfRange> {
    check_output(pooling, "the tensor of indices", indices);
    let (field, strides) = (Field::of(pooling), index_strides(pooling, base));
    let place = |at: usize| place(&field, &strides, at, indices[at]);
    match parallel::find(indices.len(), |at| place(at).is_err()) {
        Some(wrong) => place(wrong).map(drop),
        None => Ok(()),
    }
}

/// The gradient of a maximum, from the indices of the forward pass.
pub fn max_backward<T: Scalar>(
    pooling: &Pooling,
    base: IndexBase,
    dy: &[T],
    indices: &[i32],
) -> Result<Vec<T>, IndexOutOfRange> {
    scatter_to_winners(pooling, base, dy, indices, T::ZERO, |sum: f64| T::from_f64(sum))
}

/// The gradient of a maximum, unrounded, with the data for an error bound.
pub fn max_backward_totals<T: Scalar>(
    pooling: &Pooling,
    base: IndexBase,
    dy: &[T],
    indices: &[i32],
) -> Result<Vec<Total>, IndexOutOfRange> {
    scatter_to_winners(pooling, base, dy, indices, Total::default(), |sum: Total| sum)
}

/// The gradient of a maximum, from the input: the maxima are located again.
pub fn max_backward_from_input<T: Scalar>(pooling: &Pooling, dy: &[T], x: &[T]) -> Vec<T> {
    check_input(pooling, x);
    check_output(pooling, "the output gradient", dy);
    let field = Field::of(pooling);
    let (inputs, outputs) = planes(&field);
    let scatter = |outer: usize, sums: &mut [f64]| {
        let (x, dy) = (&x[outer * inputs..][..inputs], &dy[outer * outputs..][..outputs]);
        for (o, dy) in dy.chunks_exact(field.lanes).enumerate() {
            for (lane, dy) in dy.iter().enumerate() {
                if let Some(winner) = winner(&field, o, lane, x) {
                    sums[winner].add(dy.to_f64());
                }
            }
        }
        Ok::<_, Infallible>(())
    };
    let Ok(dx) = scatter_planes(&field, T::ZERO, T::from_f64, scatter);
    dx
}

/// The element of a plane that is the maximum of window `o` in one lane.
fn winner<T: Scalar>(field: &Field, o: usize, lane: usize, x: &[T]) -> Option<usize> {
    let o = taps::position(o, field.grid.axes().map(|axis| axis.output()));
    taps::inside(field.grid, o)
        .map(|(_, position)| field.grid.plane_index(position) * field.lanes + lane)
        .reduce(|best, new| if x[new].beats(x[best]) { new } else { best })
}

/// The gradient of an average.
pub fn average_backward<T: Scalar>(pooling: &Pooling, divisor: Divisor, dy: &[T]) -> Vec<T> {
    spread(pooling, divisor, dy, T::ZERO, |total| T::from_f64(total.value))
}

/// The gradient of an average, unrounded, with the data for an error bound. The terms are the divided
/// output gradients.
pub fn average_backward_totals<T: Scalar>(
    pooling: &Pooling,
    divisor: Divisor,
    dy: &[T],
) -> Vec<Total> {
    spread(pooling, divisor, dy, Total::default(), |total| total)
}

fn scatter_to_winners<T: Scalar, A: Accumulator, Y: Copy + Send + Sync>(
    pooling: &Pooling,
    base: IndexBase,
    dy: &[T],
    indices: &[i32],
    zero: Y,
    finish: impl Fn(A) -> Y + Sync,
) -> Result<Vec<Y>, IndexOutOfRange> {
    check_output(pooling, "the output gradient", dy);
    check_output(pooling, "the tensor of indices", indices);
    let field = Field::of(pooling);
    let strides = index_strides(pooling, base);
    let (_, outputs) = planes(&field);
    scatter_planes(&field, zero, finish, |outer, sums: &mut [A]| {
        for at in outer * outputs..(outer + 1) * outputs {
            if let Some(place) = place(&field, &strides, at, indices[at])? {
                sums[place].add(dy[at].to_f64());
            }
        }
        Ok(())
    })
}

/// The position in its plane of the index of output element `at`, if any.
pub(super) fn place(
    field: &Field,
    strides: &Strides,
    at: usize,
    index: i32,
) -> Result<Option<usize>, IndexOutOfRange> {
    if index == -1 {
        return Ok(None);
    }
    let lane = at % field.lanes;
    let outer = at / (field.grid.output_plane() * field.lanes);
    let pixel_step = strides.space[AXES - 1];
    let base = field.index_base(strides, outer, lane);
    usize::try_from(index)
        .ok()
        .and_then(|index| index.checked_sub(base))
        .filter(|steps| steps % pixel_step == 0)
        .map(|steps| steps / pixel_step)
        .filter(|&pixel| pixel < field.grid.input_plane())
        .map(|pixel| Some(pixel * field.lanes + lane))
        .ok_or(IndexOutOfRange { at, index })
}

fn spread<T: Scalar, Y: Copy + Send + Sync>(
    pooling: &Pooling,
    divisor: Divisor,
    dy: &[T],
    zero: Y,
    finish: impl Fn(Total) -> Y + Sync,
) -> Vec<Y> {
    check_output(pooling, "the output gradient", dy);
    let field = Field::of(pooling);
    let (grid, lanes) = (field.grid, field.lanes);
    let (_, outputs) = planes(&field);
    let divisors = divisors(pooling, divisor);
    let extents = grid.axes().map(|axis| axis.output());
    let scatter = |outer: usize, sums: &mut [Shares]| {
        let pixels = dy[outer * outputs..][..outputs].chunks_exact(lanes);
        for (o, (dy, divisor)) in pixels.zip(&divisors).enumerate() {
            for (_, position) in taps::inside(grid, taps::position(o, extents)) {
                let sums = &mut sums[grid.plane_index(position) * lanes..][..lanes];
                for (sum, dy) in sums.iter_mut().zip(dy) {
                    sum.add(dy.to_f64(), *divisor);
                }
            }
        }
        Ok::<_, Infallible>(())
    };
    let Ok(dx) = scatter_planes(&field, zero, |sum: Shares| finish(sum.total()), scatter);
    dx
}

/// The elements of one outer position of the input, and of the output.
pub(super) fn planes(field: &Field) -> (usize, usize) {
    (field.grid.input_plane() * field.lanes, field.grid.output_plane() * field.lanes)
}

/// Calls `scatter` for the sums of each outer position, on all cores, and finishes the sums.
pub(super) fn scatter_planes<A: Copy + Default, Y: Copy + Send + Sync, E: Send>(
    field: &Field,
    zero: Y,
    finish: impl Fn(A) -> Y + Sync,
    scatter: impl Fn(usize, &mut [A]) -> Result<(), E> + Sync,
) -> Result<Vec<Y>, E> {
    let (inputs, _) = planes(field);
    let mut dx = vec![zero; field.outer * inputs];
    parallel::try_chunks(&mut dx, inputs, |outer, dx| {
        let mut sums = vec![A::default(); inputs];
        scatter(outer, &mut sums)?;
        dx.iter_mut().zip(sums).for_each(|(dx, sum)| *dx = finish(sum));
        Ok(())
    })?;
    Ok(dx)
}
