//! The tensor maps with which the copy engine finds the data to load.

use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::wgmma::Swizzle;
use cubecl::zspace::{Shape, Strides};
use windowpane_geometry::AXES;

use super::super::im2col::Im2colWalk;
use super::super::product::Product;
use super::super::repack::image::PLANE_LINE;
use super::super::tile::CHUNK_BYTES;
use super::form::Form;

/// The map with which the copy engine walks the windows over an image.
pub(crate) fn image_map(
    image: &Handle,
    product: &Product,
    walk: &Im2colWalk,
    form: &Form,
    factor: ElemType,
) -> TensorMapArg<Im2col> {
    let (sizes, strides) = product.image();
    let map = |args, swizzle: Swizzle| {
        TensorMapArg::new(args, tensor(image, &sizes, &strides), factor)
            .with_swizzle(swizzle.into())
    };
    if product.planar().is_some() {
        let args = Im2colArgs {
            pixel_box_lower_corner: vec![0, 0],
            pixel_box_upper_corner: vec![0, 0],
            channels_per_pixel: PLANE_LINE as u32 * CHUNK_BYTES as u32 / form.size,
            pixels_per_column: form.run() / PLANE_LINE as u32,
        };
        return map(args, Swizzle::None);
    }
    let first = AXES - product.rank();
    let axes = &walk.gather.axes[first..];
    let (lower, upper): (Vec<_>, Vec<_>) = (first..AXES).map(|axis| walk.corners(axis)).unzip();
    let args = Im2colArgs {
        pixel_box_lower_corner: lower.into_iter().map(|x| x as i32).collect(),
        pixel_box_upper_corner: upper.into_iter().map(|x| x as i32).collect(),
        channels_per_pixel: if form.rows_mn_major { form.line() } else { form.slice },
        pixels_per_column: match form.is_weight || form.rows_mn_major {
            true => form.tile.block_k,
            false => form.run(),
        },
    };
    let swizzle = if form.rows_mn_major { Swizzle::B128 } else { form.swizzle() };
    let steps: Vec<usize> =
        [vec![1], axes.iter().map(|axis| axis.step).collect(), vec![1]].concat();
    map(args, swizzle).with_elem_stride(Strides::new(&steps))
}

/// The map of the other operand.
pub(crate) fn flat_map(
    flat: &Handle,
    product: &Product,
    form: &Form,
    factor: ElemType,
) -> TensorMapArg<Tiled> {
    let tile = form.tile;
    let across = if form.is_weight { tile.block_m } else { tile.block_n };
    let (line, swizzle) = match product.flat.mn_major {
        true => (form.line(), Swizzle::B128),
        false => (form.slice, form.swizzle()),
    };
    let box_size = product.flat.box_size(across, line, tile.block_k);
    let (sizes, steps) = product.flat();
    let args = TiledArgs { tile_size: Shape::new(box_size) };
    TensorMapArg::new(args, tensor(flat, &sizes, &steps), factor).with_swizzle(swizzle.into())
}

/// A tensor with its layout in memory.
fn tensor(handle: &Handle, sizes: &[usize], steps: &[usize]) -> TensorArg {
    // SAFETY: `Operands::check` has verified that the handle holds the elements, or the elements were repacked into it.
    unsafe {
        TensorArg::from_raw_parts(
            handle.clone(),
            Strides::new(steps),
            sizes.iter().copied().collect(),
        )
    }
}
