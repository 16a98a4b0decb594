//! The blocks of a line: how their inputs are loaded, what is kept of them, and their prefixes and suffixes.
//!
//! Reductions are merged whatever the order of their taps, because axes are walked one after the other.

use cubecl::prelude::*;

use super::kernel::Line;
use super::{Form, Pass};
use crate::cube::convert::widen;
use crate::cube::optional::Optional;
use crate::cube::registers::Registers;
use crate::pool::common::window::{Accumulator, merge};

/// Values and positions that are kept in registers from one block to the next.
pub(super) type KeptAll<A, N> = Sequence<Kept<A, N>>;

/// One of them.
#[derive(CubeType)]
pub(super) struct Kept<A: Float, N: Size> {
    pub(super) value: RuntimeCell<Vector<A, N>>,
    pub(super) position: RuntimeCell<Vector<i32, N>>,
}

#[cube]
pub(super) fn kept<A: Float, N: Size>(#[comptime] count: u32) -> KeptAll<A, N> {
    let mut all = Sequence::<Kept<A, N>>::new();
    #[unroll]
    for _ in 0..count {
        all.push(Kept::<A, N> {
            value: RuntimeCell::<Vector<A, N>>::new(Vector::new(A::from_int(0))),
            position: RuntimeCell::<Vector<i32, N>>::new(Vector::new(0i32)),
        });
    }
    all
}

#[cube]
pub(super) fn keep<A: Float, N: Size>(kept: &Kept<A, N>, folded: &Accumulator<A, N>) {
    kept.value.store(folded.value);
    kept.position.store(folded.position);
}

#[cube]
pub(super) fn read<A: Float, N: Size>(kept: &KeptAll<A, N>) -> Sequence<Accumulator<A, N>> {
    let mut all = Sequence::<Accumulator<A, N>>::new();
    #[unroll]
    for i in 0..kept.len() {
        let kept = kept.index(i);
        all.push(Accumulator::<A, N> { value: kept.value.read(), position: kept.position.read() });
    }
    all
}

/// The reductions of the first 1, 2, … elements.
#[cube]
pub(super) fn prefixes<A: Float, N: Size>(
    elements: &Sequence<Accumulator<A, N>>,
    #[comptime] form: Form,
) -> Sequence<Accumulator<A, N>> {
    let mut prefixes = Sequence::<Accumulator<A, N>>::new();
    prefixes.push(*elements.index(0usize));
    #[unroll]
    for j in 1..elements.len() {
        let before = prefixes.index(comptime!(j - 1));
        prefixes.push(merge::<A, N>(before, elements.index(j), form.window));
    }
    prefixes
}

/// The reductions of the last 1, 2, … inputs of a block.
#[cube]
pub(super) fn suffixes<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    positions: &Optional<Box<[Vector<i32, N>]>>,
    own: &mut Shared<[Vector<S, N>]>,
    pass: &Pass,
    line: &Line,
    block: u32,
    #[comptime] form: Form,
) -> Sequence<Accumulator<A, N>> {
    let elements = if comptime!(form.keeps) {
        kept_elements::<S, A, N>(own, block, form)
    } else {
        elements::<S, A, N>(input, positions, own, pass, line, block, form)
    };
    let last = comptime!((form.block - 1) as usize);
    let mut suffixes = Sequence::<Accumulator<A, N>>::new();
    suffixes.push(*elements.index(last));
    #[unroll]
    for j in 1..form.block {
        let next = comptime!(j as usize);
        let element = elements.index(comptime!(last - next));
        suffixes.push(merge::<A, N>(element, suffixes.index(comptime!(next - 1)), form.window));
    }
    suffixes
}

/// The inputs of a block. Most blocks are inside the input.
#[cube]
pub(super) fn elements<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    positions: &Optional<Box<[Vector<i32, N>]>>,
    own: &mut Shared<[Vector<S, N>]>,
    pass: &Pass,
    line: &Line,
    block: u32,
    #[comptime] form: Form,
) -> Sequence<Accumulator<A, N>> {
    let cells = kept::<A, N>(form.block);
    let first = (block * form.block) as i32 - pass.axis.before;
    let inside = first >= 0 && first + comptime!(form.block as i32) <= pass.axis.input;
    // A maximum drops nothing, so a second path would only hold more addresses in registers.
    if comptime!(!form.window.fold.is_extremum()) && inside {
        load::<S, A, N>(input, positions, own, pass, line, block, &cells, true, form);
    } else {
        load::<S, A, N>(input, positions, own, pass, line, block, &cells, false, form);
    }
    read::<A, N>(&cells)
}

/// Starts loading a block of inputs. Positions outside the input load the nearest input inside.
#[cube]
pub(super) fn fetch<S: Float, N: Size>(
    input: &[Vector<S, N>],
    pass: &Pass,
    line: &Line,
    block: u32,
    next: &Registers<S, N>,
    #[comptime] form: Form,
) {
    let first = (block * form.block) as i32 - pass.axis.before;
    #[unroll]
    for j in 0..form.block {
        let there = min(max(first + j as i32, 0i32), pass.axis.input - 1);
        let at = (line.input + there as u32 * pass.inner_vectors) as usize;
        next.index(comptime!(j as usize)).store(input[at]);
    }
}

/// Returns the block that was fetched before, and starts loading the next one. For a position outside the input, a
/// maximum uses the nearest input inside, which every window over that position contains too; a sum uses 0.
#[cube]
pub(super) fn fetched<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    own: &mut Shared<[Vector<S, N>]>,
    pass: &Pass,
    line: &Line,
    block: u32,
    next: &Registers<S, N>,
    #[comptime] form: Form,
) -> Sequence<Accumulator<A, N>> {
    let first = (block * form.block) as i32 - pass.axis.before;
    let kept = if comptime!(form.keeps) { kept_at(block, form) } else { 0u32.runtime() };
    let mut elements = Sequence::<Accumulator<A, N>>::new();
    #[unroll]
    for j in 0..form.block {
        let x = first + j as i32;
        let loaded = next.index(comptime!(j as usize)).read();
        let element = if comptime!(form.window.fold.is_extremum()) {
            loaded
        } else {
            select(x >= 0 && x < pass.axis.input, loaded, Vector::new(S::from_int(0)))
        };
        let kept = kept + comptime!(j * form.units);
        elements.push(taken::<S, A, N>(own, element, kept, Vector::new(0i32), form));
    }
    fetch::<S, N>(input, pass, line, block + 1u32, next, form);
    elements
}

/// The inputs of a block that the unit has read before and kept.
#[cube]
fn kept_elements<S: Float, A: Float, N: Size>(
    own: &mut Shared<[Vector<S, N>]>,
    block: u32,
    #[comptime] form: Form,
) -> Sequence<Accumulator<A, N>> {
    let first = kept_at(block, form);
    let mut elements = Sequence::<Accumulator<A, N>>::new();
    #[unroll]
    for j in 0..form.block {
        let value = own[(first + comptime!(j * form.units)) as usize];
        let value = widen::<S, A, N>(value, form.window.widened);
        elements.push(Accumulator::<A, N> { value, position: Vector::new(0i32) });
    }
    elements
}

/// An input as it is reduced. If the unit keeps what it reads, the input is stored at `kept` in shared memory.
#[cube]
fn taken<S: Float, A: Float, N: Size>(
    own: &mut Shared<[Vector<S, N>]>,
    input: Vector<S, N>,
    kept: u32,
    position: Vector<i32, N>,
    #[comptime] form: Form,
) -> Accumulator<A, N> {
    if comptime!(form.keeps) {
        own[kept as usize] = input;
    }
    Accumulator::<A, N> { value: widen::<S, A, N>(input, form.window.widened), position }
}

/// The position in shared memory at which a unit keeps the first input of a block.
#[cube]
fn kept_at(block: u32, #[comptime] form: Form) -> u32 {
    block % comptime!(form.blocks()) * comptime!(form.block * form.units) + UNIT_POS
}

/// Loads a block; `inside` means that all of it is inside the input. For a position outside, a maximum uses the nearest
/// input inside, which every window over that position contains too; a sum uses 0.
#[cube]
fn load<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    positions: &Optional<Box<[Vector<i32, N>]>>,
    own: &mut Shared<[Vector<S, N>]>,
    pass: &Pass,
    line: &Line,
    block: u32,
    cells: &KeptAll<A, N>,
    #[comptime] inside: bool,
    #[comptime] form: Form,
) {
    let first = (block * form.block) as i32 - pass.axis.before;
    let kept = if comptime!(form.keeps) { kept_at(block, form) } else { 0u32.runtime() };
    #[unroll]
    for j in 0..form.block {
        let x = first + j as i32;
        let there = if comptime!(inside) { x } else { min(max(x, 0i32), pass.axis.input - 1) };
        let at = (line.input + there as u32 * pass.inner_vectors) as usize;
        let element = if comptime!(inside || form.window.fold.is_extremum()) {
            input[at]
        } else {
            select(x == there, input[at], Vector::new(S::from_int(0)))
        };
        #[comptime]
        let position = match &positions.given {
            ComptimeOption::Some(positions) => positions[at],
            ComptimeOption::None => {
                Vector::new((line.position + there as u32 * pass.inner_pixels) as i32)
            }
        };
        let kept = kept + comptime!(j * form.units);
        let element = taken::<S, A, N>(own, element, kept, position, form);
        keep::<A, N>(cells.index(comptime!(j as usize)), &element);
    }
}
