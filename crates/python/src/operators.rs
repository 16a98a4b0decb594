//! The operators, channels first, with all options explicit; the Python modules contain the defaults.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use windowpane::geometry::{Same, Shape};
use windowpane::{
    AvgPool, Conv, DType, Device, Divisor, Element, Extents, FilterLayout, Layout, LpPool, MaxPool,
    MaxUnpool, MinPool, Rank, RankPool, Rounding, Scalar, Tensor, UnknownBackend, Window,
};

use crate::array::{Array, Data, Input, read, read_indices};
#[cfg(feature = "cuda")]
use crate::cuda;
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

    fn max_pool(&self) -> PyResult<MaxPool> {
        Ok(MaxPool::with_window(self.window()?).layout(Layout::ChannelsFirst))
    }

    fn min_pool(&self) -> PyResult<MinPool> {
        Ok(MinPool::with_window(self.window()?).layout(Layout::ChannelsFirst))
    }

    fn avg_pool(&self, counts: bool, divisor: Option<u32>) -> PyResult<AvgPool> {
        let divisor = match divisor {
            Some(fixed) => Divisor::Fixed(fixed),
            None if counts => Divisor::Padded,
            None => Divisor::Valid,
        };
        Ok(AvgPool::with_window(self.window()?).divisor(divisor).layout(Layout::ChannelsFirst))
    }

    fn conv(&self, groups: usize) -> PyResult<Conv> {
        let conv = Conv::with_window(self.window()?).groups(groups);
        Ok(conv.layout(Layout::ChannelsFirst).filter_layout(FilterLayout::Fchw))
    }
}

/// The device with this name, such as `cuda` or `vulkan:1`. Without a name it is the best device that computes with
/// elements of this type.
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
        match &self.data {
            Data::Bytes(bytes) => {
                Tensor::from_bytes(device, self.dtype, bytes, &self.dims).map_err(exception)
            }
            #[cfg(feature = "cuda")]
            Data::Shared(_) => Err(PyValueError::new_err(
                "some arrays are on a CUDA device and some are not; move them to one device",
            )),
        }
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

    /// The dimensions of an array with the batch and the channels of this one, and other axes.
    fn with_space(&self, space: &[usize]) -> Vec<usize> {
        [&self.dims[..2], space].concat()
    }
}

/// What an operator made.
pub(crate) enum Made {
    Values(Tensor),
    /// Positions, which leave the CPU's memory in 64 bits and that of a GPU in 32.
    Indices(Tensor),
}

/// Runs an operator where its inputs are if that is a CUDA device, else on the named device or the best one.
fn compute(
    py: Python<'_>,
    inputs: Vec<Input>,
    name: Option<String>,
    alone: bool,
    work: impl FnOnce(&[Tensor]) -> windowpane::Result<Vec<Made>> + Send + 'static,
) -> PyResult<Vec<Array>> {
    #[cfg(feature = "cuda")]
    if let Some(gpu) = cuda::place(&inputs, name.as_deref())? {
        return gpu.compute(py, inputs, alone, work);
    }
    wait(py, move || {
        let device = device(name.as_deref(), inputs[0].dtype)?;
        let tensors: Vec<_> =
            inputs.iter().map(|input| input.upload(&device)).collect::<PyResult<_>>()?;
        let made = work(&tensors).map_err(exception)?;
        let arrays = made.iter().map(|made| match made {
            Made::Values(tensor) => Array::of(tensor, alone),
            Made::Indices(tensor) => Array::indices_of(tensor, alone),
        });
        arrays.collect::<windowpane::Result<_>>().map_err(exception)
    })
}

/// The same for an operator with one result.
fn compute_one(
    py: Python<'_>,
    inputs: Vec<Input>,
    name: Option<String>,
    alone: bool,
    work: impl FnOnce(&[Tensor]) -> windowpane::Result<Tensor> + Send + 'static,
) -> PyResult<Array> {
    let work = move |inputs: &[Tensor]| Ok(vec![Made::Values(work(inputs)?)]);
    let mut made = compute(py, inputs, name, alone, work)?;
    Ok(made.remove(0))
}

/// The names of the devices of this machine, the preferred first.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<Vec<String>> {
    wait(py, || Ok(Device::all().iter().map(ToString::to_string).collect()))
}

/// The maxima or the minima, and with `indices` their positions in the planes of the input.
#[pyfunction]
pub(crate) fn extremum_pool(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    options: Options,
    minimum: bool,
    indices: bool,
    name: Option<String>,
) -> PyResult<(Array, Option<Array>)> {
    let (x, alone) = read(x)?.batched(options.rank())?;
    let (highest, lowest) = (options.max_pool()?, options.min_pool()?);
    let mut made = compute(py, vec![x], name, alone, move |inputs| {
        let x = &inputs[0];
        let (y, winners) = match (minimum, indices) {
            (false, false) => return Ok(vec![Made::Values(highest.forward(x)?)]),
            (true, false) => return Ok(vec![Made::Values(lowest.forward(x)?)]),
            (false, true) => highest.forward_with_indices(x)?,
            (true, true) => lowest.forward_with_indices(x)?,
        };
        Ok(vec![Made::Values(y), Made::Indices(winners)])
    })?;
    let y = made.remove(0);
    Ok((y, made.pop()))
}

/// The gradient of [`extremum_pool`] with respect to an input with axes of these extents. Both extrema have the same one.
#[pyfunction]
pub(crate) fn extremum_pool_backward(
    py: Python<'_>,
    dy: &Bound<'_, PyAny>,
    indices: &Bound<'_, PyAny>,
    size: Vec<usize>,
    options: Options,
    name: Option<String>,
) -> PyResult<Array> {
    let rank = options.rank();
    let ((dy, alone), (indices, _)) =
        (read(dy)?.batched(rank)?, read_indices(indices)?.batched(rank)?);
    let (pool, dims) = (options.max_pool()?, dy.with_space(&size));
    compute_one(py, vec![dy, indices], name, alone, move |inputs| {
        pool.backward(&inputs[0], &inputs[1], &dims)
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
    let pool = options.avg_pool(counts, divisor)?;
    compute_one(py, vec![x], name, alone, move |inputs| pool.forward(&inputs[0]))
}

/// The gradient of [`avg_pool`] with respect to an input with axes of these extents.
#[pyfunction]
pub(crate) fn avg_pool_backward(
    py: Python<'_>,
    dy: &Bound<'_, PyAny>,
    size: Vec<usize>,
    options: Options,
    counts: bool,
    divisor: Option<u32>,
    name: Option<String>,
) -> PyResult<Array> {
    let (dy, alone) = read(dy)?.batched(options.rank())?;
    let (pool, dims) = (options.avg_pool(counts, divisor)?, dy.with_space(&size));
    compute_one(py, vec![dy], name, alone, move |inputs| pool.backward(&inputs[0], &dims))
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
    let pool = LpPool::with_window(p, options.window()?).layout(Layout::ChannelsFirst);
    compute_one(py, vec![x], name, alone, move |inputs| pool.forward(&inputs[0]))
}

/// The gradient of [`lp_pool`] with respect to its input `x`.
#[pyfunction]
pub(crate) fn lp_pool_backward(
    py: Python<'_>,
    dy: &Bound<'_, PyAny>,
    x: &Bound<'_, PyAny>,
    p: f64,
    options: Options,
    name: Option<String>,
) -> PyResult<Array> {
    let rank = options.rank();
    let ((dy, alone), (x, _)) = (read(dy)?.batched(rank)?, read(x)?.batched(rank)?);
    dy.same_type_as(&x, "gradient")?;
    let pool = LpPool::with_window(p, options.window()?).layout(Layout::ChannelsFirst);
    compute_one(py, vec![dy, x], name, alone, move |inputs| pool.backward(&inputs[0], &inputs[1]))
}

/// The number of each window that `rank` others precede; the largest, if a window has fewer; without a `rank` the median.
#[pyfunction]
pub(crate) fn rank_pool(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    rank: Option<u32>,
    options: Options,
    name: Option<String>,
) -> PyResult<Array> {
    let (x, alone) = read(x)?.batched(options.rank())?;
    let rank = rank.map_or(Rank::MEDIAN, Rank::Nth);
    let pool = RankPool::with_window(rank, options.window()?).layout(Layout::ChannelsFirst);
    compute_one(py, vec![x], name, alone, move |inputs| pool.forward(&inputs[0]))
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
    compute_one(py, vec![y, indices], name, alone, move |inputs| {
        let x = unpool.forward(&inputs[0], &inputs[1])?;
        // A device reports an index that is out of range only to whoever waits for the result.
        x.wait()?;
        Ok(x)
    })
}

/// The gradient of [`max_unpool`] with respect to the maxima.
#[pyfunction]
pub(crate) fn max_unpool_backward(
    py: Python<'_>,
    dx: &Bound<'_, PyAny>,
    indices: &Bound<'_, PyAny>,
    rank: usize,
    name: Option<String>,
) -> PyResult<Array> {
    let ((dx, alone), (indices, _)) =
        (read(dx)?.batched(rank)?, read_indices(indices)?.batched(rank)?);
    let unpool = MaxUnpool::new(extents(&dx.dims[2..])?).layout(Layout::ChannelsFirst);
    compute_one(py, vec![dx, indices], name, alone, move |inputs| {
        unpool.backward(&inputs[0], &inputs[1])
    })
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
    let conv = options.conv(groups)?;
    let inputs = [x, w].into_iter().chain(bias).collect();
    compute_one(py, inputs, name, alone, move |inputs| {
        conv.forward(&inputs[0], &inputs[1], inputs.get(2))
    })
}

/// The transposed convolution, which has outputs of this size; the bias is added to its rounded result. It is also the
/// gradient of [`convolve`] with respect to an input of this size.
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
    let bias = match bias.map(|bias| (bias.dtype, bias.data)) {
        None => None,
        Some((dtype, Data::Bytes(bytes))) => Some((dtype, bytes)),
        #[cfg(feature = "cuda")]
        Some((_, Data::Shared(_))) => {
            return Err(PyValueError::new_err(
                "on a CUDA device the bias of a transposed convolution is added by your library",
            ));
        }
    };
    let (conv, dims) = (options.conv(groups)?, [vec![x.dims[0], channels], size].concat());
    compute_one(py, vec![x, w], name, alone, move |inputs| {
        let y = conv.backward_data(&inputs[0], &inputs[1], &dims)?;
        match bias {
            None => Ok(y),
            Some((DType::F64, bias)) => with_bias::<f64>(&y, &bias),
            Some((DType::F32, bias)) => with_bias::<f32>(&y, &bias),
            Some((DType::F16, bias)) => with_bias::<half::f16>(&y, &bias),
            Some((_, bias)) => with_bias::<half::bf16>(&y, &bias),
        }
    })
}

/// The gradient of [`convolve`] with respect to its filters.
#[pyfunction]
pub(crate) fn convolve_backward_filter(
    py: Python<'_>,
    dy: &Bound<'_, PyAny>,
    x: &Bound<'_, PyAny>,
    options: Options,
    groups: usize,
    name: Option<String>,
) -> PyResult<Array> {
    let rank = options.rank();
    let ((dy, _), (x, _)) = (read(dy)?.batched(rank)?, read(x)?.batched(rank)?);
    dy.same_type_as(&x, "gradient")?;
    let conv = options.conv(groups)?;
    compute_one(py, vec![dy, x], name, false, move |inputs| {
        conv.backward_filter(&inputs[0], &inputs[1])
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
fn with_bias<T: Element + Scalar>(y: &Tensor, bias: &[u8]) -> windowpane::Result<Tensor> {
    let host = Device::host();
    let channels = [bias.len() / T::DTYPE.size()];
    let bias = Tensor::from_bytes(&host, T::DTYPE, bias, channels)?.to_vec::<T>()?;
    let plane = Shape::from_dims(y.dims(), Layout::ChannelsFirst)?.plane();
    let mut elements = y.to_vec::<T>()?;
    for (plane, bias) in elements.chunks_mut(plane).zip(bias.iter().cycle()) {
        for element in plane {
            *element = T::from_f64(element.to_f64() + bias.to_f64());
        }
    }
    Tensor::from_slice(&host, &elements, y.dims())
}
