//! Padding with copies of the input, and convolutions that have it.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::{Initializer, PaddingConfig1d, PaddingConfig2d, PaddingConfig3d};
use burn::tensor::Tensor;
use burn::tensor::module::{conv1d, conv2d, conv3d};
use burn::tensor::ops::ConvOptions;
use serde::{Deserialize, Serialize};
use windowpane::geometry::{Padded, Shape};
use windowpane::{DType, Device, Extents, Layout, Pad, Padding, Result, Window};

use super::functions::pad;
use super::modules::Sides;
use super::queue::require;
use super::refuse;

/// What a convolution, or a padded tensor, has outside its input.
///
/// ```text
/// zeros      0 0 0 | a b c d | 0 0 0
/// reflect    d c b | a b c d | c b a
/// symmetric  c b a | a b c d | d c b
/// replicate  a a a | a b c d | d d d
/// circular   b c d | a b c d | a b c
/// ```
///
/// Each works for any padding; more than the input repeats the pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PaddingMode {
    /// Zeros.
    #[default]
    Zeros,
    /// The mirror image about the first and last number, which are not repeated.
    Reflect,
    /// The mirror image about the edges, so that the first and last number are repeated.
    Symmetric,
    /// The nearest number: Burn's `PadMode::Edge`.
    Replicate,
    /// The other end of the input.
    Circular,
}

impl From<PaddingMode> for windowpane::PaddingMode {
    fn from(mode: PaddingMode) -> Self {
        match mode {
            PaddingMode::Zeros => Self::Zeros,
            PaddingMode::Reflect => Self::Reflect,
            PaddingMode::Symmetric => Self::Symmetric,
            PaddingMode::Replicate => Self::Replicate,
            PaddingMode::Circular => Self::Circular,
        }
    }
}

/// A padding of a problem that is checked.
pub(super) struct PadPlan {
    problem: Padded,
    pad: Pad,
    /// Of the input.
    dims: Vec<usize>,
}

impl PadPlan {
    /// `dims` are those of the input, also for the gradient.
    pub(super) fn new(
        PadOptions { padding, mode }: PadOptions,
        device: &Device,
        dtype: DType,
        dims: &[usize],
        layout: Layout,
    ) -> Result<Self> {
        require(device, dtype)?;
        let problem = Padded::new(Shape::from_dims(dims, layout)?, padding, mode, layout)?;
        let pad = Pad::new(padding).mode(mode).layout(layout);
        Ok(Self { problem, pad, dims: dims.to_vec() })
    }

    pub(super) fn problem(&self) -> &Padded {
        &self.problem
    }

    pub(super) fn forward(&self, x: &windowpane::Tensor) -> Result<windowpane::Tensor> {
        self.pad.forward(x)
    }

    pub(super) fn backward(&self, dy: &windowpane::Tensor) -> Result<windowpane::Tensor> {
        self.pad.backward(dy, &self.dims)
    }
}

/// The options of a padding.
#[derive(Clone, Copy, Debug)]
pub(super) struct PadOptions {
    pub(super) padding: Padding,
    pub(super) mode: windowpane::PaddingMode,
}

/// The input of a convolution with padding that holds copies, and the padding that the convolution itself has.
fn padded<const D: usize, const AXES: usize>(
    input: Tensor<D>,
    window: Window,
    mode: PaddingMode,
) -> (Tensor<D>, [(usize, usize); AXES])
where
    Extents: From<[usize; AXES]>,
{
    let space = Extents::try_from(&input.dims()[2..]);
    let grid = space.and_then(|space| window.over(space)).unwrap_or_else(|error| refuse(error));
    // Missing axes come first.
    let axes = &grid.axes()[windowpane::geometry::AXES - AXES..];
    let sides = core::array::from_fn(|axis| (axes[axis].before(), axes[axis].after()));
    match mode {
        PaddingMode::Zeros => (input, sides),
        mode => (pad(input, sides, mode), [(0, 0); AXES]),
    }
}

/// Declares a convolution with a padding mode; `$array` makes its sizes an array.
macro_rules! convolution {
    (
        $name:ident $config:ident $rank:literal, $size:tt, $ones:literal,
        $padding:ident $valid:literal, { $($(#[$of:meta])* $channels:ident: $count:tt),* },
        $conv:ident, $array:expr, $about:literal
    ) => {
        #[doc = concat!("The configuration of [`", stringify!($name), "`], which [`init`](Self::init) makes.")]
        #[derive(Config, Debug)]
        pub struct $config {
            $($(#[$of])* pub $channels: $count,)*
            /// The size of a window.
            pub kernel_size: $size,
            /// The step between two windows.
            #[config(default = $ones)]
            pub stride: $size,
            /// The step between two positions of a window.
            #[config(default = $ones)]
            pub dilation: $size,
            /// The number of groups that channels are divided into.
            #[config(default = "1")]
            pub groups: usize,
            /// The padding. `Same` gives `⌈size / stride⌉` outputs, and pads the end by one more if the total is odd.
            #[config(default = $valid)]
            pub padding: $padding,
            /// What the padding holds.
            #[config(default = "PaddingMode::Zeros")]
            pub padding_mode: PaddingMode,
            /// Whether a bias is added.
            #[config(default = true)]
            pub bias: bool,
            /// How the parameters are initialized.
            #[config(
                default = "Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false }"
            )]
            pub initializer: Initializer,
        }

        #[doc = concat!("Convolution with a padding mode, over ", $about, ".")]
        ///
        #[doc = concat!("Made by [`", stringify!($config), "`]. It is Burn's module with one option more: a record of")]
        /// one can be loaded into the other. The convolution itself is Burn's, which [`install`](crate::install)
        /// replaces. Only a padding that is not zeros takes memory: the convolution reads a larger copy of its input.
        #[derive(Module, Debug)]
        #[module(custom_display)]
        pub struct $name {
            /// The filters: output channels, input channels of a group, then the axes.
            pub weight: Param<Tensor<$rank>>,
            /// A number for each output channel.
            pub bias: Option<Param<Tensor<1>>>,
            /// The step between two windows.
            pub stride: $size,
            /// The size of a window.
            pub kernel_size: $size,
            /// The step between two positions of a window.
            pub dilation: $size,
            /// The number of groups that channels are divided into.
            pub groups: usize,
            /// The padding.
            #[module(skip)]
            pub padding: $padding,
            /// What the padding holds.
            #[module(skip)]
            pub padding_mode: PaddingMode,
        }

        impl $config {
            #[doc = concat!("Makes the module [`", stringify!($name), "`].")]
            pub fn init(&self, device: &burn::tensor::Device) -> $name {
                // The parameters of Burn's own module.
                let conv = burn::nn::conv::$config::new($(self.$channels,)* self.kernel_size)
                    .with_groups(self.groups)
                    .with_bias(self.bias)
                    .with_initializer(self.initializer.clone())
                    .init(device);
                $name {
                    weight: conv.weight,
                    bias: conv.bias,
                    stride: self.stride,
                    kernel_size: self.kernel_size,
                    dilation: self.dilation,
                    groups: self.groups,
                    padding: self.padding.clone(),
                    padding_mode: self.padding_mode,
                }
            }
        }

        impl ModuleDisplay for $name {
            fn custom_settings(&self) -> Option<DisplaySettings> {
                DisplaySettings::new().with_new_line_after_attribute(false).optional()
            }

            fn custom_content(&self, content: Content) -> Option<Content> {
                let [filters, channels, ..] = self.weight.dims();
                content
                    .add("ch_in", &(channels * self.groups))
                    .add("ch_out", &filters)
                    .add_debug_attribute("stride", &self.stride)
                    .add_debug_attribute("kernel_size", &self.kernel_size)
                    .add_debug_attribute("dilation", &self.dilation)
                    .add("groups", &self.groups)
                    .add_debug_attribute("padding", &self.padding)
                    .add_debug_attribute("padding_mode", &self.padding_mode)
                    .optional()
            }
        }

        impl $name {
            #[doc = concat!("Convolves ", $about, ".")]
            ///
            /// # Panics
            /// As [`pad`], and if the window does not fit the input.
            pub fn forward(&self, input: Tensor<$rank>) -> Tensor<$rank> {
                let window = Window::new(self.kernel_size)
                    .stride(self.stride)
                    .dilation(self.dilation)
                    .padding(self.padding.sides());
                let (input, sides) = padded(input, window, self.padding_mode);
                let [stride, dilation] = [self.stride, self.dilation].map($array);
                let options = ConvOptions::new_with_padding(stride, sides, dilation, self.groups);
                let bias = self.bias.as_ref().map(|bias| bias.val());
                $conv(input, self.weight.val(), bias, options)
            }
        }
    };
}

convolution! {
    Conv1d Conv1dConfig 3, usize, "1", PaddingConfig1d "PaddingConfig1d::Valid",
    {
        /// The number of input channels.
        channels_in: usize,
        /// The number of output channels.
        channels_out: usize
    },
    conv1d, |size| [size], "sequences `[batch_size, channels, length]`"
}
convolution! {
    Conv2d Conv2dConfig 4, [usize; 2], "[1, 1]", PaddingConfig2d "PaddingConfig2d::Valid",
    {
        /// The numbers of input and output channels.
        channels: [usize; 2]
    },
    conv2d, |sizes| sizes, "images `[batch_size, channels, height, width]`"
}
convolution! {
    Conv3d Conv3dConfig 5, [usize; 3], "[1, 1, 1]", PaddingConfig3d "PaddingConfig3d::Valid",
    {
        /// The numbers of input and output channels.
        channels: [usize; 2]
    },
    conv3d, |sizes| sizes, "volumes `[batch_size, channels, depth, height, width]`"
}
