//! Compiles kernels before they are needed.

#[cfg(feature = "kernels")]
use std::cell::Cell;

#[cfg(feature = "kernels")]
use cubecl_runtime::execution::{StreamMode, StreamModeOverride};

use crate::{Device, Result};

#[cfg(feature = "kernels")]
thread_local! {
    /// The calls of [`Device::compile`] that this thread is in.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread's launches may not run, because they are only compiled.
#[cfg(feature = "kernels")]
pub(crate) fn is_compiling() -> bool {
    CALLS.get() > 0
}

/// A client's launches are compiled, and do not run, until this is dropped.
#[cfg(feature = "kernels")]
struct Compiling(#[expect(dead_code, reason = "it acts when it is dropped")] StreamModeOverride);

#[cfg(feature = "kernels")]
impl Compiling {
    fn new(client: &cubecl::client::Client) -> Self {
        CALLS.set(CALLS.get() + 1);
        Self(StreamModeOverride::new(StreamMode::Discard, client))
    }
}

#[cfg(feature = "kernels")]
impl Drop for Compiling {
    fn drop(&mut self) {
        CALLS.set(CALLS.get() - 1);
    }
}

impl Device {
    /// Compiles the kernels that `work` launches, on all cores of the processor at once. A first call would otherwise
    /// compile its kernels one after the other, each in 0.2 to 0.6 seconds on CUDA.
    ///
    /// `work` is called once. What it launches on this device from this thread does not run, so the elements of its
    /// results mean nothing: it must not read, wait, time or tune. A kernel that does not compile is an error of the call
    /// that needs it. There is no limit on this wait, which is for the compiler. `host` has no kernels: there, `work` is
    /// not called.
    ///
    /// Launches of other threads run, unless they share this thread's stream, as with a device
    /// [from a client](Self::from_client) that is bound to one; these threads must not launch meanwhile. While the device
    /// records a graph, nothing can be compiled.
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
            if client.is_capturing() {
                let reason = "a graph is being recorded; compile before `Device::record`";
                return Err(self.failure("compiling", &reason));
            }
            let compiling = Compiling::new(client);
            let done = work();
            drop(compiling);
            client.compile_queued();
            client.flush().map_err(|error| self.failure("compiling", &error))?;
            return done;
        }
        drop(work);
        Ok(())
    }
}
