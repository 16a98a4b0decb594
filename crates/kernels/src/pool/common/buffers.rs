//! Tensors as kernel arguments.

use crate::cube::optional::{OptionalLaunch, optional as given_or_not};
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// The client of a launch and its tensors, already checked by the operator's entry point.
#[derive(Clone, Copy)]
pub(crate) struct Buffers<'a> {
    pub(crate) client: &'a Client,
    pub(crate) input: Tensor<'a>,
    pub(crate) output: Tensor<'a>,
    /// The indices of maxima, if there are any: written by a pooling, read by its gradient.
    pub(crate) indices: Option<Tensor<'a>>,
    /// The tensor that was pooled, if its gradient depends on it.
    pub(crate) pooled: Option<Tensor<'a>>,
}

/// A buffer and the number of elements in it.
#[derive(Clone, Copy)]
pub(crate) struct Tensor<'a> {
    pub(crate) handle: &'a Handle,
    pub(crate) elements: usize,
}

impl<'a> Tensor<'a> {
    /// A tensor in a buffer that the operator's entry point has checked, or that was allocated for as many elements.
    pub(crate) fn new(handle: &'a Handle, elements: usize) -> Self {
        Self { handle, elements }
    }

    /// The tensor as vectors of `lanes`.
    pub(crate) fn vectors(self, lanes: usize) -> BufferArg {
        // SAFETY: the buffer holds as many elements, see `new`.
        unsafe { BufferArg::from_raw_parts(self.handle.clone(), self.elements / lanes) }
    }
}

/// A tensor that the kernel may not have, as vectors of `lanes`.
pub(crate) fn optional<T: LaunchArg<RuntimeArg = BufferArg>>(
    tensor: Option<Tensor<'_>>,
    lanes: usize,
) -> OptionalLaunch<T> {
    given_or_not(tensor.map(|tensor| tensor.vectors(lanes)))
}
