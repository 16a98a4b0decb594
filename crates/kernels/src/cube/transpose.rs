//! Transposes matrices, which converts a tensor from one layout to the other.
//!
//! A sample of a channels-first tensor is a matrix with a row for each channel and a column for each position;
//! its transpose is the same sample channels last.

use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::DType;

use crate::cube::SECTOR;
use crate::cube::convert::elem;
use crate::cube::numbers;
use crate::cube::unit::{grid, plain_grid, plain_units, unit_position, widest_lanes};
use crate::device::{Capabilities, Target};

/// The bytes of elements that a tile holds, and those of shared memory, where rows may be longer.
const TILE_BYTES: usize = 8 << 10;
const SHARED_BYTES: usize = 9 << 10;

/// The same for a tile of whole lines of one tensor, if these do not fit into the shared memory of other tiles.
const LARGE_BYTES: usize = 36 << 10;
const LARGE_SHARED_BYTES: usize = 40 << 10;

/// The bytes of a row of a tile where a matrix is large: as many as a GPU reads at once.
const ROW_BYTES: usize = 128;

/// The shortest rows, in elements, that are made longer so that columns lie in different banks.
const LEAST_PADDED: usize = 16;

/// The time of a transpose relative to that of a plain copy, and the bytes that a small matrix counts as, because a tile
/// has one matrix: 24,576 matrices of 14 by 35 took as long as if each had 3,500 bytes.
const TRANSPOSE: f64 = 1.7;
pub(crate) const SMALL_MATRIX: usize = TILE_BYTES / 2;

/// The estimated seconds of transposing some bytes, before or after another launch.
pub(crate) fn seconds(bytes: usize, device: &Capabilities) -> f64 {
    device.next_launch_seconds() + TRANSPOSE * device.copy_seconds(2.0 * bytes as f64)
}

/// Whether a device transposes by tiles in shared memory.
pub(crate) fn is_tiled(device: &Capabilities) -> bool {
    device.cores.is_none() && device.shared_bytes >= SHARED_BYTES
}

/// Transposes at least one element, from and to buffers that were checked.
pub(crate) fn launch(
    target: Target<'_>,
    dtype: DType,
    from: &Handle,
    to: &Handle,
    [matrices, rows, columns]: [usize; 3],
) {
    let Target { client, device } = target;
    let elements = matrices * rows * columns;
    if !is_tiled(device) {
        let (cubes, units) = plain_grid(target, elements);
        // SAFETY: both buffers hold the elements, and a unit past the last ends.
        unsafe {
            by_elements::launch_unchecked(
                client,
                cubes,
                units,
                BufferArg::from_raw_parts(from.clone(), elements),
                BufferArg::from_raw_parts(to.clone(), elements),
                elements as u32,
                rows as u32,
                columns as u32,
                columns as u32,
                (rows * columns) as u32,
                device.cores.is_some(),
                elem(dtype),
            );
        }
        return;
    }
    let tile = Tile::new(device, dtype.size(), [matrices, rows, columns]);
    let flat = |side| if tile.flat == Some(side) { tile.rows * tile.columns } else { 0 };
    let [down, along] = [rows.div_ceil(tile.rows), columns.div_ceil(tile.columns)];
    let tiles = matrices * down * along;
    let (cubes, units) = grid(client, tile.units, tiles * tile.units as usize);
    // SAFETY: both buffers hold the elements. What a tile has past the last row or column is loaded from
    // the first element and stored nowhere, and its place in shared memory is within its rows.
    unsafe {
        by_tiles::launch_unchecked(
            client,
            cubes,
            units,
            tile.loaded,
            tile.stored,
            BufferArg::from_raw_parts(from.clone(), elements / tile.loaded),
            BufferArg::from_raw_parts(to.clone(), elements / tile.stored),
            numbers! { TilesLaunch {
                rows, columns, tile_rows: tile.rows, tile_columns: tile.columns, pitch: tile.pitch,
                loads: flat(Side::Source).max(tile.columns) / tile.loaded,
                stores: flat(Side::Target).max(tile.rows) / tile.stored,
                line: rows, along, down, cubes: tiles,
            } },
            tile.form(dtype.size()),
            elem(dtype),
        );
    }
}

/// The piece of a matrix that a cube transposes in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    rows: usize,
    columns: usize,
    /// The elements from one row to the next in shared memory.
    pitch: usize,
    /// The elements that a unit loads at once along a row, and stores along a column.
    loaded: usize,
    stored: usize,
    units: u32,
    /// The tensor of which the tile has whole lines, so that it is contiguous there. Vectors need not divide a line then,
    /// only all of the tile's.
    flat: Option<Side>,
}

/// The tensors of a transpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Side {
    Source,
    Target,
}

impl Tile {
    /// As square as the matrix allows, or whole lines of the tensor whose lines are no whole vectors.
    fn new(device: &Capabilities, size: usize, [matrices, rows, columns]: [usize; 3]) -> Self {
        let sides = [(Side::Source, columns, rows), (Side::Target, rows, columns)];
        let flat = sides.into_iter().find_map(|(side, line, lines)| {
            Self::flat(device, size, side, [matrices, line, lines])
        });
        flat.unwrap_or_else(|| Self::square(device, size, [rows, columns]))
    }

    /// Whole lines of one side, as many as are a line of memory on the other side; none if vectors as wide divide a line
    /// anyway, or if few lines fit into shared memory. Tiles are only large where there is one for each multiprocessor.
    fn flat(
        device: &Capabilities,
        size: usize,
        side: Side,
        [matrices, line, lines]: [usize; 3],
    ) -> Option<Self> {
        // Vectors that divide the number of lines divide whole lines, whatever their length.
        let [widest, along, lanes] = [0, line, lines].map(|of| widest_lanes(device, size, of));
        let pitch = |lines: usize| if side == Side::Source { line } else { pitch(lines, size) };
        let fits = |bytes: usize, room: usize| {
            // Short lines leave room for more of them.
            let most = (ROW_BYTES / size).max(TILE_BYTES / size / line);
            let mut lines = most.min(lines) / lanes * lanes;
            let held = |lines: usize| match side {
                Side::Source => lines * pitch(lines),
                Side::Target => line * pitch(lines),
            };
            while lines > 0 && (line * lines * size > bytes || held(lines) * size > room) {
                lines -= lanes;
            }
            lines
        };
        let small = fits(TILE_BYTES, SHARED_BYTES);
        let large = fits(LARGE_BYTES, LARGE_SHARED_BYTES);
        let fills = large > 0
            && device.shared_bytes >= LARGE_SHARED_BYTES
            && matrices * lines.div_ceil(large) >= device.multiprocessor_count();
        let most = if small * size < ROW_BYTES / 2 && fills { large } else { small };
        // Vectors of half the width are wide enough.
        let wider = 2 * along < lanes && widest <= 2 * lanes;
        let worth = wider && most * size >= SECTOR;
        worth.then(|| {
            let lines = share(lines, most, lanes);
            let (rows, columns) = match side {
                Side::Source => (lines, line),
                Side::Target => (line, lines),
            };
            Self {
                rows,
                columns,
                pitch: pitch(lines),
                loaded: lanes,
                stored: lanes,
                units: plain_units(device),
                flat: Some(side),
            }
        })
    }

    /// As square as the matrix allows.
    fn square(device: &Capabilities, size: usize, [rows, columns]: [usize; 2]) -> Self {
        let [loaded, stored] = [columns, rows].map(|of| widest_lanes(device, size, of));
        let (elements, room) = (TILE_BYTES / size, SHARED_BYTES / size);
        let best = ROW_BYTES / size;
        // Few rows leave room for longer ones.
        let longest = match rows < best {
            true => (elements / rows / loaded * loaded).max(best),
            false => best,
        };
        let columns = share(columns, longest, loaded);
        let pitch = pitch(columns, size);
        let most = (elements / columns).min(room / pitch) / stored * stored;
        let rows = share(rows, most, stored);
        let units = plain_units(device);
        Self { rows, columns, pitch, loaded, stored, units, flat: None }
    }

    fn form(&self, size: usize) -> Form {
        let is_small = self.rows * self.columns * size <= TILE_BYTES
            && self.rows * self.pitch * size <= SHARED_BYTES;
        let (bytes, room) = match is_small {
            true => (TILE_BYTES, SHARED_BYTES),
            false => (LARGE_BYTES, LARGE_SHARED_BYTES),
        };
        let turns = |lanes: usize| (bytes / size / lanes).div_ceil(self.units as usize) as u32;
        let (loads, stores) = (turns(self.loaded), turns(self.stored));
        Form { room: room / size, units: self.units, loads, stores, flat: self.flat }
    }
}

/// The size of equal pieces: as few pieces as possible, each of at most `most` elements and a whole number of vectors.
fn share(whole: usize, most: usize, lanes: usize) -> usize {
    whole.div_ceil(whole.div_ceil(most)).next_multiple_of(lanes).min(most)
}

/// The elements from one row to the next: an odd number of words, so that a column lies in all banks.
fn pitch(columns: usize, size: usize) -> usize {
    let word = 4usize.div_ceil(size);
    match columns < LEAST_PADDED {
        true => columns,
        false => (columns.div_ceil(word) | 1) * word,
    }
}

/// The compile-time numbers of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// The elements that shared memory holds.
    room: usize,
    units: u32,
    /// The loads and the stores of a unit for the largest tile.
    loads: u32,
    stores: u32,
    flat: Option<Side>,
}

/// The extents of matrices and tiles, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct Tiles {
    rows: u32,
    columns: u32,
    tile_rows: u32,
    tile_columns: u32,
    pitch: u32,
    /// The loads of a row of a tile, and the stores of a column; of all of them where the tile is contiguous.
    loads: FastDivmod<u32>,
    stores: FastDivmod<u32>,
    /// The elements of a line of the target.
    line: FastDivmod<u32>,
    /// The tiles along a row and down a column of a matrix, and those of all matrices.
    along: FastDivmod<u32>,
    down: FastDivmod<u32>,
    cubes: u32,
}

#[cube(launch_unchecked)]
fn by_tiles<S: Numeric, N: Size, M: Size>(
    source: &[Vector<S, N>],
    target: &mut [Vector<S, M>],
    tiles: &Tiles,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
) {
    let cube = CUBE_POS as u32;
    if cube >= tiles.cubes {
        terminate!();
    }
    let (loaded, stored) = (N::value() as u32, M::value() as u32);
    let mut shared = Shared::<[S]>::new_slice(comptime!(form.room));
    let (rest, along) = tiles.along.div_mod(cube);
    let (matrix, down) = tiles.down.div_mod(rest);
    let (first_row, first_column) = (down * tiles.tile_rows, along * tiles.tile_columns);
    let first = matrix * tiles.rows * tiles.columns;

    // All loads of a unit are in flight before the first is used.
    let mut held = Sequence::<Vector<S, N>>::new();
    // The rows of the tile, and its elements where it is contiguous.
    let rows = min(tiles.tile_rows, tiles.rows - first_row);
    let elements = rows * tiles.columns;
    #[unroll]
    for turn in 0..comptime!(form.loads) {
        let (row, load) = tiles.loads.div_mod(UNIT_POS + comptime!(turn * form.units));
        let (inside, at) = if comptime!(form.flat == Some(Side::Source)) {
            let at = load * loaded;
            (row == 0 && at < elements, first + first_row * tiles.columns + at)
        } else {
            let (at_row, at_column) = (first_row + row, first_column + load * loaded);
            (row < rows && at_column < tiles.columns, first + at_row * tiles.columns + at_column)
        };
        let at = at / loaded;
        held.push(source[select(inside, at, 0u32) as usize]);
    }
    #[unroll]
    for turn in 0..comptime!(form.loads) {
        let (row, load) = tiles.loads.div_mod(UNIT_POS + comptime!(turn * form.units));
        let holds = if comptime!(form.flat == Some(Side::Source)) {
            row == 0
        } else {
            row < tiles.tile_rows
        };
        if holds {
            let at = (row * tiles.pitch + load * loaded) as usize;
            let elements = held[comptime!(turn as usize)];
            #[unroll]
            for lane in 0..N::value() {
                shared[at + lane] = elements.extract(lane);
            }
        }
    }
    sync_cube();
    let columns = min(tiles.tile_columns, tiles.columns - first_column);
    #[unroll]
    for turn in 0..comptime!(form.stores) {
        let (column, store) = tiles.stores.div_mod(UNIT_POS + comptime!(turn * form.units));
        let at = store * stored;
        // Where the first element is in the tile, and in the matrix.
        let (column, row, inside, at) = if comptime!(form.flat == Some(Side::Target)) {
            let inside = column == 0 && at < columns * tiles.rows;
            let (column, row) = tiles.line.div_mod(at);
            (column, row, inside, first_column * tiles.rows + at)
        } else {
            let at_row = first_row + at;
            let inside = column < columns && at_row < tiles.rows;
            (column, at, inside, (first_column + column) * tiles.rows + at_row)
        };
        if inside {
            let mut elements = Vector::<S, M>::empty();
            let mut place = row * tiles.pitch + column;
            let mut row = row;
            #[unroll]
            for lane in 0..M::value() {
                elements.insert(lane, shared[place as usize]);
                row += 1;
                place += tiles.pitch;
                if comptime!(form.flat == Some(Side::Target)) {
                    // The next column follows the last row.
                    let ends = row == tiles.rows;
                    place -= select(ends, row * tiles.pitch - 1, 0u32);
                    row = select(ends, 0u32, row);
                }
            }
            target[((first + at) / stored) as usize] = elements;
        }
    }
}

/// One element per unit: for processors, and for devices without shared memory.
#[cube(launch_unchecked)]
fn by_elements<S: Numeric>(
    source: &[S],
    target: &mut [S],
    elements: u32,
    rows: FastDivmod<u32>,
    columns: FastDivmod<u32>,
    row_step: u32,
    matrix_step: u32,
    #[comptime] contiguous: bool,
    #[define(S)] _stored: ElemType,
) {
    let i = unit_position(contiguous);
    if i >= elements {
        terminate!();
    }
    let (rest, row) = rows.div_mod(i);
    let (matrix, column) = columns.div_mod(rest);
    target[i as usize] = source[(matrix * matrix_step + row * row_step + column) as usize];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::profiles::{PLAIN_GPU, PROFILES};

    /// Every tile holds all that it is made of, whatever the matrix and the device.
    #[test]
    fn tiles_fit() {
        let extents = (1..70).chain([96, 97, 127, 128, 196, 3136, 4095, 4608, 4609, 1 << 20]);
        let extents: Vec<usize> = extents.collect();
        for device in PROFILES.iter().map(|known| known.capabilities).chain([PLAIN_GPU]) {
            for size in [1, 2, 4, 8] {
                for (&rows, &columns) in
                    extents.iter().flat_map(|r| extents.iter().map(move |c| (r, c)))
                {
                    let tile = Tile::new(&device, size, [1 << 10, rows, columns]);
                    let what = || format!("{size} {rows} {columns}: {tile:?}");
                    assert!(tile.rows > 0 && tile.columns > 0, "{}", what());
                    let form = tile.form(size);
                    let turns = |count: u32| (count * form.units) as usize;
                    let held = tile.rows * tile.columns;
                    assert!(held <= turns(form.loads) * tile.loaded, "{}", what());
                    assert!(held <= turns(form.stores) * tile.stored, "{}", what());
                    assert!(tile.rows * tile.pitch <= form.room, "{}", what());
                    let small = device.shared_bytes.max(SHARED_BYTES);
                    assert!(form.room * size <= small, "{}", what());
                    assert!(tile.columns <= tile.pitch);
                    let whole =
                        |of: usize, lanes: usize| of.is_multiple_of(lanes) && lanes <= 16 / size;
                    let lines = |side: Side, tiles: usize, all: usize| match tile.flat == Some(side)
                    {
                        true => (held, rows * columns),
                        false => (tiles, all),
                    };
                    let (tiles, all) = lines(Side::Source, tile.columns, columns);
                    assert!(whole(tiles, tile.loaded) && whole(all, tile.loaded), "{}", what());
                    let (tiles, all) = lines(Side::Target, tile.rows, rows);
                    assert!(whole(tiles, tile.stored) && whole(all, tile.stored), "{}", what());
                    match tile.flat {
                        Some(Side::Source) => assert_eq!([tile.columns, tile.pitch], [columns; 2]),
                        Some(Side::Target) => assert_eq!(tile.rows, rows),
                        None => {}
                    }
                }
            }
        }
    }

    /// Large matrices are read and written a line at a time, and small ones fill a tile.
    #[test]
    fn tiles_are_square_where_they_can_be() {
        let of = |matrices, rows, columns| Tile::new(&PLAIN_GPU, 2, [matrices, rows, columns]);
        let tile = |size, rows, columns| Tile::new(&PLAIN_GPU, size, [1 << 10, rows, columns]);
        let large = tile(2, 256, 3136);
        assert_eq!((large.rows, large.columns, large.pitch), (64, 64, 66));
        assert_eq!((large.loaded, large.stored), (8, 8));
        let odd = tile(2, 512, 49);
        assert_eq!((odd.rows, odd.columns, odd.loaded, odd.stored), (80, 49, 8, 8));
        assert_eq!((odd.flat, odd.pitch), (Some(Side::Source), 49));
        let back = tile(2, 49, 512);
        assert_eq!((back.rows, back.columns, back.loaded, back.stored), (49, 80, 8, 8));
        assert_eq!(back.flat, Some(Side::Target));
        let halves = tile(2, 92, 33 * 33);
        assert_eq!((halves.flat, halves.loaded, halves.stored), (Some(Side::Source), 4, 4));
        assert_eq!(tile(2, 90, 33 * 33).flat, None);
        // Lines of which shared memory holds few.
        assert_eq!(of(1 << 10, 512, 33 * 33).rows, 16);
        assert_eq!([of(1, 64, 33 * 33).flat, of(1 << 10, 512, 127 * 127).flat], [None; 2]);
        let few = tile(2, 3, 224 * 224);
        assert!(few.rows == 3 && few.columns > 1024, "{few:?}");
        assert_eq!((few.flat, few.loaded, few.stored), (Some(Side::Target), 8, 8));
        let taps = tile(2, 512, 9);
        // Of at most 448 rows, two equal parts.
        assert_eq!((taps.columns, taps.rows), (9, 256));
    }
}
