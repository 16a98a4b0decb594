//! The capabilities of a device: everything about it that the choice of a kernel depends on.
//!
//! [`Capabilities`] are facts about the device, its driver and the compiler that serves it. They are plain numbers, so
//! a plan can be made and tested without a device.

use cubecl::client::Client;
use cubecl::features::Tma;
use cubecl::ir::{ElemType, FloatKind, IntKind, UIntKind};
use windowpane_geometry::{DType, Exponent};

pub(crate) mod dtype;
pub mod profiles;
#[cfg(test)]
pub(crate) mod recorded;
mod speeds;

use dtype::{accumulator, elem, words};
pub use speeds::Speeds;

/// The capabilities of a device, as far as plans need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capabilities {
    /// The widest single load, in bytes.
    pub load_bytes: usize,
    /// The most units that a cube may have.
    pub units_per_cube: u32,
    /// The most cubes that a launch may have along its first axis.
    pub cubes: u32,
    /// The number of processor cores, if units are threads of a processor that each walk all cubes.
    pub cores: Option<u32>,
    /// The number of multiprocessors of a GPU, if its driver reports it.
    pub multiprocessors: Option<u32>,
    /// The size in bytes of the last cache before memory, if it is reported.
    pub cache_bytes: Option<usize>,
    /// The shared memory of a cube, in bytes.
    pub shared_bytes: usize,
    /// The number of units in a plane, if all planes have the same number.
    pub plane: Option<u32>,
    /// The fragments that matrix units multiply, with sums in `f32`, or in `i32` for integers.
    pub matrix: Fragments,
    /// Whether a unit can hold its part of a fragment of 16×8 sums with 16 terms in registers that it chooses, and load
    /// it from shared memory by rows of 8 elements: NVIDIA's `mma` and `ldmatrix`.
    pub mma_registers: bool,
    /// Whether the device has Hopper's warpgroup products (`wgmma`) and its tensor copy engine (TMA).
    pub wgmma: bool,
    /// The largest buffer that can be bound, in bytes.
    pub buffer_bytes: u64,
    /// The alignment in bytes that a buffer's offset into its memory needs.
    pub offset_alignment: u64,
    /// The most lanes of a vector that the compiler does not split.
    pub vector_lanes: usize,
    /// Whether the device's own maximum is that of IEEE 754: NaN wins, and +0 is above −0.
    pub ieee_max: bool,
    /// Whether a conversion to bf16 rounds to nearest even.
    pub rounds_bf16: bool,
    /// Whether the device compares 16-bit numbers two at a time, in one instruction.
    pub packed_halves: bool,
    /// Whether the compiler moves conversions behind comparisons, so that it compares 16-bit numbers in pairs, which it
    /// then has to split. If so, bf16 is widened by its bits.
    pub fuses_conversions: bool,
    /// Whether a kernel may access shared memory of one type as vectors of another, and may hold shared memory for its
    /// whole run without losing occupancy.
    pub shared_vectors: bool,
    /// Whether the units of a plane can exchange votes and values in any branch.
    pub plane_ops: bool,
    /// Whether kernels can load and store 8-bit integers. If not, tensors of `i8`, `u8` and `bool` are packed words,
    /// which are unpacked for kernels.
    pub int8: bool,
    /// The same for 16-bit integers.
    pub int16: bool,
    /// Whether kernels have 64-bit integers, in which integers of 32 bits are summed.
    pub int64: bool,
    /// How fast the device is.
    pub speeds: Speeds,
}

/// The multiprocessors of a GPU whose driver does not report them: as many as a middle-sized one has.
pub(crate) const MULTIPROCESSORS: u32 = 32;

/// The target of a launch: a device's client, and the capabilities for which its plans are made.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The device's client.
    pub client: &'a Client,
    /// The capabilities for which plans are made, and against which they are checked.
    pub device: &'a Capabilities,
}

/// The extents of one matrix-unit operation, `m × n × k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// The number of rows.
    pub m: u32,
    /// The number of columns.
    pub n: u32,
    /// The number of terms of each sum.
    pub k: u32,
}

/// The fragments of a device for each type of factors; `None` if it has no matrix units for the type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fragments {
    /// Factors of `f16`.
    pub f16: Option<Fragment>,
    /// Factors of `bf16`.
    pub bf16: Option<Fragment>,
    /// Factors of `f32`, rounded to tf32.
    pub tf32: Option<Fragment>,
    /// Factors of `i8`; those of 8 columns are in registers that units choose.
    pub i8: Option<Fragment>,
}

impl Fragments {
    /// Whether kernels can use matrix units for any type.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    fn of(client: &Client) -> Self {
        let find = |dtype: DType| {
            let factor = match dtype {
                DType::F32 => ElemType::Float(FloatKind::TF32),
                _ => elem(dtype),
            };
            let sum = elem(accumulator(dtype));
            let known = client.features().matmul.cmma.iter().filter(|config| {
                (config.a_type, config.b_type, config.cd_type) == (factor, factor, sum)
            });
            // Only square ones, so that the same fragment serves rows and columns.
            let square = known.filter(|config| (config.m, config.n) == (16, 16));
            square.map(|config| Fragment { m: config.m, n: config.n, k: config.k }).next()
        };
        let [f16, bf16, tf32] = [DType::F16, DType::BF16, DType::F32].map(find);
        // Opaque fragments of integers, which Vulkan lists, have not run on a device yet.
        Self { f16, bf16, tf32, i8: int8_in_registers(client) }
    }
}

/// The compiler from a kernel to the device's code, determined from the name of CubeCL's runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compiler {
    /// LLVM, for NVIDIA and AMD GPUs and for processors.
    Llvm,
    /// SPIR-V, for Vulkan drivers.
    Spirv,
    /// A shading language as text: WGSL or Metal's.
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
    /// Reads the capabilities of a device, except those that its language or its driver does not give to kernels.
    pub fn of(client: &Client) -> Self {
        let properties = client.properties();
        let hardware = &properties.hardware;
        let compiler = Compiler::of(client);
        let llvm = compiler == Compiler::Llvm;
        let gpu = hardware.num_cpu_cores.is_none();
        // Mesa's software Vulkan, at least up to 22.3, aborts the process if SPIR-V uses shared memory.
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
            // WGSL cannot express the matrix units that its device reports.
            matrix: match client.name().contains("wgsl") {
                true => Fragments::default(),
                false => Fragments::of(client),
            },
            mma_registers: has_mma_registers(client),
            wgmma: has_wgmma(client),
            buffer_bytes: properties.memory.max_page_size,
            // A graphics API binds a buffer at its offset; elsewhere only loads have to be aligned.
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
            int8: supports(client, DType::I8) && supports(client, DType::U8),
            int16: supports(client, DType::I16) && supports(client, DType::U16),
            int64: supports(client, DType::I64)
                && client.features().supports_type(ElemType::UInt(UIntKind::U64)),
            speeds: profiles::speeds(&properties.identity.name).unwrap_or_else(|| {
                match hardware.num_cpu_cores {
                    Some(cores) => Speeds::of_processor(cores),
                    None => Speeds::of_gpu(
                        hardware.num_streaming_multiprocessors.unwrap_or(MULTIPROCESSORS),
                    ),
                }
            }),
        }
    }

    /// Whether kernels have no such type, so that its tensors are packed words. The buffer of such a tensor is padded to
    /// whole words: see [`Self::buffer_size`].
    pub fn packs(&self, dtype: DType) -> bool {
        match dtype {
            DType::I8 | DType::U8 | DType::Bool => !self.int8,
            DType::I16 | DType::U16 => !self.int16,
            _ => false,
        }
    }

    /// The type in which kernels compute with elements of this type: the type itself unless it is packed.
    pub fn computed(&self, dtype: DType) -> DType {
        if self.packs(dtype) { DType::I32 } else { dtype }
    }

    /// The bytes of a buffer for a tensor.
    pub fn buffer_size(&self, dtype: DType, elements: usize) -> usize {
        match self.packs(dtype) {
            true => words(dtype, elements).saturating_mul(size_of::<u32>()),
            false => elements.saturating_mul(dtype.size()),
        }
    }

    /// The same for a client that compiles to WGSL, which a build that includes SPIR-V cannot detect: CubeCL then gives
    /// both clients of a Vulkan device the same name, and reports SPIR-V's capabilities for both.
    pub fn of_wgsl(client: &Client) -> Self {
        Self {
            shared_bytes: client.properties().hardware.max_shared_memory_size,
            matrix: Fragments::default(),
            int8: false,
            int16: false,
            int64: false,
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

/// NVIDIA's fragment of 8-bit integers, which is not among those of 16 columns.
fn int8_in_registers(client: &Client) -> Option<Fragment> {
    let (factor, sum) = (elem(DType::I8), elem(DType::I32));
    let wanted = (factor, factor, sum, [16, 8, 32]);
    let mut known = client.features().matmul.mma.iter();
    let is_known = known.any(|c| (c.a_type, c.b_type, c.cd_type, [c.m, c.n, c.k]) == wanted);
    (is_known && has_mma_registers(client)).then_some(Fragment { m: 16, n: 8, k: 32 })
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

/// Whether a device has integers of 64 bits, in which f64 is compared for ranks and modes, or the type does not need them.
pub fn can_rank(client: &Client, dtype: DType) -> bool {
    dtype != DType::F64 || client.features().supports_type(ElemType::Int(IntKind::I64))
}

/// Whether a device can compute norms of this exponent and type.
///
/// Exponents 1 and 2 need no powers. SPIR-V's power function supports at most 32 bits.
pub fn has_powers(client: &Client, p: Exponent, dtype: DType) -> bool {
    let spirv = Compiler::of(client) == Compiler::Spirv;
    dtype != DType::F64 || !spirv || [1.0, 2.0].contains(&p.get())
}
