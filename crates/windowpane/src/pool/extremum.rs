//! Max and min pooling, which are one operator: each is the other with the order of the numbers reversed.

use windowpane_geometry::{DType, Extents, Extremum, IndexBase, Layout, Padding, Rounding, Window};

use super::choice::plan;
use super::run::{run, run_backward};
use super::{Operator, Options};
use crate::{Device, PoolAlgorithm, PoolPlan, Result, Tensor};

/// Declares the pooling of an extremum; `$of` begins the sentences of its documentation.
macro_rules! extremum_pool {
    ($(#[$doc:meta])* $name:ident: $extremum:expr, $of:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name {
            options: Options,
            base: IndexBase,
        }

        impl $name {
            const FORWARD: Operator = Operator::Extremum($extremum, None);

            fn with(options: Options) -> Self {
                Self { options, base: IndexBase::default() }
            }

            fn indexed(&self) -> Operator {
                Operator::Extremum($extremum, Some(self.base))
            }

            fn gradient(&self) -> Operator {
                Operator::ExtremumBackward($extremum, self.base)
            }

            #[doc = concat!($of, " pooling over windows of the given size: one number per axis, or one for every axis.")]
            pub fn new(kernel: impl Into<Extents>) -> Self {
                Self::with(Options::new(kernel.into()))
            }

            #[doc = concat!($of, " pooling over a configured [`Window`](crate::Window).")]
            pub fn with_window(window: Window) -> Self {
                Self::with(Options::with_window(window))
            }

            #[doc = concat!($of, " pooling to an output of the given size, for any input: window `o` of `O` covers")]
            /// `⌊o·L/O⌋ .. ⌈(o+1)·L/O⌉` of `L` coordinates.
            ///
            /// Stride, dilation, padding and rounding follow from that; setting one of them is an error when
            /// the pooling is applied.
            pub fn adaptive(output: impl Into<Extents>) -> Self {
                Self::with(Options::with_window(Window::adaptive(output)))
            }

            #[doc = concat!($of, " pooling with one window over the whole input, for any size and rank.")]
            pub fn global() -> Self {
                Self::with(Options::global())
            }

            option_methods!();

            /// Sets what an index counts.
            pub fn index_base(mut self, base: IndexBase) -> Self {
                self.base = base;
                self
            }

            /// Plans [`forward`](Self::forward) without running it.
            pub fn plan(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<PoolPlan> {
                plan(&self.options, Self::FORWARD, device, dtype, dims)
            }

            /// Plans [`forward_with_indices`](Self::forward_with_indices) without running it.
            pub fn plan_with_indices(
                &self,
                device: &Device,
                dtype: DType,
                dims: &[usize],
            ) -> Result<PoolPlan> {
                plan(&self.options, self.indexed(), device, dtype, dims)
            }

            /// Pools.
            pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
                self.forward_with_plan(&self.plan(x.device(), x.dtype(), x.dims())?, x)
            }

            /// Pools and returns the index of each result in the input; [`index_base`](Self::index_base) sets what it
            /// counts.
            #[doc(alias("return_indices"))]
            pub fn forward_with_indices(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
                let plan = self.plan_with_indices(x.device(), x.dtype(), x.dims())?;
                self.forward_with_indices_with_plan(&plan, x)
            }

            /// Pools according to a plan.
            pub fn forward_with_plan(&self, plan: &PoolPlan, x: &Tensor) -> Result<Tensor> {
                Ok(run(&self.options, Self::FORWARD, plan, x)?.0)
            }

            /// Pools according to a plan and returns the index of each result.
            pub fn forward_with_indices_with_plan(
                &self,
                plan: &PoolPlan,
                x: &Tensor,
            ) -> Result<(Tensor, Tensor)> {
                let (y, indices) = run(&self.options, self.indexed(), plan, x)?;
                Ok((y, indices.expect("the operator asked for indices")))
            }

            /// Plans [`backward`](Self::backward); `dims` are the dimensions of the input.
            pub fn plan_backward(
                &self,
                device: &Device,
                dtype: DType,
                dims: &[usize],
            ) -> Result<PoolPlan> {
                plan(&self.options, self.gradient(), device, dtype, dims)
            }

            /// The gradient with respect to an input of dimensions `dims`: each element of `dy` goes to the
            /// index in `winners`, which [`forward_with_indices`](Self::forward_with_indices) returned.
            pub fn backward(
                &self,
                dy: &Tensor,
                winners: &Tensor,
                dims: &[usize],
            ) -> Result<Tensor> {
                let plan = self.plan_backward(dy.device(), dy.dtype(), dims)?;
                self.backward_with_plan(&plan, dy, winners)
            }

            /// The gradient, computed according to a plan.
            pub fn backward_with_plan(
                &self,
                plan: &PoolPlan,
                dy: &Tensor,
                winners: &Tensor,
            ) -> Result<Tensor> {
                run_backward(&self.options, self.gradient(), plan, dy, Some(winners))
            }

            /// The gradient with respect to `x` without indices: the winners are located again.
            pub fn backward_from_input(&self, dy: &Tensor, x: &Tensor) -> Result<Tensor> {
                let (_, winners) = self.forward_with_indices(x)?;
                self.backward(dy, &winners, x.dims())
            }
        }
    };
}

extremum_pool! {
    /// Max pooling: the largest number in each window.
    ///
    /// NaN is larger than everything. A window without any element, which padding can create, gives −∞
    /// (for integers the minimum of the type) and the index −1.
    ///
    /// ```
    /// use windowpane::{Device, Layout, MaxPool, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::host(), &[1.0f32, 5.0, 2.0, 4.0, 3.0, 0.0], [1, 1, 6])?;
    /// let pool = MaxPool::new([2]).layout(Layout::ChannelsFirst);
    /// let (y, winners) = pool.forward_with_indices(&x)?;
    /// assert_eq!(y.to_vec::<f32>()?, [5.0, 4.0, 3.0]);
    /// assert_eq!(winners.to_vec::<i32>()?, [1, 3, 4]);
    /// let dx = pool.backward(&y, &winners, x.dims())?;
    /// assert_eq!(dx.to_vec::<f32>()?, [0.0, 5.0, 0.0, 4.0, 3.0, 0.0]);
    ///
    /// let adaptive = MaxPool::adaptive([4]).layout(Layout::ChannelsFirst);
    /// assert_eq!(adaptive.forward(&x)?.to_vec::<f32>()?, [5.0, 5.0, 4.0, 3.0]); // of 0..2, 1..3, 3..5 and 4..6
    /// let global = MaxPool::global().layout(Layout::ChannelsFirst);
    /// assert_eq!(global.forward(&x)?.to_vec::<f32>()?, [5.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    #[doc(alias("MaxPool1d", "MaxPool2d", "MaxPool3d", "max_pool1d", "max_pool2d", "max_pool3d"))]
    #[doc(alias("AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AdaptiveMaxPool"))]
    #[doc(alias("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "GlobalMaxPool"))]
    #[doc(alias("maximum_filter", "maximum_filter1d", "grey_dilation", "dilation"))]
    MaxPool: Extremum::Max, "Max"
}

extremum_pool! {
    /// Min pooling: the smallest number in each window.
    ///
    /// NaN is smaller than everything. A window without any element, which padding can create, gives +∞
    /// (for integers the maximum of the type) and the index −1.
    ///
    /// ```
    /// use windowpane::{Device, MinPool, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::host(), &[1.0f32, 5.0, 2.0, 4.0, 3.0, 0.0], [1, 6, 1])?;
    /// let (y, winners) = MinPool::new([2]).forward_with_indices(&x)?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0, 0.0]);
    /// assert_eq!(winners.to_vec::<i32>()?, [0, 2, 5]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    #[doc(alias("MinPool1d", "MinPool2d", "MinPool3d", "min_pool2d", "AdaptiveMinPool", "GlobalMinPool"))]
    #[doc(alias("minimum_filter", "minimum_filter1d", "grey_erosion", "erosion"))]
    MinPool: Extremum::Min, "Min"
}
