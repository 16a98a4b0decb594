//! The operators on arrays of any Python library, through DLPack: the native part of the Python package `windowpane`.
//!
//! An array in CPU memory is copied to the device that computes, and the result is copied back. The package's own
//! modules
//! (`python/windowpane`) give these functions the names, order and defaults that Python users know.

mod array;
mod operators;
mod wait;

use pyo3::prelude::*;

/// The native part of windowpane; use `windowpane.functional`.
#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use super::array::Array;
    #[pymodule_export]
    use super::operators::{
        avg_pool, convolve, convolve_transposed, devices, lp_pool, max_pool, max_unpool,
    };

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
