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
//! the parts are added. Many parts of a sum are added by several units, which then add their sums. The parts are always
//! added in the same order, without atomics, so that the same inputs give the same bits.

use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Convolution, LIMIT, Layout};

use super::{Arguments, EpilogueArgs, buffer, finish_at, widest_load};
use crate::conv::problem::{Pass, Request, Task, results, windows};
use crate::cube::{accumulator, elem, grid, unit_position};
use crate::device::Capabilities;

/// The number of units that keeps a GPU busy, and the fewest terms that are worth a unit.
const BUSY: usize = 1 << 16;
const TERMS: usize = 64;

/// The most parts, where one unit computes each part.
pub(crate) fn most(conv: &Convolution, pass: Pass) -> usize {
    match pass {
        Pass::Weight | Pass::Bias => at_most(conv, pass, windows(conv)),
        _ => 1,
    }
}

/// The most parts of sums of `terms` terms, such that the partial results can still be indexed.
pub(crate) fn at_most(conv: &Convolution, pass: Pass, terms: usize) -> usize {
    (LIMIT / results(conv, pass).max(1)).min(terms).max(1)
}

/// The number of parts, where one unit computes each, that keeps the device busy.
pub(crate) fn splits(task: Task<'_>) -> usize {
    let Task { conv, request: Request { pass, .. }, device } = task;
    let busy = device.cores.map_or(BUSY, |cores| cores as usize);
    let wanted = busy.div_ceil(results(conv, pass).max(1));
    wanted.min(windows(conv) / TERMS).clamp(1, most(conv, pass))
}

/// The estimated seconds of adding the parts, if there are several, after another launch.
pub(crate) fn seconds(
    Task { conv, request: Request { pass, dtype, .. }, device }: Task<'_>,
    splits: usize,
) -> f64 {
    if splits < 2 {
        return 0.0;
    }
    let bytes = splits * accumulator(dtype).size() + dtype.size();
    device.next_launch_seconds() + device.copy_seconds((bytes * results(conv, pass)) as f64)
}

/// Adds the parts of each sum, `[splits, results]`, and applies the epilogue.
pub(crate) fn add_parts(arguments: &Arguments<'_>, parts: &Handle) {
    let Arguments { client, splits, stored, out, epilogue, .. } = *arguments;
    let Task { conv, request: Request { pass, dtype, .. }, .. } = arguments.task;
    let elements = results(conv, pass);
    let filters = conv.filter().count();
    let plane = match conv.layout() {
        Layout::ChannelsLast => 1,
        Layout::ChannelsFirst => conv.output().plane(),
    };
    // A vector of sums has a vector of biases and scales.
    let whole = elements.is_multiple_of(QUAD)
        && (!epilogue.depends_on_filter() || (plane == 1 && filters.is_multiple_of(QUAD)));
    let width =
        if whole { widest_load(accumulator(dtype), arguments.task.device) as usize } else { 1 };
    let vectors = elements / width;
    let units_per_sum = units_per_sum(vectors, splits, arguments.task.device);
    let (cubes, units) = match units_per_sum {
        1 => grid(client, arguments.units, vectors),
        _ => {
            let whole = vectors.next_multiple_of((UNITS / units_per_sum) as usize);
            grid(client, UNITS, whole * units_per_sum as usize)
        }
    };
    // SAFETY: units past the last sum store nothing; there are `splits` parts of each sum; a bias has an element for
    // each filter, and a residual one for each result.
    unsafe {
        sum_parts::launch_unchecked(
            client,
            cubes,
            units,
            width,
            buffer(parts, vectors * splits),
            epilogue.args(filters, elements, width, stored),
            buffer(out, vectors),
            vectors as u32,
            splits as u32,
            plane as u32,
            filters.div_ceil(width) as u32,
            units_per_sum,
            arguments.contiguous,
            elem(accumulator(dtype)),
            elem(stored),
        )
    };
}

/// The largest number of lanes of a vector of sums.
const QUAD: usize = 4;

/// The units of a cube in which several units add the parts of a sum, the numbers of units that may do so, and the parts
/// that one unit adds if there are not too many units: with few sums of many parts, one unit each would wait for one part
/// after the other.
const UNITS: u32 = 256;
const UNITS_PER_SUM: [u32; 2] = [16, 4];
const PARTS_PER_UNIT: usize = 8;

/// The parts that a unit loads before it adds them.
const AT_ONCE: u32 = 4;

/// The number of units that add the parts of a vector of sums.
fn units_per_sum(vectors: usize, splits: usize, device: &Capabilities) -> u32 {
    let cooperate = device.cores.is_none()
        && device.shared_bytes >= UNITS as usize * QUAD * size_of::<f32>()
        && device.units_per_cube >= UNITS;
    // Where the next smaller number of units would have many parts each, and would leave the device idle.
    let is_worthwhile = |units: &u32| {
        let fewer = *units as usize / 4;
        splits > fewer * PARTS_PER_UNIT && vectors * fewer < BUSY
    };
    UNITS_PER_SUM.into_iter().filter(|_| cooperate).find(is_worthwhile).unwrap_or(1)
}

/// Adds the parts of a vector of sums, and applies the epilogue. `elements` and `filters` count vectors.
#[cube(launch_unchecked)]
fn sum_parts<A: Float, S: Float, O: Size>(
    parts: &[Vector<A, O>],
    epilogue: &EpilogueArgs<S, O>,
    out: &mut [Vector<S, O>],
    elements: u32,
    splits: u32,
    plane: FastDivmod<u32>,
    filters: FastDivmod<u32>,
    #[comptime] units_per_sum: u32,
    #[comptime] contiguous: bool,
    #[define(A)] _accumulator: ElemType,
    #[define(S)] _stored: ElemType,
) {
    if comptime!(units_per_sum == 1) {
        let i = unit_position(contiguous);
        if i >= elements {
            terminate!();
        }
        let sum = sum_of::<A, O>(parts, i, 0u32.runtime(), 1u32, elements, splits);
        // The filter of this result, which selects its bias.
        let filter = filters.modulo(plane.div(i));
        out[i as usize] = finish_at::<S, A, O>(epilogue, sum, filter, i);
    } else {
        // Neighbouring units have neighbouring sums.
        let across = comptime!(UNITS / units_per_sum);
        let i = CUBE_POS as u32 * across + UNIT_POS % across;
        let mut sums = Shared::<[Vector<A, O>]>::new_slice(comptime!(UNITS as usize));
        let read = min(i, elements - 1);
        sums[UNIT_POS as usize] =
            sum_of::<A, O>(parts, read, UNIT_POS / across, units_per_sum, elements, splits);
        sync_cube();
        if UNIT_POS < across && i < elements {
            let mut sum = sums[UNIT_POS as usize];
            #[unroll]
            for unit in 1..units_per_sum {
                sum += sums[(UNIT_POS + unit * across) as usize];
            }
            let filter = filters.modulo(plane.div(i));
            out[i as usize] = finish_at::<S, A, O>(epilogue, sum, filter, i);
        }
    }
}

/// The sum of every `step`-th part of sum `i`, from part `first` on.
#[cube]
fn sum_of<A: Float, O: Size>(
    parts: &[Vector<A, O>],
    i: u32,
    first: u32,
    #[comptime] step: u32,
    elements: u32,
    splits: u32,
) -> Vector<A, O> {
    let mut sum = Vector::<A, O>::new(A::from_int(0));
    let mut part = first;
    while part + comptime!((AT_ONCE - 1) * step) < splits {
        // All are loaded before the first is added, so that the loads overlap.
        let mut next = Sequence::<Vector<A, O>>::new();
        #[unroll]
        for nth in 0..AT_ONCE {
            next.push(parts[((part + comptime!(nth * step)) * elements + i) as usize]);
        }
        #[unroll]
        for nth in 0..AT_ONCE {
            sum += *next.index(comptime!(nth as usize));
        }
        part += comptime!(AT_ONCE * step);
    }
    while part < splits {
        sum += parts[(part * elements + i) as usize];
        part += step;
    }
    sum
}
