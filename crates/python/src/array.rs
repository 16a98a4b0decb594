//! Arrays in and out by DLPack.

use std::sync::Arc;

use dlpark::ffi::{DLDataType, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::metadata::Dynamic;
use dlpark::python::{DlpackExporter, ExportRequest, ImportRequest, ImportedDlpack, export_dlpack};
use dlpark::{DlpackElement, DlpackFlags, Managed, ManagedTensorBase};
use half::{bf16, f16};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use windowpane::{DType, Tensor};

/// What an operator reads: the elements of an array in row-major order.
pub(crate) struct Input {
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// Reads positions, which Python's libraries have in 64 bits, in the 32 that kernels count with.
pub(crate) fn read_indices(x: &Bound<'_, PyAny>) -> PyResult<Input> {
    let input = read_as(x, |found| match found {
        found if found.is::<i64>() => Ok((DType::I32, size_of::<i64>())),
        found => dtype_of(found).map(|dtype| (dtype, dtype.size())),
    })?;
    if input.bytes.len() == input.dims.iter().product::<usize>() * input.dtype.size() {
        return Ok(input);
    }
    let mut bytes = Vec::with_capacity(input.bytes.len() / 2);
    for wide in input.bytes.chunks_exact(size_of::<i64>()) {
        let wide = i64::from_ne_bytes(wide.try_into().unwrap_or_default());
        let index = i32::try_from(wide).map_err(|_| {
            PyValueError::new_err(format!("the index {wide} is no position of a plane"))
        })?;
        bytes.extend(index.to_ne_bytes());
    }
    Ok(Input { bytes, ..input })
}

/// Copies the elements of anything that speaks DLPack, whatever its strides.
pub(crate) fn read(x: &Bound<'_, PyAny>) -> PyResult<Input> {
    read_as(x, |found| dtype_of(found).map(|dtype| (dtype, dtype.size())))
}

/// As [`read`], of a type and with elements of a size that follow from the array's own type.
fn read_as(
    x: &Bound<'_, PyAny>,
    dtype_of: impl Fn(DLDataType) -> PyResult<(DType, usize)>,
) -> PyResult<Input> {
    let imported = import(x)?;
    let tensor = imported.validate().map_err(refused)?;
    if tensor.device().device_type != DLDeviceType::CPU {
        return Err(PyBufferError::new_err(format!(
            "an array on the device type {:?} cannot be read yet; copy it to the processor first",
            tensor.device().device_type
        )));
    }
    let (dtype, size) = dtype_of(tensor.dtype())?;
    let dims = tensor.shape().iter().map(|&extent| {
        usize::try_from(extent).map_err(|_| PyValueError::new_err("an extent is negative"))
    });
    let dims: Vec<usize> = dims.collect::<PyResult<_>>()?;
    let strides = tensor.strides_or_compact().map_err(refused)?.into_owned();
    // SAFETY: the producer vouches for its memory for as long as `imported` lives, which is to the end of this function;
    // every element is read by its own strides.
    let bytes = unsafe {
        let base = tensor.offset_bytes_ptr().map_err(refused)?.cast::<u8>();
        gather(base, size, &dims, &strides)
    };
    Ok(Input { dtype, dims, bytes })
}

fn import(x: &Bound<'_, PyAny>) -> PyResult<ImportedDlpack> {
    if !x.hasattr("__dlpack__")? {
        let found = x.get_type().qualname()?;
        return Err(PyTypeError::new_err(format!(
            "an array with `__dlpack__` is needed, as those of numpy, torch, jax and cupy; found {found}"
        )));
    }
    match ImportRequest::new(x.as_borrowed())?.import(None, None) {
        // Producers from before DLPack 1 know no `max_version`.
        Err(error) if error.is_instance_of::<PyTypeError>(x.py()) => {
            let none = PyDict::new(x.py());
            none.set_item("stream", x.py().None())?;
            let capsule = x.call_method("__dlpack__", (), Some(&none))?;
            ImportRequest::new(capsule.as_borrowed())?.import(None, None)
        }
        done => done,
    }
}

/// The elements in row-major order.
///
/// # Safety
/// `base` and the strides, in elements, lead to an element of `size` bytes for each position of `dims`.
unsafe fn gather(base: *const u8, size: usize, dims: &[usize], strides: &[i64]) -> Vec<u8> {
    let elements: usize = dims.iter().product();
    let mut bytes = Vec::with_capacity(elements * size);
    if elements == 0 {
        return bytes;
    }
    // The innermost axes that lie side by side are copied at once.
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
            return bytes;
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
        found if found.is::<i8>() => DType::I8,
        found if found.is::<u8>() => DType::U8,
        other => {
            return Err(PyTypeError::new_err(format!(
                "elements of {} bits of DLPack's type {} are not supported; use float64, float32, float16, \
                 bfloat16, int32, int8 or uint8",
                other.bits, other.code.0
            )));
        }
    })
}

/// Memory on lines of 64 bytes, which every library takes without a copy.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

#[derive(Clone)]
struct Storage {
    lines: Vec<Line>,
    shape: Vec<i64>,
    dtype: DLDataType,
}

/// A result, on the processor. Any library that speaks DLPack takes it without a copy: `numpy.from_dlpack(result)`.
#[pyclass(frozen, module = "windowpane")]
pub(crate) struct Array(Arc<Storage>);

impl Array {
    /// The elements of a tensor, once they are there.
    pub(crate) fn of(tensor: &Tensor) -> windowpane::Result<Self> {
        let dtype = match tensor.dtype() {
            DType::F64 => f64::DTYPE,
            DType::F32 => f32::DTYPE,
            DType::F16 => f16::DTYPE,
            DType::BF16 => bf16::DTYPE,
            DType::I32 => i32::DTYPE,
            DType::I8 => i8::DTYPE,
            DType::U8 => u8::DTYPE,
            // The enum may grow; this crate grows with it.
            other => unreachable!("{other} has no type in DLPack"),
        };
        Ok(Self::new(&tensor.to_bytes()?, tensor.dims(), dtype))
    }

    /// Indices as wide as Python's libraries have them.
    pub(crate) fn indices_of(tensor: &Tensor) -> windowpane::Result<Self> {
        let wide = tensor.to_vec::<i32>()?.into_iter().flat_map(|i| i64::from(i).to_ne_bytes());
        Ok(Self::new(&wide.collect::<Vec<u8>>(), tensor.dims(), i64::DTYPE))
    }

    fn new(bytes: &[u8], dims: &[usize], dtype: DLDataType) -> Self {
        // Memory of at least a line, so that there is an address for no elements, too.
        let mut lines = Vec::with_capacity(bytes.len().div_ceil(64).max(1));
        lines.extend(bytes.chunks(64).map(|chunk| {
            let mut line = Line([0; 64]);
            line.0[..chunk.len()].copy_from_slice(chunk);
            line
        }));
        let shape = dims.iter().map(|&extent| extent as i64).collect();
        Self(Arc::new(Storage { lines, shape, dtype }))
    }
}

fn refused(error: impl std::fmt::Display) -> PyErr {
    PyBufferError::new_err(error.to_string())
}

fn managed<M: ManagedTensorBase>(
    storage: &Arc<Storage>,
    flags: DlpackFlags,
) -> PyResult<Managed<M>> {
    let mut new = Dynamic::compact(storage.shape.as_slice())
        .initialize_as::<M>(storage.clone())
        .map_err(refused)?;
    new.set_data(storage.lines.as_ptr().cast_mut().cast())
        .set_device(DLDevice::CPU)
        .set_dtype(storage.dtype);
    new.set_flags(flags).map_err(refused)?;
    // SAFETY: the memory is the storage's, which the new tensor owns a share of, and holds all elements of the shape.
    Ok(unsafe { new.finish() })
}

impl DlpackExporter for Array {
    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn flags(&self) -> DlpackFlags {
        DlpackFlags::empty()
    }

    fn prepare_export(&self, _: Python<'_>, request: &ExportRequest<'_>) -> PyResult<()> {
        match request.stream() {
            None => Ok(()),
            Some(_) => Err(PyBufferError::new_err("an array on the processor has no stream")),
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
            let own = Self(Arc::new(Storage::clone(&self.0)));
            let request = ExportRequest::parse(stream.as_ref(), max_version, dl_device, None)?;
            return export_dlpack(&own, py, request);
        }
        let request = ExportRequest::parse(stream.as_ref(), max_version, dl_device, copy)?;
        export_dlpack(self, py, request)
    }

    fn __dlpack_device__(&self) -> (u32, i32) {
        (DLDeviceType::CPU.0, 0)
    }

    /// The extent of each axis.
    #[getter]
    fn shape(&self) -> Vec<i64> {
        self.0.shape.clone()
    }
}
