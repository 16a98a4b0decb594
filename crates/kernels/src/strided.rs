//! Copies elements that lie at any strides into dense order: transposed, sliced and repeated ones.
//!
//! ```text
//! copy:  y[i, j, …] = x[i·strides[0] + j·strides[1] + …]      one unit per vector of y
//! ```
//!
//! Axes that lie in memory as one are merged first, so that few are left to divide by. If the last axis is dense, units
//! copy vectors. The transpose of dense matrices, such as a channels-first tensor read as channels-last, is left to
//! [`transpose`](crate::transpose()).

use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{DType, LIMIT};

use crate::cube::buffers::{self, BufferError, Given};
use crate::cube::convert::elem;
use crate::cube::transpose;
use crate::cube::unit::{plain_grid, unit_position, widest_lanes};
use crate::device::{Capabilities, Target};
use crate::packed;

/// The number of elements from the first to the last in memory. Each axis has an extent and a stride in elements.
pub fn span(axes: &[[usize; 2]]) -> usize {
    if axes.iter().any(|[extent, _]| *extent == 0) {
        return 0;
    }
    axes.iter().fold(1, |reach, [extent, stride]| {
        reach.saturating_add((extent - 1).saturating_mul(*stride))
    })
}

/// Whether elements lie one after the other, in the order of the axes. Each axis has an extent and a stride in elements,
/// the outermost axis first.
pub fn is_dense(axes: &[[usize; 2]]) -> bool {
    matches!(merged(axes)[..], [] | [[_, 1]])
}

/// Copies elements into dense order. Each axis has an extent and a stride in elements, the outermost axis first; the first
/// element is at the offset of `from`, which may be any multiple of the size of an element.
///
/// The launch is asynchronous.
///
/// ```
/// # use cubecl::server::Handle;
/// use windowpane_kernels::{BufferError, DType, Target, strided};
///
/// /// Every second row of an image of 56 × 56 pixels.
/// fn even_rows(target: Target<'_>, x: &Handle) -> Result<Handle, BufferError> {
///     let y = target.client.empty(28 * 56 * size_of::<f32>());
///     strided::copy(target, DType::F32, x, &y, &[[28, 2 * 56], [56, 1]])?;
///     Ok(y)
/// }
/// ```
pub fn copy(
    target: Target<'_>,
    dtype: DType,
    from: &Handle,
    to: &Handle,
    axes: &[[usize; 2]],
) -> Result<(), BufferError> {
    let elements = axes.iter().fold(1usize, |product, [extent, _]| product.saturating_mul(*extent));
    if elements > LIMIT {
        // Positions are divided in 32 bits.
        return Err(BufferError::TooMany { name: "the copy", elements, limit: LIMIT });
    }
    let (from, first) = aligned(target.device, dtype, from)?;
    let read = if elements == 0 { 0 } else { span(axes).saturating_add(first) };
    let given = |name, handle, elements| Given { name, handle, dtype, elements };
    let source = [given("the source", &from, read)];
    buffers::check(target.device, &source, &[given("the copy", to, elements)])?;
    if elements > 0 {
        packed::computed(target, dtype, [(&from, read), (to, elements)], |dtype, from, to| {
            launch(target, dtype, [from, to], first, &merged(axes));
        });
    }
    Ok(())
}

/// The same memory from an earlier offset that kernels can read at, and the elements between the two offsets.
fn aligned(
    device: &Capabilities,
    dtype: DType,
    from: &Handle,
) -> Result<(Handle, usize), BufferError> {
    let (offset, size) = (from.offset_start.unwrap_or(0), dtype.size() as u64);
    if !offset.is_multiple_of(size) {
        return Err(BufferError::Misaligned { name: "the source", offset, alignment: size });
    }
    let before = offset % device.offset_alignment;
    let mut from = from.clone();
    from.offset_start = Some(offset - before);
    Ok((from, (before / size) as usize))
}

/// The axes from the innermost to the outermost, without those of one position. Neighbours that lie in memory as one are
/// one.
fn merged(axes: &[[usize; 2]]) -> Vec<[usize; 2]> {
    let mut merged: Vec<[usize; 2]> = Vec::new();
    for [extent, stride] in axes.iter().rev().copied().filter(|[extent, _]| *extent != 1) {
        match merged.last_mut() {
            Some([inner, step]) if inner.saturating_mul(*step) == stride => *inner *= extent,
            _ => merged.push([extent, stride]),
        }
    }
    merged
}

/// The number, rows and columns of dense matrices, if the copy is their transpose. The axes are merged.
fn matrices(axes: &[[usize; 2]]) -> Option<[usize; 3]> {
    match *axes {
        [[rows, step], [columns, 1]] if step == columns => Some([1, rows, columns]),
        [[rows, step], [columns, 1], [count, apart]]
            if step == columns && apart == rows * columns =>
        {
            Some([count, rows, columns])
        }
        _ => None,
    }
}

/// How units copy: vectors of the copy, and what a unit reads at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lanes {
    read: usize,
    written: usize,
}

impl Lanes {
    /// The widest vectors. The source has whole ones if its innermost axis is dense and if a power of 2 divides all other
    /// steps, `steps`, which are one number with the bits of all of them; otherwise its elements are read one by one.
    fn new(device: &Capabilities, dtype: DType, [extent, step]: [usize; 2], steps: usize) -> Self {
        let widest = |elements| widest_lanes(device, dtype.size(), elements);
        match step {
            1 => {
                let lanes = widest(extent | steps);
                Self { read: lanes, written: lanes }
            }
            _ => Self { read: 1, written: widest(extent) },
        }
    }
}

/// Copies at least one element between buffers that were checked, from the element `first` on. The axes are merged.
fn launch(
    target: Target<'_>,
    dtype: DType,
    [from, to]: [&Handle; 2],
    first: usize,
    axes: &[[usize; 2]],
) {
    if first == 0
        && let Some(matrices) = matrices(axes)
    {
        return transpose::launch(target, dtype, from, to, matrices);
    }
    let Target { client, device } = target;
    let inner = axes.first().copied().unwrap_or([1, 1]);
    let steps = axes.iter().skip(1).fold(first, |all, [_, stride]| all | stride);
    let Lanes { read, written } = Lanes::new(device, dtype, inner, steps);
    let elements: usize = axes.iter().map(|[extent, _]| extent).product();
    let (vectors, source) = (elements / written, (first + span(axes)) / read);
    let in_vectors = |(nth, [extent, stride]): (usize, &[usize; 2])| match nth {
        0 => [(extent / written) as u32, *stride as u32],
        _ => [*extent as u32, (stride / read) as u32],
    };
    let axes: Vec<[u32; 2]> = axes.iter().enumerate().map(in_vectors).collect();
    let (cubes, units) = plain_grid(target, vectors);
    // SAFETY: the buffers hold what is read and written, which was checked, and a unit past the last vector ends.
    unsafe {
        gathered::launch_unchecked(
            client,
            cubes,
            units,
            read,
            written,
            BufferArg::from_raw_parts(from.clone(), source),
            BufferArg::from_raw_parts(to.clone(), vectors),
            vectors as u32,
            (first / read) as u32,
            axes.iter().map(|[extent, _]| *extent).collect(),
            axes.iter().map(|[_, step]| *step).collect(),
            device.cores.is_some(),
            read == written,
            elem(dtype),
        );
    }
}

#[cube(launch_unchecked)]
fn gathered<S: Numeric, M: Size, N: Size>(
    source: &[Vector<S, M>],
    target: &mut [Vector<S, N>],
    vectors: u32,
    first: u32,
    extents: Sequence<FastDivmod<u32>>,
    steps: Sequence<u32>,
    #[comptime] contiguous: bool,
    #[comptime] whole: bool,
    #[define(S)] _stored: ElemType,
) {
    let vector = unit_position(contiguous);
    if vector >= vectors {
        terminate!();
    }
    let (mut rest, mut at) = (vector, first);
    let axes = extents.len().comptime();
    // The element of the innermost axis that a vector begins at, of which each vector has as many as lanes.
    let mut inner = 0u32;
    #[unroll]
    for axis in 0..axes {
        let (outer, place) = extents[axis].div_mod(rest);
        if comptime!(axis == 0 && !whole) {
            inner = place * N::value() as u32;
        } else {
            at += place * steps[axis];
        }
        rest = outer;
    }
    if comptime!(whole) {
        target[vector as usize] = Vector::cast_from(source[at as usize]);
    } else {
        let mut elements = Vector::<S, N>::empty();
        #[unroll]
        for lane in 0..N::value() {
            let position = at + (inner + lane as u32) * steps[0];
            elements.insert(lane, source[position as usize].extract(0usize));
        }
        target[vector as usize] = elements;
    }
}

/// Copies some elements of a dense tensor: of each axis, which has an extent, `kept` positions and the step between them,
/// the outermost axis first. At least one element is copied, between buffers that were checked.
pub(crate) fn sample(
    target: Target<'_>,
    dtype: DType,
    from: &Handle,
    to: &Handle,
    axes: &[[usize; 3]],
) {
    let strides = |nth: usize| axes[nth + 1..].iter().map(|[extent, ..]| extent).product::<usize>();
    let axes = axes.iter().enumerate();
    let axes: Vec<_> = axes.map(|(nth, [_, kept, step])| [*kept, step * strides(nth)]).collect();
    launch(target, dtype, [from, to], 0, &merged(&axes));
}

/// The reverse: writes the elements of `from` to their positions in `to`, and zeros to all others.
pub(crate) fn spread(
    target: Target<'_>,
    dtype: DType,
    from: &Handle,
    to: &Handle,
    axes: &[[usize; 3]],
) {
    let Target { client, device } = target;
    // From the innermost to the outermost, without those of one position.
    let several: Vec<_> = axes.iter().rev().filter(|[extent, ..]| *extent > 1).collect();
    let inner = several.first().map_or([1, 1], |[extent, _, step]| [*extent, *step]);
    let Lanes { read, written } = Lanes::new(device, dtype, inner, 0);
    let elements = axes.iter().map(|[extent, ..]| extent).product::<usize>();
    let source = axes.iter().map(|[_, kept, _]| kept).product::<usize>();
    let (vectors, loads) = (elements / written, source / read);
    // The innermost axis in vectors.
    let in_vectors = |(nth, [extent, kept, step]): (usize, &[usize; 3])| {
        let (lanes, loaded) = if nth == 0 { (written, read) } else { (1, 1) };
        [extent / lanes, kept / loaded, *step].map(|number| number as u32)
    };
    let axes: Vec<[u32; 3]> = several.into_iter().enumerate().map(in_vectors).collect();
    let (cubes, units) = plain_grid(target, vectors);
    // SAFETY: the buffers hold what is read and written, which was checked, and a unit past the last vector ends.
    unsafe {
        placed::launch_unchecked(
            client,
            cubes,
            units,
            read,
            written,
            BufferArg::from_raw_parts(from.clone(), loads),
            BufferArg::from_raw_parts(to.clone(), vectors),
            vectors as u32,
            axes.iter().map(|[extent, ..]| *extent).collect(),
            axes.iter().map(|[.., step]| *step).collect(),
            axes.iter().map(|[_, kept, _]| *kept).collect(),
            device.cores.is_some(),
            read == written,
            elem(dtype),
        );
    }
}

#[cube(launch_unchecked)]
fn placed<S: Numeric, M: Size, N: Size>(
    source: &[Vector<S, M>],
    target: &mut [Vector<S, N>],
    vectors: u32,
    extents: Sequence<FastDivmod<u32>>,
    steps: Sequence<FastDivmod<u32>>,
    kept: Sequence<u32>,
    #[comptime] contiguous: bool,
    #[comptime] whole: bool,
    #[define(S)] _stored: ElemType,
) {
    let vector = unit_position(contiguous);
    if vector >= vectors {
        terminate!();
    }
    let (mut rest, mut at, mut apart, mut is_kept) = (vector, 0u32, 1u32, true);
    let axes = extents.len().comptime();
    // The position on the innermost axis that a vector begins at, of which each vector has as many as lanes.
    let mut inner = 0u32;
    #[unroll]
    for axis in 0..axes {
        let (outer, place) = extents[axis].div_mod(rest);
        if comptime!(axis == 0 && !whole) {
            inner = place * N::value() as u32;
        } else {
            let (nth, past) = steps[axis].div_mod(place);
            at += nth * apart;
            is_kept = is_kept && past == 0 && nth < kept[axis];
        }
        apart *= kept[axis];
        rest = outer;
    }
    let mut elements = Vector::<S, N>::cast_from(S::from_int(0));
    if is_kept {
        if comptime!(whole) {
            elements = Vector::cast_from(source[at as usize]);
        } else {
            #[unroll]
            for lane in 0..N::value() {
                let (nth, past) = steps[0].div_mod(inner + lane as u32);
                if past == 0 && nth < kept[0] {
                    elements.insert(lane, source[(at + nth) as usize].extract(0usize));
                }
            }
        }
    }
    target[vector as usize] = elements;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::profiles::PLAIN_GPU;

    /// The strides of a dense tensor.
    fn dense(dims: &[usize]) -> Vec<[usize; 2]> {
        let stride = |nth| dims[nth + 1..].iter().product();
        dims.iter().enumerate().map(|(nth, extent)| [*extent, stride(nth)]).collect()
    }

    #[test]
    fn axes_that_lie_as_one_are_one() {
        assert_eq!(merged(&dense(&[2, 3, 1, 5])), [[30, 1]]);
        assert_eq!(merged(&[[1, 7], [1, 9]]), [[0; 2]; 0]);
        // Every second row, and rows with gaps.
        assert_eq!(merged(&[[4, 20], [10, 1]]), [[10, 1], [4, 20]]);
        assert_eq!(merged(&[[2, 24], [4, 6], [5, 1]]), [[5, 1], [8, 6]]);
        // Two broadcast axes are one.
        assert_eq!(merged(&[[3, 0], [4, 0], [5, 1]]), [[5, 1], [12, 0]]);
        assert!(is_dense(&dense(&[4, 1, 6])) && is_dense(&[]) && is_dense(&[[1, 99], [3, 1]]));
        assert!(!is_dense(&[[3, 2]]) && !is_dense(&[[3, 0]]) && !is_dense(&[[2, 1], [3, 2]]));
    }

    #[test]
    fn the_span_is_up_to_the_last_element() {
        assert_eq!(span(&dense(&[2, 3, 5])), 30);
        assert_eq!(span(&[[4, 20], [10, 1]]), 70);
        assert_eq!((span(&[]), span(&[[9, 0]]), span(&[[0, 4], [3, 1]])), (1, 1, 0));
        assert_eq!(span(&[[3, usize::MAX], [2, 5]]), usize::MAX);
    }

    /// A channels-first tensor that is read as channels-last is a transpose, and a part of one is not.
    #[test]
    fn transposes_are_found() {
        let last = |[n, c, h, w]: [usize; 4], channels| {
            merged(&[[n, c * h * w], [h, w], [w, 1], [channels, h * w]])
        };
        assert_eq!(matrices(&last([2, 3, 4, 5], 3)), Some([2, 3, 20]));
        assert_eq!(matrices(&last([1, 3, 4, 5], 3)), Some([1, 3, 20]));
        assert_eq!(matrices(&last([2, 3, 4, 5], 2)), None);
        assert_eq!(matrices(&merged(&dense(&[4, 5]))), None);
    }

    #[test]
    fn vectors_divide_all_that_is_read() {
        let lanes = |inner, steps| {
            let Lanes { read, written } = Lanes::new(&PLAIN_GPU, DType::F32, inner, steps);
            [read, written]
        };
        assert_eq!(lanes([64, 1], 128), [4, 4]);
        assert_eq!(lanes([64, 1], 128 | 2), [2, 2]);
        assert_eq!(lanes([64, 1], 65), [1, 1]);
        assert_eq!(lanes([6, 1], 0), [2, 2]);
        // Elements that are apart are read one by one, and stored together.
        assert_eq!(lanes([64, 2], 65), [1, 4]);
        assert_eq!(lanes([63, 2], 0), [1, 1]);
    }
}
