//! Extrema under a footprint.
//!
//! ```text
//! level 0 = the elements; level j+1 [x] = level j [x] ⋅ level j [x + 2ʲ]      along the last axis
//! y[o] = the extremum of level j [o + start] over the pieces of the footprint, of length 2ʲ, from start
//! ```
//!
//! A footprint costs two comparisons for each of its runs, however long these are, and each level one for each element.

use windowpane_geometry::{AXES, Extremum, Footprint, Pooling};
use windowpane_reference::parallel;

use super::element::Poolable;
use super::field::Field;
use super::item::{Item, join, join_shifted};
use super::{ROOM, check_length};

/// The elements that a thread has to itself, at least.
const TASK: usize = 1 << 14;

/// The extremum of each window's taps that are in a footprint, for windows of stride 1 without padding:
/// what [`windowpane_reference::pool::footprint`] defines.
///
/// ```
/// use windowpane_geometry::{Extents, Extremum, Footprint, Layout, Pooling, Shape, Window};
/// use windowpane_host::pool::extremum_under;
///
/// let line = Shape::new(1, 1, Extents::from([4]))?;
/// let pooling = Pooling::new(line, &Window::new([3]), Layout::ChannelsLast)?;
/// let ends = Footprint::new(Extents::from([3]), &[true, false, true])?;
/// assert_eq!(extremum_under(Extremum::Min, &pooling, ends, &[7, 1, 9, 2]), [7, 1]);
/// # Ok::<(), windowpane_geometry::Error>(())
/// ```
///
/// # Panics
/// With other windows, or a footprint of other extents.
pub fn extremum_under<T: Poolable>(
    extremum: Extremum,
    pooling: &Pooling,
    footprint: Footprint<'_>,
    x: &[T],
) -> Vec<T> {
    check_length("the input", x.len(), pooling.input().elements());
    let axes = pooling.grid().axes();
    let plain = |axis: &windowpane_geometry::Axis| {
        (axis.stride(), axis.dilation(), axis.before(), axis.after()) == (1, 1, 0, 0)
    };
    assert!(axes.iter().all(plain), "windows of stride 1 without padding");
    assert_eq!(axes.map(|axis| axis.kernel()), footprint.extents().three(1), "its own windows");
    let mirrored = |x: T| if extremum == Extremum::Min { x.mirrored() } else { x };
    let keys = |i: usize| mirrored(x[i]).key();
    let keys = maxima(pooling, footprint, parallel::collect(x.len(), keys));
    parallel::collect(keys.len(), |i| mirrored(T::of(keys[i])))
}

/// The greatest key of each window.
fn maxima<K: Item>(pooling: &Pooling, footprint: Footprint<'_>, keys: Vec<K>) -> Vec<K> {
    let Field { lanes, .. } = Field::of(pooling);
    let axes = pooling.grid().axes();
    let inputs = axes.map(|axis| axis.input());
    let [depth, height, width] = axes.map(|axis| axis.output());
    let at = |[d, h, w]: [usize; AXES]| ((d * inputs[1] + h) * inputs[2] + w) * lanes;
    let longest = footprint.pieces().map(|piece| piece.length).max().unwrap_or(1);
    let mut y = vec![K::EMPTY; pooling.output().elements()];
    let (mut level, mut next) = (keys, Vec::new());
    let mut length = 1;
    loop {
        let pieces = footprint.pieces().filter(|piece| piece.length == length);
        let starts: Vec<usize> = pieces.map(|piece| at(piece.start)).collect();
        let row = width * lanes;
        parallel::chunks(&mut y, row.max(1), TASK.div_ceil(row.max(1)), |i, y| {
            let (outer, d, h) = (i / height / depth, i / height % depth, i % height);
            let from = &level[at([outer * inputs[0] + d, h, 0])..];
            starts.iter().for_each(|start| join(y, &from[*start..]));
        });
        if length == longest {
            return y;
        }
        // Past the end of a row a level has elements of the next one; no piece begins there.
        next.clone_from(&level);
        let by = length * lanes;
        parallel::chunks(&mut next, TASK, 1, |i, next| {
            let from = &level[i * TASK..];
            if from.len() > by {
                join_shifted(next, from, by);
            }
        });
        std::mem::swap(&mut level, &mut next);
        length *= 2;
    }
}

/// The most bytes that [`extremum_under`] allocates at any time, including its result; `usize::MAX` if they cannot be
/// counted.
pub fn extremum_under_bytes<T: Poolable>(pooling: &Pooling, footprint: Footprint<'_>) -> usize {
    let key = size_of::<T::Key>();
    let [inputs, outputs] = [pooling.input(), pooling.output()].map(|shape| shape.elements());
    let results = outputs.saturating_mul(key + size_of::<T>());
    let starts = footprint.pieces().count().saturating_mul(4 * size_of::<usize>());
    let levels = inputs.saturating_mul(2 * key);
    [levels, results, starts].into_iter().fold(ROOM, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use windowpane_geometry::{Extents, Layout, Shape, Window};
    use windowpane_reference::pool::footprint as reference;

    use super::*;

    /// Footprints with one run, several and gaps, in both layouts, beside the reference.
    #[test]
    fn footprints_are_the_reference() {
        for (kernel, rule) in [([1, 5], 1), ([3, 7], 2), ([4, 6], 3), ([5, 5], 5), ([2, 9], 7)] {
            let taps: Vec<bool> = (0..kernel[0] * kernel[1]).map(|i| i * i % rule < 2).collect();
            let footprint = Footprint::new(Extents::from(kernel), &taps).unwrap();
            for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
                let shape = Shape::new(2, 3, Extents::from([9, 130])).unwrap();
                let pooling = Pooling::new(shape, &Window::new(kernel), layout).unwrap();
                let number = |i: usize| match i % 97 {
                    5 => f32::NAN,
                    7 => -0.0,
                    8 => 0.0,
                    n => ((i * 31 + n) % 83) as f32 - 41.0,
                };
                let x: Vec<f32> = (0..shape.elements()).map(number).collect();
                for extremum in [Extremum::Max, Extremum::Min] {
                    let found = extremum_under(extremum, &pooling, footprint, &x);
                    let expected = reference::extremum_under(extremum, &pooling, footprint, &x);
                    let bits = |y: Vec<f32>| -> Vec<u32> {
                        y.into_iter().map(|y| if y.is_nan() { 1 } else { y.to_bits() }).collect()
                    };
                    assert_eq!(bits(found), bits(expected), "{kernel:?} {layout} {extremum:?}");
                }
            }
        }
    }
}
