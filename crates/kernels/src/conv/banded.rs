//! Groups of at most 8 channels, one channel among them, on matrix units: filters as matrices of bands.
//!
//! ```text
//! for each block of lines by windows by chunks of 8 channels:                       one cube
//!     all units bring the pixels that its windows read to shared memory, group by group, as strips
//!     for each group of a few, for each walk of tiles side by side:                  one plane
//!         for each line of pixels, from the first that the walk reads to the last:
//!             for each line of windows that reads it, by some line of taps, for each pair of strips, s:
//!                 sums[line of windows] += pixels[tile, pixel and channel of the strips] · band[line of taps, s]
//!             the sums of the line of windows that read it last take the place of pixels
//!     all units bring the results to memory, whole vectors of channels
//! ```
//!
//! A strip is 8 elements of a line of a group: 8 pixels of one channel, or 4 of two, or 2 of four, or one of
//! eight. A tile is as many neighbouring windows, and its results are the 8 columns of a fragment; its rows
//! are tiles side by side, or half as many of them in two lines of windows, half a block from each other,
//! where strips are wide. The weight between an element and a column is that of the tap by which the window
//! reads the pixel, or 0 where none does. Strips are made as pixels are staged, and results, which are
//! laid out as strips, go the same way back.
//!
//! A plane walks down the image: it loads a line of pixels once, for all lines of taps, while a group's
//! weights stay in its registers. Where these would be too many, it goes over its lines of windows once
//! for each line of taps.
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
    Gather, GatherArgs, columns, inner, phases, read, result, tap_point, weight_steps,
};
use super::launch::buffer;
use super::plan::{MOST_CUBES_Z, Pass, Plan, results};
use crate::dtype::{accumulator, elem};

/// The channels of a chunk and elements of a strip, and the units of a plane.
pub(super) const CHUNK: u32 = 8;
pub(super) const PLANE: u32 = 32;

/// The tiles that are rows of half a fragment: 7 of 8, for the images most common are multiples of 7 wide.
const TILES: u32 = 7;

/// The lines of windows that a plane may walk.
pub(super) const WALKS: [u32; 3] = [4, 7, 14];

/// The halves of a fragment's rows.
const HALVES: u32 = 2;

/// The most strips that a tile reads, and that it is from a tile to the next.
const MOST_STRIPS: u64 = 16;
const MOST_STEP: usize = 4;

/// The most fragments of weights that a plane holds while it walks.
const MOST_HELD: u32 = 16;

/// The bytes on whose multiples strips begin.
const ALIGNMENT: usize = 16;

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    has_matrix: bool,
    /// The walks of a plane side by side, its groups, and the chunks of a cube's channels.
    walks: u32,
    members: u32,
    chunks: u32,
    lanes: u32,
    /// The channels of a group.
    group: u32,
    /// The lines of windows of a walk, or of either half of it.
    height: Run,
    /// The windows of a tile.
    tile: Run,
    /// The weights from a line of taps to the next.
    weight_step: u32,
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
        Self {
            has_matrix,
            walks: tile.block_m / walk_windows(group, tile.ratio_m),
            members: tile.ratio_n,
            chunks: tile.block_n / CHUNK,
            lanes: tile.elems_per_thread,
            group,
            height: Run::new(tile.ratio_m, &height),
            tile: Run::new(CHUNK / group, &width),
            weight_step: (height.tap_jump * weight_steps(conv, pass).kernel[1]) as u32,
            late: epilogue.bias.is_some() || epilogue.residual.is_some(),
            epilogue: epilogue.form(dtype),
        }
    }

    /// The pixels of a strip and windows of a tile, and the groups of a chunk.
    fn wide(&self) -> u32 {
        CHUNK / self.group
    }

    fn units(&self) -> u32 {
        self.chunks * self.wide() / self.members * PLANE
    }

    /// Whether the halves of a fragment's rows are lines of windows, not tiles of one line.
    fn is_split(&self) -> bool {
        self.group == 1
    }

    /// The lines of windows of a cube.
    fn lines(&self) -> u32 {
        self.height.rows * if self.is_split() { HALVES } else { 1 }
    }

    /// The tiles side by side of a walk and of a cube.
    fn walk_tiles(&self) -> u32 {
        TILES * if self.is_split() { 1 } else { HALVES }
    }

    fn tiles(&self) -> u32 {
        self.walks * self.walk_tiles()
    }

    /// The windows of a walk and of a cube along the width.
    fn walk_windows(&self) -> u32 {
        self.walk_tiles() * self.wide()
    }

    fn windows(&self) -> u32 {
        self.walks * self.walk_windows()
    }

    /// The strips that a tile reads, in so many pairs.
    fn reach(&self) -> u32 {
        self.tile.pixels().1.div_ceil(self.wide())
    }

    fn steps(&self) -> u32 {
        self.reach().div_ceil(2)
    }

    /// The strips of a pair: the last may have no other.
    fn paired(&self, s: u32) -> u32 {
        (self.reach() - 2 * s).min(2)
    }

    /// The strips from a tile to the next.
    fn stride(&self) -> u32 {
        self.tile.step as u32
    }

    /// Whether weights are held for a whole walk.
    fn is_held(&self) -> bool {
        self.height.taps * self.steps() <= MOST_HELD
    }

    fn held_lines(&self) -> u32 {
        if self.is_held() { self.height.taps } else { 1 }
    }

    /// The lines of pixels from the first that a walk reads to the last.
    fn walk_lines(&self) -> u32 {
        self.height.pixels().1
    }

    /// The line of pixels of a walk that line `j` of windows reads last.
    fn last_line(&self, j: u32) -> u32 {
        self.height.pixel(j, 0).max(self.height.pixel(j, self.height.taps - 1))
    }

    /// The lines of pixels from one half's first to the other's.
    fn half_step(&self) -> u32 {
        if self.is_split() { self.height.rows * self.height.step as u32 } else { 0 }
    }

    /// The lines of pixels and the strips of each in shared memory.
    fn pixel_lines(&self) -> u32 {
        self.half_step() + self.walk_lines()
    }

    fn pitch(&self) -> u32 {
        (self.tiles() - 1) * self.stride() + self.reach()
    }

    /// The strips of a tile's results.
    fn parts(&self) -> u32 {
        if self.late { 2 } else { 1 }
    }

    /// Where line `j` of windows of a half is laid: where pixels were that are read no more, or after all
    /// of them where it is wider than they were.
    fn laid_line(&self, half: u32, j: u32) -> u32 {
        let line = half * self.height.rows + j;
        match (self.late, half) {
            (true, _) => line,
            (false, 0) => j,
            (false, _) => self.half_step() + self.last_line(j),
        }
    }

    fn laid_pitch(&self) -> u32 {
        if self.late { self.tiles() * self.parts() } else { self.pitch() }
    }

    fn laid_first(&self) -> u32 {
        if self.late { self.pixel_lines() * self.pitch() } else { 0 }
    }

    /// The strips from a group to the next.
    fn group_step(&self) -> u32 {
        let laid = if self.late { self.lines() * self.laid_pitch() } else { 0 };
        self.pixel_lines() * self.pitch() + laid
    }

    /// The strips from a chunk to the next: some more than its groups take, so that no two of a pixel's
    /// chunks meet in a bank.
    fn chunk_step(&self) -> u32 {
        let strips = self.wide() * self.group_step();
        let wanted = 8 / self.chunks.min(8);
        strips + (wanted + 8 - strips % 8) % 8
    }

    /// The strips in shared memory: one more, for a unit that names the last pair's other.
    fn shared(&self) -> u32 {
        self.chunks * self.chunk_step() + 1
    }

    /// The strips of all groups of a chunk that are staged, and tiles of them that are brought to memory.
    fn staged(&self) -> u32 {
        self.pixel_lines() * self.pitch() * self.chunks
    }

    fn brought(&self) -> u32 {
        self.lines() * self.tiles() * self.chunks
    }

    /// How many of either a unit has at once, 8 pixels in all.
    fn ahead(&self) -> u32 {
        CHUNK / self.wide()
    }

    /// The vectors of a group, and its filters and channels in a vector.
    fn vectors(&self) -> u32 {
        (self.group / self.lanes).max(1)
    }
}

/// The windows of so many lines of a walk, for groups of so many channels.
fn walk_windows(group: u32, lines: u32) -> u32 {
    HALVES * TILES * (CHUNK / group) * lines
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
    let [fewest, .., most] = WALKS;
    product
        && Gather::all(conv, pass).all(|gather| {
            let [_, height, width] = gather.axes;
            // Coordinates that are in no window have a gradient of zeros, which others write.
            if gather.axes.iter().any(|axis| axis.taps == 0) {
                return false;
            }
            let span = |taps: usize, step: i64| (taps as u64 - 1) * step.unsigned_abs();
            let wide = (chunk / inner) as u64;
            let near = span(width.taps, width.tap_step) + (wide - 1) * width.step as u64 + 1;
            let lines = u64::from(HALVES * most);
            let high = span(height.taps, height.tap_step) + lines * height.step as u64;
            // Every device takes so many cubes on each axis.
            let runs = width.rows.div_ceil(TILES as usize * chunk / inner);
            let across = conv.input().channels() / chunk * runs;
            let cubes = across.max(height.rows.div_ceil(fewest as usize));
            let narrow = near.div_ceil(wide) <= MOST_STRIPS && width.step <= MOST_STEP;
            narrow && high < 256 && cubes <= MOST_CUBES_Z
        })
}

/// The windows of a cube whose planes walk so many lines, once.
pub(super) fn block(conv: &Convolution, pass: Pass, lines: u32) -> u32 {
    walk_windows(inner(conv, pass) as u32, lines)
}

/// The groups of a chunk.
pub(super) fn chunk_groups(conv: &Convolution, pass: Pass) -> u32 {
    CHUNK / inner(conv, pass) as u32
}

/// The units of a cube.
pub(super) fn units(conv: &Convolution, pass: Pass, tile: &Tile) -> u32 {
    let groups = tile.block_n / inner(conv, pass) as u32;
    (groups / tile.ratio_n.max(1)).saturating_mul(PLANE)
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
        let [_, height, width] = gather.axes;
        let chunk_blocks = chunks / form.chunks as usize;
        let cubes = CubeCount::Static(
            (chunk_blocks * width.rows.div_ceil(form.windows() as usize)) as u32,
            height.rows.div_ceil(form.lines() as usize) as u32,
            conv.input().batch() as u32,
        );
        let laid = if form.late { accumulator(dtype) } else { dtype };
        // SAFETY: pixels outside are not read; weights are read where there are some; windows past the
        // last are stored nowhere.
        unsafe {
            banded::launch_unchecked(
                client,
                cubes,
                CubeDim::new_1d(form.units()),
                lanes,
                buffer(a, inputs / lanes),
                buffer(w, weights),
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
                    form.members,
                    form.walks,
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
    /// The step from a column's weights to the next.
    column_step: u32,
    /// The lanes of a vector, a plane's groups and their walks, where a compiler is not to know them:
    /// it would unroll loops that are better left.
    lanes: u32,
    members: u32,
    walks: u32,
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
    /// The unit within its plane, and the plane's first group within the cube.
    unit: u32,
    group: u32,
}

#[cube]
fn place_of(block: &BlockArgs, #[comptime] form: Form) -> Place {
    let (across, chunk) = block.chunks.div_mod(CUBE_POS_X);
    let (plane, unit) = (UNIT_POS / PLANE, UNIT_POS % PLANE);
    Place {
        line: CUBE_POS_Y * comptime!(form.lines()),
        column: across * comptime!(form.windows()),
        chunk: chunk * comptime!(form.chunks),
        unit,
        group: plane * comptime!(form.members),
    }
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "the tensors and numbers of a launch")]
fn banded<S: Float, A: Float, R: Float, N: Size>(
    a: &[Vector<S, N>],
    w: &[S],
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
        let spots = spots_of(gather, block, &place, form);
        let weights = no_weights::<S>(form);
        stage::<S, N>(a, gather, &place, &mut shared, form);
        // On their way while other planes' pixels are.
        fill::<S>(w, gather, &place, &spots, &weights, place.group, 0u32, form);
        sync_cube();
        for member in 0..block.members {
            let group = place.group + member;
            for walk in 0..block.walks {
                if place.column + walk * comptime!(form.walk_windows()) < block.width {
                    let walked = Walk { group, walk };
                    if comptime!(form.is_held()) {
                        walk_down::<S, A, R, N>(
                            &mut shared,
                            &weights,
                            block,
                            &place,
                            &walked,
                            form,
                        );
                    } else {
                        go_over::<S, A, R, N>(
                            &mut shared,
                            w,
                            gather,
                            &spots,
                            &weights,
                            block,
                            &place,
                            &walked,
                            form,
                        );
                    }
                }
            }
            if comptime!(form.is_held()) {
                let next = member + 1;
                if next < block.members {
                    let next = place.group + next;
                    fill::<S>(w, gather, &place, &spots, &weights, next, 0u32, form);
                }
            }
        }
        sync_cube();
        let ahead = comptime!(form.ahead());
        let further = gather.width.out_step / comptime!(form.lanes);
        for round in 0..comptime!(form.brought().div_ceil(form.units() * form.ahead())).runtime() {
            // The windows that are left to be summed term by term, a bit each.
            let mut left = 0u32.runtime();
            #[unroll]
            for turn in 0..ahead {
                let piece =
                    piece_of(UNIT_POS + (round * ahead + turn) * comptime!(form.units()), form);
                let results = take::<S, R, N>(&shared, &piece, form);
                let first = window_of(&place, &piece, 0u32, form);
                let at = result_of(gather, &first, form);
                let whole = are_numbers::<R, N>(&results, form);
                #[unroll]
                for i in 0..form.wide() {
                    let window = window_of(&place, &piece, i, form);
                    if is_there(block, &place, &window, form) {
                        if whole {
                            let result = *results.index(comptime!(i as usize));
                            let at = at + i * further;
                            bring::<S, A, R, N>(
                                result,
                                &bias,
                                &residual,
                                out,
                                block,
                                window.vector,
                                at,
                                form,
                            );
                        } else {
                            left |= comptime!(1u32 << (turn * form.wide() + i));
                        }
                    }
                }
            }
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                let (turn, i) = (bit / comptime!(form.wide()), bit % comptime!(form.wide()));
                let piece =
                    piece_of(UNIT_POS + (round * ahead + turn) * comptime!(form.units()), form);
                let window = window_of(&place, &piece, i, form);
                again::<S, A, N>(a, w, &bias, &residual, out, gather, block, &window, form);
            }
        }
    } else {
        let vectors = comptime!(form.chunks * CHUNK / form.lanes);
        let all = comptime!(form.lines() * form.windows()) * vectors;
        for i in range_stepped(UNIT_POS, all, comptime!(form.units())) {
            let (i, vector) = (i / vectors, i % vectors);
            let window = Window {
                line: place.line + i / comptime!(form.windows()),
                column: place.column + i % comptime!(form.windows()),
                vector: place.chunk * comptime!(CHUNK / form.lanes) + vector,
            };
            if is_there(block, &place, &window, form) {
                again::<S, A, N>(a, w, &bias, &residual, out, gather, block, &window, form);
            }
        }
    }
}

/// Brings the pixels that a cube reads to shared memory as strips, zeros where there are none.
#[cube]
fn stage<S: Float, N: Size>(
    a: &[Vector<S, N>],
    gather: &GatherArgs,
    place: &Place,
    shared: &mut Shared<[Vector<S, N>]>,
    #[comptime] form: Form,
) {
    let (chunks, wide, ahead) = comptime!((form.chunks, form.wide(), form.ahead()));
    let (pitch, lines) = comptime!((form.pitch(), form.pixel_lines()));
    // How far on a unit's next strip is.
    let further = comptime!(form.units() / chunks);
    let (first_line, first_column) = comptime!((form.height.pixels().0, form.tile.pixels().0));
    let top = read(&gather.height, place.line) + first_line;
    let left = read(&gather.width, place.column) + first_column;
    let (spot, chunk) = (UNIT_POS / chunks, UNIT_POS % chunks);
    let to = chunk * comptime!(form.chunk_step());
    let base = CUBE_POS_Z * gather.a_batch + (place.chunk + chunk) * CHUNK;
    let base = (base / comptime!(form.lanes)) as i32;
    let line_step = gather.height.a_step / comptime!(form.lanes as i32);
    let column_step = gather.width.a_step / comptime!(form.lanes as i32);
    let mut line = spot / pitch;
    let mut strip = spot % pitch;
    for _ in 0..comptime!(form.staged().div_ceil(form.units() * ahead)).runtime() {
        let mut held = Sequence::<Vector<S, N>>::new();
        let mut spots = Sequence::<u32>::new();
        let mut there = Sequence::<bool>::new();
        #[unroll]
        for _ in 0..ahead {
            // What is negative is larger than all that is not.
            let h = top + line as i32;
            let on_line = line < lines && (h as u32) < gather.height.extent as u32;
            let first = left + (strip * wide) as i32;
            let at = base + h * line_step + first * column_step;
            #[unroll]
            for i in 0..wide {
                let inside = on_line && ((first + i as i32) as u32) < gather.width.extent as u32;
                held.push(load_if(a, inside, (at + i as i32 * column_step) as u32));
            }
            spots.push(to + line * pitch + strip);
            there.push(line < lines);
            line += comptime!(further / pitch);
            strip += comptime!(further % pitch);
            if strip >= pitch {
                strip -= pitch;
                line += 1;
            }
        }
        #[unroll]
        for turn in 0..ahead {
            if *there.index(comptime!(turn as usize)) {
                let spot = *spots.index(comptime!(turn as usize));
                #[unroll]
                for group in 0..wide {
                    let mut made = Vector::<S, N>::empty();
                    #[unroll]
                    for e in 0..CHUNK {
                        let pixel = comptime!((turn * wide + e / form.group) as usize);
                        let lane = comptime!((group * form.group + e % form.group) as usize);
                        made.insert(comptime!(e as usize), held.index(pixel).extract(lane));
                    }
                    let at = spot + comptime!(group * form.group_step());
                    shared[at as usize] = made;
                }
            }
        }
    }
}

/// Where a unit's weights lie within a line of taps of a group, and which of a pair there are.
///
/// ```text
/// band[k, n] = w[f of group, th, tap by which window n/GROUP of a tile reads pixel k/GROUP, k%GROUP]
/// f = n%GROUP    n = unit/4    k = 2·(unit%4) + i%2 + 8·(i/2)
/// ```
///
/// `k` being counted from the first strip, 16 a pair. A weight that is not there is read where another is.
#[derive(CubeType)]
struct Spots {
    at: Sequence<u32>,
    /// The bits of those that there are.
    masks: Sequence<u32>,
}

#[cube]
fn spots_of(
    gather: &GatherArgs,
    block: &BlockArgs,
    place: &Place,
    #[comptime] form: Form,
) -> Spots {
    let (first, step, tap_step, taps) = comptime!((
        form.tile.pixels().0,
        form.tile.step,
        form.tile.tap_step,
        form.tile.taps as i32
    ));
    let (n, quad) = (place.unit / 4, place.unit % 4);
    let (window, column) = (n / comptime!(form.group), n % comptime!(form.group));
    let mut at = Sequence::<u32>::new();
    let mut masks = Sequence::<u32>::new();
    #[unroll]
    for strip in 0..form.reach() {
        let mut mask = 0u32.runtime();
        #[unroll]
        for i in 0..2u32 {
            let k = 2 * quad + comptime!(strip * CHUNK + i);
            let (pixel, inner) = (k / comptime!(form.group), k % comptime!(form.group));
            let pixel = pixel as i32 + first - window as i32 * step;
            let tap = pixel / tap_step;
            let is_there = tap * tap_step == pixel && tap >= 0 && tap < taps;
            let of_tap = inner * gather.b_inner + tap as u32 * gather.width.b_step;
            at.push(column * block.column_step + select(is_there, of_tap, 0u32));
            mask |= select(is_there, comptime!(0xffffu32 << (16 * i)), 0u32);
        }
        masks.push(mask);
    }
    Spots { at, masks }
}

/// Pairs of weights, two to a fragment, step by step, and where they are held line by line of taps.
type Weights<S> = Sequence<RuntimeCell<Vector<S, Const<2>>>>;

#[cube]
fn no_weights<S: Float>(#[comptime] form: Form) -> Weights<S> {
    let lines = comptime!(form.held_lines());
    let mut weights = Sequence::<RuntimeCell<Vector<S, Const<2>>>>::new();
    #[unroll]
    for _ in 0..comptime!(lines * form.steps() * 2) {
        weights.push(RuntimeCell::new(Vector::new(S::from_int(0))));
    }
    weights
}

/// Brings the weights of a group's lines of taps, all that are held, from line `th` on.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn fill<S: Float>(
    w: &[S],
    gather: &GatherArgs,
    place: &Place,
    spots: &Spots,
    weights: &Weights<S>,
    group: u32,
    th: u32,
    #[comptime] form: Form,
) {
    let group = place.chunk * comptime!(form.wide()) + group;
    let line = group * gather.b_group + tap_point(gather, 0u32, th, 0u32).other;
    let (lines, steps) = comptime!((form.held_lines(), form.steps()));
    // The weights of a place in all lines, from one address on.
    let span = comptime!(((lines - 1) * form.weight_step + 1) as usize);
    #[unroll]
    for strip in 0..form.reach() {
        let first = (line + *spots.at.index(comptime!((2 * strip) as usize))) as usize;
        let last = (line + *spots.at.index(comptime!((2 * strip + 1) as usize))) as usize;
        let (first, last) = (&w[first..first + span], &w[last..last + span]);
        #[unroll]
        for th in 0..lines {
            let at = comptime!((th * form.weight_step) as usize);
            let mut both = Vector::<S, Const<2>>::empty();
            both.insert(0usize, first[at]);
            both.insert(1usize, last[at]);
            let bits = u32::reinterpret(both) & *spots.masks.index(comptime!(strip as usize));
            let held = comptime!((th * steps * 2 + strip) as usize);
            weights.index(held).store(Vector::<S, Const<2>>::reinterpret(bits));
        }
    }
}

/// One of a plane's walks, and the group within the cube whose pixels it reads.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Walk {
    group: u32,
    walk: u32,
}

/// Sums the windows of a walk, and lays each line of them out as soon as it is summed.
#[cube]
fn walk_down<S: Float, A: Float, R: Float, N: Size>(
    shared: &mut Shared<[Vector<S, N>]>,
    weights: &Weights<S>,
    block: &BlockArgs,
    place: &Place,
    walked: &Walk,
    #[comptime] form: Form,
) {
    let mut sums = no_sums::<A>(form);
    let first = first_strip(place, walked, form);
    // Fragments are loaded by a plane as one.
    sync_plane();
    let mut pixels = Sequence::<Array<Vector<S, Const<2>>>>::new();
    load_line::<S, A, N>(shared, &mut pixels, first, form);
    #[unroll]
    for line in 0..form.walk_lines() {
        // The next line is on its way while this one is multiplied.
        if comptime!(line + 1 < form.walk_lines()) {
            load_line::<S, A, N>(
                shared,
                &mut pixels,
                first + comptime!((line + 1) * form.pitch()),
                form,
            );
        }
        #[unroll]
        for j in 0..form.height.rows {
            #[unroll]
            for th in 0..form.height.taps {
                if comptime!(form.height.pixel(j, th) == line) {
                    multiply::<S, A>(&pixels, line, weights, th, &mut sums, j, form);
                }
            }
            if comptime!(form.last_line(j) == line) {
                // No unit is still at the pixels whose place this takes.
                sync_plane();
                lay::<S, A, R, N>(&sums, shared, block, place, walked, j, form);
            }
        }
    }
}

/// Sums the windows of a walk, a line of taps after another, and lays them out.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn go_over<S: Float, A: Float, R: Float, N: Size>(
    shared: &mut Shared<[Vector<S, N>]>,
    w: &[S],
    gather: &GatherArgs,
    spots: &Spots,
    weights: &Weights<S>,
    block: &BlockArgs,
    place: &Place,
    walked: &Walk,
    #[comptime] form: Form,
) {
    let mut sums = no_sums::<A>(form);
    let first = first_strip(place, walked, form);
    let (step, start) = comptime!((form.height.tap_step, form.height.pixels().0));
    sync_plane();
    for th in 0..gather.height.taps_count {
        fill::<S>(w, gather, place, spots, weights, walked.group, th, form);
        let line = first + (th as i32 * step - start) as u32 * comptime!(form.pitch());
        let mut pixels = Sequence::<Array<Vector<S, Const<2>>>>::new();
        #[unroll]
        for j in 0..form.height.rows {
            let at = line + comptime!(j * form.height.step as u32 * form.pitch());
            load_line::<S, A, N>(shared, &mut pixels, at, form);
            multiply::<S, A>(&pixels, j, weights, 0u32, &mut sums, j, form);
        }
    }
    sync_plane();
    #[unroll]
    for j in 0..form.height.rows {
        lay::<S, A, R, N>(&sums, shared, block, place, walked, j, form);
    }
}

#[cube]
fn no_sums<A: Float>(#[comptime] form: Form) -> Sequence<Array<Vector<A, Const<2>>>> {
    let mut sums = Sequence::<Array<Vector<A, Const<2>>>>::new();
    #[unroll]
    for _ in 0..form.height.rows {
        let mut sum = Array::<Vector<A, Const<2>>>::new(2usize);
        sum[0] = Vector::new(A::from_int(0));
        sum[1] = Vector::new(A::from_int(0));
        sums.push(sum);
    }
    sums
}

/// The strip that a unit names in the first line of a walk: unit by unit the rows of a strip, and then
/// those of the next. Rows without a tile are their half's last once more.
#[cube]
fn first_strip(place: &Place, walked: &Walk, #[comptime] form: Form) -> u32 {
    let (row, next) = (place.unit % (HALVES * CHUNK), place.unit / (HALVES * CHUNK));
    let (half, row) = (row / CHUNK, min(row % CHUNK, TILES - 1));
    let (line, tile) = if comptime!(form.is_split()) {
        (half * comptime!(form.half_step()), row)
    } else {
        (0u32.runtime(), half * TILES + row)
    };
    strip_of(walked.group, form)
        + line * comptime!(form.pitch())
        + (walked.walk * comptime!(form.walk_tiles()) + tile) * comptime!(form.stride())
        + next
}

/// Loads the strips that tiles read of a line of pixels, a fragment a pair.
#[cube]
fn load_line<S: Float, A: Float, N: Size>(
    shared: &mut Shared<[Vector<S, N>]>,
    pixels: &mut Sequence<Array<Vector<S, Const<2>>>>,
    at: u32,
    #[comptime] form: Form,
) {
    let fragment = MmaDefinition::<S, S, A>::new(16usize, 8usize, 16usize);
    #[unroll]
    for s in 0..form.steps() {
        let at = (at + 2 * s) as usize;
        pixels.push(fragment.load_matrix::<Vector<S, N>, Const<2>>(
            &shared[at..at + 1],
            MatrixIdent::A,
            comptime!((form.paired(s) * HALVES) as usize),
            false,
        ));
    }
}

/// Adds what a line of taps gives to the sums of line `j` of windows.
#[cube]
fn multiply<S: Float, A: Float>(
    pixels: &Sequence<Array<Vector<S, Const<2>>>>,
    #[comptime] line: u32,
    weights: &Weights<S>,
    #[comptime] th: u32,
    sums: &mut Sequence<Array<Vector<A, Const<2>>>>,
    #[comptime] j: u32,
    #[comptime] form: Form,
) {
    let fragment = MmaDefinition::<S, S, A>::new(16usize, 8usize, 16usize);
    #[unroll]
    for s in 0..form.steps() {
        let loaded = pixels.index(comptime!((line * form.steps() + s) as usize));
        let mut strips = Array::<Vector<S, Const<2>>>::new(4usize);
        let mut band = Array::<Vector<S, Const<2>>>::new(2usize);
        #[unroll]
        for strip in 0..2u32 {
            // The first once more where there is no other: its weights are all 0.
            let from = comptime!((strip.min(form.paired(s) - 1) * HALVES) as usize);
            let to = comptime!((strip * HALVES) as usize);
            strips[to] = loaded[from];
            strips[to + 1] = loaded[from + 1];
            let held = comptime!(((th * form.steps() + s) * 2 + strip) as usize);
            band[comptime!(strip as usize)] = weights.index(held).read();
        }
        fragment.execute_inplace(&strips, &band, sums.index_mut(comptime!(j as usize)));
    }
}

/// Lays the sums of line `j` of a walk's windows out in shared memory: as they are where more is to follow
/// than what needs no memory.
#[cube]
fn lay<S: Float, A: Float, R: Float, N: Size>(
    sums: &Sequence<Array<Vector<A, Const<2>>>>,
    shared: &mut Shared<[Vector<S, N>]>,
    block: &BlockArgs,
    place: &Place,
    walked: &Walk,
    #[comptime] j: u32,
    #[comptime] form: Form,
) {
    let lanes = comptime!(if form.late { 4u32 } else { 2 });
    let size!(P) = lanes as usize;
    let all = comptime!(form.shared() as usize);
    let pairs: &mut [Vector<S, P>] = shared[0..all].with_vector_size_mut();
    // Of a half's rows a unit holds this, and there two columns.
    let (row, pair) = (place.unit / 4, place.unit % 4);
    let tile = walked.walk * comptime!(form.walk_tiles()) + row;
    let first = strip_of(walked.group, form) + tile * comptime!(form.parts());
    let first = first * comptime!(CHUNK / lanes) + pair;
    let sum = sums.index(comptime!(j as usize));
    if row < TILES {
        #[unroll]
        for half in 0..HALVES {
            let (line, tile) = comptime!(if form.is_split() {
                (form.laid_line(half, j), 0)
            } else {
                (form.laid_line(0, j), half * TILES)
            });
            let strip =
                comptime!(form.laid_first() + line * form.laid_pitch() + tile * form.parts());
            let sum = sum[comptime!(half as usize)];
            let laid = if comptime!(form.late) {
                Vector::<R, Const<2>>::cast_from(sum)
            } else {
                Vector::cast_from(finish::<S, A, Const<2>>(sum, block.slope, form.epilogue))
            };
            pairs[(first + comptime!(strip * (CHUNK / lanes))) as usize] =
                Vector::reinterpret(laid);
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

/// Where a piece of a cube's results is, within the cube: a tile of a chunk.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Piece {
    line: u32,
    tile: u32,
    chunk: u32,
}

#[cube]
fn piece_of(piece: u32, #[comptime] form: Form) -> Piece {
    let (i, chunk) = (piece / comptime!(form.chunks), piece % comptime!(form.chunks));
    Piece { line: i / comptime!(form.tiles()), tile: i % comptime!(form.tiles()), chunk }
}

/// The `i`-th window of a piece.
#[cube]
fn window_of(place: &Place, piece: &Piece, i: u32, #[comptime] form: Form) -> Window {
    Window {
        line: place.line + piece.line,
        column: place.column + piece.tile * comptime!(form.wide()) + i,
        vector: place.chunk + piece.chunk,
    }
}

/// Whether there is such a window, and in this cube.
#[cube]
fn is_there(block: &BlockArgs, place: &Place, window: &Window, #[comptime] form: Form) -> bool {
    let lines = comptime!(form.lines());
    window.line < min(block.height, place.line + lines) && window.column < block.width
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
    piece: &Piece,
    #[comptime] form: Form,
) -> Sequence<Vector<R, N>> {
    let parts = comptime!(form.parts());
    let size!(Q) = (CHUNK / parts) as usize;
    // A piece after the last of the cube is the last line's again.
    let line = min(piece.line, comptime!(form.lines() - 1));
    let rows = comptime!(form.height.rows);
    let line = if comptime!(form.late) {
        line
    } else {
        // As `laid_line` has it.
        let moved = line * comptime!(form.height.step as u32) + comptime!(form.last_line(0));
        select(line < rows, line, moved)
    };
    let first = piece.chunk * comptime!(form.chunk_step())
        + comptime!(form.laid_first())
        + line * comptime!(form.laid_pitch())
        + piece.tile * parts;
    let mut strips = Sequence::<Vector<R, Q>>::new();
    #[unroll]
    for group in 0..form.wide() {
        #[unroll]
        for part in 0..parts {
            let at = first + comptime!(group * form.group_step() + part);
            strips.push(Vector::<R, Q>::reinterpret(shared[at as usize]));
        }
    }
    let mut results = Sequence::<Vector<R, N>>::new();
    #[unroll]
    for i in 0..form.wide() {
        let mut result = Vector::<R, N>::empty();
        #[unroll]
        for lane in 0..CHUNK {
            // An element of a group's strip.
            let (group, e) = comptime!((lane / form.group, i * form.group + lane % form.group));
            let of = comptime!(CHUNK / parts);
            let strip = strips.index(comptime!((group * parts + e / of) as usize));
            result.insert(comptime!(lane as usize), strip.extract(comptime!((e % of) as usize)));
        }
        results.push(result);
    }
    results
}

/// Whether none of a piece's results is NaN. Infinities of both signs may do for one: what is computed again
/// comes out the same.
#[cube]
fn are_numbers<R: Float, N: Size>(
    results: &Sequence<Vector<R, N>>,
    #[comptime] form: Form,
) -> bool {
    let mut sum = *results.index(0usize);
    #[unroll]
    for i in 1..form.wide() {
        sum += *results.index(comptime!(i as usize));
    }
    let mut pairs = Vector::<R, Const<2>>::new(R::from_int(0));
    #[unroll]
    for i in 0..comptime!(form.lanes / 2) {
        let mut pair = Vector::<R, Const<2>>::empty();
        pair.insert(0usize, sum.extract(comptime!((2 * i) as usize)));
        pair.insert(1usize, sum.extract(comptime!((2 * i + 1) as usize)));
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
    block: &BlockArgs,
    vector: u32,
    at: u32,
    #[comptime] form: Form,
) {
    if comptime!(form.late) {
        let sum = Vector::<A, N>::cast_from(result);
        let slope = block.slope;
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
            block_m: 2 * walk_windows(group as u32, 7),
            block_n: 32,
            block_k: 16,
            ratio_m: 7,
            ratio_n: 2,
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
            .flat_map(|form| [form, Form { late: true, ..form }])
            .collect()
    }

    /// An image one pixel wide that a step of two leaves in no window: its gradient has no taps.
    #[test]
    fn coordinates_in_no_window_are_for_others() {
        let shape = Shape::new(1, 32, Extents::from([5, 1])).unwrap();
        let filter = Filter::new(32, 4, Extents::from([3, 1])).unwrap();
        let window = Window::new([3, 1]).stride([1, 2]).padding([1, 1]);
        let (last, fhwc) = (Layout::ChannelsLast, FilterLayout::Fhwc);
        let conv = Convolution::new(shape, filter, &window, 8, last, fhwc).unwrap();
        assert!(can(&conv, Pass::Forward, DType::F16) && !can(&conv, Pass::Data, DType::F16));
    }

    fn all_forms() -> Vec<Form> {
        let windows = [
            ([3, 3], [1, 1], [1, 1]),
            ([7, 7], [1, 1], [1, 1]),
            ([5, 2], [2, 3], [1, 2]),
            ([1, 1], [1, 1], [1, 1]),
            ([2, 4], [1, 1], [3, 2]),
            ([9, 3], [1, 1], [1, 4]),
        ];
        let forms: Vec<_> = windows
            .into_iter()
            .flat_map(|(kernel, stride, dilation)| {
                [1, 2, 4, 8].into_iter().flat_map(move |g| forms(g, kernel, stride, dilation))
            })
            .collect();
        assert_eq!(forms.len(), 88);
        assert!(
            forms.iter().any(|form| !form.is_held()) && forms.iter().any(|form| form.is_held())
        );
        forms
    }

    /// The line of windows, and the first line of pixels of its walk.
    fn halves(form: &Form) -> impl Iterator<Item = (u32, u32)> {
        let halves = if form.is_split() { HALVES } else { 1 };
        let (rows, step) = (form.height.rows, form.half_step());
        (0..halves).map(move |half| (half * rows, half * step))
    }

    /// What a window reads by each tap is among the strips and lines that its tile's walk loads.
    #[test]
    fn walks_read_every_tap() {
        for form in all_forms() {
            let lines = Run { rows: form.lines(), ..form.height };
            for (first, start) in halves(&form) {
                for (j, th) in
                    (0..form.height.rows).flat_map(|j| (0..form.height.taps).map(move |th| (j, th)))
                {
                    let line = form.height.pixel(j, th);
                    assert_eq!(start + line, lines.pixel(first + j, th), "{form:?}");
                    assert!(line <= form.last_line(j) && line < form.walk_lines(), "{form:?}");
                    assert!(start + line < form.pixel_lines(), "{form:?}");
                }
            }
            for (window, tap) in
                (0..form.wide()).flat_map(|i| (0..form.tile.taps).map(move |tap| (i, tap)))
            {
                let strip = form.tile.pixel(window, tap) / form.wide();
                assert!(strip < form.reach() && strip / 2 < form.steps(), "{form:?}");
                assert!(strip % 2 < form.paired(strip / 2), "{form:?}");
            }
            assert_eq!((form.tiles() - 1) * form.stride() + form.reach(), form.pitch());
            assert!(form.pixel_lines() * form.pitch() <= form.group_step(), "{form:?}");
            assert_eq!(form.chunk_step() % 8, 2, "{form:?}");
            assert!(form.ahead() * form.wide() <= u32::BITS, "{form:?}");
        }
    }

    /// Results are laid where no later line of a walk, and no other result, is.
    #[test]
    fn results_take_the_place_of_pixels_that_are_read() {
        for form in all_forms() {
            let mut taken = vec![];
            for (half, (first, _)) in halves(&form).enumerate() {
                for j in 0..form.height.rows {
                    let laid = form.laid_line(half as u32, j);
                    assert!(!taken.contains(&laid), "{form:?}");
                    taken.push(laid);
                    let end = form.laid_first() + (laid + 1) * form.laid_pitch();
                    assert!(end <= form.group_step(), "{form:?}");
                    if form.late {
                        assert_eq!(laid, first + j, "{form:?}");
                        continue;
                    }
                    // As `take` finds it.
                    let moved = (first + j) * form.height.step as u32 + form.last_line(0);
                    assert_eq!(laid, if first == 0 { j } else { moved }, "{form:?}");
                    for later in form.last_line(j) + 1..form.walk_lines() {
                        let read = halves(&form).any(|(_, start)| start + later == laid);
                        assert!(!read, "{form:?}: {laid} is read after {j}");
                    }
                }
            }
            // Of a line, no tile that a later walk reads.
            assert!(form.walk_tiles() <= form.walk_tiles() * form.stride(), "{form:?}");
        }
    }
}
