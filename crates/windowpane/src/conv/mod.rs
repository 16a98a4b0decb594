//! Convolution: its options, its plans, its passes.

mod algorithm;
mod choice;
mod plan;
mod run;
#[cfg(feature = "kernels")]
mod tune;

pub use algorithm::{ConvAlgorithm, UnknownConvAlgorithm};
#[cfg(feature = "kernels")]
pub(crate) use choice::Key;
pub use plan::ConvPlan;

use windowpane_geometry::{
    Activation, DType, Extents, FilterLayout, Layout, Padding, PaddingMode, Pass, Precision,
    TileOverrides, Window,
};

use crate::{Device, Result, Tensor};

/// The options that a convolution and its transpose share; `own` is the field that holds them.
macro_rules! option_methods {
    ($($own:ident)?) => {
        /// Sets the step between two windows; 1 by default.
        pub fn stride(mut self, stride: impl Into<Extents>) -> Self {
            self$(.$own)?.window = self$(.$own)?.window.stride(stride);
            self
        }

        /// Sets the padding: `1` or `[1, 1]` for both sides, `[(1, 2), (0, 1)]` for before and after,
        /// [`Same`](crate::Same), or [`Padding::Valid`], which is the default.
        pub fn padding(mut self, padding: impl Into<Padding>) -> Self {
            self$(.$own)?.window = self$(.$own)?.window.padding(padding);
            self
        }

        /// Sets the step between two taps.
        pub fn dilation(mut self, dilation: impl Into<Extents>) -> Self {
            self$(.$own)?.window = self$(.$own)?.window.dilation(dilation);
            self
        }

        /// Sets the number of groups that channels and filters are divided into; the filters of a group see
        /// only its channels. A convolution with as many groups as channels is depthwise.
        pub fn groups(mut self, groups: usize) -> Self {
            self$(.$own)?.groups = groups;
            self
        }

        /// Sets the layout of input and output; channels-last by default.
        pub fn layout(mut self, layout: Layout) -> Self {
            self$(.$own)?.layout = layout;
            self
        }

        /// Sets the layout of the filters; [`FilterLayout::Fhwc`] by default.
        pub fn filter_layout(mut self, layout: FilterLayout) -> Self {
            self$(.$own)?.filter_layout = layout;
            self
        }

        /// Sets the precision of `f32` products; strict by default.
        pub fn precision(mut self, precision: Precision) -> Self {
            self$(.$own)?.precision = precision;
            self
        }

        /// Forces an algorithm instead of the automatic choice.
        pub fn algorithm(mut self, algorithm: impl Into<Option<ConvAlgorithm>>) -> Self {
            self$(.$own)?.algorithm = algorithm.into();
            self
        }

        /// Overrides the tile sizes, or some of them.
        ///
        /// ```
        /// use windowpane::{Conv, TileOverrides};
        ///
        /// let conv = Conv::new([3, 3]).tile(TileOverrides { block_n: Some(32), ..TileOverrides::default() });
        /// assert_eq!(conv, Conv::new([3, 3]).tile("block_n=32".parse::<TileOverrides>()?));
        /// # Ok::<(), windowpane::UnknownTile>(())
        /// ```
        pub fn tile(mut self, overrides: impl Into<TileOverrides>) -> Self {
            self$(.$own)?.tile = overrides.into();
            self
        }
    };
}

mod quantized;
mod transpose;

pub use quantized::QuantizedConv;
pub use transpose::ConvTranspose;

/// Convolution as in neural networks: the dot product of each window with each filter.
///
/// Each sum is completed in this order, in the precision of the sum: add the bias, add the residual,
/// apply the activation, round once.
///
/// ```
/// use windowpane::{Activation, Conv, Device, Same, Tensor};
///
/// let device = Device::host();
/// let x = Tensor::from_slice(&device, &[1.0f32, -2.0, 3.0, 4.0], [1, 4, 1])?; // N, W, C
/// let w = Tensor::from_slice(&device, &[1.0f32, 0.0, -1.0], [1, 3, 1])?; // NF, WF, C
/// let conv = Conv::new([3]).padding(Same::Upper).activation(Activation::Relu);
/// assert_eq!(conv.forward(&x, &w, None)?.to_vec::<f32>()?, [2.0, 0.0, 0.0, 3.0]);
/// # Ok::<(), windowpane::Error>(())
/// ```
///
/// The gradients are those of the sum: `dy` is the gradient with respect to the sum before residual and activation.
#[doc(alias("Conv1d", "Conv2d", "Conv3d", "conv1d", "conv2d", "conv3d"))]
#[doc(alias("correlate", "correlate1d", "correlate2d", "cross_correlation"))]
#[doc(alias("convolve", "convolve1d", "convolve2d"))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conv {
    pub(crate) window: Window,
    pub(crate) groups: usize,
    pub(crate) layout: Layout,
    pub(crate) filter_layout: FilterLayout,
    pub(crate) padding_mode: PaddingMode,
    pub(crate) activation: Activation,
    pub(crate) precision: Precision,
    pub(crate) algorithm: Option<ConvAlgorithm>,
    pub(crate) tile: TileOverrides,
}

impl Conv {
    /// A convolution with kernels of the given size, one number per axis or one for every axis, and stride 1.
    pub fn new(kernel: impl Into<Extents>) -> Self {
        Self::with_window(Window::new(kernel))
    }

    /// A convolution over a configured [`Window`].
    pub fn with_window(window: Window) -> Self {
        Self {
            window,
            groups: 1,
            layout: Layout::default(),
            filter_layout: FilterLayout::default(),
            padding_mode: PaddingMode::default(),
            activation: Activation::default(),
            precision: Precision::default(),
            algorithm: None,
            tile: TileOverrides::default(),
        }
    }

    option_methods!();

    /// Sets the activation, applied after bias and residual; none by default.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Sets what the input has outside its edges; zeros by default. In any other mode the padding is copied into memory
    /// first: see [`Pad`](crate::Pad).
    ///
    /// ```
    /// use windowpane::{Conv, Device, PaddingMode, Tensor};
    ///
    /// let device = Device::host();
    /// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 5.0], [1, 3, 1])?;
    /// let w = Tensor::from_slice(&device, &[-1.0f32, 0.0, 1.0], [1, 3, 1])?; // a slope
    /// let slope = Conv::new(3).padding(1).padding_mode(PaddingMode::Replicate);
    /// assert_eq!(slope.forward(&x, &w, None)?.to_vec::<f32>()?, [1.0, 4.0, 3.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn padding_mode(mut self, mode: PaddingMode) -> Self {
        self.padding_mode = mode;
        self
    }

    /// The transposed convolution with these options.
    pub fn transposed(self) -> ConvTranspose {
        self.into()
    }

    /// The quantized convolution with these options.
    pub fn quantized(self) -> QuantizedConv {
        self.into()
    }

    /// Plans [`forward`](Self::forward) without running it; `x` and `w` are the dimensions of input
    /// and filters.
    pub fn plan(
        &self,
        device: &Device,
        dtype: DType,
        x: &[usize],
        w: &[usize],
    ) -> Result<ConvPlan> {
        choice::plan(self, Pass::Forward, device, dtype, x, w)
    }

    /// Convolves `x` with the filters `w`; a bias has one number per filter.
    pub fn forward(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let plan = self.plan(x.device(), x.dtype(), x.dims(), w.dims())?;
        self.forward_with_plan(&plan, x, w, bias, None)
    }

    /// Convolves and adds a residual with the dimensions of the output.
    pub fn forward_with_residual(
        &self,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
        residual: &Tensor,
    ) -> Result<Tensor> {
        let plan = self.plan(x.device(), x.dtype(), x.dims(), w.dims())?;
        self.forward_with_plan(&plan, x, w, bias, Some(residual))
    }

    /// Convolves according to a plan.
    pub fn forward_with_plan(
        &self,
        plan: &ConvPlan,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        run::forward(self, plan, [x, w], bias, residual)
    }

    /// Plans [`backward_data`](Self::backward_data); `x` and `w` are the dimensions of input and
    /// filters.
    pub fn plan_backward_data(
        &self,
        device: &Device,
        dtype: DType,
        x: &[usize],
        w: &[usize],
    ) -> Result<ConvPlan> {
        choice::plan(self, Pass::Data, device, dtype, x, w)
    }

    /// The data gradient: with respect to an input of dimensions `dims`.
    pub fn backward_data(&self, dy: &Tensor, w: &Tensor, dims: &[usize]) -> Result<Tensor> {
        let plan = self.plan_backward_data(dy.device(), dy.dtype(), dims, w.dims())?;
        self.backward_data_with_plan(&plan, dy, w)
    }

    /// The data gradient, computed according to a plan.
    pub fn backward_data_with_plan(
        &self,
        plan: &ConvPlan,
        dy: &Tensor,
        w: &Tensor,
    ) -> Result<Tensor> {
        run::backward(self, plan, Pass::Data, &[dy, w])
    }

    /// Plans [`backward_weight`](Self::backward_weight); `x` and `w` are the dimensions of input and
    /// filters.
    pub fn plan_backward_weight(
        &self,
        device: &Device,
        dtype: DType,
        x: &[usize],
        w: &[usize],
    ) -> Result<ConvPlan> {
        choice::plan(self, Pass::Weight, device, dtype, x, w)
    }

    /// The dimensions of filters that turn an input of dimensions `x` into an output of dimensions `dy`.
    pub fn filter_dims(&self, dy: &[usize], x: &[usize]) -> Result<Vec<usize>> {
        choice::filter_dims(self, dy, x)
    }

    /// The weight gradient: with respect to the filters, as many as `dy` has channels.
    pub fn backward_weight(&self, dy: &Tensor, x: &Tensor) -> Result<Tensor> {
        let w = self.filter_dims(dy.dims(), x.dims())?;
        let plan = self.plan_backward_weight(dy.device(), dy.dtype(), x.dims(), &w)?;
        self.backward_weight_with_plan(&plan, dy, x)
    }

    /// The weight gradient, computed according to a plan.
    pub fn backward_weight_with_plan(
        &self,
        plan: &ConvPlan,
        dy: &Tensor,
        x: &Tensor,
    ) -> Result<Tensor> {
        run::backward(self, plan, Pass::Weight, &[dy, x])
    }

    /// Plans [`backward_bias`](Self::backward_bias); `dy` are the dimensions of the output.
    pub fn plan_backward_bias(
        &self,
        device: &Device,
        dtype: DType,
        dy: &[usize],
    ) -> Result<ConvPlan> {
        choice::plan_bias(self, device, dtype, dy)
    }

    /// The bias gradient: for each filter the sum of `dy` over all windows.
    pub fn backward_bias(&self, dy: &Tensor) -> Result<Tensor> {
        let plan = self.plan_backward_bias(dy.device(), dy.dtype(), dy.dims())?;
        self.backward_bias_with_plan(&plan, dy)
    }

    /// The bias gradient, computed according to a plan.
    pub fn backward_bias_with_plan(&self, plan: &ConvPlan, dy: &Tensor) -> Result<Tensor> {
        run::backward(self, plan, Pass::Bias, &[dy])
    }
}
