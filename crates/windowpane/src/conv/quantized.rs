//! Quantized convolution: 8-bit integers, multiplied and summed exactly, with a scale for each filter.

use windowpane_geometry::{
    Activation, DType, Extents, FilterLayout, Layout, Padding, PaddingMode, Precision,
    TileOverrides, Window,
};

use super::{Conv, ConvAlgorithm, ConvPlan, choice, run};
use crate::{Device, Result, Tensor};

/// Convolution of 8-bit integers, as in quantized neural networks: `activation(scale·sum + bias)`.
///
/// Input and filters are `i8`, symmetric: 0 stands for 0. The sum of their products is exact. It is multiplied by the scale
/// of its filter, then the bias of its filter is added, both in f32. The result is f32, f16, bf16, or `i8`: then the nearest
/// integer, of two the even one, from −128 to 127.
///
/// An output in `i8` has a scale as well. Divide by it before: `scale = x_scale·w_scale/y_scale` and
/// `bias = b/y_scale`. Then the activation can be none, `relu` or `leaky`, which do not depend on that scale.
///
/// ```
/// use windowpane::{Activation, Conv, DType, Device, Tensor};
///
/// let device = Device::host();
/// let x = Tensor::from_slice(&device, &[100i8, -20, 127], [1, 3, 1])?; // N, W, C
/// let w = Tensor::from_slice(&device, &[1i8, 2, 127, 127], [2, 2, 1])?; // NF, WF, C
/// let scale = Tensor::from_slice(&device, &[0.5f32, 0.25], [2])?;
/// let bias = Tensor::from_slice(&device, &[1.0f32, 0.0], [2])?;
///
/// let conv = Conv::new([2]).activation(Activation::Relu).quantized();
/// let y = conv.forward(&x, &w, &scale, Some(&bias))?;
/// assert_eq!(y.to_vec::<f32>()?, [31.0, 2540.0, 118.0, 3397.25]);
/// let y = conv.output(DType::I8).forward(&x, &w, &scale, Some(&bias))?;
/// assert_eq!(y.to_vec::<i8>()?, [31, 127, 118, 127]);
/// # Ok::<(), windowpane::Error>(())
/// ```
///
/// Sums of more than 131071 products are refused, because they may not fit in 32 bits. There are no gradients.
#[doc(alias("int8", "i8", "QLinearConv", "ConvInteger", "quantize"))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantizedConv {
    conv: Conv,
    output: DType,
}

/// The quantized convolution with the same options, and an output in f32.
impl From<Conv> for QuantizedConv {
    fn from(conv: Conv) -> Self {
        Self { conv, output: DType::F32 }
    }
}

impl QuantizedConv {
    /// A quantized convolution with kernels of the given size, one number per axis or one for every axis, and stride 1.
    pub fn new(kernel: impl Into<Extents>) -> Self {
        Conv::new(kernel).into()
    }

    /// A quantized convolution over a configured [`Window`].
    pub fn with_window(window: Window) -> Self {
        Conv::with_window(window).into()
    }

    option_methods!(conv);

    /// Sets the activation, applied after the bias; none by default.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.conv = self.conv.activation(activation);
        self
    }

    /// Sets what the input has outside its edges; zeros by default, as for [`Conv`].
    pub fn padding_mode(mut self, mode: PaddingMode) -> Self {
        self.conv = self.conv.padding_mode(mode);
        self
    }

    /// Sets the type of the output: f32, which is the default, f16, bf16 or i8.
    pub fn output(mut self, dtype: DType) -> Self {
        self.output = dtype;
        self
    }

    /// Plans [`forward`](Self::forward) without running it; `x` and `w` are the dimensions of input and filters.
    pub fn plan(&self, device: &Device, x: &[usize], w: &[usize]) -> Result<ConvPlan> {
        choice::plan_quantized(&self.conv, device, self.output, x, w)
    }

    /// Convolves `x` with the filters `w`, both in `i8`. The scale and the bias have one number in f32 per filter.
    pub fn forward(
        &self,
        x: &Tensor,
        w: &Tensor,
        scale: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        let plan = self.plan(x.device(), x.dims(), w.dims())?;
        self.forward_with_plan(&plan, x, w, scale, bias)
    }

    /// Convolves according to a plan.
    pub fn forward_with_plan(
        &self,
        plan: &ConvPlan,
        x: &Tensor,
        w: &Tensor,
        scale: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        run::quantized(&self.conv, self.output, plan, [x, w], scale, bias)
    }
}
