//! Estimates the cycles of tiles, by which the tile is chosen, and the seconds of all launches of a pass.

use windowpane_geometry::{AXES, Tile};

use super::config::cubes;
use super::im2col::Im2colWalk;
use super::product::Product;
use super::tile::{CHUNK, CHUNK_BYTES, LINE, step_cycles, unshared_tiles};
use crate::conv::common::cost;
use crate::conv::problem::{Pass, Task, operands};
use crate::device::Capabilities;

/// The multiply-adds of 16-bit factors that a multiprocessor's matrix units complete per cycle.
const PRODUCTS: f64 = 2048.0;

/// The time of a step's products relative to that at the peak of the matrix units, and the additional cycles of a step.
const PRODUCTS_SLOWDOWN: f64 = 1.11;
const CYCLES_PER_STEP: f64 = 11.0;

/// The bytes per cycle that a multiprocessor moves in shared memory.
const SHARED_BYTES_PER_CYCLE: f64 = 128.0;

/// The reads of columns by a further warpgroup, relative to those of the first one, in strict f32, which multiplies the same
/// columns more than once. The number was fitted to 200 times on an H200.
const COLUMNS_AGAIN: f64 = 0.5;

/// The bytes that the copy engine loads from the cache, relative to a copy that reads and writes there; how many times
/// longer it takes for pixels that do not begin at whole or half lines of memory; and the additional cycles for each chunk
/// of a line in shared memory that it fills with zeros, because the channels end there.
const LOAD_SPEED: f64 = 1.62;
const UNALIGNED: f64 = 2.2;
const CYCLES_PER_EMPTY_CHUNK: f64 = 0.55;

/// The least cycles of a line that the copy engine loads, however short it is, and the share of the products' time that
/// short lines do not hide.
const SHORT_LINE: f64 = 2.0;
const EXPOSED: f64 = 0.5;

/// How much longer lines of memory take that the taps of a step have in common.
const REPEATED: f64 = 1.2;

/// The most bytes per cycle that a multiprocessor loads from the cache.
const MOST_LOADED_BYTES_PER_CYCLE: f64 = 72.0;

/// The cycles of a tile's store besides those for its bytes; the slowdown where two cubes share a multiprocessor; and
/// the slowdown where taps share their rows.
const STORED: f64 = 500.0;
const TWO_CUBES_SLOWDOWN: f64 = 1.65;
const SHARED_ROWS_SLOWDOWN: f64 = 1.04;

/// The time of a shared tile, as a fraction of the time of a whole tile.
const SHARED_TILE: f64 = 0.75;

/// The additional cycles of a result that is not stored in a whole chunk, and of one in a row that is put behind the row before
/// it first.
const CYCLES_PER_SINGLE_RESULT: f64 = 0.25;
const CYCLES_PER_DENSE_RESULT: f64 = 0.05;

/// The additional cycles of a line that the copy engine fills only in part, and of a line of repacked pixels, which
/// overlaps its neighbours in memory.
const CYCLES_PER_PARTIAL_LINE: f64 = 2.0;
const CYCLES_PER_REPACKED_LINE: f64 = 4.0;

/// The estimated seconds of a pass, with the launches that repack operands and recompute results.
pub(super) fn seconds(product: &Product, task: Task<'_>, tile: &Tile, splits: usize) -> f64 {
    let Task { conv, request, device } = task;
    let walks = product.walks(tile).count();
    let mut multiplying = cost::START * walks as f64;
    for walk in product.walks(tile) {
        multiplying += tiles_cycles(product, &walk, tile, splits, device);
        multiplying += single_results(product, &walk, tile, device);
        multiplying += slow_lines(product, &walk, tile, splits, device);
    }
    let (repacking, repacks) = repacking(product, task);
    let [image, flat] = product.image_first(cost::read(conv, request.pass));
    let image = if product.repacks_image() { product.image_elements() } else { image };
    let flat = if product.packed { product.flat_elements() } else { flat };
    let stored = if splits > 1 { 0 } else { product.results() * request.dtype.size() };
    let moving = cost::moving(((image + flat) * product.size + stored) as f64, device);
    let fixups = if product.is_checked() { walks } else { 0 };
    let launches = device.launch_seconds(walks + repacks + fixups);
    launches + repacking + moving.max(multiplying / clock(device))
}

/// The seconds of repacking operands, without their launches, and the number of these.
fn repacking(product: &Product, task: Task<'_>) -> (f64, usize) {
    let Task { conv, request, device } = task;
    let (mut seconds, mut launches) = (0.0, 0);
    let [source, _] = product.image_first(operands(conv, request.pass));
    let image = source * request.dtype.size() + product.image_elements() * product.size;
    let flat = 2 * product.flat_elements() * product.size;
    let image = product.repacks_image().then_some(image);
    for bytes in [image, product.packed.then_some(flat)].into_iter().flatten() {
        seconds += device.copy_seconds(bytes as f64);
        launches += 1;
    }
    (seconds, launches)
}

/// The cycles in which the copy engine loads a step's rows and columns with `rate` bytes per cycle, where rows are loaded
/// once for `taps` taps. What is resident is counted as well: without it, the time of small tiles is estimated too low.
fn loading(product: &Product, walk: &Im2colWalk, tile: &Tile, taps: usize, rate: f64) -> f64 {
    let parts = product.parts as f64;
    let rows = product.rows_bytes(walk, tile) as f64 / taps as f64;
    let columns = product.columns_bytes(tile) as f64;
    if product.pass == Pass::Weight || product.planar().is_some() {
        return parts * (rows + columns + REPEATED * repeated(product, walk, tile)) / rate;
    }
    let (sizes, steps) = product.image();
    let pixel = steps[sizes.len() - 2] * product.size;
    // The chunks of lines that are filled with zeros, because the channels, or the columns of a panel, end there.
    let empty = |of: usize, line: usize| {
        let bytes = of * product.size;
        let lines = bytes.div_ceil(line);
        (lines * line - bytes) as f64 / (lines * CHUNK_BYTES) as f64
    };
    let slice = product.slice() * product.size;
    let mut chunks = match product.rows_mn_major() {
        true => rows / f64::from(LINE) * empty(sizes[sizes.len() - 1], LINE as usize),
        false => rows / slice as f64 * empty(product.inner(), slice),
    };
    if product.flat.mn_major {
        chunks += columns / f64::from(LINE) * empty(product.columns(), LINE as usize);
    }
    let half = slice.min(LINE as usize / 2);
    let unaligned = |step: usize, of: usize| if step.is_multiple_of(of) { 1.0 } else { UNALIGNED };
    let flat = product.flat.dimensions[2] * product.size;
    // Panels of contiguous columns were slower at half lines.
    let flat = unaligned(flat, if product.flat.mn_major { slice } else { half });
    // It matters little where lines begin that are loaded once.
    let pixel = match product.resident(walk, tile).rows {
        0 => unaligned(pixel, if product.rows_mn_major() { slice } else { half }),
        _ => 1.0,
    };
    let loading = parts * (rows * pixel + columns * flat) / rate;
    loading + parts * CYCLES_PER_EMPTY_CHUNK * chunks
}

/// The lines of a step that the copy engine loads, where rows are loaded once for `taps` taps. Those of planes are not
/// counted, which are whole boxes.
fn lines(product: &Product, walk: &Im2colWalk, tile: &Tile, taps: usize) -> f64 {
    let (line, slice) = (LINE as usize, product.slice() * product.size);
    let rows = product.rows_bytes(walk, tile) as f64 / taps as f64;
    let columns = product.columns_bytes(tile) as f64;
    let [row, column] = match product.pass {
        Pass::Weight => [line, slice],
        _ if product.planar().is_some() => return 0.0,
        _ => [
            if product.rows_mn_major() { line } else { slice },
            if product.flat.mn_major { line } else { slice },
        ],
    };
    product.parts as f64 * (rows / row as f64 + columns / column as f64)
}

/// The bytes of a weight gradient's step that are the pixels of a third tap and of further ones. Two taps of a step are
/// loaded as fast as slices of one tap are; more are slower, as they are mostly the same lines of memory.
fn repeated(product: &Product, walk: &Im2colWalk, tile: &Tile) -> f64 {
    let along = &walk.gather.axes[AXES - 1];
    let panel = product.slice();
    let taps = (tile.block_n as usize / panel).min(along.taps);
    let repeats = product.pass == Pass::Weight && product.inner() == panel && along.step == 1;
    let again = if repeats { taps.saturating_sub(2) } else { 0 };
    (again * panel * product.terms_per_step() * product.size) as f64
}

/// The additional cycles of a multiprocessor's lines that the copy engine loads slowly: those of repacked pixels, and in a
/// weight gradient the last slices of the image's channels and the last panels of the other operand.
fn slow_lines(
    product: &Product,
    walk: &Im2colWalk,
    tile: &Tile,
    splits: usize,
    device: &Capabilities,
) -> f64 {
    let is_weight = product.pass == Pass::Weight;
    let line = product.line();
    let [tiles_m, tiles_n] = product.tiles(walk, tile);
    let tiles = tiles_m * tiles_n * splits * product.groups() * walk.products();
    let steps = tiles * product.parts * product.steps_per_part(walk, 0, splits);
    let shared = if walk.reach > 0 { walk.taps(0)[AXES - 1].max(1) } else { 1 };
    let image = if is_weight { tile.block_n as f64 } else { tile.block_m as f64 / shared as f64 };
    let mut step = 0.0;
    if product.planar().is_none() && product.lines().is_some() {
        step += CYCLES_PER_REPACKED_LINE * image;
    }
    if is_weight && product.planar().is_none() && !product.inner().is_multiple_of(product.slice()) {
        step += CYCLES_PER_PARTIAL_LINE * image / product.slices() as f64;
    }
    if is_weight && product.flat.mn_major && !product.columns().is_multiple_of(line) {
        step += CYCLES_PER_PARTIAL_LINE * line as f64 / tiles_m as f64;
    }
    step * steps as f64 / device.multiprocessor_count() as f64
}

/// The additional cycles in which each multiprocessor stores the results of a walk that are not whole chunks.
fn single_results(product: &Product, walk: &Im2colWalk, tile: &Tile, device: &Capabilities) -> f64 {
    let whole = product.columns().is_multiple_of(CHUNK as usize);
    let results = walk.gather.rows(&product.conv) * product.columns() * product.groups();
    let cycles = match () {
        _ if whole || product.pass == Pass::Weight || product.pointwise.is_some() => 0.0,
        _ if product.is_dense(walk, tile) => CYCLES_PER_DENSE_RESULT,
        _ => CYCLES_PER_SINGLE_RESULT,
    };
    cycles * (results * walk.products()) as f64 / device.multiprocessor_count() as f64
}

/// The cycles per second of the matrix units.
fn clock(device: &Capabilities) -> f64 {
    device.speeds.warpgroup as f64 / (device.multiprocessor_count() as f64 * PRODUCTS)
}

/// The bytes per cycle that a multiprocessor copies in the last cache.
fn cached(device: &Capabilities) -> f64 {
    device.speeds.cache as f64 / (device.multiprocessor_count() as f64 * clock(device))
}

/// The estimated cycles of all launches, by which tiles and numbers of parts are compared.
pub(super) fn cycles(product: &Product, tile: &Tile, splits: usize, device: &Capabilities) -> f64 {
    let launched = cost::START + device.launch_seconds(1) * clock(device);
    let tiles = |walk: Im2colWalk| {
        let single = single_results(product, &walk, tile, device);
        launched + tiles_cycles(product, &walk, tile, splits, device) + single
    };
    let tiles = product.walks(tile).map(tiles).sum::<f64>();
    let parts = (2 * splits * product.results() * 4) as f64;
    match splits {
        0 | 1 => tiles,
        _ => tiles + (device.next_launch_seconds() + device.copy_seconds(parts)) * clock(device),
    }
}

/// The estimated cycles of all waves of tiles of a product, each limited by its slowest resource.
fn tiles_cycles(
    product: &Product,
    walk: &Im2colWalk,
    tile: &Tile,
    splits: usize,
    device: &Capabilities,
) -> f64 {
    let (m, n) = (tile.block_m as f64, tile.block_n as f64);
    let times = product.times() as f64;
    // A step of fewer terms takes a fraction of the time. The last slice of a tap is estimated like the others, although it
    // may have fewer products: an estimate with fewer chose narrower tiles, which took 20 to 35 % longer.
    let part = (product.terms_per_step() * product.size) as f64 / f64::from(LINE);
    let again = if times > 1.0 { COLUMNS_AGAIN } else { 1.0 };
    let readers = 1.0 + again * (m / 64.0 - 1.0);
    let read = part * times * 4.0 * (m + readers * n) * 32.0;
    let stored = if splits > 1 || product.pass == Pass::Weight { 4 } else { product.size };
    let all = device.multiprocessor_count();
    let store = STORED + m * n * stored as f64 / cached(device);
    let [tiles_m, tiles_n] = product.tiles(walk, tile);
    let tiles = tiles_m * tiles_n * splits * product.groups();
    // A cube whose multiprocessor has no second one has it to itself.
    let cubes = if tiles > all { cubes(product, tile, walk, device) } else { all };
    // With fewer tiles than multiprocessors, each of these has a larger share of the cache's bandwidth. In weight gradients
    // this was not seen.
    let rate = LOAD_SPEED * cached(device);
    let busy = if product.pass == Pass::Weight { all } else { tiles.clamp(1, all) };
    let rate = (rate * all as f64 / busy as f64).min(rate.max(MOST_LOADED_BYTES_PER_CYCLE));
    // The time of a wave of a product's tiles.
    let wave = |nth: usize| {
        // Rows that taps share are loaded once for all of them.
        let taps = if walk.reach > 0 { walk.taps(nth)[AXES - 1].max(1) } else { 1 };
        let loading = loading(product, walk, tile, taps, rate);
        let moved = product.rows_bytes(walk, tile) / taps + product.columns_bytes(tile);
        let moved = (product.parts * moved) as f64;
        let products = PRODUCTS_SLOWDOWN * part * times * step_cycles(tile);
        let step = products.max((read + moved) / SHARED_BYTES_PER_CYCLE).max(loading).max(
            match product.slice() == product.line() {
                true => 0.0,
                false => SHORT_LINE * lines(product, walk, tile, taps) + EXPOSED * products,
            },
        );
        let steps = product.steps_per_part(walk, nth, splits);
        let sharing = if walk.reach > 0 { SHARED_ROWS_SLOWDOWN } else { 1.0 };
        let sum = steps as f64 * (step + CYCLES_PER_STEP) * sharing;
        // With two cubes on a multiprocessor, one stores while the other multiplies.
        match cubes > all {
            true => (TWO_CUBES_SLOWDOWN * (2.0 * sum).max(sum + store)).max(2.0 * (store - STORED)),
            false => sum + store,
        }
    };
    let mut waves: Vec<(usize, f64)> = Vec::new();
    for nth in 0..walk.products() {
        let (end, wave) = ((nth + 1) * tiles, wave(nth));
        match waves.last_mut() {
            Some((last, same)) if *same == wave => *last = end,
            _ => waves.push((end, wave)),
        }
    }
    slowest(&waves, cubes, tile)
}

/// The time of the cube that takes longest, where `waves` are the last tile of each kind, and the time of a wave of that
/// kind. Every other wave goes backwards over the cubes, as in the kernel.
fn slowest(waves: &[(usize, f64)], cubes: usize, tile: &Tile) -> f64 {
    let whole = unshared_tiles(waves.last().map_or(0, |(all, _)| *all), cubes, tile);
    // The cube of the tile before `end`, and the next cube of its wave.
    let around = |end: usize| {
        let nth = [end.saturating_sub(1) % cubes, end % cubes];
        if (end / cubes).is_multiple_of(2) { nth } else { nth.map(|nth| cubes - 1 - nth) }
    };
    let time = |cube: usize| {
        let tiles = |end: usize| {
            let (waves, rest) = (end / cubes, end % cubes);
            let nth = if waves.is_multiple_of(2) { cube } else { cubes - 1 - cube };
            waves + usize::from(nth < rest)
        };
        let mut before = 0;
        let times = waves.iter().map(|(end, wave)| {
            let done = tiles(*end.min(&whole));
            (done - core::mem::replace(&mut before, done)) as f64 * wave
        });
        times.sum::<f64>()
    };
    // Cubes between two such places have as many tiles of each kind.
    let ends = waves.iter().flat_map(|(end, _)| around(*end.min(&whole)));
    let slowest = [0, cubes - 1].into_iter().chain(ends).map(time).fold(0.0, f64::max);
    let shared = waves.iter().find(|(end, _)| *end > whole);
    slowest + shared.map_or(0.0, |(_, wave)| SHARED_TILE * wave)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The closed form is the longest of all cubes' times, each added up tile by tile.
    #[test]
    fn the_slowest_cube_is_found() {
        // Tiles of one warpgroup are not shared.
        let [block_m, block_n, block_k] = [64; 3];
        let tile = Tile {
            block_m,
            block_n,
            block_k,
            ratio_m: 1,
            ratio_n: 1,
            elems_per_thread: 8,
            stages: 3,
        };
        let kinds = [4.5, 2.25, 1.0, 0.125];
        for (cubes, each) in (1..=9).flat_map(|cubes| (1..=40).map(move |each| (cubes, each))) {
            for ends in [[1, 2, 3, 4], [1, 3, 4, 7], [2, 2, 5, 5], [3, 4, 4, 4]] {
                let waves: Vec<_> = ends.map(|end| end * each).into_iter().zip(kinds).collect();
                let mut times = vec![0.0; cubes];
                for nth in 0..waves[3].0 {
                    let cube = nth % cubes;
                    let cube =
                        if (nth / cubes).is_multiple_of(2) { cube } else { cubes - 1 - cube };
                    times[cube] += waves.iter().find(|(end, _)| nth < *end).unwrap().1;
                }
                let expected = times.into_iter().fold(0.0, f64::max);
                assert_eq!(slowest(&waves, cubes, &tile), expected, "{cubes} {waves:?}");
            }
        }
    }
}
