//! A device that computes nothing: it keeps the kernels that are launched on it, so that tests can compile them for
//! devices that are not there.
//!
//! The only file that knows what CubeCL requires of a device's server.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use cubecl::bytes::Bytes;
use cubecl::client::Client;
use cubecl::future::DynFut;
use cubecl::ir::{DeviceProperties, TargetProperties};
use cubecl::prelude::{CubeCount, CubeKernel, KernelId};
use cubecl::profile::ProfileDuration;
use cubecl::server::{
    BufferBinding, CopyDescriptor, Handle, IoError, KernelArguments, MemoryLayout,
    MemoryLayoutDescriptor, MemoryLayoutPolicy, ProfileError, ProfilingToken, Server,
    ServerCommunication, ServerError, ServerStorage, ServerUtilities,
};
use cubecl_common::device::{DeviceId, DeviceService, ServerUtilitiesHandle, ServiceId};
use cubecl_environment::backtrace::BackTrace;
use cubecl_environment::stream::StreamId;
use cubecl_runtime::execution::LaunchMode;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::{
    ManagedMemoryHandle, MemoryAllocationMode, StreamMemoryReport,
};
use cubecl_runtime::storage::{ComputeStorage, ManagedResource, StorageHandle, StorageId};

/// A kernel that was launched, and how.
pub(crate) struct Launch {
    pub(crate) kernel: Box<dyn CubeKernel>,
    /// The cubes of its first launch.
    pub(crate) cubes: CubeCount,
    /// Its buffers, without the one for metadata that a backend may add.
    pub(crate) bindings: usize,
}

/// The kernels that were launched, each once.
#[derive(Clone, Default)]
pub(crate) struct Launches(Arc<Mutex<HashMap<KernelId, Launch>>>);

impl Launches {
    /// Waits for all launches of this client, and removes the kernels.
    pub(crate) fn take(&self, client: &Client) -> Vec<Launch> {
        client.flush().unwrap();
        std::mem::take(&mut *self.0.lock().unwrap()).into_values().collect()
    }
}

/// Kernels have no `Debug`, which a server needs.
impl fmt::Debug for Launches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Launches")
    }
}

/// A client of a new device with these properties. `runtime` is the name that CubeCL gives the runtime of such devices.
pub(crate) fn client(
    runtime: &'static str,
    properties: DeviceProperties,
    target: TargetProperties,
) -> (Client, Launches) {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // No runtime has devices of this type.
    let device = DeviceId::new(u16::MAX, NEXT.fetch_add(1, Ordering::Relaxed));
    let (utilities, _) = ServerUtilities::init(
        ServiceId::of::<Recorder>(device),
        runtime,
        properties,
        target,
        Arc::new(ServerLogger::default()),
        Dense,
    );
    let launches = Launches::default();
    let server = Recorder { utilities: Arc::new(utilities), launches: launches.clone() };
    (Client::init(device, server), launches)
}

type Answer<T = ()> = Result<T, ServerError>;

/// The server: every call succeeds and does nothing, except that launches are recorded.
#[derive(Debug)]
struct Recorder {
    utilities: Arc<ServerUtilities>,
    launches: Launches,
}

impl DeviceService for Recorder {
    fn init(_: DeviceId) -> Self {
        unreachable!("the client is created with its server")
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        self.utilities.clone() as Arc<dyn Any + Send + Sync>
    }
}

impl ServerCommunication for Recorder {}

impl Server for Recorder {
    // Unsafe because of the trait: a launch that is only recorded accesses no memory.
    unsafe fn launch(
        &mut self,
        kernel: Box<dyn CubeKernel>,
        cubes: CubeCount,
        arguments: KernelArguments,
        _: StreamId,
        _: LaunchMode,
    ) {
        let launch = Launch { cubes, bindings: arguments.resources.len(), kernel };
        self.launches.0.lock().unwrap().entry(launch.kernel.id()).or_insert(launch);
    }

    fn initialize_memory(&mut self, _: ManagedMemoryHandle, _: u64, _: StreamId) -> Answer {
        Ok(())
    }

    fn logger(&self) -> Arc<ServerLogger> {
        self.utilities.logger.clone()
    }

    fn utilities(&self) -> Arc<ServerUtilities> {
        self.utilities.clone()
    }

    fn read(&mut self, _: Vec<CopyDescriptor>, _: StreamId) -> DynFut<Answer<Vec<Bytes>>> {
        unreachable!("nothing is computed, so nothing is read")
    }

    fn write(&mut self, _: Vec<(CopyDescriptor, Bytes)>, _: StreamId) {}

    fn sync(&mut self, _: Vec<BufferBinding>, _: StreamId) -> DynFut<Answer> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn check(&mut self, _: Vec<BufferBinding>, _: StreamId) -> Answer {
        Ok(())
    }

    fn flush(&mut self, _: StreamId) -> Answer {
        Ok(())
    }

    fn memory_report(&mut self, _: StreamId) -> Option<StreamMemoryReport> {
        None
    }

    fn memory_cleanup(&mut self, _: StreamId) -> Answer {
        Ok(())
    }

    fn start_profile(&mut self, _: StreamId) -> Answer<ProfilingToken> {
        unreachable!("nothing runs, so nothing is timed")
    }

    fn end_profile(
        &mut self,
        _: StreamId,
        _: ProfilingToken,
    ) -> Result<ProfileDuration, ProfileError> {
        unreachable!("nothing runs, so nothing is timed")
    }

    fn allocation_mode(&mut self, _: MemoryAllocationMode, _: StreamId) {}
}

/// Tensors without gaps, in memory that does not exist.
struct Dense;

impl MemoryLayoutPolicy for Dense {
    fn apply(
        &self,
        service: ServiceId,
        stream: StreamId,
        descriptors: &[MemoryLayoutDescriptor],
    ) -> (Handle, Vec<MemoryLayout>) {
        let [tensor] = descriptors else { panic!("buffers are allocated one at a time") };
        let after = |axis: usize| tensor.shape[axis + 1..].iter().product();
        let strides: Vec<usize> = (0..tensor.shape.len()).map(after).collect();
        let bytes = tensor.shape.iter().product::<usize>() * tensor.elem_size;
        let handle = Handle::new(service, stream, bytes as u64);
        (handle.clone(), vec![MemoryLayout::new(handle, strides)])
    }
}

impl ServerStorage for Recorder {
    type Storage = NoStorage;

    fn get_resource(&mut self, binding: BufferBinding, _: StreamId) -> Answer<ManagedResource<()>> {
        Ok(ManagedResource::new(binding.memory, ()))
    }
}

/// The storage that a server has to name.
struct NoStorage;

impl ComputeStorage for NoStorage {
    type Resource = ();

    fn alignment(&self) -> usize {
        1
    }

    fn get(&mut self, _: &StorageHandle) -> Result<(), IoError> {
        Ok(())
    }

    fn alloc(&mut self, _: u64) -> Result<StorageHandle, IoError> {
        Err(IoError::UnsupportedIoOperation { backtrace: BackTrace::capture() })
    }

    fn dealloc(&mut self, _: StorageId) {}

    fn flush(&mut self) {}

    fn bytes_allocated(&self) -> u64 {
        0
    }
}
