//! Computes with 8-bit integers on devices whose kernels have no such type: unpacks a tensor before the kernel, and
//! packs the result after it, in the same call. Indices are not affected.

use cubecl::server::Handle;
use windowpane_geometry::{DType, Pooling};

use crate::device::{Capabilities, Target};
use crate::packed;

/// The bytes of the unpacked tensors; 0 if the device has the type.
pub(super) fn bytes(pooling: &Pooling, dtype: DType, device: &Capabilities) -> usize {
    if !device.packs(dtype) {
        return 0;
    }
    let of = |elements| packed::unpacked_bytes(elements);
    of(pooling.input().elements()).saturating_add(of(pooling.output().elements()))
}

/// The tensors of a launch in the type in which its kernel computes.
pub(super) struct Unpacked<'a> {
    target: Target<'a>,
    dtype: DType,
    /// The result as the caller sees it, and its number of elements.
    packed: (&'a Handle, usize),
    /// Copies of the tensor that is read and of the result, if they differ from the caller's.
    copies: Option<[Handle; 2]>,
    read: &'a Handle,
}

impl<'a> Unpacked<'a> {
    /// Unpacks the tensor that a kernel reads, and allocates the one that it writes.
    pub(super) fn before(
        target: Target<'a>,
        dtype: DType,
        read: (&'a Handle, usize),
        written: (&'a Handle, usize),
    ) -> Self {
        let copies = target.device.packs(dtype).then(|| {
            let room = packed::room(target.client, written.1);
            [packed::unpack(target, dtype, read.0, read.1), room]
        });
        Self { target, dtype, packed: written, copies, read: read.0 }
    }

    /// The tensor that the kernel reads.
    pub(super) fn read(&self) -> &Handle {
        self.copies.as_ref().map_or(self.read, |[read, _]| read)
    }

    /// The tensor that the kernel writes.
    pub(super) fn written(&self) -> &Handle {
        self.copies.as_ref().map_or(self.packed.0, |[_, written]| written)
    }

    /// Packs the kernel's result.
    pub(super) fn after(&self) {
        if let Some([_, written]) = &self.copies {
            let (to, elements) = self.packed;
            packed::pack(self.target, self.dtype, written, to, elements);
        }
    }
}
