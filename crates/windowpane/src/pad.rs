//! Padding in memory, also for convolutions with a padding mode.

use windowpane_geometry::{Layout, Padded, Padding, PaddingMode, Shape};
use windowpane_reference::{Scalar, memory, pad as reference};

use crate::element::{sealed::Sealed, with_element};
use crate::tensor::{count, element_slice};
use crate::{Error, Result, Tensor};

/// Padding: a larger tensor, with a number or copies around the input.
///
/// Convolution and pooling pad with zeros, or with nothing, without this operator and its memory. Use it for the other
/// modes; [`Conv::padding_mode`](crate::Conv::padding_mode) does so by itself.
///
/// ```
/// use windowpane::{Device, Pad, PaddingMode, Tensor};
///
/// let x = Tensor::from_slice(&Device::host(), &[1.0f32, 2.0, 3.0], [1, 3, 1])?;
/// let y = Pad::new([(2, 1)]).mode(PaddingMode::Reflect).forward(&x)?;
/// assert_eq!(y.to_vec::<f32>()?, [3.0, 2.0, 1.0, 2.0, 3.0, 2.0]);
/// # Ok::<(), windowpane::Error>(())
/// ```
#[doc(alias("ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d"))]
#[doc(alias("ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d"))]
#[doc(alias("CircularPad1d", "CircularPad2d", "CircularPad3d"))]
#[doc(alias("ZeroPad1d", "ZeroPad2d", "ZeroPad3d"))]
#[doc(alias("ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "mirror", "wrap", "edge"))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pad {
    padding: Padding,
    mode: PaddingMode,
    value: f64,
    layout: Layout,
}

impl Pad {
    /// Padding of the given size: `1` or `[1, 1]` for both sides, `[(1, 2), (0, 1)]` for before and after. The mode is
    /// zeros.
    pub fn new(padding: impl Into<Padding>) -> Self {
        let (mode, layout) = (PaddingMode::default(), Layout::default());
        Self { padding: padding.into(), mode, value: 0.0, layout }
    }

    /// Sets what the padding holds.
    pub fn mode(mut self, mode: PaddingMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the number that the padding holds with the mode zeros, rounded to the type of the elements.
    ///
    /// ```
    /// use windowpane::{Device, Pad, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::host(), &[1u8, 2], [1, 2, 1])?;
    /// assert_eq!(Pad::new(1).value(1000.0).forward(&x)?.to_vec::<u8>()?, [255, 1, 2, 255]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn value(mut self, value: f64) -> Self {
        self.value = value;
        self
    }

    /// Sets the layout of input and output; channels-last by default.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Pads a tensor of any type.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        forward(&self.padded(x.dims())?, self.value, x)
    }

    /// The gradient with respect to an input of dimensions `dims`: the gradient of each copy is added to that of the
    /// element that was copied.
    ///
    /// ```
    /// use windowpane::{Device, Pad, PaddingMode, Tensor};
    ///
    /// let dy = Tensor::from_slice(&Device::host(), &[1.0f32, 2.0, 3.0, 4.0], [1, 4, 1])?;
    /// let pad = Pad::new([(1, 1)]).mode(PaddingMode::Circular);
    /// assert_eq!(pad.backward(&dy, &[1, 2, 1])?.to_vec::<f32>()?, [6.0, 4.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn backward(&self, dy: &Tensor, dims: &[usize]) -> Result<Tensor> {
        let padded = self.padded(dims)?;
        let expected = dims_of(&padded, padded.output())?;
        if dy.dims() != expected {
            let found = dy.dims().to_vec();
            return Err(Error::GradientMismatch { operator: NAME, expected, found });
        }
        gradient(&padded, dy)
    }

    fn padded(&self, dims: &[usize]) -> Result<Padded> {
        let input = Shape::from_dims(dims, self.layout)?;
        Ok(Padded::new(input, self.padding, self.mode, self.layout)?)
    }
}

/// The names of the passes in error messages.
const NAME: &str = "padding";
const GRADIENT: &str = "padding's gradient";

/// The dimensions of a tensor that kernels can index.
fn dims_of(padded: &Padded, shape: Shape) -> Result<Vec<usize>> {
    let dims: Vec<usize> = shape.dims(padded.layout()).collect();
    count(&dims).map(|_| dims)
}

/// Pads a tensor of the problem's input; with the mode zeros the padding holds `value`.
pub(crate) fn forward(padded: &Padded, value: f64, x: &Tensor) -> Result<Tensor> {
    x.device().require_alive()?;
    if padded.output() == padded.input() {
        return Ok(x.clone());
    }
    let dims = dims_of(padded, padded.output())?;
    #[cfg(feature = "kernels")]
    if let (Some((_, from)), Some(target)) = (x.memory(), x.device().target()) {
        // As the reference rounds it.
        let value = with_element!(x.dtype(), T => T::from_f64(value).to_f64());
        let to = crate::tensor::memory(x.device(), target, x.dtype(), count(&dims)?)?;
        windowpane_kernels::pad(target, x.dtype(), padded, value, from, &to)
            .map_err(|reason| x.device().refuses(reason.into()))?;
        let work = format!("{NAME} of {} {:?}", x.dtype(), x.dims());
        let y = Tensor::on_device(x.device(), x.dtype(), dims, to, work);
        return Ok(y.doubted_with(&[x]));
    }
    let y = with_element!(x.dtype(), T => {
        x.device().require_memory(memory::padded::<T>(padded, false), NAME)?;
        T::into_host(windowpane_host::pad(padded, T::from_f64(value), element_slice::<T>(&x.read()?)))
    });
    Ok(Tensor::on_host(x.device(), dims, y))
}

/// The gradient with respect to the problem's input, of a tensor of its output.
pub(crate) fn gradient(padded: &Padded, dy: &Tensor) -> Result<Tensor> {
    dy.device().require_alive()?;
    if !dy.dtype().is_float() {
        return Err(Error::FloatsOnly { operator: GRADIENT, dtype: dy.dtype() });
    }
    if padded.output() == padded.input() {
        return Ok(dy.clone());
    }
    let dims = dims_of(padded, padded.input())?;
    #[cfg(feature = "kernels")]
    if let (Some((_, from)), Some(target)) = (dy.memory(), dy.device().target()) {
        crate::loop_limit::check_padding(dy.device(), padded)?;
        let to = crate::tensor::memory(dy.device(), target, dy.dtype(), count(&dims)?)?;
        windowpane_kernels::pad_gradient(target, dy.dtype(), padded, from, &to)
            .map_err(|reason| dy.device().refuses(reason.into()))?;
        let work = format!("{GRADIENT} of {} {dims:?}", dy.dtype());
        let dx = Tensor::on_device(dy.device(), dy.dtype(), dims, to, work);
        return Ok(dx.doubted_with(&[dy]));
    }
    let dx = with_element!(dy.dtype(), T => {
        dy.device().require_memory(memory::padded::<T>(padded, true), GRADIENT)?;
        T::into_host(reference::pad_gradient(padded, element_slice::<T>(&dy.read()?)))
    });
    Ok(Tensor::on_host(dy.device(), dims, dx))
}
