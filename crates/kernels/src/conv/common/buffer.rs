//! Buffers as arguments of kernels.

use cubecl::prelude::*;
use cubecl::server::Handle;

/// A tensor of `elements` elements, or vectors of them.
pub(in crate::conv) fn buffer(handle: &Handle, elements: usize) -> BufferArg {
    // SAFETY: the buffers of a launch were checked before its kernel was called; a workspace was made
    // for its elements.
    unsafe { BufferArg::from_raw_parts(handle.clone(), elements) }
}
