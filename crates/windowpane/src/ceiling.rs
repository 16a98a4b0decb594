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
    /// Measured when asked, which takes from a fraction of a second to a few; CubeCL remembers
    /// what it measured on the devices that it reaches.
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
    let line_up = Barrier::new(threads + 1);
    let fastest = std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // Filled by the thread that uses it, so that it lies near its core.
                let source = vec![1u8; bytes];
                let mut target = vec![2u8; bytes];
                for _ in 0..ROUNDS {
                    line_up.wait();
                    target.copy_from_slice(black_box(&source));
                    black_box(&mut target);
                    line_up.wait();
                }
            });
        }
        let round = |_| {
            line_up.wait();
            let start = Instant::now();
            line_up.wait();
            start.elapsed()
        };
        (0..ROUNDS).map(round).min().unwrap_or(Duration::MAX)
    });
    (2 * threads * bytes) as f64 / fastest.as_secs_f64()
}
