use core::fmt;
use core::str::FromStr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use windowpane_geometry::DType;

#[cfg(feature = "kernels")]
use crate::listen::{Unanswered, listen};
#[cfg(feature = "kernels")]
use crate::plan_cache::PlanCache;
#[cfg(feature = "kernels")]
use crate::watchdog::Watchdog;
use crate::{Error, Result};

/// An interface through which devices are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// NVIDIA GPUs through CUDA.
    Cuda,
    /// AMD GPUs through ROCm's HIP.
    Hip,
    /// Apple GPUs through the Metal shading language.
    Metal,
    /// GPUs through Vulkan, with SPIR-V.
    Vulkan,
    /// GPUs through WGSL, WebGPU's shading language, on any graphics API of the machine.
    Wgpu,
    /// The CPU, with kernels compiled at run time.
    Cpu,
    /// The CPU, without a driver or a compiler; always there.
    Host,
}

impl Backend {
    /// Every backend, the preferred one first.
    pub const ALL: [Self; 7] =
        [Self::Cuda, Self::Hip, Self::Metal, Self::Vulkan, Self::Wgpu, Self::Cpu, Self::Host];

    /// The name, also used for the cargo feature and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::Metal => "metal",
            Self::Vulkan => "vulkan",
            Self::Wgpu => "wgpu",
            Self::Cpu => "cpu",
            Self::Host => "host",
        }
    }

    /// Whether this build has the backend.
    pub fn is_built(self) -> bool {
        match self {
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Hip => cfg!(feature = "hip"),
            Self::Metal => cfg!(feature = "metal"),
            Self::Vulkan => cfg!(feature = "vulkan"),
            Self::Wgpu => cfg!(feature = "wgpu"),
            Self::Cpu => cfg!(feature = "cpu"),
            Self::Host => true,
        }
    }

    /// Whether the backend's language has the type, independent of the device.
    #[cfg(feature = "kernels")]
    fn language_has(self, dtype: DType) -> bool {
        // A device may list types that only another of its languages supports.
        match self {
            Self::Wgpu => matches!(dtype, DType::F32 | DType::F16 | DType::I32 | DType::U32),
            Self::Metal => dtype != DType::F64,
            _ => true,
        }
    }

    /// The backends of this build, the preferred one first.
    pub fn built() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|backend| backend.is_built())
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for an unknown backend name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown backend `{0}`; use one of cuda, hip, metal, vulkan, wgpu, cpu, host")]
pub struct UnknownBackend(String);

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, UnknownBackend> {
        Self::ALL
            .into_iter()
            .find(|backend| backend.name() == name)
            .ok_or_else(|| UnknownBackend(name.into()))
    }
}

/// A device that tensors live on and operators run on.
///
/// Cloning is cheap: every clone is the same device.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Backend,
    index: usize,
    name: String,
    /// `None` on `host`.
    #[cfg(feature = "kernels")]
    client: Option<cubecl::client::Client>,
    /// The limits used for planning; `None` on `host`.
    #[cfg(feature = "kernels")]
    capabilities: Option<windowpane_kernels::Capabilities>,
    /// Whether the thread that listens for finished work is known to have ended.
    #[cfg(feature = "kernels")]
    deaf: std::sync::atomic::AtomicBool,
    /// How long to wait for the device, and whether it was given up; of no use on `host`.
    #[cfg(feature = "kernels")]
    watchdog: Arc<Watchdog>,
    /// Why every use of the device is refused, if it is.
    #[cfg(feature = "kernels")]
    unusable: Option<String>,
    /// The kernels that were chosen for the problems so far.
    #[cfg(feature = "kernels")]
    poolings: PlanCache<crate::pool::Key, windowpane_kernels::pool::Plan>,
    #[cfg(feature = "kernels")]
    convolutions: PlanCache<crate::conv::Key, windowpane_kernels::conv::Plan>,
}

/// Whether a device of this name is Mesa's software Vulkan.
fn is_llvmpipe(name: &str) -> bool {
    name.contains("llvmpipe")
}

impl Device {
    /// Device `index` of a backend.
    pub fn new(backend: Backend, index: usize) -> Result<Self> {
        let device = Self::opened(backend, index)?;
        device.require_alive()?;
        Ok(device)
    }

    /// Device `index` of a backend, which may be one that every use refuses.
    fn opened(backend: Backend, index: usize) -> Result<Self> {
        if !backend.is_built() {
            let built: Vec<_> = Backend::built().map(Backend::name).collect();
            return Err(Error::BackendNotBuilt { backend, built: built.join(", ") });
        }
        match backend {
            Backend::Host if index == 0 => Ok(Self::host()),
            Backend::Host => {
                Err(Error::NoDevice { backend, index, reason: "there is one, device 0".into() })
            }
            #[cfg(feature = "kernels")]
            _ => cube::open(backend, index),
            #[cfg(not(feature = "kernels"))]
            _ => unreachable!("a build without kernels has no backend but host"),
        }
    }

    /// The device of a CubeCL client, for programs that have one already: tensors of this device are memory of the
    /// client, and operators are launched through it.
    ///
    /// Launches go to the stream of the thread that calls, as those of the client do. The backend is that of the
    /// client's compiler, whether or not this build can open such a device itself.
    #[cfg(feature = "kernels")]
    pub fn from_client(client: cubecl::client::Client) -> Self {
        cube::wrap(client)
    }

    /// The CPU, without a driver or a compiler; always there.
    pub fn host() -> Self {
        // The number of threads is in files of the system, which take longer to read than a small problem to compute.
        static HOST: LazyLock<Device> = LazyLock::new(|| {
            let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
            let inner = Inner {
                backend: Backend::Host,
                index: 0,
                name: format!("this processor, {threads} threads"),
                #[cfg(feature = "kernels")]
                client: None,
                #[cfg(feature = "kernels")]
                capabilities: None,
                #[cfg(feature = "kernels")]
                deaf: false.into(),
                #[cfg(feature = "kernels")]
                watchdog: Arc::default(),
                #[cfg(feature = "kernels")]
                unusable: None,
                #[cfg(feature = "kernels")]
                poolings: PlanCache::default(),
                #[cfg(feature = "kernels")]
                convolutions: PlanCache::default(),
            };
            Device { inner: Arc::new(inner) }
        });
        HOST.clone()
    }

    /// The CPU, with compiled kernels.
    pub fn cpu() -> Result<Self> {
        Self::new(Backend::Cpu, 0)
    }

    /// The first device reached through WGSL.
    pub fn wgpu() -> Result<Self> {
        Self::new(Backend::Wgpu, 0)
    }

    /// A device reached through Vulkan.
    pub fn vulkan(index: usize) -> Result<Self> {
        Self::new(Backend::Vulkan, index)
    }

    /// An NVIDIA GPU.
    pub fn cuda(index: usize) -> Result<Self> {
        Self::new(Backend::Cuda, index)
    }

    /// An AMD GPU.
    pub fn hip(index: usize) -> Result<Self> {
        Self::new(Backend::Hip, index)
    }

    /// An Apple GPU.
    pub fn metal(index: usize) -> Result<Self> {
        Self::new(Backend::Metal, index)
    }

    /// The best device of this build and machine: a GPU if there is one, else `cpu` if it is built in,
    /// else `host`.
    ///
    /// An emulated GPU is never chosen; open it by name. If `WINDOWPANE_SPEEDS` names a file that cannot be used, the
    /// device is none the less the best one, and each use of it an error that says why.
    pub fn best() -> Self {
        Backend::built()
            .filter(|backend| has_hardware(*backend))
            .find_map(|backend| Self::opened(backend, 0).ok())
            .unwrap_or_else(Self::host)
    }

    /// Every device of this build and machine, the preferred backends first.
    pub fn all() -> Vec<Self> {
        Backend::built()
            .flat_map(|backend| {
                (0..count(backend)).filter_map(move |i| Self::opened(backend, i).ok())
            })
            .collect()
    }

    /// The backend that reaches the device.
    pub fn backend(&self) -> Backend {
        self.inner.backend
    }

    /// The device's position among those of its backend.
    pub fn index(&self) -> usize {
        self.inner.index
    }

    /// The name of the product and its driver.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Whether the device computes with elements of this type.
    pub fn supports(&self, dtype: DType) -> bool {
        #[cfg(feature = "kernels")]
        if let Some(client) = self.own_client() {
            let has = || {
                self.backend().language_has(dtype) && windowpane_kernels::supports(client, dtype)
            };
            return self.packs(dtype) || has();
        }
        let _ = dtype;
        true
    }

    /// Whether kernels of the device have no such type, so that its tensors are stored as packed words: integers of 8 and
    /// 16 bits with WGSL, for example.
    #[cfg(feature = "kernels")]
    pub(crate) fn packs(&self, dtype: DType) -> bool {
        self.capabilities().is_some_and(|device| device.packs(dtype))
    }

    /// The element types that the device computes with.
    pub fn dtypes(&self) -> impl Iterator<Item = DType> {
        DType::ALL.into_iter().filter(|dtype| self.supports(*dtype))
    }

    /// Waits until everything launched on the device is done.
    pub fn wait(&self) -> Result<()> {
        #[cfg(feature = "kernels")]
        if let Some(client) = self.own_client() {
            return self.hear(client, "waiting", |client| async move { client.sync().await });
        }
        Ok(())
    }

    /// The longest time that a call waits for the device; `None` if there is no limit, as on `host`, which computes in
    /// the call itself.
    ///
    /// [`set_wait_limit`](Self::set_wait_limit) sets it for a device, and the environment variable
    /// `WINDOWPANE_WAIT_LIMIT`, in seconds or `none`, for all other devices. Otherwise it is 2 minutes, or 1 hour where
    /// the CPU does the work.
    pub fn wait_limit(&self) -> Result<Option<Duration>> {
        #[cfg(feature = "kernels")]
        if self.own_client().is_some() {
            let on_the_cpu = self.uses_host_memory() || self.is_emulated();
            let limit = self.inner.watchdog.limit(on_the_cpu);
            return limit.map_err(|reason| self.failure("waiting", &reason));
        }
        Ok(None)
    }

    /// Sets the longest time that a call waits for the device, also for its other clones. A call that waits longer
    /// returns [`Error::DeviceLost`], and so does every later call with the device: what hangs is not used again before
    /// the program restarts.
    ///
    /// ```
    /// use std::time::Duration;
    /// use windowpane::Device;
    ///
    /// let device = Device::best();
    /// device.set_wait_limit(Some(Duration::from_secs(600)));
    /// device.wait()?;
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn set_wait_limit(&self, limit: Option<Duration>) {
        #[cfg(feature = "kernels")]
        self.inner.watchdog.set(limit);
        let _ = limit;
    }

    /// Refuses to use a device that was given up or cannot be used.
    pub(crate) fn require_alive(&self) -> Result<()> {
        #[cfg(feature = "kernels")]
        if let Some(reason) = &self.inner.unusable {
            let (backend, index) = (self.backend(), self.index());
            return Err(Error::NoDevice { backend, index, reason: reason.clone() });
        }
        #[cfg(feature = "kernels")]
        if let Some(reason) = self.inner.watchdog.lost() {
            return Err(Error::DeviceLost { device: self.clone(), reason: reason.to_string() });
        }
        Ok(())
    }

    /// Runs `work` and measures how long the device takes for its launches: with the device's own clock if
    /// this crate can read it, else with the host's clock, from an idle device until it is idle again.
    ///
    /// If the device's clock measures nothing, as some drivers' clocks now and then do, `work` runs again, three times at
    /// most.
    pub fn time<T: Send + 'static>(
        &self,
        mut work: impl FnMut() -> Result<T> + Send,
    ) -> Result<(T, Duration)> {
        #[cfg(feature = "kernels")]
        if let Some(client) = self.own_client() {
            return cube::time(self, client, work);
        }
        let start = Instant::now();
        let result = work()?;
        Ok((result, start.elapsed()))
    }

    /// Whether the device computes in the memory of this process.
    pub fn uses_host_memory(&self) -> bool {
        matches!(self.backend(), Backend::Host | Backend::Cpu)
    }

    /// Whether the CPU emulates the GPU: Mesa's software Vulkan, through any backend.
    pub fn is_emulated(&self) -> bool {
        is_llvmpipe(self.name())
    }

    /// Whether [`time`](Self::time) uses the device's own clock.
    pub fn has_clock(&self) -> bool {
        #[cfg(feature = "kernels")]
        if let Some(client) = self.own_client() {
            return cube::has_clock(self, client);
        }
        false
    }

    pub(crate) fn require(&self, dtype: DType) -> Result<()> {
        self.require_alive()?;
        if self.supports(dtype) {
            return Ok(());
        }
        let available: Vec<_> = self.dtypes().map(DType::name).collect();
        Err(Error::DTypeUnsupported {
            device: self.clone(),
            dtype,
            available: available.join(", "),
        })
    }

    /// Refuses `work` on `host` that does not fit in memory; Rust aborts when an allocation fails.
    pub(crate) fn require_memory(&self, bytes: usize, work: impl fmt::Display) -> Result<()> {
        if Vec::<u8>::new().try_reserve_exact(bytes).is_ok() {
            return Ok(());
        }
        let reason = format!("there is no memory for {bytes} bytes; make the problem smaller");
        Err(Error::Device { device: self.clone(), work: work.to_string(), reason })
    }

    /// The CubeCL client, for launching other kernels; `None` on `host`.
    #[cfg(feature = "kernels")]
    pub fn client(&self) -> Option<&cubecl::client::Client> {
        self.inner.watchdog.is_shared();
        self.own_client()
    }

    /// The client, for asking it something. Launches need a [`target`](Self::target).
    #[cfg(feature = "kernels")]
    pub(crate) fn own_client(&self) -> Option<&cubecl::client::Client> {
        self.inner.client.as_ref()
    }

    #[cfg(feature = "kernels")]
    pub(crate) fn watchdog(&self) -> &Watchdog {
        &self.inner.watchdog
    }

    /// Whether waits should rely on another stream's listener.
    #[cfg(feature = "kernels")]
    pub(crate) fn deafness(&self) -> &std::sync::atomic::AtomicBool {
        &self.inner.deaf
    }

    /// The device's limits for planning; `None` on `host`.
    #[cfg(feature = "kernels")]
    pub(crate) fn capabilities(&self) -> Option<&windowpane_kernels::Capabilities> {
        self.inner.capabilities.as_ref()
    }

    /// The kernels that were chosen for poolings so far.
    #[cfg(feature = "kernels")]
    pub(crate) fn poolings(&self) -> &PlanCache<crate::pool::Key, windowpane_kernels::pool::Plan> {
        &self.inner.poolings
    }

    /// The kernels that were chosen for convolutions so far.
    #[cfg(feature = "kernels")]
    pub(crate) fn convolutions(
        &self,
    ) -> &PlanCache<crate::conv::Key, windowpane_kernels::conv::Plan> {
        &self.inner.convolutions
    }

    /// Where kernels are launched, right now; `None` on `host`.
    #[cfg(feature = "kernels")]
    pub(crate) fn target(&self) -> Option<windowpane_kernels::Target<'_>> {
        let (client, capabilities) = (self.own_client()?, self.capabilities()?);
        self.inner.watchdog.launches();
        Some(windowpane_kernels::Target { client, device: capabilities })
    }

    /// Waits for the device's answer about `work`, at most until the limit.
    #[cfg(feature = "kernels")]
    pub(crate) fn hear<T: Send + 'static, A>(
        &self,
        client: &cubecl::client::Client,
        work: &str,
        ask: impl FnOnce(cubecl::client::Client) -> A + Send + 'static,
    ) -> Result<T>
    where
        A: Future<Output = Result<T, cubecl::server::ServerError>>,
    {
        let answer = self.answer(client, work, ask)?.map_err(|error| self.failure(work, &error))?;
        self.inner.watchdog.has_waited();
        Ok(answer)
    }

    /// The same for an answer that is not a [`Result`].
    #[cfg(feature = "kernels")]
    fn answer<A: Future<Output: Send + 'static>>(
        &self,
        client: &cubecl::client::Client,
        work: &str,
        ask: impl FnOnce(cubecl::client::Client) -> A + Send + 'static,
    ) -> Result<A::Output> {
        self.require_alive()?;
        listen(self, client, self.wait_limit()?, ask)
            .map_err(|reason| self.unanswered(work, reason))
    }

    /// The error for an answer that did not come; gives the device up if it was late.
    #[cfg(feature = "kernels")]
    pub(crate) fn unanswered(&self, work: &str, reason: Unanswered) -> Error {
        match reason {
            Unanswered::Late(limit) => {
                let reason = self.inner.watchdog.give_up(work, limit).to_string();
                Error::DeviceLost { device: self.clone(), reason }
            }
            reason => self.failure(work, &reason),
        }
    }

    /// The same device, but with its own limit, and its own end.
    #[cfg(all(test, feature = "kernels"))]
    pub(crate) fn with_own_watchdog(&self) -> Self {
        let Inner { backend, index, name, client, capabilities, .. } = &*self.inner;
        let inner = Inner {
            backend: *backend,
            index: *index,
            name: name.clone(),
            client: client.clone(),
            capabilities: *capabilities,
            deaf: false.into(),
            watchdog: Arc::default(),
            unusable: None,
            poolings: PlanCache::default(),
            convolutions: PlanCache::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Reads a buffer that `work` has written.
    #[cfg(feature = "kernels")]
    pub(crate) fn read(
        &self,
        client: &cubecl::client::Client,
        handle: &cubecl::server::Handle,
        work: &str,
    ) -> Result<impl core::ops::Deref<Target = [u8]> + use<>> {
        let handles = vec![handle.clone()];
        let ask = |client: cubecl::client::Client| async move { client.read_async(handles).await };
        let mut read = self.hear(client, work, ask)?;
        read.pop().ok_or_else(|| self.failure(work, &"it returned no data"))
    }

    #[cfg(feature = "kernels")]
    pub(crate) fn failure(&self, work: &str, error: &dyn fmt::Display) -> Error {
        Error::Device { device: self.clone(), work: work.into(), reason: cube::one_line(error) }
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        #[cfg(feature = "kernels")]
        if let (Some(own), Some(others)) = (self.own_client(), other.own_client()) {
            // The same memory, however the device was opened.
            return own.service_id() == others.service_id();
        }
        (self.backend(), self.index()) == (other.backend(), other.index())
    }
}

impl Eq for Device {}

/// Prints `cuda:0`.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.backend(), self.index())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self}, {})", self.name())
    }
}

/// The number of devices of a backend.
fn count(backend: Backend) -> usize {
    match backend {
        Backend::Host => 1,
        #[cfg(feature = "kernels")]
        _ => cube::devices(backend).len(),
        #[cfg(not(feature = "kernels"))]
        _ => 0,
    }
}

/// Whether device 0 of a backend is real hardware.
fn has_hardware(backend: Backend) -> bool {
    match backend {
        Backend::Host => true,
        #[cfg(feature = "kernels")]
        _ => cube::has_hardware(backend),
        #[cfg(not(feature = "kernels"))]
        _ => false,
    }
}

/// Devices that CubeCL reaches.
#[cfg(feature = "kernels")]
mod cube {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;

    use cubecl::client::Client;
    use cubecl::device::{DeviceUnavailable, WgpuBackend, WgpuDevice, WgpuDeviceKind};
    use cubecl::profile::TimingMethod;
    use windowpane_kernels::{Capabilities, Speeds};

    use super::*;

    /// The devices of a backend, as CubeCL names them, real hardware first.
    pub(super) fn devices(backend: Backend) -> Vec<cubecl::Device> {
        static FOUND: Mutex<Vec<(Backend, Vec<cubecl::Device>)>> = Mutex::new(Vec::new());
        // A poisoned list is still consistent: entries are added in one step.
        let mut found = FOUND.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, devices)) = found.iter().find(|(known, _)| *known == backend) {
            return devices.clone();
        }
        #[cfg(feature = "kernel-cache")]
        keep_kernels();
        #[cfg(target_os = "linux")]
        crate::wayland_log::without_a_desktop();
        let devices = enumerate(backend);
        found.push((backend, devices.clone()));
        devices
    }

    /// Lets CubeCL keep compiled kernels on disk, unless the user or the program decided otherwise.
    #[cfg(feature = "kernel-cache")]
    fn keep_kernels() {
        use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
        if std::env::var_os("WINDOWPANE_KERNEL_CACHE").is_some_and(|value| value == "off") {
            return;
        }
        // The build id tells the kernels of two builds apart. Without it, a later build would be given an earlier one's.
        if buildid::build_id().is_none() {
            return;
        }
        let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
        config.compilation.cache = true;
        // A configuration that is in use already stays.
        CubeClRuntimeConfig::try_set(config);
    }

    fn enumerate(backend: Backend) -> Vec<cubecl::Device> {
        let each = |open: fn(usize) -> Result<cubecl::Device, DeviceUnavailable>| {
            (0..).map_while(|index| open(index).ok()).collect()
        };
        match backend {
            Backend::Cuda => each(cubecl::Device::cuda),
            Backend::Hip => each(cubecl::Device::rocm),
            Backend::Cpu => cubecl::Device::cpu().into_iter().collect(),
            Backend::Vulkan => adapters(WgpuBackend::Vulkan),
            Backend::Metal => adapters(WgpuBackend::Metal),
            // The automatic choice also tries OpenGL, which prints errors without a display, so it is
            // used only if Vulkan finds nothing.
            Backend::Wgpu => match adapters(WgpuBackend::Vulkan) {
                none if none.is_empty() => adapters(WgpuBackend::Auto),
                found => found,
            },
            Backend::Host => Vec::new(),
        }
    }

    /// The devices of one graphics API.
    fn adapters(interface: WgpuBackend) -> Vec<cubecl::Device> {
        use WgpuDeviceKind::{Cpu, DiscreteGpu, IntegratedGpu, Other, VirtualGpu};
        [DiscreteGpu(0), IntegratedGpu(0), VirtualGpu(0), Other(0), Cpu]
            .map(|kind| cubecl::Device::Wgpu(WgpuDevice::new(kind).on(interface)))
            .into_iter()
            .flat_map(|first| cubecl::Device::enumerate(first.to_id()))
            .map(cubecl::Device::from_id)
            .collect()
    }

    fn is_emulated(device: &cubecl::Device) -> bool {
        matches!(device, cubecl::Device::Wgpu(device) if device.kind == WgpuDeviceKind::Cpu)
    }

    pub(super) fn has_hardware(backend: Backend) -> bool {
        devices(backend).first().is_some_and(|device| !is_emulated(device))
    }

    pub(super) fn open(backend: Backend, index: usize) -> Result<Device> {
        let no_device = |reason: String| Error::NoDevice { backend, index, reason };
        let devices = devices(backend);
        let device = devices.get(index).ok_or_else(|| {
            no_device(match devices.len() {
                0 => format!(
                    "there is none; install a driver for {backend}, or choose one that \
                     `windowpane devices` lists"
                ),
                1 => "there is one, device 0".into(),
                n => format!("there are {n}, 0 to {}", n - 1),
            })
        })?;
        let watchdog = Watchdog::of(backend, index);
        if let Some(reason) = watchdog.lost() {
            return Err(no_device(reason.to_string()));
        }
        // A runtime panics if its driver does not start; turn that into an error.
        let client = catch_unwind(AssertUnwindSafe(|| client(backend, device)))
            .map_err(|_| no_device("its driver did not start".into()))?;
        let name = match device.description() {
            Some(description) => match driver(backend, description.driver_version) {
                Some(driver) => format!("{}, driver {driver}", description.name),
                None => description.name,
            },
            None => client.name().into(),
        };
        let speeds = crate::speeds::asked(&format!("{backend} {name}"));
        Ok(with_client(backend, index, name, client, watchdog, speeds))
    }

    /// The device of a client that was opened elsewhere.
    pub(super) fn wrap(client: Client) -> Device {
        let backend = match client.name() {
            _ if is_wgsl(&client) => Backend::Wgpu,
            "cuda" => Backend::Cuda,
            "hip" => Backend::Hip,
            "cpu" => Backend::Cpu,
            "metal" | "wgpu<msl>" => Backend::Metal,
            "wgpu<spirv>" => Backend::Vulkan,
            _ => Backend::Wgpu,
        };
        // wgpu devices have the number of their graphics API in the bits above the index.
        let index = usize::from(client.service_id().device.index_id) & WgpuDeviceKind::MAX_INDEX;
        let name = client.properties().identity.name.clone();
        let watchdog = Watchdog::of(backend, index);
        // The program that opened it launches work too.
        watchdog.is_shared();
        with_client(backend, index, name, client, watchdog, Ok(None))
    }

    /// Whether a client compiles WGSL where SPIR-V is built in too: both have the same name.
    fn is_wgsl(client: &Client) -> bool {
        #[cfg(feature = "wgpu")]
        {
            use cubecl::wgpu::{WgpuRuntime, WgslCompiler};
            use cubecl_runtime::runtime::Runtime;
            type Server = <WgpuRuntime<WgslCompiler> as Runtime>::Server;
            client.service_id().service == std::any::TypeId::of::<Server>()
        }
        #[cfg(not(feature = "wgpu"))]
        {
            let _ = client;
            false
        }
    }

    fn with_client(
        backend: Backend,
        index: usize,
        name: String,
        client: Client,
        watchdog: Arc<Watchdog>,
        speeds: Result<Option<Speeds>, String>,
    ) -> Device {
        let own = match backend {
            Backend::Wgpu => Capabilities::of_wgsl(&client),
            _ => Capabilities::of(&client),
        };
        let (speeds, unusable) = match speeds {
            Ok(speeds) => (speeds, None),
            Err(reason) => (None, Some(reason)),
        };
        let capabilities = Some(Capabilities { speeds: speeds.unwrap_or(own.speeds), ..own });
        if let (Backend::Cpu, Some(capabilities)) = (backend, &capabilities) {
            crate::at_exit::waits_for(&client, capabilities);
        }
        let (client, deaf) = (Some(client), false.into());
        let (poolings, convolutions) = (PlanCache::default(), PlanCache::default());
        let inner = Inner {
            backend,
            index,
            name,
            client,
            capabilities,
            deaf,
            watchdog,
            unusable,
            poolings,
            convolutions,
        };
        Device { inner: Arc::new(inner) }
    }

    /// The driver's version. CUDA reports only its own version; on Linux the driver's is in /proc.
    fn driver(backend: Backend, told: Option<String>) -> Option<String> {
        let nvidia = || std::fs::read_to_string("/proc/driver/nvidia/version").ok();
        match backend {
            Backend::Cuda => nvidia().and_then(|text| nvidia_driver(&text)).or(told),
            _ => told,
        }
    }

    /// The version in the description of NVIDIA's kernel module: the first number with dots.
    fn nvidia_driver(text: &str) -> Option<String> {
        let is_version = |word: &&str| {
            word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.')
        };
        text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
    }

    fn client(backend: Backend, device: &cubecl::Device) -> Client {
        match (backend, device) {
            // The automatic choice would be SPIR-V if that is built in.
            #[cfg(feature = "wgpu")]
            (Backend::Wgpu, cubecl::Device::Wgpu(device)) => {
                use cubecl_runtime::runtime::Runtime;
                cubecl::wgpu::WgpuRuntime::<cubecl::wgpu::WgslCompiler>::client(device)
            }
            _ => device.client(),
        }
    }

    pub(super) fn has_clock(device: &Device, client: &Client) -> bool {
        // The CPU's clock is the host's, even if the runtime reports a device clock.
        device.backend() != Backend::Cpu
            && client.properties().timing_method == TimingMethod::Device
    }

    pub(super) fn time<T: Send + 'static>(
        device: &Device,
        client: &Client,
        mut work: impl FnMut() -> Result<T> + Send,
    ) -> Result<(T, Duration)> {
        let timed = until_measured(|| time_once(device, client, &mut work))?;
        timed.ok_or_else(|| device.failure("timing", &"the clock measured nothing"))
    }

    /// The number of attempts to measure a time.
    const ATTEMPTS: usize = 4;

    /// The first attempt that measured something; none if there is none.
    fn until_measured<T>(
        mut attempt: impl FnMut() -> Result<(T, Option<Duration>)>,
    ) -> Result<Option<(T, Duration)>> {
        for _ in 0..ATTEMPTS {
            if let (result, Some(took)) = attempt()? {
                return Ok(Some((result, took)));
            }
        }
        Ok(None)
    }

    /// The result of `work` and its time; no time if the clock measured nothing.
    fn time_once<T: Send + 'static>(
        device: &Device,
        client: &Client,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> Result<(T, Option<Duration>)> {
        device.require_alive()?;
        let (result, profile) =
            client.profile(work, "windowpane").map_err(|error| device.failure("timing", &error))?;
        let result = result?;
        // The host's time includes more than the device's work and must not be reported as device time.
        if has_clock(device, client) && profile.timing_method() != TimingMethod::Device {
            return Err(device.failure("timing", &"its clock is in use by other work"));
        }
        let ticks = device.answer(client, "timing", |_| profile.resolve())?;
        Ok((result, ticks.map(|ticks| ticks.duration())))
    }

    /// The text of an error without its backtrace.
    pub(super) fn one_line(error: &dyn fmt::Display) -> String {
        let text = error.to_string();
        let text = text.split("\nBacktrace").next().unwrap_or_default();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_driver_is_the_kernel_modules() {
            let module = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release \
                          Build\nGCC version:  gcc 12.2.0";
            assert_eq!(nvidia_driver(module).as_deref(), Some("580.159.04"));
            assert_eq!(nvidia_driver("none"), None);
        }

        /// Work is timed again where the clock measured nothing, and neither for ever nor after an error.
        #[test]
        fn work_is_timed_until_the_clock_measures_something() {
            let second = Duration::from_secs(1);
            let mut times = [None, None, Some(second)].into_iter();
            let timed = until_measured(|| Ok(((), times.next().unwrap_or_default())));
            assert_eq!(timed.unwrap(), Some(((), second)));
            let mut attempts = 0;
            let timed = until_measured(|| {
                attempts += 1;
                Ok((attempts, None))
            });
            assert_eq!((timed.unwrap(), attempts), (None, ATTEMPTS));
            let mut attempts = 0;
            let failed = until_measured::<()>(|| {
                attempts += 1;
                Err(Error::File { path: "x".into(), reason: "y".into() })
            });
            assert!(failed.is_err() && attempts == 1);
        }
    }
}
