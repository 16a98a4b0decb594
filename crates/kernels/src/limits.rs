use cubecl::client::Client;
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
    /// The processor cores, where units are threads of a processor that each walk all cubes.
    pub cores: Option<u32>,
    /// The largest buffer that can be bound, in bytes.
    pub buffer_bytes: u64,
    /// Whether maxima and conversions are IEEE 754's as they stand, as where LLVM makes the code:
    /// +0 above −0, and bf16 rounded to nearest even.
    pub ieee: bool,
}

impl Limits {
    /// Reads the limits of a device.
    pub fn of(client: &Client) -> Self {
        let properties = client.properties();
        Self {
            load_bytes: (properties.hardware.load_width / 8) as usize,
            units_per_cube: properties.hardware.max_units_per_cube,
            cores: properties.hardware.num_cpu_cores,
            buffer_bytes: properties.memory.max_page_size,
            ieee: ["cuda", "cpu"].contains(&client.name()),
        }
    }
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
