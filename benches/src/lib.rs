//! What the benchmarks of the folder's files have in common.

use std::hint::black_box;
use std::time::Duration;

use windowpane::{Device, Result, Tensor};

/// A device in a plot: its backend, and its number unless it is the first. Criterion writes `group/device`
/// into a fifth of a plot's width, cut off on the left where it is longer than some twenty letters; so
/// groups have short names too.
pub fn label(device: &Device) -> String {
    match device.index() {
        0 => device.backend().to_string(),
        _ => device.to_string(),
    }
}

/// Device time of so many launches, queued back to back into the same memory.
pub fn time(
    device: &Device,
    iterations: u64,
    launch: impl Fn(&mut Vec<Tensor>) -> Result<()> + Sync,
) -> Duration {
    let mut results = Vec::new();
    // What the first launch allocates and compiles is not what is timed.
    launch(&mut results).expect("the case runs");
    results[0].wait().expect("the case runs");
    let ((), elapsed) = device
        .time(|| (0..iterations).try_for_each(|_| launch(black_box(&mut results))))
        .expect("the device can be timed");
    results[0].wait().expect("the case runs");
    elapsed
}
