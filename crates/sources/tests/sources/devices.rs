//! Five devices, as CubeCL's runtimes describe them: one for each language that kernels are compiled to.
//!
//! The values follow CubeCL 0.12.0-pre.1: `cubecl-wgpu/src/runtime.rs` and `backend/{wgsl,vulkan,metal}.rs` beside it,
//! `cubecl-hip/src/runtime.rs`, `cubecl-cuda/src/runtime.rs` and `cubecl-cpp/src/shared/base.rs`. Properties that no kernel
//! or plan of ours reads are left out.

use cubecl::client::Client;
use cubecl::features::{AtomicUsage, MmaConfig, Plane, TypeUsage};
use cubecl::ir::amd::GfxArch;
use cubecl::ir::{
    AddressType, DeviceIdentity, DeviceProperties, ElemType, FloatKind, HardwareProperties,
    IntKind, MemoryDeviceProperties, TargetProperties, Type, UIntKind,
};
#[cfg(feature = "cpu")]
use cubecl::ir::{ContiguousElements, MmaProperties, nvidia::SmArch};
use cubecl::profile::TimingMethod;
use cubecl_cpp::metal::{arch::MetalArchitecture, mma, supported_cmma_combinations_metal};
use cubecl_cpp::shared::{register_mma_features, register_wmma_features};
use windowpane_kernels::{DType, Fragment};

use crate::recorder::{self, Launches};

/// The architecture of the AMD GPU that HIP is compiled for.
pub(crate) const GFX: &str = "gfx1100";

/// The architecture of the NVIDIA GPU that CUDA is compiled for: Hopper's.
#[cfg(feature = "cpu")]
pub(crate) fn hopper() -> SmArch {
    SmArch::new(90, true)
}

/// A device whose launches are recorded.
pub(crate) struct Device {
    pub(crate) client: Client,
    pub(crate) launches: Launches,
    /// The 16-bit type of its cases.
    pub(crate) half: DType,
}

impl Device {
    fn new(runtime: &'static str, half: DType, properties: DeviceProperties) -> Self {
        let target = match runtime {
            "wgpu<msl>" => TargetProperties { mma: mma::mma_properties_metal() },
            #[cfg(feature = "cpu")]
            "cuda" => TargetProperties { mma: mma_properties_cuda() },
            _ => TargetProperties::default(),
        };
        let (client, launches) = recorder::client(runtime, properties, target);
        Self { client, launches, half }
    }

    /// WebGPU with the smallest limits that it guarantees, and 16-bit floats.
    pub(crate) fn wgsl() -> Self {
        // Of the 8 buffers, wgpu keeps one for the lengths of the others. It does not know the size of planes.
        let limits = Limits { shared: 16 << 10, units: 256, bindings: 7, plane: [8, 128] };
        let mut properties = properties("any", limits);
        add_types(&mut properties, &[FloatKind::Flex32, FloatKind::F16].map(ElemType::Float));
        Self::new("wgpu<wgsl>", DType::F16, properties)
    }

    /// Vulkan on the GPU of an AMD processor. Planes of a separate GPU may have 32 or 64 units, but kernels for matrix
    /// units need to know how many.
    pub(crate) fn vulkan() -> Self {
        let limits = Limits { shared: 32 << 10, units: 1024, bindings: 30, plane: [64, 64] };
        let mut properties = properties("AMD", limits);
        add_types(&mut properties, &integers());
        add_types(&mut properties, &[ElemType::Float(FloatKind::F16)]);
        add_fragments(&mut properties, &[FloatKind::F16]);
        let [a_type, cd_type] = [IntKind::I8, IntKind::I32].map(ElemType::Int);
        let integers = MmaConfig { a_type, b_type: a_type, cd_type, m: 16, n: 16, k: 32 };
        properties.features.matmul.cmma.insert(integers);
        add_planes(&mut properties);
        properties.features.plane.insert(Plane::Sync);
        Self::new("wgpu<spirv>", DType::F16, properties)
    }

    /// The opaque fragment of 8-bit integers that the device lists.
    pub(crate) fn integer_fragment(&self) -> Option<Fragment> {
        let of = ElemType::Int(IntKind::I8);
        let mut listed = self.client.features().matmul.cmma.iter();
        let found = listed.find(|config| config.a_type == of)?;
        Some(Fragment { m: found.m, n: found.n, k: found.k })
    }

    /// Metal on an Apple M3.
    pub(crate) fn metal() -> Self {
        let limits = Limits { shared: 32 << 10, units: 1024, bindings: 30, plane: [32, 32] };
        let mut properties = properties("Apple M3", limits);
        add_types(&mut properties, &integers());
        add_types(&mut properties, &[FloatKind::F16, FloatKind::BF16].map(ElemType::Float));
        properties.register_address_type(AddressType::U64);
        let family = MetalArchitecture::Metal3;
        register_wmma_features(supported_cmma_combinations_metal(&family), &mut properties);
        register_mma_features(mma::supported_mma_combinations_metal(&family), &mut properties);
        add_planes(&mut properties);
        properties.features.plane.insert(Plane::Sync);
        properties.features.alignment = true;
        properties.hardware.num_streaming_multiprocessors = Some(10);
        Self::new("wgpu<msl>", DType::BF16, properties)
    }

    /// HIP on an AMD Radeon RX 7900 XTX.
    pub(crate) fn hip() -> Self {
        let plane = GfxArch::parse(GFX).plane_dim().unwrap();
        let limits =
            Limits { shared: 64 << 10, units: 1024, bindings: 1024, plane: [plane, plane] };
        let mut properties = properties("AMD Radeon RX 7900 XTX", limits);
        let hardware = &mut properties.hardware;
        hardware.max_cube_count = (i32::MAX as u32, 65_535, 65_535);
        hardware.max_cube_dim = (1024, 1024, 1024);
        hardware.max_vector_size = usize::MAX;
        hardware.num_streaming_multiprocessors = Some(96);
        cubecl_cpp::register_supported_types(&mut properties);
        properties.features.memory_reinterpret = true;
        add_fragments(&mut properties, &[FloatKind::F16, FloatKind::BF16]);
        add_planes(&mut properties);
        properties.features.alignment = true;
        Self::new("hip", DType::BF16, properties)
    }

    /// CUDA on an NVIDIA H200.
    #[cfg(feature = "cpu")]
    pub(crate) fn cuda() -> Self {
        use cubecl::cmma::LdMatrixForm;
        use cubecl::features::Tma;
        use cubecl::ir::OpaqueType;
        use cubecl_cpp::cuda::arch::CudaArchitecture;
        use cubecl_cpp::cuda::mma::CudaCmmaCompiler;
        use cubecl_cpp::cuda::supported_mma_combinations;
        use cubecl_llvm::shared::lowered_features::{GpuTarget, restrict_features};

        let limits = Limits { shared: 227 << 10, units: 1024, bindings: 1024, plane: [32, 32] };
        let mut properties = properties("NVIDIA H200", limits);
        let hardware = &mut properties.hardware;
        hardware.max_cube_count = (i32::MAX as u32, 65_535, 65_535);
        hardware.max_cube_dim = (1024, 1024, 64);
        hardware.max_vector_size = usize::MAX;
        hardware.num_streaming_multiprocessors = Some(132);
        hardware.last_level_cache_size = Some(60 << 20);
        cubecl_cpp::register_supported_types(&mut properties);
        add_types(&mut properties, &[ElemType::Float(FloatKind::TF32)]);
        properties.register_opaque_type(OpaqueType::Barrier);
        properties.register_opaque_type(OpaqueType::TensorMap);
        let features = &mut properties.features;
        features.memory_reinterpret = true;
        features.alignment = true;
        features.copy_async = true;
        features.tma.insert(Tma::Base);
        let halves = [FloatKind::F16, FloatKind::BF16].map(ElemType::Float);
        features.matmul.ldmatrix.extend(halves);
        features.matmul.ldmatrix_forms.insert(LdMatrixForm::M8N8B16);
        add_planes(&mut properties);
        properties.features.plane.insert(Plane::Sync);
        let arch = CudaArchitecture { version: hopper().version(), tensor_cores: true };
        let fragments = CudaCmmaCompiler::Cpp.supported_cmma_combinations(&arch);
        register_wmma_features(fragments, &mut properties);
        register_mma_features(supported_mma_combinations(&arch), &mut properties);
        restrict_features(&mut properties, GpuTarget::Nvptx { arch: hopper() });
        Self::new("cuda", DType::BF16, properties)
    }
}

#[cfg(feature = "cpu")]
fn mma_properties_cuda() -> MmaProperties {
    use cubecl::cmma::MatrixLayout;
    use cubecl_cpp::cuda::mma::manual::contiguous_elements_cuda;

    MmaProperties {
        register_size_bits: 32,
        const_plane_size: 32,
        register_layout_a: MatrixLayout::RowMajor,
        register_layout_b: MatrixLayout::ColMajor,
        register_layout_acc: MatrixLayout::RowMajor,
        register_duplication_a: 1,
        register_duplication_b: 1,
        register_duplication_acc: 1,
        contiguous_elements: ContiguousElements::new(contiguous_elements_cuda),
    }
}

/// The limits in which the devices differ.
struct Limits {
    /// Bytes of shared memory per cube.
    shared: usize,
    /// Units per cube.
    units: u32,
    /// Buffers per kernel.
    bindings: u32,
    /// The fewest and the most units of a plane.
    plane: [u32; 2],
}

fn properties(name: &str, Limits { shared, units, bindings, plane }: Limits) -> DeviceProperties {
    let [plane_size_min, plane_size_max] = plane;
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min,
        plane_size_max,
        max_bindings: bindings,
        max_shared_memory_size: shared,
        max_cube_count: (65_535, 65_535, 65_535),
        max_units_per_cube: units,
        max_cube_dim: (units, units, 64),
        num_streaming_multiprocessors: None,
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: 4,
        cube_mma_reserved_shared_memory: 0,
    };
    let identity = DeviceIdentity { name: name.into(), fingerprint: name.into(), physical: None };
    // As WebGPU guarantees; no case has a larger buffer.
    let memory = MemoryDeviceProperties::new(128 << 20, 256);
    let timing = TimingMethod::Device;
    let mut properties =
        DeviceProperties::new(Default::default(), memory, hardware, timing, identity);
    properties.register_address_type(AddressType::U32);
    let words = [ElemType::Int(IntKind::I32), ElemType::UInt(UIntKind::U32)];
    add_types(&mut properties, &words);
    add_types(&mut properties, &[ElemType::Index, ElemType::Bool, ElemType::Float(FloatKind::F32)]);
    for word in words.map(Type::atomic) {
        let usage = AtomicUsage::LoadStore | AtomicUsage::Exchange | AtomicUsage::Add;
        properties.register_atomic_type_usage(word, usage);
        properties.register_shared_atomic_type_usage(word, usage);
    }
    properties
}

fn add_types(properties: &mut DeviceProperties, types: &[ElemType]) {
    for &each in types {
        properties.register_type_usage(each, TypeUsage::all());
    }
}

/// The integers other than those of 32 bits.
fn integers() -> [ElemType; 6] {
    let [i8, i16, i64] = [IntKind::I8, IntKind::I16, IntKind::I64].map(ElemType::Int);
    let [u8, u16, u64] = [UIntKind::U8, UIntKind::U16, UIntKind::U64].map(ElemType::UInt);
    [i8, i16, i64, u8, u16, u64]
}

/// Adds fragments of 16×16×16 with sums in `f32`.
fn add_fragments(properties: &mut DeviceProperties, factors: &[FloatKind]) {
    let cd_type = ElemType::Float(FloatKind::F32);
    for factor in factors.iter().copied().map(ElemType::Float) {
        let fragment = MmaConfig { a_type: factor, b_type: factor, cd_type, m: 16, n: 16, k: 16 };
        properties.features.matmul.cmma.insert(fragment);
    }
}

/// Adds what every device but WGSL's has.
fn add_planes(properties: &mut DeviceProperties) {
    properties.features.device_memory_scope = true;
    properties.features.plane.insert(Plane::Ops);
    properties.features.plane.insert(Plane::NonUniformControlFlow);
}
