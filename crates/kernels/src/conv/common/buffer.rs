//! Buffers as kernel arguments.

use cubecl::prelude::*;
use cubecl::server::Handle;

/// A tensor of `elements` elements, or of `elements` vectors.
pub(crate) fn buffer(handle: &Handle, elements: usize) -> BufferArg {
    // SAFETY: the buffers of a launch were checked before its kernel was called, and a workspace is allocated
    // for its number of elements.
    unsafe { BufferArg::from_raw_parts(handle.clone(), elements) }
}
