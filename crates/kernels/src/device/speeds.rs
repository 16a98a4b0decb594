//! How fast a device is: the numbers from which the time of a kernel is estimated.

use super::{Capabilities, MULTIPROCESSORS};

/// The speeds of a device, as whole numbers so that they can be compared and hashed.
///
/// Those of known devices are recorded ([`profiles`](super::profiles)), those of others are estimated from what their
/// drivers report. `windowpane calibrate` measures them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Speeds {
    /// The bytes per second that a large copy reads and writes, together.
    pub memory: u64,
    /// The same for a copy that fits in the last cache before memory.
    pub cache: u64,
    /// The multiply-adds per second of `f32` on vector units.
    pub vector: u64,
    /// The multiply-adds per second of 16-bit factors on matrix units that serve one plane (warp) at a time; 0 without
    /// such units. Factors rounded to tf32 take twice as long.
    pub matrix: u64,
    /// The same for products of whole warpgroups (`wgmma`).
    pub warpgroup: u64,
    /// The nanoseconds from the start of a launch to the start of the next one, if neither has work to do.
    pub launch: u64,
}

/// What a multiprocessor of a GPU contributes, if the driver only reports their number: about that of a middle-sized
/// GPU of 2022 through its vendor's own interface.
const OF_MULTIPROCESSOR: Speeds = Speeds {
    memory: 12_000_000_000,
    cache: 30_000_000_000,
    vector: 150_000_000_000,
    matrix: 1_000_000_000_000,
    warpgroup: 3_600_000_000_000,
    launch: 2_000,
};

/// What a core of a processor contributes.
const OF_CORE: Speeds = Speeds {
    memory: 8_000_000_000,
    cache: 40_000_000_000,
    vector: 40_000_000_000,
    matrix: 0,
    warpgroup: 0,
    launch: 10_000,
};

impl Speeds {
    /// The estimate for a GPU with this many multiprocessors.
    pub const fn of_gpu(multiprocessors: u32) -> Self {
        OF_MULTIPROCESSOR.times(multiprocessors)
    }

    /// The estimate for a processor with this many cores.
    pub const fn of_processor(cores: u32) -> Self {
        OF_CORE.times(cores)
    }

    const fn times(self, count: u32) -> Self {
        let count = if count == 0 { 1 } else { count as u64 };
        Self {
            memory: self.memory * count,
            cache: self.cache * count,
            vector: self.vector * count,
            matrix: self.matrix * count,
            warpgroup: self.warpgroup * count,
            launch: self.launch,
        }
    }
}

/// The multiply-adds that the vector units of a GPU's multiprocessor start in each cycle.
const LANES: f64 = 128.0;

/// The share of the last cache that repeated accesses are sure to find again.
const SURE: f64 = 1.0 / 3.0;

/// The time of a launch that waits for the results of the previous one, relative to a launch without work.
const WAITING: f64 = 1.7;

impl Capabilities {
    /// The number of multiprocessors, or of a processor's cores.
    pub(crate) fn multiprocessor_count(&self) -> usize {
        self.cores.or(self.multiprocessors).unwrap_or(MULTIPROCESSORS).max(1) as usize
    }

    /// The units of a multiprocessor that execute an instruction in each cycle. A core of a processor executes one.
    pub(crate) fn units_per_cycle(&self) -> f64 {
        if self.cores.is_some() { 1.0 } else { LANES }
    }

    /// The cycles per second, from the speed of the vector units.
    pub(crate) fn clock(&self) -> f64 {
        let lanes = match self.cores {
            Some(_) => (self.load_bytes / size_of::<f32>()).max(1) as f64,
            None => LANES,
        };
        self.speeds.vector as f64 / (self.multiprocessor_count() as f64 * lanes)
    }

    /// The share of this many bytes that is not in the last cache: nothing if they are few, and all if they are more than
    /// it holds.
    pub(crate) fn missed(&self, bytes: f64) -> f64 {
        let cache = self.cache_bytes.unwrap_or(0).max(1) as f64;
        ((bytes / cache - SURE) / (1.0 - SURE)).clamp(0.0, 1.0)
    }

    /// The seconds in which a plain copy reads and writes this many bytes together.
    pub(crate) fn copy_seconds(&self, bytes: f64) -> f64 {
        let missed = self.missed(bytes);
        let Speeds { memory, cache, .. } = self.speeds;
        bytes * (missed / memory as f64 + (1.0 - missed) / cache as f64)
    }

    /// The seconds of this many launches that wait for one another, without their work.
    pub(crate) fn launch_seconds(&self, launches: usize) -> f64 {
        self.speeds.launch as f64 * 1e-9 + self.next_launch_seconds() * (launches as f64 - 1.0)
    }

    /// The seconds of one more launch, without its work.
    pub(crate) fn next_launch_seconds(&self) -> f64 {
        WAITING * self.speeds.launch as f64 * 1e-9
    }
}
