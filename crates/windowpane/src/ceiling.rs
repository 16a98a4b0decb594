use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::{Device, Result};

/// The bytes that each thread of `host` copies in a round, and the fewest that all do together:
/// more than caches hold.
const BYTES_A_THREAD: usize = 32 << 20;
const BYTES_AT_LEAST: usize = 128 << 20;

/// The rounds of which the fastest counts; the first ones touch the memory for the first time.
const ROUNDS: usize = 12;

impl Device {
    /// The bytes a second that a plain copy moves, what it reads and what it writes together: no
    /// kernel that reads and writes as much can be faster.
    ///
    /// Measured when asked, which takes from a fraction of a second to a few. The copy is laid out
    /// for real hardware: on a GPU that the processor emulates, kernels may exceed it.
    ///
    /// ```no_run
    /// let device = windowpane::Device::best();
    /// println!("{device}: {:.0} GB/s", device.copy_ceiling()? / 1e9);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn copy_ceiling(&self) -> Result<f64> {
        #[cfg(feature = "kernels")]
        if let Some(client) = self.client() {
            use cubecl_runtime::throughput::{MemoryAccess, ThroughputKey, ThroughputMode};
            let key = ThroughputKey { mode: ThroughputMode::memory(MemoryAccess::Copy) };
            return cubecl::std::throughput::measure_peak_throughput(client, key)
                .map(|peak| peak.bytes_per_s(&key))
                .map_err(|error| self.failure("measuring how fast it copies", &error));
        }
        Ok(host_copy())
    }
}

/// The bytes a second that all cores copy together, each from and to memory of its own.
fn host_copy() -> f64 {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let bytes = BYTES_A_THREAD.max(BYTES_AT_LEAST / threads);
    let line_up = Barrier::new(threads);
    let copies = || {
        // Filled by the thread that uses it, so that it lies near its core.
        let source = vec![1u8; bytes];
        let mut target = vec![2u8; bytes];
        let round = |_| {
            line_up.wait();
            let start = Instant::now();
            target.copy_from_slice(black_box(&source));
            black_box(&mut target);
            (start, Instant::now())
        };
        (0..ROUNDS).map(round).collect::<Vec<_>>()
    };
    let copies: Vec<_> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(copies)).collect();
        let own = copies();
        others.into_iter().filter_map(|other| other.join().ok()).chain([own]).collect()
    });
    // A round lasts from the first thread's start to the last one's end; they may wake apart.
    let lasted = |round: usize| {
        let start = copies.iter().map(|times| times[round].0).min()?;
        let end = copies.iter().map(|times| times[round].1).max()?;
        Some(end - start)
    };
    let fastest = (0..ROUNDS).filter_map(lasted).min().unwrap_or(Duration::MAX);
    (2 * threads * bytes) as f64 / fastest.as_secs_f64()
}
