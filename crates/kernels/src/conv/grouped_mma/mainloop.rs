//! The mainloop: a plane walks down lines of pixels and multiplies them by bands of weights. Sums are written to shared
//! memory as soon as they are complete.

use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;

use super::block::PlaneWork;
use super::form::{CHUNK, Form, HALVES, TILES};
use super::weights::{Offsets, Weights, fill};
use crate::conv::common::{EpilogueArgs, finish};

/// One of a plane's walks, and the group of the cube whose pixels it reads.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Walk {
    pub(super) group: u32,
    pub(super) walk: u32,
}

/// Computes the windows of a walk, and writes each line of them to shared memory as soon as it is complete.
#[cube]
pub(super) fn walk_down<S: Float, A: Float, R: Float, N: Size>(
    shared: &mut Shared<[Vector<S, N>]>,
    weights: &Weights<S>,
    epilogue: &EpilogueArgs<S, N>,
    work: &PlaneWork<'_>,
    walked: &Walk,
) {
    let form = comptime!(work.form);
    let mut sums = no_sums::<A>(form);
    let first = first_strip(work, walked);
    // All units of a plane load a fragment together.
    sync_plane();
    let mut pixels = Sequence::<Array<Vector<S, Const<2>>>>::new();
    load_line::<S, A, N>(shared, &mut pixels, first, form);
    #[unroll]
    for line in 0..form.walk_lines() {
        // The next line is loaded while this one is multiplied.
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
                // No unit may still be reading the pixels that the results replace.
                sync_plane();
                store_line::<S, A, R, N>(&sums, shared, epilogue, work, walked, j);
            }
        }
    }
}

/// Computes the windows of a walk one line of taps at a time, and then writes them to shared memory.
#[cube]
pub(super) fn go_over<S: Float, A: Float, R: Float, N: Size>(
    shared: &mut Shared<[Vector<S, N>]>,
    w: &[S],
    offsets: &Offsets,
    weights: &Weights<S>,
    epilogue: &EpilogueArgs<S, N>,
    work: &PlaneWork<'_>,
    walked: &Walk,
) {
    let form = comptime!(work.form);
    let mut sums = no_sums::<A>(form);
    let first = first_strip(work, walked);
    let (step, start) = comptime!((form.height.tap_step, form.height.pixels().0));
    sync_plane();
    for th in 0..work.gather.height.taps_count {
        fill::<S>(w, work, offsets, weights, walked.group, th);
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
        store_line::<S, A, R, N>(&sums, shared, epilogue, work, walked, j);
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

/// The strip whose address a unit passes to the matrix load, for the first line of a walk: consecutive units address
/// the rows of one strip, and then those of the next strip. Rows without a tile repeat the last tile of their half.
#[cube]
fn first_strip(work: &PlaneWork<'_>, walked: &Walk) -> u32 {
    let form = comptime!(work.form);
    let (row, next) = (work.unit % (HALVES * CHUNK), work.unit / (HALVES * CHUNK));
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

/// Loads the strips that tiles read from a line of pixels, one fragment per pair.
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

/// Adds the products of a line of taps to the sums of line `j` of windows.
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
            // A missing second strip is replaced by the first; its weights are all 0.
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

/// Writes the sums of line `j` of a walk's windows to shared memory. They are finished first, except if the epilogue
/// needs a bias or a residual.
///
/// Rows without a tile have the same sums as the last tile of their half, and write them again: this is cheaper than
/// a branch.
#[cube]
fn store_line<S: Float, A: Float, R: Float, N: Size>(
    sums: &Sequence<Array<Vector<A, Const<2>>>>,
    shared: &mut Shared<[Vector<S, N>]>,
    epilogue: &EpilogueArgs<S, N>,
    work: &PlaneWork<'_>,
    walked: &Walk,
    #[comptime] j: u32,
) {
    let form = comptime!(work.form);
    let lanes = comptime!(if form.late { 4u32 } else { 2 });
    let size!(P) = lanes as usize;
    let all = comptime!(form.shared() as usize);
    let pairs: &mut [Vector<S, P>] = shared[0..all].with_vector_size_mut();
    // In each half, a unit holds two columns of one row.
    let (row, pair) = (min(work.unit / 4, TILES - 1), work.unit % 4);
    let tile = walked.walk * comptime!(form.walk_tiles()) + row;
    let first = strip_of(walked.group, form) + tile * comptime!(form.parts());
    let first = first * comptime!(CHUNK / lanes) + pair;
    let sum = sums.index(comptime!(j as usize));
    #[unroll]
    for half in 0..HALVES {
        let (line, tile) = comptime!(if form.is_split() {
            (form.result_line(half, j), 0)
        } else {
            (form.result_line(0, j), half * TILES)
        });
        let strip =
            comptime!(form.result_first() + line * form.result_pitch() + tile * form.parts());
        let sum = sum[comptime!(half as usize)];
        let laid = if comptime!(form.late) {
            Vector::<R, Const<2>>::cast_from(sum)
        } else {
            Vector::cast_from(finish::<S, A, Const<2>>(sum, epilogue.slope, epilogue.form))
        };
        pairs[(first + comptime!(strip * (CHUNK / lanes))) as usize] = Vector::reinterpret(laid);
    }
}

/// The offset in strips of a group in shared memory.
#[cube]
fn strip_of(group: u32, #[comptime] form: Form) -> u32 {
    let (chunk, within) = (group / comptime!(form.wide()), group % comptime!(form.wide()));
    chunk * comptime!(form.chunk_step()) + within * comptime!(form.group_step())
}
