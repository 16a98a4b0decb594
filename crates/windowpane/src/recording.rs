//! Work that a device keeps, to do it again in one go.

use core::fmt;

use crate::{Device, Result};

/// Work that a device has kept, to do it again in one go: see [`Device::record`].
///
/// It keeps the work too, and with it all that this holds or borrows: the memory that is read and written
/// again is there, and nobody else has what the work has for itself.
pub struct Recording<F> {
    work: F,
    device: Device,
    #[cfg(feature = "kernels")]
    graph: Option<cubecl::client::Graph>,
}

impl Device {
    /// Does work once, and keeps what it launches so that the device can [do it
    /// again](Recording::replay) with nothing of the host between launches: CUDA and HIP by a graph, others
    /// without finding kernels and their memory again. Where the device keeps nothing, or not this, the
    /// work itself is what is done again.
    ///
    /// The work is called twice, the second time for what is kept: it must launch the same each time, in
    /// memory that the first call has left, neither read nor wait, and keep its results to itself until the
    /// recording is dropped. Another thread that allocates meanwhile may be why the device keeps nothing.
    ///
    /// ```
    /// use windowpane::{Device, MaxPool, Tensor};
    ///
    /// let device = Device::best();
    /// let x = Tensor::from_slice(&device, &[0f32, 3.0, 2.0, 1.0], [1, 2, 2, 1])?;
    /// let (pool, mut y) = (MaxPool::new([2, 2]), Vec::new());
    /// let plan = pool.plan(&device, x.dtype(), x.dims())?;
    ///
    /// let mut recording = device.record(|| (0..100).try_for_each(|_| plan.run(&[&x], &mut y)))?;
    /// let ((), elapsed) = device.time(|| recording.replay())?;
    /// println!("{:?} each", elapsed / 100);
    /// # drop(recording);
    /// # assert_eq!(y[0].to_vec::<f32>()?, [3.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn record<F: FnMut() -> Result<()>>(&self, mut work: F) -> Result<Recording<F>> {
        #[cfg(feature = "kernels")]
        let graph = graph(self, &mut work)?;
        #[cfg(not(feature = "kernels"))]
        work()?;
        Ok(Recording {
            work,
            device: self.clone(),
            #[cfg(feature = "kernels")]
            graph,
        })
    }
}

/// Does work once, and once more for a graph of it, if the device can make one.
#[cfg(feature = "kernels")]
fn graph(
    device: &Device,
    work: &mut impl FnMut() -> Result<()>,
) -> Result<Option<cubecl::client::Graph>> {
    let Some(client) = device.client().filter(|client| client.graph_prepare().is_ok()) else {
        return work().map(|()| None);
    };
    let mut done = work();
    let begun = done.is_ok() && client.start_capture().is_ok();
    if begun {
        done = work();
    }
    // Always, for a stream that is prepared stays so until its recording ends.
    let graph = client.stop_capture().ok().filter(|_| begun);
    done.map(|()| graph)
}

impl<F: FnMut() -> Result<()>> Recording<F> {
    /// Does the work again.
    pub fn replay(&mut self) -> Result<()> {
        #[cfg(feature = "kernels")]
        if let Some(graph) = &self.graph {
            // SAFETY: the work holds or borrows what its launches read and write, and lives as long as this;
            // what it has allocated and left, the graph keeps from others. Tensors are written to by whoever
            // holds them alone, so nobody else writes where it reads or writes. Its results are others' to read
            // when this is gone, and the graph with it, which waits for what is on its way.
            let replayed = unsafe { graph.replay() };
            return replayed.map_err(|error| self.device.failure("replaying", &error));
        }
        (self.work)()
    }

    /// Whether the device has kept the work.
    pub fn is_kept(&self) -> bool {
        #[cfg(feature = "kernels")]
        return self.graph.is_some();
        #[cfg(not(feature = "kernels"))]
        false
    }
}

impl<F> fmt::Debug for Recording<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").field("device", &self.device).finish_non_exhaustive()
    }
}
