//! Records launches for replay with less CPU overhead.

use core::fmt;

#[cfg(feature = "kernels")]
use cubecl::client::{Client, Graph};

use crate::{Device, Result};

/// Recorded work that can be replayed: see [`Device::record`].
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
    /// Runs work and records its launches, to [replay](Recording::replay) them with less CPU overhead. On CUDA
    /// and HIP the recording is a graph, without CPU work between launches.
    ///
    /// The work is called once and, if the device supports recording, a second time, during which launches are
    /// recorded but not run. It must launch the same kernels each time, in the memory that the first call left,
    /// must not read, wait or replay, and must not give a tensor away. If recording fails, for example because
    /// the work uploads data or another thread allocates memory, the work is called again for each replay.
    /// During recording, other threads may get errors when they read, wait or time on the device. Only the
    /// recording thread may replay.
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

/// Runs the work once, and once more to capture a graph if the device supports graphs.
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
        // Work during the failed capture did not run, so it runs again.
        None => work().map(|()| None),
    }
}

/// A stream that is prepared for, or in, a graph capture, until dropped.
#[cfg(feature = "kernels")]
struct Capture<'a> {
    client: &'a Client,
    ended: bool,
}

#[cfg(feature = "kernels")]
impl<'a> Capture<'a> {
    /// `None` on devices without graphs, or during another capture.
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
    /// Ends the capture even if the work failed or panicked; until then the stream does nothing else.
    fn drop(&mut self) {
        if !self.ended {
            drop(self.client.stop_capture());
        }
    }
}

impl<F: FnMut() -> Result<()>> Recording<F> {
    /// Replays the work.
    pub fn replay(&mut self) -> Result<()> {
        #[cfg(feature = "kernels")]
        if let Some(graph) = &self.graph {
            // SAFETY: the work, which lives as long as this, has its tensors to itself, and the graph has the rest.
            let replayed = unsafe { graph.replay() };
            return replayed.map_err(|error| self.device.failure("replaying", &error));
        }
        (self.work)()
    }

    /// Whether the device recorded the work.
    pub fn is_kept(&self) -> bool {
        #[cfg(feature = "kernels")]
        return self.graph.is_some();
        #[cfg(not(feature = "kernels"))]
        false
    }
}

impl<F> Drop for Recording<F> {
    /// Drops the graph before the memory that it reads and writes.
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
