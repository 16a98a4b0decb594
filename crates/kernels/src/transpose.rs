//! Transposes matrices, which converts a tensor from one layout to the other.

use cubecl::server::Handle;
use windowpane_geometry::{DType, LIMIT};

use crate::cube;
use crate::cube::buffers::{self, BufferError, Given};
use crate::device::Target;
use crate::packed;

/// Transposes `matrices` matrices, which lie one after the other: rows by columns in the source, columns by rows
/// in the target.
///
/// The launch is asynchronous.
///
/// ```
/// # use cubecl::server::Handle;
/// use windowpane_kernels::{BufferError, DType, Target, transpose};
///
/// /// A batch of 8 images of 56 × 56 pixels and 64 channels, from channels first to channels last.
/// fn channels_last(target: Target<'_>, x: &Handle) -> Result<Handle, BufferError> {
///     let y = target.client.empty(8 * 64 * 56 * 56 * size_of::<f32>());
///     transpose(target, DType::F32, x, &y, [8, 64, 56 * 56])?;
///     Ok(y)
/// }
/// ```
pub fn transpose(
    target: Target<'_>,
    dtype: DType,
    from: &Handle,
    to: &Handle,
    [matrices, rows, columns]: [usize; 3],
) -> Result<(), BufferError> {
    let elements = matrices.saturating_mul(rows).saturating_mul(columns);
    if elements > LIMIT {
        // Positions are divided in 32 bits.
        return Err(BufferError::TooMany { name: "the source", elements, limit: LIMIT });
    }
    let given = |name, handle| Given { name, handle, dtype, elements };
    buffers::check(target.device, &[given("the source", from)], &[given("the transpose", to)])?;
    if elements > 0 {
        packed::computed(target, dtype, [from, to].map(|it| (it, elements)), |dtype, from, to| {
            cube::transpose::launch(target, dtype, from, to, [matrices, rows, columns]);
        });
    }
    Ok(())
}
