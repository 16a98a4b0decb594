//! The operators on arrays of any Python library, through DLPack: the native part of the Python package `windowpane`.
//!
//! An array in CPU memory is read where it is by `host`; another device gets a copy, and its result is copied back. An
//! array on a CUDA device is used where it is. The package's own modules (`python/windowpane`) give these functions the
//! names, order and defaults that Python users know.

mod array;
#[cfg(feature = "cuda")]
mod cuda;
mod operators;
mod wait;
mod xla;

use pyo3::prelude::*;

/// The native part of windowpane; use `windowpane.functional`.
#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use super::array::Array;
    #[pymodule_export]
    use super::operators::{
        avg_pool, avg_pool_backward, convolve, convolve_backward_weight, convolve_transposed,
        devices, extremum_pool, extremum_pool_backward, extremum_under, fractional_max_pool,
        fractional_max_pool_backward, lp_pool, lp_pool_backward, max_unpool, max_unpool_backward,
        mode_pool, pad, quantized_convolve, rank_pool, stochastic_mean, stochastic_pool, supports,
    };
    #[pymodule_export]
    use super::xla::xla_handlers;

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
