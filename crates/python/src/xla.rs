//! The operators inside the programs of XLA, which `jax.jit` makes.
//!
//! XLA calls a C function, with the addresses of the arrays and a text that says what to do with them. The function
//! lets `windowpane.jax` read the text and call one of this module's functions with the arrays where they are, and
//! copies its results to where XLA wants them.
//!
//! The structures are those of `xla/ffi/api/c_api.h`, version 0.3. Each begins with its size, because later versions
//! add fields at the end.

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr::{self, NonNull};
use std::slice;

use dlpark::DlpackElement;
use dlpark::ffi::{DLDataType, DLDevice, DLDeviceType};
use half::{bf16, f16};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use crate::array::Array;
use crate::wait::{guarded, uninterrupted};

/// The name of the only attribute.
const WORK: &[u8] = b"work";

const SHUTDOWN: &str = "Python is shutting down";

// The values of the enumerations that are used here.
const METADATA: c_int = 1;
const EXECUTE: c_int = 3;
const BUFFER: c_int = 1;
const STRING: c_int = 4;
const INVALID_ARGUMENT: c_int = 3;
const INTERNAL: c_int = 13;

/// `XLA_FFI_CallFrame`.
#[repr(C)]
struct Frame {
    size: usize,
    extension: *mut Metadata,
    api: *const Api,
    context: *mut c_void,
    stage: c_int,
    arguments: Buffers,
    results: Buffers,
    attributes: Attributes,
}

/// `XLA_FFI_Args` and `XLA_FFI_Rets`.
#[repr(C)]
struct Buffers {
    size: usize,
    extension: *mut c_void,
    count: i64,
    kinds: *const c_int,
    items: *const *const Buffer,
}

/// `XLA_FFI_Buffer`.
#[repr(C)]
struct Buffer {
    size: usize,
    extension: *mut c_void,
    dtype: c_int,
    data: *mut c_void,
    rank: i64,
    dims: *const i64,
}

/// `XLA_FFI_Attrs`.
#[repr(C)]
struct Attributes {
    size: usize,
    extension: *mut c_void,
    count: i64,
    kinds: *const c_int,
    names: *const *const Span,
    items: *const *const Span,
}

/// `XLA_FFI_ByteSpan`.
#[repr(C)]
struct Span {
    start: *const u8,
    length: usize,
}

/// `XLA_FFI_Api_Version`.
#[repr(C)]
struct Version {
    size: usize,
    extension: *mut c_void,
    major: c_int,
    minor: c_int,
}

/// `XLA_FFI_Metadata_Extension`, by which XLA asks what a handler is. It begins with an `XLA_FFI_Extension_Base`.
#[repr(C)]
struct Metadata {
    size: usize,
    kind: c_int,
    next: *mut c_void,
    answer: *mut Answer,
}

/// `XLA_FFI_Metadata`.
#[repr(C)]
struct Answer {
    size: usize,
    version: Version,
    traits: u32,
}

/// `XLA_FFI_Api`.
#[repr(C)]
struct Api {
    size: usize,
    extension: *mut c_void,
    version: Version,
    internal: *const c_void,
    create_error: unsafe extern "C" fn(*mut NewError) -> *mut c_void,
    _get_message: *const c_void,
    destroy_error: unsafe extern "C" fn(*mut Question<()>),
    _register: *const c_void,
    get_stream: Ask<*mut c_void>,
    _between: [*const c_void; 12],
    /// Missing in older versions.
    get_device: Ask<i32>,
}

/// A function of XLA that answers a question, or returns an error.
type Ask<T> = unsafe extern "C" fn(*mut Question<T>) -> *mut c_void;

/// `XLA_FFI_Stream_Get_Args` and `XLA_FFI_DeviceOrdinal_Get_Args`; without an answer `XLA_FFI_Error_Destroy_Args`.
#[repr(C)]
struct Question<T> {
    size: usize,
    extension: *mut c_void,
    about: *mut c_void,
    answer: T,
}

/// `XLA_FFI_Error_Create_Args`.
#[repr(C)]
struct NewError {
    size: usize,
    extension: *mut c_void,
    message: *const c_char,
    code: c_int,
}

/// The platforms of XLA whose arrays are used where they are, each with its handler.
#[pyfunction]
pub(crate) fn xla_handlers(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let handlers = PyDict::new(py);
    let add = |platform, handler: unsafe extern "C" fn(*mut Frame) -> *mut c_void| {
        let Some(address) = NonNull::new(handler as *mut c_void) else { return Ok(()) };
        // SAFETY: a function is valid for as long as the process lives.
        let capsule = unsafe { PyCapsule::new_with_pointer(py, address, c"windowpane.xla")? };
        handlers.set_item(platform, capsule)
    };
    add("cpu", handle::<false>)?;
    if cfg!(feature = "cuda") {
        add("CUDA", handle::<true>)?;
    }
    Ok(handlers)
}

/// The handler for arrays in the memory of the CPU, or on a `CUDA` device. It returns null or an error.
unsafe extern "C" fn handle<const CUDA: bool>(frame: *mut Frame) -> *mut c_void {
    // SAFETY: XLA passes its frame.
    match guarded(|| unsafe { run(frame, CUDA) }) {
        Ok(()) => ptr::null_mut(),
        // SAFETY: every version of a frame has this field.
        Err(error) => unsafe { report((*frame).api, &error) },
    }
}

/// Does what a frame asks for.
///
/// # Safety
/// The frame is one of XLA's, which is valid and not used elsewhere during the call, with all that it points to.
unsafe fn run(frame: *const Frame, cuda: bool) -> PyResult<()> {
    // SAFETY: by the contract of this function, here and below. The size comes first in every version.
    unsafe {
        known((*frame).size, size_of::<Frame>())?;
        let Frame { extension, api, stage, arguments, results, attributes, .. } = &*frame;
        if !extension.is_null() && (**extension).kind == METADATA {
            return answer(*extension, *api);
        }
        known((**api).size, offset_of!(Api, get_stream))?;
        if *stage != EXECUTE {
            return Err(PyRuntimeError::new_err("XLA called at a stage that is not registered"));
        }
        let (device, stream) = if cuda { place(&*frame)? } else { (DLDevice::CPU, 0) };
        let arguments = arrays(arguments, device)?;
        let results = arrays(results, device)?;
        let work = work(attributes)?;
        let called = Python::try_attach(|py| {
            // The arguments are XLA's again when this returns.
            let made = uninterrupted(|| call(py, work, arguments))?;
            let made: Vec<_> = made.iter().map(Py::get).collect();
            let counts = [made.len(), results.len()];
            if counts[0] != counts[1] {
                return Err(PyRuntimeError::new_err(format!(
                    "this is a fault of windowpane, please report it: {counts:?} results"
                )));
            }
            py.detach(|| {
                made.iter().zip(&results).try_for_each(|(made, to)| made.copy_to(to, stream))
            })
        });
        called.unwrap_or_else(|| Err(PyRuntimeError::new_err(SHUTDOWN)))
    }
}

/// Lets `windowpane.jax` do the work.
fn call(py: Python<'_>, work: &str, arguments: Vec<Array>) -> PyResult<Vec<Py<Array>>> {
    static RUN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let run = RUN.import(py, "windowpane.jax", "_run")?;
    run.call1((work, PyTuple::new(py, arguments)?))?.extract()
}

/// Refuses a structure that lacks fields that are used here.
fn known(size: usize, needed: usize) -> PyResult<()> {
    if size >= needed {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(
        "this version of JAX is too old for windowpane; install a newer one",
    ))
}

/// Reports the version of XLA's structures that this module knows, and that it has no traits: without one, calls are
/// not recorded in graphs.
///
/// # Safety
/// As for [`run`]; the API may be null.
unsafe fn answer(asked: *const Metadata, api: *const Api) -> PyResult<()> {
    // SAFETY: by the contract of this function.
    unsafe {
        known((*asked).size, size_of::<Metadata>())?;
        let answer = (*asked).answer;
        known((*answer).size, offset_of!(Answer, traits) + size_of::<u32>())?;
        // Some versions of XLA accept only their own version. Those that pass no API have this one.
        let minor = if api.is_null() { 1 } else { (*api).version.minor.min(3) };
        let (size, extension) = (size_of::<Version>(), ptr::null_mut());
        (*answer).version = Version { size, extension, major: 0, minor };
        (*answer).traits = 0;
    }
    Ok(())
}

/// The CUDA device of a call, and its stream.
///
/// # Safety
/// As for [`run`].
unsafe fn place(frame: &Frame) -> PyResult<(DLDevice, usize)> {
    let Frame { api, context, .. } = *frame;
    // SAFETY: by the contract of this function; the size says which functions there are.
    unsafe {
        known((*api).size, size_of::<Api>())?;
        let device = ask(api, (*api).get_device, context, 0)?;
        let stream = ask(api, (*api).get_stream, context, ptr::null_mut())?;
        Ok((DLDevice { device_type: DLDeviceType::CUDA, device_id: device }, stream as usize))
    }
}

/// # Safety
/// As for [`run`].
unsafe fn ask<T>(api: *const Api, ask: Ask<T>, about: *mut c_void, answer: T) -> PyResult<T> {
    let size = offset_of!(Question<T>, answer) + size_of::<T>();
    let mut question = Question { size, extension: ptr::null_mut(), about, answer };
    // SAFETY: by the contract of this function.
    unsafe {
        let error = ask(&mut question);
        if error.is_null() {
            return Ok(question.answer);
        }
        let (size, extension) = (size_of::<Question<()>>(), ptr::null_mut());
        ((*api).destroy_error)(&mut Question { size, extension, about: error, answer: () });
    }
    Err(PyRuntimeError::new_err("XLA does not say which device or stream it uses"))
}

/// The arrays of a call.
///
/// # Safety
/// As for [`run`]. The arrays have to be gone at the end of the call.
unsafe fn arrays(buffers: &Buffers, device: DLDevice) -> PyResult<Vec<Array>> {
    // SAFETY: by the contract of this function.
    unsafe {
        if list(buffers.kinds, buffers.count).iter().any(|&kind| kind != BUFFER) {
            return Err(PyTypeError::new_err("XLA passed an argument that is not an array"));
        }
        let lent = list(buffers.items, buffers.count).iter().map(|&buffer| {
            known((*buffer).size, size_of::<Buffer>())?;
            let Buffer { dtype, data, rank, dims, .. } = *buffer;
            let dims: Vec<_> = list(dims, rank).iter().map(|&extent| extent as usize).collect();
            Ok(Array::lent(data, device, &dims, dtype_of(dtype)?))
        });
        lent.collect()
    }
}

/// The text that says what to do.
///
/// # Safety
/// As for [`run`].
unsafe fn work(attributes: &Attributes) -> PyResult<&str> {
    let &Attributes { count, kinds, names, items, .. } = attributes;
    // SAFETY: by the contract of this function; an attribute of this kind is a span.
    let found = unsafe {
        let mut attributes =
            list(names, count).iter().zip(list(kinds, count)).zip(list(items, count));
        let found = attributes.find(|((name, kind), _)| text(**name) == WORK && **kind == STRING);
        found.map(|(_, item)| text(*item))
    };
    let found = found.and_then(|bytes| str::from_utf8(bytes).ok());
    found.ok_or_else(|| PyValueError::new_err("XLA passed no text that says what to do"))
}

/// # Safety
/// The span is valid for as long as the result is used.
unsafe fn text<'a>(span: *const Span) -> &'a [u8] {
    // SAFETY: by the contract of this function.
    unsafe { list((*span).start, (*span).length as i64) }
}

/// # Safety
/// `count` items start at this address, and stay valid while the result is used.
unsafe fn list<'a, T>(start: *const T, count: i64) -> &'a [T] {
    match usize::try_from(count) {
        // SAFETY: by the contract of this function.
        Ok(count @ 1..) => unsafe { slice::from_raw_parts(start, count) },
        _ => &[],
    }
}

fn dtype_of(found: c_int) -> PyResult<DLDataType> {
    Ok(match found {
        1 => DLDataType::BOOL,
        2 => i8::DTYPE,
        3 => i16::DTYPE,
        4 => i32::DTYPE,
        5 => i64::DTYPE,
        6 => u8::DTYPE,
        7 => u16::DTYPE,
        8 => u32::DTYPE,
        10 => f16::DTYPE,
        11 => f32::DTYPE,
        12 => f64::DTYPE,
        16 => bf16::DTYPE,
        other => {
            return Err(PyTypeError::new_err(format!(
                "elements of XLA's type {other} are not supported; convert the array"
            )));
        }
    })
}

/// Makes XLA's error of an exception.
///
/// # Safety
/// The API is XLA's.
unsafe fn report(api: *const Api, error: &PyErr) -> *mut c_void {
    if api.is_null() {
        // XLA refuses a handler that does not answer.
        return ptr::null_mut();
    }
    let described = Python::try_attach(|py| {
        let refused =
            error.is_instance_of::<PyValueError>(py) || error.is_instance_of::<PyTypeError>(py);
        (if refused { INVALID_ARGUMENT } else { INTERNAL }, error.to_string())
    });
    let (code, text) = described.unwrap_or_else(|| (INTERNAL, SHUTDOWN.into()));
    let message = CString::new(text.replace('\0', "")).unwrap_or_default();
    let size = offset_of!(NewError, code) + size_of::<c_int>();
    let mut new = NewError { size, extension: ptr::null_mut(), message: message.as_ptr(), code };
    // SAFETY: every version of the API has this function, which copies the message.
    unsafe { ((*api).create_error)(&mut new) }
}
