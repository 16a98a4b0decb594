//! Benchmarks of windowpane; the groups are in the folder's files.
//!
//! Criterion writes `group/function` into a fifth of a plot's width, cut off on the left where it is longer
//! than some twenty letters: so groups have short names, and devices too.

use windowpane::Device;

/// A device in a plot: its backend, and its number unless it is the first.
pub fn label(device: &Device) -> String {
    match device.index() {
        0 => device.backend().to_string(),
        _ => device.to_string(),
    }
}
