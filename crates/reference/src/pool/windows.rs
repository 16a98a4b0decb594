//! Reductions that need all numbers of a window at once.

use windowpane_geometry::{AXES, Pooling};

use super::check_input;
use super::field::Field;
use crate::{Scalar, taps};

/// The results of `reduce` for the numbers of each window that are inside the input, in row-major order of the taps.
pub(super) fn reduced<T: Scalar>(
    pooling: &Pooling,
    x: &[T],
    reduce: impl Fn(&mut [T]) -> T + Sync,
) -> Vec<T> {
    check_input(pooling, x);
    let field = Field::of(pooling);
    let (grid, lanes) = (field.grid, field.lanes);
    let mut y = vec![T::ZERO; pooling.output().elements()];
    field.for_each_row(&mut y, |row, y| {
        let (outer, first) = field.row_position(row);
        let mut window = Vec::new();
        for (at, y) in y.iter_mut().enumerate() {
            let o: [usize; AXES] = [first[0], first[1], at / lanes];
            window.clear();
            window.extend(taps::inside(grid, o).map(|(_, position)| {
                let pixel = outer * grid.input_plane() + grid.plane_index(position);
                x[pixel * lanes + at % lanes]
            }));
            *y = reduce(&mut window);
        }
    });
    y
}

/// The order of maxima, for numbers that are not NaN: −0 is less than +0.
pub(super) fn order<T: Scalar>(a: &T, b: &T) -> core::cmp::Ordering {
    a.exceeds(*b).cmp(&b.exceeds(*a))
}
