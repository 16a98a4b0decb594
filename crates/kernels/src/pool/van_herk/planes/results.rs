//! How windows' sums become results, and how these are written.

use cubecl::prelude::*;

use super::kernel::Tile;
use super::rows::Item;
use super::{Form, One, TileArgs};
use crate::pool::common::window::{ProblemArgs, counted_at, quotient, reciprocal, stored};

/// The divisors of a tile's columns, computed once.
#[derive(CubeType)]
pub(super) struct Tables<A: Float> {
    /// The number of taps of a window that are counted along the depth, for all windows of the plane.
    depth: i32,
    /// The number of taps of a window that are counted along the depth and the width.
    counts: Shared<[Vector<A, One>]>,
    /// The factor for the sum of a window that has all its rows.
    usual: Shared<[Vector<A, One>]>,
}

#[cube]
pub(super) fn tables_of<A: Float>(
    args: &TileArgs,
    tile: &Tile,
    #[comptime] form: Form,
) -> Tables<A> {
    let columns = comptime!(if form.counts() { form.layout.columns } else { 1 });
    let mut counts = Shared::<[Vector<A, One>]>::new_slice(columns as usize);
    let mut usual = Shared::<[Vector<A, One>]>::new_slice(columns as usize);
    let depth = if comptime!(form.deep && form.window.fold.counts()) {
        let d = args.depth.output.modulo(tile.at.plane);
        counted_at(&args.depth, d, form.window.axes[0], form.window.fold)
    } else {
        1i32.runtime()
    };
    if comptime!(form.counts()) {
        for j in range_stepped(UNIT_POS, columns, CUBE_DIM) {
            let column = min(tile.at.column + j, args.output_width - 1);
            let taps =
                counted_at(&args.problem.width, column, form.window.axes[2], form.window.fold)
                    * depth;
            counts[j as usize] = Vector::new(A::cast_from(taps));
            usual[j as usize] = factor::<A>(A::cast_from(taps * args.problem.height.kernel), form);
        }
    }
    Tables::<A> { depth, counts, usual }
}

/// The factor for a sum over `taps` taps; the divisor itself, if sums are divided.
#[cube]
fn factor<A: Float>(taps: A, #[comptime] form: Form) -> Vector<A, One> {
    Vector::new(if comptime!(form.window.reciprocal) { A::from_int(1) / taps } else { taps })
}

/// The factors for the windows of a block on row `h`.
#[cube]
fn factors_of<A: Float>(
    problem: &ProblemArgs,
    tables: &Tables<A>,
    h: u32,
    block: u32,
    #[comptime] form: Form,
) -> Sequence<Vector<A, One>> {
    let mut factors = Sequence::<Vector<A, One>>::new();
    if comptime!(form.window.fold.is_fixed()) {
        factors.push(factor::<A>(A::cast_from(problem.divisor), form));
    } else {
        let rows = counted_at(&problem.height, h, form.window.axes[1], form.window.fold);
        if comptime!(form.counts()) {
            let first = (block * form.width.block) as usize;
            let mut cells = Sequence::<RuntimeCell<Vector<A, One>>>::new();
            #[unroll]
            for j in 0..form.width.block as usize {
                cells.push(RuntimeCell::new(tables.usual[first + j]));
            }
            if rows != problem.height.kernel {
                let rows = A::cast_from(rows);
                let fewer = A::cast_from(problem.height.kernel) / rows;
                #[unroll]
                for j in 0..form.width.block as usize {
                    let taps = tables.counts[first + j].extract(0usize) * rows;
                    let own = if comptime!(form.window.reciprocal) {
                        reciprocal::<A>(taps, tables.usual[first + j].extract(0usize) * fewer)
                    } else {
                        taps
                    };
                    cells.index(j).store(Vector::new(own));
                }
            }
            #[unroll]
            for j in 0..form.width.block as usize {
                factors.push(cells.index(j).read());
            }
        } else {
            let taps = rows * problem.width.kernel * tables.depth;
            factors.push(factor::<A>(A::cast_from(taps), form));
        }
    }
    factors
}

/// Writes the windows of an item to the output, or to `results` in shared memory.
#[cube]
pub(super) fn write<T: Float, A: Float, P: Size, M: Size>(
    output: &mut [Vector<T, M>],
    args: &TileArgs,
    tables: &Tables<A>,
    results: &mut Shared<[Vector<A, One>]>,
    tile: &Tile,
    rows: u32,
    item: &Item,
    folds: &Sequence<Vector<A, P>>,
    #[comptime] form: Form,
) {
    let h = rows * form.height.block + item.row;
    let factors = if comptime!(form.window.fold.is_extremum()) {
        Sequence::<Vector<A, One>>::new()
    } else {
        factors_of::<A>(&args.problem, tables, h, item.block, form)
    };
    let mut values = Sequence::<Vector<A, P>>::new();
    #[unroll]
    for j in 0..folds.len() {
        values.push(if comptime!(form.window.fold.is_extremum()) {
            *folds.index(j)
        } else {
            let own = comptime!(if form.counts() { j } else { 0 });
            let factor = Vector::<A, P>::new(factors.index(own).extract(0usize));
            if comptime!(form.window.reciprocal) {
                *folds.index(j) * factor
            } else {
                quotient::<A, P>(*folds.index(j), factor, form.window)
            }
        });
    }
    let first = item.block * form.width.block;
    if comptime!(form.written == 0) {
        let vectors = comptime!(form.vectors());
        let at = (item.row * form.layout.results() + first * vectors + item.vector) as usize;
        #[unroll]
        for j in 0..values.len() {
            let value = values.index(j).extract(0usize);
            results[at + comptime!(j * vectors as usize)] = Vector::new(value);
        }
    } else if h < args.output_height {
        let lanes = comptime!(form.written);
        // The number of windows in a written vector.
        let each = comptime!(if form.one_channel { form.written as usize } else { 1 });
        let row = (tile.at.plane * args.output_height + h) * args.line_written;
        let column = tile.at.column + first;
        let at = if comptime!(form.one_channel) {
            row + column / lanes
        } else {
            let vectors = comptime!(form.vectors());
            row + column * args.pixel_written + tile.at.group * vectors + item.vector
        };
        #[unroll]
        for g in 0..comptime!(form.width.block as usize / each) {
            if first + comptime!((g * each) as u32) < tile.columns {
                let mut value = Vector::<A, M>::new(A::from_int(0));
                #[unroll]
                for m in 0..lanes as usize {
                    let (window, lane) =
                        comptime!(if form.one_channel { (g * each + m, 0) } else { (g, m) });
                    value.insert(m, values.index(window).extract(lane));
                }
                let step =
                    if comptime!(form.one_channel) { 1u32.runtime() } else { args.pixel_written };
                output[(at + comptime!(g as u32) * step) as usize] =
                    stored::<A, T, M>(value, form.window);
            }
        }
    }
}

/// Writes a block of rows; neighbouring units write neighbouring elements.
#[cube]
pub(super) fn write_rows<T: Float, A: Float, M: Size>(
    results: &Shared<[Vector<A, One>]>,
    output: &mut [Vector<T, M>],
    args: &TileArgs,
    tile: &Tile,
    rows: u32,
    #[comptime] form: Form,
) {
    let first = rows * form.height.block;
    let row = tile.at.plane * args.output_height + first;
    let vectors = comptime!(form.vectors());
    for element in range_stepped(UNIT_POS, tile.columns * vectors, CUBE_DIM) {
        let at = row * args.line_written + tile.at.column * vectors + element;
        #[unroll]
        for i in 0..form.height.block {
            if first + i < args.output_height {
                let value = results[(i * form.layout.results() + element) as usize];
                let value = Vector::<A, M>::new(value.extract(0usize));
                output[(at + i * args.line_written) as usize] =
                    stored::<A, T, M>(value, form.window);
            }
        }
    }
}
