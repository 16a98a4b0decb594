//! The work of a unit: its place, the lines of pixels that it adds, and its results.

use cubecl::prelude::*;

use super::form::{Across, Form};
use super::lines::{Line, add_line};
use crate::conv::common::{
    EpilogueArgs, GatherArgs, Point, RunArgs, finish_with, row_point, tap_point,
};
use crate::cube::optional::Optional;
use crate::cube::{Registers, unit_position, zeros};

/// The place of a unit's work.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct UnitWork {
    /// The combined index of its sample and depth.
    outer: u32,
    /// Its first row, along the height and along the width.
    line: u32,
    along: u32,
    /// The chunk that its vector of channels belongs to, and the vector's place in the chunk.
    chunk: u32,
    beside: u32,
}

/// The work of the `i`-th unit.
#[cube]
fn work_of(block: &RunArgs, i: u32, #[comptime] form: Form) -> UnitWork {
    let (rest, beside) = (i / comptime!(form.chunk_vectors), i % comptime!(form.chunk_vectors));
    let (rest, line) = block.lines.div_mod(rest);
    let (rest, along) = block.runs.div_mod(rest);
    let (outer, chunk) = block.chunks.div_mod(rest);
    UnitWork {
        outer,
        line: line * comptime!(form.lines),
        along: along * comptime!(form.along.rows),
        chunk,
        beside,
    }
}

/// One of the products of a launch.
#[derive(CubeType, CubeLaunch)]
pub(super) struct BlockArgs {
    pub(super) gather: GatherArgs,
    pub(super) run: RunArgs,
    /// Its first unit in the launch.
    pub(super) first: u32,
    #[cube(comptime)]
    pub(super) form: Form,
}

#[cube(launch_unchecked)]
pub(super) fn depthwise<S: Float, A: Float, N: Size, C: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    bias: Optional<Box<[Vector<S, C>]>>,
    epilogue: &EpilogueArgs<S, N>,
    out: &mut [Vector<S, N>],
    products: &Sequence<BlockArgs>,
    #[comptime] contiguous: bool,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let unit = unit_position(contiguous);
    #[unroll]
    for p in 0..products.len() {
        let product = products.index(p);
        // As an unsigned number, a unit before the product is larger than all of its units.
        let i = unit - product.first;
        if i < product.run.units {
            block::<S, A, N, C>(a, packed, &bias, epilogue, out, product, i);
        }
    }
}

/// Computes the block of the `i`-th unit of a product.
#[cube]
fn block<S: Float, A: Float, N: Size, C: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    bias: &Optional<Box<[Vector<S, C>]>>,
    epilogue: &EpilogueArgs<S, N>,
    out: &mut [Vector<S, N>],
    product: &BlockArgs,
    i: u32,
) {
    let (gather, run, form) = (&product.gather, &product.run, comptime!(product.form));
    let lanes = N::value() as u32;
    let work = work_of(run, i, form);
    let vector = work.chunk * comptime!(form.chunk_vectors) + work.beside;
    let (channel, rows) = if comptime!(form.across.is_some()) {
        (vector, lanes)
    } else {
        (vector * lanes, 1u32.runtime())
    };
    let first = (work.outer * run.height + work.line) * run.width + work.along;
    let row = row_point(gather, first * rows);

    let sums = zeros::<A, N>(comptime!(form.lines * form.along.rows));
    add_lines::<S, A, N>(a, packed, gather, &work, &row, channel, &sums, form);
    let first = row.other + channel * gather.out_group;
    store::<S, A, N, C>(bias, epilogue, out, gather, run, &work, &sums, vector, first, rows, form);
}

/// Adds the lines of pixels that a unit reads. `row` is the unit's first row.
#[cube]
fn add_lines<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    packed: &[Vector<A, N>],
    gather: &GatherArgs,
    work: &UnitWork,
    row: &Point,
    channel: u32,
    sums: &Registers<A, N>,
    #[comptime] form: Form,
) {
    let lanes = N::value() as u32;
    let (start, reach, extent) = if comptime!(form.across.is_some()) {
        let across = comptime!(form.across.unwrap_or(Across { lanes: 1, start: 0 }));
        let start = work.along as i32 - comptime!(form.lead(across));
        let reach = comptime!(form.vectors(across) as i32);
        (start, reach.runtime(), gather.width.extent / lanes as i32)
    } else {
        let (first, pixels) = comptime!(form.along.pixels());
        (row.width + first, (pixels as i32).runtime(), gather.width.extent)
    };
    let whole = start >= 0 && start + reach <= extent;
    let first_line =
        if comptime!(form.up) { row.height + comptime!(form.lines as i32 - 1) } else { row.height };
    let plane = row.a + channel * gather.a_group;
    for td in 0..gather.depth.taps_count {
        let d = row.depth + td as i32 * gather.depth.tap_step;
        if d >= 0 && d < gather.depth.extent {
            let plane = plane + (d * gather.depth.a_step) as u32;
            let weights = tap_point(gather, td, 0u32, 0u32).other + work.chunk * gather.b_group;
            for y in 0..gather.height.taps_count + comptime!(form.lines - 1) {
                let h = first_line + y as i32 * gather.height.tap_step;
                if h >= 0 && h < gather.height.extent {
                    let line = Line {
                        at: ((plane + (h * gather.height.a_step) as u32) / lanes) as usize,
                        start,
                        extent,
                        y,
                        weights: weights / lanes + work.beside,
                    };
                    if whole {
                        add_line::<S, A, N>(a, packed, gather, &line, sums, false, form);
                    } else {
                        add_line::<S, A, N>(a, packed, gather, &line, sums, true, form);
                    }
                }
            }
        }
    }
}

/// Stores the results of a unit. The first one is at `first`; the next one along the width is `rows` rows further.
#[cube]
fn store<S: Float, A: Float, N: Size, C: Size>(
    bias: &Optional<Box<[Vector<S, C>]>>,
    epilogue: &EpilogueArgs<S, N>,
    out: &mut [Vector<S, N>],
    gather: &GatherArgs,
    block: &RunArgs,
    work: &UnitWork,
    sums: &Registers<A, N>,
    vector: u32,
    first: u32,
    rows: u32,
    #[comptime] form: Form,
) {
    let lanes = N::value() as u32;
    #[unroll]
    for l in 0..form.lines {
        if work.line + l < block.height {
            #[unroll]
            for r in 0..form.along.rows {
                if work.along + r < block.width {
                    let along = r * rows * gather.width.out_step;
                    let at = (first + l * gather.height.out_step + along) / lanes;
                    let sum = sums.index(comptime!((l * form.along.rows + r) as usize)).read();
                    let sum = with_bias::<S, A, N, C>(
                        bias,
                        sum,
                        vector,
                        comptime!(form.across.is_some()),
                    );
                    out[at as usize] = finish_with::<S, A, N>(epilogue, sum, at);
                }
            }
        }
    }
}

/// Adds the bias to a sum: one element per lane, or one for all lanes if these are `across` a line.
#[cube]
pub(super) fn with_bias<S: Float, A: Float, N: Size, C: Size>(
    bias: &Optional<Box<[Vector<S, C>]>>,
    sum: Vector<A, N>,
    vector: u32,
    #[comptime] across: bool,
) -> Vector<A, N> {
    let mut sum = sum;
    #[comptime]
    match &bias.given {
        ComptimeOption::Some(bias) => {
            let bias = bias[vector as usize];
            if comptime!(across) {
                sum += Vector::new(A::cast_from(bias.extract(0usize)));
            } else {
                sum += Vector::cast_from(bias);
            }
        }
        ComptimeOption::None => {}
    }
    sum
}
