//! The memory of poolings of narrow integers on devices whose kernels have no such type: `launch` unpacks the tensor that
//! the kernel reads, and packs its result, in the same call. Indices are not affected.

use windowpane_geometry::{DType, Pooling};

use crate::device::Capabilities;
use crate::packed;

/// The bytes of the unpacked tensors; 0 if the device has the type.
pub(super) fn bytes(pooling: &Pooling, dtype: DType, device: &Capabilities) -> usize {
    if !device.packs(dtype) {
        return 0;
    }
    let of = |elements| packed::unpacked_bytes(dtype, elements);
    of(pooling.input().elements()).saturating_add(of(pooling.output().elements()))
}

#[cfg(test)]
mod tests {
    use windowpane_geometry::{Extents, Layout, Shape, Window};

    use super::*;
    use crate::device::profiles::SHADING_GPU;
    use crate::error::PlanError;
    use crate::pool::{Output, Plan, Problem, Reduction};

    /// Packed tensors are planned as `i32`, with room for their copies, and refused if the device cannot bind a copy.
    #[test]
    fn packed_tensors_are_planned_as_wider_ones() {
        let lacking = Capabilities {
            int8: false,
            int16: false,
            int64: false,
            buffer_bytes: 1 << 20,
            ..SHADING_GPU
        };
        let max = Reduction::max(Output::Values);
        let plan = |side: usize, dtype| {
            let shape = Shape::new(1, 3, Extents::from([side, side])).unwrap();
            let window = Window::new([3, 3]).stride([3, 3]);
            let pooling = Pooling::new(shape, &window, Layout::ChannelsLast).unwrap();
            let plan = Plan::new(Problem::new(&pooling, max, dtype), &lacking)?;
            plan.check(Problem::new(&pooling, max, dtype), &lacking)?;
            Ok::<_, PlanError>((plan, plan.workspace(&pooling, dtype, &lacking)))
        };
        for dtype in [DType::I8, DType::U8, DType::Bool] {
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
        let error = Plan::new(Problem::new(&pooling, mean, DType::I32), &lacking).unwrap_err();
        assert_eq!(error, PlanError::NoSums { dtype: DType::I32 });
        // Narrower integers are averaged in `i32`, if their sums fit.
        let narrow = Plan::new(Problem::new(&pooling, mean, DType::U16), &lacking).unwrap();
        assert_eq!(narrow.settings.accumulator, DType::I32);
        let shape = Shape::new(1, 1, Extents::from([40_000])).unwrap();
        let whole = Pooling::new(shape, &Window::new([40_000]), Layout::ChannelsLast).unwrap();
        let error = Plan::new(Problem::new(&whole, mean, DType::U16), &lacking).unwrap_err();
        assert_eq!(error, PlanError::TooManyTaps { taps: 40_000, limit: 32_768 });
    }
}
