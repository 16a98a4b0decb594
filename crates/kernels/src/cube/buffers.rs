//! Buffers that callers pass, validated because kernels access them without bounds checks.

use cubecl::server::{Handle, Overlap};
use windowpane_geometry::DType;

use crate::device::Capabilities;

/// The most elements that 32-bit positions can count.
const MOST: usize = u32::MAX as usize;

/// Why a buffer cannot be used by a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// The buffer is smaller than its tensor.
    #[error(
        "the buffer for {name} has {found} bytes and {needed} are needed; give one that holds the \
         whole tensor"
    )]
    TooSmall {
        /// The name of the tensor.
        name: &'static str,
        /// The size of the tensor in bytes.
        needed: u64,
        /// The size of the buffer between its offsets, in bytes.
        found: u64,
    },
    /// The tensor has more elements than kernels can count.
    #[error("{name} has {elements} elements and kernels count {limit}; split the batch")]
    TooMany {
        /// The name of the tensor.
        name: &'static str,
        /// Its number of elements.
        elements: usize,
        /// The largest number that kernels can count.
        limit: usize,
    },
    /// The buffer starts at an offset from which vectors cannot be loaded.
    #[error(
        "the buffer for {name} starts at byte {offset} of its memory, and this device loads from \
         multiples of {alignment}; copy it to a buffer of its own"
    )]
    Misaligned {
        /// The name of the tensor.
        name: &'static str,
        /// The offset at which it starts, in bytes.
        offset: u64,
        /// The required alignment of the offset, in bytes.
        alignment: u64,
    },
    /// The buffer is written, and shares memory with another one that is read or written.
    #[error("the buffers for {output} and {other} share memory; give {output} a buffer of its own")]
    Overlap {
        /// The name of the tensor that is written.
        output: &'static str,
        /// The name of the other tensor.
        other: &'static str,
    },
}

/// A buffer, and the tensor that it is used for.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    pub(crate) name: &'static str,
    pub(crate) handle: &'a Handle,
    pub(crate) dtype: DType,
    pub(crate) elements: usize,
}

/// Refuses buffers that kernels cannot access safely without bounds checks. `inputs` are all buffers that a launch
/// reads, `outputs` all that it writes.
pub(crate) fn check(
    device: &Capabilities,
    inputs: &[Given<'_>],
    outputs: &[Given<'_>],
) -> Result<(), BufferError> {
    for given in inputs.iter().chain(outputs) {
        given.check(device)?;
    }
    for (nth, output) in outputs.iter().enumerate() {
        let others = inputs.iter().chain(&outputs[nth + 1..]);
        for other in others.filter(|other| output.elements > 0 && other.elements > 0) {
            if output.handle.overlap(other.handle) != Overlap::Disjoint {
                return Err(BufferError::Overlap { output: output.name, other: other.name });
            }
        }
    }
    Ok(())
}

/// Refuses a buffer that is too small for its tensor, or that starts where vectors cannot be loaded. Launches check their
/// buffers themselves; this is for an earlier error. `name` is how the error names the tensor.
pub fn check_buffer(
    device: &Capabilities,
    name: &'static str,
    dtype: DType,
    handle: &Handle,
    elements: usize,
) -> Result<(), BufferError> {
    Given { name, handle, dtype, elements }.check(device)
}

impl Given<'_> {
    fn check(&self, device: &Capabilities) -> Result<(), BufferError> {
        let Self { name, handle, elements, dtype } = *self;
        if elements > MOST {
            return Err(BufferError::TooMany { name, elements, limit: MOST });
        }
        let needed = device.buffer_size(dtype, elements) as u64;
        let offset = handle.offset_start.unwrap_or(0);
        // The handle's own size wraps around if its offsets are past its end.
        let found = handle.size().saturating_sub(offset);
        let found = found.saturating_sub(handle.offset_end.unwrap_or(0));
        if found < needed {
            return Err(BufferError::TooSmall { name, needed, found });
        }
        let alignment = device.offset_alignment;
        if needed > 0 && !offset.is_multiple_of(alignment) {
            return Err(BufferError::Misaligned { name, offset, alignment });
        }
        Ok(())
    }
}
