//! Devices as data: the capabilities that plans need, without having the device.
//!
//! The numbers are the makers' public figures, combined with the features that CubeCL reports for such a device. They
//! show that plans stay within a device's limits. The speeds of the H200 were measured; the H100 has these, except for
//! its memory bandwidth; those of the others are the makers' figures too.

use super::{Capabilities, Fragment, Fragments, Speeds};

/// A device for which plans can be made without having it.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The product's name, and the API through which it is used.
    pub name: &'static str,
    /// Its capabilities.
    pub capabilities: Capabilities,
}

/// All profiles.
pub const PROFILES: [Profile; 10] =
    [H200, H100, A100, RTX_4090, RTX_5090, MI300X, RX_7900_XTX, APPLE_M3, ARC_A770, ADRENO_740];

/// The speeds of a device of this name, if it has a profile.
pub fn speeds(device: &str) -> Option<Speeds> {
    let is_named = |profile: &&Profile| profile.name.split(',').next() == Some(device);
    PROFILES.iter().find(is_named).map(|profile| profile.capabilities.speeds)
}

const SQUARE: Fragment = Fragment { m: 16, n: 16, k: 16 };

/// An NVIDIA GPU through CUDA.
const CUDA: Capabilities = Capabilities {
    load_bytes: 16,
    units_per_cube: 1024,
    cubes: i32::MAX as u32,
    cores: None,
    multiprocessors: None,
    cache_bytes: None,
    shared_bytes: 99 << 10,
    plane: Some(32),
    matrix: Fragments {
        f16: Some(SQUARE),
        bf16: Some(SQUARE),
        tf32: Some(Fragment { k: 8, ..SQUARE }),
        i8: Some(Fragment { m: 16, n: 8, k: 32 }),
    },
    mma_registers: true,
    wgmma: false,
    buffer_bytes: 6 << 30,
    offset_alignment: 16,
    vector_lanes: usize::MAX,
    ieee_max: true,
    rounds_bf16: true,
    packed_halves: true,
    fuses_conversions: true,
    shared_vectors: true,
    plane_ops: true,
    int8: true,
    int16: true,
    int64: true,
    speeds: Speeds::of_gpu(32),
};

/// A GPU through ROCm.
const HIP: Capabilities = Capabilities {
    shared_bytes: 64 << 10,
    matrix: Fragments { f16: None, bf16: None, tf32: None, i8: None },
    mma_registers: false,
    ..CUDA
};

/// A GPU through Vulkan's SPIR-V, or Metal's language.
const GRAPHICS: Capabilities = Capabilities {
    cubes: 65_535,
    shared_bytes: 32 << 10,
    matrix: Fragments { f16: None, bf16: None, tf32: None, i8: None },
    mma_registers: false,
    buffer_bytes: 2 << 30,
    offset_alignment: 256,
    vector_lanes: 4,
    ieee_max: false,
    rounds_bf16: false,
    packed_halves: false,
    fuses_conversions: false,
    shared_vectors: false,
    plane_ops: false,
    ..CUDA
};

/// An NVIDIA GPU with Hopper's warpgroup products.
const HOPPER: Capabilities = Capabilities { wgmma: true, ..CUDA };

/// A GPU whose planes differ in their number of units.
const MIXED_PLANES: Capabilities = Capabilities { plane: None, ..GRAPHICS };

/// A device like `base`, with this number of multiprocessors (0 if it is not reported), MiB of cache, KiB of shared
/// memory and GiB of the largest buffer. The speeds are in 10⁹ bytes per second of memory and cache, 10⁹ multiply-adds
/// per second of vector units, matrix units and warpgroups, and nanoseconds per launch.
const fn profile(
    name: &'static str,
    base: Capabilities,
    [multiprocessors, cache, shared, buffer]: [u32; 4],
    [memory, caching, vector, matrix, warpgroup, launch]: [u64; 6],
) -> Profile {
    const GIGA: u64 = 1_000_000_000;
    let speeds = Speeds {
        memory: memory * GIGA,
        cache: caching * GIGA,
        vector: vector * GIGA,
        matrix: matrix * GIGA,
        warpgroup: warpgroup * GIGA,
        launch,
    };
    let capabilities = Capabilities {
        multiprocessors: if multiprocessors > 0 { Some(multiprocessors) } else { None },
        cache_bytes: Some((cache as usize) << 20),
        shared_bytes: (shared as usize) << 10,
        buffer_bytes: (buffer as u64) << 30,
        speeds,
        ..base
    };
    Profile { name, capabilities }
}

/// NVIDIA H200, through CUDA.
pub const H200: Profile = profile(
    "NVIDIA H200, cuda",
    HOPPER,
    [132, 60, 227, 35],
    [4_280, 9_000, 30_400, 359_000, 480_000, 1_100],
);

/// NVIDIA H100, 80 GB, through CUDA: the same processor with other memory.
pub const H100: Profile = profile(
    "NVIDIA H100 80GB HBM3, cuda",
    HOPPER,
    [132, 50, 227, 20],
    [3_350, 9_000, 30_400, 359_000, 480_000, 1_100],
);

/// NVIDIA A100, 80 GB, through CUDA.
pub const A100: Profile = profile(
    "NVIDIA A100, cuda",
    CUDA,
    [108, 40, 163, 20],
    [1_900, 5_000, 9_700, 156_000, 0, 1_500],
);

/// NVIDIA GeForce RTX 4090, through CUDA.
pub const RTX_4090: Profile = profile(
    "NVIDIA GeForce RTX 4090, cuda",
    CUDA,
    [128, 72, 99, 6],
    [1_000, 5_000, 41_000, 82_000, 0, 1_500],
);

/// NVIDIA GeForce RTX 5090, through CUDA.
pub const RTX_5090: Profile = profile(
    "NVIDIA GeForce RTX 5090, cuda",
    CUDA,
    [170, 96, 99, 8],
    [1_790, 8_000, 52_000, 105_000, 0, 1_500],
);

/// AMD Instinct MI300X, through ROCm; CubeCL does not support its matrix units.
pub const MI300X: Profile = profile(
    "AMD Instinct MI300X, hip",
    Capabilities { plane: Some(64), ..HIP },
    [304, 256, 64, 48],
    [5_300, 17_000, 81_000, 0, 0, 3_000],
);

/// AMD Radeon RX 7900 XTX, through ROCm.
pub const RX_7900_XTX: Profile = profile(
    "AMD Radeon RX 7900 XTX, hip",
    Capabilities { matrix: Fragments { tf32: None, i8: None, ..CUDA.matrix }, ..HIP },
    [96, 96, 64, 6],
    [960, 3_500, 30_000, 61_000, 0, 3_000],
);

/// Apple M3 with ten cores, through Metal.
pub const APPLE_M3: Profile =
    profile("Apple M3, metal", GRAPHICS, [10, 8, 32, 2], [100, 300, 1_800, 0, 0, 5_000]);

/// Intel Arc A770, through Vulkan: its planes have 8 to 32 units.
pub const ARC_A770: Profile = profile(
    "Intel Arc A770, vulkan",
    MIXED_PLANES,
    [32, 16, 64, 2],
    [560, 1_500, 9_800, 0, 0, 5_000],
);

/// Qualcomm Adreno 740, a phone's GPU, through Vulkan.
pub const ADRENO_740: Profile = profile(
    "Qualcomm Adreno 740, vulkan",
    MIXED_PLANES,
    [0, 3, 32, 1],
    [67, 200, 1_700, 0, 0, 20_000],
);

/// A mid-range GPU for tests of plans, with little shared memory and no matrix units.
#[cfg(test)]
pub(crate) const PLAIN_GPU: Capabilities = Capabilities {
    cubes: 65_535,
    shared_bytes: 48 << 10,
    matrix: Fragments { f16: None, bf16: None, tf32: None, i8: None },
    mma_registers: false,
    buffer_bytes: 1 << 34,
    ..CUDA
};

/// The same GPU through a shading language.
#[cfg(test)]
pub(crate) const SHADING_GPU: Capabilities = Capabilities {
    cubes: PLAIN_GPU.cubes,
    shared_bytes: PLAIN_GPU.shared_bytes,
    buffer_bytes: PLAIN_GPU.buffer_bytes,
    ..GRAPHICS
};

/// A processor with two cores.
#[cfg(test)]
pub(crate) const PROCESSOR: Capabilities = Capabilities {
    load_bytes: 64,
    offset_alignment: 64,
    cores: Some(2),
    speeds: Speeds::of_processor(2),
    plane: Some(1),
    packed_halves: false,
    plane_ops: false,
    ..PLAIN_GPU
};
