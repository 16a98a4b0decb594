//! Groups of at most 8 channels, one channel among them, on matrix units: filters as matrices of bands.
//!
//! ```text
//! for each block of 16 lines by COLUMNS windows by CHUNKS chunks of 8 channels:        one cube
//!     all units bring the pixels that its windows read to shared memory, group by group, as strips
//!     for each group of a few:                               one plane, 7 tiles of windows or 14
//!         for each line of taps, for each pair of strips that a tile reads, s:
//!             sums[lines, window and filter of the tile] +=
//!                 pixels[lines, pixel and channel of the strips] · band[s]
//!         the sums take the place of the group's pixels
//!     all units bring the results to memory, whole vectors of channels
//! ```
//!
//! A strip is 8 elements of a line of a group: 8 pixels of one channel, or 4 of two, or 2 of four, or one of
//! eight. A tile is as many neighbouring windows, and its results are the 8 columns of a fragment; 16 lines
//! of the image are its rows. The weight between an element and a column is that of the tap by which the
//! window reads the pixel, or 0 where none does. With one channel a group, where channels lie together in
//! memory, strips are made as pixels are staged: two neighbours give a word of each channel. Results are
//! laid out as pixels are, and go the same way back.
//!
//! A strip is loaded once for each line of taps, and serves all tiles that read it: a fragment's rows are so
//! few registers of a unit that the strips of a run of tiles are all held.
//!
//! But 0 times what is not finite is NaN. So a sum that is NaN may not be meant, while any other is: it
//! is computed again, term by term, from memory; as are all sums on devices without these fragments, of
//! which none is given this kernel unasked.

use cubecl::client::Client;
use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Convolution, DType, Layout, Tile};

use super::blocks::{load_if, operands};
use super::depthwise::Run;
use super::epilogue::{Epilogue, EpilogueForm, finish, finish_at};
use super::gather::{
    Gather, GatherArgs, WeightSteps, columns, inner, phases, read, result, tap_point, weight_steps,
};
use super::launch::{buffer, grid};
use super::plan::{MOST_CUBES_Z, Pass, Plan, results};
use crate::dtype::{accumulator, elem};
use crate::pool::direct::unit_position;

/// The lines of a block, the channels of a chunk and elements of a strip, and the tiles of a plane.
pub(super) const LINES: u32 = 16;
pub(super) const CHUNK: u32 = 8;
pub(super) const TILES: u32 = 7;

/// The tiles that a plane may have.
pub(super) const TILE_COUNTS: [u32; 2] = [TILES, 2 * TILES];

/// The terms of a fragment: two strips.
const TERMS: u32 = 16;

/// The elements of a band that a unit holds.
const HELD: u32 = 4;

/// The most strips that a tile reads, and that it is from a tile to the next.
const MOST_STRIPS: u64 = 16;
const MOST_STEP: usize = 4;

/// The groups of a plane, of so many channels each: so many that 32 channels make 8 planes, or fewer.
const fn groups(group: u32) -> u32 {
    if group < 4 { 4 / group } else { 1 }
}

/// The bytes on whose multiples strips begin.
const ALIGNMENT: usize = 16;

/// The units that such fragments are spread over, and that work together where there are none.
pub(super) const PLANE: u32 = 32;

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    has_matrix: bool,
    /// The tiles of a plane, the planes along the width, and the chunks of channels.
    tiles: u32,
    runs: u32,
    chunks: u32,
    lanes: u32,
    /// The channels of a group.
    group: u32,
    height: Run,
    /// The windows of a tile.
    tile: Run,
    /// Whether sums are brought to memory as they are, and followed by the rest only then.
    late: bool,
    epilogue: EpilogueForm,
}

impl Form {
    fn new(
        conv: &Convolution,
        pass: Pass,
        gather: &Gather,
        tile: &Tile,
        has_matrix: bool,
        epilogue: &Epilogue<'_>,
        dtype: DType,
    ) -> Self {
        let [_, height, width] = gather.axes;
        let group = inner(conv, pass) as u32;
        let tiles = tile.ratio_m;
        Self {
            has_matrix,
            tiles,
            runs: tile.block_m / (LINES * tiles * (CHUNK / group)),
            chunks: tile.block_n / CHUNK,
            lanes: tile.elems_per_thread,
            group,
            height: Run::new(LINES, &height),
            tile: Run::new(CHUNK / group, &width),
            late: epilogue.bias.is_some() || epilogue.residual.is_some(),
            epilogue: epilogue.form(dtype),
        }
    }

    /// The pixels of a strip and windows of a tile, and the groups of a chunk.
    fn wide(&self) -> u32 {
        CHUNK / self.group
    }

    /// The groups of a plane.
    fn groups(&self) -> u32 {
        groups(self.group)
    }

    /// The planes along the channels.
    fn across(&self) -> u32 {
        self.chunks * self.wide() / self.groups()
    }

    fn units(&self) -> u32 {
        self.across() * self.runs * PLANE
    }

    /// The windows of a plane and of a cube along the width.
    fn run(&self) -> u32 {
        self.tiles * self.wide()
    }

    fn windows(&self) -> u32 {
        self.runs * self.run()
    }

    /// The strips that a tile reads, in so many pairs.
    fn reach(&self) -> u32 {
        self.tile.pixels().1.div_ceil(self.wide())
    }

    fn steps(&self) -> u32 {
        self.reach().div_ceil(2)
    }

    /// The strips from a tile to the next.
    fn stride(&self) -> u32 {
        self.tile.step as u32
    }

    /// The pairs of strips that a plane loads.
    fn pairs(&self) -> u32 {
        ((self.tiles - 1) * self.stride() + self.reach()).div_ceil(2)
    }

    /// The two strips that tile `n` reads in step `s`; the first once more where there is no other, with
    /// weights that are all 0.
    fn strips(&self, n: u32, s: u32) -> [u32; 2] {
        let first = n * self.stride() + 2 * s;
        [first, if 2 * s + 1 < self.reach() { first + 1 } else { first }]
    }

    fn is_read(&self, pair: u32) -> bool {
        let read = |n, s| self.strips(n, s).into_iter().any(|strip| strip / 2 == pair);
        (0..self.tiles).any(|n| (0..self.steps()).any(|s| read(n, s)))
    }

    /// The lines and columns of pixels in shared memory.
    fn lines(&self) -> u32 {
        self.height.pixels().1
    }

    fn line_strips(&self) -> u32 {
        (self.runs - 1) * self.tiles * self.stride() + 2 * self.pairs()
    }

    fn columns(&self) -> u32 {
        self.line_strips() * self.wide()
    }

    /// The strips from a line to the next: an odd number, so that lines do not meet in a bank.
    fn pitch(&self) -> u32 {
        self.line_strips() | 1
    }

    /// The strips from a line of results to the next: a tile's are one, or two where they are wider.
    fn laid_pitch(&self) -> u32 {
        (self.runs * self.tiles * if self.late { 2 } else { 1 }) | 1
    }

    /// The strips from a group to the next: its pixels' and then, in their place, its results'.
    fn group_step(&self) -> u32 {
        (self.lines() * self.pitch()).max(LINES * self.laid_pitch())
    }

    /// The strips from a chunk to the next: some more than its pixels take, so that no two of a pixel's
    /// chunks meet in a bank.
    fn chunk_step(&self) -> u32 {
        let strips = self.wide() * self.group_step();
        let wanted = 8 / self.chunks.min(8);
        strips + (wanted + 8 - strips % 8) % 8
    }

    /// The neighbouring pixels that are staged at once, and windows that are brought to memory.
    fn neighbours(&self) -> u32 {
        if self.group == 1 { 2 } else { 1 }
    }

    /// The elements of a group that are stored to shared memory together.
    fn together(&self) -> u32 {
        self.group.max(2)
    }

    /// The results of a group that are loaded together, and the lanes of as many bytes.
    fn taken(&self) -> u32 {
        if self.late { self.together().min(4) } else { self.together() }
    }

    fn taken_lanes(&self) -> u32 {
        if self.late { 2 * self.taken() } else { self.taken() }
    }

    /// The neighbours of a cube, and how many of them a unit brings to memory.
    fn pieces(&self) -> u32 {
        LINES * self.windows() / self.neighbours() * self.chunks
    }

    fn turns(&self) -> u32 {
        self.pieces().div_ceil(self.units())
    }

    /// The strips in shared memory.
    fn shared(&self) -> u32 {
        self.chunks * self.chunk_step()
    }

    /// The vectors of a group, and its filters and channels in a vector.
    fn vectors(&self) -> u32 {
        (self.group / self.lanes).max(1)
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
            let wide = (chunk / inner) as u64;
            let near = span(width.taps, width.tap_step) + (wide - 1) * width.step as u64 + 1;
            let high = span(height.taps, height.tap_step) + u64::from(LINES) * height.step as u64;
            // Every device takes so many cubes on each axis.
            let runs = width.rows.div_ceil(TILES as usize * chunk / inner);
            let across = conv.input().channels() / chunk * runs;
            let cubes = across.max(height.rows.div_ceil(LINES as usize));
            let narrow = near.div_ceil(wide) <= MOST_STRIPS && width.step <= MOST_STEP;
            narrow && high < 256 && cubes <= MOST_CUBES_Z
        })
}

/// The windows of a tile, for groups as large as a problem's.
pub(super) fn tile_windows(conv: &Convolution, pass: Pass) -> u32 {
    CHUNK / inner(conv, pass) as u32
}

/// The units of a cube.
pub(super) fn units(conv: &Convolution, pass: Pass, tile: &Tile) -> u32 {
    let group = inner(conv, pass) as u32;
    let across = tile.block_n / group / groups(group);
    let runs = tile.block_m / (LINES * tile.ratio_m * (CHUNK / group));
    runs.saturating_mul(across).saturating_mul(PLANE)
}

/// The bytes of shared memory that a tile takes on matrix units.
pub(super) fn shared_bytes(conv: &Convolution, pass: Pass, tile: &Tile, dtype: DType) -> usize {
    // Sums are the largest where they are laid out as they are.
    let form = |gather| Form {
        late: true,
        ..Form::new(conv, pass, &gather, tile, true, &Epilogue::NONE, dtype)
    };
    let strips = Gather::all(conv, pass).map(|gather| form(gather).shared()).max();
    strips.unwrap_or(0) as usize * CHUNK as usize * dtype.size()
}

/// The elements of the bands of all groups.
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
    let [inputs, weights] = operands(conv, pass);
    let results = results(conv, pass);
    let steps = weight_steps(conv, pass);
    for gather in Gather::all(conv, pass) {
        let has_matrix = plan.matrix.is_some();
        let form = Form::new(conv, pass, &gather, &tile, has_matrix, &epilogue, dtype);
        let bands = Bands::new(conv, pass, &gather);
        let packed = bands.pack(client, conv, dtype, plan, w);
        let [_, height, width] = gather.axes;
        let chunk_blocks = chunks / form.chunks as usize;
        let cubes = CubeCount::Static(
            (chunk_blocks * width.rows.div_ceil(form.windows() as usize)) as u32,
            height.rows.div_ceil(LINES as usize) as u32,
            conv.input().batch() as u32,
        );
        let laid = if form.late { accumulator(dtype) } else { dtype };
        // SAFETY: pixels outside are not read; bands are there for every group and tap; windows past
        // the last are stored nowhere.
        unsafe {
            banded::launch_unchecked(
                client,
                cubes,
                CubeDim::new_1d(form.units()),
                lanes,
                buffer(a, inputs / lanes),
                buffer(w, weights),
                buffer(&packed, bands.elements() / HELD as usize),
                epilogue.bias(conv.filter().count(), lanes),
                epilogue.residual(results, lanes),
                buffer(out, results / lanes),
                gather.args(conv, &steps),
                BlockArgsLaunch::new(
                    chunk_blocks as u32,
                    height.rows as u32,
                    width.rows as u32,
                    steps.column as u32,
                    lanes as u32,
                    epilogue.slope(),
                ),
                form,
                elem(dtype),
                elem(accumulator(dtype)),
                elem(laid),
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
    /// The step from a column's weights to the next as they were given.
    column_step: u32,
    /// The lanes of a vector, where a compiler is not to know them.
    lanes: u32,
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
    /// The unit within its plane, the plane's first group within the cube, and its run of tiles.
    unit: u32,
    group: u32,
    run: u32,
}

#[cube]
fn place_of(block: &BlockArgs, #[comptime] form: Form) -> Place {
    let (across, chunk) = block.chunks.div_mod(CUBE_POS_X);
    let (plane, unit) = (UNIT_POS / PLANE, UNIT_POS % PLANE);
    Place {
        line: CUBE_POS_Y * LINES,
        column: across * comptime!(form.windows()),
        chunk: chunk * comptime!(form.chunks),
        unit,
        group: plane % comptime!(form.across()) * comptime!(form.groups()),
        run: plane / comptime!(form.across()),
    }
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "the tensors and numbers of a launch")]
fn banded<S: Float, A: Float, R: Float, N: Size>(
    a: &[Vector<S, N>],
    w: &[S],
    bands: &[Vector<S, Const<4>>],
    bias: ComptimeOption<Box<[Vector<S, N>]>>,
    residual: ComptimeOption<Box<[Vector<S, N>]>>,
    out: &mut [Vector<S, N>],
    gather: &GatherArgs,
    block: &BlockArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
    #[define(R)] _laid: ElemType,
) {
    let place = place_of(block, form);
    if comptime!(form.has_matrix) {
        let mut shared = Shared::<[Vector<S, N>]>::new_aligned_slice(
            comptime!(form.shared() as usize),
            ALIGNMENT,
        );
        stage::<S, N>(a, gather, &place, &mut shared, form);
        sync_cube();
        for member in 0..comptime!(form.groups()).runtime() {
            let group = place.group + member;
            let sums = multiply::<S, A, N>(&shared, bands, gather, block, &place, group, form);
            // Who else reads the group's pixels: none, or the planes of its other runs.
            if comptime!(form.runs == 1) {
                sync_plane();
            } else {
                sync_cube();
            }
            lay::<S, A, R, N>(&sums, &mut shared, block, &place, group, form);
        }
        sync_cube();
        // The windows that are left to be summed term by term, a bit each.
        let mut left = 0u32.runtime();
        #[unroll]
        for turn in 0..form.turns() {
            let piece = UNIT_POS + comptime!(turn * form.units());
            let results = take::<S, R, N>(&shared, piece, form);
            #[unroll]
            for i in 0..form.neighbours() {
                let window = window_of(&place, piece, i, form);
                if is_there(block, &place, &window) {
                    let result = *results.index(comptime!(i as usize));
                    if is_number::<R, N>(result, form) {
                        bring::<S, A, R, N>(
                            result, &bias, &residual, out, gather, block, &window, form,
                        );
                    } else {
                        left |= comptime!(1u32 << (turn * form.neighbours() + i));
                    }
                }
            }
        }
        while left != 0 {
            let bit = left.trailing_zeros();
            left &= left - 1;
            let (turn, i) =
                (bit / comptime!(form.neighbours()), bit % comptime!(form.neighbours()));
            let piece = UNIT_POS + turn * comptime!(form.units());
            let window = window_of(&place, piece, i, form);
            again::<S, A, N>(a, w, &bias, &residual, out, gather, block, &window, form);
        }
    } else {
        let vectors = comptime!(form.chunks * CHUNK / form.lanes);
        let all = comptime!(LINES * form.windows()) * vectors;
        for i in range_stepped(UNIT_POS, all, comptime!(form.units())) {
            let (i, vector) = (i / vectors, i % vectors);
            let window = Window {
                line: place.line + i / comptime!(form.windows()),
                column: place.column + i % comptime!(form.windows()),
                vector: place.chunk * comptime!(CHUNK / form.lanes) + vector,
            };
            if is_there(block, &place, &window) {
                again::<S, A, N>(a, w, &bias, &residual, out, gather, block, &window, form);
            }
        }
    }
}

/// The loads, or pairs of them, that a unit has on their way at once.
const AHEAD: u32 = 4;

/// Brings the pixels that a cube reads to shared memory, zeros where there are none.
#[cube]
fn stage<S: Float, N: Size>(
    a: &[Vector<S, N>],
    gather: &GatherArgs,
    place: &Place,
    shared: &mut Shared<[Vector<S, N>]>,
    #[comptime] form: Form,
) {
    let chunks = comptime!(form.chunks);
    // The pixels of a turn, the turns of a line, and how far on a unit's next turn is.
    let pixels = comptime!(form.neighbours());
    let (turns, lines) = comptime!((form.columns() / pixels, form.lines()));
    let ahead = comptime!(form.units() / chunks);
    let (first_line, first_column) = comptime!((form.height.pixels().0, form.tile.pixels().0));
    let top = read(&gather.height, place.line) + first_line;
    let left = read(&gather.width, place.column) + first_column;
    let (spot, chunk) = (UNIT_POS / chunks, UNIT_POS % chunks);
    let to = chunk * comptime!(form.chunk_step());
    let base = CUBE_POS_Z * gather.a_batch + (place.chunk + chunk) * CHUNK;
    let base = base / comptime!(form.lanes);
    let words = comptime!(CHUNK / form.together());
    let mut line = spot / turns;
    let mut turn = spot % turns;
    for _ in 0..comptime!((turns * lines).div_ceil(ahead * AHEAD)) {
        let mut held = Sequence::<Vector<S, N>>::new();
        let mut spots = Sequence::<u32>::new();
        #[unroll]
        for _ in 0..AHEAD {
            // After the last line the last again.
            let there = min(line, comptime!(lines - 1));
            let h = top + there as i32;
            #[unroll]
            for i in 0..pixels {
                let w = left + (turn * pixels + i) as i32;
                // What is negative is larger than all that is not.
                let inside = (h as u32) < gather.height.extent as u32
                    && (w as u32) < gather.width.extent as u32;
                let at = select(inside, h * gather.height.a_step + w * gather.width.a_step, 0i32);
                held.push(load_if(a, inside, base + at as u32 / comptime!(form.lanes)));
            }
            let spot = (to + there * comptime!(form.pitch())) * words;
            spots.push(spot + turn);
            line += comptime!(ahead / turns);
            turn += comptime!(ahead % turns);
            if turn >= turns {
                turn -= turns;
                line += 1;
            }
        }
        #[unroll]
        for i in 0..AHEAD {
            let (first, last) =
                comptime!(((i * pixels) as usize, (i * pixels + pixels - 1) as usize));
            let spot = *spots.index(i as usize);
            put::<S, N>(shared, spot, *held.index(first), *held.index(last), form);
        }
    }
}

/// Writes a pixel's chunk to shared memory, or the words that two neighbours' make.
#[cube]
fn put<S: Float, N: Size>(
    shared: &mut Shared<[Vector<S, N>]>,
    spot: u32,
    first: Vector<S, N>,
    last: Vector<S, N>,
    #[comptime] form: Form,
) {
    let together = comptime!(form.together());
    let size!(V) = together as usize;
    let all = comptime!(form.shared() as usize);
    let words: &mut [Vector<S, V>] = shared[0..all].with_vector_size_mut();
    #[unroll]
    for i in 0..form.wide() {
        let mut word = Vector::<S, V>::empty();
        if comptime!(form.group == 1) {
            word.insert(0usize, first.extract(comptime!(i as usize)));
            word.insert(1usize, last.extract(comptime!(i as usize)));
        } else {
            #[unroll]
            for lane in 0..together {
                let of = comptime!((i * together + lane) as usize);
                word.insert(comptime!(lane as usize), first.extract(of));
            }
        }
        let at = spot + comptime!(i * form.group_step() * (CHUNK / together));
        words[at as usize] = word;
    }
}

/// The taps along the height by which a loop is unrolled, so that what it loads is on its way early.
const MOST_UNROLLED: u32 = 8;

/// The sums of a plane's windows and one of its groups.
#[cube]
fn multiply<S: Float, A: Float, N: Size>(
    shared: &Shared<[Vector<S, N>]>,
    bands: &[Vector<S, Const<4>>],
    gather: &GatherArgs,
    block: &BlockArgs,
    place: &Place,
    group: u32,
    #[comptime] form: Form,
) -> Sequence<Array<Vector<A, Const<2>>>> {
    let mut sums = Sequence::<Array<Vector<A, Const<2>>>>::new();
    #[unroll]
    for _ in 0..form.tiles {
        let mut sum = Array::<Vector<A, Const<2>>>::new(2usize);
        sum[0] = Vector::new(A::from_int(0));
        sum[1] = Vector::new(A::from_int(0));
        sums.push(sum);
    }
    let (taps, steps) = comptime!((form.height.taps, form.steps()));
    let of_all = place.chunk * comptime!(form.wide()) + group;
    let band = of_all * comptime!(taps * steps * PLANE) + place.unit;
    // Unit by unit the rows of a strip, and then those of the next.
    let (row, next) = (place.unit % LINES, place.unit / LINES);
    let first = strip_of(group, form)
        + row * comptime!(form.height.step as u32 * form.pitch())
        + place.run * comptime!(form.tiles * form.stride())
        + next;
    if place.column + place.run * comptime!(form.run()) < block.width {
        let mut ahead = Sequence::<RuntimeCell<Vector<S, Const<4>>>>::new();
        #[unroll]
        for s in 0..steps {
            ahead.push(RuntimeCell::new(bands[(band + s * PLANE) as usize]));
        }
        if comptime!(taps <= MOST_UNROLLED) {
            #[unroll]
            for th in 0..taps {
                let line = first + line_of(th, form);
                let next = band + comptime!((th + 1).min(taps - 1) * steps * PLANE);
                multiply_line::<S, A, N>(shared, bands, &ahead, &mut sums, line, next, form);
            }
        } else {
            for th in 0..gather.height.taps_count {
                let line = first + line_of(th, form);
                let next = band + min(th + 1, comptime!(taps - 1)) * (steps * PLANE);
                multiply_line::<S, A, N>(shared, bands, &ahead, &mut sums, line, next, form);
            }
        }
    }
    sums
}

/// Adds what a line of taps gives whose bands were brought ahead, and brings the next line's.
#[cube]
fn multiply_line<S: Float, A: Float, N: Size>(
    shared: &Shared<[Vector<S, N>]>,
    bands: &[Vector<S, Const<4>>],
    ahead: &Sequence<RuntimeCell<Vector<S, Const<4>>>>,
    sums: &mut Sequence<Array<Vector<A, Const<2>>>>,
    line: u32,
    next: u32,
    #[comptime] form: Form,
) {
    let fragment = MmaDefinition::<S, S, A>::new(16usize, 8usize, 16usize);
    let mut weights = Sequence::<Array<Vector<S, Const<2>>>>::new();
    #[unroll]
    for s in 0..form.steps() {
        let held_ahead = ahead.index(comptime!(s as usize));
        let both = held_ahead.read();
        held_ahead.store(bands[(next + s * PLANE) as usize]);
        let mut held = Array::<Vector<S, Const<2>>>::new(2usize);
        #[unroll]
        for i in 0..2usize {
            let mut half = Vector::<S, Const<2>>::empty();
            half.insert(0usize, both.extract(comptime!(2 * i)));
            half.insert(1usize, both.extract(comptime!(2 * i + 1)));
            held[i] = half;
        }
        weights.push(held);
    }
    let mut pairs = Sequence::<Array<Vector<S, Const<2>>>>::new();
    #[unroll]
    for pair in 0..form.pairs() {
        if comptime!(form.is_read(pair)) {
            let at = (line + 2 * pair) as usize;
            pairs.push(fragment.load_matrix::<Vector<S, N>, Const<2>>(
                &shared[at..at + 1],
                MatrixIdent::A,
                4usize,
                false,
            ));
        } else {
            pairs.push(Array::new(4usize));
        }
    }
    #[unroll]
    for n in 0..form.tiles {
        #[unroll]
        for s in 0..form.steps() {
            let mut pixels = Array::<Vector<S, Const<2>>>::new(4usize);
            #[unroll]
            for i in 0..2u32 {
                let strip = comptime!(form.strips(n, s)[i as usize]);
                let pair = pairs.index(comptime!((strip / 2) as usize));
                let from = comptime!((strip % 2 * 2) as usize);
                let to = comptime!((i * 2) as usize);
                pixels[to] = pair[from];
                pixels[to + 1] = pair[from + 1];
            }
            let weights = weights.index(comptime!(s as usize));
            fragment.execute_inplace(&pixels, weights, sums.index_mut(comptime!(n as usize)));
        }
    }
}

/// The strips before the line that the first row reads by line `th` of taps, from its group's first.
#[cube]
fn line_of(th: u32, #[comptime] form: Form) -> u32 {
    let (step, first) = comptime!((form.height.tap_step, form.height.pixels().0));
    (th as i32 * step - first) as u32 * comptime!(form.pitch())
}

/// Lays a plane's sums of a group out in shared memory where the group's pixels were, line by line: as they
/// are where more is to follow than what needs no memory.
#[cube]
fn lay<S: Float, A: Float, R: Float, N: Size>(
    sums: &Sequence<Array<Vector<A, Const<2>>>>,
    shared: &mut Shared<[Vector<S, N>]>,
    block: &BlockArgs,
    place: &Place,
    group: u32,
    #[comptime] form: Form,
) {
    let lanes = comptime!(if form.late { 4u32 } else { 2 });
    let size!(P) = lanes as usize;
    let all = comptime!(form.shared() as usize);
    let pairs: &mut [Vector<S, P>] = shared[0..all].with_vector_size_mut();
    // Of its tile's rows a unit holds this, and the one 8 further on; and there two columns.
    let (row, pair) = (place.unit / 4, place.unit % 4);
    let line = strip_of(group, form) + row * comptime!(form.laid_pitch());
    let first = line * comptime!(CHUNK / lanes) + place.run * comptime!(form.tiles * 4) + pair;
    #[unroll]
    for n in 0..form.tiles {
        let sum = sums.index(comptime!(n as usize));
        #[unroll]
        for half in 0..2u32 {
            let at = first + comptime!(n * 4 + 8 * half * form.laid_pitch() * (CHUNK / lanes));
            let sum = sum[comptime!(half as usize)];
            let laid = if comptime!(form.late) {
                Vector::<R, Const<2>>::cast_from(sum)
            } else {
                Vector::cast_from(finish::<S, A, Const<2>>(sum, block.slope, form.epilogue))
            };
            pairs[at as usize] = Vector::reinterpret(laid);
        }
    }
}

/// The strips in shared memory before a group's.
#[cube]
fn strip_of(group: u32, #[comptime] form: Form) -> u32 {
    let (chunk, within) = (group / comptime!(form.wide()), group % comptime!(form.wide()));
    chunk * comptime!(form.chunk_step()) + within * comptime!(form.group_step())
}

/// A window and a vector of its channels, among all.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Window {
    line: u32,
    column: u32,
    vector: u32,
}

/// Where a piece of a cube's results is, within the cube: a chunk of neighbouring windows.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Piece {
    line: u32,
    /// The neighbours before it on its line.
    turn: u32,
    chunk: u32,
}

#[cube]
fn piece_of(piece: u32, #[comptime] form: Form) -> Piece {
    let turns = comptime!(form.windows() / form.neighbours());
    let (i, chunk) = (piece / comptime!(form.chunks), piece % comptime!(form.chunks));
    Piece { line: i / turns, turn: i % turns, chunk }
}

/// The `i`-th window of a piece.
#[cube]
fn window_of(place: &Place, piece: u32, i: u32, #[comptime] form: Form) -> Window {
    let piece = piece_of(piece, form);
    Window {
        line: place.line + piece.line,
        column: place.column + piece.turn * comptime!(form.neighbours()) + i,
        vector: place.chunk + piece.chunk,
    }
}

/// Whether there is such a window, and in this cube.
#[cube]
fn is_there(block: &BlockArgs, place: &Place, window: &Window) -> bool {
    window.line < min(block.height, place.line + LINES) && window.column < block.width
}

/// The vector of all results.
#[cube]
fn result_of(gather: &GatherArgs, window: &Window, #[comptime] form: Form) -> u32 {
    let at = CUBE_POS_Z * gather.out_batch
        + result(&gather.height, window.line)
        + result(&gather.width, window.column);
    at / comptime!(form.lanes) + window.vector
}

/// A piece of the results from shared memory: of each of its windows a chunk.
#[cube]
fn take<S: Float, R: Float, N: Size>(
    shared: &Shared<[Vector<S, N>]>,
    piece: u32,
    #[comptime] form: Form,
) -> Sequence<Vector<R, N>> {
    let (taken, lanes) = comptime!((form.taken(), form.taken_lanes()));
    let size!(P) = lanes as usize;
    let size!(Q) = taken as usize;
    let all = comptime!(form.shared() as usize);
    let words: &[Vector<S, P>] = shared[0..all].with_vector_size();
    let piece = piece_of(piece, form);
    // A piece after the last of the cube is the last line's again.
    let line = min(piece.line, LINES - 1) * comptime!(form.laid_pitch());
    let first = (piece.chunk * comptime!(form.chunk_step()) + line) * comptime!(CHUNK / lanes)
        + piece.turn * comptime!(form.together() / taken);
    let mut one = Vector::<R, N>::empty();
    let mut other = Vector::<R, N>::empty();
    #[unroll]
    for group in 0..form.wide() {
        #[unroll]
        for part in 0..comptime!(form.together() / taken) {
            let at = first + comptime!(group * form.group_step() * (CHUNK / lanes) + part);
            let word = Vector::<R, Q>::reinterpret(words[at as usize]);
            if comptime!(form.group == 1) {
                one.insert(comptime!(group as usize), word.extract(0usize));
                other.insert(comptime!(group as usize), word.extract(1usize));
            } else {
                #[unroll]
                for lane in 0..taken {
                    let to = comptime!((group * form.group + part * taken + lane) as usize);
                    one.insert(to, word.extract(comptime!(lane as usize)));
                }
            }
        }
    }
    let mut results = Sequence::<Vector<R, N>>::new();
    results.push(one);
    if comptime!(form.group == 1) {
        results.push(other);
    }
    results
}

/// Whether none of a vector of results is NaN. Infinities of both signs may do for one: what is computed
/// again comes out the same.
#[cube]
fn is_number<R: Float, N: Size>(result: Vector<R, N>, #[comptime] form: Form) -> bool {
    let mut pairs = Vector::<R, Const<2>>::new(R::from_int(0));
    #[unroll]
    for i in 0..comptime!(form.lanes / 2) {
        let mut pair = Vector::<R, Const<2>>::empty();
        pair.insert(0usize, result.extract(comptime!((2 * i) as usize)));
        pair.insert(1usize, result.extract(comptime!((2 * i + 1) as usize)));
        pairs += pair;
    }
    let all = f32::cast_from(pairs.extract(0usize)) + f32::cast_from(pairs.extract(1usize));
    !all.is_nan()
}

/// Brings a vector of results to memory.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn bring<S: Float, A: Float, R: Float, N: Size>(
    result: Vector<R, N>,
    bias: &ComptimeOption<Box<[Vector<S, N>]>>,
    residual: &ComptimeOption<Box<[Vector<S, N>]>>,
    out: &mut [Vector<S, N>],
    gather: &GatherArgs,
    block: &BlockArgs,
    window: &Window,
    #[comptime] form: Form,
) {
    let at = result_of(gather, window, form);
    if comptime!(form.late) {
        let sum = Vector::<A, N>::cast_from(result);
        let (vector, slope) = (window.vector, block.slope);
        out[at as usize] =
            finish_at::<S, A, N>(bias, residual, sum, vector, at, slope, form.epilogue);
    } else {
        out[at as usize] = Vector::cast_from(result);
    }
}

/// Sums a vector of results term by term and brings it to memory.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn again<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    w: &[S],
    bias: &ComptimeOption<Box<[Vector<S, N>]>>,
    residual: &ComptimeOption<Box<[Vector<S, N>]>>,
    out: &mut [Vector<S, N>],
    gather: &GatherArgs,
    block: &BlockArgs,
    window: &Window,
    #[comptime] form: Form,
) {
    let sum = term_by_term::<S, A, N>(a, w, gather, block, window, form);
    let at = result_of(gather, window, form);
    let (vector, slope) = (window.vector, block.slope);
    out[at as usize] = finish_at::<S, A, N>(bias, residual, sum, vector, at, slope, form.epilogue);
}

/// A window's results without products that are not of a tap.
#[cube]
fn term_by_term<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    w: &[S],
    gather: &GatherArgs,
    block: &BlockArgs,
    window: &Window,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let lanes = comptime!(form.lanes);
    let vectors = comptime!(form.vectors());
    let mut sum = Vector::<A, N>::new(A::from_int(0));
    let top = read(&gather.height, window.line);
    let left = read(&gather.width, window.column);
    let first = CUBE_POS_Z * gather.a_batch / lanes + window.vector / vectors * vectors;
    // The vector's first group, and its first column there.
    let group = window.vector * lanes / comptime!(form.group);
    let column = window.vector % vectors * lanes;
    for th in 0..gather.height.taps_count {
        let h = top + th as i32 * gather.height.tap_step;
        for tw in 0..gather.width.taps_count {
            let x = left + tw as i32 * gather.width.tap_step;
            let inside =
                (h as u32) < gather.height.extent as u32 && (x as u32) < gather.width.extent as u32;
            if inside {
                let at = (h * gather.height.a_step + x * gather.width.a_step) as u32 / lanes;
                let weights = tap_point(gather, 0u32, th, tw).other
                    + group * gather.b_group
                    + column * block.column_step;
                for from in 0..vectors.runtime() {
                    let pixel = Vector::<A, N>::cast_from(a[(first + at + from) as usize]);
                    let weights = weights + from * lanes * gather.b_inner;
                    add_products::<S, A, N>(w, gather, block, &mut sum, pixel, weights, form);
                }
            }
        }
    }
    sum
}

/// Adds the products of a vector of pixels: to each filter's sum those of its own group.
///
/// Filter by filter, and not all at once: the registers that these would take are many, and what is rarely
/// run should not be what decides how many units there are at a time.
#[cube]
fn add_products<S: Float, A: Float, N: Size>(
    w: &[S],
    gather: &GatherArgs,
    block: &BlockArgs,
    sum: &mut Vector<A, N>,
    pixel: Vector<A, N>,
    weights: u32,
    #[comptime] form: Form,
) {
    for f in 0..block.lanes {
        let (group, column) = (f / comptime!(form.group), f % comptime!(form.group));
        let weights = weights + group * gather.b_group + column * block.column_step;
        let mut total = A::from_int(0);
        #[unroll]
        for c in 0..form.lanes {
            if group == comptime!(c / form.group) {
                let at = weights + comptime!(c % form.group) * gather.b_inner;
                let weight = A::cast_from(w[at as usize]);
                total = fma(pixel.extract(comptime!(c as usize)), weight, total);
            }
        }
        #[unroll]
        for lane in 0..form.lanes {
            let at = comptime!(lane as usize);
            let before = sum.extract(at);
            sum.insert(at, select(f == lane, before + total, before));
        }
    }
}

/// The filters laid out as bands, as a plane's units hold them.
///
/// ```text
/// bands[group, th, s, unit, i] =
///     w[f of group, th, tap by which window n/GROUP of a tile reads pixel k/GROUP of two strips, k%GROUP]
/// f = n%GROUP    n = unit/4    k = 2·(unit%4) + i%2 + 8·(i/2)
/// ```
///
/// the strips being those of step `s`; 0 where there is no such tap.
struct Bands {
    groups: usize,
    height_taps: usize,
    height_first: usize,
    height_jump: usize,
    width_first: usize,
    width_jump: usize,
    tile: Run,
    group: usize,
    source: WeightSteps,
}

impl Bands {
    fn new(conv: &Convolution, pass: Pass, gather: &Gather) -> Self {
        let [_, height, width] = gather.axes;
        let group = inner(conv, pass);
        Self {
            groups: conv.groups(),
            height_taps: height.taps,
            height_first: height.tap_first,
            height_jump: height.tap_jump,
            width_first: width.tap_first,
            width_jump: width.tap_jump,
            tile: Run::new(CHUNK / group as u32, &width),
            group,
            source: weight_steps(conv, pass),
        }
    }

    fn steps(&self) -> usize {
        self.tile.pixels().1.div_ceil(2 * self.tile.rows) as usize
    }

    fn elements(&self) -> usize {
        self.groups * self.height_taps * self.steps() * (PLANE * HELD) as usize
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
                    self.tile.pixels().0,
                    self.tile.step,
                    self.tile.tap_step,
                    self.tile.taps as i32,
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
    let (rest, held) = (i / HELD, i % HELD);
    let (rest, unit) = (rest / PLANE, rest % PLANE);
    let (rest, s) = args.steps.div_mod(rest);
    let (group, th) = args.lines.div_mod(rest);
    let k = unit % 4 * 2 + held % 2 + held / 2 * CHUNK;
    let (window, column) = args.group.div_mod(unit / 4);
    // What tap reads the pixel.
    let (pixel, inner) = args.group.div_mod(s * TERMS + k);
    let pixel = pixel as i32 + args.first - window as i32 * args.step;
    let tap = pixel / args.tap_step;
    let there = tap * args.tap_step == pixel && tap >= 0 && tap < args.taps;
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

    fn forms(
        group: usize,
        kernel: [usize; 2],
        stride: [usize; 2],
        dilation: [usize; 2],
    ) -> Vec<Form> {
        let shape = Shape::new(1, 32, Extents::from([40, 40])).unwrap();
        let filter = Filter::new(32, group, Extents::from(kernel)).unwrap();
        let window = Window::new(kernel).stride(stride).dilation(dilation).padding([1, 2]);
        let (last, fhwc) = (Layout::ChannelsLast, FilterLayout::Fhwc);
        let conv = Convolution::new(shape, filter, &window, 32 / group, last, fhwc).unwrap();
        let tile = Tile {
            block_m: 2 * LINES * TILES * CHUNK / group as u32,
            block_n: 32,
            block_k: TERMS,
            ratio_m: TILES,
            ratio_n: 1,
            elems_per_thread: 8,
            stages: 1,
        };
        let passes = [Pass::Forward, Pass::Data];
        let passes = passes.into_iter().filter(|pass| can(&conv, *pass, DType::F16));
        let form = |pass, gather| {
            Form::new(&conv, pass, &gather, &tile, true, &Epilogue::NONE, DType::F16)
        };
        passes
            .flat_map(|pass| Gather::all(&conv, pass).map(move |gather| form(pass, gather)))
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
            for form in [1, 2, 4, 8].into_iter().flat_map(|g| forms(g, kernel, stride, dilation)) {
                passes += 1;
                for (n, window, tap) in (0..TILES).flat_map(|n| {
                    (0..form.wide())
                        .flat_map(move |i| (0..form.tile.taps).map(move |tap| (n, i, tap)))
                }) {
                    let strip = form.tile.pixel(window, tap) / form.wide();
                    let met = form.strips(n, strip / 2)[(strip % 2) as usize];
                    assert_eq!(met, n * form.stride() + strip, "{form:?}");
                    assert!(strip < form.reach() && form.is_read(met / 2), "{form:?}");
                    assert!(met / 2 < form.pairs(), "{form:?}");
                }
                // Lines in different banks.
                assert_eq!((form.pitch() % 2, form.chunk_step() % 8), (1, 2), "{form:?}");
                assert_eq!(form.laid_pitch() % 2, 1, "{form:?}");
                assert!(LINES * form.laid_pitch() <= form.group_step(), "{form:?}");
                assert!(form.turns() * form.neighbours() <= u32::BITS, "{form:?}");
                assert!(form.group_step() * form.wide() <= form.chunk_step(), "{form:?}");
                let last = (form.runs - 1) * form.tiles * form.stride() + 2 * form.pairs();
                assert!(form.pitch() >= last && form.columns() == last * form.wide());
                let last = form
                    .height
                    .pixel(LINES - 1, 0)
                    .max(form.height.pixel(LINES - 1, form.height.taps - 1));
                assert!(last < form.lines(), "{form:?}");
            }
        }
        assert_eq!(passes, 36);
    }
}
