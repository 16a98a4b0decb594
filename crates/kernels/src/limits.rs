use cubecl::client::Client;
use windowpane_geometry::DType;

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
    /// The memory that the units of a cube share, in bytes.
    pub shared_bytes: usize,
    /// The largest buffer that can be bound, in bytes.
    pub buffer_bytes: u64,
}

impl Limits {
    /// Reads the limits of a device.
    pub fn of(client: &Client) -> Self {
        let properties = client.properties();
        Self {
            load_bytes: (properties.hardware.load_width / 8) as usize,
            units_per_cube: properties.hardware.max_units_per_cube,
            cores: properties.hardware.num_cpu_cores,
            shared_bytes: properties.hardware.max_shared_memory_size,
            buffer_bytes: properties.memory.max_page_size,
        }
    }
}

/// Whether a device can load, store and convert elements of this type.
pub fn supports(client: &Client, dtype: DType) -> bool {
    let features = client.features();
    features.supports_type(elem(dtype)) && features.supports_type(elem(accumulator(dtype)))
}
