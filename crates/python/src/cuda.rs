//! Arrays on CUDA devices, without a copy.
//!
//! CubeCL has neither a way to use memory that it did not allocate, nor one to learn the stream that it launches on, so
//! two things here rest on how it is made:
//!
//! - Memory. A kernel's argument is the address of an allocation plus the handle's offset, and an empty allocation has
//!   the address 0. A handle over an empty allocation whose offset is an address is therefore that memory.
//!   [`Gpu::open`] checks the first half of this and the tests the second.
//! - Order. CUDA can record an event after everything that was given to a context, and let everything given to it later
//!   wait for the event. One such [fence](Gpu::fence) before the work orders it after whatever made the inputs, and
//!   after whatever used the memory that the results get; one fence after it orders every use of the results, and every
//!   new use of the inputs' memory, after the work. All libraries of a process share the context, so that no stream has
//!   to be known. The price is that streams do not overlap across a call.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use cubecl::client::Client;
use cubecl::cuda::CudaRuntime;
use cubecl::server::Handle;
use cubecl_environment::stream::Stream;
use cubecl_runtime::runtime::Runtime;
use cubecl_runtime::storage::{ComputeStorage, ManagedResource};
use cudarc::driver::{DriverError, result, sys};
use dlpark::ffi::{DLDevice, DLDeviceType};
use dlpark::python::{DlpackStream, ImportRequest, ImportedDlpack, StreamArg};
use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use windowpane::{Device, Layout, Tensor};

use crate::array::{Array, Data, Input, arranged, refused};
use crate::operators::Made;
use crate::wait::{exception, guarded, refuse_forks};

type Server = <CudaRuntime as Runtime>::Server;
type Resource = <<Server as cubecl::server::ServerStorage>::Storage as ComputeStorage>::Resource;

/// Kernels load vectors of this many bytes.
const ALIGNMENT: u64 = 16;

/// The memory of a caller's array.
pub(crate) struct Shared {
    gpu: &'static Gpu,
    address: u64,
    /// Keeps the memory.
    _owner: ImportedDlpack,
}

/// The memory of a result.
pub(crate) struct Memory {
    gpu: &'static Gpu,
    address: u64,
    /// Keeps the memory in its place. It is only dropped, for which no thread needs the others' consent.
    _resource: Mutex<Option<ManagedResource<Resource>>>,
    _tensor: Tensor,
}

impl Memory {
    pub(crate) fn device(&self) -> DLDevice {
        DLDevice { device_type: DLDeviceType::CUDA, device_id: self.gpu.device.index() as i32 }
    }

    pub(crate) fn address(&self) -> *mut c_void {
        self.address as *mut c_void
    }

    /// Lets a stream copy the result. The [fence](Gpu::fence) after the work orders the copy after it, and the one
    /// before the next work orders the next use of this memory after the copy.
    ///
    /// # Safety
    /// The address has room for these bytes, as many as the result has, and the stream is one of this device.
    pub(crate) unsafe fn copy_to(
        &self,
        to: *mut c_void,
        bytes: usize,
        stream: usize,
    ) -> PyResult<()> {
        let stream = stream as sys::CUstream;
        // SAFETY: by the contract of this function; the context is current.
        let copy = || unsafe { result::memcpy_dtod_async(to as u64, self.address, bytes, stream) };
        entered(self.gpu.context, copy).map_err(failed)
    }
}

/// A device, and what is needed to share memory and order work with other libraries.
pub(crate) struct Gpu {
    device: Device,
    client: Client,
    context: sys::CUcontext,
    fence: Fence,
    /// The stream that libraries order their work before, if they do not say which stream they use.
    stream: sys::CUstream,
    /// CubeCL's name for the stream of all work here: memory belongs to a stream.
    queue: Stream,
    /// An allocation at the address 0.
    empty: Handle,
}

// SAFETY: contexts, streams and events are used from any thread, and these are never destroyed.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

enum Fence {
    Event {
        event: sys::CUevent,
        record: OnContext,
        wait: OnContext,
    },
    /// Drivers before 12.5 cannot record an event after the work of a context; the host waits.
    Host,
}

/// `cuCtxRecordEvent` or `cuCtxWaitEvent`.
type OnContext = unsafe extern "C" fn(sys::CUcontext, sys::CUevent) -> sys::CUresult;

/// The device with this number, opened at its first use.
fn gpu(index: usize) -> PyResult<&'static Gpu> {
    static OPENED: Mutex<Option<HashMap<usize, &'static Gpu>>> = Mutex::new(None);
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = opened.get_or_insert_default();
    if let Some(gpu) = opened.get(&index) {
        return Ok(gpu);
    }
    let gpu = guarded(|| Gpu::open(index))?;
    let gpu: &Gpu = Box::leak(Box::new(gpu));
    opened.insert(index, gpu);
    Ok(gpu)
}

/// Takes the memory of an array on a CUDA device; [`Gpu::fence`] orders its use.
pub(crate) fn import(
    x: &Bound<'_, PyAny>,
    request: ImportRequest<'_>,
    device: DLDevice,
) -> PyResult<ImportedDlpack> {
    refuse_forks()?;
    let index = usize::try_from(device.device_id).map_err(refused)?;
    let gpu = x.py().detach(|| gpu(index))?;
    let imported = match request.import(Some(gpu), None) {
        Err(error) if error.is_instance_of::<PyTypeError>(x.py()) => {
            let stream = gpu.stream as usize;
            crate::array::import_old(x, stream.into_pyobject(x.py())?.into_any().unbind())?
        }
        done => done?,
    };
    // A library that captures has made our stream part of its capture.
    gpu.refuse_capture(gpu.stream)?;
    Ok(imported)
}

/// Memory from [`import`], or from a copy by the array's library if the elements are not dense in a layout and aligned;
/// and the layout, `None` if it is both.
pub(crate) fn share(
    x: &Bound<'_, PyAny>,
    imported: ImportedDlpack,
    rank: usize,
) -> PyResult<(Shared, Option<Layout>)> {
    let (found, order) = shared(imported, rank)?;
    if order.is_dense() && found.address.is_multiple_of(ALIGNMENT) {
        return Ok((found, order.layout()));
    }
    drop(found);
    // PyTorch's `clone` keeps strides, and its `contiguous` returns what is dense as it is.
    let methods = [if order.is_dense() { "clone" } else { "contiguous" }, "copy"];
    let copy = match (x.getattr_opt(methods[0])?, x.getattr_opt(methods[1])?) {
        (Some(method), _) | (None, Some(method)) => method.call0()?,
        (None, None) => x.clone(),
    };
    let (found, order) = shared(crate::array::import(&copy)?, rank)?;
    match order.is_dense() && found.address.is_multiple_of(ALIGNMENT) {
        true => Ok((found, order.layout())),
        false => Err(PyBufferError::new_err(
            "the array's elements are not one after the other from an address that is a multiple of 16 bytes, and its \
             library makes no such copy; pass one",
        )),
    }
}

/// In which layouts the elements of an array are one after the other.
#[derive(Clone, Copy)]
struct Order {
    channels_first: bool,
    channels_last: bool,
}

impl Order {
    /// Of an array that has these strides; only one with a batch, channels and `rank` other axes can be channels last,
    /// and as in PyTorch a signal cannot.
    fn new(shape: &[i64], strides: &[i64], rank: usize) -> Self {
        if shape.contains(&0) {
            return Self { channels_first: true, channels_last: false };
        }
        // Whether the elements are one after the other, if the axes are given from the innermost one.
        let dense = |axes: &[usize]| {
            let mut step = 1;
            axes.iter().all(|&axis| {
                // Where an axis has one position, its stride is never used.
                let next = shape[axis] == 1 || strides[axis] == step;
                step *= shape[axis];
                next
            })
        };
        let mut axes: Vec<_> = (0..shape.len()).rev().collect();
        let channels_first = dense(&axes);
        let batched = rank >= 2 && axes.len() == rank + 2;
        if batched {
            axes[..=rank].rotate_right(1);
        }
        let channels_last = batched && dense(&axes);
        Self { channels_first, channels_last }
    }

    fn is_dense(self) -> bool {
        self.channels_first || self.channels_last
    }

    /// The layout; `None` if it is both, or neither.
    fn layout(self) -> Option<Layout> {
        match (self.channels_first, self.channels_last) {
            (true, false) => Some(Layout::ChannelsFirst),
            (false, true) => Some(Layout::ChannelsLast),
            _ => None,
        }
    }
}

/// The memory, and the order of its elements.
fn shared(owner: ImportedDlpack, rank: usize) -> PyResult<(Shared, Order)> {
    let tensor = owner.validate().map_err(refused)?;
    let gpu = gpu(usize::try_from(tensor.device().device_id).map_err(refused)?)?;
    let order = Order::new(tensor.shape(), &tensor.strides_or_compact().map_err(refused)?, rank);
    if tensor.num_elements() == 0 {
        return Ok((Shared { gpu, address: 0, _owner: owner }, order));
    }
    // SAFETY: the address is only computed here; it is used while the owner lives.
    let address = unsafe { tensor.offset_bytes_ptr() }.map_err(refused)? as u64;
    Ok((Shared { gpu, address, _owner: owner }, order))
}

/// The device that the arrays are on; `None` if all are in the memory of the CPU.
pub(crate) fn place(inputs: &[Input], name: Option<&str>) -> PyResult<Option<&'static Gpu>> {
    let mut places = inputs.iter().map(|input| match &input.data {
        Data::Host(_) => None,
        Data::Shared(shared) => Some(shared.gpu),
    });
    let first = places.next().flatten();
    let index = |gpu: Option<&Gpu>| gpu.map(|gpu| gpu.device.index());
    if places.any(|place| index(place) != index(first)) {
        return Err(PyValueError::new_err(
            "the arrays are not all on one device; move them to one device",
        ));
    }
    let Some(gpu) = first else { return Ok(None) };
    let own = gpu.device.to_string();
    match name {
        Some(name) if name != own && !(name == "cuda" && gpu.device.index() == 0) => {
            Err(PyValueError::new_err(format!(
                "the array is on {own}, where its result is computed too; found device={name:?}"
            )))
        }
        _ => Ok(Some(gpu)),
    }
}

impl Gpu {
    fn open(index: usize) -> PyResult<Self> {
        if cfg!(debug_assertions) {
            // CubeCL subtracts the offset from the size of the empty allocation, which a build with checks refuses.
            return Err(PyRuntimeError::new_err(
                "arrays on CUDA devices need a release build; use `maturin develop --release`",
            ));
        }
        let device = Device::cuda(index).map_err(exception)?;
        let client = device.client().cloned();
        let client = client.ok_or_else(|| PyRuntimeError::new_err("CUDA is not built in"))?;
        let queue = Stream::new();
        let (empty, base) = queue.enter(|| {
            let empty = client.memory_dedicated_allocation(0, |size| client.empty(size));
            let resource = client.get_resource::<Server>(empty.clone());
            (empty, resource.map(|resource| resource.resource().ptr))
        });
        if base.as_ref().ok() != Some(&0) {
            return Err(PyRuntimeError::new_err(format!(
                "this version of CubeCL cannot share memory with other libraries; copy the array to the CPU first \
                 (the address of an empty allocation is {base:?})"
            )));
        }
        let open = || -> Result<_, DriverError> {
            let number = result::device::get(index as i32)?;
            // SAFETY: the device exists. The context is the one that CubeCL and all other libraries use.
            let context = unsafe { result::primary_ctx::retain(number)? };
            let (stream, fence) = entered(context, || {
                let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
                Ok((stream, Fence::new(context)?))
            })?;
            Ok((context, stream, fence))
        };
        let (context, stream, fence) = open().map_err(failed)?;
        Ok(Self { device, client, context, fence, stream, queue, empty })
    }

    /// Runs an operator on arrays of this device, without waiting for it. Its results have this layout.
    pub(crate) fn compute(
        &'static self,
        py: Python<'_>,
        inputs: Vec<Input>,
        layout: Layout,
        alone: bool,
        work: impl FnOnce(&[Tensor]) -> windowpane::Result<Vec<Made>> + Send,
    ) -> PyResult<Vec<Array>> {
        let run = || -> PyResult<(Vec<Array>, Vec<Tensor>)> {
            let tensors: windowpane::Result<Vec<_>> =
                inputs.iter().map(|input| self.tensor(input)).collect();
            let made = work(&tensors.map_err(exception)?).map_err(exception)?;
            let doubtful = made.iter().filter_map(Made::doubtful).cloned().collect();
            let arrays = made.into_iter().map(|made| self.array(made, layout, alone));
            Ok((arrays.collect::<PyResult<_>>()?, doubtful))
        };
        let fenced = || {
            self.fence()?;
            let done = run();
            // Even after an error: some of the work may run.
            self.fence()?;
            done
        };
        let done = py.detach(|| {
            // On the thread of the device, where nothing has to wait for that thread: waking it for each allocation,
            // launch and address would take longer than most operators.
            let launched = self.queue.enter(|| self.client.exclusive(|| guarded(fenced)));
            let launched = launched.map_err(|error| PyRuntimeError::new_err(error.to_string()));
            let (arrays, doubtful) = launched??;
            doubtful.iter().try_for_each(Tensor::wait).map_err(exception)?;
            Ok(arrays)
        });
        // With the interpreter's lock, which a producer may need to free its array. Its memory is used again only by
        // what is given to the device after the fence.
        drop(inputs);
        done
    }

    fn tensor(&self, input: &Input) -> windowpane::Result<Tensor> {
        let Data::Shared(shared) = &input.data else {
            unreachable!("all arrays are here: `place`")
        };
        let bytes = (input.dims.iter().product::<usize>() * input.dtype.size()) as u64;
        let Handle { memory, service, stream, .. } = self.empty.clone();
        let end = shared.address + bytes;
        let memory = Handle::from_memory(memory, service, stream, end).offset_start(shared.address);
        let stored = input.stored.unwrap_or(input.layout);
        let dims = arranged(&input.dims, stored);
        let tensor = Tensor::from_handle(&self.device, input.dtype, memory, &dims)?;
        if stored == input.layout { Ok(tensor) } else { tensor.to_layout(stored, input.layout) }
    }

    fn array(&'static self, made: Made, layout: Layout, alone: bool) -> PyResult<Array> {
        let (Made::Values(tensor) | Made::Doubtful(tensor) | Made::Indices(tensor)) = made;
        let resource = match tensor.handle() {
            Some(handle) => {
                // This reports a launch that failed.
                let resource = self.client.get_resource::<Server>(handle);
                Some(resource.map_err(|error| PyRuntimeError::new_err(error.to_string()))?)
            }
            None => None,
        };
        let address = resource.as_ref().map_or(0, |resource| resource.resource().ptr);
        let (_resource, _tensor) = (Mutex::new(resource), tensor.clone());
        let memory = Memory { gpu: self, address, _resource, _tensor };
        Ok(Array::on_cuda(memory, &tensor, layout, alone))
    }

    /// Orders everything that was given to the device so far before everything that will be given to it, on whatever
    /// streams.
    fn fence(&self) -> PyResult<()> {
        match &self.fence {
            // One event is enough: a wait is for the latest record, which at worst is another thread's later one.
            Fence::Event { event, record, wait } => {
                // SAFETY: the context and the event are never destroyed.
                unsafe { record(self.context, *event).result() }.map_err(failed)?;
                // SAFETY: as above.
                unsafe { wait(self.context, *event).result() }.map_err(failed)
            }
            // SAFETY: the context is current.
            Fence::Host => entered(self.context, || unsafe { sys::cuCtxSynchronize().result() })
                .map_err(failed),
        }
    }

    /// Refuses to work for a stream that records a graph, because a fence would invalidate the graph.
    fn refuse_capture(&self, stream: sys::CUstream) -> PyResult<()> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive, by the contract of the caller.
        let asked = entered(self.context, || unsafe {
            sys::cuStreamIsCapturing(stream, &mut status).result()
        });
        match asked {
            Ok(()) if status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(()),
            Ok(()) | Err(DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)) => {
                Err(PyRuntimeError::new_err(
                    "windowpane cannot be recorded in a CUDA graph; call it outside of the capture",
                ))
            }
            Err(error) => Err(failed(error)),
        }
    }
}

// SAFETY: the stream is one of this device, in the context that all libraries share, and is never destroyed.
unsafe impl DlpackStream for Gpu {
    fn as_python_arg(&self, _: Python<'_>, _: DLDevice) -> PyResult<StreamArg> {
        Ok(dlpark::python::consumer::stream::cuda(self.stream.cast()))
    }

    unsafe fn wait_for_producer(&self, _: DLDevice, producer: *mut c_void) -> PyResult<bool> {
        // The fence waits for this stream too.
        self.refuse_capture(producer.cast()).map(|()| true)
    }
}

impl Fence {
    fn new(context: sys::CUcontext) -> Result<Self, DriverError> {
        let name = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
        // SAFETY: the driver is loaded already, and has these functions with these types since version 12.5.
        let functions = unsafe {
            libloading::Library::new(name).and_then(|driver| {
                let functions = (
                    *driver.get::<OnContext>(b"cuCtxRecordEvent\0")?,
                    *driver.get::<OnContext>(b"cuCtxWaitEvent\0")?,
                );
                // The functions must stay.
                std::mem::forget(driver);
                Ok(functions)
            })
        };
        let Ok((record, wait)) = functions else { return Ok(Self::Host) };
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        // SAFETY: the context and the event were made above, and stay.
        let works =
            unsafe { record(context, event).result().and_then(|()| wait(context, event).result()) };
        Ok(works.map_or(Self::Host, |()| Self::Event { event, record, wait }))
    }
}

/// Calls the driver with a context that is current.
fn entered<T>(
    context: sys::CUcontext,
    call: impl FnOnce() -> Result<T, DriverError>,
) -> Result<T, DriverError> {
    // SAFETY: the context is retained for as long as the process lives.
    unsafe { sys::cuCtxPushCurrent_v2(context).result()? };
    let done = call();
    let mut left = std::ptr::null_mut();
    // SAFETY: this is the context that was pushed.
    unsafe { sys::cuCtxPopCurrent_v2(&mut left).result()? };
    done
}

fn failed(error: DriverError) -> PyErr {
    PyRuntimeError::new_err(format!("CUDA reported {error}"))
}
