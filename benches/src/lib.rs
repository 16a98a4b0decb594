//! Shared by the criterion benchmarks in this folder.

use std::hint::black_box;
use std::time::Duration;

use windowpane::{Device, Result, Tensor};

/// The name of a device in a plot: its backend, and its index unless it is 0. Criterion prints `group/device`
/// in a fifth of the plot's width and cuts names of more than about twenty characters on the left, so groups
/// have short names too.
pub fn label(device: &Device) -> String {
    match device.index() {
        0 => device.backend().to_string(),
        _ => device.to_string(),
    }
}

/// Device time of this many launches, queued back to back into the same memory.
pub fn time(
    device: &Device,
    iterations: u64,
    launch: impl Fn(&mut Vec<Tensor>) -> Result<()> + Sync,
) -> Duration {
    let mut results = Vec::new();
    // The first launch allocates and compiles and is not timed.
    launch(&mut results).expect("the case runs");
    results[0].wait().expect("the case runs");
    let ((), elapsed) = device
        .time(|| (0..iterations).try_for_each(|_| launch(black_box(&mut results))))
        .expect("the device can be timed");
    results[0].wait().expect("the case runs");
    elapsed
}
