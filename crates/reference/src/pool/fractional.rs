//! Fractional max pooling: maxima of windows at pseudo-random positions.
//!
//! Its gradient is that of any maximum, [`max_backward`](super::backward::max_backward) with the pooling of the problem.

use windowpane_geometry::{Fractional, IndexBase};

use super::field::Field;
use super::{add_index_base, check_input, index_strides};
use crate::{Scalar, check_length, parallel};

/// The maximum of each window and its index. There is a random number for each axis of each channel of each sample, in this
/// order, from [`Fractional::samples`] or from elsewhere.
///
/// ```
/// use windowpane_geometry::{Extents, Fractional, IndexBase, Layout, Shape};
/// use windowpane_reference::pool::fractional::max_with_indices;
///
/// let line = Shape::new(1, 1, Extents::from([5]))?;
/// let pooling = Fractional::new(line, Extents::from(2), Extents::from(3), Layout::ChannelsLast)?;
/// // The windows start at 0, 1 and 3, which are 1.5 apart before they are rounded.
/// let (y, indices) = max_with_indices(&pooling, &[0.2], IndexBase::Plane, &[5.0f32, 1.0, 2.0, 3.0, 4.0]);
/// assert_eq!((y, indices), (vec![5.0, 2.0, 4.0], vec![0, 2, 4]));
/// # Ok::<(), windowpane_geometry::Error>(())
/// ```
pub fn max_with_indices<T: Scalar>(
    problem: &Fractional,
    samples: &[f32],
    base: IndexBase,
    x: &[T],
) -> (Vec<T>, Vec<i32>) {
    let pooling = problem.pooling();
    check_input(pooling, x);
    check_length("the list of random numbers", samples.len(), problem.sample_count());
    let (field, strides) = (Field::of(pooling), index_strides(pooling, base));
    let rank = pooling.input().space().rank();
    let mut y = vec![T::LOWEST; pooling.output().elements()];
    let mut winners = vec![-1; y.len()];
    parallel::zipped(&mut y, &mut winners, field.row(), |row, (y, winners)| {
        let (outer, [o_d, o_h, _]) = field.row_position(row);
        for (at, (best, winner)) in y.iter_mut().zip(&mut *winners).enumerate() {
            let (o_w, lane) = (at / field.lanes, at % field.lanes);
            let own = &samples[(outer * field.lanes + lane) * rank..][..rank];
            let starts = problem.starts([o_d, o_h, o_w], own);
            let [depth, height, width] =
                core::array::from_fn(|axis| starts[axis]..starts[axis] + problem.kernel()[axis]);
            for d in depth {
                for h in height.clone() {
                    for w in width.clone() {
                        let pixel =
                            outer * field.grid.input_plane() + field.grid.plane_index([d, h, w]);
                        let v = x[pixel * field.lanes + lane];
                        let wins = *winner < 0 || v.beats(*best);
                        *best = if wins || v.exceeds(*best) { v } else { *best };
                        *winner =
                            if wins { strides.offset(0, 0, [d, h, w]) as i32 } else { *winner };
                    }
                }
            }
        }
        add_index_base(&field, &strides, outer, winners);
    });
    (y, winners)
}
