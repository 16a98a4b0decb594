//! Tensors as kernel arguments.

use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::pool::common::settings::Settings;

/// The buffers of a launch, already checked by the operator's entry point.
#[derive(Clone, Copy)]
pub(in crate::pool) struct Buffers<'a> {
    pub(in crate::pool) input: &'a Handle,
    pub(in crate::pool) output: &'a Handle,
    /// The indices of maxima, if there are any: written by a pooling, read by its gradient.
    pub(in crate::pool) indices: Option<&'a Handle>,
    /// The tensor that was pooled, if its gradient depends on it.
    pub(in crate::pool) pooled: Option<&'a Handle>,
}

/// A tensor of `elements` elements, as vectors of the plan's lanes.
pub(in crate::pool) fn buffer(handle: &Handle, elements: usize, settings: &Settings) -> BufferArg {
    vectors(handle, elements, settings.lanes)
}

/// The same for a tensor that the kernel may not have.
pub(in crate::pool) fn optional<T: LaunchArg<RuntimeArg = BufferArg>>(
    handle: Option<&Handle>,
    elements: usize,
    settings: &Settings,
) -> ComptimeOptionArgs<T> {
    optional_vectors(handle, elements, settings.lanes)
}

/// A tensor of `elements` elements, as vectors of `lanes`.
pub(in crate::pool) fn vectors(handle: &Handle, elements: usize, lanes: usize) -> BufferArg {
    // SAFETY: the operator's entry point has checked that the handle holds `elements` elements, or it was allocated
    // with that size.
    unsafe { BufferArg::from_raw_parts(handle.clone(), elements / lanes) }
}

/// The same for a tensor that the kernel may not have.
pub(in crate::pool) fn optional_vectors<T: LaunchArg<RuntimeArg = BufferArg>>(
    handle: Option<&Handle>,
    elements: usize,
    lanes: usize,
) -> ComptimeOptionArgs<T> {
    match handle {
        Some(handle) => ComptimeOptionArgs::Some(vectors(handle, elements, lanes)),
        None => ComptimeOptionArgs::None,
    }
}
