//! Reads and returns arrays through DLPack.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use dlpark::ffi::{DLDataType, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::metadata::Dynamic;
use dlpark::python::consumer::exchange::ExchangeApi;
use dlpark::python::{DlpackExporter, ExportRequest, ImportRequest, ImportedDlpack, export_dlpack};
use dlpark::{DlpackElement, DlpackFlags, Managed, ManagedTensorBase};
use half::{bf16, f16};
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use windowpane::geometry::LIMIT;
use windowpane::{DType, Device, Layout, Tensor};

#[cfg(feature = "cuda")]
use crate::cuda;
use crate::wait::exception;

/// An array that an operator reads.
pub(crate) struct Input {
    pub(crate) dtype: DType,
    /// The extents, channels first whatever the layout.
    pub(crate) dims: Vec<usize>,
    /// The layout of the elements in memory; `None` if it is both.
    pub(crate) stored: Option<Layout>,
    /// The layout that the operator gets them in.
    pub(crate) layout: Layout,
    pub(crate) data: Data,
}

/// The elements of an array, one after the other.
pub(crate) enum Data {
    /// In the memory of the CPU, row-major: the caller's own memory if it is so, else a copy.
    Host(Tensor),
    /// The memory of the caller's array on a CUDA device.
    #[cfg(feature = "cuda")]
    Shared(cuda::Shared),
}

impl Input {
    /// Adds a batch axis of 1 if the array has none, and returns whether it had none.
    pub(crate) fn batched(mut self, rank: usize) -> PyResult<(Self, bool)> {
        let alone = self.dims.len() == rank + 1;
        if alone {
            self.dims.insert(0, 1);
        }
        if self.dims.len() == rank + 2 {
            return Ok((self, alone));
        }
        Err(PyValueError::new_err(format!(
            "an array of {} axes is needed, or of {} without a batch; found {}",
            rank + 2,
            rank + 1,
            self.dims.len()
        )))
    }
}

/// Extents that are channels first, in the order that the axes have in memory.
pub(crate) fn arranged(dims: &[usize], layout: Layout) -> Vec<usize> {
    let mut dims = dims.to_vec();
    if layout == Layout::ChannelsLast {
        dims[1..].rotate_left(1);
    }
    dims
}

/// Reads any object that supports DLPack, with any strides. If it has a batch, channels and `rank` other axes, and is on
/// a CUDA device, it may be channels last; else its layout is channels first.
pub(crate) fn read(x: &Bound<'_, PyAny>, rank: usize) -> PyResult<Input> {
    read_as(x, rank, |found| dtype_of(found).map(Elements::Of))
}

/// Reads positions, which numpy and PyTorch store in 64 bits, as the 32 bits that kernels use.
pub(crate) fn read_indices(x: &Bound<'_, PyAny>, rank: usize) -> PyResult<Input> {
    read_as(x, rank, |found| match found {
        found if found.is::<i64>() => Ok(Elements::Indices),
        found => dtype_of(found).map(Elements::Of),
    })
}

/// What the elements of an array are.
#[derive(Clone, Copy)]
enum Elements {
    Of(DType),
    /// Positions in 64 bits.
    Indices,
}

/// Like [`read`], with what `elements_of` says of the array's type.
fn read_as(
    x: &Bound<'_, PyAny>,
    rank: usize,
    elements_of: impl Fn(DLDataType) -> PyResult<Elements>,
) -> PyResult<Input> {
    if x.getattr_opt("requires_grad")?.is_some_and(|it| it.is_truthy().unwrap_or(false)) {
        return Err(PyTypeError::new_err(
            "gradients are computed by windowpane.torch; use it, or call detach() on the tensor first",
        ));
    }
    let imported = import(x)?;
    let tensor = imported.validate().map_err(refused)?;
    let device = tensor.device().device_type;
    if device != DLDeviceType::CPU && !(cfg!(feature = "cuda") && device == DLDeviceType::CUDA) {
        return Err(unreachable_memory(device));
    }
    let kind = elements_of(tensor.dtype())?;
    let dims = tensor.shape().iter().map(|&extent| usize::try_from(extent).ok());
    let dims: Option<Vec<usize>> = dims.collect();
    let dims = dims.ok_or_else(|| PyValueError::new_err("an extent is negative"))?;
    let elements = dims.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
    if elements.is_none_or(|elements| elements > LIMIT) {
        return Err(PyValueError::new_err(format!(
            "an array has at most {LIMIT} elements; split the batch"
        )));
    }
    #[cfg(feature = "cuda")]
    if device == DLDeviceType::CUDA {
        let Elements::Of(dtype) = kind else {
            return Err(PyTypeError::new_err("indices on a CUDA device have to be int32"));
        };
        let (shared, stored) = cuda::share(x, imported, rank)?;
        let layout = stored.unwrap_or(Layout::ChannelsFirst);
        return Ok(Input { dtype, dims, stored, layout, data: Data::Shared(shared) });
    }
    #[cfg(not(feature = "cuda"))]
    let _ = rank;
    let strides = tensor.strides_or_compact().map_err(refused)?.into_owned();
    // SAFETY: the address is only computed here.
    let source = unsafe { tensor.offset_bytes_ptr() }.map_err(refused)?.cast::<u8>();
    // SAFETY: the producer guarantees that its memory is valid while `imported` lives, and that it has elements of this
    // type where the strides lead.
    let tensor = unsafe {
        let place = (source, dims.as_slice(), &*strides);
        match kind {
            Elements::Indices => on_host(narrowed(&gathered(place)?)?, &dims),
            Elements::Of(DType::F64) => held::<f64>(imported, place),
            Elements::Of(DType::F32) => held::<f32>(imported, place),
            Elements::Of(DType::F16) => held::<f16>(imported, place),
            Elements::Of(DType::BF16) => held::<bf16>(imported, place),
            Elements::Of(DType::I64) => held::<i64>(imported, place),
            Elements::Of(DType::I32) => held::<i32>(imported, place),
            Elements::Of(DType::U32) => held::<u32>(imported, place),
            Elements::Of(DType::I16) => held::<i16>(imported, place),
            Elements::Of(DType::U16) => held::<u16>(imported, place),
            Elements::Of(DType::I8) => held::<i8>(imported, place),
            Elements::Of(DType::U8) => held::<u8>(imported, place),
            // Bytes, as nothing says that each is 0 or 1.
            Elements::Of(DType::Bool) => {
                let bytes = gathered::<u8>(place)?;
                Tensor::from_bytes(&Device::host(), DType::Bool, &bytes, &dims).map_err(exception)
            }
            // `dtype_of` grows with the types.
            Elements::Of(other) => unreachable!("{other} has no type in DLPack"),
        }
    }?;
    let (dtype, layout) = (tensor.dtype(), Layout::ChannelsFirst);
    Ok(Input { dtype, dims, stored: None, layout, data: Data::Host(tensor) })
}

/// The memory of an array of another library. It is read without the interpreter's lock, and after Ctrl-C until the
/// work is done. If another thread writes to it meanwhile, the result may come from old and new numbers.
struct Lent<T> {
    start: *const T,
    count: usize,
    owner: ManuallyDrop<ImportedDlpack>,
}

// SAFETY: the memory is only read, and the owner is only dropped, with the interpreter's lock.
unsafe impl<T: Sync> Send for Lent<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Lent<T> {}

impl<T> AsRef<[T]> for Lent<T> {
    fn as_ref(&self) -> &[T] {
        // SAFETY: by the contract of `held`.
        unsafe { std::slice::from_raw_parts(self.start, self.count) }
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        // Without an interpreter its library cannot free the array.
        // SAFETY: it is dropped here and nowhere else.
        Python::try_attach(|_| unsafe { ManuallyDrop::drop(&mut self.owner) });
    }
}

/// The elements of an array as a tensor, where they are if they are one after the other, else as a copy.
///
/// # Safety
/// As for [`gathered`], for as long as the array lives.
unsafe fn held<T: windowpane::Element>(
    owner: ImportedDlpack,
    (start, dims, strides): (*const u8, &[usize], &[i64]),
) -> PyResult<Tensor> {
    let count = dims.iter().product();
    let first = start.cast::<T>();
    let (_, outer) = contiguous(dims, strides);
    if count == 0 || !first.is_aligned() || outer > 0 {
        // SAFETY: by the contract of this function.
        return on_host(unsafe { gathered::<T>((start, dims, strides))? }, dims);
    }
    let lent = Lent { start: first, count, owner: ManuallyDrop::new(owner) };
    Tensor::from_owner(Arc::new(lent), dims).map_err(exception)
}

/// The number of elements of the innermost axes that are contiguous, and the number of the axes around them.
fn contiguous(dims: &[usize], strides: &[i64]) -> (usize, usize) {
    let (mut run, mut outer) = (1usize, dims.len());
    while outer > 0 && (strides[outer - 1] == run as i64 || dims[outer - 1] == 1) {
        run *= dims[outer - 1];
        outer -= 1;
    }
    (run, outer)
}

fn on_host<T: windowpane::Element>(elements: Vec<T>, dims: &[usize]) -> PyResult<Tensor> {
    Tensor::from_vec(&Device::host(), elements, dims).map_err(exception)
}

fn narrowed(indices: &[i64]) -> PyResult<Vec<i32>> {
    let narrow = |&wide: &i64| {
        i32::try_from(wide).map_err(|_| {
            PyValueError::new_err(format!("the index {wide} is outside of every plane"))
        })
    };
    indices.iter().map(narrow).collect()
}

fn unreachable_memory(device: DLDeviceType) -> PyErr {
    let name = match device {
        DLDeviceType::CUDA => "a CUDA device, which this build was made without,".into(),
        DLDeviceType::CUDAHOST => "pinned memory".into(),
        DLDeviceType::ROCM => "a ROCm device".into(),
        other => format!("DLPack's device type {}", other.0),
    };
    PyBufferError::new_err(format!(
        "arrays in {name} cannot be read; copy the array to the CPU first"
    ))
}

/// The memory of an array. Where that is on a CUDA device, the caller orders its work: see [`cuda`](crate::cuda).
pub(crate) fn import(x: &Bound<'_, PyAny>) -> PyResult<ImportedDlpack> {
    if !x.hasattr("__dlpack__")? {
        let found = x.get_type().qualname()?;
        return Err(PyTypeError::new_err(format!(
            "an array of numpy, torch, jax or another library with `__dlpack__` is needed; found {found}"
        )));
    }
    let request = ImportRequest::new(x.as_borrowed())?;
    let device = request.device().unwrap_or(DLDevice::CPU);
    match device.device_type {
        DLDeviceType::CPU => {}
        #[cfg(feature = "cuda")]
        DLDeviceType::CUDA => return cuda::import(x, request, device),
        other => return Err(unreachable_memory(other)),
    }
    match request.import(None, None) {
        Err(error) if error.is_instance_of::<PyTypeError>(x.py()) => import_old(x, x.py().None()),
        done => done,
    }
}

/// The memory of an array of a library older than DLPack 1, which does not accept `max_version`.
pub(crate) fn import_old(x: &Bound<'_, PyAny>, stream: Py<PyAny>) -> PyResult<ImportedDlpack> {
    let options = PyDict::new(x.py());
    options.set_item("stream", stream)?;
    let capsule = x.call_method("__dlpack__", (), Some(&options))?;
    ImportRequest::new(capsule.as_borrowed())?.import(None, None)
}

/// Copies elements in row-major order from an address, with extents and strides.
///
/// # Safety
/// For each position of the extents, the address and the strides, which are in elements, give the address of a valid
/// element, which need not be aligned.
unsafe fn gathered<T: Copy>(
    (base, dims, strides): (*const u8, &[usize], &[i64]),
) -> PyResult<Vec<T>> {
    let elements = dims.iter().product();
    let mut copied: Vec<T> = Vec::new();
    if copied.try_reserve_exact(elements).is_err() {
        return Err(PyMemoryError::new_err(format!(
            "there is no memory for a copy of {} bytes",
            elements * size_of::<T>()
        )));
    }
    // Contiguous elements are copied at once.
    let (run, outer) = contiguous(dims, strides);
    let mut index = vec![0usize; outer];
    while copied.len() < elements {
        let offset: i64 = index.iter().zip(strides).map(|(&i, &step)| i as i64 * step).sum();
        // SAFETY: by the contract of this function there are elements to read; there is room for all elements, of which
        // `run` are written here behind those that are there.
        unsafe {
            let first = base.offset(offset as isize * size_of::<T>() as isize);
            let free = copied.as_mut_ptr().add(copied.len());
            std::ptr::copy_nonoverlapping(first, free.cast(), run * size_of::<T>());
            copied.set_len(copied.len() + run);
        }
        for (i, &extent) in index.iter_mut().zip(dims).rev() {
            *i += 1;
            if *i < extent {
                break;
            }
            *i = 0;
        }
    }
    Ok(copied)
}

fn dtype_of(found: DLDataType) -> PyResult<DType> {
    Ok(match found {
        found if found.is::<f64>() => DType::F64,
        found if found.is::<f32>() => DType::F32,
        found if found.is::<f16>() => DType::F16,
        found if found.is::<bf16>() => DType::BF16,
        found if found.is::<i64>() => DType::I64,
        found if found.is::<i32>() => DType::I32,
        found if found.is::<u32>() => DType::U32,
        found if found.is::<i16>() => DType::I16,
        found if found.is::<u16>() => DType::U16,
        found if found.is::<i8>() => DType::I8,
        found if found.is::<u8>() => DType::U8,
        found if found == DLDataType::BOOL => DType::Bool,
        other => {
            return Err(PyTypeError::new_err(format!(
                "elements of type {} are not supported; use float64, float32, float16, bfloat16, int64, int32, uint32, int16, uint16, int8, uint8 or bool",
                name_of(other)
            )));
        }
    })
}

/// The name of a type in Python.
fn name_of(dtype: DLDataType) -> String {
    let kind = match dtype.code.0 {
        0 => "int",
        1 => "uint",
        2 => "float",
        4 => "bfloat",
        5 => "complex",
        6 => return "bool".into(),
        other => return format!("{other} of DLPack"),
    };
    format!("{kind}{}", dtype.bits)
}

struct Storage {
    memory: Memory,
    shape: Vec<i64>,
    /// The distances of neighbours along each axis, in elements.
    strides: Vec<i64>,
    dtype: DLDataType,
}

enum Memory {
    Host(Tensor),
    /// Positions in 64 bits.
    Indices(Vec<i64>),
    #[cfg(feature = "cuda")]
    Cuda(cuda::Memory),
    /// The address of memory that belongs to someone else.
    Lent {
        address: usize,
        device: DLDevice,
    },
}

impl Memory {
    fn copied(&self) -> PyResult<Self> {
        match self {
            Self::Host(tensor) => {
                let (dtype, bytes) = (tensor.dtype(), tensor.as_bytes().unwrap_or_default());
                let copy = Tensor::from_bytes(&Device::host(), dtype, bytes, tensor.dims());
                copy.map(Self::Host).map_err(exception)
            }
            Self::Indices(indices) => Ok(Self::Indices(indices.clone())),
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => Err(PyBufferError::new_err(
                "an array on a CUDA device is given without a copy; copy it in your library",
            )),
            Self::Lent { .. } => Err(PyBufferError::new_err("lent memory is given without a copy")),
        }
    }
}

impl Storage {
    fn device(&self) -> DLDevice {
        match &self.memory {
            Memory::Host(_) | Memory::Indices(_) => DLDevice::CPU,
            #[cfg(feature = "cuda")]
            Memory::Cuda(memory) => memory.device(),
            Memory::Lent { device, .. } => *device,
        }
    }

    fn address(&self) -> *mut c_void {
        match &self.memory {
            Memory::Host(tensor) => {
                tensor.as_bytes().unwrap_or_default().as_ptr().cast_mut().cast()
            }
            Memory::Indices(indices) => indices.as_ptr().cast_mut().cast(),
            #[cfg(feature = "cuda")]
            Memory::Cuda(memory) => memory.address(),
            Memory::Lent { address, .. } => *address as *mut c_void,
        }
    }
}

/// A result. Any library that speaks DLPack takes it without a copy: `numpy.from_dlpack(result)`.
#[pyclass(frozen, module = "windowpane")]
pub(crate) struct Array(Arc<Storage>);

impl Array {
    /// Waits for the elements of a tensor; the batch axis is removed if the input had none.
    pub(crate) fn of(tensor: &Tensor, alone: bool) -> windowpane::Result<Self> {
        let memory = Memory::Host(tensor.to_device(&Device::host())?);
        let dtype = dlpack_type(tensor.dtype());
        Ok(Self::over(memory, tensor.dims(), Layout::ChannelsFirst, alone, dtype))
    }

    /// Like [`of`](Self::of), for indices, which become 64-bit as in NumPy and PyTorch.
    pub(crate) fn indices_of(tensor: &Tensor, alone: bool) -> windowpane::Result<Self> {
        let wide = tensor.to_vec::<i32>()?.into_iter().map(i64::from).collect();
        let memory = Memory::Indices(wide);
        Ok(Self::over(memory, tensor.dims(), Layout::ChannelsFirst, alone, i64::DTYPE))
    }

    /// A result that stays on its CUDA device.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_cuda(
        memory: cuda::Memory,
        tensor: &Tensor,
        layout: Layout,
        alone: bool,
    ) -> Self {
        let dtype = dlpack_type(tensor.dtype());
        Self::over(Memory::Cuda(memory), tensor.dims(), layout, alone, dtype)
    }

    /// Memory that belongs to someone else, in row-major order. It has to outlive the array and its exports.
    pub(crate) fn lent(
        address: *mut c_void,
        device: DLDevice,
        dims: &[usize],
        dtype: DLDataType,
    ) -> Self {
        let memory = Memory::Lent { address: address as usize, device };
        Self::over(memory, dims, Layout::ChannelsFirst, false, dtype)
    }

    /// Copies the elements to a lent array of the same shape and type; positions become 32-bit if it has those. On a
    /// CUDA device this is work for `stream`, which is unused otherwise.
    ///
    /// # Safety
    /// The memory of `to` may be written, and the stream is one of its device.
    pub(crate) unsafe fn copy_to(&self, to: &Self, stream: usize) -> PyResult<()> {
        let (from, to) = (&*self.0, &*to.0);
        let elements = from.shape.iter().product::<i64>() as usize;
        let bytes = elements * usize::from(from.dtype.bits) / 8;
        let alike =
            (&from.shape, &from.strides, from.device()) == (&to.shape, &to.strides, to.device());
        let same = alike && from.dtype == to.dtype;
        match &from.memory {
            Memory::Indices(wide) if alike && to.dtype == i32::DTYPE => {
                for (at, &index) in wide.iter().enumerate() {
                    // SAFETY: there are as many elements as here. Positions fit in 32 bits.
                    unsafe { to.address().cast::<i32>().add(at).write(index as i32) };
                }
            }
            _ if same && bytes == 0 => {}
            // SAFETY: by the contract of this function, and both have as many bytes on the same device.
            Memory::Host(_) | Memory::Indices(_) if same => unsafe {
                std::ptr::copy_nonoverlapping::<u8>(
                    from.address().cast(),
                    to.address().cast(),
                    bytes,
                );
            },
            #[cfg(feature = "cuda")]
            // SAFETY: as above.
            Memory::Cuda(memory) if same => unsafe {
                memory.copy_to(to.address(), bytes, stream)?;
            },
            _ => {
                let [found, expected] = [from, to].map(|it| (&it.shape, name_of(it.dtype)));
                return Err(PyRuntimeError::new_err(format!(
                    "this is a fault of windowpane, please report it: the result is {found:?}, not {expected:?}"
                )));
            }
        }
        #[cfg(not(feature = "cuda"))]
        let _ = stream;
        Ok(())
    }

    /// A result whose axes are in memory as `dims` has them.
    fn over(
        memory: Memory,
        dims: &[usize],
        layout: Layout,
        alone: bool,
        dtype: DLDataType,
    ) -> Self {
        let mut shape: Vec<_> = dims.iter().map(|&extent| extent as i64).collect();
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis].max(1);
        }
        if layout == Layout::ChannelsLast {
            shape[1..].rotate_right(1);
            strides[1..].rotate_right(1);
        }
        let lead = usize::from(alone);
        let (shape, strides) = (shape.split_off(lead), strides.split_off(lead));
        Self(Arc::new(Storage { memory, shape, strides, dtype }))
    }
}

fn dlpack_type(dtype: DType) -> DLDataType {
    match dtype {
        DType::F64 => f64::DTYPE,
        DType::F32 => f32::DTYPE,
        DType::F16 => f16::DTYPE,
        DType::BF16 => bf16::DTYPE,
        DType::I64 => i64::DTYPE,
        DType::I32 => i32::DTYPE,
        DType::U32 => u32::DTYPE,
        DType::I16 => i16::DTYPE,
        DType::U16 => u16::DTYPE,
        DType::I8 => i8::DTYPE,
        DType::U8 => u8::DTYPE,
        DType::Bool => DLDataType::BOOL,
        // The enum may grow; this crate grows with it.
        other => unreachable!("{other} has no type in DLPack"),
    }
}

pub(crate) fn refused(error: impl std::fmt::Display) -> PyErr {
    PyBufferError::new_err(error.to_string())
}

fn managed<M: ManagedTensorBase>(
    storage: &Arc<Storage>,
    flags: DlpackFlags,
) -> PyResult<Managed<M>> {
    let mut new = Dynamic::new(storage.shape.as_slice(), storage.strides.as_slice())
        .initialize_as::<M>(storage.clone())
        .map_err(refused)?;
    new.set_data(storage.address()).set_device(storage.device()).set_dtype(storage.dtype);
    new.set_flags(flags).map_err(refused)?;
    // SAFETY: the memory belongs to the storage, which the new tensor shares ownership of, and contains all elements
    // of the shape.
    Ok(unsafe { new.finish() })
}

impl DlpackExporter for Array {
    fn device(&self) -> DLDevice {
        self.0.device()
    }

    fn flags(&self) -> DlpackFlags {
        DlpackFlags::empty()
    }

    fn prepare_export(&self, _: Python<'_>, request: &ExportRequest<'_>) -> PyResult<()> {
        if self.0.device() != DLDevice::CPU {
            // What is launched on any stream from now on waits for the result; only the argument is checked.
            return request.cuda_stream().map(drop);
        }
        match request.stream() {
            None => Ok(()),
            Some(_) => {
                Err(PyBufferError::new_err("an array in the memory of the CPU has no stream"))
            }
        }
    }

    fn export_legacy(&self, _: Python<'_>) -> PyResult<Managed<DLManagedTensor>> {
        managed(&self.0, self.flags())
    }

    fn export_versioned(&self, _: Python<'_>) -> PyResult<Managed<DLManagedTensorVersioned>> {
        managed(&self.0, self.flags())
    }
}

#[pymethods]
impl Array {
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        if copy == Some(true) {
            let Storage { memory, shape, strides, dtype } = &*self.0;
            let (memory, shape, strides) = (memory.copied()?, shape.clone(), strides.clone());
            let own = Arc::new(Storage { memory, shape, strides, dtype: *dtype });
            let request = ExportRequest::parse(stream.as_ref(), max_version, dl_device, None)?;
            if max_version.is_none_or(|(major, _)| major < 1) {
                return export_dlpack(&Self(own), py, request);
            }
            let mut new =
                Dynamic::compact(own.shape.as_slice()).initialize(own.clone()).map_err(refused)?;
            new.set_data(own.address()).set_device(DLDevice::CPU).set_dtype(own.dtype);
            // SAFETY: this is a copy, and the new tensor owns its memory.
            unsafe { new.set_flags_unchecked(DlpackFlags::IS_COPIED) };
            // SAFETY: as in `managed`.
            return Ok(unsafe { new.finish() }.into_pyobject(py)?.into_any().unbind());
        }
        let request = ExportRequest::parse(stream.as_ref(), max_version, dl_device, copy)?;
        export_dlpack(self, py, request)
    }

    /// An array of the library of `x`, made by DLPack's functions for C; none if the library lacks them.
    fn like<'py>(&self, x: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        // What is launched on any stream from now on waits for the result.
        ExchangeApi::from_object(x.as_borrowed())?
            .map(|library| {
                let tensor = managed(&self.0, self.flags())?;
                library.managed_tensor_to_py_object_no_sync(tensor, x.py())
            })
            .transpose()
    }

    fn __dlpack_device__(&self) -> (u32, i32) {
        let device = self.0.device();
        (device.device_type.0, device.device_id)
    }

    /// The extent of each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.shape)
    }
}
