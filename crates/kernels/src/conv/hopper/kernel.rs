//! The kernel: a producer that feeds a ring of stages, and warpgroups that empty it.

use cubecl::cmma::{MmaDefinition, StMatrixForm};
use cubecl::ir::ElemType;
use cubecl::ir::dialect::general::SelectOp;
use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use cubecl::wgmma::{Accumulator, Major, MatrixDescriptor, Swizzle, WgmmaTileLayout};
use windowpane_geometry::Tile;

use super::super::epilogue::{EpilogueForm, finish_at};
use super::super::gather::{
    GatherArgs, GatherForm, Place, Point, read, row_place, row_result, tap_point,
};
use super::product::{BAND, CHUNK_BYTES, COMB_LINE, PLANES};

/// The units of a warpgroup, which multiply together, and of a warp.
pub(super) const WARPGROUP: u32 = 128;
pub(super) const WARP: u32 = 32;

/// The rows that a warpgroup multiplies at once.
pub(super) const ROWS: u32 = 64;

/// The bytes of a line in shared memory, in which the chunks of 16 are permuted.
pub(super) const LINE: u32 = 128;

/// The columns that a unit stores at once.
pub(super) const CHUNK: u32 = 8;

/// The neighbouring columns that a unit holds of a row.
pub(super) const PAIR: u32 = 2;

/// The chunks of a line of results that a warp turns over, and those of all its rows.
const STAGED_LINE: u32 = LINE / CHUNK_BYTES as u32;
const STAGED: u32 = BAND * STAGED_LINE;

/// The bytes of those.
pub(super) const STAGED_BYTES: u32 = STAGED * CHUNK_BYTES as u32;

/// The chunks that four neighbouring units turn over together.
const QUAD: u32 = 4;

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) tile: Tile,
    /// The bytes of a factor, and the parts that it is split in.
    pub(super) size: u32,
    pub(super) parts: u32,
    /// The axes that an image's map has.
    pub(super) rank: usize,
    /// Whether the filters' gradient is computed: rows are filters, columns terms, and windows are
    /// summed over.
    pub(super) filter: bool,
    /// The pixels past a tile's rows that its rows read by further taps along the width, where those
    /// taps share what is brought; else none.
    pub(super) reach: u32,
    /// The stages of shared pixels.
    pub(super) runs: u32,
    /// The pixels from one pair of taps to the next, where the image is a comb.
    pub(super) comb: Option<u32>,
    /// Whether taps are the outermost dimension of the flat operand, and not the middle one.
    pub(super) tap_first: bool,
    /// Whether the flat operand lies along rows or columns, and not along the terms.
    pub(super) flat_across: bool,
    /// The neighbouring columns that are finished at once.
    pub(super) finished: u32,
    /// Whether results are of 16 bits and stored a chunk of columns at a time.
    pub(super) packed: bool,
    /// Whether they are turned over in shared memory, and not between units.
    pub(super) staged: bool,
    /// Whether sums that are no numbers are told of.
    pub(super) checked: bool,
    pub(super) epilogue: EpilogueForm,
    pub(super) gather: GatherForm,
}

impl Form {
    /// The warpgroups that multiply.
    pub(super) fn warpgroups(&self) -> u32 {
        self.tile.block_m / (ROWS * self.tile.ratio_m)
    }

    /// The units of a cube: the warpgroups', and the warp of the producer behind them.
    pub(super) fn units(&self) -> u32 {
        self.warpgroups() * WARPGROUP + WARP
    }

    /// The chunks of results that warps turn over in shared memory.
    fn staged_chunks(&self) -> u32 {
        if self.staged { self.warpgroups() * WARPGROUP / WARP * STAGED } else { 1 }
    }

    /// The elements of a line in shared memory.
    pub(super) fn line(&self) -> u32 {
        LINE / self.size
    }

    /// Whether the taps along the width share the pixels of a run.
    pub(super) fn shares(&self) -> bool {
        self.reach > 0
    }

    /// The rows that are brought at once, in whole patterns of the swizzle, or lines of pixels.
    pub(super) fn run(&self) -> u32 {
        match self.comb {
            Some(_) => self.tile.block_m + COMB_LINE as u32,
            None => (self.tile.block_m + self.reach).next_multiple_of(8),
        }
    }

    /// The elements from one row in shared memory to the next one's, or of 64 rows that lie across.
    fn row(&self) -> u32 {
        match self.comb {
            Some(_) => CHUNK_BYTES as u32 / self.size,
            None => self.tile.block_k,
        }
    }

    /// The elements of a run in a plane of a comb.
    fn plane(&self) -> u32 {
        self.run() * CHUNK_BYTES as u32 / self.size
    }

    /// The stages of rows.
    fn stages_a(&self) -> u32 {
        if self.shares() { self.runs } else { self.tile.stages }
    }

    /// The elements of a part of a stage.
    fn part_a(&self) -> u32 {
        match self.comb {
            Some(_) => PLANES as u32 * self.plane(),
            None => self.run() * self.tile.block_k,
        }
    }

    fn part_b(&self) -> u32 {
        self.tile.block_n * self.tile.block_k
    }

    /// The elements of a stage: its parts one after the other.
    fn stage_a(&self) -> u32 {
        self.parts * self.part_a()
    }

    fn stage_b(&self) -> u32 {
        self.parts * self.part_b()
    }

    /// What a stage's barrier waits for, with rows or without.
    fn stage_bytes(&self, rows: bool) -> u32 {
        let rows = if rows { self.stage_a() } else { 0 };
        (rows + self.stage_b()) * self.size
    }

    /// How the rows lie in shared memory.
    fn a_layout(&self) -> WgmmaTileLayout {
        let layout = self.layout(self.run(), self.filter);
        match self.comb {
            // A chunk of each plane is what an instruction takes.
            Some(_) => WgmmaTileLayout { swizzle: Swizzle::None, k: self.step(), ..layout },
            None => layout,
        }
    }

    /// How the columns lie in shared memory.
    fn b_layout(&self) -> WgmmaTileLayout {
        self.layout(self.tile.block_n, self.filter || self.flat_across)
    }

    fn layout(&self, rows: u32, across: bool) -> WgmmaTileLayout {
        WgmmaTileLayout {
            major: if across { Major::MN } else { Major::K },
            swizzle: Swizzle::B128,
            rows: rows as usize,
            k: self.tile.block_k as usize,
        }
    }

    /// The terms of one instruction.
    fn step(&self) -> usize {
        WgmmaTileLayout::k_step(self.size as usize)
    }
}

/// The numbers of a launch beside those of the product.
#[derive(CubeType, CubeLaunch)]
pub(super) struct HopperArgs {
    /// The tiles of all cubes, and those along the columns, the rows and the parts.
    tiles: u32,
    tiles_n: FastDivmod<u32>,
    tiles_n_count: u32,
    tiles_m: FastDivmod<u32>,
    parts: FastDivmod<u32>,
    /// The rows of the product, those of a line that have results, the lines of a plane that have some,
    /// and the columns of a group, or of a tap.
    rows: u32,
    line_rows: u32,
    plane_rows: u32,
    /// The pixels of a line of a comb, and every how many-th of its rows lies in the same plane.
    comb_line: u32,
    comb_deals: FastDivmod<u32>,
    columns: u32,
    /// The steps in memory between rows of the filters' gradient, its taps and all columns.
    row_step: u32,
    tap_step: u32,
    column_step: u32,
    /// The steps of a sum, and of a part of it.
    steps: u32,
    steps_a_part: u32,
    /// The stages' worth of terms in a tap.
    slices: FastDivmod<u32>,
    taps: u32,
    /// The channels from one group to the next in the image, and in the flat operand the lines
    /// across and the terms.
    image_group: u32,
    across_group: u32,
    term_group: u32,
    /// The offsets of the first tap.
    depth_first: i32,
    height_first: i32,
    width_first: i32,
    /// The results of a part, and of a group.
    part_step: u32,
    out_group: u32,
    /// From one part of the factors to the next: samples of the image, lines of the flat operand.
    image_part: u32,
    flat_part: u32,
    /// The bands of all rows.
    bands: u32,
    slope: f32,
}

/// A tile of the product.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Work {
    row: u32,
    column: u32,
    group: u32,
    part: u32,
    /// The steps of its sums.
    first: u32,
    end: u32,
}

#[cube]
fn work(args: &HopperArgs, tile: u32, #[comptime] form: Form) -> Work {
    let (tile, n) = args.tiles_n.div_mod(tile);
    let (tile, m) = args.tiles_m.div_mod(tile);
    let (group, part) = args.parts.div_mod(tile);
    let first = part * args.steps_a_part;
    Work {
        row: m * comptime!(form.tile.block_m),
        column: n * comptime!(form.tile.block_n),
        group,
        part,
        first,
        end: max(first, min(first + args.steps_a_part, args.steps)),
    }
}

/// Where a role stands in the ring.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Turn {
    slot: u32,
    /// The parity of the rounds made.
    round: u32,
}

#[cube]
fn advance(turn: &mut Turn, #[comptime] stages: u32) {
    turn.slot = following(turn.slot, stages);
    turn.round = select(turn.slot == 0, turn.round ^ 1u32, turn.round);
}

/// The place after another in a ring.
#[cube]
fn following(slot: u32, #[comptime] places: u32) -> u32 {
    let next = slot + 1;
    select(next == comptime!(places), 0u32, next)
}

/// A barrier for each stage.
type Ring = Sequence<Shared<Barrier>>;

/// Barriers that so many arrivals complete.
#[cube]
fn barriers(#[comptime] stages: u32, #[comptime] arrivals: u32) -> Ring {
    let mut ring = Sequence::<Shared<Barrier>>::new();
    #[unroll]
    for _ in 0..stages {
        let barrier = Barrier::shared_uninit();
        if UNIT_POS == 0 {
            barrier.init_manual(arrivals);
        }
        ring.push(barrier);
    }
    ring
}

/// The barrier of a stage. Barriers stand in no array, so that it is chosen among all; and it is their
/// addresses that are chosen, for code of its own for each would be a jump through a table, and addresses
/// found in code that only one unit of a warp runs have the assembler take all around for divergent.
#[cube]
fn barrier_of(ring: &Ring, slot: u32) -> Barrier {
    intrinsic!(|scope| {
        let barrier = |nth: usize| ring.__expand_index_method(scope, nth.into()).value(scope);
        let mut chosen = barrier(0);
        for nth in 1..ring.len() {
            let this = slot.__expand_eq_method(scope, &(nth as u32).into()).read_value(scope);
            let select = SelectOp::new(scope.ctx_mut(), this, barrier(nth), chosen);
            chosen = scope.register_with_result(&select);
        }
        chosen.into()
    })
}

/// Waits for the round of a stage before this one's, or this one's own.
#[cube]
fn wait(ring: &Ring, turn: Turn, #[comptime] before: bool) {
    let parity = if comptime!(before) { turn.round ^ 1u32 } else { turn.round };
    barrier_of(ring, turn.slot).wait_parity(parity);
}

/// Gives a stage back, if this unit speaks for its warp.
#[cube]
fn give_back(ring: &Ring, slot: u32, speaks: bool) {
    let barrier = barrier_of(ring, slot);
    if speaks {
        barrier.arrive();
    }
}

#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "the tensors and numbers of a launch")]
pub(super) fn hopper<E: Float, R: Float, P: Size, W: Numeric, O: Size>(
    image: &TensorMap<E, Im2col>,
    flat: &TensorMap<E, Tiled>,
    bias: ComptimeOption<Box<[Vector<R, P>]>>,
    residual: ComptimeOption<Box<[Vector<R, P>]>>,
    out: &mut [Vector<W, O>],
    flags: &mut [u32],
    gather: &GatherArgs,
    args: &HopperArgs,
    #[comptime] form: Form,
    #[define(E)] _factor: ElemType,
    #[define(R)] _stored: ElemType,
    #[define(W)] _word: ElemType,
) {
    let mut a = Shared::<[E]>::new_aligned_slice(
        comptime!((form.stages_a() * form.stage_a()) as usize),
        1024usize,
    );
    let mut b = Shared::<[E]>::new_aligned_slice(
        comptime!((form.tile.stages * form.stage_b()) as usize),
        1024usize,
    );
    let mut staged = Shared::<[Vector<u32, O>]>::new_aligned_slice(
        comptime!(form.staged_chunks() as usize),
        128usize,
    );
    let full = barriers(comptime!(form.tile.stages), 1u32);
    let empty =
        barriers(comptime!(form.tile.stages), comptime!(form.warpgroups() * WARPGROUP / WARP));
    sync_async_proxy_shared();
    sync_cube();

    // The same for all of a warp, and told by one of it, so that the assembler sees that it is: it keeps
    // numbers of a warp in uniform registers, where products look for them, in no code that may diverge.
    let warp = plane_broadcast(UNIT_POS / WARP, 0u32);
    if warp < comptime!(form.warpgroups() * WARPGROUP / WARP) {
        consume::<E, R, P, W, O>(
            &a,
            &b,
            &full,
            &empty,
            &bias,
            &residual,
            &mut staged,
            out,
            flags,
            gather,
            args,
            warp,
            form,
        );
    } else if speaks() {
        produce::<E>(image, flat, &mut a, &mut b, &full, &empty, gather, args, form);
    }
}

/// The producer: brings each stage of each tile as soon as its place in the ring is free.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn produce<E: Float>(
    image: &TensorMap<E, Im2col>,
    flat: &TensorMap<E, Tiled>,
    a: &mut Shared<[E]>,
    b: &mut Shared<[E]>,
    full: &Ring,
    empty: &Ring,
    gather: &GatherArgs,
    args: &HopperArgs,
    #[comptime] form: Form,
) {
    let mut run = 0u32.runtime();
    let mut turn = Turn { slot: 0u32.runtime(), round: 0u32.runtime() };
    let mut tile = CUBE_POS_X;
    while tile < args.tiles {
        let work = work(args, tile, form);
        let rows = row_place(gather, work.row, form.gather);
        for step in work.first..work.end {
            let term = term(gather, args, step, form);
            wait(empty, turn, true);
            let barrier = barrier_of(full, turn.slot);
            let at = (turn.slot * comptime!(form.stage_b())) as usize;
            let b = &mut b[at..at + comptime!(form.stage_b() as usize)];
            let slot_a = if comptime!(form.shares()) { run } else { turn.slot };
            let at = (slot_a * comptime!(form.stage_a())) as usize;
            let a = &mut a[at..at + comptime!(form.stage_a() as usize)];
            let bytes = if term.starts {
                comptime!(form.stage_bytes(true)).runtime()
            } else {
                comptime!(form.stage_bytes(false)).runtime()
            };
            barrier.arrive_and_expect_tx(1u32, bytes);
            bring::<E>(image, flat, &barrier, a, b, &work, &rows, step, &term, gather, args, form);
            advance(&mut turn, comptime!(form.tile.stages));
            run = select(term.ends, following(run, form.runs), run);
        }
        tile += CUBE_COUNT_X;
    }
}

/// The terms of a step: a slice of a tap's channels.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Term {
    tap: Point,
    slice: u32,
    /// Whether it is the first or the last of those that share a run of pixels.
    starts: bool,
    ends: bool,
}

#[cube]
fn term(gather: &GatherArgs, args: &HopperArgs, step: u32, #[comptime] form: Form) -> Term {
    if comptime!(form.shares()) {
        // The taps along the width come one after another, so that they read what was brought for
        // all of them.
        let (rest, tw) = gather.width.taps.div_mod(step);
        let (rest, slice) = args.slices.div_mod(rest);
        let (td, th) = gather.height.taps.div_mod(rest);
        let tap = tap_point(gather, td, th, tw);
        Term { tap, slice, starts: tw == 0, ends: tw + 1 == gather.width.taps_count }
    } else {
        let (tap, slice) = args.slices.div_mod(step);
        Term { tap: tap_of(gather, tap), slice, starts: true.runtime(), ends: true.runtime() }
    }
}

/// Has a stage brought.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn bring<E: Float>(
    image: &TensorMap<E, Im2col>,
    flat: &TensorMap<E, Tiled>,
    barrier: &Barrier,
    a: &mut [E],
    b: &mut [E],
    work: &Work,
    rows: &Place,
    step: u32,
    term: &Term,
    gather: &GatherArgs,
    args: &HopperArgs,
    #[comptime] form: Form,
) {
    if comptime!(form.filter) {
        let first = step * comptime!(form.tile.block_k);
        let windows = row_place(gather, first, form.gather);
        load_flat::<E>(flat, barrier, a, work.row, first, 0u32, work, args, form);
        let panel_size = comptime!((form.line() * form.tile.block_k) as usize);
        #[unroll]
        for panel in 0..comptime!((form.tile.block_n / form.line()) as usize) {
            let column = work.column / comptime!(form.line()) + comptime!(panel as u32);
            let (tap, slice) = args.slices.div_mod(column);
            // Past the last tap are columns that nobody keeps.
            let tap = tap_of(gather, min(tap, args.taps - 1));
            let term = Term { tap, slice, starts: true.runtime(), ends: true.runtime() };
            let at = comptime!(panel * panel_size);
            let to = &mut b[at..at + panel_size];
            load_image::<E>(image, barrier, to, &windows, &term, 0u32, work, gather, args, form);
        }
    } else {
        let first = term.slice * comptime!(form.tile.block_k);
        #[unroll]
        for part in 0..form.parts {
            let size = comptime!(form.part_a() as usize);
            let at = comptime!(part as usize * size);
            let a = &mut a[at..at + size];
            if comptime!(form.comb.is_some()) {
                load_comb::<E>(image, barrier, a, term, part, work, args, form);
            } else if term.starts {
                load_image::<E>(image, barrier, a, rows, term, part, work, gather, args, form);
            }
            let size = comptime!(form.part_b() as usize);
            let at = comptime!(part as usize * size);
            let b = &mut b[at..at + size];
            let column = work.column + part * args.flat_part;
            load_flat::<E>(flat, barrier, b, column, first, term.tap.other, work, args, form);
        }
    }
}

/// A tap by its number: what it adds to a window's place, and its number among all of the filter's.
#[cube]
fn tap_of(gather: &GatherArgs, tap: u32) -> Point {
    let (tap, tw) = gather.width.taps.div_mod(tap);
    let (td, th) = gather.height.taps.div_mod(tap);
    tap_point(gather, td, th, tw)
}

/// Brings what a run of windows reads by one tap, or by all along the width: a slice of its channels.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn load_image<E: Float>(
    image: &TensorMap<E, Im2col>,
    barrier: &Barrier,
    to: &mut [E],
    windows: &Place,
    term: &Term,
    part: u32,
    work: &Work,
    gather: &GatherArgs,
    args: &HopperArgs,
    #[comptime] form: Form,
) {
    // Where the window of the first tap begins, and how far on this tap is, in the map's own terms.
    let h = read(&gather.height, windows.height) - args.height_first;
    let w = read(&gather.width, windows.width) - args.width_first;
    let th = term.tap.height + args.height_first;
    let tw =
        if comptime!(form.shares()) { 0i32.runtime() } else { term.tap.width + args.width_first };
    let sample = (windows.sample + part * args.image_part) as i32;
    let channel = (work.group * args.image_group + term.slice * comptime!(form.line())) as i32;
    if comptime!(form.rank > 2) {
        let d = read(&gather.depth, windows.depth) - args.depth_first;
        let td = term.tap.depth + args.depth_first;
        barrier.tma_load_im2col_5d(
            image, to, sample, d, h, w, channel, td as u16, th as u16, tw as u16,
        );
    } else {
        barrier.tma_load_im2col_4d(image, to, sample, h, w, channel, th as u16, tw as u16);
    }
}

/// Brings what a run of windows reads of both planes of a comb by all taps along the width.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn load_comb<E: Float>(
    image: &TensorMap<E, Im2col>,
    barrier: &Barrier,
    to: &mut [E],
    term: &Term,
    part: u32,
    work: &Work,
    args: &HopperArgs,
    #[comptime] form: Form,
) {
    let (down, deal) = args.comb_deals.div_mod(term.tap.height as u32);
    let first = work.row + down * args.comb_line;
    let line = (first / comptime!(COMB_LINE as u32)) as i32;
    let within = (first % comptime!(COMB_LINE as u32)) as i32;
    let size = comptime!(form.plane() as usize);
    #[unroll]
    for plane in 0..PLANES {
        let at = comptime!(plane * size);
        let to = &mut to[at..at + size];
        let nth = (part * args.image_part + deal) * comptime!(PLANES as u32) + plane as u32;
        barrier.tma_load_im2col_4d(image, to, nth as i32, within, line, 0i32, 0u16, 0u16);
    }
}

/// Brings a block of the other operand: of the filters, or of the output's gradient.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn load_flat<E: Float>(
    flat: &TensorMap<E, Tiled>,
    barrier: &Barrier,
    to: &mut [E],
    across: u32,
    term: u32,
    tap: u32,
    work: &Work,
    args: &HopperArgs,
    #[comptime] form: Form,
) {
    let across = across + work.group * args.across_group;
    let term = term + work.group * args.term_group;
    if comptime!(form.flat_across) {
        let lines = comptime!(if form.filter { form.tile.block_m } else { form.tile.block_n });
        let panel_size = comptime!((form.line() * form.tile.block_k) as usize);
        #[unroll]
        for panel in 0..comptime!((lines / form.line()) as usize) {
            let across = across + comptime!(panel as u32 * form.line());
            let at = comptime!(panel * panel_size);
            let to = &mut to[at..at + panel_size];
            load_box::<E>(flat, barrier, to, term, tap, across, form);
        }
    } else {
        load_box::<E>(flat, barrier, to, across, tap, term, form);
    }
}

#[cube]
fn load_box<E: Float>(
    flat: &TensorMap<E, Tiled>,
    barrier: &Barrier,
    to: &mut [E],
    line: u32,
    tap: u32,
    along: u32,
    #[comptime] form: Form,
) {
    if comptime!(form.tap_first) {
        barrier.tma_load_3d(flat, to, tap as i32, line as i32, along as i32);
    } else {
        barrier.tma_load_3d(flat, to, line as i32, tap as i32, along as i32);
    }
}

/// A warpgroup: sums up its rows of a tile, and stores them while the others multiply on.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn consume<E: Float, R: Float, P: Size, W: Numeric, O: Size>(
    a: &Shared<[E]>,
    b: &Shared<[E]>,
    full: &Ring,
    empty: &Ring,
    bias: &ComptimeOption<Box<[Vector<R, P>]>>,
    residual: &ComptimeOption<Box<[Vector<R, P>]>>,
    staged: &mut Shared<[Vector<u32, O>]>,
    out: &mut [Vector<W, O>],
    flags: &mut [u32],
    gather: &GatherArgs,
    args: &HopperArgs,
    warp: u32,
    #[comptime] form: Form,
) {
    let first_row = warp / comptime!(WARPGROUP / WARP) * comptime!(ROWS * form.tile.ratio_m);
    let mut run = 0u32.runtime();
    let mut turn = Turn { slot: 0u32.runtime(), round: 0u32.runtime() };
    let mut tile = CUBE_POS_X;
    while tile < args.tiles {
        let work = work(args, tile, form);
        let sums = if comptime!(form.parts > 1) {
            sums_of_parts::<E>(a, b, full, empty, &work, first_row, &mut turn, form)
        } else {
            sums::<E>(a, b, full, empty, &work, first_row, &mut turn, &mut run, gather, args, form)
        };
        #[unroll]
        for i in 0..form.tile.ratio_m {
            let sums = sums.index(comptime!(i as usize));
            let row = work.row + first_row + i * ROWS;
            if comptime!(form.checked) {
                tell(sums, row, &work, flags, args, form);
            }
            if comptime!(form.staged) {
                turn_over::<R, P, W, O>(
                    sums, row, &work, bias, residual, staged, out, gather, args, form,
                );
            } else {
                store::<R, P, W, O>(sums, row, &work, bias, residual, out, gather, args, form);
            }
        }
        tile += CUBE_COUNT_X;
    }
}

/// A unit's sums of 64 rows.
type Sums = Array<f32>;

/// Multiplies out of each stage as it comes, one stage behind in giving it back.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn sums<E: Float>(
    a: &Shared<[E]>,
    b: &Shared<[E]>,
    full: &Ring,
    empty: &Ring,
    work: &Work,
    first_row: u32,
    turn: &mut Turn,
    run: &mut u32,
    gather: &GatherArgs,
    args: &HopperArgs,
    #[comptime] form: Form,
) -> Sequence<Sums> {
    let speaks = speaks();
    let sums = zeros(form);
    let mut held = 0u32.runtime();
    let mut tap = 0u32.runtime();
    for step in work.first..work.end {
        wait(full, *turn, false);
        let (slot_a, first) = if comptime!(form.shares()) {
            // By a further tap the same rows are some pixels on.
            let shift = tap as i32 * gather.width.tap_step + args.width_first;
            (*run, first_row + shift as u32)
        } else {
            (turn.slot, first_row)
        };
        let first = first * comptime!(form.row());
        let rows = operand::<E>(a, slot_a, first, form.part_a(), form.a_layout());
        let lines = operand::<E>(b, turn.slot, 0u32, form.part_b(), form.b_layout());
        // Each stage's products start anew: the compiler must see that the sums are handed over on
        // every way into the loop, or it has all products wait for each other.
        let mut sums = started(&sums);
        // The first products are a group of their own: when they are done, so are all of the stages
        // before, while the others of this stage run on.
        multiply(&mut sums, &rows, &lines, 0usize, form);
        let begun = sums.index_mut(0usize).commit();
        #[unroll]
        for k in 1..comptime!(form.tile.block_k as usize / form.step()) {
            multiply(&mut sums, &rows, &lines, k, form);
        }
        let _others = sums.index_mut(0usize).commit();
        begun.wait();
        give_back(empty, held, speaks && step > work.first);
        held = turn.slot;
        advance(turn, comptime!(form.tile.stages));
        if comptime!(form.shares()) {
            let next = tap + 1;
            let ends = next == gather.width.taps_count;
            tap = select(ends, 0u32, next);
            *run = select(ends, following(*run, form.runs), *run);
        }
    }
    let sums = started(&sums);
    let mut done = Sequence::<Sums>::new();
    #[unroll]
    for i in 0..form.tile.ratio_m {
        done.push(values(&sums.index(comptime!(i as usize)).clone().wait()));
    }
    give_back(empty, held, speaks && work.end > work.first);
    done
}

/// The same of factors in two parts. Matrix units cut their sums off where others round them, always
/// towards zero, so that sums of many products would come out too small: those of each stage are added to
/// the others in f32. While one warpgroup adds, another multiplies.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn sums_of_parts<E: Float>(
    a: &Shared<[E]>,
    b: &Shared<[E]>,
    full: &Ring,
    empty: &Ring,
    work: &Work,
    first_row: u32,
    turn: &mut Turn,
    #[comptime] form: Form,
) -> Sequence<Sums> {
    let speaks = speaks();
    let count = comptime!((form.tile.block_n / 2) as usize);
    let mut all = Sequence::<Sums>::new();
    let none = zeros(form);
    #[unroll]
    for i in 0..form.tile.ratio_m {
        all.push(values(none.index(comptime!(i as usize))));
    }
    for _ in work.first..work.end {
        wait(full, *turn, false);
        let mut sums = started(&zeros(form));
        let high = turn.slot * comptime!(form.parts);
        let first = first_row * comptime!(form.row());
        let high_rows = operand::<E>(a, high, first, form.part_a(), form.a_layout());
        let low_rows = operand::<E>(a, high + 1, first, form.part_a(), form.a_layout());
        let high_lines = operand::<E>(b, high, 0u32, form.part_b(), form.b_layout());
        let low_lines = operand::<E>(b, high + 1, 0u32, form.part_b(), form.b_layout());
        // The small products first, whose sums lose less.
        multiply_all(&mut sums, &low_rows, &high_lines, form);
        multiply_all(&mut sums, &high_rows, &low_lines, form);
        multiply_all(&mut sums, &high_rows, &high_lines, form);
        #[unroll]
        for i in 0..form.tile.ratio_m {
            let sums = sums.index(comptime!(i as usize)).clone().wait();
            if comptime!(i == 0) {
                give_back(empty, turn.slot, speaks);
            }
            #[unroll]
            for n in 0..count {
                all.index_mut(comptime!(i as usize))[n] += sums.get(n);
            }
        }
        advance(turn, comptime!(form.tile.stages));
    }
    all
}

/// Whether this is the unit that speaks for its warp.
#[cube]
fn speaks() -> bool {
    let lane = UNIT_POS % WARP;
    lane == 0
}

/// The sums of nothing yet.
#[cube]
fn zeros(#[comptime] form: Form) -> Sequence<Accumulator<f32>> {
    let mut sums = Sequence::<Accumulator<f32>>::new();
    #[unroll]
    for _ in 0..form.tile.ratio_m {
        sums.push(Accumulator::<f32>::new(comptime!(form.tile.block_n as usize)));
    }
    sums
}

#[cube]
fn values(sums: &Accumulator<f32>) -> Sums {
    let mut values = Array::<f32>::new(sums.len());
    #[unroll]
    for i in 0..sums.len() {
        values[i] = sums.get(i);
    }
    values
}

/// One of the parts of all stages, which lie one after the other, from so many elements on.
#[cube]
fn operand<E: Float>(
    memory: &Shared<[E]>,
    nth: u32,
    further: u32,
    #[comptime] size: u32,
    #[comptime] layout: WgmmaTileLayout,
) -> MatrixDescriptor<E> {
    let at = (nth * size + further) as usize;
    MatrixDescriptor::<E>::new(&memory[at..at + comptime!(size as usize)], layout)
}

/// Tells whether a band of rows has sums that are no numbers.
#[cube]
fn tell(
    sums: &Sums,
    first_row: u32,
    work: &Work,
    flags: &mut [u32],
    args: &HopperArgs,
    #[comptime] form: Form,
) {
    // Zero times a number is zero.
    let mut doubt = 0.0f32;
    #[unroll]
    for i in 0..comptime!((form.tile.block_n / 2) as usize) {
        doubt = fma(sums[i], 0.0f32, doubt);
    }
    let found = plane_any(doubt != 0.0);
    let band = first_row / BAND + UNIT_POS % WARPGROUP / WARP;
    let column = work.group * args.tiles_n_count + work.column / comptime!(form.tile.block_n);
    if speaks() {
        flags[(column * args.bands + band) as usize] = u32::cast_from(found);
    }
}

/// Hands the sums to the products that follow.
#[cube]
fn started(sums: &Sequence<Accumulator<f32>>) -> Sequence<Running> {
    let mut running = Sequence::<Running>::new();
    #[unroll]
    for i in 0..sums.len() {
        running.push(sums.index(i).clone().start());
    }
    running
}

/// Sums that products are being added to.
type Running = cubecl::prelude::Pending<Accumulator<f32>>;

/// Issues all products of a stage.
#[cube]
fn multiply_all<E: Float>(
    sums: &mut Sequence<Running>,
    rows: &MatrixDescriptor<E>,
    lines: &MatrixDescriptor<E>,
    #[comptime] form: Form,
) {
    #[unroll]
    for k in 0..comptime!(form.tile.block_k as usize / form.step()) {
        multiply(sums, rows, lines, k, form);
    }
}

/// Issues the products of an instruction's terms, the `k`-th of a stage.
#[cube]
fn multiply<E: Float>(
    sums: &mut Sequence<Running>,
    rows: &MatrixDescriptor<E>,
    lines: &MatrixDescriptor<E>,
    #[comptime] k: usize,
    #[comptime] form: Form,
) {
    let term = comptime!(k * form.step());
    // Of a comb the same chunks of pixels further on.
    let (shift, term_a) = comptime!(match form.comb {
        Some(shift) => (k as u32 * shift, 0),
        None => (0, term),
    });
    #[unroll]
    for i in 0..form.tile.ratio_m {
        let rows = rows.at(comptime!((shift + i * ROWS) as usize), term_a);
        sums.index_mut(comptime!(i as usize)).execute(&rows, &lines.at(0usize, term));
    }
}

/// Where a result lies.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Target {
    /// Its channel, and its place in the tensor; 0 where it is not there.
    channel: u32,
    at: u32,
    there: bool,
}

/// The place of a column of a row that begins at `base`.
#[cube]
fn target(
    column: u32,
    base: u32,
    there: bool,
    work: &Work,
    args: &HopperArgs,
    #[comptime] form: Form,
) -> Target {
    // A column of the filters' gradient is a channel of a tap.
    let (column, base, there) = if comptime!(form.filter) {
        let (tap, slice) = args.slices.div_mod(column / comptime!(form.line()));
        let channel = slice * comptime!(form.line()) + column % comptime!(form.line());
        (channel, base + tap * args.tap_step, there && tap < args.taps)
    } else {
        (column, base, there)
    };
    let there = there && column < args.columns;
    Target {
        channel: select(there, work.group * args.columns + column, 0u32),
        at: select(there, base + column * args.column_step, 0u32),
        there,
    }
}

/// Where the results of a row begin, and whether it has any.
#[cube]
fn row_base(
    row: u32,
    work: &Work,
    gather: &GatherArgs,
    args: &HopperArgs,
    #[comptime] form: Form,
) -> (u32, bool) {
    let base = work.part * args.part_step + work.group * args.out_group;
    if comptime!(form.filter) {
        (base + row * args.row_step, row < args.rows)
    } else {
        let place = row_place(gather, row, form.gather);
        let there = row < args.rows && place.width < args.line_rows;
        let there = if comptime!(form.comb.is_some()) {
            there && place.height < args.plane_rows
        } else {
            there
        };
        (base + row_result(gather, &place), there)
    }
}

/// Stores 64 rows of a tile of 16-bit results. A warp lays its 16 rows down in shared memory, a line of
/// columns at a time, and takes up whole lines. Chunks are permuted, as the copy engine would, so that
/// those of eight rows, and of one, lie in different banks.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn turn_over<R: Float, P: Size, W: Numeric, O: Size>(
    sums: &Sums,
    first_row: u32,
    work: &Work,
    bias: &ComptimeOption<Box<[Vector<R, P>]>>,
    residual: &ComptimeOption<Box<[Vector<R, P>]>>,
    staged: &mut Shared<[Vector<u32, O>]>,
    out: &mut [Vector<W, O>],
    gather: &GatherArgs,
    args: &HopperArgs,
    #[comptime] form: Form,
) {
    let size!(One) = 1usize;
    let definition = MmaDefinition::<R, R, f32>::new(16usize, 8usize, 16usize);
    let lane = UNIT_POS % WARP;
    let mine = lane % QUAD;
    let place = UNIT_POS / WARP * STAGED;
    let band = first_row + UNIT_POS % WARPGROUP / WARP * BAND;
    let down = lane % BAND;
    let laid = place + down * STAGED_LINE + ((lane / BAND) ^ (down % STAGED_LINE));
    let (base, there) = row_base(band + down, work, gather, args, form);
    let base = select(there, base, NOWHERE);
    let chunks = comptime!(form.tile.block_n / CHUNK);
    #[unroll]
    for panel in 0..comptime!(chunks.div_ceil(STAGED_LINE)) {
        let begin = comptime!(panel * STAGED_LINE);
        let count = comptime!((chunks - begin).min(STAGED_LINE));
        #[unroll]
        for two in 0..comptime!(count / 2) {
            let mut words = Array::<Vector<u32, One>>::new(4usize);
            #[unroll]
            for word in 0..4u32 {
                let chunk = comptime!(begin + 2 * two + word / 2);
                let half = comptime!(word % 2);
                let column = work.column + comptime!(chunk * CHUNK) + mine * PAIR;
                let to = if comptime!(residual.is_some()) {
                    let row = band + lane / QUAD + half * 8;
                    let (base, there) = row_base(row, work, gather, args, form);
                    target(column, base, there, work, args, form)
                } else {
                    target(column, 0u32.runtime(), true.runtime(), work, args, form)
                };
                let nth = comptime!(nth(chunk / QUAD, chunk % QUAD, half));
                let pair = finished::<R, P>(sums, nth, &to, bias, residual, args, form);
                let mut single = Vector::<u32, One>::empty();
                single.insert(0usize, u32::reinterpret(pair));
                words[word as usize] = single;
            }
            let at = (laid ^ comptime!(2 * two)) as usize;
            definition.store_matrix_with_form::<Vector<u32, O>, One>(
                &mut staged[at..at + 1],
                &words,
                StMatrixForm::M8N8B16,
                4usize,
                false,
            );
        }
        sync_plane();
        let rows = comptime!(WARP / count);
        let chunk = lane % count;
        let taken = place + lane / count * STAGED_LINE + (chunk ^ (lane / count));
        let column = work.column + comptime!(begin * CHUNK) + chunk * CHUNK;
        #[unroll]
        for i in 0..comptime!(BAND / rows) {
            let down = comptime!(i * rows) + lane / count;
            let base = plane_shuffle(base, down);
            let to = target(column, base, base != NOWHERE, work, args, form);
            let at =
                (taken ^ comptime!(i * rows % STAGED_LINE)) + comptime!(i * rows * STAGED_LINE);
            if to.there {
                out[(to.at / CHUNK) as usize] = Vector::<W, O>::reinterpret(staged[at as usize]);
            }
        }
        sync_plane();
    }
}

/// Where rows lie that have no results.
const NOWHERE: u32 = u32::MAX;

/// Stores 64 rows of a tile. A unit holds pairs of columns of two rows. Pairs of 32 bits are stored as
/// they are, for four neighbours have a whole sector of memory between them; of smaller ones, these hold a
/// chunk of columns between them, and by exchanging pairs of four chunks each has one chunk whole.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn store<R: Float, P: Size, W: Numeric, O: Size>(
    sums: &Sums,
    first_row: u32,
    work: &Work,
    bias: &ComptimeOption<Box<[Vector<R, P>]>>,
    residual: &ComptimeOption<Box<[Vector<R, P>]>>,
    out: &mut [Vector<W, O>],
    gather: &GatherArgs,
    args: &HopperArgs,
    #[comptime] form: Form,
) {
    let unit = UNIT_POS % WARPGROUP;
    let mine = unit % QUAD;
    #[unroll]
    for half in 0..2u32 {
        let row = first_row + unit / WARP * 16 + unit % WARP / QUAD + half * 8;
        let (base, there) = row_base(row, work, gather, args, form);
        #[unroll]
        for quad in 0..comptime!(form.tile.block_n / CHUNK / QUAD) {
            let first = work.column + comptime!(quad * QUAD * CHUNK);
            if comptime!(form.packed) {
                let mut words = Array::<u32>::new(4usize);
                #[unroll]
                for chunk in 0..QUAD {
                    let column = first + chunk * CHUNK + mine * PAIR;
                    let to = target(column, base, there, work, args, form);
                    let nth = comptime!(nth(quad, chunk, half));
                    let pair = finished::<R, P>(sums, nth, &to, bias, residual, args, form);
                    words[chunk as usize] = u32::reinterpret(pair);
                }
                let to = target(first + mine * CHUNK, base, there, work, args, form);
                let chunk = turned::<O>(&words);
                if to.there {
                    out[(to.at / CHUNK) as usize] = Vector::<W, O>::reinterpret(chunk);
                }
            } else {
                #[unroll]
                for chunk in 0..QUAD {
                    #[unroll]
                    for lane in 0..comptime!(PAIR / form.finished) {
                        let column = first + chunk * CHUNK + mine * PAIR + lane;
                        let to = target(column, base, there, work, args, form);
                        let nth = comptime!(nth(quad, chunk, half) + lane as usize);
                        let value = finished::<R, P>(sums, nth, &to, bias, residual, args, form);
                        if to.there {
                            out[to.at as usize / P::value()] = Vector::<W, O>::cast_from(value);
                        }
                    }
                }
            }
        }
    }
}

/// The first register of a warpgroup's unit for a pair of columns.
fn nth(quad: u32, chunk: u32, half: u32) -> usize {
    (((quad * QUAD + chunk) * 2 + half) * PAIR) as usize
}

/// Sums with what follows them.
#[cube]
fn finished<R: Float, P: Size>(
    sums: &Sums,
    #[comptime] nth: usize,
    to: &Target,
    bias: &ComptimeOption<Box<[Vector<R, P>]>>,
    residual: &ComptimeOption<Box<[Vector<R, P>]>>,
    args: &HopperArgs,
    #[comptime] form: Form,
) -> Vector<R, P> {
    let mut sum = Vector::<f32, P>::empty();
    #[unroll]
    for lane in 0..P::value() {
        sum.insert(lane, sums[comptime!(nth + lane)]);
    }
    let (channel, at) = (to.channel / P::value() as u32, to.at / P::value() as u32);
    finish_at::<R, f32, P>(bias, residual, sum, channel, at, args.slope, form.epilogue)
}

/// Of four chunks that four units hold in pairs, the one that is this unit's.
#[cube]
fn turned<O: Size>(words: &Array<u32>) -> Vector<u32, O> {
    let odd = UNIT_POS & 1u32 != 0u32;
    let high = UNIT_POS & 2u32 != 0u32;
    // With the neighbour: of chunks 2·pair and 2·pair + 1 one is kept, the other given.
    let mut pairs = Array::<u32>::new(4usize);
    #[unroll]
    for pair in 0..2usize {
        let (even, uneven) = (words[2 * pair], words[2 * pair + 1]);
        let kept = select(odd, uneven, even);
        let given = plane_shuffle_xor(select(odd, even, uneven), 1u32);
        pairs[2 * pair] = select(odd, given, kept);
        pairs[2 * pair + 1] = select(odd, kept, given);
    }
    // Then with the neighbouring two.
    let mut chunk = Vector::<u32, O>::empty();
    #[unroll]
    for i in 0..2usize {
        let (low, up) = (pairs[i], pairs[i + 2]);
        let kept = select(high, up, low);
        let given = plane_shuffle_xor(select(high, low, up), 2u32);
        chunk.insert(i, select(high, given, kept));
        chunk.insert(i + 2, select(high, kept, given));
    }
    chunk
}
