//! Groups of at most 8 channels, one channel among them, on matrix units: filters as matrices of bands.
//!
//! ```text
//! for each block of 16 lines by COLUMNS windows by CHUNKS chunks of 8 channels:        one cube
//!     all units bring the pixels that its windows read to shared memory
//!     for each line of taps:                  one plane, a chunk by 7 pairs of windows, 16 lines each
//!         for each pair of pixels, s:
//!             sums[lines, window and filter of the pair] +=
//!                 pixels[lines, pixel and channel of the pair] · band[s]
//! ```
//!
//! 8 channels of two neighbouring pixels lie together and are the 16 terms of a fragment; 8 filters of two
//! neighbouring windows are its 16 columns. The weight between them is that of the tap by which the
//! window reads the pixel, or 0 where none does or their groups differ. The rows are lines of the image.
//! So a pixel comes to shared memory once, as it lies, and once from there for each line of taps. Most of
//! a band's products are with zeros: matrix units have them to spare.
//!
//! But 0 times what is not finite is NaN. So a sum that is NaN may not be meant, while any other is: it
//! is computed again, term by term, from the same shared memory and the same bands; as are all sums on
//! devices without matrix units, of which none is given this kernel unasked.

use cubecl::client::Client;
use cubecl::cmma;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Convolution, DType, Layout, Tile};

use super::blocks::{load_if, operands};
use super::depthwise::Run;
use super::epilogue::{Epilogue, EpilogueForm, finish_at};
use super::gather::{
    Gather, GatherArgs, WeightSteps, columns, inner, phases, read, result, weight_steps,
};
use super::launch::{buffer, grid};
use super::plan::{MOST_CUBES_Z, Pass, Plan, results};
use crate::dtype::{accumulator, elem};
use crate::pool::direct::unit_position;

/// The lines of a block, the channels of a chunk, and the pairs of windows of a plane.
pub(super) const LINES: u32 = 16;
pub(super) const CHUNK: u32 = 8;
pub(super) const PAIRS: u32 = 7;

/// The extent of a fragment, whatever is along it.
const SIDE: u32 = 16;

/// The most steps of two pixels by which a band is held in registers.
const MOST_STEPS: u32 = 8;

/// The bytes on whose multiples fragments begin.
const ALIGNMENT: usize = 32;

/// The units that work together where there are no planes.
const NO_PLANE: u32 = 32;

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// The units of a plane, and whether it has matrix units.
    plane: u32,
    has_matrix: bool,
    /// The planes along the width, and the chunks of channels.
    runs: u32,
    chunks: u32,
    lanes: u32,
    /// The channels of a group.
    group: u32,
    height: Run,
    /// The two windows of a pair.
    pair: Run,
    epilogue: EpilogueForm,
}

impl Form {
    fn new(
        conv: &Convolution,
        pass: Pass,
        gather: &Gather,
        tile: &Tile,
        plane: Option<u32>,
        epilogue: EpilogueForm,
    ) -> Self {
        let [_, height, width] = gather.axes;
        Self {
            plane: plane.unwrap_or(NO_PLANE),
            has_matrix: plane.is_some(),
            runs: tile.block_m / (LINES * 2 * PAIRS),
            chunks: tile.block_n / CHUNK,
            lanes: tile.elems_per_thread,
            group: inner(conv, pass) as u32,
            height: Run::new(LINES, &height),
            pair: Run::new(2, &width),
            epilogue,
        }
    }

    fn planes(&self) -> u32 {
        self.runs * self.chunks
    }

    fn units(&self) -> u32 {
        self.planes() * self.plane
    }

    /// The windows of a cube along the width.
    fn windows(&self) -> u32 {
        self.runs * PAIRS * 2
    }

    /// The pairs of pixels that a pair of windows reads.
    fn steps(&self) -> u32 {
        self.pair.pixels().1.div_ceil(2)
    }

    /// The pairs of pixels from a pair of windows to the next.
    fn stride(&self) -> u32 {
        self.pair.step as u32
    }

    /// The pairs of pixels that so many pairs of windows read.
    fn pixel_pairs(&self, pairs: u32) -> u32 {
        (pairs - 1) * self.stride() + self.steps()
    }

    /// The lines and columns of pixels in shared memory.
    fn lines(&self) -> u32 {
        self.height.pixels().1
    }

    fn columns(&self) -> u32 {
        2 * self.pixel_pairs(self.runs * PAIRS)
    }

    /// The pixels from a line to the next: an odd number of pairs, so that few lines meet in a bank.
    fn pitch(&self) -> u32 {
        self.columns() | 2
    }

    /// The vectors of a chunk of a pixel, of a line of a fragment, and of a fragment.
    fn pieces(&self) -> u32 {
        CHUNK / self.lanes
    }

    fn fragment_line(&self) -> u32 {
        SIDE / self.lanes
    }

    fn fragment(&self) -> u32 {
        SIDE * self.fragment_line()
    }

    /// The vectors from a chunk to the next: some more than its pixels take, so that no two of a pixel's
    /// chunks meet in a bank.
    fn chunk_step(&self) -> u32 {
        let pixels = self.lines() * self.pitch();
        (pixels + (10 - pixels % 8) % 8) * self.pieces()
    }

    /// The pair of windows of a plane that reads pair `q` of its pixels in step `s`.
    fn pair_of(&self, q: u32, s: u32) -> Option<u32> {
        let ahead = q.checked_sub(s)?;
        let pair = ahead / self.stride();
        (ahead.is_multiple_of(self.stride()) && pair < PAIRS).then_some(pair)
    }

    fn is_read(&self, q: u32) -> bool {
        (0..self.steps()).any(|s| self.pair_of(q, s).is_some())
    }

    /// The windows of a pair that a unit stores.
    fn turns(&self) -> u32 {
        (2 * LINES).div_ceil(self.plane)
    }

    /// Whether channel `c` is of the group of filter `f`.
    fn together(&self, f: u32, c: u32) -> bool {
        f / self.group == c / self.group
    }

    fn shared_bytes(&self, size: usize) -> usize {
        let tile = self.chunks * self.chunk_step() * self.lanes;
        let laid = self.planes() * SIDE * SIDE;
        tile as usize * size + laid as usize * size_of::<f32>()
    }
}

/// Whether a problem's channels, taps and layout are such that it can be computed so.
pub(super) fn can(conv: &Convolution, pass: Pass, dtype: DType) -> bool {
    let chunk = CHUNK as usize;
    let (inner, columns) = (inner(conv, pass), columns(conv, pass));
    let product = dtype.size() == 2
        && matches!(pass, Pass::Forward | Pass::Data)
        && conv.layout() == Layout::ChannelsLast
        && conv.grid().rank() == 2
        && conv.groups() > 1
        && inner == columns
        && chunk.is_multiple_of(inner)
        && conv.input().channels().is_multiple_of(chunk)
        && phases(conv, pass) == [1; AXES];
    product
        && Gather::all(conv, pass).all(|gather| {
            let [_, height, width] = gather.axes;
            let span = |taps: usize, step: i64| (taps as u64 - 1) * step.unsigned_abs();
            let near = span(width.taps, width.tap_step) + width.step as u64;
            let high = span(height.taps, height.tap_step) + u64::from(LINES) * height.step as u64;
            // Every device takes so many cubes on each axis.
            let across = conv.input().channels() / chunk * width.rows.div_ceil(2 * PAIRS as usize);
            let cubes = across.max(height.rows.div_ceil(LINES as usize));
            near < u64::from(2 * MOST_STEPS) && high < 256 && cubes <= MOST_CUBES_Z
        })
}

/// The units of a cube.
pub(super) fn units(tile: &Tile, plane: Option<u32>) -> u32 {
    let planes = tile.block_m / (LINES * 2 * PAIRS) * (tile.block_n / CHUNK);
    planes.saturating_mul(plane.unwrap_or(NO_PLANE))
}

/// The bytes of shared memory that a tile takes.
pub(super) fn shared_bytes(conv: &Convolution, pass: Pass, tile: &Tile, dtype: DType) -> usize {
    let plain = EpilogueForm::plain(dtype);
    let form = |gather| Form::new(conv, pass, &gather, tile, None, plain);
    Gather::all(conv, pass).map(|gather| form(gather).shared_bytes(dtype.size())).max().unwrap_or(0)
}

/// The elements of the bands of all chunks.
pub(super) fn elements(conv: &Convolution, pass: Pass) -> usize {
    Gather::all(conv, pass).map(|gather| Bands::new(conv, pass, &gather).elements()).sum()
}

/// Launches the convolution or the gradient of its input, `[a, w, out]`.
pub(super) fn launch(
    client: &Client,
    conv: &Convolution,
    pass: Pass,
    dtype: DType,
    plan: &Plan,
    [a, w, out]: [&Handle; 3],
    epilogue: Epilogue<'_>,
) {
    // The plan was checked: it has a tile.
    let Some(tile) = plan.tile else { return };
    let lanes = tile.elems_per_thread as usize;
    let chunks = conv.input().channels() / CHUNK as usize;
    let [inputs, _] = operands(conv, pass);
    let results = results(conv, pass);
    for gather in Gather::all(conv, pass) {
        let plane = plan.matrix.map(|(_, plane)| plane);
        let form = Form::new(conv, pass, &gather, &tile, plane, epilogue.form(dtype));
        let bands = Bands::new(conv, pass, &gather);
        let packed = bands.pack(client, conv, dtype, plan, w);
        let [_, height, width] = gather.axes;
        let chunk_blocks = chunks / form.chunks as usize;
        let cubes = CubeCount::Static(
            (chunk_blocks * width.rows.div_ceil(form.windows() as usize)) as u32,
            height.rows.div_ceil(LINES as usize) as u32,
            conv.input().batch() as u32,
        );
        // SAFETY: pixels outside are moved inside and not taken; bands are there for every chunk and
        // tap; windows past the last are stored nowhere.
        unsafe {
            banded::launch_unchecked(
                client,
                cubes,
                CubeDim::new_1d(form.units()),
                lanes,
                buffer(a, inputs / lanes),
                buffer(&packed, bands.elements() / lanes),
                epilogue.bias(conv.filter().count(), lanes),
                epilogue.residual(results, lanes),
                buffer(out, results / lanes),
                gather.args(conv, &weight_steps(conv, pass)),
                BlockArgsLaunch::new(
                    chunk_blocks as u32,
                    height.rows as u32,
                    width.rows as u32,
                    epilogue.slope(),
                ),
                form,
                elem(dtype),
                elem(accumulator(dtype)),
            )
        }
    }
}

/// The numbers of a launch beside those of the gather.
#[derive(CubeType, CubeLaunch)]
struct BlockArgs {
    /// The blocks of chunks.
    chunks: FastDivmod<u32>,
    /// The rows along the height and the width.
    height: u32,
    width: u32,
    slope: f32,
}

/// Where a plane's work is.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Place {
    /// The first line and column of windows of the cube.
    line: u32,
    column: u32,
    /// The cube's first chunk.
    chunk: u32,
    /// The plane, and the unit within it.
    plane: u32,
    unit: u32,
    /// The plane's chunk, within the cube, and its first pair of windows.
    own_chunk: u32,
    own_pair: u32,
}

#[cube]
fn place_of(block: &BlockArgs, #[comptime] form: Form) -> Place {
    let (across, chunk) = block.chunks.div_mod(CUBE_POS_X);
    let (plane, unit) = (UNIT_POS / comptime!(form.plane), UNIT_POS % comptime!(form.plane));
    Place {
        line: CUBE_POS_Y * LINES,
        column: across * comptime!(form.windows()),
        chunk: chunk * comptime!(form.chunks),
        plane,
        unit,
        own_chunk: plane % comptime!(form.chunks),
        own_pair: plane / comptime!(form.chunks) * PAIRS,
    }
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "the tensors and numbers of a launch")]
fn banded<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    bands: &[Vector<S, N>],
    bias: ComptimeOption<Box<[Vector<S, N>]>>,
    residual: ComptimeOption<Box<[Vector<S, N>]>>,
    out: &mut [Vector<S, N>],
    gather: &GatherArgs,
    block: &BlockArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let mut tile = Shared::<[Vector<S, N>]>::new_aligned_slice(
        comptime!((form.chunks * form.chunk_step()) as usize),
        ALIGNMENT,
    );
    let place = place_of(block, form);
    let lines = comptime!(form.fragment());
    let chunk = place.chunk + place.own_chunk;
    let steps = comptime!(form.height.taps * form.steps());
    let band = chunk * comptime!(steps * lines);
    // The first pixel that the plane reads.
    let pixel = place.own_chunk * comptime!(form.chunk_step())
        + place.own_pair * comptime!(2 * form.stride() * form.pieces());

    stage::<S, N>(a, gather, &place, &mut tile, form);
    sync_cube();
    // The windows that are left to be summed term by term, a bit each.
    let mut left = u32::MAX.runtime();
    if comptime!(form.has_matrix) {
        left = 0u32.runtime();
        let mut laid = Shared::<[Vector<A, N>]>::new_aligned_slice(
            comptime!((form.planes() * lines) as usize),
            ALIGNMENT,
        );
        let mut sums = Sequence::<cmma::Matrix<A>>::new();
        #[unroll]
        for _ in 0..PAIRS {
            sums.push(cmma::Matrix::<A>::from_value(
                cmma::MatrixIdent::Accumulator,
                comptime!(SIDE as usize),
                comptime!(SIDE as usize),
                comptime!(SIDE as usize),
                cmma::MatrixLayout::Undefined,
                A::from_int(0),
            ));
        }
        if place.column + place.own_pair * 2 < block.width {
            multiply::<S, A, N>(&tile, bands, gather, &sums, pixel, band, form);
        }
        let mine = place.plane * lines;
        #[unroll]
        for pair in 0..PAIRS {
            cmma::store(
                &mut laid[mine as usize..(mine + lines) as usize],
                sums.index(comptime!(pair as usize)),
                SIDE,
                cmma::MatrixLayout::RowMajor,
            );
            sync_cube();
            #[unroll]
            for turn in 0..form.turns() {
                let window = window_of(&place, pair, turn, form);
                if is_there(block, &place, &window) {
                    let at = mine
                        + window.line * comptime!(form.fragment_line())
                        + window.second * comptime!(form.pieces());
                    let mut results = Sequence::<Vector<A, N>>::new();
                    // NaN where one of them is.
                    let mut all = A::from_int(0);
                    #[unroll]
                    for piece in 0..form.pieces() {
                        let sum = laid[(at + piece) as usize];
                        #[unroll]
                        for lane in 0..N::value() {
                            all += sum.extract(lane);
                        }
                        results.push(sum);
                    }
                    if f32::cast_from(all).is_nan() {
                        left |= comptime!(1u32 << (pair * form.turns() + turn));
                    } else {
                        store::<S, A, N>(
                            &bias, &residual, out, gather, block, &place, &window, &results, form,
                        );
                    }
                }
            }
            sync_cube();
        }
    }
    if left != 0 {
        for pair in 0..comptime!(PAIRS).runtime() {
            #[unroll]
            for turn in 0..form.turns() {
                let window = window_of(&place, pair, turn, form);
                let is_left = (left >> (pair * comptime!(form.turns()) + turn)) & 1u32;
                if is_left != 0 && is_there(block, &place, &window) {
                    let results =
                        term_by_term::<S, A, N>(&tile, bands, gather, &window, pixel, band, form);
                    store::<S, A, N>(
                        &bias, &residual, out, gather, block, &place, &window, &results, form,
                    );
                }
            }
        }
    }
}

/// The loads that a unit has on their way at once.
const AHEAD: u32 = 4;

/// Brings the pixels that a cube reads to shared memory, zeros where there are none.
#[cube]
fn stage<S: Float, N: Size>(
    a: &[Vector<S, N>],
    gather: &GatherArgs,
    place: &Place,
    tile: &mut Shared<[Vector<S, N>]>,
    #[comptime] form: Form,
) {
    let parts = comptime!(form.chunks * form.pieces());
    let (columns, lines) = comptime!((form.columns(), form.lines()));
    // From one load of a unit to the next there are so many pixels.
    let ahead = comptime!(form.units() / parts);
    let (first_line, first_column) = comptime!((form.height.pixels().0, form.pair.pixels().0));
    let top = read(&gather.height, place.line) + first_line;
    let left = read(&gather.width, place.column) + first_column;
    let (pixel, part) = (UNIT_POS / parts, UNIT_POS % parts);
    let (chunk, piece) = (part / comptime!(form.pieces()), part % comptime!(form.pieces()));
    let to = chunk * comptime!(form.chunk_step()) + piece;
    let base = CUBE_POS_Z * gather.a_batch + place.chunk * CHUNK;
    let base = base / comptime!(form.lanes) + part;
    let mut line = pixel / columns;
    let mut column = pixel % columns;
    for _ in 0..comptime!((columns * lines).div_ceil(ahead * AHEAD)) {
        let mut held = Sequence::<Vector<S, N>>::new();
        let mut spots = Sequence::<u32>::new();
        #[unroll]
        for _ in 0..AHEAD {
            // After the last line the last again.
            let there = min(line, comptime!(lines - 1));
            let (h, w) = (top + there as i32, left + column as i32);
            // What is negative is larger than all that is not.
            let inside =
                (h as u32) < gather.height.extent as u32 && (w as u32) < gather.width.extent as u32;
            let at = select(inside, h * gather.height.a_step + w * gather.width.a_step, 0i32);
            held.push(load_if(a, inside, base + at as u32 / comptime!(form.lanes)));
            spots.push(to + (there * comptime!(form.pitch()) + column) * comptime!(form.pieces()));
            line += comptime!(ahead / columns);
            column += comptime!(ahead % columns);
            if column >= columns {
                column -= columns;
                line += 1;
            }
        }
        #[unroll]
        for turn in 0..AHEAD {
            let index = comptime!(turn as usize);
            tile[*spots.index(index) as usize] = *held.index(index);
        }
    }
}

/// Multiplies what a plane's windows read with its chunk's bands.
#[cube]
fn multiply<S: Float, A: Float, N: Size>(
    tile: &Shared<[Vector<S, N>]>,
    bands: &[Vector<S, N>],
    gather: &GatherArgs,
    sums: &Sequence<cmma::Matrix<A>>,
    pixel: u32,
    band: u32,
    #[comptime] form: Form,
) {
    let steps = comptime!(form.steps());
    for th in 0..gather.height.taps_count {
        let mut weights = Sequence::<cmma::Matrix<Vector<S, N>>>::new();
        #[unroll]
        for s in 0..steps {
            let at = band + (th * steps + s) * comptime!(form.fragment());
            weights.push(cmma::Matrix::<Vector<S, N>>::from_slice(
                cmma::MatrixIdent::B,
                comptime!(SIDE as usize),
                comptime!(SIDE as usize),
                comptime!(SIDE as usize),
                cmma::MatrixLayout::ColMajor,
                &bands[at as usize..],
                SIDE,
            ));
        }
        let first = pixel + line_of(th, form);
        #[unroll]
        for q in 0..comptime!(form.pixel_pairs(PAIRS)) {
            if comptime!(form.is_read(q)) {
                let at = first + comptime!(q * 2 * form.pieces());
                let pixels = cmma::Matrix::<Vector<S, N>>::from_slice(
                    cmma::MatrixIdent::A,
                    comptime!(SIDE as usize),
                    comptime!(SIDE as usize),
                    comptime!(SIDE as usize),
                    cmma::MatrixLayout::RowMajor,
                    &tile[at as usize..],
                    comptime!(form.height.step as u32 * form.pitch() * CHUNK),
                );
                #[unroll]
                for s in 0..steps {
                    if comptime!(form.pair_of(q, s).is_some()) {
                        let pair = comptime!(form.pair_of(q, s).unwrap_or(0) as usize);
                        let sum = sums.index(pair);
                        cmma::execute(&pixels, weights.index(comptime!(s as usize)), sum, sum);
                    }
                }
            }
        }
    }
}

/// The vectors in shared memory before the line that the first row reads by line `th` of taps.
#[cube]
fn line_of(th: u32, #[comptime] form: Form) -> u32 {
    let (step, first) = comptime!((form.height.tap_step, form.height.pixels().0));
    (th as i32 * step - first) as u32 * comptime!(form.pitch() * form.pieces())
}

/// A window of a plane.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Window {
    /// Whether it is one of the plane's.
    there: bool,
    /// Its line in the block, its pair in the plane, and whether it is the pair's second.
    line: u32,
    pair: u32,
    second: u32,
}

/// The window of a pair that a unit stores.
#[cube]
fn window_of(place: &Place, pair: u32, #[comptime] turn: u32, #[comptime] form: Form) -> Window {
    let window = place.unit + comptime!(turn * form.plane);
    Window { there: window < 2 * LINES, line: window / 2, pair, second: window % 2 }
}

/// Whether there is such a window.
#[cube]
fn is_there(block: &BlockArgs, place: &Place, window: &Window) -> bool {
    window.there
        && place.line + window.line < block.height
        && column_of(place, window) < block.width
}

#[cube]
fn column_of(place: &Place, window: &Window) -> u32 {
    place.column + (place.own_pair + window.pair) * 2 + window.second
}

/// Stores a window's results.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn store<S: Float, A: Float, N: Size>(
    bias: &ComptimeOption<Box<[Vector<S, N>]>>,
    residual: &ComptimeOption<Box<[Vector<S, N>]>>,
    out: &mut [Vector<S, N>],
    gather: &GatherArgs,
    block: &BlockArgs,
    place: &Place,
    window: &Window,
    results: &Sequence<Vector<A, N>>,
    #[comptime] form: Form,
) {
    let channel = (place.chunk + place.own_chunk) * comptime!(form.pieces());
    let at = CUBE_POS_Z * gather.out_batch
        + result(&gather.height, place.line + window.line)
        + result(&gather.width, column_of(place, window));
    let at = at / comptime!(form.lanes) + channel;
    #[unroll]
    for piece in 0..form.pieces() {
        let (channel, at) = (channel + piece, at + piece);
        let sum = *results.index(comptime!(piece as usize));
        out[at as usize] =
            finish_at::<S, A, N>(bias, residual, sum, channel, at, block.slope, form.epilogue);
    }
}

/// A window's results without products that are not of a tap.
#[cube]
fn term_by_term<S: Float, A: Float, N: Size>(
    tile: &Shared<[Vector<S, N>]>,
    bands: &[Vector<S, N>],
    gather: &GatherArgs,
    window: &Window,
    pixel: u32,
    band: u32,
    #[comptime] form: Form,
) -> Sequence<Vector<A, N>> {
    let pieces = comptime!(form.pieces());
    let mut sums = Sequence::<RuntimeCell<Vector<A, N>>>::new();
    #[unroll]
    for _ in 0..pieces {
        sums.push(RuntimeCell::new(Vector::new(A::from_int(0))));
    }
    let first = pixel
        + window.line * comptime!(form.height.step as u32 * form.pitch() * pieces)
        + window.pair * comptime!(2 * form.stride() * pieces);
    for th in 0..gather.height.taps_count {
        for tw in 0..gather.width.taps_count {
            let (step, tap) = comptime!((form.pair.step, form.pair.tap_step));
            let ahead = window.second as i32 * step + tw as i32 * tap;
            let ahead = (ahead - comptime!(form.pair.pixels().0)) as u32;
            let pixels = first + line_of(th, form) + ahead * pieces;
            let fragment = th * comptime!(form.steps()) + ahead / 2;
            let weights = band
                + fragment * comptime!(form.fragment())
                + window.second * comptime!(CHUNK * form.fragment_line())
                + ahead % 2 * pieces;
            add_tap::<S, A, N>(tile, bands, &sums, pixels, weights, form);
        }
    }
    let mut results = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for piece in 0..pieces {
        results.push(sums.index(comptime!(piece as usize)).read());
    }
    results
}

/// Adds the terms of a tap: of each filter those of its own group.
#[cube]
fn add_tap<S: Float, A: Float, N: Size>(
    tile: &Shared<[Vector<S, N>]>,
    bands: &[Vector<S, N>],
    sums: &Sequence<RuntimeCell<Vector<A, N>>>,
    pixels: u32,
    weights: u32,
    #[comptime] form: Form,
) {
    #[unroll]
    for from in 0..form.pieces() {
        let pixel = Vector::<A, N>::cast_from(tile[(pixels + from) as usize]);
        #[unroll]
        for to in 0..form.pieces() {
            let sum = sums.index(comptime!(to as usize));
            let mut total = sum.read();
            #[unroll]
            for f in 0..form.lanes {
                let line = comptime!((to * form.lanes + f) * form.fragment_line());
                let weight = Vector::<A, N>::cast_from(bands[(weights + line + from) as usize]);
                #[unroll]
                for c in 0..form.lanes {
                    let (filter, channel) = comptime!((to * form.lanes + f, from * form.lanes + c));
                    if comptime!(form.together(filter, channel)) {
                        let (f, c) = comptime!((f as usize, c as usize));
                        let term = fma(pixel.extract(c), weight.extract(c), total.extract(f));
                        total.insert(f, term);
                    }
                }
            }
            sum.store(total);
        }
    }
}

/// The filters laid out as bands.
///
/// ```text
/// bands[chunk, th, s, n, k] = w[f of chunk, th, tap by which window n/8 of a pair reads pixel 2s + k/8, k%8]
/// ```
///
/// with `f = n%8`; 0 where there is no such tap or the channel is not of the filter's group.
struct Bands {
    chunks: usize,
    height_taps: usize,
    height_first: usize,
    height_jump: usize,
    width_first: usize,
    width_jump: usize,
    pair: Run,
    group: usize,
    source: WeightSteps,
}

impl Bands {
    fn new(conv: &Convolution, pass: Pass, gather: &Gather) -> Self {
        let [_, height, width] = gather.axes;
        Self {
            chunks: conv.input().channels() / CHUNK as usize,
            height_taps: height.taps,
            height_first: height.tap_first,
            height_jump: height.tap_jump,
            width_first: width.tap_first,
            width_jump: width.tap_jump,
            pair: Run::new(2, &width),
            group: inner(conv, pass),
            source: weight_steps(conv, pass),
        }
    }

    fn steps(&self) -> usize {
        self.pair.pixels().1.div_ceil(2) as usize
    }

    fn elements(&self) -> usize {
        self.chunks * self.height_taps * self.steps() * (SIDE * SIDE) as usize
    }

    fn pack(
        &self,
        client: &Client,
        conv: &Convolution,
        dtype: DType,
        plan: &Plan,
        w: &Handle,
    ) -> Handle {
        let elements = self.elements();
        let packed = client.empty(elements * dtype.size());
        let (cubes, units) = grid(client, plan, elements);
        let [_, height, width] = self.source.kernel;
        // SAFETY: a unit past the last element ends; a weight is read where there is one.
        unsafe {
            pack_bands::launch_unchecked(
                client,
                cubes,
                units,
                buffer(w, conv.filter().elements()),
                buffer(&packed, elements),
                BandArgsLaunch::new(
                    elements as u32,
                    self.steps() as u32,
                    self.height_taps as u32,
                    self.group as u32,
                    self.pair.pixels().0,
                    self.pair.step,
                    self.pair.tap_step,
                    self.pair.taps as i32,
                    self.source.inner as u32,
                    self.source.column as u32,
                    self.source.group as u32,
                    (self.height_first * height + self.width_first * width) as u32,
                    (self.height_jump * height) as u32,
                    (self.width_jump * width) as u32,
                ),
                elem(dtype),
            )
        };
        packed
    }
}

#[derive(CubeType, CubeLaunch)]
struct BandArgs {
    elements: u32,
    steps: FastDivmod<u32>,
    lines: FastDivmod<u32>,
    group: FastDivmod<u32>,
    /// The first pixel, and the steps from window to window and from tap to tap.
    first: i32,
    step: i32,
    tap_step: i32,
    taps: i32,
    inner_step: u32,
    column_step: u32,
    group_step: u32,
    first_tap: u32,
    height_step: u32,
    width_step: u32,
}

#[cube(launch_unchecked)]
fn pack_bands<S: Float>(w: &[S], bands: &mut [S], args: &BandArgs, #[define(S)] _stored: ElemType) {
    let i = unit_position(false);
    if i >= args.elements {
        terminate!();
    }
    let (rest, k) = (i / SIDE, i % SIDE);
    let (rest, n) = (rest / SIDE, rest % SIDE);
    let (rest, s) = args.steps.div_mod(rest);
    let (chunk, th) = args.lines.div_mod(rest);
    // What tap reads the pixel.
    let pixel = (2 * s + k / CHUNK) as i32 + args.first - (n / CHUNK) as i32 * args.step;
    let tap = pixel / args.tap_step;
    let reads = tap * args.tap_step == pixel && tap >= 0 && tap < args.taps;
    let (group, column) = args.group.div_mod(chunk * CHUNK + n % CHUNK);
    let (of, inner) = args.group.div_mod(chunk * CHUNK + k % CHUNK);
    let there = reads && group == of;
    let at = group * args.group_step
        + column * args.column_step
        + args.first_tap
        + th * args.height_step
        + select(there, inner * args.inner_step + tap as u32 * args.width_step, 0u32);
    bands[i as usize] = select(there, w[at as usize], S::from_int(0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use windowpane_geometry::{Extents, Filter, FilterLayout, Shape, Window};

    fn forms(kernel: [usize; 2], stride: [usize; 2], dilation: [usize; 2]) -> Vec<Form> {
        let shape = Shape::new(1, 32, Extents::from([40, 40])).unwrap();
        let filter = Filter::new(32, 4, Extents::from(kernel)).unwrap();
        let window = Window::new(kernel).stride(stride).dilation(dilation).padding([1, 2]);
        let (last, fhwc) = (Layout::ChannelsLast, FilterLayout::Fhwc);
        let conv = Convolution::new(shape, filter, &window, 8, last, fhwc).unwrap();
        let run = LINES * 2 * PAIRS;
        let tile = Tile {
            block_m: 2 * run,
            block_n: 32,
            block_k: 16,
            ratio_m: PAIRS,
            ratio_n: 1,
            elems_per_thread: 8,
            stages: 1,
        };
        let passes = [Pass::Forward, Pass::Data];
        let passes = passes.into_iter().filter(|pass| can(&conv, *pass, DType::F16));
        let plain = EpilogueForm::plain(DType::F16);
        passes
            .flat_map(|pass| Gather::all(&conv, pass).map(move |gather| (pass, gather)))
            .map(|(pass, gather)| Form::new(&conv, pass, &gather, &tile, Some(32), plain))
            .collect()
    }

    /// Each window meets each of its pixels in one step, and what it meets is in shared memory.
    #[test]
    fn steps_find_every_tap_once() {
        let mut passes = 0;
        for (kernel, stride, dilation) in [
            ([3, 3], [1, 1], [1, 1]),
            ([7, 7], [1, 1], [1, 1]),
            ([5, 2], [2, 3], [1, 2]),
            ([1, 1], [1, 1], [1, 1]),
            ([2, 4], [1, 1], [3, 2]),
        ] {
            for form in forms(kernel, stride, dilation) {
                passes += 1;
                for pair in 0..PAIRS {
                    for (second, tap) in
                        (0..2).flat_map(|i| (0..form.pair.taps).map(move |t| (i, t)))
                    {
                        let pixel = form.pair.pixel(second, tap);
                        let met: Vec<_> = (0..form.pixel_pairs(PAIRS))
                            .flat_map(|q| (0..form.steps()).map(move |s| (q, s)))
                            .filter(|&(q, s)| form.pair_of(q, s) == Some(pair) && s == pixel / 2)
                            .collect();
                        assert_eq!(
                            met,
                            [(pair * form.stride() + pixel / 2, pixel / 2)],
                            "{form:?}"
                        );
                    }
                }
                // Fragments of 32 bytes' alignment, their lines in few banks.
                assert_eq!((form.pitch() % 4, form.chunk_step() % 8), (2, 2), "{form:?}");
                assert!(form.pitch() >= form.columns() && form.columns() >= form.pair.pixels().1);
                let last = form
                    .height
                    .pixel(LINES - 1, 0)
                    .max(form.height.pixel(LINES - 1, form.height.taps - 1));
                assert!(last < form.lines(), "{form:?}");
            }
        }
        assert_eq!(passes, 9);
    }
}
