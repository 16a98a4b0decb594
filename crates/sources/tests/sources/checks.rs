//! Compiles the kernels of a device to its language, and checks the result as far as this is possible without a device.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};

use cubecl::ir::amd::GfxArch;
use cubecl::prelude::{CubeCount, KernelDefinition};
use cubecl::wgpu::WgslCompiler;
use cubecl::wgpu::wgpu::naga;
use cubecl::{Compiler, VulkanCompilationOptions, WgpuCompilationOptions, define_kernel};
use cubecl_cpp::MslCompiler;
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, CppSupportedFeatures};
use cubecl_cpp::target::Hip;
use cubecl_spirv::SpirvCompiler;

use crate::devices::{Device, GFX};
use crate::recorder::Launch;

/// A kernel to compile.
pub(crate) struct Kernel {
    name: &'static str,
    definition: KernelDefinition,
}

/// Whether the units of a cube wait for each other, because they share blocks of factors.
fn has_barriers(kernel: &str) -> bool {
    kernel.contains("::implicit_gemm::")
}

/// Whether a kernel multiplies on matrix units.
fn is_mma(kernel: &str) -> bool {
    kernel.contains("::implicit_gemm::mma::")
}

/// Compiles a kernel and checks its code; returns its bytes of shared memory.
pub(crate) type Compile = fn(Kernel) -> Result<usize, String>;

/// Compiles all kernels launched on a device, which has matrix units if `matrix`. Fails with every kernel that does not
/// compile, is wrong or exceeds the limits of the device.
pub(crate) fn check_all(device: &Device, matrix: bool, compile: Compile) {
    let launches = device.launches.take(&device.client);
    // If kernels are renamed, the checks that depend on names must follow.
    let any = |has: fn(&str) -> bool| launches.iter().any(|it| has(it.kernel.name()));
    assert!(any(has_barriers) && any(is_mma) == matrix, "no kernel has the expected name");
    let failed = |launch: &Launch| {
        let checked = catch_unwind(AssertUnwindSafe(|| check(device, launch, compile)));
        let checked = checked.unwrap_or_else(|_| Err("the compiler panics".into()));
        checked.err().map(|error| format!("{}: {error}", launch.kernel.name()))
    };
    let failures: Vec<_> = launches.iter().filter_map(failed).collect();
    println!("{} kernels", launches.len());
    let count = failures.len();
    assert!(count == 0, "{count} of {} kernels:\n{}", launches.len(), failures.join("\n"));
}

fn check(device: &Device, launch: &Launch, compile: Compile) -> Result<(), String> {
    let hardware = &device.client.properties().hardware;
    let definition = define_kernel(&*launch.kernel).map_err(|error| error.to_string())?;
    let units = definition.settings.cube_dim;
    let (x, y, z) = hardware.max_cube_dim;
    at_most("units along the axes", &[units.x, units.y, units.z], &[x, y, z])?;
    at_most("units", &[units.x * units.y * units.z], &[hardware.max_units_per_cube])?;
    at_most("buffers", &[launch.bindings], &[hardware.max_bindings as usize])?;
    if let CubeCount::Static(x, y, z) = launch.cubes {
        let most = hardware.max_cube_count;
        at_most("cubes along the axes", &[x, y, z], &[most.0, most.1, most.2])?;
    }
    let shared = compile(Kernel { name: launch.kernel.name(), definition })?;
    at_most("bytes of shared memory", &[shared], &[hardware.max_shared_memory_size])
}

fn at_most<T: PartialOrd + std::fmt::Debug>(
    what: &str,
    actual: &[T],
    most: &[T],
) -> Result<(), String> {
    let fits = actual.iter().zip(most).all(|(actual, most)| actual <= most);
    require(fits, || format!("{actual:?} {what}, but the device has at most {most:?}"))
}

fn require(holds: bool, failure: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(failure()) }
}

/// WGSL, as a browser validates it.
pub(crate) fn wgsl(kernel: Kernel) -> Result<usize, String> {
    let options = WgpuCompilationOptions::default();
    let shader = WgslCompiler.compile(kernel.definition, &options);
    let shader = shader.map_err(|error| error.to_string())?;
    let source = shader.to_string();
    contains(&source, "workgroupBarrier()", has_barriers(kernel.name))?;
    let module =
        naga::front::wgsl::parse_str(&source).map_err(|error| error.emit_to_string(&source))?;
    let flags = naga::valid::ValidationFlags::all();
    let mut validator =
        naga::valid::Validator::new(flags, naga::valid::Capabilities::SHADER_FLOAT16);
    validator.validate(&module).map_err(|error| error.emit_to_string(&source))?;
    Ok(shader.shared_memory_size)
}

/// Metal's language. Nothing here can parse it, so only what it must contain is checked.
pub(crate) fn msl(kernel: Kernel) -> Result<usize, String> {
    let barriers = has_barriers(kernel.name);
    let compiled =
        MslCompiler::default().compile(kernel.definition, &CompilationOptions::default());
    let compiled = compiled.map_err(|error| error.to_string())?;
    contains(&compiled.source, "[[kernel]]", true)?;
    contains(&compiled.source, "threadgroup_barrier(", barriers)?;
    Ok(compiled.shared_memory_size)
}

/// HIP's C++. CubeCL's runtime compiles it only with its feature `hip-cpp`, and otherwise through LLVM, which needs the
/// runtime.
pub(crate) fn hip(kernel: Kernel) -> Result<usize, String> {
    let (barriers, mma) = (has_barriers(kernel.name), is_mma(kernel.name));
    let architecture = GfxArch::parse(GFX);
    let options = CompilationOptions {
        warp_size: architecture.plane_dim().unwrap() as usize,
        supports_features: CppSupportedFeatures { fast_math: true, ..Default::default() },
        amd_wmma: architecture.wmma(),
    };
    let compiled = CppCompiler::<Hip>::default().compile(kernel.definition, &options);
    let compiled = compiled.map_err(|error| error.to_string())?;
    contains(&compiled.source, "__global__", true)?;
    contains(&compiled.source, "__syncthreads()", barriers)?;
    contains(&compiled.source, "rocwmma::mma_sync(", mma)?;
    Ok(compiled.shared_memory_size)
}

/// Fails if a text is `expected` in the source but not there.
fn contains(source: &str, text: &str, expected: bool) -> Result<(), String> {
    let fails = expected && !source.contains(text);
    require(!fails, || format!("`{text}` is not in its source"))
}

/// The environment variable with the path of SPIR-V's validator.
const VALIDATOR: &str = "WINDOWPANE_SPIRV_VAL";

/// SPIR-V for Vulkan 1.3.
pub(crate) fn spirv(kernel: Kernel) -> Result<usize, String> {
    let vulkan = VulkanCompilationOptions {
        // Without it, CubeCL 0.12.0-pre.1 writes invalid modules for kernels with shared memory.
        supports_explicit_smem: true,
        supports_uniform_standard_layout: true,
        supports_non_semantic_info: true,
        max_spirv_version: (1, 6),
        max_vector_size: 4,
        push_constant_size: 128,
        ..Default::default()
    };
    let options = WgpuCompilationOptions {
        supports_u64: true,
        supports_vulkan_compiler: true,
        supports_msl_compiler: false,
        vulkan,
    };
    let (barriers, mma) = (has_barriers(kernel.name), is_mma(kernel.name));
    let compiled = SpirvCompiler.compile(kernel.definition, &options);
    let compiled = compiled.map_err(|error| error.to_string())?;
    let (words, shared) = (&compiled.assembled_module, compiled.shared_size);
    let opcodes = opcodes(words)?;
    for (opcode, name, expected) in [
        (15, "OpEntryPoint", true),
        (224, "OpControlBarrier", barriers),
        (4459, "OpCooperativeMatrixMulAddKHR", mma),
    ] {
        let fails = expected && !opcodes.contains(&opcode);
        require(!fails, || format!("the module has no {name}"))?;
    }
    if let Some(validator) = std::env::var_os(VALIDATOR) {
        validate(Command::new(validator), words)?;
    }
    Ok(shared)
}

/// The operations of a module, after a check of its header.
fn opcodes(words: &[u32]) -> Result<Vec<u32>, String> {
    let [0x0723_0203, 0x0001_0600, _, _, 0, rest @ ..] = words else {
        return Err(format!("not a header of SPIR-V 1.6: {:x?}", words.get(..5)));
    };
    let (mut opcodes, mut rest) = (Vec::new(), rest);
    while let [first, ..] = rest {
        // An instruction has its length in the upper half of its first word.
        let length = (first >> 16) as usize;
        opcodes.push(first & 0xffff);
        require((1..=rest.len()).contains(&length), || "an instruction is cut off".into())?;
        rest = &rest[length..];
    }
    Ok(opcodes)
}

/// Passes a module to the validator on its standard input.
fn validate(mut validator: Command, words: &[u32]) -> Result<(), String> {
    validator.args(["--target-env", "vulkan1.3", "--scalar-block-layout", "-"]);
    validator.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = validator.spawn().map_err(|error| format!("{VALIDATOR}: {error}"))?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    // The validator may reject a module before it has read all of it; its exit code says so.
    let _ = running.stdin.take().unwrap().write_all(&bytes);
    let output = running.wait_with_output().map_err(|error| error.to_string())?;
    let text = [output.stdout, output.stderr].concat();
    require(output.status.success(), || String::from_utf8_lossy(&text).into_owned())
}
