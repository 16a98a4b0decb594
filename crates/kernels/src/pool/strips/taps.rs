//! The taps of a strip on each axis: what is known of each at compile time, and its coordinate.

use cubecl::prelude::*;

use crate::cube::axis::{AxisArgs, AxisForm, Taps, coordinate};

/// A line of a row: a tap on each axis, the first one on the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Line {
    pub(super) depth: TapForm,
    pub(super) height: TapForm,
    pub(super) width: TapForm,
}

impl Line {
    /// Whether it may be outside the input, and must then be dropped from a sum.
    pub(super) fn drops(self) -> bool {
        self.depth.drops || self.height.drops
    }
}

/// A tap of an axis, or a row of the strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TapForm {
    pub(super) row: bool,
    pub(super) t: u32,
    /// Whether it may be outside the input, and must then be moved inside to be read.
    pub(super) moves: bool,
    /// Whether it may be outside the input, and must then be dropped from a sum.
    pub(super) drops: bool,
}

/// The coordinate of a tap, and whether it was inside before it was moved there.
#[derive(CubeType)]
pub(super) struct Step {
    pub(super) x: i32,
    pub(super) inside: bool,
}

#[cube]
pub(super) fn step(
    axis: &AxisArgs,
    taps: &Taps,
    #[comptime] tap: TapForm,
    #[comptime] form: AxisForm,
) -> Step {
    let t = comptime!(tap.t as i32);
    if comptime!(tap.row) {
        let x = taps.start + t;
        let moved = if comptime!(tap.moves) { min(max(x, 0i32), axis.input - 1) } else { x };
        Step { x: moved, inside: moved == x }
    } else if comptime!(tap.moves) {
        let inside = t >= taps.first && t < taps.end;
        Step { x: coordinate(axis, taps, t.runtime(), form), inside }
    } else {
        let x = coordinate(axis, taps, t.runtime(), form.unclipped());
        Step { x, inside: true.runtime() }
    }
}
