//! Adds a line of pixels to the sums of a unit, in three variants. They differ in whether pixels or weights are held
//! in registers, and in whether lanes run along the channels or along the width.

use cubecl::prelude::*;

use super::form::{Across, Form};
use crate::conv::common::{GatherArgs, pixel_at, pixels_of};
use crate::cube::Registers;

/// A line of pixels.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Line {
    /// The index of the vector at its coordinate 0.
    pub(super) at: usize,
    /// The coordinate of the first pixel (or vector of pixels) that the unit reads, and the extent of the line.
    pub(super) start: i32,
    pub(super) extent: i32,
    /// How many lines the unit reads before this one.
    pub(super) y: u32,
    /// The index of the vector of packed weights at which the first line of taps starts.
    pub(super) weights: u32,
}

/// Adds the products of a line of pixels to all rows that read it.
#[cube]
pub(super) fn add_line<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    gather: &GatherArgs,
    line: &Line,
    sums: &Registers<A, N>,
    #[comptime] clipped: bool,
    #[comptime] form: Form,
) {
    if comptime!(form.across.is_some()) {
        add_across::<S, A, N>(a, packed, gather, line, sums, clipped, form);
    } else if comptime!(form.contiguous) {
        add_by_pixel::<S, A, N>(a, packed, gather, line, sums, clipped, form);
    } else {
        add_by_tap::<S, A, N>(a, packed, gather, line, sums, clipped, form);
    }
}

/// Adds a line pixel by pixel, with the weights held in registers.
#[cube]
fn add_by_pixel<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    gather: &GatherArgs,
    line: &Line,
    sums: &Registers<A, N>,
    #[comptime] clipped: bool,
    #[comptime] form: Form,
) {
    let weights = weights_of::<N>(gather, line, line.y);
    let mut held = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for t in 0..form.along.taps {
        held.push(packed[weights + comptime!((t * form.tap_jump * form.chunk_vectors) as usize)]);
    }
    #[unroll]
    for p in 0..comptime!(form.along.pixels().1) {
        if comptime!(form.along.is_read(p)) {
            if comptime!(clipped) {
                let x = line.start + p as i32;
                if x >= 0 && x < line.extent {
                    let pixel = pixel_at::<S, A, N>(a, gather, line.at, x, 0u32);
                    add_pixel::<A, N>(&held, pixel, sums, p, form);
                }
            } else {
                let pixel = pixel_at::<S, A, N>(a, gather, line.at, line.start, p);
                add_pixel::<A, N>(&held, pixel, sums, p, form);
            }
        }
    }
}

/// Adds the products of a pixel to each row that reads it.
#[cube]
fn add_pixel<A: Float, N: Size>(
    weights: &Sequence<Vector<A, N>>,
    pixel: Vector<A, N>,
    sums: &Registers<A, N>,
    #[comptime] p: u32,
    #[comptime] form: Form,
) {
    #[unroll]
    for r in 0..form.along.rows {
        #[unroll]
        for t in 0..form.along.taps {
            if comptime!(form.along.pixel(r, t) == p) {
                let sum = sums.index(comptime!(r as usize));
                sum.store(fma(pixel, *weights.index(comptime!(t as usize)), sum.read()));
            }
        }
    }
}

/// Adds a line weight by weight, with the pixels held in registers.
#[cube]
fn add_by_tap<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    gather: &GatherArgs,
    line: &Line,
    sums: &Registers<A, N>,
    #[comptime] clipped: bool,
    #[comptime] form: Form,
) {
    let pixels =
        pixels_of::<S, A, N>(a, gather, line.at, line.start, line.extent, clipped, form.along);
    #[unroll]
    for l in 0..form.lines {
        let ahead = comptime!(form.ahead(l));
        let reads = if comptime!(form.lines > 1) {
            line.y >= ahead && line.y - ahead < gather.height.taps_count
        } else {
            true.runtime()
        };
        if reads {
            let weights = weights_of::<N>(gather, line, line.y - ahead);
            #[unroll]
            for t in 0..form.along.taps {
                let tap = comptime!((t * form.tap_jump * form.chunk_vectors) as usize);
                let weight = packed[weights + tap];
                #[unroll]
                for r in 0..form.along.rows {
                    let sum = sums.index(comptime!((l * form.along.rows + r) as usize));
                    let pixel = *pixels.index(comptime!(form.along.pixel(r, t) as usize));
                    sum.store(fma(pixel, weight, sum.read()));
                }
            }
        }
    }
}

/// Adds a line with lanes along the width.
#[cube]
fn add_across<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    gather: &GatherArgs,
    line: &Line,
    sums: &Registers<A, N>,
    #[comptime] clipped: bool,
    #[comptime] form: Form,
) {
    let across = comptime!(form.across.unwrap_or(Across { lanes: 1, start: 0 }));
    let mut vectors = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for v in 0..comptime!(form.vectors(across)) {
        if comptime!(clipped) {
            let x = line.start + v as i32;
            let inside = x >= 0 && x < line.extent;
            let there = line.at + select(inside, x, 0i32) as u32 as usize;
            let vector = Vector::<A, N>::cast_from(a[there]);
            vectors.push(select(inside, vector, Vector::new(A::from_int(0))));
        } else {
            let first = line.at + line.start as u32 as usize;
            vectors.push(Vector::cast_from(a[first + comptime!(v as usize)]));
        }
    }
    // All lines of pixels except the first and the last few are read by all lines of the unit.
    let taps = gather.height.taps_count;
    if line.y >= comptime!(form.lines - 1) && line.y < taps {
        #[unroll]
        for t in 0..form.along.taps {
            let mut weights = Sequence::<Vector<A, N>>::new();
            #[unroll]
            for l in 0..form.lines {
                let th = line.y - comptime!(form.ahead(l));
                let at = weights_of::<N>(gather, line, th);
                weights.push(packed[at + comptime!((t * form.tap_jump) as usize)]);
            }
            #[unroll]
            for r in 0..form.along.rows {
                let pixels = lanes_of::<A, N>(&vectors, r, t, form);
                #[unroll]
                for l in 0..form.lines {
                    let sum = sums.index(comptime!((l * form.along.rows + r) as usize));
                    let weight = *weights.index(comptime!(l as usize));
                    sum.store(fma(pixels, weight, sum.read()));
                }
            }
        }
    } else {
        #[unroll]
        for l in 0..form.lines {
            let ahead = comptime!(form.ahead(l));
            if line.y >= ahead && line.y - ahead < taps {
                let weights = weights_of::<N>(gather, line, line.y - ahead);
                #[unroll]
                for t in 0..form.along.taps {
                    let weight = packed[weights + comptime!((t * form.tap_jump) as usize)];
                    #[unroll]
                    for r in 0..form.along.rows {
                        let pixels = lanes_of::<A, N>(&vectors, r, t, form);
                        let sum = sums.index(comptime!((l * form.along.rows + r) as usize));
                        sum.store(fma(pixels, weight, sum.read()));
                    }
                }
            }
        }
    }
}

/// The pixels that the lanes of row `r` read at tap `t`.
#[cube]
fn lanes_of<A: Float, N: Size>(
    vectors: &Sequence<Vector<A, N>>,
    #[comptime] r: u32,
    #[comptime] t: u32,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let across = comptime!(form.across.unwrap_or(Across { lanes: 1, start: 0 }));
    let mut pixels = Vector::<A, N>::new(A::from_int(0));
    #[unroll]
    for i in 0..N::value() {
        let element = comptime!(form.element(across, r, t, i));
        let vector = *vectors.index(comptime!(element / across.lanes as usize));
        pixels.insert(i, vector.extract(comptime!(element % across.lanes as usize)));
    }
    pixels
}

/// The offset at which the weights of line `th` of taps start.
#[cube]
fn weights_of<N: Size>(gather: &GatherArgs, line: &Line, th: u32) -> usize {
    (line.weights + th * (gather.height.b_step / N::value() as u32)) as usize
}
