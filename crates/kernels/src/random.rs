//! Fills a tensor with random numbers on the device; copying them from the host would take longer than the kernels
//! measured on them.

use cubecl::prelude::*;
use cubecl::server::Handle;
use windowpane_geometry::DType;

use crate::cube::buffers::{self, BufferError, Given};
use crate::cube::convert::elem;
use crate::cube::random::mixed;
use crate::cube::unit::plain_grid;
use crate::device::Target;
use crate::packed;

/// Fills `output`, which holds `elements` of `dtype`, with uniform random numbers: from −0.5 to 0.5, or integers from 0
/// to 127 for integer types, 0 and 1 for `bool`. The same seed gives the same numbers.
///
/// The launch is asynchronous.
pub fn fill_random(
    target: Target<'_>,
    dtype: DType,
    output: &Handle,
    elements: usize,
    seed: u32,
) -> Result<(), BufferError> {
    let given = Given { name: "the output", handle: output, dtype, elements };
    buffers::check(target.device, &[], &[given])?;
    if elements == 0 {
        return Ok(());
    }
    if target.device.packs(dtype) {
        let numbers = packed::room(target.client, dtype, elements);
        launch(target, dtype, &numbers, elements, seed);
        packed::pack(target, dtype, &numbers, output, elements);
    } else {
        launch(target, dtype, output, elements, seed);
    }
    Ok(())
}

/// Fills a buffer that holds at least one element, in the type in which kernels compute.
fn launch(target: Target<'_>, dtype: DType, output: &Handle, elements: usize, seed: u32) {
    let (cubes, units) = plain_grid(target, elements);
    let most = dtype.integers().map(|(_, most)| most.min(127) as u32);
    // SAFETY: the buffer holds `elements`, and the kernel writes to none beyond.
    unsafe {
        let output = BufferArg::from_raw_parts(output.clone(), elements);
        random::launch_unchecked(
            target.client,
            cubes,
            units,
            output,
            elements as u32,
            seed,
            most,
            elem(target.device.computed(dtype)),
        );
    }
}

/// `S` may be an integer type; no fractional operation is then used.
#[cube(launch_unchecked)]
fn random<S: Float>(
    output: &mut [S],
    elements: u32,
    seed: u32,
    #[comptime] most: Option<u32>,
    #[define(S)] _stored: ElemType,
) {
    let position = ABSOLUTE_POS as u32;
    if position >= elements {
        terminate!();
    }
    let bits = mixed(position ^ mixed(seed));
    output[position as usize] = if comptime!(most.is_none()) {
        // As many bits as an f32 has digits.
        S::cast_from(f32::cast_from(bits >> 8) * (1.0f32 / 16_777_216.0) - 0.5f32)
    } else {
        S::cast_from(bits & comptime!(most.unwrap_or_default()))
    };
}
