//! The kernel: each unit walks a piece of a line, block by block.

use cubecl::prelude::*;

use super::blocks::{KeptAll, elements, fetch, fetched, keep, kept, prefixes, read, suffixes};
use super::results::{Divisors, divisors_of, write_results};
use super::{Form, Pass};
use crate::cube::optional::Optional;
use crate::cube::registers::zeros;
use crate::cube::unit::unit_position;
use crate::pool::common::window::{Accumulator, counted_at, merge};

/// `S` is the type in which elements are read, `T` the type in which they are written, `A` the type of the reduction.
#[cube(launch_unchecked)]
pub(super) fn slide<S: Float, T: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, N>],
    positions: Optional<Box<[Vector<i32, N>]>>,
    output: &mut [Vector<T, M>],
    mut indices: Optional<Box<[Vector<i32, M>]>>,
    pass: &Pass,
    #[comptime] form: Form,
    #[define(S, T, A)] _types: [ElemType; 3],
) {
    let unit = unit_position(form.window.contiguous);
    if unit >= pass.units {
        terminate!();
    }
    let (rest, inner) = pass.inner.div_mod(unit);
    let (outer, piece) = pass.pieces.div_mod(rest);
    let line = line_of(pass, outer, inner, form);
    let divisors = divisors_of::<A>(pass, &line, form);
    let first = piece * pass.piece_blocks;
    let end = min(first + pass.piece_blocks, pass.blocks);

    let earlier = Earlier::<A, N> { ending: kept(form.block), totals: kept(form.whole) };
    let mut own = Shared::<[Vector<S, N>]>::new_slice(comptime!(form.kept()));
    let next = zeros::<S, N>(if comptime!(form.fetches()) { form.block } else { 0 });
    if comptime!(form.fetches()) {
        fetch::<S, N>(input, pass, &line, first, &next, form);
    }

    // Windows that start in block b end in block b + whole or b + whole + 1. The latter is block `step`.
    for step in first..end + comptime!(form.whole + 1) {
        let elements = if comptime!(form.fetches()) {
            fetched::<S, A, N>(input, &mut own, pass, &line, step, &next, form)
        } else {
            elements::<S, A, N>(input, &positions, &mut own, pass, &line, step, form)
        };
        let prefixes = prefixes::<A, N>(&elements, form);
        if step >= first + comptime!(form.whole + 1) {
            let start = step - comptime!(form.whole + 1);
            let suffixes =
                suffixes::<S, A, N>(input, &positions, &mut own, pass, &line, start, form);
            write_block::<T, A, N, M>(
                output,
                &mut indices,
                pass,
                &line,
                start,
                &suffixes,
                &earlier,
                &prefixes,
                &divisors,
                form,
            );
        }
        // The oldest whole block is dropped; the current block becomes the newest whole one.
        let whole = read::<A, N>(&earlier.totals);
        #[unroll]
        for i in 1..form.whole as usize {
            keep::<A, N>(earlier.totals.index(comptime!(i - 1)), whole.index(i));
        }
        let newest = earlier.totals.index(comptime!((form.whole - 1) as usize));
        keep::<A, N>(newest, prefixes.index(comptime!((form.block - 1) as usize)));
        #[unroll]
        for j in 0..form.block as usize {
            keep::<A, N>(earlier.ending.index(j), prefixes.index(j));
        }
    }
}

/// What is kept of the blocks before the current one.
#[derive(CubeType)]
struct Earlier<A: Float, N: Size> {
    /// The prefixes of the last block.
    ending: KeptAll<A, N>,
    /// The reductions of the last whole blocks, the oldest first.
    totals: KeptAll<A, N>,
}

/// The position of a line.
#[derive(CubeType)]
pub(super) struct Line {
    /// The vector of its first input.
    pub(super) input: u32,
    /// The vector of its first output; the element, if the outputs of a line are adjacent.
    pub(super) output: u32,
    pub(super) outer: u32,
    pub(super) inner: u32,
    /// The plane position of its first input.
    pub(super) position: u32,
}

#[cube]
fn line_of(pass: &Pass, outer: u32, inner: u32, #[comptime] form: Form) -> Line {
    let length = pass.axis.input as u32;
    let input = outer * length * pass.inner_vectors + inner;
    let output = if comptime!(form.transposes) {
        (outer * pass.inner_vectors + inner) * pass.outputs
    } else {
        outer * pass.outputs * pass.inner_vectors + inner
    };
    let pixel = if comptime!(form.window.channels) { pass.pixel.div(inner) } else { inner };
    let position = pass.before.modulo(outer) * length * pass.inner_pixels + pixel;
    Line { input, output, outer, inner, position }
}

/// Writes the outputs whose windows start in block `start`.
#[cube]
fn write_block<T: Float, A: Float, N: Size, M: Size>(
    output: &mut [Vector<T, M>],
    indices: &mut Optional<Box<[Vector<i32, M>]>>,
    pass: &Pass,
    line: &Line,
    start: u32,
    suffixes: &Sequence<Accumulator<A, N>>,
    earlier: &Earlier<A, N>,
    beyond: &Sequence<Accumulator<A, N>>,
    divisors: &Divisors<A>,
    #[comptime] form: Form,
) {
    // `middle` covers the whole blocks of a window that ends in the last of `totals`, `longer` those of a window that
    // ends one block later.
    let whole = prefixes::<A, N>(&read::<A, N>(&earlier.totals), form);
    let middle = whole.index(comptime!((form.whole.max(2) - 2) as usize));
    let longer = whole.index(comptime!((form.whole - 1) as usize));
    let ending = read::<A, N>(&earlier.ending);

    let window = comptime!(form.window);
    let first = start * comptime!(form.block / form.stride);
    let mut results = Sequence::<Accumulator<A, N>>::new();
    #[unroll]
    for i in 0..comptime!(form.block / form.stride) {
        let from = comptime!((form.block - 1 - i * form.stride) as usize);
        let to = comptime!(i * form.stride + form.rest);
        let suffix = suffixes.index(from);
        let folded = if comptime!(to >= form.block) {
            let prefix = beyond.index(comptime!((to - form.block) as usize));
            merge::<A, N>(&merge::<A, N>(suffix, longer, window), prefix, window)
        } else {
            let prefix = ending.index(comptime!(to as usize));
            if comptime!(form.whole > 1) {
                merge::<A, N>(&merge::<A, N>(suffix, middle, window), prefix, window)
            } else {
                merge::<A, N>(suffix, prefix, window)
            }
        };
        results.push(folded);
    }
    // The windows of most blocks have all their taps.
    let last = first + comptime!(form.block / form.stride - 1);
    if last < pass.outputs && counts_all(pass, first, last, form) {
        write_results::<T, A, N, M>(
            output, indices, pass, line, divisors, first, &results, true, form,
        );
    } else {
        write_results::<T, A, N, M>(
            output, indices, pass, line, divisors, first, &results, false, form,
        );
    }
}

/// Whether the windows `first` and `last` have all their taps on the axis; the windows between them then have too.
#[cube]
fn counts_all(pass: &Pass, first: u32, last: u32, #[comptime] form: Form) -> bool {
    if comptime!(!form.counts()) {
        true.runtime()
    } else {
        let all = pass.axis.kernel;
        counted_at(&pass.axis, first, form.window.axes[form.axis], form.window.fold) == all
            && counted_at(&pass.axis, last, form.window.axes[form.axis], form.window.fold) == all
    }
}
