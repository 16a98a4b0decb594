//! Work that a device keeps, to do it again in one go.

use core::fmt;

#[cfg(feature = "kernels")]
use cubecl::client::{Client, Graph};

use crate::{Device, Result};

/// Work that a device has kept, to do it again in one go: see [`Device::record`].
///
/// It owns the work, so that whatever the work borrows stays borrowed until the recording is dropped:
///
/// ```compile_fail
/// # use windowpane::{Device, MaxPool, Tensor};
/// # let device = Device::host();
/// # let x = Tensor::from_slice(&device, &[0f32; 4], [1, 2, 2, 1])?;
/// # let plan = MaxPool::new([2, 2]).plan(&device, x.dtype(), x.dims())?;
/// let mut y = Vec::new();
/// let mut recording = device.record(|| plan.run(&[&x], &mut y))?;
/// recording.replay()?;
/// y[0].to_vec::<f32>()?;
/// # drop(recording);
/// # Ok::<(), windowpane::Error>(())
/// ```
pub struct Recording<F> {
    work: F,
    device: Device,
    #[cfg(feature = "kernels")]
    graph: Option<Graph>,
}

impl Device {
    /// Does work, and keeps what it launches so that the device can [do it again](Recording::replay) with less
    /// of the host's between launches: nothing on CUDA and HIP, which make a graph of it; elsewhere kernels
    /// and their memory are not looked for again.
    ///
    /// The work is called once, and where the device may keep it once more, when it is recorded and not done:
    /// it must launch the same each time, in memory that the first call has left, neither read nor wait nor
    /// replay, and give no tensor away. Where the device does not keep it, which may be for numbers that it brings
    /// from the host or for what another thread allocates meanwhile, it is called again for each replay, and at
    /// once where a recording was lost. Meanwhile other threads may be refused reading, waiting and timing on
    /// the device. Replays belong to the thread that has recorded.
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
    /// drop(recording);
    /// assert_eq!(y[0].to_vec::<f32>()?, [3.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn record<F: FnMut() -> Result<()>>(&self, mut work: F) -> Result<Recording<F>> {
        #[cfg(feature = "kernels")]
        let graph = match self.client() {
            Some(client) => graph(client, &mut work)?,
            None => {
                work()?;
                None
            }
        };
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
fn graph(client: &Client, work: &mut impl FnMut() -> Result<()>) -> Result<Option<Graph>> {
    let Some(capture) = Capture::prepare(client) else { return work().map(|()| None) };
    work()?;
    if client.start_capture().is_err() {
        return Ok(None);
    }
    work()?;
    match capture.end() {
        Some(graph) => Ok(Some(graph)),
        // What was to be kept was not done, and its results are there for nobody.
        None => work().map(|()| None),
    }
}

/// A stream that is prepared for a graph, or makes one, until this ends.
#[cfg(feature = "kernels")]
struct Capture<'a> {
    client: &'a Client,
    ended: bool,
}

#[cfg(feature = "kernels")]
impl<'a> Capture<'a> {
    /// None on devices that make no graphs, and where one is being made already.
    fn prepare(client: &'a Client) -> Option<Self> {
        let free = !client.is_capturing() && client.graph_prepare().is_ok();
        free.then_some(Self { client, ended: false })
    }

    fn end(mut self) -> Option<Graph> {
        self.ended = true;
        self.client.stop_capture().ok()
    }
}

#[cfg(feature = "kernels")]
impl Drop for Capture<'_> {
    /// Also where the work has failed or panicked: a stream does nothing else until its capture ends.
    fn drop(&mut self) {
        if !self.ended {
            drop(self.client.stop_capture());
        }
    }
}

impl<F: FnMut() -> Result<()>> Recording<F> {
    /// Does the work again.
    pub fn replay(&mut self) -> Result<()> {
        #[cfg(feature = "kernels")]
        if let Some(graph) = &self.graph {
            // SAFETY: the work, which lives as long as this, has its tensors to itself, and the graph has the rest.
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

impl<F> Drop for Recording<F> {
    /// The graph goes before what it reads and writes.
    fn drop(&mut self) {
        #[cfg(feature = "kernels")]
        drop(self.graph.take());
    }
}

impl<F> fmt::Debug for Recording<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").field("device", &self.device).finish_non_exhaustive()
    }
}
