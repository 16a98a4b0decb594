//! The memory of earlier results, for later ones.

use crate::{Device, Tensor};

/// Memory that results may use in place of new memory, in their order.
#[derive(Default)]
pub(crate) struct Spare {
    #[cfg(feature = "kernels")]
    memory: std::collections::VecDeque<cubecl::server::Handle>,
}

impl Spare {
    /// The memory of tensors that will be replaced, where it is the device's and nobody else
    /// holds it.
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
        let spare = self.memory.pop_front().filter(|handle| handle.size() == bytes as u64);
        spare.unwrap_or_else(|| client.empty(bytes))
    }
}
