use windowpane_geometry::{AXES, Grid};

/// The inside taps of the window at output position `o` in row-major order, each with the coordinates
/// that it reads.
pub(crate) fn inside(
    grid: &Grid,
    o: [usize; AXES],
) -> impl Iterator<Item = ([usize; AXES], [usize; AXES])> {
    let [depth, height, width] = grid.axes();
    let along = move |d, h, w| {
        // Inside taps have coordinates of at least 0.
        let at = [depth.coordinate(o[0], d), height.coordinate(o[1], h), width.coordinate(o[2], w)];
        ([d, h, w], at.map(|x| x as usize))
    };
    depth.inside(o[0]).flat_map(move |d| {
        height.inside(o[1]).flat_map(move |h| width.inside(o[2]).map(move |w| along(d, h, w)))
    })
}

/// The position with this index in the row-major order of these extents.
pub(crate) fn position(index: usize, [_, height, width]: [usize; AXES]) -> [usize; AXES] {
    [index / width / height, index / width % height, index % width]
}
