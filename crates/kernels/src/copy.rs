//! A plain copy, the bandwidth baseline for other kernels.

use cubecl::prelude::*;
use cubecl::server::Handle;
use windowpane_geometry::DType;

use crate::cube::buffers::{self, BufferError, Given};
use crate::cube::convert::elem;
use crate::cube::unit::plain_grid;
use crate::device::{Capabilities, Target};

/// The contiguous bytes that one core copies at a time.
const RUN_BYTES: usize = 16 << 10;

/// Copies `elements` of `dtype` from one buffer to another.
///
/// The launch is asynchronous.
pub fn copy(
    target: Target<'_>,
    dtype: DType,
    from: &Handle,
    to: &Handle,
    elements: usize,
) -> Result<(), BufferError> {
    let Target { client, device } = target;
    let given = |name, handle| Given { name, handle, dtype, elements };
    buffers::check(device, &[given("the source", from)], &[given("the copy", to)])?;
    if elements == 0 {
        return Ok(());
    }
    // Packed elements are copied as they are, in words.
    let elements = device.buffer_size(dtype, elements) / device.computed(dtype).size();
    let dtype = device.computed(dtype);
    let lanes = lanes_of(device, dtype, elements);
    let vectors = elements / lanes;
    // On a GPU neighbouring units read neighbouring vectors, one each; a core reads one contiguous run.
    let run = if device.cores.is_some() { RUN_BYTES / (lanes * dtype.size()) } else { 1 };
    let (cubes, units) = plain_grid(target, vectors.div_ceil(run));
    // SAFETY: both buffers hold `vectors`, and the kernel touches none beyond.
    unsafe {
        let from = BufferArg::from_raw_parts(from.clone(), vectors);
        let to = BufferArg::from_raw_parts(to.clone(), vectors);
        copied::launch_unchecked(
            client,
            cubes,
            units,
            lanes,
            from,
            to,
            vectors as u32,
            run as u32,
            elem(dtype),
        );
    }
    Ok(())
}

/// The widest vector that the device loads at once and that the elements are a multiple of.
fn lanes_of(device: &Capabilities, dtype: DType, elements: usize) -> usize {
    let mut lanes = (device.load_bytes / dtype.size()).max(1);
    while !elements.is_multiple_of(lanes) {
        lanes /= 2;
    }
    lanes
}

#[cube(launch_unchecked)]
fn copied<S: Numeric, N: Size>(
    source: &[Vector<S, N>],
    target: &mut [Vector<S, N>],
    vectors: u32,
    #[comptime] run: u32,
    #[define(S)] _stored: ElemType,
) {
    let first = ABSOLUTE_POS as u32 * run;
    for step in 0..run {
        let position = first + step;
        if position < vectors {
            target[position as usize] = source[position as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::profiles::PLAIN_GPU;

    #[test]
    fn vectors_divide_the_elements() {
        let device = PLAIN_GPU;
        let lanes = |dtype, elements| lanes_of(&device, dtype, elements);
        assert_eq!((lanes(DType::F32, 1 << 20), lanes(DType::BF16, 1 << 20)), (4, 8));
        assert_eq!((lanes(DType::F32, 6), lanes(DType::F32, 7), lanes(DType::U8, 24)), (2, 1, 8));
    }
}
