//! Reads and returns arrays through DLPack.

use std::ffi::c_void;
use std::sync::Arc;

use dlpark::ffi::{DLDataType, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::metadata::Dynamic;
use dlpark::python::{DlpackExporter, ExportRequest, ImportRequest, ImportedDlpack, export_dlpack};
use dlpark::{DlpackElement, DlpackFlags, Managed, ManagedTensorBase};
use half::{bf16, f16};
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use windowpane::geometry::LIMIT;
use windowpane::{DType, Tensor};

#[cfg(feature = "cuda")]
use crate::cuda;

/// An array that an operator reads.
pub(crate) struct Input {
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<usize>,
    pub(crate) data: Data,
}

/// The elements of an array in row-major order.
pub(crate) enum Data {
    /// A copy in the memory of the CPU.
    Bytes(Vec<u8>),
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

/// Reads any object that supports DLPack, with any strides.
pub(crate) fn read(x: &Bound<'_, PyAny>) -> PyResult<Input> {
    read_as(x, |found| dtype_of(found).map(|dtype| (dtype, dtype.size())))
}

/// Reads positions, which numpy and PyTorch store in 64 bits, as the 32 bits that kernels use.
pub(crate) fn read_indices(x: &Bound<'_, PyAny>) -> PyResult<Input> {
    let mut input = read_as(x, |found| match found {
        found if found.is::<i64>() => Ok((DType::I32, size_of::<i64>())),
        found => dtype_of(found).map(|dtype| (dtype, dtype.size())),
    })?;
    let elements = input.dims.iter().product::<usize>();
    if let Data::Bytes(bytes) = &mut input.data
        && bytes.len() != elements * input.dtype.size()
    {
        let mut narrow = Vec::with_capacity(bytes.len() / 2);
        for wide in bytes.chunks_exact(size_of::<i64>()) {
            let wide = i64::from_ne_bytes(wide.try_into().unwrap_or_default());
            let index = i32::try_from(wide).map_err(|_| {
                PyValueError::new_err(format!("the index {wide} is outside of every plane"))
            })?;
            narrow.extend(index.to_ne_bytes());
        }
        *bytes = narrow;
    }
    Ok(input)
}

/// Like [`read`], with a type and an element size that `dtype_of` derives from the array's type.
fn read_as(
    x: &Bound<'_, PyAny>,
    dtype_of: impl Fn(DLDataType) -> PyResult<(DType, usize)>,
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
    let (dtype, size) = dtype_of(tensor.dtype())?;
    let dims = tensor.shape().iter().map(|&extent| usize::try_from(extent).ok());
    let dims: Option<Vec<usize>> = dims.collect();
    let dims = dims.ok_or_else(|| PyValueError::new_err("an extent is negative"))?;
    let elements = dims.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
    let Some(elements) = elements.filter(|elements| *elements <= LIMIT) else {
        return Err(PyValueError::new_err(format!(
            "an array has at most {LIMIT} elements; split the batch"
        )));
    };
    #[cfg(feature = "cuda")]
    if device == DLDeviceType::CUDA {
        if size != dtype.size() {
            return Err(PyTypeError::new_err("indices on a CUDA device have to be int32"));
        }
        return Ok(Input { dtype, dims, data: Data::Shared(cuda::share(x, imported)?) });
    }
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(elements * size).is_err() {
        return Err(PyMemoryError::new_err(format!(
            "there is no memory for a copy of {} bytes",
            elements * size
        )));
    }
    let strides = tensor.strides_or_compact().map_err(refused)?.into_owned();
    // SAFETY: the producer guarantees that its memory is valid while `imported` lives, which is to the end of this
    // function; every element is read through the strides that the producer gave.
    unsafe {
        let base = tensor.offset_bytes_ptr().map_err(refused)?.cast::<u8>();
        gather(&mut bytes, base, size, &dims, &strides);
    }
    Ok(Input { dtype, dims, data: Data::Bytes(bytes) })
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

/// Appends the elements in row-major order.
///
/// # Safety
/// For each position of `dims`, `base` and the strides, which are in elements, give the address of a valid element of
/// `size` bytes.
unsafe fn gather(
    bytes: &mut Vec<u8>,
    base: *const u8,
    size: usize,
    dims: &[usize],
    strides: &[i64],
) {
    if dims.contains(&0) {
        return;
    }
    // The innermost axes that are contiguous are copied at once.
    let (mut run, mut outer) = (1usize, dims.len());
    while outer > 0 && (strides[outer - 1] == run as i64 || dims[outer - 1] == 1) {
        run *= dims[outer - 1];
        outer -= 1;
    }
    let mut index = vec![0usize; outer];
    loop {
        let offset: i64 = index.iter().zip(strides).map(|(&i, &step)| i as i64 * step).sum();
        // SAFETY: by the contract of this function; bytes have no alignment.
        bytes.extend_from_slice(unsafe {
            let first = base.offset(offset as isize * size as isize);
            std::slice::from_raw_parts(first, run * size)
        });
        let next = index.iter_mut().zip(dims).rev().find_map(|(i, &extent)| {
            *i += 1;
            if *i == extent {
                *i = 0;
                return None;
            }
            Some(())
        });
        if next.is_none() {
            return;
        }
    }
}

fn dtype_of(found: DLDataType) -> PyResult<DType> {
    Ok(match found {
        found if found.is::<f64>() => DType::F64,
        found if found.is::<f32>() => DType::F32,
        found if found.is::<f16>() => DType::F16,
        found if found.is::<bf16>() => DType::BF16,
        found if found.is::<i32>() => DType::I32,
        found if found.is::<i16>() => DType::I16,
        found if found.is::<u16>() => DType::U16,
        found if found.is::<i8>() => DType::I8,
        found if found.is::<u8>() => DType::U8,
        other => {
            return Err(PyTypeError::new_err(format!(
                "elements of type {} are not supported; use float64, float32, float16, bfloat16, int32, int16, uint16, int8 or uint8",
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

/// Memory aligned to 64 bytes, which every library accepts without a copy.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

struct Storage {
    memory: Memory,
    shape: Vec<i64>,
    dtype: DLDataType,
}

enum Memory {
    Cpu(Vec<Line>),
    #[cfg(feature = "cuda")]
    Cuda(cuda::Memory),
}

impl Memory {
    fn copied(&self) -> PyResult<Self> {
        match self {
            Self::Cpu(lines) => Ok(Self::Cpu(lines.clone())),
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => Err(PyBufferError::new_err(
                "an array on a CUDA device is given without a copy; copy it in your library",
            )),
        }
    }
}

impl Storage {
    fn device(&self) -> DLDevice {
        match &self.memory {
            Memory::Cpu(_) => DLDevice::CPU,
            #[cfg(feature = "cuda")]
            Memory::Cuda(memory) => memory.device(),
        }
    }

    fn address(&self) -> *mut c_void {
        match &self.memory {
            Memory::Cpu(lines) => lines.as_ptr().cast_mut().cast(),
            #[cfg(feature = "cuda")]
            Memory::Cuda(memory) => memory.address(),
        }
    }
}

/// A result. Any library that speaks DLPack takes it without a copy: `numpy.from_dlpack(result)`.
#[pyclass(frozen, module = "windowpane")]
pub(crate) struct Array(Arc<Storage>);

impl Array {
    /// Waits for the elements of a tensor; the batch axis is removed if the input had none.
    pub(crate) fn of(tensor: &Tensor, alone: bool) -> windowpane::Result<Self> {
        Ok(Self::new(&tensor.to_bytes()?, tensor.dims(), alone, dlpack_type(tensor.dtype())))
    }

    /// Like [`of`](Self::of), for indices, which become 64-bit as in NumPy and PyTorch.
    pub(crate) fn indices_of(tensor: &Tensor, alone: bool) -> windowpane::Result<Self> {
        let wide = tensor.to_vec::<i32>()?.into_iter().flat_map(|i| i64::from(i).to_ne_bytes());
        Ok(Self::new(&wide.collect::<Vec<u8>>(), tensor.dims(), alone, i64::DTYPE))
    }

    fn new(bytes: &[u8], dims: &[usize], alone: bool, dtype: DLDataType) -> Self {
        // At least one line is allocated, so that an empty array has an address too.
        let mut lines = Vec::with_capacity(bytes.len().div_ceil(64).max(1));
        lines.extend(bytes.chunks(64).map(|chunk| {
            let mut line = Line([0; 64]);
            line.0[..chunk.len()].copy_from_slice(chunk);
            line
        }));
        Self::over(Memory::Cpu(lines), dims, alone, dtype)
    }

    /// A result that stays on its CUDA device.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_cuda(memory: cuda::Memory, tensor: &Tensor, alone: bool) -> Self {
        Self::over(Memory::Cuda(memory), tensor.dims(), alone, dlpack_type(tensor.dtype()))
    }

    fn over(memory: Memory, dims: &[usize], alone: bool, dtype: DLDataType) -> Self {
        let shape = dims[usize::from(alone)..].iter().map(|&extent| extent as i64).collect();
        Self(Arc::new(Storage { memory, shape, dtype }))
    }
}

fn dlpack_type(dtype: DType) -> DLDataType {
    match dtype {
        DType::F64 => f64::DTYPE,
        DType::F32 => f32::DTYPE,
        DType::F16 => f16::DTYPE,
        DType::BF16 => bf16::DTYPE,
        DType::I32 => i32::DTYPE,
        DType::I16 => i16::DTYPE,
        DType::U16 => u16::DTYPE,
        DType::I8 => i8::DTYPE,
        DType::U8 => u8::DTYPE,
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
    let mut new = Dynamic::compact(storage.shape.as_slice())
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
            let (memory, shape) = (self.0.memory.copied()?, self.0.shape.clone());
            let own = Arc::new(Storage { memory, shape, dtype: self.0.dtype });
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
