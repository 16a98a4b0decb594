//! Recomputes results of a weight gradient. Each sum is over all windows, or over the windows of one part where sums
//! are split. A cube computes a band of rows, and each unit one column of it.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::Tile;

use super::super::im2col::Im2colWalk;
use super::super::product::Product;
use super::super::tile::{BAND, bands};
use crate::conv::common::{Gather, GatherArgs, buffer, read_at, row_point, tap_point};
use crate::conv::problem::{Pass, results, windows};
use crate::cube::numbers;

/// The compile-time options of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    line: u32,
}

#[derive(CubeType, CubeLaunch)]
struct WeightArgs {
    flags: u32,
    bands: FastDivmod<u32>,
    tiles_n: FastDivmod<u32>,
    parts: FastDivmod<u32>,
    /// The slices of a tap, the taps along two axes, and the number of all taps.
    slices: FastDivmod<u32>,
    width: FastDivmod<u32>,
    height: FastDivmod<u32>,
    taps: u32,
    /// The number of windows of all parts, and of one part.
    windows: u32,
    windows_per_part: u32,
    /// The memory steps to the next part, group, row and column.
    part_step: u32,
    group_step: u32,
    row_step: u32,
    column_step: u32,
}

/// Recomputes the flagged results, `[image, gradient, out, flags]`.
pub(crate) fn launch(
    client: &Client,
    product: &Product,
    walk: &Im2colWalk,
    gather: &Gather,
    tile: &Tile,
    splits: usize,
    [image, gradient, out, flags]: [&Handle; 4],
) {
    let (conv, pass) = (&product.conv, Pass::Weight);
    let all = product.flags(walk, tile, splits);
    let [tiles_m, tiles_n] = product.tiles(walk, tile);
    let steps = product.weights();
    let [_, height, width] = gather.axes.each_ref().map(|axis| axis.taps);
    let steps_per_part = product.steps(walk).div_ceil(splits);
    let results = results(conv, pass);
    let units = CubeDim::new_1d(tile.block_n);
    // SAFETY: reads are inside the tensors by the arithmetic of `Gather`; cubes past the last flag, and results past
    // the last row or column, are skipped.
    unsafe {
        weight::launch_unchecked(
            client,
            cubecl::calculate_cube_count_elemwise(client, all * tile.block_n as usize, units),
            units,
            buffer(image, conv.input().elements()),
            buffer(gradient, conv.output().elements()),
            buffer(out, results * splits),
            buffer(flags, all),
            gather.args(conv, &steps),
            numbers! { WeightArgsLaunch {
                flags: all, bands: tiles_m * bands(tile), tiles_n, parts: splits,
                slices: product.slices(), width, height, taps: conv.filter().taps(),
                windows: windows(conv), windows_per_part: steps_per_part * product.line(),
                part_step: results, group_step: steps.group, row_step: steps.column,
                column_step: steps.inner,
            } },
            Form { line: product.slice() as u32 },
        )
    }
}

#[cube(launch_unchecked)]
fn weight(
    image: &[f32],
    gradient: &[f32],
    out: &mut [f32],
    flags: &[u32],
    gather: &GatherArgs,
    args: &WeightArgs,
    #[comptime] form: Form,
) {
    let flag = CUBE_POS as u32;
    if flag >= args.flags || flags[min(flag, args.flags - 1) as usize] == 0 {
        terminate!();
    }
    let (rest, band) = args.bands.div_mod(flag);
    let (rest, n) = args.tiles_n.div_mod(rest);
    let (group, part) = args.parts.div_mod(rest);
    let first_row = band * BAND;
    let line = n * (CUBE_DIM_X / comptime!(form.line)) + UNIT_POS / comptime!(form.line);
    let (tap, slice) = args.slices.div_mod(line);
    let channel = slice * comptime!(form.line) + UNIT_POS % comptime!(form.line);
    if tap < args.taps && channel < gather.inner_count {
        let (rest, tw) = args.width.div_mod(tap);
        let (td, th) = args.height.div_mod(rest);
        let tap = tap_point(gather, td, th, tw);
        let mut sums = Array::<f32>::new(BAND as usize);
        #[unroll]
        for i in 0..BAND {
            sums[i as usize] = 0.0f32;
        }
        let first = part * args.windows_per_part;
        for k in first..max(first, min(first + args.windows_per_part, args.windows)) {
            let window = row_point(gather, k);
            let read = read_at(gather, &window, &tap);
            if read.inside {
                let pixel = image[(read.at + group * gather.a_group + channel) as usize];
                let at = window.other + group * gather.out_group;
                #[unroll]
                for i in 0..BAND {
                    // Results past the last row are not stored.
                    let row = min(first_row + i, gather.columns - 1);
                    sums[i as usize] = fma(pixel, gradient[(at + row) as usize], sums[i as usize]);
                }
            }
        }
        let to = part * args.part_step
            + group * args.group_step
            + tap.other
            + channel * args.column_step;
        #[unroll]
        for i in 0..BAND {
            if first_row + i < gather.columns {
                out[(to + (first_row + i) * args.row_step) as usize] = sums[i as usize];
            }
        }
    }
}
