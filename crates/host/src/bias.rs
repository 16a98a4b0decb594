//! The bias gradient: sums over all positions, in `f64`.

use windowpane_geometry::{Convolution, Layout};
use windowpane_reference::Scalar;

use crate::dense::{SMALL, TASKS};
use crate::element::Element;
use crate::shared::{Shared, run, written};

/// The elements that are converted at a time.
const CHUNK: usize = 512;
/// The sums of a line of positions, so that additions need not wait for each other.
const LANES: usize = 16;

/// The parts whose sums are added at the end, if positions are rows.
pub(crate) fn parts(conv: &Convolution) -> usize {
    let positions = conv.output().batch() * conv.output().plane();
    match conv.layout() {
        Layout::ChannelsLast => (positions / 256).clamp(1, TASKS),
        Layout::ChannelsFirst => 1,
    }
}

pub(crate) fn gradient<T: Element>(conv: &Convolution, dy: &[T]) -> Vec<T> {
    let (filters, parts) = (conv.filter().count(), parts(conv));
    let is_small = dy.len() < SMALL;
    let add_up = |sums: Shared<'_, f64>| match conv.layout() {
        Layout::ChannelsLast => {
            let rows = dy.len() / filters;
            run::<T::Sum>(parts, CHUNK, is_small, |part, wide| {
                let rows = part * rows / parts..(part + 1) * rows / parts;
                // SAFETY: no other task has this part.
                let sums = unsafe { sums.slice(part * filters, filters) };
                sums.fill(0.0);
                for row in dy[rows.start * filters..rows.end * filters].chunks(filters) {
                    for (row, sums) in row.chunks(CHUNK).zip(sums.chunks_mut(CHUNK)) {
                        let wide = &mut wide[..row.len()];
                        T::widen_all(row, wide);
                        sums.iter_mut().zip(&*wide).for_each(|(sum, dy)| *sum += dy.to_f64());
                    }
                }
            });
        }
        Layout::ChannelsFirst => {
            let plane = conv.output().plane();
            run::<T::Sum>(filters, CHUNK, is_small, |filter, wide| {
                let mut lanes = [0.0; LANES];
                let planes = dy.chunks(plane).skip(filter).step_by(filters);
                for chunk in planes.flat_map(|plane| plane.chunks(CHUNK)) {
                    let wide = &mut wide[..chunk.len()];
                    T::widen_all(chunk, wide);
                    for some in wide.chunks(LANES) {
                        lanes.iter_mut().zip(some).for_each(|(sum, dy)| *sum += dy.to_f64());
                    }
                }
                // SAFETY: no other task has this filter.
                unsafe { sums.write(filter, lanes.iter().sum()) };
            });
        }
    };
    // SAFETY: the tasks are all parts, or all filters.
    let sums = unsafe { written(parts * filters, add_up) };
    let total = |filter: usize| sums[filter..].iter().step_by(filters).sum::<f64>();
    (0..filters).map(|filter| T::from_f64(total(filter))).collect()
}
