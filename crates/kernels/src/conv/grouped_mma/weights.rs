//! The weights of a group as banded matrices, in the registers of a plane.

use cubecl::prelude::*;

use super::block::PlaneWork;
use super::form::{CHUNK, Form};
use crate::conv::common::tap_point;
use crate::cube::{Registers, zeros};

/// The offsets of a unit's weights in a line of taps of a group, and which weights of each pair exist.
///
/// ```text
/// band[k, n] = w[f of group, th, tap by which window n/GROUP of a tile reads pixel k/GROUP, k%GROUP]
/// f = n%GROUP    n = unit/4    k = 2·(unit%4) + i%2 + 8·(i/2)
/// ```
///
/// `k` counts from the first strip, 16 per pair. A weight that does not exist is read at the place of another one.
#[derive(CubeType)]
pub(super) struct Offsets {
    /// The offsets, two per load.
    pub(super) at: Sequence<u32>,
    /// The bit masks of the weights that exist, one mask per strip.
    pub(super) masks: Sequence<u32>,
}

#[cube]
pub(super) fn offsets_of(work: &PlaneWork<'_>) -> Offsets {
    let form = comptime!(work.form);
    let (first, step, tap_step, taps) = comptime!((
        form.tile.pixels().0,
        form.tile.step,
        form.tile.tap_step,
        form.tile.taps as i32
    ));
    let (n, quad) = (work.unit / 4, work.unit % 4);
    let (window, column) = (n / comptime!(form.group), n % comptime!(form.group));
    let mut all = Sequence::<u32>::new();
    let mut masks = Sequence::<u32>::new();
    #[unroll]
    for strip in 0..form.reach() {
        let mut mask = 0u32.runtime();
        #[unroll]
        for i in 0..2u32 {
            let k = 2 * quad + comptime!(strip * CHUNK + i);
            let (pixel, inner) = (k / comptime!(form.group), k % comptime!(form.group));
            let pixel = pixel as i32 + first - window as i32 * step;
            let tap = pixel / tap_step;
            let is_there = tap * tap_step == pixel && tap >= 0 && tap < taps;
            let of_tap = inner * work.gather.b_inner + tap as u32 * work.gather.width.b_step;
            all.push(column * work.block.column_step + select(is_there, of_tap, 0u32));
            mask |= select(is_there, comptime!(0xffffu32 << (16 * i)), 0u32);
        }
        masks.push(mask);
    }
    let mut at = Sequence::<u32>::new();
    #[unroll]
    for load in 0..form.weight_loads() {
        let (strip, other) = comptime!(form.strips_of_load(load));
        let is_first = *masks.index(comptime!(strip as usize)) != 0;
        #[unroll]
        for i in 0..2u32 {
            let first = *all.index(comptime!((2 * strip + i) as usize));
            let second = *all.index(comptime!((2 * other + i) as usize));
            at.push(select(is_first, first, second));
        }
    }
    Offsets { at, masks }
}

/// Pairs of weights, two pairs to a fragment, for each step, and for each line of taps if these are held.
pub(super) type Weights<S> = Registers<S, Const<2>>;

#[cube]
pub(super) fn no_weights<S: Float>(#[comptime] form: Form) -> Weights<S> {
    zeros::<S, Const<2>>(comptime!(form.held_lines() * form.steps() * 2))
}

/// Loads the weights of a group for all lines of taps that are held, starting with line `th`.
#[cube]
pub(super) fn fill<S: Float>(
    w: &[S],
    work: &PlaneWork<'_>,
    offsets: &Offsets,
    weights: &Weights<S>,
    group: u32,
    th: u32,
) {
    let form = comptime!(work.form);
    let group = work.chunk * comptime!(form.wide()) + group;
    let line = group * work.gather.b_group + tap_point(work.gather, 0u32, th, 0u32).other;
    let (lines, steps) = comptime!((form.held_lines(), form.steps()));
    // The same weight of all lines is read from one base address.
    let span = comptime!(((lines - 1) * form.weight_step + 1) as usize);
    #[unroll]
    for load in 0..form.weight_loads() {
        let (strip, other) = comptime!(form.strips_of_load(load));
        let first = (line + *offsets.at.index(comptime!((2 * load) as usize))) as usize;
        let last = (line + *offsets.at.index(comptime!((2 * load + 1) as usize))) as usize;
        let (first, last) = (&w[first..first + span], &w[last..last + span]);
        #[unroll]
        for th in 0..lines {
            let at = comptime!((th * form.weight_step) as usize);
            let mut both = Vector::<S, Const<2>>::empty();
            both.insert(0usize, first[at]);
            both.insert(1usize, last[at]);
            let both = u32::reinterpret(both);
            #[unroll]
            for strip in strip..other + 1 {
                let bits = both & *offsets.masks.index(comptime!(strip as usize));
                let held = comptime!((th * steps * 2 + strip) as usize);
                weights.index(held).store(Vector::<S, Const<2>>::reinterpret(bits));
            }
        }
    }
}
