//! The kernels of extrema under a footprint.

use cubecl::prelude::*;

use super::{Form, Space, TOGETHER};
use crate::cube::convert::{extremum, narrow, widen};
use crate::cube::registers::Registers;
use crate::cube::unit::unit_position;

/// Each element and the one `by` vectors on.
#[cube(launch_unchecked)]
pub(super) fn doubled<S: Float, A: Float, N: Size>(
    level: &[Vector<S, N>],
    next: &mut [Vector<S, N>],
    vectors: u32,
    by: u32,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let at = unit_position(form.contiguous);
    if at >= vectors {
        terminate!();
    }
    // The last ones combine with themselves.
    let other = select(at + by < vectors, at + by, at);
    let own = widen::<S, A, N>(level[at as usize], form.widened);
    let other = widen::<S, A, N>(level[other as usize], form.widened);
    let both = extremum::<A, N>(own, other, form.extremum);
    next[at as usize] = narrow::<A, S, N>(both, form.widened);
}

/// The extrema of a level at all places after each output's own.
#[cube(launch_unchecked)]
pub(super) fn combined<S: Float, A: Float, N: Size>(
    level: &[Vector<S, N>],
    places: &[u32],
    y: &mut [Vector<S, N>],
    space: &Space,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let unit = unit_position(form.contiguous);
    if unit >= space.units {
        terminate!();
    }
    let mut best = Registers::<A, N>::new();
    let mut from = Sequence::<u32>::new();
    #[unroll]
    for i in 0..TOGETHER {
        // The last ones are computed several times.
        let output = min(unit + i as u32 * space.units, space.vectors - 1);
        let start = input_of(space, output);
        let element = if comptime!(form.first) {
            level[(start + places[0]) as usize]
        } else {
            y[output as usize]
        };
        best.push(RuntimeCell::new(widen::<S, A, N>(element, form.widened)));
        from.push(start);
    }
    for piece in 0..space.pieces {
        let place = places[piece as usize];
        #[unroll]
        for i in 0..TOGETHER {
            let element = level[(*from.index(i) + place) as usize];
            let element = widen::<S, A, N>(element, form.widened);
            let both = extremum::<A, N>(best.index(i).read(), element, form.extremum);
            best.index(i).store(both);
        }
    }
    #[unroll]
    for i in 0..TOGETHER {
        let output = unit + i as u32 * space.units;
        if output < space.vectors {
            y[output as usize] = narrow::<A, S, N>(best.index(i).read(), form.widened);
        }
    }
}

/// The position in the input where the window of an output begins.
#[cube]
fn input_of(space: &Space, output: u32) -> u32 {
    let (rest, channel) = space.pixel.div_mod(output);
    let (rest, w) = space.width.div_mod(rest);
    let (rest, h) = space.height.div_mod(rest);
    let (sample, d) = space.depth.div_mod(rest);
    let row = (sample * space.planes + d) * space.rows + h;
    (row * space.row + w) * space.channels + channel
}
