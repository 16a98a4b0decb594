//! What a device can do: all that the choice of a kernel asks of a device.
//!
//! [`Capabilities`] are facts of the device, its driver and the compiler that serves it. They are plain
//! numbers, so that a plan can be made and tested without a device.

use cubecl::client::Client;
use cubecl::features::Tma;
use cubecl::ir::{ElemType, FloatKind};
use windowpane_geometry::{DType, Exponent};

pub(crate) mod dtype;
pub mod profiles;

use dtype::{accumulator, elem};

/// What a device can do, as far as plans need to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capabilities {
    /// The widest single load, in bytes.
    pub load_bytes: usize,
    /// The most units that a cube may have.
    pub units_per_cube: u32,
    /// The most cubes that a launch may have along its first axis.
    pub cubes: u32,
    /// The processor cores, where units are threads of a processor that each walk all cubes.
    pub cores: Option<u32>,
    /// The multiprocessors of a GPU, where its driver reports them.
    pub multiprocessors: Option<u32>,
    /// The bytes of the last cache before memory, where they are reported.
    pub cache_bytes: Option<usize>,
    /// The memory that the units of a cube share, in bytes.
    pub shared_bytes: usize,
    /// The units of a plane, where all planes have the same number.
    pub plane: Option<u32>,
    /// The fragments that matrix units multiply, with sums in `f32`.
    pub matrix: Fragments,
    /// Whether a unit may hold its part of a fragment of 16 by 8 sums of 16 terms in registers of its own
    /// choice, and load it from shared memory by rows of 8 elements: NVIDIA's `mma` and `ldmatrix`.
    pub mma_registers: bool,
    /// Whether there are Hopper's warpgroup products (`wgmma`) and its tensor copy engine (TMA).
    pub wgmma: bool,
    /// The largest buffer that can be bound, in bytes.
    pub buffer_bytes: u64,
    /// The bytes that a buffer's offset into its memory has to be a multiple of.
    pub offset_alignment: u64,
    /// The most lanes of a vector that the compiler keeps whole; longer vectors are split.
    pub vector_lanes: usize,
    /// Whether a maximum is IEEE 754's as it stands: NaN wins, and +0 is above −0.
    pub ieee_max: bool,
    /// Whether a conversion to bf16 rounds to nearest even.
    pub rounds_bf16: bool,
    /// Whether one instruction compares two numbers of 16 bits.
    pub packed_halves: bool,
    /// Whether the compiler moves conversions behind comparisons, and then compares numbers of 16 bits in
    /// pairs that it has to take apart: there bf16 is widened by its bits.
    pub fuses_conversions: bool,
    /// Whether a kernel may read and write shared memory of one type as vectors of another, for as long as
    /// it runs and without losing occupancy to it.
    pub shared_vectors: bool,
    /// Whether the units of a plane can exchange votes and values in any branch.
    pub plane_ops: bool,
}

/// Where a launch goes: a device's client, and the capabilities that its plans are made for.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The device's client.
    pub client: &'a Client,
    /// What plans for it are made for, and checked against.
    pub device: &'a Capabilities,
}

/// The piece of a product that matrix units multiply at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// Its rows.
    pub m: u32,
    /// Its columns.
    pub n: u32,
    /// Its terms.
    pub k: u32,
}

/// The fragments of a device, for each type of factors; none where it has no matrix units for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fragments {
    /// Factors of `f16`.
    pub f16: Option<Fragment>,
    /// Factors of `bf16`.
    pub bf16: Option<Fragment>,
    /// Factors of `f32`, rounded to tf32.
    pub tf32: Option<Fragment>,
}

impl Fragments {
    fn of(client: &Client) -> Self {
        let find = |factor: FloatKind| {
            let (factor, sum) = (ElemType::Float(factor), ElemType::Float(FloatKind::F32));
            let known = client.features().matmul.cmma.iter().filter(|config| {
                (config.a_type, config.b_type, config.cd_type) == (factor, factor, sum)
            });
            // Square ones: the same fragment serves rows and columns.
            let square = known.filter(|config| (config.m, config.n) == (16, 16));
            square.map(|config| Fragment { m: config.m, n: config.n, k: config.k }).next()
        };
        Self { f16: find(FloatKind::F16), bf16: find(FloatKind::BF16), tf32: find(FloatKind::TF32) }
    }
}

/// The way from a kernel to the device's code, by the name of CubeCL's runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compiler {
    /// LLVM, for NVIDIA and AMD GPUs and for processors.
    Llvm,
    /// SPIR-V, for Vulkan drivers.
    Spirv,
    /// A shading language in text: WGSL or Metal's.
    Text,
}

impl Compiler {
    fn of(client: &Client) -> Self {
        match client.name() {
            "cuda" | "hip" | "cpu" => Self::Llvm,
            "wgpu<spirv>" => Self::Spirv,
            _ => Self::Text,
        }
    }
}

impl Capabilities {
    /// Reads the capabilities of a device, less what its language or its driver does not let kernels have.
    pub fn of(client: &Client) -> Self {
        let properties = client.properties();
        let hardware = &properties.hardware;
        let compiler = Compiler::of(client);
        let llvm = compiler == Compiler::Llvm;
        let gpu = hardware.num_cpu_cores.is_none();
        // At least up to 22.3, Mesa's software Vulkan ends the process where SPIR-V shares memory.
        let crashes = compiler == Compiler::Spirv && properties.identity.name.contains("llvmpipe");
        Self {
            load_bytes: (hardware.load_width / 8) as usize,
            units_per_cube: hardware.max_units_per_cube,
            cubes: hardware.max_cube_count.0,
            cores: hardware.num_cpu_cores,
            multiprocessors: hardware.num_streaming_multiprocessors,
            cache_bytes: hardware.last_level_cache_size,
            shared_bytes: if crashes { 0 } else { hardware.max_shared_memory_size },
            plane: (hardware.plane_size_min == hardware.plane_size_max)
                .then_some(hardware.plane_size_min),
            // WGSL has no words for the matrix units that its device reports.
            matrix: match client.name().contains("wgsl") {
                true => Fragments::default(),
                false => Fragments::of(client),
            },
            mma_registers: has_mma_registers(client),
            wgmma: has_wgmma(client),
            buffer_bytes: properties.memory.max_page_size,
            // A graphics interface binds a buffer at its offset; elsewhere only loads have to be aligned.
            offset_alignment: match compiler {
                Compiler::Llvm => u64::from(hardware.load_width / 8),
                Compiler::Spirv | Compiler::Text => properties.memory.alignment,
            },
            vector_lanes: if llvm { usize::MAX } else { 4 },
            ieee_max: llvm,
            rounds_bf16: llvm,
            packed_halves: llvm && gpu,
            fuses_conversions: llvm,
            shared_vectors: llvm,
            plane_ops: llvm && gpu,
        }
    }

    /// The same where the caller's client compiles to WGSL, which a build with SPIR-V in it cannot be asked:
    /// CubeCL then names both clients of a Vulkan device alike, and reports for both what SPIR-V has.
    pub fn of_wgsl(client: &Client) -> Self {
        Self {
            shared_bytes: client.properties().hardware.max_shared_memory_size,
            matrix: Fragments::default(),
            ..Self::of(client)
        }
    }
}

fn has_mma_registers(client: &Client) -> bool {
    let matmul = &client.features().matmul;
    let sum = ElemType::Float(FloatKind::F32);
    [FloatKind::F16, FloatKind::BF16].into_iter().map(ElemType::Float).all(|factor| {
        let sums = (factor, factor, sum, [16, 8, 16]);
        let known = matmul.mma.iter();
        let mut known = known.map(|c| (c.a_type, c.b_type, c.cd_type, [c.m, c.n, c.k]));
        known.any(|config| config == sums) && matmul.ldmatrix.contains(&factor)
    })
}

fn has_wgmma(client: &Client) -> bool {
    let features = client.features();
    let counted = client.properties().hardware.num_streaming_multiprocessors.is_some();
    counted && !features.matmul.wgmma.is_empty() && features.tma.contains(Tma::Base)
}

/// Whether a device can load, store and convert elements of this type.
pub fn supports(client: &Client, dtype: DType) -> bool {
    let features = client.features();
    features.supports_type(elem(dtype)) && features.supports_type(elem(accumulator(dtype)))
}

/// Whether a device can compute norms of this exponent and type.
///
/// Exponents 1 and 2 need no powers. SPIR-V's powers have 32 bits at most.
pub fn has_powers(client: &Client, p: Exponent, dtype: DType) -> bool {
    let spirv = Compiler::of(client) == Compiler::Spirv;
    dtype != DType::F64 || !spirv || [1.0, 2.0].contains(&p.get())
}
