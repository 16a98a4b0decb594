//! Recomputes results whose sums were not finite: one warp recomputes each flagged band of rows. This is rare, so that
//! only reading the flags is optimised. Results of a weight gradient are recomputed in [`weight`].

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, DType, Tile};

use super::im2col::Im2colWalk;
use super::product::Product;
use super::tile::WARP;
use super::tile::{BAND, bands};
use crate::conv::common::{
    Epilogue, EpilogueArgs, Gather, GatherArgs, buffer, finish_at, read_at, row_point, term_point,
};
use crate::conv::problem::{Pass, results};
use crate::cube::{elem, numbers};

pub(super) mod weight;

/// The units of a cube.
const UNITS: u32 = 256;

/// The compile-time options of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    block_n: u32,
}

#[derive(CubeType, CubeLaunch)]
struct FixupArgs {
    flags: u32,
    bands: FastDivmod<u32>,
    tiles_n: FastDivmod<u32>,
    terms: u32,
    columns: u32,
    /// The rows of a line and the lines of a plane as they were multiplied, and the numbers of them that have results.
    line: FastDivmod<u32>,
    plane: FastDivmod<u32>,
    line_rows: u32,
    plane_rows: u32,
    /// The memory step from one column's weights to the next column's.
    column_step: u32,
}

/// Recomputes the flagged results of one product of a pass from the original operands.
pub(super) fn launch(
    client: &Client,
    product: &Product,
    walk: &Im2colWalk,
    gather: &Gather,
    dtype: DType,
    tile: &Tile,
    [image, filters, out, flags]: [&Handle; 4],
    epilogue: Epilogue<'_>,
) {
    let conv = &product.conv;
    let steps = product.weights();
    let [tiles_m, tiles_n] = product.tiles(walk, tile);
    let all = product.flags(walk, tile, 1);
    let results = results(conv, product.pass);
    let form = Form { block_n: tile.block_n };
    let units = CubeDim::new_1d(UNITS);
    let image_elements = match product.pass {
        Pass::Data => conv.output().elements(),
        _ => conv.input().elements(),
    };
    // SAFETY: reads are inside the tensors by the arithmetic of `Gather`; planes past the last flag, and results past
    // the last row or column, are skipped.
    unsafe {
        fixup::launch_unchecked(
            client,
            cubecl::calculate_cube_count_elemwise(client, all, units),
            units,
            buffer(image, image_elements),
            buffer(filters, conv.filter().elements()),
            epilogue.args(conv.filter().count(), results, 1, dtype),
            buffer(out, results),
            buffer(flags, all),
            gather.args(conv, &steps),
            numbers! { FixupArgsLaunch {
                flags: all, bands: tiles_m * bands(tile), tiles_n, terms: gather.terms(conv),
                columns: product.columns(), line: walk.gather.axes[AXES - 1].rows,
                plane: walk.gather.axes[AXES - 2].rows, line_rows: walk.line_rows,
                plane_rows: walk.plane_rows, column_step: steps.column,
            } },
            form,
            elem(dtype),
        )
    }
}

#[cube(launch_unchecked)]
fn fixup<S: Float>(
    image: &[S],
    filters: &[S],
    epilogue: &EpilogueArgs<S, Const<1>>,
    out: &mut [Vector<S, Const<1>>],
    flags: &[u32],
    gather: &GatherArgs,
    args: &FixupArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
) {
    // Each unit reads one flag. Then the whole warp recomputes the band of each flag that is set.
    let first = ABSOLUTE_POS as u32 / WARP * WARP;
    let mine = ABSOLUTE_POS as u32;
    let found = mine < args.flags && flags[min(mine, args.flags - 1) as usize] != 0;
    if !plane_any(found) {
        terminate!();
    }
    for flag in first..min(first + WARP, args.flags) {
        if flags[flag as usize] != 0 {
            band::<S>(image, filters, epilogue, out, flag, gather, args, form);
        }
    }
}

/// Recomputes a band of rows of a tile.
#[cube]
fn band<S: Float>(
    image: &[S],
    filters: &[S],
    epilogue: &EpilogueArgs<S, Const<1>>,
    out: &mut [Vector<S, Const<1>>],
    flag: u32,
    gather: &GatherArgs,
    args: &FixupArgs,
    #[comptime] form: Form,
) {
    let (rest, band) = args.bands.div_mod(flag);
    let (group, n) = args.tiles_n.div_mod(rest);
    let mut i = UNIT_POS % WARP;
    while i < comptime!(BAND * form.block_n) {
        let row = band * BAND + i / comptime!(form.block_n);
        let column = n * comptime!(form.block_n) + i % comptime!(form.block_n);
        let (rest, w) = args.line.div_mod(row);
        let (rest, h) = args.plane.div_mod(rest);
        let row = (rest * args.plane_rows + h) * args.line_rows + w;
        let there = w < args.line_rows && h < args.plane_rows && row < gather.rows;
        if there && column < args.columns {
            let row = row_point(gather, row);
            let weights = group * gather.b_group + column * args.column_step;
            let mut sum = 0.0f32;
            for k in 0..args.terms {
                let term = term_point(gather, k);
                let read = read_at(gather, &row, &term);
                if read.inside {
                    let factor = image[(read.at + group * gather.a_group) as usize];
                    let weight = filters[(term.other + weights) as usize];
                    sum = fma(f32::cast_from(factor), f32::cast_from(weight), sum);
                }
            }
            let at = row.other + column * gather.out_column + group * gather.out_group;
            out[at as usize] = finish_at::<S, f32, Const<1>>(
                epilogue,
                Vector::new(sum),
                group * args.columns + column,
                at,
            );
        }
        i += WARP;
    }
}
