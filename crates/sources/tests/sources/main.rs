//! Compiles every kernel to the languages of GPUs that need not be there: a server that only pretends to be a device
//! records what is launched on it.
//!
//! This finds kernels that do not compile, are invalid, or exceed a device's limits. It cannot find wrong results.

mod cases;
mod checks;
mod devices;
#[cfg(feature = "cpu")]
mod networks;
mod recorder;

use std::collections::BTreeSet;

use devices::Device;
#[cfg(feature = "cpu")]
use windowpane_kernels::device::profiles::H200;
use windowpane_kernels::{Capabilities, Fragment, Fragments, conv, pool};

/// The algorithms, with the passes that the cases launch on every device.
const EVERYWHERE: [&str; 17] = [
    "conv depthwise: data forward weight",
    "conv direct: bias data forward quantized weight",
    "conv grouped: data forward",
    "conv simt: data forward quantized weight",
    "pool block_reduce: forward",
    "pool direct: forward",
    "pool gather: gradient",
    "pool gather_staged: gradient",
    "pool gather_tile: gradient",
    "pool lp: forward gradient",
    "pool rank: forward",
    "pool register_tile: forward",
    "pool scatter: gradient",
    "pool segmented_scatter: gradient",
    "pool stencil: forward gradient",
    "pool stochastic: forward",
    "pool van_herk: forward gradient",
];
/// The same, only on devices with fragments that kernels can use.
const WITH_FRAGMENTS: &str = "conv mma: data forward weight";
/// The same, only on devices with fragments of 8-bit integers.
const OF_INTEGERS: &str = "conv mma: quantized";

/// The same, only on NVIDIA's Hopper.
const ON_HOPPER: [&str; 2] = ["conv grouped_mma: data forward", "conv wgmma: data forward weight"];
/// The algorithms that none of the devices has: they are for processors.
const ELSEWHERE: [&str; 2] = ["conv cpu: ", "pool cpu_rows: "];

const FRAGMENT: Fragment = Fragment { m: 16, n: 16, k: 16 };

#[test]
fn every_algorithm_is_listed() {
    let lists = EVERYWHERE.iter().chain(&[WITH_FRAGMENTS]).chain(&ON_HOPPER).chain(&ELSEWHERE);
    let listed: BTreeSet<_> = lists.filter_map(|it| Some(it.split_once(':')?.0.into())).collect();
    let convs = conv::Algorithm::ALL.iter().map(|it| format!("conv {it}"));
    let pools = pool::Algorithm::ALL.iter().map(|it| format!("pool {it}"));
    assert_eq!(listed, convs.chain(pools).collect(), "listed, and those there are");
}

#[test]
fn wgsl_is_valid_within_the_smallest_limits_of_webgpu() {
    check(Device::wgsl(), checks::wgsl, |found| Capabilities {
        units_per_cube: 256,
        shared_bytes: 16 << 10,
        plane: None,
        matrix: Fragments::default(),
        plane_ops: false,
        vector_lanes: 4,
        int8: false,
        int16: false,
        int64: false,
        ..found
    });
}

#[test]
fn spirv_is_well_formed_for_vulkan_on_amd() {
    check(Device::vulkan(), checks::spirv, |found| Capabilities {
        shared_bytes: 32 << 10,
        plane: Some(64),
        matrix: Fragments { f16: Some(FRAGMENT), ..Fragments::default() },
        plane_ops: false,
        vector_lanes: 4,
        int8: true,
        int16: true,
        ..found
    });
}

#[test]
fn msl_is_written_for_apple() {
    check(Device::metal(), checks::msl, |found| Capabilities {
        shared_bytes: 32 << 10,
        plane: Some(32),
        // Apple's fragments are 8×8, which our kernels do not use.
        matrix: Fragments::default(),
        plane_ops: false,
        vector_lanes: 4,
        int8: true,
        int16: true,
        ..found
    });
}

#[test]
fn hip_is_written_for_amd() {
    check(Device::hip(), checks::hip, |found| Capabilities {
        shared_bytes: 64 << 10,
        plane: Some(32),
        matrix: Fragments { f16: Some(FRAGMENT), bf16: Some(FRAGMENT), ..Fragments::default() },
        mma_registers: false,
        plane_ops: true,
        vector_lanes: usize::MAX,
        int8: true,
        int16: true,
        ..found
    });
}

#[cfg(feature = "cpu")]
#[test]
fn ptx_is_written_for_nvidia() {
    // The profile is what plans are tested with, and here is what CubeCL says of such a device.
    check(Device::cuda(), checks::ptx, |found| Capabilities {
        buffer_bytes: found.buffer_bytes,
        ..H200.capabilities
    });
}

/// Launches all cases on a device that should have the `expected` capabilities, and compiles them by `compile`.
fn check(device: Device, compile: checks::Compile, expected: fn(Capabilities) -> Capabilities) {
    let capabilities = Capabilities::of(&device.client);
    assert_eq!(capabilities, expected(capabilities));
    // Plans do not choose opaque fragments of integers yet, but their source is compiled.
    let matrix = Fragments { i8: device.integer_fragment(), ..capabilities.matrix };
    let capabilities = Capabilities { matrix, ..capabilities };
    let launched = cases::launch_all(&device, &capabilities);
    let more = capabilities.matrix.any().then_some(&WITH_FRAGMENTS);
    let more = more.into_iter().chain(capabilities.matrix.i8.map(|_| &OF_INTEGERS));
    let more = more.chain(ON_HOPPER.iter().filter(|_| capabilities.wgmma));
    let expected: BTreeSet<_> = EVERYWHERE.iter().chain(more).flat_map(|it| passes(it)).collect();
    assert_eq!(launched, expected, "what the cases launch, and what this file lists");
    checks::check_all(&device, capabilities.matrix.any(), compile);
}

/// `conv grouped: data` and `conv grouped: forward` from `conv grouped: data forward`.
fn passes(listed: &str) -> impl Iterator<Item = String> {
    let (algorithm, passes) = listed.split_once(": ").unwrap();
    passes.split(' ').map(move |pass| format!("{algorithm}: {pass}"))
}
