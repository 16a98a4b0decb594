//! Fractional max pooling: maxima of windows at pseudo-random positions.

use windowpane_geometry::{DType, Extents, Fractional, IndexBase, Layout, Shape};
#[cfg(feature = "kernels")]
use windowpane_kernels::pool::{Tensors, launch_fractional};
use windowpane_reference::memory;
use windowpane_reference::pool::Algorithm;
use windowpane_reference::pool::backward::max_backward;
use windowpane_reference::pool::fractional::max_with_indices;

use super::run;
use crate::element::{sealed::Sealed, with_float};
use crate::tensor::element_slice;
use crate::{Device, Error, Result, Tensor};

/// Max pooling with windows of one size at pseudo-random positions, so that the output may have any size that is
/// smaller than the input.
///
/// The distances of neighbouring windows differ by at most one on an axis; the first window is at the start of the input
/// and the last one at its end. There is one random number from 0 to 1 for each axis of each channel of each sample. They
/// follow from [`seed`](Self::seed), on every device in the same way, or are [given](Self::samples).
///
/// ```
/// use windowpane::{Device, FractionalMaxPool, Tensor};
///
/// let x = Tensor::from_slice(&Device::host(), &[5.0f32, 1.0, 2.0, 3.0, 4.0], [1, 5, 1])?;
/// let pool = FractionalMaxPool::new(2, 3).seed(7);
/// let (y, winners) = pool.forward_with_indices(&x)?;
/// assert_eq!(y.dims(), [1, 3, 1]);
/// assert_eq!(y.to_vec::<f32>()?[2], 4.0); // the last window is at the end
/// let dx = pool.backward(&y, &winners, x.dims())?;
/// assert_eq!(dx.to_vec::<f32>()?[4], 4.0);
/// # Ok::<(), windowpane::Error>(())
/// ```
#[doc(alias("FractionalMaxPool2d", "fractional_max_pool2d"))]
#[doc(alias("FractionalMaxPool3d", "fractional_max_pool3d"))]
#[derive(Clone, Debug)]
pub struct FractionalMaxPool {
    kernel: Extents,
    size: Size,
    draws: Draws,
    layout: Layout,
    base: IndexBase,
}

/// The size of the output.
#[derive(Clone, Copy, Debug)]
enum Size {
    Is(Extents),
    /// Its part of the input, rounded down.
    Ratio(f64),
}

/// Where the random numbers come from.
#[derive(Clone, Debug)]
enum Draws {
    Seed(u32),
    Samples(Tensor),
}

impl FractionalMaxPool {
    fn with(kernel: Extents, size: Size) -> Self {
        let (layout, base) = (Layout::default(), IndexBase::default());
        Self { kernel, size, draws: Draws::Seed(0), layout, base }
    }

    /// Pools windows of this size to an output of the given size: one number per axis, or one for every axis.
    pub fn new(kernel: impl Into<Extents>, output: impl Into<Extents>) -> Self {
        Self::with(kernel.into(), Size::Is(output.into()))
    }

    /// Pools windows of this size to an output that is `ratio` times as long as the input on every axis, rounded down.
    pub fn with_ratio(kernel: impl Into<Extents>, ratio: f64) -> Self {
        Self::with(kernel.into(), Size::Ratio(ratio))
    }

    /// Sets the seed of the random numbers; 0 by default.
    pub fn seed(mut self, seed: u32) -> Self {
        self.draws = Draws::Seed(seed);
        self
    }

    /// Gives the random numbers: `f32` from 0 to 1 (1 excluded), with the dimensions samples × channels × axes.
    pub fn samples(mut self, samples: &Tensor) -> Self {
        self.draws = Draws::Samples(samples.clone());
        self
    }

    /// Sets the layout of input and output; channels-last by default.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Sets what an index counts.
    pub fn index_base(mut self, base: IndexBase) -> Self {
        self.base = base;
        self
    }

    /// Computes the maximum of each window.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.compute(x, false)?.0)
    }

    /// Computes the maximum of each window and its index in the input, for [`backward`](Self::backward).
    #[doc(alias("return_indices"))]
    pub fn forward_with_indices(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let (y, indices) = self.compute(x, true)?;
        Ok((y, indices.expect("they were asked for")))
    }

    /// The gradient with respect to an input of dimensions `dims`: each element of `dy` goes to the index in `winners`, which
    /// [`forward_with_indices`](Self::forward_with_indices) of the same operator returned.
    pub fn backward(&self, dy: &Tensor, winners: &Tensor, dims: &[usize]) -> Result<Tensor> {
        let problem = self.problem(GRADIENT, dy.device(), dy.dtype(), dims)?;
        let (pooling, dtype) = (problem.pooling(), dy.dtype());
        let expected = run::dims(pooling, pooling.output());
        if dy.dims() != expected {
            let found = dy.dims().to_vec();
            return Err(Error::GradientMismatch { operator: NAME, expected, found });
        }
        check_operand(
            GRADIENT,
            "the tensor of indices",
            winners,
            dy.device(),
            DType::I32,
            expected,
        )?;
        #[cfg(feature = "kernels")]
        if let (Some((_, gradient)), Some((_, indices)), Some(target)) =
            (dy.memory(), winners.memory(), dy.device().target())
        {
            crate::loop_limit::check_fractional(dy.device(), &problem)?;
            let to = crate::tensor::memory(dy.device(), target, dtype, pooling.input().elements())?;
            let tensors = Tensors { indices: Some(indices), ..Tensors::new(gradient, &to) };
            let (base, draws) = (self.base, self.draws.of_kernel());
            launch_fractional(target, &problem, base, dtype, draws, true, tensors)
                .map_err(|reason| dy.device().refuses(reason))?;
            let dx = self.made(GRADIENT, &[dy, winners], dims.to_vec(), dtype, to);
            return Ok(dx);
        }
        let dx = with_float!(dtype, T => {
            let gradient = memory::Pooled::MaxBackward;
            let bytes = memory::pooling::<T>(gradient, Algorithm::Direct, pooling);
            dy.device().require_memory(bytes, GRADIENT)?;
            let (dy, winners) = (dy.read()?, winners.read()?);
            let (dy, winners) = (element_slice::<T>(&dy), element_slice::<i32>(&winners));
            T::into_host(max_backward(pooling, self.base, dy, winners)?)
        });
        Ok(Tensor::on_host(dy.device(), dims.to_vec(), dx))
    }

    fn compute(&self, x: &Tensor, with_indices: bool) -> Result<(Tensor, Option<Tensor>)> {
        let problem = self.problem(NAME, x.device(), x.dtype(), x.dims())?;
        let (pooling, dtype) = (problem.pooling(), x.dtype());
        let dims = run::dims(pooling, pooling.output());
        #[cfg(feature = "kernels")]
        if let (Some((_, from)), Some(target)) = (x.memory(), x.device().target()) {
            crate::loop_limit::check_fractional(x.device(), &problem)?;
            let room = |dtype| {
                crate::tensor::memory(x.device(), target, dtype, pooling.output().elements())
            };
            let (y, indices) = (room(dtype)?, with_indices.then(|| room(DType::I32)).transpose()?);
            let tensors = Tensors { indices: indices.as_ref(), ..Tensors::new(from, &y) };
            let (base, draws) = (self.base, self.draws.of_kernel());
            launch_fractional(target, &problem, base, dtype, draws, false, tensors)
                .map_err(|reason| x.device().refuses(reason))?;
            let made = |dtype, handle| self.made(NAME, &[x], dims.clone(), dtype, handle);
            return Ok((made(dtype, y), indices.map(|indices| made(DType::I32, indices))));
        }
        let (y, indices) = with_float!(dtype, T => {
            x.device().require_memory(memory::fractional::<T>(&problem), NAME)?;
            let samples = match &self.draws {
                Draws::Seed(seed) => problem.samples(*seed).collect(),
                Draws::Samples(samples) => samples.to_vec::<f32>()?,
            };
            let x = x.read()?;
            let (y, indices) =
                max_with_indices(&problem, &samples, self.base, element_slice::<T>(&x));
            (T::into_host(y), indices)
        });
        let y = Tensor::on_host(x.device(), dims.clone(), y);
        let indices =
            with_indices.then(|| Tensor::on_host(x.device(), dims, i32::into_host(indices)));
        Ok((y, indices))
    }

    /// The problem for an input of these dimensions, after all that an operator checks before it runs.
    fn problem(
        &self,
        operator: &'static str,
        device: &Device,
        dtype: DType,
        dims: &[usize],
    ) -> Result<Fractional> {
        device.require_alive()?;
        if !dtype.is_float() {
            return Err(Error::FloatsOnly { operator, dtype });
        }
        let input = Shape::from_dims(dims, self.layout)?;
        let output = match self.size {
            Size::Is(output) => output,
            Size::Ratio(ratio) => {
                let part = |extent: &usize| (*extent as f64 * ratio) as usize;
                let parts: Vec<usize> = input.space().as_slice().iter().map(part).collect();
                Extents::try_from(&*parts)?
            }
        };
        let problem = Fractional::new(input, self.kernel, output, self.layout)?;
        problem.pooling().check_indices(self.base)?;
        if let Draws::Samples(samples) = &self.draws {
            let expected = vec![input.batch(), input.channels(), input.space().rank()];
            check_operand(
                operator,
                "the tensor of samples",
                samples,
                device,
                DType::F32,
                expected,
            )?;
        }
        Ok(problem)
    }

    /// A tensor in device memory that was computed from others, of which the first has the type and the dimensions of the
    /// work, and from what this operator has.
    #[cfg(feature = "kernels")]
    fn made(
        &self,
        work: &str,
        from: &[&Tensor],
        dims: Vec<usize>,
        dtype: DType,
        handle: cubecl::server::Handle,
    ) -> Tensor {
        let first = from[0];
        let work = format!("{work} of {} {:?}", first.dtype(), first.dims());
        let made = Tensor::on_device(first.device(), dtype, dims, handle, work).doubted_with(from);
        match &self.draws {
            Draws::Seed(_) => made,
            Draws::Samples(samples) => made.doubted_with(&[samples]),
        }
    }
}

impl Draws {
    #[cfg(feature = "kernels")]
    fn of_kernel(&self) -> windowpane_kernels::pool::fractional::Draws<'_> {
        use windowpane_kernels::pool::fractional::Draws;
        match self {
            Self::Seed(seed) => Draws::Seed(*seed),
            // A tensor without elements has no memory, and a problem without samples reads none.
            Self::Samples(samples) => match samples.memory() {
                Some((_, handle)) => Draws::Samples(handle),
                None => Draws::Seed(0),
            },
        }
    }
}

/// The names of the passes in error messages.
const NAME: &str = "fractional max pooling";
const GRADIENT: &str = "fractional max pooling's gradient";

/// Refuses a tensor on another device, of another type or with other dimensions.
fn check_operand(
    operator: &'static str,
    operand: &'static str,
    tensor: &Tensor,
    device: &Device,
    dtype: DType,
    expected: Vec<usize>,
) -> Result<()> {
    if tensor.device() != device {
        let found = tensor.device().clone();
        return Err(Error::DeviceMismatch { expected: device.clone(), found });
    }
    if tensor.dtype() != dtype {
        return Err(Error::DTypeMismatch { asked: dtype, found: tensor.dtype() });
    }
    if tensor.dims() != expected {
        let found = tensor.dims().to_vec();
        return Err(Error::OperandMismatch { operator, operand, expected, found });
    }
    Ok(())
}
