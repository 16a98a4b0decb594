//! 8- and 16-bit integers, and `bool`, on devices whose kernels have no such type, as in WGSL.
//!
//! Their tensors are stored as on the host, `n` elements of `b` bits to a word of 32 bits, the first in the lowest
//! bits; the last word is padded. Kernels compute with copies in `i32`:
//!
//! ```text
//! unpack:  elements[n·i + j] = (word[i] >> b·j) & (2ᵇ − 1), with its sign if the type has one
//! pack:    word[i] = Σ_j (clamp(elements[n·i + j]) & (2ᵇ − 1)) << b·j
//! ```
//!
//! One unit handles one word. Clamping gives the least value of the type for an empty window's least `i32`.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use windowpane_geometry::DType;

use crate::cube::unit::plain_grid;
use crate::device::Target;
use crate::device::dtype::{lanes, words};

/// The bits of an element.
fn bits(dtype: DType) -> u32 {
    8 * dtype.size() as u32
}

/// The bytes of the `i32` copy of `elements` packed elements, in whole vectors.
pub(crate) fn unpacked_bytes(dtype: DType, elements: usize) -> usize {
    words(dtype, elements).saturating_mul(lanes(dtype) * size_of::<i32>())
}

/// Memory for the `i32` copy of `elements` packed elements.
pub(crate) fn room(client: &Client, dtype: DType, elements: usize) -> Handle {
    client.empty(unpacked_bytes(dtype, elements))
}

/// Computes in the type that kernels compute in: `compute` gets this type, the tensor that it reads and the one that it
/// writes, each unpacked if the device lacks `dtype`. The buffers are checked; each comes with its number of elements.
pub(crate) fn computed<R>(
    target: Target<'_>,
    dtype: DType,
    [read, written]: [(&Handle, usize); 2],
    compute: impl FnOnce(DType, &Handle, &Handle) -> R,
) -> R {
    if !target.device.packs(dtype) {
        return compute(dtype, read.0, written.0);
    }
    let unpacked = unpack(target, dtype, read.0, read.1);
    let result = room(target.client, dtype, written.1);
    let done = compute(target.device.computed(dtype), &unpacked, &result);
    pack(target, dtype, &result, written.0, written.1);
    done
}

/// Unpacks elements from a checked buffer to a new one.
pub(crate) fn unpack(target: Target<'_>, dtype: DType, from: &Handle, elements: usize) -> Handle {
    let to = room(target.client, dtype, elements);
    let words = words(dtype, elements);
    if words > 0 {
        let (cubes, units) = plain_grid(target, words);
        // SAFETY: the packed buffer has `words` words, the other has as many vectors, and a unit past the last ends.
        unsafe {
            unpacked::launch_unchecked(
                target.client,
                cubes,
                units,
                lanes(dtype),
                BufferArg::from_raw_parts(from.clone(), words),
                BufferArg::from_raw_parts(to.clone(), words),
                words as u32,
                bits(dtype),
                matches!(dtype, DType::I8 | DType::I16),
            );
        }
    }
    to
}

/// Packs elements, from a buffer that [`room`] made to a checked one.
pub(crate) fn pack(target: Target<'_>, dtype: DType, from: &Handle, to: &Handle, elements: usize) {
    let words = words(dtype, elements);
    if words == 0 {
        return;
    }
    let (least, most) = dtype.integers().expect("only integers are packed");
    let (cubes, units) = plain_grid(target, words);
    // SAFETY: both buffers are as large as in `unpack`, and a unit past the last ends.
    unsafe {
        packed::launch_unchecked(
            target.client,
            cubes,
            units,
            lanes(dtype),
            BufferArg::from_raw_parts(from.clone(), words),
            BufferArg::from_raw_parts(to.clone(), words),
            words as u32,
            least as i32,
            most as i32,
            bits(dtype),
        );
    }
}

#[cube(launch_unchecked)]
fn unpacked<N: Size>(
    source: &[u32],
    target: &mut [Vector<i32, N>],
    words: u32,
    #[comptime] bits: u32,
    #[comptime] signed: bool,
) {
    let position = ABSOLUTE_POS as u32;
    if position < words {
        let word = source[position as usize];
        let mut elements = Vector::<i32, N>::new(0i32);
        #[unroll]
        for lane in 0..N::value() {
            let below = comptime!(32 - bits);
            let above = comptime!(below - bits * lane as u32);
            // The element in the highest bits, whose sign is then the word's.
            let high = word << above;
            let element = if comptime!(signed) {
                i32::reinterpret(high) >> comptime!(below as i32)
            } else {
                i32::cast_from(high >> below)
            };
            elements.insert(lane, element);
        }
        target[position as usize] = elements;
    }
}

#[cube(launch_unchecked)]
fn packed<N: Size>(
    source: &[Vector<i32, N>],
    target: &mut [u32],
    words: u32,
    least: i32,
    most: i32,
    #[comptime] bits: u32,
) {
    let position = ABSOLUTE_POS as u32;
    if position < words {
        let elements = source[position as usize];
        let mut word = 0u32;
        #[unroll]
        for lane in 0..N::value() {
            let below = comptime!(bits * lane as u32);
            let element = max(min(elements.extract(lane), most), least);
            word |= (u32::reinterpret(element) & comptime!((1u32 << bits) - 1)) << below;
        }
        target[position as usize] = word;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::profiles::{PLAIN_GPU, SHADING_GPU};

    /// Only types that the device lacks are packed, and their buffers are whole words.
    #[test]
    fn packed_tensors_are_whole_words() {
        let lacking = crate::Capabilities { int8: false, int16: false, ..SHADING_GPU };
        for (elements, quarters, halves) in
            [(0, 0, 0), (1, 1, 1), (4, 1, 2), (5, 2, 3), (1023, 256, 512)]
        {
            for dtype in [DType::I8, DType::U8, DType::Bool] {
                assert_eq!(lacking.buffer_size(dtype, elements), 4 * quarters);
                assert_eq!(PLAIN_GPU.buffer_size(dtype, elements), elements);
                assert_eq!(unpacked_bytes(dtype, elements), 16 * quarters);
            }
            for dtype in [DType::I16, DType::U16] {
                assert_eq!(lacking.buffer_size(dtype, elements), 4 * halves);
                assert_eq!(PLAIN_GPU.buffer_size(dtype, elements), 2 * elements);
                assert_eq!(unpacked_bytes(dtype, elements), 8 * halves);
            }
            assert_eq!(lacking.buffer_size(DType::F16, elements), 2 * elements);
        }
        let computed = DType::ALL.map(|dtype| lacking.computed(dtype));
        let expected = DType::ALL
            .map(|dtype| if dtype.size() < 4 && !dtype.is_float() { DType::I32 } else { dtype });
        assert_eq!(computed, expected);
        assert_eq!(DType::ALL.map(|dtype| PLAIN_GPU.computed(dtype)), DType::ALL);
    }
}
