//! Compiles the kernels of a device to its language, and checks the result as far as this is possible without a device.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
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

/// Whether the units of a cube wait for each other, because they load blocks of factors for all of them.
fn has_barriers(kernel: &str) -> bool {
    kernel.contains("::implicit_gemm::") && !kernel.contains("::wgmma::")
}

/// Whether a kernel multiplies on matrix units.
fn is_mma(kernel: &str) -> bool {
    kernel.contains("::implicit_gemm::mma::")
}

/// Whether a kernel multiplies on Hopper's matrix units, which read what the copy engine brings.
#[cfg(feature = "cpu")]
fn is_wgmma(kernel: &str) -> bool {
    kernel.contains("::wgmma::kernel::")
}

/// What a kernel was compiled to.
pub(crate) struct Code {
    bytes: Vec<u8>,
    /// The bytes of shared memory that it needs.
    shared: usize,
}

/// Compiles a kernel and checks its code.
pub(crate) type Compile = fn(Kernel) -> Result<Code, String>;

/// The environment variable with a folder for the code of all kernels: what a change does to it is the difference of two
/// such folders.
const FOLDER: &str = "WINDOWPANE_SOURCES";

/// Writes code to the folder, under a name that depends on the code alone.
fn keep(folder: &Path, kernel: &str, code: &[u8]) -> Result<(), String> {
    let name: String = kernel.split('<').next().unwrap().replace("::", ".");
    let mut hasher = DefaultHasher::new();
    code.hash(&mut hasher);
    let path = folder.join(format!("{name}-{:016x}", hasher.finish()));
    std::fs::write(&path, code).map_err(|error| format!("{}: {error}", path.display()))
}

/// Compiles all kernels launched on a device, which has matrix units if `matrix`. Fails with every kernel that does not
/// compile, is wrong or exceeds the limits of the device.
pub(crate) fn check_all(device: &Device, matrix: bool, compile: Compile) {
    let launches = device.launches.take(&device.client);
    // If kernels are renamed, the checks that depend on names must follow.
    let any = |has: fn(&str) -> bool| launches.iter().any(|it| has(it.kernel.name()));
    assert!(any(has_barriers) && any(is_mma) == matrix, "no kernel has the expected name");
    let alike = taken_for_others(&launches);
    assert!(alike.is_empty(), "kernels on disk are taken for others:\n{}", alike.join("\n"));
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

/// The kernels that have the hash of another. CubeCL finds kernels on disk by their hashes alone.
fn taken_for_others(launches: &[Launch]) -> Vec<&'static str> {
    let mut hashes = HashSet::new();
    let is_other = |launch: &&Launch| !hashes.insert(launch.kernel.id().stable_hash());
    launches.iter().filter(is_other).map(|launch| launch.kernel.name()).collect()
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
    let name = launch.kernel.name();
    let code = compile(Kernel { name, definition })?;
    if let Some(folder) = std::env::var_os(FOLDER) {
        keep(Path::new(&folder), name, &code.bytes)?;
    }
    at_most("bytes of shared memory", &[code.shared], &[hardware.max_shared_memory_size])
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
pub(crate) fn wgsl(kernel: Kernel) -> Result<Code, String> {
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
    Ok(Code { bytes: source.into_bytes(), shared: shader.shared_memory_size })
}

/// Metal's language. Nothing here can parse it, so only what it must contain is checked.
pub(crate) fn msl(kernel: Kernel) -> Result<Code, String> {
    let barriers = has_barriers(kernel.name);
    let compiled =
        MslCompiler::default().compile(kernel.definition, &CompilationOptions::default());
    let compiled = compiled.map_err(|error| error.to_string())?;
    contains(&compiled.source, "[[kernel]]", true)?;
    contains(&compiled.source, "threadgroup_barrier(", barriers)?;
    Ok(Code { bytes: compiled.source.into_bytes(), shared: compiled.shared_memory_size })
}

/// HIP's C++. CubeCL's runtime compiles it only with its feature `hip-cpp`, and otherwise through LLVM, which needs the
/// runtime.
pub(crate) fn hip(kernel: Kernel) -> Result<Code, String> {
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
    Ok(Code { bytes: compiled.source.into_bytes(), shared: compiled.shared_memory_size })
}

/// The environment variable with the path of NVIDIA's assembler, `ptxas`.
#[cfg(feature = "cpu")]
const ASSEMBLER: &str = "WINDOWPANE_PTXAS";

/// PTX for an NVIDIA GPU, as CubeCL's runtime compiles it.
#[cfg(feature = "cpu")]
pub(crate) fn ptx(kernel: Kernel) -> Result<Code, String> {
    use cubecl_llvm::nvptx::ptx_version::PtxVersion;
    use cubecl_llvm::{LlvmTarget, PlironArtifact, PlironCompiler, PlironOptions};

    let options = PlironOptions {
        sm_arch: Some(crate::devices::hopper()),
        ptx_version: PtxVersion::for_driver(13_000),
        grid_constants: true,
        ..Default::default()
    };
    let Kernel { name, definition } = kernel;
    let (barriers, mma, wgmma) = (has_barriers(name), is_mma(name), is_wgmma(name));
    let compiled = PlironCompiler { target: LlvmTarget::Nvptx }.compile(definition, &options);
    let compiled = match compiled.map_err(|error| error.to_string()) {
        Ok(PlironArtifact::NvptxCode(compiled)) => compiled,
        Ok(_) => return Err("LLVM compiled it to something other than PTX".into()),
        // NVIDIA's toolkit has the powers of norms, in a file that need not be here.
        Err(error) if name.contains("::lp::") && error.contains("libdevice") => {
            return Ok(Code { bytes: Vec::new(), shared: 0 });
        }
        Err(error) => return Err(error),
    };
    // It ends with a zero.
    let bytes: Vec<u8> =
        compiled.ptx.iter().map(|&char| char as u8).take_while(|byte| *byte != 0).collect();
    let source = String::from_utf8_lossy(&bytes);
    contains(&source, ".visible .entry", true)?;
    contains(&source, "bar.sync", barriers)?;
    contains(&source, "mma.sync.aligned", mma)?;
    contains(&source, "wgmma.mma_async.sync.aligned", wgmma)?;
    contains(&source, "cp.async.bulk.tensor", wgmma)?;
    if let Some(assembler) = std::env::var_os(ASSEMBLER) {
        let mut assembler = Command::new(assembler);
        assembler.args(["--gpu-name", "sm_90a", "--output-file", "/dev/null", "/dev/stdin"]);
        accepts(assembler, &bytes)?;
    }
    Ok(Code { bytes, shared: compiled.shared_memory_size })
}

/// Fails if a text is `expected` in the source but not there.
fn contains(source: &str, text: &str, expected: bool) -> Result<(), String> {
    let fails = expected && !source.contains(text);
    require(!fails, || format!("`{text}` is not in its source"))
}

/// The environment variable with the path of SPIR-V's validator.
const VALIDATOR: &str = "WINDOWPANE_SPIRV_VAL";
/// What the validator says of cooperative matrices if it is older than these, as Debian 12's is.
const TOO_OLD: &str = "Invalid capability operand: 6022";

/// SPIR-V for Vulkan 1.3.
pub(crate) fn spirv(kernel: Kernel) -> Result<Code, String> {
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
    let Kernel { name, definition } = kernel;
    let (barriers, mma) = (has_barriers(name), is_mma(name));
    let compiled = SpirvCompiler.compile(definition, &options);
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
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    if let Some(validator) = std::env::var_os(VALIDATOR) {
        let mut validator = Command::new(validator);
        validator.args(["--target-env", "vulkan1.3", "--scalar-block-layout", "-"]);
        accepts(validator, &bytes)
            .or_else(|error| require(is_mma(name) && error.contains(TOO_OLD), || error))?;
    }
    Ok(Code { bytes, shared })
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

/// Passes code to a program on its standard input; fails if the program does, with what it printed.
fn accepts(mut program: Command, code: &[u8]) -> Result<(), String> {
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = program.get_program().display().to_string();
    let cannot_run = |error: std::io::Error| format!("`{name}` does not run: {error}");
    let mut running = program.spawn().map_err(&cannot_run)?;
    // The program may reject code before it has read all of it; its exit code says so.
    let _ = running.stdin.take().unwrap().write_all(code);
    let output = running.wait_with_output().map_err(cannot_run)?;
    let text = [output.stdout, output.stderr].concat();
    require(output.status.success(), || String::from_utf8_lossy(&text).into_owned())
}
