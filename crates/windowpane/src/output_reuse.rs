//! Reuses the memory of earlier results for later ones.

use crate::{Device, Tensor};

/// Memory that results can use instead of new memory, in order.
#[derive(Default)]
pub(crate) struct Spare {
    #[cfg(feature = "kernels")]
    memory: std::collections::VecDeque<cubecl::server::Handle>,
}

impl Spare {
    /// The memory of tensors that will be replaced, if it is on the device and not shared.
    pub(crate) fn of(results: &mut [Tensor], device: &Device) -> Self {
        #[cfg(feature = "kernels")]
        if results.iter().all(|tensor| tensor.device() == device)
            && let Some(memory) =
                results.iter_mut().map(|tensor| tensor.own_handle().cloned()).collect()
        {
            return Self { memory };
        }
        let _ = (results, device);
        Self::default()
    }

    #[cfg(feature = "kernels")]
    pub(crate) fn take(
        &mut self,
        client: &cubecl::client::Client,
        bytes: usize,
    ) -> cubecl::server::Handle {
        // Not `size`, which counts the bytes that an allocator adds for alignment.
        let spare = self.memory.pop_front().filter(|handle| handle.size_in_used() == bytes as u64);
        spare.unwrap_or_else(|| client.empty(bytes))
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use cubecl::server::Overlap;
    use windowpane_geometry::DType;

    use super::*;

    /// A result of the same size reuses memory that the host has filled, so a caller who fills results with a pattern
    /// first can see which elements a kernel does not write.
    #[test]
    fn memory_from_the_host_is_used_again() {
        for device in Device::all().into_iter().filter(|device| device.own_client().is_some()) {
            let types = [DType::F32, DType::F16].into_iter().filter(|it| device.supports(*it));
            for (dtype, len) in types.flat_map(|dtype| [1, 7, 4096, 99_999].map(|len| (dtype, len)))
            {
                let bytes = len * dtype.size();
                let tensor = Tensor::from_bytes(&device, dtype, &vec![0xff; bytes], [len]);
                let mut results = [tensor.expect("memory")];
                let own = results[0].own_handle().cloned().expect("nobody else's");
                let mut spare = Spare::of(&mut results, &device);
                let client = device.own_client().expect("a client");
                let taken = spare.take(client, bytes);
                assert_eq!(taken.overlap(&own), Overlap::Same, "{device} {dtype} {len}");
                assert_eq!(taken.size_in_used(), bytes as u64, "{device} {dtype} {len}");
            }
        }
    }
}
