use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use windowpane_geometry::DType;

use crate::{Backend, Device, Result, Tensor};

/// The bytes that each thread of `host` copies in a round, and the fewest that all do together:
/// more than caches hold.
const BYTES_A_THREAD: usize = 32 << 20;
const BYTES_AT_LEAST: usize = 128 << 20;

/// The bytes that a device's copies read and write, the last being what takes a fast GPU a quarter
/// of a millisecond.
const COPIES: [usize; 3] = [64 << 20, 256 << 20, 1 << 30];

/// How long a copy has to last, in seconds, that no larger one is tried.
const LASTING: f64 = 5e-3;

/// The windows of which the fastest counts, and the launches of each.
const WINDOWS: u32 = 8;
const LAUNCHES: u32 = 4;

/// The rounds of which the fastest counts; the first ones touch the memory for the first time.
const ROUNDS: usize = 12;

impl Device {
    /// The bytes a second that a plain copy moves, what it reads and what it writes together: no
    /// kernel that reads and writes as much can be faster.
    ///
    /// Measured when asked, which takes from a fraction of a second to a few, on tensors that are
    /// larger than caches: a kernel that finds its numbers in them may exceed it. On a GPU that the
    /// processor emulates, too, kernels may.
    ///
    /// ```no_run
    /// let device = windowpane::Device::best();
    /// println!("{device}: {:.0} GB/s", device.copy_ceiling()? / 1e9);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn copy_ceiling(&self) -> Result<f64> {
        if self.backend() == Backend::Host {
            return Ok(host_copy());
        }
        let mut found = self.time_copy(COPIES[0])?;
        for bytes in COPIES.into_iter().skip(1) {
            // What lasts is long beside starting it. A device may have no buffers as large.
            if bytes as f64 / found > LASTING {
                break;
            }
            match self.time_copy(bytes) {
                Ok(larger) => found = larger,
                Err(_) => break,
            }
        }
        Ok(found)
    }

    /// The bytes a second of a copy that reads and writes so many, in its fastest window.
    fn time_copy(&self, bytes: usize) -> Result<f64> {
        let elements = bytes / 2 / DType::F32.size();
        let source = Tensor::random(self, DType::F32, [elements], 1)?;
        let mut target = Tensor::random(self, DType::F32, [elements], 2)?;
        target.copy_from(&source)?;
        target.wait()?;
        let mut fastest = Duration::MAX;
        for _ in 0..WINDOWS {
            let copies = || (0..LAUNCHES).try_for_each(|_| target.copy_from(&source));
            let ((), took) = self.time(copies)?;
            fastest = fastest.min(took / LAUNCHES);
        }
        target.wait()?;
        Ok(bytes as f64 / fastest.as_secs_f64().max(1e-9))
    }
}

/// The units that arithmetic can be done in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unit {
    /// Numbers by themselves, in vectors: a fused multiplication and addition counts as two.
    Vector,
    /// Whole tiles of matrices, summed in f32.
    Matrix,
    /// The same of `f32` that is rounded to tf32 first.
    MatrixTf32,
}

impl Device {
    /// The operations a second that the device does at most on elements of a type, in these units;
    /// nothing where it has none, or for a type that it does not compute with, and on `host`.
    ///
    /// Measured when asked, which takes from a fraction of a second to a few. Multiplications and
    /// additions alone, from registers: what a kernel reaches that has its numbers at hand.
    pub fn arithmetic_ceiling(&self, dtype: DType, unit: Unit) -> Result<Option<f64>> {
        #[cfg(feature = "kernels")]
        if let Some(client) = self.client().filter(|_| self.supports(dtype)) {
            let probe = || cube::arithmetic(client, dtype, unit);
            return crate::listen::with_fresh_ears(self, probe)
                .map_err(|error| self.failure("measuring how fast it computes", &error));
        }
        let _ = (dtype, unit);
        Ok(None)
    }
}

/// CubeCL's probes, without the file in which it keeps what it measured in earlier runs.
#[cfg(feature = "kernels")]
mod cube {
    use cubecl::client::Client;
    use cubecl::ir::features::TypeUsage;
    use cubecl::ir::{ElemType, FloatKind};
    use cubecl::prelude::CubeDim;
    use cubecl::std::throughput::{LaunchConfig, compute_cmma, compute_direct};
    use cubecl_runtime::throughput::{
        CmmaDims, ComputeCmmaConfig, KernelConfig, ThroughputBenchmarker, ThroughputError,
        ThroughputKey, ThroughputMode,
    };

    use super::{DType, Unit};

    /// The widths of vectors that arithmetic is tried in.
    const WIDTHS: [usize; 4] = [1, 2, 4, 8];

    /// A GPU's units of a cube and cubes of a processor, enough to hide what an operation takes.
    const UNITS: u32 = 256;
    const CUBES: u32 = 32;

    pub(super) fn arithmetic(
        client: &Client,
        dtype: DType,
        unit: Unit,
    ) -> Result<Option<f64>, ThroughputError> {
        let Some(elem) = float(dtype) else { return Ok(None) };
        let factor = match unit {
            Unit::MatrixTf32 => ElemType::Float(FloatKind::TF32),
            _ => elem,
        };
        let probes: Vec<_> = match unit {
            // Some devices store and convert a type, and compute in another.
            Unit::Vector if !client.features().type_usage(elem).contains(TypeUsage::Arithmetic) => {
                return Ok(None);
            }
            Unit::Vector => {
                let build =
                    |lanes| compute_direct::build_kernel(client, elem, config(client, lanes));
                WIDTHS.map(build).into()
            }
            Unit::MatrixTf32 if elem != ElemType::Float(FloatKind::F32) => return Ok(None),
            Unit::Matrix | Unit::MatrixTf32 => tiles(client, factor)
                .into_iter()
                .map(|tile| {
                    let mode = ThroughputMode::ComputeCmma { dtype: factor, config: tile };
                    let key = ThroughputKey { mode };
                    compute_cmma::build_kernel(client, key, tile, config(client, 1))
                })
                .collect(),
        };
        fastest(probes)
    }

    /// The fastest of the probes that the device can run; why it can run none.
    fn fastest(
        probes: Vec<Result<KernelConfig, ThroughputError>>,
    ) -> Result<Option<f64>, ThroughputError> {
        let (mut speeds, mut refusal) = (Vec::new(), Ok(None));
        for probe in probes {
            match probe {
                Ok(probe) => speeds.push(ThroughputBenchmarker::sample(probe).ops_per_s()),
                Err(error) => refusal = Err(error),
            }
        }
        // A clock that measured nothing gives no number.
        let speeds = speeds.into_iter().filter(|speed| speed.is_finite());
        speeds.reduce(f64::max).map_or(refusal, |speed| Ok(Some(speed)))
    }

    /// The tiles of this type that the device multiplies and sums in f32.
    fn tiles(client: &Client, elem: ElemType) -> Vec<ComputeCmmaConfig> {
        let sum = ElemType::Float(FloatKind::F32);
        let known = &client.features().matmul.cmma;
        let own = known.iter().filter(|it| (it.a_type, it.b_type, it.cd_type) == (elem, elem, sum));
        own.map(|it| ComputeCmmaConfig {
            accumulator_type: sum,
            cmma_dims: CmmaDims { m: it.m as usize, n: it.n as usize, k: it.k as usize },
        })
        .collect()
    }

    fn config(client: &Client, vector_size: usize) -> LaunchConfig {
        let hardware = &client.properties().hardware;
        let (units, cubes) = match hardware.num_cpu_cores {
            // A unit is a core, which walks all cubes.
            Some(cores) => (cores, CUBES),
            None => {
                let processors = hardware.num_streaming_multiprocessors.unwrap_or(64);
                let cubes = (processors * CUBES).min(hardware.max_cube_count.0);
                (UNITS.min(hardware.max_units_per_cube), cubes)
            }
        };
        LaunchConfig {
            cube_dim: CubeDim::new(client, units as usize),
            cube_count: cubes as usize,
            vector_size,
            plane_size: hardware.plane_size_max.max(1) as usize,
        }
    }

    fn float(dtype: DType) -> Option<ElemType> {
        Some(ElemType::Float(match dtype {
            DType::F64 => FloatKind::F64,
            DType::F32 => FloatKind::F32,
            DType::F16 => FloatKind::F16,
            DType::BF16 => FloatKind::BF16,
            _ => return None,
        }))
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
