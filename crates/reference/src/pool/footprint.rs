//! Extrema under a footprint: of the taps of each window that count.
//!
//! ```text
//! y[o] = max or min of x[x(o, t)], t inside and in the footprint; an empty window: as for extrema
//! ```

use windowpane_geometry::{AXES, Extremum, Footprint, Pooling};

use super::check_input;
use super::field::Field;
use crate::scalar::Reversed;
use crate::{Scalar, taps};

/// The extremum of each window's taps that are in a footprint, which must have the extents of the windows.
///
/// ```
/// use windowpane_geometry::{Extents, Extremum, Footprint, Layout, Pooling, Shape, Window};
/// use windowpane_reference::pool::footprint::extremum_under;
///
/// let line = Shape::new(1, 1, Extents::from([4]))?;
/// let pooling = Pooling::new(line, &Window::new([3]).padding([1]), Layout::ChannelsLast)?;
/// let ends = Footprint::new(Extents::from([3]), &[true, false, true])?;
/// assert_eq!(extremum_under(Extremum::Max, &pooling, ends, &[7, 1, 9, 2]), [1, 9, 2, 9]);
/// # Ok::<(), windowpane_geometry::Error>(())
/// ```
pub fn extremum_under<T: Scalar>(
    extremum: Extremum,
    pooling: &Pooling,
    footprint: Footprint<'_>,
    x: &[T],
) -> Vec<T> {
    match extremum {
        Extremum::Max => maximum(pooling, footprint, x),
        Extremum::Min => {
            let y = maximum(pooling, footprint, Reversed::of(x));
            y.into_iter().map(|Reversed(y)| y).collect()
        }
    }
}

fn maximum<T: Scalar>(pooling: &Pooling, footprint: Footprint<'_>, x: &[T]) -> Vec<T> {
    check_input(pooling, x);
    let field = Field::of(pooling);
    let (grid, lanes) = (field.grid, field.lanes);
    assert_eq!(grid.kernel().three(1), footprint.extents().three(1), "a footprint of its windows");
    let mut y = vec![T::ZERO; pooling.output().elements()];
    field.for_each_row(&mut y, |row, y| {
        let (outer, first) = field.row_position(row);
        for (at, y) in y.iter_mut().enumerate() {
            let o: [usize; AXES] = [first[0], first[1], at / lanes];
            let inside = taps::inside(grid, o).filter(|(tap, _)| footprint.has(*tap));
            *y = inside.fold(T::LOWEST, |best, (_, position)| {
                let pixel = outer * grid.input_plane() + grid.plane_index(position);
                let value = x[pixel * lanes + at % lanes];
                if value.exceeds(best) { value } else { best }
            });
        }
    });
    y
}
