//! The kernel: the position of a cube's tile, how windows are staged in shared memory, and the gradients of a block's
//! inputs.

use cubecl::prelude::*;

use super::{Form, StagedArgs, TILE};
use crate::cube::convert::{round, widen};
use crate::cube::registers::{Registers, zeros};
use crate::pool::common::window::split;

#[cube(launch_unchecked)]
pub(super) fn walk_blocks<S: Float, A: Float, N: Size>(
    dy: &[Vector<S, N>],
    winners: &[Vector<i32, N>],
    dx: &mut [Vector<S, N>],
    args: &StagedArgs,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let vectors = comptime!((form.planes() * form.plane()) as usize);
    let mut shares = Shared::<[Vector<S, N>]>::new_slice(vectors);
    let mut staged = Shared::<[Vector<i32, N>]>::new_slice(vectors);
    // All units of a cube terminate, or none.
    if CUBE_POS as u32 >= args.cubes {
        terminate!();
    }
    let tile = tile_of(args, form);
    let block = block_of(args, &tile, form);
    let loading = loading::<S, N>(args, &tile, form);
    // The start of each plane of a step. A new plane is stored in the place of the first plane of the step before.
    let mut starts = Sequence::<RuntimeCell<u32>>::new();
    #[unroll]
    for i in 0..form.planes() {
        starts.push(RuntimeCell::new(comptime!(i * form.plane()).runtime()));
    }
    #[unroll]
    for i in 0..form.windows()[0] {
        fetch::<S, N>(dy, winners, args, &tile, tile.depth + i, &loading, form);
        let start = starts.index(i as usize).read();
        stage::<S, N>(&mut shares, &mut staged, args, tile.depth + i, start, &loading, form);
    }
    let further = comptime!(form.windows()[0]);
    fetch::<S, N>(dy, winners, args, &tile, tile.depth + further, &loading, form);
    for depth in tile.depth..tile.end {
        sync_cube();
        if depth + 1 < tile.end {
            let start = starts.index(further as usize).read();
            stage::<S, N>(&mut shares, &mut staged, args, depth + further, start, &loading, form);
            fetch::<S, N>(dy, winners, args, &tile, depth + further + 1, &loading, form);
        }
        compute::<S, A, N>(&shares, &staged, dx, args, &block, depth, &starts, form);
        let first = starts.index(0usize).read();
        #[unroll]
        for i in 0..further as usize {
            starts.index(i).store(starts.index(i + 1).read());
        }
        starts.index(further as usize).store(first);
    }
}

/// The position of a cube's tile: its sample, its first vector of a pixel, its first block on each axis, and the end of
/// its planes of blocks.
#[derive(CubeType)]
struct Tile {
    sample: u32,
    vector: u32,
    depth: u32,
    end: u32,
    height: u32,
    width: u32,
}

#[cube]
fn tile_of(args: &StagedArgs, #[comptime] form: Form) -> Tile {
    let parts = comptime!(form.pixel / form.vectors);
    let (rest, part) = (CUBE_POS as u32 / parts, CUBE_POS as u32 % parts);
    let (rest, width) = args.width.tiles.div_mod(rest);
    let (rest, height) = args.height.tiles.div_mod(rest);
    let (sample, piece_planes) = args.depth.tiles.div_mod(rest);
    let depth = piece_planes * args.piece_planes;
    Tile {
        sample,
        vector: part * form.vectors,
        depth,
        end: min(depth + args.piece_planes, args.depth.blocks),
        height: height * comptime!(TILE[0] as u32),
        width: width * comptime!(TILE[1] as u32),
    }
}

/// The position of a unit's block.
#[derive(CubeType)]
struct Block {
    there: bool,
    sample: u32,
    /// The vector of the pixel, and its position on a plane in shared memory.
    vector: u32,
    shared: u32,
    /// The first row and column.
    row: i32,
    column: i32,
}

#[cube]
fn block_of(args: &StagedArgs, tile: &Tile, #[comptime] form: Form) -> Block {
    let (pixel, vector) = (UNIT_POS / form.vectors, UNIT_POS % form.vectors);
    let columns = comptime!(TILE[1] as u32);
    let (y, x) = (pixel / columns, pixel % columns);
    let (height, width) = (tile.height + y, tile.width + x);
    Block {
        there: height < args.height.blocks && width < args.width.blocks,
        sample: tile.sample,
        vector: tile.vector + vector,
        shared: (y * comptime!(form.tile_windows()[1]) + x) * form.vectors + vector,
        row: (height * comptime!(form.axes[1].inputs)) as i32,
        column: (width * comptime!(form.axes[2].inputs)) as i32,
    }
}

/// A unit's part of the next plane of windows: the positions of its vectors, and the vectors that are being loaded.
#[derive(CubeType)]
struct Loading<S: Float, N: Size> {
    /// The position of each on a plane, and whether such a window exists.
    places: Sequence<u32>,
    there: Sequence<bool>,
    shares: Registers<S, N>,
    winners: Sequence<RuntimeCell<Vector<i32, N>>>,
}

#[cube]
fn loading<S: Float, N: Size>(
    args: &StagedArgs,
    tile: &Tile,
    #[comptime] form: Form,
) -> Loading<S, N> {
    let mut places = Sequence::<u32>::new();
    let mut there = Sequence::<bool>::new();
    let mut winners = Sequence::<RuntimeCell<Vector<i32, N>>>::new();
    #[unroll]
    for i in 0..form.turns() {
        let nth = min(UNIT_POS + comptime!(i * form.units()), comptime!(form.plane() - 1));
        let (pixel, vector) = (nth / form.vectors, nth % form.vectors);
        let columns = comptime!(form.tile_windows()[1]);
        let [first_row, first_column] = comptime!([1, 2].map(|i: usize| form.axes[i].all().0));
        let row = (tile.height + pixel / columns) as i32 + first_row;
        let column = (tile.width + pixel % columns) as i32 + first_column;
        let (last_row, last_column) = (args.height.windows - 1, args.width.windows - 1);
        there.push(row >= 0 && row <= last_row && column >= 0 && column <= last_column);
        let row = min(max(row, 0i32), last_row);
        let column = min(max(column, 0i32), last_column);
        let pixel = (row * args.width.windows + column) as u32;
        places.push(pixel * form.pixel + tile.vector + vector);
        winners.push(RuntimeCell::new(Vector::new(-1i32)));
    }
    Loading::<S, N> { places, there, shares: zeros::<S, N>(form.turns()), winners }
}

/// Starts loading a plane of windows: the one that is `plane` after the first over the first block, clamped to those
/// that exist.
#[cube]
fn fetch<S: Float, N: Size>(
    dy: &[Vector<S, N>],
    winners: &[Vector<i32, N>],
    args: &StagedArgs,
    tile: &Tile,
    plane: u32,
    loading: &Loading<S, N>,
    #[comptime] form: Form,
) {
    let plane = plane as i32 + comptime!(form.axes[0].all().0);
    let plane = min(max(plane, 0i32), args.depth.windows - 1);
    let plane = tile.sample * args.depth.windows as u32 + plane as u32;
    let first = plane * (args.height.windows * args.width.windows) as u32 * form.pixel;
    #[unroll]
    for i in 0..form.turns() {
        let at = (first + *loading.places.index(i as usize)) as usize;
        loading.shares.index(i as usize).store(dy[at]);
        loading.winners.index(i as usize).store(winners[at]);
    }
}

/// Stores a loaded plane in shared memory. Windows that do not exist have no winner.
#[cube]
fn stage<S: Float, N: Size>(
    shares: &mut Shared<[Vector<S, N>]>,
    staged: &mut Shared<[Vector<i32, N>]>,
    args: &StagedArgs,
    plane: u32,
    start: u32,
    loading: &Loading<S, N>,
    #[comptime] form: Form,
) {
    let plane = plane as i32 + comptime!(form.axes[0].all().0);
    let there = plane >= 0 && plane < args.depth.windows;
    #[unroll]
    for i in 0..form.turns() {
        let nth = UNIT_POS + comptime!(i * form.units());
        let own = if comptime!((i + 1) * form.units() <= form.plane()) {
            true.runtime()
        } else {
            nth < form.plane()
        };
        if own {
            shares[(start + nth) as usize] = loading.shares.index(i as usize).read();
            let there = there && *loading.there.index(i as usize);
            let winners = loading.winners.index(i as usize).read();
            staged[(start + nth) as usize] = select(there, winners, Vector::new(-1i32));
        }
    }
}

/// Computes the inputs of a block.
#[cube]
fn compute<S: Float, A: Float, N: Size>(
    shares: &Shared<[Vector<S, N>]>,
    staged: &Shared<[Vector<i32, N>]>,
    dx: &mut [Vector<S, N>],
    args: &StagedArgs,
    block: &Block,
    depth: u32,
    starts: &Sequence<RuntimeCell<u32>>,
    #[comptime] form: Form,
) {
    let [_, rows, columns] = comptime!(form.windows());
    let plane = (depth * comptime!(form.axes[0].inputs)) as i32;
    let sums = zeros::<A, N>(form.inputs());
    #[unroll]
    for d in 0..form.windows()[0] {
        let start = starts.index(d as usize).read();
        #[unroll]
        for i in 0..comptime!(rows * columns) {
            let (y, x) = comptime!((i / columns, i % columns));
            let nth = block.shared + comptime!((y * form.tile_windows()[1] + x) * form.vectors);
            let at = (start + nth) as usize;
            let share = widen::<S, A, N>(shares[at], form.widened);
            let winners = staged[at];
            let w = comptime!(d * rows * columns + i);
            #[unroll]
            for x in 0..form.inputs() {
                let over = comptime!(form.over(x, w));
                if comptime!(over.is_some()) {
                    let sum = sums.index(x as usize);
                    let index = index_of(args, block, plane, x, form);
                    let wins = winners.equal(&Vector::new(index));
                    sum.store(if comptime!(over.is_some_and(|over| over.first)) {
                        select_many(wins, share, Vector::new(A::from_int(0)))
                    } else {
                        select_many(wins, sum.read() + share, sum.read())
                    });
                    if comptime!(over.is_some_and(|over| over.last)) {
                        write::<S, A, N>(dx, args, block, plane, x, sum.read(), form);
                    }
                }
            }
        }
    }
    #[unroll]
    for x in 0..form.inputs() {
        if comptime!(form.is_bare(x)) {
            write::<S, A, N>(dx, args, block, plane, x, Vector::new(A::from_int(0)), form);
        }
    }
}

/// The position of input `x` of a block in its plane.
#[cube]
fn index_of(
    args: &StagedArgs,
    block: &Block,
    plane: i32,
    #[comptime] x: u32,
    #[comptime] form: Form,
) -> i32 {
    let [d, h, w] = comptime!(split(form.axes.map(|axis| axis.inputs), x).map(|x| x as i32));
    let row = (plane + d) * args.height.inputs + block.row + h;
    row * args.width.inputs + block.column + w
}

/// Writes input `x` of a block, if it exists.
#[cube]
fn write<S: Float, A: Float, N: Size>(
    dx: &mut [Vector<S, N>],
    args: &StagedArgs,
    block: &Block,
    plane: i32,
    #[comptime] x: u32,
    sum: Vector<A, N>,
    #[comptime] form: Form,
) {
    let [d, h, w] = comptime!(split(form.axes.map(|axis| axis.inputs), x).map(|x| x as i32));
    let [whole_d, whole_h, whole_w] = form.whole;
    let there = block.there
        && (whole_d || plane + d < args.depth.inputs)
        && (whole_h || block.row + h < args.height.inputs)
        && (whole_w || block.column + w < args.width.inputs);
    if there {
        let sample = block.sample as i32 * args.depth.inputs * args.height.inputs;
        let pixel = sample * args.width.inputs + index_of(args, block, plane, x, form);
        let at = pixel as u32 * form.pixel + block.vector;
        dx[at as usize] = round::<A, S, N>(sum, form.rounds);
    }
}
