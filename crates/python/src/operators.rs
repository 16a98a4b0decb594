//! The operators, channels first, with all options explicit; the Python modules contain the defaults.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use windowpane::geometry::{Same, Shape};
use windowpane::{
    AvgPool, Conv, DType, Device, Divisor, Element, Extents, FilterLayout, Layout, LpPool, MaxPool,
    MaxUnpool, Rounding, Scalar, Tensor, UnknownBackend, Window,
};

use crate::array::{Array, Input, read, read_indices};
use crate::wait::{exception, wait};

/// A window, with a number for each axis.
#[derive(FromPyObject)]
pub(crate) struct Options {
    #[pyo3(item)]
    kernel: Vec<usize>,
    #[pyo3(item)]
    stride: Vec<usize>,
    /// The padding on both sides of each axis; empty for [`Same::Upper`], which keeps `⌈L/s⌉` outputs.
    #[pyo3(item)]
    padding: Vec<usize>,
    #[pyo3(item)]
    dilation: Vec<usize>,
    #[pyo3(item)]
    ceil: bool,
    /// Whether `kernel` is the output size of an adaptive window; the other options are then unused.
    #[pyo3(item)]
    adaptive: bool,
}

fn extents(values: &[usize]) -> PyResult<Extents> {
    Extents::try_from(values).map_err(|error| PyValueError::new_err(error.to_string()))
}

impl Options {
    fn window(&self) -> PyResult<Window> {
        let kernel = extents(&self.kernel)?;
        if self.adaptive {
            return Ok(Window::adaptive(kernel));
        }
        let rounding = if self.ceil { Rounding::Ceil } else { Rounding::Floor };
        let window = Window::new(kernel)
            .stride(extents(&self.stride)?)
            .dilation(extents(&self.dilation)?)
            .rounding(rounding);
        Ok(match self.padding.is_empty() {
            true => window.padding(Same::Upper),
            false => window.padding(extents(&self.padding)?),
        })
    }

    fn rank(&self) -> usize {
        self.kernel.len()
    }
}

/// The device with this name, such as `cuda` or `vulkan:1`. Without a name it is the best device that computes with
/// elements
/// of this type.
///
/// A device remembers its plans, so each is opened once.
fn device(name: Option<&str>, dtype: DType) -> PyResult<Device> {
    static OPENED: Mutex<Option<HashMap<Option<String>, Device>>> = Mutex::new(None);
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = opened.get_or_insert_default();
    let found = match opened.get(&name.map(String::from)) {
        Some(known) => known.clone(),
        None => {
            let device = open(name)?;
            opened.insert(name.map(String::from), device.clone());
            device
        }
    };
    Ok(if name.is_none() && !found.supports(dtype) { Device::host() } else { found })
}

fn open(name: Option<&str>) -> PyResult<Device> {
    let Some(name) = name else { return Ok(Device::best()) };
    let (backend, index) = name.split_once(':').unwrap_or((name, "0"));
    let index = index.parse().map_err(|_| {
        PyValueError::new_err(format!(
            "there is no device `{name}`; choose one of windowpane.devices()"
        ))
    })?;
    let backend = backend
        .parse()
        .map_err(|error: UnknownBackend| PyValueError::new_err(error.to_string()))?;
    Device::new(backend, index).map_err(exception)
}

impl Input {
    fn upload(&self, device: &Device) -> PyResult<Tensor> {
        Tensor::from_bytes(device, self.dtype, &self.bytes, &self.dims).map_err(exception)
    }

    /// Refuses an array whose type differs from the input's.
    fn same_type_as(&self, input: &Self, name: &str) -> PyResult<()> {
        if self.dtype == input.dtype {
            return Ok(());
        }
        Err(PyTypeError::new_err(format!(
            "the {name} has elements of type {}, the input of type {}; convert one of them",
            self.dtype, input.dtype
        )))
    }
}

/// The names of the devices of this machine, the preferred first.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<Vec<String>> {
    wait(py, || Ok(Device::all().iter().map(ToString::to_string).collect()))
}

/// The maxima, and with `indices` their positions in the planes of the input.
#[pyfunction]
pub(crate) fn max_pool(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    options: Options,
    indices: bool,
    name: Option<String>,
) -> PyResult<(Array, Option<Array>)> {
    let (x, alone) = read(x)?.batched(options.rank())?;
    let pool = MaxPool::over(options.window()?).layout(Layout::ChannelsFirst);
    wait(py, move || {
        let x = x.upload(&device(name.as_deref(), x.dtype)?)?;
        let compute = || {
            if !indices {
                return Ok((Array::of(&pool.forward(&x)?, alone)?, None));
            }
            let (y, winners) = pool.forward_with_indices(&x)?;
            Ok((Array::of(&y, alone)?, Some(Array::indices_of(&winners, alone)?)))
        };
        compute().map_err(exception)
    })
}

/// The averages, with the padding if it `counts`, or with another divisor.
#[pyfunction]
pub(crate) fn avg_pool(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    options: Options,
    counts: bool,
    divisor: Option<u32>,
    name: Option<String>,
) -> PyResult<Array> {
    let (x, alone) = read(x)?.batched(options.rank())?;
    let divisor = match divisor {
        Some(fixed) => Divisor::Fixed(fixed),
        None if counts => Divisor::Padded,
        None => Divisor::Valid,
    };
    let pool = AvgPool::over(options.window()?).divisor(divisor).layout(Layout::ChannelsFirst);
    wait(py, move || {
        let x = x.upload(&device(name.as_deref(), x.dtype)?)?;
        pool.forward(&x).and_then(|y| Array::of(&y, alone)).map_err(exception)
    })
}

/// The norms `(Σ|x|^p)^(1/p)`.
#[pyfunction]
pub(crate) fn lp_pool(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    p: f64,
    options: Options,
    name: Option<String>,
) -> PyResult<Array> {
    let (x, alone) = read(x)?.batched(options.rank())?;
    let pool = LpPool::over(p, options.window()?).layout(Layout::ChannelsFirst);
    wait(py, move || {
        let x = x.upload(&device(name.as_deref(), x.dtype)?)?;
        pool.forward(&x).and_then(|y| Array::of(&y, alone)).map_err(exception)
    })
}

/// Planes of this size with each maximum at its index, and zeros elsewhere.
#[pyfunction]
pub(crate) fn max_unpool(
    py: Python<'_>,
    y: &Bound<'_, PyAny>,
    indices: &Bound<'_, PyAny>,
    output: Vec<usize>,
    name: Option<String>,
) -> PyResult<Array> {
    let rank = output.len();
    let ((y, alone), (indices, _)) =
        (read(y)?.batched(rank)?, read_indices(indices)?.batched(rank)?);
    let unpool = MaxUnpool::new(extents(&output)?).layout(Layout::ChannelsFirst);
    wait(py, move || {
        let device = device(name.as_deref(), y.dtype)?;
        let (y, indices) = (y.upload(&device)?, indices.upload(&device)?);
        unpool.forward(&y, &indices).and_then(|x| Array::of(&x, alone)).map_err(exception)
    })
}

fn conv(options: &Options, groups: usize) -> PyResult<Conv> {
    let conv = Conv::over(options.window()?).groups(groups);
    Ok(conv.layout(Layout::ChannelsFirst).filter_layout(FilterLayout::Fchw))
}

/// The convolution with filters in PyTorch's layout, and a bias.
#[pyfunction]
pub(crate) fn convolve(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    w: &Bound<'_, PyAny>,
    bias: Option<Bound<'_, PyAny>>,
    options: Options,
    groups: usize,
    name: Option<String>,
) -> PyResult<Array> {
    let ((x, alone), w) = (read(x)?.batched(options.rank())?, read(w)?);
    w.same_type_as(&x, "weight")?;
    let bias = bias.as_ref().map(read).transpose()?;
    if let Some(bias) = &bias {
        bias.same_type_as(&x, "bias")?;
        check_bias(bias, w.dims.first().copied().unwrap_or(0))?;
    }
    let conv = conv(&options, groups)?;
    wait(py, move || {
        let device = device(name.as_deref(), x.dtype)?;
        let (x, w) = (x.upload(&device)?, w.upload(&device)?);
        let bias = bias.map(|bias| bias.upload(&device)).transpose()?;
        conv.forward(&x, &w, bias.as_ref()).and_then(|y| Array::of(&y, alone)).map_err(exception)
    })
}

/// The transposed convolution, which has outputs of this size; the bias is added to its rounded result.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "they are the arguments of a Python function")]
pub(crate) fn convolve_transposed(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    w: &Bound<'_, PyAny>,
    bias: Option<Bound<'_, PyAny>>,
    size: Vec<usize>,
    options: Options,
    groups: usize,
    name: Option<String>,
) -> PyResult<Array> {
    let ((x, alone), w) = (read(x)?.batched(options.rank())?, read(w)?);
    w.same_type_as(&x, "weight")?;
    let each = w.dims.get(1).copied().unwrap_or(0);
    let channels =
        each.checked_mul(groups).ok_or_else(|| PyValueError::new_err("too many groups"))?;
    let bias = bias.as_ref().map(read).transpose()?;
    if let Some(bias) = &bias {
        bias.same_type_as(&x, "bias")?;
        check_bias(bias, channels)?;
    }
    let (conv, dims) = (conv(&options, groups)?, [vec![x.dims[0], channels], size].concat());
    wait(py, move || {
        let device = device(name.as_deref(), x.dtype)?;
        let y = conv.backward_data(&x.upload(&device)?, &w.upload(&device)?, &dims);
        let y = y.map_err(exception)?;
        let y = match &bias {
            None => y,
            Some(bias) => match bias.dtype {
                DType::F64 => with_bias::<f64>(&y, bias),
                DType::F32 => with_bias::<f32>(&y, bias),
                DType::F16 => with_bias::<half::f16>(&y, bias),
                _ => with_bias::<half::bf16>(&y, bias),
            }
            .map_err(exception)?,
        };
        Array::of(&y, alone).map_err(exception)
    })
}

/// Refuses a bias that does not have one number for each channel of the output.
fn check_bias(bias: &Input, channels: usize) -> PyResult<()> {
    if bias.dims == [channels] {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "the bias has the shape {:?}; it needs [{channels}], a number for each channel of the output",
        bias.dims
    )))
}

/// A channels-first tensor with a number added to each channel, on the host.
fn with_bias<T: Element + Scalar>(y: &Tensor, bias: &Input) -> windowpane::Result<Tensor> {
    let host = Device::host();
    let bias = Tensor::from_bytes(&host, T::DTYPE, &bias.bytes, &bias.dims)?.to_vec::<T>()?;
    let plane = Shape::from_dims(y.dims(), Layout::ChannelsFirst)?.plane();
    let mut elements = y.to_vec::<T>()?;
    for (plane, bias) in elements.chunks_mut(plane).zip(bias.iter().cycle()) {
        for element in plane {
            *element = T::from_f64(element.to_f64() + bias.to_f64());
        }
    }
    Tensor::from_slice(&host, &elements, y.dims())
}
