//! The operators, channels first, with all options explicit; the Python modules contain the defaults.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use windowpane::geometry::{Same, Shape};
use windowpane::{
    AvgPool, Conv, DType, Device, Divisor, Element, Extents, FilterLayout, FractionalMaxPool,
    Layout, LpPool, MaxPool, MaxUnpool, MinPool, ModePool, Morphology, Pad, Padding, PaddingMode,
    Rank, RankPool, Rounding, Scalar, StochasticPool, Tensor, Window,
};

use crate::array::{Array, Data, Input, arranged, read, read_indices};
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::wait::{at_once, exception, wait};

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

    fn max_pool(&self, layout: Layout) -> PyResult<MaxPool> {
        Ok(MaxPool::with_window(self.window()?).layout(layout))
    }

    fn min_pool(&self, layout: Layout) -> PyResult<MinPool> {
        Ok(MinPool::with_window(self.window()?).layout(layout))
    }

    fn stochastic_pool(&self, layout: Layout) -> PyResult<StochasticPool> {
        Ok(StochasticPool::with_window(self.window()?).layout(layout))
    }

    fn avg_pool(
        &self,
        layout: Layout,
        counts: bool,
        divisor: Option<u32>,
        truncates: bool,
    ) -> PyResult<AvgPool> {
        let divisor = match divisor {
            Some(fixed) if truncates => Divisor::Truncated(fixed),
            Some(fixed) => Divisor::Fixed(fixed),
            None if counts => Divisor::Padded,
            None => Divisor::Valid,
        };
        Ok(AvgPool::with_window(self.window()?).divisor(divisor).layout(layout))
    }

    fn conv(&self, layout: Layout, filters: Layout, groups: usize) -> PyResult<Conv> {
        let filters = match filters {
            Layout::ChannelsFirst => FilterLayout::Fchw,
            Layout::ChannelsLast => FilterLayout::Fhwc,
        };
        let conv = Conv::with_window(self.window()?).groups(groups);
        Ok(conv.layout(layout).filter_layout(filters))
    }
}

/// The windows of a fractional max pooling, with a number for each axis.
#[derive(FromPyObject)]
pub(crate) struct FractionalOptions {
    #[pyo3(item)]
    kernel: Vec<usize>,
    #[pyo3(item)]
    output: Vec<usize>,
    /// Unused where the random numbers are given.
    #[pyo3(item)]
    seed: u32,
}

impl FractionalOptions {
    fn rank(&self) -> usize {
        self.kernel.len()
    }

    fn pooling(&self, layout: Layout) -> PyResult<FractionalMaxPool> {
        let pooling = FractionalMaxPool::new(extents(&self.kernel)?, extents(&self.output)?);
        Ok(pooling.seed(self.seed).layout(layout))
    }
}

/// Sets the random numbers of a pooling, if they are given.
fn with_samples(pooling: FractionalMaxPool, samples: Option<&Tensor>) -> FractionalMaxPool {
    match samples {
        Some(samples) => pooling.samples(samples),
        None => pooling,
    }
}

/// Whether the device with this name computes with integers of this type, by its name in Python.
#[pyfunction]
pub(crate) fn supports(name: &str, dtype: &str) -> PyResult<bool> {
    let dtype = match dtype {
        "int64" => DType::I64,
        "uint32" => DType::U32,
        "int32" => DType::I32,
        "int16" => DType::I16,
        "uint16" => DType::U16,
        "int8" => DType::I8,
        "uint8" => DType::U8,
        "bool" => DType::Bool,
        _ => return Ok(false),
    };
    Ok(opened(Some(name))?.supports(dtype))
}

/// The device with this name, such as `cuda` or `vulkan:1`. Without a name it is the best device that computes with
/// elements of this type.
fn device(name: Option<&str>, dtype: DType) -> PyResult<Device> {
    let found = opened(name)?;
    Ok(if name.is_none() && !found.supports(dtype) { Device::host() } else { found })
}

/// The device with this name, or the best one.
///
/// A device remembers its plans, so each is opened once.
fn opened(name: Option<&str>) -> PyResult<Device> {
    static OPENED: Mutex<Option<HashMap<Option<String>, Device>>> = Mutex::new(None);
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = opened.get_or_insert_default();
    Ok(match opened.get(&name.map(String::from)) {
        Some(known) => known.clone(),
        None => {
            let device = open(name)?;
            opened.insert(name.map(String::from), device.clone());
            device
        }
    })
}

fn open(name: Option<&str>) -> PyResult<Device> {
    let Some(name) = name else { return Ok(Device::best()) };
    let (backend, index) = name.split_once(':').unwrap_or((name, "0"));
    let index = index.parse().map_err(|_| {
        PyValueError::new_err(format!(
            "there is no device `{name}`; choose one of windowpane.devices()"
        ))
    })?;
    Device::new(parsed(backend)?, index).map_err(exception)
}

impl Input {
    fn upload(&self, device: &Device) -> PyResult<Tensor> {
        match &self.data {
            Data::Host(tensor) => {
                let uploaded = tensor.to_device(device).and_then(|own| own.reshape(&self.dims));
                uploaded.map_err(exception)
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

    /// The extents, in the operator's layout, of an array with the batch and the channels of this one, and other axes.
    fn with_space(&self, space: &[usize]) -> Vec<usize> {
        arranged(&[&self.dims[..2], space].concat(), self.layout)
    }
}

/// Inputs of at most this many elements are computed with on the calling thread: that takes less time than waking
/// another, and so little that nobody has to interrupt it.
const SMALL: usize = 1 << 14;

/// A call of an operator.
struct Call {
    inputs: Vec<Input>,
    /// The name of the device.
    name: Option<String>,
    /// The layout of the results.
    layout: Layout,
    /// Whether the first array had no batch.
    alone: bool,
}

impl Call {
    /// Of an operator with one array.
    fn of(x: &Bound<'_, PyAny>, rank: usize, name: Option<String>) -> PyResult<Self> {
        let (x, alone) = read(x, rank)?.batched(rank)?;
        Ok(Self { layout: x.layout, inputs: vec![x], name, alone })
    }

    /// Of an operator that gets its two arrays in one layout, that of the first that is stored in only one.
    fn of_two(first: Input, second: Input, rank: usize, name: Option<String>) -> PyResult<Self> {
        let ((mut first, alone), (mut second, _)) = (first.batched(rank)?, second.batched(rank)?);
        let layout = first.stored.or(second.stored).unwrap_or(first.layout);
        (first.layout, second.layout) = (layout, layout);
        Ok(Self { inputs: vec![first, second], name, layout, alone })
    }

    /// The same for a pooling. Without a name, arrays in the memory of the CPU are pooled there: to copy them to another
    /// device and back takes longer.
    fn pooling(self) -> Self {
        let here = self.inputs.iter().all(|input| matches!(input.data, Data::Host(_)));
        Self { name: self.name.or_else(|| here.then(|| "host".into())), ..self }
    }

    /// Adds the random numbers of a fractional pooling after its other arrays, if they are given.
    fn with_samples(mut self, samples: Option<&Bound<'_, PyAny>>, rank: usize) -> PyResult<Self> {
        self.inputs.extend(samples.map(|samples| read(samples, rank)).transpose()?);
        Ok(self)
    }

    /// Runs an operator where its inputs are if that is a CUDA device, else on the named device or the best one.
    fn run(
        self,
        py: Python<'_>,
        work: impl FnOnce(&[Tensor]) -> windowpane::Result<Vec<Made>> + Send + 'static,
    ) -> PyResult<Vec<Array>> {
        let Self { inputs, name, layout, alone } = self;
        #[cfg(feature = "cuda")]
        if let Some(gpu) = cuda::place(&inputs, name.as_deref())? {
            return gpu.compute(py, inputs, layout, alone, work);
        }
        #[cfg(not(feature = "cuda"))]
        let _ = layout;
        let elements = |input: &Input| input.dims.iter().product::<usize>();
        let is_small = inputs.iter().map(elements).sum::<usize>() <= SMALL;
        let here = is_small && name.as_deref() == Some("host");
        let work = move || {
            let device = device(name.as_deref(), inputs[0].dtype)?;
            let tensors: Vec<_> =
                inputs.iter().map(|input| input.upload(&device)).collect::<PyResult<_>>()?;
            let made = work(&tensors).map_err(exception)?;
            let arrays = made.iter().map(|made| match made {
                // Reading them waits for the work.
                Made::Values(tensor) | Made::Doubtful(tensor) => {
                    Array::of(&apart(tensor, &tensors)?, alone)
                }
                Made::Indices(tensor) => Array::indices_of(tensor, alone),
            });
            arrays.collect::<windowpane::Result<_>>().map_err(exception)
        };
        if here { at_once(py, work) } else { wait(py, work) }
    }

    /// Runs an operator with one result.
    fn run_one(
        self,
        py: Python<'_>,
        work: impl FnOnce(&[Tensor]) -> windowpane::Result<Tensor> + Send + 'static,
    ) -> PyResult<Array> {
        self.run_made(py, move |inputs| work(inputs).map(Made::Values))
    }

    /// The same with the kind of the result.
    fn run_made(
        self,
        py: Python<'_>,
        work: impl FnOnce(&[Tensor]) -> windowpane::Result<Made> + Send + 'static,
    ) -> PyResult<Array> {
        self.run(py, move |inputs| Ok(vec![work(inputs)?])).map(|mut made| made.remove(0))
    }

    /// Runs a pooling that makes values and, if it was asked for them, their positions in the planes of the input.
    fn run_indexed(
        self,
        py: Python<'_>,
        work: impl FnOnce(&[Tensor]) -> windowpane::Result<(Tensor, Option<Tensor>)> + Send + 'static,
    ) -> PyResult<(Array, Option<Array>)> {
        let mut made = self.run(py, move |inputs| {
            let (y, indices) = work(inputs)?;
            Ok([Made::Values(y)].into_iter().chain(indices.map(Made::Indices)).collect())
        })?;
        let y = made.remove(0);
        Ok((y, made.pop()))
    }
}

/// A result in memory of its own: one that has the elements of an input is in the caller's.
fn apart(made: &Tensor, inputs: &[Tensor]) -> windowpane::Result<Tensor> {
    let start = |tensor: &Tensor| tensor.as_bytes().map(<[u8]>::as_ptr);
    match made.as_bytes() {
        Some(bytes) if inputs.iter().any(|input| start(input) == Some(bytes.as_ptr())) => {
            Tensor::from_bytes(made.device(), made.dtype(), bytes, made.dims())
        }
        _ => Ok(made.clone()),
    }
}

/// The input and the filters of a convolution, each in the layout that it is stored in; where that is both, in the
/// other's. And whether the input had no batch.
fn read_convolved(
    x: &Bound<'_, PyAny>,
    w: &Bound<'_, PyAny>,
    rank: usize,
) -> PyResult<(Input, Input, bool)> {
    let ((mut x, alone), mut w) = (read(x, rank)?.batched(rank)?, read(w, rank)?);
    w.same_type_as(&x, "weight")?;
    x.layout = x.stored.or(w.stored).unwrap_or(x.layout);
    w.layout = w.stored.unwrap_or(x.layout);
    Ok((x, w, alone))
}

/// The number of filters.
fn filters(w: &Input) -> usize {
    w.dims.first().copied().unwrap_or(0)
}

/// An array with one number for each channel of the output.
fn read_channels(
    array: &Bound<'_, PyAny>,
    rank: usize,
    name: &str,
    channels: usize,
) -> PyResult<Input> {
    let found = read(array, rank)?;
    if found.dims == [channels] {
        return Ok(found);
    }
    Err(PyValueError::new_err(format!(
        "the {name} has the shape {:?}; it needs [{channels}], a number for each channel of the output",
        found.dims
    )))
}

/// The bias of a convolution, of the same type as its input, if there is one.
fn read_bias(
    bias: Option<Bound<'_, PyAny>>,
    x: &Input,
    rank: usize,
    channels: usize,
) -> PyResult<Option<Input>> {
    let Some(bias) = bias else { return Ok(None) };
    let bias = read_channels(&bias, rank, "bias", channels)?;
    bias.same_type_as(x, "bias")?;
    Ok(Some(bias))
}

/// The result of a pooling without indices.
fn without_indices(y: Tensor) -> (Tensor, Option<Tensor>) {
    (y, None)
}

/// The result of a pooling with indices.
fn with_indices((y, indices): (Tensor, Tensor)) -> (Tensor, Option<Tensor>) {
    (y, Some(indices))
}

/// What an operator made.
pub(crate) enum Made {
    Values(Tensor),
    /// Values whose work reports bad input only to whoever waits for it.
    Doubtful(Tensor),
    /// Positions, which leave the CPU's memory in 64 bits and that of a GPU in 32.
    Indices(Tensor),
}

#[cfg(feature = "cuda")]
impl Made {
    pub(crate) fn doubtful(&self) -> Option<&Tensor> {
        match self {
            Self::Doubtful(tensor) => Some(tensor),
            Self::Values(_) | Self::Indices(_) => None,
        }
    }
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
    let call = Call::of(x, options.rank(), name)?.pooling();
    let (highest, lowest) = (options.max_pool(call.layout)?, options.min_pool(call.layout)?);
    call.run_indexed(py, move |inputs| {
        let x = &inputs[0];
        match (minimum, indices) {
            (false, false) => highest.forward(x).map(without_indices),
            (true, false) => lowest.forward(x).map(without_indices),
            (false, true) => highest.forward_with_indices(x).map(with_indices),
            (true, true) => lowest.forward_with_indices(x).map(with_indices),
        }
    })
}

/// The gradient of [`extremum_pool`] with respect to an input with axes of these extents, and that of [`stochastic_pool`] if
/// the indices were `drawn`. Both extrema have the same one.
#[pyfunction]
pub(crate) fn extremum_pool_backward(
    py: Python<'_>,
    dy: &Bound<'_, PyAny>,
    indices: &Bound<'_, PyAny>,
    size: Vec<usize>,
    options: Options,
    drawn: bool,
    name: Option<String>,
) -> PyResult<Array> {
    let rank = options.rank();
    let (dy, indices) = (read(dy, rank)?, read_indices(indices, rank)?);
    let call = Call::of_two(dy, indices, rank, name)?.pooling();
    let (extremum, draw) = (options.max_pool(call.layout)?, options.stochastic_pool(call.layout)?);
    let dims = call.inputs[0].with_space(&size);
    call.run_one(py, move |inputs| match drawn {
        false => extremum.backward(&inputs[0], &inputs[1], &dims),
        true => draw.backward(&inputs[0], &inputs[1], &dims),
    })
}

/// One number of each window, drawn by a seed, and with `indices` its position in the plane of the input.
#[pyfunction]
pub(crate) fn stochastic_pool(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    seed: u32,
    options: Options,
    indices: bool,
    name: Option<String>,
) -> PyResult<(Array, Option<Array>)> {
    let call = Call::of(x, options.rank(), name)?.pooling();
    let pooling = options.stochastic_pool(call.layout)?.seed(seed);
    call.run_indexed(py, move |inputs| match indices {
        false => pooling.forward(&inputs[0]).map(without_indices),
        true => pooling.forward_with_indices(&inputs[0]).map(with_indices),
    })
}

/// The mean of what [`stochastic_pool`] draws with all seeds. Its gradient is computed in Python, from sums.
#[pyfunction]
pub(crate) fn stochastic_mean(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    options: Options,
    name: Option<String>,
) -> PyResult<Array> {
    let call = Call::of(x, options.rank(), name)?.pooling();
    let pooling = options.stochastic_pool(call.layout)?;
    call.run_one(py, move |inputs| pooling.mean(&inputs[0]))
}

/// The maxima of windows at random positions, and with `indices` their positions in the planes of the input. The random
/// numbers are f32: one for each axis, in the order of the axes, of each channel of each sample.
#[pyfunction]
pub(crate) fn fractional_max_pool(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    samples: Option<Bound<'_, PyAny>>,
    options: FractionalOptions,
    indices: bool,
    name: Option<String>,
) -> PyResult<(Array, Option<Array>)> {
    let rank = options.rank();
    let call = Call::of(x, rank, name)?.with_samples(samples.as_ref(), rank)?.pooling();
    let pooling = options.pooling(call.layout)?;
    call.run_indexed(py, move |inputs| {
        let pooling = with_samples(pooling, inputs.get(1));
        match indices {
            false => pooling.forward(&inputs[0]).map(without_indices),
            true => pooling.forward_with_indices(&inputs[0]).map(with_indices),
        }
    })
}

/// The gradient of [`fractional_max_pool`] with respect to an input with axes of these extents.
#[pyfunction]
pub(crate) fn fractional_max_pool_backward(
    py: Python<'_>,
    dy: &Bound<'_, PyAny>,
    indices: &Bound<'_, PyAny>,
    size: Vec<usize>,
    samples: Option<Bound<'_, PyAny>>,
    options: FractionalOptions,
    name: Option<String>,
) -> PyResult<Array> {
    let rank = options.rank();
    let (dy, indices) = (read(dy, rank)?, read_indices(indices, rank)?);
    let call =
        Call::of_two(dy, indices, rank, name)?.with_samples(samples.as_ref(), rank)?.pooling();
    let (pooling, dims) = (options.pooling(call.layout)?, call.inputs[0].with_space(&size));
    call.run_one(py, move |inputs| {
        with_samples(pooling, inputs.get(2)).backward(&inputs[0], &inputs[1], &dims)
    })
}

/// The averages, with the padding if it `counts`, or with another divisor, which quotients of integers may be cut off by.
#[pyfunction]
#[pyo3(signature = (x, options, counts, divisor, name, truncates=false))]
pub(crate) fn avg_pool(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    options: Options,
    counts: bool,
    divisor: Option<u32>,
    name: Option<String>,
    truncates: bool,
) -> PyResult<Array> {
    let call = Call::of(x, options.rank(), name)?.pooling();
    let pooling = options.avg_pool(call.layout, counts, divisor, truncates)?;
    call.run_one(py, move |inputs| pooling.forward(&inputs[0]))
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
    let call = Call::of(dy, options.rank(), name)?.pooling();
    let pooling = options.avg_pool(call.layout, counts, divisor, false)?;
    let dims = call.inputs[0].with_space(&size);
    call.run_one(py, move |inputs| pooling.backward(&inputs[0], &dims))
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
    let call = Call::of(x, options.rank(), name)?.pooling();
    let pooling = LpPool::with_window(p, options.window()?).layout(call.layout);
    call.run_one(py, move |inputs| pooling.forward(&inputs[0]))
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
    let call = Call::of_two(read(dy, rank)?, read(x, rank)?, rank, name)?.pooling();
    call.inputs[0].same_type_as(&call.inputs[1], "gradient")?;
    let pooling = LpPool::with_window(p, options.window()?).layout(call.layout);
    call.run_one(py, move |inputs| pooling.backward(&inputs[0], &inputs[1]))
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
    let call = Call::of(x, options.rank(), name)?;
    let rank = rank.map_or(Rank::MEDIAN, Rank::Nth);
    let pooling = RankPool::with_window(rank, options.window()?).layout(call.layout);
    call.run_one(py, move |inputs| pooling.forward(&inputs[0]))
}

/// The most frequent number of each window; the smallest one if several are equally frequent.
#[pyfunction]
pub(crate) fn mode_pool(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    options: Options,
    name: Option<String>,
) -> PyResult<Array> {
    let call = Call::of(x, options.rank(), name)?.pooling();
    let pooling = ModePool::with_window(options.window()?).layout(call.layout);
    call.run_one(py, move |inputs| pooling.forward(&inputs[0]))
}

/// The minimum, or the maximum, of what a window reads where a footprint is true, for a window around each element. Elements
/// past the edges do not count.
#[pyfunction]
pub(crate) fn extremum_under(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    kernel: Vec<usize>,
    mut footprint: Vec<bool>,
    minimum: bool,
    name: Option<String>,
) -> PyResult<Array> {
    let call = Call::of(x, kernel.len(), name)?.pooling();
    let mut origin = vec![0; kernel.len()];
    if !minimum {
        // A dilation's window is the mirror image, and an even one has no middle.
        footprint.reverse();
        origin = kernel.iter().map(|extent| (*extent % 2) as isize - 1).collect();
    }
    let shape = Morphology::with_footprint(extents(&kernel)?, &footprint).map_err(exception)?;
    let shape = shape.origin(origin).layout(call.layout);
    call.run_one(py, move |inputs| match minimum {
        true => shape.erosion(&inputs[0]),
        false => shape.dilation(&inputs[0]),
    })
}

/// The array with what a window around each element reads past the edges. The padding of the options is what it reads
/// before an element; `value` is what is there with the mode `constant`.
#[pyfunction]
pub(crate) fn pad(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    options: Options,
    mode: &str,
    value: f64,
    name: Option<String>,
) -> PyResult<Array> {
    let mode = match mode {
        "reflect" => PaddingMode::Symmetric,
        "mirror" => PaddingMode::Reflect,
        "nearest" => PaddingMode::Replicate,
        "wrap" => PaddingMode::Circular,
        "constant" => PaddingMode::Zeros,
        other => {
            return Err(PyValueError::new_err(format!(
                "there is no mode `{other}`; use reflect, mirror, nearest, wrap or constant"
            )));
        }
    };
    let call = Call::of(x, options.rank(), name)?.pooling();
    let sides = options.kernel.iter().zip(&options.padding);
    let after: Vec<_> = sides.map(|(size, before)| size.saturating_sub(before + 1)).collect();
    let padding = Padding::Explicit { before: extents(&options.padding)?, after: extents(&after)? };
    let pad = Pad::new(padding).mode(mode).value(value).layout(call.layout);
    call.run_one(py, move |inputs| pad.forward(&inputs[0]))
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
    let (y, indices) = (read(y, rank)?, read_indices(indices, rank)?);
    let call = Call::of_two(y, indices, rank, name)?.pooling();
    let unpool = MaxUnpool::new(extents(&output)?).layout(call.layout);
    call.run_made(py, move |inputs| unpool.forward(&inputs[0], &inputs[1]).map(Made::Doubtful))
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
    let (dx, indices) = (read(dx, rank)?, read_indices(indices, rank)?);
    let call = Call::of_two(dx, indices, rank, name)?.pooling();
    let unpool = MaxUnpool::new(extents(&call.inputs[0].dims[2..])?).layout(call.layout);
    call.run_one(py, move |inputs| unpool.backward(&inputs[0], &inputs[1]))
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
    let rank = options.rank();
    let (x, w, alone) = read_convolved(x, w, rank)?;
    let layout = x.layout;
    let bias = read_bias(bias, &x, rank, filters(&w))?;
    let conv = options.conv(layout, w.layout, groups)?;
    let inputs = [x, w].into_iter().chain(bias).collect();
    let call = Call { inputs, name, layout, alone };
    call.run_one(py, move |inputs| conv.forward(&inputs[0], &inputs[1], inputs.get(2)))
}

/// The convolution of 8-bit integers with filters in PyTorch's layout: `activation(scale·sum + bias)`, with a scale for each
/// filter, in elements of the type `output`.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "they are the arguments of a Python function")]
pub(crate) fn quantized_convolve(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    w: &Bound<'_, PyAny>,
    scale: &Bound<'_, PyAny>,
    bias: Option<Bound<'_, PyAny>>,
    options: Options,
    groups: usize,
    activation: &str,
    output: &str,
    name: Option<String>,
) -> PyResult<Array> {
    let rank = options.rank();
    let (x, w, alone) = read_convolved(x, w, rank)?;
    let layout = x.layout;
    let scale = read_channels(scale, rank, "scale", filters(&w))?;
    let bias = bias.map(|bias| read_channels(&bias, rank, "bias", filters(&w))).transpose()?;
    let conv = options.conv(layout, w.layout, groups)?.activation(parsed(activation)?);
    let conv = conv.quantized().output(parsed(output)?);
    let inputs = [x, w, scale].into_iter().chain(bias).collect();
    let call = Call { inputs, name, layout, alone };
    call.run_one(py, move |inputs| conv.forward(&inputs[0], &inputs[1], &inputs[2], inputs.get(3)))
}

/// What a text says, or a `ValueError` with the reason why it says nothing.
fn parsed<T: FromStr<Err: std::fmt::Display>>(text: &str) -> PyResult<T> {
    text.parse().map_err(|error: T::Err| PyValueError::new_err(error.to_string()))
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
    let rank = options.rank();
    let (x, w, alone) = read_convolved(x, w, rank)?;
    let layout = x.layout;
    let each = w.dims.get(1).copied().unwrap_or(0);
    let channels =
        each.checked_mul(groups).ok_or_else(|| PyValueError::new_err("too many groups"))?;
    let bias = read_bias(bias, &x, rank, channels)?;
    let bias = match bias.map(|bias| bias.data) {
        None => None,
        Some(Data::Host(bias)) => Some(bias),
        #[cfg(feature = "cuda")]
        Some(Data::Shared(_)) => {
            return Err(PyValueError::new_err(
                "on a CUDA device the bias of a transposed convolution is added by your library",
            ));
        }
    };
    let conv = options.conv(layout, w.layout, groups)?;
    let dims = arranged(&[vec![x.dims[0], channels], size].concat(), layout);
    let call = Call { inputs: vec![x, w], name, layout, alone };
    call.run_one(py, move |inputs| {
        let y = conv.backward_data(&inputs[0], &inputs[1], &dims)?;
        match bias {
            None => Ok(y),
            Some(bias) => match y.dtype() {
                DType::F64 => with_bias::<f64>(&y, &bias),
                DType::F32 => with_bias::<f32>(&y, &bias),
                DType::F16 => with_bias::<half::f16>(&y, &bias),
                _ => with_bias::<half::bf16>(&y, &bias),
            },
        }
    })
}

/// The gradient of [`convolve`] with respect to its filters.
#[pyfunction]
pub(crate) fn convolve_backward_weight(
    py: Python<'_>,
    dy: &Bound<'_, PyAny>,
    x: &Bound<'_, PyAny>,
    options: Options,
    groups: usize,
    name: Option<String>,
) -> PyResult<Array> {
    let rank = options.rank();
    let call = Call::of_two(read(dy, rank)?, read(x, rank)?, rank, name)?;
    call.inputs[0].same_type_as(&call.inputs[1], "gradient")?;
    let conv = options.conv(call.layout, call.layout, groups)?;
    // Filters have no batch to leave out.
    let call = Call { alone: false, ..call };
    call.run_one(py, move |inputs| conv.backward_weight(&inputs[0], &inputs[1]))
}

/// A channels-first tensor with a number added to each channel, on the host.
fn with_bias<T: Element + Scalar>(y: &Tensor, bias: &Tensor) -> windowpane::Result<Tensor> {
    let bias = bias.to_vec::<T>()?;
    let plane = Shape::from_dims(y.dims(), Layout::ChannelsFirst)?.plane();
    let mut elements = y.to_vec::<T>()?;
    for (plane, bias) in elements.chunks_mut(plane).zip(bias.iter().cycle()) {
        for element in plane {
            *element = T::from_f64(element.to_f64() + bias.to_f64());
        }
    }
    Tensor::from_vec(&Device::host(), elements, y.dims())
}
