//! The kernel: the position of a unit's strip, and whether it is away from all edges.

use cubecl::prelude::*;

use crate::cube::optional::Optional;
use crate::cube::unit::unit_position;
use crate::pool::common::tiled;
use crate::pool::common::window::Site;
use crate::pool::strips::form::Form;
use crate::pool::strips::strip::{Strip, Strips, is_interior, site_at, strip_at};

/// `S` is the type in which elements are stored, `A` the type in which they are compared and summed. Written vectors
/// have `N` lanes, read vectors `M`.
#[cube(launch_unchecked)]
pub(super) fn strip<S: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, M>],
    output: &mut [Vector<S, N>],
    mut indices: Optional<Box<[Vector<i32, N>]>>,
    strips: &Strips,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let unit = unit_position(form.window.contiguous);
    if unit >= strips.units {
        terminate!();
    }
    let tile = tile_of::<S, M>(input, strips, unit, form);
    let inner = if comptime!(form.splits()) {
        is_interior(strips, &tile.strip, form)
    } else {
        false.runtime()
    };
    if comptime!(form.window.fold.has_index()) {
        let has_nan = if inner {
            tile.interior().write_positions::<A, N>(output, &mut indices)
        } else {
            tile.write_positions::<A, N>(output, &mut indices)
        };
        if has_nan {
            tile.index_nans::<A, N>(&mut indices);
        }
    } else if inner {
        tile.interior().write_values::<A, N>(output, &mut indices);
    } else {
        tile.write_values::<A, N>(output, &mut indices);
    }
}

/// A unit's strip, or the first of several side by side, and what the unit reads.
#[derive(CubeType)]
pub(super) struct Tile<'a, S: Float, M: Size> {
    pub(super) input: &'a [Vector<S, M>],
    pub(super) strips: &'a Strips,
    pub(super) strip: Strip<'a>,
    /// The first of the columns that belong to this unit only.
    pub(super) first_own: u32,
    #[cube(comptime)]
    pub(super) form: Form,
}

#[cube]
fn tile_of<'a, S: Float, M: Size>(
    input: &'a [Vector<S, M>],
    strips: &'a Strips,
    unit: u32,
    #[comptime] form: Form,
) -> Tile<'a, S, M> {
    let (w, lane, row) = if comptime!(form.window.channels) {
        tiled(&strips.tiles, &strips.width, unit)
    } else {
        let (row, w) = strips.width.div_mod(unit);
        (w, 0u32.runtime(), row)
    };
    let w = if comptime!(form.along.axis == 2) { w * comptime!(form.along.outputs) } else { w };
    // The last block has as many columns as the others; some of them may belong to the block before it too.
    let own = w * form.columns;
    let w = if comptime!(form.columns > 1) {
        min(own, strips.outputs_width - form.columns)
    } else {
        own
    };
    let strip = strip_at(strips, row, w, lane, form);
    Tile::<'a, S, M> { input, strips, strip, first_own: own - w, form }
}

#[cube]
impl<'a, S: Float, M: Size> Tile<'a, S, M> {
    /// The same for a strip that is away from all edges.
    fn interior(&self) -> Tile<'a, S, M> {
        let form = comptime!(self.form.interior());
        let (input, strips, strip) = (self.input, self.strips, self.strip);
        Tile::<'a, S, M> { input, strips, strip, first_own: self.first_own, form }
    }
}

/// The site of the strip's output `i`, in column `v` of the strip.
#[cube]
pub(super) fn site_of<'a>(
    strip: &Strip<'a>,
    #[comptime] i: u32,
    #[comptime] v: u32,
    #[comptime] form: Form,
) -> Site<'a> {
    let (o, axis) = (strip.first + i, comptime!(form.along.axis));
    let column = if comptime!(axis == 2) { o } else { strip.site.column + v };
    site_at(strip, o, column, comptime!(axis == 2 || v > 0), form)
}
