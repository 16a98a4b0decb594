use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use windowpane_geometry::DType;

use crate::{Backend, Device, Result, Tensor};

/// The bytes that each thread of `host` copies per round, and the least that all copy together: more
/// than the caches hold.
const BYTES_A_THREAD: usize = 32 << 20;
const BYTES_AT_LEAST: usize = 128 << 20;

/// The bytes that a device's copies read and write; the last takes a fast GPU a quarter of a
/// millisecond.
const COPIES: [usize; 3] = [64 << 20, 256 << 20, 1 << 30];

/// If a copy takes at least this long, in seconds, no larger one is tried.
const LASTING: f64 = 5e-3;

/// The number of windows (the fastest counts), and the launches in each.
const WINDOWS: u32 = 8;
const LAUNCHES: u32 = 4;

/// The number of rounds (the fastest counts); the first ones also touch the memory for the first time.
const ROUNDS: usize = 12;

impl Device {
    /// The bandwidth of a plain copy in bytes per second, reads and writes together: the upper limit
    /// for kernels that read and write memory.
    ///
    /// Measured at each call, in up to a few seconds, on tensors larger than the caches. A kernel whose
    /// data fits in a cache may exceed it; so may kernels on an emulated GPU.
    ///
    /// ```no_run
    /// let device = windowpane::Device::best();
    /// println!("{device}: {:.0} GB/s", device.peak_copy_bandwidth()? / 1e9);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn peak_copy_bandwidth(&self) -> Result<f64> {
        if self.backend() == Backend::Host {
            return Ok(host_copy());
        }
        let mut found = self.time_copy(COPIES[0])?;
        for bytes in COPIES.into_iter().skip(1) {
            // A long copy hides its launch overhead. A device may not support buffers as large.
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

    /// The bandwidth of a copy that reads and writes `bytes`, in its fastest window.
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

/// The kinds of units that do arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ArithmeticUnit {
    /// Vector units; a fused multiply-add counts as two operations.
    Vector,
    /// Matrix units, which multiply tiles and sum in f32.
    Matrix,
    /// Matrix units with `f32` factors rounded to tf32.
    MatrixTf32,
}

impl Device {
    /// The peak operations per second in a type on these units; `None` if kernels have no such units there,
    /// if the device does not compute in the type, or for `host`.
    ///
    /// Measured at each call, in up to a few seconds, with multiplications and additions on registers
    /// only.
    pub fn peak_arithmetic(&self, dtype: DType, unit: ArithmeticUnit) -> Result<Option<f64>> {
        #[cfg(feature = "kernels")]
        if let Some(client) = self.own_client().filter(|_| {
            // WGSL cannot use the matrix units that CubeCL reports for its device.
            let has_matrices = self.capabilities().is_some_and(|known| known.matrix.any());
            let has_units = unit == ArithmeticUnit::Vector || has_matrices;
            self.supports(dtype) && !self.packs(dtype) && has_units
        }) {
            self.watchdog().launches();
            let probe = || cube::arithmetic(client, dtype, unit);
            return crate::listen::with_fresh_ears(self, probe)
                .map_err(|error| self.failure("measuring how fast it computes", &error));
        }
        let _ = (dtype, unit);
        Ok(None)
    }
}

impl Device {
    /// Measures the speeds from which the times of kernels are estimated, in some seconds, as the text of a file that
    /// the environment variable `WINDOWPANE_SPEEDS` may name; `None` for `host`, which has no kernels to choose from.
    ///
    /// Speeds are recorded for known devices and estimated for others. A file of measured ones makes the choice among
    /// kernels better on those.
    ///
    /// ```no_run
    /// let device = windowpane::Device::best();
    /// if let Some(text) = device.calibrate()? {
    ///     std::fs::write("gpu.speeds", text)?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn calibrate(&self) -> Result<Option<String>> {
        #[cfg(feature = "kernels")]
        if let Some(speeds) = self.measure_speeds()? {
            let name = format!("{} {}", self.backend(), self.name());
            return Ok(Some(crate::speeds::print(&name, &speeds)));
        }
        Ok(None)
    }
}

/// CubeCL's probes, without its file of earlier measurements.
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

    use super::{ArithmeticUnit, DType};

    /// The vector widths that are tried. On a CPU the last ones take several registers, so that a core has enough independent
    /// operations.
    const WIDTHS: &[usize] = &[1, 2, 4, 8];
    const CPU_WIDTHS: &[usize] = &[1, 2, 4, 8, 16, 32, 64];

    /// The threads per cube on a GPU and the cubes on a CPU, enough to hide the latency of an operation.
    const UNITS: u32 = 256;
    const CUBES: u32 = 32;

    pub(super) fn arithmetic(
        client: &Client,
        dtype: DType,
        unit: ArithmeticUnit,
    ) -> Result<Option<f64>, ThroughputError> {
        let Some(elem) = float(dtype) else { return Ok(None) };
        let factor = match unit {
            ArithmeticUnit::MatrixTf32 => ElemType::Float(FloatKind::TF32),
            _ => elem,
        };
        let probes: Vec<_> = match unit {
            // Some devices store and convert a type but compute in another.
            ArithmeticUnit::Vector
                if !client.features().type_usage(elem).contains(TypeUsage::Arithmetic) =>
            {
                return Ok(None);
            }
            ArithmeticUnit::Vector => {
                let is_cpu = client.properties().hardware.num_cpu_cores.is_some();
                let widths = if is_cpu { CPU_WIDTHS } else { WIDTHS };
                // A CPU's kernels compute 16-bit types in f32.
                let wider = ElemType::Float(FloatKind::F32);
                let wider = (is_cpu && dtype.size() == 2).then_some(wider);
                let elems = [elem].into_iter().chain(wider);
                let build = |elem, &lanes: &usize| {
                    compute_direct::build_kernel(client, elem, config(client, lanes))
                };
                elems.flat_map(|elem| widths.iter().map(move |lanes| build(elem, lanes))).collect()
            }
            ArithmeticUnit::MatrixTf32 if elem != ElemType::Float(FloatKind::F32) => {
                return Ok(None);
            }
            ArithmeticUnit::Matrix | ArithmeticUnit::MatrixTf32 => tiles(client, factor)
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

    /// The fastest of the probes that the device can run, or the error if it can run none.
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
        // A clock that measured zero gives no result.
        let speeds = speeds.into_iter().filter(|speed| speed.is_finite());
        speeds.reduce(f64::max).map_or(refusal, |speed| Ok(Some(speed)))
    }

    /// The matrix tiles of this type that the device sums in f32.
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
            // A unit is a core, which runs all cubes.
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

/// The bandwidth of all cores copying together, each in its own memory.
fn host_copy() -> f64 {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let bytes = BYTES_A_THREAD.max(BYTES_AT_LEAST / threads);
    let line_up = Barrier::new(threads);
    let copies = || {
        // Filled by the thread that uses it, so that it is allocated near its core.
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
