//! The run-time arguments of a launch; they may change without a new kernel.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::AXES;

use super::super::im2col::Im2colWalk;
use super::super::product::Product;
use super::super::tile::{bands, unshared_tiles};
use super::form::Form;
use crate::conv::common::{GatherArgs, PhasesArgs};
use crate::conv::problem::Pass;

#[derive(CubeType, CubeLaunch)]
pub(crate) struct Args {
    /// The product; that of phase 0 where there are several.
    pub(super) gather: GatherArgs,
    pub(super) phased: ComptimeOption<PhasedArgs>,
    /// The number of work items (whole tiles, and shares of tiles), of tiles that are not shared, of tiles along the
    /// columns and along the rows, and of parts.
    pub(crate) tiles: u32,
    pub(super) whole: u32,
    pub(super) tiles_n: FastDivmod<u32>,
    pub(super) tiles_n_count: u32,
    pub(super) tiles_m: FastDivmod<u32>,
    pub(super) parts: FastDivmod<u32>,
    pub(super) parts_count: u32,
    /// The rows of the product, the rows of a line and the lines of a plane that have results, and the columns of a
    /// group, or of a tap.
    pub(super) rows: u32,
    pub(super) line_rows: u32,
    pub(super) plane_rows: u32,
    pub(super) columns: u32,
    pub(super) planar: ComptimeOption<PlanarArgs>,
    pub(super) lines: ComptimeOption<LineArgs>,
    /// The memory steps between rows of the weight gradient, between its taps, and between the columns of any pass.
    pub(super) row_step: u32,
    pub(super) tap_step: u32,
    pub(super) column_step: u32,
    /// The channels and the filters of a group, also where several groups are multiplied as one.
    pub(super) own_channels: FastDivmod<u32>,
    pub(super) own_filters: FastDivmod<u32>,
    /// The number of steps of a sum, and of a part of it.
    pub(super) steps: u32,
    pub(super) steps_per_part: u32,
    /// The number of slices of a tap: as many as stages are needed for its terms.
    pub(super) slices: FastDivmod<u32>,
    pub(super) last_slice: u32,
    pub(super) taps: u32,
    /// The distance from one group to the next: in channels of the image, and in lines across and terms of the flat
    /// operand.
    pub(super) image_group: u32,
    pub(super) across_group: u32,
    pub(super) term_group: u32,
    /// The offset of the first tap on each axis.
    pub(super) depth_first: i32,
    pub(super) height_first: i32,
    pub(super) width_first: i32,
    /// The number of results of a part, and the memory step from one group's results to the next group's.
    pub(super) part_step: u32,
    pub(super) out_group: u32,
    /// The distance from one part of the factors to the next: in samples of the image, in lines of the flat operand.
    pub(super) image_part: u32,
    pub(super) flat_part: u32,
    /// The number of bands of all rows.
    pub(super) bands: u32,
}

/// The further arguments for planar pixels.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct PlanarArgs {
    /// The pixels of a line.
    pub(super) line: u32,
    /// The distance between rows of pixels that are in the same plane.
    pub(super) row_sets: FastDivmod<u32>,
}

/// The further arguments of a weight gradient whose columns are the elements of lines.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct LineArgs {
    /// The elements of a pixel, and its image rows.
    pub(super) pixel: FastDivmod<u32>,
    pub(super) image_rows: u32,
    /// The pixels from tap to tap.
    pub(super) dilation: FastDivmod<u32>,
    /// The taps along the width and along the height, and the memory step from tap to tap.
    pub(super) taps: u32,
    pub(super) tap_rows: u32,
    pub(super) tap_step: u32,
}

/// The further arguments of a launch that computes several phases.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct PhasedArgs {
    pub(super) phases: PhasesArgs,
    pub(super) groups: FastDivmod<u32>,
    /// The number of slices of a tap.
    pub(super) slices: u32,
}

impl Args {
    /// The arguments for a product whose sums are split into `splits` parts, on a device that holds `cubes` cubes at once.
    pub(crate) fn launch(
        product: &Product,
        walk: &Im2colWalk,
        form: &Form,
        splits: usize,
        cubes: usize,
    ) -> ArgsLaunch {
        let conv = &product.conv;
        let is_weight = product.pass == Pass::Weight;
        let [tiles_m, tiles_n] = product.tiles(walk, &form.tile);
        let [column_step, width] = product.result_columns();
        let strides = conv.filter().strides(conv.filter_layout());
        let tiles = tiles_m * tiles_n * splits * product.groups() * walk.products();
        let whole = unshared_tiles(tiles, cubes, &form.tile);
        let rows = match is_weight {
            true => product.columns(),
            false => walk.gather.rows(conv),
        };
        let lines = product.lines();
        // Whether each sample has a product of its own, with the same image.
        let apart = product.pointwise.is_some_and(|pointwise| !pointwise.sums_samples);
        let [_, taps_height, taps_width] = conv.filter().kernel().three(1);
        let [_, _, along] = conv.grid().axes();
        let step = strides.kernel[AXES - 1];
        let [depth_first, height_first, width_first] = walk.first;
        let planar = product.planar().map(|planar| PlanarArgsLaunch {
            line: walk.gather.axes[AXES - 1].rows as u32,
            row_sets: planar.row_sets as u32,
        });
        let line_args = lines.filter(|_| is_weight).map(|repacked| LineArgsLaunch {
            pixel: repacked.pixel as u32,
            image_rows: repacked.rows as u32,
            dilation: along.dilation() as u32,
            taps: taps_width as u32,
            tap_rows: taps_height as u32,
            tap_step: step as u32,
        });
        let phased = walk.phases.map(|phases| PhasedArgsLaunch {
            phases: phases.args(conv, &product.tap_steps()),
            groups: product.groups() as u32,
            slices: product.slices() as u32,
        });
        ArgsLaunch {
            gather: walk.gather.args(conv, &product.tap_steps()),
            phased: phased.into(),
            tiles: (whole + (tiles - whole) * form.warpgroups() as usize) as u32,
            whole: whole as u32,
            tiles_n: tiles_n as u32,
            tiles_n_count: tiles_n as u32,
            tiles_m: tiles_m as u32,
            parts: splits as u32,
            parts_count: splits as u32,
            rows: rows as u32,
            line_rows: walk.line_rows as u32,
            plane_rows: walk.plane_rows as u32,
            columns: width as u32,
            planar: planar.into(),
            lines: line_args.into(),
            row_step: strides.count as u32,
            tap_step: (step * lines.map_or(1, |repacked| repacked.rows * taps_width)) as u32,
            column_step: column_step as u32,
            own_channels: conv.filter().channels() as u32,
            own_filters: (conv.filter().count() / conv.groups()) as u32,
            steps: product.steps(walk) as u32,
            steps_per_part: product.steps_per_part(walk, 0, splits) as u32,
            slices: product.slices() as u32,
            last_slice: (product.slices() - 1) as u32,
            taps: walk.gather.axes.iter().map(|axis| axis.taps).product::<usize>() as u32,
            image_group: if apart { 0 } else { product.inner() } as u32,
            across_group: product.flat.across_group as u32,
            term_group: product.flat.term_group as u32,
            depth_first: depth_first as i32,
            height_first: height_first as i32,
            width_first: width_first as i32,
            part_step: product.results() as u32,
            out_group: match product.pointwise {
                Some(pointwise) => (pointwise.rows * pointwise.columns) as u32,
                None => (product.columns() * if is_weight { strides.count } else { 1 }) as u32,
            },
            image_part: product.planar().map_or(conv.input().batch(), |planar| planar.row_sets)
                as u32,
            flat_part: product.flat.dimensions[0] as u32,
            bands: (tiles_m * bands(&form.tile)) as u32,
        }
    }
}
