//! Repacks operands that the copy engine cannot read. Pixels with few channels become lines, filters become
//! contiguous along the terms, and an f32 is split into two parts, or three for the weight gradient, whose terms
//! are contiguous in neither operand.
//!
//! ```text
//! x = high + low + an error below 2⁻²³ of x          high and low are tf32
//! x·w ≈ high·high + high·low + low·high              the omitted part is below 2⁻²¹·|x·w|
//!
//! x = high + middle + low                            each is a bf16
//! x·w ≈ high·high + high·middle + middle·high + middle·middle + high·low + low·high
//!                                                    the omitted part is at most 2⁻²⁴·|x·w|
//! ```
//!
//! Numbers that cannot be split are replaced by NaN: infinities, numbers so large that `high` would be infinite, and
//! numbers so small that `low` would be lost. Their sums are then NaN, by which they are found and recomputed.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Convolution, DType, FilterLayout, Shape};

use super::product::Product;
use super::tile::CHUNK_BYTES;
use crate::conv::common::{buffer, gather};
use crate::conv::problem::Pass;
use crate::cube::{elem, numbers, transpose};
use crate::device::Target;

pub(super) mod image;

use image::PLANES;

/// The units of a cube.
const UNITS: u32 = 256;

/// The number of elements that a unit splits into three parts.
const ELEMENTS_PER_UNIT: usize = 4;

/// Bit patterns of the magnitudes that are just outside the range that can be split: the largest one whose low part
/// would be near the smallest normal number, and the smallest ones whose high part would be infinite as a tf32 or as
/// a bf16; and the bit pattern of a NaN.
const LARGEST_TOO_SMALL: u32 = 0x1000_0000;
const FIRST_INFINITE_TF32: u32 = 0x7f7f_f000;
const FIRST_INFINITE_BF16: u32 = 0x7f7f_8000;
const NAN_BITS: u32 = 0x7fc0_0000;

/// The compile-time options of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// The elements of a chunk; each unit stores one chunk.
    chunk: usize,
    splits: bool,
    /// The number of channels, if a pixel is one chunk and is stored in a plane.
    planar: Option<usize>,
}

/// The image in the layout that the copy engine reads.
pub(super) fn image(client: &Client, product: &Product, dtype: DType, x: &Handle) -> Handle {
    if let Some(pointwise) = product.pointwise {
        let lines = pointwise.lines();
        let own = pointwise.rows * pointwise.terms / lines;
        return pad(client, dtype, x, lines, [own, pointwise.pitch]);
    }
    let input = match product.pass {
        Pass::Data => product.conv.output(),
        _ => product.conv.input(),
    };
    if let Some(pixel) = padded_pixel(product, &input) {
        let pixels = input.elements() / input.channels();
        return pad(client, dtype, x, pixels, [input.channels(), pixel]);
    }
    if product.parts > 2 {
        return in_three(client, product, input.elements(), x);
    }
    let form = Form {
        chunk: CHUNK_BYTES / product.size,
        splits: product.parts > 1,
        planar: product.planar().map(|_| input.channels()),
    };
    let chunks = product.image_elements() / product.parts / form.chunk;
    let Some(repacked) = product.repacked else {
        let repacked = client.empty(product.image_elements() * product.size);
        let units = CubeDim::new_1d(UNITS);
        // SAFETY: a unit past the last chunk terminates, and the parts follow one another.
        unsafe {
            split_image::launch_unchecked(
                client,
                cubecl::calculate_cube_count_elemwise(client, chunks, units),
                units,
                form.chunk,
                buffer(x, chunks),
                buffer(&repacked, product.image_elements() / form.chunk),
                chunks as u32,
                form,
                elem(dtype),
            )
        }
        return repacked;
    };
    let source = input.strides(product.conv.layout());
    let [_, height, width] = product.conv.grid().axes();
    let [_, image_height, image_width] = input.space().three(1);
    let plane = image_height * image_width * input.channels();
    let stores_all_rows = repacked.rows > 1 || repacked.planar.is_some();
    let args = numbers! { ImageArgsLaunch {
        chunks, pixel: repacked.pixel / form.chunk, width: repacked.width, height: repacked.height,
        channels: input.channels(), rows: repacked.rows,
        pixels: repacked.planar.map_or(chunks, |planar| planar.pixels),
        row_sets: repacked.planar.map_or(1, |planar| planar.row_sets),
        step: repacked.planar.map_or(1, |_| repacked.step),
        first_row: if stores_all_rows { height.start(0) as i32 } else { 0 },
        first_column: if repacked.pads { 0 } else { width.start(0) as i32 },
        planes: input.elements() / plane, image_height, image_width, plane_step: plane,
        row_step: source.space[1], column_step: source.space[2],
    } };
    let repacked_chunks = chunks * product.parts;
    let repacked = client.empty(repacked_chunks * CHUNK_BYTES);
    let units = CubeDim::new_1d(UNITS);
    // SAFETY: a unit past the last chunk terminates, the parts follow one another, and a pixel is only used where there
    // is one; other reads are moved to element 0.
    unsafe {
        repack_image::launch_unchecked(
            client,
            cubecl::calculate_cube_count_elemwise(client, chunks, units),
            units,
            form.chunk,
            buffer(x, input.elements()),
            buffer(&repacked, repacked_chunks),
            args,
            form,
            elem(dtype),
        )
    }
    repacked
}

/// The elements of a pixel, if the repacked image is the original one with longer pixels.
fn padded_pixel(product: &Product, input: &Shape) -> Option<usize> {
    let repacked = product.repacked.filter(|it| product.parts == 1 && it.planar.is_none())?;
    let [_, height, width] = product.conv.grid().axes();
    let [_, image_height, image_width] = input.space().three(1);
    let same = [repacked.height, repacked.width] == [image_height, image_width];
    let begins = repacked.pads || (height.start(0), width.start(0)) == (0, 0);
    (same && begins && repacked.rows == 1).then_some(repacked.pixel)
}

/// An f32 tensor in three parts, one after the other.
fn in_three(client: &Client, product: &Product, elements: usize, x: &Handle) -> Handle {
    let repacked = client.empty(product.parts * elements * product.size);
    let chunks = elements / ELEMENTS_PER_UNIT;
    let units = CubeDim::new_1d(UNITS);
    // SAFETY: a unit past the last chunk terminates; the channels are a multiple of a chunk.
    unsafe {
        split_in_three::launch_unchecked(
            client,
            cubecl::calculate_cube_count_elemwise(client, chunks, units),
            units,
            ELEMENTS_PER_UNIT,
            buffer(x, chunks),
            buffer(&repacked, product.parts * chunks),
            chunks as u32,
            elem(DType::F32),
            elem(DType::BF16),
        )
    }
    repacked
}

/// The other operand in the layout that the copy engine reads: the filters, or the output gradient.
pub(super) fn flat(target: Target<'_>, product: &Product, dtype: DType, w: &Handle) -> Handle {
    let client = target.client;
    let pad_flat = |elements: usize| {
        let [outer, middle, padded] = product.flat.dimensions;
        pad(client, dtype, w, outer * middle, [elements / (outer * middle), padded])
    };
    match (product.pass, transposed_filters(product)) {
        (Pass::Weight, _) if product.parts > 1 => {
            in_three(client, product, product.conv.output().elements(), w)
        }
        (Pass::Weight, _) => pad_flat(product.conv.output().elements()),
        _ if product.pads_filters || are_padded(product) => {
            pad_flat(product.conv.filter().elements())
        }
        (_, Some(matrices)) => {
            let repacked = client.empty(product.flat_elements() * product.size);
            transpose::launch(target, dtype, w, &repacked, matrices);
            repacked
        }
        _ => filters(client, product, dtype, w),
    }
}

/// Whether the repacked filters are the original ones with longer lines.
fn are_padded(product: &Product) -> bool {
    let has_lines = match product.conv.filter_layout() {
        FilterLayout::Fhwc => true,
        FilterLayout::Fchw => product.conv.filter().taps() == 1,
        FilterLayout::Hwcf => false,
    };
    let pads = product.repacked.is_some_and(|repacked| repacked.is_pixel());
    product.pass == Pass::Forward && product.parts == 1 && pads && has_lines
}

/// The matrices whose transposes are the repacked filters, if these are nothing else: filters with contiguous taps become
/// contiguous along the terms, which are the channels, or in a data gradient the filters of a group.
fn transposed_filters(product: &Product) -> Option<[usize; 3]> {
    let Product { conv, pass, .. } = product;
    let filter = conv.filter();
    let (count, channels, taps) = (filter.count(), filter.channels(), filter.taps());
    let same = product.repacked.is_none() && product.flat_elements() == filter.elements();
    (same && conv.filter_layout() == FilterLayout::Fchw).then(|| match pass {
        Pass::Data => [conv.groups(), count / conv.groups(), channels * taps],
        _ => [count, channels, taps],
    })
}

/// A tensor with its lines padded with zeros from one number of elements to another, which is a whole number of chunks.
fn pad(
    client: &Client,
    dtype: DType,
    from: &Handle,
    lines: usize,
    [own, padded]: [usize; 2],
) -> Handle {
    let chunk = CHUNK_BYTES / dtype.size();
    let lanes = chunk.min(1 << own.trailing_zeros());
    let chunks = lines * padded / chunk;
    let repacked = client.empty(chunks * CHUNK_BYTES);
    let units = CubeDim::new_1d(UNITS);
    // SAFETY: a unit past the last chunk terminates; reads behind a line are moved to element 0.
    unsafe {
        pad_lines::launch_unchecked(
            client,
            cubecl::calculate_cube_count_elemwise(client, chunks, units),
            units,
            lanes,
            chunk,
            buffer(from, lines * own / lanes),
            buffer(&repacked, chunks),
            chunks as u32,
            (padded / chunk) as u32,
            (own / lanes) as u32,
            lanes,
            chunk / lanes,
            elem(dtype),
        )
    }
    repacked
}

fn filters(client: &Client, product: &Product, dtype: DType, w: &Handle) -> Handle {
    let conv = &product.conv;
    let [_, _, inner] = product.flat.dimensions;
    let kernel = conv.filter().kernel().three(1);
    let [depth, height, width] = product.kernel();
    let terms = gather::inner(conv, product.pass);
    let [_, _, along] = conv.grid().axes();
    let (repacked, lines) = (product.repacked, product.lines());
    let steps = product.weights();
    let args = numbers! { PackArgsLaunch {
        elements: product.flat_elements() / product.parts, inner, taps: depth * height * width,
        width, height, columns: product.columns(),
        pixel: lines.map_or(inner, |repacked| repacked.pixel),
        row: repacked.map_or(inner, |_| terms), terms,
        rows: repacked.map_or(1, |repacked| repacked.rows),
        dilation: lines.map_or(1, |_| along.dilation()), kernel_height: kernel[1],
        kernel_width: kernel[2], inner_step: steps.inner, column_step: steps.column,
        group_step: steps.group, depth_step: steps.kernel[0], height_step: steps.kernel[1],
        width_step: steps.kernel[2],
    } };
    pack(client, conv, dtype, w, args, product.parts)
}

/// Filters as lines along the terms, in one or two parts.
fn pack(
    client: &Client,
    conv: &Convolution,
    dtype: DType,
    w: &Handle,
    args: PackArgsLaunch,
    parts: usize,
) -> Handle {
    let elements = args.elements as usize;
    let repacked = client.empty(parts * elements * dtype.size());
    let units = CubeDim::new_1d(UNITS);
    // SAFETY: a unit past the last element terminates; a weight is only used where there is one, and other reads are
    // moved to element 0.
    unsafe {
        pack_filters::launch_unchecked(
            client,
            cubecl::calculate_cube_count_elemwise(client, elements, units),
            units,
            buffer(w, conv.filter().elements()),
            buffer(&repacked, parts * elements),
            args,
            Form { chunk: 1, splits: parts > 1, planar: None },
            elem(dtype),
        )
    }
    repacked
}

#[cube(launch_unchecked)]
fn split_image<S: Float, N: Size>(
    x: &[Vector<S, N>],
    repacked: &mut [Vector<S, N>],
    chunks: u32,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
) {
    let i = ABSOLUTE_POS as u32;
    if i >= chunks {
        terminate!();
    }
    store_parts::<S, N>(repacked, x[i as usize], i, chunks, form);
}

#[cube(launch_unchecked)]
fn split_in_three<S: Float, T: Float, N: Size>(
    x: &[Vector<S, N>],
    repacked: &mut [Vector<T, N>],
    chunks: u32,
    #[define(S)] _stored: ElemType,
    #[define(T)] _part: ElemType,
) {
    let i = ABSOLUTE_POS as u32;
    if i >= chunks {
        terminate!();
    }
    let x = Vector::<f32, N>::cast_from(x[i as usize]);
    let bits = Vector::<u32, N>::reinterpret(x);
    let splits = can_split::<N>(bits, FIRST_INFINITE_BF16);
    let high = Vector::<f32, N>::reinterpret(to_bf16::<N>(bits));
    let rest = x - high;
    let middle = Vector::<f32, N>::reinterpret(to_bf16::<N>(Vector::<u32, N>::reinterpret(rest)));
    // The remainder has at most 8 significant bits.
    let low = rest - middle;
    let zero = Vector::<f32, N>::new(0.0f32);
    let nan = Vector::<f32, N>::reinterpret(Vector::<u32, N>::new(NAN_BITS));
    repacked[i as usize] = Vector::cast_from(select_many(splits, high, nan));
    repacked[(i + chunks) as usize] = Vector::cast_from(select_many(splits, middle, zero));
    repacked[(i + 2 * chunks) as usize] = Vector::cast_from(select_many(splits, low, zero));
}

/// How rows of pixels become lines.
#[derive(CubeType, CubeLaunch)]
struct ImageArgs {
    chunks: u32,
    /// The chunks of a pixel, the pixels of a row, and the rows.
    pixel: FastDivmod<u32>,
    width: FastDivmod<u32>,
    height: FastDivmod<u32>,
    channels: FastDivmod<u32>,
    /// The number of image rows in a pixel.
    rows: u32,
    /// The pixels of a plane, and the distances between rows and columns that are in the same plane.
    pixels: FastDivmod<u32>,
    row_sets: u32,
    step: u32,
    /// The image coordinates of the first pixel, and the extents of the image; `planes` is the number of samples.
    first_row: i32,
    first_column: i32,
    planes: u32,
    image_height: u32,
    image_width: u32,
    /// The memory steps of the image.
    plane_step: u32,
    row_step: u32,
    column_step: u32,
}

#[cube(launch_unchecked)]
fn repack_image<S: Float, N: Size>(
    x: &[S],
    repacked: &mut [Vector<S, N>],
    args: &ImageArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
) {
    let i = ABSOLUTE_POS as u32;
    if i >= args.chunks {
        terminate!();
    }
    // Pixels that are not planar have one plane.
    let (plane, i_of_plane) =
        if comptime!(form.planar.is_some()) { args.pixels.div_mod(i) } else { (0u32.runtime(), i) };
    let (row_set, parity) = (plane / comptime!(PLANES as u32), plane % comptime!(PLANES as u32));
    let (rest, chunk) = args.pixel.div_mod(i_of_plane);
    let (rest, column) = args.width.div_mod(rest);
    let (sample, row) = args.height.div_mod(rest);
    let first_h = ((row * args.row_sets + row_set) * args.rows) as i32 + args.first_row;
    let w = (column * args.step + parity) as i32 + args.first_column;
    // As an unsigned number, a negative coordinate is larger than every extent.
    let inside = sample < args.planes && (w as u32) < args.image_width;
    let first = sample * args.plane_step + w as u32 * args.column_step;
    let mut elements = Vector::<S, N>::empty();
    #[unroll]
    for lane in 0..comptime!(form.chunk) {
        let (further, channel) = match comptime!(form.planar) {
            Some(channels) => {
                let (further, channel) = comptime!((lane / channels, lane % channels));
                (comptime!(further as u32).runtime(), comptime!(channel as u32).runtime())
            }
            None => {
                let element = chunk * comptime!(form.chunk as u32) + comptime!(lane as u32);
                args.channels.div_mod(element)
            }
        };
        let h = first_h + further as i32;
        let inside = inside && further < args.rows && (h as u32) < args.image_height;
        let at = first + h as u32 * args.row_step + channel;
        let value = x[select(inside, at, 0u32) as usize];
        elements.insert(lane, select(inside, value, S::from_int(0)));
    }
    store_parts::<S, N>(repacked, elements, i, args.chunks, form);
}

/// Each unit stores one chunk, for which it loads `loads` vectors of `lanes` elements. A line has `own` of them.
#[cube(launch_unchecked)]
fn pad_lines<S: Float, N: Size, M: Size>(
    from: &[Vector<S, N>],
    padded: &mut [Vector<S, M>],
    chunks: u32,
    line: FastDivmod<u32>,
    own: u32,
    #[comptime] lanes: usize,
    #[comptime] loads: usize,
    #[define(S)] _stored: ElemType,
) {
    let i = ABSOLUTE_POS as u32;
    if i >= chunks {
        terminate!();
    }
    let (line, chunk) = line.div_mod(i);
    let mut elements = Vector::<S, M>::empty();
    #[unroll]
    for nth in 0..loads {
        let at = chunk * comptime!(loads as u32) + comptime!(nth as u32);
        let there = at < own;
        let vector = from[select(there, line * own + at, 0u32) as usize];
        #[unroll]
        for lane in 0..lanes {
            let element = select(there, vector.extract(lane), S::from_int(0));
            elements.insert(comptime!(nth * lanes + lane), element);
        }
    }
    padded[i as usize] = elements;
}

/// How filters become lines along the terms.
#[derive(CubeType, CubeLaunch)]
struct PackArgs {
    elements: u32,
    /// The terms of a tap as they are stored, the taps, and the taps along two axes.
    inner: FastDivmod<u32>,
    taps: FastDivmod<u32>,
    width: FastDivmod<u32>,
    height: FastDivmod<u32>,
    columns: FastDivmod<u32>,
    /// The terms of a pixel, the terms of one of its rows, and how many of the latter the filters have.
    pixel: FastDivmod<u32>,
    row: FastDivmod<u32>,
    terms: u32,
    /// The number of image rows in a pixel, the distance in pixels between taps, and the taps of the filters.
    rows: u32,
    dilation: FastDivmod<u32>,
    kernel_height: u32,
    kernel_width: u32,
    /// The memory steps of the original filters.
    inner_step: u32,
    column_step: u32,
    group_step: u32,
    depth_step: u32,
    height_step: u32,
    width_step: u32,
}

#[cube(launch_unchecked)]
fn pack_filters<S: Float>(
    w: &[S],
    repacked: &mut [Vector<S, Const<1>>],
    args: &PackArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
) {
    let i = ABSOLUTE_POS as u32;
    if i >= args.elements {
        terminate!();
    }
    let (rest, element) = args.inner.div_mod(i);
    let (column, tap) = args.taps.div_mod(rest);
    let (tap, tw) = args.width.div_mod(tap);
    let (td, th) = args.height.div_mod(tap);
    let (group, column) = args.columns.div_mod(column);
    let (pixel, element) = args.pixel.div_mod(element);
    let (further, term) = args.row.div_mod(element);
    let (tap, between) = args.dilation.div_mod(pixel);
    let (th, tw) = (th * args.rows + further, tw + tap);
    let there = term < args.terms
        && further < args.rows
        && between == 0
        && th < args.kernel_height
        && tw < args.kernel_width;
    let at = group * args.group_step
        + column * args.column_step
        + term * args.inner_step
        + td * args.depth_step
        + th * args.height_step
        + tw * args.width_step;
    let value = w[select(there, at, 0u32) as usize];
    let value = Vector::<S, Const<1>>::new(select(there, value, S::from_int(0)));
    store_parts::<S, Const<1>>(repacked, value, i, args.elements, form);
}

/// Stores elements, or their parts one after the other.
#[cube]
fn store_parts<S: Float, N: Size>(
    repacked: &mut [Vector<S, N>],
    elements: Vector<S, N>,
    at: u32,
    part: u32,
    #[comptime] form: Form,
) {
    if comptime!(form.splits) {
        let x = Vector::<f32, N>::cast_from(elements);
        let bits = Vector::<u32, N>::reinterpret(x);
        let zero = Vector::<u32, N>::new(0u32);
        let splits = can_split::<N>(bits, FIRST_INFINITE_TF32);
        let high = to_tf32::<N>(bits);
        let low = x - Vector::<f32, N>::reinterpret(high);
        let low = to_tf32::<N>(Vector::<u32, N>::reinterpret(low));
        let high = select_many(splits, high, Vector::new(NAN_BITS));
        let low = select_many(splits, low, zero);
        repacked[at as usize] = Vector::<S, N>::reinterpret(high);
        repacked[(at + part) as usize] = Vector::<S, N>::reinterpret(low);
    } else {
        repacked[at as usize] = elements;
    }
}

/// Whether numbers are the sums of their parts, up to rounding.
#[cube]
fn can_split<N: Size>(bits: Vector<u32, N>, #[comptime] infinite: u32) -> Vector<bool, N> {
    let magnitude = bits & Vector::new(0x7fff_ffffu32);
    magnitude
        .greater_than(&Vector::new(LARGEST_TOO_SMALL))
        .vec_and(magnitude.less_than(&Vector::new(infinite)))
        .or(magnitude.equal(&Vector::new(0u32)))
}

/// Rounds to the 8 significant bits of bf16.
#[cube]
fn to_bf16<N: Size>(bits: Vector<u32, N>) -> Vector<u32, N> {
    (bits + Vector::new(0x8000u32)) & Vector::new(0xffff_0000u32)
}

/// Rounds to the 11 significant bits of tf32.
#[cube]
fn to_tf32<N: Size>(bits: Vector<u32, N>) -> Vector<u32, N> {
    (bits + Vector::new(0x1000u32)) & Vector::new(0xffff_e000u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts that the kernel computes for a number, computed on the host.
    fn parts(x: f32) -> Option<[f32; 3]> {
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let round = |x: f32| f32::from_bits(x.to_bits().wrapping_add(0x8000) & 0xffff_0000);
        let splits =
            magnitude == 0 || (magnitude > LARGEST_TOO_SMALL && magnitude < FIRST_INFINITE_BF16);
        let high = round(x);
        let middle = round(x - high);
        splits.then_some([high, middle, x - high - middle])
    }

    /// Numbers with varied significands and exponents, and the edges of the range that can be split.
    fn numbers() -> impl Iterator<Item = f32> {
        let mixed = |i: u32| f32::from_bits(i.wrapping_mul(0x9e37_79b9) ^ i.rotate_left(13));
        let edges = [
            LARGEST_TOO_SMALL,
            LARGEST_TOO_SMALL + 1,
            FIRST_INFINITE_BF16 - 1,
            FIRST_INFINITE_BF16,
            0,
            0x3f80_0000,
        ];
        let edges = edges.into_iter().flat_map(|bits| [bits, bits | 0x8000_0000]);
        (0..1 << 20).map(mixed).chain(edges.map(f32::from_bits))
    }

    /// The sum of the three bf16 parts, none of which is subnormal, is exactly the f32.
    #[test]
    fn three_parts_are_the_whole() {
        let mut split = 0;
        for x in numbers() {
            let Some(parts) = parts(x) else {
                assert!(!x.is_finite() || x.abs() > 3e38 || x.abs() < 3e-29, "{x:e}");
                continue;
            };
            split += 1;
            for (part, most) in parts.into_iter().zip([1.01, 2f32.powi(-8), 2f32.powi(-16)]) {
                assert_eq!(part.to_bits() & 0xffff, 0, "{x:e}: {parts:?}");
                assert!(part == 0.0 || part.is_normal(), "{x:e}: {parts:?}");
                assert!(part.abs() <= most * x.abs(), "{x:e}: {parts:?}");
            }
            let sum: f64 = parts.into_iter().map(f64::from).sum();
            assert_eq!(sum, f64::from(x));
        }
        assert!(split > 1 << 19);
    }

    /// The error of omitting three of the nine products.
    #[test]
    fn six_products_are_nearly_all() {
        let some = || numbers().filter(|x| x.abs() > 1e-15 && x.abs() < 1e15);
        let mut most = 0f64;
        for (x, w) in some().zip(some().skip(77)) {
            let (Some(a), Some(b)) = (parts(x), parts(w)) else { continue };
            let products = (0..3).flat_map(|i| (0..3 - i).map(move |j| (i, j)));
            let sum: f64 = products.map(|(i, j)| f64::from(a[i]) * f64::from(b[j])).sum();
            let exact = f64::from(x) * f64::from(w);
            most = most.max((sum - exact).abs() / exact.abs());
        }
        assert!(most > 0.0 && most <= 2f64.powi(-24), "{most:e}");
    }
}
