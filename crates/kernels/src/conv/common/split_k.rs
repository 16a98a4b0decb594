//! Split-K: long sums are split into parts, which many units compute at once, and a second kernel adds the
//! parts.
//!
//! ```text
//! parts[p, i] = Σ { terms of sum i whose number lies in part p }
//! sum[i]      = parts[0, i] + parts[1, i] + …
//! ```
//!
//! A weight or bias gradient has few sums with very many terms: with one unit per sum most of a GPU would be
//! idle. A convolution of one small image with many channels has few sums too; its epilogue is then applied after
//! the parts are added. The parts are always added in the same order, without atomics, so that the same inputs
//! give the same bits.

use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Convolution, LIMIT, Layout};

use super::arguments::Arguments;
use super::buffer::buffer;
use super::epilogue::{EpilogueForm, finish_at};
use crate::conv::problem::{Pass, Request, results, windows};
use crate::cube::convert::{accumulator, elem};
use crate::cube::unit::{grid, unit_position};
use crate::device::Capabilities;

/// The number of units that keeps a GPU busy, and the fewest terms that are worth a unit.
const BUSY: usize = 1 << 16;
const TERMS: usize = 64;

/// The most parts, where one unit computes each part.
pub(in crate::conv) fn most(conv: &Convolution, pass: Pass) -> usize {
    match pass {
        Pass::Filter | Pass::Bias => at_most(conv, pass, windows(conv)),
        _ => 1,
    }
}

/// The most parts of sums of `terms` terms, such that the partial results can still be indexed.
pub(in crate::conv) fn at_most(conv: &Convolution, pass: Pass, terms: usize) -> usize {
    (LIMIT / results(conv, pass).max(1)).min(terms).max(1)
}

/// The number of parts, where one unit computes each, that keeps the device busy.
pub(in crate::conv) fn splits(conv: &Convolution, pass: Pass, device: &Capabilities) -> usize {
    let busy = device.cores.map_or(BUSY, |cores| cores as usize);
    let wanted = busy.div_ceil(results(conv, pass).max(1));
    wanted.min(windows(conv) / TERMS).clamp(1, most(conv, pass))
}

/// Adds the parts of each sum, `[splits, results]`, and applies the epilogue.
pub(in crate::conv) fn add_parts(arguments: &Arguments<'_>, parts: &Handle) {
    let Arguments { client, conv, splits, out, epilogue, .. } = *arguments;
    let Request { pass, dtype, .. } = arguments.request;
    let elements = results(conv, pass);
    let filters = conv.filter().count();
    let plane = match conv.layout() {
        Layout::ChannelsLast => 1,
        Layout::ChannelsFirst => conv.output().plane(),
    };
    let (cubes, units) = grid(client, arguments.units, elements);
    // SAFETY: a unit past the last sum terminates; there are `splits` parts of each sum; a bias has an element for
    // each filter, and a residual one for each result.
    unsafe {
        sum_parts::launch_unchecked(
            client,
            cubes,
            units,
            1,
            buffer(parts, elements * splits),
            epilogue.bias(filters, 1),
            epilogue.residual(elements, 1),
            buffer(out, elements),
            elements as u32,
            splits as u32,
            plane as u32,
            filters as u32,
            epilogue.slope(),
            arguments.runs,
            epilogue.form(dtype),
            elem(accumulator(dtype)),
            elem(dtype),
        )
    };
}

/// `O` is always 1; the epilogue takes vectors.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "the numbers of a launch")]
fn sum_parts<A: Float, S: Float, O: Size>(
    parts: &[Vector<A, O>],
    bias: ComptimeOption<Box<[Vector<S, O>]>>,
    residual: ComptimeOption<Box<[Vector<S, O>]>>,
    out: &mut [Vector<S, O>],
    elements: u32,
    splits: u32,
    plane: FastDivmod<u32>,
    filters: FastDivmod<u32>,
    slope: f32,
    #[comptime] runs: bool,
    #[comptime] form: EpilogueForm,
    #[define(A)] _accumulator: ElemType,
    #[define(S)] _stored: ElemType,
) {
    let i = unit_position(runs);
    if i >= elements {
        terminate!();
    }
    let mut sum = Vector::<A, O>::new(A::from_int(0));
    for part in 0..splits {
        sum += parts[(part * elements + i) as usize];
    }
    // The filter of this result, which selects its bias.
    let filter = filters.modulo(plane.div(i));
    out[i as usize] = finish_at::<S, A, O>(&bias, &residual, sum, filter, i, slope, form);
}
