//! Computes with 8-bit integers on devices whose kernels have no such type: unpacks a tensor before the kernel, and
//! packs the result after it, in the same call. Indices are not affected.

use cubecl::server::Handle;
use windowpane_geometry::{DType, Pooling};

use crate::device::{Capabilities, Target};
use crate::packed;
use crate::pool::common::buffers::Tensor;

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
    read: (&'a Handle, usize),
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
        Self { target, dtype, packed: written, copies, read }
    }

    /// The tensor that the kernel reads.
    pub(super) fn read(&self) -> Tensor<'_> {
        let (read, elements) = self.read;
        Tensor::new(self.copies.as_ref().map_or(read, |[read, _]| read), elements)
    }

    /// The tensor that the kernel writes.
    pub(super) fn written(&self) -> Tensor<'_> {
        let (packed, elements) = self.packed;
        Tensor::new(self.copies.as_ref().map_or(packed, |[_, written]| written), elements)
    }

    /// Packs the kernel's result.
    pub(super) fn after(&self) {
        if let Some([_, written]) = &self.copies {
            let (to, elements) = self.packed;
            packed::pack(self.target, self.dtype, written, to, elements);
        }
    }
}

#[cfg(test)]
mod tests {
    use windowpane_geometry::{Extents, Layout, Shape, Window};

    use super::*;
    use crate::device::profiles::SHADING_GPU;
    use crate::pool::{Output, Plan, PlanError, Reduction};

    /// Packed tensors are planned as `i32`, with room for their copies, and refused if the device cannot bind a copy.
    #[test]
    fn packed_tensors_are_planned_as_wider_ones() {
        let lacking = Capabilities { bytes: false, buffer_bytes: 1 << 20, ..SHADING_GPU };
        let max = Reduction::max(Output::Values);
        let plan = |side: usize, dtype| {
            let shape = Shape::new(1, 3, Extents::from([side, side])).unwrap();
            let window = Window::new([3, 3]).stride([3, 3]);
            let pooling = Pooling::new(shape, &window, Layout::ChannelsLast).unwrap();
            let plan = Plan::new(&pooling, max, dtype, &lacking)?;
            plan.check(&pooling, max, dtype, &lacking)?;
            Ok::<_, PlanError>((plan, plan.workspace(&pooling, dtype, &lacking)))
        };
        for dtype in [DType::I8, DType::U8] {
            // 243 elements and 27, in whole vectors of four.
            let (wide, own) = plan(9, DType::I32).unwrap();
            assert_eq!(plan(9, dtype), Ok((wide, own + 4 * (244 + 28))));
            // 270,000 bytes fit, but not four times as many.
            let error = plan(300, dtype).unwrap_err();
            let (bytes, limit) = (4 * 270_000, 1 << 20);
            assert_eq!(error, PlanError::BufferTooLarge { bytes, limit });
        }
        let mean = Reduction::Average(windowpane_geometry::Divisor::Valid);
        let shape = Shape::new(1, 3, Extents::from([9])).unwrap();
        let pooling = Pooling::new(shape, &Window::new([3]), Layout::ChannelsLast).unwrap();
        let error = Plan::new(&pooling, mean, DType::U8, &lacking).unwrap_err();
        assert_eq!(error, PlanError::AverageOfIntegers { dtype: DType::U8 });
    }
}
