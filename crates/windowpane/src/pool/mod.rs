//! The pooling operators, their options, and how they are planned and run.

mod choice;
mod host;
mod operator;
mod run;
#[cfg(feature = "kernels")]
mod tune;

pub(crate) use operator::Operator;
pub(crate) use run::run_again;

use windowpane_geometry::{Extents, Layout, Pooling, Shape, Window};

use crate::{PoolAlgorithm, Result};
#[cfg(feature = "kernels")]
pub(crate) use choice::Key;
#[cfg(feature = "kernels")]
pub(crate) use tune::tune;

/// The options of every pooling.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Options {
    window: Window,
    layout: Layout,
    algorithm: Option<PoolAlgorithm>,
}

impl Options {
    /// By default the stride is the kernel, so that windows do not overlap.
    fn new(kernel: Extents) -> Self {
        Self::with_window(Window::new(kernel).stride(kernel))
    }

    fn with_window(window: Window) -> Self {
        Self { window, layout: Layout::default(), algorithm: None }
    }

    /// One window over the whole input, for any rank.
    fn global() -> Self {
        Self::with_window(Window::adaptive(1))
    }

    /// Applies the window to an input.
    fn pooling(&self, input: Shape) -> Result<Pooling> {
        Ok(Pooling::new(input, &self.window, self.layout)?)
    }
}

/// The methods that set the options of every pooling.
macro_rules! option_methods {
    () => {
        /// Sets the step between two windows; the kernel by default.
        pub fn stride(mut self, stride: impl Into<Extents>) -> Self {
            self.options.window = self.options.window.stride(stride);
            self
        }

        /// Sets the padding: `1` or `[1, 1]` for both sides, `[(1, 2), (0, 1)]` for before and after,
        /// [`Same`](crate::Same), or [`Padding::Valid`], which is the default.
        pub fn padding(mut self, padding: impl Into<Padding>) -> Self {
            self.options.window = self.options.window.padding(padding);
            self
        }

        /// Sets the step between two taps.
        pub fn dilation(mut self, dilation: impl Into<Extents>) -> Self {
            self.options.window = self.options.window.dilation(dilation);
            self
        }

        /// Sets whether a partial last window is dropped or kept.
        #[doc(alias("ceil_mode"))]
        pub fn rounding(mut self, rounding: Rounding) -> Self {
            self.options.window = self.options.window.rounding(rounding);
            self
        }

        /// Sets the layout of input and output; channels-last by default.
        pub fn layout(mut self, layout: Layout) -> Self {
            self.options.layout = layout;
            self
        }

        /// Forces an algorithm instead of the automatic choice.
        pub fn algorithm(mut self, algorithm: impl Into<Option<PoolAlgorithm>>) -> Self {
            self.options.algorithm = algorithm.into();
            self
        }
    };
}

mod average;
mod extremum;
mod fractional;
mod lp;
mod mode;
mod morphology;
mod rank;
mod stochastic;
mod unpool;

pub use average::{AvgPool, SumPool};
pub use extremum::{MaxPool, MinPool};
pub use fractional::FractionalMaxPool;
pub use lp::LpPool;
pub use mode::ModePool;
pub use morphology::Morphology;
pub use rank::{MedianPool, RankPool};
pub use stochastic::StochasticPool;
pub use unpool::MaxUnpool;
