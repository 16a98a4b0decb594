//! The kernels of unpooling: reset the sources, settle them, and read through them.

use cubecl::prelude::*;

use crate::cube::unit::unit_position;
use crate::pool::common::place::{PlaceArgs, memory_of, position_of};

/// The memory position of the input that the index of output `at` names: −1 for no index, −2 if it is out of range.
#[cube]
fn place_of(args: &PlaceArgs, at: u32, index: i32) -> i32 {
    let (pixel, lane) = args.lanes.div_mod(at);
    let outer = args.windows.div(pixel);
    let position = position_of(args, outer, lane, index);
    let place = memory_of(args, outer, lane, max(position, 0i32) as u32);
    select(position >= 0, place as i32, position)
}

#[cube(launch_unchecked)]
pub(super) fn forget(sources: &mut [i32], inputs: u32, #[comptime] contiguous: bool) {
    let at = unit_position(contiguous);
    if at >= inputs {
        terminate!();
    }
    sources[at as usize] = -1;
}

#[cube(launch_unchecked)]
pub(super) fn settle_sources(
    indices: &[i32],
    sources: &[Atomic<i32>],
    note: &[Atomic<i32>],
    args: &PlaceArgs,
    #[comptime] contiguous: bool,
) {
    let at = unit_position(contiguous);
    if at >= args.outputs {
        terminate!();
    }
    let place = place_of(args, at, indices[at as usize]);
    if place >= 0 {
        sources[place as usize].fetch_max(at as i32);
    } else if place == -2 {
        note[0].fetch_min(at as i32);
    }
}

#[cube(launch_unchecked)]
pub(super) fn unpool<S: Numeric>(
    y: &[S],
    sources: &[i32],
    x: &mut [S],
    inputs: u32,
    #[comptime] contiguous: bool,
    #[define(S)] _stored: ElemType,
) {
    let at = unit_position(contiguous);
    if at >= inputs {
        terminate!();
    }
    let source = sources[at as usize];
    // Element 0 is read if there is no source, so that the load is valid.
    let found = y[max(source, 0) as usize];
    x[at as usize] = select(source >= 0, found, S::from_int(0));
}

#[cube(launch_unchecked)]
pub(super) fn unpool_backward<S: Numeric>(
    dx: &[S],
    indices: &[i32],
    sources: &[i32],
    dy: &mut [S],
    args: &PlaceArgs,
    #[comptime] contiguous: bool,
    #[define(S)] _stored: ElemType,
) {
    let at = unit_position(contiguous);
    if at >= args.outputs {
        terminate!();
    }
    let place = place_of(args, at, indices[at as usize]);
    let there = max(place, 0) as usize;
    let counts = place >= 0 && sources[there] == at as i32;
    dy[at as usize] = select(counts, dx[there], S::from_int(0));
}
