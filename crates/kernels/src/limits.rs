//! What a device can do, as far as plans ask.

use cubecl::client::Client;
use cubecl::features::Tma;
use cubecl::ir::{ElemType, FloatKind};
use windowpane_geometry::{DType, Exponent};

use crate::dtype::{accumulator, elem};

/// What a plan needs to know of a device.
///
/// Plain numbers, so that a plan can be made and tested without a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The widest single load, in bytes.
    pub load_bytes: usize,
    /// The most units that a cube may have.
    pub units_per_cube: u32,
    /// The most cubes that a launch may have along its first axis.
    pub cubes: u32,
    /// The processor cores, where units are threads of a processor that each walk all cubes.
    pub cores: Option<u32>,
    /// The memory that the units of a cube share, in bytes.
    pub shared_bytes: usize,
    /// The units of a plane, where all planes have as many.
    pub plane: Option<u32>,
    /// The fragments that matrix units multiply, in sums of `f32`.
    pub matrix: Fragments,
    /// Whether a unit may hold its part of a fragment of 16 by 8 sums of 16 terms as it pleases, and
    /// load it from shared memory by lines of 8: NVIDIA's way.
    pub holds_fragments: bool,
    /// The multiprocessors, where they have Hopper's warpgroup products and tensor copies.
    pub hopper: Option<u32>,
    /// The largest buffer that can be bound, in bytes.
    pub buffer_bytes: u64,
    /// Whether LLVM makes the code: maxima and conversions are then IEEE 754's as they stand, +0 above
    /// −0 and bf16 rounded to nearest even, and vectors stay whole.
    pub llvm: bool,
}

/// Where a launch goes: a device's client, and the limits that its plans are made by.
///
/// They may be less than [`Limits::of`] reads: a language has no words for all that its device has.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The device's client.
    pub client: &'a Client,
    /// What plans for it are made by, and held to.
    pub limits: &'a Limits,
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
    /// Of `f16`.
    pub f16: Option<Fragment>,
    /// Of `bf16`.
    pub bf16: Option<Fragment>,
    /// Of `f32` rounded to tf32.
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

impl Limits {
    /// Reads the limits of a device.
    pub fn of(client: &Client) -> Self {
        let properties = client.properties();
        Self {
            load_bytes: (properties.hardware.load_width / 8) as usize,
            units_per_cube: properties.hardware.max_units_per_cube,
            cubes: properties.hardware.max_cube_count.0,
            cores: properties.hardware.num_cpu_cores,
            shared_bytes: properties.hardware.max_shared_memory_size,
            plane: (properties.hardware.plane_size_min == properties.hardware.plane_size_max)
                .then_some(properties.hardware.plane_size_min),
            matrix: Fragments::of(client),
            holds_fragments: holds_fragments(client),
            hopper: hopper(client),
            buffer_bytes: properties.memory.max_page_size,
            llvm: ["cuda", "cpu"].contains(&client.name()),
        }
    }
}

fn holds_fragments(client: &Client) -> bool {
    let matmul = &client.features().matmul;
    let sum = ElemType::Float(FloatKind::F32);
    [FloatKind::F16, FloatKind::BF16].into_iter().map(ElemType::Float).all(|factor| {
        let sums = (factor, factor, sum, [16, 8, 16]);
        let known = matmul.mma.iter();
        let mut known = known.map(|c| (c.a_type, c.b_type, c.cd_type, [c.m, c.n, c.k]));
        known.any(|config| config == sums) && matmul.ldmatrix.contains(&factor)
    })
}

fn hopper(client: &Client) -> Option<u32> {
    let features = client.features();
    let there = !features.matmul.wgmma.is_empty() && features.tma.contains(Tma::Base);
    client.properties().hardware.num_streaming_multiprocessors.filter(|_| there)
}

/// Whether a device can load, store and convert elements of this type.
pub fn supports(client: &Client, dtype: DType) -> bool {
    let features = client.features();
    features.supports_type(elem(dtype)) && features.supports_type(elem(accumulator(dtype)))
}

/// Whether a device can compute norms of this exponent and type.
///
/// Those of exponents 1 and 2 need no powers. SPIR-V's are of 32 bits at most.
pub fn has_powers(client: &Client, p: Exponent, dtype: DType) -> bool {
    let spirv = client.name() == "wgpu<spirv>";
    dtype != DType::F64 || !spirv || [1.0, 2.0].contains(&p.get())
}
