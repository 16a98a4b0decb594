//! The work of a unit: its place, the lines of pixels that it adds, and its results.

use cubecl::prelude::*;

use super::{Form, LANES};
use crate::conv::common::{
    EpilogueArgs, GatherArgs, RunArgs, finish_at, pixels_of, row_point, tap_point,
};
use crate::cube::{Registers, unit_position, zeros};

/// One of the products of a launch.
#[derive(CubeType, CubeLaunch)]
pub(super) struct ProductArgs {
    pub(super) gather: GatherArgs,
    pub(super) run: RunArgs,
    /// Its first unit in the launch.
    pub(super) first: u32,
    #[cube(comptime)]
    pub(super) form: Form,
}

#[cube(launch_unchecked)]
pub(super) fn grouped<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    epilogue: &EpilogueArgs<S, N>,
    out: &mut [Vector<S, N>],
    products: &Sequence<ProductArgs>,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let unit = unit_position(false);
    #[unroll]
    for p in 0..products.len() {
        let product = products.index(p);
        // As an unsigned number, a unit before the product is larger than all of its units.
        let i = unit - product.first;
        if i < product.run.units {
            run_of::<S, A, N>(a, packed, epilogue, out, product, i);
        }
    }
}

/// Computes the run of the `i`-th unit of a product.
#[cube]
fn run_of<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    epilogue: &EpilogueArgs<S, N>,
    out: &mut [Vector<S, N>],
    product: &ProductArgs,
    i: u32,
) {
    let (gather, block, form) = (&product.gather, &product.run, comptime!(product.form));
    let lanes = N::value() as u32;
    let (rest, beside) = (i / comptime!(form.chunk_vectors), i % comptime!(form.chunk_vectors));
    let (rest, line) = block.lines.div_mod(rest);
    let (rest, run) = block.runs.div_mod(rest);
    let (outer, chunk) = block.chunks.div_mod(rest);
    let vector = chunk * comptime!(form.chunk_vectors) + beside;
    let group = vector / comptime!(form.columns);
    let first = run * comptime!(form.along.rows);
    let row = row_point(gather, (outer * block.height + line) * block.width + first);

    let sums = zeros::<A, N>(form.along.rows);
    let (first_pixel, pixels) = comptime!(form.along.pixels());
    let start = row.width + first_pixel;
    let whole = start >= 0 && start + comptime!(pixels as i32) <= gather.width.extent;
    let plane = row.a + group * gather.a_group;
    for td in 0..gather.depth.taps_count {
        let d = row.depth + td as i32 * gather.depth.tap_step;
        for th in 0..gather.height.taps_count {
            let h = row.height + th as i32 * gather.height.tap_step;
            let inside = d >= 0 && d < gather.depth.extent && h >= 0 && h < gather.height.extent;
            if inside {
                let at = (d * gather.depth.a_step + h * gather.height.a_step) as u32;
                let line = ((plane + at) / lanes) as usize;
                let tap = tap_point(gather, td, th, 0u32);
                let weights = ((tap.other + chunk * gather.b_group) / lanes + beside) as usize;
                for channels in 0..comptime!(form.inner).runtime() {
                    let line = line + channels as usize;
                    let step = comptime!((LANES as u32 * form.chunk_vectors) as usize);
                    let weights = weights + channels as usize * step;
                    if whole {
                        add_line::<S, A, N>(
                            a, packed, gather, line, start, weights, &sums, false, form,
                        );
                    } else {
                        add_line::<S, A, N>(
                            a, packed, gather, line, start, weights, &sums, true, form,
                        );
                    }
                }
            }
        }
    }

    let base = row.other + vector * lanes;
    #[unroll]
    for r in 0..form.along.rows {
        if first + r < block.width {
            let at = (base + r * gather.width.out_step) / lanes;
            let sum = sums.index(comptime!(r as usize)).read();
            out[at as usize] = finish_at::<S, A, N>(epilogue, sum, vector, at);
        }
    }
}

/// Adds the products of a line of pixels to all rows. `line` is the index of a vector of channels of the line.
#[cube]
fn add_line<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    gather: &GatherArgs,
    line: usize,
    start: i32,
    weights: usize,
    sums: &Registers<A, N>,
    #[comptime] clipped: bool,
    #[comptime] form: Form,
) {
    let extent = gather.width.extent;
    let pixels = pixels_of::<S, A, N>(a, gather, line, start, extent, clipped, form.along);
    #[unroll]
    for t in 0..form.along.taps {
        #[unroll]
        for channel in 0..N::value() {
            let at = comptime!(t * form.tap() + channel as u32 * form.chunk_vectors);
            let weight = packed[weights + comptime!(at as usize)];
            #[unroll]
            for r in 0..form.along.rows {
                let pixel = *pixels.index(comptime!(form.along.pixel(r, t) as usize));
                let pixel = Vector::<A, N>::new(pixel.extract(channel));
                let sum = sums.index(comptime!(r as usize));
                sum.store(fma(pixel, weight, sum.read()));
            }
        }
    }
}
