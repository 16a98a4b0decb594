//! Transposed convolution: the data gradient of a convolution as an operator of its own.

use windowpane_geometry::{
    Activation, DType, Extents, Filter, FilterLayout, Layout, Padding, PaddingMode, Precision,
    Shape, TileOverrides, Window,
};

use super::{Conv, ConvAlgorithm, ConvPlan};
use crate::{Device, Error, Result, Tensor};

/// Transposed convolution, which some call deconvolution: each element of the input adds a multiple of the filters to a
/// window of the output.
///
/// It is the data gradient of a convolution with the same options, which maps the output to the input, and so takes the
/// filters of that convolution: as many as the *input* has channels, each over the channels of the *output*. These are
/// PyTorch's weights of `ConvTranspose2d` with [`FilterLayout::Fchw`].
///
/// On each axis, `L` input coordinates give `(L−1)·s + d·(k−1) + 1 − before − after + output padding` of the output, or
/// `L·s` with [`Same`](crate::Same) padding.
///
/// ```
/// use windowpane::{ConvTranspose, Device, Tensor};
///
/// let device = Device::host();
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0], [1, 2, 1])?; // N, W, C
/// let w = Tensor::from_slice(&device, &[1.0f32, 10.0, 100.0], [1, 3, 1])?; // C, WF, output's channels
/// let y = ConvTranspose::new(3).stride(2).forward(&x, &w, None)?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 10.0, 102.0, 20.0, 200.0]);
/// # Ok::<(), windowpane::Error>(())
/// ```
///
/// A bias or an activation is applied to sums that were rounded to the tensor's type, and rounded again: it takes one
/// more pass over the output. The gradients are those before the activation.
#[doc(alias("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"))]
#[doc(alias("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"))]
#[doc(alias("deconvolution", "Deconv", "upconvolution"))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvTranspose {
    conv: Conv,
    activation: Activation,
    output_padding: Extents,
}

/// The transposed convolution with the same options. A padding mode other than zeros is refused when it is used.
impl From<Conv> for ConvTranspose {
    fn from(conv: Conv) -> Self {
        let activation = conv.activation;
        let conv = conv.activation(Activation::None);
        Self { conv, activation, output_padding: 0.into() }
    }
}

impl ConvTranspose {
    /// A transposed convolution with kernels of the given size, one number per axis or one for every axis, and
    /// stride 1.
    pub fn new(kernel: impl Into<Extents>) -> Self {
        Conv::new(kernel).into()
    }

    /// A transposed convolution over a configured [`Window`].
    pub fn with_window(window: Window) -> Self {
        Conv::with_window(window).into()
    }

    option_methods!(conv);

    /// Sets how much longer the output is than the shortest one that gives the input's size; less than the stride, and 0
    /// by default. Only the bias reaches what no window covers.
    pub fn output_padding(mut self, padding: impl Into<Extents>) -> Self {
        self.output_padding = padding.into();
        self
    }

    /// Sets the activation, applied after the bias; none by default.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// The convolution that this transposes. Its data gradient is this forward pass, and its forward pass is this data
    /// gradient.
    pub fn convolution(&self) -> Conv {
        self.conv
    }

    /// The dimensions of the output for an input and filters of these dimensions.
    ///
    /// ```
    /// use windowpane::ConvTranspose;
    ///
    /// let up = ConvTranspose::new(4).stride(2).padding(1);
    /// assert_eq!(up.output_dims(&[8, 14, 14, 64], &[64, 4, 4, 32])?, [8, 28, 28, 32]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn output_dims(&self, x: &[usize], w: &[usize]) -> Result<Vec<usize>> {
        let Conv { window, groups, layout, filter_layout, .. } = self.convolution_of_zeros()?;
        let (input, filter) = (Shape::from_dims(x, layout)?, Filter::from_dims(w, filter_layout)?);
        let space = window.transposed(input.space(), self.output_padding)?;
        let channels = filter.channels().saturating_mul(groups.max(1));
        Ok(Shape::new(input.batch(), channels, space)?.dims(layout).collect())
    }

    /// The convolution, which pads with zeros: it reads other padding from where a transposed one has none.
    fn convolution_of_zeros(&self) -> Result<Conv> {
        match self.conv.padding_mode {
            PaddingMode::Zeros => Ok(self.conv),
            mode => Err(Error::PaddingMode { mode }),
        }
    }

    /// Plans the sums of [`forward`](Self::forward) without running it: the plan is that of the data gradient of the
    /// [`convolution`](Self::convolution). `x` and `w` are the dimensions of input and filters.
    pub fn plan(
        &self,
        device: &Device,
        dtype: DType,
        x: &[usize],
        w: &[usize],
    ) -> Result<ConvPlan> {
        self.conv.plan_backward_data(device, dtype, &self.output_dims(x, w)?, w)
    }

    /// Convolves `x` with the filters `w`; a bias has one number for each channel of the output.
    pub fn forward(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let plan = self.plan(x.device(), x.dtype(), x.dims(), w.dims())?;
        self.forward_with_plan(&plan, x, w, bias)
    }

    /// Convolves according to a plan.
    pub fn forward_with_plan(
        &self,
        plan: &ConvPlan,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        let y = self.conv.backward_data_with_plan(plan, x, w)?;
        if bias.is_none() && self.activation == Activation::None {
            return Ok(y);
        }
        // A convolution whose filters are one tap of 1 for each channel adds nothing but its epilogue.
        let channels = Shape::from_dims(y.dims(), self.conv.layout)?.channels();
        let mut dims = vec![1; y.dims().len()];
        dims[0] = channels;
        let ones = Tensor::from_slice(&Device::host(), &vec![1.0f32; channels], dims)?;
        let ones = ones.to_dtype(y.dtype())?.to_device(y.device())?;
        let copy = Conv::new(1).groups(channels).layout(self.conv.layout);
        copy.activation(self.activation).forward(&y, &ones, bias)
    }

    /// The data gradient: with respect to the input.
    pub fn backward_data(&self, dy: &Tensor, w: &Tensor) -> Result<Tensor> {
        self.convolution_of_zeros()?.forward(dy, w, None)
    }

    /// The weight gradient: with respect to the filters.
    pub fn backward_weight(&self, dy: &Tensor, x: &Tensor) -> Result<Tensor> {
        self.convolution_of_zeros()?.backward_weight(x, dy)
    }

    /// The bias gradient: for each channel of the output the sum of `dy`.
    pub fn backward_bias(&self, dy: &Tensor) -> Result<Tensor> {
        self.conv.backward_bias(dy)
    }
}
