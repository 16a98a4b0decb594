//! Convolution: the dot product of each window with each filter.
//!
//! ```text
//! y[n, o, f] = f(Σ { x[n, x(o, t), c] · w[f, t, c] : t inside, c in f's group } + bias + residual)
//!
//! x(o, t) = o·s − before + t·d         on each axis, as windowpane-geometry says
//! ```
//!
//! * [`forward()`]: the sum, followed by the [`Epilogue`].
//! * [`data_gradient`], [`weight_gradient`], [`bias_gradient`]: its derivatives, as scatters.
//!
//! * [`quantized`]: exact sums of products of `i8`, followed by their [`Scaling`].
//!
//! Each but the last is a sum in `f64`, rounded once. The function of the same name with `_totals` returns the unrounded
//! sum with the data for an error bound.

mod backward;
mod epilogue;
mod forward;
mod quantized;

pub use backward::{
    bias_gradient, bias_gradient_totals, data_gradient, data_gradient_totals, weight_gradient,
    weight_gradient_totals,
};
pub use epilogue::{Epilogue, activate, activate_total};
pub use forward::{forward, forward_totals};
pub use quantized::{Scaling, quantized};
