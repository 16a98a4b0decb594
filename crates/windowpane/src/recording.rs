//! Records launches for replay with less CPU overhead.

use core::fmt;
#[cfg(feature = "kernels")]
use std::cell::RefCell;

#[cfg(feature = "kernels")]
use cubecl::client::{Client, Graph};
#[cfg(feature = "kernels")]
use cubecl::server::Handle;

#[cfg(feature = "kernels")]
use crate::compile::is_compiling;
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
    graph: Option<Kept>,
}

/// A captured graph, and the memory of the tensors that its launches read and write: a tensor that the work shares with
/// others may be dropped while the graph still uses its memory.
#[cfg(feature = "kernels")]
struct Kept {
    graph: Graph,
    _memory: Vec<Handle>,
}

impl Device {
    /// Runs work and records its launches, to [replay](Recording::replay) them with less CPU overhead. On CUDA
    /// and HIP the recording is a graph, without CPU work between launches.
    ///
    /// Each replay overwrites the results of the work, also in tensors that it shares with others. Their memory stays
    /// allocated as long as the recording. The work is called once and, if the device supports recording, a second time, during which launches are
    /// recorded but not run. It must launch the same kernels each time, in the memory that the first call left,
    /// and must not read, wait or replay. If recording fails, for example because
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
        self.require_alive()?;
        #[cfg(feature = "kernels")]
        let graph = match self.own_client() {
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
fn graph(client: &Client, work: &mut impl FnMut() -> Result<()>) -> Result<Option<Kept>> {
    let Some(capture) = Capture::prepare(client) else { return work().map(|()| None) };
    work()?;
    if client.start_capture().is_err() {
        return Ok(None);
    }
    let memory = noted(&mut *work)?;
    match capture.end() {
        Some(graph) => Ok(Some(Kept { graph, _memory: memory })),
        // Work during the failed capture did not run, so it runs again.
        None => work().map(|()| None),
    }
}

#[cfg(feature = "kernels")]
thread_local! {
    /// The memory that this thread's launches use, while it is noted.
    static NOTED: RefCell<Option<Vec<Handle>>> = const { RefCell::new(None) };
}

/// Notes the memory of a tensor that a launch reads or writes, if a graph is being captured.
#[cfg(feature = "kernels")]
pub(crate) fn note(handle: &Handle) {
    NOTED.with_borrow_mut(|noted| {
        if let Some(noted) = noted {
            noted.push(handle.clone());
        }
    });
}

/// Does work, and gives the memory of the tensors that its launches used.
#[cfg(feature = "kernels")]
fn noted(work: impl FnOnce() -> Result<()>) -> Result<Vec<Handle>> {
    /// Stops noting even if the work fails or panics.
    struct Noting;
    impl Drop for Noting {
        fn drop(&mut self) {
            NOTED.take();
        }
    }
    let _noting = Noting;
    NOTED.set(Some(Vec::new()));
    work()?;
    Ok(NOTED.take().unwrap_or_default())
}

/// A stream that is prepared for, or in, a graph capture, until dropped.
#[cfg(feature = "kernels")]
struct Capture<'a> {
    client: &'a Client,
    ended: bool,
}

#[cfg(feature = "kernels")]
impl<'a> Capture<'a> {
    /// `None` on devices without graphs, during another capture, or where launches do not run.
    fn prepare(client: &'a Client) -> Option<Self> {
        let free = !is_compiling() && !client.is_capturing() && client.graph_prepare().is_ok();
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
        self.device.require_alive()?;
        #[cfg(feature = "kernels")]
        if let Some(kept) = &self.graph {
            self.device.watchdog().launches();
            // SAFETY: the memory of all tensors that the launches use is kept with the graph, which has the rest.
            let replayed = unsafe { kept.graph.replay() };
            return replayed.map_err(|error| self.device.failure("replaying", &error));
        }
        (self.work)()
    }

    /// Whether the device recorded the work.
    pub fn is_captured(&self) -> bool {
        #[cfg(feature = "kernels")]
        return self.graph.is_some();
        #[cfg(not(feature = "kernels"))]
        false
    }
}

impl<F> Drop for Recording<F> {
    /// Drops the graph before the work and its tensors.
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

/// Does not compile if a recording whose work shares a tensor through an `Rc` can be sent to another thread: then either
/// trait below could be meant.
#[cfg(test)]
const _: fn() = || {
    trait IsLocal<Marker> {
        fn is_local() {}
    }
    struct Sent;
    impl<T: ?Sized> IsLocal<()> for T {}
    impl<T: ?Sized + Send> IsLocal<Sent> for T {}
    <Recording<std::rc::Rc<crate::Tensor>> as IsLocal<_>>::is_local();
};

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use cubecl::server::Overlap;

    use super::*;
    use crate::{DType, MaxPool, Tensor};

    /// A graph keeps what its launches read and write, and memory is noted only while a graph is captured.
    #[test]
    fn the_memory_of_launches_is_noted() {
        for device in Device::all().into_iter().filter(|device| device.own_client().is_some()) {
            let x = Tensor::random(&device, DType::F32, [1, 8, 8, 4], 1).unwrap();
            let plan = MaxPool::new([2, 2]).plan(&device, DType::F32, x.dims()).unwrap();
            let mut y = Vec::new();
            plan.run(&[&x], &mut y).unwrap();
            let memory = noted(|| plan.run(&[&x], &mut y)).unwrap();
            for tensor in [&x, &y[0]] {
                let (_, handle) = tensor.memory().unwrap();
                let kept = memory.iter().any(|noted| noted.overlap(handle) == Overlap::Same);
                assert!(kept, "{device}: {:?}", tensor.dims());
            }
            assert!(NOTED.take().is_none());
        }
    }
}
