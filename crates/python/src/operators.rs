//! The operators, channels first, with all options given; the Python modules have the defaults.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use windowpane::{
    AvgPool, Conv, Device, Divisor, Extents, FilterLayout, Layout, LpPool, MaxPool, MaxUnpool,
    Rounding, Tensor, Window,
};

use crate::array::{Array, Input, read, read_indices};
use crate::wait::{exception, wait};

/// A window in the words of PyTorch; `None` for the stride is the kernel, and an `output` makes it adaptive.
#[derive(FromPyObject)]
pub(crate) struct Options {
    #[pyo3(item)]
    kernel: Vec<usize>,
    #[pyo3(item)]
    stride: Vec<usize>,
    #[pyo3(item)]
    padding: Vec<usize>,
    #[pyo3(item)]
    dilation: Vec<usize>,
    #[pyo3(item)]
    ceil: bool,
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
        Ok(Window::new(kernel)
            .stride(extents(&self.stride)?)
            .padding(extents(&self.padding)?)
            .dilation(extents(&self.dilation)?)
            .rounding(rounding))
    }
}

/// The device of this name, as `cuda` or `vulkan:1`; without a name the best of this machine.
fn device(name: Option<&str>) -> PyResult<Device> {
    let Some(name) = name else { return Ok(Device::best()) };
    let (backend, index) = name.split_once(':').unwrap_or((name, "0"));
    let index = index.parse().map_err(|_| {
        PyValueError::new_err(format!(
            "`{name}` is no device; use a name of `windowpane.devices()`"
        ))
    })?;
    let backend = backend
        .parse()
        .map_err(|error: windowpane::UnknownBackend| PyValueError::new_err(error.to_string()))?;
    Device::new(backend, index).map_err(exception)
}

impl Input {
    fn upload(&self, device: &Device) -> windowpane::Result<Tensor> {
        Tensor::from_bytes(device, self.dtype, &self.bytes, &self.dims)
    }
}

/// The names of the devices of this machine, the preferred first.
#[pyfunction]
pub(crate) fn devices() -> Vec<String> {
    Device::all().iter().map(ToString::to_string).collect()
}

/// The maxima, and with `indices` their positions in the planes of the input.
#[pyfunction]
pub(crate) fn max_pool(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    options: Options,
    indices: bool,
    name: Option<&str>,
) -> PyResult<(Array, Option<Array>)> {
    let (x, device) = (read(x)?, device(name)?);
    let pool = MaxPool::over(options.window()?).layout(Layout::ChannelsFirst);
    wait(py, move || {
        let x = x.upload(&device)?;
        if !indices {
            return Ok((Array::of(&pool.forward(&x)?)?, None));
        }
        let (y, winners) = pool.forward_with_indices(&x)?;
        Ok((Array::of(&y)?, Some(Array::indices_of(&winners)?)))
    })
}

/// The averages, over the padding too if it `counts`, or by a divisor of one's own.
#[pyfunction]
pub(crate) fn avg_pool(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    options: Options,
    counts: bool,
    divisor: Option<u32>,
    name: Option<&str>,
) -> PyResult<Array> {
    let (x, device) = (read(x)?, device(name)?);
    let divisor = match divisor {
        Some(fixed) => Divisor::Fixed(fixed),
        None if counts => Divisor::Padded,
        None => Divisor::Valid,
    };
    let pool = AvgPool::over(options.window()?).divisor(divisor).layout(Layout::ChannelsFirst);
    wait(py, move || Array::of(&pool.forward(&x.upload(&device)?)?))
}

/// The norms `(Σ|x|^p)^(1/p)`.
#[pyfunction]
pub(crate) fn lp_pool(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    p: f64,
    options: Options,
    name: Option<&str>,
) -> PyResult<Array> {
    let (x, device) = (read(x)?, device(name)?);
    let pool = LpPool::over(p, options.window()?).layout(Layout::ChannelsFirst);
    wait(py, move || Array::of(&pool.forward(&x.upload(&device)?)?))
}

/// The maxima at their places in planes of this size, zeros elsewhere.
#[pyfunction]
pub(crate) fn max_unpool(
    py: Python<'_>,
    y: &Bound<'_, PyAny>,
    indices: &Bound<'_, PyAny>,
    output: Vec<usize>,
    name: Option<&str>,
) -> PyResult<Array> {
    let (y, indices, device) = (read(y)?, read_indices(indices)?, device(name)?);
    let unpool = MaxUnpool::new(extents(&output)?).layout(Layout::ChannelsFirst);
    wait(py, move || Array::of(&unpool.forward(&y.upload(&device)?, &indices.upload(&device)?)?))
}

fn conv(options: &Options, groups: usize) -> PyResult<Conv> {
    let conv = Conv::over(options.window()?).groups(groups);
    Ok(conv.layout(Layout::ChannelsFirst).filter_layout(FilterLayout::Fchw))
}

/// The convolution with filters as PyTorch has them, and a bias.
#[pyfunction]
pub(crate) fn convolve(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    w: &Bound<'_, PyAny>,
    bias: Option<Bound<'_, PyAny>>,
    options: Options,
    groups: usize,
    name: Option<&str>,
) -> PyResult<Array> {
    let (x, w, device) = (read(x)?, read(w)?, device(name)?);
    let bias = bias.as_ref().map(read).transpose()?;
    let conv = conv(&options, groups)?;
    wait(py, move || {
        let bias = bias.map(|bias| bias.upload(&device)).transpose()?;
        Array::of(&conv.forward(&x.upload(&device)?, &w.upload(&device)?, bias.as_ref())?)
    })
}

/// The transposed convolution: the gradient of a convolution with respect to an input of these dimensions.
#[pyfunction]
pub(crate) fn convolve_transposed(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    w: &Bound<'_, PyAny>,
    dims: Vec<usize>,
    options: Options,
    groups: usize,
    name: Option<&str>,
) -> PyResult<Array> {
    let (x, w, device) = (read(x)?, read(w)?, device(name)?);
    let conv = conv(&options, groups)?;
    wait(py, move || {
        Array::of(&conv.backward_data(&x.upload(&device)?, &w.upload(&device)?, &dims)?)
    })
}
