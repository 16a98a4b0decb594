//! Compiles kernels before they are needed.

#[cfg(feature = "kernels")]
use cubecl_runtime::execution::{StreamMode, StreamModeOverride};

use crate::{Device, Result};

impl Device {
    /// Compiles the kernels that `work` launches, on all cores of the processor at once. A first call would otherwise
    /// compile its kernels one after the other, each in 0.1 to 0.6 seconds on CUDA.
    ///
    /// `work` is called once, and what it launches from this thread on this device does not run. So the elements of its
    /// results mean nothing, and it must not read them. A kernel that does not compile is an error of the call that needs
    /// it. `host` has no kernels: there, `work` is not called.
    ///
    /// ```
    /// use windowpane::{DType, Device, MaxPool, Tensor};
    ///
    /// let (device, pool) = (Device::best(), MaxPool::new([3, 3]).stride([2, 2]));
    /// device.compile(|| {
    ///     let x = Tensor::random(&device, DType::F32, [8, 56, 56, 64], 1)?;
    ///     pool.forward(&x).map(drop)
    /// })?;
    /// // Calls with tensors of this kind find their kernel compiled.
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn compile(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.require_alive()?;
        #[cfg(feature = "kernels")]
        if let Some(client) = self.own_client() {
            let queued = {
                let _discards = StreamModeOverride::new(StreamMode::Discard, client);
                work()
            };
            client.compile_queued();
            // Unlike a wait for the device, this one has no limit: the processor is at work.
            client.flush().map_err(|error| self.failure("compiling", &error))?;
            return queued;
        }
        drop(work);
        Ok(())
    }
}
