//! Devices as data: the capabilities that plans need, without having the device.
//!
//! The numbers are the makers' public figures, combined with the features that CubeCL reports for such a device. They
//! show that plans stay within a device's limits. The speeds of the H200 were measured; those of the others are the
//! makers' figures too.

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
    bytes: true,
    speeds: Speeds::of_gpu(32),
};

/// A GPU through ROCm.
const HIP: Capabilities = Capabilities {
    shared_bytes: 64 << 10,
    matrix: Fragments { f16: None, bf16: None, tf32: None },
    mma_registers: false,
    ..CUDA
};

/// A GPU through Vulkan's SPIR-V, or Metal's language.
const GRAPHICS: Capabilities = Capabilities {
    cubes: 65_535,
    shared_bytes: 32 << 10,
    matrix: Fragments { f16: None, bf16: None, tf32: None },
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

/// NVIDIA H200, through CUDA.
pub const H200: Profile = Profile {
    name: "NVIDIA H200, cuda",
    capabilities: Capabilities {
        multiprocessors: Some(132),
        cache_bytes: Some(60 << 20),
        shared_bytes: 227 << 10,
        wgmma: true,
        buffer_bytes: 35 << 30,
        speeds: Speeds {
            memory: 4_280_000_000_000,
            cache: 9_000_000_000_000,
            vector: 30_400_000_000_000,
            matrix: 359_000_000_000_000,
            warpgroup: 480_000_000_000_000,
            launch: 1_100,
        },
        ..CUDA
    },
};

/// NVIDIA H100, 80 GB, through CUDA: the same processor with other memory.
pub const H100: Profile = Profile {
    name: "NVIDIA H100 80GB HBM3, cuda",
    capabilities: Capabilities {
        cache_bytes: Some(50 << 20),
        buffer_bytes: 20 << 30,
        speeds: Speeds { memory: 3_350_000_000_000, ..H200.capabilities.speeds },
        ..H200.capabilities
    },
};

/// NVIDIA A100, 80 GB, through CUDA.
pub const A100: Profile = Profile {
    name: "NVIDIA A100, cuda",
    capabilities: Capabilities {
        multiprocessors: Some(108),
        cache_bytes: Some(40 << 20),
        shared_bytes: 163 << 10,
        buffer_bytes: 20 << 30,
        speeds: Speeds {
            memory: 1_900_000_000_000,
            cache: 5_000_000_000_000,
            vector: 9_700_000_000_000,
            matrix: 156_000_000_000_000,
            warpgroup: 0,
            launch: 1_500,
        },
        ..CUDA
    },
};

/// NVIDIA GeForce RTX 4090, through CUDA.
pub const RTX_4090: Profile = Profile {
    name: "NVIDIA GeForce RTX 4090, cuda",
    capabilities: Capabilities {
        multiprocessors: Some(128),
        cache_bytes: Some(72 << 20),
        speeds: Speeds {
            memory: 1_000_000_000_000,
            cache: 5_000_000_000_000,
            vector: 41_000_000_000_000,
            matrix: 82_000_000_000_000,
            warpgroup: 0,
            launch: 1_500,
        },
        ..CUDA
    },
};

/// NVIDIA GeForce RTX 5090, through CUDA.
pub const RTX_5090: Profile = Profile {
    name: "NVIDIA GeForce RTX 5090, cuda",
    capabilities: Capabilities {
        multiprocessors: Some(170),
        cache_bytes: Some(96 << 20),
        buffer_bytes: 8 << 30,
        speeds: Speeds {
            memory: 1_790_000_000_000,
            cache: 8_000_000_000_000,
            vector: 52_000_000_000_000,
            matrix: 105_000_000_000_000,
            warpgroup: 0,
            launch: 1_500,
        },
        ..CUDA
    },
};

/// AMD Instinct MI300X, through ROCm; CubeCL does not support its matrix units.
pub const MI300X: Profile = Profile {
    name: "AMD Instinct MI300X, hip",
    capabilities: Capabilities {
        multiprocessors: Some(304),
        cache_bytes: Some(256 << 20),
        plane: Some(64),
        buffer_bytes: 48 << 30,
        speeds: Speeds {
            memory: 5_300_000_000_000,
            cache: 17_000_000_000_000,
            vector: 81_000_000_000_000,
            matrix: 0,
            warpgroup: 0,
            launch: 3_000,
        },
        ..HIP
    },
};

/// AMD Radeon RX 7900 XTX, through ROCm.
pub const RX_7900_XTX: Profile = Profile {
    name: "AMD Radeon RX 7900 XTX, hip",
    capabilities: Capabilities {
        multiprocessors: Some(96),
        cache_bytes: Some(96 << 20),
        matrix: Fragments { f16: Some(SQUARE), bf16: Some(SQUARE), tf32: None },
        speeds: Speeds {
            memory: 960_000_000_000,
            cache: 3_500_000_000_000,
            vector: 30_000_000_000_000,
            matrix: 61_000_000_000_000,
            warpgroup: 0,
            launch: 3_000,
        },
        ..HIP
    },
};

/// Apple M3 with ten cores, through Metal.
pub const APPLE_M3: Profile = Profile {
    name: "Apple M3, metal",
    capabilities: Capabilities {
        multiprocessors: Some(10),
        cache_bytes: Some(8 << 20),
        speeds: Speeds {
            memory: 100_000_000_000,
            cache: 300_000_000_000,
            vector: 1_800_000_000_000,
            matrix: 0,
            warpgroup: 0,
            launch: 5_000,
        },
        ..GRAPHICS
    },
};

/// Intel Arc A770, through Vulkan: its planes have 8 to 32 units.
pub const ARC_A770: Profile = Profile {
    name: "Intel Arc A770, vulkan",
    capabilities: Capabilities {
        multiprocessors: Some(32),
        cache_bytes: Some(16 << 20),
        shared_bytes: 64 << 10,
        plane: None,
        speeds: Speeds {
            memory: 560_000_000_000,
            cache: 1_500_000_000_000,
            vector: 9_800_000_000_000,
            matrix: 0,
            warpgroup: 0,
            launch: 5_000,
        },
        ..GRAPHICS
    },
};

/// Qualcomm Adreno 740, a phone's GPU, through Vulkan.
pub const ADRENO_740: Profile = Profile {
    name: "Qualcomm Adreno 740, vulkan",
    capabilities: Capabilities {
        cache_bytes: Some(3 << 20),
        plane: None,
        buffer_bytes: 1 << 30,
        speeds: Speeds {
            memory: 67_000_000_000,
            cache: 200_000_000_000,
            vector: 1_700_000_000_000,
            matrix: 0,
            warpgroup: 0,
            launch: 20_000,
        },
        ..GRAPHICS
    },
};

/// A mid-range GPU for tests of plans, with little shared memory and no matrix units.
#[cfg(test)]
pub(crate) const PLAIN_GPU: Capabilities = Capabilities {
    cubes: 65_535,
    shared_bytes: 48 << 10,
    matrix: Fragments { f16: None, bf16: None, tf32: None },
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
