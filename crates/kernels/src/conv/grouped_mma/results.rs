//! Converts results from strips of groups in shared memory to vectors of channels in memory.

use cubecl::prelude::*;

use super::block::PlaneWork;
use super::form::{CHUNK, Form};
use crate::conv::common::{EpilogueArgs, finish_at, result};

/// A window and a vector of its channels, as indices in the whole result.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Window {
    pub(super) line: u32,
    pub(super) column: u32,
    pub(super) vector: u32,
}

/// A piece of a cube's results, which is a tile of a chunk, by its place in the cube.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Piece {
    pub(super) line: u32,
    pub(super) tile: u32,
    pub(super) chunk: u32,
}

#[cube]
pub(super) fn piece_of(piece: u32, #[comptime] form: Form) -> Piece {
    let (i, chunk) = (piece / comptime!(form.chunks), piece % comptime!(form.chunks));
    Piece { line: i / comptime!(form.tiles()), tile: i % comptime!(form.tiles()), chunk }
}

/// The `i`-th window of a piece.
#[cube]
pub(super) fn window_of(work: &PlaneWork<'_>, piece: &Piece, i: u32) -> Window {
    Window {
        line: work.line + piece.line,
        column: work.column + piece.tile * comptime!(work.form.wide()) + i,
        vector: work.chunk + piece.chunk,
    }
}

/// Whether a window exists and belongs to this cube.
#[cube]
pub(super) fn is_there(work: &PlaneWork<'_>, window: &Window) -> bool {
    let lines = comptime!(work.form.lines());
    window.line < min(work.block.height, work.line + lines) && window.column < work.block.width
}

/// The index of a vector of results in memory.
#[cube]
pub(super) fn result_of(work: &PlaneWork<'_>, window: &Window) -> u32 {
    let at = CUBE_POS_Z * work.gather.out_batch
        + result(&work.gather.height, window.line)
        + result(&work.gather.width, window.column);
    at / comptime!(work.form.lanes) + window.vector
}

/// Reads a piece of the results from shared memory: a chunk of each of its windows.
#[cube]
pub(super) fn read_piece<S: Float, R: Float, N: Size>(
    shared: &Shared<[Vector<S, N>]>,
    piece: &Piece,
    #[comptime] form: Form,
) -> Sequence<Vector<R, N>> {
    let parts = comptime!(form.parts());
    let size!(Q) = (CHUNK / parts) as usize;
    // A piece past the cube's last reads the last line.
    let line = min(piece.line, comptime!(form.lines() - 1));
    let rows = comptime!(form.height.rows);
    let line = if comptime!(form.late) {
        line
    } else {
        // The same place as in `result_line`.
        let moved = line * comptime!(form.height.step as u32) + comptime!(form.last_line(0));
        select(line < rows, line, moved)
    };
    let first = piece.chunk * comptime!(form.chunk_step())
        + comptime!(form.result_first())
        + line * comptime!(form.result_pitch())
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
            // The index of an element in the strip of a group.
            let (group, e) = comptime!((lane / form.group, i * form.group + lane % form.group));
            let of = comptime!(CHUNK / parts);
            let strip = strips.index(comptime!((group * parts + e / of) as usize));
            result.insert(comptime!(lane as usize), strip.extract(comptime!((e % of) as usize)));
        }
        results.push(result);
    }
    results
}

/// Whether none of a piece's results is NaN. Infinities of both signs count as NaN too, because results are added up;
/// this does no harm, as recomputing gives the same results.
#[cube]
pub(super) fn are_numbers<R: Float, N: Size>(
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

/// Stores a vector of results to memory, after the epilogue if that is still missing.
#[cube]
pub(super) fn store_vector<S: Float, A: Float, R: Float, N: Size>(
    result: Vector<R, N>,
    epilogue: &EpilogueArgs<S, N>,
    out: &mut [Vector<S, N>],
    vector: u32,
    at: u32,
    #[comptime] form: Form,
) {
    if comptime!(form.late) {
        let sum = Vector::<A, N>::cast_from(result);
        out[at as usize] = finish_at::<S, A, N>(epilogue, sum, vector, at);
    } else {
        out[at as usize] = Vector::cast_from(result);
    }
}
