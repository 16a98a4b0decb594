//! Max unpooling: writes maxima back to their positions.
//!
//! ```text
//! x = 0;  for each o in row-major order:  x[winner(o)] = y[o]    an index of −1 is ignored
//! gradient:                               dy[o] = dx[winner(o)]  and 0 for an index of −1
//! ```
//!
//! The indices determine the positions; of the windows only their number matters. If several windows
//! have the same index, the last one wins; the others have no influence and their gradient is 0.

use windowpane_geometry::{IndexBase, Pooling};

use super::backward::{IndexOutOfRange, place, planes};
use super::field::Field;
use super::{check_input, check_output, index_strides};
use crate::{Scalar, parallel};

/// Zeros with each element of `y` at its index; if several windows have the same index, the last in
/// row-major order wins.
pub fn max_unpool<T: Scalar>(
    pooling: &Pooling,
    base: IndexBase,
    y: &[T],
    indices: &[i32],
) -> Result<Vec<T>, IndexOutOfRange> {
    check_output(pooling, "the pooled tensor", y);
    let mut x = vec![T::ZERO; pooling.input().elements()];
    for_each_plane(pooling, base, &mut x, indices, |at, place, x| x[place] = y[at])?;
    Ok(x)
}

/// The gradient of [`max_unpool`] with respect to the pooled tensor.
pub fn max_unpool_backward<T: Scalar>(
    pooling: &Pooling,
    base: IndexBase,
    dx: &[T],
    indices: &[i32],
) -> Result<Vec<T>, IndexOutOfRange> {
    check_input(pooling, dx);
    // The winners are determined in the same order as forward: the last one stays.
    let mut sources = vec![None; pooling.input().elements()];
    for_each_plane(pooling, base, &mut sources, indices, |at, place, sources| {
        sources[place] = Some(at);
    })?;
    let mut dy = vec![T::ZERO; pooling.output().elements()];
    for (source, &dx) in sources.into_iter().zip(dx) {
        if let Some(at) = source {
            dy[at] = dx;
        }
    }
    Ok(dy)
}

/// Calls `each` with every element that has an index, its position in its plane, and the plane. The
/// elements of a plane come in order; planes run on all cores.
fn for_each_plane<X: Send>(
    pooling: &Pooling,
    base: IndexBase,
    x: &mut [X],
    indices: &[i32],
    each: impl Fn(usize, usize, &mut [X]) + Sync,
) -> Result<(), IndexOutOfRange> {
    check_output(pooling, "the tensor of indices", indices);
    let field = Field::of(pooling);
    let strides = index_strides(pooling, base);
    let (inputs, outputs) = planes(&field);
    parallel::try_chunks(x, inputs, |outer, x| {
        let first = outer * outputs;
        for (at, index) in (first..).zip(&indices[first..first + outputs]) {
            if let Some(place) = place(&field, &strides, at, *index)? {
                each(at, place, x);
            }
        }
        Ok(())
    })
}
