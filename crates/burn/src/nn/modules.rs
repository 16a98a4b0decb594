//! The modules: options like those of Burn's own poolings, and a function that takes them.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Flag, Module, ModuleDisplay, Param};
use burn::nn::{PaddingConfig1d, PaddingConfig2d, PaddingConfig3d};
use burn::tensor::{Int, Tensor};
use serde::{Deserialize, Serialize};
use windowpane::{Extents, Padding, Rounding, Same, Window};

use super::functions::{
    adaptive_max_pool, adaptive_max_pool_with_indices, fractional_max_pool,
    fractional_max_pool_with_indices, lp_pool, max_unpool, median_pool, min_pool,
    min_pool_with_indices, mode_pool, rank_pool, stochastic_mean, stochastic_pool, sum_pool,
};
use super::refuse;
use super::seed::Seed;

/// Displays a module and its options on one line, as Burn displays its own; a module with random numbers also says if it
/// is frozen.
macro_rules! displayed {
    ($name:ident: $($field:ident)* $(, $training:ident)?) => {
        impl ModuleDisplay for $name {
            fn custom_settings(&self) -> Option<DisplaySettings> {
                DisplaySettings::new().with_new_line_after_attribute(false).optional()
            }

            fn custom_content(&self, content: Content) -> Option<Content> {
                let content =
                    content$(.add_debug_attribute(stringify!($field), &self.$field))*;
                $(if !self.$training.is_enabled() {
                    return content.add(stringify!($training), &self.$training).optional();
                })?
                content.optional()
            }
        }
    };
}

/// Declares a module whose windows are given, with further fields, and its configuration. `[training, seed]` gives it
/// random numbers.
macro_rules! windowed {
    (
        $about:expr, $function:ident, $name:ident, $config:ident,
        $size:tt, $strides:ident, $padding:ident, $valid:tt, $ones:tt,
        { $($(#[$of:meta])* $field:ident: $type:tt $(= $default:tt)?;)* }
        $([$training:ident, $seed:ident])?
    ) => {
        #[doc = concat!("The configuration of [`", stringify!($name), "`], which [`init`](Self::init) makes.")]
        #[derive(Config, Debug)]
        pub struct $config {
            /// The size of a window.
            pub kernel_size: $size,
            /// The step between two windows; the size of a window by default.
            #[config(default = "kernel_size")]
            pub $strides: $size,
            /// The padding, which has no numbers. `Same` gives `⌈size / stride⌉` outputs, and pads the end by one more
            /// if the total is odd.
            #[config(default = $valid)]
            pub padding: $padding,
            /// The step between two positions of a window.
            #[config(default = $ones)]
            pub dilation: $size,
            $($(#[$of])* $(#[config(default = $default)])? pub $field: $type,)*
            $(
                /// The seed of the random numbers. Without one the modules of a process get 0, 1, 2, … in the order in
                /// which they are made.
                pub $seed: Option<u32>,
            )?
        }

        #[doc = $about]
        ///
        #[doc = concat!("Made by [`", stringify!($config), "`]. See [`", stringify!($function), "`].")]
        #[derive(Module, Debug)]
        #[module(custom_display)]
        pub struct $name {
            /// The size of a window.
            pub kernel_size: $size,
            /// The step between two windows.
            pub stride: $size,
            /// The padding, which has no numbers.
            #[module(skip)]
            pub padding: $padding,
            /// The step between two positions of a window.
            pub dilation: $size,
            $($(#[$of])* pub $field: $type,)*
            $(
                /// Whether to draw on a device with gradients. Cleared by [`freeze`](Module::freeze).
                pub $training: Param<Flag>,
                #[module(skip)]
                $seed: Seed,
            )?
        }

        impl $config {
            #[doc = concat!("Makes the module [`", stringify!($name), "`].")]
            pub fn init(&self) -> $name {
                $name {
                    kernel_size: self.kernel_size,
                    stride: self.$strides,
                    padding: self.padding.clone(),
                    dilation: self.dilation,
                    $($field: self.$field,)*
                    $(
                        $training: Param::from_bool(true),
                        $seed: Seed::new(self.$seed),
                    )?
                }
            }
        }

        displayed!($name: kernel_size stride padding dilation $($field)* $($seed, $training)?);

        impl $name {
            fn given(&self) -> Window {
                Window::new(self.kernel_size)
                    .stride(self.stride)
                    .padding(self.padding.sides())
                    .dilation(self.dilation)
            }
        }
    };
}

/// Declares three modules, for one to three axes.
macro_rules! for_axes {
    (
        $about:literal, $function:ident,
        [$name1:ident $config1:ident] [$name2:ident $config2:ident] [$name3:ident $config3:ident],
        $fields:tt $($random:tt)?
    ) => {
        windowed! {
            concat!($about, " over sequences `[batch_size, channels, length]`."),
            $function, $name1, $config1,
            usize, stride, PaddingConfig1d, "PaddingConfig1d::Valid", "1", $fields $($random)?
        }
        windowed! {
            concat!($about, " over images `[batch_size, channels, height, width]`."),
            $function, $name2, $config2,
            [usize; 2], strides, PaddingConfig2d, "PaddingConfig2d::Valid", "[1, 1]",
            $fields $($random)?
        }
        windowed! {
            concat!($about, " over volumes `[batch_size, channels, depth, height, width]`."),
            $function, $name3, $config3,
            [usize; 3], strides, PaddingConfig3d, "PaddingConfig3d::Valid", "[1, 1, 1]",
            $fields $($random)?
        }
    };
}

for_axes! {
    "Lp pooling, the norm of each window,", lp_pool,
    [LpPool1d LpPool1dConfig] [LpPool2d LpPool2dConfig] [LpPool3d LpPool3dConfig],
    {
        /// The exponent of the norm: finite, and at least 1.
        p: f64 = "2.0";
        /// Whether a partial last window is kept.
        ceil_mode: bool = "false";
    }
}

for_axes! {
    "Sum pooling, the sum of each window,", sum_pool,
    [SumPool1d SumPool1dConfig] [SumPool2d SumPool2dConfig] [SumPool3d SumPool3dConfig],
    {
        /// Whether a partial last window is kept.
        ceil_mode: bool = "false";
    }
}

for_axes! {
    "Min pooling, the smallest number of each window,", min_pool,
    [MinPool1d MinPool1dConfig] [MinPool2d MinPool2dConfig] [MinPool3d MinPool3dConfig],
    {
        /// Whether a partial last window is kept.
        ceil_mode: bool = "false";
    }
}

for_axes! {
    "Median pooling, the middle number of each window, without gradient,", median_pool,
    [MedianPool1d MedianPool1dConfig]
    [MedianPool2d MedianPool2dConfig]
    [MedianPool3d MedianPool3dConfig],
    {
        /// Whether a partial last window is kept.
        ceil_mode: bool = "false";
    }
}

for_axes! {
    "Rank pooling, the k-th smallest number of each window, without gradient,", rank_pool,
    [RankPool1d RankPool1dConfig] [RankPool2d RankPool2dConfig] [RankPool3d RankPool3dConfig],
    {
        /// Which number of the sorted window: 0 is the smallest.
        rank: u32;
        /// Whether a partial last window is kept.
        ceil_mode: bool = "false";
    }
}

for_axes! {
    "Mode pooling, the most frequent number of each window, without gradient,", mode_pool,
    [ModePool1d ModePool1dConfig] [ModePool2d ModePool2dConfig] [ModePool3d ModePool3dConfig],
    {
        /// Whether a partial last window is kept.
        ceil_mode: bool = "false";
    }
}

for_axes! {
    "Stochastic pooling, in training a number of each window drawn at random, otherwise their mean,",
    stochastic_pool,
    [StochasticPool1d StochasticPool1dConfig]
    [StochasticPool2d StochasticPool2dConfig]
    [StochasticPool3d StochasticPool3dConfig],
    {
        /// Whether a partial last window is kept.
        ceil_mode: bool = "false";
    }
    [training, seed]
}

for_axes! {
    "Max unpooling, the reverse of the max pooling with the same options,", max_unpool,
    [MaxUnpool1d MaxUnpool1dConfig] [MaxUnpool2d MaxUnpool2dConfig] [MaxUnpool3d MaxUnpool3dConfig],
    {}
}

/// The window of a pooling, which may keep a partial last one.
macro_rules! window {
    ($name:ident) => {
        impl $name {
            fn window(&self) -> Window {
                self.given().rounding(match self.ceil_mode {
                    true => Rounding::Ceil,
                    false => Rounding::Floor,
                })
            }
        }
    };
}

/// The window and the forward pass of a pooling.
macro_rules! forward {
    ($name:ident, $rank:literal, $function:ident $(, $field:ident)*) => {
        window!($name);

        impl $name {
            /// Pools.
            ///
            /// # Panics
            #[doc = concat!("As [`", stringify!($function), "`].")]
            pub fn forward(&self, input: Tensor<$rank>) -> Tensor<$rank> {
                $function(input, $(self.$field,)* self.window())
            }
        }
    };
}

forward!(LpPool1d, 3, lp_pool, p);
forward!(LpPool2d, 4, lp_pool, p);
forward!(LpPool3d, 5, lp_pool, p);
forward!(SumPool1d, 3, sum_pool);
forward!(SumPool2d, 4, sum_pool);
forward!(SumPool3d, 5, sum_pool);
forward!(MinPool1d, 3, min_pool);
forward!(MinPool2d, 4, min_pool);
forward!(MinPool3d, 5, min_pool);
forward!(MedianPool1d, 3, median_pool);
forward!(MedianPool2d, 4, median_pool);
forward!(MedianPool3d, 5, median_pool);
forward!(RankPool1d, 3, rank_pool, rank);
forward!(RankPool2d, 4, rank_pool, rank);
forward!(RankPool3d, 5, rank_pool, rank);
forward!(ModePool1d, 3, mode_pool);
forward!(ModePool2d, 4, mode_pool);
forward!(ModePool3d, 5, mode_pool);

/// The forward pass of a stochastic pooling.
macro_rules! stochastic {
    ($($name:ident $rank:literal),*) => {
        $(window!($name);

        impl $name {
            /// Draws a number of each window in training: on a device with gradients, unless the module is frozen, as
            /// Burn's `Dropout` does. Otherwise gives the [mean](stochastic_mean) of what would be drawn.
            ///
            /// Every call in training draws anew. A module with the same seed draws the same numbers in the same calls;
            /// Burn's `Device::seed` has no effect on them. A clone continues the sequence of its original.
            ///
            /// # Panics
            /// As [`stochastic_pool`].
            pub fn forward(&self, input: Tensor<$rank>) -> Tensor<$rank> {
                match self.seed.next(&self.training, &input.device()) {
                    Some(seed) => stochastic_pool(input, seed, self.window()),
                    None => stochastic_mean(input, self.window()),
                }
            }
        })*
    };
}

stochastic!(StochasticPool1d 3, StochasticPool2d 4, StochasticPool3d 5);

/// The methods of minima and of unpooling, which have indices.
macro_rules! with_indices {
    ($($min:ident $unpool:ident $rank:literal $size:tt),*) => {
        $(impl $min {
            /// Pools, and gives the position of each minimum in its plane.
            ///
            /// # Panics
            /// As [`min_pool`].
            pub fn forward_with_indices(
                &self,
                input: Tensor<$rank>,
            ) -> (Tensor<$rank>, Tensor<$rank, Int>) {
                min_pool_with_indices(input, self.window())
            }
        }

        impl $unpool {
            /// Unpools to the smallest size that the pooling makes `input`'s from. If the pooling rounds down, other
            /// sizes give the same: see [`forward_to`](Self::forward_to).
            ///
            /// # Panics
            /// As [`max_unpool`].
            pub fn forward(
                &self,
                input: Tensor<$rank>,
                indices: Tensor<$rank, Int>,
            ) -> Tensor<$rank> {
                let dims = input.dims();
                let size = Extents::try_from(&dims[2..]).and_then(|pooled| {
                    self.given().transposed(pooled, [0; $rank - 2].into())
                });
                match size {
                    Ok(size) => max_unpool(input, indices, size),
                    Err(error) => refuse(error),
                }
            }

            /// Unpools to the size of the input that was pooled.
            ///
            /// # Panics
            /// As [`max_unpool`].
            pub fn forward_to(
                &self,
                input: Tensor<$rank>,
                indices: Tensor<$rank, Int>,
                output_size: $size,
            ) -> Tensor<$rank> {
                max_unpool(input, indices, output_size)
            }
        })*
    };
}

with_indices!(
    MinPool1d MaxUnpool1d 3 usize,
    MinPool2d MaxUnpool2d 4 [usize; 2],
    MinPool3d MaxUnpool3d 5 [usize; 3]
);

/// Declares an adaptive max pooling.
macro_rules! adaptive {
    ($name:ident, $config:ident, $size:tt, $rank:literal, $about:literal) => {
        #[doc = concat!("The configuration of [`", stringify!($name), "`], which [`init`](Self::init) makes.")]
        #[derive(Config, Debug)]
        pub struct $config {
            /// The size of the output.
            pub output_size: $size,
        }

        #[doc = concat!("Adaptive max pooling, maxima of as many windows as asked for, over ", $about, ".")]
        ///
        #[doc = concat!("Made by [`", stringify!($config), "`]. See [`adaptive_max_pool`].")]
        #[derive(Module, Debug)]
        #[module(custom_display)]
        pub struct $name {
            /// The size of the output.
            pub output_size: $size,
        }

        impl $config {
            #[doc = concat!("Makes the module [`", stringify!($name), "`].")]
            pub fn init(&self) -> $name {
                $name { output_size: self.output_size }
            }
        }

        displayed!($name: output_size);

        impl $name {
            /// Pools.
            ///
            /// # Panics
            /// As [`adaptive_max_pool`].
            pub fn forward(&self, input: Tensor<$rank>) -> Tensor<$rank> {
                adaptive_max_pool(input, self.output_size)
            }

            /// Pools, and gives the position of each maximum in its plane.
            ///
            /// # Panics
            /// As [`adaptive_max_pool`].
            pub fn forward_with_indices(
                &self,
                input: Tensor<$rank>,
            ) -> (Tensor<$rank>, Tensor<$rank, Int>) {
                adaptive_max_pool_with_indices(input, self.output_size)
            }
        }
    };
}

adaptive!(
    AdaptiveMaxPool1d,
    AdaptiveMaxPool1dConfig,
    usize,
    3,
    "sequences `[batch_size, channels, length]`"
);
adaptive!(
    AdaptiveMaxPool2d,
    AdaptiveMaxPool2dConfig,
    [usize; 2],
    4,
    "images `[batch_size, channels, height, width]`"
);
adaptive!(
    AdaptiveMaxPool3d,
    AdaptiveMaxPool3dConfig,
    [usize; 3],
    5,
    "volumes `[batch_size, channels, depth, height, width]`"
);

/// The size of a fractional pooling's output; `S` is `usize` for one axis, `[usize; 2]` or `[usize; 3]` for more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum OutputSize<S> {
    /// This size.
    Exact(S),
    /// The input's size times this ratio, from 0 to 1, rounded down on every axis.
    Ratio(f64),
}

impl<S: Copy + Into<Extents>> OutputSize<S> {
    /// For an input with these axes.
    fn of(&self, input: &[usize]) -> Extents {
        match *self {
            Self::Exact(size) => size.into(),
            Self::Ratio(ratio) => {
                let parts: Vec<_> =
                    input.iter().map(|extent| (*extent as f64 * ratio) as usize).collect();
                Extents::try_from(&*parts).unwrap_or_else(|error| refuse(error))
            }
        }
    }
}

/// Declares a fractional max pooling.
macro_rules! fractional {
    ($name:ident, $config:ident, $size:tt, $rank:literal, $about:literal) => {
        #[doc = concat!("The configuration of [`", stringify!($name), "`], which [`init`](Self::init) makes.")]
        #[derive(Config, Debug)]
        pub struct $config {
            /// The size of a window.
            pub kernel_size: $size,
            /// The size of the output.
            pub output_size: OutputSize<$size>,
            /// The seed of the positions. Without one the modules of a process get 0, 1, 2, … in the order in which they
            /// are made.
            pub seed: Option<u32>,
        }

        #[doc = concat!("Fractional max pooling, maxima of windows at pseudo-random positions, over ", $about, ".")]
        ///
        #[doc = concat!("Made by [`", stringify!($config), "`]. See [`fractional_max_pool`].")]
        #[derive(Module, Debug)]
        #[module(custom_display)]
        pub struct $name {
            /// The size of a window.
            pub kernel_size: $size,
            /// The size of the output.
            #[module(skip)]
            pub output_size: OutputSize<$size>,
            /// Whether to draw new positions on a device with gradients. Cleared by [`freeze`](Module::freeze).
            pub training: Param<Flag>,
            #[module(skip)]
            seed: Seed,
        }

        impl $config {
            #[doc = concat!("Makes the module [`", stringify!($name), "`].")]
            pub fn init(&self) -> $name {
                $name {
                    kernel_size: self.kernel_size,
                    output_size: self.output_size,
                    training: Param::from_bool(true),
                    seed: Seed::new(self.seed),
                }
            }
        }

        displayed!($name: kernel_size output_size seed, training);

        impl $name {
            /// Pools.
            ///
            /// In training every call draws new positions: on a device with gradients, unless the module is frozen, as
            /// Burn's `Dropout` does. Otherwise the positions are those of the first call. A module with the same seed
            /// draws the same positions in the same calls; Burn's `Device::seed` has no effect on them. A clone
            /// continues the sequence of its original.
            ///
            /// # Panics
            /// As [`fractional_max_pool`].
            pub fn forward(&self, input: Tensor<$rank>) -> Tensor<$rank> {
                let (output, seed) = self.drawn(&input);
                fractional_max_pool(input, self.kernel_size, output, seed)
            }

            /// As [`forward`](Self::forward), and gives the position of each maximum in its plane.
            ///
            /// # Panics
            /// As [`fractional_max_pool`].
            pub fn forward_with_indices(
                &self,
                input: Tensor<$rank>,
            ) -> (Tensor<$rank>, Tensor<$rank, Int>) {
                let (output, seed) = self.drawn(&input);
                fractional_max_pool_with_indices(input, self.kernel_size, output, seed)
            }

            /// The size of the output, and the seed of a call.
            fn drawn(&self, input: &Tensor<$rank>) -> (Extents, u32) {
                let seed = self.seed.next(&self.training, &input.device());
                (self.output_size.of(&input.dims()[2..]), seed.unwrap_or(self.seed.first()))
            }
        }
    };
}

fractional!(
    FractionalMaxPool1d,
    FractionalMaxPool1dConfig,
    usize,
    3,
    "sequences `[batch_size, channels, length]`"
);
fractional!(
    FractionalMaxPool2d,
    FractionalMaxPool2dConfig,
    [usize; 2],
    4,
    "images `[batch_size, channels, height, width]`"
);
fractional!(
    FractionalMaxPool3d,
    FractionalMaxPool3dConfig,
    [usize; 3],
    5,
    "volumes `[batch_size, channels, depth, height, width]`"
);

/// Burn's padding in windowpane's words.
pub(super) trait Sides {
    fn sides(&self) -> Padding;
}

impl Sides for PaddingConfig1d {
    fn sides(&self) -> Padding {
        match *self {
            Self::Valid => Padding::Valid,
            Self::Same => Same::Upper.into(),
            Self::Explicit(left, right) => [(left, right)].into(),
        }
    }
}

impl Sides for PaddingConfig2d {
    fn sides(&self) -> Padding {
        match *self {
            Self::Valid => Padding::Valid,
            Self::Same => Same::Upper.into(),
            Self::Explicit(top, left, bottom, right) => [(top, bottom), (left, right)].into(),
        }
    }
}

impl Sides for PaddingConfig3d {
    fn sides(&self) -> Padding {
        match *self {
            Self::Valid => Padding::Valid,
            Self::Same => Same::Upper.into(),
            Self::Explicit(depth, height, width) => [depth, height, width].into(),
        }
    }
}
